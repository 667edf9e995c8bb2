//! Tracks the partial sums of a run, in the order of its additions.
//!
//! An operation whose exact result is `x` yields `x (1 + δ)` with `|δ| ≤ u`. If `x` is a partial sum, the rounding `δ`
//! changes the final sum by `δ x`, to first order. So a sum is off by at most `u Σ |x|` over its partial sums `x`. If
//! the roundings are independent with mean zero, `Σ x²` bounds their effect. If terms cancel, both `Σ |x|` and `Σ x²`
//! are far below the bounds that hold for any order.

use crate::attention::certificate::Order;
use crate::scan::stack::MergeStack;

/// Number of slots of a merge tree over `usize::MAX` segments.
const SLOTS: usize = MergeStack::capacity(usize::MAX);

/// The effect of roundings on a sum, to first order, in units of `u`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Roundings {
    /// Largest possible effect: the sum of the magnitudes of the partial sums.
    pub worst: f64,
    /// Sum of the squares of the partial sums.
    pub squares: f64,
}

impl Roundings {
    /// Counts one rounding of `partial`.
    #[inline]
    pub fn count(&mut self, partial: f64) {
        self.worst += partial.abs();
        self.squares += partial * partial;
    }

    /// Counts `steps` roundings of numbers whose magnitudes are at most `magnitude`.
    pub fn count_any(&mut self, steps: usize, magnitude: f64) {
        self.worst += steps as f64 * magnitude;
        self.squares += steps as f64 * magnitude * magnitude;
    }
}

/// Order of additions in one of the sums over keys: the sum of weights or the sum of weighted values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Number of consecutive keys per chain; zero if the order within a segment is unknown.
    pub chain: usize,
    /// Number of consecutive keys per segment; zero if the order is entirely unknown.
    pub segment: usize,
    /// Largest number of roundings of a term within its segment.
    pub steps: usize,
    /// `true` if terms are products, whose roundings count as well.
    pub products: bool,
    /// `true` if a product and its addition are rounded only once.
    pub fused: bool,
}

/// A sum over the keys of a row, tracked through its partial sums.
#[derive(Clone, Copy, Debug)]
pub struct TrackedSum {
    path: Path,
    /// Indices of the chain and of the segment that contain the last key.
    at: Option<(usize, usize)>,
    /// Sum of the current chain; `folded` is the sum of earlier chains in the segment. Both are `None` before their
    /// first term.
    chain: Option<f64>,
    folded: Option<f64>,
    /// `Σ |x|` of the current segment.
    magnitude: f64,
    /// Sums of earlier segments.
    slots: [f64; SLOTS],
    tree: MergeStack,
    roundings: Roundings,
}

impl TrackedSum {
    /// Creates a sum without terms.
    #[must_use]
    pub fn new(path: Path) -> TrackedSum {
        TrackedSum {
            path,
            at: None,
            chain: None,
            folded: None,
            magnitude: 0.0,
            slots: [0.0; SLOTS],
            tree: MergeStack::default(),
            roundings: Roundings::default(),
        }
    }

    /// Adds the term `x` of key `j`. Keys must be absorbed in increasing order. A term of zero causes no rounding.
    #[inline]
    pub fn absorb(&mut self, j: usize, x: f64) {
        if x == 0.0 {
            return;
        }
        let of = |keys: usize| j.checked_div(keys).unwrap_or(0);
        let at = (of(self.path.chain), of(self.path.segment));
        if self.at != Some(at) {
            self.begin(at);
        }
        self.magnitude += x.abs();
        let Path { products, fused, .. } = self.path;
        if products && !fused {
            self.roundings.count(x);
        }
        let sum = match self.chain {
            Some(chain) => chain + x,
            None => x,
        };
        if self.path.chain > 0 && (self.chain.is_some() || (products && fused)) {
            self.roundings.count(sum);
        }
        self.chain = Some(sum);
    }

    /// Ends the current chain. Also ends the segment if the next key belongs to another segment.
    fn begin(&mut self, at: (usize, usize)) {
        self.end_chain();
        if self.at.is_none_or(|(_, segment)| segment != at.1) {
            self.end_segment();
            let TrackedSum { tree, slots, roundings, .. } = self;
            tree.push(at.1, |slot| merge(slots, roundings, slot));
        }
        self.at = Some(at);
    }

    fn end_chain(&mut self) {
        let Some(chain) = self.chain.take() else { return };
        self.folded = Some(match self.folded {
            Some(folded) => {
                let sum = folded + chain;
                if self.path.chain > 0 {
                    self.roundings.count(sum);
                }
                sum
            }
            None => chain,
        });
    }

    fn end_segment(&mut self) {
        let Some(sum) = self.folded.take() else { return };
        if self.path.chain == 0 {
            self.roundings.count_any(self.path.steps, self.magnitude);
        }
        self.magnitude = 0.0;
        if let Some(slot) = self.tree.len().checked_sub(1) {
            self.slots[slot] = sum;
        }
    }

    /// Returns all roundings, including those of pending merges.
    #[must_use]
    pub fn roundings(&self) -> Roundings {
        let mut all = *self;
        all.end_chain();
        all.end_segment();
        let TrackedSum { tree, slots, roundings, .. } = &mut all;
        tree.finish(|slot| merge(slots, roundings, slot));
        all.roundings
    }
}

/// Merges two slots: adds `slots[slot + 1]` to `slots[slot]`, and counts the rounding.
fn merge(slots: &mut [f64; SLOTS], roundings: &mut Roundings, slot: usize) {
    slots[slot] += slots[slot + 1];
    roundings.count(slots[slot]);
}

impl Order {
    /// Returns the path of the weights. Each weight has at most `steps` roundings within a segment.
    #[must_use]
    pub(super) const fn of_weights(&self, steps: usize) -> Path {
        Path { chain: self.weights, segment: self.segment, steps, products: false, fused: false }
    }

    /// Returns the path of the weighted values. Each has at most `steps` roundings within a segment; `fused` becomes
    /// [`Path::fused`].
    #[must_use]
    pub(super) const fn of_values(&self, steps: usize, fused: bool) -> Path {
        Path { chain: self.values, segment: self.segment, steps, products: true, fused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path { chain: 2, segment: 4, steps: 9, products: false, fused: false };

    fn of(path: Path, terms: &[f64]) -> Roundings {
        let mut sum = TrackedSum::new(path);
        terms.iter().enumerate().for_each(|(j, x)| sum.absorb(j, *x));
        sum.roundings()
    }

    #[test]
    fn chains_segments_and_tree_by_hand() {
        // The chains are 1 − 3, 5 + 7 and 2 − 8. The first two form one segment, the third forms another, and a tree
        // adds both segments.
        let terms = [1.0, -3.0, 5.0, 7.0, 2.0, -8.0];
        let sums = [-2.0, 12.0, 10.0, -6.0, 4.0f64];
        let by_hand = Roundings {
            worst: sums.iter().map(|x| x.abs()).sum(),
            squares: sums.iter().map(|x| x * x).sum(),
        };
        assert_eq!(of(PATH, &terms), by_hand);
        // Products round as well. If they are fused, only the first product of each chain rounds separately from an
        // addition.
        let fused = of(Path { products: true, fused: true, ..PATH }, &terms);
        assert_eq!(fused.worst, by_hand.worst + 1.0 + 5.0 + 2.0);
        let apart = of(Path { products: true, fused: false, ..PATH }, &terms);
        assert_eq!(apart.worst, by_hand.worst + 26.0);
        // Zeros are not counted.
        assert_eq!(of(PATH, &[1.0, -3.0, 0.0, 0.0, 0.0, 2.0]).worst, 2.0);
    }

    #[test]
    fn an_unknown_order_counts_every_step() {
        let found = of(Path { chain: 0, ..PATH }, &[1.0, -3.0, 5.0, 7.0, 2.0, -8.0]);
        assert_eq!(found.worst, 9.0 * 16.0 + 9.0 * 10.0 + 4.0);
        let found = of(Path { chain: 0, segment: 0, ..PATH }, &[1.0, -3.0, 5.0]);
        assert_eq!((found.worst, found.squares), (81.0, 9.0 * 81.0));
        assert_eq!(of(PATH, &[]), Roundings::default());
        assert_eq!(of(PATH, &[3.0]), Roundings::default());
    }

    #[test]
    fn the_tree_joins_neighbours() {
        let path = Path { chain: 1, segment: 1, ..PATH };
        // The tree adds ((1 + 2) + (4 + 8)) + 16.
        assert_eq!(of(path, &[1.0, 2.0, 4.0, 8.0, 16.0]).worst, 3.0 + 12.0 + 15.0 + 31.0);
    }
}
