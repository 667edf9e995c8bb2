//! The binary `elsa`.
#![forbid(unsafe_code)]

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

// Counts allocations, so that `elsa bench` can report what a run allocates.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::new().filter_or("ELSA_LOG", "warn")).init();
    if let Err(e) = elsa_edge::signals::watch() {
        log::warn!("signals may leave temporary files behind: {e}");
    }
    elsa_edge::main(std::env::args_os()).into()
}
