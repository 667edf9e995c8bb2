//! Schedules stages: divides the long run into parts, assigns stages to lanes, and estimates the remaining time.

use super::results::Outcome;
use super::stages::Stage;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Stages that search for errors for a requested time. Each of them gets half of the requested minutes.
const SEARCHES: [&str; 2] = ["fuzz", "hunt"];

/// Estimates the seconds that a stage takes.
pub fn seconds(stage: &Stage, minutes: u64) -> f64 {
    stage.seconds + if SEARCHES.contains(&stage.name) { minutes as f64 * 30.0 } else { 0.0 }
}

/// Identifies one part of a run that is divided into several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of this part, from one.
    this: usize,
    of: usize,
}

impl Default for Part {
    fn default() -> Part {
        Part { this: 1, of: 1 }
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((this, of)) if (1..=of).contains(&this) => Ok(Part { this, of }),
            _ => Err(format!("{text}; allowed: I/N with 1 <= I <= N, such as 2/3")),
        }
    }
}

impl Part {
    /// Returns the stages of this part, in the order of `stages`. The division is the same on every machine: each stage, the
    /// longest first, goes to the part that has the least to do.
    pub fn of(self, stages: &'static [Stage], minutes: u64) -> Vec<&'static Stage> {
        let mut longest: Vec<&Stage> = stages.iter().collect();
        longest.sort_by(|a, b| seconds(b, minutes).total_cmp(&seconds(a, minutes)));
        let mut loads = vec![0.0; self.of];
        let mut own = Vec::new();
        for stage in longest {
            let least = (0..self.of).min_by(|a, b| f64::total_cmp(&loads[*a], &loads[*b])).unwrap_or(0);
            loads[least] += seconds(stage, minutes);
            own.extend((least + 1 == self.this).then_some(stage.name));
        }
        stages.iter().filter(|stage| own.contains(&stage.name)).collect()
    }
}

/// The lanes of a run, and their progress.
pub struct Progress {
    lanes: Vec<Vec<&'static Stage>>,
    /// Seconds that each stage is expected to take.
    expected: BTreeMap<&'static str, f64>,
    /// The running stages with their start times, and the stages that have ended.
    running: Mutex<(BTreeMap<&'static str, Instant>, Vec<&'static str>)>,
}

impl Progress {
    /// Creates the progress of `stages`; `known` contains the seconds that each stage took when it last ran.
    pub fn new(stages: &[&'static Stage], known: &BTreeMap<String, f64>, minutes: u64) -> Progress {
        let count = stages.iter().map(|stage| stage.lane + 1).max().unwrap_or(0);
        let lane = |lane| stages.iter().filter(|stage| stage.lane == lane).copied().collect::<Vec<_>>();
        let lanes = (0..count).map(lane).filter(|lane| !lane.is_empty()).collect();
        let took = |stage: &&'static Stage| {
            let known = known.get(stage.name).filter(|_| !SEARCHES.contains(&stage.name));
            (stage.name, known.copied().unwrap_or_else(|| seconds(stage, minutes)))
        };
        let expected = stages.iter().map(took).collect();
        Progress { lanes, expected, running: Mutex::default() }
    }

    /// Returns the stages of each lane, in the order in which the lane runs them.
    pub fn lanes(&self) -> Vec<Vec<&'static Stage>> {
        self.lanes.clone()
    }

    /// Lists the stages of each lane, and the expected total time.
    pub fn opening(&self) -> String {
        let names = |lane: &Vec<&Stage>| lane.iter().map(|stage| stage.name).collect::<Vec<_>>().join(", ");
        let lanes: Vec<String> = self.lanes.iter().map(names).collect();
        if lanes.is_empty() {
            "nothing to run".to_owned()
        } else {
            format!("{}: {}", lanes.join("; beside it "), self.rest())
        }
    }

    /// Records that a stage begins.
    pub fn begin(&self, stage: &Stage) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.0.insert(stage.name, Instant::now());
    }

    /// Records that a stage has ended, and prints its line with the remaining time.
    pub fn end(&self, stage: &Stage, outcome: &Outcome) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.0.remove(stage.name);
        running.1.push(stage.name);
        drop(running);
        let rest = self.rest();
        println!("{}   {rest}", outcome.line(stage.name));
    }

    /// Returns the remaining time of the lane with the most work.
    fn rest(&self) -> String {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let left = |stage: &&Stage| {
            let since = running.0.get(stage.name).map_or(0.0, |began| began.elapsed().as_secs_f64());
            (self.expected.get(stage.name).copied().unwrap_or(0.0) - since).max(0.0)
        };
        let waiting = |stage: &&&Stage| !running.1.contains(&stage.name);
        let lanes = self.lanes.iter().map(|lane| lane.iter().filter(waiting).map(left).sum::<f64>());
        minutes(lanes.fold(0.0, f64::max))
    }
}

/// Formats the remaining seconds, such as `40 s left`.
fn minutes(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s left") } else { format!("{:.0} min left", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::super::stages::STAGES;
    use super::*;

    #[test]
    fn parts_are_a_division_of_all_stages() {
        for of in 1..=STAGES.len() + 1 {
            let parts: Vec<Vec<&str>> = (1..=of)
                .map(|this| Part { this, of }.of(STAGES, 30).iter().map(|stage| stage.name).collect())
                .collect();
            let mut all = parts.concat();
            all.sort_unstable();
            let mut names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
            names.sort_unstable();
            assert_eq!(all, names, "{of} parts");
        }
        // The times of any two parts differ by at most the time of the longest stage.
        let load = |part: &Part| part.of(STAGES, 30).iter().map(|stage| seconds(stage, 30)).sum::<f64>();
        let loads: Vec<f64> = (1..=3).map(|this| load(&Part { this, of: 3 })).collect();
        let most = |f: fn(f64, f64) -> f64, from| loads.iter().copied().fold(from, f);
        let longest = STAGES.iter().map(|stage| seconds(stage, 30)).fold(0.0, f64::max);
        assert!(most(f64::max, 0.0) - most(f64::min, f64::INFINITY) <= longest, "{loads:?}");
    }

    #[test]
    fn a_part_is_one_of_its_number() {
        assert_eq!("2/3".parse(), Ok(Part { this: 2, of: 3 }));
        for text in ["0/3", "4/3", "3", "/", "1/0", "a/b", "-1/2", "1/2/3"] {
            assert!(text.parse::<Part>().unwrap_err().contains("allowed: I/N"), "{text}");
        }
    }

    #[test]
    fn the_rest_is_that_of_the_longest_lane() {
        let stages: Vec<&Stage> =
            STAGES.iter().filter(|stage| ["check", "host", "asan"].contains(&stage.name)).collect();
        let known = [("check", 60.0), ("host", 30.0), ("asan", 100.0)];
        let known = known.into_iter().map(|(name, took)| (name.to_owned(), took)).collect();
        let progress = Progress::new(&stages, &known, 1);
        assert_eq!(progress.lanes().len(), 2);
        assert_eq!(progress.opening(), "check, host; beside it asan: 2 min left");
        let end = |name: &str| {
            let stage = stages.iter().find(|stage| stage.name == name).unwrap();
            progress.begin(stage);
            progress.end(stage, &Outcome::default());
        };
        end("asan");
        assert_eq!(progress.rest(), "90 s left".replace("90 s", "2 min"));
        end("check");
        assert_eq!(progress.rest(), "30 s left");
        end("host");
        assert_eq!(progress.rest(), "0 s left");
    }
}
