//! The operands of a backward call: the single list of tensors that it reads and writes.

use crate::attention::operands;

crate::operands::operands! {
    /// A tensor that a backward call reads or writes.
    read {
        /// Queries, `[batch, heads, queries, d]`.
        Query = "q",
        /// Keys, `[batch, kv_heads, keys, d]`.
        Key = "k",
        /// Values, `[batch, kv_heads, keys, d_v]`.
        Value = "v",
        /// The mask, broadcast to `[batch, heads, queries, keys]`.
        Mask = "mask",
        /// The bias: broadcast like the mask, or a table of relative positions, `[entries, heads]`.
        Bias = "bias",
        /// Table entry for each pair of a query and a key, i64 `[queries, keys]`.
        BiasIndex = "bias_index",
        /// The output of the forward pass, `[batch, heads, queries, d_v]`.
        Output = "out",
        /// The upstream gradient, `[batch, heads, queries, d_v]`.
        Upstream = "d_out",
        /// Log-sum-exp of each row, f32 `[batch, heads, queries]`.
        LogSumExp = "lse",
        /// References `m` of the states, f32 `[batch, heads, queries]`.
        StateReference = "state_m",
        /// Sums `S` of the states, f32 `[batch, heads, queries]`.
        StateSum = "state_s",
    }
    written {
        /// The gradient of the queries, f32 `[batch, heads, queries, d]`.
        QueryGradient = "d_q",
        /// The gradient of the keys, f32 `[batch, kv_heads, keys, d]`.
        KeyGradient = "d_k",
        /// The gradient of the values, f32 `[batch, kv_heads, keys, d_v]`.
        ValueGradient = "d_v",
    }
}

impl Operand {
    /// Returns `true` if the operand is a statistic of the rows from the forward pass. A call has either the
    /// log-sum-exp, or references and sums.
    #[must_use]
    pub const fn is_statistic(self) -> bool {
        matches!(self, Operand::LogSumExp | Operand::StateReference | Operand::StateSum)
    }

    /// Returns the forward operand that corresponds to this one; `None` for gradients, including the upstream gradient.
    #[must_use]
    pub(crate) fn of_forward(self) -> Option<operands::Operand> {
        operands::Operand::ALL.into_iter().find(|forward| forward.argument() == self.argument())
    }
}
