//! Bound frames: a plan with its tensors, checked once and run many times.

use crate::buffer::{Held, hold};
use crate::fault::call;
use crate::growing::{Room, take};
use crate::handles::Table;
use crate::plan::{PLANS, Planned};
use crate::pointer::{aligned, put};
use crate::run::{fill, run, run_linear};
use crate::tensors;
use crate::types::*;
use crate::workspace::{Space, WORKSPACES, lock};
use std::sync::{Arc, Mutex};

pub(crate) static BOUNDS: Table<Frame> = Table::new("bound");

/// The tensors of a frame, as its caller names them.
#[derive(Debug)]
pub(crate) enum Named {
    Attention(elsa_inputs, elsa_outputs),
    Linear(elsa_linear_inputs, elsa_linear_outputs),
}

/// A plan and a workspace with the tensors of a frame.
#[derive(Debug)]
pub(crate) struct Frame {
    plan: Arc<Planned>,
    workspace: Arc<Mutex<Space>>,
    tensors: Named,
    _held: Held,
}

impl Frame {
    /// A frame whose tensors were bound once.
    pub(crate) fn new(plan: Arc<Planned>, workspace: Arc<Mutex<Space>>, tensors: Named, held: Held) -> Frame {
        Frame { plan, workspace, tensors, _held: held }
    }
}

// SAFETY: *tensors* of elsa_bind and elsa_linear_bind: whichever thread runs it, the memory is valid and nobody else uses it.
unsafe impl Send for Frame {}
// SAFETY: as above; a run holds the lock of the workspace.
unsafe impl Sync for Frame {}

/// Binds the tensors of a frame in memory of the host to a plan and a workspace, and checks them. Both structs are
/// copied; what they point to must stay valid as long as the frame is run, which buffers do.
///
/// Frames may share a workspace; while one of them runs, the run of another returns ELSA_STATUS_BUSY.
///
/// # Safety
/// *read*, *write*; *tensors* for every run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    call(|| {
        aligned("bound", bound)?;
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        // SAFETY: *read*.
        let (inputs, outputs) = unsafe { (take("inputs", inputs)?, take("outputs", outputs)?) };
        let held = hold(&inputs, &outputs);
        {
            let (plan, mut workspace) = (plan.attention()?, lock(&workspace)?);
            // SAFETY: *tensors*.
            let (inputs, outputs) = unsafe { tensors::host(plan.problem(), &inputs, &outputs, None) }?;
            plan.bind(inputs, outputs, workspace.attention()?)?;
        }
        let id = BOUNDS.insert(Frame::new(plan, workspace, Named::Attention(inputs, outputs), held))?;
        // SAFETY: *write*.
        unsafe { put(bound, elsa_bound { id }) };
        Ok(())
    })
}

/// Runs a frame. Nothing is allocated once its plan has run. The report may be null.
///
/// # Safety
/// *write*; *tensors* of elsa_bind or elsa_linear_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_bound_run(bound: elsa_bound, report: *mut elsa_report) -> elsa_status {
    call(|| {
        // SAFETY: *write*.
        let room = unsafe { Room::optional("report", report) }?;
        let frame = BOUNDS.get(bound.id)?;
        let Frame { plan, workspace, tensors, .. } = &*frame;
        let done = match tensors {
            Named::Attention(inputs, outputs) => {
                // SAFETY: *tensors* of elsa_bind.
                unsafe { run(plan.attention()?, workspace, inputs, outputs, None) }?
            }
            Named::Linear(inputs, outputs) => {
                // SAFETY: *tensors* of elsa_linear_bind.
                unsafe { run_linear(plan.linear()?, workspace, inputs, outputs) }?
            }
        };
        fill(room, done);
        Ok(())
    })
}

/// Ends the handle of a frame.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_bound_destroy(bound: elsa_bound) -> elsa_status {
    call(|| BOUNDS.remove(bound.id).map(drop))
}
