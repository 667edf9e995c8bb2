//! Versions, and enumerations: integers with named values.

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
/// A callback of a stream has ended the run. Its number is in the report.
pub const ELSA_STATUS_CALLBACK: elsa_status = 8;
/// elsa_engine_cancel has ended the call. Outputs may be incomplete; the next call computes.
pub const ELSA_STATUS_CANCELLED: elsa_status = 9;

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
/// Scores in memory, softmax in two passes, for comparison. Not for packed sequences.
pub const ELSA_METHOD_MATH: elsa_method = 1;

/// Where the diagonal of a causal mask starts. The diagonal of query i of a sequence is key i + offset, keys counted from
/// the first of its past; the offset may be negative. A causal row attends the keys up to its diagonal. With a past of 3,
/// 2 new keys and 2 queries both offsets are 3: query 0 attends keys 0 to 3, query 1 keys 0 to 4. If key_lengths are 4,
/// that of ELSA_CAUSAL_BOTTOM_RIGHT is 2: query 0 attends keys 0 to 2, query 1 keys 0 to 3; that of ELSA_CAUSAL_TOP_LEFT
/// remains 3, and both attend keys 0 to 3, which are valid.
pub type elsa_causal = u32;
/// Not causal.
pub const ELSA_CAUSAL_NONE: elsa_causal = 0;
/// The offset is the length of the past, 0 without one: the first query sees the first new key. This is what causal alone
/// means in elsa.py and in the tool, as in PyTorch and ONNX.
pub const ELSA_CAUSAL_TOP_LEFT: elsa_causal = 1;
/// The offset is valid keys, those of the past included, minus queries: the last query sees the last valid key. It
/// is for queries that continue a cache which the call has as keys.
pub const ELSA_CAUSAL_BOTTOM_RIGHT: elsa_causal = 2;

/// What the elements of a mask mean.
pub type elsa_mask_kind = u32;
/// No mask.
pub const ELSA_MASK_NONE: elsa_mask_kind = 0;
/// One byte an element, bool or uint8; non-zero is attended.
pub const ELSA_MASK_BOOL: elsa_mask_kind = 1;
/// f32, added to the scores in natural-log units; minus infinity is not attended.
pub const ELSA_MASK_F32: elsa_mask_kind = 2;
/// f16, added likewise.
pub const ELSA_MASK_F16: elsa_mask_kind = 3;
/// bf16, added likewise.
pub const ELSA_MASK_BF16: elsa_mask_kind = 4;

/// Types of mask elements that elsa_mask_convert takes.
pub type elsa_mask_source = u32;
/// i32; zero is not attended, any other number is.
pub const ELSA_MASK_SOURCE_I32: elsa_mask_source = 1;
/// i64, likewise.
pub const ELSA_MASK_SOURCE_I64: elsa_mask_source = 2;
/// f64, added to the scores in natural-log units.
pub const ELSA_MASK_SOURCE_F64: elsa_mask_source = 3;

/// What is remarkable about the tensors of a run that was certified: of elsa_certified. Flags of elements speak of those that
/// were measured: queries, on the CPU outputs, keys and values between the first and the last that some row of the sequence
/// may attend by length, causality and window, and all of a mask and a bias.
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
/// The scores of a row may lie so far apart that small weights became zero.
pub const ELSA_CERTIFIED_UNDERFLOW: elsa_certified_flags = 1024;
/// The CPU computed in place of a GPU.
pub const ELSA_CERTIFIED_FALLBACK: elsa_certified_flags = 2048;

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
