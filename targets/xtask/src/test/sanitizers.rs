//! Runs the stages `asan` and `tsan`: instruments code that works with raw memory or threads (Rust, the stand-in GPU and C
//! programs) in one build per sanitizer.

use super::capi::instrumented;
use super::cargo::{tests, widest, with_standin};
use crate::boards::day::programs::KERNELS;
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::PathBuf;

/// Options of ThreadSanitizer. The standard library is instrumented, because otherwise its locks look like data races. The
/// library `test` is in every build, because cargo adds it to builds of tests; so nothing is built twice. Data races do not
/// depend on vectors, so the kernels are compiled quickly rather than optimised.
const THREAD: &str = "-Zbuild-std=std,test --config profile.dev.package.elsa-kernels.opt-level=1 \
                      --config profile.dev.package.elsa-core.opt-level=1";

/// Instruction sets with a long compile time: each increases the compile time of the kernels by a third.
pub const WIDE: [&str; 2] = ["avx2", "avx512"];

/// A sanitizer of the nightly compiler, and its build.
pub(super) struct Sanitizer<'a> {
    tree: &'a Tree,
    variant: Variant,
    host: String,
    options: &'static str,
    /// Instruction sets whose kernels are left out.
    without: Vec<&'static str>,
}

impl<'a> Sanitizer<'a> {
    /// Prepares AddressSanitizer, with the kernels of the widest instruction set and the kernels without vectors.
    ///
    /// # Errors
    /// Returns an error if the toolchain cannot be installed.
    pub(super) fn address(tree: &'a Tree) -> Result<Sanitizer<'a>, String> {
        let without = WIDE.into_iter().filter(|set| *set != widest()).collect();
        Sanitizer::new(tree, Variant::Address, "", without)
    }

    /// Prepares ThreadSanitizer, with the kernels without vectors.
    ///
    /// # Errors
    /// Returns an error if the toolchain cannot be installed.
    pub(super) fn thread(tree: &'a Tree) -> Result<Sanitizer<'a>, String> {
        Sanitizer::new(tree, Variant::Thread, THREAD, WIDE.into())
    }

    fn new(
        tree: &'a Tree,
        variant: Variant,
        options: &'static str,
        without: Vec<&'static str>,
    ) -> Result<Sanitizer<'a>, String> {
        setup::nightly(tree, &["rust-src"])?;
        Ok(Sanitizer { tree, variant, host: setup::host(tree)?, options, without })
    }

    fn folder(&self) -> PathBuf {
        self.tree.target.join(self.variant.name())
    }

    /// Returns a cargo command. The sanitizer's functions are exported for the stand-in driver, which is opened at run time.
    /// With `elsa_sanitized`, tests use smaller problems.
    fn cargo(&self, line: &str) -> Run {
        let name = self.variant.name();
        let mut flags = format!("-Zsanitizer={name} -Clink-arg=-Wl,--export-dynamic --cfg=elsa_sanitized");
        for set in &self.without {
            flags += &format!(" --cfg=elsa_without=\"{set}\"");
        }
        let run = Run::new(self.tree, "cargo +nightly").args(line).args(self.options);
        let run = run.args(&format!("--target {} --target-dir", self.host)).arg(self.folder());
        run.env("RUSTFLAGS", flags).env_default("PROPTEST_CASES", "16")
    }

    /// Returns the command that builds the library that panics on request, and the path of its archive. The command also
    /// names the packages of the tests, so that shared dependencies are built once.
    pub(super) fn library(&self) -> (Run, PathBuf) {
        let packages =
            "-p elsa-kernels -p elsa-runtime -p elsa-tests -p elsa-capi --lib --example fingerprint";
        let build = self.cargo(&format!("build {packages} --features elsa-capi/inject"));
        (build, self.folder().join(&self.host).join("debug/libelsa.a"))
    }

    /// Builds the library that panics on request, and returns the path of its archive.
    fn built(&self) -> Result<PathBuf, String> {
        let (build, archive) = self.library();
        build.run().text("the instrumented library")?;
        Ok(archive)
    }

    /// Returns the command that runs tests of the packages that work with raw memory.
    pub(super) fn test(&self, targets: &str, tests: &str) -> Run {
        // With `--lib`, cargo would compile the kernels once more, as a test program that contains no tests.
        let kernels = if targets.contains("--lib") { "" } else { "-p elsa-kernels" };
        let packages = format!("{kernels} -p elsa-runtime -p elsa-tests");
        self.cargo(&format!("test --no-fail-fast {packages} {targets}")).arg("--").args(tests)
    }

    /// Runs tests of the kernels and of the CUDA back end on the stand-in GPU, with problems of small sizes.
    fn on_the_standin(&self, ran: &mut Ran) -> Result<(), String> {
        let driver = standin::build(self.tree, self.variant)?;
        // The larger device divides keys into more splits.
        for (targets, which, device) in [
            // The tests of PTX modules are skipped: only safe code unpacks these modules, and it is slow when instrumented.
            ("--lib", "cuda:: --skip cuda::ptx::", ""),
            ("--test crossing", "cuda_conformance::random", "large"),
            ("--test crossing", "cuda_sanitized::", ""),
        ] {
            let run = self.test(targets, &format!("--include-ignored {which} --test-threads 1"));
            tests_of(ran, with_standin(run.env("ELSA_STANDIN_DEVICE", device), &driver));
        }
        Ok(())
    }
}

/// Runs tests after the library has been built. If cargo compiles elsa-core again, because the selected packages enable
/// other features, that is a fault: it takes minutes.
fn tests_of(ran: &mut Ran, run: Run) {
    let line = run.line();
    let out = tests(ran, run);
    if out.stderr.contains("Compiling elsa-core ") {
        ran.faults
            .push(format!("{line}: built elsa-core again; allowed: once, by the command of the library"));
    }
}

/// Runs the stage `asan`.
pub fn asan(tree: &Tree) -> Ran {
    Ran::of("tests and checks", |ran| {
        let address = Sanitizer::address(tree)?;
        let archive = address.built()?;
        let require = |run: Run| run.env_default("ELSA_REQUIRE", widest());
        tests_of(ran, require(address.test("--lib", "")));
        tests_of(ran, require(address.test("--test kernels", "")));
        tests_of(ran, require(address.test("--test crossing", &KERNELS.join(" "))));
        address.on_the_standin(ran)?;
        instrumented::asan(tree, ran, &archive)
    })
}

/// Runs the stage `tsan`.
pub fn tsan(tree: &Tree) -> Ran {
    Ran::of("tests and checks", |ran| {
        let thread = Sanitizer::thread(tree)?;
        let archive = thread.built()?;
        tests_of(ran, thread.test("--lib", "").env_default("ELSA_REQUIRE", "scalar"));
        thread.on_the_standin(ran)?;
        instrumented::tsan(tree, ran, &archive)
    })
}
