//! The stages that run cargo over the workspaces: formatting, lints, tests, documentation, other machines, Miri.
//!
//! Cargo builds a crate again when other packages are selected beside it, since features of what it depends on then
//! differ. Stages that share a folder of products therefore select the same packages, and pick tests by name.

use super::cargo::{JSON, add_tests, builds, tests, together, widest, with_standin};
use super::fuzz::fuzz_run;
use super::sanitizers::CORE_ALONE;
use super::{groups, printed, readme};
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup::{self, BARE};
use crate::shell::{BARE_METAL, FUZZ, Run, Tree};
use std::time::Duration;

fn bare_metal_run(tree: &Tree, line: &str) -> Run {
    Run::new(tree, line)
        .dir(tree.root.join(BARE_METAL))
        .arg("--target-dir")
        .arg(tree.target.join("bare-metal"))
}

/// The stage `fmt`.
pub fn fmt(tree: &Tree) -> Ran {
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
        ran.add(&line, out.ok, printed::formatted(&out.stdout), u64::from(!out.ok));
    }
    ran
}

/// The stage `clippy`.
pub fn clippy(tree: &Tree) -> Ran {
    let counted = "targets";
    let set_up = || {
        setup::target(tree, BARE)?;
        setup::program(tree, "c++", "g++")?;
        setup::host(tree)
    };
    let mut ran = Ran::none(counted);
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

/// The stage `host`.
pub fn host(tree: &Tree) -> Ran {
    let mut ran = Ran::none("tests");
    let run = Run::new(tree, "cargo test --workspace --no-fail-fast").env_default("ELSA_REQUIRE", widest());
    tests(&mut ran, run);
    match groups::folder() {
        Ok(folder) => {
            let line = "cargo test --workspace --test tool --no-fail-fast -- --ignored cli_groups::";
            tests(&mut ran, Run::new(tree, line).env("ELSA_TEST_GROUPS", folder));
        }
        Err(why) => ran.note = format!("not run: control groups ({why})"),
    }
    ran
}

/// The stage `docs`.
pub fn docs(tree: &Tree) -> Ran {
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
    // The target has no std, so what was built for it links without one.
    let built = printed::built(&out.stdout);
    for needed in ["elsa_core lib", "elsa_kernels lib", "elsa-bare-metal bin"] {
        if out.ok && !built.contains(needed) {
            return Err(format!("{needed}: not among what was linked"));
        }
    }
    if out.ok { Ok(()) } else { Err(format!("{BARE}: does not link")) }
}

/// The stage `no_std`.
pub fn no_std(tree: &Tree) -> Ran {
    Ran::of("targets", |ran| bare_metal_build(tree, ran))
}

/// The stage `bare-metal`.
pub fn bare_metal(tree: &Tree) -> Ran {
    let counted = "words";
    let mut build = Ran::none("targets");
    let set_up = setup::program(tree, "qemu-system-arm", "qemu-system-arm");
    if let Err(fault) = set_up.and_then(|()| bare_metal_build(tree, &mut build)) {
        return Ran::fault(counted, fault);
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
        return Ran::fault(counted, format!("qemu-system-arm: {}", board.how));
    }
    let host = bare_metal_run(tree, "cargo run --quiet --release").machine().run();
    if !host.ok {
        return Ran::fault(counted, format!("the same on the host: {}", host.how));
    }
    let (agree, differ, first) = printed::agreement(&board.stdout, &host.stdout);
    let mut ran = Ran::none(counted);
    ran.add("comparison of the board with the host", first.is_none(), agree, differ);
    ran.faults.extend(first);
    ran
}

/// The stage `aarch64`. Some tests are left out: those that call nothing but `core`, whose code is the same for every
/// processor and whose bits the stage `bare-metal` compares; those about times, files, models, flags, refusals, ports, memory and
/// statistics of the tool, whose benchmark the stage `cross` emulates; and the robot's, which the stage `robot` emulates. The kernels without
/// vectors are the same everywhere, too, and answer random problems.
pub fn aarch64(tree: &Tree) -> Ran {
    Ran::of("tests", |ran| {
        let tool = [
            "cli_backward::bad_",
            "cli_backward::examples_",
            "cli_backward_tasks::",
            "cli_bad_input::",
            "cli_bench::",
            "cli_files::",
            "cli_linear_bench::bad_",
            "cli_linear_series::bad_",
            "cli_linear_verify::wrong_",
            "cli_listen::",
            "cli_memory::",
            "cli_onnx::",
            "cli_predict::",
            "cli_resume::",
            "cli_stream::",
            "cli_tasks::",
            "cli_traversal::numbers_",
            "cli_tune::",
            "cli_usage::",
            "cli_windows::what_does_not_fit",
            "program::",
            "simulate::",
            "tensor::",
            "verify::depth::",
            "verify::judge::",
        ];
        let skipped = CORE_ALONE.iter().chain(&tool);
        let core: String = skipped.map(|module| format!(" --skip {module}")).collect();
        let line = "test --workspace --exclude xtask --exclude elsa-capi --no-fail-fast";
        let random = " conformance::random".to_owned();
        for (only, targets, which) in [("neon", "--tests", core), ("scalar", "--test crossing", random)] {
            let run = setup::zigbuild(tree, &format!("{line} {targets}"))?.args(&format!("--{which}"));
            let run = run.env("ELSA_REQUIRE", "neon").env("ELSA_ONLY", only);
            tests(ran, run.env_default("PROPTEST_CASES", "12"));
        }
        Ok(())
    })
}

/// The stage `robot`.
pub fn robot(tree: &Tree) -> Ran {
    Ran::of("tests", |ran| {
        let (digits, folder) = (setup::digits(tree)?, standin::build(tree, Variant::Plain)?);
        let line = "test --workspace --exclude xtask --exclude elsa-capi --test robot";
        let emulated = setup::zigbuild(tree, line)?;
        let long = |line: &str| {
            let run = Run::new(tree, line).args("--no-fail-fast -- --include-ignored --nocapture");
            run.env("ELSA_DIGITS", &digits).env_default("ELSA_ROBOT_FRAMES", "1000")
        };
        let run = long("cargo test --workspace --test robot").args("program:: heldout::");
        let misses = printed::value(&tests(ran, run).stdout, "deadline_misses");
        ran.note = misses
            .map_or_else(|| "no deadline misses reported".to_owned(), |n| format!("{n} deadlines missed"));
        let run =
            long("cargo test --workspace --test robot --test no_frame_allocates").args("--skip program::");
        tests(ran, with_standin(run, &folder));
        let emulated = emulated.args("-- --include-ignored program::every_ heldout::");
        tests(ran, emulated.env("ELSA_DIGITS", &digits));
        Ok(())
    })
}

/// The stage `miri`.
pub fn miri(tree: &Tree) -> Ran {
    let mut ran = Ran::none("tests");
    if let Err(fault) = setup::nightly(tree, &["miri", "rust-src"]) {
        return Ran::fault(ran.counted, fault);
    }
    // Made once, before several commands need it.
    if !Run::new(tree, "cargo +nightly miri setup").run().ok {
        return Ran::fault(ran.counted, "cargo +nightly miri setup: failed".to_owned());
    }
    // Each is one thread; the longest first.
    let lines = [
        // Whole calls through the engine.
        "cargo +nightly miri test -p elsa-tests --test crossing --no-fail-fast -- small_calls::calls_agree",
        "cargo +nightly miri test -p elsa-tests --test crossing --no-fail-fast -- small_calls --skip calls_agree",
        // It forbids unsafe; what counts and compares for long is left to the stage `host`.
        "cargo +nightly miri test -p elsa-core --lib --tests --no-fail-fast -- --skip quorum:: --skip model:: \
         --skip backward:: --skip plan:: --skip rounding:: --skip certified::",
        "cargo +nightly miri test -p elsa-kernels --tests --no-fail-fast",
        // Miri maps no files. The others that are left out have no unsafe code.
        "cargo +nightly miri test -p elsa-runtime --lib --no-fail-fast -- --skip mapped --skip predict --skip tuned \
         --skip steps:: --skip guard::",
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

/// The stage `cuda`.
pub fn cuda(tree: &Tree) -> Ran {
    let mut ran = Ran::none("tests");
    let folder = match standin::build(tree, Variant::Plain) {
        Ok(folder) => folder,
        Err(fault) => return Ran::fault(ran.counted, fault),
    };
    // One test of a process after the other: the stand-in refuses to free page-locked memory while any work is under way.
    // Sizes of blocks are the processor's.
    let lines = [
        "cargo test --workspace --test crossing --no-fail-fast -- --include-ignored conformance:: \
         --skip every_block_size --test-threads 1",
        "cargo test --workspace --test crossing --test no_allocation --no-fail-fast -- --include-ignored \
         hostile:: certified:: windows:: determinism:: append:: chunks:: tasks:: cuda_ run_and_bind --skip scale_ \
         --skip cuda_conformance:: --test-threads 1",
        "cargo test --workspace --lib --no-fail-fast -- --include-ignored cuda:: --test-threads 1",
    ];
    // The stage `host` goes over the processor's back ends.
    let run = |line: &str| with_standin(Run::new(tree, line).env("ELSA_ONLY", "cuda"), &folder);
    for (line, out) in together(lines.map(run).into()) {
        add_tests(&mut ran, &line, &out);
    }
    // A device with room for many splits of the keys.
    let large = Run::new(
        tree,
        "cargo test --workspace --test crossing --no-fail-fast -- --include-ignored cuda_conformance::every_kernel",
    )
    .env("ELSA_STANDIN_DEVICE", "large");
    tests(&mut ran, with_standin(large, &folder));
    // Every flag of the tool, with the GPU in place of the CPU.
    let tool = Run::new(
        tree,
        "cargo test --workspace --test tool --no-fail-fast -- --include-ignored cli_run:: cli_tune:: cli_stream::a_gpu \
         cli_resume::a_gpu",
    )
    .env("ELSA_BACKEND", "cuda");
    tests(&mut ran, with_standin(tool, &folder));
    ran
}
