//! The binary `elsa`.
#![forbid(unsafe_code)]

use elsa_cli::command::Cli;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

// This allocator counts allocations, so that `elsa bench` can report those of a run.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes of stack for which the tool requests memory at its start. If memory is short later, the system ends a process
/// whose stack cannot grow, and the process cannot report an error.
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
