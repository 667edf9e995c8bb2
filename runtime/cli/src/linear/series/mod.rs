//! The operators that process each channel separately: `elsa linear recurrence`, `selective` and
//! `conv`.

mod call;
mod convolution;
mod recurrence;
mod selective;

use crate::error::Error;
pub use call::{farther, parts_of};
use clap::Subcommand;
use convolution::ConvolutionArgs;
use recurrence::RecurrenceArgs;
use selective::SelectiveArgs;

/// The commands.
#[derive(Subcommand, Debug)]
pub enum SeriesCommand {
    /// First-order recurrence, h = a h + b per channel and token
    Recurrence(Box<RecurrenceArgs>),
    /// Mamba's selective scan
    Selective(Box<SelectiveArgs>),
    /// Causal convolution per channel: a relative decay, or the short convolution before a scan
    Conv(Box<ConvolutionArgs>),
}

impl SeriesCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// Returns an error if the command fails.
    pub fn run(&self) -> Result<(), Error> {
        match self {
            SeriesCommand::Recurrence(args) => recurrence::recurrence(args),
            SeriesCommand::Selective(args) => selective::selective(args),
            SeriesCommand::Conv(args) => convolution::convolution(args),
        }
    }
}
