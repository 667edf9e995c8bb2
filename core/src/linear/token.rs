//! Computes, in f64, the contribution of a token to a state. Elements are read in place from the caller's tensors.
//!
//! The indices of heads, batches and tokens are computed only from the fields of the [`Spec`] and from `cu_seqlens`.

use super::data::Inputs;
use super::problem::{Problem, Spec, each};
use super::rule::{Gates, Rule};
use crate::dtype::Elements;
use crate::view::View;

/// One state of a sequence, and the tokens that update it.
pub(super) struct StateTokens<'a> {
    spec: &'a Spec,
    inputs: &'a Inputs<'a>,
    gates: Gates,
    /// Index of the sequence, which is the batch index of its states.
    sequence: usize,
    /// Batch index of the tokens; `start` is the index of the first token.
    batch: usize,
    start: usize,
    /// Number of tokens of the sequence.
    pub tokens: usize,
    state: usize,
}

/// The gates of a token.
pub(super) enum Gate {
    /// No gate.
    None,
    /// The logarithm of one gate for the whole state.
    Head(f64),
    /// The index of the first of `d_k` logarithms, one for each row of the state.
    Dims(usize),
}

impl<'a> StateTokens<'a> {
    /// Creates the tokens that update state `state` of sequence `sequence`.
    ///
    /// # Panics
    /// Panics if `sequence` or `state` is out of bounds.
    pub fn new(
        problem: &'a Problem,
        inputs: &'a Inputs<'a>,
        sequence: usize,
        state: usize,
    ) -> StateTokens<'a> {
        let spec = problem.spec();
        let (batch, start, tokens) = match spec.packed.and(inputs.cu_seqlens) {
            Some(bounds) => {
                let at = |i: usize| bounds[i] as usize;
                (0, at(sequence), at(sequence + 1) - at(sequence))
            }
            None => (sequence, 0, spec.query.tokens()),
        };
        assert!(batch < spec.query.batch() && state < spec.value.heads(), "state of the sequences");
        StateTokens { spec, inputs, gates: problem.gates(), sequence, batch, start, tokens, state }
    }

    fn load(&self, view: &View, data: &Elements<'_>, head: usize, token: usize, to: &mut [f64]) {
        let row = view.row(self.batch, head, self.start + token);
        for (x, to) in to.iter_mut().enumerate() {
            *to = f64::from(data.get(row + x));
        }
    }

    /// Replaces `x` by `x / sqrt(Σ x² + ε)` if the problem normalises.
    fn normalize(&self, x: &mut [f64]) {
        let Some(epsilon) = self.spec.normalize else { return };
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let norm = libm::sqrt(squares + f64::from(epsilon));
        x.iter_mut().for_each(|x| *x /= norm);
    }

    /// Writes the key of a token, normalised if the problem requests it.
    pub fn key(&self, token: usize, to: &mut [f64]) {
        let head = self.state / each(self.spec.value.heads(), self.spec.key.heads());
        self.load(&self.spec.key, &self.inputs.key, head, token, to);
        self.normalize(to);
    }

    /// Writes the query with which output head `head` reads the state, without the scale.
    pub fn query(&self, head: usize, token: usize, to: &mut [f64]) {
        let heads = self.spec.query.heads();
        let query = head / each(self.spec.output.heads(), heads);
        self.load(&self.spec.query, &self.inputs.query, query, token, to);
        self.normalize(to);
    }

    /// Writes the value of a token.
    pub fn value(&self, token: usize, to: &mut [f64]) {
        self.load(&self.spec.value, &self.inputs.value, self.state, token, to);
    }

    /// Returns the gates of a token.
    pub fn gate(&self, token: usize) -> Gate {
        let (Some(view), Some(data)) = (&self.spec.decay, &self.inputs.decay) else { return Gate::None };
        let at = view.row(self.batch, self.state, self.start + token);
        match self.gates {
            Gates::None => Gate::None,
            Gates::PerHead => Gate::Head(f64::from(data.get(at))),
            Gates::PerDim => Gate::Dims(at),
        }
    }

    /// Returns the logarithm of the gate of row `x` of the state.
    pub fn logarithm(&self, gate: &Gate, x: usize) -> f64 {
        match gate {
            Gate::None => 0.0,
            Gate::Head(g) => *g,
            Gate::Dims(at) => self.inputs.decay.map_or(0.0, |data| f64::from(data.get(at + x))),
        }
    }

    /// Returns the rate of a token.
    pub fn beta(&self, token: usize) -> f64 {
        let (Some(view), Some(data)) = (&self.spec.beta, &self.inputs.beta) else { return 1.0 };
        let head = if view.heads() == 1 { 0 } else { self.state };
        f64::from(data.get(view.row(self.batch, head, self.start + token)))
    }

    /// Writes the state before the first token, `[d_k, d_v]`: zeros if the problem has no past.
    pub fn past(&self, state: &mut [f64]) {
        state.fill(0.0);
        let (Some(view), Some(data)) = (&self.spec.past_state, self.inputs.past_state) else { return };
        for (x, row) in state.chunks_exact_mut(view.dim()).enumerate() {
            let from = view.row(self.sequence, self.state, x);
            for (c, to) in row.iter_mut().enumerate() {
                *to = f64::from(data[from + c]);
            }
        }
    }

    /// Updates the state by a token: `S ← a ⊙ S`, and then `S ← S + k uᵀ`, where `u` is `v`, or `β (v − Sᵀ k)` for
    /// the delta rules. `key` and `written` receive `k` and `u`.
    pub fn step(&self, token: usize, state: &mut [f64], key: &mut [f64], written: &mut [f64]) {
        self.key(token, key);
        let columns = self.spec.value.dim();
        let gate = self.gate(token);
        if !matches!(gate, Gate::None) {
            let mut factor = (f64::NAN, f64::NAN);
            for (x, row) in state.chunks_exact_mut(columns).enumerate() {
                let g = self.logarithm(&gate, x);
                if g == f64::NEG_INFINITY {
                    row.fill(0.0);
                    continue;
                }
                if factor.0 != g {
                    factor = (g, libm::exp(g));
                }
                row.iter_mut().for_each(|s| *s *= factor.1);
            }
        }
        match self.spec.rule {
            Rule::Linear | Rule::Gated => self.value(token, written),
            Rule::Delta | Rule::GatedDelta => {
                written.fill(0.0);
                for (k, row) in key.iter().zip(state.chunks_exact(columns)) {
                    written.iter_mut().zip(row).for_each(|(u, s)| *u -= k * s);
                }
                let beta = self.beta(token);
                let at = self.spec.value.row(self.batch, self.state, self.start + token);
                for (c, u) in written.iter_mut().enumerate() {
                    *u = beta * (f64::from(self.inputs.value.get(at + c)) + *u);
                }
            }
        }
        for (k, row) in key.iter().zip(state.chunks_exact_mut(columns)) {
            row.iter_mut().zip(&*written).for_each(|(s, u)| *s += k * u);
        }
    }
}
