//! The data of a call.

use std::ffi::c_void;

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

/// A list of integers, in memory of the host but for what elsa_run_device says. Null with 0 entries is an absent list.
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
    /// The bias, or its table.
    pub bias: elsa_input,
    /// The entry of the table for each pair, [queries, keys].
    pub bias_index: elsa_integers,
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
