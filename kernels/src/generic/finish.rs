//! From states to output rows: `W / S`, transposed back.

use crate::kernel::Sums;
use crate::lanes::Lanes;

/// Divides `W` by `S` in place, as `W · (1 / S)`: zeros where no key was seen, NaN where poisoned.
///
/// # Safety
/// - The clauses of [`Sums`], all initialised, for `V` vectors and `value_dim`.
#[inline(always)]
pub unsafe fn finish<L: Lanes, const V: usize>(isa: L::Isa, sums: &Sums, value_dim: usize) {
    let zero = L::splat(isa, 0.0);
    let one = L::splat(isa, 1.0);
    for v in 0..V {
        // SAFETY: vector `v` of references and sums, and of each of `value_dim` rows (clause).
        unsafe {
            let m = L::load(isa, sums.m.add(v * L::N));
            let s = L::load(isa, sums.s.add(v * L::N));
            let inverse = one.over(s);
            // Without a key the weighted sums count for nothing, but a NaN among the scores stays in S.
            let nothing = s.times(zero);
            let row = V * L::N;
            let mut at = sums.w.add(v * L::N);
            for _ in 0..value_dim / 4 {
                for i in 0..4 {
                    let at = at.add(i * row);
                    m.if_present(L::load(isa, at).times(inverse), nothing).store(at);
                }
                // The last step may leave the allocation.
                at = at.wrapping_add(4 * row);
            }
            for i in 0..value_dim % 4 {
                let at = at.add(i * row);
                m.if_present(L::load(isa, at).times(inverse), nothing).store(at);
            }
        }
    }
}
