//! Computes the last three products when an operand contains a NaN or an infinity. Masked pairs are omitted, so that
//! their zero probabilities and gradients are not multiplied by such a value. The functions process one element at a
//! time, because few blocks need them.

use super::kernel::{BackwardBlock, BackwardTile};
use crate::lanes::Lanes;

/// Adds `K^T dS^T` to `dQ^T`, without the terms of masked pairs.
///
/// # Safety
/// - The clauses of [`BackwardTile`] and [`BackwardBlock`] hold. The scores and the gradients of the scores must have
///   been written; a score of `−∞` marks a masked pair.
#[inline(always)]
pub(super) unsafe fn into_queries<L: Lanes, const V: usize, const P: usize>(
    isa: L::Isa,
    tile: &BackwardTile,
    block: &BackwardBlock,
) {
    let (panel, rows, dim) = (V * L::N, P * V * L::N, tile.head_dim);
    for i in (0..rows).step_by(L::N) {
        for x in 0..dim {
            // SAFETY: vector `i` is in the rows of the scores, of their gradients and of the gradient of dim `x`
            // (clauses).
            unsafe {
                let mut acc = L::splat(isa, 0.0);
                for key in 0..block.count {
                    let at = key * rows + i;
                    let ds = L::load(isa, tile.d_scores.add(at));
                    let k = L::splat(isa, block.keys.add(key * dim + x).read());
                    acc = L::load(isa, tile.scores.add(at)).if_present(ds.mul_add(k, acc), acc);
                }
                let to = tile.d_query.add((i / panel * dim + x) * panel + i % panel);
                L::load(isa, to).plus(acc).store(to);
            }
        }
    }
}

/// For each key, adds `Σ_i by[key][i] · of[i]` to the key's row at `to`. The sum covers the rows `i` that attend to the
/// key.
///
/// # Safety
/// - The clauses of `into_keys` in `step` hold for `count` keys and strips of `D` vectors. `scores` is readable for
///   `count · rows` values, in which `−∞` marks masked pairs.
#[inline(always)]
pub(super) unsafe fn into_keys<L: Lanes, const D: usize>(
    count: usize,
    scores: *const f32,
    by: *const f32,
    rows: usize,
    of: *const f32,
    width: usize,
    to: *mut f32,
) {
    let mut first = 0;
    while first < width {
        let strip = if width - first >= D * L::N { D * L::N } else { L::N };
        for key in 0..count {
            for x in 0..strip {
                // SAFETY: row `i` is in the strip that begins at dim `first`, and the rows of the key are readable
                // (clauses).
                unsafe {
                    let mut acc = 0.0f32;
                    for i in 0..rows {
                        if scores.add(key * rows + i).read() != f32::NEG_INFINITY {
                            acc +=
                                by.add(key * rows + i).read() * of.add(first * rows + i * strip + x).read();
                        }
                    }
                    let at = to.add(key * width + first + x);
                    at.write(at.read() + acc);
                }
            }
        }
        first += strip;
    }
}
