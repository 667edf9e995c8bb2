//! Inputs and outputs of a streamed run, and the times that it takes.

use elsa_core::attention::{Lengths, Operand};
use std::io;
use std::ops::Range;

/// A range of tokens in a range of sequences. One of the caller's functions fills or receives the rows of these tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTokens {
    /// Range of indices along the batch axis of the tensors.
    pub batch: Range<usize>,
    /// Range of tokens in each sequence: tokens of the queries, or of the past keys followed by the new keys.
    pub tokens: Range<usize>,
}

/// A box of a mask, a bias or an index, which one of the caller's functions fills. Its first element and its size are
/// given along the axes batch, heads, queries and keys. A broadcast axis has a single element. The batch axis of a mask
/// or a bias wraps around: index 0 follows the last index. A table of relative positions is always complete, with size
/// `[1, 1, entries, heads]`; the box of the table's index has size `[1, 1, queries, keys]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBox {
    /// The operand of the box: mask, bias or index.
    pub operand: Operand,
    /// The first element along each axis.
    pub first: [usize; 4],
    /// Number of elements along each axis.
    pub count: [usize; 4],
}

/// A function that fills the rows of a range of tokens. The rows are dense in the order `[batch][head][token][dim]`,
/// and have the problem's element type.
pub type FillRows<'a> = dyn FnMut(&StreamTokens, &mut [u8]) -> io::Result<()> + 'a;
/// A function that fills the keys and the values of a range of tokens, each in the order `[batch][head][token][dim]`.
pub type FillKeys<'a> = dyn FnMut(&StreamTokens, &mut [u8], &mut [u8]) -> io::Result<()> + 'a;
/// A function that fills a box of a mask or a bias in dense order: `[batch][head][query][key]`.
pub type FillAddends<'a> = dyn FnMut(&StreamBox, &mut [u8]) -> io::Result<()> + 'a;
/// A function that receives the results of a block of queries.
pub type TakeRows<'a> = dyn FnMut(&StreamRows<'_>) -> io::Result<()> + 'a;

/// Source of the keys and values of a run.
pub enum StreamKeys<'a> {
    /// Function that fills the keys and values of one chunk at a time.
    Function(&'a mut FillKeys<'a>),
    /// Host memory with keys and values in the layout of the problem's views.
    Host {
        /// Contents of the key view.
        key: &'a [u8],
        /// Contents of the value view.
        value: &'a [u8],
    },
    /// Device memory with keys and values in the layout of the problem's views.
    Device(DeviceKeys),
}

/// Keys and values in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKeys {
    pub(super) key: u64,
    pub(super) value: u64,
}

impl DeviceKeys {
    /// Wraps the device addresses of the first key element and the first value element.
    ///
    /// # Safety
    /// The caller keeps the memory allocated as long as a run uses it. During this time, nothing writes the memory.
    #[must_use]
    pub const unsafe fn new(key: u64, value: u64) -> DeviceKeys {
        DeviceKeys { key, value }
    }
}

/// Inputs and outputs of a streamed run.
pub struct StreamCall<'a, 'k> {
    /// Lengths of the sequences.
    pub lengths: Lengths<'a>,
    /// Function that fills the rows of a block of queries.
    pub queries: &'a mut FillRows<'a>,
    /// Source of keys and values.
    pub keys: StreamKeys<'k>,
    /// Function that fills boxes of mask, bias and index. Required if the problem has one of these operands.
    pub addends: Option<&'a mut FillAddends<'a>>,
    /// Function that receives the final results of each block of queries.
    pub results: &'a mut TakeRows<'a>,
    /// Number of query blocks to skip, because an earlier run with the same division has already returned their
    /// results.
    pub from: usize,
}

/// The results of a block of queries. They are dense, in the order `[batch][head][token]`. Results that were not
/// requested are empty.
#[derive(Clone, Debug)]
pub struct StreamRows<'a> {
    /// Range of sequences, as indices along the batch axis.
    pub batch: Range<usize>,
    /// Range of queries in each sequence, as a range of tokens in the tensors.
    pub tokens: Range<usize>,
    /// Bytes of the output, `[batch][head][token][value_dim]`, in the problem's element type.
    pub output: &'a [u8],
    /// Log-sum-exp of each query, as a natural logarithm.
    pub lse: &'a [f32],
    /// References of the states, in natural-log units.
    pub m: &'a [f32],
    /// Sums of the states.
    pub s: &'a [f32],
    /// Weighted sums of the states, `[batch][head][token][value_dim]`.
    pub w: &'a [f32],
    /// The contents of `output`, `lse`, `m`, `s` and `w` as bytes.
    pub(super) bytes: [&'a [u8]; 5],
}

impl StreamRows<'_> {
    /// Returns the contents of an output as bytes. The slice is empty if the output was not requested.
    #[must_use]
    pub fn bytes(&self, operand: Operand) -> &[u8] {
        match operand {
            Operand::Output => self.bytes[0],
            Operand::LogSumExp => self.bytes[1],
            Operand::StateReference => self.bytes[2],
            Operand::StateSum => self.bytes[3],
            Operand::StateWeighted => self.bytes[4],
            _ => &[],
        }
    }
}

/// Times of a run, and the amount of transferred data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamTimes {
    /// Milliseconds that the host spent in the functions that fill keys, values, masks and biases.
    pub fetch_ms: f64,
    /// Duration in milliseconds of the copies of keys, values, masks and biases to the device, measured by events.
    pub copy_ms: f64,
    /// Duration in milliseconds of products and merges, measured by events.
    pub compute_ms: f64,
    /// Milliseconds in which the device had no products to compute: during the first copy, and during all other
    /// transfers that no computation hides.
    pub wait_ms: f64,
    /// Milliseconds on the device from the start of the run to the end of its last product.
    pub total_ms: f64,
    /// Transferred bytes of keys, values, masks and biases. A transfer reads data into page-locked memory, copies it to
    /// the device, or both.
    pub bytes: u64,
    /// Number of bytes passed to the sink of [`GpuStream::run_between`](super::GpuStream::run_between); zero for runs
    /// without a sink.
    pub written: u64,
    /// Number of chunks that were computed, summed over the query blocks.
    pub chunks: u64,
}

impl StreamTimes {
    /// Returns `Overlap_eff = 1 − wait / total`, the fraction of the total time in which the device computes. Returns 1
    /// if the total is zero.
    #[must_use]
    pub fn overlap(&self) -> f64 {
        if self.total_ms > 0.0 { 1.0 - self.wait_ms / self.total_ms } else { 1.0 }
    }
}
