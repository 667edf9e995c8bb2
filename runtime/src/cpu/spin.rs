//! Waits for another thread by spinning, for a limited time.

use std::time::{Duration, Instant};

/// Time for which a waiting thread spins before it yields its processor to other threads. If the system has placed the
/// waiting thread and the awaited thread on one processor, yielding lets the awaited thread run.
const ALONE: Duration = Duration::from_micros(20);
/// Number of spins between two reads of the clock.
const SPINS_PER_LOOK: u32 = 32;

/// Time for which a waiting thread spins before it sleeps. A spinning thread wakes within a fraction of a microsecond,
/// but uses its core. A sleeping thread takes a few microseconds to wake, or tens of microseconds on a slow board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// Does not spin.
    Never,
    /// Spins for at most this time.
    For(Duration),
}

impl Default for Spin {
    /// Returns a spin time of 200 µs, the usual time between two successive layers of a network.
    fn default() -> Spin {
        Spin::For(Duration::from_micros(200))
    }
}

impl Spin {
    /// Returns the longest time to spin; zero for [`Spin::Never`].
    pub(crate) fn limit(self) -> Duration {
        match self {
            Spin::Never => Duration::ZERO,
            Spin::For(limit) => limit,
        }
    }
}

/// Spins until `ready` returns `true`, for at most `limit`. Returns `false` if the time ran out.
pub fn spin(limit: Duration, ready: impl Fn() -> bool) -> bool {
    if limit.is_zero() {
        return ready();
    }
    let mut start = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let spun = start.get_or_insert_with(Instant::now).elapsed();
        if spun >= limit {
            return false;
        }
        if spun >= ALONE {
            std::thread::yield_now();
        }
    }
}
