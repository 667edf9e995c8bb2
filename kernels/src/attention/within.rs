//! Takes steps within an error budget: a block with small enough weights is left out before its values are read.
//!
//! **The formula.** Let `E` be the budget. Let `S` be a row's sum of the weights kept so far, `D` its sum of the
//! weights left out so far, and `b` the sum of its weights in the block. A tile leaves the block out if every row
//! satisfies
//!
//! ```text
//! D + b ≤ E (S + D + b),     that is   D + b ≤ E / (1 − E) · S
//! ```
//!
//! **The naive loop**, after the weights of the block:
//!
//! ```text
//! for each row i:  b[i] = Σ_j p[j][i];  fits[i] = D[i] + b[i] ≤ odds · S[i]
//! if all fit:      D += b
//! else:            S += b;  W += Σ_j p[j] v_j
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *A row's decision covers all blocks so far.* If it covered only the blocks of its segment, the first block of
//!    every segment would be kept. So totals of `S` and `D` are kept in addition to the sums of the segment's state.
//!    The totals are relative to the largest reference so far. States are merged and returned in the same way as
//!    without a budget, and carry `D` as a fourth sum.
//! 2. *Padded rows, past the last row of a tile, take no part in the decision*, because they would always object to
//!    leaving a block out.
//! 3. *Values that are not finite are kept.* A block is checked for such values only after all rows have agreed to
//!    leave it out.
//! 4. *The step without a budget is unchanged* ([`TileOps::step`](super::kernel::TileOps::step)). A second instance of
//!    this function for budgets would be as large as the first instance, so a step within a budget uses the products of
//!    method math. This module has only the code between these products. If no block is left out, steps with and
//!    without a budget write the same bits, because both add the same numbers to the sums that they have in common.
//! 5. *References rarely change.* This holds for the references of the state and for the references of the totals,
//!    which are mostly equal. While references do not change, all factors are one, and a row needs only two comparisons
//!    for its references.

use super::kernel::{Block, Budget, Sums};
use super::values;
use crate::lanes::Lanes;
use elsa_core::attention::traversal::fits;
use elsa_core::state::{Merge, Number};

/// Returns `true` if all values of the block are finite. Computes `budget.largest` first if it is negative.
///
/// # Safety
/// - The clauses of [`Block`] hold for `value_dim`.
#[inline(always)]
unsafe fn is_finite<L: Lanes>(isa: L::Isa, block: &Block, value_dim: usize, budget: &mut Budget) -> bool {
    if budget.largest < 0.0 {
        // SAFETY: `largest` has the same clauses as this function.
        unsafe { values::largest::<L>(isa, block, value_dim, &mut budget.largest) };
    }
    budget.largest.is_finite()
}

/// Returns `true` if the tile leaves out the block. `b` contains the sums of the block's weights. `before` contains the
/// references before the block, or `−∞` if `sums` receives its first block (`first`). The function rescales `D` to the
/// new references and adds `b` to the sums of the kept or of the left-out weights. It does not add `b` to the `S` of
/// the state; the caller does. If the first block is left out, the function writes zeros to `sums`.
///
/// # Safety
/// - The clauses of [`Block`] and [`Budget`] hold, and the clauses of [`Sums`] hold for `V` vectors. The references of
///   the sums are initialised.
#[inline(always)]
pub unsafe fn leaves_out<L: Lanes, const V: usize>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    sums: &Sums,
    budget: &mut Budget,
    before: &[L; V],
    b: &[L; V],
    first: bool,
) -> bool {
    let width = V * L::N;
    let zero = L::splat(isa, 0.0);
    let odds = L::splat(isa, budget.odds);
    let (least, normal) = (L::splat(isa, f32::from_bits(1)), L::splat(isa, f32::MIN_POSITIVE));
    let [mut s, mut d, mut own, mut added] = [[zero; V], [zero; V], [zero; V], *b];
    let (mut agree, mut settled) = (true, true);
    budget.moved = false;
    // SAFETY: references, `D` and each line of the totals have a vector `v`; the weighted sums are accessible
    // (clauses).
    unsafe {
        for v in 0..V {
            let line = |n: usize| budget.totals.add(n * width + v * L::N);
            let (m, total) = (L::load(isa, sums.m.add(v * L::N)), L::load(isa, line(0)));
            let moved = !first && m.any_greater(before[v]);
            settled &= !(moved || m.any_greater(total) || total.any_greater(m));
            s[v] = L::load(isa, line(1));
            d[v] = L::load(isa, line(2));
            if !first {
                own[v] = L::load(isa, budget.left_out.add(v * L::N));
            }
        }
        if !settled {
            for v in 0..V {
                let line = |n: usize| budget.totals.add(n * width + v * L::N);
                let m = L::load(isa, sums.m.add(v * L::N));
                budget.moved |= before[v].if_present(m, before[v]).any_greater(before[v]);
                own[v] = own[v].times(Merge::of(before[v], m).earlier);
                let law = Merge::of(L::load(isa, line(0)), m);
                law.m.store(line(0));
                s[v] = s[v].times(law.earlier);
                d[v] = d[v].times(law.earlier);
                added[v] = b[v].times(law.later);
            }
        }
        for v in 0..V {
            let line = |n: usize| budget.totals.add(n * width + v * L::N);
            // As in `fits`, a sum of zero always fits, and any other sum fits only if the room is a normal number.
            let counts = L::load(isa, line(3)).if_greater(zero, added[v], zero);
            let sum = least.if_greater(counts, zero, d[v].plus(added[v]));
            let room = odds.times(s[v]);
            let room = normal.if_greater(room, zero, least.if_greater(counts, zero, room));
            agree &= sum.all_at_most(room);
        }
        budget.skipped = agree && is_finite::<L>(isa, block, value_dim, budget);
        if settled && !first && !budget.skipped {
            for v in 0..V {
                s[v].plus(added[v]).store(budget.totals.add(width + v * L::N));
            }
            return false;
        }
        for v in 0..V {
            let line = |n: usize| budget.totals.add(n * width + v * L::N);
            if budget.skipped {
                d[v] = d[v].plus(added[v]);
                own[v] = own[v].plus(b[v]);
            } else {
                s[v] = s[v].plus(added[v]);
            }
            s[v].store(line(1));
            d[v].store(line(2));
            own[v].store(budget.left_out.add(v * L::N));
            if budget.skipped && first {
                zero.store(sums.s.add(v * L::N));
                for x in 0..value_dim {
                    zero.store(sums.w.add((x * V + v) * L::N));
                }
            }
        }
    }
    budget.skipped
}

/// Decides like [`leaves_out`] for one row, which always takes part in the decision.
///
/// # Safety
/// - The clauses of [`leaves_out`] hold for a tile of one row.
#[inline(always)]
pub unsafe fn row_leaves_out<L: Lanes>(
    isa: L::Isa,
    block: &Block,
    value_dim: usize,
    sums: &Sums,
    budget: &mut Budget,
    before: f32,
    b: f32,
    first: bool,
) -> bool {
    let zero = 0.0f32;
    // SAFETY: the row has one reference, one `D`, four totals and `value_dim` weighted sums (clauses).
    unsafe {
        let (m, [total, s, d, _]) = (sums.m.read(), budget.totals.cast::<[f32; 4]>().read());
        budget.moved = before > f32::NEG_INFINITY && m > before;
        let own = if first { zero } else { budget.left_out.read() * Merge::of(before, m).earlier };
        let law = Merge::of(total, m);
        let (s, d, added) = (s.times(law.earlier), d.times(law.earlier), b.times(law.later));
        let agree = fits(s, d, added, budget.odds);
        budget.skipped = agree && is_finite::<L>(isa, block, value_dim, budget);
        let (s, d, own) = match budget.skipped {
            true => (s, d + added, own + b),
            false => (s + added, d, own),
        };
        budget.totals.cast::<[f32; 3]>().write([law.m, s, d]);
        budget.left_out.write(own);
        if budget.skipped && first {
            sums.s.write(zero);
            sums.w.write_bytes(0, value_dim);
        }
    }
    budget.skipped
}
