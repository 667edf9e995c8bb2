//! States between tensors and strips of columns.

use super::context::{Context, Stretch};
use elsa_core::linear::Operand;

/// Brings the past state of a stretch's strips to `dst`: zeros if the problem has none.
///
/// # Safety
/// - The invariants of [`Context`]. `dst` is writable for the strips, and this worker's.
pub(super) unsafe fn load(c: &Context<'_>, s: &Stretch<'_>, dst: *mut f32) {
    let columns = s.columns(c);
    // SAFETY: the strips have `rows` rows of these columns together (clause). Zero bytes are f32 zeros.
    unsafe { dst.write_bytes(0, c.choice.rows * columns.len()) };
    let past = c.tensor(c.problem.past_source());
    if c.problem.spec().past_state.is_none() || !past.is_present() {
        return;
    }
    each_row(c, s, |x, first, place, count| {
        let from = past.row(s.sequence.index, s.state, x).cast::<f32>().wrapping_add(first);
        // SAFETY: row `x` of the state has these columns (*inputs*, or *outputs* of a problem in place), and so has the
        // strip (clause).
        unsafe { dst.add(place).copy_from_nonoverlapping(from.cast_const(), count) }
    });
}

/// Brings a stretch's strips at `src` to the present state, if the problem has one.
///
/// # Safety
/// - The invariants of [`Context`]. `src` is readable for the strips, and no other worker writes these columns of the state.
pub(super) unsafe fn store(c: &Context<'_>, s: &Stretch<'_>, src: *const f32) {
    let present = c.tensor(Operand::PresentState);
    if !present.is_present() {
        return;
    }
    each_row(c, s, |x, first, place, count| {
        let to = present.row(s.sequence.index, s.state, x).cast::<f32>().wrapping_add(first);
        // SAFETY: row `x` of the state has these columns, and no other worker writes them (*outputs*, clause).
        unsafe { to.copy_from_nonoverlapping(src.add(place), count) }
    });
}

/// Calls `each(row, first column, place in the strips, columns)` for every row of every strip, without padding.
fn each_row(c: &Context<'_>, s: &Stretch<'_>, mut each: impl FnMut(usize, usize, usize, usize)) {
    let choice = c.choice;
    let start = s.columns(c).start;
    for strip in s.strips.clone() {
        let strip = choice.strips.strip(choice.columns, strip);
        let count = strip.width.min(choice.columns - strip.first);
        let place = (strip.first - start) * choice.rows;
        for x in 0..c.problem.key_dim() {
            each(x, strip.first, place + x * strip.width, count);
        }
    }
}
