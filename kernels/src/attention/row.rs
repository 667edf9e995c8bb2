//! Operations on one query row, with lanes along dims and keys.
//!
//! ```text
//! naive:  for each key j:  s[j] = Σ_x q[x] · k_j[x]
//!         the softmax of s;  for each key j:  for each dim x:  W[x] += p[j] · v_j[x]
//! ```
//!
//! 1. *Lanes run along a row.* With one query, a tile with rows in lanes would fill only one lane. Here a score is a
//!    dot product along the key's dims and ends with one sum across lanes. Weights are computed for `N` keys at once. A
//!    weighted value is added with the lanes along its dims (`shared`).
//! 2. *Several rows at once.* The heads of a group read the same keys and values. Rows of these heads take their step
//!    through a block together ([`OneRow::together`]), so that one load of a key or a value serves several rows. A row
//!    executes the same operations alone and together.
//! 3. *The last vector of scores is padded with `−∞`*, so that maximum and weights need no code for the remainder.
//!
//! This kernel has the interface of a tile with one row, so that it shares plans, states and merges with the other
//! kernels.

use super::kernel::{Block, Budget, RowStep, Sums, Tile, TileOps};
use super::shared::{add, most_rows, scores};
use super::softmax::finite;
use super::within::row_leaves_out;
use crate::lanes::{Lanes, MAX_LANES};
use core::marker::PhantomData;
use elsa_core::state::{HEADROOM, Merge, limit};

/// Tiles of one row, computed with vectors `L`.
#[derive(Clone, Copy, Debug)]
pub struct OneRow<L>(PhantomData<L>);

/// Returns the lanes of a vector as an array; entries past `N` are `fill`.
#[inline(always)]
fn lanes<L: Lanes>(x: L, fill: f32) -> [f32; MAX_LANES] {
    let mut out = [fill; MAX_LANES];
    // SAFETY: no vector has more than `MAX_LANES` lanes.
    unsafe { x.store(out.as_mut_ptr()) };
    out
}

/// Returns the largest of `count` scores at `p`.
///
/// # Safety
/// - `p` is readable for `count` values, rounded up to a multiple of `N`.
#[inline(always)]
unsafe fn largest<L: Lanes>(isa: L::Isa, p: *const f32, count: usize) -> f32 {
    let mut top = L::splat(isa, f32::NEG_INFINITY);
    let mut j = 0;
    while j < count {
        // SAFETY: vectors end within the rounded count (clause).
        top = top.larger(unsafe { L::load(isa, p.add(j)) });
        j += L::N;
    }
    let mut largest = f32::NEG_INFINITY;
    for x in lanes(top, f32::NEG_INFINITY) {
        largest = if x > largest { x } else { largest };
    }
    largest
}

/// Raises the row's reference and rescales the sums if `largest`, the largest score, exceeds the reference by more than
/// the headroom.
///
/// # Safety
/// - The clauses of [`Sums`] hold for one row and `value_dim`; `s` and `w` are initialised unless `first` is set.
#[inline(always)]
unsafe fn raise<L: Lanes>(isa: L::Isa, largest: f32, sums: &Sums, value_dim: usize, first: bool) {
    // SAFETY: the sums consist of one reference, one row sum and `value_dim` weighted sums (clause).
    unsafe {
        let m = if first { f32::NEG_INFINITY } else { sums.m.read() };
        // This is the rule of `raised`. The vector unit rounds the target, as it does for a tile.
        if largest > limit(m, HEADROOM) {
            let [target, ..] = lanes(L::splat(isa, largest).nearest(), 0.0);
            let merge = Merge::of(m, target);
            sums.m.write(merge.m);
            if !first {
                *sums.s *= merge.earlier;
                for x in 0..value_dim {
                    *sums.w.add(x) *= merge.earlier;
                }
            }
        } else if first {
            sums.m.write(m);
        }
    }
}

/// Converts `count` scores at `p` to weights in place and returns their sum.
///
/// # Safety
/// - `p` is readable and writable for `count` values, rounded up to a multiple of `N`. `m` is readable for one value.
#[inline(always)]
unsafe fn weigh<L: Lanes>(isa: L::Isa, p: *mut f32, count: usize, m: *const f32) -> f32 {
    let zero = L::splat(isa, 0.0);
    let mut sum = zero;
    let mut j = 0;
    // SAFETY: vectors end within the rounded count (clause).
    unsafe {
        let reference = finite(isa, L::splat(isa, m.read()));
        while j < count {
            let weight = L::load(isa, p.add(j)).minus(reference).weight();
            weight.store(p.add(j));
            sum = sum.plus(weight);
            j += L::N;
        }
    }
    sum.lane_sum()
}

/// Takes one step with `R` rows: their scores together, then the weights of each row, then their weighted sums together.
///
/// # Safety
/// - The clauses of [`OneRow::together`].
#[inline(always)]
unsafe fn steps<L: Lanes, const R: usize>(isa: L::Isa, rows: &[RowStep; R], block: &Block) {
    let mut queries = [core::ptr::null(); R];
    let mut p = [core::ptr::null_mut(); R];
    for r in 0..R {
        (queries[r], p[r]) = (rows[r].tile.query, rows[r].tile.weights);
    }
    let [head_dim, value_dim] = [rows[0].tile.head_dim, rows[0].tile.value_dim];
    let mut w = [(core::ptr::null_mut(), false); R];
    // SAFETY: the clauses are the same; weights have room for the block rounded up to `MAX_LANES` (clause of `Tile`).
    unsafe {
        scores::<L, R>(isa, &queries, head_dim, block, &p);
        for r in 0..R {
            let (RowStep { sums, first, .. }, p) = (&rows[r], p[r]);
            raise::<L>(isa, largest::<L>(isa, p, block.count), sums, value_dim, *first);
            let sum = weigh::<L>(isa, p, block.count, sums.m);
            sums.s.write(if *first { sum } else { sums.s.read() + sum });
            w[r] = (sums.w, *first);
        }
        add::<L, R>(isa, block, value_dim, &p.map(|p| p.cast_const()), &w);
    }
}

impl<L: Lanes> OneRow<L> {
    /// Takes a step ([`TileOps::step`]) with each of several rows that have the same keys and values.
    ///
    /// # Safety
    /// - The clauses of [`TileOps::step`] for each row, with the block and with the row's tile and sums. The bias of the
    ///   block applies to all rows.
    /// - All rows have the same head sizes. The weights and the sums of a row overlap those of no other row.
    #[inline(always)]
    pub unsafe fn together(isa: L::Isa, mut rows: &[RowStep], block: &Block) {
        // SAFETY: the callees' clauses are those of this function.
        unsafe {
            if most_rows::<L>() == 4 {
                while let Some((four, rest)) = rows.split_first_chunk::<4>() {
                    steps::<L, 4>(isa, four, block);
                    rows = rest;
                }
            }
            while let Some((two, rest)) = rows.split_first_chunk::<2>() {
                steps::<L, 2>(isa, two, block);
                rows = rest;
            }
            for row in rows {
                steps::<L, 1>(isa, core::array::from_ref(row), block);
            }
        }
    }
}

impl<L: Lanes> TileOps for OneRow<L> {
    type Isa = L::Isa;

    #[inline(always)]
    unsafe fn step(isa: L::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool) {
        // SAFETY: the clauses are the same.
        unsafe { steps::<L, 1>(isa, &[RowStep { tile: *tile, sums: *sums, first }], block) }
    }

    #[inline(always)]
    unsafe fn decide(isa: L::Isa, tile: &Tile, block: &Block, sums: &Sums, budget: &mut Budget, first: bool) {
        let (p, dv) = (tile.weights, tile.value_dim);
        // SAFETY: the clauses of `step` hold, and so do the clauses of the budget, which `row_leaves_out` requires.
        unsafe {
            let before = if first { f32::NEG_INFINITY } else { sums.m.read() };
            // If the reference is zero, it is never raised, because no score exceeds the limit of the first reference.
            let top = if budget.near_zero { 0.0 } else { budget.top.read() };
            raise::<L>(isa, top, sums, dv, first);
            let sum = weigh::<L>(isa, p, block.count, sums.m);
            if !row_leaves_out::<L>(isa, block, dv, sums, budget, before, sum, first) {
                sums.s.write(if first { sum } else { sums.s.read() + sum });
            }
        }
    }

    #[inline(always)]
    unsafe fn weigh(isa: L::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool) {
        // SAFETY: the scores are padded to a whole vector with `−∞`; the sums have one reference and one row sum
        // (clauses).
        unsafe {
            let zero = 0.0f32;
            if first {
                sums.m.write(zero);
            }
            // The padding of the last vector is `−∞` and adds nothing to the sum.
            let sum = weigh::<L>(isa, tile.weights, block.count, &zero);
            sums.s.write(if first { sum } else { sums.s.read() + sum });
        }
    }

    #[inline(always)]
    unsafe fn merge(isa: L::Isa, earlier: &Sums, later: &Sums, value_dim: usize) {
        // SAFETY: both states have one reference, one row sum and `value_dim` weighted sums (clause).
        unsafe {
            let law = Merge::of(earlier.m.read(), later.m.read());
            earlier.m.write(law.m);
            earlier.s.write(law.apply(earlier.s.read(), later.s.read()));
            let lanes = Merge {
                m: L::splat(isa, law.m),
                earlier: L::splat(isa, law.earlier),
                later: L::splat(isa, law.later),
            };
            let mut x = 0;
            while x + L::N <= value_dim {
                let at = earlier.w.add(x);
                lanes.apply(L::load(isa, at), L::load(isa, later.w.add(x))).store(at);
                x += L::N;
            }
            while x < value_dim {
                let at = earlier.w.add(x);
                at.write(law.apply(at.read(), later.w.add(x).read()));
                x += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn finish(_: L::Isa, sums: &Sums, value_dim: usize) {
        // SAFETY: the state has one reference, one row sum and `value_dim` weighted sums (clause).
        unsafe {
            let (m, s) = (sums.m.read(), sums.s.read());
            // Without an attended key, `W` and `S` are zero, and `W · S` is zero. A NaN score makes `S` and the result
            // NaN.
            let inverse = if m == f32::NEG_INFINITY { s } else { 1.0 / s };
            for x in 0..value_dim {
                let at = sums.w.add(x);
                at.write(at.read() * inverse + 0.0);
            }
        }
    }

    #[inline(always)]
    unsafe fn scores(isa: L::Isa, tile: &Tile, block: &Block, dst: *mut f32, top: *mut f32) {
        // SAFETY: the clauses are the same; the scores are padded to a whole vector.
        unsafe {
            scores::<L, 1>(isa, &[tile.query], tile.head_dim, block, &[dst]);
            if !top.is_null() {
                top.write(largest::<L>(isa, dst, block.count));
            }
        }
    }

    #[inline(always)]
    unsafe fn softmax(isa: L::Isa, p: *mut f32, count: usize, sums: &Sums) {
        // SAFETY: the clauses are the same; with a value size of zero no weighted sum is accessed.
        unsafe {
            raise::<L>(isa, largest::<L>(isa, p, count), sums, 0, true);
            sums.s.write(weigh::<L>(isa, p, count, sums.m));
        }
    }

    #[inline(always)]
    unsafe fn accumulate(
        isa: L::Isa,
        tile: &Tile,
        block: &Block,
        p: *const f32,
        sums: &Sums,
        [_, first]: [bool; 2],
    ) {
        // SAFETY: `add` has the same clauses as this function.
        unsafe { add::<L, 1>(isa, block, tile.value_dim, &[p], &[(sums.w, first)]) }
    }
}
