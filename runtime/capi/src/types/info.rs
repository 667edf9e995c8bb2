//! Results of queries: reports of runs, descriptions of plans, engines and buffers; log messages.

use super::numbers::*;
use std::ffi::{c_char, c_void};

/// Size of a reason text in bytes, including the terminating zero.
pub const ELSA_REASON_BYTES: usize = 256;
/// Size of a device name in bytes, including the terminating zero.
pub const ELSA_NAME_BYTES: usize = 128;

/// Report of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_report {
    /// sizeof(elsa_report). elsa_report_init sets it.
    pub size: usize,
    /// Back end that computed: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// Non-zero if the CPU computed because a GPU could not.
    pub fallback: u32,
    /// Number of workers that shared the work: threads on the CPU, thread blocks on a GPU.
    pub workers: usize,
    /// Bytes of tensors copied between host and GPU; 0 on the CPU, or if all were used in place.
    pub copied_bytes: usize,
    /// Name of the kernel; static, never freed.
    pub kernel: *const c_char,
    /// Reason of the fallback, truncated if too long; empty without a fallback.
    pub reason: [c_char; ELSA_REASON_BYTES],
}

/// Description of a plan: its choices and the bytes that it needs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_plan_info {
    /// sizeof(elsa_plan_info). elsa_plan_info_init sets it.
    pub size: usize,
    /// Back end that computes unless it fails: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// Non-zero if the CPU computes because a GPU was requested but is unusable or does not support the problem.
    pub fallback: u32,
    /// Bytes of the workspace; on a GPU, bytes of device memory beyond inputs and outputs.
    pub workspace_bytes: usize,
    /// Bytes of device memory that hold host tensors during a run, unless they are used in place; 0 on the CPU.
    pub staging_bytes: usize,
    /// Name of the kernel; static, never freed.
    pub kernel: *const c_char,
    /// Bytes of the workspace for runs that also output states or omit out; equal to workspace_bytes on the CPU.
    pub state_workspace_bytes: usize,
    /// Reason of the fallback, truncated if too long; empty without a fallback.
    pub reason: [c_char; ELSA_REASON_BYTES],
    /// Non-zero if runs on the GPU compute on Tensor Cores: ELSA_TENSOR_CORES_F16 if they take one f16 product for each product.
    /// elsa_workspace_refused_blocks counts the blocks of rows that they refuse.
    pub tensor_cores: u32,
    /// Zero.
    pub reserved: u32,
}

/// Description of an engine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_engine_info {
    /// sizeof(elsa_engine_info). elsa_engine_info_init sets it.
    pub size: usize,
    /// Back end that computes unless it fails: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// Policy when the GPU cannot compute: one of ELSA_FALLBACK_*.
    pub fallback: elsa_fallback,
    /// Number of computing CPU threads, including the calling thread.
    pub threads: usize,
    /// Bytes of GPU memory; 0 without a GPU.
    pub device_memory: usize,
    /// Major CUDA version of the driver; 0 without a GPU.
    pub driver_major: u32,
    /// Minor CUDA version of the driver; 0 without a GPU.
    pub driver_minor: u32,
    /// Major compute capability of the GPU; 0 without a GPU.
    pub capability_major: u32,
    /// Minor compute capability of the GPU; 0 without a GPU.
    pub capability_minor: u32,
    /// Non-zero if the GPU shares the host's memory, as on a Jetson.
    pub integrated: u32,
    /// Non-zero if a GPU was requested by name and cannot be used.
    pub absent: u32,
    /// Name of the GPU; empty without a GPU.
    pub device: [c_char; ELSA_NAME_BYTES],
    /// Reason why the requested GPU cannot be used, truncated if too long; otherwise empty.
    pub reason: [c_char; ELSA_REASON_BYTES],
}

/// Position of a call's keys and queries among all keys and queries, when these are divided among several calls: key j
/// of the call is key key_offset + j of key_total, and query i is query query_offset + i of query_total. key_offset
/// plus the call's number of keys must not exceed key_total; the same holds for queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_chunk {
    /// sizeof(elsa_chunk). elsa_chunk_init sets it.
    pub size: usize,
    /// Number of keys that precede the first key of the call.
    pub key_offset: usize,
    /// Total number of keys.
    pub key_total: usize,
    /// Number of queries that precede the first query of the call.
    pub query_offset: usize,
    /// Total number of queries. Zero means that the call has all queries, and query_offset must be zero.
    pub query_total: usize,
}

/// Handle of a host buffer. All zeros is the null handle. Copies refer to the same buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_buffer {
    /// Opaque.
    pub id: u64,
}

/// Host memory that a GPU can access.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_buffer_info {
    /// sizeof(elsa_buffer_info). elsa_buffer_info_init sets it.
    pub size: usize,
    /// Address of the first byte, a multiple of 64.
    pub data: *mut c_void,
    /// Address of the first byte for the engine's GPU, to be used with elsa_run_device; null if the GPU cannot access
    /// the memory.
    pub device_data: *mut c_void,
    /// Number of bytes.
    pub bytes: usize,
    /// Non-zero if the memory is page-locked.
    pub page_locked: u32,
    /// Non-zero if elsa_run lets the engine's GPU use tensors in this memory without a copy, as on a Jetson.
    pub in_place: u32,
}

/// Comparison of the bound published as ELSA Theorem 1 with the operations that a run executes. The published
/// bound ignores the rounding of the scores, is relative to the norm of the output, and does not hold under
/// cancellation of values.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_certificate {
    /// sizeof(elsa_certificate). elsa_certificate_init sets it.
    pub size: usize,
    /// Element type of the output.
    pub dtype: elsa_dtype,
    /// Non-zero if published_depth >= additions.
    pub covers_additions: u32,
    /// Maximum number of keys that a row may attend.
    pub keys: usize,
    /// Keys per block.
    pub block: usize,
    /// Number of blocks whose keys are folded into one state before states are merged.
    pub segment_blocks: usize,
    /// Number of state merges on the longest path.
    pub merge_depth: usize,
    /// Longest chain of products in a score that is summed in f16; zero if all are summed in f32.
    pub half_chain: usize,
    /// Number of additions on the longest path from a key to the output.
    pub additions: usize,
    /// Depth L(n, B) of ELSA equation 6.
    pub published_depth: usize,
    /// Bound u L(n, B) of ELSA equation 7, with the unit roundoff u of f32, relative to the 2-norm of the output.
    pub published_bound: f64,
    /// Error added by rounding the output, relative to each element.
    pub output_rounding: f64,
}

/// Proven bound on the error of a run, from the arithmetic of its plan and the norms of its tensors. Element c of a row is
/// within bound * sum_j p_j |v_jc| of the exact result, where p_j are the exact probabilities. This excludes lost weights
/// and underflow; the field absolute includes both. Unknown numbers are NaN.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_certified {
    /// sizeof(elsa_certified). elsa_certified_init sets it.
    pub size: usize,
    /// Non-zero if there is a bound. Otherwise reason gives the cause, and bound, likely and absolute are NaN.
    pub claims: u32,
    /// Notable properties of the tensors: bitwise or of ELSA_CERTIFIED_*.
    pub flags: elsa_certified_flags,
    /// Maximum number of keys that a row may attend.
    pub keys: usize,
    /// Channels of the values; the maximum number of values that elsa_workspace_certified writes to absolute.
    pub channels: usize,
    /// Maximum error of an element relative to sum_j p_j |v_j|.
    pub bound: f64,
    /// Maximum error as in bound, under the assumption that roundings have random signs: plausible, not proven.
    pub likely: f64,
    /// Maximum error of any element, in units of the values.
    pub absolute: f64,
    /// Upper bound of the Euclidean norm of a query row.
    pub query_norm: f64,
    /// Upper bound of the Euclidean norm of an attended key row.
    pub key_norm: f64,
    /// Upper bound of |mask| + |bias| over elements that are not -inf.
    pub added: f64,
    /// Maximum magnitude of an attended value.
    pub value: f64,
    /// Name of the kernel; static, never freed.
    pub kernel: *const c_char,
    /// Reason why there is no bound, truncated if too long; otherwise empty.
    pub reason: [c_char; ELSA_REASON_BYTES],
}

/// Report of the keys that a run left out within its error budget, or under a schedule that skips blocks. An output differs
/// from that over all keys by at most the row's share times the difference between the largest and the smallest value of
/// its channel, in addition to the errors of rounding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_left_out {
    /// sizeof(elsa_left_out). elsa_left_out_init sets it.
    pub size: usize,
    /// Maximum number of rows in a tile. The rows of a tile decide together whether to skip a block of keys.
    pub tile_rows: usize,
    /// Maximum number of keys in a block.
    pub block_keys: usize,
    /// Number of rows, [batch, heads, queries], that belong to a sequence.
    pub rows: u64,
    /// Number of pairs of a tile and a block in which a row of the tile attends a key of the block.
    pub blocks: u64,
    /// Number of these pairs that were skipped.
    pub skipped_blocks: u64,
    /// Number of skipped pairs whose scores were not computed, because bounds on them were enough. Their weights are
    /// counted by upper bounds, and log-sum-exp is an upper bound too.
    pub unseen_blocks: u64,
    /// Number of pairs of a row and a block in which the row attends a key of the block.
    pub row_blocks: u64,
    /// Number of these pairs that were skipped.
    pub skipped_row_blocks: u64,
    /// Largest share of its weights that a row left out: an upper bound. If the plan's options have an error budget, it is
    /// at most that, except for rounding.
    pub worst: f64,
    /// Smallest share that at most one row in a hundred exceeds.
    pub p99: f64,
    /// Mean share over the rows.
    pub mean: f64,
}

/// Callback that receives log messages. Its arguments are user as passed to elsa_log_set, a severity of ELSA_LOG_*, and
/// a text that is valid during the call. Any thread may call it, and several threads may do so at the same time. It
/// must return, and must not wait for a thread that calls elsa_log_set. It may call any function of the library, but
/// elsa_log_set and calls with a workspace that is in use return ELSA_STATUS_BUSY. Messages that these calls cause are
/// dropped.
pub type elsa_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, level: elsa_log_level, message: *const c_char)>;
