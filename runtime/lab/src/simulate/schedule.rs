//! Schedules of tasks on one or more levels under a memory limit (Stream-CQSA, section 2.4, figures 4 and 9).
//!
//! A uniform schedule divides all tasks down to one level. A hybrid schedule divides some tasks of a level once more,
//! and then divides some of the resulting tasks again. Small tasks then fill the memory that large tasks leave free.
//! Tasks are independent, so they may run in any order; the largest task that fits starts first.
//!
//! The paper's figure assumes that as many tasks run at once as fit in memory, and that each of them runs as fast as it
//! would alone. A GPU that a single task keeps busy cannot do that, and the paper's own experiments run one task at a
//! time. A schedule therefore has two times: `at_once`, under the figure's assumption, and `serial`, the sum over all
//! tasks.

use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum number of leaves in a tree that the search considers.
const LEAVES: f64 = 20_000.0;
/// Maximum number of values that the search tries for the number of divided tasks. This limit applies separately to
/// each of the two levels whose tasks may be divided.
const TRIES: usize = 16;

/// Tasks of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Bytes per task.
    pub bytes: f64,
    /// Seconds per task.
    pub seconds: f64,
    /// Number of tasks.
    pub count: usize,
}

/// State of a timeline from the start of one step until the start of the next step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Start of the step, in seconds.
    pub seconds: f64,
    /// Bytes in use during the step.
    pub bytes: f64,
    /// Number of running tasks of each class.
    pub running: Vec<usize>,
}

/// Timeline of tasks that run concurrently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// Time when the last task ends, in seconds.
    pub seconds: f64,
    /// Peak number of bytes in use.
    pub peak_bytes: f64,
    /// Steps of the timeline. A step begins whenever tasks start or end.
    pub steps: Vec<Step>,
}

/// Simulates concurrent tasks. Whenever memory is free, the largest task that fits starts. `classes` must be sorted by
/// decreasing size. Returns `None` if a task exceeds the limit even if it runs alone.
#[must_use]
pub fn timeline(classes: &[Class], limit: f64) -> Option<Timeline> {
    let fits = |class: &Class| class.count == 0 || class.bytes <= limit;
    if !classes.iter().all(fits) {
        return None;
    }
    let mut waiting: Vec<usize> = classes.iter().map(|class| class.count).collect();
    let mut running = vec![0; classes.len()];
    // Ends of tasks, the earliest first. Positive floats have the same order as their bits.
    let mut ends: BinaryHeap<Reverse<(u64, usize, usize)>> = BinaryHeap::new();
    let (mut now, mut peak, mut steps) = (0.0f64, 0.0f64, Vec::new());
    let used = |running: &[usize]| -> f64 {
        classes.iter().zip(running).map(|(class, count)| class.bytes * *count as f64).sum()
    };
    loop {
        for (i, class) in classes.iter().enumerate() {
            let mut started = 0;
            while waiting[i] > 0 {
                running[i] += 1;
                if used(&running) > limit {
                    running[i] -= 1;
                    break;
                }
                waiting[i] -= 1;
                started += 1;
            }
            if started > 0 {
                ends.push(Reverse(((now + class.seconds).to_bits(), i, started)));
            }
        }
        let bytes = used(&running);
        peak = peak.max(bytes);
        steps.push(Step { seconds: now, bytes, running: running.clone() });
        let Some(Reverse((end, i, count))) = ends.pop() else { break };
        now = f64::from_bits(end);
        running[i] -= count;
        // Remove all tasks that end at the same time.
        while let Some(&Reverse((other, i, count))) = ends.peek().filter(|Reverse(next)| next.0 == end) {
            debug_assert_eq!(other, end);
            running[i] -= count;
            ends.pop();
        }
    }
    Some(Timeline { seconds: now, peak_bytes: peak, steps })
}

/// A tree of tasks. The first `divided` of the tasks at level `base` are divided, and the first `again` of the
/// resulting tasks are divided once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tree {
    /// c, number of tasks that one task is divided into.
    pub chunks: usize,
    /// Level of the largest tasks.
    pub base: u32,
    /// Number of tasks at level `base` that are divided.
    pub divided: usize,
    /// Number of tasks at level `base + 1` that are divided.
    pub again: usize,
}

impl Tree {
    /// Returns the number of leaves at each of the levels `base`, `base + 1` and `base + 2`.
    #[must_use]
    pub fn leaves(self) -> [usize; 3] {
        let whole = self.chunks.pow(self.base);
        [whole - self.divided, self.divided * self.chunks - self.again, self.again * self.chunks]
    }

    /// Returns the path of each leaf from the root; the leaves of the deepest level come first.
    pub fn paths(self) -> impl Iterator<Item = Vec<u16>> {
        let Tree { chunks, base, divided, again } = self;
        let path = move |number: usize, levels: u32| {
            (0..levels)
                .rev()
                .map(move |level| (number / chunks.pow(level) % chunks) as u16)
                .collect::<Vec<_>>()
        };
        let kept = (divided..chunks.pow(base)).map(move |i| path(i, base));
        let once = (again..divided * chunks).map(move |i| path(i, base + 1));
        let twice = (0..again * chunks).map(move |i| path(i, base + 2));
        twice.chain(once).chain(kept)
    }
}

/// A tree of tasks and the times that the tasks take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Schedule {
    /// Tree of tasks.
    #[serde(flatten)]
    pub tree: Tree,
    /// Number of leaves at each of the tree's three levels.
    pub leaves: [usize; 3],
    /// Seconds if the tasks run one after another.
    pub serial: f64,
    /// Timeline if as many tasks run at once as fit in memory.
    pub at_once: Timeline,
}

/// Returns the schedule of a tree. `cost` returns the bytes and seconds of a task at a level. The result is `None` if
/// `cost` returns `None`, or if a task does not fit in `limit` bytes.
#[must_use]
pub fn of(tree: Tree, limit: f64, cost: impl Fn(u32) -> Option<[f64; 2]>) -> Option<Schedule> {
    let leaves = tree.leaves();
    let mut classes = Vec::new();
    for (levels, count) in (tree.base..).zip(leaves).filter(|(_, count)| *count > 0) {
        let [bytes, seconds] = cost(levels)?;
        classes.push(Class { bytes, seconds, count });
    }
    let serial = classes.iter().map(|class| class.seconds * class.count as f64).sum();
    Some(Schedule { tree, leaves, serial, at_once: timeline(&classes, limit)? })
}

/// Finds the hybrid schedule with the shortest `at_once` time. The search covers trees with leaves at level `base` and
/// at the two levels below it. Returns `None` if level `base + 1` has too many tasks, or if none of these trees has a
/// schedule.
///
/// If tasks run as fast concurrently as alone, the finest uniform schedule always has the shortest time, no matter how
/// much work it adds. Therefore only trees with leaves at all three levels are considered.
#[must_use]
pub fn hybrid(
    chunks: usize,
    base: u32,
    limit: f64,
    cost: impl Fn(u32) -> Option<[f64; 2]>,
) -> Option<Schedule> {
    let whole = chunks.checked_pow(base)?;
    if (whole * chunks) as f64 > LEAVES {
        return None;
    }
    let tried = |most: usize| {
        let steps = TRIES.min(most);
        (1..steps).map(move |i| i * most / steps)
    };
    let mut best: Option<Schedule> = None;
    for divided in tried(whole) {
        for again in tried(divided * chunks) {
            let tree = Tree { chunks, base, divided, again };
            if tree.leaves().contains(&0) || tree.leaves().iter().sum::<usize>() as f64 > LEAVES {
                continue;
            }
            let found = of(tree, limit, &cost);
            let better = |found: &Schedule| {
                best.as_ref().is_none_or(|best| found.at_once.seconds < best.at_once.seconds * (1.0 - 1e-9))
            };
            best = found.filter(better).or(best);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::quorum::{self, Division, TaskPath};

    #[test]
    fn a_timeline_fills_memory_and_never_exceeds_it() {
        let class = |bytes, seconds, count| Class { bytes, seconds, count };
        let classes = [class(52.65, 110.06, 4), class(22.56, 19.74, 14), class(9.67, 4.13, 49)];
        let found = timeline(&classes, 80.0).unwrap();
        assert!(found.peak_bytes <= 80.0 && found.peak_bytes > 75.0, "{}", found.peak_bytes);
        // Memory has room for one large task at a time, and the other tasks run next to it.
        assert!((found.seconds - 4.0 * 110.06).abs() < 1e-6, "{}", found.seconds);
        for step in &found.steps {
            let used: f64 = classes.iter().zip(&step.running).map(|(class, n)| class.bytes * *n as f64).sum();
            assert!(used <= 80.0 && (used - step.bytes).abs() < 1e-9, "{step:?}");
        }
        // All tasks run: the area under the number of running tasks of a size is the total time of these tasks.
        for (i, class) in classes.iter().enumerate() {
            let two = found.steps.windows(2);
            let area: f64 = two.map(|two| two[0].running[i] as f64 * (two[1].seconds - two[0].seconds)).sum();
            assert!((area - class.seconds * class.count as f64).abs() < 1e-6, "{i}: {area}");
        }
        assert!(timeline(&classes, 50.0).is_none());
        assert!(timeline(&[class(f64::NAN, 1.0, 1)], 50.0).is_none());
        assert_eq!(timeline(&[], 1.0).unwrap().seconds, 0.0);
    }

    #[test]
    fn a_tree_covers_every_leaf_once() {
        for (chunks, base) in [(7, 1), (3, 2), (7, 0), (13, 1)] {
            let whole = usize::pow(chunks, base);
            for divided in 0..=whole.min(5) {
                for again in [0, 1, divided * chunks / 2, divided * chunks] {
                    if again > divided * chunks {
                        continue;
                    }
                    let tree = Tree { chunks, base, divided, again };
                    let division = Division::new(&vec![chunks; base as usize + 2]).unwrap();
                    let mut paths: Vec<TaskPath> =
                        tree.paths().map(|path| TaskPath::new(&path).unwrap()).collect();
                    assert_eq!(paths.len(), tree.leaves().iter().sum::<usize>(), "{tree:?}");
                    assert!(quorum::Tree::new(&division, &mut paths).is_ok(), "{tree:?}");
                    // A tree that lacks a leaf is refused.
                    assert!(quorum::Tree::new(&division, &mut paths[1..]).is_err(), "{tree:?}");
                }
            }
        }
    }

    #[test]
    fn a_hybrid_schedule_fills_what_a_uniform_one_leaves() {
        // GiB and seconds by level in the paper's study of a million tokens.
        let cost = |level: u32| {
            Some([[92.53, 223.22], [52.65, 110.06], [22.56, 19.74], [9.67, 4.13]][level as usize])
        };
        let hybrid = hybrid(7, 1, 80.0, cost).unwrap();
        assert!(hybrid.leaves.iter().all(|count| *count > 0), "{hybrid:?}");
        assert_eq!(hybrid.leaves, hybrid.tree.leaves());
        let uniform = of(Tree { chunks: 7, base: 1, divided: 0, again: 0 }, 80.0, cost).unwrap();
        assert!(hybrid.at_once.seconds < uniform.at_once.seconds, "{hybrid:?}");
        assert!(hybrid.at_once.peak_bytes <= 80.0 && hybrid.at_once.peak_bytes > uniform.at_once.peak_bytes);
        // Division only adds work, and tasks that run one after another take the time of all work.
        assert!((uniform.serial - 7.0 * 110.06).abs() < 1e-9 && hybrid.serial > uniform.serial);
        assert!(of(Tree { chunks: 7, base: 0, divided: 0, again: 0 }, 80.0, cost).is_none());
        assert!(super::hybrid(7, 9, 80.0, |_| Some([1.0, 1.0])).is_none());
        assert!(super::hybrid(3, 1, 80.0, |_| Some([1.0, 1.0])).is_some());
    }
}
