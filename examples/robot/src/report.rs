//! Answers, counts and the summary of a run.

use elsa_runtime::Backend;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;

/// Longest latency that the histogram resolves, in microseconds: ten minutes.
const LONGEST: u64 = 600_000_000;

/// The answer for one frame, written as one line.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Answer {
    /// Index of the frame among all frames of the source, including broken frames, counted from zero.
    pub frame: u64,
    /// The class with the highest score.
    pub class: usize,
    /// Probability of the class.
    pub score: f32,
    /// Time from the start of the period to the answer, in microseconds.
    pub latency_us: u64,
    /// `true` if the answer came after the end of the period.
    pub late: bool,
    /// `true` if the CPU computed attention in place of a failing GPU.
    pub fallback: bool,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer { frame, class, score, latency_us, late, fallback } = self;
        write!(f, "frame {frame} class {class} score {score:.4} latency_us {latency_us}")?;
        f.write_str(if *late { " late" } else { "" })?;
        f.write_str(if *fallback { " fallback" } else { "" })
    }
}

/// Counters that the loop updates as it runs. Updates allocate nothing.
#[derive(Debug)]
pub struct Statistics {
    latency: Histogram<u64>,
    late: u64,
    fallbacks: u64,
    /// Number of frames that could not be used.
    pub broken: u64,
    /// Number of periods without a frame.
    pub idle: u64,
    /// Number of periods that passed while an earlier frame was being processed.
    pub skipped: u64,
}

impl Statistics {
    /// Creates statistics with all counters at zero.
    ///
    /// # Errors
    /// Returns an error if the histogram does not accept its bounds.
    pub fn new() -> Result<Statistics, hdrhistogram::CreationError> {
        let latency = Histogram::new_with_bounds(1, LONGEST, 3)?;
        Ok(Statistics { latency, late: 0, fallbacks: 0, broken: 0, idle: 0, skipped: 0 })
    }

    /// Counts one answer.
    pub fn answered(&mut self, answer: &Answer) {
        self.latency.saturating_record(answer.latency_us);
        self.late += u64::from(answer.late);
        self.fallbacks += u64::from(answer.fallback);
    }

    /// Returns the number of frames that were answered.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.latency.len()
    }

    /// Returns the summary of a run that has ended.
    #[must_use]
    pub fn summary(&self, run: Run) -> Summary {
        let at = |quantile| self.latency.value_at_quantile(quantile);
        let some = |x: u64| (self.frames() > 0).then_some(x);
        Summary {
            frames: self.frames(),
            deadline_misses: self.late,
            skipped_periods: self.skipped,
            idle_periods: self.idle,
            broken_frames: self.broken,
            replaced_frames: run.replaced,
            dropped_lines: run.dropped_lines,
            fallbacks: self.fallbacks,
            p50_us: some(at(0.5)),
            p99_us: some(at(0.99)),
            max_us: some(self.latency.max()),
            rate_hz: run.rate,
            seconds: run.seconds,
            copied_bytes: run.copied,
            backend: run.backend.name(),
            ended: run.ended,
        }
    }
}

/// Data of a finished run, in addition to the statistics.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Number of frames that were replaced by newer frames before the loop took them.
    pub replaced: u64,
    /// Number of lines that were dropped because the queue was full or because they were not written in time.
    pub dropped_lines: u64,
    /// Periods per second.
    pub rate: f64,
    /// Time from the start of the first period to the end of the run, in seconds.
    pub seconds: f64,
    /// Number of tensor bytes copied between host and GPU for the last frame.
    pub copied: usize,
    /// The back end that computed the last frame.
    pub backend: Backend,
    /// Reason why the loop ended.
    pub ended: End,
}

/// Reason why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The source had no more frames.
    Source,
    /// The requested number of frames was reached.
    Frames,
    /// SIGTERM or Ctrl-C arrived.
    Signal,
    /// The reader of the results has stopped reading.
    Closed,
    /// The source, the model or the sink failed permanently.
    Failure,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Failure => "a failure",
            End::Source => "the source has no more frames",
            End::Frames => "the requested number of frames",
            End::Signal => "a signal",
            End::Closed => "the reader of the results has gone",
        })
    }
}

/// The summary of a run. Latencies are `None` if no frame was answered.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Number of frames that were answered.
    pub frames: u64,
    /// Number of answers that came after the end of their period.
    pub deadline_misses: u64,
    /// Number of periods that passed while an earlier frame was being processed.
    pub skipped_periods: u64,
    /// Number of periods without a frame.
    pub idle_periods: u64,
    /// Number of frames that could not be used.
    pub broken_frames: u64,
    /// Number of frames that were replaced by newer frames before the loop took them.
    pub replaced_frames: u64,
    /// Number of lines that were dropped because the queue was full or because they were not written in time.
    pub dropped_lines: u64,
    /// Number of answers that the CPU computed in place of a failing GPU.
    pub fallbacks: u64,
    /// Median latency in microseconds. The latency of an answer is counted from the start of its period.
    pub p50_us: Option<u64>,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: Option<u64>,
    /// Longest latency in microseconds.
    pub max_us: Option<u64>,
    /// Periods per second.
    pub rate_hz: f64,
    /// Time from the start of the first period to the end of the run, in seconds.
    pub seconds: f64,
    /// Number of tensor bytes copied between host and GPU for the last frame; zero if the CPU computed attention, or if
    /// the GPU used all tensors in place.
    pub copied_bytes: usize,
    /// Name of the back end that computed the last frame.
    pub backend: &'static str,
    /// Reason why the loop ended.
    pub ended: End,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |x: Option<u64>| x.map_or_else(|| "-".to_owned(), |x| x.to_string());
        writeln!(
            f,
            "frames {} at {} Hz in {:.3} s on {}",
            self.frames, self.rate_hz, self.seconds, self.backend
        )?;
        writeln!(f, "latency_us p50 {} p99 {} max {}", us(self.p50_us), us(self.p99_us), us(self.max_us))?;
        writeln!(
            f,
            "deadline_misses {} skipped_periods {} idle_periods {}",
            self.deadline_misses, self.skipped_periods, self.idle_periods
        )?;
        writeln!(
            f,
            "broken_frames {} replaced_frames {} dropped_lines {} fallbacks {} copied_bytes {}",
            self.broken_frames, self.replaced_frames, self.dropped_lines, self.fallbacks, self.copied_bytes
        )?;
        write!(f, "ended: {}", self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(latency_us: u64, late: bool, fallback: bool) -> Answer {
        Answer { frame: 7, class: 3, score: 0.5, latency_us, late, fallback }
    }

    const RUN: Run = Run {
        replaced: 1,
        dropped_lines: 2,
        rate: 30.0,
        seconds: 1.0,
        copied: 3,
        backend: Backend::SCALAR,
        ended: End::Frames,
    };

    #[test]
    fn percentiles_are_those_of_the_latencies() {
        let mut statistics = Statistics::new().unwrap();
        for us in 1..=1000 {
            statistics.answered(&answer(us, us > 990, us > 500));
        }
        statistics.answered(&answer(u64::MAX, true, false));
        let summary = statistics.summary(RUN);
        assert_eq!((summary.frames, summary.deadline_misses, summary.fallbacks), (1001, 11, 500));
        let near = |found: Option<u64>, wanted: u64| found.unwrap().abs_diff(wanted) <= wanted / 500;
        assert!(near(summary.p50_us, 501) && near(summary.p99_us, 991), "{summary}");
        assert!(summary.max_us.unwrap() >= LONGEST);
    }

    #[test]
    fn no_frame_has_no_latency() {
        let summary = Statistics::new().unwrap().summary(RUN);
        assert_eq!(summary.p50_us, None);
        assert!(summary.to_string().contains("p50 - p99 - max -"));
    }

    #[test]
    fn lines_say_what_is_out_of_the_ordinary() {
        assert_eq!(answer(12, false, false).to_string(), "frame 7 class 3 score 0.5000 latency_us 12");
        assert!(answer(12, true, true).to_string().ends_with(" late fallback"));
    }
}
