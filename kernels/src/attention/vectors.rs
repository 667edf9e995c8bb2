//! Operations on tiles of `V` whole vectors of rows.

use super::kernel::{Block, Budget, Sums, Tile, TileOps};
use super::values::Raised;
use super::within::leaves_out;
use super::{scores, softmax, values};
use crate::lanes::Lanes;
use core::marker::PhantomData;
use elsa_core::state::Merge;

/// Operations on tiles of `V` vectors `L`, with register tiles of `R` keys for the scores and of `R` dims for the
/// values. With `PANELS`, keys are read from panels of `R` keys; without `PANELS`, keys are read row by row.
#[derive(Clone, Copy, Debug)]
pub struct Vectors<L, const R: usize, const V: usize, const PANELS: bool>(PhantomData<L>);

/// Sets the reference of all rows to zero.
///
/// # Safety
/// - The clause of [`Sums`] for `m` holds for `V` vectors.
#[inline(always)]
unsafe fn refer_to_zero<L: Lanes, const V: usize>(isa: L::Isa, sums: &Sums) {
    for v in 0..V {
        // SAFETY: `v` is below the number of vectors of references (clause).
        unsafe { L::splat(isa, 0.0).store(sums.m.add(v * L::N)) };
    }
}

/// Multiplies each of `M` rows of weighted sums by `factor`. A zero becomes `+0`.
///
/// # Safety
/// - `M` rows of `V` vectors are readable and writable at `w`.
#[inline(always)]
unsafe fn multiply_rows<L: Lanes, const V: usize, const M: usize>(isa: L::Isa, w: *mut f32, factor: &[L; V]) {
    let zero = L::splat(isa, 0.0);
    let mut rows = [[zero; V]; M];
    // SAFETY: each vector is one of the `V` vectors of a row (clause).
    unsafe {
        for r in 0..M {
            for v in 0..V {
                rows[r][v] = L::load(isa, w.add((r * V + v) * L::N)).mul_add(factor[v], zero);
            }
        }
        for r in 0..M {
            for v in 0..V {
                rows[r][v].store(w.add((r * V + v) * L::N));
            }
        }
    }
}

impl<L: Lanes, const R: usize, const V: usize, const PANELS: bool> TileOps for Vectors<L, R, V, PANELS> {
    type Isa = L::Isa;

    #[inline(always)]
    unsafe fn step(isa: L::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool) {
        let p = tile.weights;
        // SAFETY: weights have room for the block rounded up to R (clause of `Tile`); the other clauses are the same.
        unsafe {
            let top = scores::scores::<L, R, V, PANELS>(isa, tile, block, p);
            softmax::raise::<L, V>(isa, sums, tile.value_dim, &top, first);
            let sum = softmax::weigh::<L, V, true>(isa, p, block.count, sums.m);
            values::store::<L, 1, V>(isa, &[sum], sums.s, first, Raised::Once);
            let raised = Raised::of::<L>(block);
            raised.adjust::<L, V>(isa, block.count, p);
            values::add_block::<L, R, V>(isa, block, tile.value_dim, p, sums.w, first, raised);
        }
    }

    #[inline(always)]
    unsafe fn decide(isa: L::Isa, tile: &Tile, block: &Block, sums: &Sums, budget: &mut Budget, first: bool) {
        let (p, dv) = (tile.weights, tile.value_dim);
        // SAFETY: the clauses of `step` hold, and so do the clauses of the budget, which `leaves_out` requires.
        unsafe {
            let mut before = [L::splat(isa, f32::NEG_INFINITY); V];
            if !first {
                for v in 0..V {
                    before[v] = L::load(isa, sums.m.add(v * L::N));
                }
            }
            let (sum, raised) = if budget.near_zero {
                if first {
                    refer_to_zero::<L, V>(isa, sums);
                }
                let masked = !block.bias.is_null();
                (softmax::weigh_near_zero::<L, V>(isa, p, block.count, masked), Raised::Not)
            } else {
                let mut top = before;
                for v in 0..V {
                    top[v] = L::load(isa, budget.top.add(v * L::N));
                }
                softmax::raise::<L, V>(isa, sums, dv, &top, first);
                (softmax::weigh::<L, V, true>(isa, p, block.count, sums.m), Raised::Once)
            };
            let lower = L::splat(isa, if budget.near_zero { 1.0 } else { 1.0 / L::RAISE });
            let b = sum.map(|sum| sum.times(lower));
            if leaves_out::<L, V>(isa, block, dv, sums, budget, &before, &b, first) {
                return;
            }
            values::store::<L, 1, V>(isa, &[sum], sums.s, first, raised);
            if !budget.near_zero {
                Raised::of::<L>(block).adjust::<L, V>(isa, block.count, p);
            }
        }
    }

    #[inline(always)]
    unsafe fn weigh(isa: L::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool) {
        // SAFETY: references, weights and sums have `V` vectors (clauses).
        unsafe {
            if first {
                refer_to_zero::<L, V>(isa, sums);
            }
            let masked = !block.bias.is_null();
            let sum = softmax::weigh_near_zero::<L, V>(isa, tile.weights, block.count, masked);
            values::store::<L, 1, V>(isa, &[sum], sums.s, first, Raised::Not);
        }
    }

    #[inline(always)]
    unsafe fn merge(isa: L::Isa, earlier: &Sums, later: &Sums, value_dim: usize) {
        for v in 0..V {
            let o = v * L::N;
            // SAFETY: references, sums and each of `value_dim` rows have a vector `v` (clause).
            unsafe {
                let law = Merge::of(L::load(isa, earlier.m.add(o)), L::load(isa, later.m.add(o)));
                law.m.store(earlier.m.add(o));
                let at = earlier.s.add(o);
                law.apply(L::load(isa, at), L::load(isa, later.s.add(o))).store(at);
                for x in 0..value_dim {
                    let o = (x * V + v) * L::N;
                    let at = earlier.w.add(o);
                    // This is `Merge::apply`, without stalls on subnormal products.
                    let (a, b) = (L::load(isa, at), L::load(isa, later.w.add(o)));
                    a.shrunk(law.earlier).plus(b.shrunk(law.later)).store(at);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn finish(isa: L::Isa, sums: &Sums, value_dim: usize) {
        let zero = L::splat(isa, 0.0);
        let one = L::splat(isa, 1.0);
        let row = V * L::N;
        // SAFETY: references, sums and each of `value_dim` rows have `V` vectors (clause).
        unsafe {
            let mut inverse = [zero; V];
            for v in 0..V {
                let m = L::load(isa, sums.m.add(v * L::N));
                let s = L::load(isa, sums.s.add(v * L::N));
                // Without an attended key, `W` and `S` are zero, and `W · S` is zero. A NaN score makes `S` and the
                // result NaN.
                inverse[v] = m.if_present(one.over(s), s);
            }
            for x in 0..value_dim / 2 {
                multiply_rows::<L, V, 2>(isa, sums.w.add(2 * x * row), &inverse);
            }
            if !value_dim.is_multiple_of(2) {
                multiply_rows::<L, V, 1>(isa, sums.w.add((value_dim - 1) * row), &inverse);
            }
        }
    }

    #[inline(always)]
    unsafe fn scores(isa: L::Isa, tile: &Tile, block: &Block, dst: *mut f32, top: *mut f32) {
        // SAFETY: `scores` has the same clauses as this function.
        unsafe {
            let largest = scores::scores::<L, R, V, PANELS>(isa, tile, block, dst);
            if !top.is_null() {
                for v in 0..V {
                    largest[v].store(top.add(v * L::N));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn softmax(isa: L::Isa, p: *mut f32, count: usize, sums: &Sums) {
        // SAFETY: `softmax` has the same clauses as this function.
        unsafe { softmax::softmax::<L, V>(isa, p, count, sums) }
    }

    #[inline(always)]
    unsafe fn accumulate(
        isa: L::Isa,
        tile: &Tile,
        block: &Block,
        p: *const f32,
        sums: &Sums,
        [raised, first]: [bool; 2],
    ) {
        let raised = if raised { Raised::of::<L>(block) } else { Raised::Not };
        // SAFETY: `add_block` has the same clauses as this function.
        unsafe { values::add_block::<L, R, V>(isa, block, tile.value_dim, p, sums.w, first, raised) }
    }
}
