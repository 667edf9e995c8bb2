//! Measures that keep the loop on time on a busy board: a core for the loop, a real-time priority, and memory that is
//! never paged out.
//!
//! The system may refuse any of these measures to an unprivileged user. The loop then runs without the refused measure
//! and reports the refusal.

use elsa_runtime::{PlanError, place_thread};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::thread::{CpuSet, sched_getaffinity};

/// A measure that the system refused. The loop continues without this measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The real-time priority was not granted. The message of the source starts with the argument.
    #[error("{0}; goes on without")]
    Priority(#[source] PlanError),
    /// The loop could not be bound to the core.
    #[error("cpu: {0}; goes on without")]
    Pin(#[source] PlanError),
    /// The memory could not be locked.
    #[error(
        "lock-memory: not permitted ({reason}); goes on without. Allowed for root, with CAP_IPC_LOCK, or within the limit MEMLOCK"
    )]
    Memory {
        /// Reason that the system reports.
        reason: String,
    },
}

/// Gives the calling thread, and threads that it starts later, the real-time priority `priority` (1 to 99)
/// of the policy SCHED_FIFO.
///
/// # Errors
/// Returns an error if the system does not permit it.
pub fn prioritise(priority: u8) -> Result<(), Refused> {
    place_thread(None, Some(priority)).map_err(Refused::Priority)
}

/// Returns the cores that the process may use.
///
/// # Errors
/// Returns the system's error.
pub fn cores() -> std::io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Binds the calling thread to core `cpu`.
///
/// # Errors
/// Returns an error if the system does not permit it.
pub fn pin(cpu: usize) -> Result<(), Refused> {
    place_thread(Some(cpu), None).map_err(Refused::Pin)
}

/// Locks all current mappings in memory. Later mappings are not locked, so a limit on locked memory cannot make a later
/// allocation fail. For a loop that allocates nothing this is enough.
///
/// # Errors
/// Returns an error if the system does not permit it.
pub fn lock_memory() -> Result<(), Refused> {
    mlockall(MlockAllFlags::CURRENT).map_err(|error| Refused::Memory { reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_bound_to_a_core_that_is_there_and_to_no_other() {
        std::thread::spawn(|| {
            let cpu = *cores().unwrap().last().unwrap();
            pin(cpu).unwrap();
            assert_eq!(cores().unwrap(), [cpu]);
            let error = pin(CpuSet::MAX_CPU).unwrap_err().to_string();
            assert!(error.starts_with("cpu: "), "{error}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn priorities_out_of_bounds_are_refused_with_words() {
        let error = prioritise(100).unwrap_err().to_string();
        assert!(error.starts_with("priority: 100; allowed: 1 to 99"), "{error}");
    }
}
