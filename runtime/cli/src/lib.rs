//! The tool `elsa`, as a library that the binary, its tests, the fuzz targets and the laboratory `elsa-lab` share.
//!
//! | command | module |
//! |---|---|
//! | `elsa demo` | [`mod@demo`]: the speed, memory and accuracy of this machine on real workloads |
//! | `elsa run` | [`run`]: attention over tensors in files, to files |
//! | `elsa run --task`, `elsa merge` | [`task`], [`mod@merge`]: the states of one task; the states of all tasks, merged. Also gradients of `elsa backward --task` |
//! | `elsa backward` | [`mod@backward`]: gradients, with the output of a forward pass from files or computed first |
//! | `elsa linear` | [`mod@linear`]: linear attention, run, verified and measured; recurrences, selective scans, convolutions |
//! | `elsa verify` | [`verify`]: an answer compared with the f64 [`oracle`], on given tensors or a built-in [`scenario`] |
//! | `elsa bench` | [`mod@bench`]: latency, with every answer checked; power and energy of any program |
//! | `elsa info` | [`info`]: the hardware of the [`machine`] and its board ([`elsa_board`]), the engine's choices and the reasons |
//! | `elsa warmup` | [`warmup`]: GPU kernels loaded ahead of the first frame |
//! | `elsa listen` | [`listen`]: the records that a benchmark sends over a [serial](elsa_board::serial) line |
//! | `elsa tune` | [`mod@tune`]: the fastest kernels and divisions on a GPU, measured and kept in a file |
//! | `elsa onnx` | [`mod@onnx`]: attention in ONNX models, listed or replaced |
//!
//! Each command is a module with its flags and its help text. Flags that several commands share are in [`args`].
//! [`job`] makes a problem from flags and files, [`elsa_files`] reads and writes the files, and [`signals`] makes sure
//! that no half-written file remains. [`elsa_board`] watches the machine while it computes, and [`picture`] draws the
//! pictures of all pages. [`command`] depends on the commands, and the commands depend on the shared modules. There are
//! no dependencies in the opposite direction.
//!
//! Messages go to standard error, one line each. Results go to standard output. Exit status: 0 success; 2 wrong
//! request; 3 failure of the device or the system; 4 verification failed, a comparison found a slowdown, or half
//! precision breaks a model; 5 disturbed measurement; 6 no claim about an output; 141 the reader of standard output
//! closed it. A measured program that fails gives its own status. A process that is started without a standard output
//! gets the null device.
#![forbid(unsafe_code)]

pub mod args;
#[cfg(feature = "gradients")]
pub mod backward;
pub mod bench;
mod certified;
pub mod command;
pub mod demo;
pub mod error;
mod files;
mod flag;
pub mod foreign;
mod help;
pub mod info;
pub mod job;
pub mod left_out;
pub mod linear;
pub mod listen;
pub mod machine;
pub mod merge;
pub mod onnx;
pub mod oracle;
pub mod picture;
pub mod progress;
pub mod random;
pub mod report;
pub mod rows;
pub mod run;
pub mod scenario;
pub mod shape;
pub mod signals;
mod stats;
pub mod stream;
pub mod task;
pub mod tensor_cores;
pub mod tune;
mod usage;
mod verdict;
pub mod verify;
pub mod warmup;

use clap::Parser;
use clap::error::ErrorKind;
use error::{Error, say};
use std::ffi::OsString;
use std::io::Write;

/// Environment variable that selects which messages are logged.
const LOG: &str = "ELSA_LOG";

/// Returns `true` if every comma-separated part of `text` is a level or `module=level`. The logger would interpret any
/// other word as the name of a module, and would log only messages of this module.
fn is_log_filter(text: &str) -> bool {
    let level = |text: &str| text.trim().parse::<log::LevelFilter>().is_ok();
    text.split(',').all(|part| level(part.split_once('=').map_or(part, |(_, level)| level)))
}

/// Prepares the process of the program `name`: panics and signals leave no temporary file behind, and every message and
/// every log entry is printed on one line.
pub fn prepare(name: &'static str) {
    error::begin_with(name);
    signals::watch_panics();
    let wanted = std::env::var_os(LOG).map(|value| value.to_string_lossy().into_owned());
    let (filter, refused) = match wanted {
        Some(value) if is_log_filter(&value) => (value, None),
        refused => ("warn".to_owned(), refused),
    };
    let mut logger = env_logger::Builder::new();
    logger.parse_filters(&filter);
    // Log messages contain names of files and devices, so they are escaped.
    logger.format(|to, record| {
        let text = foreign::one_line(&record.args().to_string());
        writeln!(to, "[{:<5} {}] {text}", record.level(), record.target())
    });
    logger.init();
    if let Some(found) = refused {
        log::warn!(
            "{LOG}: '{found}'; allowed: off, error, warn, info, debug, trace or MODULE=LEVEL, several with commas; using warn"
        );
    }
    if let Err(e) = signals::watch() {
        log::warn!("signals may leave temporary files behind: {e}");
    }
}

/// Parses `arguments`, calls `run` with the parsed command line, and returns the exit status. The first of `arguments`
/// is the program's name.
pub fn main<C: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(&C) -> Result<(), Error>,
) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let command = help::shaped(C::command());
    let matched = command.clone().try_get_matches_from(&arguments);
    let done = match matched.and_then(|matches| C::from_arg_matches(&matches)) {
        Ok(cli) => run(&cli),
        Err(e) if !e.use_stderr() => e.print().map_err(Error::Print),
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // The exit status reports the error even if the help text cannot be printed.
            let _ = e.print();
            return error::REQUEST;
        }
        Err(e) => {
            say(&usage::line(&e, command, &arguments));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_filters_are_levels_and_modules_with_levels() {
        for text in ["off", "warn", "DEBUG", "elsa_runtime=debug", "warn, elsa_runtime=trace"] {
            assert!(is_log_filter(text), "{text}");
        }
        for text in ["verbose", "", "1", "elsa_runtime", "elsa_runtime=all", "warn,verbose"] {
            assert!(!is_log_filter(text), "{text}");
        }
    }
}
