//! Computes representatives for the keys of a block and for the queries of a tile. They yield a first reference.
//!
//! A representative is a vector with one element per dim, selected or averaged over several vectors. The score of two
//! representatives takes one dot product instead of one per pair of a query and a key. It may be near the maximum over
//! these pairs or far from it. Representatives only affect how many rows are recomputed.

use super::setting::{KeySide, QuerySide};

/// Method that summarises many elements by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// The element with the largest magnitude, with its sign. If several elements have that magnitude, the first is used.
    SignedAbsMax,
    /// The largest magnitude of an element.
    AbsMax,
    /// The largest element.
    Max,
    /// The mean of the elements.
    Mean,
}

impl KeySide {
    /// Returns the method that summarises keys.
    #[must_use]
    pub const fn summary(self) -> Summary {
        match self {
            KeySide::SignedAbsMax => Summary::SignedAbsMax,
            KeySide::AbsMax => Summary::AbsMax,
            KeySide::Max => Summary::Max,
            KeySide::Mean => Summary::Mean,
        }
    }
}

impl QuerySide {
    /// Returns the method that summarises the queries of a tile; `None` if each row represents itself.
    #[must_use]
    pub const fn summary(self) -> Option<Summary> {
        match self {
            QuerySide::Row => None,
            QuerySide::AbsMax => Some(Summary::AbsMax),
            QuerySide::SignedAbsMax => Some(Summary::SignedAbsMax),
            QuerySide::Mean => Some(Summary::Mean),
        }
    }
}

impl Summary {
    /// Adds the vector with index `n` to the summary in `to`. `element` returns the vector's element for a dim.
    /// Comparisons skip NaN.
    pub fn absorb(self, to: &mut [f32], n: usize, element: impl Fn(usize) -> f32) {
        for (x, to) in to.iter_mut().enumerate() {
            let e = element(x);
            *to = match self {
                _ if n == 0 => match self {
                    Summary::AbsMax => e.abs(),
                    _ => e,
                },
                Summary::SignedAbsMax => {
                    if e.abs() > to.abs() {
                        e
                    } else {
                        *to
                    }
                }
                Summary::AbsMax => to.max(e.abs()),
                Summary::Max => to.max(e),
                Summary::Mean => *to + e,
            };
        }
    }

    /// Completes the summary in `to`, which has absorbed `n` vectors, at least one.
    pub fn finish(self, to: &mut [f32], n: usize) {
        if self == Summary::Mean {
            to.iter_mut().for_each(|to| *to /= n as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_by_hand() {
        let vectors = [[1.0f32, -2.0, 3.0, -1.0], [-4.0, 2.0, 1.0, -3.0], [2.0, 0.0, -1.0, -2.0]];
        let of = |summary: Summary| {
            let mut to = [f32::NAN; 4];
            vectors.iter().enumerate().for_each(|(n, v)| summary.absorb(&mut to, n, |x| v[x]));
            summary.finish(&mut to, 3);
            to
        };
        assert_eq!(of(KeySide::SignedAbsMax.summary()), [-4.0, -2.0, 3.0, -3.0]);
        assert_eq!(of(KeySide::AbsMax.summary()), [4.0, 2.0, 3.0, 3.0]);
        assert_eq!(of(KeySide::Max.summary()), [2.0, 2.0, 3.0, -1.0]);
        assert_eq!(of(KeySide::Mean.summary()), [-1.0 / 3.0, 0.0, 1.0, -2.0]);
        assert_eq!(QuerySide::Row.summary(), None);
        let sides = [QuerySide::AbsMax, QuerySide::SignedAbsMax, QuerySide::Mean];
        let summaries = [Summary::AbsMax, Summary::SignedAbsMax, Summary::Mean];
        assert_eq!(sides.map(|side| side.summary()), summaries.map(Some));
    }
}
