//! Counts the events of a run with a schedule.

use super::room::RowRoom;
use crate::state::WEIGHT_FLOOR;

/// Numbers of rows whose weights overflow or vanish in a particular floating-point type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spoilt {
    /// Number of rows in which some weight, when it is computed, exceeds the largest number of the type.
    pub overflowing: u64,
    /// Number of rows in which every weight, relative to the row's last reference, counts as zero.
    pub vanishing: u64,
}

/// Smallest exponents `x` for which `2^x` rounds to infinity, in f16 (`log2 65520`) and in f32.
const OVERFLOWS: [f32; 2] = [15.999_648, 128.0];

/// Largest exponents `x` for which `2^x` counts as zero, in f16 and in f32. In f16, half the smallest subnormal number
/// rounds to zero; in f32, kernels replace weights below this limit by zero.
const VANISHES: [f32; 2] = [-25.0, WEIGHT_FLOOR];

impl Spoilt {
    /// Counts a row in the counters for f16 and for f32. `peak` is the largest exponent with which a weight of the row
    /// was computed. `largest` is the largest exponent of a score relative to the row's last reference.
    pub(super) fn count(counters: [&mut Spoilt; 2], peak: f32, largest: f32) {
        for ((counter, overflows), vanishes) in counters.into_iter().zip(OVERFLOWS).zip(VANISHES) {
            counter.overflowing += u64::from(peak >= overflows);
            counter.vanishing += u64::from(largest <= vanishes);
        }
    }
}

/// Counters of a run, and the shares of the weights that its rows skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraversalReport {
    /// Number of rows accepted as the schedule computed them, including rows that attend no key.
    pub accepted: u64,
    /// Number of rows that the guard rejected and the exact schedule recomputed.
    pub recomputed: u64,
    /// Number of recomputed rows whose largest score was in a block that was skipped before its weights were computed.
    pub lost_maximum: u64,
    /// Number of rows whose reference was zero because the norm gate was open.
    pub gated: u64,
    /// Number of pairs of a tile and a block in which some row of the tile attends a key of the block.
    pub blocks: u64,
    /// Number of pairs in `blocks` in which every row that attends a key of the block skipped the block.
    pub skipped_blocks: u64,
    /// Number of pairs in `blocks` that were skipped before any of their products was computed
    /// ([`unseen_weight`](super::unseen_weight)). `D` then includes an upper bound of their weights, so log-sum-exp is
    /// an upper bound as well.
    pub unseen_blocks: u64,
    /// Number of pairs of a row and a block in which the row attends a key of the block.
    pub row_blocks: u64,
    /// Number of pairs in `row_blocks` in which the row skipped the block.
    pub skipped_row_blocks: u64,
    /// Number of pairs in `row_blocks` for which the schedule needs the row's largest score in the block. These are the
    /// pairs in which references may move or, for a schedule with λ, all pairs. Pairs whose largest score only the
    /// guard needs do not count.
    pub sought_row_blocks: u64,
    /// Number of pairs in `blocks` that were not skipped, and in which some row moved its reference and rescaled the sums
    /// that it already had. Kernels count these pairs only if the schedule has an error budget.
    pub rescaled_blocks: u64,
    /// Number of pairs in `row_blocks` that were not skipped, and in which the row moved its reference and rescaled the
    /// sums that it already had.
    pub rescaled_row_blocks: u64,
    /// Numbers of rows that f16 weights would have spoilt, whether or not the guard accepted them.
    pub half: Spoilt,
    /// Numbers of rows that f32 weights would have spoilt, whether or not the guard accepted them.
    pub single: Spoilt,
    /// Largest share of weights that an accepted row skipped: the upper bound of `D / (S + D)` that
    /// [`share`](super::share) computes.
    pub worst_share: f64,
    /// Sum over the accepted rows of the shares that they skipped.
    pub share_sum: f64,
}

/// Summary of the shares `D / (S + D)` of the weights that rows skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Largest share over the rows.
    pub worst: f64,
    /// Smallest share that at most one row in a hundred exceeds.
    pub p99: f64,
    /// Mean share over the rows.
    pub mean: f64,
}

impl Shares {
    /// Summarises the shares of `rows` rows. `list` contains the share of each row, from 0 to 1, and zeros for rows
    /// that were not computed.
    #[must_use]
    pub fn of(list: &[f32], rows: u64) -> Shares {
        let beyond = |x: f32| list.iter().filter(|share| **share > x).count() as u64;
        let worst = list.iter().copied().fold(0.0f32, f32::max);
        // Nonnegative numbers are ordered like their bits, so this searches the bits.
        let (mut least, mut most) = (0u32, worst.to_bits());
        while least < most {
            let middle = u32::midpoint(least, most);
            match beyond(f32::from_bits(middle)) <= rows / 100 {
                true => most = middle,
                false => least = middle + 1,
            }
        }
        let sum: f64 = list.iter().copied().map(f64::from).sum();
        Shares {
            worst: worst.into(),
            p99: f32::from_bits(most).into(),
            mean: if rows == 0 { 0.0 } else { sum / rows as f64 },
        }
    }
}

/// Returns `part / whole`; zero if `whole` is zero.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl TraversalReport {
    /// Counts a pair of a tile and a block. `rows` are the rows of the tile, and some of them attend a key of the block.
    pub(super) fn count(&mut self, rows: &[RowRoom]) {
        let of = |test: fn(&RowRoom) -> bool| {
            rows.iter().filter(|row| row.attended > 0 && test(row)).count() as u64
        };
        let (all, skipped, moved) = (of(|_| true), of(|row| row.skips), of(|row| row.moved && !row.skips));
        self.blocks += 1;
        self.row_blocks += all;
        self.skipped_row_blocks += skipped;
        self.skipped_blocks += u64::from(skipped == all);
        self.rescaled_row_blocks += moved;
        self.rescaled_blocks += u64::from(moved > 0);
    }

    /// Adds the counters of another part of the run.
    pub fn add(&mut self, other: &TraversalReport) {
        let TraversalReport { worst_share, share_sum, .. } = *other;
        for (to, from) in [
            (&mut self.accepted, other.accepted),
            (&mut self.recomputed, other.recomputed),
            (&mut self.lost_maximum, other.lost_maximum),
            (&mut self.gated, other.gated),
            (&mut self.blocks, other.blocks),
            (&mut self.skipped_blocks, other.skipped_blocks),
            (&mut self.unseen_blocks, other.unseen_blocks),
            (&mut self.row_blocks, other.row_blocks),
            (&mut self.skipped_row_blocks, other.skipped_row_blocks),
            (&mut self.sought_row_blocks, other.sought_row_blocks),
            (&mut self.rescaled_blocks, other.rescaled_blocks),
            (&mut self.rescaled_row_blocks, other.rescaled_row_blocks),
            (&mut self.half.overflowing, other.half.overflowing),
            (&mut self.half.vanishing, other.half.vanishing),
            (&mut self.single.overflowing, other.single.overflowing),
            (&mut self.single.vanishing, other.single.vanishing),
        ] {
            *to += from;
        }
        self.worst_share = self.worst_share.max(worst_share);
        self.share_sum += share_sum;
    }

    /// Returns the fraction of the pairs in `blocks` in which every row that attends a key of the block skipped the block.
    #[must_use]
    pub fn block_sparsity(&self) -> f64 {
        ratio(self.skipped_blocks, self.blocks)
    }

    /// Returns the fraction of the pairs in `blocks` that were skipped before any of their products was computed.
    #[must_use]
    pub fn unseen_share(&self) -> f64 {
        ratio(self.unseen_blocks, self.blocks)
    }

    /// Returns the fraction of the pairs in `row_blocks` in which the row skipped the block.
    #[must_use]
    pub fn row_sparsity(&self) -> f64 {
        ratio(self.skipped_row_blocks, self.row_blocks)
    }

    /// Considers the pairs in `blocks` that were not skipped. Returns the fraction of these pairs in which no row rescaled
    /// its sums.
    #[must_use]
    pub fn rescale_skip_rate(&self) -> f64 {
        let kept = self.blocks - self.skipped_blocks;
        ratio(kept - self.rescaled_blocks, kept)
    }

    /// Returns the share of weights that an accepted row skipped, averaged over the accepted rows.
    #[must_use]
    pub fn mean_share(&self) -> f64 {
        if self.accepted == 0 { 0.0 } else { self.share_sum / self.accepted as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_leave_the_range_of_their_type() {
        let of = |peak, largest| {
            let [mut half, mut single] = [Spoilt::default(); 2];
            Spoilt::count([&mut half, &mut single], peak, largest);
            [half.overflowing, half.vanishing, single.overflowing, single.vanishing]
        };
        assert_eq!(of(0.0, 0.0), [0; 4]);
        assert_eq!((of(15.9996, 0.0), of(15.9997, 0.0)), ([0; 4], [1, 0, 0, 0]));
        assert_eq!(of(128.0, -24.9), [1, 0, 1, 0]);
        assert_eq!((of(-25.0, -25.0), of(-126.0, -126.0)), ([0, 1, 0, 0], [0, 1, 0, 1]));
        assert_eq!(of(f32::NEG_INFINITY, f32::NAN), [0; 4]);
        assert!(65_520.0f64.log2() >= f64::from(OVERFLOWS[0].next_down()));
        assert!(65_520.0f64.log2() <= f64::from(OVERFLOWS[0].next_up()));
    }

    #[test]
    fn rates_by_hand() {
        let report = TraversalReport {
            accepted: 6,
            recomputed: 2,
            blocks: 20,
            skipped_blocks: 10,
            unseen_blocks: 5,
            row_blocks: 160,
            skipped_row_blocks: 120,
            rescaled_blocks: 1,
            share_sum: 0.03,
            ..TraversalReport::default()
        };
        assert_eq!((report.block_sparsity(), report.row_sparsity()), (0.5, 0.75));
        assert_eq!(report.rescale_skip_rate(), 0.9);
        assert_eq!((report.mean_share(), report.unseen_share()), (0.005, 0.25));
        let none = TraversalReport::default();
        assert_eq!([none.block_sparsity(), none.rescale_skip_rate(), none.mean_share()], [0.0; 3]);
    }
}
