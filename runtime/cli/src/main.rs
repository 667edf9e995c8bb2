//! The binary `elsa`.
#![forbid(unsafe_code)]

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::io::Write;
use std::process::ExitCode;

// Counts allocations, so that `elsa bench` can report what a run allocates.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes of the stack that the tool has from the start. Where memory is short the system ends a process whose stack cannot
/// grow, with no error that could be handled.
const STACK: usize = 256 << 10;

/// Has the system provide the stack.
#[inline(never)]
fn provide_stack() {
    std::hint::black_box(&mut [0u8; STACK]);
}

fn main() -> ExitCode {
    provide_stack();
    elsa_edge::signals::watch_panics();
    let mut logger = env_logger::Builder::from_env(env_logger::Env::new().filter_or("ELSA_LOG", "warn"));
    // Names of files and devices are in what is logged.
    logger.format(|to, record| {
        let text = elsa_edge::foreign::one_line(&record.args().to_string());
        writeln!(to, "[{:<5} {}] {text}", record.level(), record.target())
    });
    logger.init();
    if let Err(e) = elsa_edge::signals::watch() {
        log::warn!("signals may leave temporary files behind: {e}");
    }
    elsa_edge::main(std::env::args_os()).into()
}
