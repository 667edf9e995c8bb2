//! The types of the ABI: plain data, laid out as C does.
//!
//! Enumerations are integers with named values, so that any other value is an error and not undefined behaviour.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

/// The version of the library that the header belongs to, "major.minor.patch": major.
pub const ELSA_VERSION_MAJOR: u32 = 0;
/// Minor.
pub const ELSA_VERSION_MINOR: u32 = 1;
/// Patch.
pub const ELSA_VERSION_PATCH: u32 = 0;

/// The number of the ABI, which is that of the shared library's name. Programs that were linked with another do not
/// start.
pub const ELSA_ABI_MAJOR: u32 = 1;
/// Counts what the ABI has gained since: a library runs every program whose number is at most its own.
pub const ELSA_ABI_MINOR: u32 = 0;

/// Bytes of stack that a function needs at most where it is called, on the CPU: less than this in the library as it is
/// handed out, without sanitizers.
pub const ELSA_STACK_BYTES: usize = 32768;

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

/// Order of axes in memory. Views name them [batch, heads, tokens, dim] in any layout: {2, 3, 5, 7} has the strides
/// {105, 35, 7, 1} for ELSA_LAYOUT_BHND, {105, 7, 21, 1} for ELSA_LAYOUT_BNHD and {315, 7, 63, 1} for ELSA_LAYOUT_QKV.
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

/// Where the diagonal of a causal mask starts. The diagonal of query i of a sequence is key i + offset, keys counted from
/// the first of its past; the offset may be negative. A causal row attends the keys up to its diagonal. With a past of 3,
/// 2 new keys and 2 queries both offsets are 3: query 0 attends keys 0 to 3, query 1 keys 0 to 4. If key_lengths are 4,
/// that of ELSA_CAUSAL_BOTTOM_RIGHT is 2: query 0 attends keys 0 to 2, query 1 keys 0 to 3; that of ELSA_CAUSAL_TOP_LEFT
/// remains 3, and both attend keys 0 to 3, which are valid.
pub type elsa_causal = u32;
/// Not causal.
pub const ELSA_CAUSAL_NONE: elsa_causal = 0;
/// The offset is the length of the past, 0 without one: the first query sees the first new key.
pub const ELSA_CAUSAL_TOP_LEFT: elsa_causal = 1;
/// The offset is valid keys, those of the past included, minus queries: the last query sees the last valid key.
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

/// A share of the work: called once for every worker below the number that a host was asked for. It returns when that
/// share is done, and nothing unwinds out of it.
pub type elsa_parallel_task = Option<unsafe extern "C" fn(context: *mut c_void, worker: usize)>;

/// A hook through which a host lends its own threads: calls task(context, worker) once for every worker below workers,
/// on any threads and in any order, and returns when all of these calls have returned. user is parallel_user of the
/// options. Several threads may call it at once, also from within itself. context is a number and is not followed: a
/// task that is called again, or after the hook has returned, does nothing.
pub type elsa_parallel_for = Option<
    unsafe extern "C" fn(user: *mut c_void, workers: usize, task: elsa_parallel_task, context: *mut c_void),
>;

/// Options of an engine. All zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_engine_options {
    /// sizeof(elsa_engine_options). elsa_engine_options_init sets it.
    pub size: usize,
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
    /// Real-time priority of the standing threads, on Linux: 1 to 99 of SCHED_FIFO; 0 is the priority of the thread that
    /// creates the engine. One that the system does not permit (CAP_SYS_NICE, ulimit -r) is ELSA_STATUS_UNSUPPORTED.
    pub priority: i32,
    /// Microseconds for which a standing thread, and a caller that waits for one, spins before it sleeps; 0 is the default
    /// of 200, and a negative number has it sleep at once.
    pub spin_us: i64,
    /// Cores for the standing threads, on Linux: thread i, counted from one, stays on cores[(i - 1) % core_count]. The
    /// caller is thread zero and stays where it is. The list is read during the call only. A core on which the system
    /// does not let the process run is ELSA_STATUS_ARGUMENT.
    pub cores: *const u32,
    /// Number of cores; 0 leaves the choice to the system.
    pub core_count: usize,
    /// Lends threads of the host's in place of standing ones; null for standing ones. cores and priority are then
    /// refused, and threads is the largest number of workers of a call.
    pub parallel_for: elsa_parallel_for,
    /// First argument of parallel_for.
    pub parallel_user: *mut c_void,
}

/// Options of a plan. All zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_plan_options {
    /// sizeof(elsa_plan_options). elsa_plan_options_init sets it.
    pub size: usize,
    /// One of ELSA_METHOD_*.
    pub method: elsa_method,
    /// Non-zero where a GPU may sum short chains of products of f16 inputs in f16: faster, less exact, and NaN where
    /// such a sum leaves the range of f16. Bits then also depend on whether keys and values lie at multiples of 16 bytes.
    pub half_scores: u32,
    /// Keys in a block of the CPU: 64, 128 or 256; 0 is 64.
    pub block: usize,
    /// Most bytes of workspace; 0 is no limit. A plan that does not fit is refused with the bytes that it needs.
    pub budget: usize,
}

/// Shape and strides of a tensor. Element [b, h, t, c] lies b * strides[0] + h * strides[1] + t * strides[2] + c elements
/// from the first.
///
/// The memory in elsa_input or elsa_output has at least the elements up to the last of the view, which are
/// 1 + (shape[0] - 1) * strides[0] + ... + (shape[3] - 1) * strides[3].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_view {
    /// [batch, heads, tokens, dim], whatever the order in memory.
    pub shape: [usize; 4],
    /// Distances in elements along [batch, heads, tokens, dim]; the last must be 1. An input may have strides of
    /// zero.
    pub strides: [usize; 4],
}

/// A mask, dense, and broadcast over [batch, heads, queries, keys] from the right: an axis is as long as the problem's, or
/// 1 or not given to be shared. Keys beyond a last axis that is shorter than all keys, past included, and not 1, are not
/// attended. For 2 sequences, 8 heads, 5 queries and 9 keys, {9} is one row for all queries, {5, 9} one mask for all sequences and
/// heads, {2, 1, 1, 9} the padding of each sequence, and {8, 1, 9} one row for each head.
///
/// A key is not attended where the element is false or -inf. Finite elements stay finite: beyond 1.18e38 in magnitude
/// they count as that, and a row that they mask wholly is the mean of its values.
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

/// A problem: shapes, masks and scale. All zeros but for the views of q, k, v and out are plain attention over f32.
///
/// The range is that of f32. Weights are exact down to 2^-126 of a row's largest and zero below; a value that is not
/// finite poisons the rows that attend it whatever it weighs. Scores and queries times the scale must stay below
/// 1.1e38, the number of keys times 2^8 max |v| below 3.4e38; beyond, a row is infinite or NaN. |scale| log2(e) is at
/// most 2^64.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_problem {
    /// sizeof(elsa_problem). elsa_problem_init sets it.
    pub size: usize,
    /// Type of q, k, v, out, past and present: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// One of ELSA_CAUSAL_*.
    pub causal: elsa_causal,
    /// Queries, [batch, heads, queries, d].
    pub q: elsa_view,
    /// Keys, [batch, kv_heads, keys, d]. Query head i uses key head i / (heads / kv_heads).
    pub k: elsa_view,
    /// Values, [batch, kv_heads, keys, d_v].
    pub v: elsa_view,
    /// Output, [batch, heads, queries, d_v].
    pub out: elsa_view,
    /// Earlier keys, [batch, kv_heads, past, d].
    pub past_k: elsa_view,
    /// Earlier values, [batch, kv_heads, past, d_v].
    pub past_v: elsa_view,
    /// Where earlier and new keys are written, [batch, kv_heads, past + keys, d].
    pub present_k: elsa_view,
    /// Where earlier and new values are written, [batch, kv_heads, past + keys, d_v].
    pub present_v: elsa_view,
    /// Non-zero where past_k and past_v are set.
    pub has_past: u32,
    /// Non-zero where present_k and present_v are set.
    pub has_present: u32,
    /// Non-zero where the past lies in the first rows of the present's own memory, so that a run writes the new rows
    /// alone. past_k and present_k, and past_v and present_v, then have the same strides, and inputs have no past.
    pub append: u32,
    /// Non-zero where the inputs have key_lengths.
    pub has_key_lengths: u32,
    /// Non-zero where scale is set; otherwise it is 1 / sqrt(d).
    pub has_scale: u32,
    /// Factor of the scores.
    pub scale: f32,
    /// X in X tanh(s / X), applied before masks; 0 is off.
    pub softcap: f32,
    /// Non-zero where window_left is set; otherwise the window is open on that side.
    pub has_window_left: u32,
    /// Non-zero where window_right is set; otherwise the window is open on that side.
    pub has_window_right: u32,
    /// Zero.
    pub reserved: u32,
    /// A row attends the keys from its diagonal less this many; not negative. The diagonal of query i is key i plus the
    /// offset of ELSA_CAUSAL_*, and without causality that of ELSA_CAUSAL_TOP_LEFT. With 3 to the left, 2 to the right and
    /// no past, query 10 attends keys 7 to 12.
    pub window_left: i64,
    /// A row attends the keys up to its diagonal plus this many; not negative. A causal row ends at its diagonal all the
    /// same.
    pub window_right: i64,
    /// The mask.
    pub mask: elsa_mask,
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
    /// sizeof(elsa_inputs). elsa_inputs_init sets it.
    pub size: usize,
    /// Queries.
    pub q: elsa_input,
    /// Keys.
    pub k: elsa_input,
    /// Values.
    pub v: elsa_input,
    /// Earlier keys. Where the problem appends, absent or the address of present_k.
    pub past_k: elsa_input,
    /// Earlier values. Where the problem appends, absent or the address of present_v.
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
    /// sizeof(elsa_outputs). elsa_outputs_init sets it.
    pub size: usize,
    /// Output. May be absent where lse or the states are given.
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
    /// Earlier and new keys. Where the problem appends, the earlier ones are there already and only read; what the strides
    /// leave between rows, and behind them, is neither read nor written.
    pub present_k: elsa_output,
    /// Earlier and new values, likewise.
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

/// The place of a call's keys among all keys of its rows: key j of the call is key key_offset + j of key_total. The sum
/// of key_offset and the keys of the call is at most key_total.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_chunk {
    /// sizeof(elsa_chunk). elsa_chunk_init sets it.
    pub size: usize,
    /// Keys of the whole before the first key of the call.
    pub key_offset: usize,
    /// Keys of the whole.
    pub key_total: usize,
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

/// Receives log messages: user as given to elsa_log_set, one of ELSA_LOG_*, and a text that lives as long as the call.
/// Any thread may call it, and several at once. It must return. It may call any function: elsa_log_set and calls with a
/// workspace that is at work return ELSA_STATUS_BUSY, and what the functions have to say is not logged. It must not wait
/// for a thread that calls elsa_log_set.
pub type elsa_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, level: elsa_log_level, message: *const c_char)>;
