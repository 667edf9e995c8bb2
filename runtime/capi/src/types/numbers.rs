//! Versions, and enumerations as integers with named values.

/// Major version of the library that this header belongs to ("major.minor.patch").
pub const ELSA_VERSION_MAJOR: u32 = 0;
/// Minor version.
pub const ELSA_VERSION_MINOR: u32 = 1;
/// Patch version.
pub const ELSA_VERSION_PATCH: u32 = 0;

/// Major version of the ABI, which is part of the shared library's name. Programs linked against another major version
/// do not start.
pub const ELSA_ABI_MAJOR: u32 = 1;
/// Minor version of the ABI: the number of additions so far. A library runs every program whose minor version does not
/// exceed its own.
pub const ELSA_ABI_MINOR: u32 = 0;

/// Maximum bytes of stack that a function needs on the calling thread, on the CPU. Holds for release builds of the
/// library without sanitizers.
pub const ELSA_STACK_BYTES: usize = 32768;

/// Result of a function: ELSA_STATUS_OK, or the reason for the failure.
pub type elsa_status = i32;
/// Success.
pub const ELSA_STATUS_OK: elsa_status = 0;
/// An argument is invalid; the message names it, the value found and the values allowed.
pub const ELSA_STATUS_ARGUMENT: elsa_status = 1;
/// A handle is invalid: destroyed, or never created.
pub const ELSA_STATUS_HANDLE: elsa_status = 2;
/// The workspace is in use by another call, or the function was called from a log callback.
pub const ELSA_STATUS_BUSY: elsa_status = 3;
/// The request is not supported by this machine or this build.
pub const ELSA_STATUS_UNSUPPORTED: elsa_status = 4;
/// Memory is unavailable, or exceeds the budget.
pub const ELSA_STATUS_MEMORY: elsa_status = 5;
/// The GPU or the system failed. Outputs may be incomplete.
pub const ELSA_STATUS_DEVICE: elsa_status = 6;
/// A defect of this library was caught. Outputs may be incomplete.
pub const ELSA_STATUS_PANIC: elsa_status = 7;
/// A callback of a stream ended the run. The report holds the value that it returned.
pub const ELSA_STATUS_CALLBACK: elsa_status = 8;
/// elsa_engine_cancel ended the call. Outputs may be incomplete; the next call is not affected.
pub const ELSA_STATUS_CANCELLED: elsa_status = 9;

/// Element type.
pub type elsa_dtype = u32;
/// IEEE 754 single precision.
pub const ELSA_DTYPE_F32: elsa_dtype = 0;
/// IEEE 754 half precision.
pub const ELSA_DTYPE_F16: elsa_dtype = 1;
/// bfloat16: the upper 16 bits of an f32.
pub const ELSA_DTYPE_BF16: elsa_dtype = 2;

/// Order of axes in memory. Views list axes as [batch, heads, tokens, dim] in every layout: {2, 3, 5, 7} has the
/// strides {105, 35, 7, 1} for ELSA_LAYOUT_BHND, {105, 7, 21, 1} for ELSA_LAYOUT_BNHD and {315, 7, 63, 1} for
/// ELSA_LAYOUT_QKV.
pub type elsa_layout = u32;
/// [batch, heads, tokens, dim].
pub const ELSA_LAYOUT_BHND: elsa_layout = 0;
/// [batch, tokens, heads, dim], equivalently [batch, tokens, heads * dim].
pub const ELSA_LAYOUT_BNHD: elsa_layout = 1;
/// [batch, tokens, 3, heads, dim]: one slice of packed queries, keys and values. The data pointers of
/// consecutive slices are heads * dim elements apart.
pub const ELSA_LAYOUT_QKV: elsa_layout = 2;

/// Back end.
pub type elsa_backend = u32;
/// The back end named by the environment variable ELSA_BACKEND, otherwise the first that is present.
pub const ELSA_BACKEND_AUTO: elsa_backend = 0;
/// CPU without vector instructions.
pub const ELSA_BACKEND_SCALAR: elsa_backend = 1;
/// CPU with ARMv8.0 Advanced SIMD.
pub const ELSA_BACKEND_NEON: elsa_backend = 2;
/// CPU with AVX2, FMA and F16C.
pub const ELSA_BACKEND_AVX2: elsa_backend = 3;
/// CPU with AVX-512 F and DQ.
pub const ELSA_BACKEND_AVX512: elsa_backend = 4;
/// NVIDIA GPU.
pub const ELSA_BACKEND_CUDA: elsa_backend = 5;

/// Policy when a GPU is selected and cannot compute.
pub type elsa_fallback = u32;
/// The CPU finishes the call, and the report gives the reason.
pub const ELSA_FALLBACK_CPU: elsa_fallback = 0;
/// The call returns the error.
pub const ELSA_FALLBACK_FAIL: elsa_fallback = 1;

/// CUDA context in which a GPU computes.
pub type elsa_cuda_context = u32;
/// The device's primary context, which the CUDA runtime uses.
pub const ELSA_CUDA_CONTEXT_PRIMARY: elsa_cuda_context = 0;
/// The context that is current on the thread that creates the engine. It must outlive the engine and everything
/// created from it.
pub const ELSA_CUDA_CONTEXT_CURRENT: elsa_cuda_context = 1;

/// Method of attention.
pub type elsa_method = u32;
/// Online softmax as a scan over states.
pub const ELSA_METHOD_ELSA: elsa_method = 0;
/// Materialised scores and a two-pass softmax, for comparison. Not supported for packed sequences.
pub const ELSA_METHOD_MATH: elsa_method = 1;

/// Use of a GPU's Tensor Cores.
pub type elsa_tensor_cores = u32;
/// Products are f32 products.
pub const ELSA_TENSOR_CORES_OFF: elsa_tensor_cores = 0;
/// Tensor Cores where they are faster and as exact as f32 products.
pub const ELSA_TENSOR_CORES_ALLOW: elsa_tensor_cores = 1;
/// Tensor Cores where they are as exact as f32 products, even if they are slower.
pub const ELSA_TENSOR_CORES_ALWAYS: elsa_tensor_cores = 2;
/// Like ELSA_TENSOR_CORES_ALWAYS, but f32 tensors without masks and biases take one f16 product for each product: relative errors
/// are about 1e-3, like those of TF32 products.
pub const ELSA_TENSOR_CORES_F16: elsa_tensor_cores = 3;

/// Schedule of a run: the order in which blocks of keys are visited, the references of rows, and the blocks that are
/// skipped.
pub type elsa_schedule = u32;
/// Blocks in order, and a reference moves only if a score exceeds it by more than rescale_threshold. Every kernel has this
/// schedule, and no block is skipped, except within an error budget.
pub const ELSA_SCHEDULE_EXACT: elsa_schedule = 0;
/// FlashAttention: as ELSA_SCHEDULE_EXACT, but references follow every new maximum.
pub const ELSA_SCHEDULE_FLASH: elsa_schedule = 1;
/// VFA: references are taken from summaries of the keys before the first block, and do not move in most blocks.
pub const ELSA_SCHEDULE_VFA: elsa_schedule = 2;
/// VSA: as ELSA_SCHEDULE_VFA, and skips a block if the largest weight that it has in any row of a tile, relative to the
/// row's reference, is below lambda. No bound of its error is known in advance.
pub const ELSA_SCHEDULE_VSA: elsa_schedule = 3;
/// BLASST: as ELSA_SCHEDULE_FLASH, and skips blocks as ELSA_SCHEDULE_VSA does.
pub const ELSA_SCHEDULE_BLASST: elsa_schedule = 4;

/// Start of the diagonal of a causal mask. The diagonal of query i of a sequence is key i + offset, with keys counted
/// from the first past key; the offset may be negative. A causal row attends the keys up to and including its diagonal.
/// With a past of 3, 2 new keys and 2 queries, both offsets are 3: query 0 attends keys 0 to 3, query 1 keys 0 to 4. If
/// key_lengths is 4, the offset of ELSA_CAUSAL_BOTTOM_RIGHT is 2: query 0 attends keys 0 to 2, query 1 keys 0 to 3. The
/// offset of ELSA_CAUSAL_TOP_LEFT remains 3, and both queries attend the valid keys 0 to 3.
pub type elsa_causal = u32;
/// Not causal.
pub const ELSA_CAUSAL_NONE: elsa_causal = 0;
/// The offset is the length of the past, 0 without a past: the first query attends the first new key. `causal` means
/// this in elsa.py and the elsa tool, as in PyTorch and ONNX.
pub const ELSA_CAUSAL_TOP_LEFT: elsa_causal = 1;
/// The offset is the number of valid keys, past included, minus the number of queries: the last query attends the
/// last valid key. Use it for queries that continue a cache that is passed as keys.
pub const ELSA_CAUSAL_BOTTOM_RIGHT: elsa_causal = 2;

/// Meaning of the elements of a mask.
pub type elsa_mask_kind = u32;
/// No mask.
pub const ELSA_MASK_NONE: elsa_mask_kind = 0;
/// bool or uint8, one byte per element; non-zero means attended.
pub const ELSA_MASK_BOOL: elsa_mask_kind = 1;
/// f32, added to the scores in natural-log units; minus infinity means not attended.
pub const ELSA_MASK_F32: elsa_mask_kind = 2;
/// f16, added in the same way.
pub const ELSA_MASK_F16: elsa_mask_kind = 3;
/// bf16, added in the same way.
pub const ELSA_MASK_BF16: elsa_mask_kind = 4;

/// Source types that elsa_mask_convert accepts.
pub type elsa_mask_source = u32;
/// i32; zero means not attended, any other number attended.
pub const ELSA_MASK_SOURCE_I32: elsa_mask_source = 1;
/// i64; zero means not attended, any other number attended.
pub const ELSA_MASK_SOURCE_I64: elsa_mask_source = 2;
/// f64, added to the scores in natural-log units.
pub const ELSA_MASK_SOURCE_F64: elsa_mask_source = 3;

/// Notable properties of the tensors of a certified run, for elsa_certified. The flags refer to measured elements: all
/// queries, masks and biases; on the CPU also all outputs. Length, causality and window limit the keys that the rows of
/// a sequence may attend; keys and values are measured from the first of these keys to the last.
pub type elsa_certified_flags = u32;
/// A query is NaN.
pub const ELSA_CERTIFIED_Q_NAN: elsa_certified_flags = 1;
/// A query is infinite.
pub const ELSA_CERTIFIED_Q_INFINITE: elsa_certified_flags = 2;
/// A key is NaN.
pub const ELSA_CERTIFIED_K_NAN: elsa_certified_flags = 4;
/// A key is infinite.
pub const ELSA_CERTIFIED_K_INFINITE: elsa_certified_flags = 8;
/// A value is NaN.
pub const ELSA_CERTIFIED_V_NAN: elsa_certified_flags = 16;
/// A value is infinite.
pub const ELSA_CERTIFIED_V_INFINITE: elsa_certified_flags = 32;
/// An element of the mask or the bias is NaN.
pub const ELSA_CERTIFIED_MASK_NAN: elsa_certified_flags = 64;
/// An element of the mask or the bias is +inf.
pub const ELSA_CERTIFIED_MASK_INFINITE: elsa_certified_flags = 128;
/// An element of the output is NaN.
pub const ELSA_CERTIFIED_OUT_NAN: elsa_certified_flags = 256;
/// An element of the output is infinite.
pub const ELSA_CERTIFIED_OUT_INFINITE: elsa_certified_flags = 512;
/// The scores of a row may be so far apart that small weights became zero.
pub const ELSA_CERTIFIED_UNDERFLOW: elsa_certified_flags = 1024;
/// The CPU computed because a GPU could not.
pub const ELSA_CERTIFIED_FALLBACK: elsa_certified_flags = 2048;

/// Facts about calls on tensors in GPU memory, for elsa_workspace_trust.
pub type elsa_trust = u32;
/// Every address is GPU memory of the plan's context, and all elements of the tensor's view are in one allocation.
pub const ELSA_TRUST_ADDRESSES: elsa_trust = 1;
/// Every stream belongs to the plan's context, and is destroyed only after the workspace. The default stream always
/// does.
pub const ELSA_TRUST_STREAMS: elsa_trust = 2;

/// Severity of a log message.
pub type elsa_log_level = u32;
/// No messages.
pub const ELSA_LOG_OFF: elsa_log_level = 0;
/// Errors.
pub const ELSA_LOG_ERROR: elsa_log_level = 1;
/// Warnings, such as a fallback.
pub const ELSA_LOG_WARN: elsa_log_level = 2;
/// Information for users.
pub const ELSA_LOG_INFO: elsa_log_level = 3;
/// Choices of kernels, tiles and devices.
pub const ELSA_LOG_DEBUG: elsa_log_level = 4;
