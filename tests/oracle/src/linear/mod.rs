//! Problems of linear attention with owned data, and their exact outputs.
//!
//! [`Params`] describe a case, and [`Params::build`] builds it reproducibly. [`Case::answer`] computes the recurrence
//! in f64 for every state.

mod answer;
mod build;

use elsa_core::linear::Rule;

pub use answer::{Answer, LinearOutputs};
pub use build::{Case, GateKind, Packing, Params};

/// Every rule. `true` selects a separate gate for each dim of the keys.
pub const RULES: [(Rule, bool); 6] = [
    (Rule::Linear, false),
    (Rule::Gated, false),
    (Rule::Gated, true),
    (Rule::Delta, false),
    (Rule::GatedDelta, false),
    (Rule::GatedDelta, true),
];
