//! `elsa linear`: linear attention and the operators beside it.

mod series;

use crate::error::Error;
use clap::{Args, Subcommand};
use series::SeriesCommand;

/// `elsa linear`.
#[derive(Args, Debug)]
pub struct LinearArgs {
    /// The command.
    #[command(subcommand)]
    command: LinearCommand,
}

/// The commands.
#[derive(Subcommand, Debug)]
enum LinearCommand {
    /// The operators that treat every channel by itself.
    #[command(flatten)]
    Series(SeriesCommand),
}

/// Runs the command.
///
/// # Errors
/// Those of the command.
pub fn linear(args: &LinearArgs) -> Result<(), Error> {
    match &args.command {
        LinearCommand::Series(command) => command.run(),
    }
}
