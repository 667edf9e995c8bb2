//! Computes the scores of a key block, in base-2 units, as `[key][width]`, and the largest score of each row.
//!
//! ```text
//! naive:  for each key j:  for each row i:  s[j][i] = Σ_x k_j[x] · q_i[x];  top[i] = max(top[i], s[j][i])
//! ```
//!
//! 1. *Register tiles of `R` keys.* `R · V` accumulators live in registers while a [`product()`] runs over the dims.
//! 2. *Chains.* A head size above [`CHAIN`] is split, so that rounding errors grow only with the length of a chain. The
//!    sum of the finished chains is in memory, where the scores will be; registers hold the accumulators of one chain.
//! 3. *The last keys.* If fewer than `R` keys are left, they are copied to a pad and followed by rows of zeros, so that
//!    nothing beyond the block is read. Panels are padded when they are packed; up to [`FEW`] last keys of a panel are
//!    multiplied one by one, without the padding. Scores of padding are stored but do not enter a maximum; later steps
//!    read only the scores of the block's keys.
//! 4. *A mask is prefetched while products are computed.* The mask is as large as the scores and is read from memory
//!    once. Its cache lines for the next tile are prefetched panel by panel.
//! 5. *Maxima are computed before the scores leave the registers*, and again only if soft cap or bias change the
//!    scores.

use super::ahead::fetch;
use super::kernel::{Block, Tile};
use super::modify::{bias_of, biased, capped, is_plain};
use crate::lanes::Lanes;
use crate::product::{CHAIN, product};

/// Computes the scores of the `R` keys that start at `key`, over all chains. Between chains, `dst` contains the sum of
/// the finished chains.
///
/// # Safety
/// - The clauses of [`Tile`] and [`Block`] hold; `key` is below the block's number of keys and a multiple of `R`.
/// - `R · width` values are writable at `dst`.
#[inline(always)]
unsafe fn panel<L: Lanes, const R: usize, const V: usize, const PANELS: bool>(
    isa: L::Isa,
    tile: &Tile,
    block: &Block,
    key: usize,
    dst: *mut f32,
) -> [[L; V]; R] {
    let d = tile.head_dim;
    // SAFETY: `key` is in the block. Fewer than R rows are copied to the pad, which has room for R; panels are
    // padded when they are packed. Chains stay within `d` (clauses of `Tile` and `Block`).
    unsafe {
        let (mut a, mut stride) = if PANELS {
            (block.keys.add(key * d), R)
        } else {
            (block.keys.add(key * block.key_stride), block.key_stride)
        };
        let rows = block.count - key;
        if !PANELS && rows < R {
            for r in 0..R {
                let to = tile.pad.add(r * d);
                if r < rows {
                    to.copy_from_nonoverlapping(a.add(r * stride), d);
                } else {
                    to.write_bytes(0, d);
                }
            }
            (a, stride) = (tile.pad, d);
        }
        let mut x = 0;
        loop {
            let steps = (d - x).min(CHAIN);
            let b = tile.query.add(x * V * L::N);
            let a = a.add(if PANELS { x * R } else { x });
            let mut acc = product::<L, R, V, PANELS>(isa, steps, a, stride, b);
            if x > 0 {
                for r in 0..R {
                    for v in 0..V {
                        acc[r][v] = acc[r][v].plus(L::load(isa, dst.add((r * V + v) * L::N)));
                    }
                }
            }
            x += steps;
            if x == d {
                return acc;
            }
            for r in 0..R {
                for v in 0..V {
                    acc[r][v].store(dst.add((r * V + v) * L::N));
                }
            }
        }
    }
}

/// Largest number of keys at the end of a block whose scores are computed one by one. More keys take fewer instructions
/// in a padded panel.
const FEW: usize = 4;

/// Computes the scores of one key, whose elements are `R` values apart at `key`, in a panel of `R` keys. The operations
/// and their order are those of [`panel`]. The function is not part of its callers, so that the code exists once per
/// number of vectors.
///
/// # Safety
/// - The clauses of [`Tile`] hold. Four values are readable at each element of the key.
#[inline(never)]
unsafe fn one_key<L: Lanes, const R: usize, const V: usize>(
    isa: L::Isa,
    tile: &Tile,
    mut key: *const f32,
    scores: &mut [L; V],
) {
    let (d, width) = (tile.head_dim, V * L::N);
    let mut query = tile.query;
    let mut x = 0;
    // SAFETY: the loops visit each of the `d` dims once, and each dim has four values of the panel and a row of queries
    // (clauses). After the last dim both pointers may be outside their allocation, but nothing is read there.
    unsafe {
        while x < d {
            let steps = (d - x).min(CHAIN);
            // A product shorter than an iteration starts from zeros.
            let mut acc = [L::splat(isa, 0.0); V];
            let mut multiplies = steps >= 4 * L::UNROLL;
            for _ in 0..steps / 4 {
                for i in 0..4 {
                    let a = L::quad(isa, key.add(i * R));
                    for v in 0..V {
                        let y = L::load(isa, query.add(i * width + v * L::N));
                        acc[v] = if i == 0 && multiplies {
                            y.mul_quad::<0>(a)
                        } else {
                            acc[v].mul_add_quad::<0>(y, a)
                        };
                    }
                }
                multiplies = false;
                key = key.wrapping_add(4 * R);
                query = query.wrapping_add(4 * width);
            }
            for v in 0..V {
                scores[v] = if x > 0 { acc[v].plus(scores[v]) } else { acc[v] };
            }
            x += steps;
        }
    }
}

/// Writes a key's scores to `at` and updates the maxima.
///
/// # Safety
/// - `V · N` values are writable at `at`.
#[inline(always)]
unsafe fn keep<L: Lanes, const V: usize>(scores: &[L; V], at: *mut f32, top: &mut [L; V]) {
    for v in 0..V {
        // SAFETY: `v` is below `V` (clause).
        unsafe { scores[v].store(at.add(v * L::N)) };
        top[v] = top[v].larger(scores[v]);
    }
}

/// Adds the bias of a key to its scores, in a block that has a bias per row.
///
/// # Safety
/// - The clauses of [`Block`] hold, and `key` is below the block's number of keys. The bias is not null and not shared.
#[inline(always)]
unsafe fn add_bias<L: Lanes, const V: usize>(isa: L::Isa, block: &Block, key: usize, scores: &mut [L; V]) {
    let masked = L::splat(isa, f32::NEG_INFINITY);
    for v in 0..V {
        // SAFETY: `key` is a key of the block, and `v` is less than `V` (clauses).
        let bias = unsafe { L::load(isa, block.bias.add((key * V + v) * L::N)) };
        scores[v] = biased(scores[v], bias, masked);
    }
}

/// Applies soft cap and bias to a key's scores, then writes them and updates the maxima as [`keep`] does.
///
/// # Safety
/// - The clauses of [`Block`] hold, and `key` is below the block's number of keys. `V · N` values are writable at `at`.
#[inline(always)]
unsafe fn keep_modified<L: Lanes, const V: usize>(
    isa: L::Isa,
    block: &Block,
    key: usize,
    scores: &[L; V],
    at: *mut f32,
    top: &mut [L; V],
) {
    let mut scores = *scores;
    if block.cap != 0.0 {
        let cap = L::splat(isa, block.cap);
        for v in 0..V {
            scores[v] = capped(isa, scores[v], cap);
        }
    }
    if !block.bias.is_null() {
        let masked = L::splat(isa, f32::NEG_INFINITY);
        for v in 0..V {
            // SAFETY: `key` is a key of the block, and `v` is less than `V` (clauses).
            let bias = unsafe { bias_of::<L, V>(isa, block, key, v) };
            scores[v] = biased(scores[v], bias, masked);
        }
    }
    // SAFETY: `keep` has the same clause as this function.
    unsafe { keep::<L, V>(&scores, at, top) }
}

/// `KIND` for scores without a soft cap and without a bias.
const PLAIN: u8 = 0;
/// `KIND` for scores with a bias per row and without a soft cap.
const BIASED: u8 = 1;
/// `KIND` for scores with a soft cap, with or without a bias, and for scores with a bias that all rows share.
const MODIFIED: u8 = 2;

/// Writes the block's scores to `dst` and returns the largest score of each row. The largest score of a row that
/// attends no key is `−∞`.
///
/// # Safety
/// - The clauses of [`Tile`] and [`Block`] hold.
/// - `dst` is writable for `width` values per key. For this clause, the block's number of keys is rounded up to a
///   multiple of `R`.
#[inline(always)]
pub unsafe fn scores<L: Lanes, const R: usize, const V: usize, const PANELS: bool>(
    isa: L::Isa,
    tile: &Tile,
    block: &Block,
    dst: *mut f32,
) -> [L; V] {
    // Each case has its own loop, because the modification of scores takes registers that the plain loop needs.
    // SAFETY: `panels` has the same clauses as this function.
    unsafe {
        if is_plain(block) {
            panels::<L, R, V, PANELS, PLAIN>(isa, tile, block, dst)
        } else if block.cap == 0.0 && !block.shares_bias {
            panels::<L, R, V, PANELS, BIASED>(isa, tile, block, dst)
        } else {
            panels::<L, R, V, PANELS, MODIFIED>(isa, tile, block, dst)
        }
    }
}

/// Computes [`scores`] with the soft cap and bias that `KIND` selects.
///
/// # Safety
/// - The clauses of [`scores`] hold.
#[inline(always)]
unsafe fn panels<L: Lanes, const R: usize, const V: usize, const PANELS: bool, const KIND: u8>(
    isa: L::Isa,
    tile: &Tile,
    block: &Block,
    dst: *mut f32,
) -> [L; V] {
    // The four values that are read at an element of a key are in the panel.
    const { assert!(!PANELS || R >= FEW + 3) };
    let width = V * L::N;
    let mut top = [L::splat(isa, f32::NEG_INFINITY); V];
    let mut key = 0;
    while key < block.count {
        // SAFETY: `key` is a multiple of R below the count, and `dst` has room for whole panels.
        unsafe {
            let at = dst.add(key * width);
            let rows = block.count - key;
            if KIND != PLAIN && block.ahead.rows > 0 {
                fetch::<L>(isa, &block.ahead, key..key + R, 2 * block.count);
            }
            if PANELS && KIND != MODIFIED && rows <= FEW {
                let mut scores = top;
                for r in 0..rows {
                    one_key::<L, R, V>(isa, tile, block.keys.add(key * tile.head_dim + r), &mut scores);
                    if KIND == BIASED {
                        add_bias::<L, V>(isa, block, key + r, &mut scores);
                    }
                    keep::<L, V>(&scores, at.add(r * width), &mut top);
                }
                return top;
            }
            let acc = panel::<L, R, V, PANELS>(isa, tile, block, key, at);
            if KIND == BIASED && rows >= R && !block.masks {
                let bias = block.bias.add(key * width);
                for r in 0..R {
                    let mut scores = acc[r];
                    for v in 0..V {
                        scores[v] = scores[v].plus(L::load(isa, bias.add((r * V + v) * L::N)));
                    }
                    keep::<L, V>(&scores, at.add(r * width), &mut top);
                }
            } else if KIND == BIASED {
                for r in 0..R {
                    if r < rows {
                        let mut scores = acc[r];
                        add_bias::<L, V>(isa, block, key + r, &mut scores);
                        keep::<L, V>(&scores, at.add(r * width), &mut top);
                    }
                }
            } else if KIND == MODIFIED {
                for r in 0..R {
                    if r < rows {
                        keep_modified::<L, V>(isa, block, key + r, &acc[r], at.add(r * width), &mut top);
                    }
                }
            } else if rows >= R {
                for r in 0..R {
                    keep::<L, V>(&acc[r], at.add(r * width), &mut top);
                }
            } else {
                for r in 0..R {
                    if r < rows {
                        keep::<L, V>(&acc[r], at.add(r * width), &mut top);
                    }
                }
            }
        }
        key += R;
    }
    top
}
