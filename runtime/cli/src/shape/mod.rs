//! Shapes on the command line, the problems that they define, and data for these problems.

mod data;
mod form;
mod parse;
mod workload;

pub use data::{Data, Mask};
pub use form::{ALIGNMENTS, MaskForm, Shape};
pub use parse::{HELP, VALUE};
pub use workload::{Named, WORKLOADS, Workload};
