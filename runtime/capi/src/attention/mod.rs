//! Softmax attention. Every C function that needs the feature `attention` is in this folder.

mod bound;
mod certify;
pub(crate) mod convert;
mod left_out;
mod mask;
mod plan;
mod refused;
mod run;
mod states;
pub(crate) mod tensors;

pub use bound::*;
pub use certify::*;
pub use left_out::*;
pub use mask::*;
pub use plan::*;
pub use refused::*;
pub use run::*;
pub use states::*;
