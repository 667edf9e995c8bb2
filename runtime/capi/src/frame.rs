//! Frames, which are tensors bound to a plan and a workspace: the objects behind the handles of type elsa_bound.

use crate::fault::Fault;
use crate::growing::Room;
use crate::handles::Table;
use crate::types::*;
use std::any::Any;

pub(crate) static BOUNDS: Table<dyn Runs> = Table::new("bound");

/// A frame whose operator is known only at run time: a plan, a workspace, and the tensors bound to them.
pub(crate) trait Runs: Any + Send + Sync {
    /// Returns the name of the operator, for messages.
    fn name(&self) -> &'static str;

    /// Runs the frame, waits, and writes the report if `room` has a place for it.
    ///
    /// # Safety
    /// The caller keeps the clause *tensors* of the function that bound the frame.
    unsafe fn run(&self, room: Option<Room<elsa_report>>) -> Result<(), Fault>;
}
