//! Brings rows into the layouts that the products read: transposes rows, packs them into panels, and converts elements.
//!
//! Rows and dims need not fill whole vectors, and nothing beyond them is read or written. Squares of whole vectors,
//! blocks of 4×4 elements and whole vectors have fast code. Other elements are moved one by one, or through a buffer of
//! one vector.

use crate::lanes::{Lanes, MAX_LANES};

/// Returns the number of leading dims that are transposed in squares of whole vectors: zero if vectors have only four
/// lanes, or if `w` is not a multiple of the number of lanes.
#[inline(always)]
fn in_squares<L: Lanes>(dim: usize, w: usize) -> usize {
    if L::N > 4 && w.is_multiple_of(L::N) { dim / L::N * L::N } else { 0 }
}

/// Transposes `rows` rows of `dim` f32 values into `[padded][w]` and multiplies them by `factor`. Elements of `dst`
/// past the last row or the last dim become zero.
///
/// # Safety
/// - `rows ≤ w` rows of `dim` values, `stride` apart, are readable at `src`.
/// - `padded · w` values are writable at `dst`; `padded` is `dim` rounded up to a multiple of four.
#[inline(always)]
pub unsafe fn transpose_in<L: Lanes>(
    isa: L::Isa,
    src: *const f32,
    stride: usize,
    rows: usize,
    dim: usize,
    padded: usize,
    w: usize,
    factor: f32,
    dst: *mut f32,
) {
    let (whole_rows, whole_dims) = (rows / 4 * 4, dim / 4 * 4);
    // Vectors of four lanes need squares only for the last rows.
    let whole_squares = in_squares::<L>(dim, w);
    let (squares, from_row) =
        if L::N == 4 && w.is_multiple_of(4) { (whole_dims, whole_rows) } else { (whole_squares, 0) };
    // A tile of one row is a scaled copy of the row.
    let copied = if (rows, w) == (1, 1) { dim / L::N * L::N } else { 0 };
    let first = whole_squares.max(copied);
    let (zero, factors) = (L::splat(isa, 0.0), L::splat(isa, factor));
    // SAFETY: whole vectors, squares and blocks of four are within rows and dims. Single elements are read only inside the
    // rows and dims, and are written inside `padded · w` (clauses).
    unsafe {
        for x in (0..copied).step_by(L::N) {
            L::load(isa, src.add(x)).times(factors).store(dst.add(x));
        }
        for i in (from_row..w).step_by(L::N) {
            for x in (0..squares).step_by(L::N) {
                let mut square = [zero; MAX_LANES];
                for r in 0..L::N {
                    if i + r < rows {
                        square[r] = L::load(isa, src.add((i + r) * stride + x));
                    }
                }
                L::transpose(isa, &mut square);
                for r in 0..L::N {
                    square[r].times(factors).store(dst.add((x + r) * w + i));
                }
            }
        }
        if first == padded {
            return;
        }
        for i in (0..whole_rows).step_by(4) {
            let (pairs, single) = ((whole_dims - first) / 8, (whole_dims - first) % 8);
            for pair in 0..pairs {
                let x = first + 8 * pair;
                let (from, to) = (src.add(i * stride + x), dst.add(x * w + i));
                L::transpose4_twice(isa, (from, stride), factor, (to, w), [4, 4 * w]);
            }
            if single > 0 {
                let x = whole_dims - 4;
                L::transpose4(isa, src.add(i * stride + x), stride, factor, dst.add(x * w + i), w);
            }
        }
        // Moves the elements outside of the blocks of four: the last rows with all dims, then the last dims of the
        // earlier rows.
        for i in whole_rows..w {
            for x in squares.max(copied)..padded {
                let inside = i < rows && x < dim;
                dst.add(x * w + i).write(if inside { src.add(i * stride + x).read() * factor } else { 0.0 });
            }
        }
        for x in whole_dims..padded {
            for i in 0..whole_rows {
                dst.add(x * w + i).write(if x < dim { src.add(i * stride + x).read() * factor } else { 0.0 });
            }
        }
    }
}

/// Transposes `[dim][w]` back into `rows` rows of `dim` f32 values.
///
/// # Safety
/// - `padded · w` values are readable at `src`; `padded` is `dim` rounded up to a multiple of four, and `rows ≤ w`.
/// - `rows` rows of `dim` values, `stride` apart, are writable at `dst`.
#[inline(always)]
pub unsafe fn transpose_out<L: Lanes>(
    isa: L::Isa,
    src: *const f32,
    w: usize,
    rows: usize,
    dim: usize,
    dst: *mut f32,
    stride: usize,
) {
    let first = in_squares::<L>(dim, w);
    let (whole_rows, whole_dims) = (rows / 4 * 4, dim / 4 * 4);
    // SAFETY: squares are within `w` and dims, and their rows are within `rows`. Blocks of four and single elements are
    // within rows and dims (clauses).
    unsafe {
        if first > 0 {
            for i in (0..rows).step_by(L::N) {
                for x in (0..first).step_by(L::N) {
                    let mut square = [L::splat(isa, 0.0); MAX_LANES];
                    for r in 0..L::N {
                        square[r] = L::load(isa, src.add((x + r) * w + i));
                    }
                    L::transpose(isa, &mut square);
                    for r in 0..L::N {
                        if i + r < rows {
                            square[r].store(dst.add((i + r) * stride + x));
                        }
                    }
                }
            }
        }
        for i in (0..whole_rows).step_by(4) {
            let (pairs, single) = ((whole_dims - first) / 8, (whole_dims - first) % 8);
            for pair in 0..pairs {
                let x = first + 8 * pair;
                let (from, to) = (src.add(x * w + i), dst.add(i * stride + x));
                L::transpose4_twice(isa, (from, w), 1.0, (to, stride), [4 * w, 4]);
            }
            if single > 0 {
                let x = whole_dims - 4;
                L::transpose4(isa, src.add(x * w + i), w, 1.0, dst.add(i * stride + x), stride);
            }
        }
        let begun = if whole_dims < dim { 0 } else { whole_rows };
        for i in begun..rows {
            let from = if i < whole_rows { whole_dims } else { first };
            for x in from..dim {
                dst.add(i * stride + x).write(src.add(x * w + i).read());
            }
        }
    }
}

/// Packs `rows` rows of `dim` f32 values into panels of `R` rows, `[panel][dim][R]`, with zeros past the last row.
/// `dim` is a multiple of four.
///
/// # Safety
/// - `rows` rows of `dim` values, `stride` apart, are readable at `src`.
/// - `padded · dim` values are writable at `dst`; `padded` is `rows` rounded up to a multiple of `R`.
#[inline(always)]
pub unsafe fn pack<L: Lanes, const R: usize>(
    isa: L::Isa,
    src: *const f32,
    stride: usize,
    rows: usize,
    dim: usize,
    dst: *mut f32,
) {
    const { assert!(R.is_multiple_of(4)) };
    let whole = rows / R * R;
    // SAFETY: panel `i / R` starts at `i / R · R · dim` and its rows at `i`. The head size is a multiple of four (clauses).
    unsafe {
        for i in (0..whole).step_by(4) {
            let (from, to) = (src.add(i * stride), dst.add(i / R * R * dim + i % R));
            for pair in 0..dim / 8 {
                let x = 8 * pair;
                L::transpose4_twice(isa, (from.add(x), stride), 1.0, (to.add(x * R), R), [4, 4 * R]);
            }
            if !dim.is_multiple_of(8) {
                let x = dim - 4;
                L::transpose4(isa, from.add(x), stride, 1.0, to.add(x * R), R);
            }
        }
        if whole < rows {
            let (from, to) = (src.add(whole * stride), dst.add(whole * dim));
            transpose_in::<L>(isa, from, stride, rows - whole, dim, dim, R, 1.0, to);
        }
    }
}

/// Converts `rows` rows of `dim` 16-bit elements (f16, or bf16 with `BF16`), `stride` apart, to rows of f32 values,
/// `to_stride` apart.
///
/// # Safety
/// - `rows` rows of `dim` elements are readable at `src`, and `rows` rows of `dim` f32 values are writable at `dst`.
#[inline(always)]
pub unsafe fn widen<L: Lanes, const BF16: bool>(
    isa: L::Isa,
    src: *const u16,
    stride: usize,
    rows: usize,
    dim: usize,
    dst: *mut f32,
    to_stride: usize,
) {
    let whole = dim / L::N * L::N;
    for row in 0..rows {
        // SAFETY: both sides have row `row` (clause); vectors end at or before `dim`, and the remaining elements go
        // through a buffer of one vector.
        unsafe {
            let (src, dst) = (src.add(row * stride), dst.add(row * to_stride));
            let mut i = 0;
            while i < whole {
                let x = if BF16 { L::load_bf16(isa, src.add(i)) } else { L::load_f16(isa, src.add(i)) };
                x.store(dst.add(i));
                i += L::N;
            }
            if i < dim {
                let mut tail = [0u16; MAX_LANES];
                let mut wide = [0f32; MAX_LANES];
                tail.as_mut_ptr().copy_from_nonoverlapping(src.add(i), dim - i);
                let p = tail.as_ptr();
                let x = if BF16 { L::load_bf16(isa, p) } else { L::load_f16(isa, p) };
                x.store(wide.as_mut_ptr());
                dst.add(i).copy_from_nonoverlapping(wide.as_ptr(), dim - i);
            }
        }
    }
}

/// Converts `rows` dense rows of `dim` f32 values to rows of 16-bit elements (f16, or bf16 with `BF16`), `to_stride`
/// apart. Elements are rounded to the nearest, ties to even.
///
/// # Safety
/// - `rows · dim` values are readable at `src`, and `rows` rows of `dim` elements are writable at `dst`.
#[inline(always)]
pub unsafe fn narrow<L: Lanes, const BF16: bool>(
    isa: L::Isa,
    src: *const f32,
    rows: usize,
    dim: usize,
    dst: *mut u16,
    to_stride: usize,
) {
    let whole = if BF16 { 0 } else { dim / L::N * L::N };
    for row in 0..rows {
        // SAFETY: both sides have row `row` (clause); vectors end at or before `dim`, and the remaining elements go
        // through a buffer of one vector.
        unsafe {
            let (src, dst) = (src.add(row * dim), dst.add(row * to_stride));
            let mut i = 0;
            while i < whole {
                L::load(isa, src.add(i)).store_f16(dst.add(i));
                i += L::N;
            }
            if BF16 {
                for i in 0..dim {
                    let bits = src.add(i).read().to_bits();
                    let even = bits >> 16 & 1;
                    let rounded = (bits.wrapping_add(0x7fff + even) >> 16) as u16;
                    // Rounding could carry a NaN into infinity; it keeps its sign and upper payload instead.
                    let quiet = (bits >> 16) as u16 | 0x40;
                    dst.add(i).write(if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded });
                }
            } else if i < dim {
                let mut wide = [0f32; MAX_LANES];
                let mut tail = [0u16; MAX_LANES];
                wide.as_mut_ptr().copy_from_nonoverlapping(src.add(i), dim - i);
                L::load(isa, wide.as_ptr()).store_f16(tail.as_mut_ptr());
                dst.add(i).copy_from_nonoverlapping(tail.as_ptr(), dim - i);
            }
        }
    }
}
