//! The monoid: an associative operation with an identity, and its laws as predicates.

/// A set with an associative operation and an identity element.
///
/// Every scan in [`crate::scan`] takes slices of any monoid, so that a scan that is right for one of them is right for the
/// softmax states. Elements whose size is known at run time are [`Slots`](crate::scan::Slots) instead. The operation need not commute: `combine` takes the earlier
/// element first.
pub trait Monoid: Clone {
    /// The element `e` with `e ⊕ x = x ⊕ e = x`.
    fn identity() -> Self;

    /// `self ⊕ later`.
    #[must_use]
    fn combine(&self, later: &Self) -> Self;
}

/// Whether `x` is unchanged when combined with the identity on either side, as `same` sees it.
pub fn identity_holds<M: Monoid>(x: &M, mut same: impl FnMut(&M, &M) -> bool) -> bool {
    let e = M::identity();
    same(&e.combine(x), x) && same(&x.combine(&e), x)
}

/// Whether `(a ⊕ b) ⊕ c` and `a ⊕ (b ⊕ c)` agree, as `same` sees it.
pub fn associativity_holds<M: Monoid>(a: &M, b: &M, c: &M, mut same: impl FnMut(&M, &M) -> bool) -> bool {
    same(&a.combine(b).combine(c), &a.combine(&b.combine(c)))
}
