//! Limits the time of the short run, and checks that the machine is quiet enough for the limit. The limit grows with the time
//! that the machine's cores take for a fixed piece of work, because machines of the same description differ by a half.

use std::collections::BTreeMap;
use std::time::Instant;

/// Seconds that the short run may take on two idle cores of the reference machine, from an empty build folder.
const LIMIT: f64 = 1200.0;
/// Number of words in [`work`].
const WORDS: usize = 1_500_000;
/// Seconds that each core of the reference machine takes for [`work`] while the other cores do the same work. An Intel Xeon
/// (family 6, model 167) took 3.35 seconds on 2026-11-30, and 1900 and 2200 seconds for the run, which is 0.95 and 1.1 of the
/// limit for these cores.
const REFERENCE: f64 = 2.0;
/// On a quiet machine, a run may take at most this factor times the limit.
const OVER: f64 = 1.2;
/// Largest share of the processors' time that other programs may use on a quiet machine.
const QUIET: f64 = 0.05;

/// Measures the time of a run and the concurrent load of the machine.
pub struct Watch {
    start: Instant,
    busy: Option<f64>,
    slowness: f64,
}

/// The time of a run, compared with the limit.
pub struct Verdict {
    /// The time, the limit and the speed of the cores, as a line.
    pub line: String,
    /// `true` if the machine is quiet and the run took too long.
    pub late: bool,
}

impl Watch {
    /// Measures the speed of the cores, which takes some seconds, and starts the measurement of a run.
    pub fn start() -> Watch {
        let slowness = slowness();
        Watch { start: Instant::now(), busy: busy(), slowness }
    }

    /// Compares the time of the run with the limit. `processor_seconds` is the processor time that the run used. `beyond` is
    /// the number of seconds that those stages of the run that are not in the short run are expected to take.
    pub fn verdict(&self, processor_seconds: f64, beyond: f64) -> Verdict {
        let seconds = self.start.elapsed().as_secs_f64();
        let others = busy().zip(self.busy).map(|(now, then)| now - then - processor_seconds);
        let slowness = f64::midpoint(self.slowness, slowness());
        judge(seconds, LIMIT + beyond, slowness, others, cores())
    }
}

/// Returns the ratio of the time that the cores take for [`work`], all at once, to the time on the reference machine.
fn slowness() -> f64 {
    let timed = || {
        let start = Instant::now();
        std::hint::black_box(work());
        start.elapsed().as_secs_f64()
    };
    let times: Vec<f64> = std::thread::scope(|scope| {
        let cores: Vec<_> = (0..cores() as usize).map(|_| scope.spawn(timed)).collect();
        cores.into_iter().filter_map(|core| core.join().ok()).collect()
    });
    times.iter().sum::<f64>() / times.len().max(1) as f64 / REFERENCE
}

/// Counts the words of a long, pseudo-random text in a tree: branches, memory and text, as in a compiler.
fn work() -> usize {
    let mut counts = BTreeMap::new();
    let mut state = 1u64;
    for _ in 0..WORDS {
        // The generator of Marsaglia, "Xorshift RNGs", 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *counts.entry(format!("{:x}", state >> 44)).or_insert(0usize) += 1;
    }
    counts.values().filter(|count| **count > 1).count()
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// Compares the time of a run with the limit. `others` are the processor seconds that other programs used, including other
/// guests of the machine's host. A quiet machine has at least two cores, and its other programs used at most the share
/// [`QUIET`] of the processors' time. A machine whose system does not report `others` is not quiet. The limit is that of the
/// reference machine times `slowness`; faster cores do not lower it.
fn judge(seconds: f64, limit: f64, slowness: f64, others: Option<f64>, cores: f64) -> Verdict {
    let quiet = cores >= 2.0 && others.is_some_and(|others| others <= QUIET * seconds * cores);
    let allowed = OVER * limit * slowness.max(1.0);
    let machine = if quiet { "a quiet machine" } else { "a machine with other work" };
    let line = format!(
        "took {seconds:.0} s on {machine}; allowed: {allowed:.0} s ({limit:.0} s and a fifth more; the {cores} cores take \
         {slowness:.2} times as long as those of the reference machine)"
    );
    Verdict { line, late: quiet && seconds > allowed }
}

/// Returns the seconds that all processors have worked since the system started, including the time stolen by the host of
/// a virtual machine.
fn busy() -> Option<f64> {
    parse(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// Parses the first line of /proc/stat, in hundredths of a second: user, nice, system, idle, waiting, interrupts (two),
/// stolen, and guests, which are part of user and nice.
fn parse(text: &str) -> Option<f64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<f64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let idle = fields.get(3)? + fields.get(4)?;
    Some((fields.iter().take(8).sum::<f64>() - idle) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_quiet_machine_is_held_to_the_limit() {
        let late = |others, cores| judge(1441.0, 1200.0, 1.0, others, cores).late;
        assert!(late(Some(100.0), 2.0));
        // These machines are not quiet: other programs used more than a twentieth of two cores; the machine has a single core;
        // the system does not report the time of other programs.
        assert!(!late(Some(145.0), 2.0) && !late(Some(0.0), 1.0) && !late(None, 2.0));
        assert!(!judge(1440.0, 1200.0, 1.0, Some(0.0), 2.0).late);
    }

    #[test]
    fn slow_cores_get_more_time_and_fast_ones_not_less() {
        let late = |seconds, slowness| judge(seconds, 1200.0, slowness, Some(0.0), 2.0).late;
        assert!(!late(2160.0, 1.5) && late(2161.0, 1.5) && !late(1440.0, 0.5) && late(1441.0, 0.5));
        assert!(
            judge(1.0, 1200.0, 1.5, None, 2.0)
                .line
                .contains("allowed: 2160 s (1200 s and a fifth more; the 2 cores")
        );
        let measured = slowness();
        assert!(measured.is_finite() && measured > 0.0, "{measured}");
    }

    #[test]
    fn time_is_all_but_idle_and_waiting() {
        assert_eq!(parse("cpu  100 20 30 5000 700 1 2 47 60 0\ncpu0 1\n"), Some(2.0));
        assert_eq!((parse(""), parse("cpu  1 2\n")), (None, None));
    }
}
