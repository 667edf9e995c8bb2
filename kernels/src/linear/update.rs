//! Adds the writes of a pass to the state.

use super::factor::Factor;
use super::initial::clear_padding;
use super::kernel::{Factors, Segment, Strip};
use super::rows::{SEGMENT, SHORT, rows};
use crate::lanes::Lanes;
use crate::product::for_quad;

/// Adds the writes of a long pass to the state, four rows at a time. The writes are summed separately, so that the
/// state is rounded once per pass. Short sums of the writes are formed first and then added up (in f64 with `WIDE`).
/// Then the rows are multiplied by the factors `exit`, if there are any.
///
/// # Safety
/// - The caller keeps the clauses of [`Strip`] and [`Segment`]; the tokens are a pass of the segment, and [`Strip::room`]
///   contains their writes.
#[inline(always)]
pub(super) unsafe fn update<L: Lanes, const V: usize, const WIDE: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    first: usize,
    count: usize,
    exit: Option<&Factors>,
) {
    let width = V * L::N;
    let some = if WIDE { SHORT } else { SEGMENT };
    // SAFETY: the strip has the four rows, and the tokens are in the pass (clauses).
    unsafe {
        let keys = segment.writers.offset(first as isize * segment.writer_stride);
        let common = exit.map(|exit| Factor::of(isa, exit, 0));
        for d in (0..segment.dim).step_by(4) {
            let rows = strip.state.add(d * strip.stride);
            let mut s = [[L::splat(isa, 0.0); V]; 4];
            let mut whole = [[L::wide(isa, 0.0); V]; 4];
            for from in (0..count).step_by(some) {
                let mut part = [[L::splat(isa, 0.0); V]; 4];
                for t in from..count.min(from + some) {
                    let quad = L::quad(isa, keys.offset(t as isize * segment.writer_stride).add(d));
                    for x in 0..V {
                        let w = L::load(isa, strip.room.add(t * width + x * L::N));
                        for_quad!(|J| {
                            part[J as usize][x] = part[J as usize][x].mul_add_quad::<J>(w, quad);
                        });
                    }
                }
                for j in 0..4 {
                    for x in 0..V {
                        match WIDE {
                            true => whole[j][x] = L::wide_sum(whole[j][x], part[j][x].widened()),
                            false => s[j][x] = s[j][x].plus(part[j][x]),
                        }
                    }
                }
            }
            for j in 0..4 {
                for x in 0..V {
                    let at = rows.add(j * strip.stride + x * L::N);
                    let held = L::load(isa, at);
                    let mut sum = match WIDE {
                        true => L::narrowed(isa, L::wide_sum(whole[j][x], held.widened())),
                        false => s[j][x].plus(held),
                    };
                    if let (Some(exit), Some(common)) = (exit, common) {
                        sum = Factor::of_row(isa, exit, d + j, common).times(isa, sum);
                    }
                    sum.store(at);
                }
            }
        }
        clear_padding(strip.state, strip.stride, width, segment);
    }
}

/// Adds the writes of a short pass to the state, `P` or `B` tokens at a time. With `EXIT`, `exit` must contain
/// factors, and the rows are multiplied by them after the writes are added.
///
/// # Safety
/// - The caller keeps the clauses of [`Strip`] and [`Segment`]; the tokens are a pass of the segment, and [`Strip::room`]
///   contains their writes.
#[inline(always)]
pub(super) unsafe fn update_short<
    L: Lanes,
    const B: usize,
    const T: usize,
    const P: usize,
    const V: usize,
    const EXIT: bool,
>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    first: usize,
    count: usize,
    exit: Option<&Factors>,
) {
    // SAFETY: the calls need only the clauses of this function, and the last tokens end with the pass.
    unsafe {
        if T > 0 && count == P {
            // All vectors are updated at once if the registers hold them for all tokens.
            if V <= 2 && (L::MANY_REGISTERS || P <= 5) {
                add_tokens::<L, P, V, V, EXIT>(isa, strip, segment, first, 0, 0, exit);
            } else {
                for x in 0..V {
                    add_tokens::<L, P, 1, V, EXIT>(isa, strip, segment, first, 0, x, exit);
                }
            }
            return;
        }
        let mut t = 0;
        while t < count {
            let many = t + B <= count;
            let last = t + if many { B } else { 1 } == count;
            match (many, EXIT && last) {
                (true, true) => add_tokens::<L, B, V, V, EXIT>(isa, strip, segment, first, t, 0, exit),
                (true, false) => add_tokens::<L, B, V, V, false>(isa, strip, segment, first, t, 0, exit),
                (false, true) => add_tokens::<L, 1, V, V, EXIT>(isa, strip, segment, first, t, 0, exit),
                (false, false) => add_tokens::<L, 1, V, V, false>(isa, strip, segment, first, t, 0, exit),
            }
            t += if many { B } else { 1 };
        }
    }
}

/// Adds the writes of `B` tokens, starting with token `t`, to `V` of the `ALL` vectors of a strip, starting with vector
/// `from`.
///
/// # Safety
/// - The caller keeps the clauses of [`update_short`]; the tokens belong to the pass, and the vectors to the strip.
#[inline(always)]
unsafe fn add_tokens<L: Lanes, const B: usize, const V: usize, const ALL: usize, const EXIT: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    first: usize,
    t: usize,
    from: usize,
    exit: Option<&Factors>,
) {
    let mut w = [[L::splat(isa, 0.0); V]; B];
    // SAFETY: the room has the `B` rows; the other clauses are those of this function.
    unsafe {
        for b in 0..B {
            for x in 0..V {
                w[b][x] = L::load(isa, strip.room.add(((t + b) * ALL + from + x) * L::N));
            }
        }
        let part = Strip { state: strip.state.add(from * L::N), ..*strip };
        rows::<L, B, V, false, EXIT, false>(isa, &part, segment, first + t, &[segment.writers; B], &w, exit);
    }
}
