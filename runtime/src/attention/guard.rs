//! Chooses the division that a stream tries next after memory was refused. This is the guardrail of Stream-CQSA,
//! section 2.5.
//!
//! A task is a block of resident queries past which all keys are streamed. `n_cap` tasks are resident at once. The rows
//! of a task are query rows on a GPU, and resident query tiles on a CPU. When memory is refused, the search continues
//! as follows:
//!
//! ```text
//! n_cap > 1                     n_cap ← n_cap − 1
//! n_cap = 1                     finer tasks, and a calibration pass: one task alone, whose bytes are measured;
//!                               if it fits, n_cap ← the number of tasks for which there is memory
//! finer is not possible         the CPU, or an error
//! ```
//!
//! There are three ways to make tasks finer, tried in this order: half the splits per chunk, half the rows per task,
//! half the keys per split. The first two ways do not change the bits of the output. On a CPU, a split is a segment,
//! which is never divided, so a refusal never changes the bits. Each refusal leads to fewer or finer tasks, so the
//! search ends.
//!
//! The number of tasks that run concurrently, `n_parallel`, is independent of `n_cap`: if one task fills the device,
//! tasks run one after another.

/// Largest number of tasks with which a search should begin. Each refusal removes only one task, so this limit keeps
/// the search short.
pub const MOST_TASKS: usize = 256;

/// Result of fitting a stream into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFit {
    /// Number of tasks that are resident at once, `n_cap`.
    pub n_cap: usize,
    /// Number of tasks that run concurrently, `n_parallel`.
    pub n_parallel: usize,
    /// Number of queries per task. On a GPU, queries are counted within each sequence and head; on a CPU, over all
    /// sequences and heads.
    pub task_rows: usize,
    /// Number of attempts for which memory was refused.
    pub refused: usize,
}

/// The sizes that limit a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of rows in all tasks together.
    pub queries: usize,
    /// The number of rows per task is a multiple of this number. On a CPU this number is 1, because a row is a query
    /// tile. On a GPU it is the number of rows of a thread block; if the problem has windows, it is the number of all
    /// queries.
    pub unit: usize,
    /// The number of keys per split is a multiple of this number. On a CPU it is the number of keys of a segment. On a GPU
    /// it is the number of keys of a tile; if the problem has windows, it is the number of all keys.
    pub tile: usize,
}

/// A division of queries and keys that the search tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Number of rows per task.
    pub rows: usize,
    /// Number of tasks that are resident at once, `n_cap`.
    pub tasks: usize,
    /// Number of keys per split.
    pub split: usize,
    /// Number of splits per chunk.
    pub splits: usize,
    /// `true` if the attempt measures how many bytes one task needs, so that the next attempt may have more tasks.
    pub calibrates: bool,
}

impl Attempt {
    /// Returns the number of rows in all resident tasks.
    pub const fn resident(&self) -> usize {
        self.rows.saturating_mul(self.tasks)
    }

    /// Returns the number of keys per chunk.
    pub const fn keys(&self) -> usize {
        self.split.saturating_mul(self.splits)
    }
}

/// The state of a search for a division of queries and keys that fits into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    limits: Limits,
    next: Option<Attempt>,
    /// Number of refused attempts.
    refused: usize,
}

impl Guard {
    /// Starts with `tasks` resident tasks of `rows` rows each, and chunks of `splits` splits of `split` keys each.
    /// Numbers that the kernel does not support are rounded to supported numbers. A power of two that the search halves
    /// remains a power of two.
    pub fn new(limits: Limits, rows: usize, tasks: usize, split: usize, splits: usize) -> Guard {
        let limits =
            Limits { queries: limits.queries.max(1), unit: limits.unit.max(1), tile: limits.tile.max(1) };
        let rows = rows.clamp(1, limits.queries).next_multiple_of(limits.unit);
        let most = limits.queries.div_ceil(rows);
        let next = Attempt {
            rows,
            tasks: tasks.clamp(1, most),
            split: split.max(1).next_multiple_of(limits.tile),
            splits: splits.max(1),
            calibrates: false,
        };
        Guard { limits, next: Some(next), refused: 0 }
    }

    /// Returns the next attempt; `None` if no finer division is possible.
    pub const fn next(&self) -> Option<Attempt> {
        self.next
    }

    /// Returns the number of refused attempts.
    pub const fn refused(&self) -> usize {
        self.refused
    }

    /// Records that memory was refused.
    pub fn refuse(&mut self) {
        let Some(now) = self.next else { return };
        self.refused += 1;
        let Limits { unit, tile, .. } = self.limits;
        let finer = Attempt { tasks: 1, calibrates: true, ..now };
        self.next = if now.tasks > 1 {
            Some(Attempt { tasks: now.tasks - 1, calibrates: false, ..now })
        } else if now.splits > 1 {
            Some(Attempt { splits: now.splits.div_ceil(2), ..finer })
        } else if now.rows > unit {
            Some(Attempt { rows: (now.rows / 2).next_multiple_of(unit), ..finer })
        } else if now.split > tile {
            Some(Attempt { split: (now.split / 2).next_multiple_of(tile), ..finer })
        } else {
            None
        };
    }

    /// Records that the memory of the attempt was granted. After a calibration, `more` is the number of additional
    /// tasks for which there is memory. Returns `true` if another attempt with more tasks follows.
    pub fn grant(&mut self, more: usize) -> bool {
        let Some(now) = self.next else { return false };
        let most = self.limits.queries.div_ceil(now.rows);
        let tasks = if now.calibrates { now.tasks.saturating_add(more).min(most) } else { now.tasks };
        self.next = Some(Attempt { tasks, calibrates: false, ..now });
        tasks > now.tasks
    }
}

/// Returns the number of tasks that a device computes at once. There are `tasks` resident tasks with `blocks` thread
/// blocks each, and the device can run `room` thread blocks.
pub const fn parallel(tasks: usize, blocks: usize, room: usize) -> usize {
    let at_once = match room.checked_div(blocks) {
        None => tasks,
        Some(0) => 1,
        Some(at_once) => at_once,
    };
    if at_once < tasks { at_once } else { tasks }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { queries: 1000, unit: 64, tile: 64 };

    /// Returns the number of bytes that an attempt needs on a simulated device.
    fn bytes(a: &Attempt) -> usize {
        a.rows * a.tasks * (10 + 3 * a.splits) + 2 * a.split * a.splits * 8
    }

    /// Searches with `room` bytes of simulated memory. Returns the granted attempt, and the number of attempts.
    fn search(room: usize) -> (Option<Attempt>, usize) {
        let mut guard = Guard::new(LIMITS, 256, 4, 512, 4);
        let mut count = 0;
        while let Some(attempt) = guard.next() {
            count += 1;
            assert!(count < 200, "no end: {attempt:?}");
            if bytes(&attempt) > room {
                guard.refuse();
                continue;
            }
            let task = bytes(&Attempt { tasks: 2, ..attempt }) - bytes(&Attempt { tasks: 1, ..attempt });
            if !guard.grant((room - bytes(&attempt)) / task) {
                assert_eq!(guard.refused(), count - 1 - usize::from(raised(&guard, count)));
                return (guard.next(), count);
            }
        }
        (None, count)
    }

    /// Returns `true` if one of `count` attempts was a calibration that was granted. Such an attempt was not refused,
    /// but another attempt followed it.
    fn raised(guard: &Guard, count: usize) -> bool {
        guard.refused() + 1 < count
    }

    #[test]
    fn every_memory_gets_the_largest_division_of_its_level_or_none() {
        let mut levels = std::collections::BTreeSet::new();
        let mut last = 0;
        for room in (0..200_000).step_by(97) {
            let (granted, count) = search(room);
            assert!(count <= 32, "{room}: {count} attempts");
            let Some(granted) = granted else {
                let least = Attempt { rows: 64, tasks: 1, split: 64, splits: 1, calibrates: false };
                assert!(bytes(&least) > room, "{room}");
                continue;
            };
            assert!(bytes(&granted) <= room && !granted.calibrates, "{room}: {granted:?}");
            let more = Attempt { tasks: granted.tasks + 1, ..granted };
            let most = granted.rows * granted.tasks >= LIMITS.queries;
            let first = (granted.rows, granted.split, granted.splits) == (256, 512, 4) && granted.tasks == 4;
            assert!(most || first || bytes(&more) > room, "{room}: {granted:?}");
            levels.insert((granted.rows, granted.split, granted.splits));
            let size = granted.keys();
            assert!(size >= last, "{room}: more memory, finer chunks");
            last = size;
        }
        assert!(levels.len() >= 6, "{levels:?}");
    }

    /// Checks that every sequence of refusals and grants ends, and that each refusal leads to fewer or finer tasks.
    #[test]
    fn every_sequence_of_failures_ends() {
        fn walk(guard: Guard, depth: usize, ends: &mut [usize; 2]) {
            let Some(now) = guard.next() else {
                ends[0] += 1;
                return;
            };
            assert!(depth < 60);
            assert!(now.rows.is_multiple_of(LIMITS.unit) && now.split.is_multiple_of(LIMITS.tile));
            assert!(now.splits >= 1 && now.tasks >= 1);
            assert!(!now.calibrates || now.tasks == 1);
            let mut refused = guard;
            refused.refuse();
            if let Some(next) = refused.next() {
                let size = |a: &Attempt| (a.rows * a.split * a.splits, a.tasks);
                assert!(size(&next) < size(&now), "{now:?} {next:?}");
                assert!(now.tasks > 1 || next.calibrates);
            }
            walk(refused, depth + 1, ends);
            for more in [0, 2] {
                let mut granted = guard;
                if granted.grant(more) {
                    assert!(now.calibrates);
                    // After a calibration, one larger number of tasks is tried, and the search does not calibrate
                    // again.
                    assert!(!granted.next().is_some_and(|next| next.calibrates));
                    let mut again = granted;
                    assert!(!again.grant(5));
                    if more == 2 && depth < 6 {
                        walk(granted, depth + 1, ends);
                    }
                } else {
                    ends[1] += 1;
                }
            }
        }
        let mut ends = [0; 2];
        walk(Guard::new(LIMITS, 256, 3, 256, 2), 0, &mut ends);
        walk(Guard::new(LIMITS, 256, 2, 64, 7), 0, &mut ends);
        assert!(ends[0] > 1 && ends[1] > 10, "{ends:?}");
    }

    #[test]
    fn what_the_kernel_does_not_support_is_not_tried() {
        let next =
            |rows, tasks, split, splits| Guard::new(LIMITS, rows, tasks, split, splits).next().unwrap();
        let of = |attempt: Attempt| (attempt.resident(), attempt.keys(), attempt.splits);
        assert_eq!(of(next(1, 0, 0, 0)), (64, 64, 1));
        assert_eq!(of(next(usize::MAX, 9, 100, 2)), (1024, 256, 2));
        assert_eq!(next(100, 99, 64, 1).tasks, 8);
        let mut ended = Guard::new(LIMITS, 64, 1, 64, 1);
        ended.refuse();
        assert_eq!((ended.next(), ended.grant(3)), (None, false));
        ended.refuse();
        assert_eq!(ended.refused(), 1);
    }

    #[test]
    fn a_full_device_runs_one_task_at_a_time() {
        assert_eq!([parallel(4, 100, 80), parallel(4, 40, 80), parallel(4, 10, 80)], [1, 2, 4]);
        assert_eq!([parallel(3, 0, 80), parallel(1, 5, 0)], [3, 1]);
    }
}
