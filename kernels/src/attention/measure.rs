//! Magnitudes of a call's tensors, from which the certificate of a run is computed.
//!
//! ```text
//! naive:  for each row:  norm = √ Σ x²      largest = max(largest, norm)
//! ```
//!
//! 1. *Squares and magnitudes.* A row's sum of squares can overflow where its norm does not. So the largest magnitude
//!    is found in the same pass. The product of this magnitude and `√dim` also bounds the norm. The magnitude also
//!    shows whether an element is infinite or only the sum overflowed.
//! 2. *No square root per row.* The row with the largest sum of squares has the largest norm, so a call computes a
//!    single root. An allowance for the rounding of the sums is added.
//! 3. *A maximum that keeps NaN.* The bits of magnitudes are compared as integers. In this order infinity is larger
//!    than any number, and NaN is larger than infinity. The result does not depend on the order.
//! 4. *Value columns in strips.* The maxima of a strip stay in registers while the strip is read from the first row to
//!    the last.

use crate::lanes::{Lanes, MAX_LANES};
use elsa_core::dtype::DType;

/// Rows of elements in memory.
///
/// Contract: `data` is aligned to an element. `rows` rows, `stride` elements apart, are readable at `data`. Each row
/// has `dim` elements of type `dtype`.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredRows {
    /// The first element of the first row.
    pub data: *const u8,
    /// Type of the elements.
    pub dtype: DType,
    /// Stride of rows in elements.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of elements per row.
    pub dim: usize,
}

/// Entry points of the functions that measure rows, for one instruction set.
///
/// Each entry point has the safety clauses of the function with the same name, and one more clause: the CPU has the
/// instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Entry point of `norms`.
    pub norms: unsafe fn(&MeasuredRows, *mut f32),
    /// Entry point of `channels`.
    pub channels: unsafe fn(&MeasuredRows, *mut f32),
    /// Entry point of `addends`.
    pub addends: unsafe fn(&MeasuredRows, *mut f32),
}

/// Element types, numbered for use as const parameters.
const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Calls a function with the element type of the rows as its const parameter.
macro_rules! by_type {
    ($function:ident, $lanes:ident, $isa:expr, $rows:expr, $to:expr) => {
        match $rows.dtype {
            DType::F32 => $function::<$lanes, F32>($isa, $rows, $to),
            DType::F16 => $function::<$lanes, F16>($isa, $rows, $to),
            DType::Bf16 => $function::<$lanes, BF16>($isa, $rows, $to),
        }
    };
}

/// Returns the larger of two non-negative numbers; NaN is larger than any number.
#[inline(always)]
#[must_use]
pub fn larger(a: f32, b: f32) -> f32 {
    if b.to_bits() > a.to_bits() { b } else { a }
}

/// Replaces the number at `at` with `x` if `x` is larger.
///
/// # Safety
/// - `at` is readable and writable for one value.
#[inline(always)]
unsafe fn raise(at: *mut f32, x: f32) {
    // SAFETY: `at` is readable and writable for one value (clause).
    unsafe { at.write(larger(at.read(), x)) }
}

/// Returns the largest lane of a non-negative vector.
#[inline(always)]
fn largest_lane<L: Lanes>(x: L) -> f32 {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: the buffer has room for a vector.
    unsafe { x.store(lanes.as_mut_ptr()) };
    let mut most = 0.0;
    for lane in lanes {
        most = larger(most, lane);
    }
    most
}

/// Loads `N` elements of type `T`.
///
/// # Safety
/// - `N` elements are readable at `p`.
#[inline(always)]
unsafe fn load<L: Lanes, const T: u8>(isa: L::Isa, p: *const u8) -> L {
    // SAFETY: `N` elements are readable at `p` (clause).
    unsafe {
        match T {
            F32 => L::load(isa, p.cast()),
            F16 => L::load_f16(isa, p.cast()),
            _ => L::load_bf16(isa, p.cast()),
        }
    }
}

/// Returns the size of an element of type `T` in bytes.
#[inline(always)]
const fn size_of_type<const T: u8>() -> usize {
    if T == F32 { 4 } else { 2 }
}

/// Loads `n` elements of type `T`, at most `N`, followed by zeros.
///
/// # Safety
/// - `n` elements are readable at `p`, and `n` is at most `N`.
#[inline(always)]
unsafe fn load_some<L: Lanes, const T: u8>(isa: L::Isa, p: *const u8, n: usize) -> L {
    let mut lanes = [0u32; MAX_LANES];
    // SAFETY: the buffer has room for a vector of any type, and therefore for the `n` elements (clause).
    unsafe {
        lanes.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(p, n * size_of_type::<T>());
        load::<L, T>(isa, lanes.as_ptr().cast())
    }
}

/// Raises `to[0]` to the largest sum of squares of any row, computed in f32, and `to[1]` to the largest magnitude of
/// any element. Both are NaN if an element is NaN.
///
/// Each square is subject to at most `dim + 4` roundings.
///
/// # Safety
/// - The contract of [`MeasuredRows`] holds. `to` is readable and writable for two non-negative values or NaN.
#[inline(always)]
pub unsafe fn norms<L: Lanes>(isa: L::Isa, rows: &MeasuredRows, to: *mut f32) {
    // SAFETY: `norms_of` has the same clauses as this function.
    unsafe { by_type!(norms_of, L, isa, rows, to) }
}

#[inline(always)]
unsafe fn norms_of<L: Lanes, const T: u8>(isa: L::Isa, rows: &MeasuredRows, to: *mut f32) {
    let zero = L::splat(isa, 0.0);
    let whole = rows.dim / L::N * L::N;
    let (mut magnitudes, mut squares) = (zero, 0.0);
    for i in 0..rows.rows {
        let row = rows.data.wrapping_add(i * rows.stride * size_of_type::<T>());
        let (mut sum, mut x) = (zero, 0);
        // SAFETY: vectors end at or before `dim`, and `dim - x` elements follow them (contract).
        unsafe {
            while x < whole {
                let e = load::<L, T>(isa, row.add(x * size_of_type::<T>()));
                sum = e.mul_add(e, sum);
                magnitudes = magnitudes.larger_magnitude(e);
                x += L::N;
            }
            if x < rows.dim {
                let e = load_some::<L, T>(isa, row.add(x * size_of_type::<T>()), rows.dim - x);
                sum = e.mul_add(e, sum);
                magnitudes = magnitudes.larger_magnitude(e);
            }
        }
        squares = larger(squares, sum.lane_sum().abs());
    }
    // SAFETY: `to` is readable and writable for two values (clause).
    unsafe {
        raise(to, squares);
        raise(to.add(1), largest_lane(magnitudes));
    }
}

/// Number of vectors per strip of columns.
const STRIP: usize = 4;

/// Raises `to[c]` to the largest magnitude of element `c` over all rows, or to NaN if one of these elements is NaN.
///
/// # Safety
/// - The contract of [`MeasuredRows`] holds. `to` is readable and writable for `dim` non-negative values or NaN.
#[inline(always)]
pub unsafe fn channels<L: Lanes>(isa: L::Isa, rows: &MeasuredRows, to: *mut f32) {
    // SAFETY: `channels_of` has the same clauses as this function.
    unsafe { by_type!(channels_of, L, isa, rows, to) }
}

#[inline(always)]
unsafe fn channels_of<L: Lanes, const T: u8>(isa: L::Isa, rows: &MeasuredRows, to: *mut f32) {
    let (step, mut x) = (rows.stride * size_of_type::<T>(), 0);
    // SAFETY: strips and vectors end at or before `dim`, and `dim - x` elements follow them (contract).
    unsafe {
        while x + STRIP * L::N <= rows.dim {
            let mut most = [L::splat(isa, 0.0); STRIP];
            for s in 0..STRIP {
                most[s] = L::load(isa, to.add(x + s * L::N));
            }
            let mut row = rows.data.wrapping_add(x * size_of_type::<T>());
            for _ in 0..rows.rows {
                for s in 0..STRIP {
                    let e = load::<L, T>(isa, row.add(s * L::N * size_of_type::<T>()));
                    most[s] = most[s].larger_magnitude(e);
                }
                row = row.wrapping_add(step);
            }
            for s in 0..STRIP {
                most[s].store(to.add(x + s * L::N));
            }
            x += STRIP * L::N;
        }
        while x < rows.dim {
            let n = (rows.dim - x).min(L::N);
            let mut most = load_some::<L, F32>(isa, to.add(x).cast(), n);
            let mut row = rows.data.wrapping_add(x * size_of_type::<T>());
            for _ in 0..rows.rows {
                most = most.larger_magnitude(load_some::<L, T>(isa, row, n));
                row = row.wrapping_add(step);
            }
            let mut lanes = [0.0; MAX_LANES];
            most.store(lanes.as_mut_ptr());
            to.add(x).copy_from_nonoverlapping(lanes.as_ptr(), n);
            x += n;
        }
    }
}

/// Raises `to[0]` to the largest magnitude of the elements. `−∞` counts as zero, because it masks a key and is not an
/// addend of the key's score. The result is NaN if an element is NaN. If no element is NaN and an element is `+∞`, the
/// result is infinite.
///
/// # Safety
/// - The contract of [`MeasuredRows`] holds. `to` is readable and writable for one non-negative value or NaN.
#[inline(always)]
pub unsafe fn addends<L: Lanes>(isa: L::Isa, rows: &MeasuredRows, to: *mut f32) {
    // SAFETY: `addends_of` has the same clauses as this function.
    unsafe { by_type!(addends_of, L, isa, rows, to) }
}

#[inline(always)]
unsafe fn addends_of<L: Lanes, const T: u8>(isa: L::Isa, rows: &MeasuredRows, to: *mut f32) {
    let zero = L::splat(isa, 0.0);
    let mut most = zero;
    for i in 0..rows.rows {
        let row = rows.data.wrapping_add(i * rows.stride * size_of_type::<T>());
        let mut x = 0;
        while x < rows.dim {
            let n = (rows.dim - x).min(L::N);
            // SAFETY: the `n` elements are in the row (contract).
            let e = unsafe {
                let at = row.add(x * size_of_type::<T>());
                if n == L::N { load::<L, T>(isa, at) } else { load_some::<L, T>(isa, at, n) }
            };
            most = most.larger_magnitude(e.if_present(e, zero));
            x += n;
        }
    }
    // SAFETY: `to` is readable and writable for one value (clause).
    unsafe { raise(to, largest_lane(most)) };
}
