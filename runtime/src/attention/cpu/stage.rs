//! Copies rows between tensors and kernels: queries into tiles, keys and values into blocks, tiles into output rows,
//! past and new rows into present tensors.

use super::context::{Context, TileRows};
use crate::cpu::tensor::CpuTensor;
use elsa_core::attention::plan::KeyLayout;
use elsa_core::attention::{Operand, Sequence};
use elsa_core::dtype::DType;
use elsa_kernels::attention::{Block, is_tiny};
use std::ops::Range;

/// The rows of a block. They are given by the address of the first row and the distance in f32 values from one row to
/// the next.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub data: *const f32,
    pub stride: usize,
}

/// Transposes query rows into a tile and scales them.
///
/// # Safety
/// - The invariants of [`Context`] hold. The rows are in the sequence and fit in the width of the tile.
/// - `dst` is writable for `width · head_dim` f32 values; so is `scratch`, if the problem's type is not f32.
pub(super) unsafe fn load_query(c: &Context<'_>, tile: &TileRows<'_>, scratch: *mut f32, dst: *mut f32) {
    let (dim, padded) = (c.problem.head_dim(), c.choice.head_dim);
    let query = c.tensor(Operand::Query);
    let (count, width) = (tile.rows.len(), tile.width);
    let src = query.row(tile.sequence.batch, tile.head, tile.token()).cast_const();
    // SAFETY: the rows are readable (*inputs*), and `scratch` and `dst` are large enough (clauses); *kernel*.
    unsafe {
        let (src, stride) = if c.choice.convert {
            c.kernel.primitives.rows_to_f32(c.dtype, src, query.stride(), count, dim, scratch, padded);
            (scratch.cast_const(), padded)
        } else {
            (src.cast(), query.stride())
        };
        (c.kernel.primitives.transpose_in)(src, stride, count, dim, padded, width, c.query_factor, dst);
    }
}

/// Calls `each(tensor, first token, first row, rows)` for the past keys in `keys`, and then for the new keys. The first
/// `past_len` keys are in the past tensor; the new keys start at token `key0` of the new tensor.
pub(super) fn for_past_and_new(
    (past, past_len): (CpuTensor, usize),
    (new, key0): (CpuTensor, usize),
    keys: &Range<usize>,
    mut each: impl FnMut(CpuTensor, usize, usize, usize),
) {
    if past.present {
        let end = keys.end.min(past_len);
        if keys.start < end {
            each(past, keys.start, 0, end - keys.start);
        }
    }
    let start = keys.start.max(past_len);
    if start < keys.end {
        each(new, key0 + start - past_len, start - keys.start, keys.end - start);
    }
}

/// Copies the rows of `keys` from the past and the new tensor to f32 rows at `dst`. The rows at `dst` are `padded`
/// values apart, and contain zeros beyond the tensor's head size.
///
/// # Safety
/// - The invariants of [`Context`] hold. `keys` are in the sequence, and the tensors belong to the context.
/// - `keys.len() · padded` f32 values are writable at `dst`.
unsafe fn gather(
    c: &Context<'_>,
    sequence: &Sequence,
    kv_head: usize,
    [past, new]: [Operand; 2],
    keys: &Range<usize>,
    padded: usize,
    dst: *mut f32,
) {
    let (past, new) = (c.tensor(past), c.source(new));
    let dim = new.view.dim();
    for_past_and_new((past, sequence.past), (new, sequence.key0), keys, |tensor, token, row, count| {
        let from = tensor.row(sequence.batch, kv_head, token);
        // SAFETY: the `count` rows are readable (*inputs*), and rows `row..row + count` of the block are writable
        // (clause); *kernel*.
        unsafe {
            let to = dst.add(row * padded);
            c.kernel.primitives.rows_to_f32(c.dtype, from, tensor.stride(), count, dim, to, padded);
        }
    });
    if padded > dim {
        for i in 0..keys.len() {
            // SAFETY: row `i` of the block has `padded` values (clause).
            unsafe { dst.add(i * padded + dim).write_bytes(0, padded - dim) }
        }
    }
}

/// Returns the keys of a block in the layout that the kernel reads: in place, or copied to the worker's region.
///
/// # Safety
/// - The invariants of [`Context`] hold. `keys` are in the sequence, and in one block.
/// - `worker` is the worker's region of the workspace.
pub(super) unsafe fn keys(
    c: &Context<'_>,
    sequence: &Sequence,
    kv_head: usize,
    keys: &Range<usize>,
    worker: *mut f32,
) -> Rows {
    let (key, padded) = (c.source(Operand::Key), c.choice.head_dim);
    let tensors = [Operand::PastKey, Operand::Key];
    let in_place = || {
        let token = sequence.key0 + keys.start;
        let data = key.row(sequence.batch, kv_head, token).cast_const();
        Rows { data: data.cast(), stride: key.stride() }
    };
    if !c.choice.stage_keys {
        return in_place();
    }
    let staged = worker.wrapping_add(c.layout.keys.start);
    // SAFETY: the regions for keys and rows have room for a block (layout); *inputs*, *kernel*.
    unsafe {
        if let KeyLayout::Panels(_) = c.kernel.spec.keys {
            let past = c.has(Operand::PastKey);
            let rows = if c.dtype == DType::F32 && !past && key.view.dim() == padded {
                in_place()
            } else {
                let rows = worker.wrapping_add(c.layout.rows.start);
                gather(c, sequence, kv_head, tensors, keys, padded, rows);
                Rows { data: rows, stride: padded }
            };
            (c.kernel.pack)(rows.data, rows.stride, keys.len(), padded, staged);
        } else {
            gather(c, sequence, kv_head, tensors, keys, padded, staged);
        }
    }
    Rows { data: staged, stride: padded }
}

/// Returns the values of a block, in place or copied to the worker's region.
///
/// # Safety
/// - The clauses of [`keys`] hold.
pub(super) unsafe fn values(
    c: &Context<'_>,
    sequence: &Sequence,
    kv_head: usize,
    keys: &Range<usize>,
    worker: *mut f32,
) -> Rows {
    let value = c.source(Operand::Value);
    if !c.choice.stage_values {
        let token = sequence.key0 + keys.start;
        let data = value.row(sequence.batch, kv_head, token).cast_const();
        return Rows { data: data.cast(), stride: value.stride() };
    }
    let padded = c.choice.value_dim;
    let staged = worker.wrapping_add(c.layout.values.start);
    // SAFETY: the region for values has room for a block (layout); *inputs*, *kernel*.
    unsafe { gather(c, sequence, kv_head, [Operand::PastValue, Operand::Value], keys, padded, staged) }
    Rows { data: staged, stride: padded }
}

/// Returns the largest magnitude of a block's values, and the values that the kernel's steps use. If the kernel raises
/// weights and the values are tiny, the returned values are multiplied copies in the worker's region.
///
/// # Safety
/// - The invariants of [`Context`] and the clauses of [`Block`] hold.
/// - The values of `block` are those that [`values`] returned for the same `worker`.
pub(super) unsafe fn lifted(c: &Context<'_>, block: &Block, worker: *mut f32) -> (f32, Rows) {
    let dim = c.choice.value_dim;
    let mut largest = 0.0;
    // SAFETY: the block is valid (clauses), and the region for values has room for it if the kernel raises weights
    // (layout); *kernel*.
    unsafe {
        (c.kernel.largest)(block, dim, &mut largest);
        if !c.kernel.spec.raises || !is_tiny(largest) {
            return (largest, Rows { data: block.values, stride: block.value_stride });
        }
        let to = worker.wrapping_add(c.layout.values.start);
        (c.kernel.lift)(block, dim, to);
        (largest, Rows { data: to, stride: dim })
    }
}

/// Writes finished rows, `[value_dim][width]` at `src`, to the output. If `src` is null, writes zeros.
///
/// # Safety
/// - The invariants of [`Context`] hold. The rows are in the sequence, they fit in the width of the tile, and no other
///   worker writes them.
/// - `src` is null or readable for `value_dim · width` f32 values. If the problem's type is not f32, `scratch` is
///   writable for `value_dim · width` f32 values.
pub(super) unsafe fn store_output(c: &Context<'_>, tile: &TileRows<'_>, src: *const f32, scratch: *mut f32) {
    let (output, dim) = (c.tensor(Operand::Output), c.problem.value_dim());
    let (stride, size) = (output.stride(), c.dtype.size());
    let (count, width) = (tile.rows.len(), tile.width);
    let to = output.row(tile.sequence.batch, tile.head, tile.token());
    // SAFETY: the rows are writable and belong to this worker (*outputs*, clause), and `src` and `scratch` are large
    // enough (clauses); *kernel*. Zero bits represent zero in every type.
    unsafe {
        if src.is_null() {
            for i in 0..count {
                to.add(i * stride * size).write_bytes(0, dim * size);
            }
        } else if let Some(narrow) = c.kernel.primitives.narrow(c.dtype) {
            (c.kernel.primitives.transpose_out)(src, width, count, dim, scratch, dim);
            narrow(scratch, count, dim, to.cast(), stride);
        } else {
            (c.kernel.primitives.transpose_out)(src, width, count, dim, to.cast(), stride);
        }
    }
}

/// Copies the past and new keys and values of one batch index and key head to the present tensors. `item` is the index
/// of this pair of batch index and key head. If the present tensors already contain the past, copies only the new rows.
///
/// # Safety
/// - The invariants of [`Context`] hold. No other worker has the same `item`.
pub(super) unsafe fn write_present(c: &Context<'_>, item: usize) {
    let heads = c.problem.kv_heads();
    let (batch, head) = (item / heads, item % heads);
    for [operand, past, new] in [
        [Operand::PresentKey, Operand::PastKey, Operand::Key],
        [Operand::PresentValue, Operand::PastValue, Operand::Value],
    ] {
        let present = c.tensor(operand);
        if !present.present {
            continue;
        }
        let bytes = present.view.dim() * c.dtype.size();
        let (past, new) = ((c.tensor(past), c.problem.past()), (c.tensor(new), 0));
        let kept = c.problem.kept_tokens(operand).unwrap_or(0);
        for_past_and_new(past, new, &(kept..c.problem.keys()), |tensor, token, row, count| {
            for i in 0..count {
                let from = tensor.row(batch, head, token + i);
                let to = present.row(batch, head, kept + row + i);
                // SAFETY: `from` and `to` are rows of `dim` elements (*inputs*, *outputs*) in different tensors.
                unsafe { to.copy_from_nonoverlapping(from, bytes) }
            }
        });
    }
}
