//! The monoid: an associative operation with an identity, and its laws as predicates.

/// A set with an associative operation and an identity element.
///
/// The scans in [`crate::scan`] accept slices of any monoid, so a scan that is correct for one monoid is also correct
/// for softmax states. Elements whose size is known only at run time implement [`Slots`](crate::scan::Slots) instead.
/// The operation need not commute: `self` is the earlier element in `combine`.
pub trait Monoid: Clone {
    /// Returns the element `e` with `e ⊕ x = x ⊕ e = x`.
    fn identity() -> Self;

    /// Returns `self ⊕ later`.
    #[must_use]
    fn combine(&self, later: &Self) -> Self;
}

/// Returns `true` if combining `x` with the identity on either side leaves it unchanged, as judged by `same`.
pub fn identity_holds<M: Monoid>(x: &M, mut same: impl FnMut(&M, &M) -> bool) -> bool {
    let e = M::identity();
    same(&e.combine(x), x) && same(&x.combine(&e), x)
}

/// Returns `true` if `(a ⊕ b) ⊕ c` and `a ⊕ (b ⊕ c)` agree, as judged by `same`.
pub fn associativity_holds<M: Monoid>(a: &M, b: &M, c: &M, mut same: impl FnMut(&M, &M) -> bool) -> bool {
    same(&a.combine(b).combine(c), &a.combine(&b.combine(c)))
}
