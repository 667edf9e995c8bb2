//! Computes the online softmax of a tile: references, weights and row sums.
//!
//! ```text
//! naive:  for each row i:  m' = max(m, top);  S, W ← S, W · 2^(m − m')
//!                          for each key j:  p[j] = 2^(s[j] − m');  S += p[j]
//! ```
//!
//! 1. *References rarely change.* The function [`raised`] defines when and how they change. One comparison of the
//!    tile's largest scores with the references usually skips all further work ([`raise`]).
//! 2. *Rows are independent.* If one row of a tile raises its reference, the sums of the other rows are multiplied by
//!    one. The bits of a row are therefore independent of the other rows in the tile.
//! 3. *Masks cost nothing here.* [`Lanes::weight`] turns a score of `−∞` into the weight zero. It also turns a score
//!    too far below the reference into zero. Whether a key of weight zero is masked matters only if its value is not
//!    finite; then the bias decides ([`super::values`]).

use super::kernel::Sums;
use crate::lanes::Lanes;
use elsa_core::state::{HEADROOM, Merge, limit, raised};

/// Returns the references that are subtracted from the scores. The reference is `m` in rows that have attended a key.
/// In other rows it is the lowest finite number, so that a score of `−∞` has the weight zero and not NaN.
#[inline(always)]
pub fn finite<L: Lanes>(isa: L::Isa, m: L) -> L {
    let lowest = L::splat(isa, f32::MIN);
    m.if_present(m, lowest)
}

/// Raises the reference of a row, and rescales the row's sums, if the row's largest score `top` exceeds the reference
/// by more than the headroom. Other rows keep their reference and sums. If `first` is set, only references are written,
/// because no sums exist yet.
///
/// # Safety
/// - The clauses of [`Sums`] hold for `V` vectors and `value_dim`; `s` and `w` are initialised unless `first` is set.
#[inline(always)]
pub unsafe fn raise<L: Lanes, const V: usize>(
    isa: L::Isa,
    sums: &Sums,
    value_dim: usize,
    top: &[L; V],
    first: bool,
) {
    let headroom = L::splat(isa, HEADROOM);
    // SAFETY: all offsets lie within `width` references and sums, and `value_dim · width` weighted sums (clause).
    unsafe {
        let mut m = [L::splat(isa, f32::NEG_INFINITY); V];
        let mut grows = false;
        for v in 0..V {
            if !first {
                m[v] = L::load(isa, sums.m.add(v * L::N));
            }
            grows |= top[v].any_greater(limit(m[v], headroom));
        }
        if !grows && !first {
            return;
        }
        for v in 0..V {
            let merge = Merge::of(m[v], raised(m[v], top[v], headroom));
            merge.m.store(sums.m.add(v * L::N));
            if !first {
                let at = sums.s.add(v * L::N);
                L::load(isa, at).times(merge.earlier).store(at);
                for x in 0..value_dim {
                    let at = sums.w.add((x * V + v) * L::N);
                    L::load(isa, at).shrunk(merge.earlier).store(at);
                }
            }
        }
    }
}

/// Converts the scores of `count` keys at `p` to weights in place and returns their sums. With `RAISED`, weights are
/// multiplied by [`Lanes::RAISE`].
///
/// # Safety
/// - `count · width` values are readable and writable at `p`, and `width` values are readable at `m`.
#[inline(always)]
pub unsafe fn weigh<L: Lanes, const V: usize, const RAISED: bool>(
    isa: L::Isa,
    p: *mut f32,
    count: usize,
    m: *const f32,
) -> [L; V] {
    let zero = L::splat(isa, 0.0);
    let mut sum = [zero; V];
    let mut reference = [zero; V];
    // SAFETY: `v` is below `V`, and `i` is below `count` (clause).
    unsafe {
        for v in 0..V {
            reference[v] = finite(isa, L::load(isa, m.add(v * L::N)));
        }
        for i in 0..count {
            let at = p.add(i * V * L::N);
            let mut s = [L::load(isa, at); V];
            for v in 1..V {
                s[v] = L::load(isa, at.add(v * L::N));
            }
            for v in 0..V {
                let x = s[v].minus(reference[v]);
                let weight = if RAISED { x.raised_weight() } else { x.weight() };
                weight.store(at.add(v * L::N));
                sum[v] = sum[v].plus(weight);
            }
        }
    }
    sum
}

/// Computes [`weigh`] for scores near zero. The reference is zero and is not subtracted. Weights are not multiplied by
/// [`Lanes::RAISE`]. If `masked` is not set, no score may be `−∞`, because scores are then not clamped.
///
/// # Safety
/// - `count · width` values are readable and writable at `p`.
#[inline(always)]
pub unsafe fn weigh_near_zero<L: Lanes, const V: usize>(
    isa: L::Isa,
    p: *mut f32,
    count: usize,
    masked: bool,
) -> [L; V] {
    let mut sum = [L::splat(isa, 0.0); V];
    for i in 0..count {
        for v in 0..V {
            // SAFETY: `v` is below `V`, and `i` is below `count` (clause).
            unsafe {
                let at = p.add((i * V + v) * L::N);
                let x = L::load(isa, at);
                let weight = if masked { x.weight() } else { x.exp2() };
                weight.store(at);
                sum[v] = sum[v].plus(weight);
            }
        }
    }
    sum
}

/// Returns the largest score of each row among `count` keys at `p`.
///
/// # Safety
/// - `count · width` values are readable at `p`.
#[inline(always)]
pub unsafe fn largest<L: Lanes, const V: usize>(isa: L::Isa, p: *const f32, count: usize) -> [L; V] {
    let mut top = [L::splat(isa, f32::NEG_INFINITY); V];
    for i in 0..count {
        for v in 0..V {
            // SAFETY: `v` is below `V`, and `i` is below `count` (clause).
            top[v] = top[v].larger(unsafe { L::load(isa, p.add((i * V + v) * L::N)) });
        }
    }
    top
}

/// Computes the softmax of complete rows of scores in memory, without its normalisation. `p` points to the scores of
/// `count` keys. The function finds the largest score of each row, converts the scores to weights in place, and writes
/// references and sums.
///
/// # Safety
/// - `count · width` values are readable and writable at `p`.
/// - The clauses of [`Sums`] for `m` and `s` hold for `V` vectors.
#[inline(always)]
pub unsafe fn softmax<L: Lanes, const V: usize>(isa: L::Isa, p: *mut f32, count: usize, sums: &Sums) {
    // SAFETY: references and sums have `V` vectors (clauses); the called functions have the same clauses as this one.
    unsafe {
        let top = largest::<L, V>(isa, p, count);
        raise::<L, V>(isa, sums, 0, &top, true);
        let sum = weigh::<L, V, false>(isa, p, count, sums.m);
        for v in 0..V {
            sum[v].store(sums.s.add(v * L::N));
        }
    }
}
