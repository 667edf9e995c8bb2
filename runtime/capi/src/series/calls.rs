//! Recurrences, selective scans and convolutions: plans and runs, using the same handles as other operators.

use super::convert;
use crate::fault::{Fault, call};
use crate::growing::Room;
use crate::objects::PLANS;
use crate::operator::{bind, create, plan_if, run, run_device, set};
use crate::types::*;
use elsa_runtime::{Convolution, Recurrence, Selective, SeriesDivision};
use std::ffi::c_void;

/// Creates a plan of a first-order recurrence: everything that depends on the shape is decided here. Null options
/// select the defaults.
///
/// The handle works like that of any plan: elsa_plan_describe, elsa_plan_warm, elsa_plan_destroy and the functions that
/// create workspaces accept it. Plans of different operators cannot share a workspace. Any number of threads may use a
/// plan, each with its own workspace. If the engine's GPU does not support the problem, the CPU computes it; with
/// ELSA_FALLBACK_FAIL the call returns ELSA_STATUS_UNSUPPORTED instead.
///
/// # Safety
/// As for elsa_plan_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_recurrence_plan_create(
    engine: elsa_engine,
    problem: *const elsa_recurrence_problem,
    options: *const elsa_series_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    call(|| unsafe { create::<Recurrence>(engine, problem, options, plan) })
}

/// Runs a plan of a recurrence over tensors in host memory, and waits. A decode step is a run of one token. Nothing is
/// allocated once a plan has run or elsa_plan_warm has warmed it up. The report may be null. At least one of out and
/// present_state must be present.
///
/// # Safety
/// As for elsa_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_recurrence_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_recurrence_inputs,
    outputs: *const elsa_series_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { run::<Recurrence>(plan, workspace, inputs, outputs, report) })
}

/// Runs a plan of a first-order recurrence over tensors in GPU memory, without a copy, in the caller's stream. The
/// rules of elsa_run_device apply.
///
/// # Safety
/// As for elsa_run_device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_recurrence_run_device(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_recurrence_inputs,
    outputs: *const elsa_series_outputs,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*, and the one on the stream.
    call(|| unsafe { run_device::<Recurrence>(plan, workspace, inputs, outputs, stream, report) })
}

/// Binds tensors to a plan of a first-order recurrence, like elsa_bind. elsa_bound_run runs the bound call.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_recurrence_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_recurrence_inputs,
    outputs: *const elsa_series_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { bind::<Recurrence>(plan, workspace, inputs, outputs, bound) })
}

/// Replaces the tensors of a bound call of a first-order recurrence, like elsa_bound_set.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_recurrence_bound_set(
    bound: elsa_bound,
    inputs: *const elsa_recurrence_inputs,
    outputs: *const elsa_series_outputs,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *tensors*.
    call(|| unsafe { set::<Recurrence>(bound, inputs, outputs) })
}

/// Creates a plan of a selective scan: everything that depends on the shape is decided here. Null options
/// select the defaults. The rules of elsa_recurrence_plan_create apply to the plan.
///
/// # Safety
/// As for elsa_plan_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_selective_plan_create(
    engine: elsa_engine,
    problem: *const elsa_selective_problem,
    options: *const elsa_series_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    call(|| unsafe { create::<Selective>(engine, problem, options, plan) })
}

/// Runs a plan of a selective scan, like elsa_recurrence_run.
///
/// # Safety
/// As for elsa_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_selective_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_selective_inputs,
    outputs: *const elsa_series_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { run::<Selective>(plan, workspace, inputs, outputs, report) })
}

/// Runs a plan of a selective scan over tensors in GPU memory, like elsa_recurrence_run_device.
///
/// # Safety
/// As for elsa_run_device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_selective_run_device(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_selective_inputs,
    outputs: *const elsa_series_outputs,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*, and the one on the stream.
    call(|| unsafe { run_device::<Selective>(plan, workspace, inputs, outputs, stream, report) })
}

/// Binds tensors to a plan of a selective scan, like elsa_bind. elsa_bound_run runs the bound call.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_selective_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_selective_inputs,
    outputs: *const elsa_series_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { bind::<Selective>(plan, workspace, inputs, outputs, bound) })
}

/// Replaces the tensors of a bound call of a selective scan, like elsa_bound_set.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_selective_bound_set(
    bound: elsa_bound,
    inputs: *const elsa_selective_inputs,
    outputs: *const elsa_series_outputs,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *tensors*.
    call(|| unsafe { set::<Selective>(bound, inputs, outputs) })
}

/// Creates a plan of a causal convolution: everything that depends on the shape is decided here. Null
/// options select the defaults. The rules of elsa_recurrence_plan_create apply to the plan.
///
/// # Safety
/// As for elsa_plan_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_convolution_plan_create(
    engine: elsa_engine,
    problem: *const elsa_convolution_problem,
    options: *const elsa_series_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    call(|| unsafe { create::<Convolution>(engine, problem, options, plan) })
}

/// Runs a plan of a causal convolution, like elsa_recurrence_run.
///
/// # Safety
/// As for elsa_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_convolution_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_convolution_inputs,
    outputs: *const elsa_series_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { run::<Convolution>(plan, workspace, inputs, outputs, report) })
}

/// Runs a plan of a causal convolution over tensors in GPU memory, like elsa_recurrence_run_device.
///
/// # Safety
/// As for elsa_run_device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_convolution_run_device(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_convolution_inputs,
    outputs: *const elsa_series_outputs,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*, and the one on the stream.
    call(|| unsafe { run_device::<Convolution>(plan, workspace, inputs, outputs, stream, report) })
}

/// Binds tensors to a plan of a causal convolution, like elsa_bind. elsa_bound_run runs the bound call.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_convolution_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_convolution_inputs,
    outputs: *const elsa_series_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { bind::<Convolution>(plan, workspace, inputs, outputs, bound) })
}

/// Replaces the tensors of a bound call of a causal convolution, like elsa_bound_set.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_convolution_bound_set(
    bound: elsa_bound,
    inputs: *const elsa_convolution_inputs,
    outputs: *const elsa_series_outputs,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *tensors*.
    call(|| unsafe { set::<Convolution>(bound, inputs, outputs) })
}

/// Describes the choices of a plan of a recurrence, a selective scan or a convolution.
///
/// # Safety
/// Each pointer is null or valid for writes, and nothing else uses that memory during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_series_plan_describe(
    plan: elsa_plan,
    info: *mut elsa_series_info,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *write*.
        let room = unsafe { Room::new("info", info) }?;
        let plan = PLANS.get(plan.id)?;
        let (division, convolves) = if let Some(of) = plan_if::<Recurrence>(&*plan) {
            (of.plan.division_of(of.plan.backend()), false)
        } else if let Some(of) = plan_if::<Selective>(&*plan) {
            (of.plan.division_of(of.plan.backend()), false)
        } else if let Some(of) = plan_if::<Convolution>(&*plan) {
            (of.plan.division_of(of.plan.backend()), true)
        } else {
            let found = plan.name();
            return Err(Fault::argument(format_args!(
                "plan: of {found}; allowed: of a recurrence, a selective scan or a convolution"
            )));
        };
        let SeriesDivision { parts, method, fft_length, .. } = division;
        room.fill(elsa_series_info {
            size: size_of::<elsa_series_info>(),
            parts,
            fft_length,
            method: if convolves { convert::convolution_method_number(method) } else { 0 },
            reserved: 0,
        });
        Ok(())
    })
}
