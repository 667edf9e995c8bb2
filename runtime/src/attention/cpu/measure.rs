//! Measures the tensors of a call, for the certificate of its run. This costs `O(n d)`, compared with the `O(n² d)` of
//! the attention.
//!
//! **The naive way** measures each tensor separately, including rows that belong to no sequence, on one thread.
//!
//! **Why the code differs.**
//!
//! 1. *Only rows that may be attended are measured*: the queries of each sequence, and the keys and values from the
//!    first to the last key that a query may attend. Other contents of a buffer do not affect the result.
//! 2. *Tasks measure their own inputs* just before they read them, so the data is fetched from memory only once. A task
//!    measures its own queries, and the tasks of a head divide the head's keys and values among them. Outputs are
//!    measured after they have been written. Masks and biases are dense, and divided among all tasks. If keys are
//!    streamed in chunks, the tasks divide the keys of a chunk among them, and the keys are measured again for every
//!    unit of rows that visits them.
//! 3. *Each worker has a record* in its region of the workspace. Records are merged by maxima, so the order is irrelevant.

use super::context::{Context, Shared, TileGroup, tiles_per_task};
use super::stage::for_past_and_new;
use crate::cpu::tensor::CpuTensor;
use elsa_core::attention::Operand;
use elsa_core::attention::measured::{
    MEASURED, MEASURED_BIAS, MEASURED_KEY, MEASURED_MASK, MEASURED_OUTPUT, MEASURED_QUERY, larger,
};
use elsa_kernels::attention::MeasuredRows;
use std::ops::Range;

/// Returns piece `i` of a range that is divided into `n` pieces.
fn piece(range: &Range<usize>, i: usize, n: usize) -> Range<usize> {
    let (each, rest) = (range.len() / n.max(1), range.len() % n.max(1));
    let at = |i: usize| each * i + rest.min(i);
    range.start + at(i)..range.start + at(i + 1)
}

/// Returns `count` rows of a tensor, from row `(batch, head, token)` on.
pub(super) fn measured(
    tensor: &CpuTensor,
    (batch, head, token): (usize, usize, usize),
    count: usize,
) -> MeasuredRows {
    MeasuredRows {
        data: tensor.row(batch, head, token).cast_const(),
        dtype: tensor.dtype,
        stride: tensor.stride(),
        rows: count,
        dim: tensor.view.dim(),
    }
}

/// Returns the address of a worker's measurements.
fn record(c: &Context<'_>, worker: usize) -> *mut f32 {
    c.worker_part(worker).wrapping_add(c.layout.measured.start)
}

/// Sets the records of the workers to zero.
///
/// # Safety
/// - The invariants of [`Context`] hold. No worker is active.
pub(super) unsafe fn clear(c: &Context<'_>, workers: usize) {
    for worker in 0..workers {
        // SAFETY: the record is in the region of the worker (layout), and no worker is active.
        unsafe { record(c, worker).write_bytes(0, c.layout.measured.len) };
    }
}

/// Merges the records of all workers into the record of worker zero.
///
/// # Safety
/// - The invariants of [`Context`] hold. No worker is active, and the records are initialised.
pub(super) unsafe fn join(c: &Context<'_>, workers: usize) {
    let all = record(c, 0);
    for worker in 1..workers {
        for i in 0..c.layout.measured.len {
            // SAFETY: both records are initialised and have the same length (layout), and no worker is active.
            unsafe { all.add(i).write(larger(all.add(i).read(), record(c, worker).add(i).read())) };
        }
    }
}

/// Measures the inputs of a task: its queries, and its part of the keys, the values, the mask and the bias.
///
/// # Safety
/// - The invariants of [`Context`] hold. No worker writes the measured data.
/// - No other worker has this worker number, and the worker's record is initialised.
pub(super) unsafe fn inputs(shared: &Shared<'_>, task: &TileGroup<'_>, worker: usize) {
    let (c, sequence) = (shared.context, task.sequence);
    let tiles = c.choice.tiling(sequence.queries).count();
    let (group, groups) =
        (task.tiles.start / tiles_per_task(c.choice), tiles.div_ceil(tiles_per_task(c.choice)));
    let sets = c.choice.head_sets(c.problem.group());
    let set = task.heads.start % c.problem.group() / c.choice.heads.max(1);
    // SAFETY: the callees' clauses are those of this function; the call has all keys.
    unsafe {
        queries(c, task, worker);
        keys(c, task, [set * groups + group, sets * groups], worker);
    }
    for operand in [Operand::Mask, Operand::Bias] {
        let Some(memory) = c.problem.memory(operand) else { continue };
        let part = piece(&(0..memory.elements), task.number, shared.count());
        let data = c.tensor(operand).data.wrapping_add(part.start * memory.element_size).cast_const();
        // SAFETY: the elements are in the tensor, which is present (*inputs*); the other clauses are those of this
        // function.
        unsafe { addends(c, operand, data, part.len(), worker) };
    }
}

/// Measures the queries of a task.
///
/// # Safety
/// - The clauses of [`inputs`] hold.
pub(super) unsafe fn queries(c: &Context<'_>, task: &TileGroup<'_>, worker: usize) {
    // SAFETY: the callee's clauses are those of this function; the record has a place for queries.
    unsafe { rows(c, task, Operand::Query, record(c, worker).add(MEASURED_QUERY)) };
}

/// Measures piece `i` of `n` pieces of keys and values. All pieces together contain those keys of the pass that at
/// least one row of the task's sequence may attend.
///
/// # Safety
/// - The clauses of [`inputs`] hold.
pub(super) unsafe fn keys(c: &Context<'_>, task: &TileGroup<'_>, [i, n]: [usize; 2], worker: usize) {
    let (to, functions, sequence) = (record(c, worker), &c.kernel.measure, task.sequence);
    let kv_head = c.problem.kv_head(task.heads.start);
    let (any, _) = sequence.ranges(0..sequence.queries);
    let here = any.start.max(c.pass.keys.start)..any.end.min(c.pass.keys.end);
    let keys = piece(&here, i, n);
    for (past, new, function, place) in [
        (Operand::PastKey, Operand::Key, functions.norms, MEASURED_KEY),
        (Operand::PastValue, Operand::Value, functions.channels, MEASURED),
    ] {
        let (past, new) = (c.tensor(past), c.source(new));
        for_past_and_new((past, sequence.past), (new, sequence.key0), &keys, |tensor, token, _, count| {
            let rows = measured(&tensor, (sequence.batch, kv_head, token), count);
            // SAFETY: the rows are in the sequence and in the pass (*inputs*). A record has a number for each channel of the
            // values (layout); *kernel*.
            unsafe { function(&rows, to.add(place)) };
        });
    }
}

/// Measures `count` elements of the mask or the bias at `data`.
///
/// # Safety
/// - The clauses *kernel* and *workspace* of [`Context`] hold. No other worker has this worker number, and the worker's
///   record is initialised.
/// - `count` elements of the operand's type are readable at `data`, which is aligned for this type.
pub(super) unsafe fn addends(
    c: &Context<'_>,
    operand: Operand,
    data: *const u8,
    count: usize,
    worker: usize,
) {
    let place = if operand == Operand::Mask { MEASURED_MASK } else { MEASURED_BIAS };
    let Some(dtype) = c.problem.added_type(operand) else { return };
    let rows = MeasuredRows { data, dtype, stride: 0, rows: 1, dim: count };
    // SAFETY: the elements are readable (clause), and the place is in the record; *kernel*.
    unsafe { (c.kernel.measure.addends)(&rows, record(c, worker).add(place)) };
}

/// Measures the output of a task that has ended.
///
/// # Safety
/// - The clauses of [`inputs`] hold.
pub(super) unsafe fn output(c: &Context<'_>, task: &TileGroup<'_>, worker: usize) {
    // SAFETY: the callee's clauses are those of this function; the record has a place for outputs.
    unsafe { rows(c, task, Operand::Output, record(c, worker).add(MEASURED_OUTPUT)) };
}

/// Merges the records of all workers and copies the result to `to`, which must not be longer than a record.
///
/// # Safety
/// - The clauses of [`join`] hold.
pub(super) unsafe fn joined(c: &Context<'_>, workers: usize, to: &mut [f32]) {
    // SAFETY: the callee's clauses are those of this function.
    unsafe { join(c, workers) };
    for (i, to) in to.iter_mut().enumerate().take(c.layout.measured.len) {
        // SAFETY: the number is in the record of worker zero, and no worker is active (clauses).
        *to = unsafe { record(c, 0).add(i).read() };
    }
}

/// Measures the rows of `operand` that belong to a task's queries, if the call has this operand.
///
/// # Safety
/// - The clauses of [`inputs`] hold. `to` is the operand's position in the worker's record.
unsafe fn rows(c: &Context<'_>, task: &TileGroup<'_>, operand: Operand, to: *mut f32) {
    let (tensor, sequence) = (c.tensor(operand), task.sequence);
    let tiling = c.choice.tiling(sequence.queries);
    if !tensor.present || task.tiles.is_empty() {
        return;
    }
    let queries = tiling.tile(task.tiles.start).rows.start..tiling.tile(task.tiles.end - 1).rows.end;
    for head in task.heads.clone() {
        let first = (sequence.batch, head, sequence.query0 + queries.start);
        let rows = measured(&tensor, first, queries.len());
        // SAFETY: the rows are in the sequence (*inputs*, *outputs*), and the record has two numbers for the operand;
        // *kernel*.
        unsafe { (c.kernel.measure.norms)(&rows, to) };
    }
}
