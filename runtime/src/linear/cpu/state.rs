//! Copies states between tensors and packed strips of columns.

use super::context::{Context, Past, Stretch};
use crate::cpu::tensor::CpuTensor;
use elsa_core::linear::{Form, Operand};

/// Number of values that are copied at once.
const VECTOR: usize = 8;

/// Largest number of tokens for which a stretch updates the state in place. For more tokens, packed strips are faster,
/// because their rows do not compete for the same sets of the first-level cache.
const FEW: usize = 8;

/// Returns the address of the first value of a stretch's columns in the present state, and the distance between rows.
/// Returns `None` if the tokens must not update the state in place. Updates in place require few tokens and strips
/// without padding.
pub(super) fn in_place(c: &Context<'_>, s: &Stretch<'_>) -> Option<(*mut f32, usize)> {
    let (choice, columns) = (c.choice, s.columns(c));
    let packed =
        choice.form == Form::Chunk || choice.rows > c.problem.key_dim() || columns.end > choice.columns;
    if packed || s.tokens.is_empty() || s.tokens.len() > FEW || !c.has_present() {
        return None;
    }
    let present = c.tensor(Operand::PresentState);
    let state = present.row(s.sequence.index, s.state, 0).cast::<f32>();
    Some((state.wrapping_add(columns.start), present.stride()))
}

/// Returns the columns of a stretch in the past state. Returns columns of zeros if there is no past state, and `None`
/// if the past state is in the memory of the present state.
pub(super) fn elsewhere(c: &Context<'_>, s: &Stretch<'_>) -> Option<Past> {
    let source = c.problem.past_source();
    let past = c.tensor(source);
    if c.problem.spec().past_state.is_none() || !past.present {
        return Some(Past { data: std::ptr::null(), stride: 0 });
    }
    let data = past.row(s.sequence.index, s.state, 0).cast::<f32>().wrapping_add(s.columns(c).start);
    (source != Operand::PresentState).then_some(Past { data, stride: past.stride() })
}

/// Copies a stretch's columns from the past state to the present state at `data`; writes zeros if there is no past
/// state.
///
/// # Safety
/// - The invariants of [`Context`] hold. `data` and `stride` come from [`in_place`], and no other worker writes these
///   columns.
pub(super) unsafe fn begin(c: &Context<'_>, s: &Stretch<'_>, data: *mut f32, stride: usize) {
    let (rows, columns) = (c.problem.key_dim(), s.columns(c).len());
    match elsewhere(c, s) {
        Some(past) if past.data.is_null() => {
            // Rows without gaps are written like one long row.
            let (rows, columns) = if stride == columns { (1, rows * stride) } else { (rows, columns) };
            for row in 0..rows {
                // SAFETY: this row of the present state has the columns (*outputs*, clause). Zero bytes are f32 zeros.
                unsafe { data.add(row * stride).write_bytes(0, columns) };
            }
        }
        Some(past) => {
            let of = Pair { rows, from: past.stride, to: stride };
            // SAFETY: the rows of the past state are readable (*inputs*), those of the present state are writable
            // (*outputs*, clause), and the two do not overlap.
            unsafe { copy(past.data, of, data, columns) };
        }
        None => {}
    }
}

/// Copies a stretch's columns of the past state to strips at `dst`; writes zeros if the problem has no past state.
///
/// # Safety
/// - The invariants of [`Context`] hold. The strips can be written to `dst`, and no other worker uses them.
pub(super) unsafe fn load(c: &Context<'_>, s: &Stretch<'_>, dst: *mut f32) {
    let (choice, problem) = (c.choice, c.problem);
    let columns = s.columns(c);
    let past = c.tensor(problem.past_source());
    let given = problem.spec().past_state.is_some() && past.present;
    let padded = choice.rows > problem.key_dim() || columns.end > choice.columns;
    if padded || !given {
        // SAFETY: the strips together have `rows` rows of these columns (clause). Zero bytes are f32 zeros.
        unsafe { dst.write_bytes(0, choice.rows * columns.len()) };
    }
    if given {
        // SAFETY: the past state is readable (*inputs*, or *outputs* if it shares the present state's memory), and the
        // strips are writable (clause).
        each_strip(c, s, past, dst, |of, row, place, columns| unsafe { copy(row, of, place, columns) });
    }
}

/// Copies a stretch's strips at `src` to the present state, if the call has one.
///
/// # Safety
/// - The invariants of [`Context`] hold. `src` is readable for the strips, and no other worker writes these columns of the
///   state.
pub(super) unsafe fn store(c: &Context<'_>, s: &Stretch<'_>, src: *mut f32) {
    if c.has_present() {
        let present = c.tensor(Operand::PresentState);
        // SAFETY: only this worker writes these columns of the state (*outputs*, clause), and the strips are readable
        // (clause).
        each_strip(c, s, present, src, |of, row, place, columns| unsafe {
            copy(place, of.swapped(), row, columns);
        });
    }
}

/// Number of rows to copy, and the distances between rows in the source (`from`) and in the destination (`to`).
#[derive(Clone, Copy)]
struct Pair {
    rows: usize,
    from: usize,
    to: usize,
}

impl Pair {
    fn swapped(self) -> Pair {
        Pair { from: self.to, to: self.from, ..self }
    }
}

/// Calls `each(rows, tensor, strip, columns)` for each strip of a stretch. `rows` describes a copy from the tensor to
/// the strip, `tensor` and `strip` are the addresses of the first row, and `columns` is the number of values per row.
fn each_strip(
    c: &Context<'_>,
    s: &Stretch<'_>,
    tensor: &CpuTensor,
    strips: *mut f32,
    mut each: impl FnMut(Pair, *mut f32, *mut f32, usize),
) {
    let choice = c.choice;
    let start = s.columns(c).start;
    let state = tensor.row(s.sequence.index, s.state, 0).cast::<f32>();
    for strip in s.strips.clone() {
        let strip = choice.strips.strip(choice.columns, strip);
        let of = Pair { rows: c.problem.key_dim(), from: tensor.stride(), to: strip.width };
        let place = strips.wrapping_add((strip.first - start) * choice.rows);
        each(of, state.wrapping_add(strip.first), place, strip.width.min(choice.columns - strip.first));
    }
}

/// Copies the first `columns` values of each row from `from` to `to`.
///
/// # Safety
/// - The rows are readable at `from` and writable at `to`, and do not overlap.
unsafe fn copy(from: *const f32, of: Pair, to: *mut f32, columns: usize) {
    if of.from == columns && of.to == columns {
        // SAFETY: rows without gaps are one contiguous range, which is readable at `from` and writable at `to`
        // (clause).
        unsafe { to.copy_from_nonoverlapping(from, of.rows * columns) };
        return;
    }
    let whole = columns / VECTOR * VECTOR;
    for x in 0..of.rows {
        // SAFETY: row `x` is readable in the source and writable in the destination (clause).
        unsafe {
            let (from, to) = (from.add(x * of.from), to.add(x * of.to));
            for i in (0..whole).step_by(VECTOR) {
                let values = from.add(i).cast::<[f32; VECTOR]>().read_unaligned();
                to.add(i).cast::<[f32; VECTOR]>().write_unaligned(values);
            }
            for i in whole..columns {
                to.add(i).write(from.add(i).read());
            }
        }
    }
}
