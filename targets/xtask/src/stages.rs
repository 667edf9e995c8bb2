//! The stages of `cargo xtask test`, in the order in which they run.
//!
//! Cargo builds a crate again when other packages are selected beside it, since features of what it depends on then
//! differ. Stages that share a folder of products therefore select the same packages, and pick tests by name.

use crate::capi;
use crate::count::{self, Ran};
use crate::cross;
use crate::house;
use crate::ptx;
use crate::readme;
use crate::seeds;
use crate::setup::{self, BARE, BOARD};
use crate::shell::{BARE_METAL, FUZZ, Output, Run, Tree, side_by_side};
use crate::standin::{self, Variant};
use crate::vision;
use std::path::Path;
use std::time::Duration;

/// One stage.
pub struct Stage {
    /// What `--only` and the summary call it.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Whether `--fast` runs it.
    pub fast: bool,
    /// Sets up what it needs, runs it and counts.
    pub run: fn(&Tree) -> Ran,
}

/// Every stage.
pub const STAGES: [Stage; 21] = [
    Stage { name: "fmt", about: "formatting", fast: true, run: fmt },
    Stage {
        name: "house",
        about: "imports without circles, files of readable length",
        fast: true,
        run: house::house,
    },
    Stage { name: "clippy", about: "lints, warnings denied", fast: true, run: clippy },
    Stage { name: "host", about: "every test on this machine", fast: true, run: host },
    Stage { name: "docs", about: "documentation, and what the README shows", fast: false, run: docs },
    Stage { name: "ptx", about: "device code, regenerated and assembled", fast: false, run: ptx::check },
    Stage { name: "no_std", about: "core and kernels linked without std", fast: false, run: no_std },
    Stage { name: "bare-metal", about: "bits of an emulated Cortex-M4F", fast: false, run: bare_metal },
    Stage {
        name: "aarch64",
        about: "tests on an emulated Cortex-A57, glibc 2.27",
        fast: false,
        run: aarch64,
    },
    Stage { name: "cross", about: "what boards get, examined and emulated", fast: false, run: cross::cross },
    Stage { name: "deploy", about: "over ssh to this machine", fast: false, run: cross::deploy },
    Stage {
        name: "miri",
        about: "core, kernels, runtime and whole calls under Miri",
        fast: false,
        run: miri,
    },
    Stage { name: "fuzz", about: "fuzz targets, briefly", fast: false, run: fuzz },
    Stage {
        name: "asan",
        about: "kernels, runtime and crossing tests, AddressSanitizer",
        fast: false,
        run: asan,
    },
    Stage { name: "robot", about: "the robot: 1,000 frames at 100 Hz under load", fast: false, run: robot },
    Stage { name: "capi", about: "C and C++ programs with the library", fast: false, run: capi::capi },
    Stage { name: "vision", about: "the C++ pipeline answers as PyTorch", fast: false, run: vision::vision },
    Stage { name: "tsan", about: "kernels and runtime, ThreadSanitizer", fast: false, run: tsan },
    Stage { name: "cuda", about: "CUDA back end through a stand-in driver", fast: false, run: cuda },
    Stage { name: "cuda-asan", about: "the same, AddressSanitizer", fast: false, run: cuda_asan },
    Stage { name: "cuda-tsan", about: "the same, ThreadSanitizer", fast: false, run: cuda_tsan },
];

const JSON: &str = "--message-format=json-render-diagnostics";
/// Instrumentation for libFuzzer, which the stable compiler has too. Overflow is checked by the profile.
const COVERAGE: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The widest instruction set of this machine for which there are kernels.
fn widest() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512dq") {
            return "avx512";
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return "avx2";
        }
    }
    if cfg!(target_arch = "aarch64") { "neon" } else { "scalar" }
}

/// Runs a command of libtest's and adds its counts.
fn tests(ran: &mut Ran, run: Run) -> Output {
    let line = run.line();
    let out = run.run();
    add_tests(ran, &line, &out);
    out
}

/// Adds the counts of a command of libtest's.
fn add_tests(ran: &mut Ran, line: &str, out: &Output) {
    let (passed, failed, ignored) = count::libtest(&out.stdout);
    ran.ignored += ignored;
    ran.add(line, out.ok, passed, failed);
}

/// Runs commands side by side, and shows what each wrote when it has ended.
fn together(runs: Vec<Run>) -> Vec<(String, Output)> {
    side_by_side(runs, |run| {
        let line = run.line();
        println!("$ {line}");
        let out = run.quiet().run();
        println!("{}{}", out.stderr, out.stdout);
        (line, out)
    })
}

/// Runs a command of cargo's that reports in JSON, and adds the local targets that it went through.
fn builds(ran: &mut Ran, run: Run) -> Output {
    let line = run.line();
    let out = run.machine().run();
    // A target that fails has no message.
    ran.add(&line, out.ok, count::built(&out.stdout).len() as u64, u64::from(!out.ok));
    out
}

fn bare_metal_run(tree: &Tree, line: &str) -> Run {
    Run::new(tree, line)
        .dir(tree.root.join(BARE_METAL))
        .arg("--target-dir")
        .arg(tree.target.join("bare-metal"))
}

fn fuzz_run(tree: &Tree, line: &str, host: &str) -> Run {
    let run = Run::new(tree, line).dir(tree.root.join(FUZZ)).env("RUSTFLAGS", COVERAGE);
    run.args("--release --target").arg(host).arg("--target-dir").arg(tree.target.join("fuzz"))
}

fn fmt(tree: &Tree) -> Ran {
    let mut ran = Ran::none("files");
    for (dir, line) in [
        (".", "cargo fmt --all -- --check --verbose"),
        (BARE_METAL, "cargo fmt -- --check --verbose"),
        (FUZZ, "cargo fmt -- --check --verbose"),
    ] {
        let run = Run::new(tree, line).dir(tree.root.join(dir)).machine();
        let line = format!("{line} (in {dir})");
        let out = run.run();
        if !out.ok {
            let chatter = ["Formatting ", "Spent ", "Using "];
            for line in out.stdout.lines().filter(|line| !chatter.iter().any(|start| line.starts_with(start)))
            {
                println!("{line}");
            }
        }
        ran.add(&line, out.ok, count::formatted(&out.stdout), u64::from(!out.ok));
    }
    ran
}

fn clippy(tree: &Tree) -> Ran {
    let unit = "targets";
    let set_up = || {
        setup::target(tree, BARE)?;
        setup::program(tree, "c++", "g++")?;
        setup::host(tree)
    };
    let mut ran = Ran::none(unit);
    let deny = |run: Run| run.args("-- -D warnings");
    builds(&mut ran, deny(Run::new(tree, "cargo clippy --workspace --all-targets").arg(JSON)));
    match set_up() {
        Ok(host) => {
            let bare = bare_metal_run(tree, "cargo clippy --release").arg(JSON);
            builds(&mut ran, deny(bare));
            let bare = bare_metal_run(tree, "cargo clippy --release").arg("--target").arg(BARE).arg(JSON);
            builds(&mut ran, deny(bare));
            builds(&mut ran, deny(fuzz_run(tree, "cargo clippy", &host).arg(JSON)));
        }
        Err(fault) => ran.faults.push(fault),
    }
    ran
}

fn host(tree: &Tree) -> Ran {
    let mut ran = Ran::none("tests");
    let run = Run::new(tree, "cargo test --workspace --no-fail-fast").env_default("ELSA_REQUIRE", widest());
    tests(&mut ran, run);
    ran
}

fn docs(tree: &Tree) -> Ran {
    Ran::of("targets", |ran| {
        let run =
            Run::new(tree, "cargo doc --no-deps --workspace").arg(JSON).env("RUSTDOCFLAGS", "-D warnings");
        builds(ran, run);
        readme::rust(tree, ran)
    })
}

/// Builds the program of `tests/bare-metal` for the Cortex-M.
fn bare_metal_build(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::target(tree, BARE)?;
    let run = bare_metal_run(tree, "cargo build --release").arg("--target").arg(BARE).arg(JSON);
    let out = builds(ran, run);
    // A target's library exists only without std, so what was built there links without it.
    let built = count::built(&out.stdout);
    for needed in ["elsa_core lib", "elsa_kernels lib", "elsa-bare-metal bin"] {
        if out.ok && !built.contains(needed) {
            return Err(format!("{needed}: not among what was linked"));
        }
    }
    if out.ok { Ok(()) } else { Err(format!("{BARE}: does not link")) }
}

fn no_std(tree: &Tree) -> Ran {
    Ran::of("targets", |ran| bare_metal_build(tree, ran))
}

fn bare_metal(tree: &Tree) -> Ran {
    let unit = "words";
    let mut build = Ran::none("targets");
    let set_up = setup::program(tree, "qemu-system-arm", "qemu-system-arm");
    if let Err(fault) = set_up.and_then(|()| bare_metal_build(tree, &mut build)) {
        return Ran::fault(unit, fault);
    }
    let program = tree.target.join("bare-metal").join(BARE).join("release/elsa-bare-metal");
    let board = Run::new(tree, "qemu-system-arm -M mps2-an386 -cpu cortex-m4 -nographic")
        .args("-semihosting-config enable=on,target=native -kernel")
        .arg(program)
        .limit(Duration::from_secs(60))
        .machine()
        .run();
    if !board.ok {
        print!("{}{}", board.stdout, board.stderr);
        return Ran::fault(unit, format!("qemu-system-arm: {}", board.how));
    }
    let host = bare_metal_run(tree, "cargo run --quiet --release").machine().run();
    if !host.ok {
        return Ran::fault(unit, format!("the same on the host: {}", host.how));
    }
    let (agree, differ, first) = count::agreement(&board.stdout, &host.stdout);
    let mut ran = Ran::none(unit);
    ran.add("comparison of the board with the host", first.is_none(), agree, differ);
    ran.faults.extend(first);
    ran
}

fn aarch64(tree: &Tree) -> Ran {
    let bin = match setup::board(tree) {
        Ok(bin) => bin,
        Err(fault) => return Ran::fault("tests", fault),
    };
    let mut ran = Ran::none("tests");
    let run = Run::new(
        tree,
        "cargo-zigbuild test --workspace --exclude xtask --exclude elsa-capi --tests --no-fail-fast",
    )
    .args(&format!("--target {BOARD}.2.27"))
    .front(bin)
    .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", setup::emulator())
    .env("ELSA_REQUIRE", "neon")
    .env_default("PROPTEST_CASES", "12");
    tests(&mut ran, run);
    ran
}

fn robot(tree: &Tree) -> Ran {
    let mut ran = Ran::none("tests");
    let set_up = || Ok((setup::digits(tree)?, standin::build(tree, Variant::Plain)?, setup::board(tree)?));
    let (digits, folder, bin) = match set_up() {
        Ok(all) => all,
        Err(fault) => return Ran::fault(ran.unit, fault),
    };
    let long = |line: &str| {
        let run = Run::new(tree, line).args("--no-fail-fast -- --include-ignored --nocapture");
        run.env("ELSA_DIGITS", &digits).env_default("ELSA_ROBOT_FRAMES", "1000")
    };
    let run = long("cargo test --workspace --test robot --test heldout");
    let misses = count::value(&tests(&mut ran, run).stdout, "deadline_misses");
    ran.note =
        misses.map_or_else(|| "no deadline misses told".to_owned(), |n| format!("{n} deadlines missed"));
    let run = long("cargo test --workspace --test heldout --test model --test robot_*");
    tests(&mut ran, with_standin(run, &folder));
    let run = Run::new(
        tree,
        "cargo-zigbuild test --workspace --exclude xtask --exclude elsa-capi --test robot --test heldout",
    )
    .args(&format!("--target {BOARD}.2.27 -- --include-ignored every_ the_program"))
    .front(bin)
    .env("ELSA_DIGITS", &digits)
    .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", setup::emulator());
    tests(&mut ran, run);
    ran
}

fn miri(tree: &Tree) -> Ran {
    let mut ran = Ran::none("tests");
    if let Err(fault) = setup::nightly(tree, &["miri", "rust-src"]) {
        return Ran::fault(ran.unit, fault);
    }
    // Made once, before several commands want it.
    if !Run::new(tree, "cargo +nightly miri setup").run().ok {
        return Ran::fault(ran.unit, "cargo +nightly miri setup: failed".to_owned());
    }
    // Each is one thread; the longest first.
    let lines = [
        // Whole calls through the engine.
        "cargo +nightly miri test -p elsa-tests --test small_calls --no-fail-fast -- calls_agree",
        "cargo +nightly miri test -p elsa-tests --test small_calls --no-fail-fast -- --skip calls_agree",
        "cargo +nightly miri test -p elsa-core --lib --tests --no-fail-fast",
        "cargo +nightly miri test -p elsa-kernels --tests --no-fail-fast",
        // Miri maps no files.
        "cargo +nightly miri test -p elsa-runtime --lib --no-fail-fast -- --skip mapped",
    ];
    let run = |line: &str| {
        // Without isolation the variables below reach the tests, and proptest finds its folder.
        Run::new(tree, line)
            .env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-deterministic-floats")
            .env("ELSA_REQUIRE", "scalar")
            .env("ELSA_BACKEND", "scalar")
            .env_default("PROPTEST_CASES", "4")
    };
    for (line, out) in together(lines.map(run).into()) {
        add_tests(&mut ran, &line, &out);
    }
    ran
}

/// The names of the files in `dir`, without their extension, in order.
fn names(dir: &Path) -> Result<Vec<String>, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

fn fuzz(tree: &Tree) -> Ran {
    let mut ran = Ran::none("fuzz targets");
    let set_up = || {
        setup::program(tree, "c++", "g++")?;
        let host = setup::host(tree)?;
        let names = names(&tree.root.join(FUZZ).join("src/bin"))?;
        let out = fuzz_run(tree, "cargo build --bins", &host).run();
        if out.ok { Ok((host, names)) } else { Err(format!("the fuzz targets do not build: {}", out.how)) }
    };
    let (host, names) = match set_up() {
        Ok(both) => both,
        Err(fault) => return Ran::fault(ran.unit, fault),
    };
    let seconds = std::env::var("ELSA_FUZZ_SECONDS").ok().and_then(|x| x.parse().ok()).unwrap_or(10u64);
    let (mut ready, mut runs) = (Vec::new(), Vec::new());
    for name in names {
        let folder = |what: &str| tree.target.join("fuzz").join(what).join(&name);
        let (corpus, start) = (folder("corpus"), folder("seeds"));
        let artifacts = tree.root.join(FUZZ).join("artifacts").join(&name);
        let make = || {
            for dir in [&corpus, &start, &artifacts] {
                std::fs::create_dir_all(dir)?;
            }
            for (i, seed) in seeds::of(&name).into_iter().enumerate() {
                std::fs::write(start.join(format!("{i:03}")), seed)?;
            }
            Ok(())
        };
        if let Err(error) = make() {
            let error: std::io::Error = error;
            ran.faults.push(format!("{name}: folders for its inputs: {error}"));
            continue;
        }
        let mut prefix = std::ffi::OsString::from("-artifact_prefix=");
        prefix.push(artifacts.join(""));
        let run = Run::new(tree, "")
            .arg(tree.target.join("fuzz").join(&host).join("release").join(&name))
            .args(&format!("-max_total_time={seconds} -max_len=4096 -timeout=20 -rss_limit_mb=2048 -seed=1"))
            .args("-print_final_stats=1 -verbosity=0")
            .arg(prefix)
            .arg(&corpus)
            .arg(&start)
            .limit(Duration::from_secs(seconds + 120));
        ready.push(name);
        runs.push(run);
    }
    let mut executions = 0;
    for (name, (_, out)) in ready.iter().zip(together(runs)) {
        let done = count::executions(&out.stderr);
        executions += done;
        ran.add(name, out.ok, u64::from(out.ok && done > 0), u64::from(!out.ok));
    }
    ran.note = format!("{executions} executions");
    ran
}

/// A command of cargo's with a sanitizer of the nightly compiler, for the packages that work with raw memory. Its
/// functions are exported, so that the stand-in driver, when it is opened, finds them.
fn sanitized(tree: &Tree, sanitizer: &str, options: &str, host: &str) -> Run {
    // What follows the two dashes is for the tests.
    let (for_cargo, for_tests) = options.split_once(" -- ").unwrap_or((options, ""));
    let run =
        Run::new(tree, "cargo +nightly test --no-fail-fast -p elsa-kernels -p elsa-runtime -p elsa-tests")
            .args(for_cargo)
            .args(&format!("--target {host} --target-dir"))
            .arg(tree.target.join(sanitizer))
            .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer} -Clink-arg=-Wl,--export-dynamic"))
            .env_default("PROPTEST_CASES", "16");
    if for_tests.is_empty() { run } else { run.args("--").args(for_tests) }
}

/// The tests of some packages, built with a sanitizer of the nightly compiler.
fn sanitize(tree: &Tree, sanitizer: &str, options: &str) -> Ran {
    let mut ran = Ran::none("tests");
    let host = match setup::nightly(tree, &["rust-src"]).and_then(|()| setup::host(tree)) {
        Ok(host) => host,
        Err(fault) => return Ran::fault(ran.unit, fault),
    };
    let run = sanitized(tree, sanitizer, options, &host);
    tests(&mut ran, run.env_default("ELSA_REQUIRE", widest()));
    ran
}

fn asan(tree: &Tree) -> Ran {
    sanitize(tree, "address", "--tests")
}

fn tsan(tree: &Tree) -> Ran {
    // The standard library must be instrumented too, or its locks are taken for races.
    sanitize(tree, "thread", "-Zbuild-std --lib")
}

/// The environment in which a program finds the stand-in driver of `folder`, and no other.
fn with_standin(run: Run, folder: &Path) -> Run {
    run.env("LD_LIBRARY_PATH", folder).env("ELSA_STANDIN", folder).env("ELSA_REQUIRE", "cuda")
}

fn cuda(tree: &Tree) -> Ran {
    let mut ran = Ran::none("tests");
    let folder = match standin::build(tree, Variant::Plain) {
        Ok(folder) => folder,
        Err(fault) => return Ran::fault(ran.unit, fault),
    };
    for line in [
        "cargo test --workspace --test conformance --test determinism --test no_allocation --test cuda_* \
         --no-fail-fast -- --include-ignored --skip scale_",
        "cargo test --workspace --lib --no-fail-fast -- --include-ignored cuda:: --test-threads 1",
    ] {
        tests(&mut ran, with_standin(Run::new(tree, line), &folder));
    }
    // A device with room for many parts of the keys.
    let large = Run::new(
        tree,
        "cargo test --workspace --test cuda_conformance --no-fail-fast -- --include-ignored every_kernel",
    )
    .env("ELSA_STANDIN_DEVICE", "large");
    tests(&mut ran, with_standin(large, &folder));
    // Every flag of the tool, with the GPU in the place of the CPU.
    let tool =
        Run::new(tree, "cargo test --workspace --test cli_run --no-fail-fast").env("ELSA_BACKEND", "cuda");
    tests(&mut ran, with_standin(tool, &folder));
    ran
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
        Err(fault) => return Ran::fault(ran.unit, fault),
    };
    // The larger device divides keys into more parts.
    for (line, device) in [
        ("--lib -- --include-ignored cuda:: --test-threads 1", ""),
        ("--test cuda_conformance -- --include-ignored random", "large"),
        ("--test cuda_sanitized -- --include-ignored", ""),
    ] {
        let run = sanitized(tree, variant.name(), &format!("{options} {line}"), &host);
        let run = run.env("ELSA_STANDIN_DEVICE", device);
        tests(&mut ran, with_standin(run, &folder));
    }
    ran
}

fn cuda_asan(tree: &Tree) -> Ran {
    cuda_sanitized(tree, Variant::Address, "")
}

fn cuda_tsan(tree: &Tree) -> Ran {
    cuda_sanitized(tree, Variant::Thread, "-Zbuild-std")
}
