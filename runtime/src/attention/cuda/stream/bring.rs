//! Transfers the inputs of a step to the device: keys and values, mask and bias, the table of sequences, and queries.

use super::addends;
use super::call::{StreamBox, StreamKeys, StreamTokens};
use super::memory::Area;
use super::plan::KeysFrom;
use super::run::{Run, io_error, milliseconds};
use super::steps::Step;
use crate::attention::cuda::marshal;
use crate::attention::stream::error::StreamError;
use crate::cuda::staging::for_runs;
use crate::error::DeviceError;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{BiasView, Operand, Problem};
use elsa_core::view::View;
use elsa_kernels::cuda::attention::Sequence;
use std::time::Instant;

impl Run<'_, '_, '_> {
    /// Transfers the inputs of a step except the queries. Keys and values go to the buffer that was used two steps
    /// earlier.
    pub(super) fn bring(&mut self, number: usize, step: &Step) -> Result<(), StreamError> {
        if let Some(before) = number.checked_sub(2) {
            self.read_times(before)?;
        }
        let (stream, entered) = (self.stream, self.entered);
        let (buffer, copies) = (number % 2, stream.copy.raw());
        let size = stream.plan.problem.spec().dtype.size();
        let (areas, memory) = ([Area::Key(buffer), Area::Value(buffer)], &stream.memory);
        let dims = [stream.plan.problem.head_dim(), stream.plan.problem.value_dim()];
        let rows = step.batch().len() * stream.plan.problem.kv_heads() * step.keys.len();
        if let (StreamKeys::Function(fill), false) = (&mut self.call.keys, step.keys.is_empty()) {
            let place = |which: usize| {
                let bytes = rows * dims[which] * size;
                memory.on_host(areas[which]).filter(|(_, len)| bytes <= *len).map(|(data, _)| (data, bytes))
            };
            if let (Some((key, key_bytes)), Some((value, value_bytes))) = (place(0), place(1)) {
                // SAFETY: *room*: the areas do not overlap in page-locked memory, and all their bytes were written when
                // they were allocated. They were last used by the step before the previous one, and the work of that
                // step is done.
                let (key, value) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(key, key_bytes),
                        std::slice::from_raw_parts_mut(value, value_bytes),
                    )
                };
                let start = Instant::now();
                let tokens = StreamTokens { batch: step.batch(), tokens: step.key_tokens() };
                fill(&tokens, key, value).map_err(io_error("keys"))?;
                self.times.fetch_ms += milliseconds(start.elapsed());
                self.times.bytes += (key_bytes + value_bytes) as u64;
            }
        }
        let marks = self.marks(number);
        marks.copy[0].record(entered, copies)?;
        let mut moved = 0;
        for ((area, dim), which) in areas.into_iter().zip(dims).zip(0..) {
            let to = memory.on_device(area);
            match &self.tensors {
                None if memory.is_copied(area) => {
                    let bytes = rows * dim * size;
                    if let Some((from, _)) = memory.on_host(area) {
                        // SAFETY: *room*: both areas have at least `bytes` bytes. *alive*: the memory belongs to the
                        // stream, and runs wait for copies.
                        unsafe { copies.copy_in(entered, to, from, bytes)? };
                    }
                }
                Some(tensors) if stream.plan.options.keys == KeysFrom::Host && tensors[which].device == 0 => {
                    let tensor = tensors[which];
                    let ([_, heads, tokens, dim], strides) = (tensor.view.shape(), tensor.view.strides());
                    let group = View::new("k", [step.batch().len(), heads, tokens, dim], strides)?;
                    let first = step.batch().start * tensor.view.steps()[0];
                    let mut at = to;
                    for_runs(&group, step.key_tokens(), |run| {
                        let bytes = run.len() * size;
                        moved += bytes as u64;
                        let from = tensor.host.wrapping_add((first + run.start) * size);
                        // SAFETY: *room*: the contiguous rows are in the view, and the caller's memory has all bytes of
                        // the view. The rows are dense in the area. *alive*: a run of the stream waits for its copies
                        // before it returns, even if it fails.
                        let copied = unsafe { copies.copy_in(entered, at, from, bytes) };
                        at += bytes as u64;
                        copied
                    })?;
                }
                _ => {}
            }
        }
        self.times.bytes += moved;
        self.bring_addends(buffer, step)?;
        self.write_table(buffer, step)?;
        self.marks(number).copy[1].record(entered, copies)?;
        Ok(())
    }

    /// Fills an area with a box of a mask, bias or index, and enqueues its copy.
    fn fill_addends(&mut self, area: Area, part: &StreamBox, size: usize) -> Result<(), StreamError> {
        let (stream, entered) = (self.stream, self.entered);
        let bytes = part.count.iter().product::<usize>() * size;
        let (Some((data, len)), Some(fill)) = (stream.memory.on_host(area), &mut self.call.addends) else {
            return Ok(());
        };
        if len < bytes {
            return Err(DeviceError::HostMemory { bytes }.into());
        }
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: *room*: the area is in page-locked memory, and all its bytes were written when it was allocated. The
        // area of a table was last used by the previous run; any other area was last used by the step before the
        // previous one. The work of that run and of that step is done.
        let slice = unsafe { std::slice::from_raw_parts_mut(data, bytes) };
        let start = Instant::now();
        fill(part, slice).map_err(io_error(part.operand.argument()))?;
        self.times.fetch_ms += milliseconds(start.elapsed());
        self.times.bytes += bytes as u64;
        if part.operand == Operand::BiasIndex {
            check_index(&stream.plan.problem, part, slice)?;
        }
        if stream.memory.is_copied(area) {
            // SAFETY: *room*: both areas have at least `bytes` bytes. *alive*: the memory belongs to the stream, and
            // runs wait for copies.
            unsafe { stream.copy.raw().copy_in(entered, stream.memory.on_device(area), data, bytes)? };
        }
        Ok(())
    }

    /// Transfers the table of relative positions, which all steps share.
    pub(super) fn bring_table(&mut self) -> Result<(), StreamError> {
        let problem = &self.stream.plan.problem;
        let (Some([_, size]), Some(BiasView::Table(table))) = (addends::table(problem), &problem.spec().bias)
        else {
            return Ok(());
        };
        let count = [1, 1, table.entries, table.heads];
        self.fill_addends(Area::Positions, &StreamBox { operand: Operand::Bias, first: [0; 4], count }, size)
    }

    /// Transfers the mask, bias and index of a step.
    fn bring_addends(&mut self, buffer: usize, step: &Step) -> Result<(), StreamError> {
        let problem = &self.stream.plan.problem;
        for operand in addends::BOXES {
            if let Some((part, size)) = addends::part(problem, operand, step) {
                self.fill_addends(addends::area(problem, operand, buffer), &part, size)?;
            }
        }
        Ok(())
    }

    /// Writes the table of sequences of a step, if the problem has one, and enqueues its copy.
    fn write_table(&self, buffer: usize, step: &Step) -> Result<(), StreamError> {
        let (stream, area) = (self.stream, Area::Table(buffer));
        let Some((table, bytes)) = stream.memory.on_host(area) else { return Ok(()) };
        let [(key, _), (value, _)] = self.chunk(buffer, step)?;
        let problem = self.problem(step, key, value)?;
        let count = stream.plan.choice.sequences.min(bytes / size_of::<Sequence>());
        for index in 0..count {
            let entry = marshal::sequence(&problem.sequence(&self.lengths(step), index));
            // SAFETY: *room*: the area has `count` entries and is aligned. No pending work reads the area: it was last
            // read by the step before the previous one, and the work of that step is done.
            unsafe { table.cast::<Sequence>().add(index).write(entry) };
        }
        if stream.memory.is_copied(area) {
            // SAFETY: *room*: both areas have at least `bytes` bytes. *alive*: the memory belongs to the stream, and
            // runs wait for copies.
            unsafe { stream.copy.raw().copy_in(self.entered, stream.memory.on_device(area), table, bytes)? };
        }
        Ok(())
    }

    /// Fills the area of the queries with those of a block, and enqueues its copy if the device has separate memory.
    pub(super) fn bring_queries(&mut self, step: &Step) -> Result<(), StreamError> {
        let (stream, problem) = (self.stream, &self.stream.plan.problem);
        let rows = step.batch().len() * problem.heads() * step.tokens.len();
        let bytes = rows * problem.head_dim() * problem.spec().dtype.size();
        let Some((data, len)) = stream.memory.on_host(Area::Query) else { return Ok(()) };
        if len < bytes {
            return Err(DeviceError::HostMemory { bytes }.into());
        }
        // SAFETY: *room*: all bytes of the area were written when it was allocated. The previous block used the area,
        // and the work of that block is done, because the run has waited for its results.
        let slice = unsafe { std::slice::from_raw_parts_mut(data, bytes) };
        let tokens = StreamTokens { batch: step.batch(), tokens: step.queries() };
        (self.call.queries)(&tokens, slice).map_err(io_error("queries"))?;
        if stream.memory.is_copied(Area::Query) {
            let (to, compute) = (stream.memory.on_device(Area::Query), stream.compute.raw());
            // SAFETY: *room*: both areas have at least `bytes` bytes. *alive*: the memory belongs to the stream, and
            // runs wait for copies.
            unsafe { compute.copy_in(self.entered, to, data, bytes)? };
        }
        Ok(())
    }
}

/// Checks that every entry in a box of the index refers to an entry of the table.
fn check_index(problem: &Problem, part: &StreamBox, bytes: &[u8]) -> Result<(), ArgumentError> {
    let Some(BiasView::Table(table)) = problem.spec().bias else { return Ok(()) };
    let [_, _, row, column] = part.first;
    let columns = part.count[3].max(1);
    table.check_entries(bytes, |at| (row + at / columns) * problem.keys() + column + at % columns)
}
