//! The merge law of `elsa_core::state`, executed on tiles.

use crate::kernel::Sums;
use crate::lanes::Lanes;
use elsa_core::state::Merge;

/// `earlier ⊕ later`, into `earlier`.
///
/// # Safety
/// - The clauses of [`Sums`] for both, all initialised, for `V` vectors and `value_dim`.
#[inline(always)]
pub unsafe fn merge<L: Lanes, const V: usize>(isa: L::Isa, earlier: &Sums, later: &Sums, value_dim: usize) {
    for v in 0..V {
        let o = v * L::N;
        // SAFETY: vector `v` of references and sums, and of each of `value_dim` rows (clause).
        unsafe {
            let law = Merge::of(L::load(isa, earlier.m.add(o)), L::load(isa, later.m.add(o)));
            law.m.store(earlier.m.add(o));
            let at = earlier.s.add(o);
            law.apply(L::load(isa, at), L::load(isa, later.s.add(o))).store(at);
            for x in 0..value_dim {
                let o = (x * V + v) * L::N;
                let at = earlier.w.add(o);
                law.apply(L::load(isa, at), L::load(isa, later.w.add(o))).store(at);
            }
        }
    }
}
