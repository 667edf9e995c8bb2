//! What a caller requests of a plan.

use elsa_core::attention::plan::{Method, Options};

/// Options of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// How the answer is computed. A GPU has no method math.
    pub method: Method,
    /// Keys in a block of the CPU: 64, 128 or 256.
    pub block: usize,
    /// Most bytes of workspace. On a GPU these are partial states and tables; the staging of host tensors is
    /// reported separately.
    pub budget: Option<usize>,
    /// Whether all threads take part however little there is to do; otherwise as many as pay for being woken.
    /// It changes no bit of the answer.
    pub all_workers: bool,
    /// Whether a GPU may sum short chains of f16 products in f16, where it has a kernel that does. The scores of f16
    /// inputs then take less time and are less exact, as the certificate's
    /// [`half_chain`](elsa_core::attention::certificate::Executed::half_chain) states; a sum beyond the range of f16
    /// makes its row NaN. Inputs of other types are unaffected.
    pub half_scores: bool,
}

impl Default for PlanOptions {
    fn default() -> Self {
        let Options { method, block, budget, all_workers, .. } = Options::default();
        PlanOptions { method, block, budget, all_workers, half_scores: false }
    }
}
