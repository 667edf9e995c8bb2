//! Estimates, from the pace of a kernel, when the thread blocks that compute a problem on a GPU finish. The chooser uses
//! the estimates to compare kernels and divisions of the keys.

use crate::profile::GpuProfile;

/// Time that a block takes per tile of keys. Only ratios matter; all devices of a [`Generation`] share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time when the SM also runs other blocks, which hide the block's latency.
    pub shared: usize,
    /// Time when the block is alone on the SM.
    pub alone: usize,
}

/// A group of devices. A kernel has the same pace on all devices of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Compute capability 5 and 6, Maxwell and Pascal. An SM has 64 KiB of shared memory, which limits the number of
    /// resident blocks.
    Early,
    /// Compute capability 7 and later.
    Late,
}

impl Generation {
    /// Returns the generation of a device.
    #[must_use]
    pub const fn of(device: &GpuProfile) -> Generation {
        match device.capability.0 {
            0..=6 => Generation::Early,
            _ => Generation::Late,
        }
    }

    /// Returns the time in which the states of the splits are merged, in units of [`Pace`].
    const fn merge(self) -> usize {
        match self {
            // The time covers a launch of 10 microseconds on a Jetson TX2, and the memory traffic of the merge.
            Generation::Early => 1000,
            Generation::Late => 250,
        }
    }
}

/// The paces of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paces {
    /// Pace on [`Generation::Early`], derived from the machine code for compute capability 6.2. On this scale, the
    /// kernel with 64 rows and 64 dims has a pace of 367.
    pub early: Pace,
    /// Pace on [`Generation::Late`], in hundredths of a microsecond on an H200.
    pub late: Pace,
}

impl Paces {
    /// Returns the pace on `generation`.
    #[must_use]
    pub const fn on(&self, generation: Generation) -> Pace {
        match generation {
            Generation::Early => self.early,
            Generation::Late => self.late,
        }
    }
}

/// A fraction of the warps of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of warps that have rows.
    pub busy: usize,
    /// Total number of warps.
    pub all: usize,
}

impl Share {
    /// Returns `x` times this fraction, rounded up.
    const fn of(self, x: usize) -> usize {
        x.saturating_mul(self.busy).div_ceil(if self.all > 0 { self.all } else { 1 })
    }
}

/// Largest number of splits that [`Race`] considers.
pub const MOST_SPLITS: usize = 8;
/// Time of a tile in which some row does not attend all keys, relative to the time of any other tile, in a kernel with slow
/// edges ([`Race::slow_edges`]).
const SLOW_EDGE: usize = 3;
/// A number of splits is close to the best if its finishing time is at most this percentage of the shortest finishing time.
/// The smallest such number is preferred.
const WITHIN: usize = 121;

/// A model of a kernel that computes a problem. Blocks are distributed evenly over the SMs. A tile takes the shared pace
/// times the number of blocks on its SM, or the pace of a block alone if that is longer.
pub struct Race {
    /// Number of blocks if keys are not divided.
    pub blocks: usize,
    /// Fraction of the blocks' warps that have rows. Warps without rows do not multiply.
    pub live: Share,
    /// Number of SMs.
    pub sms: usize,
    /// Number of blocks that are resident on an SM of [`Generation::Early`] at once.
    pub resident: usize,
    /// Number of keys.
    pub keys: usize,
    /// Largest number of splits.
    pub most: usize,
    /// Number of keys per tile.
    pub tile: usize,
    /// The device's generation.
    pub generation: Generation,
    /// The kernel's pace on `generation`.
    pub pace: Pace,
    /// `true` if a tile takes longer when some row does not attend all keys of the tile.
    pub slow_edges: bool,
}

impl Race {
    /// Returns the finishing time with `splits` splits, in units of [`Pace`].
    fn time(&self, splits: usize) -> usize {
        let each = self.blocks.saturating_mul(splits).div_ceil(self.sms.max(1));
        let pace = match self.generation {
            // Full waves average over busy and idle warps. In the last, partial wave all warps are assumed to be busy.
            Generation::Early => {
                let room = self.resident.max(1);
                let wave = |time: usize| time.max(self.pace.alone);
                let full = wave(self.live.of(room.saturating_mul(self.pace.shared)));
                let last = match each % room {
                    0 => 0,
                    rest => wave(rest.saturating_mul(self.pace.shared)),
                };
                (each / room).saturating_mul(full).saturating_add(last)
            }
            Generation::Late => each.saturating_mul(self.pace.shared).max(self.pace.alone),
        };
        let edge = if self.slow_edges && !self.keys.is_multiple_of(self.tile) { SLOW_EDGE - 1 } else { 0 };
        let tiles = self.keys.div_ceil(self.tile).div_ceil(splits) + edge;
        tiles.saturating_mul(pace).saturating_add(if splits > 1 { self.generation.merge() } else { 0 })
    }

    /// Compares two launches that compute a batch of `sequences` sequences. In the first, each block processes all splits
    /// of its rows. In the second, each block processes one split, and a merge follows. Returns `true` if the first launch
    /// finishes no later than the second.
    pub fn is_serial(&self, sequences: usize, splits: usize) -> bool {
        let batch = Race { blocks: self.blocks.saturating_mul(sequences), slow_edges: false, ..*self };
        batch.time(1) <= batch.time(splits)
    }

    /// Returns the smallest number of splits whose finishing time is close to the best, and its finishing time.
    pub fn soonest(&self) -> (usize, usize) {
        let most = self.most.min(self.keys.div_ceil(self.tile)).clamp(1, MOST_SPLITS);
        let best = (1..=most).map(|splits| self.time(splits)).min().unwrap_or(0);
        let near = |splits: &usize| self.time(*splits).saturating_mul(100) <= best.saturating_mul(WITHIN);
        let splits = (1..=most).find(near).unwrap_or(1);
        (splits, self.time(splits))
    }
}

/// Returns the number of splits, up to `most`, that keeps a device busy if `room` blocks can be resident on it at once.
/// Every split has `blocks` blocks. The result is the smallest number whose utilisation, until the last block
/// finishes, is within five percentage points of the best.
pub fn evenest(blocks: usize, room: usize, most: usize) -> usize {
    let percent = |splits: usize| {
        let all = blocks.saturating_mul(splits);
        all.saturating_mul(100) / all.div_ceil(room).saturating_mul(room).max(1)
    };
    let best = (1..=most).map(percent).max().unwrap_or(0);
    (1..=most).find(|&splits| percent(splits) + 5 >= best).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 12 heads of 197 tokens on two SMs, in blocks of 64 rows. In every fourth block, only one of four warps has rows.
    const RACE: Race = Race {
        blocks: 48,
        live: Share { busy: 13, all: 16 },
        sms: 2,
        resident: 2,
        keys: 197,
        most: 1,
        tile: 64,
        generation: Generation::Early,
        pace: Pace { shared: 367, alone: 471 },
        slow_edges: false,
    };

    #[test]
    fn warps_without_rows_take_no_time_where_blocks_come_in_waves() {
        let whole = Share { busy: 16, all: 16 };
        assert_eq!(RACE.time(1), 4 * 12 * (2 * 367 * 13usize).div_ceil(16));
        assert_eq!(Race { live: whole, ..RACE }.time(1), 4 * 24 * 367);
        // If a device runs all blocks at once, the longest block decides.
        let late = Race { generation: Generation::Late, ..RACE };
        assert_eq!(late.time(1), Race { live: whole, ..late }.time(1));
        // A block with a single busy warp still takes the time of a block that is alone on its SM.
        let one = Race { blocks: 1, live: Share { busy: 1, all: 4 }, ..RACE };
        assert_eq!(one.time(1), 4 * 471);
        // Each SM has three blocks and room for two, so the third runs alone.
        let three = Race { blocks: 6, live: whole, ..RACE };
        assert_eq!(three.time(1), 4 * (2 * 367 + 471));
        assert_eq!(Share { busy: 0, all: 0 }.of(7), 0);
    }
}
