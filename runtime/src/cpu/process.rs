//! Distinguishes a process from the children that `fork` creates.
//!
//! A child has a copy of its parent's memory, but only one thread: a copy of the thread that called `fork`. A driver
//! that the parent initialised does not work in the child. Values that depend on threads or the driver record the
//! [`Process`] in which they were created.
//!
//! **The naive way** compares process numbers. But each comparison takes a system call, and the system reuses numbers.
//! Instead, this module registers a function that the C library calls in every child. The function increments a count
//! of forks, and a comparison only loads that count from memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the process that loaded this library and the current one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Identifies a process and distinguishes it from the children that `fork` creates. A child created in another way, by
/// the system calls `clone` or `vfork`, is mistaken for its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// Returns the current process.
    pub fn current() -> Process {
        if is_counted() { Process(FORKS.load(Ordering::Relaxed)) } else { Process(std::process::id().into()) }
    }

    /// Returns `true` if this is the current process.
    pub fn is_current(self) -> bool {
        self == Process::current()
    }
}

/// Returns `true` if the C library lets this module count forks. If the function returns `false`, the process number is
/// used instead of the count.
fn is_counted() -> bool {
    static COUNTED: OnceLock<bool> = OnceLock::new();
    *COUNTED.get_or_init(register)
}

#[cfg(all(unix, not(miri)))]
fn register() -> bool {
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the child calls a function of the required type, which only changes an atomic number. If the library is
    // unloaded, its functions are no longer registered.
    unsafe { libc::pthread_atfork(None, None, Some(count)) == 0 }
}

#[cfg(not(all(unix, not(miri))))]
fn register() -> bool {
    false
}
