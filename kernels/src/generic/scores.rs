//! Scores of a key block, in units of `log 2`, as `[key][W]`.

use crate::generic::product::{CHAIN, product};
use crate::kernel::{Block, Tile};
use crate::lanes::Lanes;

/// Scores of `R` keys from `key` on. Chains but the last go through `dst`, so that one chain's accumulators
/// are all that lives in registers.
///
/// # Safety
/// - The clauses of [`Tile`] and [`Block`]; `key` is below the block's count and a multiple of `R`.
/// - `R · W` singles are writable at `dst`.
#[inline(always)]
unsafe fn panel<L: Lanes, const R: usize, const V: usize, const PANELS: bool>(
    isa: L::Isa,
    tile: &Tile,
    block: &Block,
    key: usize,
    dst: *mut f32,
) -> [[L; V]; R] {
    let d = tile.head_dim;
    // SAFETY: `key` lies in the block. Fewer than R rows are copied to the pad, which holds R; panels are
    // padded where they are packed. Chains stay within `d` (clauses of `Tile` and `Block`).
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

/// Writes a key's scores to `at` and takes them into the largest.
///
/// # Safety
/// - `V · N` singles are writable at `at`.
#[inline(always)]
unsafe fn keep<L: Lanes, const V: usize>(scores: &[L; V], at: *mut f32, top: &mut [L; V]) {
    for v in 0..V {
        // SAFETY: vector `v` of `V` (clause).
        unsafe { scores[v].store(at.add(v * L::N)) };
        top[v] = top[v].larger(scores[v]);
    }
}

/// Writes the block's scores to `dst` and gives the largest of each row, `−∞` where no key is attended.
///
/// # Safety
/// - The clauses of [`Tile`] and [`Block`].
/// - The block's count rounded up to a multiple of `R`, times `W`, singles are writable at `dst`.
#[inline(always)]
pub unsafe fn scores<L: Lanes, const R: usize, const V: usize, const PANELS: bool>(
    isa: L::Isa,
    tile: &Tile,
    block: &Block,
    dst: *mut f32,
) -> [L; V] {
    let w = V * L::N;
    let mut top = [L::splat(isa, f32::NEG_INFINITY); V];
    let mut key = 0;
    while key < block.count {
        // SAFETY: `key` is a multiple of R below the count, and `dst` has room for whole panels.
        unsafe {
            let at = dst.add(key * w);
            let acc = panel::<L, R, V, PANELS>(isa, tile, block, key, at);
            let rows = block.count - key;
            if rows >= R {
                for r in 0..R {
                    keep::<L, V>(&acc[r], at.add(r * w), &mut top);
                }
            } else {
                for r in 0..R {
                    if r < rows {
                        keep::<L, V>(&acc[r], at.add(r * w), &mut top);
                    }
                }
            }
        }
        key += R;
    }
    if block.cap == 0.0 && block.bias.is_null() {
        return top;
    }
    // SAFETY: the scores above were written, and a bias that is not null covers them (clause of `Block`).
    unsafe { modify::<L, V>(isa, block, dst) }
}

/// Applies soft cap and bias to stored scores, and gives the largest of each row.
///
/// # Safety
/// - The clauses of [`Block`]; `count · W` singles are readable and writable at `dst`.
#[inline(always)]
unsafe fn modify<L: Lanes, const V: usize>(isa: L::Isa, block: &Block, dst: *mut f32) -> [L; V] {
    let absent = L::splat(isa, f32::NEG_INFINITY);
    let cap = L::splat(isa, block.cap);
    let mut top = [absent; V];
    for i in 0..block.count {
        for v in 0..V {
            let offset = (i * V + v) * L::N;
            // SAFETY: `offset` lies within `count · W` (clauses).
            unsafe {
                let at = dst.add(offset);
                let mut s = L::load(isa, at);
                if block.cap != 0.0 {
                    s = tanh(isa, s).times(cap);
                }
                if !block.bias.is_null() {
                    let bias = L::load(isa, block.bias.add(offset));
                    s = bias.if_present(s.plus(bias), absent);
                }
                s.store(at);
                top[v] = top[v].larger(s);
            }
        }
    }
    top
}

/// Hyperbolic tangent. Below 5/8 an odd polynomial, from there on
/// `(1 − e) / (1 + e)` with `e = 2^(−2 |x| log2 e)`, where the subtraction cancels little.
#[inline(always)]
pub(super) fn tanh<L: Lanes>(isa: L::Isa, x: L) -> L {
    let zero = L::splat(isa, 0.0);
    let one = L::splat(isa, 1.0);
    let a = x.abs();
    let z = a.times(a);
    // Minimax coefficients of (tanh(x)/x − 1)/x² in x² on [0, 25/64].
    let mut p = L::splat(isa, TANH[4]);
    p = p.mul_add(z, L::splat(isa, TANH[3]));
    p = p.mul_add(z, L::splat(isa, TANH[2]));
    p = p.mul_add(z, L::splat(isa, TANH[1]));
    p = p.mul_add(z, L::splat(isa, TANH[0]));
    let small = p.times(z).mul_add(a, a);
    let e = a.times(L::splat(isa, -2.0 * core::f32::consts::LOG2_E)).at_least(L::splat(isa, -64.0)).exp2();
    let e = e.over(L::splat(isa, L::WEIGHT_SCALE as f32));
    let large = one.minus(e).over(one.plus(e));
    let t = a.if_greater(L::splat(isa, 0.625), large, small);
    zero.if_greater(x, zero.minus(t), t)
}

const TANH: [f32; 5] = [-0.333_332_84, 0.133_314_91, -0.053_743_497, 0.020_650_588, -0.005_717_045_6];
