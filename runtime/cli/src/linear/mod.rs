//! `elsa linear`: runs, verifies and measures linear attention over tensors in files.
//!
//! | command | module |
//! |---|---|
//! | `elsa linear run` | `run`: writes the output and the states to files |
//! | `elsa linear verify` | `verify`: compares every form with the recurrence in f64 |
//! | `elsa linear bench` | `bench`: compares the speed of the forms |
//! | `elsa linear recurrence`, `selective`, `conv` | `series`: the operators that process each channel separately |

mod args;
mod bench;
mod data;
mod job;
mod judge;
mod picture;
mod run;
mod series;
mod table;
mod truth;
mod turns;
mod verify;

use crate::error::Error;
pub use bench::LinearBenchArgs;
use clap::{Args, Subcommand};
pub use run::LinearRunArgs;
use series::SeriesCommand;
pub use series::{farther, parts_of};
pub use turns::{Contender, quartiles, take_turns};
pub use verify::LinearVerifyArgs;

/// The text below the commands.
const HELP: &str = "\
Each head of values has a state S, f32 [d_k, d_v]. A token updates it with its key k, value v, gate a = exp(decay) and
rate beta, and then reads it with its query q:
  linear        S <- S + k v'
  gated         S <- a S + k v'                      a scales rows of S
  delta         S <- S + beta k (v - S'k)'
  gated-delta   S <- a S, then as delta
  output        scale S'q
The rules are those of LinearAttention in ONNX opset 27. All forms are algebraically equal; they differ only in rounding and speed.";

/// `elsa linear`.
#[derive(Args, Debug)]
#[command(arg_required_else_help = true, subcommand_required = true, after_help = HELP)]
pub struct LinearArgs {
    /// The command.
    #[command(subcommand)]
    pub command: LinearCommand,
}

/// The commands of `elsa linear`.
#[derive(Subcommand, Debug)]
pub enum LinearCommand {
    /// Compute linear attention over tensors in files
    Run(Box<LinearRunArgs>),
    /// Compare every form with the recurrence in f64: PASS, FAIL or NO CLAIM
    Verify(Box<LinearVerifyArgs>),
    /// Measure the forms against each other; every answer is checked
    Bench(Box<LinearBenchArgs>),
    /// Operators that process each channel separately.
    #[command(flatten)]
    Series(SeriesCommand),
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the command fails.
pub fn linear(args: &LinearArgs) -> Result<(), Error> {
    match &args.command {
        LinearCommand::Run(args) => run::run(args),
        LinearCommand::Verify(args) => verify::verify(args),
        LinearCommand::Bench(args) => bench::bench(args),
        LinearCommand::Series(command) => command.run(),
    }
}
