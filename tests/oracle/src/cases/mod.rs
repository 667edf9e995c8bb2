//! Problems together with their data.
//!
//! [`Params`] describe a case, and [`Params::build`] builds it reproducibly. [`hard_cases`] are designed, [`any_case`]
//! is random.

mod any;
mod buffers;
mod build;
mod case;
mod data;
mod hard;
mod params;
mod windowed;

pub use any::{any_case, any_params};
pub use buffers::Buffers;
pub use build::each_row;
pub use case::Case;
pub use data::{Data, MaskData};
pub use hard::{HEAD_SIZES, LENGTHS, hard_cases, some_hard_cases};
pub use params::{BiasParams, MaskParams, Params};
