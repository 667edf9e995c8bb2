//! The rules that update a state, and the forms in which a run computes them.

/// Rule by which a token updates the state `S`, `[d_k, d_v]`, with its key `k`, value `v`, gate `a = exp(decay)` and rate
/// `β`. The rules and their names are those of `LinearAttention` in ONNX opset 27.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// `S ← S + k vᵀ`.
    Linear,
    /// `S ← a ⊙ S + k vᵀ`: Simple GLA, `RetNet` and Mamba-2 with a decay per head; GLA with a decay per dim.
    Gated,
    /// `S ← S + β k (v − Sᵀ k)ᵀ`: `DeltaNet`.
    Delta,
    /// `S ← a ⊙ S`, then as [`Rule::Delta`]: Gated `DeltaNet` with a decay per head; KDA with a decay per dim.
    GatedDelta,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 4] = [Rule::Linear, Rule::Gated, Rule::Delta, Rule::GatedDelta];

    /// Returns `linear`, `gated`, `delta` or `gated-delta`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Linear => "linear",
            Rule::Gated => "gated",
            Rule::Delta => "delta",
            Rule::GatedDelta => "gated-delta",
        }
    }

    /// Returns `true` if the rule multiplies the state by a gate.
    #[must_use]
    pub const fn is_gated(self) -> bool {
        matches!(self, Rule::Gated | Rule::GatedDelta)
    }

    /// Returns `true` for the delta rules, which subtract the value that the state already stores for the key.
    #[must_use]
    pub const fn is_delta(self) -> bool {
        matches!(self, Rule::Delta | Rule::GatedDelta)
    }
}

/// Granularity of the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gates {
    /// No gates.
    None,
    /// One gate multiplies the whole state of a head.
    PerHead,
    /// Each row of the state has its own gate, one for each dim of the key.
    PerDim,
}

/// Order in which tokens update the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first token to the last. A token reads the state after its own update.
    #[default]
    Forward,
    /// From the last token to the first. The past state is the state before the last token.
    Reverse,
    /// The sum of the outputs of [`Direction::Forward`] and [`Direction::Reverse`]; both terms include the token
    /// itself.
    Bidirectional,
    /// From the first token to the last; then every token reads the last state.
    NonCausal,
}

impl Direction {
    /// All directions.
    pub const ALL: [Direction; 4] =
        [Direction::Forward, Direction::Reverse, Direction::Bidirectional, Direction::NonCausal];

    /// Returns `forward`, `reverse`, `bidirectional` or `non-causal`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Reverse => "reverse",
            Direction::Bidirectional => "bidirectional",
            Direction::NonCausal => "non-causal",
        }
    }
}

/// The order of operations of a run. In exact arithmetic all forms have equal results; they differ only in rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// One token after another.
    Recurrent,
    /// Two passes over chunks of tokens: the first computes the state before each chunk, the second computes the
    /// outputs of each chunk from that state.
    Chunk,
    /// One pass over chunks of tokens, which computes the outputs of a chunk and the state after it together.
    FusedChunk,
    /// Products of every token with every earlier token, `(Q Kᵀ ∘ D) V`. The time is quadratic in the number of tokens.
    /// Delta rules solve a triangular system over all tokens.
    Parallel,
    /// Two levels: each part of the sequence is reduced to an affine map `(A, b)`, a scan over the maps computes the
    /// state before each part, and the outputs of each part are computed from that state.
    Scan,
}

impl Form {
    /// All forms.
    pub const ALL: [Form; 5] = [Form::Recurrent, Form::Chunk, Form::FusedChunk, Form::Parallel, Form::Scan];

    /// Returns `recurrent`, `chunk`, `fused-chunk`, `parallel` or `scan`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Form::Recurrent => "recurrent",
            Form::Chunk => "chunk",
            Form::FusedChunk => "fused-chunk",
            Form::Parallel => "parallel",
            Form::Scan => "scan",
        }
    }
}
