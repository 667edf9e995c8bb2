//! The operators that treat every channel by itself: recurrence, selective scan, convolution.

mod convolution;
mod operator;
pub mod plan;
mod recurrence;
mod selective;
mod spectrum;
mod stage;

pub use convolution::{Convolution, ConvolutionOptions};
pub use recurrence::{Recurrence, RecurrenceOptions};
pub use selective::{Selective, SelectiveOptions};
