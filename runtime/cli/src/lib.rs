//! The tool `elsa`, as a library that the binary, its tests and the fuzz targets share.
//!
//! | command | module |
//! |---|---|
//! | `elsa run` | [`run`]: attention over tensors in files, to files |
//! | `elsa run --task`, `elsa merge` | [`task`], [`mod@merge`]: a part of the work as states, and the whole of all parts; so `elsa backward --task` |
//! | `elsa backward` | [`mod@backward`]: gradients, after a forward pass or with the output of one |
//! | `elsa linear` | [`mod@linear`]: linear attention, run, verified and measured; recurrences, selective scans, convolutions |
//! | `elsa verify` | [`verify`]: an answer against the f64 [`oracle`], on given tensors or a built-in [`scenario`]; what schedules do with them |
//! | `elsa bench` | [`mod@bench`]: latency; every answer is checked |
//! | `elsa info` | [`info`]: what the [`machine`] and its [`mod@board`] have, what would be chosen and why |
//! | `elsa warmup` | [`warmup`]: GPU kernels loaded ahead of the first frame |
//! | `elsa listen` | [`listen`]: what a benchmark sends over a [`serial`] line |
//! | `elsa tune` | [`mod@tune`]: the fastest kernels and divisions on a GPU, measured and kept in a file |
//! | `elsa onnx` | [`mod@onnx`]: attention in ONNX models, listed or replaced |
//! | `elsa simulate` | [`mod@simulate`]: time, memory and traffic of any number of tokens, from fits |
//!
//! A command stands in one module with its flags and its help text. Flags that several share are in [`args`].
//! [`job`] makes a problem of flags and files, [`tensor`] reads and writes the files, [`signals`] see to it that none
//! stays half-made. [`mod@board`] watches the machine while it computes. Arrows point from [`command`] to the commands,
//! from these to what they share, and never back.
//!
//! Messages go to standard error, one line each. Results go to standard output. Exit status: 0 done; 2 the
//! request was wrong; 3 the device or the system failed; 4 verification failed, or a comparison found something
//! slower; 5 a measurement was disturbed; 141 the reader of standard output has closed it. A process that is started without a standard output has the null device in its place.
#![forbid(unsafe_code)]

pub mod args;
pub mod backward;
pub mod bench;
pub mod board;
pub mod chart;
pub mod command;
pub mod error;
mod files;
mod flag;
pub mod foreign;
pub mod info;
pub mod job;
mod left_out;
pub mod linear;
pub mod listen;
pub mod machine;
pub mod memory;
pub mod merge;
pub mod onnx;
pub mod oracle;
pub mod outlet;
mod picture;
pub mod progress;
pub mod random;
pub mod report;
pub mod rows;
pub mod run;
pub mod scenario;
pub mod serial;
pub mod shape;
pub mod signals;
pub mod simulate;
mod stats;
pub mod stream;
mod study;
mod target;
pub mod task;
mod temporary;
pub mod tensor;
pub mod tune;
mod usage;
pub mod verify;
pub mod warmup;

use clap::Parser;
use clap::error::ErrorKind;
use command::Cli;
use error::{Error, say};
use std::ffi::OsString;
use std::io::Write;

pub use temporary::watch_panics;

/// Runs the tool with the given arguments, the first being its name, and returns its exit status.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let done = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli.command.run(),
        Err(e) if !e.use_stderr() => e.print().map_err(Error::Print),
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // The status reports what is wrong, even where this text cannot be printed.
            let _ = e.print();
            return error::REQUEST;
        }
        Err(e) => {
            say(&usage::line(&e, &arguments));
            return error::REQUEST;
        }
    };
    match done.and_then(|()| Ok(std::io::stdout().flush()?)) {
        Ok(()) => 0,
        Err(e) => {
            let status = e.status();
            if status != error::CLOSED {
                say(&e.line());
            }
            status
        }
    }
}
