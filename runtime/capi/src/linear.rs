//! Linear attention: plans and runs of it, on the handles of the others.

use crate::bound::{BOUNDS, Frame, Named};
use crate::buffer::hold_linear;
use crate::engine::ENGINES;
use crate::fault::call;
use crate::growing::{Room, take, take_or_default};
use crate::plan::{PLANS, Planned};
use crate::pointer::{aligned, put};
use crate::run::{fill, report_of, run_linear};
use crate::types::*;
use crate::workspace::{WORKSPACES, lock};
use crate::{convert, linear_tensors};
use elsa_runtime::RawStream;
use std::ffi::c_void;

/// Decides everything that depends on the shape of a problem of linear attention. Null options are the defaults.
///
/// The handle is that of any plan: elsa_plan_describe, elsa_plan_warm, elsa_plan_destroy and the functions that create
/// workspaces take it. Plans of both kinds do not share a workspace. Any number of threads may use a plan, each with a
/// workspace of its own.
///
/// # Safety
/// *read*, *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_plan_create(
    engine: elsa_engine,
    problem: *const elsa_linear_problem,
    options: *const elsa_linear_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    call(|| {
        aligned("plan", plan)?;
        let engine = ENGINES.get(engine.id)?;
        // SAFETY: *read*.
        let problem = convert::linear_problem(&unsafe { take("problem", problem) }?)?;
        // SAFETY: *read*.
        let options = unsafe { take_or_default("options", options) }?;
        let made = engine.linear_plan(&problem, &convert::linear_options(&options)?)?;
        let id = PLANS.insert(Planned::Linear(Box::new(made)))?;
        // SAFETY: *write*.
        unsafe { put(plan, elsa_plan { id }) };
        Ok(())
    })
}

/// Writes what a plan of linear attention has chosen.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_plan_describe(
    plan: elsa_plan,
    info: *mut elsa_linear_info,
) -> elsa_status {
    call(|| {
        // SAFETY: *write*.
        let room = unsafe { Room::new("info", info) }?;
        let plan = PLANS.get(plan.id)?;
        let plan = plan.linear()?;
        let choice = plan.division_of(plan.backend());
        room.fill(elsa_linear_info {
            size: size_of::<elsa_linear_info>(),
            form: convert::form_number(choice.form),
            reserved: 0,
            chunk: choice.chunk,
            parts: choice.parts,
        });
        Ok(())
    })
}

/// Runs a plan of linear attention over tensors in memory of the host, and waits; a decode step is a run of one token.
/// Nothing is allocated once a plan has run, or has been warmed up by elsa_plan_warm. The report may be null. Of out and
/// present_state, at least one is given.
///
/// # Safety
/// *read*, *write*, *tensors*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_linear_inputs,
    outputs: *const elsa_linear_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    call(|| {
        // SAFETY: *read*, *write*.
        let (room, inputs, outputs) = unsafe {
            (Room::optional("report", report)?, take("inputs", inputs)?, take("outputs", outputs)?)
        };
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        // SAFETY: *tensors*.
        let done = unsafe { run_linear(plan.linear()?, &workspace, &inputs, &outputs) }?;
        fill(room, done);
        Ok(())
    })
}

/// As elsa_run_device, of a plan of linear attention: over tensors in memory of its GPU, without a copy, in the caller's stream.
/// cu_seqlens lies in memory of the host.
///
/// # Safety
/// *read*, *write*; *tensors* until the stream was waited for; stream is a stream that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_run_device(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_linear_inputs,
    outputs: *const elsa_linear_outputs,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> elsa_status {
    call(|| {
        // SAFETY: *read*, *write*.
        let (room, inputs, outputs) = unsafe {
            (Room::optional("report", report)?, take("inputs", inputs)?, take("outputs", outputs)?)
        };
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        let (plan, mut workspace) = (plan.linear()?, lock(&workspace)?);
        let workspace = workspace.linear()?;
        let _held = hold_linear(&inputs, &outputs);
        // SAFETY: *tensors*, and the clause on streams. `device` refuses outputs that overlap.
        unsafe {
            let (inputs, outputs) = linear_tensors::device(plan.problem(), &inputs, &outputs)?;
            let own = stream.is_null();
            let stream = (!own).then(|| RawStream::new(stream));
            let mut bound = plan.bind_device(&inputs, &outputs, stream, workspace)?;
            let done = bound.run();
            // A run that fails may have enqueued a part of its work.
            let waited = if own { bound.wait() } else { Ok(()) };
            let done = done?;
            waited?;
            fill(room, report_of(plan.kernel_of(done.backend), &done));
        }
        Ok(())
    })
}

/// As elsa_bind, of a plan of linear attention. elsa_bound_run runs the frame.
///
/// # Safety
/// *read*, *write*; *tensors* for every run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_linear_inputs,
    outputs: *const elsa_linear_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    call(|| {
        aligned("bound", bound)?;
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        // SAFETY: *read*.
        let (inputs, outputs) = unsafe { (take("inputs", inputs)?, take("outputs", outputs)?) };
        let held = hold_linear(&inputs, &outputs);
        {
            let (plan, mut workspace) = (plan.linear()?, lock(&workspace)?);
            // SAFETY: *tensors*.
            let (inputs, outputs) = unsafe { linear_tensors::host(plan.problem(), &inputs, &outputs) }?;
            plan.bind(inputs, outputs, workspace.linear()?)?;
        }
        let id = BOUNDS.insert(Frame::new(plan, workspace, Named::Linear(inputs, outputs), held))?;
        // SAFETY: *write*.
        unsafe { put(bound, elsa_bound { id }) };
        Ok(())
    })
}
