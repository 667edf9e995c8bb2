//! Bringing rows into the shape that a kernel reads: queries into tiles, keys and values into blocks, output
//! and present out of them.

use super::call::{Context, Source, Target};
use elsa_core::attention::Sequence;
use elsa_core::attention::plan::KeyLayout;
use elsa_core::dtype::DType;
use std::ops::Range;

/// Where the rows of a block lie: the first, and singles from one to the next.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub data: *const f32,
    pub stride: usize,
}

/// Copies `count` rows of `dim` elements, `stride` apart, to singles `to_stride` apart.
///
/// # Safety
/// - The kernel's instruction set is present.
/// - `count` rows of `dim` elements of the context's type are readable at `src`.
/// - `count` rows of `dim` singles are writable at `dst`.
unsafe fn to_singles(
    c: &Context<'_>,
    src: *const u8,
    stride: usize,
    count: usize,
    dim: usize,
    dst: *mut f32,
    to_stride: usize,
) {
    // SAFETY: `count` rows on both sides (clauses).
    unsafe {
        match c.kernel.primitives.widen(c.dtype) {
            Some(widen) => widen(src.cast(), stride, count, dim, dst, to_stride),
            None => {
                for i in 0..count {
                    let from = src.cast::<f32>().add(i * stride);
                    dst.add(i * to_stride).copy_from_nonoverlapping(from, dim);
                }
            }
        }
    }
}

/// Transposes the query rows `rows` of a head into a tile of width `w`, scaled.
///
/// # Safety
/// - The invariants of [`Context`]; `rows` lie in the sequence and are at most `w`.
/// - `scratch` is writable for `w · head_dim` singles where the problem's type is not f32, `dst` always.
pub(super) unsafe fn load_query(
    c: &Context<'_>,
    sequence: &Sequence,
    head: usize,
    rows: Range<usize>,
    w: usize,
    scratch: *mut f32,
    dst: *mut f32,
) {
    let dim = c.problem.head_dim();
    let src = c.query.row(sequence.batch, head, sequence.query0 + rows.start, c.dtype);
    // SAFETY: the rows are readable (*inputs*); scratch and tile have room (clauses); *kernel*.
    unsafe {
        let (src, stride) = if c.choice.convert {
            to_singles(c, src, c.query.stride(), rows.len(), dim, scratch, c.choice.head_dim);
            (scratch.cast_const(), c.choice.head_dim)
        } else {
            (src.cast(), c.query.stride())
        };
        (c.kernel.primitives.transpose_in)(
            src,
            stride,
            rows.len(),
            dim,
            c.choice.head_dim,
            w,
            c.query_factor,
            dst,
        );
    }
}

/// Calls `each(source, first token, first row, rows)` for the parts of `keys` that lie among the first
/// `past_len` and among the new, which start at token `key0`.
fn parts(
    (past, past_len): (Option<Source>, usize),
    (new, key0): (Source, usize),
    keys: &Range<usize>,
    mut each: impl FnMut(Source, usize, usize, usize),
) {
    if let Some(past) = past {
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

/// Copies the rows of `keys` to singles at `dst`, `padded` apart, with zeros past `dim`.
///
/// # Safety
/// - The invariants of [`Context`]; `keys` lie in the sequence; the sources are the context's.
/// - `keys.len() · padded` singles are writable at `dst`.
unsafe fn gather(
    c: &Context<'_>,
    sequence: &Sequence,
    kv_head: usize,
    past: Option<Source>,
    new: Source,
    keys: &Range<usize>,
    dim: usize,
    padded: usize,
    dst: *mut f32,
) {
    parts((past, sequence.past), (new, sequence.key0), keys, |source, token, row, count| {
        let from = source.row(sequence.batch, kv_head, token, c.dtype);
        // SAFETY: the part's rows are readable (*inputs*), and rows `row..row + count` of the block are
        // writable (clause); *kernel*.
        unsafe { to_singles(c, from, source.stride(), count, dim, dst.add(row * padded), padded) }
    });
    if padded > dim {
        for i in 0..keys.len() {
            // SAFETY: row `i` of the block (clause).
            unsafe { dst.add(i * padded + dim).write_bytes(0, padded - dim) }
        }
    }
}

/// The keys of a block as the kernel reads them.
///
/// # Safety
/// - The invariants of [`Context`]; `keys` lie in the sequence and are at most a block.
/// - `worker` is the worker's part of the workspace.
pub(super) unsafe fn keys(
    c: &Context<'_>,
    sequence: &Sequence,
    kv_head: usize,
    keys: &Range<usize>,
    worker: *mut f32,
) -> Rows {
    let (dim, padded) = (c.problem.head_dim(), c.choice.head_dim);
    let in_place = |c: &Context<'_>| {
        let token = sequence.key0 + keys.start;
        (c.key.row(sequence.batch, kv_head, token, c.dtype).cast::<f32>(), c.key.stride())
    };
    if !c.choice.stage_keys {
        let (data, stride) = in_place(c);
        return Rows { data, stride };
    }
    let staged = worker.wrapping_add(c.layout.keys.start);
    // SAFETY: the regions for keys and rows hold a block (layout); *inputs*, *kernel*.
    unsafe {
        if let KeyLayout::Panels(_) = c.kernel.spec.keys {
            let whole = c.dtype == DType::F32 && c.past_key.is_none() && dim == padded;
            let (data, stride) = if whole {
                in_place(c)
            } else {
                let rows = worker.wrapping_add(c.layout.rows.start);
                gather(c, sequence, kv_head, c.past_key, c.key, keys, dim, padded, rows);
                (rows.cast_const(), padded)
            };
            (c.kernel.pack)(data, stride, keys.len(), padded, staged);
        } else {
            gather(c, sequence, kv_head, c.past_key, c.key, keys, dim, padded, staged);
        }
    }
    Rows { data: staged, stride: padded }
}

/// The values of a block.
///
/// # Safety
/// - As for [`keys`].
pub(super) unsafe fn values(
    c: &Context<'_>,
    sequence: &Sequence,
    kv_head: usize,
    keys: &Range<usize>,
    worker: *mut f32,
) -> Rows {
    if !c.choice.stage_values {
        let token = sequence.key0 + keys.start;
        let data = c.value.row(sequence.batch, kv_head, token, c.dtype).cast();
        return Rows { data, stride: c.value.stride() };
    }
    let (dim, padded) = (c.problem.value_dim(), c.choice.value_dim);
    let staged = worker.wrapping_add(c.layout.values.start);
    // SAFETY: the region for values holds a block (layout); *inputs*, *kernel*.
    unsafe { gather(c, sequence, kv_head, c.past_value, c.value, keys, dim, padded, staged) }
    Rows { data: staged, stride: padded }
}

/// Writes finished rows, `[value_dim][w]` at `src`, to the output. A null `src` stands for zeros.
///
/// # Safety
/// - The invariants of [`Context`]; `rows` lie in the sequence and are at most `w`; no other worker writes
///   them.
/// - `src` is null or readable for `value_dim · w` singles; `scratch` writable for `w · value_dim` where the
///   problem's type is not f32.
pub(super) unsafe fn store_output(
    c: &Context<'_>,
    sequence: &Sequence,
    head: usize,
    rows: Range<usize>,
    src: *const f32,
    w: usize,
    scratch: *mut f32,
) {
    let dim = c.problem.value_dim();
    let stride = c.output.view.strides()[2];
    let to = c.output.row(sequence.batch, head, sequence.query0 + rows.start, c.dtype);
    let size = c.dtype.size();
    // SAFETY: the rows are writable and this worker's (*outputs*, clause); tile and scratch have room
    // (clauses); *kernel*. All types represent zero by zero bits.
    unsafe {
        if src.is_null() {
            for i in 0..rows.len() {
                to.add(i * stride * size).write_bytes(0, dim * size);
            }
        } else if let Some(narrow) = c.kernel.primitives.narrow(c.dtype) {
            (c.kernel.primitives.transpose_out)(src, w, rows.len(), dim, scratch, dim);
            narrow(scratch, rows.len(), dim, to.cast(), stride);
        } else {
            (c.kernel.primitives.transpose_out)(src, w, rows.len(), dim, to.cast(), stride);
        }
    }
}

/// Copies past and new keys and values of one pair of batch and key head to the present.
///
/// # Safety
/// - The invariants of [`Context`]; no other worker has the same `item`.
pub(super) unsafe fn write_present(c: &Context<'_>, item: usize) {
    let heads = c.key.view.heads();
    let (batch, head) = (item / heads, item % heads);
    let pairs: [(Option<Target>, Option<Source>, Source); 2] =
        [(c.present_key, c.past_key, c.key), (c.present_value, c.past_value, c.value)];
    for (target, past, new) in pairs {
        let Some(target) = target else { continue };
        let bytes = target.view.dim() * c.dtype.size();
        parts((past, c.problem.past()), (new, 0), &(0..c.problem.keys()), |source, token, row, count| {
            for i in 0..count {
                let from = source.row(batch, head, token + i, c.dtype);
                let to = target.row(batch, head, row + i, c.dtype);
                // SAFETY: both are rows of `dim` elements (*inputs*, *outputs*), in different tensors.
                unsafe { to.copy_from_nonoverlapping(from, bytes) }
            }
        });
    }
}
