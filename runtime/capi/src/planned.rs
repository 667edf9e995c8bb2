//! Plans as objects behind the handles of type elsa_plan.

use crate::fault::Fault;
use crate::handles::Table;
use crate::space::Space;
use crate::types::*;
use elsa_runtime::operators::{Operator, Plan};
use std::any::Any;
use std::sync::Arc;

pub(crate) static PLANS: Table<dyn AnyPlan> = Table::new("plan");

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
    fn shared(&self, plans: &[Arc<dyn AnyPlan>]) -> Result<Space, Fault>;

    /// Creates a workspace in host memory that the caller provides.
    ///
    /// # Safety
    /// The caller keeps the clause *lent* of [`Plan::workspace_in`].
    unsafe fn workspace_in(&self, memory: *mut u8, bytes: usize) -> Result<Space, Fault>;

    /// Creates a workspace in device memory that the caller provides.
    ///
    /// # Safety
    /// The caller keeps the clause *lent* of [`Plan::workspace_on_device`].
    unsafe fn workspace_on_device(&self, memory: u64, bytes: usize) -> Result<Space, Fault>;

    /// Warms up the plan in a workspace.
    fn warm(&self, workspace: &mut Space) -> Result<(), Fault>;
}
