//! Progress on standard error, only on a terminal and for work of more than a second.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Creates a bar for `steps` steps that take about `seconds` together.
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

/// Creates a spinner for one call of about `seconds`.
#[must_use]
pub fn spinner(seconds: f64) -> ProgressBar {
    if seconds <= 1.0 {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
