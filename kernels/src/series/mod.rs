//! The micro-kernels of the per-channel operators, written once over [`Lanes`](crate::lanes::Lanes): recurrence,
//! selective scan, short convolution.
//!
//! **The formulas** are those of [`elsa_core::series::recurrence`], [`selective`](elsa_core::series::selective) and
//! [`convolution`](elsa_core::series::convolution).
//!
//! ```text
//! naive:  for each channel:  for each token:  h = a h + b        (N of them in a selective scan)
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Lanes hold channels.* Channels are independent of each other, but tokens are not. So a tile is [`VECTORS`]
//!    vectors of channels, and tokens are processed one after another. No operation crosses lanes, and a channel's bits
//!    do not depend on its neighbours.
//! 2. *States do not stay subnormal.* A state or factor whose magnitude is below the smallest normal
//!    number becomes zero by selection, so a decaying state is subnormal for at most one operation. This costs a
//!    comparison and a selection; for factors, neither operation is on the dependency chain from token to
//!    token.
//! 3. *A factor of zero clears by selection*, since zero times a NaN or an infinity is NaN.
//! 4. *Exponentials are accurate for large and small arguments*: `ln 2` is subtracted from the argument in two parts
//!    (`functions`), because `x log2 e` alone would be off by many units in the last place.
//!
//! | module | purpose |
//! |---|---|
//! | `kernel` | operands of the kernels, and the table of the kernels for an instruction set |
//! | `functions` | exponential, softplus, silu, and flushing to zero |
//! | `recurrence`, `selective`, `convolution` | the operators |

pub(crate) mod convolution;
pub(crate) mod functions;
pub(crate) mod instance;
pub(crate) mod kernel;
pub(crate) mod recurrence;
pub(crate) mod selective;

pub use kernel::{
    Coefficients, Columns, ConvolutionTile, RecurrenceTile, SelectiveTile, SeriesKernel, VECTORS,
};
