//! A fixed rate on the monotonic clock.
//!
//! Periods start on the grid `start + k · period`. The loop sleeps until an absolute time, so neither the work of a
//! frame nor the delay of a wake-up moves the grid. If a frame takes longer than its period, the periods that pass in
//! the meantime are skipped and counted, and the next frame starts at once, in the current period. After an overrun of
//! any length, at most one frame therefore starts at a time that is not on the grid.

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

const SECOND: u64 = 1_000_000_000;

/// Returns the time of the monotonic clock in nanoseconds.
#[must_use]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // The monotonic clock of Linux starts at zero when the machine does.
    u64::try_from(time.tv_sec).unwrap_or(0) * SECOND + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Sleeps until `time`, in nanoseconds of the monotonic clock, or until a signal arrives. Returns `true` if `time` has
/// been reached.
///
/// # Errors
/// Returns the system's error if the clock does not work.
pub fn sleep_until(time: u64) -> std::io::Result<bool> {
    let request = Timespec {
        tv_sec: i64::try_from(time / SECOND).unwrap_or(i64::MAX),
        // The remainder is below 10^9 and fits every type of this field.
        tv_nsec: (time % SECOND) as _,
    };
    match clock_nanosleep_absolute(ClockId::Monotonic, &request) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// One period of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Start of the period, in nanoseconds of the monotonic clock.
    pub release: u64,
    /// End of the period in nanoseconds of the monotonic clock. It is the deadline for the answer.
    pub deadline: u64,
    /// Number of periods that were skipped between the previous tick and this tick.
    pub skipped: u64,
}

/// The grid on which periods start.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    period: u64,
    next: u64,
}

impl Schedule {
    /// Creates a grid of `rate` periods per second. The first period starts at `start`, in nanoseconds of the monotonic
    /// clock. The length of a period is clamped to between 1 and 2^63 nanoseconds.
    #[must_use]
    pub fn new(rate: f64, start: u64) -> Schedule {
        let period = (SECOND as f64 / rate).round().clamp(1.0, (1u64 << 63) as f64) as u64;
        Schedule { period, next: start }
    }

    /// Returns the length of a period in nanoseconds.
    #[must_use]
    pub fn period(&self) -> u64 {
        self.period
    }

    /// Returns the first period that has not ended at the time `now`. Every call returns a later period than the call
    /// before.
    pub fn next(&mut self, now: u64) -> Tick {
        let skipped = now.saturating_sub(self.next) / self.period;
        let release = self.next.saturating_add(skipped.saturating_mul(self.period));
        let deadline = release.saturating_add(self.period);
        self.next = deadline;
        Tick { release, deadline, skipped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_punctual_loop_keeps_the_grid() {
        let mut schedule = Schedule::new(100.0, 5);
        for k in 0..1000 {
            // Each frame is finished at some time within its period.
            let now = 5 + k * 10_000_000 - if k > 0 { (k * 7919) % 9_999_999 } else { 0 };
            let release = 5 + k * 10_000_000;
            let tick = schedule.next(now);
            assert_eq!(tick, Tick { release, deadline: release + 10_000_000, skipped: 0 });
        }
    }

    #[test]
    fn an_overrun_skips_periods_and_starts_one_frame_off_the_grid() {
        let mut schedule = Schedule::new(1e9 / 100.0, 0);
        assert_eq!(schedule.next(0), Tick { release: 0, deadline: 100, skipped: 0 });
        // Busy until 130: the period from 100 to 200 is in progress.
        assert_eq!(schedule.next(130), Tick { release: 100, deadline: 200, skipped: 0 });
        // Busy until 470: the periods from 200 and from 300 have passed.
        assert_eq!(schedule.next(470), Tick { release: 400, deadline: 500, skipped: 2 });
        // Back on the grid, without a burst.
        assert_eq!(schedule.next(480), Tick { release: 500, deadline: 600, skipped: 0 });
        // A period that ends at this moment has passed.
        assert_eq!(schedule.next(700), Tick { release: 700, deadline: 800, skipped: 1 });
    }

    #[test]
    fn sleeping_reaches_the_time_and_no_less() {
        let start = now();
        let until = start + 3_000_000;
        while !sleep_until(until).unwrap() {}
        assert!(now() >= until);
        assert!(sleep_until(start).unwrap());
    }
}
