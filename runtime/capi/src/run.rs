//! Runs of a plan over the tensors of one call.

use crate::fault::{Fault, call};
use crate::growing::{Room, take};
use crate::operator::{fill, over, run, run_device};
use crate::planned::PLANS;
use crate::space::WORKSPACES;
use crate::types::*;
use elsa_core::attention::Chunk;
use elsa_runtime::Attention;
use std::ffi::c_void;

/// Runs a plan over tensors in memory of the host, and waits. A GPU copies tensors, unless it shares the host's memory and
/// they lie in buffers: see elsa_buffer_create. Nothing is allocated once a plan has run, or has been warmed up by
/// elsa_plan_warm. The report may be null.
/// Of out, lse and the states, what is absent is not computed; at least one of them is given.
///
/// # Safety
/// *read*, *write*, *tensors*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: *read*, *write*, *tensors*.
    call(|| unsafe { run::<Attention>(plan, workspace, inputs, outputs, report) })
}

/// As elsa_run, over a subset of the keys: q against the keys that k names yields the states (m, S, W) of that subset,
/// which must be among the outputs. elsa_states_merge joins them, elsa_states_finish makes them the output, so that out
/// may be absent.
///
/// With a chunk the keys are those from key_offset on of a whole of key_total keys, and the queries those from
/// query_offset on of query_total: key_lengths, causal diagonals and windows are those of the whole, and no mask is needed
/// for them. A mask of the problem covers the queries and keys of the call. A
/// chunk of which a row attends no key gives that row the empty state. Chunks of one shape share a plan. A problem with a
/// past, a present or packed sequences takes no chunk. Without a chunk, which is null, the keys are the whole.
///
/// # Safety
/// As for elsa_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_partial(
    plan: elsa_plan,
    workspace: elsa_workspace,
    chunk: *const elsa_chunk,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    call(|| {
        // SAFETY: *read*, *write*.
        let (room, inputs, outputs) = unsafe {
            (Room::optional("report", report)?, take("inputs", inputs)?, take("outputs", outputs)?)
        };
        let chunk = match chunk.is_null() {
            true => None,
            // SAFETY: *read*.
            false => Some(unsafe { take("chunk", chunk) }?),
        };
        let chunk = chunk.map(|c| Chunk {
            key_offset: c.key_offset,
            key_total: c.key_total,
            query_offset: c.query_offset,
            query_total: c.query_total,
        });
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        if outputs.state_m.data.is_null() {
            return Err(Fault::null("state_m"));
        }
        // SAFETY: *tensors*.
        let done = unsafe { over::<Attention>(&plan, &workspace, &inputs, &outputs, chunk, true) }?;
        fill(room, done);
        Ok(())
    })
}

/// Runs a plan that computes on a GPU over tensors in its memory, or in buffers by their device_data, without a copy. So
/// is bias_index, whose entries are not checked: one outside the table counts as its first or last. The other lists lie in
/// memory of the host. Work is enqueued in stream, a CUstream or cudaStream_t, and the call does not wait. With a null stream it uses one of its
/// own and always waits before it returns, also when it fails; the default stream of the device is (void *)1. Later
/// calls with the same workspace, whatever their stream, take place after the work. There is no fallback: a plan that
/// computes on the CPU is ELSA_STATUS_UNSUPPORTED.
///
/// A stream that is captured, in any mode, takes the run into its CUDA graph. Since it cannot wait for what is not
/// captured, the call itself then waits for earlier runs in the workspace. Create the plan before: that loads kernels. Each launch of
/// the graph reads the tensors as they are then and works in the workspace, which therefore outlives the graph; nothing
/// else may use it meanwhile, and nobody but the caller orders launches and other calls with it. The graph also reads the
/// lists of lengths, as they were: later calls with this workspace and other lists are ELSA_STATUS_DEVICE. After a launch
/// that was waited for, elsa_workspace_certified speaks of that one.
///
/// # Safety
/// *read*, *write*; *tensors* until the stream was waited for; stream is a stream that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_run_device(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: *read*, *write*, *tensors*, and the clause on streams.
    call(|| unsafe { run_device::<Attention>(plan, workspace, inputs, outputs, stream, report) })
}
