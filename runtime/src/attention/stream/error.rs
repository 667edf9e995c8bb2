//! Errors of streamed runs.

use crate::error::{DeviceError, PlanError, RunError};
use crate::stream::PieceError;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Operand;
use elsa_core::plan::ChooseError;
use std::io;

/// Error of a stream or of its run. Results that were returned before the error are complete; all other results are
/// incomplete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// No plan could be made for the stream.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The lengths do not match the problem, or an index exceeds its table.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The source failed, or ended too early.
    #[error("{}: {bytes} bytes from byte {offset} on cannot be read: {source}", operand.argument())]
    Read {
        /// Tensor that was read.
        operand: Operand,
        /// Offset of the first requested byte.
        offset: u64,
        /// Number of requested bytes.
        bytes: usize,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The sink failed.
    #[error("{}: {bytes} bytes from byte {offset} on cannot be written: {source}", operand.argument())]
    Write {
        /// Tensor that was written.
        operand: Operand,
        /// Offset of the first byte passed to the sink.
        offset: u64,
        /// Number of bytes passed to the sink.
        bytes: usize,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The sink could not record a finished unit.
    #[error("unit {number}: cannot be noted as finished: {source}")]
    Note {
        /// Index of the unit.
        number: usize,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A resumed run starts at a unit that does not exist.
    #[error("first unit: {found}; allowed: at most {units}")]
    Unit {
        /// Number of the requested unit.
        found: usize,
        /// Number of units.
        units: usize,
    },
    /// A plan that certifies cannot resume a run, because the earlier measurements are missing.
    #[error("first unit: {found}; allowed: 0 in a run that certifies, which measures every unit itself")]
    Unmeasured {
        /// Number of the requested unit.
        found: usize,
    },
    /// The system refused memory.
    #[error("{bytes} bytes of memory were refused by the system")]
    Memory {
        /// Number of bytes requested.
        bytes: usize,
    },
    /// A worker panicked, the run was cancelled, or the GPU failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The thread that reads the source could not be started, or the source panicked in that thread.
    #[error(transparent)]
    Reader(#[from] io::Error),
    /// The problem has an argument that streams on a GPU do not support.
    #[error("{argument}: given; allowed: {allowed}")]
    Unsupported {
        /// Name of the argument.
        argument: &'static str,
        /// Supported alternative, for the message.
        allowed: &'static str,
    },
    /// The value of `rows`, `keys` or `splits` in the requested division is not supported.
    #[error("{argument}: {found}; allowed: {allowed}, a multiple of {multiple}")]
    Division {
        /// Name of the field: `rows`, `keys` or `splits`.
        argument: &'static str,
        /// Requested value of the field.
        found: usize,
        /// Supported values.
        allowed: &'static str,
        /// The value must be a multiple of this number.
        multiple: usize,
    },
    /// The engine has no GPU.
    #[error("backend: no GPU computes; allowed: an engine whose back end is cuda")]
    NoGpu,
    /// The call requests no output.
    #[error("out: no output, log-sum-exp or state is wanted; allowed: at least one")]
    NoOutput,
    /// The memory of the stream exceeds a limit. The system would kill the process if the run used this memory.
    #[error("memory: {needed} bytes are needed; allowed: at most {available}, by {limit}")]
    Limit {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes that are still available to the process.
        available: u64,
        /// Name of the limit.
        limit: &'static str,
    },
    /// The division needs more memory than the budget allows.
    #[error("{argument}: {budget} bytes; allowed: at least {needed}")]
    Budget {
        /// Name of the budget, for the message.
        argument: &'static str,
        /// The budget in bytes.
        budget: usize,
        /// Number of bytes that the division needs.
        needed: usize,
    },
    /// The stream was created for keys from a different kind of source, or the device cannot use the keys' memory.
    #[error("keys: {found}; allowed: {allowed}")]
    Keys {
        /// Location of the keys, for the message.
        found: &'static str,
        /// Allowed location of the keys, for the message.
        allowed: &'static str,
    },
    /// The caller's function could not provide keys, queries or added values, or could not receive results.
    #[error("{what}: {reason}")]
    Io {
        /// Name of the data that could not be read or written.
        what: &'static str,
        /// Message of the I/O error.
        reason: String,
    },
}

impl StreamError {
    /// Returns `true` if the error means that memory was not available. A smaller division may then succeed.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        /// The driver's error code for insufficient memory. Any call to the driver may return this code.
        const OUT_OF_MEMORY: u32 = 2;
        match self {
            StreamError::Memory { .. } | StreamError::Limit { .. } | StreamError::Budget { .. } => true,
            StreamError::Run(RunError::Device(e)) => match **e {
                DeviceError::Memory { .. } | DeviceError::HostMemory { .. } => true,
                DeviceError::Call { code, .. } => code == OUT_OF_MEMORY,
                _ => false,
            },
            _ => false,
        }
    }

    /// Creates the error for rows that could not be read.
    pub(super) fn read(operand: Operand, e: PieceError) -> StreamError {
        StreamError::Read { operand, offset: e.offset, bytes: e.bytes, source: e.source }
    }

    /// Creates the error for rows that could not be written.
    pub(super) fn write(operand: Operand, e: PieceError) -> StreamError {
        StreamError::Write { operand, offset: e.offset, bytes: e.bytes, source: e.source }
    }
}

impl From<ChooseError> for StreamError {
    fn from(e: ChooseError) -> StreamError {
        StreamError::Plan(e.into())
    }
}

impl From<DeviceError> for StreamError {
    fn from(e: DeviceError) -> StreamError {
        StreamError::Run(e.into())
    }
}
