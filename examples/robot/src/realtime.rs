//! Measures that keep the loop on time on a busy board: a core for the loop, a real-time priority, and memory that is
//! never paged out.
//!
//! The system may refuse any of these measures to an unprivileged user. The loop then runs without the refused measure
//! and reports the refusal.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// A measure that the system refused. The loop continues without this measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The real-time priority was not granted.
    #[error(
        "priority: SCHED_FIFO {priority} is not permitted ({reason}); goes on without. Allowed for root, with CAP_SYS_NICE, or within the limit RTPRIO"
    )]
    Priority {
        /// The requested priority.
        priority: u8,
        /// Reason that the system reports.
        reason: String,
    },
    /// The loop could not be bound to the core.
    #[error("cpu: the loop cannot be bound to core {cpu} ({reason}); goes on without")]
    Pin {
        /// Number of the requested core.
        cpu: usize,
        /// Reason that the system reports.
        reason: String,
    },
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
    let refused = |reason: String| Refused::Priority { priority, reason };
    let value = ThreadPriorityValue::try_from(priority).map_err(|reason| refused(reason.to_string()))?;
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Crossplatform(value), policy).map_err(
        |error| match error {
            thread_priority::Error::OS(code) => refused(std::io::Error::from_raw_os_error(code).to_string()),
            other => refused(format!("{other:?}")),
        },
    )
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
    let refused = |reason: String| Refused::Pin { cpu, reason };
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused(format!("cores are numbered below {}", CpuSet::MAX_CPU)));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| refused(error.to_string()))
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
        assert!(error.starts_with("priority: SCHED_FIFO 100"), "{error}");
    }
}
