//! Errors of streamed runs.

use crate::error::{PlanError, RunError};
use crate::stream::{PieceError, PrefetchError};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Operand;
use std::io;

/// Error of a streamed run. The outputs written before it are incomplete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The run has no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The lengths do not match the problem, or an index exceeds its table.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The source failed, or ended early.
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
        /// Number of the unit.
        number: usize,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A resumed run starts at a unit that does not exist.
    #[error("first unit: {found}; allowed: at most {units}")]
    Unit {
        /// Requested unit.
        found: usize,
        /// Number of units.
        units: usize,
    },
    /// A run that certifies resumes another one.
    #[error("first unit: {found}; allowed: 0 in a run that certifies, which measures every unit itself")]
    Unmeasured {
        /// Requested unit.
        found: usize,
    },
    /// The system refused memory.
    #[error("{bytes} bytes of memory were refused by the system")]
    Memory {
        /// The requested number of bytes.
        bytes: usize,
    },
    /// A worker panicked, or the run was cancelled.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The reading thread cannot be started, or the source panicked in it.
    #[error("{0}")]
    Reader(String),
}

impl StreamError {
    /// Creates the error of rows that were not read.
    pub(super) fn read(operand: Operand, e: PieceError) -> StreamError {
        StreamError::Read { operand, offset: e.offset, bytes: e.bytes, source: e.source }
    }

    /// Creates the error of rows that were not written.
    pub(super) fn write(operand: Operand, e: PieceError) -> StreamError {
        StreamError::Write { operand, offset: e.offset, bytes: e.bytes, source: e.source }
    }
}

impl From<PrefetchError<StreamError>> for StreamError {
    fn from(e: PrefetchError<StreamError>) -> StreamError {
        match e {
            PrefetchError::Failed(e) => e,
            other => StreamError::Reader(other.to_string()),
        }
    }
}
