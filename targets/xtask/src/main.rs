//! Commands for developing this project, run as `cargo xtask …` anywhere in the tree.
//!
//! `cargo xtask test` installs its requirements, runs the stages of the short run, and ends with one line per stage and
//! a line `N passed, N failed`. `--all` runs every stage; `--list` lists them (`test/stages.rs`). `--prove` plants the
//! faults of `tests/faults` and requires that each turns its stage red. A stage fails when one of its commands fails or
//! runs nothing. The log of a stage contains each command, with the relevant environment variables, in a form that can
//! be run again.
//!
//! Environment variables: `ELSA_REQUIRE` names the instruction set that the tests must run (`avx512`, `avx2`, `neon` or
//! `scalar`); a stage sets it if the user has not set it. `ELSA_ONLY` restricts tests to one back end. Stages lower
//! `PROPTEST_CASES` for tests whose cases are slow. Under emulation, programs started by a test need the prefix of
//! cargo's own runner, `CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER`.
//!
//! Other commands:
//!
//! | command | effect |
//! |---|---|
//! | `docs` | builds the guide of `docs/src` with mdBook and opens it |
//! | `gpu-test` | creates `target/gpu-test`; `sh board-day.sh --only gpu` in it tests the GPU of any machine |
//! | `gpu-bench` | creates `target/gpu-bench`; `sh run.sh` measures there, compared with PyTorch if installed |
//! | `standin` | builds the stand-in driver and prints its folder, for `LD_LIBRARY_PATH` and `ELSA_STANDIN` |
//! | `hunt` | searches for an error beyond its bound, for `--seconds N` or over `--rows N`; `--schedules` restricts the search to schedules, `--tightness` measures the bounds |
//! | `abi` | compares the parts of `elsa.h` compiled into programs with the committed list; `--write` writes the list |
//! | `fingerprint` | hashes all result bits of all back ends, natively, emulated and on the stand-in GPU, for comparison between commits |
//!
//! For boards, `build` creates and checks the folder `target/dist/NAME`; `deploy` copies it to a board, verifies and
//! measures there. `board-day` adds the test programs and answers all that only a board can answer. Both fetch one
//! archive, which `board-report` judges. `package` makes Debian packages and wheels from such folders, and `release` the
//! folder of a release. Measurements, separate from the tests:
//!
//! | command | measurement |
//! |---|---|
//! | `peers` | this library compared with PyTorch and ONNX Runtime (`runtime/cli/benches/peers`), in a private environment |
//! | `models` | exported models in ONNX Runtime, alternating original and rewritten: nodes replaced, time, error; `elsa.py` with torch, and networks in torch with and without it; with `--thirty` the attention replaced in thirty models |
//! | `stream-figures` | streamed runs: peaks within budgets, speed compared with in-memory runs, a large file, the cost model |
//! | `count` | instructions of an attention call on an emulated Cortex-A57, per useful vector FMA; with `--calls` also of a call through C |
//!
//! `ptx` regenerates `kernels/ptx` from `kernels/cuda`, and the modules of the example `cpp-camera`. It derives the tables of
//! kernel costs on a Jetson TX2 from machine code, and prints both; `ptx --costs` writes only the tables.
//!
//! Add a fuzz target as a file in `tests/fuzz/src/bin`, and a bare-metal case as a line of `CASES` in
//! `tests/bare-metal/src/vectors.rs`. Cargo finds new tests; a new test file is a module of the crate's
//! test program.
#![forbid(unsafe_code)]

mod boards;
mod c_programs;
mod docs;
mod files;
mod gpu;
mod measure;
mod package;
mod ran;
mod release;
mod setup;
mod shell;
mod test;

use boards::target::{Target, X86_64};
use boards::{build, day, slice};
use clap::{Parser, Subcommand};
use elsa_targets::REFERENCE;
use gpu::{gpu_bench, ptx, standin};
use measure::{calls, count, fingerprint, models, peers, stream};
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
    /// Install test requirements, run the tests in stages, and count them.
    #[command(after_long_help = test::list())]
    Test(test::Arguments),
    /// Build the guide with mdBook into target/guide, and open it.
    Docs {
        /// Build the guide without opening it.
        #[arg(long)]
        no_open: bool,
    },
    /// Compare the recorded ABI with the header.
    Abi(test::capi::abi::Write),
    /// Create a folder that tests the CUDA back end on any machine with an NVIDIA driver.
    GpuTest,
    /// Create a folder that benchmarks attention on any machine with an NVIDIA driver, compared with PyTorch if
    /// installed.
    GpuBench,
    /// Build the stand-in CUDA driver and print the folder to put in LD_LIBRARY_PATH.
    Standin {
        /// Sanitizer and thread scheduling of the stand-in GPU.
        #[arg(default_value = "plain")]
        variant: standin::Variant,
    },
    /// Hash all result bits of all back ends, for comparing two commits on one machine.
    Fingerprint {
        /// Output file [default: target/fingerprint.txt].
        file: Option<PathBuf>,
    },
    /// Search for errors beyond their bounds, on all back ends of this machine.
    Hunt {
        /// Options of the search: `--seconds N`, `--rows N`, `--seed N`, `--only NAME`, `--threads N`, `--schedules`,
        /// `--tightness`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Compare the speed of this library with PyTorch, ONNX Runtime and sgemm, which are installed
    /// privately.
    Peers {
        /// Folder for SVG plots of speeds, and of ratios to peers, against the number of tokens.
        #[arg(long, value_name = "DIR")]
        plot: Option<PathBuf>,
        /// Options of the benchmark: `--threads N`, `--rounds N`, `--dtype T`, `--backend NAME`, `--json`,
        /// `--markdown`, shapes as in `elsa bench --shape`, the sets `plain`, `masks`, `causal` and `swin`. After a
        /// first `linear`, options for linear attention: RULE,HEADS,TOKENS,D, `--form F`, `--chunk N`. After a first
        /// `layers`, shapes whose calls are measured through each layer of this library.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Export models, and compare them in ONNX Runtime before and after `elsa onnx rewrite`. Compare networks in PyTorch
    /// with and without `elsa.patch()`; fails below 0.98 of PyTorch's speed.
    Models {
        /// Numbers of threads of each session, and of PyTorch.
        #[arg(long, default_value = "1,2", conflicts_with = "thirty")]
        threads: String,
        /// Number of runs of each model.
        #[arg(long, default_value_t = 21)]
        rounds: u32,
        /// Measure processor time of ONNX Runtime instead of elapsed time; other programs on the machine disturb it less.
        #[arg(long)]
        cpu: bool,
        /// Make the table of thirty models instead: attentions found and replaced, why others stay, errors and times
        /// of one thread. Zero rounds measure no times. Fails if attention stays in more than three models.
        #[arg(long)]
        thirty: bool,
        /// Measure on this machine's GPU, too: the thirty models, or networks in PyTorch eagerly, in CUDA graphs and
        /// compiled.
        #[arg(long)]
        gpu: bool,
        /// Select models whose names contain all of these, such as `swin_tiny-` or `-17`.
        words: Vec<String>,
    },
    /// Measure streamed runs: peaks within budgets, speed compared with in-memory runs, a large file.
    StreamFigures(stream::Arguments),
    /// Count the instructions of an attention call on an emulated Cortex-A57, and estimate its speed.
    Count {
        /// Shapes to count. HEADS/KV_HEADS are heads that share keys, and QUERIES:KEYS differing numbers of tokens.
        #[arg(
            value_name = "HEADS,TOKENS,D",
            default_values = ["1,64,64", "1,196,64", "1,576,64", "32/8,1:4096,128", "8,1:4096,64"]
        )]
        shapes: Vec<String>,
        /// Also build the shipped library, and count its calls through C: of one query and one key, and of ten shapes,
        /// compared with the operator Attention of the newest ONNX Runtime.
        #[arg(long)]
        calls: bool,
    },
    /// Compile the device code to PTX and print the resources of each kernel.
    Ptx {
        /// Write only the cost table, from the PTX in the tree.
        #[arg(long)]
        costs: bool,
    },
    /// Build the tool and the C library for a board or this machine into target/dist/NAME, and check them.
    Build {
        /// Build target: a board, or this machine.
        #[arg(long, value_parser = Target::names())]
        target: String,
        /// Features of the C library, such as attention,cuda: build only this slice of the library, into
        /// target/dist/NAME-FEATURES.
        #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["cubins", "gradients"])]
        features: Vec<String>,
        #[command(flatten)]
        additions: build::Additions,
    },
    /// Build for x86-64 and the boards, and make Debian packages and Python wheels in target/packages.
    Package {
        /// Build targets instead: boards, which share one architecture, or this machine.
        #[arg(long, value_parser = Target::names(), default_values = [X86_64, REFERENCE])]
        target: Vec<String>,
    },
    /// Check the commit, and make the folder of a release from it: packages, crates, bills of materials, sums.
    Release(release::Asked),
    /// Build, copy to a board over ssh, verify and measure there, and fetch the results.
    Deploy(day::Arguments),
    /// Build for a board with all test programs, answer there what only a board can answer, and fetch the results.
    BoardDay(day::Arguments),
    /// Judge the archive of a board day, draw its page, and compare it with another archive.
    BoardReport(day::report::Arguments),
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
        Command::GpuTest => day::gpu_test(&tree),
        Command::GpuBench => gpu_bench::make(&tree),
        Command::Standin { variant } => {
            standin::build(&tree, variant).map(|dir| println!("{}", dir.display()))
        }
        Command::Fingerprint { file } => {
            fingerprint::run(&tree, &file.unwrap_or_else(|| tree.target.join("fingerprint.txt")))
        }
        Command::Hunt { arguments } => test::bounds::hunt(&tree, &arguments),
        Command::Peers { plot, arguments } => peers::run(&tree, plot.as_deref(), &arguments),
        Command::Models { threads, rounds, cpu, thirty, gpu, words } => {
            let rounds = format!("--rounds={rounds}");
            if thirty {
                models::thirty(&tree, &words, &rounds, cpu, gpu)
            } else {
                models::run(&tree, &words, &threads, &rounds, cpu, gpu)
            }
        }
        Command::StreamFigures(arguments) => stream::run(&tree, arguments),
        Command::Count { shapes, calls: through_c } => count::run(&tree, &shapes)
            .and_then(|(plugin, rust)| if through_c { calls::run(&tree, &plugin, &rust) } else { Ok(()) }),
        Command::Ptx { costs: true } => ptx::write_costs(&tree),
        Command::Ptx { costs: false } => ptx::write(&tree),
        Command::Build { target, features, additions } if features.is_empty() => {
            build::run(&tree, &target, additions)
        }
        Command::Build { target, features, .. } => slice::run(&tree, &target, &features),
        Command::Package { target } => package::run(&tree, &target),
        Command::Release(asked) => release::run(&tree, &asked),
        Command::Deploy(arguments) => day::deploy(&tree, arguments),
        Command::BoardDay(arguments) => day::run(&tree, &arguments),
        Command::BoardReport(arguments) => day::report::run(&tree, &arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("xtask: {fault}");
            ExitCode::FAILURE
        }
    }
}
