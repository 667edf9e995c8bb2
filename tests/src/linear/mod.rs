//! Problems of linear attention with owned data, and what the oracle answers.
//!
//! [`Params`] describe a case, [`Params::build`] makes it, the same one for the same parameters. [`Case::answer`] is the
//! recurrence in f64, applied to every state.

mod answer;
mod build;

pub use answer::{Answer, Found};
pub use build::{Case, GateKind, Packing, Params};
