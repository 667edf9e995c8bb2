//! The register tile of products: rows of scalars times the rows of a strip.

use crate::lanes::Lanes;
use crate::product::for_quad;

/// What sums begin with that would stall if they were subnormal: far below the rounding of every sum that is not tiny itself.
/// It is taken away afterwards.
pub(super) const BIAS: f32 = f32::MIN_POSITIVE * 64.0;

/// A sum of `sums` sums, without what they began with.
#[inline(always)]
pub(super) fn without_bias<L: Lanes>(isa: L::Isa, sum: L, sums: usize) -> L {
    sum.minus(L::splat(isa, BIAS * sums as f32))
}

/// `x S` for `R` rows `x`, `stride` apart: sums over the rows of a strip of `V` vectors.
///
/// # Safety
/// - `dim` values, a multiple of four, are readable in each row of `x`, and `dim` rows of `V` vectors at `state`.
#[inline(always)]
pub(super) unsafe fn reads<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    dim: usize,
    x: *const f32,
    stride: isize,
    mut state: *const f32,
) -> [[L; V]; R] {
    // A single row has four sums, which do not wait for each other.
    let mut sums = [[[L::splat(isa, BIAS); V]; R]; 4];
    // SAFETY: rows of `x` and of the state (clauses).
    unsafe {
        for d in (0..dim).step_by(4) {
            let quads: [L::Quad; R] =
                core::array::from_fn(|r| L::quad(isa, x.offset(r as isize * stride).add(d)));
            for_quad!(|J| {
                for v in 0..V {
                    let s = L::load(isa, state.add(v * L::N));
                    for r in 0..R {
                        let sum = &mut sums[if R == 1 { J as usize } else { 0 }][r][v];
                        *sum = sum.mul_add_quad::<J>(s, quads[r]);
                    }
                }
                state = state.add(V * L::N);
            });
        }
    }
    let [mut whole, second, third, fourth] = sums;
    for r in 0..R {
        for v in 0..V {
            if R == 1 {
                whole[r][v] = whole[r][v].plus(second[r][v]).plus(third[r][v].plus(fourth[r][v]));
            }
            whole[r][v] = without_bias(isa, whole[r][v], if R == 1 { 4 } else { 1 });
        }
    }
    whole
}
