//! Why a stream could not be made or did not end.

use crate::error::DeviceError;
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError;

/// Why keys could not pass in chunks. The results that were handed out before are complete, others are not.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuStreamError {
    /// The data do not match the problem.
    #[error(transparent)]
    Problem(#[from] ArgumentError),
    /// The kernels do not support the problem.
    #[error(transparent)]
    Refused(#[from] ChooseError),
    /// The problem has an argument that is not supported here.
    #[error("{argument}: given; allowed: {allowed}")]
    Argument {
        /// Name of the argument.
        argument: &'static str,
        /// Where it is supported, or what in its place.
        allowed: &'static str,
    },
    /// A run that goes on begins at a unit that there is not.
    #[error("first unit: {found}; allowed: at most {units}")]
    Unit {
        /// The unit asked for.
        found: usize,
        /// Number of units.
        units: usize,
    },
    /// A number of the division is not supported.
    #[error("{argument}: {found}; allowed: {allowed}, a multiple of {multiple}")]
    Division {
        /// Name of the number.
        argument: &'static str,
        /// The number found.
        found: usize,
        /// The numbers that are supported.
        allowed: &'static str,
        /// What it must be a multiple of.
        multiple: usize,
    },
    /// The engine computes on the CPU.
    #[error("backend: no GPU computes; allowed: an engine whose back end is cuda")]
    NoGpu,
    /// The call wants nothing.
    #[error("out: no output, log-sum-exp or state is wanted; allowed: at least one")]
    NoOutput,
    /// The system would end the process.
    #[error("memory: {needed} bytes are needed; allowed: at most {available}, by {limit}")]
    Limit {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes that the process may still take.
        available: u64,
        /// What limits them.
        limit: &'static str,
    },
    /// The budget has no room for the smallest division.
    #[error("{argument}: {budget} bytes; allowed: at least {needed}")]
    Budget {
        /// Which budget.
        argument: &'static str,
        /// The budget in bytes.
        budget: usize,
        /// Number of bytes that the smallest division needs.
        needed: usize,
    },
    /// The keys are not where the stream was told that they are.
    #[error("keys: {found}; allowed: {allowed}")]
    Keys {
        /// Where they are.
        found: &'static str,
        /// Where they may be.
        allowed: &'static str,
    },
    /// Keys, queries or results could not be read or written.
    #[error("{what}: {reason}")]
    Io {
        /// What could not be read or written.
        what: &'static str,
        /// What the system reports.
        reason: String,
    },
    /// [`Engine::cancel`](crate::Engine::cancel) ended the run.
    #[error("cancelled; the results that were not handed out are missing")]
    Cancelled,
    /// The GPU failed.
    #[error("backend: cuda: {0}")]
    Device(#[from] DeviceError),
}

impl GpuStreamError {
    /// Whether memory was not available, so that a smaller division may succeed.
    #[must_use]
    pub const fn is_memory(&self) -> bool {
        /// The driver's code for memory that is not available, which any call may return.
        const OUT_OF_MEMORY: u32 = 2;
        match self {
            GpuStreamError::Device(DeviceError::Memory { .. } | DeviceError::HostMemory { .. })
            | GpuStreamError::Limit { .. }
            | GpuStreamError::Budget { .. } => true,
            GpuStreamError::Device(DeviceError::Call { code, .. }) => *code == OUT_OF_MEMORY,
            _ => false,
        }
    }
}
