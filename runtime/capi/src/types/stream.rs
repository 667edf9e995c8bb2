//! Streams: the arguments of their callbacks, their options, the data of a run, and their descriptions.

use super::data::elsa_integers;
use super::numbers::*;
use std::ffi::{c_char, c_void};

/// Tensor that a stream reads or writes, named after its field in elsa_inputs or elsa_outputs.
pub type elsa_operand = u32;
/// Queries, [batch, heads, queries, d].
pub const ELSA_OPERAND_Q: elsa_operand = 0;
/// Keys, [batch, kv_heads, keys, d].
pub const ELSA_OPERAND_K: elsa_operand = 1;
/// Values, [batch, kv_heads, keys, d_v].
pub const ELSA_OPERAND_V: elsa_operand = 2;
/// Past keys, [batch, kv_heads, past, d].
pub const ELSA_OPERAND_PAST_K: elsa_operand = 3;
/// Past values, [batch, kv_heads, past, d_v].
pub const ELSA_OPERAND_PAST_V: elsa_operand = 4;
/// The mask, [batch, heads, queries, keys]; shared axes have length 1.
pub const ELSA_OPERAND_MASK: elsa_operand = 5;
/// The bias, [batch, heads, queries, keys] with shared axes of length 1; or its table, [1, 1, entries, heads], which
/// is read once, in one piece, before any other tensor.
pub const ELSA_OPERAND_BIAS: elsa_operand = 6;
/// Index of the table entry for each pair of query and key, int64_t [1, 1, queries, keys].
pub const ELSA_OPERAND_BIAS_INDEX: elsa_operand = 7;
/// The output, [batch, heads, queries, d_v].
pub const ELSA_OPERAND_OUT: elsa_operand = 8;
/// Past and new keys, [batch, kv_heads, past + keys, d].
pub const ELSA_OPERAND_PRESENT_K: elsa_operand = 9;
/// Past and new values, [batch, kv_heads, past + keys, d_v].
pub const ELSA_OPERAND_PRESENT_V: elsa_operand = 10;
/// Log-sum-exp, float [batch, heads, queries, 1].
pub const ELSA_OPERAND_LSE: elsa_operand = 11;
/// References m of the states, float [batch, heads, queries, 1].
pub const ELSA_OPERAND_STATE_M: elsa_operand = 12;
/// Sums S of the states, float [batch, heads, queries, 1].
pub const ELSA_OPERAND_STATE_S: elsa_operand = 13;
/// Weighted sums W of the states, float [batch, heads, queries, d_v].
pub const ELSA_OPERAND_STATE_W: elsa_operand = 14;

/// Outputs that a stream writes: a bitwise or of ELSA_STREAM_*, in elsa_stream_options. Present keys and values are
/// written if the problem has them.
pub type elsa_stream_outputs = u32;
/// The output.
pub const ELSA_STREAM_OUT: elsa_stream_outputs = 1;
/// Log-sum-exp.
pub const ELSA_STREAM_LSE: elsa_stream_outputs = 2;
/// The states.
pub const ELSA_STREAM_STATES: elsa_stream_outputs = 4;

/// Box of rows of a tensor, and the layout of these rows in the memory passed to a callback. Let b, h and t be below
/// count[0], count[1] and count[2]. The box contains the elements start to start + length - 1 of the tensor's row
/// (first[0] + b, first[1] + h, first[2] + t) in [batch, heads, tokens], stored contiguously. The first of them is at
/// offset b * strides[0] + h * strides[1] + t * strides[2], counted in elements from data. The strides of the problem's
/// views determine only the order of heads and tokens in this memory; the program may store its own tensors in any
/// layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_rows {
    /// sizeof(elsa_rows) in the library.
    pub size: usize,
    /// The tensor: one of ELSA_OPERAND_*.
    pub operand: elsa_operand,
    /// Size of an element in bytes.
    pub element_bytes: u32,
    /// Batch, head and token of the first row. Rows of packed sequences have batch 0, as in the view.
    pub first: [usize; 3],
    /// Number of rows along each axis, at least one.
    pub count: [usize; 3],
    /// Index of the first stored element of each row. Non-zero only for mask, bias and index, whose elements are
    /// indexed by key, including past keys.
    pub start: usize,
    /// Number of elements of each row, at least one.
    pub length: usize,
    /// Strides in elements along [batch, heads, tokens].
    pub strides: [usize; 3],
}

/// Callback that fills rows of an input. It must write every element of the rows into the memory that begins at data
/// and is `bytes` long, and write nothing else. A non-zero result ends the run, whose report contains it.
/// elsa_stream_run documents the rules for callbacks.
pub type elsa_stream_read = Option<
    unsafe extern "C" fn(user: *mut c_void, rows: *const elsa_rows, data: *mut c_void, bytes: usize) -> i32,
>;

/// Callback that receives final rows of an output, in the memory that begins at data and is `bytes` long. A non-zero
/// result ends the run, whose report contains it. elsa_stream_run documents the rules for callbacks.
pub type elsa_stream_write = Option<
    unsafe extern "C" fn(user: *mut c_void, rows: *const elsa_rows, data: *const c_void, bytes: usize) -> i32,
>;

/// Callback that receives the number of a unit, counted from zero, after write has received all its outputs. Units finish
/// in the order of their numbers. A program that resumes runs after a crash makes the outputs durable here, and then stores
/// unit + 1, from which another process resumes. A non-zero result ends the run, whose report contains it; the unit does not
/// count as finished. The thread of write calls it, and elsa_stream_run documents the rules for callbacks.
pub type elsa_stream_unit_finished = Option<unsafe extern "C" fn(user: *mut c_void, unit: usize) -> i32>;

/// Options of a stream. All zeros selects the defaults, except that host_budget is required.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_stream_options {
    /// sizeof(elsa_stream_options). elsa_stream_options_init sets it.
    pub size: usize,
    /// Maximum memory of the process during a run, in bytes, including the memory that it uses when the stream is
    /// created. A stream that does not fit is rejected, and the message gives the required bytes; a budget beyond the
    /// memory that the system has left is rejected too.
    pub host_budget: usize,
    /// Length of a chunk as a multiple of the default, which is 4,096 keys with blocks of 64 (eta of ELSA-Lean); 0
    /// means 1. Chunks consist of whole segments, and are shorter if rows need the memory.
    pub eta: f64,
    /// Keys per block: 64, 128 or 256; 0 means 64.
    pub block: usize,
    /// Bitwise or of ELSA_STREAM_*; 0 means the output alone.
    pub outputs: elsa_stream_outputs,
    /// Must be zero.
    pub reserved: u32,
    /// Maximum GPU memory of the stream, in bytes; 0 means that the CPU computes. Otherwise the engine must have a GPU,
    /// block must be 0, and the CPU never computes in its place. A stream that does not fit is rejected, and the message
    /// gives the required bytes. If the GPU shares the memory of the host, the smaller of both budgets applies.
    pub device_budget: usize,
    /// Sizes of units and chunks: those of the elsa_stream_info of the run to resume, which may have run in another process.
    /// All zeros means that the library chooses them. A process that uses more memory than the earlier one may need a larger
    /// host_budget for the same sizes; a megabyte more is enough for the same program.
    pub sizes: [usize; 5],
}

/// Handle of a stream. All zeros is the null handle. Copies refer to the same stream.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_stream {
    /// Opaque.
    pub id: u64,
}

/// Description of a stream: its choices and its memory account.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_stream_info {
    /// sizeof(elsa_stream_info). elsa_stream_info_init sets it.
    pub size: usize,
    /// Back end that computes: one of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// Non-zero if the CPU computes instead of the engine's GPU.
    pub fallback: u32,
    /// Name of the kernel; static, never freed.
    pub kernel: *const c_char,
    /// Number of query rows, over heads and sequences, whose states stay in memory while keys stream past.
    pub resident_rows: usize,
    /// Keys per chunk.
    pub chunk_keys: usize,
    /// Number of units of a run. A unit is a box of resident rows that reads its keys once. The run begins with one
    /// additional unit for every sequence and key head whose keys and values are copied to a present tensor. 0 for
    /// packed sequences, and on a GPU for sequences with key_lengths: their lengths are known only at run time.
    pub units: usize,
    /// Bytes of host memory at the peak of a run: the sum of the fields below.
    pub host_bytes: usize,
    /// Bytes that the process uses when the stream is created, plus those of the code and threads that a run adds.
    pub fixed_bytes: usize,
    /// Bytes of query rows, in two buffers.
    pub query_bytes: usize,
    /// Bytes of keys and values, in two buffers.
    pub key_bytes: usize,
    /// Bytes of mask, bias and index, in two buffers, and of the bias table.
    pub added_bytes: usize,
    /// Bytes of output rows.
    pub output_bytes: usize,
    /// Bytes of log-sum-exp and states to be written.
    pub state_bytes: usize,
    /// Bytes of resident rows and their states.
    pub resident_bytes: usize,
    /// Bytes of the workers' scratch memory.
    pub workspace_bytes: usize,
    /// Bytes of GPU memory; 0 on the CPU. On a GPU, host_bytes is the page-locked memory, and the fields that it sums are
    /// zero.
    pub device_bytes: usize,
    /// Sizes of units and chunks, for a stream that resumes a run of this one. They are opaque, and never all zeros.
    pub sizes: [usize; 5],
}

/// The data of a streamed run: callbacks and lists of lengths.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_stream_data {
    /// sizeof(elsa_stream_data). elsa_stream_data_init sets it.
    pub size: usize,
    /// Callback that fills rows of inputs.
    pub read: elsa_stream_read,
    /// Callback that receives rows of outputs.
    pub write: elsa_stream_write,
    /// First argument passed to all callbacks.
    pub user: *mut c_void,
    /// Number of valid keys of each sequence, past included: [batch], each from 0 to past + keys.
    pub key_lengths: elsa_integers,
    /// Offsets of the packed sequences in the queries, [packed + 1]: from 0 to the number of queries, never decreasing.
    pub cu_seqlens_q: elsa_integers,
    /// Offsets of the packed sequences in the keys, [packed + 1]: from 0 to the number of keys, never decreasing.
    pub cu_seqlens_k: elsa_integers,
    /// First unit to run. The outputs of this unit and of all later ones are written. 0 runs all units. To resume a run
    /// that a callback ended, pass the field finished of that run's report. To resume a run of another process, pass the
    /// number of units that its unit_finished has received, and give the stream the same sizes.
    pub first_unit: usize,
    /// Callback that receives the number of each finished unit; may be null.
    pub unit_finished: elsa_stream_unit_finished,
}

/// Report of a streamed run. If a callback ended the run, only code, operand, units and finished are set, and all other
/// fields are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_stream_report {
    /// sizeof(elsa_stream_report). elsa_stream_report_init sets it.
    pub size: usize,
    /// Value returned by the callback that ended the run; 0 if none did.
    pub code: i32,
    /// Operand that the callback was reading or writing when it ended the run; 0 if unit_finished or no callback ended it.
    pub operand: elsa_operand,
    /// Number of units of a complete run.
    pub units: usize,
    /// Number of units whose outputs have all been written, by this run and the runs that it resumes: all units if
    /// the status is ELSA_STATUS_OK.
    pub finished: usize,
    /// Number of chunks that were computed or copied.
    pub parts: u64,
    /// Bytes of rows read.
    pub read_bytes: u64,
    /// Bytes of rows written.
    pub written_bytes: u64,
    /// Milliseconds from the first read to the end of the run.
    pub total_ms: f64,
    /// Milliseconds spent reading, most of which overlaps the computation of the previous chunk.
    pub read_ms: f64,
    /// Milliseconds spent computing, including writes.
    pub compute_ms: f64,
    /// Milliseconds spent waiting for reads with nothing to compute.
    pub wait_ms: f64,
    /// 1 - wait_ms / total_ms: 1 if reading was fully hidden.
    pub overlap: f64,
}
