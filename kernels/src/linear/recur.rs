//! The tokens of a segment pass a strip of the state.

use super::factor::{Factor, flushed, multiply};
use super::kernel::{Columns, Factors, MOST_TOGETHER, Segment, Strip, meets};
use super::tile::{BIAS, reads, without_bias};
use crate::lanes::Lanes;
use crate::product::for_quad;

/// Lets the tokens of a segment pass a strip: the state is updated, and outputs are written if there are any.
///
/// `B` tokens pass in registers, `R` rows are a register tile of products, and `V` vectors are the widest strip.
///
/// # Safety
/// - The clauses of [`Strip`], [`Segment`], as [`super::prepare::prepare`] leaves it, and [`Columns`].
#[inline(always)]
pub unsafe fn recur<L: Lanes, const B: usize, const R: usize, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
) {
    // SAFETY: the same clauses; the width is one of two.
    unsafe {
        if let Some(enter) = &segment.enter {
            multiply::<L>(isa, enter, strip.state, segment.dim, strip.width);
        }
        if strip.width == L::N {
            passes::<L, B, R, 1>(isa, strip, segment, columns);
        } else {
            passes::<L, B, R, V>(isa, strip, segment, columns);
        }
    }
}

/// The passes of a segment over a strip of `V` vectors.
///
/// # Safety
/// - As for [`recur`].
#[inline(always)]
unsafe fn passes<L: Lanes, const B: usize, const R: usize, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
) {
    let out = !columns.outputs.is_null();
    let delta = !segment.betas.is_null();
    let mut t = 0;
    // SAFETY: the same clauses; passes end where the segment does.
    unsafe {
        if delta || out && meets(segment.group, false, segment.pass) {
            while t < segment.tokens {
                let count = segment.pass.min(segment.tokens - t);
                together::<L, B, R, V>(isa, strip, segment, columns, t, count);
                t += count;
            }
            return;
        }
        // The last tokens multiply what they store.
        let exit = if columns.keep { segment.exit.as_ref() } else { None };
        while t < segment.tokens {
            let many = t + B <= segment.tokens;
            let exit = if t + if many { B } else { 1 } == segment.tokens { exit } else { None };
            match (many, out, exit) {
                (true, true, None) => through::<L, B, V, true, false>(isa, strip, segment, columns, t, exit),
                (true, true, _) => through::<L, B, V, true, true>(isa, strip, segment, columns, t, exit),
                (true, false, None) => {
                    through::<L, B, V, false, false>(isa, strip, segment, columns, t, exit)
                }
                (true, false, _) => through::<L, B, V, false, true>(isa, strip, segment, columns, t, exit),
                (false, true, None) => through::<L, 1, V, true, false>(isa, strip, segment, columns, t, exit),
                (false, true, _) => through::<L, 1, V, true, true>(isa, strip, segment, columns, t, exit),
                (false, false, None) => {
                    through::<L, 1, V, false, false>(isa, strip, segment, columns, t, exit)
                }
                (false, false, _) => through::<L, 1, V, false, true>(isa, strip, segment, columns, t, exit),
            }
            t += if many { B } else { 1 };
        }
    }
}

/// What token `t` writes, before the delta rule: its values times `down`.
///
/// # Safety
/// - The clauses of [`Segment`] and [`Columns`]; `t` is one of the tokens.
#[inline(always)]
unsafe fn values<L: Lanes, const V: usize>(
    isa: L::Isa,
    segment: &Segment,
    columns: &Columns,
    t: usize,
) -> [L; V] {
    let mut v = [L::splat(isa, 0.0); V];
    if !columns.values.is_null() {
        // SAFETY: token `t` (clause).
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

/// Writes what a query row of token `t` reads.
///
/// # Safety
/// - The clauses of [`Segment`] and [`Columns`]; `t` and `g` are a token and a query row of it.
#[inline(always)]
unsafe fn output<L: Lanes, const V: usize>(
    isa: L::Isa,
    segment: &Segment,
    columns: &Columns,
    t: usize,
    g: usize,
    y: [L; V],
) {
    // SAFETY: row `g` of token `t` (clause).
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

/// `B` tokens from `t` on pass a strip, each with its query if `OUT`. With `EXIT`, in which case there are factors, the strip
/// is multiplied then.
///
/// # Safety
/// - As for [`recur`]; `B` tokens from `t` on are in the segment, and have a query row each if `OUT`.
#[inline(always)]
unsafe fn through<L: Lanes, const B: usize, const V: usize, const OUT: bool, const EXIT: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    t: usize,
    exit: Option<&Factors>,
) {
    let mut v = [[L::splat(isa, 0.0); V]; B];
    let mut q = [segment.queries; B];
    // SAFETY: rows of `B` tokens (clauses).
    unsafe {
        for b in 0..B {
            v[b] = values::<L, V>(isa, segment, columns, t + b);
            if OUT {
                q[b] = segment.queries.offset((t + b) as isize * segment.query_stride);
            }
        }
        let y = rows::<L, B, V, OUT, EXIT>(isa, strip, segment, t, &q, &v, exit);
        if OUT {
            for b in 0..B {
                output(isa, segment, columns, t + b, 0, y[b]);
            }
        }
    }
}

/// Each row of a strip is loaded once, takes what `B` tokens from `t` on write, one after the other, gives each query its
/// share if `OUT`, is multiplied if `EXIT`, and is stored once. Returns what the queries read.
///
/// # Safety
/// - As for [`through`]; `q` are rows of `dim` values if `OUT`.
#[inline(always)]
unsafe fn rows<L: Lanes, const B: usize, const V: usize, const OUT: bool, const EXIT: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    t: usize,
    q: &[*const f32; B],
    v: &[[L; V]; B],
    exit: Option<&Factors>,
) -> [[L; V]; B] {
    let bias = L::splat(isa, BIAS);
    // A single token has four sums, which do not wait for each other.
    let mut y = [[[bias; V]; B]; 4];
    // SAFETY: rows of `B` tokens, and rows of the strip (clauses).
    unsafe {
        let k: [*const f32; B] =
            core::array::from_fn(|b| segment.writers.offset((t + b) as isize * segment.writer_stride));
        let common = exit.map(|exit| Factor::of(isa, exit, 0));
        let mut row = strip.state;
        for r in (0..segment.dim).step_by(4) {
            let kq: [L::Quad; B] = core::array::from_fn(|b| L::quad(isa, k[b].add(r)));
            let qq: [L::Quad; B] = if OUT { core::array::from_fn(|b| L::quad(isa, q[b].add(r))) } else { kq };
            for_quad!(|J| {
                let mut s = [bias; V];
                for x in 0..V {
                    s[x] = L::load(isa, row.add(x * L::N));
                }
                for b in 0..B {
                    for x in 0..V {
                        s[x] = s[x].mul_add_quad::<J>(v[b][x], kq[b]);
                        if OUT {
                            let y = &mut y[if B == 1 { J as usize } else { 0 }][b][x];
                            *y = y.mul_add_quad::<J>(s[x], qq[b]);
                        }
                    }
                }
                if EXIT && let (Some(exit), Some(common)) = (exit, common) {
                    let factor = Factor::of_row(isa, exit, r + J as usize, common);
                    for x in 0..V {
                        s[x] = factor.times(isa, s[x]);
                    }
                }
                for x in 0..V {
                    s[x].store(row.add(x * L::N));
                }
                row = row.add(V * L::N);
            });
        }
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

/// `count` tokens from `first` on pass a strip together: all read the state as it is before them, and meet each other in the
/// products of the segment.
///
/// # Safety
/// - As for [`recur`]; the tokens are a pass of the segment.
#[inline(always)]
unsafe fn together<L: Lanes, const B: usize, const R: usize, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    columns: &Columns,
    first: usize,
    count: usize,
) {
    // SAFETY: the same clauses; blocks of tokens end where the pass does.
    unsafe {
        let mut t = 0;
        while t + R <= count {
            writes::<L, R, V>(isa, strip, segment, columns, first, t);
            t += R;
        }
        while t < count {
            writes::<L, 1, V>(isa, strip, segment, columns, first, t);
            t += 1;
        }
        if !columns.outputs.is_null() {
            for g in 0..segment.group {
                let mut t = 0;
                while t + R <= count {
                    answers::<L, R, V>(isa, strip, segment, columns, first, t, g);
                    t += R;
                }
                while t < count {
                    answers::<L, 1, V>(isa, strip, segment, columns, first, t, g);
                    t += 1;
                }
            }
        }
        let last = first + count == segment.tokens;
        if columns.keep || !last {
            let exit = if last { segment.exit.as_ref() } else { None };
            match (count > MOST_TOGETHER, exit) {
                (true, _) => update::<L, V>(isa, strip, segment, first, count, exit),
                (false, None) => update_short::<L, B, V, false>(isa, strip, segment, first, count, exit),
                (false, _) => update_short::<L, B, V, true>(isa, strip, segment, first, count, exit),
            }
        }
    }
}

/// `sums + Σ_{i < count} p[r][i] · w[i]` for `R` rows of products, `stride` apart.
///
/// # Safety
/// - `count` values are readable in each row of `p`, and `count` rows of `V` vectors at `w`.
#[inline(always)]
unsafe fn add_products<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    sums: &mut [[L; V]; R],
    p: *const f32,
    stride: usize,
    w: *const f32,
    count: usize,
) {
    for i in 0..count {
        // SAFETY: column `i` of the products, row `i` of `w` (clauses).
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

/// What `R` tokens from `t` on write, to the strip's room: for the rules without rates their values, for the delta rules
/// `β (v − k S')` with what the tokens of the pass before them wrote in `S'`. It is solved by forward substitution.
///
/// # Safety
/// - As for [`together`], with what the tokens of the pass before `t` write in the room.
#[inline(always)]
unsafe fn writes<L: Lanes, const R: usize, const V: usize>(
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
        if segment.betas.is_null() {
            for r in 0..R {
                let v = values::<L, V>(isa, segment, columns, first + t + r);
                for x in 0..V {
                    v[x].store(to.add(r * width + x * L::N));
                }
            }
            return;
        }
        let keys = segment.readers.offset((first + t) as isize * segment.reader_stride);
        let mut held = reads::<L, R, V>(isa, segment.dim, keys, segment.reader_stride, strip.state);
        let products = segment.products.add((segment.group * segment.tokens + first + t) * segment.row);
        add_products::<L, R, V>(isa, &mut held, products, segment.row, strip.room, t);
        let one = L::splat(isa, f32::MIN_POSITIVE);
        for r in 0..R {
            let beta = segment.betas.add(first + t + r).read();
            let limit = one.over(L::splat(isa, beta).abs());
            let v = values::<L, V>(isa, segment, columns, first + t + r);
            let p = products.add(r * segment.row + t);
            for x in 0..V {
                let mut sum = held[r][x];
                for i in 0..r {
                    let w = L::load(isa, to.add(i * width + x * L::N));
                    sum = L::splat(isa, p.add(i).read()).mul_add(w, sum);
                }
                let w = flushed(isa, v[x].minus(sum), L::splat(isa, beta), limit);
                w.store(to.add(r * width + x * L::N));
            }
        }
    }
}

/// The outputs of query row `g` of `R` tokens from `t` on.
///
/// # Safety
/// - As for [`together`], with what the tokens of the pass up to these write in the room.
#[inline(always)]
unsafe fn answers<L: Lanes, const R: usize, const V: usize>(
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
        let mut sums = reads::<L, R, V>(isa, segment.dim, queries, segment.query_stride, strip.state);
        let products = segment.products.add((g * segment.tokens + first + t) * segment.row);
        add_products::<L, R, V>(isa, &mut sums, products, segment.row, strip.room, t);
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

/// Adds what the tokens of a long pass write to the state: four rows of it at a time. It is summed up by itself, so that
/// the state rounds once for all of it. Then the rows are multiplied if there are factors.
///
/// # Safety
/// - As for [`together`], with what the tokens write in the room.
#[inline(always)]
unsafe fn update<L: Lanes, const V: usize>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    first: usize,
    count: usize,
    exit: Option<&Factors>,
) {
    let width = V * L::N;
    // SAFETY: four rows of the strip, and tokens of the pass (clauses).
    unsafe {
        let keys = segment.writers.offset(first as isize * segment.writer_stride);
        let common = exit.map(|exit| Factor::of(isa, exit, 0));
        for d in (0..segment.dim).step_by(4) {
            let rows = strip.state.add(d * width);
            let mut s = [[L::splat(isa, 0.0); V]; 4];
            for t in 0..count {
                let quad = L::quad(isa, keys.offset(t as isize * segment.writer_stride).add(d));
                for x in 0..V {
                    let w = L::load(isa, strip.room.add(t * width + x * L::N));
                    for_quad!(|J| {
                        s[J as usize][x] = s[J as usize][x].mul_add_quad::<J>(w, quad);
                    });
                }
            }
            for j in 0..4 {
                for x in 0..V {
                    let at = rows.add(j * width + x * L::N);
                    let mut sum = s[j][x].plus(L::load(isa, at));
                    if let (Some(exit), Some(common)) = (exit, common) {
                        sum = Factor::of_row(isa, exit, d + j, common).times(isa, sum);
                    }
                    sum.store(at);
                }
            }
        }
    }
}

/// Adds what the tokens of a short pass write to the state, `B` tokens at a time. With `EXIT`, in which case there are
/// factors, the rows are multiplied then.
///
/// # Safety
/// - As for [`together`], with what the tokens write in the room.
#[inline(always)]
unsafe fn update_short<L: Lanes, const B: usize, const V: usize, const EXIT: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    first: usize,
    count: usize,
    exit: Option<&Factors>,
) {
    let mut t = 0;
    // SAFETY: the same clauses; tokens end where the pass does.
    unsafe {
        while t < count {
            let many = t + B <= count;
            let last = t + if many { B } else { 1 } == count;
            match (many, EXIT && last) {
                (true, true) => add_tokens::<L, B, V, EXIT>(isa, strip, segment, first, t, exit),
                (true, false) => add_tokens::<L, B, V, false>(isa, strip, segment, first, t, exit),
                (false, true) => add_tokens::<L, 1, V, EXIT>(isa, strip, segment, first, t, exit),
                (false, false) => add_tokens::<L, 1, V, false>(isa, strip, segment, first, t, exit),
            }
            t += if many { B } else { 1 };
        }
    }
}

/// Adds what `B` tokens from `t` on write to the state.
///
/// # Safety
/// - As for [`update_short`]; the tokens are among the pass's.
#[inline(always)]
unsafe fn add_tokens<L: Lanes, const B: usize, const V: usize, const EXIT: bool>(
    isa: L::Isa,
    strip: &Strip,
    segment: &Segment,
    first: usize,
    t: usize,
    exit: Option<&Factors>,
) {
    let mut w = [[L::splat(isa, 0.0); V]; B];
    // SAFETY: `B` rows of the room, and the same clauses.
    unsafe {
        for b in 0..B {
            for x in 0..V {
                w[b][x] = L::load(isa, strip.room.add(((t + b) * V + x) * L::N));
            }
        }
        rows::<L, B, V, false, EXIT>(isa, strip, segment, first + t, &[segment.writers; B], &w, exit);
    }
}
