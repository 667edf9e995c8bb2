//! The tool `elsa`, as a library that the binary, its tests and the fuzz targets share.
//!
//! | command | module |
//! |---|---|
//! | `elsa run` | [`run`]: attention over tensors in files, to files |
//! | `elsa verify` | [`verify`]: an answer against the f64 [`oracle`], on given tensors or a built-in [`scenario`] |
//! | `elsa bench` | [`mod@bench`]: latency; every answer is checked |
//! | `elsa info` | [`info`]: what the [`machine`] has, what would be chosen and why |
//! | `elsa warmup` | [`warmup`]: GPU kernels loaded ahead of the first frame |
//!
//! A command stands in one module with its flags and its help text. Flags that several share are in [`args`].
//! [`job`] makes a problem of flags and files, [`tensor`] reads and writes the files, [`signals`] see to it that none
//! stays half-made. Arrows point from
//! [`command`] to the commands, from these to what they share, and never back.
//!
//! Messages go to standard error, one line each. Results go to standard output. Exit status: 0 done; 2 the
//! request was wrong; 3 the device or the system failed; 4 verification failed.
#![forbid(unsafe_code)]

pub mod args;
pub mod bench;
pub mod command;
pub mod error;
pub mod info;
pub mod job;
pub mod machine;
pub mod memory;
pub mod oracle;
pub mod progress;
pub mod random;
pub mod report;
pub mod rows;
pub mod run;
pub mod scenario;
pub mod shape;
pub mod signals;
mod temporary;
pub mod tensor;
pub mod verify;
pub mod warmup;

use clap::Parser;
use clap::error::ErrorKind;
use command::Cli;
use error::Error;
use std::ffi::OsString;

/// Runs the tool with the given arguments, the first being its name, and returns its exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    match cli.command.run() {
        Ok(()) => 0,
        // The reader of a pipe has closed it.
        Err(Error::Print(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => 0,
        Err(e) => {
            eprintln!("elsa: {}", e.line());
            e.status()
        }
    }
}

/// Prints help if it was requested, and one line if the command line is wrong. Returns the exit status.
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
            // The first paragraph. Tips and usage follow it.
            let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            let line = lines.join(" ");
            let line = line.strip_prefix("error: ").unwrap_or(&line);
            // "[possible values: a, b]" takes the form of the tool's other messages.
            let line = match line.split_once(" [possible values: ") {
                Some((found, values)) => format!("{found}; allowed: {}", values.trim_end_matches(']')),
                None => line.to_string(),
            };
            eprintln!("elsa: {}", error::one_line(&line));
            error::REQUEST
        }
    }
}
