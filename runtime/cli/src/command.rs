//! The command line.

#[cfg(feature = "gradients")]
use crate::backward::{self, BackwardArgs};
use crate::bench::BenchArgs;
use crate::demo::DemoArgs;
use crate::error::Error;
use crate::info::InfoArgs;
use crate::linear::LinearArgs;
use crate::listen::ListenArgs;
use crate::merge::MergeArgs;
use crate::onnx::OnnxArgs;
use crate::run::RunArgs;
use crate::tune::TuneArgs;
use crate::verify::VerifyArgs;
use crate::warmup::WarmupArgs;
use crate::{bench, demo, info, linear, listen, merge, onnx, run, tune, verify, warmup};
use clap::{Parser, Subcommand};

/// The text below the commands.
const HELP: &str = "\
Environment:
  ELSA_BACKEND      back end of --backend auto: scalar, neon, avx2, avx512, cuda
  ELSA_TUNED        file of elsa tune that is used without --tuned
  ELSA_ONNXRUNTIME  library of ONNX Runtime for elsa onnx rewrite and elsa onnx audit without
                    --runtime
  NO_COLOR          no colours, which only a terminal gets
  ELSA_LOG          messages on standard error: off, error, warn (the default), info, debug, trace;
                    for one module elsa_runtime=debug

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed; 4
verification failed, a comparison found something slower, or half precision breaks a model; 5 a measurement was
disturbed; 6 verification could make no claim about an answer; 141 the reader of standard output closed it, as in
elsa bench | head -1. If the program of elsa bench --exec fails, its status.

Arguments are UTF-8. Runs on little-endian machines only.";

/// Exact attention: run it, verify it, measure it.
#[derive(Parser, Debug)]
#[command(name = "elsa", bin_name = "elsa", version, arg_required_else_help = true, after_help = HELP)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Show how fast, small and exact attention is on this machine, in twenty seconds
    Demo(DemoArgs),
    /// Compute attention over tensors in files
    Run(Box<RunArgs>),
    /// Merge the states of all tasks of elsa run --task into the full answer, or their shares of gradients
    Merge(Box<MergeArgs>),
    /// Compute gradients of attention over tensors in files
    #[cfg(feature = "gradients")]
    Backward(Box<BackwardArgs>),
    /// Run, verify and measure linear attention, recurrences, selective scans and convolutions
    Linear(LinearArgs),
    /// Compare with exact attention: PASS, FAIL or NO CLAIM, drift metrics, bounds
    Verify(Box<VerifyArgs>),
    /// Measure latency, every answer checked; with --exec, the power and energy of any program
    Bench(Box<BenchArgs>),
    /// Report this machine's hardware, the engine's choices and the reasons
    Info(InfoArgs),
    /// Load the GPU's kernels ahead of the first frame, so that its driver has compiled them
    Warmup(WarmupArgs),
    /// Measure the fastest kernels and divisions on this GPU or CPU, and save them to a file
    Tune(TuneArgs),
    /// Show the records that a benchmark on another machine sends over a serial line
    Listen(ListenArgs),
    /// List the attention of ONNX models, replace it by this runtime's operator, or find what f16 breaks
    Onnx(OnnxArgs),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// Returns an error if the command fails.
    pub fn run(&self) -> Result<(), Error> {
        match self {
            Command::Demo(args) => demo::demo(args),
            Command::Run(args) => run::run(args),
            Command::Merge(args) => merge::merge(args),
            #[cfg(feature = "gradients")]
            Command::Backward(args) => backward::backward(args),
            Command::Linear(args) => linear::linear(args),
            Command::Verify(args) => verify::verify(args),
            Command::Bench(args) => bench::bench(args),
            Command::Info(args) => info::info(args),
            Command::Warmup(args) => warmup::warmup(args),
            Command::Tune(args) => tune::tune(args),
            Command::Listen(args) => listen::listen(args),
            Command::Onnx(args) => onnx::onnx(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, CommandFactory};
    use std::collections::BTreeMap;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Flags whose values differ between attention and linear attention: the sizes of a shape, and the heads that a
    /// layout cannot name.
    const OTHER_VALUES: [&str; 2] = ["shape", "kv-heads"];

    /// Checks that a flag takes the same values in all commands that run, verify and measure.
    #[test]
    fn commands_have_the_same_words_for_the_same_options() {
        let mut root = Cli::command();
        root.build();
        let mut known: BTreeMap<String, (String, &str)> = BTreeMap::new();
        for (operator, verbs) in [("", ["run", "verify", "bench"]), ("linear", ["run", "verify", "bench"])] {
            let group = if operator.is_empty() { &root } else { root.find_subcommand(operator).unwrap() };
            for verb in verbs {
                let command: &Command = group.find_subcommand(verb).unwrap();
                for flag in command.get_arguments() {
                    let Some(long) = flag.get_long() else { continue };
                    let key = if OTHER_VALUES.contains(&long) {
                        format!("{operator} {long}")
                    } else {
                        long.to_owned()
                    };
                    let values: Vec<String> =
                        flag.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
                    let found = format!("{:?} {values:?}", flag.get_value_names().unwrap_or_default());
                    let (wanted, first) = known.entry(key).or_insert((found.clone(), verb));
                    assert_eq!(&found, wanted, "--{long} of {operator} {verb}, and of {first}");
                }
            }
        }
        // The sizes and the order of the tokens have these names everywhere.
        for word in
            [" shape", "linear shape", "dtype", "reverse", "seconds", "budget", "certificate", "verbose"]
        {
            assert!(known.contains_key(word), "{word}");
        }
    }
}
