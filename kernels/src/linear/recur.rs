//! The tokens of a segment pass a strip of the state.

use super::enter::{WIDEST, entered};
use super::factor::Factor;
use super::kernel::{Columns, Factors, Segment, Strip};
use super::rows::{Rate, SEGMENT, SHORT, add_own, add_products, add_wide, output, prefetch, rows, values};
use super::tile::{reads, sums};
use crate::lanes::Lanes;
use crate::product::for_quad;

/// Lets the tokens of a segment pass a strip: the state is updated, and outputs are written if there are any.
///
/// At most `P` tokens pass together under the rules without rates, and of fewer `B`; where not all of them pass in registers, `T` of
/// their queries do. With `T` zero they pass as fewer do. `R` rows are a register tile of products, `V` vectors the widest strip, and `W` vectors that
/// of the delta rules.
///
/// # Safety
/// - The clauses of [`Strip`], [`Segment`], as [`super::prepare::prepare`] leaves it, and [`Columns`].
#[inline(always)]
pub unsafe fn recur<
    L: Lanes,
    const B: usize,
    const R: usize,
    const T: usize,
    const P: usize,
    const V: usize,
    const W: usize,
>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
) {
    const { assert!(V * L::N <= WIDEST && W * L::N <= WIDEST) };
    let delta = !segment.betas.is_null();
    // SAFETY: the same clauses; the width is one of three.
    unsafe {
        let strip = &entered::<L>(isa, strip, segment);
        match (delta, strip.width == L::N) {
            (false, true) => plain::<L, B, R, T, P, 1>(isa, strip, segment, columns),
            (false, false) => plain::<L, B, R, T, P, V>(isa, strip, segment, columns),
            (true, true) => together::<L, B, R, T, P, 1, true>(isa, strip, segment, columns),
            (true, false) if W == V || strip.width == V * L::N => {
                together::<L, B, R, T, P, V, true>(isa, strip, segment, columns);
            }
            (true, false) => together::<L, B, R, T, P, W, true>(isa, strip, segment, columns),
        }
    }
}

/// The passes of a segment over a strip of `V` vectors, for the rules without rates.
///
/// # Safety
/// - As for [`recur`].
#[inline(always)]
unsafe fn plain<L: Lanes, const B: usize, const R: usize, const T: usize, const P: usize, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
) {
    let out = !columns.outputs.is_null();
    // What five tokens read and write of two vectors.
    let in_registers = L::MANY_REGISTERS && P <= 5;
    // SAFETY: the same clauses; passes end where the segment does.
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
                // The last tokens multiply what they store.
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

/// `P` tokens from `first` on pass a strip, for the rules without rates, where the registers do not hold what all of them read
/// and write: a tile of `T` queries at a time reads the strip, and then what they write is added.
///
/// # Safety
/// - As for [`recur`]; the tokens are a pass of the segment, and have a query row each if there are outputs.
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
    // SAFETY: rows of the tokens, of the room up to theirs, and their products with one another (clauses).
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

/// [`through`] with what `B` tokens are to do known to the compiler.
///
/// # Safety
/// - As for [`recur`]; `B` tokens from `t` on are in the segment, and have a query row each if there are outputs.
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
    // SAFETY: the same clauses.
    unsafe {
        match (columns.outputs.is_null(), exit.is_some()) {
            (false, false) => through::<L, B, V, true, false>(isa, strip, segment, columns, first, t, exit),
            (false, true) => through::<L, B, V, true, true>(isa, strip, segment, columns, first, t, exit),
            (true, false) => through::<L, B, V, false, false>(isa, strip, segment, columns, first, t, exit),
            (true, true) => through::<L, B, V, false, true>(isa, strip, segment, columns, first, t, exit),
        }
    }
}

/// `B` tokens from `t` on, of the pass from `first` on, pass a strip, each with its query if `OUT`. With `EXIT`, in which case
/// there are factors, the strip is multiplied then.
///
/// # Safety
/// - As for [`recur`]; `B` tokens from `t` on are in the segment, and have a query row each if `OUT`.
#[inline(always)]
unsafe fn through<L: Lanes, const B: usize, const V: usize, const OUT: bool, const EXIT: bool>(
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
    // SAFETY: rows of `B` tokens, and their products with one another (clauses).
    unsafe {
        for b in 0..B {
            v[b] = values::<L, V>(isa, segment, columns, t + b);
            if OUT {
                q[b] = segment.queries.offset((t + b) as isize * segment.query_stride);
            }
        }
        let mut y = rows::<L, B, V, OUT, EXIT>(isa, strip, segment, t, &q, &v, exit);
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

/// The passes of a segment over a strip of `V` vectors; `DELTA` for the rules with rates. All tokens of a pass read the state as it is before them, and meet each
/// other in the products of the segment.
///
/// # Safety
/// - As for [`recur`].
#[inline(always)]
unsafe fn together<
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
    let mut first = 0;
    while first < segment.tokens {
        let count = segment.pass.min(segment.tokens - first);
        prefetch::<L, V>(isa, columns, first, count);
        // SAFETY: the same clauses; passes end where the segment does.
        unsafe { pass::<L, B, R, T, P, V, DELTA>(isa, strip, segment, columns, first, count) };
        first += count;
    }
}

/// `count` tokens from `first` on pass a strip together.
///
/// # Safety
/// - As for [`recur`]; the tokens are a pass of the segment.
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
    // SAFETY: the same clauses; blocks of tokens end where the pass does.
    unsafe {
        if DELTA && count == 1 && groups == 1 {
            alone::<L, V>(isa, strip, segment, columns, first);
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

/// What a token that passes by itself under a delta rule writes, to the strip's room, and what its query row reads: [`writes`]
/// and [`answers`] of one token, which load the state once.
///
/// # Safety
/// - As for [`pass`]; the token is one, and has one query row.
#[inline(always)]
unsafe fn alone<L: Lanes, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    t: usize,
) {
    // SAFETY: a row of queries and of keys; the first product of the token is the one with itself (clauses).
    unsafe {
        let key = segment.readers.offset(t as isize * segment.reader_stride);
        let query = segment.queries.offset(t as isize * segment.query_stride);
        let (mut held, mut y) = ([L::splat(isa, 0.0); V], [L::splat(isa, 0.0); V]);
        let mut x = 0;
        while x < V {
            // Sums of both fit the registers for two vectors.
            let from = strip.from.add(x * L::N);
            if V - x >= 2 {
                let [h, q] = sums::<L, 2, 2, true>(isa, segment.dim, [key, query], from, strip.from_stride);
                (held[x], held[x + 1], y[x], y[x + 1]) = (h[0], h[1], q[0], q[1]);
            } else {
                let [h, q] = sums::<L, 2, 1, true>(isa, segment.dim, [key, query], from, strip.from_stride);
                (held[x], y[x]) = (h[0], q[0]);
            }
            x += 2;
        }
        let v = values::<L, V>(isa, segment, columns, t);
        let rate = Rate::<L>::of(isa, segment, t);
        let product = L::splat(isa, segment.products.add(t * segment.row).read());
        for x in 0..V {
            let w = rate.times(isa, v[x].minus(held[x]));
            w.store(strip.room.add(x * L::N));
            y[x] = product.mul_add(w, y[x]);
        }
        output(isa, segment, columns, t, 0, y);
    }
}

/// What `R` tokens from `t` on write, to the strip's room: for the rules without rates their values, for the delta rules
/// `β (v − k S')` with what the tokens of the pass before them wrote in `S'`. It is solved by forward substitution.
///
/// # Safety
/// - As for [`pass`], with what the tokens of the pass before `t` write in the room.
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
    // SAFETY: `R` tokens of the pass; rows of products and of the room up to theirs (clauses).
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
            reads::<L, R, V>(isa, segment.dim, keys, segment.reader_stride, strip.from, strip.from_stride);
        let products = segment.products.add((segment.group * segment.tokens + first + t) * segment.row);
        match DELTA && segment.wide {
            true => add_wide::<L, R, V>(isa, &mut w, products, segment.row, strip.room, t),
            false => add_products::<L, R, V>(isa, &mut w, products, segment.row, strip.room, t),
        }
        for r in 0..R {
            let rate = Rate::<L>::of(isa, segment, first + t + r);
            let v = values::<L, V>(isa, segment, columns, first + t + r);
            let p = products.add(r * segment.row + t);
            for x in 0..V {
                let mut sum = w[r][x];
                for i in 0..r {
                    sum = L::splat(isa, p.add(i).read()).mul_add(w[i][x], sum);
                }
                w[r][x] = rate.times(isa, v[x].minus(sum));
                w[r][x].store(to.add(r * width + x * L::N));
            }
        }
    }
}

/// The outputs of query row `g` of `R` tokens from `t` on.
///
/// # Safety
/// - As for [`pass`], with what the tokens of the pass up to these write in the room.
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
    // SAFETY: `R` tokens of the pass; rows of products and of the room up to theirs (clauses).
    unsafe {
        let at = (first + t) as isize * segment.query_stride + g as isize * segment.group_stride;
        let queries = segment.queries.offset(at);
        let mut sums =
            reads::<L, R, V>(isa, segment.dim, queries, segment.query_stride, strip.from, strip.from_stride);
        let products = segment.products.add((g * segment.tokens + first + t) * segment.row);
        match DELTA && segment.wide {
            true => add_wide::<L, R, V>(isa, &mut sums, products, segment.row, strip.room, t),
            false => add_products::<L, R, V>(isa, &mut sums, products, segment.row, strip.room, t),
        }
        for r in 0..R {
            let p = products.add(r * segment.row + t);
            for i in 0..=r {
                for x in 0..V {
                    let w = L::load(isa, strip.room.add((t + i) * width + x * L::N));
                    sums[r][x] = L::splat(isa, p.add(i).read()).mul_add(w, sums[r][x]);
                }
            }
            output(isa, segment, columns, first + t + r, g, sums[r]);
        }
    }
}

/// Adds what the tokens of a long pass write to the state: four rows of it at a time. It is summed up by itself, in segments,
/// which with `WIDE` are added up in f64, so that the state rounds once for all of it. Then the rows are multiplied if there
/// are factors.
///
/// # Safety
/// - As for [`pass`], with what the tokens write in the room.
#[inline(always)]
unsafe fn update<L: Lanes, const V: usize, const WIDE: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    first: usize,
    count: usize,
    exit: Option<&Factors>,
) {
    let width = V * L::N;
    let some = if WIDE { SHORT } else { SEGMENT };
    // SAFETY: four rows of the strip, and tokens of the pass (clauses).
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
    }
}

/// Adds what the tokens of a short pass write to the state, `P` or `B` tokens at a time. With `EXIT`, in which
/// case there are factors, the rows are multiplied then.
///
/// # Safety
/// - As for [`pass`], with what the tokens write in the room.
#[inline(always)]
unsafe fn update_short<
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
    // SAFETY: the same clauses; tokens end where the pass does.
    unsafe {
        if T > 0 && count == P {
            // As many vectors at a time as the registers hold of all tokens.
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

/// Adds what `B` tokens from `t` on write to `V` vectors of the state from number `from` on, of a strip of `ALL`.
///
/// # Safety
/// - As for [`update_short`]; the tokens are among the pass's, and the vectors in the strip.
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
    // SAFETY: `B` rows of the room, and the same clauses.
    unsafe {
        for b in 0..B {
            for x in 0..V {
                w[b][x] = L::load(isa, strip.room.add(((t + b) * ALL + from + x) * L::N));
            }
        }
        let (state, old) = (strip.state.add(from * L::N), strip.from.add(from * L::N));
        let part = Strip { state, from: old, ..*strip };
        rows::<L, B, V, false, EXIT>(isa, &part, segment, first + t, &[segment.writers; B], &w, exit);
    }
}
