//! Errors of streams and of their runs.

use crate::error::DeviceError;
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError;

/// Error of streaming keys in chunks. Results that were returned before it are complete, others are not.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuStreamError {
    /// The data do not match the problem.
    #[error(transparent)]
    Problem(#[from] ArgumentError),
    /// The kernels do not support the problem.
    #[error(transparent)]
    Refused(#[from] ChooseError),
    /// The problem has an argument that streams do not support.
    #[error("{argument}: given; allowed: {allowed}")]
    Argument {
        /// Name of the argument.
        argument: &'static str,
        /// A supported alternative.
        allowed: &'static str,
    },
    /// A resumed run starts at a unit that does not exist.
    #[error("first unit: {found}; allowed: at most {units}")]
    Unit {
        /// Requested unit.
        found: usize,
        /// Number of units.
        units: usize,
    },
    /// A number of the division is not supported.
    #[error("{argument}: {found}; allowed: {allowed}, a multiple of {multiple}")]
    Division {
        /// Name of the number.
        argument: &'static str,
        /// Value of the number.
        found: usize,
        /// Supported values.
        allowed: &'static str,
        /// A number that it must be a multiple of.
        multiple: usize,
    },
    /// The engine computes on the CPU.
    #[error("backend: no GPU computes; allowed: an engine whose back end is cuda")]
    NoGpu,
    /// The call requests no output.
    #[error("out: no output, log-sum-exp or state is wanted; allowed: at least one")]
    NoOutput,
    /// The system would kill the process.
    #[error("memory: {needed} bytes are needed; allowed: at most {available}, by {limit}")]
    Limit {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes that are still available to the process.
        available: u64,
        /// The limit that applies.
        limit: &'static str,
    },
    /// The budget has no room for the smallest division.
    #[error("{argument}: {budget} bytes; allowed: at least {needed}")]
    Budget {
        /// Name of the budget.
        argument: &'static str,
        /// The budget in bytes.
        budget: usize,
        /// Number of bytes that the smallest division needs.
        needed: usize,
    },
    /// The location of the keys differs from the one declared for the stream.
    #[error("keys: {found}; allowed: {allowed}")]
    Keys {
        /// Location of the keys.
        found: &'static str,
        /// Allowed locations.
        allowed: &'static str,
    },
    /// Keys, queries or results could not be read or written.
    #[error("{what}: {reason}")]
    Io {
        /// Name of the data that could not be read or written.
        what: &'static str,
        /// Message of the system.
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
    /// Returns `true` if memory was not available, so a smaller division may succeed.
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
