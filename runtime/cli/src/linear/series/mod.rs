//! The operators that treat every channel by itself: `elsa linear recurrence`, `selective` and `conv`, and their benchmark.

mod bench;
mod call;
mod convolution;
mod recurrence;
mod selective;

use crate::error::Error;
use bench::SeriesBenchArgs;
use clap::Subcommand;
use convolution::ConvolutionArgs;
use recurrence::RecurrenceArgs;
use selective::SelectiveArgs;

/// The commands.
#[derive(Subcommand, Debug)]
pub enum SeriesCommand {
    /// A recurrence of first order, h = a h + b per channel and token
    Recurrence(Box<RecurrenceArgs>),
    /// Mamba's selective scan
    Selective(Box<SelectiveArgs>),
    /// A causal convolution per channel: relative decay, or the short one before a scan
    Conv(Box<ConvolutionArgs>),
    /// Measure the ways to compute these operators beside each other; every answer is checked
    BenchSeries(Box<SeriesBenchArgs>),
}

impl SeriesCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// Those of the command.
    pub fn run(&self) -> Result<(), Error> {
        match self {
            SeriesCommand::Recurrence(args) => recurrence::recurrence(args),
            SeriesCommand::Selective(args) => selective::selective(args),
            SeriesCommand::Conv(args) => convolution::convolution(args),
            SeriesCommand::BenchSeries(args) => bench::bench(args),
        }
    }
}
