//! Problems of linear attention with owned data, and the answers of the oracle.
//!
//! [`Params`] describe a case, and [`Params::build`] makes it, reproducibly. [`Case::answer`] is the recurrence in f64,
//! applied to every state.

mod answer;
mod build;

use elsa_core::linear::Rule;

pub use answer::{Answer, Found};
pub use build::{Case, GateKind, Packing, Params};

/// Every rule, and whether each dim of its keys has a gate of its own.
pub const RULES: [(Rule, bool); 6] = [
    (Rule::Linear, false),
    (Rule::Gated, false),
    (Rule::Gated, true),
    (Rule::Delta, false),
    (Rule::GatedDelta, false),
    (Rule::GatedDelta, true),
];
