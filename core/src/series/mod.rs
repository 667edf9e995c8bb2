//! The operators that treat every channel of a [`Series`] by itself: first-order recurrences, Mamba's selective scan, and
//! convolutions with a relative decay.
//!
//! | step | items |
//! |---|---|
//! | tensors of tokens and channels | [`Series`], [`token_of`] |
//! | the operators: problem, data, f64 oracle, scalar implementation | [`recurrence`], [`selective`], [`convolution`] |
//! | plans of runs on a CPU | [`plan`] |
//! | what error bounds share | [`bound`] |
//! | exponential functions | [`functions`] |

pub mod bound;
pub mod convolution;
pub mod functions;
pub mod plan;
pub mod recurrence;
pub mod selective;
mod tensor;

pub use tensor::{Series, TINY, token_of};
pub(crate) use tensor::{check_states, countable, covers, kept, same};
