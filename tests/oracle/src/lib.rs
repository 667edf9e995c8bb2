//! Shared code of the tests that span crates: problems with owned data, and naive attention, computed from the
//! definition.
//!
//! [`cases`] makes problems, at random ([`cases::any_case`], [`cases::Params`]) and by design ([`cases::hard_cases`]).
//! [`naive`] computes their outputs from the definition and bounds the error of a computation in f32;
//! [`naive::Answer::check_all`] compares everything that a call returns. [`longest`] measures how many additions a run
//! executes. [`gradients`] computes and compares gradients of the backward pass. [`bounds`] hunts for a violation of an
//! error bound. [`schedules`] judges runs with frozen references and skipped blocks. [`standin`] runs tests against the
//! stand-in CUDA driver. [`strides`] gives views strides that have no effect.
#![forbid(unsafe_code)]

use elsa_runtime::{Backend, Engine, EngineOptions, Fallback, Present};

/// `true` if a call takes many times its native time, because it is interpreted, emulated, or instrumented by a
/// sanitizer. Tests then use fewer or smaller cases.
pub const SLOW: bool = cfg!(miri) || cfg!(target_arch = "aarch64") || cfg!(elsa_sanitized);

/// Returns the back ends to test: all that are present, or only the one that the variable `ELSA_ONLY` names; another
/// command then tests the other back ends.
#[must_use]
pub fn present() -> Vec<Present> {
    let only = std::env::var("ELSA_ONLY").ok().filter(|name| !name.is_empty());
    let wanted = |p: &Present| p.present && only.as_ref().is_none_or(|name| p.backend.name() == name);
    elsa_runtime::backends().into_iter().filter(wanted).collect()
}

/// Returns an engine on `backend` with `threads` threads.
///
/// # Panics
/// Panics if the machine does not have the back end.
#[must_use]
pub fn engine(backend: Backend, threads: usize) -> Engine {
    made(&EngineOptions::default().backend(backend).threads(threads))
}

/// Returns an engine on each back end of [`present`].
///
/// # Panics
/// Panics if an engine cannot be opened.
#[must_use]
pub fn engines(threads: usize) -> Vec<Engine> {
    present().into_iter().map(|found| engine(found.backend, threads)).collect()
}

/// Returns an engine on each CPU back end of [`present`].
///
/// # Panics
/// Panics if an engine cannot be opened.
#[must_use]
pub fn cpu_engines(threads: usize) -> Vec<Engine> {
    let cpu = present().into_iter().map(|found| found.backend).filter(|backend| *backend != Backend::Cuda);
    cpu.map(|backend| engine(backend, threads)).collect()
}

/// Returns an engine on the GPU, or on the stand-in driver.
///
/// # Panics
/// Panics if there is no GPU and `fallback` does not allow the CPU.
#[must_use]
pub fn gpu_engine(fallback: Fallback) -> Engine {
    let backend = Some(Backend::Cuda);
    made(&EngineOptions::default().backend(backend).threads(1).fallback(fallback))
}

fn made(options: &EngineOptions) -> Engine {
    Engine::new(options).unwrap_or_else(|e| panic!("{options:?}: {e}"))
}

pub mod bounds;
pub mod cases;
pub mod gradients;
pub mod linear;
pub mod longest;
pub mod naive;
pub mod random;
pub mod schedules;
pub mod series;
pub mod standin;
mod states;
pub mod strides;
