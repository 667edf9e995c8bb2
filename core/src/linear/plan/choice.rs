//! The result of the CPU chooser.

use super::kernel::{KernelSpec, roundings};
use super::strips::Strips;
use crate::dtype::DType;
use crate::linear::bound::{Executed, Solve};
use crate::linear::{Direction, Form, Gates, Problem, Rule};
use crate::workers::worthwhile;
use core::ops::Range;

/// A kernel stores the state divided by a product of gates, which it keeps within `2^-SEGMENT ..= 2^SEGMENT`.
const SEGMENT: f64 = 40.0;

/// Tensors that the kernel cannot access in place and copies block by block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staged {
    /// `true` if queries and keys are copied, to convert, pad or normalise them.
    pub rows: bool,
    /// `true` if values and outputs are copied, to convert them or pad them to whole vectors.
    pub columns: bool,
    /// `true` if decays are copied, to convert or pad them.
    pub decay: bool,
    /// `true` if rates are copied, to convert them.
    pub beta: bool,
}

/// All decisions made before pointers are known.
///
/// Only `kernel`, `form`, `chunk`, `pass` and `parts` can change a bit of the output. They depend on the rule, the head
/// sizes, the number of tokens and the options, never on the batch size or the number of heads or workers. If a stream is
/// cut at multiples of `chunk` tokens, counted from the start of each sequence, the bits of its outputs stay the same. This
/// does not hold for [`Form::Scan`] and [`Form::Parallel`], because they divide a sequence according to its length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Properties of the kernel that the plan runs.
    pub kernel: KernelSpec,
    /// Rule by which a token updates its state.
    pub rule: Rule,
    /// The granularity of the gates.
    pub gates: Gates,
    /// Order in which tokens update the state.
    pub direction: Direction,
    /// The order in which operations are executed.
    pub form: Form,
    /// Number of tokens per chunk. At the end of each chunk, the stored state includes all gates of the chunk.
    pub chunk: usize,
    /// Number of tokens in one pass over the state. Within a pass, tokens interact through products of queries with
    /// keys, and of keys with keys.
    pub pass: usize,
    /// Largest number of parts into which a sequence is divided; 1 except for [`Form::Scan`].
    pub parts: usize,
    /// `true` if each sequence of a packed call is divided into the number of parts that it would have in a separate
    /// call; `false` if it is divided into [`Choice::parts`] parts where possible.
    pub own_parts: bool,
    /// Strips into which the columns of a state are divided.
    pub strips: Strips,
    /// Number of groups into which the strips of a state are divided. Each group is a separate task.
    pub groups: usize,
    /// Number of chunks whose initial states are stored at once in [`Form::Chunk`]; zero in other forms.
    pub boundaries: usize,
    /// Number of heads whose parts' affine maps are stored at once in [`Form::Scan`]; zero in other forms.
    pub resident: usize,
    /// Number of workers that take part in a call.
    pub workers: usize,
    /// Number of multiply-adds that justify waking a worker; zero if all workers take part regardless of the work.
    pub work_per_worker: f64,
    /// Number of rows of a state: the head size of queries and keys, rounded up to a multiple of four.
    pub rows: usize,
    /// Number of columns of a state: the head size of values.
    pub columns: usize,
    /// Number of output heads that read a state.
    pub readers: usize,
    /// Tensors that are copied block by block.
    pub staged: Staged,
    /// `true` if outputs are summed as f32 values in the workspace before they are rounded. This is the case for
    /// bidirectional problems whose outputs are staged.
    pub sums: bool,
    /// The number of sequences, of states per sequence, of tokens in the longest sequence, and of rows of the output, in
    /// this order.
    pub extent: [usize; 4],
}

/// Number of tokens per part that the chooser prefers. The number of parts is limited to the range from two to [`PARTS`],
/// so a part may have fewer or more tokens.
const TOKENS_OF_PART: usize = 512;

/// Largest number of parts that the chooser selects for a scan if the options request none.
const PARTS: usize = 16;

/// Returns the number of parts that the chooser selects for a scan of `tokens` tokens.
pub(super) const fn usual_parts(tokens: usize) -> usize {
    match tokens / TOKENS_OF_PART {
        0 | 1 => 2,
        PARTS.. => PARTS,
        parts => parts,
    }
}

impl Choice {
    /// Returns the number of strips per state.
    #[must_use]
    pub const fn strip_count(&self) -> usize {
        self.strips.count(self.columns)
    }

    /// Returns the range of strips in group `index`.
    #[must_use]
    pub const fn group(&self, index: usize) -> Range<usize> {
        let (count, groups) = (self.strip_count(), if self.groups == 0 { 1 } else { self.groups });
        index * count / groups..(index + 1) * count / groups
    }

    /// Returns the number of columns of the widest group, including padding.
    #[must_use]
    pub(crate) fn group_columns(&self) -> usize {
        (0..self.groups).map(|g| self.strips.columns(self.columns, &self.group(g)).len()).max().unwrap_or(0)
    }

    /// Returns the number of tokens per part of a sequence of `tokens` tokens, a multiple of the chunk.
    #[must_use]
    pub const fn part(&self, tokens: usize) -> usize {
        let parts = match (self.form, self.own_parts) {
            (Form::Scan, true) => usual_parts(tokens),
            _ => self.parts,
        };
        let parts = if parts == 0 { 1 } else { parts };
        let part = tokens.div_ceil(parts).next_multiple_of(self.chunk);
        if part == 0 { self.chunk } else { part }
    }

    /// Returns the number of parts into which a sequence of `tokens` tokens is divided, at least one.
    #[must_use]
    pub const fn parts_of(&self, tokens: usize) -> usize {
        let parts = tokens.div_ceil(self.part(tokens));
        if parts == 0 { 1 } else { parts }
    }

    /// Returns the number of tokens in one pass over the state for a sequence of `tokens` tokens. In [`Form::Parallel`]
    /// one pass processes all of them.
    #[must_use]
    pub const fn pass_of(&self, tokens: usize) -> usize {
        match self.form {
            Form::Parallel if tokens == 0 => 1,
            Form::Parallel if tokens < self.pass => tokens,
            _ => self.pass,
        }
    }

    /// Returns the number of workers that take part in a call, at most [`Choice::workers`]. `tokens` counts each token
    /// once per state. The number does not change the bits of the output.
    #[must_use]
    pub fn workers_for(&self, tokens: f64) -> usize {
        worthwhile(tokens * self.work_of_token(), self.work_per_worker, self.workers)
    }

    /// Returns the approximate number of multiply-adds per token and state.
    #[must_use]
    pub(crate) fn work_of_token(&self) -> f64 {
        let (rows, columns) = (self.rows as f64, self.columns as f64);
        let reads = self.readers as f64 + if self.rule.is_delta() { 2.0 } else { 1.0 };
        let meets = self.pass as f64 / 2.0 * (rows + columns) * (reads - 1.0);
        reads * rows * columns
            + if self.pass > self.kernel.together(self.rule, self.rows) { meets } else { 0.0 }
    }

    /// Returns the structure of the computation that a run executes for a sequence of `tokens` tokens. The error bound
    /// of the run depends on this structure.
    ///
    /// A kernel multiplies the stored state by the product of the gates at the end of each chunk, or more often.
    /// Between these points, the stored state is divided by the product of the gates since the last point. The bound
    /// therefore treats the tokens of a chunk as if they read one state, even if a pass processes fewer tokens. It
    /// counts two exponentials on the path from a value to an output.
    #[must_use]
    pub fn executed(&self, problem: &Problem, tokens: usize) -> Executed {
        let unit = DType::F32.unit_roundoff();
        // Normalising a vector rounds each element to f32 once; all other errors are those of f64 arithmetic.
        let key = if problem.spec().normalize.is_some() { unit * (1.0 + 1e-6) } else { 0.0 };
        let round = if self.kernel.fused { 0 } else { 1 };
        Executed {
            form: self.form,
            chunk: self.chunk,
            part: self.part(tokens),
            exp_relative: self.kernel.exp_relative,
            // The scale is part of the factor of an output; here it counts as an error of the query.
            query_relative: key + 2.0 * unit,
            key_relative: key,
            // The dims are summed in one chain, which starts from a tiny number that is subtracted at the end.
            dims: self.rows + round + 1,
            // Roundings occur in the product of a value and its factor, in one chain over the tokens, and in the
            // product of the state and the factor of a chunk. The parallel form sums its only pass in segments if there
            // are no gates.
            tokens: round
                + 3
                + match (self.form, self.gates) {
                    (Form::Parallel, Gates::None) => roundings(self.rule.is_delta(), self.pass_of(tokens)),
                    _ => self.chunk,
                },
            solve: Solve::Rows,
            factored: SEGMENT,
        }
    }

    /// Returns the tensors of a problem that are copied block by block.
    pub(super) fn staged_of(problem: &Problem, lanes: usize) -> Staged {
        let spec = problem.spec();
        let (dtype, gate_dtype) = (spec.dtype != DType::F32, spec.gate_dtype != DType::F32);
        let padded = !problem.key_dim().is_multiple_of(4);
        Staged {
            rows: dtype || padded || spec.normalize.is_some(),
            columns: dtype || !problem.value_dim().is_multiple_of(lanes),
            decay: gate_dtype || (padded && problem.gates() == Gates::PerDim),
            beta: gate_dtype,
        }
    }
}
