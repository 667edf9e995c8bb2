//! Computes the products between the tokens of a pass. Rows that read the state (queries and reading keys) are
//! multiplied with keys that write to it.
//!
//! These products are `Q Kᵀ` and `K Kᵀ`. A product is used only if the write comes before the read. The number of
//! tokens in a pass selects one of three methods:
//!
//! 1. *Few tokens*: dims are in the lanes, and each product ends with a sum over the lanes.
//! 2. *More tokens*: writing keys are in the lanes, so that a vector of products is computed at once.
//! 3. *Long passes of the delta rule without gates*: like 2, but in f64, with each product rounded once. Thousands of
//!    products multiply the writes of earlier tokens. These terms cancel each other, but the errors of the products do
//!    not cancel. A sum of 64 dims in f32 has three times the error of a single rounding.

use super::kernel::{MOST_TOGETHER, ROWS_TOGETHER, Segment};
use super::rows::SEGMENT;
use super::tile::reads;
use crate::lanes::{Lanes, MAX_LANES};

/// Returns the address of a row of token `t` that is multiplied with writing keys, the stride of tokens, and a number:
/// one if the row is also multiplied with the writing key of the same token, zero if not. `n` counts the token's
/// queries and then its reading key. A query reads the state after its token writes to it; a reading key reads the
/// state before its token writes to it.
///
/// # Safety
/// - `t` is one of the segment's tokens. `n` is at most the number of query rows of a token. Under the rules without
///   rates, which have no reading keys, `n` is less than that number.
#[inline(always)]
unsafe fn reading_row(segment: &Segment, n: usize, t: usize) -> (*const f32, isize, usize) {
    let token = t as isize;
    // SAFETY: the row belongs to token `t` (clause).
    unsafe {
        if n < segment.group {
            let at = token * segment.query_stride + n as isize * segment.group_stride;
            (segment.queries.offset(at), segment.query_stride, 1)
        } else {
            (segment.readers.offset(token * segment.reader_stride), segment.reader_stride, 0)
        }
    }
}

/// Computes the products between the tokens of each pass, if passes have few tokens. Dims are in the lanes.
///
/// # Safety
/// - The rows of the segment are readable, and `products` is writable for `tokens` rows of `row` values for each query
///   row of a token. Under the delta rules `products` is writable for `tokens` more rows.
#[inline(always)]
pub(super) unsafe fn multiply_few<L: Lanes>(isa: L::Isa, segment: &Segment, products: *mut f32) {
    for n in 0..segment.group + usize::from(!segment.betas.is_null()) {
        let mut t = 0;
        while t < segment.tokens {
            let first = t / segment.pass * segment.pass;
            if t + MOST_TOGETHER <= segment.tokens.min(first + segment.pass)
                && (t - first).is_multiple_of(MOST_TOGETHER)
            {
                // SAFETY: the four tokens, and each group of four before them, are in one pass; the other clauses are
                // those of this function.
                unsafe {
                    for i in (first..t).step_by(MOST_TOGETHER) {
                        multiply_four::<L, 4>(isa, segment, n, (first, t, i), products);
                    }
                    match n < segment.group {
                        true => multiply_four::<L, 1>(isa, segment, n, (first, t, t), products),
                        false => multiply_four::<L, 0>(isa, segment, n, (first, t, t), products),
                    }
                }
                t += MOST_TOGETHER;
                continue;
            }
            // SAFETY: the rows are those of tokens in the segment (clause).
            unsafe {
                let (x, _, itself) = reading_row(segment, n, t);
                let count = t - first + itself;
                let to = products.add((n * segment.tokens + t) * segment.row);
                let mut i = 0;
                while i < count {
                    let writer = segment.writers.offset((first + i) as isize * segment.writer_stride);
                    if count - i >= 4 {
                        dots::<L, 4>(isa, segment.dim, x, writer, segment.writer_stride, to.add(i));
                        i += 4;
                    } else {
                        dots::<L, 1>(isa, segment.dim, x, writer, segment.writer_stride, to.add(i));
                        i += 1;
                    }
                }
            }
            t += 1;
        }
    }
}

/// Multiplies row `n` of four tokens, starting with token `t`, with four writing keys, starting with key `writer`. Each
/// product is summed in the order of [`dots`]. The first token is multiplied with the first `MORE` keys, and each later
/// token with one key more. The pass begins with token `first`.
///
/// # Safety
/// - The clauses of [`multiply_few`] hold; the tokens belong to the pass.
#[inline(always)]
unsafe fn multiply_four<L: Lanes, const MORE: usize>(
    isa: L::Isa,
    segment: &Segment,
    n: usize,
    (first, t, writer): (usize, usize, usize),
    products: *mut f32,
) {
    const B: usize = MOST_TOGETHER;
    let dim = segment.dim;
    let whole = dim / L::N * L::N;
    let mut sums = [[L::splat(isa, 0.0); B]; B];
    // SAFETY: the rows are those of tokens in the pass, and so are their products (clauses).
    unsafe {
        let x: [*const f32; B] = core::array::from_fn(|r| reading_row(segment, n, t + r).0);
        let writers: [*const f32; B] =
            core::array::from_fn(|i| segment.writers.offset((writer + i) as isize * segment.writer_stride));
        for d in (0..whole).step_by(L::N) {
            let mut y = [L::splat(isa, 0.0); B];
            for i in 0..B {
                y[i] = L::load(isa, writers[i].add(d));
            }
            for r in 0..B {
                let x = L::load(isa, x[r].add(d));
                for i in 0..B {
                    if i < r + MORE {
                        sums[r][i] = x.mul_add(y[i], sums[r][i]);
                    }
                }
            }
        }
        for r in 0..B {
            let to = products.add((n * segment.tokens + t + r) * segment.row + writer - first);
            for i in 0..B.min(r + MORE) {
                let mut sum = sums[r][i].lane_sum();
                for d in whole..dim {
                    sum += x[r].add(d).read() * writers[i].add(d).read();
                }
                to.add(i).write(sum);
            }
        }
    }
}

/// Computes the products between the tokens of each pass, with writing keys in the lanes. The keys are arranged like
/// the columns of a state, and are read vector by vector. Products are written as whole vectors, which include products
/// that no token needs.
///
/// # Safety
/// - The clauses of [`multiply_few`] hold; rows of products are whole vectors.
/// - `columns` is writable for `dim · row` values.
#[inline(always)]
pub(super) unsafe fn multiply_rows<L: Lanes>(
    isa: L::Isa,
    segment: &Segment,
    products: *mut f32,
    columns: *mut f32,
) {
    const R: usize = 8;
    for first in (0..segment.tokens).step_by(segment.pass) {
        let count = segment.pass.min(segment.tokens - first);
        // SAFETY: the tokens are in one pass; the other clauses are those of this function.
        unsafe { write_columns::<L>(isa, segment, first, count, columns) };
        for n in 0..segment.group + usize::from(!segment.betas.is_null()) {
            let mut t = 0;
            while t < count {
                let rows = if t + R <= count { R } else { 1 };
                for i in (0..t + rows).step_by(L::N) {
                    // SAFETY: the rows are those of tokens in the pass, and each has room for a vector of products
                    // (clauses).
                    unsafe {
                        let (x, stride, _) = reading_row(segment, n, first + t);
                        let keys = columns.add(i * segment.dim).cast_const();
                        let to = products.add((n * segment.tokens + first + t) * segment.row + i);
                        if rows == R {
                            let sums = met::<L, R>(isa, segment.dim, x, stride, keys);
                            for r in 0..R {
                                sums[r].store(to.add(r * segment.row));
                            }
                        } else {
                            met::<L, 1>(isa, segment.dim, x, stride, keys)[0].store(to);
                        }
                    }
                }
                t += rows;
            }
        }
    }
}

/// Writes the writing keys of `count` tokens, starting with `first`, to `columns`, in blocks `[dim][N]` with one token
/// per lane.
///
/// # Safety
/// - The clauses of [`multiply_rows`] hold; the tokens are those of one pass.
#[inline(always)]
unsafe fn write_columns<L: Lanes>(
    isa: L::Isa,
    segment: &Segment,
    first: usize,
    count: usize,
    columns: *mut f32,
) {
    for i in (0..count).step_by(L::N) {
        // SAFETY: at most `N` tokens of the pass are read, and a vector is written for every dim (clauses).
        unsafe {
            let writers = segment.writers.offset((first + i) as isize * segment.writer_stride);
            let to = columns.add(i * segment.dim);
            transpose::<L>(isa, writers, segment.writer_stride, (count - i).min(L::N), segment.dim, to);
        }
    }
}

/// Computes [`multiply_rows`] with products that are summed in f64 and rounded once. A vector of keys is multiplied
/// with [`ROWS_TOGETHER`] rows, in tiles of `R` rows, while it is in the first-level cache.
///
/// # Safety
/// - The clauses of [`multiply_rows`] hold; `rows` is writable for `ROWS_TOGETHER · dim` f64 values, at any alignment.
///   `ROWS_TOGETHER` is a multiple of `R`.
#[inline(always)]
pub(super) unsafe fn multiply_wide<L: Lanes, const R: usize>(
    isa: L::Isa,
    segment: &Segment,
    products: *mut f32,
    columns: *mut f32,
    rows: *mut f64,
) {
    let dim = segment.dim;
    for first in (0..segment.tokens).step_by(segment.pass) {
        let count = segment.pass.min(segment.tokens - first);
        // SAFETY: the tokens are in one pass; the other clauses are those of this function.
        unsafe { write_columns::<L>(isa, segment, first, count, columns) };
        for n in 0..segment.group + usize::from(!segment.betas.is_null()) {
            for top in (0..count).step_by(ROWS_TOGETHER) {
                let end = count.min(top + ROWS_TOGETHER);
                // Writes tiles, each `[dim][R]`, with zeros past the last token.
                for t in top..end.next_multiple_of(R) {
                    // SAFETY: the row belongs to a token in the pass, and `rows` has room for the values of
                    // `ROWS_TOGETHER` rows (clauses).
                    unsafe {
                        let to = rows.add((t - top) / R * R * dim + (t - top) % R);
                        for d in 0..dim {
                            let value = if t < end {
                                reading_row(segment, n, first + t).0.add(d).read()
                            } else {
                                0.0
                            };
                            to.add(d * R).write_unaligned(value.into());
                        }
                    }
                }
                for i in (0..end).step_by(L::N) {
                    // A tile whose tokens all precede these keys needs no products with them.
                    let from = if i < top + R { top } else { i / R * R };
                    for t in (from..end).step_by(R) {
                        // SAFETY: the tile and the vector of keys are readable, and one vector of products is writable
                        // for each row (clauses).
                        unsafe {
                            let x = rows.add((t - top) * dim).cast_const();
                            let sums = met_wide::<L, R>(isa, dim, x, columns.add(i * dim).cast_const());
                            let to = products.add((n * segment.tokens + first + t) * segment.row + i);
                            for r in 0..R.min(end - t) {
                                L::narrowed(isa, sums[r]).store(to.add(r * segment.row));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Computes `x K` in f64 for a tile of `R` rows, `[dim][R]`, and a vector of writing keys, `[dim][N]`.
///
/// # Safety
/// - `dim · R` values are readable at `x`, at any alignment, and `dim` vectors are readable at `keys`.
#[inline(always)]
unsafe fn met_wide<L: Lanes, const R: usize>(
    isa: L::Isa,
    dim: usize,
    x: *const f64,
    keys: *const f32,
) -> [L::Wide; R] {
    let mut sums = [L::wide(isa, 0.0); R];
    for d in 0..dim {
        // SAFETY: the dims are below `dim` (clause).
        unsafe {
            let key = L::load(isa, keys.add(d * L::N)).widened();
            for r in 0..R {
                sums[r] = L::wide_mul_add(key, x.add(d * R + r).read_unaligned(), sums[r]);
            }
        }
    }
    sums
}

/// Computes `x K` for `R` rows `x`, `stride` apart, and a vector of writing keys, `[dim][N]`. Groups of a few dims are
/// summed separately to keep errors small: the products multiply the writes of many tokens, and no later token corrects
/// the products' errors.
///
/// # Safety
/// - `dim` values are readable in each row of `x`, and `dim` vectors at `keys`. `dim` is a multiple of four.
#[inline(always)]
unsafe fn met<L: Lanes, const R: usize>(
    isa: L::Isa,
    dim: usize,
    x: *const f32,
    stride: isize,
    keys: *const f32,
) -> [L; R] {
    let mut whole = [L::splat(isa, 0.0); R];
    for first in (0..dim).step_by(SEGMENT) {
        let some = SEGMENT.min(dim - first);
        // SAFETY: the dims are below `dim` (clause).
        let part = unsafe { reads::<L, R, 1>(isa, some, x.add(first), stride, keys.add(first * L::N), L::N) };
        for r in 0..R {
            whole[r] = whole[r].plus(part[r][0]);
        }
    }
    whole
}

/// Transposes `rows` rows of `dim` values at `from`, `stride` apart, and writes them to `to`, `[dim][N]`, with zeros
/// past the last row.
///
/// # Safety
/// - The rows, at most `N`, are readable, and `dim · N` values are writable at `to`.
#[inline(always)]
unsafe fn transpose<L: Lanes>(
    isa: L::Isa,
    from: *const f32,
    stride: isize,
    rows: usize,
    dim: usize,
    to: *mut f32,
) {
    let whole = dim / L::N * L::N;
    // SAFETY: the dims are below `dim`, and the rows below `rows` (clauses).
    unsafe {
        for x in (0..whole).step_by(L::N) {
            let mut square = [L::splat(isa, 0.0); MAX_LANES];
            for r in 0..L::N {
                if r < rows {
                    square[r] = L::load(isa, from.offset(r as isize * stride).add(x));
                }
            }
            L::transpose(isa, &mut square);
            for r in 0..L::N {
                square[r].store(to.add((x + r) * L::N));
            }
        }
        for x in whole..dim {
            for r in 0..L::N {
                let value = if r < rows { from.offset(r as isize * stride).add(x).read() } else { 0.0 };
                to.add(x * L::N + r).write(value);
            }
        }
    }
}

/// Computes the products of the row at `a` with `R` rows at `b`, `stride` apart, with dims in the lanes.
///
/// # Safety
/// - `dim` values are readable at `a` and in each row of `b`; `R` values are writable at `to`.
#[inline(always)]
unsafe fn dots<L: Lanes, const R: usize>(
    isa: L::Isa,
    dim: usize,
    a: *const f32,
    b: *const f32,
    stride: isize,
    to: *mut f32,
) {
    let whole = dim / L::N * L::N;
    // SAFETY: the dims are below `dim`, and there are `R` rows (clauses).
    unsafe {
        let mut sums = [L::splat(isa, 0.0); R];
        for x in (0..whole).step_by(L::N) {
            let y = L::load(isa, a.add(x));
            for r in 0..R {
                sums[r] = y.mul_add(L::load(isa, b.offset(r as isize * stride).add(x)), sums[r]);
            }
        }
        for r in 0..R {
            let mut sum = sums[r].lane_sum();
            for x in whole..dim {
                sum += a.add(x).read() * b.offset(r as isize * stride).add(x).read();
            }
            to.add(r).write(sum);
        }
    }
}
