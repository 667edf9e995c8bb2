//! What functions tell: of runs, plans, engines, buffers; messages.

use super::numbers::*;
use std::ffi::{c_char, c_void};

/// Bytes of a reason, its zero byte included.
pub const ELSA_REASON_BYTES: usize = 256;
/// Bytes of the name of a device, its zero byte included.
pub const ELSA_NAME_BYTES: usize = 128;

/// What a run did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_report {
    /// sizeof(elsa_report). elsa_report_init sets it.
    pub size: usize,
    /// The back end that computed: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// Non-zero where the CPU computed in place of a GPU that could not.
    pub fallback: u32,
    /// Workers that shared the work: threads, or thread blocks of a GPU.
    pub workers: usize,
    /// Bytes of tensors that were copied between the host and a GPU; 0 where all were used in place, and on the CPU.
    pub copied_bytes: usize,
    /// Name of the kernel, in memory that is never freed.
    pub kernel: *const c_char,
    /// Reason of the fallback, cut where it is too long; empty without a fallback.
    pub reason: [c_char; ELSA_REASON_BYTES],
}

/// What a plan has chosen, and the bytes that it needs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_plan_info {
    /// sizeof(elsa_plan_info). elsa_plan_info_init sets it.
    pub size: usize,
    /// The back end that computes, as long as it does not fail: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// Non-zero where the CPU computes in place of a GPU that was requested or does not support the problem.
    pub fallback: u32,
    /// Bytes of the workspace; on a GPU, bytes of its memory beyond inputs and outputs.
    pub workspace_bytes: usize,
    /// Bytes of a GPU's memory that hold tensors of the host during a run, unless they are used in place; 0 on the CPU.
    pub staging_bytes: usize,
    /// Name of the kernel, in memory that is never freed.
    pub kernel: *const c_char,
    /// Bytes of the workspace for runs that also output states, or that output no out; on the CPU the same as workspace_bytes.
    pub state_workspace_bytes: usize,
    /// Reason of the fallback, cut where it is too long; empty without a fallback.
    pub reason: [c_char; ELSA_REASON_BYTES],
}

/// An engine: what it computes on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_engine_info {
    /// sizeof(elsa_engine_info). elsa_engine_info_init sets it.
    pub size: usize,
    /// The back end that computes, as long as it does not fail: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// What happens where the GPU cannot compute: one of ELSA_FALLBACK_*.
    pub fallback: elsa_fallback,
    /// Threads of the CPU that compute, the caller's included.
    pub threads: usize,
    /// Bytes of the GPU's memory; 0 without a GPU.
    pub device_memory: usize,
    /// CUDA version of the driver; 0 and 0 without a GPU.
    pub driver_major: u32,
    /// See driver_major.
    pub driver_minor: u32,
    /// Compute capability of the GPU; 0 and 0 without a GPU.
    pub capability_major: u32,
    /// See capability_major.
    pub capability_minor: u32,
    /// Non-zero where the GPU shares the host's memory, as on a Jetson.
    pub integrated: u32,
    /// Non-zero where a GPU was requested by name and cannot be used.
    pub absent: u32,
    /// Name of the GPU; empty without one.
    pub device: [c_char; ELSA_NAME_BYTES],
    /// Why the requested GPU cannot be used, cut where it is too long; otherwise empty.
    pub reason: [c_char; ELSA_REASON_BYTES],
}

/// The place of a call's keys and queries in a whole: key j of the call is key key_offset + j of key_total, and query i is
/// query query_offset + i of query_total. key_offset and the keys of the call are at most key_total together, likewise
/// for queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_chunk {
    /// sizeof(elsa_chunk). elsa_chunk_init sets it.
    pub size: usize,
    /// Keys of the whole before the first key of the call.
    pub key_offset: usize,
    /// Keys of the whole.
    pub key_total: usize,
    /// Queries of the whole before the first query of the call.
    pub query_offset: usize,
    /// Queries of the whole. Zero: those of the call are all, and query_offset is zero.
    pub query_total: usize,
}

/// A handle of memory of the host. All zeros names no buffer. Copies name the same buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_buffer {
    /// Opaque.
    pub id: u64,
}

/// Memory of the host that a GPU can use.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_buffer_info {
    /// sizeof(elsa_buffer_info). elsa_buffer_info_init sets it.
    pub size: usize,
    /// The first byte, at a multiple of 64.
    pub data: *mut c_void,
    /// The first byte as the engine's GPU addresses it, for elsa_run_device; null where it cannot.
    pub device_data: *mut c_void,
    /// Number of bytes.
    pub bytes: usize,
    /// Non-zero where the memory is page-locked.
    pub page_locked: u32,
    /// Non-zero where elsa_run has the engine's GPU use tensors in this memory without a copy, as on a Jetson.
    pub in_place: u32,
}

/// The bound that ELSA Theorem 1 publishes, beside what a run executes. The bound leaves out the rounding of the
/// scores, is relative to the norm of the output and does not hold where values cancel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_certificate {
    /// sizeof(elsa_certificate). elsa_certificate_init sets it.
    pub size: usize,
    /// Type of the output.
    pub dtype: elsa_dtype,
    /// Non-zero where published_depth is at least additions.
    pub covers_additions: u32,
    /// The most keys that a row may attend.
    pub keys: usize,
    /// Keys of a block.
    pub block: usize,
    /// Blocks whose keys fold into one state before states merge.
    pub segment_blocks: usize,
    /// Merges of states on the longest path.
    pub merge_depth: usize,
    /// Longest chain of products in a score that is summed in f16; zero where all are summed in f32.
    pub half_chain: usize,
    /// Additions on the longest path from a key to the output.
    pub additions: usize,
    /// L(n, B), ELSA equation 6.
    pub published_depth: usize,
    /// u L(n, B) with the unit roundoff u of f32, ELSA equation 7, relative to the 2-norm of the output.
    pub published_bound: f64,
    /// Error that rounding the output adds, relative to each element.
    pub output_rounding: f64,
}

/// How wrong the answer of a run may be, proved for the arithmetic of its plan and the norms of its tensors: element c of a
/// row is within bound * sum_j p_j |v_jc| of the exact one, with the exact probabilities p_j, and lost weights and
/// underflow included within absolute. Numbers that are not known are NaN.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_certified {
    /// sizeof(elsa_certified). elsa_certified_init sets it.
    pub size: usize,
    /// Non-zero where there is a bound; otherwise reason says why not, and bound, likely and absolute are NaN.
    pub claims: u32,
    /// What is remarkable: ELSA_CERTIFIED_* together.
    pub flags: elsa_certified_flags,
    /// The most keys that a row may attend.
    pub keys: usize,
    /// Channels of the values, and numbers that elsa_workspace_certified writes to absolute at most.
    pub channels: usize,
    /// The largest error of an element relative to sum_j p_j |v_j|.
    pub bound: f64,
    /// The same where roundings have random signs: plausible, and not proved.
    pub likely: f64,
    /// The largest error of any element, in units of the values.
    pub absolute: f64,
    /// Upper bound of the Euclidean norm of a query row.
    pub query_norm: f64,
    /// Upper bound of the Euclidean norm of an attended key row.
    pub key_norm: f64,
    /// Upper bound of |mask| + |bias| of elements that are not -inf.
    pub added: f64,
    /// The largest magnitude of an attended value.
    pub value: f64,
    /// Name of the kernel, in memory that is never freed.
    pub kernel: *const c_char,
    /// Why there is no bound, cut where it is too long; otherwise empty.
    pub reason: [c_char; ELSA_REASON_BYTES],
}

/// Receives log messages: user as given to elsa_log_set, one of ELSA_LOG_*, and a text that lives as long as the call.
/// Any thread may call it, and several at once. It must return. It may call any function: elsa_log_set and calls with a
/// workspace that is at work return ELSA_STATUS_BUSY, and what the functions have to say is not logged. It must not wait
/// for a thread that calls elsa_log_set.
pub type elsa_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, level: elsa_log_level, message: *const c_char)>;
