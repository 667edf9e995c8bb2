//! Waiting without sleeping, for a while.

use std::time::{Duration, Instant};

/// How long a waiting thread spins without yielding. After that it offers its processor to other threads, among
/// them the one that it waits for, if the system has put both on the same processor.
const ALONE: Duration = Duration::from_micros(20);
/// Number of spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 32;

/// How long a thread that waits for another one spins before it sleeps. While it spins it is awake within a fraction of a
/// microsecond, and uses its core; from sleep it takes some microseconds, or some tens on a slow board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// Not at all.
    Never,
    /// At most that long.
    For(Duration),
}

impl Default for Spin {
    /// 200 µs, the distance at which layers of a network often follow one another.
    fn default() -> Spin {
        Spin::For(Duration::from_micros(200))
    }
}

impl Spin {
    /// The time.
    pub fn limit(self) -> Duration {
        match self {
            Spin::Never => Duration::ZERO,
            Spin::For(limit) => limit,
        }
    }
}

/// Spins until `ready`, for at most `limit`. Returns whether it is ready.
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
