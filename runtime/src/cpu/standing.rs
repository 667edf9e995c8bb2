//! Worker threads that persist between calls: they wake for a job and share it with the caller.
//!
//! A job is a function of the worker's number, which every worker calls once. The caller is worker zero.
//!
//! **The naive way** starts threads for every call, or wakes sleeping threads through a condition variable. Both can
//! take longer than a small call.
//!
//! **Why the code differs.**
//!
//! 1. *Waiting threads spin before they sleep* ([`Spin`](super::spin::Spin)). The next layer of a network, or the next
//!    phase of a call, often follows at once. Workers spin until the generation of the last job changes. The caller
//!    spins until no worker is busy. If the limit is reached first, the thread sleeps.
//! 2. *Spinning threads yield* after a while. If there are more threads than processors, a spinning thread may occupy
//!    the processor that the last busy worker needs.
//! 3. *No wake-up is lost.* The generation and the job change under one lock. A worker goes to sleep while it holds
//!    this lock, and only if it has seen the current generation. The caller waits under another lock. The last busy
//!    worker acquires this other lock before it notifies the caller.
//! 4. *Jobs borrow.* The function may borrow from the caller's stack, because [`Standing::run`] returns only after
//!    every worker has finished with the function. Nothing is allocated per job.
//! 5. *Either all threads start or none.* If a core or a priority is requested, a thread counts as started only when it
//!    has reported that the request was granted. If one request was refused, all threads end.

use super::float;
use super::place::Placement;
use super::process::Process;
use super::spin::spin;
use crate::error::{PlanError, RunError};
#[cfg(unix)]
use std::os::unix::thread::JoinHandleExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Stack size of a worker thread in bytes.
const STACK: usize = 256 << 10;

type TaskPointer = *const (dyn Fn(usize) + Sync);

/// A job: a function of the worker's number, and the number of workers that call it.
#[derive(Clone, Copy)]
struct Job {
    task: TaskPointer,
    workers: usize,
}

// SAFETY: the pointer is dereferenced only while `Standing::run` waits. Its caller owns the function, and the function
// is `Sync`.
unsafe impl Send for Job {}

struct Shared {
    /// Longest time for which a thread spins before it sleeps.
    limit: Duration,
    /// The current generation and its job. The job is `None` when the pool closes.
    job: Mutex<(u64, Option<Job>)>,
    start: Condvar,
    generation: AtomicU64,
    pending: AtomicUsize,
    panicked: AtomicBool,
    done_lock: Mutex<()>,
    done: Condvar,
    closing: AtomicBool,
}

/// Worker threads. Dropping the value ends them. They do not exist in a forked child of the process that created
/// them.
pub struct Standing {
    /// Process in which the threads were started.
    process: Process,
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

/// Number of threads that have tried to set their core and priority, and the first error that the system returned to
/// one of them.
#[derive(Default)]
struct Reports {
    state: Mutex<(usize, Option<PlanError>)>,
    news: Condvar,
}

impl Reports {
    fn add(&self, report: Result<(), PlanError>) {
        let mut state = lock(&self.state);
        state.0 += 1;
        if let Err(e) = report {
            state.1.get_or_insert(e);
        }
        self.news.notify_one();
    }

    /// Waits for the reports of `threads` threads.
    fn wait(&self, threads: usize) -> Result<(), PlanError> {
        let mut state = lock(&self.state);
        while state.0 < threads {
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.1.take().map_or(Ok(()), Err)
    }
}

/// Locks a mutex whose data is consistent even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Standing {
    /// Starts `workers − 1` threads; the caller of [`Standing::run`] is the remaining worker. Threads spin for `limit`
    /// before they sleep.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread, or refuses its core or priority. All threads have then
    /// ended.
    pub fn new(workers: usize, limit: Duration, placement: &Placement) -> Result<Standing, PlanError> {
        let shared = Arc::new(Shared {
            limit,
            job: Mutex::new((0, None)),
            start: Condvar::new(),
            generation: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            done_lock: Mutex::new(()),
            done: Condvar::new(),
            closing: AtomicBool::new(false),
        });
        let process = Process::current();
        let mut standing = Standing { process, shared, handles: Vec::new(), turn: Mutex::new(()) };
        let placed = placement.granted().is_some();
        let reports = Arc::new(Reports::default());
        for index in 1..workers {
            let shared = Arc::clone(&standing.shared);
            let start = placed.then(|| (placement.clone(), Arc::clone(&reports)));
            let thread = std::thread::Builder::new().name(placement.thread_name(index)).stack_size(STACK);
            let spawned = thread.spawn(move || {
                if let Some((placement, reports)) = start {
                    reports.add(placement.apply(index));
                }
                work(&shared, index);
            });
            match spawned {
                Ok(handle) => standing.handles.push(handle),
                Err(e) => {
                    let reason = e.to_string();
                    return Err(PlanError::Spawn { started: index, wanted: workers, reason });
                }
            }
        }
        if placed {
            reports.wait(standing.handles.len())?;
        }
        Ok(standing)
    }

    /// Calls `task(i)` once for every `i` below `workers` and waits for all calls. `workers` must be at least two and
    /// at most the number given to [`Standing::new`]. Callers on several threads queue. The process must be the one
    /// that created the threads.
    ///
    /// # Errors
    /// Returns an error if a call panicked.
    pub fn run(&self, workers: usize, task: &(dyn Fn(usize) + Sync)) -> Result<(), RunError> {
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        shared.panicked.store(false, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. This function returns only when `pending` is zero, and no worker uses the
        // task after it has decremented `pending`.
        let borrowed = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(
                task,
            )
        };
        shared.pending.store(workers - 1, Ordering::Relaxed);
        let mut job = lock(&shared.job);
        job.0 += 1;
        job.1 = Some(Job { task: borrowed, workers });
        let generation = job.0;
        drop(job);
        // A worker that sees this store stops spinning and acquires the lock, which this function has already released.
        shared.generation.store(generation, Ordering::Release);
        shared.start.notify_all();
        let mine = catch_unwind(AssertUnwindSafe(|| float::in_default(|| task(0))));
        self.wait();
        if mine.is_err() || shared.panicked.load(Ordering::Relaxed) {
            Err(RunError::Panicked)
        } else {
            Ok(())
        }
    }

    fn wait(&self) {
        let shared = &*self.shared;
        if spin(shared.limit, || shared.pending.load(Ordering::Acquire) == 0) {
            return;
        }
        let mut guard = lock(&shared.done_lock);
        while shared.pending.load(Ordering::Acquire) != 0 {
            guard = shared.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The threads do not exist in this process, so their handles are neither joined nor detached.
            #[cfg(unix)]
            for handle in self.handles.drain(..) {
                let _ = handle.into_pthread_t();
            }
            return;
        }
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

/// Runs the loop of a worker, until the pool closes.
fn work(shared: &Shared, index: usize) {
    float::set_default();
    let mut seen = 0;
    loop {
        spin(shared.limit, || shared.generation.load(Ordering::Acquire) != seen);
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
        // SAFETY: `Standing::run` waits for this worker, so the task is still alive.
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
