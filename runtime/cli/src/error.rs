//! Errors of a command: one line of text and an exit status.

pub use crate::foreign::one_line;

use crate::flag;
use elsa_board::serial::PortError;
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError as Refused;
use elsa_files::{FileError, MemoryError};
use elsa_onnx::ModelError;
use elsa_runtime::{BindError, DeviceError, PlanError, RunError};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Exit status when the request was wrong.
pub const REQUEST: u8 = 2;
/// Exit status when the device or the system failed.
pub const SYSTEM: u8 = 3;
/// Exit status when verification failed, when a comparison found that something became slower, or when half precision
/// breaks a model.
pub const VERIFICATION: u8 = 4;
/// Exit status when something disturbed a measurement.
pub const UNCLEAN: u8 = 5;
/// Exit status when verification can make no claim about an output.
pub const NO_CLAIM: u8 = 6;
/// Exit status when the reader of standard output has closed it. A shell reports the same status for a process that
/// SIGPIPE ended.
pub const CLOSED: u8 = 141;

/// Error of a command. Each message names the argument, its value and the allowed values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that the flag does not allow.
    #[error("{}: {found}; allowed: {allowed}", dashed(argument))]
    Argument {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The offending value.
        found: String,
        /// Allowed values.
        allowed: String,
    },
    /// A file that cannot be read or written.
    #[error("{}", .0.message(dashed))]
    File(#[from] FileError),
    /// Numbers that do not form a valid problem. The message starts with the argument.
    #[error("--{}", flag::problem(*.0))]
    Problem(#[from] ArgumentError),
    /// Tensors from files that do not form a valid problem. The message starts with the argument.
    #[error("--{}{advice} ({files})", flag::problem(*fault))]
    Tensors {
        /// The rule of the library that the tensors violate.
        fault: ArgumentError,
        /// Advice to the user, after a semicolon; may be empty.
        advice: String,
        /// The flag, file, type and shape of each tensor that is involved in the fault.
        files: String,
    },
    /// A request for a division by quorums that does not exist, or for a task that the division does not contain.
    #[error("--{argument}: {source}")]
    Quorum {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The reason for the refusal.
        source: Refused,
    },
    /// Files of tasks that cannot be merged into the results of one complete problem.
    #[error("STATES: {0}")]
    States(String),
    /// A failing GPU.
    #[error("--backend: cuda: {0}")]
    Device(#[from] DeviceError),
    /// An error of one of several GPUs.
    #[error("--devices: {number}: {source}")]
    OnDevice {
        /// Number of the GPU.
        number: usize,
        /// The error.
        source: Box<Error>,
    },
    /// An engine or a plan that cannot be created. The message starts with the argument or the environment variable at
    /// fault.
    #[error("{}", dashed(&flag::plan(.0)))]
    Plan(#[from] PlanError),
    /// Data that cannot be bound. The message starts with the argument.
    #[error("--{}", flag::bind(.0))]
    Bind(#[from] BindError),
    /// A run that failed.
    #[error("{0}")]
    Run(RunError),
    /// A failed write to a file in a writable folder: the disk is full, or the device fails.
    #[error("{}: {}: writing failed: {source}", dashed(argument), path.display())]
    Write {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A streamed run that failed.
    #[error("{0}")]
    Stream(String),
    /// A failed write to standard output.
    #[error("standard output: {0}")]
    Print(#[from] std::io::Error),
    /// A serial port that cannot be used. The message of `source` starts with the name of the port.
    #[error("{argument}: {source}")]
    Port {
        /// The argument; a flag includes its dashes.
        argument: &'static str,
        /// The error that the port reported.
        source: PortError,
    },
    /// A serial line that lost or damaged records.
    #[error("{port}: {what}; complete records are correct, and all missing ones are counted")]
    Line {
        /// The port.
        port: String,
        /// Description of the losses and damage, with the numbers of records.
        what: String,
    },
    /// Memory that the system refused.
    #[error("{}", dashed(&.0.to_string()))]
    Memory(#[from] MemoryError),
    /// A lock of the memory that the system refused.
    #[error(
        "--lock-memory: {reason}; allowed: at most the process's limit RLIMIT_MEMLOCK (ulimit -l), or any amount with the capability CAP_IPC_LOCK"
    )]
    Lock {
        /// The system's error message.
        reason: String,
    },
    /// A wrong output.
    #[error("verification failed: {0}")]
    Verification(String),
    /// An output about which no claim can be made.
    #[error("no claim: {0}")]
    NoClaim(String),
    /// A file that is not a table of results.
    #[error("--{argument}: {}: not a table of elsa bench: {found}; allowed: what --csv or --save has written", path.display())]
    Table {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// The invalid content.
        found: String,
    },
    /// A file that is not a model, or a model that cannot be rewritten.
    #[error("{}: {}: {source}", dashed(argument), path.display())]
    Model {
        /// The argument.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// The fault in the model.
        source: ModelError,
    },
    /// A GPU whose events do not report times, so that nothing can be measured.
    #[error("the driver of the GPU reports no time between its events, so that nothing can be measured")]
    Untimed,
    /// Measurements that are slower than the measurements in the table with which they were compared.
    #[error("slower: {0}")]
    Slower(String),
    /// A measured program that failed, or that the system could not wait for.
    #[error("--exec: {program}: {how}")]
    Program {
        /// Name of the program.
        program: String,
        /// How it ended, or the failure of the system.
        how: String,
        /// Exit status for the tool.
        status: u8,
    },
    /// Cells of a benchmark that were refused or disturbed.
    #[error("{0}; the reasons are above, and --wait waits for a quiet machine")]
    Unclean(String),
}

impl From<RunError> for Error {
    fn from(e: RunError) -> Error {
        match e {
            RunError::Bind(e) => e.into(),
            e => Error::Run(e),
        }
    }
}

impl Error {
    /// Returns the exit status: 2 for a wrong request, 3 for a failing device or system, 4 for a wrong output or a
    /// slowdown, 5 for disturbed measurements, 6 for an output about which no claim can be made, 141 if the reader of
    /// standard output closed it. A measured program that failed has its own status.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Error::Argument { .. }
            | Error::Table { .. }
            | Error::Model { .. }
            | Error::Problem(_)
            | Error::Tensors { .. }
            | Error::Quorum { .. }
            | Error::States(_)
            | Error::Bind(BindError::Problem(_) | BindError::Budget { .. })
            | Error::Plan(
                PlanError::Option(_)
                | PlanError::NotOnGpu { .. }
                | PlanError::BackendAbsent { .. }
                | PlanError::BackendName { .. }
                | PlanError::Unusable { reason: DeviceError::Ordinal { .. } }
                | PlanError::CoreRange { .. }
                | PlanError::Core { .. }
                | PlanError::Task(_),
            )
            | Error::Plan(PlanError::Refused(
                Refused::Block { .. }
                | Refused::Chunk { .. }
                | Refused::Option { .. }
                | Refused::Large { .. }
                | Refused::PartsBudget { .. }
                | Refused::Packed
                | Refused::HeadSize { .. }
                | Refused::Extent { .. }
                | Refused::Parts { .. }
                | Refused::Budget { .. }
                | Refused::HostBudget { .. },
            ))
            | Error::Plan(PlanError::NotStreamed { .. } | PlanError::Beyond { .. }) => REQUEST,
            Error::File(e) if e.is_request() => REQUEST,
            Error::Port { source, .. } if source.is_request() => REQUEST,
            Error::Print(source) if source.kind() == ErrorKind::BrokenPipe => CLOSED,
            Error::Verification(_) | Error::Slower(_) => VERIFICATION,
            Error::Unclean(_) => UNCLEAN,
            Error::NoClaim(_) => NO_CLAIM,
            Error::Program { status, .. } => *status,
            Error::OnDevice { source, .. } => source.status(),
            _ => SYSTEM,
        }
    }

    /// Returns the message on one line, with hidden characters in names escaped.
    #[must_use]
    pub fn line(&self) -> String {
        one_line(&self.to_string())
    }
}

/// Adds the dashes to a flag, or to a message that starts with a flag. An argument that is not a flag has a name in
/// capitals. Text that starts with a name in capitals is returned unchanged.
#[must_use]
pub fn dashed(argument: &str) -> String {
    if argument.starts_with(|c: char| c.is_ascii_uppercase()) {
        argument.into()
    } else {
        format!("--{argument}")
    }
}

/// The name of the program. Every line that [`say`] prints begins with it.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Sets the name of the program. Only the first call has an effect.
pub fn begin_with(name: &'static str) {
    let _ = PROGRAM.set(name);
}

/// Prints `line` on standard error, as one line after the name of the program. If standard error fails, the line is
/// lost: there is no other place to report it.
pub fn say(line: &str) {
    let program = PROGRAM.get().unwrap_or(&"elsa");
    let _ = writeln!(std::io::stderr(), "{program}: {}", one_line(line));
}

/// Prints `line` like [`say`], unless this process has printed it before.
pub fn say_once(line: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    // The set is consistent even if a thread has panicked.
    let new = SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(line.to_owned());
    if new {
        say(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_the_contract() {
        let problem = ArgumentError::Zero { argument: "q", axis: "heads" };
        assert_eq!(Error::Problem(problem).status(), 2);
        assert_eq!(Error::Plan(Refused::Budget { needed: 2, budget: 1 }.into()).status(), 2);
        assert_eq!(Error::Plan(Refused::Memory { needed: 2 }.into()).status(), 3);
        assert_eq!(Error::Run(RunError::Panicked).status(), 3);
        let lost = || DeviceError::Lost;
        assert_eq!(Error::Plan(lost().into()).status(), 3);
        assert_eq!(Error::Plan(PlanError::Unusable { reason: lost() }).status(), 3);
        assert_eq!(Error::Bind(BindError::Device(lost())).status(), 3);
        assert_eq!(Error::Plan(Refused::HeadSize { found: 257, max: 256 }.into()).status(), 2);
        assert_eq!(Error::Memory(MemoryError { argument: "out", bytes: 1 }).status(), 3);
        assert_eq!(Error::File(FileError::Changed { argument: "q", path: "q.npy".into() }).status(), 3);
        assert_eq!(Error::Verification("x".into()).status(), 4);
        assert_eq!((Error::Slower("x".into()).status(), Error::Unclean("x".into()).status()), (4, 5));
        assert_eq!(Error::NoClaim("x".into()).status(), 6);
        let failed = Error::Program { program: "sh".into(), how: "exit status 7".into(), status: 7 };
        assert_eq!((failed.status(), failed.line().as_str()), (7, "--exec: sh: exit status 7"));
        let print = |kind: ErrorKind| Error::Print(kind.into());
        assert_eq!((print(ErrorKind::BrokenPipe).status(), print(ErrorKind::StorageFull).status()), (141, 3));
    }
}
