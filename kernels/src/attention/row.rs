//! Operations on one query row, with lanes along dims and keys.
//!
//! ```text
//! naive:  for each key j:  s[j] = Σ_x q[x] · k_j[x]
//!         the softmax of s;  for each key j:  for each dim x:  W[x] += p[j] · v_j[x]
//! ```
//!
//! 1. *Lanes run along a row.* With one query, a tile with rows in lanes would fill only one lane. Here a score is a
//!    dot product along the key's dims and ends with one sum across lanes. Weights are computed for `N` keys at once. A
//!    weighted value is added with the lanes along its dims.
//! 2. *The time for a key is the time to load it*, so a long cache is read at memory speed. Keys are read in groups of
//!    four neighbouring rows, each row from beginning to end. Hardware prefetching follows this order.
//! 3. *Several keys at once.* One dot product is a chain of dependent multiply-adds, but the dot products of four keys
//!    are independent of each other. They share each vector of the query that is loaded.
//! 4. *The last vector of scores is padded with `−∞`*, so that maximum and weights need no code for the remainder.
//!
//! This kernel has the interface of a tile with one row, so that it shares plans, states and merges with the other
//! kernels.

use super::kernel::{Block, Budget, Sums, Tile, TileOps};
use super::modify::{biased, capped, is_plain};
use super::softmax::finite;
use super::within::row_leaves_out;
use crate::lanes::{Lanes, MAX_LANES};
use crate::product::CHAIN;
use core::marker::PhantomData;
use elsa_core::state::{HEADROOM, Merge, limit};

/// Number of keys whose dot products are computed at once.
const KEYS_AT_ONCE: usize = 4;
/// Number of query vectors that one step of the dot products loads. The number is large enough for registers to be
/// loaded in pairs.
const VECTORS_AT_ONCE: usize = 4;

/// Tiles of one row, computed with vectors `L`.
#[derive(Clone, Copy, Debug)]
pub struct OneRow<L>(PhantomData<L>);

/// Multiplies `S` vectors of the query by the corresponding vectors of the `K` keys at `keys`, and adds each key's
/// products to its sum in the order of the dims.
///
/// # Safety
/// - `S · N` values are readable at `query`. `K` rows of `S · N` values, `stride` apart, are readable at `keys`.
#[inline(always)]
unsafe fn multiply<L: Lanes, const K: usize, const S: usize>(
    isa: L::Isa,
    query: *const f32,
    keys: *const f32,
    stride: usize,
    acc: &mut [L; K],
) {
    // SAFETY: each vector lies within the values of the query or of its key (clause).
    unsafe {
        let mut q = [L::splat(isa, 0.0); S];
        for i in 0..S {
            q[i] = L::load(isa, query.add(i * L::N));
        }
        for k in 0..K {
            let row = keys.add(k * stride);
            for i in 0..S {
                acc[k] = L::load(isa, row.add(i * L::N)).mul_add(q[i], acc[k]);
            }
        }
    }
}

/// Computes dot products of the query with the `K` keys at `keys`, in chains of at most [`CHAIN`] dims per lane.
///
/// # Safety
/// - `d` values are readable at `query`. `K` rows of `d` values, `stride` apart, are readable at `keys`.
#[inline(always)]
unsafe fn dots<L: Lanes, const K: usize>(
    isa: L::Isa,
    query: *const f32,
    keys: *const f32,
    stride: usize,
    d: usize,
) -> [f32; K] {
    let zero = L::splat(isa, 0.0);
    let mut total = [0.0; K];
    let whole = d / L::N * L::N;
    let mut x = 0;
    // SAFETY: vectors end at or before `d`, and so do the elements after them (clause).
    unsafe {
        while x < whole {
            let end = whole.min(x + CHAIN * L::N);
            let mut acc = [zero; K];
            while x + VECTORS_AT_ONCE * L::N <= end {
                multiply::<L, K, VECTORS_AT_ONCE>(isa, query.add(x), keys.add(x), stride, &mut acc);
                x += VECTORS_AT_ONCE * L::N;
            }
            while x < end {
                multiply::<L, K, 1>(isa, query.add(x), keys.add(x), stride, &mut acc);
                x += L::N;
            }
            for k in 0..K {
                total[k] += acc[k].lane_sum();
            }
        }
        while x < d {
            for k in 0..K {
                total[k] += query.add(x).read() * keys.add(k * stride + x).read();
            }
            x += 1;
        }
    }
    total
}

/// Writes the block's scores to `dst`, padded with `−∞` to a whole vector.
///
/// # Safety
/// - The clauses of [`Tile`] and [`Block`] hold for one row.
/// - `dst` is writable for as many values as the block has keys, rounded up to a multiple of [`MAX_LANES`].
#[inline(always)]
unsafe fn scores<L: Lanes>(isa: L::Isa, tile: &Tile, block: &Block, dst: *mut f32) {
    let (d, n) = (tile.head_dim, block.count);
    let mut j = 0;
    // SAFETY: keys below the count are readable; `dst` has room for the count rounded up to a whole vector (clauses).
    unsafe {
        while j + KEYS_AT_ONCE <= n {
            let keys = block.keys.add(j * block.key_stride);
            let s = dots::<L, KEYS_AT_ONCE>(isa, tile.query, keys, block.key_stride, d);
            dst.add(j).cast::<[f32; KEYS_AT_ONCE]>().write_unaligned(s);
            j += KEYS_AT_ONCE;
        }
        while j < n {
            let [s] =
                dots::<L, 1>(isa, tile.query, block.keys.add(j * block.key_stride), block.key_stride, d);
            dst.add(j).write(s);
            j += 1;
        }
        for j in n..n.next_multiple_of(L::N) {
            dst.add(j).write(f32::NEG_INFINITY);
        }
        if is_plain(block) {
            return;
        }
        let masked = L::splat(isa, f32::NEG_INFINITY);
        let cap = L::splat(isa, block.cap);
        let mut j = 0;
        while j < n {
            let mut s = L::load(isa, dst.add(j));
            if block.cap != 0.0 {
                s = capped(isa, s, cap);
            }
            if !block.bias.is_null() {
                // The bias ends with the block's last key, so its last elements are copied to a whole vector.
                let mut line = [f32::NEG_INFINITY; MAX_LANES];
                line.as_mut_ptr().copy_from_nonoverlapping(block.bias.add(j), L::N.min(n - j));
                s = biased(s, L::load(isa, line.as_ptr()), masked);
            }
            s.store(dst.add(j));
            j += L::N;
        }
        // A soft cap has made the lanes past the last key finite.
        for j in n..n.next_multiple_of(L::N) {
            dst.add(j).write(f32::NEG_INFINITY);
        }
    }
}

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

/// Returns `true` if the bias masks key `j`. A masked key adds nothing, even if its value is not finite.
///
/// # Safety
/// - The clauses of [`Block`] hold for one row; `j` is below the block's number of keys.
#[inline(always)]
unsafe fn is_masked(block: &Block, j: usize) -> bool {
    // SAFETY: a bias that is not null covers key `j` (clauses).
    unsafe { !block.bias.is_null() && block.bias.add(j).read() == f32::NEG_INFINITY }
}

/// Adds the block's weighted values to `w` in the `S` vectors that start at dim `x`, or writes them there if `first` is
/// set.
///
/// # Safety
/// - The clauses of [`add`] hold; `x + S · N` is at most `value_dim`.
#[inline(always)]
unsafe fn strip<L: Lanes, const S: usize>(
    isa: L::Isa,
    block: &Block,
    x: usize,
    p: *const f32,
    w: *mut f32,
    first: bool,
) {
    let mut acc = [L::splat(isa, 0.0); S];
    // SAFETY: key `j` of the block has the dims of the strip (clause).
    unsafe {
        for j in 0..block.count {
            if is_masked(block, j) {
                continue;
            }
            let weight = L::splat(isa, p.add(j).read());
            let row = block.values.add(j * block.value_stride + x);
            for i in 0..S {
                acc[i] = L::load(isa, row.add(i * L::N)).mul_add(weight, acc[i]);
            }
        }
        for i in 0..S {
            let at = w.add(x + i * L::N);
            let c = if first { acc[i] } else { L::load(isa, at).plus(acc[i]) };
            c.store(at);
        }
    }
}

/// Adds the block's weighted values to `w`, or writes them there if `first` is set.
///
/// # Safety
/// - The clauses of [`Block`] hold for `value_dim`; one weight per key of the block is readable at `p`.
/// - `value_dim` values are writable at `w`. They are initialised unless `first` is set.
#[inline(always)]
unsafe fn add<L: Lanes>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    p: *const f32,
    w: *mut f32,
    first: bool,
) {
    let mut x = 0;
    // SAFETY: strips and the dims after them end at or before `value_dim` (clauses).
    unsafe {
        while x + 8 * L::N <= value_dim {
            strip::<L, 8>(isa, block, x, p, w, first);
            x += 8 * L::N;
        }
        while x + 4 * L::N <= value_dim {
            strip::<L, 4>(isa, block, x, p, w, first);
            x += 4 * L::N;
        }
        while x + L::N <= value_dim {
            strip::<L, 1>(isa, block, x, p, w, first);
            x += L::N;
        }
        while x < value_dim {
            let mut acc = 0.0;
            for j in 0..block.count {
                if !is_masked(block, j) {
                    acc += p.add(j).read() * block.values.add(j * block.value_stride + x).read();
                }
            }
            let at = w.add(x);
            at.write(if first { acc } else { at.read() + acc });
            x += 1;
        }
    }
}

impl<L: Lanes> TileOps for OneRow<L> {
    type Isa = L::Isa;

    #[inline(always)]
    unsafe fn step(isa: L::Isa, tile: &Tile, block: &Block, sums: &Sums, first: bool) {
        let p = tile.weights;
        // SAFETY: the clauses are the same; weights have room for the block rounded up to `MAX_LANES` (clause of
        // `Tile`).
        unsafe {
            scores::<L>(isa, tile, block, p);
            raise::<L>(isa, largest::<L>(isa, p, block.count), sums, tile.value_dim, first);
            let sum = weigh::<L>(isa, p, block.count, sums.m);
            sums.s.write(if first { sum } else { sums.s.read() + sum });
            add::<L>(isa, block, tile.value_dim, p, sums.w, first);
        }
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
            scores::<L>(isa, tile, block, dst);
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
        unsafe { add::<L>(isa, block, tile.value_dim, p, sums.w, first) }
    }
}
