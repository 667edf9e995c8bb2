//! Computes attention with any schedule, without threads, vector instructions or an allocator.
//!
//! Rows are computed in tiles, blocks of keys are cut by position alone, and each row has one state from its first block to
//! its last. The weights of a block are added in one chain, as are its weighted values, and the sums of the blocks are
//! added in the order of the visits. [`crate::attention::scalar`] recomputes rows that the guard rejects. With
//! [`Schedule::EXACT`] it computes every row, so all bits are those of that module.
//!
//! The bits of a row depend on the other rows of its tile, because the rows of a tile share the representatives of keys and
//! decide together which blocks are skipped. The bits do not depend on the batch or on other heads, and they are
//! reproducible.

use super::guard::Exponents;
use super::proxy::Summary;
use super::report::{Spoilt, TraversalReport};
use super::room::{LeftOut, Room, RowRoom, Sheet, TileSize, scratch_len};
use super::setting::{First, Movers, Order, Schedule, Skip};
use super::thinned::{fits, odds, share};
use super::unseen::{at_most, foresees, own_score, own_weight, reach, unseen_weight};
use super::visits::{Visit, own_blocks, visits};
use crate::argument::ArgumentError;
use crate::attention::bound::{Arithmetic, Norms};
use crate::attention::certificate::{self, Executed};
use crate::attention::data::{Inputs, Outputs};
use crate::attention::pairs::{self, CHAIN, Pairs, Present};
use crate::attention::problem::Problem;
use crate::attention::scalar;
use crate::attention::sequence::Sequence;
use crate::state::{NaturalState, State, raised, weight};
use core::ops::Range;

/// Name of the arithmetic.
const NAME: &str = "attention_f32_tiled__scalar_exp2_libm";

/// Returns the structure and the arithmetic that [`run`] executes, for the bounds of accepted rows. For recomputed
/// rows, see [`crate::attention::scalar::executed`].
#[must_use]
pub fn executed(problem: &Problem, schedule: &Schedule, tile: TileSize) -> Executed {
    let exact = scalar::executed(problem);
    if schedule.is_exact() {
        return exact;
    }
    let keys = problem.keys();
    let blocks = keys.div_ceil(tile.keys.max(1));
    let additions = keys.min(tile.keys).saturating_sub(1) + blocks;
    let in_order = schedule.order == Order::Sequential && schedule.skip == Skip::Never;
    let chain = if in_order { tile.keys } else { 0 };
    Executed {
        kernel: NAME,
        block: tile.keys,
        segment_blocks: blocks,
        merge_depth: 0,
        additions,
        into_s: additions,
        into_w: additions,
        chain: problem.head_dim().min(CHAIN),
        order: certificate::Order {
            lanes: 1,
            values: chain,
            weights: chain,
            segment: if in_order { blocks.saturating_mul(tile.keys) } else { 0 },
            references: 0,
            normalizes: false,
        },
        ..exact
    }
}

/// Computes the entire problem with a schedule. All arguments are checked before anything is written.
///
/// Log-sum-exp covers all keys: it is the logarithm of `S + D`, not of `S` alone. If blocks are skipped before their
/// weights are computed, `D` is an upper bound, and so is log-sum-exp.
///
/// # Errors
/// Returns an error if the schedule or the tile is invalid, if inputs or outputs do not match the problem, or if `room` is
/// too small.
pub fn run(
    problem: &Problem,
    schedule: &Schedule,
    tile: TileSize,
    inputs: &Inputs<'_>,
    outputs: &mut Outputs<'_>,
    left_out: &mut LeftOut<'_>,
    room: &mut Room<'_>,
) -> Result<TraversalReport, ArgumentError> {
    schedule.check()?;
    tile.check()?;
    inputs.check(problem)?;
    outputs.check(problem)?;
    for (argument, list) in [("left_out_d", &left_out.d), ("left_out_share", &left_out.share)] {
        if let Some(list) = list
            && list.len() != problem.rows()
        {
            let (axis, found, allowed) = ("elements", list.len(), problem.rows());
            return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of: "the output" });
        }
    }
    let needed = scratch_len(problem, tile).unwrap_or(usize::MAX);
    for (argument, found, needed) in
        [("scratch", room.floats.len(), needed), ("scratch_rows", room.rows.len(), tile.rows)]
    {
        if found < needed {
            return Err(ArgumentError::Short { argument, found, needed });
        }
    }
    let mut report = TraversalReport::default();
    if schedule.is_exact() {
        scalar::run(problem, inputs, outputs, room.floats)?;
        for list in [&mut left_out.d, &mut left_out.share].into_iter().flatten() {
            list.fill(0.0);
        }
        let queries = |index| problem.sequence(&inputs.lengths, index).queries;
        let rows: usize = (0..problem.sequences()).map(queries).sum();
        report.accepted = (rows * problem.heads()) as u64;
        return Ok(report);
    }
    scalar::write_present(problem, inputs, outputs);
    let presents = [outputs.present_key.take(), outputs.present_value.take()];
    let call = Call::new(problem, schedule, tile, inputs, pairs::present(problem, presents.each_ref()));
    for index in 0..problem.sequences() {
        let sequence = problem.sequence(&inputs.lengths, index);
        for head in 0..problem.heads() {
            for start in (0..sequence.queries).step_by(tile.rows) {
                let rows = start..sequence.queries.min(start + tile.rows);
                call.tile(&sequence, head, rows, room, &mut report, &mut |answer| {
                    let Answer { row, mut state, d, share } = answer;
                    let natural_d = NaturalState::of(state.m, state.s, 1.0, false).w(d);
                    pairs::write_row(problem, outputs, &sequence, head, row, &mut state, d);
                    let at = pairs::number(problem, &sequence, head, row);
                    for (list, x) in [(&mut left_out.d, natural_d), (&mut left_out.share, share)] {
                        if let Some(list) = list {
                            list[at] = x;
                        }
                    }
                });
            }
        }
    }
    [outputs.present_key, outputs.present_value] = presents;
    Ok(report)
}

/// The result of a row.
#[derive(Debug)]
pub struct Answer<'a> {
    /// Index of the row within its sequence.
    pub row: usize,
    /// State of the row, in base-2 units.
    pub state: State<&'a mut [f32]>,
    /// Sum `D` of the weights that the row skipped, in the units of the state.
    pub d: f32,
    /// The upper bound of `D / (S + D)`.
    pub share: f32,
}

/// A call whose tiles may be computed one by one, in any order.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    problem: &'a Problem,
    schedule: &'a Schedule,
    tile: TileSize,
    inputs: &'a Inputs<'a>,
    present: Present<'a>,
    odds: f32,
    log_lambda: f32,
    additions: usize,
    foresees: bool,
}

impl<'a> Call<'a> {
    /// Creates a call with a schedule other than [`Schedule::EXACT`]. Schedule, tile and inputs must have been checked,
    /// and the present tensors must have been written.
    #[must_use]
    pub fn new(
        problem: &'a Problem,
        schedule: &'a Schedule,
        tile: TileSize,
        inputs: &'a Inputs<'a>,
        present: Present<'a>,
    ) -> Call<'a> {
        let additions = executed(problem, schedule, tile).into_s;
        let (odds, log_lambda) = match schedule.skip {
            Skip::Never => (0.0, f32::NEG_INFINITY),
            Skip::Budget(budget) => (odds(budget, additions), f32::NEG_INFINITY),
            Skip::Blocks(lambda) | Skip::Rows(lambda) => (0.0, libm::log2f(lambda)),
        };
        let foresees = foresees(problem, schedule);
        Call { problem, schedule, tile, inputs, present, odds, log_lambda, additions, foresees }
    }

    /// Computes the tile that consists of the rows `rows` of query head `head`, passes the result of each row to
    /// `take`, and adds the counters to `report`. `room` must have at least [`scratch_len`] numbers and one record per
    /// row of a tile.
    pub fn tile(
        &self,
        sequence: &Sequence,
        head: usize,
        rows: Range<usize>,
        room: &mut Room<'_>,
        report: &mut TraversalReport,
        take: &mut dyn FnMut(Answer<'_>),
    ) {
        let (any, all) = sequence.ranges(rows.clone());
        let walk = Walk { call: self, sequence, head, rows, any, all };
        let mut sheet = Sheet::of(self.problem, self.tile, walk.rows.len(), room);
        let gated = walk.visit(&mut sheet, report);
        walk.finish(&mut sheet, gated, report, take);
    }
}

/// Returns the larger of two magnitudes; NaN if either is NaN.
fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// Returns the Euclidean norm of `d` elements, or slightly more.
fn norm(d: usize, element: impl Fn(usize) -> f32) -> f64 {
    let squares: f64 = (0..d).map(|x| f64::from(element(x)) * f64::from(element(x))).sum();
    libm::sqrt(squares) * (1.0 + 1e-9)
}

/// The computation of one tile of query rows: the rows, and the keys that they attend.
struct Walk<'a> {
    call: &'a Call<'a>,
    sequence: &'a Sequence,
    head: usize,
    rows: Range<usize>,
    /// The keys that some row may attend; `all` are the keys that lengths, causality and window allow for every row.
    any: Range<usize>,
    all: Range<usize>,
}

impl Walk<'_> {
    /// Visits the blocks of the tile. Returns `true` if the norm gate was open.
    fn visit(&self, sheet: &mut Sheet<'_>, report: &mut TraversalReport) -> bool {
        let d = self.call.problem.head_dim();
        for (i, query) in self.rows.clone().zip(sheet.queries.chunks_exact_mut(d)) {
            pairs::query(self.call.problem, self.call.inputs, self.sequence, self.head, i, query);
        }
        let pairs =
            Pairs::new(self.call.problem, self.call.inputs, self.call.present, self.sequence, self.head);
        let gated = self.call.schedule.gate && self.is_near_zero(&pairs);
        if gated {
            sheet.rows.iter_mut().for_each(|row| row.m = 0.0);
        } else {
            self.first(&pairs, sheet);
        }
        if self.call.foresees {
            self.own(&pairs, sheet);
        }
        let own = own_blocks(self.sequence, &self.rows, self.call.tile.keys);
        let blocks = self.any.start / self.call.tile.keys..self.any.end.div_ceil(self.call.tile.keys);
        for visit in visits(self.call.schedule.order, blocks, own.clone()) {
            if own.contains(&visit.block) {
                sheet.rows.iter_mut().for_each(|row| row.own = f32::NEG_INFINITY);
            }
            self.block(&pairs, visit, gated, sheet, report);
        }
        gated
    }

    /// Computes, for every row, a lower bound of the score of the key on the row's diagonal.
    fn own(&self, pairs: &Pairs<'_>, sheet: &mut Sheet<'_>) {
        let (d, cap) = (self.call.problem.head_dim(), self.call.problem.score_factors().1);
        let lines = sheet.rows.iter_mut().zip(sheet.queries.chunks_exact(d));
        for (i, (row, query)) in self.rows.clone().zip(lines) {
            let Ok(j) = usize::try_from(self.sequence.offset().saturating_add_unsigned(i)) else { continue };
            if let Some(added) = self.addend(pairs, i, j) {
                let products =
                    query.iter().enumerate().map(|(x, q)| f64::from(*q) * f64::from(pairs.key(j, x)));
                row.own = own_score(products, cap, added);
            }
        }
    }

    /// Returns the number added to the score of row `i` and key `j`; `None` if the row may not attend the key.
    fn addend(&self, pairs: &Pairs<'_>, i: usize, j: usize) -> Option<f32> {
        let (start, end) = self.sequence.range(i);
        if !(start..end).contains(&j) {
            return None;
        }
        Some(pairs.addend(i, j)).filter(|added| *added != f32::NEG_INFINITY)
    }

    /// Returns `true` if every score of the tile is known to stay near zero.
    fn is_near_zero(&self, pairs: &Pairs<'_>) -> bool {
        let (d, dv) = (self.call.problem.head_dim(), self.call.problem.value_dim());
        let mut norms = Norms { query: 0.0, key: 0.0, bias: 0.0 };
        let mut value = 0.0;
        for i in self.rows.clone() {
            let token = self.sequence.query0 + i;
            let at = self.call.problem.spec().query.row(self.sequence.batch, self.head, token);
            norms.query = larger(norms.query, norm(d, |x| self.call.inputs.query.get(at + x)));
        }
        for j in self.any.clone() {
            let mut attended = false;
            for added in self.rows.clone().filter_map(|i| self.addend(pairs, i, j)) {
                attended = true;
                // Added numbers are in base-2 units.
                norms.bias =
                    larger(norms.bias, f64::from(added.abs()) * core::f64::consts::LN_2 * (1.0 + 1e-9));
            }
            if attended {
                norms.key = larger(norms.key, norm(d, |x| pairs.key(j, x)));
                let (values, v) = pairs.value(j);
                value = (0..dv).map(|x| f64::from(values.get(v + x)).abs()).fold(value, larger);
            }
        }
        let executed = scalar::executed(self.call.problem);
        Arithmetic::of(self.call.problem, executed).stays_near_zero(self.call.problem.keys(), &norms, value)
    }

    /// Sets the first reference of each row.
    fn first(&self, pairs: &Pairs<'_>, sheet: &mut Sheet<'_>) {
        let First::Proxy { keys, queries, block } = self.call.schedule.first else { return };
        let d = self.call.problem.head_dim();
        let Sheet { rows, queries: loaded, key, query, .. } = sheet;
        let shared = queries.summary();
        if let Some(summary) = shared {
            for (n, vector) in loaded.chunks_exact(d).take(rows.len()).enumerate() {
                summary.absorb(query, n, |x| vector[x]);
            }
            summary.finish(query, rows.len());
        }
        // During the search, largest scores are stored in place of references.
        let size = block.unwrap_or(self.call.tile.keys);
        let mut from = self.all.start;
        while from < self.all.end {
            let end = self.all.end.min((from / size).saturating_add(1).saturating_mul(size));
            let n = self.summarize(pairs, keys.summary(), from..end, key);
            from = end;
            if n == 0 {
                continue;
            }
            let raise = |row: &mut RowRoom, score: f32| {
                if score > row.m {
                    row.m = score;
                }
            };
            if shared.is_some() {
                let score = pairs.capped(query, |x| key[x]);
                rows.iter_mut().for_each(|row| raise(row, score));
            } else {
                for (row, vector) in rows.iter_mut().zip(loaded.chunks_exact(d)) {
                    raise(row, pairs.capped(vector, |x| key[x]));
                }
            }
        }
        for row in rows.iter_mut() {
            row.m = if row.m.is_finite() { libm::rintf(row.m) } else { f32::NEG_INFINITY };
        }
    }

    /// Summarises, in `to`, the keys in `keys` that every row of the tile attends. Returns their number.
    fn summarize(&self, pairs: &Pairs<'_>, summary: Summary, keys: Range<usize>, to: &mut [f32]) -> usize {
        let mut n = 0;
        for j in keys {
            if self.rows.clone().all(|i| self.addend(pairs, i, j).is_some()) {
                summary.absorb(to, n, |x| pairs.key(j, x));
                n += 1;
            }
        }
        if n > 0 {
            summary.finish(to, n);
        }
        n
    }

    /// Processes one block of keys, or skips it.
    fn block(
        &self,
        pairs: &Pairs<'_>,
        visit: Visit,
        gated: bool,
        sheet: &mut Sheet<'_>,
        report: &mut TraversalReport,
    ) {
        let start = visit.block * self.call.tile.keys;
        let keys = start.max(self.any.start)..start.saturating_add(self.call.tile.keys).min(self.any.end);
        if self.call.foresees && self.leaves_unseen(pairs, &keys, sheet) {
            report.count(sheet.rows);
            report.unseen_blocks += 1;
            return;
        }
        self.score(pairs, keys.clone(), sheet);
        if sheet.rows.iter().all(|row| row.attended == 0) {
            return;
        }
        let finite = || self.has_finite_values(pairs, keys.clone());
        if self.call.log_lambda > f32::NEG_INFINITY {
            for row in sheet.rows.iter_mut() {
                // The comparison is false for a row without a reference and for a NaN, so neither skips a block.
                row.skips = row.attended > 0 && row.top - row.m < self.call.log_lambda;
            }
            let stands = |row: &RowRoom| row.attended == 0 || row.skips;
            let agreed = match self.call.schedule.skip {
                Skip::Rows(_) => sheet.rows.iter().any(|row| row.skips),
                _ => sheet.rows.iter().all(stands),
            };
            if !(agreed && finite()) {
                sheet.rows.iter_mut().for_each(|row| row.skips = false);
            }
        }
        let moves = !gated && (visit.special || self.call.schedule.movers == Movers::All);
        if moves || self.call.log_lambda > f32::NEG_INFINITY {
            report.sought_row_blocks += sheet.rows.iter().filter(|row| row.attended > 0).count() as u64;
        }
        self.weigh(moves, keys.len(), sheet);
        if self.call.odds > 0.0 {
            let fits = |row: &RowRoom| row.attended == 0 || fits(row.s, row.d, row.sum, self.call.odds);
            if sheet.rows.iter().all(fits) && finite() {
                for row in sheet.rows.iter_mut().filter(|row| row.attended > 0) {
                    row.d += row.sum;
                    row.skips = true;
                }
            }
        }
        self.accumulate(pairs, keys, sheet);
        report.count(sheet.rows);
    }

    /// Returns `true` if the tile skips a block before its scores are computed. In this case, adds an upper bound of
    /// the block's weights to the `D` of every row that attends a key of the block.
    fn leaves_unseen(&self, pairs: &Pairs<'_>, keys: &Range<usize>, sheet: &mut Sheet<'_>) -> bool {
        let (d, cap) = (self.call.problem.head_dim(), self.call.problem.score_factors().1);
        let key = keys.clone().map(|j| norm(d, |x| pairs.key(j, x))).fold(0.0, larger);
        for ((i, row), query) in
            self.rows.clone().zip(sheet.rows.iter_mut()).zip(sheet.queries.chunks_exact(d))
        {
            *row = row.before_block();
            for added in keys.clone().filter_map(|j| self.addend(pairs, i, j)) {
                row.attended += 1;
                // A NaN replaces the largest added number and stays.
                row.top = if added > row.top || added.is_nan() { added } else { row.top };
            }
            let m = row.reference();
            row.sum = unseen_weight(row.attended, row.top, reach(norm(d, |x| query[x]), key, d, cap), m);
            let least = own_weight(row.own, m);
            if !fits(if least > row.s { least } else { row.s }, row.d, row.sum, self.call.odds) {
                return false;
            }
        }
        if sheet.rows.iter().all(|row| row.attended == 0) || !self.has_finite_values(pairs, keys.clone()) {
            return false;
        }
        for row in sheet.rows.iter_mut().filter(|row| row.attended > 0) {
            row.m = row.reference();
            row.d += row.sum;
            row.skips = true;
        }
        true
    }

    /// Computes the scores of a block. For every row, sets the number of attended keys and the largest score, which is
    /// NaN if any score is NaN.
    fn score(&self, pairs: &Pairs<'_>, keys: Range<usize>, sheet: &mut Sheet<'_>) {
        let d = self.call.problem.head_dim();
        let lines = sheet.queries.chunks_exact(d).zip(sheet.scores.chunks_exact_mut(self.call.tile.keys));
        for ((i, row), (query, scores)) in self.rows.clone().zip(sheet.rows.iter_mut()).zip(lines) {
            *row = row.before_block();
            for (j, to) in keys.clone().zip(scores) {
                let score = self.addend(pairs, i, j).map(|added| pairs.score(query, j, added));
                *to = score.unwrap_or(f32::NEG_INFINITY);
                if *to == f32::NEG_INFINITY {
                    continue;
                }
                row.attended += 1;
                if *to > row.top || to.is_nan() {
                    row.top = *to;
                }
                // A NaN stays in `top`, because no number exceeds it.
            }
        }
    }

    /// Turns scores into weights in rows that keep the block. If `moves` is set or the row has no reference, moves the
    /// reference first. Rows that skip the block add an upper bound of its weights to `D`.
    fn weigh(&self, moves: bool, keys: usize, sheet: &mut Sheet<'_>) {
        let dv = self.call.problem.value_dim();
        let lines =
            sheet.scores.chunks_exact_mut(self.call.tile.keys).zip(sheet.weighted.chunks_exact_mut(dv));
        for (row, (scores, w)) in sheet.rows.iter_mut().zip(lines).filter(|(row, _)| row.attended > 0) {
            if row.skips {
                row.d += at_most(row.attended, row.top - row.m);
                row.lost = if row.top > row.lost { row.top } else { row.lost };
                continue;
            }
            if moves || row.m == f32::NEG_INFINITY {
                let m = raised(row.m, row.top, self.call.schedule.threshold);
                if m > row.m {
                    row.raise(m, w);
                }
            }
            row.exponents.see(row.top - row.m);
            row.kept = if row.top > row.kept { row.top } else { row.kept };
            for to in scores[..keys].iter_mut() {
                *to = if *to == f32::NEG_INFINITY { *to } else { weight(*to, row.m) };
                row.sum += if *to == f32::NEG_INFINITY { 0.0 } else { *to };
            }
        }
    }

    /// Adds the weights and weighted values of a block to the sums of the rows that keep it.
    fn accumulate(&self, pairs: &Pairs<'_>, keys: Range<usize>, sheet: &mut Sheet<'_>) {
        let dv = self.call.problem.value_dim();
        let lines = sheet.scores.chunks_exact(self.call.tile.keys).zip(sheet.weighted.chunks_exact_mut(dv));
        let kept = |row: &RowRoom| row.attended > 0 && !row.skips;
        for (row, (weights, w)) in sheet.rows.iter_mut().zip(lines).filter(|(row, _)| kept(row)) {
            sheet.product.fill(0.0);
            for (j, weight) in keys.clone().zip(weights).filter(|(_, w)| **w != f32::NEG_INFINITY) {
                let (values, v) = pairs.value(j);
                for (x, to) in sheet.product.iter_mut().enumerate() {
                    *to += weight * values.get(v + x);
                }
            }
            row.s += row.sum;
            for (to, x) in w.iter_mut().zip(sheet.product.iter()) {
                *to += x;
            }
        }
    }

    /// Returns `true` if the values of `keys` are finite. Ignores the values of keys that no row of the tile attends.
    fn has_finite_values(&self, pairs: &Pairs<'_>, mut keys: Range<usize>) -> bool {
        keys.all(|j| {
            let (values, v) = pairs.value(j);
            (0..self.call.problem.value_dim()).all(|x| values.get(v + x).is_finite())
                || !self.rows.clone().any(|i| self.addend(pairs, i, j).is_some())
        })
    }

    /// Passes the result of every row to `take`. Rows that the guard rejects are recomputed first.
    fn finish(
        &self,
        sheet: &mut Sheet<'_>,
        gated: bool,
        report: &mut TraversalReport,
        take: &mut dyn FnMut(Answer<'_>),
    ) {
        let (problem, sequence, head) = (self.call.problem, self.sequence, self.head);
        let (d, dv) = (problem.head_dim(), problem.value_dim());
        let lines = sheet.rows.iter_mut().zip(sheet.weighted.chunks_exact_mut(dv));
        for (i, (row, w)) in self.rows.clone().zip(lines) {
            let left = share(row.s, row.d, self.call.additions);
            let lost_maximum = row.lost > row.kept;
            let top = if lost_maximum { row.lost } else { row.kept };
            if top > f32::NEG_INFINITY {
                Spoilt::count([&mut report.half, &mut report.single], row.exponents.peak(), top - row.m);
            }
            report.gated += u64::from(gated);
            if self.accepts(row, w, left, gated) && !lost_maximum {
                // A row without weights is empty, regardless of its reference.
                let m = if row.s == 0.0 { f32::NEG_INFINITY } else { row.m };
                let share = if left > 0.0 { (left as f32).next_up().min(1.0) } else { 0.0 };
                take(Answer { row: i, state: State { m, s: row.s, w }, d: row.d, share });
                report.accepted += 1;
                report.share_sum += left;
                report.worst_share = report.worst_share.max(left);
            } else {
                let (query, states) = sheet.exact.split_at_mut(d);
                let state = scalar::row(
                    problem,
                    self.call.inputs,
                    self.call.present,
                    sequence,
                    head,
                    i,
                    query,
                    states,
                );
                take(Answer { row: i, state, d: 0.0, share: 0.0 });
                report.recomputed += 1;
                report.lost_maximum += u64::from(lost_maximum);
            }
        }
    }

    /// Returns `true` if a row passes the guard. `left` is the share of weights that the row skipped.
    fn accepts(&self, row: &RowRoom, w: &[f32], left: f64, gated: bool) -> bool {
        // If the row has seen no score, its reference is either unset or was set by the gate.
        let exponents = row.exponents;
        let untouched = row.kept == f32::NEG_INFINITY && row.lost == f32::NEG_INFINITY;
        if untouched && (row.m == f32::NEG_INFINITY || gated) {
            return row.s == 0.0 && exponents == Exponents::default();
        }
        let held = match self.call.schedule.skip {
            Skip::Budget(budget) => left <= f64::from(budget),
            _ => true,
        };
        held && exponents.accept(row.s, w.iter().all(|w| w.is_finite()), gated)
    }
}
