//! Provides the rows of a chunk of tokens to the kernel: in place, or copied to the worker's region in the order in
//! which the tokens update the state.

use super::context::{Context, Rows, Stretch};
use elsa_core::linear::{Direction, Operand};
use std::ops::Range;

/// A change that is applied to rows after the rows are copied.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    /// Normalises each row to a unit vector, `x / sqrt(Σ x² + ε)`, with this `ε`.
    Unit(f32),
}

impl Change {
    /// Applies the change to a row. The sum of squares and the factor are computed in f64, so that each element is
    /// rounded only once.
    fn apply(self, row: &mut [f32]) {
        let Change::Unit(epsilon) = self else { return };
        // Four independent sums, so that an addition need not wait for the previous one.
        let mut sums = [0.0f64; 4];
        let mut fours = row.chunks_exact(4);
        for four in fours.by_ref() {
            for (sum, x) in sums.iter_mut().zip(four) {
                *sum += f64::from(*x) * f64::from(*x);
            }
        }
        let rest: f64 = fours.remainder().iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest;
        let factor = 1.0 / (sum + f64::from(epsilon)).sqrt();
        row.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
    }
}

impl Stretch<'_> {
    /// Returns the index that token `t` has in the tensors. `t` counts tokens in the order in which they update the
    /// state.
    fn token(&self, t: usize) -> usize {
        match self.reverse {
            false => self.sequence.start + t,
            true => (self.sequence.start + self.sequence.tokens).saturating_sub(1 + t),
        }
    }

    /// Calls `each(token, row, count)` for every run of `count` tokens in `range` that are adjacent in the tensor.
    /// `token` is the index of the run's first token in the tensor. `row` is the index of this token's row in the copy.
    fn in_memory(&self, range: &Range<usize>, mut each: impl FnMut(usize, usize, usize)) {
        if self.reverse {
            for (row, t) in range.clone().enumerate() {
                each(self.token(t), row, 1);
            }
        } else {
            each(self.token(range.start), 0, range.len());
        }
    }

    /// Returns the rows of the f32 tensor `operand` in the tensor's memory, from token `t` on.
    fn in_place(&self, c: &Context<'_>, operand: Operand, head: usize, t: usize) -> Rows {
        let tensor = c.tensor(operand);
        let stride = tensor.stride() as isize;
        Rows {
            data: tensor.row(self.sequence.batch, head, self.token(t)).cast(),
            token: if self.reverse { -stride } else { stride },
            head: tensor.view.steps()[1] as isize,
        }
    }

    /// Returns the range of columns in the stretch's strips, including padding columns.
    pub fn columns(&self, c: &Context<'_>) -> Range<usize> {
        c.choice.strips.columns(c.choice.columns, &self.strips)
    }
}

/// Copies the elements `dims` of each token in `range` to f32 rows of `width` values at `dst`. The rows are padded with
/// zeros.
///
/// # Safety
/// - The invariants of [`Context`] hold. The call has the operand, and the operand has this head; the tokens are in the
///   sequence; `dims` is within the head size and has at most `width` elements.
/// - `range.len() · width` f32 values are writable and initialised at `dst`, and no other worker uses them.
unsafe fn copy(
    c: &Context<'_>,
    s: &Stretch<'_>,
    (operand, head): (Operand, usize),
    range: &Range<usize>,
    dims: &Range<usize>,
    (dst, width): (*mut f32, usize),
    change: Change,
) {
    let tensor = c.tensor(operand);
    let size = tensor.dtype.size();
    s.in_memory(range, |token, row, count| {
        let from = tensor.row(s.sequence.batch, head, token).wrapping_add(dims.start * size);
        let to = dst.wrapping_add(row * width);
        let (dtype, stride) = (tensor.dtype, tensor.stride());
        // SAFETY: the rows are readable (*inputs*), and rows `row..row + count` are writable (clause); *kernel*.
        unsafe {
            c.kernel.primitives.rows_to_f32(dtype, from.cast_const(), stride, count, dims.len(), to, width);
        }
    });
    if width > dims.len() || !matches!(change, Change::Nothing) {
        // SAFETY: the rows are writable and initialised, and only this worker uses them (clause).
        let all = unsafe { std::slice::from_raw_parts_mut(dst, range.len() * width) };
        for row in all.chunks_exact_mut(width) {
            let (row, rest) = row.split_at_mut(dims.len());
            change.apply(row);
            rest.fill(0.0);
        }
    }
}

/// The rows of a chunk that are the same for all columns: the queries, keys, decays and rates of the chunk's tokens.
/// Rows that the problem does not have, and queries that are not needed, are null.
pub(super) struct Heads {
    pub queries: Rows,
    pub keys: Rows,
    pub decay: Rows,
    pub beta: Rows,
}

/// Returns the rows of a chunk's queries.
///
/// # Safety
/// - The invariants of [`Context`] hold. `range` is in the sequence and no longer than a chunk, and `part` is the worker's
///   region.
pub(super) unsafe fn queries(c: &Context<'_>, s: &Stretch<'_>, range: &Range<usize>, part: *mut f32) -> Rows {
    let (problem, choice) = (c.problem, c.choice);
    let (first, readers) = problem.readers(s.state);
    if !choice.staged.rows {
        return s.in_place(c, Operand::Query, problem.query_head(first), range.start);
    }
    let (dst, each) = (part.wrapping_add(c.layout.worker.queries.start), choice.chunk * choice.rows);
    for reader in 0..readers {
        let head = problem.query_head(first + reader);
        let to = (dst.wrapping_add(reader * each), choice.rows);
        let change = problem.spec().normalize.map_or(Change::Nothing, Change::Unit);
        // SAFETY: the region has room for a chunk of queries (layout), and only this worker uses it (clause).
        unsafe { copy(c, s, (Operand::Query, head), range, &(0..problem.key_dim()), to, change) }
    }
    Rows { data: dst, token: choice.rows as isize, head: each as isize }
}

/// Returns the rows of a chunk that all columns share. Queries are included only if `reads` is `true`.
///
/// # Safety
/// - The clauses of [`queries`] hold.
pub(super) unsafe fn heads(
    c: &Context<'_>,
    s: &Stretch<'_>,
    range: &Range<usize>,
    part: *mut f32,
    reads: bool,
) -> Heads {
    let (problem, choice, at) = (c.problem, c.choice, &c.layout.worker);
    let spec = problem.spec();
    let region = |start: usize| part.wrapping_add(start);
    let dense = |data, width: usize| Rows { data, token: width as isize, head: 0 };
    // SAFETY: each region has room for a chunk of its rows (layout), and only this worker uses it (clause).
    unsafe {
        let queries = if reads { queries(c, s, range, part) } else { Rows::NONE };
        let key_head = problem.key_head(s.state);
        let keys = if choice.staged.rows {
            let to = (region(at.keys.start), choice.rows);
            let change = spec.normalize.map_or(Change::Nothing, Change::Unit);
            copy(c, s, (Operand::Key, key_head), range, &(0..problem.key_dim()), to, change);
            dense(to.0, choice.rows)
        } else {
            s.in_place(c, Operand::Key, key_head, range.start)
        };
        let decay = decays(c, s, range, part);
        let beta_head = problem.beta_head(s.state);
        let beta = match &spec.beta {
            None => Rows::NONE,
            Some(_) if !choice.staged.beta => s.in_place(c, Operand::Beta, beta_head, range.start),
            Some(_) => {
                let to = (region(at.beta.start), 1);
                copy(c, s, (Operand::Beta, beta_head), range, &(0..1), to, Change::Nothing);
                dense(to.0, 1)
            }
        };
        Heads { queries, keys, decay, beta }
    }
}

/// Returns the rows of a chunk's decays; [`Rows::NONE`] if the problem has no decay.
///
/// # Safety
/// - The clauses of [`queries`] hold.
pub(super) unsafe fn decays(c: &Context<'_>, s: &Stretch<'_>, range: &Range<usize>, part: *mut f32) -> Rows {
    match &c.problem.spec().decay {
        None => Rows::NONE,
        Some(_) if !c.choice.staged.decay => s.in_place(c, Operand::Decay, s.state, range.start),
        Some(view) => {
            let width = if view.dim() > 1 { c.choice.rows } else { 1 };
            let to = (part.wrapping_add(c.layout.worker.decay.start), width);
            // SAFETY: the region has room for a chunk of decays (layout), and only this worker uses it (clause).
            unsafe {
                copy(c, s, (Operand::Decay, s.state), range, &(0..view.dim()), to, Change::Nothing);
            }
            Rows { data: to.0, token: width as isize, head: 0 }
        }
    }
}

/// Returns the rows of a chunk's values, from the first column of the stretch's strips on.
///
/// # Safety
/// - The clauses of [`queries`] hold.
pub(super) unsafe fn values(c: &Context<'_>, s: &Stretch<'_>, range: &Range<usize>, part: *mut f32) -> Rows {
    let columns = s.columns(c);
    if !c.choice.staged.columns {
        return s.in_place(c, Operand::Value, s.state, range.start).from(0, columns.start);
    }
    let dst = part.wrapping_add(c.layout.worker.values.start);
    let dims = columns.start..columns.end.min(c.problem.value_dim());
    let to = (dst, columns.len());
    // SAFETY: the region has room for these columns of a chunk (layout), and only this worker uses it (clause).
    unsafe { copy(c, s, (Operand::Value, s.state), range, &dims, to, Change::Nothing) };
    Rows { data: dst, token: columns.len() as isize, head: 0 }
}

/// Returns the rows to which a chunk's outputs are written, from the first column of the stretch's strips on. The rows
/// are in the tensor, in the region for unrounded outputs, or in the worker's region. If they are in a region,
/// [`store`] copies them to the tensor.
pub(super) fn outputs(c: &Context<'_>, s: &Stretch<'_>, range: &Range<usize>, part: *mut f32) -> Rows {
    let (first, _) = c.problem.readers(s.state);
    let columns = s.columns(c);
    if !c.choice.staged.columns {
        return s.in_place(c, Operand::Output, first, range.start).from(0, columns.start);
    }
    if c.choice.sums {
        let sums = c.sums(s.sequence, s.state);
        let place = s.token(range.start).saturating_sub(s.sequence.start);
        let sums = sums.from(place, columns.start);
        return Rows { token: if s.reverse { -sums.token } else { sums.token }, ..sums };
    }
    let width = columns.len();
    Rows {
        data: part.wrapping_add(c.layout.worker.outputs.start),
        token: width as isize,
        head: (c.choice.chunk * width) as isize,
    }
}

/// Copies the outputs of a chunk to the tensor, from the location that [`outputs`] has chosen. Does nothing if the
/// outputs are already in the tensor. Also does nothing in the first pass of a bidirectional problem, because the
/// second pass adds to the outputs of the first.
///
/// # Safety
/// - The invariants of [`Context`] hold. `range` is in the sequence and no longer than a chunk, its outputs have been
///   computed at `rows`, and no other worker writes these tokens and columns.
pub(super) unsafe fn store(c: &Context<'_>, s: &Stretch<'_>, range: &Range<usize>, rows: Rows) {
    let first_of_two = c.problem.spec().direction == Direction::Bidirectional && !s.reverse;
    if !c.choice.staged.columns || first_of_two {
        return;
    }
    let tensor = c.tensor(Operand::Output);
    let columns = s.columns(c);
    let dims = columns.end.min(c.problem.value_dim()) - columns.start;
    let (first, readers) = c.problem.readers(s.state);
    for reader in 0..readers {
        for (row, t) in range.clone().enumerate() {
            let to = tensor.row(s.sequence.batch, first + reader, s.token(t));
            let to = to.wrapping_add(columns.start * tensor.dtype.size());
            let from = rows.from(row, 0).data.wrapping_offset(reader as isize * rows.head);
            // SAFETY: the row has `dims` elements from this address on (*outputs*), and only this worker writes them
            // (clause); *kernel*.
            unsafe {
                match c.kernel.primitives.narrow(tensor.dtype) {
                    Some(narrow) => narrow(from.cast_const(), 1, dims, to.cast(), dims),
                    None => to.cast::<f32>().copy_from_nonoverlapping(from.cast_const(), dims),
                }
            }
        }
    }
}
