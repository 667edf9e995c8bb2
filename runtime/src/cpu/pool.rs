//! The worker pool: standing threads that wake for a job and divide it among them.
//!
//! A job is a function of the worker's number that every worker calls once. The caller is worker zero. A
//! worker that waits first spins for [`SPIN`], because the next layer of a network or the next phase of a call
//! often follows at once and waking a sleeper can take longer than a small call, and then sleeps. Nothing is
//! allocated per job.

use crate::error::{EngineError, RunError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// How long it keeps its processor to itself while it spins. From then on it offers the processor to others, among
/// them the thread that it waits for where the system has put both on one.
const ALONE: Duration = Duration::from_micros(20);
/// Rounds of spinning between two looks at the clock.
const ROUNDS: u32 = 32;

type Task = *const (dyn Fn(usize) + Sync);

/// The job at hand.
#[derive(Clone, Copy)]
struct Job {
    task: Task,
    workers: usize,
}

// SAFETY: the pointer is dereferenced only while `Pool::run` waits in the frame that owns the function, and
// the function is `Sync`.
unsafe impl Send for Job {}

struct Shared {
    /// The job of the current generation; none when the pool closes.
    job: Mutex<(u64, Option<Job>)>,
    start: Condvar,
    generation: AtomicU64,
    pending: AtomicUsize,
    panicked: AtomicBool,
    done_lock: Mutex<()>,
    done: Condvar,
    closing: AtomicBool,
}

/// Standing threads. Dropping it ends them.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

/// Spins until `ready`, for [`SPIN`] at most, and tells whether it is.
fn spin(ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..ROUNDS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let spun = start.get_or_insert_with(Instant::now).elapsed();
        if spun >= SPIN {
            return false;
        }
        if spun >= ALONE {
            std::thread::yield_now();
        }
    }
}

/// A lock whose data no panic can leave half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts `threads − 1` threads; the caller of [`Pool::run`] is the remaining one.
    ///
    /// # Errors
    /// A system that starts no thread.
    pub fn new(threads: usize) -> Result<Pool, EngineError> {
        let shared = Arc::new(Shared {
            job: Mutex::new((0, None)),
            start: Condvar::new(),
            generation: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            done_lock: Mutex::new(()),
            done: Condvar::new(),
            closing: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, handles: Vec::new(), turn: Mutex::new(()) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let spawned =
                std::thread::Builder::new().name(format!("elsa-{index}")).spawn(move || work(&shared, index));
            match spawned {
                Ok(handle) => pool.handles.push(handle),
                Err(e) => {
                    let reason = e.to_string();
                    return Err(EngineError::Spawn { started: index, wanted: threads, reason });
                }
            }
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `task(i)` once for every `i` below `workers`, which is held to the number of threads, and waits
    /// for all. Calls from several threads take turns.
    ///
    /// # Errors
    /// A call that panicked.
    pub fn run(&self, workers: usize, task: &(dyn Fn(usize) + Sync)) -> Result<(), RunError> {
        let workers = workers.clamp(1, self.threads());
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        shared.panicked.store(false, Ordering::Relaxed);
        if workers > 1 {
            // SAFETY: only the lifetime changes; this function does not return before `pending` is zero, and
            // no worker touches the task after it has counted itself down.
            let task = unsafe {
                std::mem::transmute::<
                    *const (dyn Fn(usize) + Sync + '_),
                    *const (dyn Fn(usize) + Sync + 'static),
                >(task)
            };
            shared.pending.store(workers - 1, Ordering::Relaxed);
            let mut job = lock(&shared.job);
            job.0 += 1;
            job.1 = Some(Job { task, workers });
            let generation = job.0;
            drop(job);
            // Whoever spins takes the lock next, so it is free by now.
            shared.generation.store(generation, Ordering::Release);
            shared.start.notify_all();
        }
        let mine = catch_unwind(AssertUnwindSafe(|| task(0)));
        if workers > 1 {
            self.wait();
        }
        if mine.is_err() || shared.panicked.load(Ordering::Relaxed) {
            Err(RunError::Panicked)
        } else {
            Ok(())
        }
    }

    /// Calls `task(worker, item)` once for every item, dealing them out one by one to `workers` workers.
    ///
    /// # Errors
    /// A call that panicked.
    pub fn divide(
        &self,
        workers: usize,
        items: usize,
        task: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(), RunError> {
        let next = AtomicUsize::new(0);
        self.run(workers.min(items.max(1)), &|worker| {
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    break;
                }
                task(worker, item);
            }
        })
    }

    fn wait(&self) {
        let shared = &*self.shared;
        if spin(|| shared.pending.load(Ordering::Acquire) == 0) {
            return;
        }
        let mut guard = lock(&shared.done_lock);
        while shared.pending.load(Ordering::Acquire) != 0 {
            guard = shared.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        {
            let mut job = lock(&self.shared.job);
            job.0 += 1;
            job.1 = None;
            self.shared.generation.store(job.0, Ordering::Release);
        }
        self.shared.start.notify_all();
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                log::error!("a worker thread ended by a panic");
            }
        }
    }
}

/// What a worker does until the pool closes.
fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        spin(|| shared.generation.load(Ordering::Acquire) != seen);
        let job = {
            let mut guard = lock(&shared.job);
            while guard.0 == seen {
                guard = shared.start.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            seen = guard.0;
            guard.1
        };
        if shared.closing.load(Ordering::Acquire) {
            return;
        }
        let Some(job) = job.filter(|job| index < job.workers) else { continue };
        // SAFETY: this worker is one of those that `Pool::run` waits for, so the task still lives.
        let task = unsafe { &*job.task };
        if catch_unwind(AssertUnwindSafe(|| task(index))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        if shared.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(lock(&shared.done_lock));
            shared.done.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_is_called_once_per_job() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for round in 0..200 {
                let workers = round % (threads + 1) + 1;
                let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                pool.run(workers, &|i| {
                    calls[i].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                for (i, n) in calls.iter().enumerate() {
                    assert_eq!(n.load(Ordering::Relaxed), usize::from(i < workers.min(threads)));
                }
            }
        }
    }

    #[test]
    fn a_panic_is_reported_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            assert_eq!(pool.run(3, &|i| assert_ne!(i, bad)), Err(RunError::Panicked));
            assert_eq!(pool.run(3, &|_| ()), Ok(()));
        }
    }

    #[test]
    fn callers_from_several_threads_take_turns() {
        let pool = Pool::new(2).unwrap();
        let total = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..50 {
                        pool.run(2, &|_| {
                            total.fetch_add(1, Ordering::Relaxed);
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 50 * 2);
    }
}
