//! The stages `asan`, `tsan`, `cuda-asan` and `cuda-tsan`: what works with raw memory, instrumented.

use super::cargo::{tests, widest, with_standin};
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};

/// Tests that call nothing but `core`, and take long.
pub const CORE_ALONE: [&str; 9] = [
    "fallback::",
    "layout::",
    "quorums::",
    "reference_oracle::",
    "scans::",
    "schedule::",
    "schedules::",
    "schedules_budget::",
    "the_scalar_fallback_",
];

/// Flags of the nightly compiler for a sanitizer, whose functions are exported, so that the stand-in driver, when it is
/// opened, finds them. `elsa_sanitized` has tests take the smaller of two equivalent forms.
pub fn flags(sanitizer: &str) -> String {
    format!("-Zsanitizer={sanitizer} -Clink-arg=-Wl,--export-dynamic --cfg=elsa_sanitized")
}

/// The standard library, instrumented: else its locks are taken for races. With the library of tests in every build, as
/// cargo has it in those that test, so that nothing is built twice.
pub const BUILD_STD: &str = "-Zbuild-std=std,test";

/// A command of cargo's with a sanitizer of the nightly compiler, for the packages that work with raw memory.
fn sanitized(tree: &Tree, sanitizer: &str, options: &str, host: &str) -> Run {
    // What follows the two dashes is for the tests.
    let (for_cargo, for_tests) = options.split_once(" -- ").unwrap_or((options, ""));
    let run =
        Run::new(tree, "cargo +nightly test --no-fail-fast -p elsa-kernels -p elsa-runtime -p elsa-tests")
            .args(for_cargo)
            .args(&format!("--target {host} --target-dir"))
            .arg(tree.target.join(sanitizer))
            .env("RUSTFLAGS", flags(sanitizer))
            .env_default("PROPTEST_CASES", "16");
    if for_tests.is_empty() { run } else { run.args("--").args(for_tests) }
}

/// The tests of some packages, built with a sanitizer of the nightly compiler.
fn sanitize(tree: &Tree, sanitizer: &str, options: &str) -> Ran {
    let mut ran = Ran::none("tests");
    let host = match setup::nightly(tree, &["rust-src"]).and_then(|()| setup::host(tree)) {
        Ok(host) => host,
        Err(fault) => return Ran::fault(ran.counted, fault),
    };
    let run = sanitized(tree, sanitizer, options, &host);
    tests(&mut ran, run.env_default("ELSA_REQUIRE", widest()));
    ran
}

/// The stage `asan`. The modules that are left out call nothing but `core`, which forbids unsafe code.
pub fn asan(tree: &Tree) -> Ran {
    let core = CORE_ALONE.map(|module| format!(" --skip {module}")).concat();
    sanitize(tree, "address", &format!("--tests --{core}"))
}

/// The stage `tsan`.
pub fn tsan(tree: &Tree) -> Ran {
    sanitize(tree, "thread", &format!("{BUILD_STD} --lib"))
}

/// Kernels and back end, instrumented, at small sizes.
fn cuda_sanitized(tree: &Tree, variant: Variant, options: &str) -> Ran {
    let mut ran = Ran::none("tests");
    let set_up = || {
        setup::nightly(tree, &["rust-src"])?;
        Ok((setup::host(tree)?, standin::build(tree, variant)?))
    };
    let (host, folder) = match set_up() {
        Ok(both) => both,
        Err(fault) => return Ran::fault(ran.counted, fault),
    };
    // The larger device divides keys into more splits.
    for (line, device) in [
        ("--lib -- --include-ignored cuda:: --test-threads 1", ""),
        ("--test crossing -- --include-ignored cuda_conformance::random --test-threads 1", "large"),
        ("--test crossing -- --include-ignored cuda_sanitized:: --test-threads 1", ""),
    ] {
        let run = sanitized(tree, variant.name(), &format!("{options} {line}"), &host);
        let run = run.env("ELSA_STANDIN_DEVICE", device);
        tests(&mut ran, with_standin(run, &folder));
    }
    ran
}

/// The stage `cuda-asan`.
pub fn cuda_asan(tree: &Tree) -> Ran {
    cuda_sanitized(tree, Variant::Address, "")
}

/// The stage `cuda-tsan`.
pub fn cuda_tsan(tree: &Tree) -> Ran {
    cuda_sanitized(tree, Variant::Thread, BUILD_STD)
}
