//! A stream on a GPU between a source and a sink: tensors as files hold them.

use crate::attention::cuda::stream::{
    GpuStream, GpuStreamError, StreamCall, StreamKeys, StreamRows, StreamTimes,
};
use crate::stream::{Excerpt, PieceError, RowSink, RowSource};
use elsa_core::attention::{Lengths, Operand, Problem};
use elsa_core::view::View;
use std::cell::RefCell;
use std::io;
use std::ops::Range;

/// The outputs of a block.
const OUTPUTS: [Operand; 5] =
    [Operand::Output, Operand::LogSumExp, Operand::StateReference, Operand::StateSum, Operand::StateWeighted];

/// The rows of `tokens` of all heads of a tensor, which lie densely in a buffer: `[batch][head][token][dim]`.
fn rows_of(tensor: View, size: usize, tokens: &Range<usize>) -> Excerpt {
    let ([batch, heads, _, dim], count) = (tensor.shape(), tokens.len());
    Excerpt {
        tensor,
        size,
        first: [0, 0, tokens.start],
        count: [batch, heads, count],
        start: 0,
        len: dim,
        to: [heads * count * dim, count * dim, dim],
        at: 0,
    }
}

/// The view of an output as a file holds it, and the size of its elements.
fn output_of(problem: &Problem, operand: Operand) -> Option<(View, usize)> {
    let spec = problem.spec();
    let [batch, heads, tokens, dim] = spec.output.shape();
    let rows = |dim: usize| {
        View::new("rows", [batch, heads, tokens, dim], [heads * tokens * dim, tokens * dim, dim, 1]).ok()
    };
    match operand {
        Operand::Output => Some((spec.output, spec.dtype.size())),
        Operand::StateWeighted => rows(dim).map(|view| (view, 4)),
        _ => rows(1).map(|view| (view, 4)),
    }
}

/// Names the tensor in what the system reports.
fn named(operand: Operand, error: &PieceError) -> io::Error {
    io::Error::new(error.source.kind(), format!("{}: {}", operand.argument(), error.source))
}

fn read(
    source: &RefCell<&mut impl RowSource>,
    operand: Operand,
    excerpt: &Excerpt,
    to: &mut [u8],
) -> io::Result<()> {
    let mut source = source.try_borrow_mut().map_err(io::Error::other)?;
    source.read_rows(operand, excerpt, to).map_err(|error| named(operand, &error))
}

impl GpuStream {
    /// Passes all keys by all queries: reads tensors part by part from `source`, and hands the outputs of each block of
    /// queries to `sink` when they are final. The stream was made for keys from a function
    /// ([`KeysFrom::Function`](crate::KeysFrom::Function)). A chunk is read while the device computes the one before it.
    ///
    /// # Errors
    /// Returns an error if the lengths do not match the problem, if source or sink fails, or if the device fails. What the
    /// sink has by then is incomplete.
    pub fn run_between(
        &mut self,
        lengths: &Lengths<'_>,
        source: &mut impl RowSource,
        sink: &mut impl RowSink,
    ) -> Result<StreamTimes, GpuStreamError> {
        let problem = *self.problem();
        let spec = problem.spec();
        let (size, source, mut unit) = (spec.dtype.size(), RefCell::new(source), 0);
        let sink = RefCell::new(sink);
        let mut queries = |tokens: Range<usize>, to: &mut [u8]| {
            read(&source, Operand::Query, &rows_of(spec.query, size, &tokens), to)
        };
        let mut keys = |tokens: Range<usize>, key: &mut [u8], value: &mut [u8]| {
            read(&source, Operand::Key, &rows_of(spec.key, size, &tokens), key)?;
            read(&source, Operand::Value, &rows_of(spec.value, size, &tokens), value)?;
            sink.try_borrow_mut().map_err(io::Error::other)?.part_computed();
            Ok(())
        };
        let mut results = |rows: &StreamRows<'_>| {
            let mut sink = sink.try_borrow_mut().map_err(io::Error::other)?;
            for operand in OUTPUTS {
                let from = rows.bytes(operand);
                if let (false, Some((view, size))) = (from.is_empty(), output_of(&problem, operand)) {
                    let of_block = rows_of(view, size, &rows.tokens);
                    sink.write_rows(operand, &of_block, from).map_err(|error| named(operand, &error))?;
                }
            }
            sink.unit_finished(unit)?;
            unit += 1;
            Ok(())
        };
        self.run(StreamCall {
            lengths: *lengths,
            queries: &mut queries,
            keys: StreamKeys::Function(&mut keys),
            results: &mut results,
        })
    }
}
