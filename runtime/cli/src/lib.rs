//! The tool `elsa`, as a library that the binary, its tests and the fuzz targets share.
//!
//! | command | module |
//! |---|---|
//! | `elsa run` | [`run`]: files and flags ([`args`], [`job`]) to a problem, its answer to files ([`tensor`]) |
//! | `elsa verify` | [`verify`]: the answer against the f64 oracle |
//! | `elsa bench` | [`mod@bench`]: latency, every answer checked |
//! | `elsa info`, `elsa warmup` | [`info`]: what the machine has, and loading it ahead |
//!
//! Messages go to standard error, one line each; results go to standard output. Exit status: 0 done; 2 the
//! request was wrong; 3 the device or the system failed; 4 verification failed.
#![forbid(unsafe_code)]

pub mod args;
pub mod bench;
pub mod board;
pub mod data;
pub mod error;
pub mod info;
pub mod job;
pub mod oracle;
pub mod run;
pub mod tensor;
pub mod verify;

use args::{Cli, Command};
use clap::Parser;
use clap::error::ErrorKind;
use error::Error;
use std::ffi::OsString;

/// Runs the tool with the given arguments, the first being its name, and returns its exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    let done = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Verify(args) => verify::verify(args),
        Command::Bench(args) => bench::bench(args),
        Command::Info(args) => info::info(args),
        Command::Warmup(args) => info::warmup(args),
    };
    match done {
        Ok(()) => 0,
        // The reader of a pipe has seen enough.
        Err(Error::Print(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => 0,
        Err(e) => {
            eprintln!("elsa: {}", e.line());
            e.status()
        }
    }
}

/// Prints help where it was asked for, and one line where the command line is wrong.
fn usage(e: &clap::Error) -> u8 {
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            if e.print().is_ok() {
                0
            } else {
                error::SYSTEM
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{}", e.render());
            error::REQUEST
        }
        _ => {
            let text = e.render().to_string();
            // The first paragraph; tips and usage follow it.
            let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            let line = lines.join(" ");
            let line = line.strip_prefix("error: ").unwrap_or(&line);
            // "[possible values: a, b]" is said as every other message of the tool says it.
            let line = match line.split_once(" [possible values: ") {
                Some((found, values)) => format!("{found}; allowed: {}", values.trim_end_matches(']')),
                None => line.to_string(),
            };
            eprintln!("elsa: {}", error::one_line(&line));
            error::REQUEST
        }
    }
}

/// `value` as one line of JSON.
///
/// # Errors
/// What the serializer reports.
fn json(value: &impl serde::Serialize) -> std::io::Result<String> {
    serde_json::to_string(value).map_err(std::io::Error::other)
}
