//! Executes schedules with frozen references and skipped blocks through the scalar implementation in
//! [`traversal`](elsa_core::attention::traversal), with the tile sizes of the kernel.
//!
//! A task passes each of its tiles to that implementation with scratch memory, and writes the returned rows. Keys and
//! values are read in place, in their element type; nothing is copied to a staging buffer.

use super::context::{Context, TileGroup, TileRows};
use super::finish;
use crate::cpu::pool::Crew;
use crate::cpu::slices::elements_at;
use elsa_core::attention::traversal::scalar::{Answer, Call};
use elsa_core::attention::traversal::{Room, RowRoom, TraversalReport};
use elsa_core::attention::{BiasView, Inputs, MaskElements, MaskKind, Operand, Present};
use elsa_core::dtype::{DType, Elements};
use std::slice::from_raw_parts;

/// Returns the elements of an operand; `None` if the call does not have the operand.
///
/// # Safety
/// - The invariants of [`Context`] hold. The keys of the call are not streamed. No worker writes the operand.
unsafe fn elements<'a>(c: &Context<'a>, operand: Operand, dtype: DType) -> Option<Elements<'a>> {
    let (tensor, memory) = (c.tensor(operand), c.problem.memory(operand)?);
    // SAFETY: the tensor has these elements of this type (*inputs*) and is aligned for it, and nothing writes them
    // (clause).
    tensor.present.then(|| unsafe { elements_at(tensor.data, dtype, memory.elements) })
}

/// Returns the inputs of the call, and the present tensors if the call appends to them.
///
/// # Safety
/// - The invariants of [`Context`] hold. The keys of the call are not streamed. The present tensors have been written.
pub(super) unsafe fn inputs<'a>(c: &Context<'a>) -> Option<(Inputs<'a>, Present<'a>)> {
    let spec = c.problem.spec();
    // SAFETY: the callee's clauses are those of this function: nothing writes the inputs, and all writes to the present
    // tensors are done.
    unsafe {
        let of = |operand| elements(c, operand, c.dtype);
        let mut inputs = Inputs::of(|operand| match (operand, spec.bias) {
            (Operand::Bias, bias) => elements(c, operand, bias?.dtype()),
            _ => of(operand),
        });
        inputs.mask = match spec.mask.map(|mask| mask.kind()) {
            None => None,
            Some(MaskKind::Additive(dtype)) => elements(c, Operand::Mask, dtype).map(MaskElements::Additive),
            Some(MaskKind::Bool) => {
                let (data, memory) = (c.tensor(Operand::Mask).data, c.problem.memory(Operand::Mask)?);
                Some(MaskElements::Bool(from_raw_parts(data, memory.elements)))
            }
        };
        if let Some(BiasView::Table(table)) = spec.bias
            && table.indexed
        {
            let (index, memory) = (c.tensor(Operand::BiasIndex).data, c.problem.memory(Operand::BiasIndex)?);
            inputs.bias_index = Some(from_raw_parts(index.cast(), memory.elements));
        }
        let present = match spec.append {
            true => Some([of(Operand::PresentKey)?, of(Operand::PresentValue)?]),
            false => None,
        };
        Some((inputs, present))
    }
}

/// Computes a task: every output of its query rows.
///
/// # Safety
/// - The invariants of [`Context`] hold. The keys of the call are not streamed, and the plan runs the scalar
///   implementation. The present tensors have been written, and the workers' counters have been cleared.
/// - No other worker has this task or this worker number.
pub(super) unsafe fn attend(c: &Context<'_>, task: &TileGroup<'_>, worker: usize, crew: &Crew<'_>) {
    let (part, l, choice) = (c.worker_part(worker), c.layout, c.choice);
    let tile = choice.decides();
    let rows = part.wrapping_add(l.scratch_rows.start).cast::<RowRoom>();
    // SAFETY: the regions belong to this worker, do not overlap and have room (layout) for scratch, for one record per
    // row of a tile, and for counters. The records are initialised here, and the counters have been cleared. Inputs are
    // not written while tasks run.
    let ((inputs, present), mut room, report) = unsafe {
        let Some(inputs) = inputs(c) else { return };
        (0..tile.rows).for_each(|row| rows.add(row).write(RowRoom::default()));
        let room = Room {
            floats: std::slice::from_raw_parts_mut(part.wrapping_add(l.scratch.start), l.scratch.len),
            rows: std::slice::from_raw_parts_mut(rows, tile.rows),
        };
        (inputs, room, &mut *part.wrapping_add(l.counts.start).cast::<TraversalReport>())
    };
    let call = Call::new(c.problem, &choice.schedule, tile, &inputs, present);
    let tiling = choice.tiling(task.sequence.queries);
    for t in task.tiles.clone() {
        if crew.is_cancelled() {
            return;
        }
        let rows = tiling.tile(t).rows;
        call.tile(task.sequence, task.heads.start, rows, &mut room, report, &mut |answer| {
            let Answer { row, state, d, share } = answer;
            let tile =
                TileRows { sequence: task.sequence, head: task.heads.start, rows: row..row + 1, width: 1 };
            // SAFETY: the row belongs to this task, and the regions for a tile and for rows belong to this worker.
            unsafe { finish::row(c, &tile, state, (d, share), part) };
        });
    }
}
