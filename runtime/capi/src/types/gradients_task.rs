//! Tasks of gradients, and the sums of their shares.

use super::data::elsa_input;

/// Handle of a task of gradients. All zeros is the null handle. Copies refer to the same task.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_gradients_task {
    /// Opaque.
    pub id: u64,
}

/// Handle of a merge, which adds the shares of all tasks of gradients. All zeros is the null handle. Copies refer to the same
/// merge.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_gradients_merge {
    /// Opaque.
    pub id: u64,
}

/// Shares of the gradients that a task has computed, all required: f32, dense, with exactly the elements of the task's
/// tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_gradients_shares {
    /// sizeof(elsa_gradients_shares). elsa_gradients_shares_init sets it.
    pub size: usize,
    /// Shares of the gradient of the queries: [batch, heads, queries of the task, d].
    pub d_q: elsa_input,
    /// Shares of the gradient of the keys: [batch, kv_heads, keys of the task, d].
    pub d_k: elsa_input,
    /// Shares of the gradient of the values: [batch, kv_heads, keys of the task, d_v].
    pub d_v: elsa_input,
}
