//! The norm gate: tiles whose scores are known to stay near zero take zero as the reference of all rows.
//!
//! **The naive way** asks for each tile for the norms of the keys that its rows attend, and for the largest of their values.
//!
//! **Why the code differs.**
//!
//! 1. *Keys and values are measured once for a call*, head by head, before any tile begins ([`norms`](super::norms)). All keys
//!    count that some row of the sequence may attend, so that no gate depends on how tiles are grouped.
//! 2. *Only where nothing is added to scores*: a mask with numbers, or a bias, would have to be measured for every tile.
//!    Booleans, lengths, causality and windows take keys out, by `−∞`.
//! 3. *Weights are not raised* ([`Lanes::RAISE`](elsa_kernels::lanes::Lanes::RAISE)), since they do not vanish. Where a row of
//!    values is tiny, the walk would multiply the values of its block, and raised weights go with that: the gate stays shut.

use super::context::{Context, TileRows};
use super::norms::{Known, known};
use elsa_core::attention::Operand;
use elsa_core::attention::bound::{Arithmetic, Norms};
use elsa_core::attention::measured::norm;
use elsa_kernels::attention::MeasuredRows;
use elsa_kernels::attention::values::is_tiny;

/// Whether every score of a tile is known to stay near zero.
///
/// # Safety
/// - As for [`known`], of a plan that gates. `index` is the number of the tile's sequence.
pub(super) unsafe fn is_open(c: &Context<'_>, tile: &TileRows<'_>, index: usize) -> bool {
    if c.problem.adds_numbers() {
        return false;
    }
    let query = c.tensor(Operand::Query);
    let data = query.row(tile.sequence.batch, tile.head, tile.token(), c.dtype).cast_const();
    let (dim, mut found) = (query.view.dim(), [0.0; 2]);
    let rows = MeasuredRows { data, dtype: c.dtype, stride: query.stride(), rows: tile.rows.len(), dim };
    // SAFETY: the tile's rows (*inputs*); two numbers; *kernel*; what was measured of the tile's keys (clause).
    let Known { key, value, least } = unsafe {
        (c.kernel.measure.norms)(&rows, found.as_mut_ptr());
        known(c, index, c.problem.kv_head(tile.head), 0)
    };
    let norms = Norms { query: norm(found, dim), key, bias: 0.0 };
    let arithmetic = Arithmetic::of(c.problem, c.choice.executed());
    !is_tiny(least) && arithmetic.stays_near_zero(c.problem.keys(), &norms, value.into())
}
