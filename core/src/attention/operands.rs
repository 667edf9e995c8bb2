//! The operands of an attention call: the single list of tensors that it reads and writes.

crate::operands::operands! {
    /// A tensor that an attention call reads or writes.
    read {
        /// Queries, `[batch, heads, queries, d]`.
        Query = "q",
        /// New keys, `[batch, kv_heads, keys, d]`.
        Key = "k",
        /// New values, `[batch, kv_heads, keys, d_v]`.
        Value = "v",
        /// Past keys, `[batch, kv_heads, past, d]`.
        PastKey = "past_k",
        /// Past values, `[batch, kv_heads, past, d_v]`.
        PastValue = "past_v",
        /// The mask, broadcast to `[batch, heads, queries, keys]`.
        Mask = "mask",
        /// The bias: broadcast like the mask, or a table of relative positions, `[entries, heads]`.
        Bias = "bias",
        /// Table entry for each pair of a query and a key, i64 `[queries, keys]`.
        BiasIndex = "bias_index",
    }
    written {
        /// The output, `[batch, heads, queries, d_v]`.
        Output = "out",
        /// Past and new keys, `[batch, kv_heads, past + keys, d]`.
        PresentKey = "present_k",
        /// Past and new values, `[batch, kv_heads, past + keys, d_v]`.
        PresentValue = "present_v",
        /// Log-sum-exp of each row, f32 `[batch, heads, queries]`.
        LogSumExp = "lse",
        /// References `m` of the states, f32 `[batch, heads, queries]`.
        StateReference = "state_m",
        /// Sums `S` of the states, f32 `[batch, heads, queries]`.
        StateSum = "state_s",
        /// Weighted sums `W` of the states, f32 `[batch, heads, queries, d_v]`.
        StateWeighted = "state_w",
    }
}

impl Operand {
    /// Returns whether the operand is one of the three arrays of a state output.
    #[must_use]
    pub const fn is_state(self) -> bool {
        matches!(self, Operand::StateReference | Operand::StateSum | Operand::StateWeighted)
    }
}
