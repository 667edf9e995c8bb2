//! The project's own commands, run as `cargo xtask …` anywhere in the tree.
//!
//! `cargo xtask test` installs what it needs, runs every stage below, and ends with one line per stage and
//! a line `N passed, N failed`. A stage fails when a command of it fails and when one of them ran nothing.
//! `--fast` runs the first three, `--only STAGE,…` any, `--list` names them. Each command is printed before
//! it runs, with the variables that matter, so that it can be run by itself.
//!
//! | stage | what it does | by itself |
//! |---|---|---|
//! | `fmt` | formatting of the three workspaces | `cargo fmt --all --check` |
//! | `clippy` | lints of the three workspaces, warnings denied | `cargo clippy --workspace --all-targets -- -D warnings` |
//! | `host` | every test on this machine | `cargo test --workspace` |
//! | `docs` | documentation, warnings denied; the README's quick start of Rust | `RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace` |
//! | `ptx` | the device code compiled again and compared; no spills, no newer PTX than CUDA 10.2 loads | `cargo xtask ptx --check` |
//! | `no_std` | links `core` and `kernels` for a machine without an operating system | `cargo build --release --target thumbv7em-none-eabihf` in `tests/bare-metal` |
//! | `bare-metal` | runs that on an emulated Cortex-M4F and compares bits with the host | `cargo xtask test --only bare-metal` |
//! | `aarch64` | the tests, built for glibc 2.27, on an emulated Cortex-A57 | `cargo-zigbuild test --target aarch64-unknown-linux-gnu.2.27 --workspace --exclude elsa-capi --tests` |
//! | `miri` | the tests of `core` and `kernels`, and the unit tests of `runtime`, under Miri | `cargo +nightly miri test -p elsa-core` |
//! | `fuzz` | every target of `tests/fuzz/src/bin` for some seconds | `cargo xtask test --only fuzz` |
//! | `cross` | what boards get: built, examined, linked against, run by emulation | `cargo xtask build --target jetson-tx2` |
//! | `deploy` | deploys over ssh to this machine, and what must be refused is | `cargo xtask deploy --target host USER@localhost` |
//! | `asan` | `kernels`, `runtime` and the crossing tests under AddressSanitizer | `cargo xtask test --only asan` |
//! | `robot` | `examples/robot`: 1,000 frames at 100 Hz beside two busy threads, with a stand-in GPU that dies, PyTorch's answers, and the same built for the board | `cargo test -p elsa-robot` |
//! | `capi` | C and C++ programs against the library as users get it: gcc, clang, CMake, pkg-config, sanitizers, valgrind | `cargo xtask test --only capi` |
//! | `vision` | `examples/cpp-vision` beside what PyTorch answered: here, through the stand-in driver, on an emulated board | `cargo xtask test --only vision` |
//! | `tsan` | the unit tests of `runtime` under ThreadSanitizer | `cargo xtask test --only tsan` |
//! | `cuda` | the CUDA back end through the stand-in driver of `tests/standin`: every semantic, every fault, the tool | `cargo xtask test --only cuda` |
//! | `cuda-asan` | kernels and back end through the stand-in driver under AddressSanitizer | `cargo xtask test --only cuda-asan` |
//! | `cuda-tsan` | the same under ThreadSanitizer | `cargo xtask test --only cuda-tsan` |
//!
//! Variables. `ELSA_REQUIRE` tells the tests which instruction set must really run (`avx512`, `avx2`,
//! `neon` or `scalar`); a stage sets it unless it is set. `PROPTEST_CASES` is lowered where a case is slow.
//! `ELSA_FUZZ_SECONDS` is the time of each fuzz target (default 10), `ELSA_ROBOT_FRAMES` the length of the
//! robot's long runs. Programs that a test starts under
//! emulation need the runner that cargo itself uses,
//! `CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER`, in front.
//!
//! Besides the stages:
//!
//! | command | what it does |
//! |---|---|
//! | `gpu-test` | makes `target/gpu-test`, which `sh run.sh` runs on any machine with an NVIDIA driver |
//! | `standin` | builds the stand-in driver and prints its folder, for `LD_LIBRARY_PATH` and `ELSA_STANDIN` |
//! | `fingerprint` | hashes of all bits of all back ends, here, emulated and on the stand-in GPU, to be compared between commits |
//!
//! For boards: `build` makes the folder `target/dist/NAME` and checks what is in it, `deploy` brings it to a board
//! and its measurements back. Measuring, apart from the tests:
//!
//! | command | what it does |
//! |---|---|
//! | `peers` | this library beside PyTorch and ONNX Runtime (`runtime/benches`), in an environment that it makes |
//! | `count` | instructions of an attention call on an emulated Cortex-A57, per useful vector FMA |
//! | `mca` | what LLVM's model of the Cortex-A57 says of the product loops of the NEON kernel |
//!
//! `ptx` regenerates `kernels/ptx` from `kernels/cuda` and prints what each kernel takes.
//!
//! A new fuzz target is a file in `tests/fuzz/src/bin`; a new bare-metal case is a line of `CASES` in
//! `tests/bare-metal/src/vectors.rs`; a new test is found by cargo.
#![forbid(unsafe_code)]

mod bad;
mod build;
mod capi;
mod check;
mod count;
mod cross;
mod deploy;
mod fingerprint;
mod gpu_test;
mod neon;
mod peers;
mod ptx;
mod readme;
mod seeds;
mod setup;
mod shell;
mod stages;
mod standin;
mod vision;

use clap::{Parser, Subcommand};
use shell::Tree;
use stages::{STAGES, Stage};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need, run them in stages, and count what ran.
    Test {
        /// Only formatting, lints and the tests on this machine.
        #[arg(long, conflicts_with = "only")]
        fast: bool,
        /// Only these stages.
        #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = STAGES.map(|stage| stage.name))]
        only: Vec<String>,
        /// Name the stages and run nothing.
        #[arg(long)]
        list: bool,
    },
    /// Make a folder that tests the CUDA back end on any machine with an NVIDIA driver.
    GpuTest,
    /// Build the stand-in CUDA driver and print the folder to put in LD_LIBRARY_PATH.
    Standin {
        /// How.
        #[arg(default_value = "plain")]
        variant: standin::Variant,
    },
    /// Hash the bits of all answers of all back ends, to be compared between two commits on one machine.
    Fingerprint {
        /// The file to write; target/fingerprint.txt unless it is given.
        file: Option<PathBuf>,
    },
    /// Measure this library beside PyTorch, ONNX Runtime and sgemm, after installing them privately.
    Peers {
        /// Draw GFLOP/s and the ratio to the best peer against the number of tokens, as SVG, into this folder.
        #[arg(long, value_name = "DIR")]
        plot: Option<PathBuf>,
        /// What the benchmark takes: `--threads N`, `--rounds N`, `--dtype T`, `--backend NAME`, `--json`,
        /// `[batch,]heads,queries,keys,d`…
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Count the instructions of one attention call on an emulated Cortex-A57, and estimate its speed there.
    Count {
        /// Shapes to count.
        #[arg(value_name = "HEADS,TOKENS,D", default_values = ["1,64,64", "1,196,64", "1,576,64"])]
        shapes: Vec<String>,
    },
    /// Compile the device code to PTX, and say what each kernel takes.
    Ptx {
        /// Write nothing, and fail where the tree holds something else.
        #[arg(long)]
        check: bool,
    },
    /// Ask LLVM's model of the Cortex-A57 about the product loops of the NEON kernel.
    Mca,
    /// Build the tool and the C library for a board, or for this machine, into target/dist/NAME, and check them.
    Build {
        /// What to build for.
        #[arg(long, value_parser = build::Target::names())]
        target: String,
        /// Precompile GPU kernels for the board's GPU, where ptxas is at hand.
        #[arg(long)]
        cubins: bool,
    },
    /// Build, copy to a board over ssh, verify and measure there, and bring the measurements back.
    Deploy(deploy::Arguments),
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let tree = match Tree::find() {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::from(2);
        }
    };
    let done = match command {
        Command::Test { list: true, .. } => {
            for stage in STAGES {
                println!("{:<12}{}", stage.name, stage.about);
            }
            Ok(())
        }
        Command::Test { fast, only, .. } => return test(&tree, fast, &only),
        Command::GpuTest => gpu_test::make(&tree),
        Command::Standin { variant } => {
            standin::build(&tree, variant).map(|dir| println!("{}", dir.display()))
        }
        Command::Fingerprint { file } => {
            fingerprint::run(&tree, &file.unwrap_or_else(|| tree.target.join("fingerprint.txt")))
        }
        Command::Peers { plot, arguments } => peers::run(&tree, plot.as_deref(), &arguments),
        Command::Count { shapes } => neon::count(&tree, &shapes),
        Command::Ptx { check: false } => ptx::write(&tree),
        Command::Ptx { check: true } => return test(&tree, false, &["ptx".to_owned()]),
        Command::Mca => neon::mca(&tree),
        Command::Build { target, cubins } => build::run(&tree, &target, cubins),
        Command::Deploy(arguments) => deploy::run(&tree, &arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("xtask: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn test(tree: &Tree, fast: bool, only: &[String]) -> ExitCode {
    let wanted = |stage: &Stage| {
        if only.is_empty() { !fast || stage.fast } else { only.iter().any(|x| x == stage.name) }
    };
    let mut lines = Vec::new();
    let (mut passed, mut failed) = (0, 0);
    for stage in STAGES.iter().filter(|stage| wanted(stage)) {
        println!("\n[{}] {}", stage.name, stage.about);
        let start = Instant::now();
        let ran = (stage.run)(tree).close();
        for fault in &ran.faults {
            println!("[{}] failed: {fault}", stage.name);
        }
        let ok = ran.faults.is_empty();
        passed += ran.passed;
        // A stage that failed before any of its tests could counts as one.
        failed += ran.failed.max(u64::from(!ok));
        let result = if ok { "ok" } else { "FAILED" };
        let seconds = start.elapsed().as_secs_f64();
        lines.push(format!("{:<12}{result:<8}{:<44}{seconds:>8.1} s", stage.name, ran.summary()));
    }
    println!();
    for line in lines {
        println!("{line}");
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
