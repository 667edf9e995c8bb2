//! Why a streamed run fails.

use crate::error::{PlanError, RunError};
use crate::stream::{PieceError, PrefetchError};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Operand;
use std::io;

/// Why a streamed run failed. What was written by then is incomplete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// No plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The lengths do not match the problem, or an index leaves its table.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The source failed, or ended early.
    #[error("{}: {bytes} bytes from byte {offset} on cannot be read: {source}", operand.argument())]
    Read {
        /// The tensor.
        operand: Operand,
        /// Its first byte that was asked for.
        offset: u64,
        /// Number of bytes that were asked for.
        bytes: usize,
        /// The cause.
        source: io::Error,
    },
    /// The sink failed.
    #[error("{}: {bytes} bytes from byte {offset} on cannot be written: {source}", operand.argument())]
    Write {
        /// The tensor.
        operand: Operand,
        /// Its first byte that was handed over.
        offset: u64,
        /// Number of bytes that were handed over.
        bytes: usize,
        /// The cause.
        source: io::Error,
    },
    /// The sink could not take note of a finished unit.
    #[error("unit {number}: cannot be noted as finished: {source}")]
    Note {
        /// Number of the unit.
        number: usize,
        /// The cause.
        source: io::Error,
    },
    /// A run that goes on begins at a unit that there is not.
    #[error("first unit: {found}; allowed: at most {units}")]
    Unit {
        /// The unit asked for.
        found: usize,
        /// Number of units.
        units: usize,
    },
    /// A run that certifies goes on where another one stopped.
    #[error("first unit: {found}; allowed: 0 in a run that certifies, which measures every unit itself")]
    Unmeasured {
        /// The unit asked for.
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
    /// The thread that reads cannot be started, or the source panicked in it.
    #[error("{0}")]
    Reader(String),
}

impl StreamError {
    /// Of rows that were not read.
    pub(super) fn read(operand: Operand, e: PieceError) -> StreamError {
        StreamError::Read { operand, offset: e.offset, bytes: e.bytes, source: e.source }
    }

    /// Of rows that were not written.
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
