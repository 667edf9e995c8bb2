//! Runs the workers of a call on threads that the host program lends. The workers are tasks of the host's thread pool.
//!
//! A program often already has a thread pool that computes the other layers of its network. Worker threads of an engine
//! would compete with that pool for the cores. Instead, a host lends its threads through a function that calls a task
//! once for every number below a count, as the parallel loops of thread pools do ([`ParallelFor`]).
//!
//! **The naive way** passes the host a pointer to the job on the caller's stack and trusts the host. If the host calls
//! a task twice, omits a task, or calls a task after the engine's call has ended, results are wrong or dead memory is
//! read.
//!
//! **Why the code differs.**
//!
//! 1. *A task is a number, not a pointer.* It identifies a slot of a static table and a generation of that slot. An
//!    open slot admits only tasks of its current generation. A task that is called too late, or has an invented number,
//!    finds a closed slot or another generation, and returns.
//! 2. *Each worker's number is claimed*, so its share runs at most once, even if the host calls the task with that
//!    number again.
//! 3. *When the host returns, the caller closes the slot*, runs the shares of unclaimed workers, and waits for the
//!    threads inside the slot. So the job on the caller's stack outlives every use of it, and every share has run
//!    exactly once.
//! 4. *Calls do not queue.* Each call has its own slot, so calls run concurrently, and a host thread that waits for one
//!    call may make another. If all slots are in use, the caller computes alone.
//! 5. *Every task computes in the default floating-point environment* ([`float`]), and a panic in a task ends its call
//!    with an error.

use super::float;
use super::spin::spin;
use crate::error::RunError;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Largest number of workers of a call.
pub const MAX_WORKERS: usize = 1024;
/// Largest number of calls that use lent threads at the same time. It is a power of two.
const SLOTS: usize = 128;
/// Bits of a slot's state that count the threads inside the slot. The next bit is the open flag, and the bits above it
/// are the generation.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = INSIDE + 1;
const GENERATION: u64 = OPEN << 1;

/// A thread pool of the host program. An engine that is created with the pool computes on the threads of the pool.
pub trait ParallelFor: Send + Sync {
    /// Calls `task.call(i)` once for every `i` below `workers`, on any threads and in any order, and returns when all
    /// these calls have returned. Several threads may call this function at the same time, and tasks may call this
    /// function again.
    ///
    /// An implementation that violates this contract slows the run down, but does not change its result: a second call
    /// with the same number does nothing, the caller computes the shares of omitted numbers, and a late call does
    /// nothing. A panic ends the run with [`RunError::Panicked`].
    fn parallel_for(&self, workers: usize, task: HostTask);
}

/// A shared [`ParallelFor`]. Two values are equal only if one is a clone of the other, or if both are clones of the
/// same value.
#[derive(Clone)]
pub struct HostThreads(Arc<dyn ParallelFor>);

impl HostThreads {
    /// Shares a thread pool of the host.
    #[must_use]
    pub fn new(host: impl ParallelFor + 'static) -> HostThreads {
        HostThreads(Arc::new(host))
    }
}

impl fmt::Debug for HostThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostThreads").field(&Arc::as_ptr(&self.0)).finish()
    }
}

impl PartialEq for HostThreads {
    fn eq(&self, other: &HostThreads) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HostThreads {}

/// The work of a call as a task for threads that the host lends. The task is a function of the worker's number. The
/// task may be copied, kept and called at any time, on any thread. Outside the [`ParallelFor::parallel_for`] call that
/// received the task, it does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTask(usize);

impl HostTask {
    /// Computes the share of worker `worker` in the call's work. Does nothing if that share has been started before, if
    /// there is no such worker, or if the call has ended.
    pub fn call(self, worker: usize) {
        SLOTS_OF_CALLS[self.0 % SLOTS].visit((self.0 / SLOTS) as u64, worker);
    }

    /// Returns the task as a nonzero number, which interfaces without Rust types can pass.
    #[must_use]
    pub fn number(self) -> usize {
        self.0
    }

    /// Returns the task with this number. An unused number behaves like a task whose call has ended.
    #[must_use]
    pub fn from_number(number: usize) -> HostTask {
        HostTask(number)
    }
}

/// Pointer to a job on the caller's stack.
type Job = *const (dyn Fn(usize) + Sync);

/// An entry of the table that admits lent threads to a call.
struct Slot {
    taken: AtomicBool,
    /// The generation, the flag [`OPEN`], and the number of threads inside the slot ([`INSIDE`]).
    state: AtomicU64,
    /// The job and its number of workers. The caller writes them while the slot is closed and no thread is inside; the
    /// threads inside read them.
    job: UnsafeCell<Option<(Job, usize)>>,
    /// One bit for each worker; set if the worker's share is claimed.
    claimed: [AtomicU64; MAX_WORKERS / 64],
    panicked: AtomicBool,
    lock: Mutex<()>,
    left: Condvar,
}

// SAFETY: `job` is written only by the owner of `taken`, and only while the state keeps all threads out; the state is
// released after the write and acquired before a read. The job itself is `Sync`, and lives while its slot is open or any
// thread is inside.
unsafe impl Sync for Slot {}

static SLOTS_OF_CALLS: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

impl Slot {
    const fn new() -> Slot {
        Slot {
            taken: AtomicBool::new(false),
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            claimed: [const { AtomicU64::new(0) }; MAX_WORKERS / 64],
            panicked: AtomicBool::new(false),
            lock: Mutex::new(()),
            left: Condvar::new(),
        }
    }

    /// Enters the slot if it is open in this generation, runs the worker's share of the job unless it has been claimed,
    /// and leaves.
    fn visit(&self, generation: u64, worker: usize) {
        // A task contains the slot's number and as many bits of the generation as fit next to it.
        let ours = |state: u64| (state / GENERATION) & (usize::MAX / SLOTS) as u64 == generation;
        let enter =
            |state: u64| (state & OPEN != 0 && state & INSIDE != INSIDE && ours(state)).then_some(state + 1);
        if self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_err() {
            return;
        }
        self.claim(worker);
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & (OPEN | INSIDE) == 1 {
            // The caller looks for threads and falls asleep under this lock, so it cannot miss the notification below.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.left.notify_one();
        }
    }

    /// Runs a worker's share of the job unless it has been claimed. The calling thread must be inside the slot or own
    /// it.
    fn claim(&self, worker: usize) {
        // SAFETY: the job was written before the slot was opened, and is not written again before all threads have
        // left.
        let Some((job, workers)) = (unsafe { *self.job.get() }) else { return };
        let bit = 1 << (worker % 64);
        if worker >= workers || self.claimed[worker / 64].fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        // SAFETY: the owner stays in the function that holds the job until all threads have left.
        let job = unsafe { &*job };
        if catch_unwind(AssertUnwindSafe(|| float::in_default(|| job(worker)))).is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    /// Opens the slot for a job, and returns the task that runs the job.
    fn open(&self, index: usize, job: Job, workers: usize) -> HostTask {
        for word in &self.claimed {
            word.store(0, Ordering::Relaxed);
        }
        self.panicked.store(false, Ordering::Relaxed);
        // SAFETY: the slot belongs to this caller, is closed, and no thread is inside.
        unsafe { *self.job.get() = Some((job, workers)) };
        // A generation whose bits in a task are all zero is skipped, because the number of a task must not be zero.
        let mut generation = self.state.load(Ordering::Relaxed) / GENERATION + 1;
        while generation & (usize::MAX / SLOTS) as u64 == 0 {
            generation += 1;
        }
        self.state.store(generation.wrapping_mul(GENERATION) | OPEN, Ordering::Release);
        HostTask((generation as usize).wrapping_mul(SLOTS) | index)
    }

    /// Waits until no thread is inside the slot, which must be closed.
    fn wait(&self, limit: Duration) {
        let empty = || self.state.load(Ordering::Acquire) & INSIDE == 0;
        if spin(limit, empty) {
            return;
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !empty() {
            guard = self.left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl HostThreads {
    /// Calls `job(i)` once for every `i` below `workers`, on threads of the host and on the calling thread. Then waits
    /// for all these calls. The waiting thread spins for at most `limit` before it sleeps. `workers` must not exceed
    /// [`MAX_WORKERS`].
    ///
    /// # Errors
    /// Returns an error if a call or the host panicked.
    pub(crate) fn run(
        &self,
        workers: usize,
        limit: Duration,
        job: &(dyn Fn(usize) + Sync),
    ) -> Result<(), RunError> {
        let free = |(_, slot): &(usize, &Slot)| {
            !slot.taken.load(Ordering::Relaxed) && !slot.taken.swap(true, Ordering::Acquire)
        };
        let Some((index, slot)) = SLOTS_OF_CALLS.iter().enumerate().find(free) else {
            return catch_unwind(AssertUnwindSafe(|| float::in_default(|| (0..workers).for_each(job))))
                .map_err(|_| RunError::Panicked);
        };
        // SAFETY: only the lifetime changes. This function does not return before all threads have left the slot, and no
        // thread uses the job outside it.
        let job = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(
                job,
            )
        };
        let task = slot.open(index, job, workers);
        let lent = catch_unwind(AssertUnwindSafe(|| self.0.parallel_for(workers, task)));
        slot.state.fetch_and(!OPEN, Ordering::AcqRel);
        (0..workers).for_each(|worker| slot.claim(worker));
        slot.wait(limit);
        let good = lent.is_ok() && !slot.panicked.load(Ordering::Relaxed);
        // SAFETY: the slot still belongs to this caller, is closed, and no thread is inside.
        unsafe { *slot.job.get() = None };
        slot.taken.store(false, Ordering::Release);
        if good { Ok(()) } else { Err(RunError::Panicked) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::pool::Pool;
    use crate::cpu::spin::Spin;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    fn add(count: &AtomicUsize) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// A host implemented by a function.
    struct By<F>(F);

    impl<F: Fn(usize, HostTask) + Send + Sync> ParallelFor for By<F> {
        fn parallel_for(&self, workers: usize, task: HostTask) {
            (self.0)(workers, task);
        }
    }

    fn lent(host: impl Fn(usize, HostTask) + Send + Sync + 'static) -> Pool {
        Pool::lent(4, Spin::Never, HostThreads::new(By(host)))
    }

    /// Checks that every worker runs exactly once, in each of many calls.
    fn holds(host: impl Fn(usize, HostTask) + Send + Sync + 'static) {
        let pool = lent(host);
        for round in 0..if cfg!(miri) { 6 } else { 100 } {
            let workers = round % 4 + 1;
            let calls = [const { AtomicUsize::new(0) }; 4];
            let count = |i: usize| add(&calls[i]);
            assert_eq!(pool.run(workers, &count), Ok(()));
            for (i, n) in calls.iter().enumerate() {
                assert_eq!(n.load(Ordering::Relaxed), usize::from(i < workers), "worker {i} of {workers}");
            }
        }
    }

    #[test]
    fn a_slot_admits_the_calls_of_its_generation_while_it_is_open() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let job: Job = &|_| add(&COUNT);
        let slot = Slot::new();
        let visited = |task: HostTask, worker| {
            slot.visit((task.number() / SLOTS) as u64, worker);
            COUNT.load(Ordering::Relaxed)
        };
        assert_eq!(visited(HostTask(0), 0), 0);
        let first = slot.open(3, job, 2);
        assert_eq!(first.number() % SLOTS, 3);
        assert_eq!([0, 0, 2, 64, 1].map(|worker| visited(first, worker)), [1, 1, 1, 1, 2]);
        let second = slot.open(3, job, 2);
        assert_eq!(visited(first, 0), 2, "of an earlier call");
        assert_eq!(visited(second, 0), 3);
        slot.state.fetch_and(!OPEN, Ordering::Relaxed);
        assert_eq!(visited(second, 1), 3, "of a call that is closed");
        assert_eq!(slot.state.load(Ordering::Relaxed) & INSIDE, 0);
    }

    #[test]
    fn a_host_that_keeps_its_word() {
        holds(|workers, task| {
            thread::scope(|s| (0..workers).for_each(|i| drop(s.spawn(move || task.call(i)))));
        });
    }

    #[test]
    fn hosts_that_do_not() {
        holds(|_, _| ());
        holds(|workers, task| (0..workers).rev().for_each(|i| task.call(i)));
        holds(|workers, task| (0..workers).chain(0..workers).for_each(|i| task.call(i)));
        holds(|workers, task| {
            [workers, 64, MAX_WORKERS, usize::MAX, 1].into_iter().for_each(|i| task.call(i))
        });
        holds(|workers, task| {
            thread::scope(|s| {
                for i in (0..workers).chain(0..workers) {
                    s.spawn(move || task.call(i));
                }
            });
        });
    }

    /// Checks that lent threads may start and end after their call has ended.
    #[test]
    fn hosts_that_return_early() {
        let threads = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&threads);
        holds(move |workers, task| {
            for i in 0..workers {
                kept.lock().unwrap().push(thread::spawn(move || task.call(i)));
            }
        });
        for thread in threads.lock().unwrap().drain(..) {
            thread.join().unwrap();
        }
    }

    /// Checks that a call waits for a worker that has started, even if the host returns early.
    #[test]
    fn a_call_outlives_its_workers() {
        let (started, over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let seen = Arc::clone(&started);
        let thread = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&thread);
        let pool = lent(move |_, task| {
            *kept.lock().unwrap() = Some(thread::spawn(move || task.call(1)));
            while !seen.load(Ordering::Acquire) {
                thread::yield_now();
            }
        });
        let work = |i: usize| {
            if i == 1 {
                started.store(true, Ordering::Release);
                thread::sleep(Duration::from_millis(30));
                over.store(true, Ordering::Release);
            }
        };
        assert_eq!(pool.run(2, &work), Ok(()));
        assert!(over.load(Ordering::Acquire));
        thread.lock().unwrap().take().unwrap().join().unwrap();
    }

    #[test]
    fn tasks_of_calls_that_have_ended_do_nothing() {
        let tasks = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&tasks);
        let total = Arc::new(AtomicUsize::new(0));
        let pool = lent(move |_, task| {
            // The tasks of earlier calls do nothing, not even during this call.
            let mut tasks = kept.lock().unwrap();
            tasks.iter().for_each(|old: &HostTask| (0..4).for_each(|i| old.call(i)));
            tasks.push(task);
        });
        for round in 1..20 {
            pool.run(3, &|_| add(&total)).unwrap();
            assert_eq!(total.load(Ordering::Relaxed), 3 * round);
        }
        drop(pool);
        let tasks = tasks.lock().unwrap();
        assert!(tasks.iter().all(|task| task.number() != 0 && HostTask::from_number(task.number()) == *task));
        for task in tasks.iter().copied().chain([0, 1, SLOTS, usize::MAX].map(HostTask::from_number)) {
            (0..4).for_each(|i| task.call(i));
        }
        assert_eq!(total.load(Ordering::Relaxed), 3 * 19);
    }

    /// Checks that further calls may be made by a host thread that waits for its tasks, and by a task.
    #[test]
    fn calls_nest_and_run_side_by_side() {
        let nested = Arc::new(Mutex::new(None::<Arc<Pool>>));
        let inner = Arc::clone(&nested);
        let total = Arc::new(AtomicUsize::new(0));
        let sum = Arc::clone(&total);
        let depth = AtomicUsize::new(0);
        let pool = Arc::new(lent(move |workers, task| {
            if depth.fetch_add(1, Ordering::Relaxed) < 5 {
                let pool = inner.lock().unwrap().clone().unwrap();
                pool.run(2, &|_| add(&sum)).unwrap();
            }
            (0..workers).for_each(|i| task.call(i));
        }));
        *nested.lock().unwrap() = Some(Arc::clone(&pool));
        let task = |_| {
            // The task itself makes a call, too.
            pool.run(4, &|_| add(&total)).unwrap();
        };
        thread::scope(|s| (0..3).for_each(|_| drop(s.spawn(|| pool.run(2, &task).unwrap()))));
        assert_eq!(total.load(Ordering::Relaxed), 3 * 2 * 4 + 5 * 2);
        nested.lock().unwrap().take();
    }

    /// Checks that callers compute alone when all slots are in use.
    #[test]
    fn more_calls_than_slots() {
        fn deep(pool: &Pool, depth: usize, total: &AtomicUsize) {
            total.fetch_add(1, Ordering::Relaxed);
            if depth > 0 {
                let first = |i| {
                    if i == 0 {
                        deep(pool, depth - 1, total);
                    }
                };
                pool.run(2, &first).unwrap();
            }
        }
        let pool = lent(|workers, task| (0..workers).for_each(|i| task.call(i)));
        let total = AtomicUsize::new(0);
        thread::Builder::new()
            .stack_size(16 << 20)
            .spawn(move || {
                deep(&pool, SLOTS + 20, &total);
                assert_eq!(total.into_inner(), SLOTS + 21);
            })
            .unwrap()
            .join()
            .unwrap();
    }

    #[test]
    fn a_panic_of_a_task_or_of_the_host_ends_its_call() {
        let pool = lent(|workers, task| (0..workers - 1).for_each(|i| task.call(i)));
        for bad in 0..3 {
            assert_eq!(pool.run(3, &|i| assert_ne!(i, bad)), Err(RunError::Panicked));
            assert_eq!(pool.run(3, &|_| ()), Ok(()));
        }
        let calls = AtomicUsize::new(0);
        let pool = lent(|_, _| panic!("a host that fails"));
        assert_eq!(pool.run(3, &|_| add(&calls)), Err(RunError::Panicked));
        assert_eq!(calls.into_inner(), 3);
    }

    /// Checks calls while other threads keep calling the latest task, often after its call has ended.
    #[test]
    fn a_storm_of_tasks() {
        let latest = Arc::new(AtomicUsize::new(0));
        let publish = Arc::clone(&latest);
        let over = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (latest, over) = (Arc::clone(&latest), Arc::clone(&over));
                thread::spawn(move || {
                    let mut i = 0;
                    while !over.load(Ordering::Relaxed) {
                        HostTask::from_number(latest.load(Ordering::Relaxed)).call(i % 5);
                        i += 1;
                    }
                })
            })
            .collect();
        let pool = lent(move |workers, task| {
            publish.store(task.number(), Ordering::Relaxed);
            task.call(workers - 1);
        });
        for _ in 0..if cfg!(miri) { 5 } else { 3000 } {
            let calls = [const { AtomicUsize::new(0) }; 4];
            pool.run(4, &|i| add(&calls[i])).unwrap();
            assert!(calls.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
        over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn hosts_are_equal_to_themselves() {
        let (a, b) = (HostThreads::new(By(|_, _| ())), HostThreads::new(By(|_, _| ())));
        assert!(a == a.clone() && a != b);
        assert!(format!("{a:?}").starts_with("HostThreads"));
    }
}
