//! Copies rows between tensors and the worker's regions: keys and values of a chunk, queries and upstream gradients of
//! a tile.

use super::context::Context;
use elsa_core::attention::Sequence;
use elsa_core::attention::backward::{RowWeights, upstream_dot};
use elsa_core::attention::schedule::BLOCKS_PER_SEGMENT;
use elsa_core::dtype::Elements;
use elsa_core::view::View;
use std::ops::Range;

/// A tensor with elements of type f32, f16 or bf16.
#[derive(Clone, Copy)]
pub(super) struct TypedTensor<'a> {
    pub view: View,
    pub data: Elements<'a>,
}

impl TypedTensor<'_> {
    /// Returns the address of the first byte of a row.
    fn row(&self, batch: usize, head: usize, token: usize) -> *const u8 {
        self.data.as_ptr().wrapping_add(self.view.row(batch, head, token) * self.data.dtype().size())
    }

    /// Converts `count` rows, from token `token` on, to f32 rows at `dst` that are `to_stride` values apart.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. The rows belong to a tensor of the call.
    /// - `count` rows of the head size are writable at `dst`.
    unsafe fn copy(
        &self,
        c: &Context<'_>,
        (batch, head, token): (usize, usize, usize),
        count: usize,
        dst: *mut f32,
        to_stride: usize,
    ) {
        let (src, stride, dim) = (self.row(batch, head, token), self.view.steps()[2], self.view.dim());
        // SAFETY: source and destination have `count` rows (*inputs*, clause); *kernel*.
        unsafe {
            c.kernel.primitives.rows_to_f32(self.data.dtype(), src, stride, count, dim, dst, to_stride);
        }
    }
}

/// Returns `true` if every value is finite.
fn all_finite(values: &[f32]) -> bool {
    values.iter().fold(true, |finite, x| finite & x.is_finite())
}

/// Copies the keys and values of a chunk to the worker's region. Returns two flags for each block: whether all its keys
/// are finite, and whether all its keys and values are finite.
///
/// # Safety
/// - The invariants of [`Context`] hold. `keys` are keys of the sequence, and not more than one chunk. `part` is the
///   worker's region.
pub(super) unsafe fn chunk(
    c: &Context<'_>,
    sequence: &Sequence,
    kv_head: usize,
    keys: &Range<usize>,
    part: *mut f32,
) -> [[bool; 2]; BLOCKS_PER_SEGMENT] {
    let (spec, at) = (c.problem.forward().spec(), &c.layout.worker);
    let inputs = &c.inputs.forward;
    let mut finite = [[true; 2]; BLOCKS_PER_SEGMENT];
    for (n, (view, data, span, padded)) in [
        (spec.key, inputs.key, at.keys, c.choice.head_dim),
        (spec.value, inputs.value, at.values, c.choice.value_dim),
    ]
    .into_iter()
    .enumerate()
    {
        let (to, dim) = (part.wrapping_add(span.start), view.dim());
        let tensor = TypedTensor { view, data };
        // SAFETY: the region has room for a chunk of padded rows (layout), all of it initialised (*workspace*).
        let rows = unsafe {
            tensor.copy(c, (sequence.batch, kv_head, sequence.key0 + keys.start), keys.len(), to, padded);
            std::slice::from_raw_parts_mut(to, keys.len() * padded)
        };
        if padded > dim {
            rows.chunks_exact_mut(padded).for_each(|row| row[dim..].fill(0.0));
        }
        for (finite, block) in finite.iter_mut().zip(rows.chunks(c.choice.kernel.block * padded)) {
            let all = all_finite(block);
            finite[0] &= all || n == 1;
            finite[1] &= all;
        }
    }
    finite
}

/// A tile of query rows of a head.
#[derive(Clone)]
pub(super) struct TileRows<'a> {
    pub sequence: &'a Sequence,
    pub head: usize,
    /// The rows, counted within the sequence.
    pub rows: Range<usize>,
}

impl TileRows<'_> {
    /// Returns the index of the first row's token in the query view.
    pub fn token(&self) -> usize {
        self.sequence.query0 + self.rows.start
    }
}

/// Copies the rows of a tensor to the worker's region twice: transposed and multiplied by `factor`, and row by row in strips.
/// Returns `true` if all values are finite.
///
/// # Safety
/// - The invariants of [`Context`] hold. The rows are in the sequence and fit in one tile. `columns`, `strips` and
///   `convert` are regions of the worker. `columns` has room for a tile of `padded` dims. `strips` and `convert` each
///   have room for a tile of `width` dims.
unsafe fn both_ways(
    c: &Context<'_>,
    tile: &TileRows<'_>,
    tensor: &TypedTensor<'_>,
    factor: f32,
    (padded, width): (usize, usize),
    [columns, strips, convert]: [*mut f32; 3],
) -> bool {
    let (k, dim, count) = (&c.choice.kernel, tensor.view.dim(), tile.rows.len());
    // SAFETY: the worker's region has a tile's rows of `width` values (clauses), all initialised (*workspace*).
    let rows = unsafe {
        tensor.copy(c, (tile.sequence.batch, tile.head, tile.token()), count, convert, width);
        std::slice::from_raw_parts_mut(convert, k.rows * width)
    };
    if width > dim {
        rows.chunks_exact_mut(width).for_each(|row| row[dim..].fill(0.0));
    }
    rows[count * width..].fill(0.0);
    let finite = all_finite(&rows[..count * width]);
    for first in (0..k.rows).step_by(k.panel) {
        let here = count.saturating_sub(first).min(k.panel);
        // SAFETY: the panel has the rows, and `columns` has room for them (clauses); *kernel*.
        unsafe {
            let (src, dst) = (rows.as_ptr().add(first * width), columns.add(first * padded));
            (c.kernel.primitives.transpose_in)(src, width, here, dim, padded, k.panel, factor, dst);
        }
    }
    let strip = c.kernel.strip * k.lanes;
    let mut x = 0;
    while x < width {
        let wide = if width - x >= strip { strip } else { k.lanes };
        for (i, row) in rows.chunks_exact(width).enumerate() {
            // SAFETY: the strip that begins at dim `x` has a row `i` (clauses).
            unsafe { strips.add(x * k.rows + i * wide).copy_from_nonoverlapping(row[x..].as_ptr(), wide) };
        }
        x += wide;
    }
    finite
}

/// Writes the data of a tile to the worker's region, and returns two flags: whether its queries are finite, and whether
/// its upstream gradients are finite.
///
/// # Safety
/// - The invariants of [`Context`] hold. The rows are in the sequence and fit in one tile. `part` is the worker's
///   region.
pub(super) unsafe fn tile(c: &Context<'_>, tile: &TileRows<'_>, part: *mut f32) -> [bool; 2] {
    let (forward, at) = (c.problem.forward(), &c.layout.worker);
    let spec = forward.spec();
    let place = |start: usize| part.wrapping_add(start);
    let convert = place(at.convert.start);
    let (factor, _) = forward.score_factors();
    let query = TypedTensor { view: spec.query, data: c.inputs.forward.query };
    let upstream = TypedTensor { view: c.problem.spec().upstream, data: c.inputs.upstream };
    // SAFETY: the regions have room for a tile (layout) and belong to the worker (clauses).
    let finite = unsafe {
        let to = [place(at.query_columns.start), place(at.query_rows.start), convert];
        let query = both_ways(c, tile, &query, factor, (c.choice.head_dim, c.choice.head_row), to);
        let to = [place(at.upstream_columns.start), place(at.upstream_rows.start), convert];
        [query, both_ways(c, tile, &upstream, 1.0, (c.choice.value_dim, c.choice.value_row), to)]
    };
    let k = &c.choice.kernel;
    // SAFETY: the region has four numbers for each row of a tile (layout), all initialised (*workspace*).
    let numbers = unsafe { std::slice::from_raw_parts_mut(place(at.statistics.start), 4 * k.rows) };
    numbers.fill(0.0);
    let (batch, head, dim) = (tile.sequence.batch, tile.head, forward.value_dim());
    for i in 0..tile.rows.len() {
        let token = tile.token() + i;
        let row = (batch * forward.heads() + head) * spec.query.tokens() + token;
        let weights = RowWeights::of(c.inputs.statistics.get(row), k.weight_scale);
        let (up, out) = (upstream.view.row(batch, head, token), spec.output.row(batch, head, token));
        let dot = match (c.inputs.upstream, c.inputs.output) {
            (Elements::F32(a), Elements::F32(b)) => {
                let (a, b) = (&a[up..up + dim], &b[out..out + dim]);
                upstream_dot(dim, |x| (a[x], b[x]))
            }
            (a, b) => upstream_dot(dim, |x| (a.get(up + x), b.get(out + x))),
        };
        for (n, x) in [weights.whole, weights.rest, weights.factor, dot].into_iter().enumerate() {
            numbers[n * k.rows + i] = x;
        }
    }
    finite
}

/// Multiplies `count` padded rows by `factor` and writes them to the rows of a gradient.
///
/// # Safety
/// - The invariants of [`Context`] hold. `count` rows of `width` values are readable at `src`. `dst` is the first of
///   `count` rows of a gradient; these rows are `stride` values apart, and no other worker writes them.
pub(super) unsafe fn store(
    src: *const f32,
    width: usize,
    count: usize,
    dim: usize,
    factor: f32,
    dst: *mut f32,
    stride: usize,
) {
    for i in 0..count {
        // SAFETY: source and destination have a row `i` (clauses).
        let (from, to) = unsafe {
            (
                std::slice::from_raw_parts(src.add(i * width), dim),
                std::slice::from_raw_parts_mut(dst.add(i * stride), dim),
            )
        };
        to.iter_mut().zip(from).for_each(|(to, from)| *to = factor * from);
    }
}
