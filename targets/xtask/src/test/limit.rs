//! Limits the time of the short run, and checks that the machine is quiet enough for the limit.

use std::time::Instant;

/// Seconds that the short run may take on two idle cores, from an empty build folder.
const LIMIT: f64 = 1200.0;
/// On a quiet machine, a run may take at most this factor times the limit.
const OVER: f64 = 1.2;
/// Largest share of the processors' time that other programs may use on a quiet machine.
const QUIET: f64 = 0.05;

/// Measures the time of a run and the concurrent load of the machine.
pub struct Watch {
    start: Instant,
    busy: Option<f64>,
}

impl Watch {
    /// Starts the measurement.
    pub fn start() -> Watch {
        Watch { start: Instant::now(), busy: busy() }
    }

    /// Returns a fault if the run took too long. `processor_seconds` is the processor time that the run used. `beyond` is
    /// the number of seconds that those stages of the run that are not in the short run are expected to take.
    pub fn verdict(&self, processor_seconds: f64, beyond: f64) -> Option<String> {
        let seconds = self.start.elapsed().as_secs_f64();
        let others = busy().zip(self.busy).map(|(now, then)| now - then - processor_seconds);
        judge(seconds, LIMIT + beyond, others, cores())
    }
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// Returns a fault if a run on a quiet machine took too long. `others` are the processor seconds that other programs used,
/// including other guests of the machine's host. A quiet machine has at least two cores, and its other programs used at most
/// the share [`QUIET`] of the processors' time. A machine whose system does not report `others` is not quiet.
fn judge(seconds: f64, limit: f64, others: Option<f64>, cores: f64) -> Option<String> {
    let quiet = cores >= 2.0 && others.is_some_and(|others| others <= QUIET * seconds * cores);
    let text = || {
        format!(
            "took {seconds:.0} s on a quiet machine of {cores} cores; allowed: {limit:.0} s and a fifth more; \
             the table above tells which stage grew"
        )
    };
    (quiet && seconds > OVER * limit).then(text)
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
        let late = |others, cores| judge(1441.0, 1200.0, others, cores).is_some();
        assert!(late(Some(100.0), 2.0));
        // These machines are not quiet: other programs used more than a twentieth of two cores; the machine has a single core;
        // the system does not report the time of other programs.
        assert!(!late(Some(145.0), 2.0) && !late(Some(0.0), 1.0) && !late(None, 2.0));
        assert_eq!(judge(1440.0, 1200.0, Some(0.0), 2.0), None);
        assert!(judge(1500.0, 1200.0, Some(0.0), 2.0).unwrap().contains("allowed: 1200 s"));
    }

    #[test]
    fn work_is_all_but_idle_and_waiting() {
        assert_eq!(parse("cpu  100 20 30 5000 700 1 2 47 60 0\ncpu0 1\n"), Some(2.0));
        assert_eq!((parse(""), parse("cpu  1 2\n")), (None, None));
    }
}
