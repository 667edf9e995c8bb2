//! Processes a segment's tokens on a strip of the state.

use super::initial::{WIDEST, place, readable};
use super::kernel::{Columns, Entries, Factors, Segment, Strip};
use super::rows::{Rate, add_own, add_products, add_wide, output, prefetch, rows, values};
use super::tile::{reads, sums};
use super::update::{update, update_short};
use crate::lanes::Lanes;
use crate::product::for_quad;

/// Processes the tokens of a segment on a strip: updates the state, and writes outputs if any are requested.
///
/// Under the rules without rates, a pass has at most `P` tokens. A pass of fewer than `P` tokens is processed `B` tokens at
/// a time. If the registers cannot hold a complete pass, `T` queries are processed at a time; if `T` is zero, a pass of `P`
/// tokens is processed `B` tokens at a time, too. A register tile of products has `R` rows. The widest strip has `V`
/// vectors, or `W` vectors under the delta rules.
///
/// # Safety
/// - The clauses of [`Strip`], [`Segment`] and [`Columns`] hold. The segment was written by [`super::prepare::prepare`]
///   and has not been changed since.
/// - The entries are those for the lanes `L`.
#[inline(always)]
pub unsafe fn recur<L: Lanes>(
    isa: L::Isa,
    entries: &Entries,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
) {
    let delta = !segment.betas.is_null();
    // Index of the width among one vector, `V` and `W`.
    let width = usize::from(strip.width > L::N) + usize::from(strip.width > entries.columns);
    // SAFETY: the calls need only the clauses of this function, and the width is one of three.
    unsafe {
        let answers = !columns.outputs.is_null() && segment.group == 1;
        if segment.tokens == 1 && segment.entry.is_none() && (answers || !delta && segment.group <= 1) {
            let single = if delta { entries.single_delta[width] } else { entries.single[width] };
            return single(&readable(strip), segment, columns);
        }
        if segment.entry.is_some() || strip.from != strip.state {
            place::<L>(isa, &readable(strip), segment);
        }
        let many = if delta { entries.delta[width] } else { entries.plain[width] };
        many(strip, segment, columns);
    }
}

/// Processes the only token of a segment on a strip of `V` vectors. The state is read from the strip's previous
/// location and written to the strip's new location. `DELTA` selects the rules with rates.
///
/// # Safety
/// - The clauses of [`recur`] hold; the token has one query row. Under the rules without rates it may also have none.
#[inline(always)]
pub unsafe fn single<L: Lanes, const V: usize, const DELTA: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
) {
    let exit = if columns.keep { segment.exit.as_ref() } else { None };
    // SAFETY: the calls need only the clauses of this function.
    unsafe {
        if !DELTA {
            match columns.outputs.is_null() {
                false => through::<L, 1, V, true, true, true>(isa, strip, segment, columns, 0, 0, exit),
                true => through::<L, 1, V, false, true, true>(isa, strip, segment, columns, 0, 0, exit),
            }
            return;
        }
        let w = [alone::<L, V>(isa, strip, segment, columns, 0)];
        if columns.keep {
            let writers = &[segment.writers];
            rows::<L, 1, V, false, true, true>(isa, strip, segment, 0, writers, &w, exit);
        }
    }
}

/// Runs the passes of a segment over a strip of `V` vectors, for the rules without rates.
///
/// # Safety
/// - The clauses of [`recur`] hold.
#[inline(always)]
pub unsafe fn plain<
    L: Lanes,
    const B: usize,
    const R: usize,
    const T: usize,
    const P: usize,
    const V: usize,
>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
) {
    let out = !columns.outputs.is_null();
    // `true` if the registers hold two vectors of everything that the tokens read and write, for at most five tokens.
    let in_registers = L::MANY_REGISTERS && P <= 5;
    // SAFETY: the calls need only the clauses of this function, and the last pass ends with the segment.
    unsafe {
        if segment.pass > P || out && segment.group > 1 {
            return together::<L, B, R, T, P, V, false>(isa, strip, segment, columns);
        }
        let mut first = 0;
        while first < segment.tokens {
            let end = segment.tokens.min(first + segment.pass);
            prefetch::<L, V>(isa, columns, first, end - first);
            let mut t = first;
            if T > 0 && end - first == P {
                let exit = if columns.keep && end == segment.tokens { segment.exit.as_ref() } else { None };
                if in_registers {
                    block::<L, P, V>(isa, strip, segment, columns, first, first, exit);
                } else {
                    apart::<L, B, T, P, V>(isa, strip, segment, columns, first, exit);
                }
                t = end;
            }
            while t < end {
                let many = t + B <= end;
                // The rows are multiplied by the factors when the last tokens store them.
                let last = t + if many { B } else { 1 } == segment.tokens;
                let exit = if columns.keep && last { segment.exit.as_ref() } else { None };
                if many {
                    block::<L, B, V>(isa, strip, segment, columns, first, t, exit);
                } else {
                    block::<L, 1, V>(isa, strip, segment, columns, first, t, exit);
                }
                t += if many { B } else { 1 };
            }
            first = end;
        }
    }
}

/// Processes the pass of `P` tokens that starts with token `first`, on a strip, under the rules without rates. This
/// function is used if the registers cannot hold everything that these tokens read and write. Tiles of `T` queries read
/// the strip first; then the writes of all tokens are added.
///
/// # Safety
/// - The clauses of [`recur`] hold; the tokens are a pass of the segment, and have one query row each if there are
///   outputs.
#[inline(always)]
unsafe fn apart<L: Lanes, const B: usize, const T: usize, const P: usize, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    first: usize,
    exit: Option<&Factors>,
) {
    let width = V * L::N;
    // SAFETY: the pointers are to rows of the tokens, to rows of the room up to the last of these tokens, and to the
    // tokens' products with one another (clauses).
    unsafe {
        for t in 0..P {
            let v = values::<L, V>(isa, segment, columns, first + t);
            for x in 0..V {
                v[x].store(strip.room.add(t * width + x * L::N));
            }
        }
        let mut t = if columns.outputs.is_null() { P } else { 0 };
        while t < P {
            let queries = segment.queries.offset((first + t) as isize * segment.query_stride);
            let mut y =
                reads::<L, T, V>(isa, segment.dim, queries, segment.query_stride, strip.state, strip.stride);
            let products = segment.products.add((first + t) * segment.row);
            add_products::<L, T, V>(isa, &mut y, products, segment.row, strip.room, t);
            let (own, written) = (products.add(t), strip.room.add(t * width).cast_const());
            add_own::<L, T, V, 0>(isa, &mut y, own, segment.row, written);
            if T > 4 {
                add_own::<L, T, V, 4>(isa, &mut y, own, segment.row, written);
            }
            for r in 0..T {
                output(isa, segment, columns, first + t + r, 0, y[r]);
            }
            t += T;
        }
        match (columns.keep || first + P < segment.tokens, exit) {
            (false, _) => {}
            (true, None) => update_short::<L, B, T, P, V, false>(isa, strip, segment, first, P, exit),
            (true, _) => update_short::<L, B, T, P, V, true>(isa, strip, segment, first, P, exit),
        }
    }
}

/// Calls [`through`] for `B` tokens. Compile-time constants say whether there are outputs and factors.
///
/// # Safety
/// - The clauses of [`recur`] hold; the `B` tokens from `t` are in the segment, and have one query row each if there
///   are outputs.
#[inline(always)]
unsafe fn block<L: Lanes, const B: usize, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    first: usize,
    t: usize,
    exit: Option<&Factors>,
) {
    // SAFETY: the calls need only the clauses of this function.
    unsafe {
        match (columns.outputs.is_null(), exit.is_some()) {
            (false, false) => {
                through::<L, B, V, true, false, false>(isa, strip, segment, columns, first, t, exit)
            }
            (false, true) => {
                through::<L, B, V, true, true, false>(isa, strip, segment, columns, first, t, exit)
            }
            (true, false) => {
                through::<L, B, V, false, false, false>(isa, strip, segment, columns, first, t, exit)
            }
            (true, true) => {
                through::<L, B, V, false, true, false>(isa, strip, segment, columns, first, t, exit)
            }
        }
    }
}

/// Processes `B` tokens on a strip, starting with token `t`, and writes their outputs if `OUT` is set. Their pass
/// starts with token `first`. With `EXIT`, the factors must be given, and the strip is multiplied by these factors at
/// the end. For `ONCE`, see [`rows`].
///
/// # Safety
/// - The clauses of [`recur`] hold; the `B` tokens from `t` are in the segment. With `OUT`, each of these tokens has
///   one query row.
#[inline(always)]
unsafe fn through<
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
    columns: &Columns,
    first: usize,
    t: usize,
    exit: Option<&Factors>,
) {
    let mut v = [[L::splat(isa, 0.0); V]; B];
    let mut q = [segment.queries; B];
    // SAFETY: these are rows of `B` tokens, and their products with one another (clauses).
    unsafe {
        for b in 0..B {
            v[b] = values::<L, V>(isa, segment, columns, t + b);
            if OUT {
                q[b] = segment.queries.offset((t + b) as isize * segment.query_stride);
            }
        }
        let mut y = rows::<L, B, V, OUT, EXIT, ONCE>(isa, strip, segment, t, &q, &v, exit);
        if OUT {
            for b in 0..B {
                let products = segment.products.add((t + b) * segment.row + t - first);
                for i in 0..=b {
                    let product = L::splat(isa, products.add(i).read());
                    for x in 0..V {
                        y[b][x] = product.mul_add(v[i][x], y[b][x]);
                    }
                }
                output(isa, segment, columns, t + b, 0, y[b]);
            }
        }
    }
}

/// Runs the passes of a segment over a strip of `V` vectors; `DELTA` selects the rules with rates. All tokens of a pass
/// read the state before the pass, and interact through the products of the segment.
///
/// # Safety
/// - The clauses of [`recur`] hold.
#[inline(always)]
pub unsafe fn together<
    L: Lanes,
    const B: usize,
    const R: usize,
    const T: usize,
    const P: usize,
    const V: usize,
    const DELTA: bool,
>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
) {
    // The products among the tokens of a register tile form a quad per token.
    const { assert!(V * L::N <= WIDEST && R == 4) };
    let answers = segment.group == 1 && !columns.outputs.is_null();
    let mut first = 0;
    while first < segment.tokens {
        let count = segment.pass.min(segment.tokens - first);
        prefetch::<L, V>(isa, columns, first, count);
        // SAFETY: the calls need only the clauses of this function, and the last pass ends with the segment.
        unsafe {
            if DELTA && count == R && answers {
                tile::<L, B, R, T, P, V>(isa, strip, segment, columns, first);
            } else {
                pass::<L, B, R, T, P, V, DELTA>(isa, strip, segment, columns, first, count);
            }
        }
        first += count;
    }
}

/// Computes [`pass`] under a delta rule for the tokens of one register tile, each with one query row. The number of
/// tokens and the number of query rows are then compile-time constants.
///
/// # Safety
/// - The clauses of [`pass`] hold for `R` tokens.
#[inline(always)]
unsafe fn tile<L: Lanes, const B: usize, const R: usize, const T: usize, const P: usize, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    first: usize,
) {
    let last = first + R == segment.tokens;
    let exit = if last { segment.exit.as_ref() } else { None };
    // SAFETY: the calls need only the clauses of this function.
    unsafe {
        writes::<L, R, V, true>(isa, strip, segment, columns, first, 0);
        answers::<L, R, V, true>(isa, strip, segment, columns, first, 0, 0);
        match (columns.keep || !last, exit) {
            (false, _) => {}
            (true, None) => update_short::<L, B, T, P, V, false>(isa, strip, segment, first, R, exit),
            (true, _) => update_short::<L, B, T, P, V, true>(isa, strip, segment, first, R, exit),
        }
    }
}

/// Processes the pass of `count` tokens that starts with token `first`, on a strip.
///
/// # Safety
/// - The clauses of [`recur`] hold; the tokens are a pass of the segment.
#[inline(always)]
unsafe fn pass<
    L: Lanes,
    const B: usize,
    const R: usize,
    const T: usize,
    const P: usize,
    const V: usize,
    const DELTA: bool,
>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    first: usize,
    count: usize,
) {
    let groups = if columns.outputs.is_null() { 0 } else { segment.group };
    // SAFETY: the calls need only the clauses of this function, and the last block of tokens ends with the pass.
    unsafe {
        if DELTA && count == 1 && groups == 1 {
            let here = Strip { from: strip.state, from_stride: strip.stride, ..*strip };
            alone::<L, V>(isa, &here, segment, columns, first);
        } else {
            let mut t = 0;
            while t + R <= count {
                writes::<L, R, V, DELTA>(isa, strip, segment, columns, first, t);
                t += R;
            }
            while t < count {
                writes::<L, 1, V, DELTA>(isa, strip, segment, columns, first, t);
                t += 1;
            }
            for g in 0..groups {
                let mut t = 0;
                while t + R <= count {
                    answers::<L, R, V, DELTA>(isa, strip, segment, columns, first, t, g);
                    t += R;
                }
                while t < count {
                    answers::<L, 1, V, DELTA>(isa, strip, segment, columns, first, t, g);
                    t += 1;
                }
            }
        }
        let last = first + count == segment.tokens;
        if columns.keep || !last {
            let exit = if last { segment.exit.as_ref() } else { None };
            match (count > P, exit) {
                (true, _) if DELTA && segment.wide => {
                    update::<L, V, true>(isa, strip, segment, first, count, exit)
                }
                (true, _) => update::<L, V, false>(isa, strip, segment, first, count, exit),
                (false, None) => {
                    update_short::<L, B, T, P, V, false>(isa, strip, segment, first, count, exit)
                }
                (false, _) => update_short::<L, B, T, P, V, true>(isa, strip, segment, first, count, exit),
            }
        }
    }
}

/// Computes the output and the write of a single token under a delta rule. Stores the write in the strip's `room` and
/// returns it. This function does the work of [`writes`] and [`answers`] in one pass over the state. The state is read
/// from its previous location.
///
/// # Safety
/// - The clauses of [`pass`] hold for a single token with one query row.
#[inline(always)]
unsafe fn alone<L: Lanes, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    t: usize,
) -> [L; V] {
    // SAFETY: the token has a query row and a key; its first product is the one with itself (clauses).
    unsafe {
        let key = segment.readers.offset(t as isize * segment.reader_stride);
        let query = segment.queries.offset(t as isize * segment.query_stride);
        let (mut w, mut y) = ([L::splat(isa, 0.0); V], [L::splat(isa, 0.0); V]);
        let mut x = 0;
        while x < V {
            // The registers hold the sums of the write and of the output for two vectors.
            let from = strip.from.add(x * L::N);
            if V - x >= 2 {
                let [h, q] = sums::<L, 2, 2, true>(isa, segment.dim, [key, query], from, strip.from_stride);
                (w[x], w[x + 1], y[x], y[x + 1]) = (h[0], h[1], q[0], q[1]);
            } else {
                let [h, q] = sums::<L, 2, 1, true>(isa, segment.dim, [key, query], from, strip.from_stride);
                (w[x], y[x]) = (h[0], q[0]);
            }
            x += 2;
        }
        let w = write(isa, segment, columns, t, w, strip.room);
        let product = L::splat(isa, segment.products.add(t * segment.row).read());
        for x in 0..V {
            y[x] = product.mul_add(w[x], y[x]);
        }
        output(isa, segment, columns, t, 0, y);
        w
    }
}

/// Computes the values that `R` tokens, starting with token `t`, write to the state, and stores them in the strip's
/// `room`. Under the rules without rates, a token writes its value. Under the delta rules, a token writes `β (v − k
/// S')`, where `S'` includes the writes of earlier tokens of the pass. The values are computed by forward substitution.
///
/// # Safety
/// - The clauses of [`pass`] hold; the room contains the writes of the pass's tokens before `t`.
#[inline(always)]
unsafe fn writes<L: Lanes, const R: usize, const V: usize, const DELTA: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    first: usize,
    t: usize,
) {
    let width = V * L::N;
    // SAFETY: the `R` tokens are in the pass. Their rows of products are in memory, and so are the rows of the room up to
    // the last of these tokens (clauses).
    unsafe {
        let to = strip.room.add(t * width);
        if !DELTA {
            for r in 0..R {
                let v = values::<L, V>(isa, segment, columns, first + t + r);
                for x in 0..V {
                    v[x].store(to.add(r * width + x * L::N));
                }
            }
            return;
        }
        let keys = segment.readers.offset((first + t) as isize * segment.reader_stride);
        let mut w =
            reads::<L, R, V>(isa, segment.dim, keys, segment.reader_stride, strip.state, strip.stride);
        let products = segment.products.add((segment.group * segment.tokens + first + t) * segment.row);
        if t > 0 {
            match DELTA && segment.wide {
                true => add_wide::<L, R, V>(isa, &mut w, products, segment.row, strip.room, t),
                false => add_products::<L, R, V>(isa, &mut w, products, segment.row, strip.room, t),
            }
        }
        let own = products.add(t);
        if R == 1 {
            write(isa, segment, columns, first + t, w[0], to);
        } else {
            solve(isa, segment, columns, first + t, &mut w, own, to);
        }
    }
}

/// Computes the write of token `t` under a delta rule, `β (v − read)`, stores it at `to` and returns it.
///
/// # Safety
/// - The clauses of [`recur`] hold; `t` is one of the tokens, and `V` vectors are writable at `to`.
#[inline(always)]
unsafe fn write<L: Lanes, const V: usize>(
    isa: L::Isa,
    segment: &Segment,
    columns: &Columns,
    t: usize,
    read: [L; V],
    to: *mut f32,
) -> [L; V] {
    // SAFETY: token `t` is in the segment, and `V` vectors have room (clauses).
    unsafe {
        let rate = Rate::<L>::of(isa, segment, t);
        let mut w = values::<L, V>(isa, segment, columns, t);
        for x in 0..V {
            w[x] = rate.times(isa, w[x].minus(read[x]));
            w[x].store(to.add(x * L::N));
        }
        w
    }
}

/// Computes the writes of the tokens of a register tile under a delta rule; the first token is `t`. `w` contains the
/// values that these tokens read from the state and from the writes of tokens before the tile. The write of each token
/// is added to the values that later tokens read.
///
/// # Safety
/// - The clauses of [`writes`] hold; the products between the tokens are at `own`, four per token.
#[inline(always)]
unsafe fn solve<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    segment: &Segment,
    columns: &Columns,
    t: usize,
    w: &mut [[L; V]; R],
    own: *const f32,
    to: *mut f32,
) {
    // SAFETY: the quads are within rows of products, and the writes within rows of the room (clauses).
    unsafe {
        let p: [L::Quad; R] = core::array::from_fn(|r| L::quad(isa, own.add(r * segment.row)));
        for_quad!(|J| {
            let i = J as usize;
            let written = write(isa, segment, columns, t + i, w[i], to.add(i * V * L::N));
            for r in i + 1..R {
                for x in 0..V {
                    w[r][x] = w[r][x].mul_add_quad::<J>(written[x], p[r]);
                }
            }
        });
    }
}

/// Writes the outputs of query row `g` of `R` tokens, starting with token `t`.
///
/// # Safety
/// - The clauses of [`pass`] hold; the room contains the writes of these tokens and of earlier tokens of the pass.
#[inline(always)]
unsafe fn answers<L: Lanes, const R: usize, const V: usize, const DELTA: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    first: usize,
    t: usize,
    g: usize,
) {
    let width = V * L::N;
    // SAFETY: the `R` tokens are in the pass. Their rows of products are in memory, and so are the rows of the room up to
    // the last of these tokens (clauses).
    unsafe {
        let at = (first + t) as isize * segment.query_stride + g as isize * segment.group_stride;
        let queries = segment.queries.offset(at);
        let mut sums =
            reads::<L, R, V>(isa, segment.dim, queries, segment.query_stride, strip.state, strip.stride);
        let products = segment.products.add((g * segment.tokens + first + t) * segment.row);
        if t > 0 {
            match DELTA && segment.wide {
                true => add_wide::<L, R, V>(isa, &mut sums, products, segment.row, strip.room, t),
                false => add_products::<L, R, V>(isa, &mut sums, products, segment.row, strip.room, t),
            }
        }
        let (own, written) = (products.add(t), strip.room.add(t * width).cast_const());
        if R == 1 {
            let product = L::splat(isa, own.read());
            for x in 0..V {
                sums[0][x] = product.mul_add(L::load(isa, written.add(x * L::N)), sums[0][x]);
            }
            output(isa, segment, columns, first + t, g, sums[0]);
        } else {
            add_own::<L, R, V, 0>(isa, &mut sums, own, segment.row, written);
            for_quad!(|J| {
                let r = J as usize;
                output(isa, segment, columns, first + t + r, g, sums[r]);
            });
        }
    }
}
