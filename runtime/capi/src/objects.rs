//! Plans, workspaces and bound calls as objects behind handles. Their operator is known only at run time.

use crate::fault::Fault;
use crate::growing::Room;
use crate::handles::Table;
use crate::types::*;
use elsa_runtime::Trust;
use elsa_runtime::operators::{Operator, Plan};
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Plans, by handles of type elsa_plan.
pub(crate) static PLANS: Table<dyn AnyPlan> = Table::new("plan");

/// Workspaces, by handles of type elsa_workspace.
pub(crate) static WORKSPACES: Table<Mutex<AnyWorkspace>> = Table::new("workspace");

/// Bound calls, by handles of type elsa_bound.
pub(crate) static BOUND_CALLS: Table<dyn AnyBoundCall> = Table::new("bound");

/// A plan, with the element types of tensors that its problem does not determine.
#[derive(Debug)]
pub(crate) struct Typed<O: Operator, T> {
    pub plan: Plan<O>,
    pub types: T,
}

/// A plan whose operator is known only at run time. [`Typed`] implements this trait for each operator.
pub(crate) trait AnyPlan: Any + Send + Sync {
    /// Returns the name of the operator, for messages.
    fn name(&self) -> &'static str;

    /// Describes the plan.
    fn info(&self) -> elsa_plan_info;

    /// Creates one workspace for all of `plans`. Returns an error if one of them has another operator than this plan.
    fn shared(&self, plans: &[Arc<dyn AnyPlan>]) -> Result<AnyWorkspace, Fault>;

    /// Creates a workspace in host memory that the caller provides.
    ///
    /// # Safety
    /// The caller keeps the clause *lent* of [`Plan::workspace_in`].
    unsafe fn workspace_in(&self, memory: *mut u8, bytes: usize) -> Result<AnyWorkspace, Fault>;

    /// Creates a workspace in device memory that the caller provides.
    ///
    /// # Safety
    /// The caller keeps the clause *lent* of [`Plan::workspace_on_device`].
    unsafe fn workspace_on_device(&self, memory: u64, bytes: usize) -> Result<AnyWorkspace, Fault>;

    /// Warms up the plan in a workspace.
    fn warm(&self, workspace: &mut AnyWorkspace) -> Result<(), Fault>;
}

/// A workspace whose operator is known only at run time.
#[derive(Debug)]
pub(crate) struct AnyWorkspace {
    /// Name of the operator, for messages.
    pub name: &'static str,
    /// The workspace of the runtime, in the operator's type.
    pub workspace: Box<dyn Any + Send>,
    /// What the caller guarantees about calls on tensors in GPU memory.
    pub trust: Trust,
}

/// Locks the workspace for one call, or returns ELSA_STATUS_BUSY if another call is using it.
pub(crate) fn lock(workspace: &Mutex<AnyWorkspace>) -> Result<MutexGuard<'_, AnyWorkspace>, Fault> {
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

/// A bound call whose operator is known only at run time: a plan, a workspace, and the tensors bound to them.
pub(crate) trait AnyBoundCall: Any + Send + Sync {
    /// Returns the name of the operator, for messages.
    fn name(&self) -> &'static str;

    /// Runs the bound call, waits, and writes the report if `room` has a place for it.
    ///
    /// # Safety
    /// The caller keeps the clause *tensors* of the function that bound the tensors.
    unsafe fn run(&self, room: Option<Room<elsa_report>>) -> Result<(), Fault>;
}
