//! The laboratory `elsa-lab`: studies of attention that are not part of the tool for boards.
//!
//! | command | module |
//! |---|---|
//! | `elsa-lab simulate` | [`simulate`]: time, memory and traffic for any number of tokens, from fitted costs |
//! | `elsa-lab study` | [`study`]: effect of schedules with frozen references and skipped blocks on given tensors |
//! | `elsa-lab depth-curve` | [`depth_curve`]: growth of bound and error with the number of keys |
//! | `elsa-lab predict` | [`predict`]: latencies of a board that is not available |
//! | `elsa-lab board-report` | [`board_report`]: the results of a board day, with predictions and another day |
//! | `elsa-lab bench-series` | [`bench_series`]: ways of computing recurrences, selective scans and convolutions |
//!
//! [`model`] fits the bytes and seconds of attention, and computes how quorums divide attention into tasks. The library
//! of the tool `elsa` provides arguments, files, tensors, the oracle and the exit statuses.
#![forbid(unsafe_code)]

mod bench_series;
mod board_report;
mod depth_curve;
mod model;
mod predict;
mod simulate;
mod study;

use bench_series::BenchSeriesArgs;
use board_report::BoardReportArgs;
use clap::{Parser, Subcommand};
use depth_curve::DepthCurveArgs;
use elsa_cli::error::Error;
use predict::PredictArgs;
use simulate::SimulateArgs;
use std::process::ExitCode;
use study::StudyArgs;

/// Name of the program.
const NAME: &str = "elsa-lab";

/// Help text below the commands.
const HELP: &str = "Environment and exit statuses are those of elsa, which elsa --help lists.";

/// Studies of exact attention: its costs, schedules, errors and predicted latencies.
#[derive(Parser, Debug)]
#[command(name = NAME, bin_name = NAME, version, arg_required_else_help = true, after_help = HELP)]
struct Cli {
    /// The command.
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
enum Command {
    /// Predict the cost of attention over any number of tokens: streamed, and divided by quorums
    Simulate(Box<SimulateArgs>),
    /// Study the effect of frozen references and skipped blocks on tensors, as a page
    Study(Box<StudyArgs>),
    /// Show the growth of bound and error with the number of keys, for three orders of the additions
    DepthCurve(DepthCurveArgs),
    /// Predict the latencies of a board from the machine code of its kernels
    Predict(PredictArgs),
    /// Judge the results of a board day, and compare them with predictions and with another day
    BoardReport(BoardReportArgs),
    /// Measure the ways to compute recurrences, selective scans and convolutions; every answer is checked
    BenchSeries(Box<BenchSeriesArgs>),
}

/// Runs the command.
fn run(cli: &Cli) -> Result<(), Error> {
    match &cli.command {
        Command::Simulate(args) => simulate::simulate(args),
        Command::Study(args) => study::study(args),
        Command::DepthCurve(args) => depth_curve::depth_curve(args),
        Command::Predict(args) => predict::predict(args),
        Command::BoardReport(args) => board_report::board_report(args),
        Command::BenchSeries(args) => bench_series::bench(args),
    }
}

fn main() -> ExitCode {
    elsa_cli::prepare(NAME);
    elsa_cli::main(std::env::args_os(), run).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
