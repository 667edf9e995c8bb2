//! Finds tiles whose norms keep their scores near zero. All rows of such a tile use zero as their reference.
//!
//! **The naive way** computes for each tile the norms of the keys that its rows attend, the largest magnitude of the
//! values of these keys, and the largest magnitude added to a score of the tile.
//!
//! **Why the code differs.**
//!
//! 1. *Keys and values are measured once per call*, head by head, before any tile begins ([`norms`](super::norms)). The
//!    measurement includes all keys that a row of the sequence may attend, so no gate depends on the grouping of tiles.
//! 2. *Mask and bias are measured last*, tile by tile, and only if the gate would be open without them. Their elements
//!    are read in place, for the rows of the tile and the keys that these rows may attend; for a table, all entries of
//!    the head are read. A `−∞` is ignored, since a masked key has the weight zero with any reference. A NaN or `+∞`
//!    closes the gate.
//! 3. *Weights are not raised* ([`Lanes::RAISE`](elsa_kernels::lanes::Lanes::RAISE)), since they do not vanish. The gate
//!    stays closed if a row of values is tiny: the traversal then multiplies the values of the row's block, and this
//!    requires raised weights.

use super::addends;
use super::context::{Context, TileRows};
use super::mask_cache::MaskCache;
use super::measure::measured;
use super::norms::{Known, known_of_all};
use elsa_core::attention::Operand;
use elsa_core::attention::bound::{Arithmetic, Norms};
use elsa_core::attention::measured::norm;
use elsa_kernels::attention::is_tiny;

/// Returns `true` if every score of a tile is known to stay near zero.
///
/// # Safety
/// - The clauses of [`known_of_all`] hold. The plan uses the norm gate. `index` is the index of the tile's sequence,
///   and `cache` contains the worker's data for the task of the tile.
pub(super) unsafe fn is_open(c: &Context<'_>, tile: &TileRows<'_>, index: usize, cache: &MaskCache) -> bool {
    let query = c.tensor(Operand::Query);
    let rows = measured(&query, (tile.sequence.batch, tile.head, tile.token()), tile.rows.len());
    let (dim, mut found) = (query.view.dim(), [0.0; 2]);
    // SAFETY: the tensor has the tile's rows (*inputs*), `found` has two numbers, and the keys have been measured
    // (clause); *kernel*.
    let Known { key, value, least } = unsafe {
        (c.kernel.measure.norms)(&rows, found.as_mut_ptr());
        known_of_all(c, index, c.problem.kv_head(tile.head))
    };
    let query = norm(found, dim);
    let arithmetic = Arithmetic::of(c.problem, c.choice.executed());
    let holds =
        |bias| arithmetic.stays_near_zero(c.problem.keys(), &Norms { query, key, bias }, value.into());
    if is_tiny(least) || !holds(0.0) {
        return false;
    }
    // SAFETY: the callee's clauses are those of this function, with the table entries of the cache.
    !c.problem.adds_numbers() || holds(unsafe { addends::largest(c, tile, cache.entries) })
}
