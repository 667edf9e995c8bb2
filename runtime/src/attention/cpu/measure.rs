//! Measuring the tensors of a call, for the certificate of its run: `O(n d)` beside the `O(n² d)` of the attention.
//!
//! **The naive way** measures each tensor on its own, rows that belong to no sequence included, on one thread.
//!
//! **Why the code differs.**
//!
//! 1. *Only what may be attended is measured*: the queries of each sequence, and the keys and values between the first and
//!    the last that one of its rows may attend. What lies in a buffer beyond that says nothing of the answer.
//! 2. *Workers take parts*: a sequence and a key head with the query heads that read it, cut where there are fewer of them
//!    than workers need. Masks and biases are dense, and cut by elements.
//! 3. *Each worker has a record* in its region of the workspace. Records are joined by maxima, so that no order matters.
//! 4. *After the attention*, when the output is there too, and what was read last is in cache.

use super::context::{Context, Shared};
use super::stage::for_past_and_new;
use crate::cpu::pool::Pool;
use crate::error::RunError;
use elsa_core::attention::measured::{
    MEASURED, MEASURED_BIAS, MEASURED_KEY, MEASURED_MASK, MEASURED_OUTPUT, MEASURED_QUERY, larger,
};
use elsa_core::attention::{MaskKind, Operand};
use elsa_core::dtype::DType;
use elsa_kernels::attention::MeasuredRows;
use std::ops::Range;

/// Elements of a mask or a bias that a task takes.
const ADDENDS: usize = 1 << 16;

/// Tasks for each worker below which sequences and heads are cut.
const TASKS: usize = 4;

/// What is added to scores, and its place in a record.
const ADDED: [(Operand, usize); 2] = [(Operand::Mask, MEASURED_MASK), (Operand::Bias, MEASURED_BIAS)];

/// The division into tasks.
struct Tasks {
    /// Cuts of a pair of sequence and key head.
    cuts: usize,
    /// Tasks of all pairs.
    heads: usize,
    /// Elements of [`ADDED`] with their type, where they are numbers.
    added: [Option<(usize, DType)>; 2],
}

impl Tasks {
    fn of(shared: &Shared<'_>, workers: usize) -> Tasks {
        let c = shared.context;
        let pairs = shared.sequences.len() * c.problem.kv_heads();
        let cuts = if workers > 1 && pairs < TASKS * workers { TASKS * workers } else { 1 };
        let spec = c.problem.spec();
        let types = [
            spec.mask.and_then(|mask| match mask.kind() {
                MaskKind::Bool => None,
                MaskKind::Additive(dtype) => Some(dtype),
            }),
            spec.bias.map(|bias| bias.dtype()),
        ];
        let mut added = [None; 2];
        for (i, (operand, _)) in ADDED.into_iter().enumerate() {
            let memory = c.problem.memory(operand).filter(|_| c.tensor(operand).is_present());
            added[i] = memory.map(|memory| memory.elements).zip(types[i]);
        }
        Tasks { cuts, heads: pairs * cuts, added }
    }

    /// Tasks of an addend.
    fn of_added(&self, i: usize) -> usize {
        self.added[i].map_or(0, |(elements, _)| elements.div_ceil(ADDENDS))
    }

    fn count(&self) -> usize {
        self.heads + self.of_added(0) + self.of_added(1)
    }
}

/// Piece `i` of `n` of a range.
fn piece(range: &Range<usize>, i: usize, n: usize) -> Range<usize> {
    let len = range.len();
    range.start + len * i / n..range.start + len * (i + 1) / n
}

/// The record of a worker.
fn record(c: &Context<'_>, worker: usize) -> *mut f32 {
    c.worker_part(worker).wrapping_add(c.layout.measured.start)
}

/// Measures the tensors of a call that has been computed. The record of worker zero is that of the call.
///
/// # Errors
/// Returns an error if a worker panicked.
pub(super) fn run(shared: &Shared<'_>, workers: usize, pool: &Pool) -> Result<(), RunError> {
    let c = shared.context;
    let len = c.layout.measured.len;
    for worker in 0..workers {
        // SAFETY: the record lies in the region of the worker, and no worker is at work (layout).
        unsafe { record(c, worker).write_bytes(0, len) };
    }
    let tasks = Tasks::of(shared, workers);
    pool.divide(workers, tasks.count(), &|worker, number| {
        // SAFETY: the invariants of the context, whose call has been computed; a worker has its own number.
        unsafe { measure(shared, &tasks, number, worker) }
    })?;
    let all = record(c, 0);
    for worker in 1..workers {
        for i in 0..len {
            // SAFETY: both records are initialized and hold `len` numbers, and no worker is at work (layout).
            unsafe { all.add(i).write(larger(all.add(i).read(), record(c, worker).add(i).read())) };
        }
    }
    Ok(())
}

/// Measures the part of a task into the record of a worker.
///
/// # Safety
/// - The invariants of [`Context`]. No worker writes what is measured.
/// - No other worker has this worker number.
unsafe fn measure(shared: &Shared<'_>, tasks: &Tasks, number: usize, worker: usize) {
    let c = shared.context;
    let (to, functions) = (record(c, worker), &c.kernel.measure);
    if number >= tasks.heads {
        let (first, of_mask) = (number - tasks.heads, tasks.of_added(0));
        let (i, part) = if first < of_mask { (0, first) } else { (1, first - of_mask) };
        let Some((elements, dtype)) = tasks.added[i] else { return };
        let (operand, place) = ADDED[i];
        let (start, end) = (part * ADDENDS, elements.min((part + 1) * ADDENDS));
        let data = c.tensor(operand).data.wrapping_add(start * dtype.size()).cast_const();
        let rows = MeasuredRows { data, dtype, stride: 0, rows: 1, dim: end - start };
        // SAFETY: the elements lie in the tensor (*inputs*), and the place in the record; *kernel*.
        unsafe { (functions.addends)(&rows, to.add(place)) };
        return;
    }
    let (pair, cut) = (number / tasks.cuts, number % tasks.cuts);
    let kv_heads = c.problem.kv_heads();
    let (sequence, kv_head) = (&shared.sequences[pair / kv_heads], pair % kv_heads);
    let group = c.problem.heads() / kv_heads;
    let queries = piece(&(0..sequence.queries), cut, tasks.cuts);
    for head in kv_head * group..(kv_head + 1) * group {
        for (operand, place) in [(Operand::Query, MEASURED_QUERY), (Operand::Output, MEASURED_OUTPUT)] {
            let tensor = c.tensor(operand);
            if queries.is_empty() || !tensor.is_present() {
                continue;
            }
            let first = tensor.row(sequence.batch, head, sequence.query0 + queries.start, c.dtype);
            let rows = MeasuredRows {
                data: first.cast_const(),
                dtype: c.dtype,
                stride: tensor.stride(),
                rows: queries.len(),
                dim: tensor.view.dim(),
            };
            // SAFETY: the rows lie in the sequence (*inputs*, *outputs*), and the places in the record; *kernel*.
            unsafe { (functions.norms)(&rows, to.add(place)) };
        }
    }
    let (any, _) = sequence.ranges(0..sequence.queries);
    let keys = piece(&any, cut, tasks.cuts);
    for (past, new, function, place) in [
        (Operand::PastKey, Operand::Key, functions.norms, MEASURED_KEY),
        (Operand::PastValue, Operand::Value, functions.channels, MEASURED),
    ] {
        let (past, new) = (c.tensor(past), c.source(new));
        for_past_and_new((past, sequence.past), (new, sequence.key0), &keys, |tensor, token, _, count| {
            let rows = MeasuredRows {
                data: tensor.row(sequence.batch, kv_head, token, c.dtype).cast_const(),
                dtype: c.dtype,
                stride: tensor.stride(),
                rows: count,
                dim: tensor.view.dim(),
            };
            // SAFETY: as above. A record has a number for each channel of the values (layout).
            unsafe { function(&rows, to.add(place)) };
        });
    }
}
