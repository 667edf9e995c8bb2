//! Processes one tile and one block: computes scores, probabilities, and the five products.

use super::kernel::{BackwardBlock, BackwardTile};
use super::select;
use crate::attention::modify::{biased, capped};
use crate::lanes::Lanes;
use crate::product::{CHAIN, product};
use core::f32::consts::LOG2_E;
use elsa_core::attention::backward::LARGEST_EXPONENT;

/// Adds the gradients for all pairs of a tile's rows and a block's keys. A register tile is `R` keys by `V` vectors of
/// rows, a tile has `P` panels of `V` vectors, and a strip has `D` vectors of dims.
///
/// # Safety
/// - The clauses of [`BackwardTile`] and [`BackwardBlock`] hold, where `rows` is `P · V · N`, `panel` is `V · N`,
///   `tile_keys` is `R`, and strips have `D · N` dims. `V · N` is a multiple of four.
#[inline(always)]
pub unsafe fn step<L: Lanes, const R: usize, const V: usize, const P: usize, const D: usize>(
    isa: L::Isa,
    tile: &BackwardTile,
    block: &BackwardBlock,
) {
    let rows = P * V * L::N;
    let padded = block.count.next_multiple_of(R);
    let all_finite = tile.finite_query && tile.finite_upstream && block.finite_keys;
    // If an operand is not finite, the scores stay in their buffer, because they mark the masked pairs.
    let probabilities = if all_finite { tile.scores } else { tile.probabilities };
    // SAFETY: the clauses name what each product reads and writes. Rows past the count are set to zero before they are
    // read.
    unsafe {
        dots::<L, R, V, P>(isa, block, tile.query_columns, block.keys, tile.head_dim, tile.scores);
        dots::<L, R, V, P>(isa, block, tile.upstream_columns, block.values, tile.value_dim, tile.d_scores);
        pairs::<L, V, P>(isa, tile, block, probabilities, all_finite);
        for p in [probabilities, tile.d_scores] {
            p.add(block.count * rows).write_bytes(0, (padded - block.count) * rows);
        }
        if block.finite_keys {
            into_queries::<L, R, V, P>(isa, tile, block);
        } else {
            select::into_queries::<L, V, P>(isa, tile, block);
        }
        let to_keys = [
            (tile.finite_upstream, probabilities, tile.upstream_rows, tile.value_row, block.d_values),
            (tile.finite_query, tile.d_scores, tile.query_rows, tile.head_row, block.d_keys),
        ];
        for (finite, by, of, width, to) in to_keys {
            if finite {
                into_keys::<L, R, D>(isa, padded, by.cast_const(), rows, of, width, to);
            } else {
                select::into_keys::<L, D>(block.count, tile.scores, by, rows, of, width, to);
            }
        }
    }
}

/// Computes dot products of the tile's columns with the rows at `a`, and writes the products to `dst`, `[key][row]`.
/// The rows at `a` are contiguous and have `dim` values each. A sum is split into chains of [`CHAIN`] terms.
///
/// # Safety
/// - `padded` rows of `dim` values are readable at `a`, `dim · rows` values at `columns`, and `padded · rows` are writable
///   at `dst`.
#[inline(always)]
unsafe fn dots<L: Lanes, const R: usize, const V: usize, const P: usize>(
    isa: L::Isa,
    block: &BackwardBlock,
    columns: *const f32,
    a: *const f32,
    dim: usize,
    dst: *mut f32,
) {
    let (panel, rows) = (V * L::N, P * V * L::N);
    for p in 0..P {
        for key in (0..block.count).step_by(R) {
            let mut x = 0;
            while x < dim {
                let steps = (dim - x).min(CHAIN);
                // SAFETY: `R` rows from `key` on and the panel's columns from dim `x` on are readable (clauses).
                unsafe {
                    let b = columns.add(p * dim * panel + x * panel);
                    let acc = product::<L, R, V, false>(isa, steps, a.add(key * dim + x), dim, b);
                    for r in 0..R {
                        for v in 0..V {
                            let at = dst.add((key + r) * rows + p * panel + v * L::N);
                            let sum = if x == 0 { acc[r][v] } else { acc[r][v].plus(L::load(isa, at)) };
                            sum.store(at);
                        }
                    }
                }
                x += steps;
            }
        }
    }
}

/// Computes `1 − tanh²(x) = 4 e / (1 + e)²` with `e = 2^(−2 |x| log2 e)`, without cancellation.
#[inline(always)]
fn sech_squared<L: Lanes>(isa: L::Isa, x: L) -> L {
    let one = L::splat(isa, 1.0);
    let e = x.abs().times(L::splat(isa, -2.0 * LOG2_E)).at_least(L::splat(isa, -126.0)).exp2();
    let e = e.times(L::splat(isa, (1.0 / L::WEIGHT_SCALE) as f32));
    let sum = one.plus(e);
    e.times(L::splat(isa, 4.0)).over(sum.times(sum))
}

/// Converts scores to probabilities. Also converts the products of values and upstream gradients to gradients of
/// scores. Unless `all_finite` is set, also stores the scores after soft cap and bias, with `−∞` for masked pairs.
///
/// # Safety
/// - The clauses of [`BackwardTile`] and [`BackwardBlock`] hold. `probabilities` is one of the tile's buffers.
#[inline(always)]
unsafe fn pairs<L: Lanes, const V: usize, const P: usize>(
    isa: L::Isa,
    tile: &BackwardTile,
    block: &BackwardBlock,
    probabilities: *mut f32,
    all_finite: bool,
) {
    let (panel, rows) = (V * L::N, P * V * L::N);
    let (zero, most) = (L::splat(isa, 0.0), L::splat(isa, LARGEST_EXPONENT));
    let (cap, masked) = (L::splat(isa, block.cap), L::splat(isa, f32::NEG_INFINITY));
    for i in (0..rows).step_by(L::N) {
        // SAFETY: vector `i` is in each row of statistics, and in the buffers' rows for every key of the block
        // (clauses).
        unsafe {
            let [whole, rest, factor, dot] =
                [0, 1, 2, 3].map(|n| L::load(isa, tile.statistics.add(n * rows + i)));
            let by_panel = tile.d_scores_by_panel.add(i / panel * block.count * panel + i % panel);
            for key in 0..block.count {
                let at = key * rows + i;
                let raw = L::load(isa, tile.scores.add(at));
                let mut s = raw;
                if block.cap != 0.0 {
                    s = capped(isa, raw, cap);
                }
                if !block.bias.is_null() {
                    s = biased(s, L::load(isa, block.bias.add(at)), masked);
                }
                let x = s.minus(whole).minus(rest);
                let p = x.if_greater(most, most, x).weight().times(factor);
                let mut ds = p.times(L::load(isa, tile.d_scores.add(at)).minus(dot));
                if block.cap != 0.0 {
                    ds = ds.times(sech_squared(isa, raw));
                }
                let (p, ds) = (s.if_present(p, zero), s.if_present(ds, zero));
                if !all_finite {
                    s.store(tile.scores.add(at));
                }
                p.store(probabilities.add(at));
                ds.store(tile.d_scores.add(at));
                if P > 1 {
                    ds.store(by_panel.add(key * panel));
                }
            }
        }
    }
}

/// Adds `K^T dS^T` to `dQ^T`. The product sums over the keys. The function processes strips of `R` dims; the last one
/// or two strips may have four dims.
///
/// # Safety
/// - The clauses of [`BackwardTile`] and [`BackwardBlock`] hold. The gradients of the scores must have been written.
#[inline(always)]
unsafe fn into_queries<L: Lanes, const R: usize, const V: usize, const P: usize>(
    isa: L::Isa,
    tile: &BackwardTile,
    block: &BackwardBlock,
) {
    let (panel, dim) = (V * L::N, tile.head_dim);
    // If two dims remain after strips of six, they and the last strip form two strips of four.
    let strips_of_four = match (R, dim % R) {
        (6, 2) => 2,
        (_, rest) => rest / 4,
    };
    let wide = dim.saturating_sub(4 * strips_of_four);
    let from = if P > 1 { tile.d_scores_by_panel } else { tile.d_scores };
    for p in 0..P {
        // SAFETY: strips end at or before `dim`, the size of the rows of keys and of the gradient; the panel's
        // gradients of scores are readable (clauses).
        unsafe {
            let b = from.add(p * block.count * panel).cast_const();
            let to = tile.d_query.add(p * dim * panel);
            let mut x = 0;
            while x < wide {
                let acc = product::<L, R, V, true>(isa, block.count, block.keys.add(x), dim, b);
                add::<L, R, V>(isa, &acc, to.add(x * panel), panel);
                x += R;
            }
            while x < dim {
                let acc = product::<L, 4, V, true>(isa, block.count, block.keys.add(x), dim, b);
                add::<L, 4, V>(isa, &acc, to.add(x * panel), panel);
                x += 4;
            }
        }
    }
}

/// Adds the sums `acc` to `R` rows of `V` vectors at `to`, `stride` values apart.
///
/// # Safety
/// - `R` rows of `V` vectors, `stride` values apart, are readable and writable at `to`.
#[inline(always)]
unsafe fn add<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    acc: &[[L; V]; R],
    to: *mut f32,
    stride: usize,
) {
    for r in 0..R {
        for v in 0..V {
            // SAFETY: vector `v` of row `r` is readable and writable (clause).
            unsafe {
                let at = to.add(r * stride + v * L::N);
                L::load(isa, at).plus(acc[r][v]).store(at);
            }
        }
    }
}

/// For each of `padded` keys, adds `Σ_i by[key][i] · of[i]` to the key's row of `width` values at `to`. The function
/// processes strips of `D` vectors of dims, and then strips of one vector.
///
/// # Safety
/// - At `by`, `padded` rows of `rows` values are readable; `padded` is a multiple of `R`, and `rows` is a multiple of
///   four.
/// - At `of`, `rows · width` values, stored by strips, are readable. `width` is a multiple of `N`.
/// - At `to`, `padded · width` values are readable and writable.
#[inline(always)]
unsafe fn into_keys<L: Lanes, const R: usize, const D: usize>(
    isa: L::Isa,
    padded: usize,
    by: *const f32,
    rows: usize,
    of: *const f32,
    width: usize,
    to: *mut f32,
) {
    let mut x = 0;
    while x < width {
        let wide = width - x >= D * L::N;
        // SAFETY: strips are contiguous, so the strip of dim `x` begins at `x · rows` (clause). `by` and `to` have rows
        // for `R` keys from `key` on.
        unsafe {
            let of = of.add(x * rows);
            for key in (0..padded).step_by(R) {
                let (by, to) = (by.add(key * rows), to.add(key * width + x));
                if wide {
                    add::<L, R, D>(isa, &product::<L, R, D, false>(isa, rows, by, rows, of), to, width);
                } else {
                    add::<L, R, 1>(isa, &product::<L, R, 1, false>(isa, rows, by, rows, of), to, width);
                }
            }
        }
        x += if wide { D * L::N } else { L::N };
    }
}
