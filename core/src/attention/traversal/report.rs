//! What a run with a schedule did.

/// The counts of a run, and what its answers lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Rows that were accepted as the schedule computed them, those that attend no key among them.
    pub accepted: u64,
    /// Rows that did not pass the guard and were computed again by the exact schedule.
    pub recomputed: u64,
    /// Of these, rows whose largest score lay in a block that was left out before weights existed.
    pub lost_maximum: u64,
    /// Rows whose reference was zero because the norm gate was open.
    pub gated: u64,
    /// Blocks of tiles in which some row attends a key.
    pub blocks: u64,
    /// Of these, blocks that were left out for every row of the tile.
    pub skipped_blocks: u64,
    /// Rows of blocks in which the row attends a key.
    pub row_blocks: u64,
    /// Of these, rows that left the block out.
    pub skipped_row_blocks: u64,
    /// Blocks that were not left out and in which the reference of some row moved that had sums to rescale.
    pub rescaled_blocks: u64,
    /// The same of rows.
    pub rescaled_row_blocks: u64,
    /// The largest share of its weights that an accepted row left out: the upper bound of `D / (S + D)` by
    /// [`share`](super::share).
    pub worst_share: f64,
    /// The sum of these shares over the accepted rows.
    pub share_sum: f64,
}

/// `part / whole`, zero of nothing.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Report {
    /// The share of the blocks that were left out whole.
    #[must_use]
    pub fn block_sparsity(&self) -> f64 {
        ratio(self.skipped_blocks, self.blocks)
    }

    /// The share of the rows of blocks that were left out.
    #[must_use]
    pub fn row_sparsity(&self) -> f64 {
        ratio(self.skipped_row_blocks, self.row_blocks)
    }

    /// The share of the blocks not left out in which no row had to be rescaled.
    #[must_use]
    pub fn rescale_skip_rate(&self) -> f64 {
        let kept = self.blocks - self.skipped_blocks;
        ratio(kept - self.rescaled_blocks, kept)
    }

    /// The share of the rows that were computed again.
    #[must_use]
    pub fn recomputed_share(&self) -> f64 {
        ratio(self.recomputed, self.accepted + self.recomputed)
    }

    /// The mean share of its weights that an accepted row left out.
    #[must_use]
    pub fn mean_share(&self) -> f64 {
        if self.accepted == 0 { 0.0 } else { self.share_sum / self.accepted as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_by_hand() {
        let report = Report {
            accepted: 6,
            recomputed: 2,
            blocks: 20,
            skipped_blocks: 10,
            row_blocks: 160,
            skipped_row_blocks: 120,
            rescaled_blocks: 1,
            share_sum: 0.03,
            ..Report::default()
        };
        assert_eq!((report.block_sparsity(), report.row_sparsity()), (0.5, 0.75));
        assert_eq!((report.rescale_skip_rate(), report.recomputed_share()), (0.9, 0.25));
        assert_eq!(report.mean_share(), 0.005);
        let none = Report::default();
        assert_eq!([none.block_sparsity(), none.rescale_skip_rate(), none.mean_share()], [0.0; 3]);
    }
}
