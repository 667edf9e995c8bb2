//! Slots: numbered places that store the elements of a scan.
//!
//! A [`Monoid`] is combined by value, so its size is known at compile time. The state of a linear recurrence is a
//! matrix whose size depends on the problem; such elements are stored in the caller's workspace. For both kinds of
//! elements a scan needs four operations: to combine an element into a place, to copy it, to exchange it with another,
//! and to set a place to the identity. [`Slots`] is the trait of these operations, and every scan is written for it. A
//! slice of a monoid is one implementation.
//!
//! A scan only combines into the place of the *later* element, by [`Slots::combine`]. If a total belongs in the place
//! of the earlier element, the contents of the two places are exchanged afterwards. The value that the exchange moves
//! to the place of the later element is no longer needed.

use crate::argument::ArgumentError;
use crate::monoid::Monoid;

/// The elements of a scan in numbered places, followed by scratch places.
///
/// Elements have the numbers `0 … len() − 1`. The scratch places start at [`Slots::len`] and may have any contents.
/// Their number is [`Slots::scratch`]. The operation is associative and has an identity; it need not commute.
#[expect(clippy::len_without_is_empty, reason = "no scan asks whether there are elements")]
pub trait Slots {
    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Returns the number of scratch places after the elements.
    fn scratch(&self) -> usize {
        0
    }

    /// Sets a place to the identity.
    fn identity(&mut self, at: usize);

    /// Computes `at ← before ⊕ at`. The place `before` contains the earlier element, differs from `at` and keeps its
    /// contents.
    fn combine(&mut self, before: usize, at: usize);

    /// Copies the contents of place `from` to place `to`.
    fn copy(&mut self, from: usize, to: usize);

    /// Exchanges the contents of two places.
    fn swap(&mut self, a: usize, b: usize);
}

impl<M: Monoid> Slots for [M] {
    fn len(&self) -> usize {
        self.len()
    }

    fn identity(&mut self, at: usize) {
        self[at] = M::identity();
    }

    fn combine(&mut self, before: usize, at: usize) {
        self[at] = self[before].combine(&self[at]);
    }

    fn copy(&mut self, from: usize, to: usize) {
        self[to] = self[from].clone();
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.swap(a, b);
    }
}

/// A slice of elements and a slice of scratch.
#[derive(Debug)]
pub struct Scratched<'a, M> {
    items: &'a mut [M],
    scratch: &'a mut [M],
}

impl<'a, M: Monoid> Scratched<'a, M> {
    /// Creates slots whose elements are `items` and whose scratch places are `scratch`.
    #[must_use]
    pub fn new(items: &'a mut [M], scratch: &'a mut [M]) -> Scratched<'a, M> {
        Scratched { items, scratch }
    }

    /// Returns the element in a place, or `None` if the place does not exist.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&M> {
        self.items.get(at).or_else(|| self.scratch.get(at.checked_sub(self.items.len())?))
    }

    fn at(&mut self, at: usize) -> &mut M {
        match at.checked_sub(self.items.len()) {
            Some(at) => &mut self.scratch[at],
            None => &mut self.items[at],
        }
    }

    fn read(&self, at: usize) -> &M {
        match at.checked_sub(self.items.len()) {
            Some(at) => &self.scratch[at],
            None => &self.items[at],
        }
    }
}

impl<M: Monoid> Slots for Scratched<'_, M> {
    fn len(&self) -> usize {
        self.items.len()
    }

    fn scratch(&self) -> usize {
        self.scratch.len()
    }

    fn identity(&mut self, at: usize) {
        *self.at(at) = M::identity();
    }

    fn combine(&mut self, before: usize, at: usize) {
        *self.at(at) = self.read(before).combine(self.read(at));
    }

    fn copy(&mut self, from: usize, to: usize) {
        *self.at(to) = self.read(from).clone();
    }

    fn swap(&mut self, a: usize, b: usize) {
        let n = self.items.len();
        match (a.checked_sub(n), b.checked_sub(n)) {
            (None, None) => self.items.swap(a, b),
            (Some(a), Some(b)) => self.scratch.swap(a, b),
            (None, Some(b)) => core::mem::swap(&mut self.items[a], &mut self.scratch[b]),
            (Some(a), None) => core::mem::swap(&mut self.scratch[a], &mut self.items[b]),
        }
    }
}

/// A range of the places of other slots. All places in it are elements; it has no scratch.
#[derive(Debug)]
pub(super) struct Stretch<'a, S: ?Sized> {
    pub slots: &'a mut S,
    pub start: usize,
    pub len: usize,
}

impl<S: Slots + ?Sized> Slots for Stretch<'_, S> {
    fn len(&self) -> usize {
        self.len
    }

    fn identity(&mut self, at: usize) {
        self.slots.identity(self.start + at);
    }

    fn combine(&mut self, before: usize, at: usize) {
        self.slots.combine(self.start + before, self.start + at);
    }

    fn copy(&mut self, from: usize, to: usize) {
        self.slots.copy(self.start + from, self.start + to);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.slots.swap(self.start + a, self.start + b);
    }
}

/// Returns an error if there are fewer than `needed` scratch places.
pub(super) fn check_scratch<S: Slots + ?Sized>(slots: &S, needed: usize) -> Result<(), ArgumentError> {
    let found = slots.scratch();
    if found < needed { Err(ArgumentError::Short { argument: "scratch", found, needed }) } else { Ok(()) }
}
