//! Options of a plan.

use elsa_core::attention::plan::{Division, Method, Options};

/// Options of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// The method that computes the output.
    pub method: Method,
    /// Number of keys in a block on the CPU: 64, 128 or 256. Ignored on a GPU.
    pub block: usize,
    /// Largest workspace, in bytes; `None` is unlimited. On a GPU the workspace holds partial states and tables;
    /// the staging of host tensors is reported separately ([`Plan::staging_bytes`](crate::Plan::staging_bytes)).
    pub budget: Option<usize>,
    /// Whether all threads take part, however small the problem. Otherwise a thread takes part only if its work
    /// outweighs the cost of waking it. This changes no bit of the answer.
    pub all_workers: bool,
    /// Whether a GPU may sum short chains of f16 products in f16, if it has a kernel for that. The scores of f16
    /// inputs are then faster and less accurate, as the certificate's
    /// [`half_chain`](elsa_core::attention::certificate::Executed::half_chain) states, and a sum beyond the range
    /// of f16 makes its row NaN. Bits then also depend on whether the rows of keys and values lie at multiples of 16
    /// bytes. Inputs of other types are unaffected.
    pub half_scores: bool,
    /// Whether runs measure their tensors, so that [`Workspace::certified`](crate::Workspace::certified) says how wrong the
    /// answer of the last one may be. This changes no bit of the answer. The workspace is a little larger.
    pub certify: bool,
    /// The kernel and the number of splits on a GPU, one of [`Engine::divisions`](crate::Engine::divisions), in place of the
    /// tuned file's and the chooser's. Ignored on the CPU.
    pub division: Option<Division>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        let Options { method, block, budget, all_workers, certify, .. } = Options::default();
        PlanOptions { method, block, budget, all_workers, half_scores: false, certify, division: None }
    }
}
