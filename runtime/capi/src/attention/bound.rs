//! Bound calls of attention: tensors that are checked once, bound to a plan and a workspace, and run many times.

use crate::fault::call;
use crate::operator::{bind, set};
use crate::types::*;
use elsa_runtime::Attention;

/// Checks tensors in host memory and binds them to a plan and a workspace, as a bound call. The structs inputs and
/// outputs are copied; the memory that they point to must stay valid as long as the bound call is run. The bound call
/// keeps buffers alive.
///
/// Bound calls may share a workspace; while one of them runs, running another returns ELSA_STATUS_BUSY.
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

/// Replaces the tensors of a bound call of attention: later runs use these. The problem is that of the bound call's
/// plan, so the tensors have the same shapes and types. The structs are checked like those of elsa_bind: bytes counts
/// the bytes of each tensor, which must suffice for its shape, and no output may share memory with another tensor. Which
/// optional tensors are present may change. The runs return the same bits as those of a new bound call. On the CPU,
/// nothing is allocated.
///
/// If an argument is refused, the bound call keeps its tensors: ELSA_STATUS_ARGUMENT for tensors that do not match the
/// problem, or if the bound call is another operator's; ELSA_STATUS_BUSY while another call is using the workspace.
///
/// # Safety
/// As for elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_bound_set(
    bound: elsa_bound,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read* and *tensors*.
    call(|| unsafe { set::<Attention>(bound, inputs, outputs) })
}
