//! Errors of the model.

use crate::request::named_wrongly;
use elsa_core::argument::ArgumentError;
use elsa_runtime::{BindError, PlanError, RunError};
use std::path::PathBuf;

/// Reason why a model cannot be opened or does not return an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file cannot be read.
    #[error("model: {}: {source}; allowed: a readable safetensors file", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error that the system returned.
        source: std::io::Error,
    },
    /// The file is not a safetensors file.
    #[error("model: {}: {reason}; allowed: a safetensors file", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Defect that the reader found.
        reason: String,
    },
    /// A required tensor is absent or unsuitable.
    #[error("model: tensor {name}: {found}; allowed: {allowed}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// Value or shape of the tensor in the file, or `absent`.
        found: String,
        /// Tensor or value that the network needs.
        allowed: String,
    },
    /// The engine is not available. The error's text starts with the name of an argument.
    #[error(transparent)]
    Engine(PlanError),
    /// The shapes are not a valid attention problem.
    #[error("model: {0}")]
    Problem(#[from] ArgumentError),
    /// Attention with these shapes cannot be planned.
    #[error("model: {0}")]
    Plan(#[from] PlanError),
    /// The buffers do not fit the plan.
    #[error("model: {0}")]
    Bind(#[from] BindError),
    /// Attention failed.
    #[error("attention: {0}")]
    Run(#[from] RunError),
}

impl ModelError {
    /// Returns `true` if the request caused the error, `false` if the device or the system did.
    #[must_use]
    pub fn is_request(&self) -> bool {
        match self {
            ModelError::Read { source, .. } => named_wrongly(source),
            ModelError::Engine(error) => {
                !matches!(error, PlanError::Spawn { .. } | PlanError::Unusable { .. })
            }
            ModelError::Plan(_) | ModelError::Bind(_) | ModelError::Run(_) => false,
            _ => true,
        }
    }
}
