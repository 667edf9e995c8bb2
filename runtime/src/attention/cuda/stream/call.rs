//! Inputs and outputs of a run in chunks, and its times.

use elsa_core::attention::{Lengths, Operand};
use std::io;
use std::ops::Range;

/// Tokens of some sequences, for a function that fills or receives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTokens {
    /// Indices along the batch axis of the tensors.
    pub batch: Range<usize>,
    /// The tokens of each of them: of queries, or of past and new keys one after another.
    pub tokens: Range<usize>,
}

/// A box of a mask, bias or index, for a function that fills it: its first element and its size along batch, heads, queries
/// and keys. A broadcast axis has its single element. The batch axis of a mask or a bias wraps around: after the last index
/// follows the first. A table is always complete, `[1, 1, entries, heads]`; its index is `[1, 1, queries, keys]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBox {
    /// Mask, bias or index.
    pub operand: Operand,
    /// The first element along each axis.
    pub first: [usize; 4],
    /// Number of elements along each axis.
    pub count: [usize; 4],
}

/// A function that fills the rows of some tokens: `[batch][head][token][dim]`, dense, in the problem's element type.
pub type FillRows<'a> = dyn FnMut(&StreamTokens, &mut [u8]) -> io::Result<()> + 'a;
/// A function that fills keys and values of some tokens, each `[batch][head][token][dim]`.
pub type FillKeys<'a> = dyn FnMut(&StreamTokens, &mut [u8], &mut [u8]) -> io::Result<()> + 'a;
/// A function that fills a box of a mask or a bias, dense: `[batch][head][query][key]`.
pub type FillAdded<'a> = dyn FnMut(&StreamBox, &mut [u8]) -> io::Result<()> + 'a;
/// A function that receives the results of some queries.
pub type TakeRows<'a> = dyn FnMut(&StreamRows<'_>) -> io::Result<()> + 'a;

/// The keys and values of a run.
pub enum StreamKeys<'a> {
    /// A function fills the keys and the values of a chunk.
    Function(&'a mut FillKeys<'a>),
    /// Host memory with the views of the problem.
    Host {
        /// Bytes of the key view.
        key: &'a [u8],
        /// Bytes of the value view.
        value: &'a [u8],
    },
    /// Device memory with the views of the problem.
    Device(DeviceKeys),
}

/// Keys and values in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceKeys {
    pub(super) key: u64,
    pub(super) value: u64,
}

impl DeviceKeys {
    /// Wraps the addresses of the first element of keys and of values.
    ///
    /// # Safety
    /// The memory stays allocated, and nothing writes it, while a run uses it.
    #[must_use]
    pub const unsafe fn new(key: u64, value: u64) -> DeviceKeys {
        DeviceKeys { key, value }
    }
}

/// Inputs and outputs of a run.
pub struct StreamCall<'a, 'k> {
    /// Lengths of the sequences.
    pub lengths: Lengths<'a>,
    /// Fills the queries of a block.
    pub queries: &'a mut FillRows<'a>,
    /// Keys and values.
    pub keys: StreamKeys<'k>,
    /// Fills parts of mask, bias and index, if the problem has them.
    pub added: Option<&'a mut FillAdded<'a>>,
    /// Receives the results of a block, which are final.
    pub results: &'a mut TakeRows<'a>,
    /// Number of blocks that an earlier run of the same division has already returned, which this one skips.
    pub from: usize,
}

/// The results of some queries, dense: `[batch][head][token]`. Results that were not requested are empty.
#[derive(Clone, Debug)]
pub struct StreamRows<'a> {
    /// The sequences.
    pub batch: Range<usize>,
    /// The queries of each of them, as tokens of the tensors.
    pub tokens: Range<usize>,
    /// Bytes of the output, `[batch][head][token][value_dim]`, in the problem's element type.
    pub output: &'a [u8],
    /// Log-sum-exp, natural logarithm.
    pub lse: &'a [f32],
    /// References of the states, in natural-log units.
    pub m: &'a [f32],
    /// Sums of the states.
    pub s: &'a [f32],
    /// Weighted sums of the states, `[batch][head][token][value_dim]`.
    pub w: &'a [f32],
    /// Bytes of all of them, in this order.
    pub(super) bytes: [&'a [u8]; 5],
}

impl StreamRows<'_> {
    /// Returns the bytes of an output; empty if it was not requested.
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
    /// Milliseconds in which the function of the keys filled chunks, on the host.
    pub fetch_ms: f64,
    /// Milliseconds of copies of keys and values to the device, by events.
    pub copy_ms: f64,
    /// Milliseconds of products and merges, by events.
    pub compute_ms: f64,
    /// Milliseconds in which the device had no products to compute: the first copy, and all other transfers that are not
    /// hidden.
    pub wait_ms: f64,
    /// Milliseconds from the start to the end of the last product, on the device.
    pub total_ms: f64,
    /// Bytes of keys, values, masks and biases that were transferred: read into page-locked memory, copied to the device, or
    /// both.
    pub bytes: u64,
    /// Bytes that a sink has received.
    pub written: u64,
    /// Number of chunks.
    pub chunks: u64,
}

impl StreamTimes {
    /// Returns `Overlap_eff = 1 − wait / total`: the share of the time in which the device computes. One if the total is
    /// zero.
    #[must_use]
    pub fn overlap(&self) -> f64 {
        if self.total_ms > 0.0 { 1.0 - self.wait_ms / self.total_ms } else { 1.0 }
    }
}
