//! The project's own commands, run as `cargo xtask …` anywhere in the tree.
//!
//! `cargo xtask test` installs what it needs, runs the stages of the short run, and ends with a line for each and
//! a line `N passed, N failed`; `--all` runs every stage, `--list` names them (`test/stages.rs`). `--prove` plants the
//! faults of `tests/faults`, each of which must turn its stage red. A stage fails when one of
//! its commands fails or runs nothing. Its log has each command as it can be repeated, with the variables that matter.
//!
//! Variables. `ELSA_REQUIRE` names the instruction set that the tests must run (`avx512`, `avx2`,
//! `neon` or `scalar`); a stage sets it unless it is set. `ELSA_ONLY` names the one back end that tests go over.
//! `PROPTEST_CASES` is lowered where a case is slow. Under emulation, programs that a test starts need the runner that cargo
//! itself uses, `CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER`, in front.
//!
//! Besides the stages:
//!
//! | command | what it does |
//! |---|---|
//! | `docs` | builds the guide of `docs/src` with mdBook and opens it |
//! | `gpu-test` | makes `target/gpu-test`, which `sh run.sh` runs on any machine with an NVIDIA driver |
//! | `gpu-bench` | makes `target/gpu-bench`, which `sh run.sh` measures there, beside PyTorch where that is installed |
//! | `standin` | builds the stand-in driver and prints its folder, for `LD_LIBRARY_PATH` and `ELSA_STANDIN` |
//! | `hunt` | hunts for an error beyond its bound, for `--seconds N` or over `--rows N`, of schedules alone with `--schedules`; `--tightness` measures the bounds |
//! | `abi` | compares the list of everything that programs have compiled into them with `elsa.h`; `--write` writes it |
//! | `fingerprint` | hashes of all bits of all back ends, here, emulated and on the stand-in GPU, to be compared between commits |
//!
//! For boards: `build` makes the folder `target/dist/NAME` and checks what is in it, `deploy` brings it to a board
//! and its measurements back. Measuring, apart from the tests:
//!
//! | command | what it does |
//! |---|---|
//! | `peers` | this library beside PyTorch and ONNX Runtime (`runtime/cli/benches/peers`), in an environment that it makes |
//! | `models` | exported models in ONNX Runtime, original and rewritten in turn: nodes replaced, time, error; `elsa.py` with torch |
//! | `stream-figures` | streamed runs: peaks within budgets, speed beside runs in memory, a large file, the model of costs |
//! | `count` | instructions of an attention call on an emulated Cortex-A57, per useful vector FMA |
//!
//! `ptx` regenerates `kernels/ptx` from `kernels/cuda`, and from the machine code of a Jetson TX2 the table of what each
//! kernel costs there, and prints both; `ptx --costs` writes the table alone.
//!
//! A new fuzz target is a file in `tests/fuzz/src/bin`; a new bare-metal case is a line of `CASES` in
//! `tests/bare-metal/src/vectors.rs`; a new test is found by
//! cargo, a new file of tests is a module of the crate's program of tests.
#![forbid(unsafe_code)]

mod boards;
mod c_programs;
mod docs;
mod files;
mod gpu;
mod measure;
mod ran;
mod setup;
mod shell;
mod test;

use boards::target::Target;
use boards::{build, deploy};
use clap::{Parser, Subcommand};
use gpu::{gpu_bench, gpu_test, ptx, standin};
use measure::{count, fingerprint, models, peers, stream};
use shell::Tree;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need, run them in stages, and count what ran.
    #[command(after_long_help = test::list())]
    Test(test::Arguments),
    /// Build the guide with mdBook into target/guide, and open it.
    Docs {
        /// Build it only.
        #[arg(long)]
        no_open: bool,
    },
    /// Compare the list of the ABI with the header.
    Abi(test::capi::abi::Write),
    /// Make a folder that tests the CUDA back end on any machine with an NVIDIA driver.
    GpuTest,
    /// Make a folder that measures attention on any machine with an NVIDIA driver, beside PyTorch where that is installed.
    GpuBench,
    /// Build the stand-in CUDA driver and print the folder to put in LD_LIBRARY_PATH.
    Standin {
        /// Sanitizer, and how the threads of a block run.
        #[arg(default_value = "plain")]
        variant: standin::Variant,
    },
    /// Hash the bits of all answers of all back ends, to be compared between two commits on one machine.
    Fingerprint {
        /// The file to write; target/fingerprint.txt unless it is given.
        file: Option<PathBuf>,
    },
    /// Hunt for an error beyond its bound, over all back ends of this machine.
    Hunt {
        /// What the hunt takes: `--seconds N`, `--rows N`, `--seed N`, `--schedules`, `--tightness`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measure this library beside PyTorch, ONNX Runtime and sgemm, after installing them privately.
    Peers {
        /// Draw speeds and ratios to peers against the number of tokens, as SVG, into this folder.
        #[arg(long, value_name = "DIR")]
        plot: Option<PathBuf>,
        /// What the benchmark takes: `--threads N`, `--rounds N`, `--dtype T`, `--backend NAME`, `--json`,
        /// `--markdown`, shapes as of `elsa bench --shape`, the sets `plain`, `masks`, `causal` and `swin`. After a first
        /// `linear`, what that of linear attention takes: RULE,HEADS,TOKENS,D, `--form F`, `--chunk N`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Compare whole models in ONNX Runtime, as exported and as `elsa onnx rewrite` leaves them, after exporting them.
    Models {
        /// Threads of the sessions.
        #[arg(long, default_value = "1,2")]
        threads: String,
        /// Runs of each model.
        #[arg(long, default_value_t = 21)]
        rounds: u32,
        /// The processor's time in place of elapsed time: other programs of the machine disturb it less.
        #[arg(long)]
        cpu: bool,
        /// Only models whose names have all of these, such as `swin_tiny-` or `-17`.
        words: Vec<String>,
    },
    /// Measure streamed runs: peaks within budgets, speed beside runs in memory, a large file.
    StreamFigures(stream::Arguments),
    /// Count the instructions of one attention call on an emulated Cortex-A57, and estimate its speed there.
    Count {
        /// Shapes to count.
        #[arg(value_name = "HEADS,TOKENS,D", default_values = ["1,64,64", "1,196,64", "1,576,64"])]
        shapes: Vec<String>,
    },
    /// Compile the device code to PTX and print the resources of each kernel.
    Ptx {
        /// Write only the table of costs, from the PTX that the tree holds.
        #[arg(long)]
        costs: bool,
    },
    /// Build the tool and the C library for a board, or for this machine, into target/dist/NAME, and check them.
    Build {
        /// What to build for.
        #[arg(long, value_parser = Target::names())]
        target: String,
        /// Precompile GPU kernels for the board's GPU, which needs ptxas.
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
        Command::Test(asked) => return test::run(&tree, &asked),
        Command::Abi(write) => test::capi::abi::run(&tree, write),
        Command::Docs { no_open } => docs::run(&tree, !no_open),
        Command::GpuTest => gpu_test::make(&tree),
        Command::GpuBench => gpu_bench::make(&tree),
        Command::Standin { variant } => {
            standin::build(&tree, variant).map(|dir| println!("{}", dir.display()))
        }
        Command::Fingerprint { file } => {
            fingerprint::run(&tree, &file.unwrap_or_else(|| tree.target.join("fingerprint.txt")))
        }
        Command::Hunt { arguments } => test::bounds::hunt(&tree, &arguments),
        Command::Peers { plot, arguments } => peers::run(&tree, plot.as_deref(), &arguments),
        Command::Models { threads, rounds, cpu, words } => {
            let mut arguments = vec!["--threads".to_owned(), threads, format!("--rounds={rounds}")];
            arguments.extend(cpu.then(|| "--cpu".to_owned()));
            models::run(&tree, &words, &arguments)
        }
        Command::StreamFigures(arguments) => stream::run(&tree, arguments),
        Command::Count { shapes } => count::run(&tree, &shapes),
        Command::Ptx { costs: true } => ptx::write_costs(&tree),
        Command::Ptx { costs: false } => ptx::write(&tree),
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
