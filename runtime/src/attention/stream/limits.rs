//! Measures the memory that the process already uses, as counted by the system.

/// Number of bytes that each thread of a run touches of its stack and of the system's data for it.
const THREAD: usize = 96 << 10;

/// Number of bytes for code that has not run yet, page tables, and the allocator's own data.
const CODE: usize = 1536 << 10;

/// Returns the bytes of the line `name` of `/proc/self/status`; `None` without such a file.
fn status(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: usize = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Returns the bytes of memory that the process uses now, and will use for a run by `threads` threads in addition
/// to the run's allocations.
pub fn fixed(threads: usize) -> usize {
    let now = status("VmRSS").unwrap_or(0);
    now.saturating_add(CODE).saturating_add(THREAD.saturating_mul(threads.saturating_add(1)))
}

/// Returns the peak memory of the process, in bytes; `None` if the system does not report it.
#[must_use]
pub fn peak_memory() -> Option<usize> {
    status("VmHWM")
}
