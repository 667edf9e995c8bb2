//! Error of an audit.

use super::super::model::ModelError;

/// Error of an audit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// A given tensor does not fit the model's inputs.
    #[error("{found}; allowed: {allowed}")]
    Input {
        /// Description of the tensor.
        found: String,
        /// Description of the allowed tensors.
        allowed: String,
    },
    /// The model cannot be audited.
    #[error("{0}")]
    Unable(String),
}

impl From<ModelError> for AuditError {
    fn from(error: ModelError) -> AuditError {
        AuditError::Unable(error.to_string())
    }
}
