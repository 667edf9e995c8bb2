//! Runs of a plan over the tensors of a single call.

use crate::fault::{Fault, call};
use crate::growing::{Room, take};
use crate::objects::{PLANS, WORKSPACES};
use crate::operator::{over, run, run_device};
use crate::types::*;
use elsa_core::attention::Chunk;
use elsa_runtime::Attention;
use std::ffi::c_void;

/// Runs a plan over tensors in host memory, and waits. A GPU copies the tensors, unless it shares the host's memory and
/// they are in buffers: see elsa_buffer_create. Nothing is allocated once a plan has run or elsa_plan_warm has warmed
/// it up. The report may be null. Absent outputs are not computed; at least one of out, lse and the states must be
/// present.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*). The tensors have
/// the memory that their structs describe, under the same rules (*tensors*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*.
    call(|| unsafe { run::<Attention>(plan, workspace, inputs, outputs, report) })
}

/// Runs a plan over a subset of the keys: attention of q over the keys in k yields the states (m, S, W) of that subset.
/// The states must be among the outputs; out may be absent. elsa_states_merge merges states, and elsa_states_finish
/// converts them to the output. In all other respects, the rules of elsa_run apply.
///
/// chunk may place the keys of the call among key_total keys, starting at key key_offset, and its queries among
/// query_total queries, starting at query query_offset. key_lengths, causal diagonals and windows then refer to all of
/// these keys and queries, and need no mask. A mask of the problem covers only the queries and keys of the call. A row
/// that attends no key of the chunk gets the empty state. Chunks of the same shape share a plan. Chunks are not
/// supported for problems with a past, a present or packed sequences. If chunk is null, the call has all keys and
/// queries.
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
        // SAFETY: the caller keeps the clauses *read* and *write*.
        let (room, inputs, outputs) = unsafe {
            (Room::optional("report", report)?, take("inputs", inputs)?, take("outputs", outputs)?)
        };
        let chunk = match chunk.is_null() {
            true => None,
            // SAFETY: the caller keeps the clause *read*.
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
        // SAFETY: the caller keeps the clause *tensors*.
        unsafe { over::<Attention>(&*plan, &workspace, &inputs, &outputs, chunk, room) }
    })
}

/// Runs a GPU plan over tensors in GPU memory, or in buffers addressed by their device_data, without a copy. bias_index
/// is in GPU memory too. Its entries are not checked: an entry outside the table counts as the first or last of the
/// table. The other lists are in host memory. Work is enqueued in stream, a CUstream or cudaStream_t, and the call does
/// not wait. If stream is null, the call uses its own stream and always waits before it returns, even on failure; the
/// device's default stream is (void *)1. Later calls with the same workspace, in any stream, run after this work. There
/// is no fallback: a plan that computes on the CPU returns ELSA_STATUS_UNSUPPORTED.
///
/// Tensors may have any strides, such as the pitch of a picture, except that the last axis is dense. Their memory may
/// be that of cudaMalloc or cudaMallocManaged in the engine's context, memory of a pool of the device, or page-locked
/// memory of the host. An address of other memory returns ELSA_STATUS_ARGUMENT. Managed memory has a rule of NVIDIA for
/// boards such as the Jetson TX2: the CPU must not access it while the GPU executes any work, because both sides cache
/// it, and the driver updates the caches only before and after the work. The CPU does not cache page-locked memory on
/// these boards, so it reads such memory slowly.
///
/// If ready_event of the inputs is not null, the work waits on the GPU until the event is done; the call does not wait
/// for it. The event may be of another context. If done_event of the outputs is not null, the call records the event
/// after the work. This event must be of the engine's context. If the call fails, the event is not recorded. In a
/// captured stream, ready_event must have been recorded in the same capture, and done_event becomes part of it.
///
/// A stream that is being captured, in any mode, records the run in its CUDA graph. Since the graph cannot wait for
/// work outside the capture, the call itself then waits for earlier runs in the workspace. Plans and workspaces may be
/// created during the capture. Each launch of the graph reads the current contents of the tensors and uses the
/// workspace, which must outlive the graph. The handle of a workspace in GPU memory of the caller may be destroyed
/// after the capture, unless the run has lists of lengths; its memory must outlive the graph. Nothing else may use the
/// workspace during a launch, and the caller must order launches relative to other calls with it. The graph keeps using
/// the lists of lengths as they were at capture: later calls with this workspace and other lists return
/// ELSA_STATUS_DEVICE. After a launch has been waited for, elsa_workspace_certified describes that launch.
///
/// # Safety
/// Each input pointer is null or valid for reads, and nothing writes there during the call (*read*). Each output
/// pointer is null or valid for writes, and nothing else uses that memory during the call (*write*). The tensors have
/// the memory that their structs describe, under the same rules until the stream has been waited for (*tensors*).
/// stream and each event is null or has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_run_device(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses *read*, *write* and *tensors*, and the one on the stream and the events.
    call(|| unsafe { run_device::<Attention>(plan, workspace, inputs, outputs, stream, report) })
}
