//! The operands of linear attention: the single list of tensors that a call reads and writes.

crate::operands::operands! {
    /// A tensor that a call of linear attention reads or writes.
    read {
        /// Queries, `[batch, heads, tokens, d_k]`.
        Query = "q",
        /// Keys, `[batch, key_heads, tokens, d_k]`.
        Key = "k",
        /// Values, `[batch, state_heads, tokens, d_v]`.
        Value = "v",
        /// Natural logarithms of gates, `[batch, state_heads, tokens, 1 or d_k]`.
        Decay = "decay",
        /// Rates of the delta rules, `[batch, state_heads or 1, tokens, 1]`.
        Beta = "beta",
        /// States before the first token, f32 `[sequences, state_heads, d_k, d_v]`.
        PastState = "past_state",
    }
    written {
        /// The output, `[batch, output_heads, tokens, d_v]`.
        Output = "out",
        /// States after the last token, f32 `[sequences, state_heads, d_k, d_v]`.
        PresentState = "present_state",
    }
}
