//! Linear attention: plans and runs, using the same handles as other operators.

use super::convert;
use crate::fault::call;
use crate::growing::Room;
use crate::objects::PLANS;
use crate::operator::{bind, create, plan_of, run, run_device, set};
use crate::types::*;
use elsa_runtime::Linear;
use std::ffi::c_void;

/// Creates a plan of linear attention: everything that depends on the shape is decided here. Null options select the
/// defaults.
///
/// The handle works like that of any plan: elsa_plan_describe, elsa_plan_warm, elsa_plan_destroy and the functions that
/// create workspaces accept it. Plans of different operators cannot share a workspace. Any number of threads may use a
/// plan, each with its own workspace.
///
/// # Safety
/// As for elsa_plan_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_plan_create(
    engine: elsa_engine,
    problem: *const elsa_linear_problem,
    options: *const elsa_linear_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    call(|| unsafe { create::<Linear>(engine, problem, options, plan) })
}

/// Describes the choices of a plan of linear attention.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_plan_describe(
    plan: elsa_plan,
    info: *mut elsa_linear_info,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("info", info) }?;
        let plan = PLANS.get(plan.id)?;
        let plan = &plan_of::<Linear>(&*plan)?.plan;
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

/// Runs a plan of linear attention over tensors in host memory, and waits. A decode step is a run of one token. Nothing
/// is allocated once a plan has run or elsa_plan_warm has warmed it up. The report may be null. At least one of out and
/// present_state must be present.
///
/// # Safety
/// As for elsa_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_linear_inputs,
    outputs: *const elsa_linear_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { run::<Linear>(plan, workspace, inputs, outputs, report) })
}

/// Runs a plan of linear attention over tensors in GPU memory, without a copy, in the caller's stream. The rules of
/// elsa_run_device apply; cu_seqlens is in host memory.
///
/// # Safety
/// As for elsa_run_device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_run_device(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_linear_inputs,
    outputs: *const elsa_linear_outputs,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*, and the one on the stream.
    call(|| unsafe { run_device::<Linear>(plan, workspace, inputs, outputs, stream, report) })
}

/// Binds tensors to a plan of linear attention, like elsa_bind. elsa_bound_run runs the bound call.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_linear_inputs,
    outputs: *const elsa_linear_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { bind::<Linear>(plan, workspace, inputs, outputs, bound) })
}

/// Replaces the tensors of a bound call of linear attention, like elsa_bound_set.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_linear_bound_set(
    bound: elsa_bound,
    inputs: *const elsa_linear_inputs,
    outputs: *const elsa_linear_outputs,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *tensors*.
    call(|| unsafe { set::<Linear>(bound, inputs, outputs) })
}
