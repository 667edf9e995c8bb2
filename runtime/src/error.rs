//! What can be refused, and what can fail.

use crate::engine::Backend;
use elsa_core::problem::ProblemError;

/// Why there is no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A back end that was asked for by name and is not on this machine or not in this build.
    #[error("backend: {asked} is absent; allowed here: {present}")]
    BackendAbsent {
        /// What was asked for.
        asked: Backend,
        /// Names of those that are present.
        present: String,
    },
    /// A name that is no back end's.
    #[error("backend: '{found}'; allowed: auto, scalar, neon, avx2, avx512, cuda")]
    BackendName {
        /// The name.
        found: String,
    },
    /// A number of threads that is not offered.
    #[error("threads: {found}; allowed: 1 to {max}")]
    Threads {
        /// The number.
        found: usize,
        /// The greatest.
        max: usize,
    },
    /// The system gave no thread.
    #[error("threads: the system started {started} of {wanted}: {reason}")]
    Spawn {
        /// Threads that run.
        started: usize,
        /// Threads that were asked for.
        wanted: usize,
        /// What the system said.
        reason: String,
    },
}

/// Why a plan does not take these tensors.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The data are not those of the problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The workspace is another plan's.
    #[error(
        "workspace: {found} bytes for {found_sequences} sequences; allowed: at least {needed} bytes and {sequences} sequences, as this plan's own has"
    )]
    Workspace {
        /// Its bytes.
        found: usize,
        /// Bytes that the plan needs.
        needed: usize,
        /// Sequences that it has room for.
        found_sequences: usize,
        /// Sequences of the plan.
        sequences: usize,
    },
}

/// Why a run did not end well. The outputs are then not to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A worker panicked, which is a defect of this library.
    #[error("a worker panicked; the outputs are incomplete")]
    Panicked,
}
