//! Frames: tensors that are checked once, bound to a plan and a workspace, and run many times.

use crate::fault::call;
use crate::frame::BOUNDS;
use crate::growing::Room;
use crate::operator::{bind, fill};
use crate::types::*;
use elsa_runtime::Attention;

/// Checks tensors in host memory and binds them to a plan and a workspace, as a frame. The structs inputs and outputs
/// are copied; the memory that they point to must stay valid as long as the frame is run. The frame keeps buffers
/// alive.
///
/// Frames may share a workspace; while one of them runs, running another returns ELSA_STATUS_BUSY.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*). The tensors have
/// the memory that their structs describe, under the same rules in every run (*tensors*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { bind::<Attention>(plan, workspace, inputs, outputs, bound) })
}

/// Runs a bound frame. After the first run of its plan, nothing is allocated. The report may be null.
///
/// # Safety
/// The report is null or valid for writes, and nothing else uses it during the call (*write*). The memory of the
/// tensors is as elsa_bind, or the function that bound the frame for another operator, requires (*tensors*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_bound_run(bound: elsa_bound, report: *mut elsa_report) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::optional("report", report) }?;
        let frame = BOUNDS.get(bound.id)?;
        // SAFETY: the caller keeps the clause *tensors* of the function that bound the frame.
        let done = unsafe { frame.run() }?;
        fill(room, done);
        Ok(())
    })
}

/// Destroys the handle of a bound frame.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_bound_destroy(bound: elsa_bound) -> elsa_status {
    call(|| BOUNDS.remove(bound.id).map(drop))
}
