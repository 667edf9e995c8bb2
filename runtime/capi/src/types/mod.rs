//! The types of the ABI: plain data, laid out as C does.
//!
//! Enumerations are integers with named values, so any other value is an error rather than undefined behaviour.

#![allow(non_camel_case_types)]

mod data;
mod engine;
mod gradients;
mod gradients_task;
mod info;
mod linear;
mod numbers;
mod problem;
mod series;
mod stream;
mod task;

pub use data::*;
pub use engine::*;
pub use gradients::*;
pub use gradients_task::*;
pub use info::*;
pub use linear::*;
pub use numbers::*;
pub use problem::*;
pub use series::*;
pub use stream::*;
pub use task::*;
