//! Reports of runs.

use crate::backend::Backend;
use crate::error::{BindError, DeviceError, PlanError};
use std::fmt;
use std::sync::Arc;

/// Reason why the CPU computed instead of the GPU.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The GPU cannot be used, or does not support the problem.
    Plan(Arc<PlanError>),
    /// The GPU does not support the tensors of the call.
    Bind(Arc<BindError>),
    /// The GPU failed.
    Device(Arc<DeviceError>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Plan(e) => e.fmt(f),
            Reason::Bind(e) => e.fmt(f),
            Reason::Device(e) => write!(f, "backend: cuda: {e}"),
        }
    }
}

/// Report of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The back end that computed.
    pub backend: Backend,
    /// Number of workers that shared the work: threads of the CPU, or thread blocks of the GPU.
    pub workers: usize,
    /// Number of bytes of tensors that were copied between host and GPU. The number is zero if the CPU computed, or if
    /// the GPU used all tensors in place.
    pub copied: usize,
    /// Reason why the CPU computed instead of a GPU; `None` if there was no fallback.
    pub fallback: Option<Reason>,
}
