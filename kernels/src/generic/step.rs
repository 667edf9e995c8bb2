//! One step of the fused pass: a query tile takes in a key block.

use crate::generic::{scores::scores, softmax, values};
use crate::kernel::{Block, Sums, Tile};
use crate::lanes::Lanes;

/// Scores, references, weights, row sums and the weighted sum of one block. With `first` the sums are
/// written, otherwise added to.
///
/// # Safety
/// - The clauses of [`Tile`], [`Block`] and [`Sums`] for `V` vectors; sums are initialised unless `first`.
#[inline(always)]
pub unsafe fn step<L: Lanes, const R: usize, const V: usize, const PANELS: bool>(
    isa: L::Isa,
    tile: &Tile,
    block: &Block,
    sums: &Sums,
    first: bool,
) {
    let p = tile.weights;
    let masked = !block.bias.is_null();
    // SAFETY: weights have room for the block rounded up to R (clause of `Tile`); the rest is handed on.
    unsafe {
        let top = scores::<L, R, V, PANELS>(isa, tile, block, p);
        softmax::raise::<L, V>(isa, sums, tile.value_dim, &top, first);
        let sum = softmax::weigh::<L, V>(isa, p, block.count, sums.m, masked);
        for v in 0..V {
            let at = sums.s.add(v * L::N);
            let s = if first { sum[v] } else { L::load(isa, at).plus(sum[v]) };
            s.store(at);
        }
        values::add_block::<L, R, V>(isa, block, tile.value_dim, p, sums.w, first);
    }
}
