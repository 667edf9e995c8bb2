//! Tells a process from the children that `fork` makes of it.
//!
//! A child has a copy of its parent's memory, but of its threads only the one that called `fork`; and a driver of the
//! parent's does not work in it. What depends on either records the [`Process`] in which it was made.
//!
//! **The naive way** compares process numbers, which is a system call each time, and numbers return. Here the C library
//! calls a function in every child, which counts forks, so that a comparison is a load from memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the process that loaded this library and the present one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process, as opposed to the children that `fork` makes of it. A child that is made in another way, by the system
/// calls `clone` or `vfork`, is taken for its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// The present process.
    pub fn current() -> Process {
        if is_counted() { Process(FORKS.load(Ordering::Relaxed)) } else { Process(std::process::id().into()) }
    }

    /// Whether this is the present process.
    pub fn is_current(self) -> bool {
        self == Process::current()
    }
}

/// Whether forks are counted. If they cannot be, the number of the process takes the place of the count.
fn is_counted() -> bool {
    static COUNTED: OnceLock<bool> = OnceLock::new();
    *COUNTED.get_or_init(register)
}

#[cfg(all(unix, not(miri)))]
fn register() -> bool {
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the child calls a function of that type, which only changes an atomic number; a library that is unloaded
    // takes its functions along.
    unsafe { libc::pthread_atfork(None, None, Some(count)) == 0 }
}

#[cfg(not(all(unix, not(miri))))]
fn register() -> bool {
    false
}
