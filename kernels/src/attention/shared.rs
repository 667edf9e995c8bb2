//! The two products of the kernel for few queries, for rows that share their keys and values.
//!
//! ```text
//! naive:  for each row r, for each key j:                    s[r][j] = Σ_x q_r[x] · k_j[x]
//!         for each row r, for each key j, for each dim x:    W[r][x] += p[r][j] · v_j[x]
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *A load serves several products.* `R` rows and `K` keys have `R · K` dot products. They advance together along the
//!    dims, so a vector that is loaded is multiplied `K` times if it belongs to a query, and `R` times if it belongs to a
//!    key. In the weighted sum, a vector of a value is multiplied `R` times.
//! 2. *Independent chains.* One dot product is a chain of dependent multiply-adds. The `R · K` products of a step are
//!    independent of each other and hide the latency.
//! 3. *Keys are read in groups of four neighbouring rows, each row from beginning to end.* Hardware prefetching follows
//!    this order.
//! 4. *Four sums across lanes at once* ([`Lanes::lane_sums`]) need far fewer instructions than four single ones.
//! 5. *Four weights of a row are loaded at once* where a lane of a register can be a factor ([`Lanes::Quad`]).
//! 6. *The order of a row's additions depends neither on `R` nor on `K`.* So a row gets the same bits alone and together.

use super::kernel::Block;
use super::modify::{biased, capped, is_plain};
use crate::lanes::{Lanes, MAX_LANES};
use crate::product::{CHAIN, for_quad};

/// Number of keys whose dot products are computed at once.
const KEYS_AT_ONCE: usize = 4;

/// Returns the number of pairs of vectors of a query that an iteration of these dot products reads. More pairs take less
/// time to count iterations and to move pointers; a head of 64 dims should still have whole iterations.
const fn pairs_at_once<L: Lanes>() -> usize {
    if L::UNROLL == 4 { 4 } else { 2 }
}

/// Returns the largest number of rows whose products fit the registers: `4 · R` sums and the vectors of a step.
pub const fn most_rows<L: Lanes>() -> usize {
    if L::MANY_REGISTERS { 4 } else { 2 }
}

/// Multiplies `S` vectors of `R` queries, at dim `x`, by the corresponding vectors of the `K` keys at `keys`. Adds the
/// products to their sums in the order of the dims.
///
/// # Safety
/// - The clauses of [`dots`]; `x + S · N` is at most `d`.
#[inline(always)]
unsafe fn multiply<L: Lanes, const R: usize, const K: usize, const S: usize>(
    isa: L::Isa,
    queries: &[*const f32; R],
    keys: *const f32,
    stride: usize,
    x: usize,
    acc: &mut [[L; K]; R],
) {
    // SAFETY: each vector lies within the values of its query or of its key (clauses).
    unsafe {
        let mut q = [[L::splat(isa, 0.0); S]; R];
        for r in 0..R {
            for i in 0..S {
                q[r][i] = L::load(isa, queries[r].add(x + i * L::N));
            }
        }
        for k in 0..K {
            let row = keys.add(k * stride + x);
            for i in 0..S {
                let key = L::load(isa, row.add(i * L::N));
                for r in 0..R {
                    acc[r][k] = key.mul_add(q[r][i], acc[r][k]);
                }
            }
        }
    }
}

/// Computes the dot products of `R` queries with the `K` keys at `keys`, in chains of at most [`CHAIN`] dims per lane.
///
/// # Safety
/// - `d` values are readable at each of `queries`. `K` rows of `d` values, `stride` apart, are readable at `keys`.
#[inline(always)]
unsafe fn dots<L: Lanes, const R: usize, const K: usize>(
    isa: L::Isa,
    queries: &[*const f32; R],
    keys: *const f32,
    stride: usize,
    d: usize,
) -> [[f32; K]; R] {
    let zero = L::splat(isa, 0.0);
    let mut total = [[0.0; K]; R];
    let whole = d / L::N * L::N;
    let mut x = 0;
    // SAFETY: vectors end at or before `d`, and so do the elements after them (clause).
    unsafe {
        while x < whole {
            let end = whole.min(x + CHAIN * L::N);
            let mut acc = [[zero; K]; R];
            while x + 2 * pairs_at_once::<L>() * L::N <= end {
                // The registers have room for the sums and for two vectors of each query.
                multiply::<L, R, K, 2>(isa, queries, keys, stride, x, &mut acc);
                multiply::<L, R, K, 2>(isa, queries, keys, stride, x + 2 * L::N, &mut acc);
                if pairs_at_once::<L>() == 4 {
                    multiply::<L, R, K, 2>(isa, queries, keys, stride, x + 4 * L::N, &mut acc);
                    multiply::<L, R, K, 2>(isa, queries, keys, stride, x + 6 * L::N, &mut acc);
                }
                x += 2 * pairs_at_once::<L>() * L::N;
            }
            while x < end {
                multiply::<L, R, K, 1>(isa, queries, keys, stride, x, &mut acc);
                x += L::N;
            }
            for r in 0..R {
                if K == 4 {
                    let sums = L::lane_sums([acc[r][0], acc[r][1 % K], acc[r][2 % K], acc[r][3 % K]]);
                    for k in 0..K {
                        total[r][k] += sums[k];
                    }
                } else {
                    for k in 0..K {
                        total[r][k] += acc[r][k].lane_sum();
                    }
                }
            }
        }
        while x < d {
            for r in 0..R {
                for k in 0..K {
                    total[r][k] += queries[r].add(x).read() * keys.add(k * stride + x).read();
                }
            }
            x += 1;
        }
    }
    total
}

/// Writes the scores of `R` rows with the block's keys, each padded with `−∞` to a whole vector.
///
/// # Safety
/// - `head_dim` values are readable at each of `queries`, and the clauses of [`Block`] hold for each row.
/// - Each of `dst` is writable for the block's number of keys, rounded up to a multiple of [`MAX_LANES`].
#[inline(always)]
pub unsafe fn scores<L: Lanes, const R: usize>(
    isa: L::Isa,
    queries: &[*const f32; R],
    head_dim: usize,
    block: &Block,
    dst: &[*mut f32; R],
) {
    let (stride, n) = (block.key_stride, block.count);
    let mut j = 0;
    // SAFETY: keys below the count are readable; each row's scores have room for the count (clauses).
    unsafe {
        while j + KEYS_AT_ONCE <= n {
            let keys = block.keys.add(j * stride);
            let s = dots::<L, R, KEYS_AT_ONCE>(isa, queries, keys, stride, head_dim);
            for r in 0..R {
                dst[r].add(j).cast::<[f32; KEYS_AT_ONCE]>().write_unaligned(s[r]);
            }
            j += KEYS_AT_ONCE;
        }
        while j < n {
            let s = dots::<L, R, 1>(isa, queries, block.keys.add(j * stride), stride, head_dim);
            for r in 0..R {
                dst[r].add(j).write(s[r][0]);
            }
            j += 1;
        }
        for r in 0..R {
            modify::<L>(isa, block, dst[r]);
        }
    }
}

/// Applies soft cap and bias to the scores of a row, and pads the scores with `−∞` to a whole vector.
///
/// # Safety
/// - The clauses of [`Block`] for one row. `dst` contains the block's scores, and is writable as [`scores`] requires.
#[inline(always)]
unsafe fn modify<L: Lanes>(isa: L::Isa, block: &Block, dst: *mut f32) {
    let n = block.count;
    // SAFETY: `dst` has room for the count rounded up to a whole vector (clause).
    unsafe {
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

/// Returns `true` if the bias masks key `j`. A masked key adds nothing, even if its value is not finite.
///
/// # Safety
/// - The clauses of [`Block`] for one row; `j` is below the block's number of keys.
#[inline(always)]
unsafe fn is_masked(block: &Block, j: usize) -> bool {
    // SAFETY: a bias that is not null covers key `j` (clauses).
    unsafe { !block.bias.is_null() && block.bias.add(j).read() == f32::NEG_INFINITY }
}

/// Adds the block's weighted values to the sums of `R` rows in the `S` vectors that start at dim `x`.
///
/// # Safety
/// - The clauses of [`add`]; `x + S · N` is at most `value_dim`.
#[inline(always)]
unsafe fn strip<L: Lanes, const R: usize, const S: usize>(
    isa: L::Isa,
    block: &Block,
    x: usize,
    p: &[*const f32; R],
    w: &[(*mut f32, bool); R],
) {
    let mut acc = [[L::splat(isa, 0.0); S]; R];
    let (values, stride) = (block.values.wrapping_add(x), block.value_stride);
    let mut j = 0;
    // SAFETY: key `j` of the block has the dims of the strip, and each row has a weight for it (clauses).
    unsafe {
        if L::QUAD_IN_REGISTER && block.bias.is_null() {
            while j + 4 <= block.count {
                let mut weights = [L::quad(isa, p[0].add(j)); R];
                for r in 1..R {
                    weights[r] = L::quad(isa, p[r].add(j));
                }
                let rows = values.add(j * stride);
                for_quad!(|J| {
                    let row = rows.add(J as usize * stride);
                    for i in 0..S {
                        let value = L::load(isa, row.add(i * L::N));
                        for r in 0..R {
                            acc[r][i] = acc[r][i].mul_add_quad::<J>(value, weights[r]);
                        }
                    }
                });
                j += 4;
            }
        }
        while j < block.count {
            if !is_masked(block, j) {
                let row = values.add(j * stride);
                let mut weights = [L::splat(isa, 0.0); R];
                for r in 0..R {
                    weights[r] = L::splat(isa, p[r].add(j).read());
                }
                for i in 0..S {
                    let value = L::load(isa, row.add(i * L::N));
                    for r in 0..R {
                        acc[r][i] = value.mul_add(weights[r], acc[r][i]);
                    }
                }
            }
            j += 1;
        }
        for r in 0..R {
            let (w, first) = w[r];
            for i in 0..S {
                let at = w.add(x + i * L::N);
                let c = if first { acc[r][i] } else { L::load(isa, at).plus(acc[r][i]) };
                c.store(at);
            }
        }
    }
}

/// Adds the block's values, weighted by the weights `p` of each row, to the row's sums `w`. A row whose flag is set gets
/// its first block: the sums are written there, not added to.
///
/// # Safety
/// - The clauses of [`Block`] for `value_dim`. One weight per key of the block is readable at each of `p`.
/// - `value_dim` values are writable at each of `w`, and initialised unless the row's flag is set.
#[inline(always)]
pub unsafe fn add<L: Lanes, const R: usize>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    p: &[*const f32; R],
    w: &[(*mut f32, bool); R],
) {
    let mut x = 0;
    // SAFETY: strips and the dims after them end at or before `value_dim` (clauses).
    unsafe {
        if R * 8 <= 4 * most_rows::<L>() {
            while x + 8 * L::N <= value_dim {
                strip::<L, R, 8>(isa, block, x, p, w);
                x += 8 * L::N;
            }
        }
        while x + 4 * L::N <= value_dim {
            strip::<L, R, 4>(isa, block, x, p, w);
            x += 4 * L::N;
        }
        while x + L::N <= value_dim {
            strip::<L, R, 1>(isa, block, x, p, w);
            x += L::N;
        }
        while x < value_dim {
            for r in 0..R {
                let mut acc = 0.0;
                for j in 0..block.count {
                    if !is_masked(block, j) {
                        acc += p[r].add(j).read() * block.values.add(j * block.value_stride + x).read();
                    }
                }
                let (at, first) = (w[r].0.add(x), w[r].1);
                at.write(if first { acc } else { at.read() + acc });
            }
            x += 1;
        }
    }
}
