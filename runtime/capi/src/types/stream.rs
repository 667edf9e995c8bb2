//! Streams: what their callbacks are handed, options, the data of a run, and what is told of them.

use super::data::elsa_integers;
use super::numbers::*;
use std::ffi::{c_char, c_void};

/// A tensor that a stream reads or writes, by the name of its field in elsa_inputs or elsa_outputs.
pub type elsa_operand = u32;
/// Queries, [batch, heads, queries, d].
pub const ELSA_OPERAND_Q: elsa_operand = 0;
/// Keys, [batch, kv_heads, keys, d].
pub const ELSA_OPERAND_K: elsa_operand = 1;
/// Values, [batch, kv_heads, keys, d_v].
pub const ELSA_OPERAND_V: elsa_operand = 2;
/// Earlier keys, [batch, kv_heads, past, d].
pub const ELSA_OPERAND_PAST_K: elsa_operand = 3;
/// Earlier values, [batch, kv_heads, past, d_v].
pub const ELSA_OPERAND_PAST_V: elsa_operand = 4;
/// The mask, [batch, heads, queries, keys], of which axes that are shared have one entry.
pub const ELSA_OPERAND_MASK: elsa_operand = 5;
/// The bias, likewise; or its table, [1, 1, entries, heads], which is read whole, once, before anything else.
pub const ELSA_OPERAND_BIAS: elsa_operand = 6;
/// The entry of the table for each pair, int64_t [1, 1, queries, keys].
pub const ELSA_OPERAND_BIAS_INDEX: elsa_operand = 7;
/// The output, [batch, heads, queries, d_v].
pub const ELSA_OPERAND_OUT: elsa_operand = 8;
/// Earlier and new keys, [batch, kv_heads, past + keys, d].
pub const ELSA_OPERAND_PRESENT_K: elsa_operand = 9;
/// Earlier and new values, [batch, kv_heads, past + keys, d_v].
pub const ELSA_OPERAND_PRESENT_V: elsa_operand = 10;
/// Log-sum-exp, float [batch, heads, queries, 1].
pub const ELSA_OPERAND_LSE: elsa_operand = 11;
/// References m of the states, float [batch, heads, queries, 1].
pub const ELSA_OPERAND_STATE_M: elsa_operand = 12;
/// Sums S of the states, float [batch, heads, queries, 1].
pub const ELSA_OPERAND_STATE_S: elsa_operand = 13;
/// Weighted sums W of the states, float [batch, heads, queries, d_v].
pub const ELSA_OPERAND_STATE_W: elsa_operand = 14;

/// Outputs of a stream, together: of elsa_stream_options. Present keys and values are written where the problem has them.
pub type elsa_stream_outputs = u32;
/// The output.
pub const ELSA_STREAM_OUT: elsa_stream_outputs = 1;
/// Log-sum-exp.
pub const ELSA_STREAM_LSE: elsa_stream_outputs = 2;
/// The states.
pub const ELSA_STREAM_STATES: elsa_stream_outputs = 4;

/// A box of rows of a tensor, and where they lie in the memory that a callback is handed: of row
/// (first[0] + b, first[1] + h, first[2] + t) of the tensor's [batch, heads, tokens], with b, h and t below the counts,
/// the elements from start on, length of them, lie b * strides[0] + h * strides[1] + t * strides[2] elements from data.
/// The strides of the problem's views say in which order heads and tokens lie there, and nothing else: where the program
/// has its tensors is its own affair.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_rows {
    /// sizeof(elsa_rows) of the library.
    pub size: usize,
    /// The tensor: one of ELSA_OPERAND_*.
    pub operand: elsa_operand,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// Batch, head and token of the first row. Packed sequences are rows of batch 0, as in the view.
    pub first: [usize; 3],
    /// Number of rows along each axis, at least one.
    pub count: [usize; 3],
    /// First element of each row; other than 0 for mask, bias and index alone, whose elements are keys, past included.
    pub start: usize,
    /// Elements of each row, at least one.
    pub length: usize,
    /// Distances in elements along [batch, heads, tokens].
    pub strides: [usize; 3],
}

/// Fills rows of an input: all of their elements, within bytes bytes from data, and nothing else there. Other than zero
/// ends the run, which reports that number. The rules are those of elsa_stream_run.
pub type elsa_stream_read = Option<
    unsafe extern "C" fn(user: *mut c_void, rows: *const elsa_rows, data: *mut c_void, bytes: usize) -> i32,
>;

/// Takes rows of an output, which are final, from bytes bytes at data. Other than zero ends the run, which reports that
/// number. The rules are those of elsa_stream_run.
pub type elsa_stream_write = Option<
    unsafe extern "C" fn(user: *mut c_void, rows: *const elsa_rows, data: *const c_void, bytes: usize) -> i32,
>;

/// Options of a stream. All zeros are the defaults, but for the budget, without which there is no stream.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_stream_options {
    /// sizeof(elsa_stream_options). elsa_stream_options_init sets it.
    pub size: usize,
    /// Most bytes of memory that the process may have during a run, with those that it has when the stream is created. A
    /// stream that does not fit is refused with the bytes that it needs, and so is a budget beyond what the system has
    /// left.
    pub host_budget: usize,
    /// Length of a chunk as a multiple of the default of 4,096 keys in blocks of 64 (eta of ELSA-Lean); 0 is 1. Chunks are
    /// whole segments, and shorter where rows need the memory.
    pub eta: f64,
    /// Keys in a block: 64, 128 or 256; 0 is 64.
    pub block: usize,
    /// ELSA_STREAM_* together; 0 is the output alone.
    pub outputs: elsa_stream_outputs,
    /// Zero.
    pub reserved: u32,
}

/// A handle of a stream. All zeros names no stream. Copies name the same stream.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_stream {
    /// Opaque.
    pub id: u64,
}

/// What a stream has chosen, and the account of its bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_stream_info {
    /// sizeof(elsa_stream_info). elsa_stream_info_init sets it.
    pub size: usize,
    /// The back end that computes: one of ELSA_BACKEND_*, and never a GPU.
    pub backend: elsa_backend,
    /// Non-zero where the CPU computes in place of the engine's GPU.
    pub fallback: u32,
    /// Name of the kernel, in memory that is never freed.
    pub kernel: *const c_char,
    /// Query rows whose states stay in memory while keys pass, over heads and sequences.
    pub resident_rows: usize,
    /// Keys of a chunk.
    pub chunk_keys: usize,
    /// Units of a run: boxes of resident rows, each of which reads its keys once, after one for every sequence and key head
    /// that is copied to a present. 0 for packed sequences, whose lengths a run brings.
    pub units: usize,
    /// Bytes of the host's memory at the peak of a run: the sum of those below.
    pub host_bytes: usize,
    /// Of these, what the process has when the stream is created, with what code and threads take once they run.
    pub fixed_bytes: usize,
    /// Query rows, in two buffers.
    pub query_bytes: usize,
    /// Two buffers of keys and values.
    pub key_bytes: usize,
    /// Two buffers of mask, bias and index, and the table of a bias.
    pub added_bytes: usize,
    /// Output rows.
    pub output_bytes: usize,
    /// Log-sum-exp and states to be written.
    pub state_bytes: usize,
    /// Resident rows with their states.
    pub resident_bytes: usize,
    /// What the workers compute in.
    pub workspace_bytes: usize,
}

/// The data of a streamed run: callbacks and lists of lengths.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_stream_data {
    /// sizeof(elsa_stream_data). elsa_stream_data_init sets it.
    pub size: usize,
    /// Fills rows of inputs.
    pub read: elsa_stream_read,
    /// Takes rows of outputs.
    pub write: elsa_stream_write,
    /// First argument of both.
    pub user: *mut c_void,
    /// Valid keys, one number for each sequence.
    pub key_lengths: elsa_integers,
    /// Bounds of the packed sequences among the queries, [packed + 1].
    pub cu_seqlens_q: elsa_integers,
    /// Bounds of the packed sequences among the keys, [packed + 1].
    pub cu_seqlens_k: elsa_integers,
    /// The unit to begin with, whose outputs and those of later units are written; 0 is the whole run. A run that was ended
    /// by a callback goes on at the units that it has finished.
    pub first_unit: usize,
}

/// What a streamed run did. Of one that a callback has ended it has code, operand, units and finished, and is zero
/// otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_stream_report {
    /// sizeof(elsa_stream_report). elsa_stream_report_init sets it.
    pub size: usize,
    /// What the callback that has ended the run returned; 0 where none has.
    pub code: i32,
    /// The operand of that call; 0 where none has ended the run.
    pub operand: elsa_operand,
    /// Units of the whole run.
    pub units: usize,
    /// Units whose outputs have all been written, by this run and those that it goes on with: all where the status is
    /// ELSA_STATUS_OK.
    pub finished: usize,
    /// Chunks that were computed or copied.
    pub parts: u64,
    /// Bytes of rows that were read.
    pub read_bytes: u64,
    /// Bytes of rows that were written.
    pub written_bytes: u64,
    /// Milliseconds from the first read to the end.
    pub total_ms: f64,
    /// Of reading, most of which passes while the chunk before is computed.
    pub read_ms: f64,
    /// Of computing, with what is written.
    pub compute_ms: f64,
    /// Of waiting for reads with nothing to compute.
    pub wait_ms: f64,
    /// 1 - wait_ms / total_ms: 1 where all reading was hidden.
    pub overlap: f64,
}
