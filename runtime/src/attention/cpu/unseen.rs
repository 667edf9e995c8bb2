//! Lets the rows of a tile vote on unseen blocks: if an error budget permits skipping and numbers are added to scores,
//! a tile may skip a block before any product of the block is computed.
//!
//! **The formula** is that of [`unseen_weight`](elsa_core::attention::traversal::unseen_weight): an upper bound of the
//! block's weights is computed from the largest number added to a row's scores in the block and from the product of
//! norms. Then [`fits`](elsa_core::attention::traversal::fits) decides.
//!
//! **The naive loop:**
//!
//! ```text
//! for each row i:  top = max over keys of bias[j][i];  b[i] = unseen_weight(count, top, reach(‖q_i‖, max ‖k‖), m[i])
//! if all fit:      D += b, and the block is done
//! ```
//!
//! **Why the code differs.**
//!
//! 1. *A block that cannot be skipped is detected early.* Biases that decrease with distance are largest in a corner of
//!    the tile and the block. A row that objects to a corner value ends the vote, because the maximum of all elements
//!    is at least as large.
//! 2. *The decision is compiled once*, and not separately for each instruction set. So decisions depend only on the
//!    bias and the totals.
//! 3. *`b` is also added to the sums of the segment*, relative to the segment's reference. A segment that begins with a
//!    skipped block adopts the reference of the totals. If a segment's reference is so far below the reference of the
//!    totals that `b` is not finite relative to the segment's reference, the tile processes the block.
//! 4. *The smallest possible weight of a row's own key* replaces the weights of the keys that the row has not visited,
//!    until the tile reaches its own blocks ([`diagonal`](super::diagonal)). Until a row has visited a key, its
//!    reference is the rounded lower bound of its own key's score.
//! 5. *Keys and values are measured block by block* before any tile begins ([`norms`](super::norms)). They are not copied
//!    to the worker's region.

use super::bias::Bias;
use super::context::{Context, TileRows};
use super::measure::measured;
use super::norms::{Known, known};
use elsa_core::attention::Operand;
use elsa_core::attention::measured::norm;
use elsa_core::attention::traversal::{fits, own_weight, reach, unseen_weight};
use elsa_core::state::Merge;
use elsa_kernels::attention::{Budget, Sums};

/// Writes the norm of each row of a tile to `to`, multiplied by the query factor and rounded up.
///
/// # Safety
/// - The invariants of [`Context`] hold. `to` is writable for one value per row.
pub(super) unsafe fn write_norms(c: &Context<'_>, tile: &TileRows<'_>, to: *mut f32) {
    let query = c.tensor(Operand::Query);
    let dim = query.view.dim();
    for i in 0..tile.rows.len() {
        let rows = measured(&query, (tile.sequence.batch, tile.head, tile.token() + i), 1);
        let mut found = [0.0; 2];
        // SAFETY: the row is in the tile (*inputs*), `found` has two numbers, and `to` has a value per row (clause);
        // *kernel*.
        unsafe {
            (c.kernel.measure.norms)(&rows, found.as_mut_ptr());
            let scaled = norm(found, dim) * f64::from(c.query_factor).abs();
            to.add(i).write((scaled as f32).next_up());
        }
    }
}

/// The data that a tile needs to vote on a block before it reads the block's keys.
pub(super) struct Vote<'a> {
    pub rows: TileRows<'a>,
    /// Index of the tile's sequence. `block` is the index of the block within that sequence.
    pub index: usize,
    pub block: usize,
    /// Number of keys of the block.
    pub count: usize,
    /// Bias added to the scores of the block.
    pub bias: Bias,
    /// The norms of the rows, from [`write_norms`].
    pub norms: *const f32,
    /// Lower bound of the score of each row's own key ([`diagonal`](super::diagonal)); `None` once the tile has reached
    /// a block that contains the own key of one of its rows.
    pub own: Option<*const f32>,
}

/// The vote of a row.
struct Row {
    /// Reference of the row's sums. Before the row has visited a key, this is the reference that the sums will have.
    m: f32,
    /// Upper bound of the sum of the block's weights.
    b: f32,
    /// `true` if the block may be skipped.
    agrees: bool,
}

impl Vote<'_> {
    /// Computes the vote of row `i`. The numbers added to the row's scores in the block must be at most `top`.
    ///
    /// # Safety
    /// - The clauses of [`Vote::passes`] hold.
    unsafe fn row(&self, c: &Context<'_>, key: f64, budget: &Budget, i: usize, top: f32) -> Row {
        let line = |n: usize| budget.totals.wrapping_add(n * self.rows.width + i);
        // SAFETY: the norms and the totals have a row `i`, and the callees' clauses are those of this function.
        let (query, own, m, s, d) = unsafe {
            let [met, s, d] = [0, 1, 2].map(|n| line(n).read());
            (self.norms.add(i).read(), self.own(i), self.reference(met, i), s, d)
        };
        let reach = reach(query.into(), key, c.problem.head_dim(), c.cap);
        let b = unseen_weight(self.count as u32, top, reach, m);
        // Weights include the kernel's scale. A row that attends no key skips nothing.
        let scale = c.kernel.spec.weight_scale as f32;
        let b = if b == 0.0 { b } else { (b * scale.next_up()).next_up() };
        let own = own_weight(own, m) * scale.next_down();
        Row { m, b, agrees: fits(if own > s { own } else { s }, d, b, budget.odds) }
    }

    /// Returns the lower bound of the score of row `i`'s own key; `−∞` if `own` is absent.
    ///
    /// # Safety
    /// - The clauses of [`Vote::passes`] hold.
    unsafe fn own(&self, i: usize) -> f32 {
        // SAFETY: there is a lower bound for row `i` (clause).
        self.own.map_or(f32::NEG_INFINITY, |own| unsafe { own.add(i).read() })
    }

    /// Returns the reference of row `i`. It is `met`, the reference in the row's totals, unless the totals are empty. If
    /// they are empty, it is the rounded lower bound of the score of the row's own key.
    ///
    /// # Safety
    /// - The clauses of [`Vote::passes`] hold.
    unsafe fn reference(&self, met: f32, i: usize) -> f32 {
        // SAFETY: the callee's clauses are those of this function.
        if met == f32::NEG_INFINITY { unsafe { self.own(i) }.round_ties_even() } else { met }
    }

    /// Compares the numbers that are added to the scores of row `i` for the first and the last key of the block, and
    /// returns the larger number; `−∞` if both keys are masked.
    ///
    /// # Safety
    /// - The clauses of [`Vote::passes`] hold.
    unsafe fn at_the_ends(&self, i: usize) -> f32 {
        let Bias { data, is_row, .. } = self.bias;
        if data.is_null() {
            return 0.0;
        }
        let mut top = f32::NEG_INFINITY;
        for key in [0, self.count - 1] {
            let at = if is_row { key } else { key * self.rows.width + i };
            // SAFETY: the bias has an element for the key and the row (clauses).
            top = larger(top, unsafe { data.add(at).read() });
        }
        top
    }

    /// For each row, writes to `to` the largest number that is added to any of the row's scores in the block.
    ///
    /// # Safety
    /// - The clauses of [`Vote::passes`] hold. `width` values are writable at `to`.
    unsafe fn write_tops(&self, to: *mut f32) {
        let (width, Bias { data, is_row, .. }) = (self.rows.width, self.bias);
        // SAFETY: for each key, the bias has `width` values, or one value if all rows share it; `to` has `width` values
        // (clauses).
        unsafe {
            if data.is_null() || is_row {
                let keys = if data.is_null() { 0 } else { self.count };
                let masked = if data.is_null() { 0.0 } else { f32::NEG_INFINITY };
                let top = (0..keys).fold(masked, |top, key| larger(top, data.add(key).read()));
                (0..width).for_each(|i| to.add(i).write(top));
                return;
            }
            let mut first = 0;
            while first < width {
                let (data, to) = (data.add(first), to.add(first));
                first += match width - first {
                    16.. => tops::<16>(data, self.count, width, to),
                    4.. => tops::<4>(data, self.count, width, to),
                    _ => tops::<1>(data, self.count, width, to),
                };
            }
        }
    }

    /// Returns `true` if the tile skips the block. In this case, `budget.top` contains, for every row, the upper bound
    /// of the sum of the block's weights. `sums` is the state of the block's segment, if the segment has begun.
    ///
    /// # Safety
    /// - The invariants of [`Context`] hold. The plan votes on unseen blocks. The keys and values of each block have
    ///   been measured. The block belongs to the sequence, and the bias is readable like the bias of an
    ///   `elsa_kernels::attention::Block`.
    /// - The clauses of [`Budget`] hold, except those that concern `left_out`. The clauses of [`Sums`] hold for the
    ///   tile's width.
    pub(super) unsafe fn passes(&self, c: &Context<'_>, sums: Option<&Sums>, budget: &Budget) -> bool {
        let rows = self.rows.rows.len();
        // SAFETY: the part has been measured, and the totals, `top`, the state and its skipped sums have a row `i`
        // (clauses).
        unsafe {
            let Known { key, value, .. } =
                known(c, self.index, c.problem.kv_head(self.rows.head), self.block);
            if !value.is_finite() {
                return false;
            }
            for i in [0, rows - 1] {
                if !self.row(c, key, budget, i, self.at_the_ends(i)).agrees {
                    return false;
                }
            }
            self.write_tops(budget.top);
            for i in 0..rows {
                let at = budget.top.add(i);
                let row = self.row(c, key, budget, i, at.read());
                let state = |sums: &Sums| beside(sums, (row.m, row.b), i).is_finite();
                if !(row.agrees && sums.is_none_or(state)) {
                    return false;
                }
                at.write(row.b);
            }
        }
        true
    }

    /// Adds the upper bound of the weights of a skipped block to `D` in the totals and in `sums`, which is the state of
    /// the block's segment. If `first`, initialises `sums`.
    ///
    /// # Safety
    /// - The clauses of [`Vote::passes`] hold, and [`Vote::passes`] has returned `true`. `budget.left_out` belongs to
    ///   `sums`.
    pub(super) unsafe fn leave_out(&self, c: &Context<'_>, sums: &Sums, budget: &Budget, first: bool) {
        let (rows, width) = (self.rows.rows.len(), self.rows.width);
        // SAFETY: the totals, `top`, the state, its skipped sums and its weighted sums have a row `i` (clauses).
        unsafe {
            for i in 0..width {
                let line = |n: usize| budget.totals.add(n * width + i);
                let b = if i < rows { budget.top.add(i).read() } else { 0.0 };
                let m = if b > 0.0 { self.reference(line(0).read(), i) } else { line(0).read() };
                line(0).write(m);
                if first {
                    sums.m.add(i).write(m);
                    sums.s.add(i).write(0.0);
                    budget.left_out.add(i).write(b);
                } else if b > 0.0 {
                    let own = beside(sums, (m, b), i);
                    let (state, d) = (sums.m.add(i), budget.left_out.add(i));
                    if sums.s.add(i).read() == 0.0 {
                        let law = Merge::of(state.read(), m);
                        state.write(law.m);
                        d.write(d.read() * law.earlier);
                    }
                    d.write(d.read() + own);
                }
                let d = line(2);
                d.write(d.read() + b);
            }
            if first {
                sums.w.write_bytes(0, c.choice.value_dim * width);
            }
        }
    }
}

/// Converts `b` from the reference `m` of the totals to the reference of row `i` of a state that has begun. Returns `b`
/// unchanged if the row has kept no key, because the row then adopts the reference of the totals.
///
/// # Safety
/// - The clauses of [`Sums`] hold. The state has a row `i`.
unsafe fn beside(sums: &Sums, (m, b): (f32, f32), i: usize) -> f32 {
    // SAFETY: the references and the sums have a row `i` (clause).
    let (own, s) = unsafe { (sums.m.add(i).read(), sums.s.add(i).read()) };
    // `earlier` is a power of two, so the quotient is exact. If the state is too far below, `earlier` is zero.
    if b == 0.0 || s == 0.0 { b } else { b / Merge::of(own, m).earlier }
}

/// Writes the maximum of each of `N` columns to `to`, over `count` lines that are `width` values apart, and returns
/// `N`. The maximum of a column with a NaN is NaN.
///
/// # Safety
/// - `N` values of each line are readable, and `N` values are writable at `to`.
unsafe fn tops<const N: usize>(data: *const f32, count: usize, width: usize, to: *mut f32) -> usize {
    let mut tops = [f32::NEG_INFINITY; N];
    for key in 0..count {
        // SAFETY: `N` values of the line are readable (clause).
        let line = unsafe { data.add(key * width).cast::<[f32; N]>().read() };
        for (top, x) in tops.iter_mut().zip(line) {
            *top = larger(*top, x);
        }
    }
    // SAFETY: `N` values are writable at `to` (clause).
    unsafe { to.cast::<[f32; N]>().write(tops) };
    N
}

/// Returns the larger of two numbers; NaN if either number is NaN.
fn larger(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}
