//! Loads the tokens that update one state as f32 values, and writes the outputs that are read from the state.

use crate::dtype::{Elements, ElementsMut};
use crate::linear::data::{Inputs, Outputs};
use crate::linear::problem::{Problem, Sequence};
use crate::linear::rule::Gates;
use crate::view::View;

/// The tokens that update one state, numbered in the order in which they are processed.
pub(super) struct Stage<'a> {
    pub problem: &'a Problem,
    pub inputs: &'a Inputs<'a>,
    pub sequence: Sequence,
    pub state: usize,
    pub reverse: bool,
}

/// Returns the number of gates per token.
pub(super) fn gates(problem: &Problem) -> usize {
    match problem.gates() {
        Gates::None => 0,
        Gates::PerHead => 1,
        Gates::PerDim => problem.key_dim(),
    }
}

impl Stage<'_> {
    /// Returns the index, within the stored sequence, of the token that is processed at position `i`.
    pub fn token(&self, i: usize) -> usize {
        if self.reverse { self.sequence.tokens - 1 - i } else { i }
    }

    fn row(&self, view: &View, head: usize, i: usize) -> usize {
        view.row(self.sequence.batch, head, self.sequence.start + self.token(i))
    }

    /// Loads a row `x` as `factor x`, or `factor x / sqrt(Σ x² + ε)` if the problem normalises. Each element is rounded
    /// once.
    fn load(&self, data: &Elements<'_>, row: usize, factor: f64, to: &mut [f32]) {
        let Some(epsilon) = self.problem.spec().normalize else {
            for (x, to) in to.iter_mut().enumerate() {
                *to = (factor * f64::from(data.get(row + x))) as f32;
            }
            return;
        };
        let mut squares = f64::from(epsilon);
        for x in 0..to.len() {
            let x = f64::from(data.get(row + x));
            squares += x * x;
        }
        let norm = libm::sqrt(squares);
        for (x, to) in to.iter_mut().enumerate() {
            *to = (factor * f64::from(data.get(row + x)) / norm) as f32;
        }
    }

    /// Loads the key of token `i`.
    pub fn key(&self, i: usize, to: &mut [f32]) {
        let view = &self.problem.spec().key;
        let row = self.row(view, self.problem.key_head(self.state), i);
        self.load(&self.inputs.key, row, 1.0, to);
    }

    /// Loads the query of output head `head` at token `i`, times the scale.
    pub fn query(&self, head: usize, i: usize, to: &mut [f32]) {
        let view = &self.problem.spec().query;
        let row = self.row(view, self.problem.query_head(head), i);
        self.load(&self.inputs.query, row, f64::from(self.problem.scale()), to);
    }

    /// Loads the value of token `i`.
    pub fn value(&self, i: usize, to: &mut [f32]) {
        let row = self.row(&self.problem.spec().value, self.state, i);
        for (c, to) in to.iter_mut().enumerate() {
            *to = self.inputs.value.get(row + c);
        }
    }

    /// Loads the logarithms of the gates of token `i`.
    pub fn logarithms(&self, i: usize, to: &mut [f32]) {
        let (Some(view), Some(data)) = (&self.problem.spec().decay, &self.inputs.decay) else { return };
        let row = self.row(view, self.state, i);
        for (x, to) in to.iter_mut().enumerate() {
            *to = data.get(row + x);
        }
    }

    /// Returns the rate of token `i`; `None` if the rule has no rates.
    pub fn beta(&self, i: usize) -> Option<f32> {
        let (view, data) = (self.problem.spec().beta.as_ref()?, self.inputs.beta.as_ref()?);
        Some(data.get(self.row(view, self.problem.beta_head(self.state), i)))
    }
}

impl Stage<'_> {
    /// Writes the state before the first token to `state`; zeros if the problem has no past state.
    pub fn past(&self, outputs: &Outputs<'_>, state: &mut [f32]) {
        let spec = self.problem.spec();
        let data = if spec.in_place { outputs.present_state.as_deref() } else { self.inputs.past_state };
        let (Some(view), Some(data)) = (&spec.past_state, data) else {
            state.fill(0.0);
            return;
        };
        for (x, row) in state.chunks_exact_mut(view.dim()).enumerate() {
            let from = view.row(self.sequence.index, self.state, x);
            row.copy_from_slice(&data[from..from + view.dim()]);
        }
    }

    /// Writes `state`, the state after the last token, to the present state if the problem has one.
    pub fn present(&self, outputs: &mut Outputs<'_>, state: &[f32]) {
        let spec = self.problem.spec();
        let (Some(view), Some(data)) = (&spec.present_state, &mut outputs.present_state) else { return };
        for (x, row) in state.chunks_exact(view.dim()).enumerate() {
            let to = view.row(self.sequence.index, self.state, x);
            data[to..to + view.dim()].copy_from_slice(row);
        }
    }
}

/// How a sink treats the rows of output that it accepts.
pub(super) enum Rows<'a> {
    /// Writes the rows to the output.
    Write,
    /// Keeps the rows in this buffer, `[readers, tokens, d_v]`.
    Keep(&'a mut [f32]),
    /// Adds the rows to those kept in this buffer, and writes the sums to the output.
    Add(&'a [f32]),
}

/// Destination of the outputs of one state.
pub(super) struct Sink<'a, 'b> {
    pub output: &'a mut ElementsMut<'b>,
    pub rows: Rows<'a>,
}

impl Sink<'_, '_> {
    /// Accepts the output row of reader `reader` at token `i`.
    pub fn take(&mut self, stage: &Stage<'_>, reader: usize, i: usize, row: &[f32]) {
        let (token, tokens) = (stage.token(i), stage.sequence.tokens);
        let kept = (reader * tokens + token) * row.len();
        if let Rows::Keep(rows) = &mut self.rows {
            rows[kept..kept + row.len()].copy_from_slice(row);
            return;
        }
        let head = stage.problem.readers(stage.state).0 + reader;
        let at = stage.row(&stage.problem.spec().output, head, i);
        for (c, x) in row.iter().enumerate() {
            let x = if let Rows::Add(rows) = &self.rows { rows[kept + c] + x } else { *x };
            self.output.set(at + c, x);
        }
    }
}
