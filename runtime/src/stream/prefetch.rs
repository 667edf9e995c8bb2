//! Fills one buffer in a separate thread while the caller computes with the contents of another buffer.
//!
//! **The naive loop** reads a part and then computes it, so the storage device idles while the processor works, and
//! vice versa:
//!
//! ```text
//! for each part:   read it     compute it
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *Part `i + 1` is read while part `i` is computed.* Each step then takes as long as the slower of the two
//!    operations. With two buffers, no further overlap is possible.
//! 2. *The buffers belong to the caller*, so everything is allocated before the first part is read.
//! 3. *The thread ends with the call*, in all cases. The thread is scoped, and a failure in one thread closes the
//!    channels on which the other thread waits.
//! 4. *Each thread measures its own times.* The reader measures the time for reading. The caller measures the times for
//!    computing and waiting. The caller waits only for reads that no computation hides, including the first read.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Size in bytes of the stack of the reading thread.
const STACK: usize = 256 << 10;

/// Times of a call to [`prefetch`], the number of bytes that the call read, and the number of parts that it computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Time from the start of the first read to the end of the call.
    pub total: Duration,
    /// Total time of reading, including reads that overlap with the computation.
    pub read: Duration,
    /// Total time of computing.
    pub compute: Duration,
    /// Time for which the caller waited for a read and had nothing to compute.
    pub wait: Duration,
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of parts that were computed.
    pub parts: u64,
}

impl Times {
    /// Returns `1 − wait / total` (equation 26 of the ELSA paper): one if the caller never waited for a read.
    #[must_use]
    pub fn overlap(&self) -> f64 {
        let total = self.total.as_secs_f64();
        if total > 0.0 { 1.0 - self.wait.as_secs_f64() / total } else { 1.0 }
    }

    /// Adds the times of two successive calls.
    #[must_use]
    pub fn and(self, next: Times) -> Times {
        Times {
            total: self.total + next.total,
            read: self.read + next.read,
            compute: self.compute + next.compute,
            wait: self.wait + next.wait,
            bytes: self.bytes + next.bytes,
            parts: self.parts + next.parts,
        }
    }
}

/// A message from the reading thread: a part with the buffer that contains it, or an error.
type Filled<'b, P, B, E> = Result<(P, &'b mut B), E>;

/// Calls `read` for each of `parts`, in order, with one of `buffers`. Then calls `compute` with the part and the
/// buffer. A separate thread reads the next part while the calling thread computes. `read` returns the number of bytes
/// that it has read.
///
/// The reading thread ends before this function returns, so a read that never returns blocks the call.
///
/// # Errors
/// Returns the first error of `read` or `compute`, in the order of parts. After an error, no later part is computed,
/// and at most two more parts are read. Also returns an error if the thread cannot be started or if `read` panics.
pub fn prefetch<P, B, E>(
    buffers: &mut [B; 2],
    parts: impl IntoIterator<Item = P, IntoIter: Send>,
    mut read: impl FnMut(&P, &mut B) -> Result<u64, E> + Send,
    mut compute: impl FnMut(P, &mut B) -> Result<(), E>,
) -> Result<Times, E>
where
    P: Send,
    B: Send,
    E: Send + From<io::Error>,
{
    let start = Instant::now();
    let mut parts = parts.into_iter();
    let (fill, filled) = sync_channel::<Filled<'_, P, B, E>>(buffers.len());
    let (free, freed) = sync_channel::<&mut B>(buffers.len());
    for buffer in buffers {
        // Sending cannot fail: the channel has room for all buffers, and its receiver still exists.
        let _ = free.send(buffer);
    }
    thread::scope(|scope| {
        let reader = move || {
            let mut spent = (Duration::ZERO, 0u64);
            let run = catch_unwind(AssertUnwindSafe(|| {
                forward(&mut parts, &mut read, &fill, &freed, &mut spent);
            }));
            run.map(|()| spent)
        };
        let thread = thread::Builder::new()
            .name("elsa-reader".into())
            .stack_size(STACK)
            .spawn_scoped(scope, reader)
            .map_err(|e| io::Error::new(e.kind(), format!("reader: its thread cannot be started: {e}")))?;
        let mut times = Times::default();
        let mut failed = None;
        loop {
            let waiting = Instant::now();
            let next = filled.recv();
            times.wait += waiting.elapsed();
            let done = match next {
                Ok(Ok((part, buffer))) => {
                    let computing = Instant::now();
                    let done = compute(part, buffer);
                    times.compute += computing.elapsed();
                    times.parts += 1;
                    // Sending fails if the reader has already read the last part.
                    let _ = free.send(buffer);
                    done
                }
                Ok(Err(e)) => Err(e),
                Err(_) => break,
            };
            if let Err(e) = done {
                failed = Some(e);
                break;
            }
        }
        drop((filled, free));
        let ended = thread.join();
        times.total = start.elapsed();
        match (failed, ended) {
            (Some(e), _) => Err(e),
            (None, Ok(Ok((read, bytes)))) => Ok(Times { read, bytes, ..times }),
            (None, _) => Err(io::Error::other("reader: it panicked").into()),
        }
    })
}

/// Reads one part after another into buffers as they become free. Stops when no part is left, when a read fails, or
/// when the caller no longer receives messages.
fn forward<'b, P, B, E>(
    parts: &mut impl Iterator<Item = P>,
    read: &mut impl FnMut(&P, &mut B) -> Result<u64, E>,
    fill: &SyncSender<Filled<'b, P, B, E>>,
    freed: &Receiver<&'b mut B>,
    (time, bytes): &mut (Duration, u64),
) {
    for part in parts {
        let Ok(buffer) = freed.recv() else { return };
        let reading = Instant::now();
        let done = read(&part, buffer);
        *time += reading.elapsed();
        let filled = match done {
            Ok(n) => {
                *bytes += n;
                Ok((part, buffer))
            }
            Err(e) => Err(e),
        };
        let failed = filled.is_err();
        if fill.send(filled).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Streams the squares of the numbers below `n`, and returns their sum and the times. Reading fails at the number
    /// `fails`, and computing fails at the number `stops`.
    fn sum(n: u64, fails: Option<u64>, stops: Option<u64>) -> io::Result<(u64, Times)> {
        let mut sum = 0;
        let times = prefetch(
            &mut [0u64; 2],
            0..n,
            |part, buffer| {
                if fails == Some(*part) {
                    return Err(io::Error::other(format!("read {part}")));
                }
                *buffer = part * part;
                Ok(8)
            },
            |part, buffer| {
                if stops == Some(part) {
                    return Err(io::Error::other(format!("compute {part}")));
                }
                assert_eq!(*buffer, part * part);
                sum += *buffer;
                Ok(())
            },
        )?;
        Ok((sum, times))
    }

    #[test]
    fn every_part_is_computed_once_and_in_order() {
        for n in [0, 1, 2, 3, 100] {
            let (found, times) = sum(n, None, None).unwrap();
            assert_eq!(found, (0..n).map(|i| i * i).sum::<u64>());
            assert_eq!((times.parts, times.bytes), (n, 8 * n));
            assert!(times.total >= times.compute + times.wait && (0.0..=1.0).contains(&times.overlap()));
        }
    }

    #[test]
    fn the_first_failure_ends_the_call() {
        for n in [1, 2, 7] {
            for at in 0..n {
                let read = sum(n, Some(at), None).unwrap_err().to_string();
                assert_eq!(read, format!("read {at}"));
                let computed = sum(n, None, Some(at)).unwrap_err().to_string();
                assert_eq!(computed, format!("compute {at}"));
                // If part `at` cannot be read and the part before it cannot be computed, the failure of the earlier
                // part is returned.
                let both = sum(n, Some(at), Some(at.saturating_sub(1))).unwrap_err().to_string();
                assert!(both == format!("compute {}", at.saturating_sub(1)) || at == 0, "{both}");
            }
        }
        let panicked =
            prefetch(&mut [(), ()], 0..3, |_, ()| panic!("of a source"), |_, ()| io::Result::Ok(()));
        assert_eq!(panicked.unwrap_err().to_string(), "reader: it panicked");
    }

    /// Checks that exactly one part is read ahead: while a part is computed, the next part is read, and the part after
    /// the next part is not read.
    #[test]
    fn one_part_is_read_ahead() {
        let reads = AtomicUsize::new(0);
        prefetch(
            &mut [(), ()],
            0..5usize,
            |_, ()| io::Result::Ok(reads.fetch_add(1, Ordering::SeqCst) as u64),
            |part, ()| {
                let ahead = (part + 2).min(5);
                let mut spins = 0u64;
                // If no other thread reads, the count does not change, and the wait ends with a failure.
                while reads.load(Ordering::SeqCst) < ahead {
                    spins += 1;
                    assert!(spins < 5000, "part {part} is computed with nothing read ahead");
                    thread::sleep(Duration::from_millis(1));
                }
                assert!(reads.load(Ordering::SeqCst) <= ahead);
                Ok(())
            },
        )
        .unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "measures time")]
    fn waiting_is_what_reading_takes_longer() {
        let (slow, quick) = (Duration::from_millis(20), Duration::from_millis(2));
        let of = |read: Duration, compute: Duration| {
            let read = |_: &i32, (): &mut ()| {
                thread::sleep(read);
                io::Result::Ok(0)
            };
            let compute = |_, (): &mut ()| {
                thread::sleep(compute);
                Ok(())
            };
            prefetch(&mut [(), ()], 0..6, read, compute).unwrap()
        };
        // The measurement is repeated, because the machine may suspend this process for a while.
        let sometimes = |good: &dyn Fn() -> bool| (0..5).any(|_| good());
        assert!(sometimes(&|| {
            let hidden = of(quick, slow);
            assert!(hidden.read >= 6 * quick && hidden.compute >= 6 * slow, "{hidden:?}");
            hidden.overlap() > 0.6
        }));
        assert!(sometimes(&|| {
            let bound = of(slow, quick);
            bound.overlap() < 0.5 && bound.wait >= 5 * (slow - quick)
        }));
    }
}
