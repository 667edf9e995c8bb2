//! The recurrence in f64, one state of a sequence at a time.

use crate::error::Error;
use elsa_core::dtype::Elements;
use elsa_core::linear::bound::{self, Executed, Judgement};
use elsa_core::linear::{Inputs, Problem, reference};
use elsa_core::view::View;
use elsa_files::{MemoryError, reserved};

/// Results of one state of a sequence, in f64.
pub struct Truth {
    sequence: usize,
    batch: usize,
    state: usize,
    start: usize,
    tokens: usize,
    /// First output head that reads the state.
    first: usize,
    columns: usize,
    /// Outputs of the heads that read the state, `[readers, tokens, d_v]`.
    pub output: Vec<f64>,
    /// The state after the last token, `[d_k, d_v]`.
    pub present: Vec<f64>,
    /// Error bounds of the elements of the output, and error bounds of the elements of the last state; empty unless
    /// requested.
    errors: [Vec<f64>; 2],
    /// Largest factor by which the updates of the state amplify an error in it; NaN unless requested.
    pub gain: f64,
}

impl Truth {
    /// Allocates room for the results of state `state` of sequence `sequence`.
    fn room(problem: &Problem, inputs: &Inputs<'_>, sequence: usize, state: usize) -> Result<Truth, Error> {
        let of = problem.sequence(inputs.cu_seqlens, sequence);
        let (first, readers) = problem.readers(state);
        let columns = problem.value_dim();
        Ok(Truth {
            sequence,
            batch: of.batch,
            state,
            start: of.start,
            tokens: of.tokens,
            first,
            columns,
            output: room(readers * of.tokens * columns)?,
            present: room(problem.key_dim() * columns)?,
            errors: [Vec::new(), Vec::new()],
            gain: f64::NAN,
        })
    }

    /// Computes the results of state `state` of sequence `sequence`. The inputs must have been checked.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory.
    pub fn of(problem: &Problem, inputs: &Inputs<'_>, sequence: usize, state: usize) -> Result<Truth, Error> {
        let mut truth = Truth::room(problem, inputs, sequence, state)?;
        let mut scratch = room(reference::scratch_len(problem))?;
        let (output, present) = (&mut truth.output, &mut truth.present);
        reference::head(problem, inputs, sequence, state, output, present, &mut scratch);
        Ok(truth)
    }

    /// Computes the results like [`Truth::of`]. Also computes error bounds for a run with the arithmetic `executed`.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory.
    pub fn bounded(
        problem: &Problem,
        inputs: &Inputs<'_>,
        executed: &Executed,
        sequence: usize,
        state: usize,
    ) -> Result<Truth, Error> {
        let mut truth = Truth::room(problem, inputs, sequence, state)?;
        truth.errors = [room(truth.output.len())?, room(truth.present.len())?];
        let mut scratch = room(bound::scratch_len(problem, executed).unwrap_or(usize::MAX))?;
        let [output_error, present_error] = &mut truth.errors;
        let (output, present) = (&mut truth.output, &mut truth.present);
        let mut to = Judgement { output, output_error, present, present_error };
        truth.gain = bound::head(problem, inputs, executed, sequence, state, &mut to, &mut scratch).gain;
        Ok(truth)
    }

    /// Returns the rows of the output, with their positions in a tensor with the view `view`.
    pub fn rows<'a>(&'a self, view: &'a View) -> impl Iterator<Item = Row<'a>> {
        let columns = self.columns.max(1);
        let rows = self.output.chunks_exact(columns).enumerate();
        rows.map(move |(row, truth)| {
            let (head, token) = (self.first + row / self.tokens, row % self.tokens);
            let at = view.row(self.batch, head, self.start + token);
            let error = self.errors[0].get(row * columns..).unwrap_or_default();
            Row { place: [self.sequence, head, token], at, truth, error }
        })
    }

    /// Returns the rows of the last state, with their positions in a tensor with the view `view`.
    pub fn state_rows<'a>(&'a self, view: &'a View) -> impl Iterator<Item = Row<'a>> {
        let columns = self.columns.max(1);
        let rows = self.present.chunks_exact(columns).enumerate();
        rows.map(move |(row, truth)| {
            let at = view.row(self.sequence, self.state, row);
            let error = self.errors[1].get(row * columns..).unwrap_or_default();
            Row { place: [self.sequence, self.state, row], at, truth, error }
        })
    }

    /// Returns `‖found − truth‖ / ‖truth‖` for the output `found` with the view `view`; zero if both norms are zero.
    #[must_use]
    pub fn distance(&self, view: &View, found: Elements<'_>) -> f64 {
        let (mut error, mut norm) = (0.0, 0.0);
        for row in self.rows(view) {
            for (c, truth) in row.truth.iter().enumerate() {
                error += (f64::from(found.get(row.at + c)) - truth).powi(2);
                norm += truth * truth;
            }
        }
        if error == 0.0 { 0.0 } else { (error / norm).sqrt() }
    }
}

/// A row of the output, or of the last state.
pub struct Row<'a> {
    /// Sequence, head and token of an output row; sequence, state and key dim of a state row.
    pub place: [usize; 3],
    /// Index of the row's first element in the tensor.
    pub at: usize,
    /// The exact elements.
    pub truth: &'a [f64],
    /// Error bounds of the elements of this row, followed by the error bounds of later rows; empty unless requested.
    pub error: &'a [f64],
}

/// Allocates `count` zeros for the recurrence.
fn room(count: usize) -> Result<Vec<f64>, Error> {
    let mut data = reserved(count).map_err(|bytes| MemoryError { argument: "f64 recurrence", bytes })?;
    data.resize(count, 0.0);
    Ok(data)
}
