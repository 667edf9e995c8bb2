//! The workspaces behind the handles.

use crate::fault::Fault;
use crate::handles::Table;
use crate::types::*;
use elsa_runtime::{
    ConvolutionWorkspace, LinearWorkspace, RecurrenceWorkspace, SelectiveWorkspace, Workspace,
};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub(crate) static WORKSPACES: Table<Mutex<Space>> = Table::new("workspace");

/// A workspace of one of the operators.
#[derive(Debug)]
pub(crate) enum Space {
    Attention(Box<Workspace>),
    Linear(Box<LinearWorkspace>),
    Recurrence(Box<RecurrenceWorkspace>),
    Selective(Box<SelectiveWorkspace>),
    Convolution(Box<ConvolutionWorkspace>),
}

impl Space {
    /// Returns the name of the operator, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Space::Attention(_) => "attention",
            Space::Linear(_) => "linear attention",
            Space::Recurrence(_) => "a recurrence",
            Space::Selective(_) => "a selective scan",
            Space::Convolution(_) => "a convolution",
        }
    }
}

/// Locks the workspace for one call, or returns ELSA_STATUS_BUSY if another call is using it.
pub(crate) fn lock(workspace: &Mutex<Space>) -> Result<MutexGuard<'_, Space>, Fault> {
    match workspace.try_lock() {
        Ok(guard) => Ok(guard),
        // A call that panicked does no harm: a run overwrites anything that an earlier one has left in the workspace.
        Err(TryLockError::Poisoned(guard)) => Ok(PoisonError::into_inner(guard)),
        Err(TryLockError::WouldBlock) => Err(Fault::new(
            ELSA_STATUS_BUSY,
            &"workspace: at work in another call; allowed: one call at a time",
        )),
    }
}
