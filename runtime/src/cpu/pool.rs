//! The worker pool: standing threads that wake for a job and divide it among themselves.
//!
//! A job is a function of the worker's number, which every worker calls once. The caller is worker zero.
//!
//! **The naive way** starts threads for every call, or wakes sleeping ones through a condition variable. Either can
//! take longer than a small call.
//!
//! **Why the code differs.**
//!
//! 1. *Waiting threads spin before they sleep.* The next layer of a network, or the next phase of a call, often
//!    follows at once. Workers spin for [`SPIN`] on the generation of the last job, and the caller on the number of
//!    workers still busy; then they sleep.
//! 2. *Spinning threads yield.* After [`SPIN_ALONE`] a spinning thread offers its processor to others. Where there are
//!    more threads than processors, it may hold the one that the last busy worker needs.
//! 3. *No wake-up is lost.* Generation and job change under one lock, and a worker goes to sleep under that lock only if
//!    it has seen the current generation. The last busy worker passes through the lock of the waiting caller before it
//!    notifies.
//! 4. *Jobs borrow.* The function may borrow from the caller's frame, because [`Pool::run`] does not return before every
//!    worker has finished with it. Nothing is allocated per job.
//! 5. *One floating-point environment.* Every worker, the caller included, computes in the default one
//!    ([`float`]), so that bits do not depend on who computes what.
//! 6. *Panics stay inside.* A panic in a worker, or in the caller's share, ends that call with an error. The pool remains
//!    usable.

use super::float;
use crate::error::{EngineError, RunError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a waiting thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// How long a waiting thread spins without yielding. After that it offers its processor to other threads, among
/// them the one that it waits for, if the system has put both on the same processor.
const SPIN_ALONE: Duration = Duration::from_micros(20);
/// Number of spins between two looks at the clock.
const SPINS_PER_LOOK: u32 = 32;

type Task = *const (dyn Fn(usize) + Sync);

/// A job.
#[derive(Clone, Copy)]
struct Job {
    task: Task,
    workers: usize,
}

// SAFETY: the pointer is dereferenced only while `Pool::run` waits in the frame that owns the function, and the
// function is `Sync`.
unsafe impl Send for Job {}

struct Shared {
    /// The current generation and its job; no job when the pool closes.
    job: Mutex<(u64, Option<Job>)>,
    start: Condvar,
    generation: AtomicU64,
    pending: AtomicUsize,
    panicked: AtomicBool,
    done_lock: Mutex<()>,
    done: Condvar,
    closing: AtomicBool,
}

/// A pool of standing threads. Dropping it ends them.
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

/// Spins until `ready`, for at most [`SPIN`]. Returns whether it is ready.
fn spin(ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let spun = start.get_or_insert_with(Instant::now).elapsed();
        if spun >= SPIN {
            return false;
        }
        if spun >= SPIN_ALONE {
            std::thread::yield_now();
        }
    }
}

/// Locks a mutex whose data is consistent even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts `threads − 1` threads; the caller of [`Pool::run`] is the remaining one.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
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

    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `task(i)` once for every `i` below `workers`, clamped to the number of threads, and waits for all
    /// calls. Callers on several threads take turns.
    ///
    /// # Errors
    /// Returns an error if a call panicked.
    pub fn run(&self, workers: usize, task: &(dyn Fn(usize) + Sync)) -> Result<(), RunError> {
        let workers = workers.clamp(1, self.threads());
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        shared.panicked.store(false, Ordering::Relaxed);
        if workers > 1 {
            // SAFETY: only the lifetime changes. This function does not return before `pending` is zero, and no
            // worker uses the task after it has decremented `pending`.
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
            // A worker that stops spinning takes the lock next, so it is released before this store.
            shared.generation.store(generation, Ordering::Release);
            shared.start.notify_all();
        }
        let mine = catch_unwind(AssertUnwindSafe(|| float::in_default(|| task(0))));
        if workers > 1 {
            self.wait();
        }
        if mine.is_err() || shared.panicked.load(Ordering::Relaxed) {
            Err(RunError::Panicked)
        } else {
            Ok(())
        }
    }

    /// Calls `task(worker, item)` once for every item below `items`. The workers take items one at a time.
    ///
    /// # Errors
    /// Returns an error if a call panicked.
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

/// The loop of a worker, until the pool closes.
fn work(shared: &Shared, index: usize) {
    float::set_default();
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
        // SAFETY: `Pool::run` waits for this worker, so the task is still alive.
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
