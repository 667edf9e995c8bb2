//! The workers of an engine: the caller, and worker threads ([`Standing`]) or threads that the host lends
//! ([`HostThreads`]).
//!
//! 1. *A call for one worker runs on the caller alone.* Such a call does not queue, wakes no thread and touches no
//!    shared data. So any number of such calls run concurrently.
//! 2. *One floating-point environment.* Every worker, including the caller, computes in the default environment
//!    ([`float`]). So the bits of a result do not depend on the worker that computes it.
//! 3. *A child of `fork` has no worker threads.* Its only thread is the caller. The caller computes alone, and acquires
//!    no lock that a thread of the parent may have held.
//! 4. *Panics stay inside.* A panic in a worker, or in the caller's share, ends that call with an error. The pool
//!    remains usable.
//! 5. *A cancel ends the calls in progress, and does not affect later calls.* The pool counts cancels. A call
//!    ([`Crew`]) compares the current count with the count at the start of the call. The count is never reset, so
//!    concurrent calls cannot hide a cancel from each other. A cancel between two calls does nothing.

use super::float;
use super::host::HostThreads;
use super::place::Placement;
use super::process::Process;
use super::spin::Spin;
use super::standing::Standing;
use crate::error::{PlanError, RunError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads that compute in addition to the caller.
enum Others {
    Standing(Standing),
    Host(HostThreads),
}

/// The workers of an engine. Dropping the pool ends its worker threads. In a forked child of the process that created
/// the pool, the caller is the only worker.
pub struct Pool {
    /// Process in which the pool was created.
    process: Process,
    workers: usize,
    spin: Spin,
    others: Others,
    /// Number of cancels so far.
    cancels: AtomicU64,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool of `workers` workers: the caller, and `workers − 1` worker threads, which it starts.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread, or refuses the requested core or priority.
    pub fn standing(workers: usize, spin: Spin, placement: &Placement) -> Result<Pool, PlanError> {
        let others = Others::Standing(Standing::new(workers, spin.limit(), placement)?);
        Ok(Pool { process: Process::current(), workers, spin, others, cancels: AtomicU64::new(0) })
    }

    /// Creates a pool of at most `workers` workers on threads that the host lends.
    pub fn lent(workers: usize, spin: Spin, host: HostThreads) -> Pool {
        let others = Others::Host(host);
        Pool { process: Process::current(), workers, spin, others, cancels: AtomicU64::new(0) }
    }

    /// Returns the number of workers, including the caller.
    pub fn threads(&self) -> usize {
        if self.process.is_current() { self.workers } else { 1 }
    }

    /// Calls `task(i)` once for every `i` below `workers`, and waits for all calls. `workers` is first limited to the
    /// number of threads. Callers on several threads queue if they need several worker threads.
    ///
    /// # Errors
    /// Returns an error if a call panicked.
    pub fn run(&self, workers: usize, task: &(dyn Fn(usize) + Sync)) -> Result<(), RunError> {
        let workers = workers.clamp(1, self.threads());
        match &self.others {
            _ if workers == 1 => catch_unwind(AssertUnwindSafe(|| float::in_default(|| task(0))))
                .map_err(|_| RunError::Panicked),
            Others::Standing(standing) => standing.run(workers, task),
            Others::Host(host) => host.run(workers, self.spin.limit(), task),
        }
    }

    /// Cancels every call that is in progress.
    pub fn cancel(&self) {
        self.cancels.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a call and returns its workers.
    pub fn begin(&self) -> Crew<'_> {
        Crew { pool: self, began: self.cancels.load(Ordering::Relaxed) }
    }
}

/// The workers of a pool for the duration of one call.
#[derive(Clone, Copy, Debug)]
pub struct Crew<'a> {
    pool: &'a Pool,
    /// Number of cancels when the call began.
    began: u64,
}

impl Crew<'_> {
    /// Returns `true` if the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.pool.cancels.load(Ordering::Relaxed) != self.began
    }

    /// Checks that the call was not cancelled.
    ///
    /// # Errors
    /// Returns [`RunError::Cancelled`] if the call was cancelled.
    pub fn check(&self) -> Result<(), RunError> {
        if self.is_cancelled() { Err(RunError::Cancelled) } else { Ok(()) }
    }

    /// Calls `task(worker, item)` once for every item below `items`. The workers take one item at a time, and stop
    /// taking items when the call is cancelled.
    ///
    /// # Errors
    /// Returns an error if a call of `task` panicked, or if the call was cancelled.
    pub fn divide(
        &self,
        workers: usize,
        items: usize,
        task: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(), RunError> {
        let next = AtomicUsize::new(0);
        self.pool.run(workers.min(items.max(1)), &|worker| {
            while !self.is_cancelled() {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    break;
                }
                task(worker, item);
            }
        })?;
        self.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::atomic::AtomicBool;

    fn standing(workers: usize) -> Result<Pool, PlanError> {
        Pool::standing(workers, Spin::default(), &Placement::default())
    }

    #[test]
    fn every_worker_is_called_once_per_job() {
        for threads in [1, 2, 5] {
            let pool = standing(threads).unwrap();
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

    /// Checks that the caller of a finished call sees the writes of its workers. ThreadSanitizer reports a race if the
    /// caller does not.
    #[test]
    fn what_workers_wrote_is_there_when_a_call_is_over() {
        const WORKERS: usize = 4;
        struct Cells(UnsafeCell<[usize; WORKERS]>);
        // SAFETY: each worker writes its own element, and the caller reads when no worker is active.
        unsafe impl Sync for Cells {}
        let (pool, cells) = (standing(WORKERS).unwrap(), Cells(UnsafeCell::new([0; WORKERS])));
        for round in 0..100 {
            let cells = &cells;
            let write = |i: usize| {
                // SAFETY: element `i` belongs to this worker.
                unsafe { cells.0.get().cast::<usize>().add(i).write(round + i) }
            };
            pool.run(WORKERS, &write).unwrap();
            // SAFETY: the call is over, so no worker writes the elements.
            let found = unsafe { *cells.0.get() };
            assert_eq!(found, [0, 1, 2, 3].map(|i| round + i));
        }
    }

    #[test]
    fn a_panic_is_reported_and_the_pool_lives_on() {
        let pool = standing(3).unwrap();
        for bad in 0..3 {
            assert_eq!(pool.run(3, &|i| assert_ne!(i, bad)), Err(RunError::Panicked));
            assert_eq!(pool.run(3, &|_| ()), Ok(()));
        }
    }

    #[test]
    fn callers_from_several_threads_take_turns() {
        let pool = standing(2).unwrap();
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

    /// Checks that a call for one worker does not wait for a concurrent call for several workers.
    #[test]
    fn calls_of_one_worker_take_no_turn() {
        let pool = standing(2).unwrap();
        let (busy, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (send, receive) = std::sync::mpsc::channel();
        let in_time = std::thread::scope(|s| {
            s.spawn(|| {
                let wait = |_| {
                    busy.store(true, Ordering::Release);
                    while !over.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                };
                pool.run(2, &wait).unwrap();
            });
            while !busy.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            s.spawn(|| pool.begin().divide(2, 1, &|worker, item| send.send((worker, item)).unwrap()));
            let done = receive.recv_timeout(std::time::Duration::from_secs(20));
            over.store(true, Ordering::Release);
            done
        });
        assert_eq!(in_time, Ok((0, 0)));
    }

    /// Checks that a cancel ends the calls in progress before their next item, and does not affect later calls.
    #[test]
    fn a_cancel_ends_the_calls_that_have_begun_and_no_other() {
        for threads in [1, 2] {
            let pool = standing(threads).unwrap();
            let (crew, calls) = (pool.begin(), AtomicUsize::new(0));
            let cancel = |_, item| {
                calls.fetch_add(1, Ordering::Relaxed);
                if item == 3 {
                    pool.cancel();
                }
                while item > 3 && !crew.is_cancelled() {
                    std::thread::yield_now();
                }
            };
            assert_eq!(crew.divide(threads, 1000, &cancel), Err(RunError::Cancelled));
            // Another worker may have begun the next item before the cancel.
            assert!((4..=3 + threads).contains(&calls.load(Ordering::Relaxed)), "{calls:?}");
            let none = |_, _| panic!("an item of a call that was cancelled");
            assert_eq!(crew.divide(threads, 1, &none), Err(RunError::Cancelled));
            pool.cancel();
            let (next, calls) = (pool.begin(), AtomicUsize::new(0));
            let count = |_, _| {
                calls.fetch_add(1, Ordering::Relaxed);
            };
            assert_eq!((next.divide(threads, 9, &count), next.check()), (Ok(()), Ok(())));
            assert_eq!(calls.into_inner(), 9);
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn standing_threads_run_where_and_as_urgently_as_asked_or_not_at_all() {
        // SAFETY: a set of cores is an array of integers, so zero bytes are a valid set, which the call overwrites.
        let allowed = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
            (0..1024).filter(|core| libc::CPU_ISSET(*core, &set)).collect::<Vec<usize>>()
        };
        let at = |cores: &[usize], priority| {
            Pool::standing(4, Spin::Never, &Placement::new(None, cores, priority).unwrap())
        };
        let mine = std::thread::current().id();
        let cores: Vec<usize> = allowed.iter().rev().copied().take(2).collect();
        let pool = at(&cores, None).unwrap();
        for _ in 0..20 {
            let check = |i: usize| {
                if i > 0 {
                    // SAFETY: the call has no argument and no precondition.
                    let core = unsafe { libc::sched_getcpu() } as usize;
                    assert_eq!(core, cores[(i - 1) % cores.len()], "worker {i}");
                } else {
                    assert_eq!(std::thread::current().id(), mine);
                }
            };
            assert_eq!(pool.run(4, &check), Ok(()));
        }
        let absent = (0..1024).rev().find(|core| !allowed.contains(core)).unwrap();
        let refused = at(&[allowed[0], absent], None).unwrap_err();
        assert!(matches!(refused, PlanError::Core { found, .. } if found == absent), "{refused}");
        assert!(refused.to_string().starts_with(&format!("cores: {absent}: ")), "{refused}");
        let urgent = at(&[], Some(7));
        match urgent {
            Ok(pool) => {
                let check = |i: usize| {
                    // SAFETY: the call writes integers to the parameters, and zero denotes the calling thread.
                    let found = unsafe {
                        let mut parameters: libc::sched_param = std::mem::zeroed();
                        assert_eq!(libc::sched_getparam(0, &raw mut parameters), 0);
                        (libc::sched_getscheduler(0), parameters.sched_priority)
                    };
                    assert_eq!(found, if i > 0 { (libc::SCHED_FIFO, 7) } else { (libc::SCHED_OTHER, 0) });
                };
                assert_eq!(pool.run(4, &check), Ok(()));
            }
            Err(e) => assert!(e.to_string().contains("CAP_SYS_NICE"), "{e}"),
        }
        for (cores, priority, message) in [
            (&[0, 1024][..], None, "cores: 1024; allowed: numbers below 1024"),
            (&[], Some(0), "priority: 0; allowed: 1 to 99"),
            (&[], Some(100), "priority: 100; allowed: 1 to 99"),
        ] {
            assert_eq!(Placement::new(None, cores, priority).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn worker_threads_have_the_name_asked_for() {
        for (asked, name) in [(None, "elsa"), (Some("camera-rgb"), "camera-rgb")] {
            let placement = Placement::new(asked, &[], None).unwrap();
            let pool = Pool::standing(3, Spin::Never, &placement).unwrap();
            let check = |i: usize| {
                let thread = std::thread::current();
                assert!(i == 0 || thread.name() == Some(&format!("{name}-{i}")), "{thread:?}");
            };
            assert_eq!(pool.run(3, &check), Ok(()));
        }
        for name in ["", "eleven-long", "a b", "a\0b", "ä"] {
            let error = Placement::new(Some(name), &[], None).unwrap_err().to_string();
            assert!(error.starts_with(&format!("thread_name: {name:?}; allowed: 1 to 10 ")), "{error}");
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_thread_places_itself_or_is_told_why_not() {
        use super::super::place::place_thread;
        let place = || {
            // SAFETY: the call has no argument and no precondition.
            let core = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
            place_thread(Some(core), None).unwrap();
            // SAFETY: as above.
            assert_eq!(usize::try_from(unsafe { libc::sched_getcpu() }).unwrap(), core);
            match place_thread(None, Some(3)) {
                // SAFETY: the call only reads, and zero denotes the calling thread.
                Ok(()) => assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_FIFO),
                Err(e) => assert!(e.to_string().contains("RLIMIT_RTPRIO"), "{e}"),
            }
            assert!(matches!(place_thread(Some(1024), None), Err(PlanError::CoreRange { .. })));
        };
        std::thread::spawn(place).join().unwrap();
    }

    /// Forks while another thread is in a call of the pool, and checks that the child computes without the pool's
    /// threads.
    #[cfg(all(unix, not(miri)))]
    #[test]
    fn a_child_of_fork_computes_alone() {
        let (pool, idle) = (standing(3).unwrap(), standing(2).unwrap());
        let (busy, over) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                let wait = |_| {
                    busy.store(true, Ordering::Release);
                    while !over.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                };
                pool.run(2, &wait).unwrap();
            });
            while !busy.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            // SAFETY: the child uses only its own memory and ends without returning; the C library keeps its allocator
            // usable.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the alarm ends a child that hangs.
                unsafe { libc::alarm(10) };
                let calls = AtomicUsize::new(0);
                let done = pool.begin().divide(3, 7, &|worker, _| {
                    calls.fetch_add(1 + worker, Ordering::Relaxed);
                });
                drop(idle);
                let good = done.is_ok() && calls.into_inner() == 7 && pool.threads() == 1;
                // SAFETY: the call ends the process and has no precondition.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            let mut status = 0;
            // SAFETY: the call waits for that child and writes an integer to `status`.
            let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
            over.store(true, Ordering::Release);
            assert!(child > 0 && ended == child && status == 0, "child {child}, status {status:#x}");
        });
        assert_eq!(pool.threads(), 3);
    }
}
