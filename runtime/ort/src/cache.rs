//! Caches plans. The key of a plan consists of the shapes of the calls that use it. Each plan is stored with its idle
//! workspaces.

use crate::error::OperatorError;
use crate::memory::{Allocator, DeviceMemory};
use crate::operation::{GeometryOf, Operation};
use crate::shapes::Shapes;
use elsa_runtime::operators::{Plan, Workspace};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of plans that a node keeps. A shape whose plan has been evicted is planned again at its next call.
const PLANS: usize = 32;

/// The result of planning for the shapes of a call.
pub(crate) struct Prepared<O: Operation> {
    pub geometry: GeometryOf<O>,
    pub plan: Plan<O::Engine>,
    /// Size of the workspaces in bytes.
    bytes: usize,
    /// Workspaces that no call is using. Each call returns its workspace here when it ends. They are boxed, because a
    /// workspace has some kilobytes, which would be copied twice in each call.
    idle: Mutex<Vec<Box<Room<O>>>>,
}

/// A workspace, and its device memory if the provider's allocator has allocated it. Dropping the workspace waits for its
/// runs before the memory is freed.
struct Room<O: Operation> {
    workspace: Workspace<O::Engine>,
    _memory: Option<DeviceMemory>,
}

/// A workspace that a call has borrowed. It is returned to the idle workspaces when it is dropped.
pub(crate) struct Borrowed<'a, O: Operation> {
    prepared: &'a Prepared<O>,
    room: Option<Box<Room<O>>>,
}

impl<O: Operation> Prepared<O> {
    /// Borrows an idle workspace, or makes one if no workspace is idle: in memory of `allocator`, or in memory of its own.
    ///
    /// # Errors
    /// Returns an error if memory is not available.
    pub fn workspace(&self, allocator: Option<&Arc<Allocator>>) -> Result<Borrowed<'_, O>, OperatorError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let room = match (idle, allocator) {
            (Some(room), _) => room,
            (None, None) => Box::new(Room { workspace: self.plan.workspace()?, _memory: None }),
            (None, Some(allocator)) => {
                let memory = allocator.allocate(self.bytes)?;
                // SAFETY: *lent*: the memory belongs to the room, which drops the workspace first.
                let workspace = unsafe { self.plan.workspace_on_device(memory.address, memory.bytes)? };
                Box::new(Room { workspace, _memory: Some(memory) })
            }
        };
        Ok(Borrowed { prepared: self, room: Some(room) })
    }
}

impl<O: Operation> Borrowed<'_, O> {
    /// Returns the workspace.
    pub fn get(&mut self) -> &mut Workspace<O::Engine> {
        match &mut self.room {
            Some(room) => &mut room.workspace,
            None => unreachable!("taken when it is dropped only"),
        }
    }
}

impl<O: Operation> Drop for Borrowed<'_, O> {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            self.prepared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(room);
        }
    }
}

/// The plans of a node, most recently used first.
pub(crate) struct Cache<O: Operation> {
    plans: Mutex<Vec<(Shapes, Arc<Prepared<O>>)>>,
}

impl<O: Operation> Default for Cache<O> {
    fn default() -> Cache<O> {
        Cache { plans: Mutex::default() }
    }
}

impl<O: Operation> Cache<O> {
    /// Returns the plan for the shapes of a call, if it is cached.
    pub fn find(&self, shapes: &Shapes) -> Option<Arc<Prepared<O>>> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let at = plans.iter().position(|(of, _)| of == shapes)?;
        plans[..=at].rotate_right(1);
        plans.first().map(|(_, prepared)| prepared.clone())
    }

    /// Adds a plan. If the cache is full, evicts the least recently used plan. If another thread has added a plan for
    /// the same shapes, both plans are kept.
    pub fn insert(&self, shapes: Shapes, geometry: GeometryOf<O>, plan: Plan<O::Engine>) -> Arc<Prepared<O>> {
        let bytes = O::workspace_bytes(&plan, &shapes);
        let prepared = Arc::new(Prepared { geometry, plan, bytes, idle: Mutex::default() });
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let last = if plans.len() == PLANS { plans.pop() } else { None };
        plans.insert(0, (shapes, prepared.clone()));
        drop(plans);
        // The workspaces of the evicted plan are freed after the lock is released.
        drop(last);
        prepared
    }
}
