//! The rows of a state times factors, and the numbers that vanish.

use super::kernel::Factors;
use crate::lanes::Lanes;

/// Multiplies the `dim` rows of `width` values at `state` by their factors. A factor of zero clears its row by selection,
/// whatever the row holds. A number that would be smaller than the smallest normal one becomes zero, before it is
/// multiplied, so that no product is subnormal.
///
/// # Safety
/// - The factors are readable: one, or `dim` of them.
/// - `dim · width` values are readable and writable at `state`; `width` is a multiple of the lanes.
#[inline(always)]
pub unsafe fn multiply<L: Lanes>(isa: L::Isa, factors: &Factors, state: *mut f32, dim: usize, width: usize) {
    let zero = L::splat(isa, 0.0);
    for r in 0..dim {
        let n = if factors.per_dim { r } else { 0 };
        // SAFETY: factor `n`, and vectors of row `r` (clauses).
        unsafe {
            let (high, rest) = (factors.high.add(n).read(), factors.rest.add(n).read());
            let row = state.add(r * width);
            if high == 0.0 {
                for x in (0..width).step_by(L::N) {
                    zero.store(row.add(x));
                }
                continue;
            }
            let limit = L::splat(isa, f32::MIN_POSITIVE / high);
            let (high, rest) = (L::splat(isa, high), L::splat(isa, rest));
            for x in (0..width).step_by(L::N) {
                let s = L::load(isa, row.add(x));
                let y = limit.if_greater(s.abs(), zero, s).times(high);
                y.mul_add(rest, y).store(row.add(x));
            }
        }
    }
}

/// `x · factor`, or zero where it would be subnormal on an instruction set that stalls there. `limit` is the smallest normal
/// number divided by the factor's magnitude.
#[inline(always)]
pub(super) fn flushed<L: Lanes>(isa: L::Isa, x: L, factor: L, limit: L) -> L {
    if L::RAISE == 1.0 {
        return x.times(factor);
    }
    limit.if_greater(x.abs(), L::splat(isa, 0.0), x).times(factor)
}
