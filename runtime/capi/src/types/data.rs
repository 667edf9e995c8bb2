//! Tensors and lists of a call.

use std::ffi::c_void;

/// Memory that a call reads: the elements of a tensor, aligned to the element size. Null with 0 bytes means
/// that the tensor is absent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_input {
    /// Address of the first element.
    pub data: *const c_void,
    /// Number of readable bytes from data on.
    pub bytes: usize,
}

/// Memory that a call writes: the elements of a tensor, aligned to the element size. Null with 0 bytes means that
/// the tensor is absent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_output {
    /// Address of the first element.
    pub data: *mut c_void,
    /// Number of writable bytes from data on.
    pub bytes: usize,
}

/// List of integers in host memory, except as documented at elsa_run_device. Null with 0 entries means that the list
/// is absent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_integers {
    /// Address of the first entry.
    pub data: *const i64,
    /// Number of entries.
    pub count: usize,
}

/// Input tensors and lists of an attention call. Tensors have the views and element types of the problem. Inputs that the
/// problem does not use must be absent.
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
    /// Past keys. If the problem appends: absent, or the address of present_k.
    pub past_k: elsa_input,
    /// Past values. If the problem appends: absent, or the address of present_v.
    pub past_v: elsa_input,
    /// The mask.
    pub mask: elsa_input,
    /// Number of valid keys of each sequence, past included: [batch], each from 0 to past + keys.
    pub key_lengths: elsa_integers,
    /// Offsets of the packed sequences in the queries, [packed + 1]: from 0 to the number of queries, never decreasing.
    pub cu_seqlens_q: elsa_integers,
    /// Offsets of the packed sequences in the keys, [packed + 1]: from 0 to the number of keys, never decreasing.
    pub cu_seqlens_k: elsa_integers,
    /// The bias tensor, or the table of biases.
    pub bias: elsa_input,
    /// Index of the table entry for each pair of query and key, [queries, keys].
    pub bias_index: elsa_integers,
    /// CUDA event, a CUevent or cudaEvent_t, for which the work of elsa_run_device waits on the GPU; see there. Null in
    /// all other calls.
    pub ready_event: *mut c_void,
}

/// Output tensors of an attention call. No output may share memory with another tensor of the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_outputs {
    /// sizeof(elsa_outputs). elsa_outputs_init sets it.
    pub size: usize,
    /// Output. May be absent if lse or the states are present.
    pub out: elsa_output,
    /// Log-sum-exp of each row, f32 [batch, heads, queries], in natural-log units; minus infinity for a row that
    /// attends no key. May be absent.
    pub lse: elsa_output,
    /// Reference m of each row's state, f32 [batch, heads, queries], in natural-log units. The three state arrays are
    /// either all present or all absent.
    ///
    /// m is rounded to f32. S and W carry a factor that compensates for this rounding: near one for |m| below 1e6, and
    /// between exp(-32) and exp(32) for any m. For |m| below 2^30, S exp(m) is the sum of exp(s_j). Beyond that,
    /// neighbouring f32 values are at least 128 apart, and m + log S equals the logarithm of that sum to within their
    /// spacing. W / S is the output, and elsa_states_merge weighs states correctly for any m, as long as W times that
    /// factor stays within the range of f32.
    pub state_m: elsa_output,
    /// Sum S = sum_j exp(s_j - m) of each row's state, f32 [batch, heads, queries].
    pub state_s: elsa_output,
    /// Weighted sum W = sum_j exp(s_j - m) v_j of each row's state, f32 [batch, heads, queries, d_v].
    pub state_w: elsa_output,
    /// Past and new keys. If the problem appends, the past keys are already in this memory and are only read. Gaps that
    /// the strides leave between rows, and memory after the last row, are neither read nor written.
    pub present_k: elsa_output,
    /// Past and new values; the rules of present_k apply.
    pub present_v: elsa_output,
    /// CUDA event, a CUevent or cudaEvent_t, that elsa_run_device records after its work; see there. Null in all other
    /// calls.
    pub done_event: *mut c_void,
}

/// States (m, S, W) of rows in host memory, for reading; see state_m of elsa_outputs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_states_in {
    /// References m, [rows], in natural-log units; minus infinity for a row that attends no key.
    pub m: *const f32,
    /// Sums S, [rows].
    pub s: *const f32,
    /// Weighted sums W, [rows, d_v].
    pub w: *const f32,
}

/// States (m, S, W) of rows in host memory, for writing; see state_m of elsa_outputs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_states_out {
    /// References m, [rows], in natural-log units.
    pub m: *mut f32,
    /// Sums S, [rows].
    pub s: *mut f32,
    /// Weighted sums W, [rows, d_v].
    pub w: *mut f32,
}
