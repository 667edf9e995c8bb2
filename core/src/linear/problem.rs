//! The problem: shapes, rule and options of a call of linear attention, checked once, as plain data.

use super::operands::Operand;
use super::rule::{Direction, Gates, Rule};
use crate::argument::{ArgumentError, same};
use crate::dtype::DType;
use crate::memory::Memory;
use crate::setters;
use crate::view::View;

/// The unchecked description of a problem. Create it with [`Spec::new`], set the fields whose defaults do not fit, and
/// call [`Spec::check`] to obtain a [`Problem`].
///
/// Each value head has a state. The number of states is a multiple of the number of key heads: state `s` uses key head
/// `s / (state_heads / key_heads)`. The number of query heads is a multiple or a divisor of the number of states. If it
/// is a multiple, query head `i` reads state `i / (heads / state_heads)`, and the output has a head per query head. If
/// it is a smaller divisor, query head `s / (state_heads / heads)` reads state `s`, and the output has a head per
/// state.
///
/// ```
/// # use elsa_core::{argument::ArgumentError, dtype::DType, linear::{Rule, Spec}, view::View};
/// let view = View::bhnd("q", [1, 8, 1000, 64])?;
/// let gates = View::bhnd("decay", [1, 8, 1000, 1])?; // one gate per head and token
/// let problem = Spec::new(DType::F32, view, view, view, view).rule(Rule::Gated).decay(gates).check()?;
/// assert_eq!(problem.tokens(), 1000);
/// # Ok::<(), ArgumentError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Spec {
    /// Element type of query, key, value and output.
    pub dtype: DType,
    /// Queries, `[batch, heads, tokens, d_k]`.
    pub query: View,
    /// Keys, `[batch, key_heads, tokens, d_k]`.
    pub key: View,
    /// Values, `[batch, state_heads, tokens, d_v]`.
    pub value: View,
    /// The output, `[batch, output_heads, tokens, d_v]`.
    pub output: View,
    /// Rule by which a token updates its state.
    pub rule: Rule,
    /// Element type of decay and beta.
    pub gate_dtype: DType,
    /// Natural logarithms of the gates, `[batch, state_heads, tokens, 1]` for one gate per head, or
    /// `[batch, state_heads, tokens, d_k]` for one gate per dim. `−∞` sets the gated rows to zero, even if they contain
    /// infinities or NaN.
    pub decay: Option<View>,
    /// Rates of the delta rules, `[batch, state_heads, tokens, 1]`, or `[batch, 1, tokens, 1]` if all heads share them.
    pub beta: Option<View>,
    /// States before the first token, f32 `[sequences, state_heads, d_k, d_v]`; zeros if absent.
    pub past_state: Option<View>,
    /// States after the last token, f32 `[sequences, state_heads, d_k, d_v]`.
    pub present_state: Option<View>,
    /// `true` if past and present states share memory. Both views must be given, with equal strides; a call then passes
    /// only the present state.
    pub in_place: bool,
    /// Scale of the outputs; `None` means `1 / sqrt(d_k)`.
    pub scale: Option<f32>,
    /// `Some(ε)` normalises queries and keys before their use: `x / sqrt(Σ x² + ε)`.
    pub normalize: Option<f32>,
    /// Order in which tokens update the state.
    pub direction: Direction,
    /// Number of sequences packed along the token axis; `None` if sequences are not packed. The batch of packed sequences
    /// is 1, and a call supplies the boundaries of the sequences ([`Inputs::cu_seqlens`](super::Inputs::cu_seqlens)).
    pub packed: Option<usize>,
}

setters! {
    Spec:
    dtype: DType, query: View, key: View, value: View, output: View, rule: Rule, gate_dtype: DType, in_place: bool,
    direction: Direction;
    optional decay: View, beta: View, past_state: View, present_state: View, scale: f32, normalize: f32, packed: usize,
}

impl Spec {
    /// Describes a problem with [`Rule::Linear`] that reads `query`, `key` and `value` and writes `output`.
    #[must_use]
    pub fn new(dtype: DType, query: View, key: View, value: View, output: View) -> Spec {
        Spec {
            dtype,
            query,
            key,
            value,
            output,
            rule: Rule::Linear,
            gate_dtype: DType::F32,
            decay: None,
            beta: None,
            past_state: None,
            present_state: None,
            in_place: false,
            scale: None,
            normalize: None,
            direction: Direction::Forward,
            packed: None,
        }
    }

    /// Checks every field and returns the problem.
    ///
    /// # Errors
    /// Returns an error if sizes disagree, a head size is zero, numbers of heads do not divide each other, decay or
    /// beta is missing or not allowed by the rule, a number is not finite, two arguments exclude each other, or rows of
    /// an output overlap.
    pub fn check(self) -> Result<Problem, ArgumentError> {
        use ArgumentError as E;
        let Spec { query, key, value, output, .. } = self;
        for (view, argument) in [(&query, "q"), (&key, "k"), (&value, "v")] {
            view.check_dim(argument)?;
        }
        same("k", "batch", key.batch(), query.batch(), "q")?;
        same("k", "head size", key.dim(), query.dim(), "q")?;
        same("k", "tokens", key.tokens(), query.tokens(), "q")?;
        same("v", "batch", value.batch(), query.batch(), "q")?;
        same("v", "tokens", value.tokens(), query.tokens(), "q")?;
        let states = value.heads();
        if !states.is_multiple_of(key.heads()) || (states == 0 && key.heads() > 0) {
            return Err(E::Multiple {
                argument: "v",
                axis: "heads",
                found: states,
                allowed: key.heads(),
                of: "k",
            });
        }
        let divides = states.is_multiple_of(query.heads()) || query.heads().is_multiple_of(states);
        if !divides || (query.heads() == 0) != (states == 0) {
            return Err(E::Multiple {
                argument: "q",
                axis: "heads",
                found: query.heads(),
                allowed: states,
                of: "v",
            });
        }
        let heads = query.heads().max(states);
        let shape = [query.batch(), heads, query.tokens(), value.dim()];
        for (a, axis) in ["batch", "heads", "tokens", "head size"].into_iter().enumerate() {
            same("out", axis, output.shape()[a], shape[a], "q with v")?;
        }
        if output.may_overlap() {
            return Err(E::Overlap { argument: "out" });
        }
        self.check_gates()?;
        if let Some(sequences) = self.packed {
            if sequences == 0 {
                return Err(E::Zero { argument: "cu_seqlens", axis: "sequences" });
            }
            same("q", "batch", query.batch(), 1, "a packed tensor")?;
        }
        self.check_states()?;
        for (argument, number) in [("scale", self.scale), ("normalize", self.normalize)] {
            if let Some(found) = number
                && !(found.is_finite() && (argument == "scale" || found >= 0.0))
            {
                let allowed =
                    if argument == "scale" { "a finite number" } else { "a finite number of at least 0" };
                return Err(E::Number { argument, found, allowed });
            }
        }
        let scale = self.scale.unwrap_or_else(|| query.default_scale());
        Ok(Problem { spec: Spec { scale: Some(scale), ..self }, scale })
    }

    /// Checks the shapes of decay and beta. Each must be given if the rule uses it, and absent if the rule does not.
    fn check_gates(&self) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        let (states, query) = (self.value.heads(), &self.query);
        let rule = self.rule.name();
        match (&self.decay, self.rule.is_gated()) {
            (Some(decay), true) => {
                same("decay", "batch", decay.batch(), query.batch(), "q")?;
                same("decay", "heads", decay.heads(), states, "v")?;
                same("decay", "tokens", decay.tokens(), query.tokens(), "q")?;
                if decay.dim() != 1 {
                    same("decay", "head size", decay.dim(), query.dim(), "q")?;
                }
            }
            (None, true) => return Err(E::Needs { argument: rule, other: "decay" }),
            (Some(_), false) => return Err(E::Conflict { argument: "decay", other: rule }),
            (None, false) => {}
        }
        match (&self.beta, self.rule.is_delta()) {
            (Some(beta), true) => {
                same("beta", "batch", beta.batch(), query.batch(), "q")?;
                if beta.heads() != 1 {
                    same("beta", "heads", beta.heads(), states, "v")?;
                }
                same("beta", "tokens", beta.tokens(), query.tokens(), "q")?;
                same("beta", "head size", beta.dim(), 1, "a rate")
            }
            (None, true) => Err(E::Needs { argument: rule, other: "beta" }),
            (Some(_), false) => Err(E::Conflict { argument: "beta", other: rule }),
            (None, false) => Ok(()),
        }
    }

    /// Checks the shapes and the layout of the past and present states.
    fn check_states(&self) -> Result<(), ArgumentError> {
        use ArgumentError as E;
        let shape = [
            (self.packed.unwrap_or(self.query.batch()), "batch", "the sequences"),
            (self.value.heads(), "heads", "v"),
            (self.query.dim(), "d_k", "q"),
            (self.value.dim(), "d_v", "v"),
        ];
        let given = [(&self.past_state, "past_state"), (&self.present_state, "present_state")];
        for (state, argument) in given {
            let Some(state) = state else { continue };
            for (found, (allowed, axis, of)) in state.shape().into_iter().zip(shape) {
                same(argument, axis, found, allowed, of)?;
            }
            if self.direction == Direction::Bidirectional {
                return Err(E::Conflict { argument, other: "bidirectional" });
            }
        }
        if let Some(present) = &self.present_state
            && present.may_overlap()
        {
            return Err(E::Overlap { argument: "present_state" });
        }
        if self.in_place {
            let (argument, needs) = ("in_place", |other| E::Needs { argument: "in_place", other });
            let past = self.past_state.ok_or(needs("past_state"))?;
            let present = self.present_state.ok_or(needs("present_state"))?;
            for (a, axis) in ["batch stride", "head stride", "d_k stride"].into_iter().enumerate() {
                if past.shape()[a] > 1 {
                    same(argument, axis, past.strides()[a], present.strides()[a], "present_state")?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the size of a group if `heads` heads are divided into `of` groups of equal size: `heads / of`, or 1 if `of` is
/// zero.
pub(super) const fn each(heads: usize, of: usize) -> usize {
    match heads.checked_div(of) {
        Some(each) => each,
        None => 1,
    }
}

/// A sequence of a call, and the range of its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Index of the sequence, which is the batch index of its states.
    pub index: usize,
    /// Batch index of the tokens.
    pub batch: usize,
    /// Index of the first token of the sequence.
    pub start: usize,
    /// Number of tokens of the sequence.
    pub tokens: usize,
}

/// A checked problem of linear attention, created by [`Spec::check`].
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    spec: Spec,
    scale: f32,
}

impl Problem {
    /// Returns the specification of the problem, with the scale filled in.
    #[must_use]
    pub const fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the rule by which a token updates its state.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.spec.rule
    }

    /// Returns the scale of the outputs.
    #[must_use]
    pub const fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns the granularity of the gates.
    #[must_use]
    pub fn gates(&self) -> Gates {
        match &self.spec.decay {
            None => Gates::None,
            // With one dim, a gate per dim is a gate per head.
            Some(decay) if decay.dim() == 1 => Gates::PerHead,
            Some(_) => Gates::PerDim,
        }
    }

    /// Returns the number of query heads.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.spec.query.heads()
    }

    /// Returns the number of states per sequence, which is the number of value heads.
    #[must_use]
    pub const fn state_heads(&self) -> usize {
        self.spec.value.heads()
    }

    /// Returns the number of heads of the output.
    #[must_use]
    pub const fn output_heads(&self) -> usize {
        self.spec.output.heads()
    }

    /// Returns the key head that state `state` uses.
    #[must_use]
    pub const fn key_head(&self, state: usize) -> usize {
        state / each(self.state_heads(), self.spec.key.heads())
    }

    /// Returns the first output head that reads state `state`, and the number of heads that read it.
    #[must_use]
    pub const fn readers(&self, state: usize) -> (usize, usize) {
        let each = each(self.output_heads(), self.state_heads());
        (state * each, each)
    }

    /// Returns the query head from which output head `head` is computed.
    #[must_use]
    pub const fn query_head(&self, head: usize) -> usize {
        head / each(self.output_heads(), self.heads())
    }

    /// Returns the index of the beta head that state `state` uses; 0 if all states share the rates.
    #[must_use]
    pub fn beta_head(&self, state: usize) -> usize {
        if self.spec.beta.is_some_and(|beta| beta.heads() > 1) { state } else { 0 }
    }

    /// Returns the head size of queries and keys, which is the number of rows of a state.
    #[must_use]
    pub const fn key_dim(&self) -> usize {
        self.spec.query.dim()
    }

    /// Returns the head size of values and output, which is the number of columns of a state.
    #[must_use]
    pub const fn value_dim(&self) -> usize {
        self.spec.value.dim()
    }

    /// Returns the number of tokens per sequence, or the total number of tokens if sequences are packed.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.spec.query.tokens()
    }

    /// Returns the number of sequences: the batch size, or the number of packed sequences.
    #[must_use]
    pub const fn sequences(&self) -> usize {
        match self.spec.packed {
            Some(n) => n,
            None => self.spec.query.batch(),
        }
    }

    /// Returns sequence `index`. `cu_seqlens` must come from checked [`Inputs`](super::Inputs).
    #[must_use]
    pub fn sequence(&self, cu_seqlens: Option<&[i64]>, index: usize) -> Sequence {
        match (self.spec.packed, cu_seqlens) {
            (Some(_), Some(list)) => {
                let at = |i: usize| list.get(i).map_or(0, |x| *x as usize);
                let (start, end) = (at(index), at(index + 1));
                Sequence { index, batch: 0, start, tokens: end.saturating_sub(start) }
            }
            _ => Sequence { index, batch: index, start: 0, tokens: self.tokens() },
        }
    }

    /// Returns the same problem with past and present states in separate memory.
    #[must_use]
    pub const fn out_of_place(&self) -> Problem {
        Problem { spec: Spec { in_place: false, ..self.spec }, scale: self.scale }
    }

    /// Returns the operand from which a run reads its past states: the present state if both share memory.
    #[must_use]
    pub const fn past_source(&self) -> Operand {
        if self.spec.in_place { Operand::PresentState } else { Operand::PastState }
    }

    /// Returns the size and layout of the memory of `operand`. Returns `None` if the problem does not have the operand, or
    /// if the operand shares the memory of another operand. In an in-place problem, the past state shares memory in this
    /// way.
    #[must_use]
    pub fn memory(&self, operand: Operand) -> Option<Memory> {
        let s = &self.spec;
        let view = match operand {
            Operand::Query => Some(s.query),
            Operand::Key => Some(s.key),
            Operand::Value => Some(s.value),
            Operand::Decay => s.decay,
            Operand::Beta => s.beta,
            Operand::PastState if s.in_place => None,
            Operand::PastState => s.past_state,
            Operand::Output => Some(s.output),
            Operand::PresentState => s.present_state,
        };
        let element_size = self.dtype_of(operand).size();
        view.map(|view| Memory { elements: view.extent(), element_size, view: Some(view) })
    }

    /// Returns the element type of `operand`.
    #[must_use]
    pub const fn dtype_of(&self, operand: Operand) -> DType {
        match operand {
            Operand::Query | Operand::Key | Operand::Value | Operand::Output => self.spec.dtype,
            Operand::Decay | Operand::Beta => self.spec.gate_dtype,
            Operand::PastState | Operand::PresentState => DType::F32,
        }
    }
}
