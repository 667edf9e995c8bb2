//! Frames, which are tensors bound to a plan and a workspace: the objects behind the handles of type elsa_bound.

use crate::fault::Fault;
use crate::handles::Table;
use crate::types::*;

pub(crate) static BOUNDS: Table<dyn Runs> = Table::new("bound");

/// A frame whose operator is known only at run time: a plan, a workspace, and the tensors bound to them.
pub(crate) trait Runs: Send + Sync {
    /// Runs the frame, waits, and returns the report.
    ///
    /// # Safety
    /// The caller keeps the clause *tensors* of the function that bound the frame.
    unsafe fn run(&self) -> Result<Option<elsa_report>, Fault>;
}
