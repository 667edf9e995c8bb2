//! Errors of the model.

use crate::request::named_wrongly;
use elsa_core::argument::ArgumentError;
use elsa_runtime::{BindError, PlanError, RunError};
use std::path::PathBuf;

/// Reason why there is no model, or no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The file cannot be read.
    #[error("model: {}: {source}; allowed: a readable safetensors file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not a safetensors file.
    #[error("model: {}: {reason}; allowed: a safetensors file", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Defect of the file.
        reason: String,
    },
    /// A required tensor is absent or different.
    #[error("model: tensor {name}: {found}; allowed: {allowed}")]
    Tensor {
        /// Name.
        name: String,
        /// Contents of the file.
        found: String,
        /// Requirement of the network.
        allowed: String,
    },
    /// The engine is not available. Its text starts with the argument.
    #[error(transparent)]
    Engine(PlanError),
    /// Attention of these shapes is refused.
    #[error("model: {0}")]
    Problem(#[from] ArgumentError),
    /// Attention of these shapes cannot be planned.
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
    /// Returns `true` if the request is at fault, and not the device or the system.
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
