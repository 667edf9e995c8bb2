//! Progress bar of a benchmark, which also advances during a case.

use indicatif::{ProgressBar, ProgressStyle};

/// Number of steps of the bar per case.
const STEPS: f64 = 1000.0;

/// Parts of a case, in the order of their execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The first calls, and the oracle's judgement of them.
    Check,
    /// Calls until the latency settles.
    Warm,
    /// The timed calls.
    Time,
}

impl Part {
    /// Returns the start and the end of the part, as fractions of the case's time.
    const fn share(self) -> (f64, f64) {
        match self {
            Part::Check => (0.0, 0.15),
            Part::Warm => (0.15, 0.3),
            Part::Time => (0.3, 1.0),
        }
    }
}

/// Progress bar on standard error, shown only on a terminal and only for work of more than half a second.
pub struct Progress {
    bar: ProgressBar,
    /// Number of finished cases.
    done: usize,
}

impl Progress {
    /// Creates the progress bar for `cases` cases that take about `seconds` each.
    #[must_use]
    pub fn new(cases: usize, seconds: f64) -> Progress {
        if seconds * cases as f64 <= 0.5 {
            return Progress { bar: ProgressBar::hidden(), done: 0 };
        }
        let bar = ProgressBar::new(cases as u64 * STEPS as u64);
        // The name is cut to the width of the terminal: a line that wraps would stay on the screen.
        let template = "{bar:20} {percent:>3} %, {elapsed} done, about {eta} left: {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, done: 0 }
    }

    /// Shows the name of the case that begins.
    pub fn begin(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// Moves the bar to `fraction`, from 0 to 1, of a part of the case. Callable from any thread.
    pub fn tell(&self, part: Part, fraction: f64) {
        let (begin, end) = part.share();
        let within = begin + (end - begin) * fraction.clamp(0.0, 1.0);
        self.bar.set_position(((self.done as f64 + within) * STEPS) as u64);
    }

    /// Marks the case as finished.
    pub fn end(&mut self) {
        self.done += 1;
        self.bar.set_position(self.done as u64 * STEPS as u64);
    }

    /// Hides the bar while `print` runs.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_moves_within_a_case_and_never_back() {
        let mut progress = Progress { bar: ProgressBar::hidden(), done: 0 };
        let mut last = 0;
        for case in 1..=2u64 {
            for part in [Part::Check, Part::Warm, Part::Time] {
                for fraction in [0.25, 0.5, 0.75, 7.0] {
                    progress.tell(part, fraction);
                    let position = progress.bar.position();
                    assert!(position > last && position <= case * 1000, "{position} after {last}");
                    last = position;
                }
            }
            progress.end();
            assert_eq!(progress.bar.position(), case * 1000);
        }
    }
}
