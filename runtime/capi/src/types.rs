//! The types of the ABI: plain data, laid out as C does.
//!
//! Enumerations are integers with named values, so that any other value is an error and not undefined behaviour.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

/// What a function returns: ELSA_STATUS_OK, or why it failed.
pub type elsa_status = i32;
/// Done.
pub const ELSA_STATUS_OK: elsa_status = 0;
/// An argument is not allowed; the message names it, what was found and what is allowed.
pub const ELSA_STATUS_ARGUMENT: elsa_status = 1;
/// A handle that was destroyed, or never was one.
pub const ELSA_STATUS_HANDLE: elsa_status = 2;
/// Another call is using the workspace, or the function was called from a log callback.
pub const ELSA_STATUS_BUSY: elsa_status = 3;
/// This machine or this build does not support the request.
pub const ELSA_STATUS_UNSUPPORTED: elsa_status = 4;
/// Memory is not available, or exceeds the budget.
pub const ELSA_STATUS_MEMORY: elsa_status = 5;
/// The GPU or the system failed. Outputs may be incomplete.
pub const ELSA_STATUS_DEVICE: elsa_status = 6;
/// A defect of this library was caught. Outputs may be incomplete.
pub const ELSA_STATUS_PANIC: elsa_status = 7;

/// Type of elements.
pub type elsa_dtype = u32;
/// IEEE 754 single precision.
pub const ELSA_DTYPE_F32: elsa_dtype = 0;
/// IEEE 754 half precision.
pub const ELSA_DTYPE_F16: elsa_dtype = 1;
/// bfloat16: the upper 16 bits of an f32.
pub const ELSA_DTYPE_BF16: elsa_dtype = 2;

/// Order of axes.
pub type elsa_layout = u32;
/// [batch, heads, tokens, dim].
pub const ELSA_LAYOUT_BHND: elsa_layout = 0;
/// [batch, tokens, heads, dim], which is also [batch, tokens, heads * dim].
pub const ELSA_LAYOUT_BNHD: elsa_layout = 1;
/// [batch, tokens, 3, heads, dim]: a slice of packed queries, keys and values. The data of the slices start
/// heads * dim elements apart.
pub const ELSA_LAYOUT_QKV: elsa_layout = 2;

/// A back end.
pub type elsa_backend = u32;
/// The one that the environment variable ELSA_BACKEND names, else the first that is present.
pub const ELSA_BACKEND_AUTO: elsa_backend = 0;
/// The CPU without vector instructions.
pub const ELSA_BACKEND_SCALAR: elsa_backend = 1;
/// The CPU with ARMv8.0 Advanced SIMD.
pub const ELSA_BACKEND_NEON: elsa_backend = 2;
/// The CPU with AVX2, FMA and F16C.
pub const ELSA_BACKEND_AVX2: elsa_backend = 3;
/// The CPU with AVX-512 F and DQ.
pub const ELSA_BACKEND_AVX512: elsa_backend = 4;
/// An NVIDIA GPU.
pub const ELSA_BACKEND_CUDA: elsa_backend = 5;

/// What happens where a GPU is chosen and cannot compute.
pub type elsa_fallback = u32;
/// The CPU finishes the call, and the report gives the reason.
pub const ELSA_FALLBACK_CPU: elsa_fallback = 0;
/// The caller gets the error.
pub const ELSA_FALLBACK_FAIL: elsa_fallback = 1;

/// The context in which a GPU computes.
pub type elsa_cuda_context = u32;
/// The device's primary context, which the CUDA runtime uses.
pub const ELSA_CUDA_CONTEXT_PRIMARY: elsa_cuda_context = 0;
/// The context that is current for the thread that creates the engine. It must outlive the engine and everything
/// that is made with it.
pub const ELSA_CUDA_CONTEXT_CURRENT: elsa_cuda_context = 1;

/// How the answer is computed.
pub type elsa_method = u32;
/// Online softmax as a scan over states.
pub const ELSA_METHOD_ELSA: elsa_method = 0;
/// Scores in memory, softmax in two passes. On the CPU only, for comparison.
pub const ELSA_METHOD_MATH: elsa_method = 1;

/// Where the diagonal of a causal mask starts.
pub type elsa_causal = u32;
/// Not causal.
pub const ELSA_CAUSAL_NONE: elsa_causal = 0;
/// The offset is the length of the past: the first query sees the first new key.
pub const ELSA_CAUSAL_TOP_LEFT: elsa_causal = 1;
/// The offset is valid keys minus queries: the last query sees the last valid key.
pub const ELSA_CAUSAL_BOTTOM_RIGHT: elsa_causal = 2;

/// What the elements of a mask mean.
pub type elsa_mask_kind = u32;
/// No mask.
pub const ELSA_MASK_NONE: elsa_mask_kind = 0;
/// One byte an element; non-zero is attended.
pub const ELSA_MASK_BOOL: elsa_mask_kind = 1;
/// f32, added to the scores in natural-log units; minus infinity is not attended.
pub const ELSA_MASK_F32: elsa_mask_kind = 2;
/// f16, added likewise.
pub const ELSA_MASK_F16: elsa_mask_kind = 3;
/// bf16, added likewise.
pub const ELSA_MASK_BF16: elsa_mask_kind = 4;

/// Importance of a log message.
pub type elsa_log_level = u32;
/// No messages.
pub const ELSA_LOG_OFF: elsa_log_level = 0;
/// Errors.
pub const ELSA_LOG_ERROR: elsa_log_level = 1;
/// Warnings, such as a fallback.
pub const ELSA_LOG_WARN: elsa_log_level = 2;
/// Information for users.
pub const ELSA_LOG_INFO: elsa_log_level = 3;
/// Choices: kernels, tiles, devices.
pub const ELSA_LOG_DEBUG: elsa_log_level = 4;

/// A handle of an engine. All zeros names no engine. Copies name the same engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_engine {
    /// Opaque.
    pub id: u64,
}

/// A handle of a plan. All zeros names no plan. Copies name the same plan.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_plan {
    /// Opaque.
    pub id: u64,
}

/// A handle of a workspace. All zeros names no workspace. Copies name the same workspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_workspace {
    /// Opaque.
    pub id: u64,
}

/// A handle of a bound frame: a plan with the tensors of a frame. All zeros names no frame. Copies name the same frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_bound {
    /// Opaque.
    pub id: u64,
}

/// Options of an engine. elsa_engine_options_init writes the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_engine_options {
    /// One of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// One of ELSA_FALLBACK_*.
    pub fallback: elsa_fallback,
    /// Threads that compute, the caller's included; 0 is one for every core that the process may use.
    pub threads: usize,
    /// Ordinal of the GPU, as the driver counts.
    pub cuda_device: usize,
    /// One of ELSA_CUDA_CONTEXT_*.
    pub cuda_context: elsa_cuda_context,
}

/// Options of a plan. elsa_plan_options_init writes the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_plan_options {
    /// One of ELSA_METHOD_*.
    pub method: elsa_method,
    /// Keys in a block of the CPU: 64, 128 or 256.
    pub block: usize,
    /// Most bytes of workspace; 0 is no limit. A plan that does not fit is refused with the bytes that it needs.
    pub budget: usize,
    /// Non-zero where a GPU may sum short chains of products of f16 inputs in f16: faster, less exact, and NaN where
    /// such a sum leaves the range of f16.
    pub half_scores: i32,
}

/// Shape and strides of a tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_view {
    /// [batch, heads, tokens, dim], whatever the order in memory.
    pub shape: [usize; 4],
    /// Distances in elements along [batch, heads, tokens, dim]; the last must be 1. An input may have strides of
    /// zero.
    pub strides: [usize; 4],
}

/// A mask, dense, and broadcast over [batch, heads, queries, keys] from the right. A last axis shorter than the keys
/// leaves the rest unattended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_mask {
    /// One of ELSA_MASK_*.
    pub kind: elsa_mask_kind,
    /// Axes that are given: 1 to 4.
    pub rank: u32,
    /// Their sizes, the first rank entries.
    pub dims: [usize; 4],
}

/// A problem: shapes, masks and scale. elsa_problem_init writes plain attention; the views of q, k, v and out must be
/// set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct elsa_problem {
    /// Type of q, k, v, out, past and present: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Queries, [batch, heads, queries, d].
    pub q: elsa_view,
    /// Keys, [batch, kv_heads, keys, d]. Query head i uses key head i / (heads / kv_heads).
    pub k: elsa_view,
    /// Values, [batch, kv_heads, keys, d_v].
    pub v: elsa_view,
    /// Output, [batch, heads, queries, d_v].
    pub out: elsa_view,
    /// Non-zero where past_k and past_v are set.
    pub has_past: u32,
    /// Non-zero where present_k and present_v are set.
    pub has_present: u32,
    /// Earlier keys, [batch, kv_heads, past, d].
    pub past_k: elsa_view,
    /// Earlier values, [batch, kv_heads, past, d_v].
    pub past_v: elsa_view,
    /// Where earlier and new keys are written, [batch, kv_heads, past + keys, d].
    pub present_k: elsa_view,
    /// Where earlier and new values are written, [batch, kv_heads, past + keys, d_v].
    pub present_v: elsa_view,
    /// Non-zero where scale is set; otherwise it is 1 / sqrt(d).
    pub has_scale: u32,
    /// Factor of the scores.
    pub scale: f32,
    /// X in X tanh(s / X), applied before masks; 0 is off.
    pub softcap: f32,
    /// One of ELSA_CAUSAL_*.
    pub causal: elsa_causal,
    /// Keys before the diagonal that a row attends; negative is open.
    pub window_left: i64,
    /// Keys after the diagonal that a row attends; negative is open.
    pub window_right: i64,
    /// The mask.
    pub mask: elsa_mask,
    /// Non-zero where the inputs have key_lengths.
    pub has_key_lengths: u32,
    /// Number of sequences that q and k pack along their tokens (batch 1), whose bounds are among the inputs; 0 where
    /// nothing is packed.
    pub packed: usize,
}

/// Memory that is read: the elements of a tensor, aligned to their size. Null with 0 bytes is an absent tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_input {
    /// The first element.
    pub data: *const c_void,
    /// Bytes that may be read from there.
    pub bytes: usize,
}

/// Memory that is written: the elements of a tensor, aligned to their size. Null with 0 bytes is an absent tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_output {
    /// The first element.
    pub data: *mut c_void,
    /// Bytes that may be written from there.
    pub bytes: usize,
}

/// A list of integers in memory of the host. Null with 0 entries is an absent list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_integers {
    /// The first entry.
    pub data: *const i64,
    /// Number of entries.
    pub count: usize,
}

/// The data of a problem that is read. What the problem does not have is absent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_inputs {
    /// Queries.
    pub q: elsa_input,
    /// Keys.
    pub k: elsa_input,
    /// Values.
    pub v: elsa_input,
    /// Earlier keys.
    pub past_k: elsa_input,
    /// Earlier values.
    pub past_v: elsa_input,
    /// The mask.
    pub mask: elsa_input,
    /// Valid keys, one number for each sequence.
    pub key_lengths: elsa_integers,
    /// Bounds of the packed sequences among the queries, [packed + 1].
    pub cu_seqlens_q: elsa_integers,
    /// Bounds of the packed sequences among the keys, [packed + 1].
    pub cu_seqlens_k: elsa_integers,
}

/// The data of a problem that is written. No output shares memory with another tensor of the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_outputs {
    /// Output.
    pub out: elsa_output,
    /// Log-sum-exp of each row, f32 [batch, heads, queries], in natural-log units; minus infinity for a row with no
    /// key. May be absent.
    pub lse: elsa_output,
    /// References m of the states, f32 [batch, heads, queries], in natural-log units. The three arrays of the states
    /// are given together or not at all.
    ///
    /// m is rounded to f32, and S and W carry a factor that makes up for it: near one below 1e6, and between exp(-32) and
    /// exp(32) at any m. Where |m| is below 2^30, S exp(m) is the sum of exp(s_j); beyond, values of f32 lie 128 and more
    /// apart, and m + log S is that sum's logarithm within their spacing. W / S is the output and elsa_states_merge
    /// weighs states rightly at any m, as long as W with that factor stays in the range of f32.
    pub state_m: elsa_output,
    /// Sums S = sum_j exp(s_j - m), f32 [batch, heads, queries].
    pub state_s: elsa_output,
    /// Weighted sums W = sum_j exp(s_j - m) v_j, f32 [batch, heads, queries, d_v].
    pub state_w: elsa_output,
    /// Earlier and new keys.
    pub present_k: elsa_output,
    /// Earlier and new values.
    pub present_v: elsa_output,
}

/// States (m, S, W) of rows, in memory of the host, to be read. In natural-log units.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_states_in {
    /// References, one a row; minus infinity for a row with no key.
    pub m: *const f32,
    /// Sums, one a row.
    pub s: *const f32,
    /// Weighted sums, [rows, d_v].
    pub w: *const f32,
}

/// States (m, S, W) of rows, in memory of the host, to be written. In natural-log units.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_states_out {
    /// References, one a row.
    pub m: *mut f32,
    /// Sums, one a row.
    pub s: *mut f32,
    /// Weighted sums, [rows, d_v].
    pub w: *mut f32,
}

/// Bytes of the reason in a report, its zero byte included.
pub const ELSA_REASON_BYTES: usize = 256;

/// What a run did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_report {
    /// The back end that computed: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// Non-zero where the CPU computed in place of a GPU that could not.
    pub fallback: u32,
    /// Workers that shared the work: threads, or thread blocks of a GPU.
    pub workers: usize,
    /// Name of the kernel, in memory that is never freed.
    pub kernel: *const c_char,
    /// Reason of the fallback, cut where it is too long; empty without a fallback.
    pub reason: [c_char; ELSA_REASON_BYTES],
}

/// What a plan has chosen, and the bytes that it needs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_plan_info {
    /// The back end that computes, as long as it does not fail: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// Bytes of the workspace; on a GPU, bytes of its memory beyond inputs and outputs.
    pub workspace_bytes: usize,
    /// Bytes of a GPU's memory that hold tensors of the host during a run; 0 on the CPU.
    pub staging_bytes: usize,
    /// Name of the kernel, in memory that is never freed.
    pub kernel: *const c_char,
}

/// The bound that ELSA Theorem 1 publishes, beside what a run executes. The bound leaves out the rounding of the
/// scores, is relative to the norm of the output and does not hold where values cancel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct elsa_certificate {
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

/// Receives log messages: user as given to elsa_log_set, one of ELSA_LOG_*, and a text that lives as long as the call.
/// Any thread may call it. It must return, and must not call elsa_log_set.
pub type elsa_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, level: elsa_log_level, message: *const c_char)>;
