//! Workspaces as objects behind the handles of type elsa_workspace.

use crate::fault::Fault;
use crate::handles::Table;
use crate::types::*;
use std::any::Any;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub(crate) static WORKSPACES: Table<Mutex<Space>> = Table::new("workspace");

/// A workspace whose operator is known only at run time.
#[derive(Debug)]
pub(crate) struct Space {
    /// Name of the operator, for messages.
    pub name: &'static str,
    /// The workspace of the runtime, in the operator's type.
    pub workspace: Box<dyn Any + Send>,
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
