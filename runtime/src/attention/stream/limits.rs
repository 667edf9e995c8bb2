//! What the process takes already, as the system counts it.

/// Bytes that each thread of a run touches of its stack and of what the system keeps for it.
const THREAD: usize = 96 << 10;

/// Bytes for code that has not run yet, the tables of pages, and the allocator's own.
const CODE: usize = 1536 << 10;

/// Bytes of the line `name` of `/proc/self/status`; none where there is no such file.
fn status(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: usize = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Bytes of memory that the process has now, and will take for a run by `threads` threads beside what the run allocates.
pub fn fixed(threads: usize) -> usize {
    let now = status("VmRSS").unwrap_or(0);
    now.saturating_add(CODE).saturating_add(THREAD.saturating_mul(threads.saturating_add(1)))
}

/// Most memory that the process has had, in bytes; none where the system does not tell.
#[must_use]
pub fn peak_memory() -> Option<usize> {
    status("VmHWM")
}
