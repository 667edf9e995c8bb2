//! Gradients: plans and runs, using the same handles as other operators.

use crate::fault::call;
use crate::operator::{bind, create, run, set};
use crate::types::*;
use elsa_runtime::Backward;

/// Creates a plan of the gradients of an attention problem: everything that depends on the shape is decided here. Null
/// options select the defaults. The CPU computes the gradients, even on an engine with a GPU; the report of a run then
/// names this fallback. A problem with a past or a present is rejected.
///
/// The handle works like that of any plan: elsa_plan_describe, elsa_plan_warm, elsa_plan_destroy and the functions that
/// create workspaces accept it. Plans of different operators cannot share a workspace. Any number of threads may use a
/// plan, each with its own workspace.
///
/// # Safety
/// As for elsa_plan_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_plan_create(
    engine: elsa_engine,
    problem: *const elsa_problem,
    options: *const elsa_gradients_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *write*.
    call(|| unsafe { create::<Backward>(engine, problem, options, plan) })
}

/// Computes the gradients of a loss with respect to queries, keys and values, from its gradient with respect to the output,
/// over tensors in host memory, and waits. Nothing is allocated. The report may be null.
///
/// # Safety
/// As for elsa_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_gradients_inputs,
    outputs: *const elsa_gradients_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { run::<Backward>(plan, workspace, inputs, outputs, report) })
}

/// Binds tensors to a plan of gradients, like elsa_bind. elsa_bound_run runs the bound call.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_gradients_inputs,
    outputs: *const elsa_gradients_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { bind::<Backward>(plan, workspace, inputs, outputs, bound) })
}

/// Replaces the tensors of a bound call of gradients, like elsa_bound_set.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_gradients_bound_set(
    bound: elsa_bound,
    inputs: *const elsa_gradients_inputs,
    outputs: *const elsa_gradients_outputs,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *tensors*.
    call(|| unsafe { set::<Backward>(bound, inputs, outputs) })
}
