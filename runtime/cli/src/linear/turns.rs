//! Alternating measurement of several calls. Each call is repeated for a slice of a few milliseconds before the next
//! call takes its turn, so a disturbance of the machine affects all calls. The time per call within a slice is a
//! sample.

use crate::error::Error;
use elsa_core::drift::percentile;
use elsa_runtime::operators::{Bound, Operator};
use std::time::{Duration, Instant};

/// Time for which one contender runs before the next takes its turn.
const SLICE: Duration = Duration::from_millis(4);
/// Number of calls in a slice on a GPU. They are enqueued one after another.
const DEVICE_CALLS: usize = 8;

/// A call that is measured alternately with others.
pub struct Contender<'a, O: Operator> {
    /// The bound tensors of the call.
    pub bound: Bound<'a, O>,
    /// `true` if a GPU computes.
    pub on_device: bool,
}

impl<O: Operator> Contender<'_, O> {
    /// Makes calls for the time of one slice, and at least one call. Returns the milliseconds per call. On a GPU, the
    /// time is measured on the device.
    fn slice(&mut self) -> Result<f64, Error> {
        if self.on_device
            && let (_, Some(time)) = self.bound.time_on_device(DEVICE_CALLS)?
        {
            return Ok(time.as_secs_f64() * 1e3);
        }
        let (start, mut calls) = (Instant::now(), 0u32);
        loop {
            self.bound.run()?;
            calls += 1;
            if start.elapsed() >= SLICE {
                return Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(calls));
            }
        }
    }
}

/// Measures samples of each contender, in milliseconds per call, for `seconds`. Each round starts with the contender
/// that was second in the previous round.
///
/// # Errors
/// Returns an error if a run fails.
pub fn take_turns<O: Operator>(
    contenders: &mut [Contender<'_, O>],
    seconds: f64,
) -> Result<Vec<Vec<f64>>, Error> {
    let (begin, count) = (Instant::now(), contenders.len());
    let mut samples = vec![Vec::new(); count];
    for round in 0.. {
        for turn in 0..count {
            let at = (turn + round) % count;
            let time = contenders[at].slice()?;
            // The first round only warms caches and clocks.
            if round > 0 {
                samples[at].push(time);
            }
        }
        if round > 0 && begin.elapsed().as_secs_f64() >= seconds {
            break;
        }
    }
    Ok(samples)
}

/// Returns the first quartile, the median and the third quartile of samples.
#[must_use]
pub fn quartiles(samples: &mut [f64]) -> [f64; 3] {
    [25, 50, 75].map(|percent| percentile(samples, percent).unwrap_or(f64::NAN))
}
