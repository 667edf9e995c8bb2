//! Errors of models, nodes and calls. A message contains the name that the argument has in the operator, the value
//! found, and the allowed values.

use elsa_core::argument::ArgumentError;
use elsa_runtime::{BindError, PlanError, RunError};

/// Error of the operator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The runtime is too old, or does not report its version.
    #[error("ONNX Runtime: version {found}; allowed: 1.10 or newer")]
    Runtime {
        /// Version that the runtime reports.
        found: String,
    },
    /// An attribute, an environment variable, or an entry of the session's configuration has an invalid value.
    #[error("{argument}: {found}; allowed: {allowed}")]
    Value {
        /// Name of the setting.
        argument: &'static str,
        /// Value of the setting.
        found: String,
        /// Allowed values, in words.
        allowed: &'static str,
    },
    /// The rank of an input differs from the rank of the other inputs, or is not supported.
    #[error("{argument}: rank {found}; allowed: {allowed}")]
    Rank {
        /// Name of the input.
        argument: &'static str,
        /// Rank of the input.
        found: usize,
        /// Allowed ranks.
        allowed: &'static str,
    },
    /// The element type of an input is not supported.
    #[error("{argument}: type {found}; allowed: {allowed}")]
    Type {
        /// Name of the input.
        argument: &'static str,
        /// Name of the input's element type.
        found: &'static str,
        /// Allowed types.
        allowed: &'static str,
    },
    /// An input or attribute is missing, although another input or attribute requires it.
    #[error("{argument}: absent; allowed: given, because {other} is")]
    Missing {
        /// Name of the missing input or attribute.
        argument: &'static str,
        /// Name of the input or attribute that requires it.
        other: &'static str,
    },
    /// Two inputs or attributes exclude each other.
    #[error("{argument}: given with {other}; allowed: one of the two")]
    Conflict {
        /// Name of the first input or attribute.
        argument: &'static str,
        /// Name of the second input or attribute.
        other: &'static str,
    },
    /// A size differs from the size that another argument determines.
    #[error("{argument}: {axis} {found}; allowed: {allowed}, as {of} says")]
    Size {
        /// Name of the input.
        argument: &'static str,
        /// Name of the axis.
        axis: &'static str,
        /// Size of the axis.
        found: i64,
        /// Required size.
        allowed: i64,
        /// Argument that determines the size.
        of: &'static str,
    },
    /// The input is not a tensor, or its memory is not accessible where the operator computes.
    #[error("{argument}: {found}; allowed: a dense tensor in memory of the operator's provider")]
    Place {
        /// Name of the input.
        argument: &'static str,
        /// Description of the input.
        found: &'static str,
    },
    /// The problem is invalid.
    #[error(transparent)]
    Problem(ArgumentError),
    /// The engine could not start, or there is no plan for the problem.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The tensors cannot be bound to the plan.
    #[error(transparent)]
    Bind(BindError),
    /// The computation failed.
    #[error(transparent)]
    Run(RunError),
    /// A call to ONNX Runtime failed.
    #[error("ONNX Runtime: {call}: {message}")]
    Host {
        /// Name of the function that returned the error.
        call: &'static str,
        /// Message of the runtime.
        message: String,
    },
    /// A panic in this library.
    #[error("a bug in this library: {message}")]
    Panic {
        /// Message of the panic.
        message: String,
    },
}

impl From<ArgumentError> for OperatorError {
    fn from(e: ArgumentError) -> OperatorError {
        OperatorError::Problem(e)
    }
}

impl From<BindError> for OperatorError {
    fn from(e: BindError) -> OperatorError {
        match e {
            BindError::Problem(e) => e.into(),
            e => OperatorError::Bind(e),
        }
    }
}

impl From<RunError> for OperatorError {
    fn from(e: RunError) -> OperatorError {
        match e {
            RunError::Bind(e) => e.into(),
            e => OperatorError::Run(e),
        }
    }
}

impl OperatorError {
    /// Returns this error with `name` applied to the names that the engine gives to arguments.
    pub(crate) fn renamed(self, name: fn(&'static str) -> &'static str) -> OperatorError {
        match self {
            OperatorError::Problem(e) => OperatorError::Problem(e.renamed(name)),
            OperatorError::Bind(BindError::Address { argument, address }) => {
                OperatorError::Bind(BindError::Address { argument: name(argument), address })
            }
            e => e,
        }
    }
}
