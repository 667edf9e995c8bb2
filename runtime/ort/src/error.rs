//! Errors of models, nodes and calls. A message contains the name that the argument has in the operator, the value
//! found, and the allowed values.

use crate::operands::Input;
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
    Run(#[from] RunError),
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
        OperatorError::Problem(e.renamed(renamed))
    }
}

impl From<BindError> for OperatorError {
    fn from(e: BindError) -> OperatorError {
        match e {
            BindError::Problem(e) => e.into(),
            BindError::Address { argument, address } => {
                OperatorError::Bind(BindError::Address { argument: renamed(argument), address })
            }
            e => OperatorError::Bind(e),
        }
    }
}

/// Converts the engine's name of an argument to the name in the operator's interface.
fn renamed(argument: &'static str) -> &'static str {
    match argument {
        "q" => "Q",
        "k" => "K",
        "v" => "V",
        "out" => "Y",
        "past_k" => Input::PastKey.name(),
        "past_v" => Input::PastValue.name(),
        "present_k" => "present_key",
        "present_v" => "present_value",
        "bias" => "bias_table",
        "causal" => "is_causal",
        "window_left" | "window_right" => "window",
        "windows" | "windows.size" => "grid",
        "windows.picture" => "picture",
        "windows.shift" => "shift",
        "windows.picture in windows" => "picture in windows of grid",
        "key_lengths" => "kv_lengths",
        other => other,
    }
}
