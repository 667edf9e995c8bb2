//! Caches plans. The key of a plan consists of the shapes of the calls that use it. Each plan is stored with its idle
//! workspaces.

use crate::error::OperatorError;
use crate::geometry::{Geometry, Shapes};
use elsa_runtime::{Plan, Workspace};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of plans that a node keeps. A shape whose plan has been evicted is planned again at its next call.
const PLANS: usize = 32;

/// The result of planning for the shapes of a call.
pub(crate) struct Prepared {
    pub geometry: Geometry,
    pub plan: Plan,
    /// Workspaces that no call is using. Each call returns its workspace here when it ends.
    idle: Mutex<Vec<Workspace>>,
}

/// A workspace that a call has borrowed. It is returned to the idle workspaces when it is dropped.
pub(crate) struct Borrowed<'a> {
    prepared: &'a Prepared,
    workspace: Option<Workspace>,
}

impl Prepared {
    /// Borrows an idle workspace, or allocates a workspace if no workspace is idle.
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
    /// Returns the workspace.
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

/// The plans of a node, most recently used first.
#[derive(Default)]
pub(crate) struct Cache {
    plans: Mutex<Vec<(Shapes, Arc<Prepared>)>>,
}

impl Cache {
    /// Returns the plan for the shapes of a call, if it is cached.
    pub fn find(&self, shapes: &Shapes) -> Option<Arc<Prepared>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let at = plans.iter().position(|(of, _)| of == shapes)?;
        plans[..=at].rotate_right(1);
        plans.first().map(|(_, prepared)| prepared.clone())
    }

    /// Adds a plan. If the cache is full, evicts the least recently used plan. If another thread has added a plan for
    /// the same shapes, both plans are kept.
    pub fn insert(&self, shapes: Shapes, geometry: Geometry, plan: Plan) -> Arc<Prepared> {
        let prepared = Arc::new(Prepared { geometry, plan, idle: Mutex::default() });
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let last = if plans.len() == PLANS { plans.pop() } else { None };
        plans.insert(0, (shapes, prepared.clone()));
        drop(plans);
        // The workspaces of the evicted plan are freed after the lock is released.
        drop(last);
        prepared
    }
}
