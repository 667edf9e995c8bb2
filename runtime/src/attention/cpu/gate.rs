//! The norm gate: tiles whose scores are known to stay near zero take zero as the reference of all rows.
//!
//! **The naive way** asks for each tile for the norms of the keys that its rows attend, and for the largest of their values.
//!
//! **Why the code differs.**
//!
//! 1. *Keys and values are measured once for a call*, head by head, before any tile begins: `O(n d)` beside `O(n² d)`. All keys
//!    count that some row of the sequence may attend, so that no gate depends on how tiles are grouped.
//! 2. *Only where nothing is added to scores*: a mask with numbers, or a bias, would have to be measured for every tile.
//!    Booleans, lengths, causality and windows take keys out, by `−∞`.
//! 3. *Weights are not raised* ([`Lanes::RAISE`](elsa_kernels::lanes::Lanes::RAISE)), since they do not vanish. Where a row of
//!    values is tiny, the walk would multiply the values of its block, and raised weights go with that: the gate stays shut.

use super::context::{Context, Shared, TileRows};
use super::measure::added_type;
use super::stage::for_past_and_new;
use elsa_core::attention::Operand;
use elsa_core::attention::bound::{Arithmetic, Norms};
use elsa_core::attention::measured::{larger, norm};
use elsa_core::attention::plan::NORMS;
use elsa_kernels::attention::MeasuredRows;
use elsa_kernels::attention::values::is_tiny;

/// What is known of a head's keys and values ([`NORMS`]).
type Known = [f32; NORMS];

/// Where it lies.
fn place(c: &Context<'_>, index: usize, kv_head: usize) -> *mut Known {
    c.base
        .wrapping_add(c.layout.norms.start)
        .cast::<Known>()
        .wrapping_add(index * c.problem.kv_heads() + kv_head)
}

/// Measures the keys and values of one pair of sequence and key head.
///
/// # Safety
/// - The invariants of [`Context`], of a call that has all keys and whose plan gates. Presents have been written.
/// - No other worker has the same `item`.
pub(super) unsafe fn measure(shared: &Shared<'_>, item: usize) {
    let c = shared.context;
    let (index, kv_head) = (item / c.problem.kv_heads(), item % c.problem.kv_heads());
    let sequence = &shared.sequences[index];
    let (any, _) = sequence.ranges(0..sequence.queries);
    let mut known = [0.0, 0.0, 0.0, f32::INFINITY];
    for (past, new) in [(Operand::PastKey, Operand::Key), (Operand::PastValue, Operand::Value)] {
        let is_key = new == Operand::Key;
        let (past, new) = (c.tensor(past), c.source(new));
        for_past_and_new((past, sequence.past), (new, sequence.key0), &any, |tensor, token, _, count| {
            let data = tensor.row(sequence.batch, kv_head, token, c.dtype).cast_const();
            let step = tensor.stride() * c.dtype.size();
            let rows = MeasuredRows {
                data,
                dtype: c.dtype,
                stride: tensor.stride(),
                rows: count,
                dim: tensor.view.dim(),
            };
            if is_key {
                // SAFETY: the rows lie in the sequence (*inputs*); two numbers; *kernel*.
                unsafe { (c.kernel.measure.norms)(&rows, known.as_mut_ptr()) };
                return;
            }
            for i in 0..count {
                let mut found = [0.0f32; 2];
                let row = MeasuredRows { data: data.wrapping_add(i * step), rows: 1, ..rows };
                // SAFETY: as above.
                unsafe { (c.kernel.measure.norms)(&row, found.as_mut_ptr()) };
                let largest = found[1];
                known[2] = larger(known[2], largest);
                known[3] = if largest > 0.0 { known[3].min(largest) } else { known[3] };
            }
        });
    }
    // SAFETY: the region has room for each pair (layout), and this one is the worker's (clause).
    unsafe { place(c, index, kv_head).write(known) };
}

/// Whether every score of a tile is known to stay near zero.
///
/// # Safety
/// - As for [`measure`], which has ended for all pairs. `index` is the number of the tile's sequence.
pub(super) unsafe fn is_open(c: &Context<'_>, tile: &TileRows<'_>, index: usize) -> bool {
    if [Operand::Mask, Operand::Bias].into_iter().any(|operand| added_type(c.problem, operand).is_some()) {
        return false;
    }
    let query = c.tensor(Operand::Query);
    let data = query.row(tile.sequence.batch, tile.head, tile.token(), c.dtype).cast_const();
    let (dim, mut found) = (query.view.dim(), [0.0; 2]);
    let rows = MeasuredRows { data, dtype: c.dtype, stride: query.stride(), rows: tile.rows.len(), dim };
    // SAFETY: the tile's rows (*inputs*); two numbers; *kernel*; what was measured of the tile's keys (clause).
    let [squares, largest, value, least] = unsafe {
        (c.kernel.measure.norms)(&rows, found.as_mut_ptr());
        place(c, index, c.problem.kv_head(tile.head)).read()
    };
    let norms = Norms { query: norm(found, dim), key: norm([squares, largest], dim), bias: 0.0 };
    let arithmetic = Arithmetic::of(c.problem, c.choice.executed());
    !is_tiny(least) && arithmetic.stays_near_zero(c.problem.keys(), &norms, value.into())
}
