//! Why a command fails: one line of text and an exit status.

pub use crate::foreign::one_line;

use crate::flag;
use crate::onnx::ModelError;
use crate::serial::PortError;
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError as Refused;
use elsa_core::quorum::QuorumError;
use elsa_runtime::{BindError, DeviceError, EngineError, PlanError, RunError};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

/// Exit status when the request was wrong.
pub const REQUEST: u8 = 2;
/// Exit status when the device or the system failed.
pub const SYSTEM: u8 = 3;
/// Exit status when verification failed, or when a comparison found something slower.
pub const VERIFICATION: u8 = 4;
/// Exit status when something disturbed a measurement.
pub const UNCLEAN: u8 = 5;
/// Exit status when verification could say nothing about an answer.
pub const NO_CLAIM: u8 = 6;
/// Exit status when the reader of standard output has closed it: that of a process that SIGPIPE ends, as a shell
/// reports it.
pub const CLOSED: u8 = 141;

/// Why a file is not a tensor that an argument can take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Bytes that are not a file of the format.
    #[error("not a {format} file: {found}; allowed: {allowed}")]
    Format {
        /// `.npy`, `.npz` or `.safetensors`.
        format: &'static str,
        /// What was found.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// An element type that the argument cannot take.
    #[error("type {found}; allowed: {allowed}")]
    Type {
        /// The type as the file spells it.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Elements that do not fill the shape, or are more than it holds.
    #[error("{found} bytes of data; allowed: {needed}, for the shape {shape:?} of {dtype}")]
    Length {
        /// Bytes in the file.
        found: usize,
        /// Bytes that the shape takes.
        needed: usize,
        /// The shape.
        shape: Vec<usize>,
        /// The element type.
        dtype: &'static str,
    },
    /// A shape that no memory can hold.
    #[error("shape {shape:?}; allowed: a product that fits the address space")]
    Overflow {
        /// The shape as the file has it.
        shape: Vec<u64>,
    },
    /// A name that the file does not hold.
    #[error("no tensor '{name}'; allowed: {allowed}")]
    Name {
        /// The requested name.
        name: String,
        /// Names that the file holds.
        allowed: String,
    },
    /// A rank that the argument does not have.
    #[error("rank {}, shape {shape:?}; allowed: {allowed}", shape.len())]
    Rank {
        /// The shape of the tensor.
        shape: Vec<usize>,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// Why a command failed. Each message names the argument, what was found and what is allowed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that the flag does not allow.
    #[error("{}: {found}; allowed: {allowed}", dashed(argument))]
    Argument {
        /// The flag, without its dashes.
        argument: &'static str,
        /// What was found.
        found: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file that is not a tensor that the argument can take.
    #[error("{}: {}: {source}", dashed(argument), path.display())]
    Tensor {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: TensorError,
    },
    /// A file that cannot be read.
    #[error("{}: {}: cannot be read: {source}; allowed: a readable file", dashed(argument), path.display())]
    Read {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file that was written, replaced or removed while the command needed it.
    #[error("{}: {}: changed during the run; run again when its writer is done", dashed(argument), path.display())]
    Changed {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// An output that cannot be written; found before anything is computed.
    #[error("{}: {}: cannot be written: {reason}; allowed: a file in a writable folder", dashed(argument), path.display())]
    Target {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// Numbers that are not a valid problem. Its text starts with the argument.
    #[error("--{}", flag::problem(*.0))]
    Problem(#[from] ArgumentError),
    /// Tensors of files that are not a valid problem. The text of `fault` starts with the argument.
    #[error("--{}{advice} ({files})", flag::problem(*fault))]
    Tensors {
        /// What is wrong with them.
        fault: ArgumentError,
        /// The next step, after a semicolon, or nothing.
        advice: String,
        /// The tensors that disagree: flag, file, type and shape of each.
        files: String,
    },
    /// A division by quorums, or a task of one, that does not exist.
    #[error("--{argument}: {source}")]
    Quorum {
        /// The flag, without its dashes.
        argument: &'static str,
        /// What is wrong with it.
        source: QuorumError,
    },
    /// Files of tasks that do not make a whole.
    #[error("STATES: {0}")]
    States(String),
    /// An engine that is not available. Its text starts with the argument.
    #[error("--{0}")]
    Engine(#[from] EngineError),
    /// A failing GPU.
    #[error("--backend: cuda: {0}")]
    Device(#[from] DeviceError),
    /// A plan that cannot be made. Its text starts with the argument.
    #[error("--{}", flag::plan(.0))]
    Plan(#[from] PlanError),
    /// Data that cannot be bound. Its text starts with the argument.
    #[error("--{}", flag::bind(.0))]
    Bind(#[from] BindError),
    /// A run that failed.
    #[error("{0}")]
    Run(#[from] RunError),
    /// Writing failed although the folder is writable: a full disk, a failing device.
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
    /// Standard output failed.
    #[error("standard output: {0}")]
    Print(#[from] std::io::Error),
    /// A serial port that cannot be used. The text of `source` starts with the port.
    #[error("{argument}: {source}")]
    Port {
        /// The argument, with its dashes where it is a flag.
        argument: &'static str,
        /// What is wrong with it.
        source: PortError,
    },
    /// Records that a serial line lost or damaged.
    #[error("{port}: {what}; what came whole is right, and all that is missing is counted")]
    Line {
        /// The port.
        port: String,
        /// How much.
        what: String,
    },
    /// Memory that the system refuses.
    #[error("{}: {bytes} bytes of memory were refused by the system", dashed(argument))]
    Memory {
        /// The tensor that it was for.
        argument: &'static str,
        /// The size.
        bytes: usize,
    },
    /// The answer is wrong.
    #[error("verification failed: {0}")]
    Verification(String),
    /// Nothing can be said about the answer.
    #[error("no claim: {0}")]
    NoClaim(String),
    /// A file that is not a table of results.
    #[error("--{argument}: {}: not a table of elsa bench: {found}; allowed: what --csv or --save has written", path.display())]
    Table {
        /// The flag, without its dashes.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
    },
    /// A file that is not a model that can be rewritten.
    #[error("{}: {}: {source}", dashed(argument), path.display())]
    Model {
        /// The argument.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ModelError,
    },
    /// A GPU whose events tell no time.
    #[error("the driver of the GPU reports no time between its events, so that nothing can be measured")]
    Untimed,
    /// Something became slower than the results that it was compared with.
    #[error("slower: {0}")]
    Slower(String),
    /// Cells of a benchmark that were refused or disturbed.
    #[error("{0}; the rows say why, and what to do")]
    Unclean(String),
}

impl Error {
    /// The exit status: 2 for a wrong request, 3 for a failing device or system, 4 for a wrong answer and for one that
    /// became slower, 5 for disturbed measurements, 6 for an answer about which nothing can be said, 141 for a standard output that its reader has closed.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Error::Argument { .. }
            | Error::Tensor { .. }
            | Error::Target { .. }
            | Error::Table { .. }
            | Error::Model { .. }
            | Error::Problem(_)
            | Error::Tensors { .. }
            | Error::Quorum { .. }
            | Error::States(_)
            | Error::Bind(BindError::Problem(_) | BindError::Budget { .. })
            | Error::Engine(
                EngineError::BackendAbsent { .. }
                | EngineError::BackendName { .. }
                | EngineError::Threads { .. }
                | EngineError::Device { reason: DeviceError::Ordinal { .. } },
            )
            | Error::Plan(PlanError::Option(_) | PlanError::NotOnGpu { .. })
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
            // What a request can cause. Everything else is a failure of the device that holds the file.
            Error::Read { source, .. } => match source.kind() {
                ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::InvalidInput
                | ErrorKind::InvalidFilename
                | ErrorKind::IsADirectory
                | ErrorKind::NotADirectory
                | ErrorKind::WouldBlock => REQUEST,
                // Links that lead to themselves, a kind that the library does not name.
                _ if source.raw_os_error() == Some(libc::ELOOP) => REQUEST,
                _ => SYSTEM,
            },
            Error::Port { source, .. } if source.is_request() => REQUEST,
            Error::Print(source) if source.kind() == ErrorKind::BrokenPipe => CLOSED,
            Error::Verification(_) | Error::Slower(_) => VERIFICATION,
            Error::Unclean(_) => UNCLEAN,
            Error::NoClaim(_) => NO_CLAIM,
            _ => SYSTEM,
        }
    }

    /// The message on one line, with what is hidden in names shown.
    #[must_use]
    pub fn line(&self) -> String {
        one_line(&self.to_string())
    }
}

/// A flag with its dashes. An argument without a flag has its name in capitals, and stands as it is.
#[must_use]
pub fn dashed(argument: &str) -> String {
    if argument.starts_with(|c: char| c.is_ascii_uppercase()) {
        argument.into()
    } else {
        format!("--{argument}")
    }
}

/// Prints `line` on standard error, on one line. A standard error that fails is ignored: there is no other place to say so.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "elsa: {}", one_line(line));
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
        assert_eq!(Error::Engine(EngineError::Device { reason: lost() }).status(), 3);
        assert_eq!(Error::Bind(BindError::Device(lost())).status(), 3);
        assert_eq!(Error::Plan(Refused::HeadSize { found: 257, max: 256 }.into()).status(), 2);
        assert_eq!(Error::Memory { argument: "out", bytes: 1 }.status(), 3);
        assert_eq!(Error::Changed { argument: "q", path: "q.npy".into() }.status(), 3);
        assert_eq!(Error::Verification("x".into()).status(), 4);
        assert_eq!((Error::Slower("x".into()).status(), Error::Unclean("x".into()).status()), (4, 5));
        assert_eq!(Error::NoClaim("x".into()).status(), 6);
        let print = |kind: ErrorKind| Error::Print(kind.into());
        assert_eq!((print(ErrorKind::BrokenPipe).status(), print(ErrorKind::StorageFull).status()), (141, 3));
    }
}
