//! Computes a register tile of products: rows of scalars times the rows of a strip.

use crate::lanes::Lanes;
use crate::product::for_quad;

/// Start value of sums that would stall if they were subnormal. It is far below the rounding error of every sum that is
/// not itself tiny, and it is subtracted from the result.
pub(super) const BIAS: f32 = f32::MIN_POSITIVE * 64.0;

/// Subtracts the start values from `sum`, the total of `sums` sums that each started from [`BIAS`].
#[inline(always)]
pub(super) fn without_bias<L: Lanes>(isa: L::Isa, sum: L, sums: usize) -> L {
    sum.minus(L::splat(isa, BIAS * sums as f32))
}

/// Computes `x S` for `R` rows `x` and a strip of `V` vectors whose rows are `stride` apart. Without `FOUR`, each
/// result is accumulated in one sum. With `FOUR`, it is the total of four independent sums.
///
/// # Safety
/// - `dim` values are readable in each row of `x`, and `V` vectors in each of `dim` rows at `state`. `dim` is a
///   multiple of four.
#[inline(always)]
pub(super) unsafe fn sums<L: Lanes, const R: usize, const V: usize, const FOUR: bool>(
    isa: L::Isa,
    dim: usize,
    x: [*const f32; R],
    mut state: *const f32,
    stride: usize,
) -> [[L; V]; R] {
    let mut sums = [[[L::splat(isa, BIAS); V]; R]; 4];
    // SAFETY: the rows are those of `x` and of the state (clauses). After the last row the pointer is only moved.
    unsafe {
        for d in (0..dim).step_by(4) {
            let quads: [L::Quad; R] = core::array::from_fn(|r| L::quad(isa, x[r].add(d)));
            for_quad!(|J| {
                for v in 0..V {
                    let s = L::load(isa, state.add(v * L::N));
                    for r in 0..R {
                        let sum = &mut sums[if FOUR { J as usize } else { 0 }][r][v];
                        *sum = sum.mul_add_quad::<J>(s, quads[r]);
                    }
                }
                state = state.wrapping_add(stride);
            });
        }
    }
    let [mut whole, second, third, fourth] = sums;
    for r in 0..R {
        for v in 0..V {
            if FOUR {
                whole[r][v] = whole[r][v].plus(second[r][v]).plus(third[r][v].plus(fourth[r][v]));
            }
            whole[r][v] = without_bias(isa, whole[r][v], if FOUR { 4 } else { 1 });
        }
    }
    whole
}

/// Computes `x S` for `R` rows `x`, `x_stride` apart, and a strip of `V` vectors whose rows are `stride` apart. Each
/// result is accumulated in one sum, or in four independent sums if there is a single row.
///
/// # Safety
/// - The caller keeps the clauses of [`sums`].
#[inline(always)]
pub(super) unsafe fn reads<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    dim: usize,
    x: *const f32,
    x_stride: isize,
    state: *const f32,
    stride: usize,
) -> [[L; V]; R] {
    let x: [*const f32; R] = core::array::from_fn(|r| x.wrapping_offset(r as isize * x_stride));
    // SAFETY: the calls need only the clauses of this function.
    unsafe {
        if R == 1 {
            sums::<L, R, V, true>(isa, dim, x, state, stride)
        } else {
            sums::<L, R, V, false>(isa, dim, x, state, stride)
        }
    }
}
