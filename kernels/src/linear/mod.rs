//! The micro-kernels of linear attention, written once over [`Lanes`](crate::lanes::Lanes).
//!
//! | file | duty |
//! |---|---|
//! | [`kernel`] | what a kernel works on, and its entry points |
//! | [`prepare`] | segments of a head's tokens: gates, products of queries and keys |
//! | `exponential` | exponentials of sums of gates |
//! | [`recur`] | tokens pass a strip of the state |
//! | [`factor`] | the state times factors |
//! | [`read`] | products with a state |

mod exponential;
pub mod factor;
pub(crate) mod instance;
pub mod kernel;
pub mod prepare;
pub mod read;
pub mod recur;

pub use kernel::{Columns, Factors, Head, Kernel, Reading, Segment, Strip, head_room, strip_room};

/// Largest relative error of the exponentials of sums of gates inside a segment.
pub const EXP_RELATIVE: f64 = exponential::RELATIVE;
