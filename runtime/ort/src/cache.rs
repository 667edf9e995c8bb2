//! Plans by the shapes of a call, each with the workspaces that wait for its next run.

use crate::error::OperatorError;
use crate::geometry::{Geometry, Shapes};
use elsa_runtime::{Plan, Workspace};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of plans that a node keeps. A model whose shapes change more often plans anew, as on its first call.
const PLANS: usize = 32;

/// What was decided once for the shapes of a call.
pub(crate) struct Prepared {
    pub geometry: Geometry,
    pub plan: Plan,
    /// One for each call that has run at the same time as others.
    idle: Mutex<Vec<Workspace>>,
}

/// The workspace of a call, which goes back when the call ends.
pub(crate) struct Borrowed<'a> {
    prepared: &'a Prepared,
    workspace: Option<Workspace>,
}

impl Prepared {
    /// Takes a workspace, or allocates one if all are in use.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn workspace(&self) -> Result<Borrowed<'_>, OperatorError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let workspace = match idle {
            Some(workspace) => workspace,
            None => self.plan.workspace()?,
        };
        Ok(Borrowed { prepared: self, workspace: Some(workspace) })
    }
}

impl Borrowed<'_> {
    /// The workspace.
    pub fn get(&mut self) -> &mut Workspace {
        match &mut self.workspace {
            Some(workspace) => workspace,
            None => unreachable!("taken when it is dropped only"),
        }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if let Some(workspace) = self.workspace.take() {
            self.prepared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        }
    }
}

/// The plans of a node, the last used first.
#[derive(Default)]
pub(crate) struct Cache {
    plans: Mutex<Vec<(Shapes, Arc<Prepared>)>>,
}

impl Cache {
    /// The plan for the shapes of a call.
    pub fn find(&self, shapes: &Shapes) -> Option<Arc<Prepared>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let at = plans.iter().position(|(of, _)| of == shapes)?;
        plans[..=at].rotate_right(1);
        plans.first().map(|(_, prepared)| prepared.clone())
    }

    /// Keeps a plan, in the place of the one that was not used for longest. If another thread has made one for the same
    /// shapes, both are kept.
    pub fn insert(&self, shapes: Shapes, geometry: Geometry, plan: Plan) -> Arc<Prepared> {
        let prepared = Arc::new(Prepared { geometry, plan, idle: Mutex::default() });
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let last = if plans.len() == PLANS { plans.pop() } else { None };
        plans.insert(0, (shapes, prepared.clone()));
        drop(plans);
        // Its workspaces are freed while no lock is held.
        drop(last);
        prepared
    }
}
