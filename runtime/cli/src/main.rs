//! The binary `elsa`.
#![forbid(unsafe_code)]

use elsa_cli::command::Cli;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

// Counts allocations, so that `elsa bench` can report the allocations of a run.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Number of stack bytes that the tool reserves at its start. If memory is short, the system ends a process whose stack
/// cannot grow, and no error can be handled.
const STACK: usize = 256 << 10;

/// Touches [`STACK`] bytes of the stack, so that the system provides their pages.
#[inline(never)]
fn provide_stack() {
    std::hint::black_box(&mut [0u8; STACK]);
}

fn main() -> ExitCode {
    provide_stack();
    elsa_cli::prepare("elsa");
    elsa_cli::main(std::env::args_os(), |cli: &Cli| cli.command.run()).into()
}
