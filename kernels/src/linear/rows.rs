//! Accesses the operands of tokens on a strip (reads values and rates, writes outputs), and loops over the strip's rows.

use super::factor::{Factor, flushed};
use super::initial::clear_padding;
use super::kernel::{Ahead, Columns, Factors, Segment, Strip};
use super::tile::{BIAS, without_bias};
use crate::lanes::Lanes;
use crate::product::for_quad;
use core::ops::Range;

/// Returns the values of token `t`, multiplied by the token's factor in [`Segment::down`]. Without a delta rule, these
/// products are written to the state. Returns zeros if [`Columns::values`] is null.
///
/// # Safety
/// - The caller keeps the clauses of [`Segment`] and [`Columns`]; `t` is one of the tokens.
#[inline(always)]
pub(super) unsafe fn values<L: Lanes, const V: usize>(
    isa: L::Isa,
    segment: &Segment,
    columns: &Columns,
    t: usize,
) -> [L; V] {
    let mut v = [L::splat(isa, 0.0); V];
    if !columns.values.is_null() {
        // SAFETY: token `t` is in the segment (clause).
        unsafe {
            let from = columns.values.offset(t as isize * columns.value_stride);
            let down = L::splat(isa, segment.down.add(t).read());
            for x in 0..V {
                v[x] = L::load(isa, from.add(x * L::N)).times(down);
            }
        }
    }
    v
}

/// Writes the output of query row `g` of token `t`.
///
/// # Safety
/// - The caller keeps the clauses of [`Segment`] and [`Columns`]; `t` is one of the tokens, and `g` one of its query rows.
#[inline(always)]
pub(super) unsafe fn output<L: Lanes, const V: usize>(
    isa: L::Isa,
    segment: &Segment,
    columns: &Columns,
    t: usize,
    g: usize,
    y: [L; V],
) {
    // SAFETY: token `t` has row `g` (clause).
    unsafe {
        let up = segment.up.add(t).read();
        let limit = L::splat(isa, f32::MIN_POSITIVE / up.abs());
        let at = t as isize * columns.output_stride + g as isize * columns.group_stride;
        let to = columns.outputs.offset(at);
        for x in 0..V {
            let mut y = flushed(isa, y[x], L::splat(isa, up), limit);
            if columns.add {
                y = y.plus(L::load(isa, to.add(x * L::N)));
            }
            y.store(to.add(x * L::N));
        }
    }
}

/// Two vectors, each with equal lanes: the rate of a token, and the smallest magnitude whose product with the rate is a
/// normal number.
#[derive(Clone, Copy)]
pub(super) struct Rate<L> {
    beta: L,
    limit: L,
}

impl<L: Lanes> Rate<L> {
    /// Loads the rate of token `t`.
    ///
    /// # Safety
    /// - The caller keeps the clauses of [`Segment`]. The segment has rates, and `t` is one of its tokens.
    #[inline(always)]
    pub(super) unsafe fn of(isa: L::Isa, segment: &Segment, t: usize) -> Rate<L> {
        // SAFETY: token `t` has a rate (clause).
        let beta = unsafe { segment.betas.add(t).read() };
        Rate { beta: L::splat(isa, beta), limit: L::splat(isa, f32::MIN_POSITIVE / beta.abs()) }
    }

    /// Returns `x` times the rate, or zero for a product below the smallest normal number.
    #[inline(always)]
    pub(super) fn times(self, isa: L::Isa, x: L) -> L {
        flushed(isa, x, self.beta, self.limit)
    }
}

/// Number of terms per short sum. A short sum is completed before it is added to a larger sum.
pub(super) const SEGMENT: usize = 16;

/// Number of terms per long sum. A long sum adds up the short sums of its terms before it is added to the total.
const TERMS: usize = SEGMENT * SEGMENT;

/// Number of terms that are summed in f32 before this sum is added to an f64 sum. Applies to passes whose sums are f64.
pub(super) const SHORT: usize = 8;

/// Adds `Σ_{i < count} p[r][i] · w[i]` to `sums` for `R` rows of products, `stride` apart. A sum of many terms is built
/// from short sums, so that fewer additions round a number as large as the state. The state is large if its content
/// decays little.
///
/// # Safety
/// - `count` values are readable in each row of `p`, and `count` rows of `V` vectors at `w`.
#[inline(always)]
pub(super) unsafe fn add_products<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    sums: &mut [[L; V]; R],
    p: *const f32,
    stride: usize,
    w: *const f32,
    count: usize,
) {
    if count <= SEGMENT {
        // SAFETY: the calls need only the clauses of this function.
        unsafe { add_segment::<L, R, V>(isa, sums, p, stride, w, 0..count) };
        return;
    }
    for start in (0..count).step_by(TERMS) {
        let end = count.min(start + TERMS);
        let mut terms = [[L::splat(isa, 0.0); V]; R];
        for first in (start..end).step_by(SEGMENT) {
            let mut part = [[L::splat(isa, BIAS); V]; R];
            // SAFETY: the call needs only the clauses of this function, and the last segment ends with the last term.
            unsafe { add_segment::<L, R, V>(isa, &mut part, p, stride, w, first..end.min(first + SEGMENT)) };
            for r in 0..R {
                for v in 0..V {
                    terms[r][v] = terms[r][v].plus(without_bias(isa, part[r][v], 1));
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                sums[r][v] = sums[r][v].plus(terms[r][v]);
            }
        }
    }
}

/// Computes [`add_products`] for a pass with f64 sums.
///
/// # Safety
/// - The caller keeps the clauses of [`add_products`].
#[inline(always)]
pub(super) unsafe fn add_wide<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    sums: &mut [[L; V]; R],
    p: *const f32,
    stride: usize,
    w: *const f32,
    count: usize,
) {
    // `true` if the registers hold two vectors together with their sums in f64.
    let both = L::MANY_REGISTERS && V.is_multiple_of(2);
    for from in (0..V).step_by(if both { 2 } else { 1 }) {
        // SAFETY: the calls need only the clauses of this function, and the vectors are among the `V`.
        unsafe {
            match both {
                true => add_vectors::<L, R, V, 2>(isa, sums, p, stride, w, count, from),
                false => add_vectors::<L, R, V, 1>(isa, sums, p, stride, w, count, from),
            }
        }
    }
}

/// Computes [`add_wide`] for `U` vectors, starting with vector `from`. Groups of [`SHORT`] terms are summed in f32, and
/// the sums of the groups in f64.
///
/// # Safety
/// - The caller keeps the clauses of [`add_products`]; `from + U` is at most `V`.
#[inline(always)]
unsafe fn add_vectors<L: Lanes, const R: usize, const V: usize, const U: usize>(
    isa: L::Isa,
    sums: &mut [[L; V]; R],
    p: *const f32,
    stride: usize,
    w: *const f32,
    count: usize,
    from: usize,
) {
    let zero = L::wide(isa, 0.0);
    let mut whole = [[zero; U]; R];
    for first in (0..count).step_by(SHORT) {
        let mut part = [[L::splat(isa, BIAS); U]; R];
        let end = count.min(first + SHORT);
        let quads = (end - first) / 4 * 4;
        // SAFETY: columns of the products and rows of `w` from `first` to `end` are readable (clauses).
        unsafe {
            for i in (first..first + quads).step_by(4) {
                let quads: [L::Quad; R] = core::array::from_fn(|r| L::quad(isa, p.add(r * stride + i)));
                for_quad!(|J| {
                    for u in 0..U {
                        let w = L::load(isa, w.add(((i + J as usize) * V + from + u) * L::N));
                        for r in 0..R {
                            part[r][u] = part[r][u].mul_add_quad::<J>(w, quads[r]);
                        }
                    }
                });
            }
            for i in first + quads..end {
                for u in 0..U {
                    let w = L::load(isa, w.add((i * V + from + u) * L::N));
                    for r in 0..R {
                        part[r][u] = L::splat(isa, p.add(r * stride + i).read()).mul_add(w, part[r][u]);
                    }
                }
            }
        }
        for r in 0..R {
            for u in 0..U {
                whole[r][u] = L::wide_sum(whole[r][u], part[r][u].widened());
            }
        }
    }
    // The negative sum of the start values of the short sums.
    let bias = L::wide(isa, -f64::from(BIAS) * count.div_ceil(SHORT) as f64);
    for r in 0..R {
        for u in 0..U {
            let sum = &mut sums[r][from + u];
            *sum = L::narrowed(isa, L::wide_sum(sum.widened(), L::wide_sum(whole[r][u], bias)));
        }
    }
}

/// Adds the writes of four tokens of a tile, starting with token `FROM`, to the sums of the tile's `T` tokens. Each
/// write is added to the sum of its own token and to the sums of all later tokens.
///
/// # Safety
/// - `T` rows of products, `stride` apart, are readable at `p`. Each row has `T` values, rounded up to a multiple of
///   four. `T` rows of `V` vectors are readable at `w`.
#[inline(always)]
pub(super) unsafe fn add_own<L: Lanes, const T: usize, const V: usize, const FROM: usize>(
    isa: L::Isa,
    sums: &mut [[L; V]; T],
    p: *const f32,
    stride: usize,
    w: *const f32,
) {
    // SAFETY: the quads are within rows of products, and the writes within rows of `w` (clauses).
    unsafe {
        let p: [L::Quad; T] = core::array::from_fn(|r| L::quad(isa, p.add(r * stride + FROM)));
        for_quad!(|J| {
            let i = FROM + J as usize;
            // `w` ends with the row of the last token.
            if i < T {
                for x in 0..V {
                    let w = L::load(isa, w.add((i * V + x) * L::N));
                    for r in 0..T {
                        if r >= i {
                            sums[r][x] = sums[r][x].mul_add_quad::<J>(w, p[r]);
                        }
                    }
                }
            }
        });
    }
}

/// Adds `Σ_i p[r][i] · w[i]` to `sums`, for `i` in the range `terms`.
///
/// # Safety
/// - The caller keeps the clauses of [`add_products`]; `terms.end` is at most the `count` of that function.
#[inline(always)]
unsafe fn add_segment<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    sums: &mut [[L; V]; R],
    p: *const f32,
    stride: usize,
    w: *const f32,
    terms: Range<usize>,
) {
    for i in terms {
        // SAFETY: column `i` of the products and row `i` of `w` are readable (clauses).
        unsafe {
            for v in 0..V {
                let w = L::load(isa, w.add((i * V + v) * L::N));
                for r in 0..R {
                    sums[r][v] = L::splat(isa, p.add(r * stride + i).read()).mul_add(w, sums[r][v]);
                }
            }
        }
    }
}

/// Prefetches data of later tokens while `count` tokens from `first` are processed: the values of the next `count`
/// tokens, and the rows of each of the `count` tokens in [`Columns::ahead`]. The addresses need not be valid memory.
#[inline(always)]
pub(super) fn prefetch<L: Lanes, const V: usize>(isa: L::Isa, columns: &Columns, first: usize, count: usize) {
    /// Number of f32 values in two cache lines, which are fetched together.
    const LINES: usize = 32;
    /// Largest number of tokens per pass for which data are prefetched. A longer pass contains all tokens, so no tokens
    /// follow it.
    const MOST: usize = 256;
    if count > MOST {
        return;
    }
    let width = V * L::N;
    let Ahead { queries, query_stride, keys, key_stride } = columns.ahead;
    let rows =
        [(columns.values, columns.value_stride, count), (queries, query_stride, 0), (keys, key_stride, 0)];
    for (data, stride, behind) in rows {
        // If strips share lines, only the first one prefetches them.
        if data.is_null() || data.addr() % (LINES * 4) >= width * 4 {
            continue;
        }
        for t in first..first + count {
            let row = data.wrapping_offset((t + behind) as isize * stride);
            for x in (0..width).step_by(LINES) {
                L::prefetch(isa, row.wrapping_add(x).cast());
            }
        }
    }
}

/// Factors by which the rows of a strip are multiplied after tokens have been processed.
mod exits {
    /// No multiplication.
    pub const NEVER: u8 = 0;
    /// The factor one for all rows. The only effect is that numbers that would be subnormal are flushed to zero.
    pub const VANISH: u8 = 1;
    /// One factor for all rows.
    pub const SHARED: u8 = 2;
    /// One factor per row.
    pub const OWN: u8 = 3;
    /// Either one factor for all rows or one factor per row, selected at run time.
    pub const EITHER: u8 = 4;
}

/// Processes `B` tokens on all rows of a strip, starting with token `t`. With `OUT`, returns the product of each token's
/// query and the state before these tokens. Each row of the state is loaded once. With `OUT`, its product with an element
/// of each query is added to the result of that query. The row then receives the tokens' writes. With `EXIT`, it is then
/// multiplied by its factor. Finally it is stored once. The writes are summed separately, so that the state is rounded
/// once for all of them. With `ONCE`, the state is read from its previous location, and each kind of factor has its own
/// loop.
///
/// # Safety
/// - The caller keeps the clauses of [`Strip`] and [`Segment`]; the `B` tokens from `t` are in the segment. With `OUT`,
///   `dim` values are readable at each pointer in `q`.
#[inline(always)]
pub(super) unsafe fn rows<
    L: Lanes,
    const B: usize,
    const V: usize,
    const OUT: bool,
    const EXIT: bool,
    const ONCE: bool,
>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    t: usize,
    q: &[*const f32; B],
    v: &[[L; V]; B],
    exit: Option<&Factors>,
) -> [[L; V]; B] {
    use exits::{EITHER, NEVER, OWN, SHARED, VANISH};
    // SAFETY: the calls need only the clauses of this function.
    unsafe {
        match exit {
            Some(of) if EXIT && ONCE && of.per_dim => {
                each_row::<L, B, V, OUT, OWN, ONCE>(isa, strip, segment, t, q, v, exit)
            }
            Some(of) if EXIT && ONCE && of.is_one() => {
                each_row::<L, B, V, OUT, VANISH, ONCE>(isa, strip, segment, t, q, v, exit)
            }
            Some(_) if EXIT && ONCE => {
                each_row::<L, B, V, OUT, SHARED, ONCE>(isa, strip, segment, t, q, v, exit)
            }
            _ if EXIT && !ONCE => each_row::<L, B, V, OUT, EITHER, ONCE>(isa, strip, segment, t, q, v, exit),
            _ => each_row::<L, B, V, OUT, NEVER, ONCE>(isa, strip, segment, t, q, v, exit),
        }
    }
}

/// Computes [`rows`]. The compile-time constant `EXIT`, one of those in [`exits`], selects the kind of factors.
///
/// # Safety
/// - The caller keeps the clauses of [`rows`]; `exit` has factors unless `EXIT` is [`exits::NEVER`].
#[inline(always)]
unsafe fn each_row<
    L: Lanes,
    const B: usize,
    const V: usize,
    const OUT: bool,
    const EXIT: u8,
    const ONCE: bool,
>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    t: usize,
    q: &[*const f32; B],
    v: &[[L; V]; B],
    exit: Option<&Factors>,
) -> [[L; V]; B] {
    let bias = L::splat(isa, BIAS);
    // With a single token, each result is accumulated in four independent sums.
    let mut y = [[[bias; V]; B]; 4];
    // SAFETY: the rows are those of `B` tokens and of the strip (clauses). After the last row the pointer is advanced
    // but not read.
    unsafe {
        let k: [*const f32; B] =
            core::array::from_fn(|b| segment.writers.offset((t + b) as isize * segment.writer_stride));
        let common = exit.map(|exit| Factor::of(isa, exit, 0));
        let (mut row, mut from) = (strip.state, strip.from);
        for r in (0..segment.dim).step_by(4) {
            let kq: [L::Quad; B] = core::array::from_fn(|b| L::quad(isa, k[b].add(r)));
            let qq: [L::Quad; B] = if OUT { core::array::from_fn(|b| L::quad(isa, q[b].add(r))) } else { kq };
            for_quad!(|J| {
                let mut s = [bias; V];
                for x in 0..V {
                    let at = if ONCE { from } else { row.cast_const() };
                    s[x] = L::load(isa, at.add(x * L::N));
                    if OUT {
                        for b in 0..B {
                            let y = &mut y[if B == 1 { J as usize } else { 0 }][b][x];
                            *y = y.mul_add_quad::<J>(s[x], qq[b]);
                        }
                    }
                    if B == 1 {
                        s[x] = s[x].mul_add_quad::<J>(v[0][x], kq[0]);
                    } else {
                        let mut sum = v[0][x].mul_quad::<J>(kq[0]);
                        for b in 1..B {
                            sum = sum.mul_add_quad::<J>(v[b][x], kq[b]);
                        }
                        s[x] = s[x].plus(sum);
                    }
                }
                if EXIT == exits::VANISH {
                    for x in 0..V {
                        s[x] = s[x].unless_below(isa, L::splat(isa, f32::MIN_POSITIVE));
                    }
                } else if EXIT != exits::NEVER
                    && let (Some(exit), Some(common)) = (exit, common)
                {
                    let factor = match EXIT {
                        exits::SHARED => common,
                        exits::OWN => Factor::of(isa, exit, r + J as usize),
                        _ => Factor::of_row(isa, exit, r + J as usize, common),
                    };
                    for x in 0..V {
                        s[x] = factor.times(isa, s[x]);
                    }
                }
                for x in 0..V {
                    s[x].store(row.add(x * L::N));
                }
                row = row.wrapping_add(strip.stride);
                from = from.wrapping_add(strip.from_stride);
            });
        }
        clear_padding(strip.state, strip.stride, V * L::N, segment);
    }
    let [mut whole, second, third, fourth] = y;
    for b in 0..B {
        for x in 0..V {
            if B == 1 {
                whole[b][x] = whole[b][x].plus(second[b][x]).plus(third[b][x].plus(fourth[b][x]));
            }
            whole[b][x] = without_bias(isa, whole[b][x], if B == 1 { 4 } else { 1 });
        }
    }
    whole
}
