//! Measures the memory of the process, as counted by the system.

/// Estimated number of bytes per thread of a run: the used part of the thread's stack, and the system's data for the
/// thread.
const THREAD: usize = 96 << 10;

/// Estimated number of bytes for code that has not run yet, for page tables, and for the allocator's own data.
const CODE: usize = 1536 << 10;

/// Returns the number of bytes in line `name` of `/proc/self/status`; `None` if there is no such file or line.
fn status(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: usize = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Returns the number of bytes of memory that the process uses now, plus an estimate of the number of bytes that a run
/// with `threads` threads uses in addition to its own allocations.
#[must_use]
pub fn fixed_memory(threads: usize) -> usize {
    let now = status("VmRSS").unwrap_or(0);
    now.saturating_add(CODE).saturating_add(THREAD.saturating_mul(threads.saturating_add(1)))
}

/// Returns the peak memory of the process, in bytes; `None` if the system does not report it.
#[must_use]
pub fn peak_memory() -> Option<usize> {
    status("VmHWM")
}
