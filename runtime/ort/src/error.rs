//! Why a model, a node or a call is refused. Messages name the argument as the operator calls it, what was found, and
//! what is allowed.

use crate::operands::Input;
use elsa_core::argument::ArgumentError;
use elsa_runtime::{BindError, EngineError, PlanError, RunError};

/// Why the operator does not compute.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The runtime is too old, or does not say which it is.
    #[error("ONNX Runtime: version {found}; allowed: 1.10 or newer")]
    Runtime {
        /// The version that it names.
        found: String,
    },
    /// An attribute, a variable of the environment, or an entry of the session's configuration has a value that makes
    /// no sense.
    #[error("{argument}: {found}; allowed: {allowed}")]
    Value {
        /// Its name.
        argument: &'static str,
        /// Its value.
        found: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The rank of an input is not that of the others, or of any.
    #[error("{argument}: rank {found}; allowed: {allowed}")]
    Rank {
        /// Name of the input.
        argument: &'static str,
        /// Its rank.
        found: usize,
        /// The allowed ranks.
        allowed: &'static str,
    },
    /// The element type of an input.
    #[error("{argument}: type {found}; allowed: {allowed}")]
    Type {
        /// Name of the input.
        argument: &'static str,
        /// The name of its type.
        found: &'static str,
        /// The allowed types.
        allowed: &'static str,
    },
    /// An input or attribute that another one requires is absent.
    #[error("{argument}: absent; allowed: given, because {other} is")]
    Missing {
        /// Its name.
        argument: &'static str,
        /// What requires it.
        other: &'static str,
    },
    /// Two inputs or attributes exclude each other.
    #[error("{argument}: given with {other}; allowed: one of the two")]
    Conflict {
        /// The name of one.
        argument: &'static str,
        /// The name of the other.
        other: &'static str,
    },
    /// A size differs from the one that something else says.
    #[error("{argument}: {axis} {found}; allowed: {allowed}, as {of} says")]
    Size {
        /// Name of the input.
        argument: &'static str,
        /// Name of the axis.
        axis: &'static str,
        /// Its size.
        found: i64,
        /// The required size.
        allowed: i64,
        /// What says so.
        of: &'static str,
    },
    /// The input is no tensor, or its memory is not where the operator computes.
    #[error("{argument}: {found}; allowed: a dense tensor in memory of the operator's provider")]
    Place {
        /// Name of the input.
        argument: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// The problem is refused.
    #[error(transparent)]
    Problem(ArgumentError),
    /// The engine could not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is no plan for the problem.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The tensors cannot be bound.
    #[error(transparent)]
    Bind(BindError),
    /// The computation failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A call of ONNX Runtime's own failed.
    #[error("ONNX Runtime: {call}: {message}")]
    Host {
        /// Name of the function.
        call: &'static str,
        /// Its message.
        message: String,
    },
    /// A panic in this library.
    #[error("a bug in this library: {message}")]
    Panic {
        /// The message of the panic.
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

/// The operator's name of an argument that the engine names.
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
