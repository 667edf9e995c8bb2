//! Shared code of the tests that span crates: problems with owned data, and the definition of attention applied to them
//! naively.
//!
//! [`cases`] makes problems, at random ([`cases::any_case`], [`cases::Params`]) and by design ([`cases::hard_cases`]).
//! [`naive`] answers them from the definition and bounds the error of a computation in f32;
//! [`naive::Answer::check_all`] compares everything that a call returns. [`longest`] measures how many additions a run
//! executes. [`gradients`] does the same for the backward pass. [`bounds`] hunts for a violation of an error bound.
//! [`schedules`] judges runs with frozen references and skipped blocks. [`standin`] runs tests against the stand-in
//! CUDA driver.
#![forbid(unsafe_code)]

/// `true` if a call is many times slower than natively: interpreted, emulated, or instrumented by a sanitizer. A test
/// that repeats another test's findings for every hard case then takes a share of them.
pub const SLOW: bool = cfg!(miri) || cfg!(target_arch = "aarch64") || cfg!(elsa_sanitized);

/// Returns the back ends to test: all that are present, or only the one that `ELSA_ONLY` names, when another command
/// tests the rest.
#[must_use]
pub fn present() -> Vec<elsa_runtime::Present> {
    let only = std::env::var("ELSA_ONLY").ok().filter(|name| !name.is_empty());
    let wanted =
        |p: &elsa_runtime::Present| p.present && only.as_ref().is_none_or(|name| p.backend.name() == name);
    elsa_runtime::backends().into_iter().filter(wanted).collect()
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
