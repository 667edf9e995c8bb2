//! Progress display on standard error. It is shown only on a terminal, and only for work that is expected to take long.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Creates a bar for `steps` steps that take about `seconds` in total. It is hidden for work of at most a second.
#[must_use]
pub fn bar(steps: u64, seconds: f64) -> ProgressBar {
    if seconds <= 1.0 {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// Makes a call of about `operations` arithmetic operations, and shows a spinner if they take long. Returns the result
/// of the call and its time in milliseconds.
///
/// # Errors
/// Returns the error of the call.
pub fn timed<T, E>(operations: f64, call: impl FnOnce() -> Result<T, E>) -> Result<(T, f64), E> {
    // A small board does ten billion operations a second.
    let spinner = if operations > 1e10 { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    if operations > 1e10 {
        spinner.enable_steady_tick(Duration::from_millis(100));
    }
    let start = Instant::now();
    let done = call();
    let ms = start.elapsed().as_secs_f64() * 1e3;
    spinner.finish_and_clear();
    Ok((done?, ms))
}
