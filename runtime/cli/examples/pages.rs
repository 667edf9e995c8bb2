//! Writes the completions of bash, zsh and fish and the man pages of the tool `elsa` into a folder.
//!
//! ```sh
//! cargo run -p elsa-cli --example pages -- FOLDER
//! ```
//!
//! A program of its own, so that the tool does not contain the code that makes these files.
#![forbid(unsafe_code)]

use clap::CommandFactory;
use clap_complete::{Shell, generate_to};
use elsa_cli::command::Cli;
use std::io::{Error, ErrorKind};

fn main() -> Result<(), Error> {
    let folder = std::env::args_os().nth(1);
    let folder = folder.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "FOLDER: missing"))?;
    std::fs::create_dir_all(&folder)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut Cli::command(), "elsa", &folder)?;
    }
    clap_mangen::generate_to(Cli::command(), &folder)
}
