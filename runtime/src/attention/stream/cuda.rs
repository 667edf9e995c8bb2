//! Runs a GPU stream that reads its inputs from a source and writes its outputs to a sink. The source and the sink have
//! the layout of tensor files.

use super::error::StreamError;
use super::present::{PRESENTS, chunks, copies, excerpts};
use super::tensors::{table_of, tensors_of};
use crate::attention::cuda::stream::{
    GpuStream, StreamBox, StreamCall, StreamKeys, StreamRows, StreamTimes, StreamTokens,
};
use crate::stream::{Excerpt, PieceError, RowSink, RowSource};
use elsa_core::attention::{BiasView, Lengths, Operand, Operands, Problem};
use elsa_core::view::View;
use std::cell::RefCell;
use std::io;
use std::ops::Range;

/// Outputs that a block of queries may have.
const OUTPUTS: [Operand; 5] =
    [Operand::Output, Operand::LogSumExp, Operand::StateReference, Operand::StateSum, Operand::StateWeighted];

/// Returns the excerpt of a tensor with the rows of `tokens` in all heads. In the buffer, the rows are dense:
/// `[batch][head][token][dim]`.
fn rows_of(tensor: View, size: usize, tokens: &StreamTokens) -> Excerpt {
    let ([_, heads, _, dim], count) = (tensor.shape(), tokens.tokens.len());
    Excerpt {
        tensor,
        size,
        first: [tokens.batch.start, 0, tokens.tokens.start],
        count: [tokens.batch.len(), heads, count],
        start: 0,
        len: dim,
        to: [heads * count * dim, count * dim, dim],
        at: 0,
    }
}

/// Returns two excerpts with the rows of `tokens`, for keys or for values: one of the past tensor and one of the new
/// tensor. The numbers in `tokens` count the past tokens first, then the new tokens.
fn keys_of(tensors: [View; 2], size: usize, past: usize, tokens: &StreamTokens) -> [Excerpt; 2] {
    let whole = tokens.tokens.clone();
    let middle = past.clamp(whole.start, whole.end);
    let to = rows_of(tensors[1], size, tokens).to;
    let part = |tensor: View, range: Range<usize>, at: usize| Excerpt {
        to,
        at: at * tensor.dim(),
        ..rows_of(tensor, size, &StreamTokens { batch: tokens.batch.clone(), tokens: range })
    };
    let new = middle.saturating_sub(past)..whole.end.saturating_sub(past);
    [part(tensors[0], whole.start..middle, 0), part(tensors[1], new, middle - whole.start)]
}

/// Returns the excerpts of a mask or an index that together form the box `part`. There is one excerpt per batch index.
/// Batch indices wrap around.
fn box_of(tensor: View, size: usize, part: &StreamBox) -> impl Iterator<Item = Excerpt> {
    let ([batch, heads, queries, keys], first) = (part.count, part.first);
    let stride = heads * queries * keys;
    (0..batch).map(move |b| Excerpt {
        tensor,
        size,
        first: [(first[0] + b).checked_rem(tensor.batch()).unwrap_or(0), first[1], first[2]],
        count: [1, heads, queries],
        start: first[3],
        len: keys,
        to: [stride, queries * keys, keys],
        at: b * stride,
    })
}

/// Returns the view of an output in its file, and the size of its elements in bytes.
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

/// Adds the name of the tensor to an I/O error.
fn named(operand: Operand, error: &PieceError) -> io::Error {
    io::Error::new(error.source.kind(), format!("{}: {}", operand.argument(), error.source))
}

fn read(
    source: &RefCell<&mut impl RowSource<Operand>>,
    operand: Operand,
    excerpt: &Excerpt,
    to: &mut [u8],
) -> io::Result<()> {
    let mut source = source.try_borrow_mut().map_err(io::Error::other)?;
    source.read_rows(operand, excerpt, to).map_err(|error| named(operand, &error))
}

impl GpuStream {
    /// Returns the number of units of [`GpuStream::run_between`], and the number of key chunks that are processed from
    /// unit `from` on. The sink is notified of every finished unit. If there are present tensors, the first units copy
    /// keys and values to them. All remaining units are blocks of queries.
    ///
    /// # Errors
    /// Returns an error if the lengths do not match the problem.
    pub fn count(&self, lengths: &Lengths<'_>, from: usize) -> Result<(usize, usize), StreamError> {
        let problem = self.problem();
        lengths.check(problem)?;
        let copied = copies(problem);
        let pieces = chunks(0..problem.keys(), self.division().keys).count();
        let (blocks, steps) = self.blocks_and_steps(lengths, from.saturating_sub(copied));
        Ok((copied + blocks, copied.saturating_sub(from) * pieces + steps))
    }

    /// Streams all keys past all queries, from unit `from` on. Reads one chunk from `source` while the device computes
    /// the previous one, and passes the outputs of each query block to `sink` when they are final. To resume an earlier
    /// run with the same division, set `from` to the first unit that the sink has not recorded as finished. The stream
    /// must have been created for keys from a function ([`KeysFrom::Function`](crate::KeysFrom::Function)).
    ///
    /// # Errors
    /// Returns an error if the lengths do not match the problem, if an index exceeds its table, if the source or the
    /// sink fails, or if the device fails. The contents of the sink are then incomplete.
    pub fn run_between(
        &mut self,
        lengths: &Lengths<'_>,
        source: &mut impl RowSource<Operand>,
        sink: &mut impl RowSink<Operand>,
        from: usize,
    ) -> Result<StreamTimes, StreamError> {
        let problem = *self.problem();
        let (units, _) = self.count(lengths, from)?;
        if from > units {
            return Err(StreamError::Unit { found: from, units });
        }
        let (spec, tensors) = (problem.spec(), tensors_of(&problem)?);
        let (size, past, copied) = (spec.dtype.size(), problem.past(), copies(&problem));
        let mut written = 0;
        for number in from..copied {
            written += self.copy(&tensors, number, source, sink)?;
            sink.unit_finished(number).map_err(failed)?;
        }
        let source = RefCell::new(source);
        let (sink, mut unit) = (RefCell::new(sink), from.max(copied));
        let mut queries = |tokens: &StreamTokens, to: &mut [u8]| {
            read(&source, Operand::Query, &rows_of(spec.query, size, tokens), to)
        };
        let mut keys = |tokens: &StreamTokens, key: &mut [u8], value: &mut [u8]| {
            for ([old, new, _], to) in PRESENTS.into_iter().zip([key, value]) {
                let parts = keys_of([tensors[old], tensors[new]], size, past, tokens);
                for (operand, part) in [old, new].into_iter().zip(parts) {
                    read(&source, operand, &part, to)?;
                }
            }
            sink.try_borrow_mut().map_err(io::Error::other)?.part_computed();
            Ok(())
        };
        let mut added = |part: &StreamBox, to: &mut [u8]| {
            if let (Operand::Bias, Some(BiasView::Table(_))) = (part.operand, &spec.bias) {
                let rows = table_of(&problem).map_err(io::Error::other)?;
                return read(&source, part.operand, &rows, to);
            }
            let size = problem.memory(part.operand).map_or(0, |memory| memory.element_size);
            let mut excerpts = box_of(tensors[part.operand], size, part);
            excerpts.try_for_each(|excerpt| read(&source, part.operand, &excerpt, to))
        };
        let mut results = |rows: &StreamRows<'_>| {
            let mut sink = sink.try_borrow_mut().map_err(io::Error::other)?;
            let tokens = StreamTokens { batch: rows.batch.clone(), tokens: rows.tokens.clone() };
            for operand in OUTPUTS {
                let from = rows.bytes(operand);
                if let (false, Some((view, size))) = (from.is_empty(), output_of(&problem, operand)) {
                    written += from.len() as u64;
                    let of_block = rows_of(view, size, &tokens);
                    sink.write_rows(operand, &of_block, from).map_err(|error| named(operand, &error))?;
                }
            }
            sink.unit_finished(unit)?;
            unit += 1;
            Ok(())
        };
        let times = self.pass(StreamCall {
            lengths: *lengths,
            queries: &mut queries,
            keys: StreamKeys::Function(&mut keys),
            addends: Some(&mut added),
            results: &mut results,
            from: from.saturating_sub(copied),
        })?;
        Ok(StreamTimes { written, ..times })
    }

    /// Copies past and new keys and values to the present tensors, for one pair of a batch index and a key head.
    /// `number` is the index of this pair. Returns the number of bytes written.
    fn copy(
        &mut self,
        tensors: &Operands<View>,
        number: usize,
        source: &mut impl RowSource<Operand>,
        sink: &mut impl RowSink<Operand>,
    ) -> Result<u64, StreamError> {
        let (problem, division) = (*self.problem(), self.division());
        let source = RefCell::new(source);
        let mut written = 0;
        for (keys, ..) in chunks(0..problem.keys(), division.keys) {
            for (operands @ [_, _, present], room) in PRESENTS.into_iter().zip(self.key_room()) {
                if problem.memory(present).is_none() {
                    continue;
                }
                let (reads, excerpt) = excerpts(&problem, tensors, operands, number, &keys);
                for (operand, excerpt) in reads {
                    read(&source, operand, &excerpt, room).map_err(failed)?;
                }
                let wrote = sink.write_rows(present, &excerpt, room);
                wrote.map_err(|error| failed(named(present, &error)))?;
                written += excerpt.bytes() as u64;
            }
            sink.part_computed();
        }
        Ok(written)
    }
}

fn failed(error: io::Error) -> StreamError {
    StreamError::Io { what: "present", reason: error.to_string() }
}
