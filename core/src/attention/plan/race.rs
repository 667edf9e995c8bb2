//! How soon the blocks of a GPU problem end, by the pace of a kernel: the model that compares kernels and divisions.

use crate::profile::GpuProfile;

/// How long a tile of keys of a block takes. Only ratios matter, which devices of a [`Generation`] share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Of an SM's time, where other blocks of the SM fill the waiting.
    pub shared: usize,
    /// By itself on an SM.
    pub alone: usize,
}

/// Devices whose kernels keep the same pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Compute capability 5 and 6, Maxwell and Pascal: a multiprocessor has 64 KiB of shared memory, which decides how many
    /// blocks it holds.
    Early,
    /// Compute capability 7 and later.
    Late,
}

impl Generation {
    /// The generation of a device.
    #[must_use]
    pub const fn of(device: &GpuProfile) -> Generation {
        match device.capability.0 {
            0..=6 => Generation::Early,
            _ => Generation::Late,
        }
    }

    /// What a merge takes, in units of [`Pace`].
    const fn merge(self) -> usize {
        match self {
            // A launch of 10 microseconds on a Jetson TX2, and what the merge reads and writes.
            Generation::Early => 1000,
            Generation::Late => 250,
        }
    }
}

/// The paces of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paces {
    /// On [`Generation::Early`], by the machine code for compute capability 6.2, where that of 64 rows and dims is 367.
    pub early: Pace,
    /// On [`Generation::Late`], in hundredths of a microsecond on an H200.
    pub late: Pace,
}

impl Paces {
    /// The pace on a generation.
    #[must_use]
    pub const fn on(&self, generation: Generation) -> Pace {
        match generation {
            Generation::Early => self.early,
            Generation::Late => self.late,
        }
    }
}

/// A share of warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Warps that have rows.
    pub busy: usize,
    /// All warps.
    pub all: usize,
}

impl Share {
    /// The share of `x`, rounded up.
    const fn of(self, x: usize) -> usize {
        x.saturating_mul(self.busy).div_ceil(if self.all > 0 { self.all } else { 1 })
    }
}

/// Largest number of splits that are compared.
pub const MOST_SPLITS: usize = 8;
/// Tiles that an edge takes in a kernel whose edges are slow.
const SLOW_EDGE: usize = 3;
/// What the fewest splits must end within, in hundredths of the best time.
const WITHIN: usize = 121;

/// A kernel on a problem. Every SM takes its share of the blocks, and a tile takes it as long as its blocks together, or
/// as one by itself.
pub struct Race {
    /// Number of blocks of undivided keys.
    pub blocks: usize,
    /// The share of their warps that have rows: warps without one multiply nothing.
    pub live: Share,
    /// Number of SMs.
    pub sms: usize,
    /// Blocks that an SM of [`Generation::Early`] holds at once.
    pub resident: usize,
    /// Number of keys.
    pub keys: usize,
    /// Largest number of splits.
    pub most: usize,
    /// Number of keys of a tile.
    pub tile: usize,
    /// The device's generation.
    pub generation: Generation,
    /// The kernel's pace there.
    pub pace: Pace,
    /// Whether tiles take longer that not every row attends wholly.
    pub slow_edges: bool,
}

impl Race {
    /// The time with `splits` splits.
    fn time(&self, splits: usize) -> usize {
        let each = self.blocks.saturating_mul(splits).div_ceil(self.sms.max(1));
        let pace = match self.generation {
            // Waves that follow each other average over blocks; the last one has all its rows.
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

    /// Whether blocks of `sequences` sequences that take all splits of their rows, one after the other, end no later than
    /// one for each split and a merge.
    pub fn is_serial(&self, sequences: usize, splits: usize) -> bool {
        let batch = Race { blocks: self.blocks.saturating_mul(sequences), slow_edges: false, ..*self };
        batch.time(1) <= batch.time(splits)
    }

    /// The fewest splits that end nearly as soon as any, and when they do.
    pub fn soonest(&self) -> (usize, usize) {
        let most = self.most.min(self.keys.div_ceil(self.tile)).clamp(1, MOST_SPLITS);
        let best = (1..=most).map(|splits| self.time(splits)).min().unwrap_or(0);
        let near = |splits: &usize| self.time(*splits).saturating_mul(100) <= best.saturating_mul(WITHIN);
        let splits = (1..=most).find(near).unwrap_or(1);
        (splits, self.time(splits))
    }
}

/// The number of splits, up to `most`, with which `blocks` blocks keep a device busy that holds `room` of them at
/// once: the fewest within five percent of the best share of its rooms that blocks take, until the last one ends.
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

    /// 12 heads of 197 tokens on two SMs, in blocks of 64 rows of which each fourth has one warp of four at work.
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
        // On a device that runs all blocks at once, the longest one decides.
        let late = Race { generation: Generation::Late, ..RACE };
        assert_eq!(late.time(1), Race { live: whole, ..late }.time(1));
        // A block with a single warp at work still takes its own time.
        let one = Race { blocks: 1, live: Share { busy: 1, all: 4 }, ..RACE };
        assert_eq!(one.time(1), 4 * 471);
        // The third of three is alone.
        let three = Race { blocks: 6, live: whole, ..RACE };
        assert_eq!(three.time(1), 4 * (2 * 367 + 471));
        assert_eq!(Share { busy: 0, all: 0 }.of(7), 0);
    }
}
