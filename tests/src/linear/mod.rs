//! Problems of linear attention with owned data, and the answers of the oracle.
//!
//! [`Params`] describe a case, and [`Params::build`] makes it, reproducibly. [`Case::answer`] is the recurrence in f64,
//! applied to every state.

mod answer;
mod build;

pub use answer::{Answer, Found};
pub use build::{Case, GateKind, Packing, Params};
