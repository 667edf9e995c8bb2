//! Runs of schedules, compared with the oracle: code that the tests of schedules share, and the hunt for violations of
//! their bounds ([`hunt`]).

pub mod hunt;
pub mod scores;

use crate::cases::{Buffers, Case, Params};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::bound::rounding::{Component, Row};
use elsa_core::attention::bound::{Arithmetic, left_out};
use elsa_core::attention::certificate::Executed;
use elsa_core::attention::traversal::scalar::{executed, run};
use elsa_core::attention::traversal::{
    LeftOut, Room, RowRoom, Schedule, Skip, TileSize, TraversalReport, scratch_len, share,
};
use elsa_core::attention::{Inputs, Problem, reference, scalar};
use elsa_core::dtype::DType;
use elsa_core::state::NaturalMerge;
use elsa_runtime::{Plan, Workspace};
use std::ops::Range;

/// Results of a run.
#[derive(Debug)]
pub struct ScheduleRun {
    /// All outputs.
    pub buffers: Buffers,
    /// Statistics that the run reported.
    pub report: TraversalReport,
    /// Sum `D` of the weights that each row skipped.
    pub d: Vec<f32>,
    /// Upper bound of `D / (S + D)` for each row.
    pub share: Vec<f32>,
}

impl ScheduleRun {
    /// Runs a plan of a case twice in one workspace, under a schedule other than the exact one, and checks that both runs
    /// are equal. Returns the first run, and the tile whose rows decide together.
    ///
    /// # Panics
    /// Panics if a run is refused, or if the second differs from the first.
    pub fn twice(case: &Case, plan: &Plan, workspace: &mut Workspace) -> (ScheduleRun, TileSize) {
        let mut once = || {
            let (buffers, _) = case.run(plan, workspace);
            let traversed = workspace.traversed().expect("a run under a schedule");
            let (d, share) = (traversed.d.to_vec(), traversed.share.to_vec());
            (ScheduleRun { buffers, report: traversed.report, d, share }, traversed.tile)
        };
        let (first, tile) = once();
        let (again, _) = once();
        assert!(same(&first.buffers, &again.buffers) && first.d == again.d && first.report == again.report);
        (first, tile)
    }
}

/// Merged states of calls with different parts of the keys: `m`, `S`, the sums `D` of the skipped weights, and `W`.
#[derive(Debug, Default)]
pub struct Merged(Option<[Vec<f32>; 4]>);

impl Merged {
    /// Merges the states `m`, `S`, `D` and `W` of another part of the keys.
    pub fn add(&mut self, part: [Vec<f32>; 4]) {
        let Some([m, s, d, w]) = self.0.take() else {
            self.0 = Some(part);
            return;
        };
        let of = |i: usize| NaturalMerge::of((m[i], s[i]), (part[0][i], part[1][i]));
        let (rows, dv) = (0..m.len(), w.len() / m.len());
        self.0 = Some([
            rows.clone().map(|i| of(i).m).collect(),
            rows.clone().map(|i| of(i).s).collect(),
            rows.map(|i| of(i).w(d[i], part[2][i])).collect(),
            (0..w.len()).map(|x| of(x / dv).w(w[x], part[3][x])).collect(),
        ]);
    }

    /// Compares the merged states with the exact rows of `problem`, which has all keys. The skipped weights must be within
    /// `budget`, and the outputs within the error bound. `near` is the allowed rounding error, and `additions` is the
    /// length of the longest chain of additions.
    ///
    /// # Panics
    /// Panics if a row exceeds its limit.
    pub fn check(&self, problem: &Problem, inputs: &Inputs<'_>, budget: f32, additions: usize, near: f64) {
        let [m, s, d, w] = self.0.as_ref().expect("a part");
        let (dv, values) = (problem.value_dim(), problem.spec().value);
        let mut y = vec![0.0; dv];
        for i in 0..m.len() {
            let row = reference::row(problem, inputs, 0, 0, i, &mut y);
            let left = share(s[i], d[i], additions);
            assert!(left <= f64::from(budget) * (1.0 + 10.0 * near), "row {i}: {left}");
            let lse = f64::from(m[i]) + (f64::from(s[i]) + f64::from(d[i])).ln();
            assert!((lse - row.lse).abs() < near, "row {i}: {lse} {}", row.lse);
            for x in 0..dv {
                let value = |j: usize| f64::from(inputs.value.get(values.row(0, 0, j) + x));
                let column = (0..problem.keys()).map(value);
                let spread = column.clone().fold(f64::MIN, f64::max) - column.fold(f64::MAX, f64::min);
                let off = (f64::from(w[i * dv + x]) / f64::from(s[i]) - y[x]).abs();
                assert!(off <= left_out(left, spread) + near, "row {i}: {off} {left}");
            }
        }
    }
}

/// Returns `true` if each element of two runs has the same bits or is NaN in both.
#[must_use]
pub fn same(a: &Buffers, b: &Buffers) -> bool {
    let alike = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let lists = [(&a.lse, &b.lse), (&a.m, &b.m), (&a.s, &b.s), (&a.w, &b.w)];
    (0..a.output.len()).all(|i| alike(a.output.get(i), b.output.get(i)))
        && lists.iter().all(|(a, b)| a.iter().zip(b.iter()).all(|(a, b)| alike(*a, *b)))
}

/// Runs a case with a schedule.
///
/// # Errors
/// Returns the error of the run.
///
/// # Panics
/// Panics if the problem of the case is refused.
pub fn try_run(case: &Case, schedule: &Schedule, tile: TileSize) -> Result<ScheduleRun, ArgumentError> {
    let problem = case.problem();
    let mut buffers = case.buffers();
    let mut floats = vec![f32::NAN; scratch_len(&problem, tile).unwrap_or(usize::MAX)];
    let mut rows = vec![RowRoom::default(); tile.rows];
    let [mut d, mut share] = [(); 2].map(|()| vec![f32::NAN; problem.rows()]);
    let mut lost = LeftOut { d: Some(&mut d), share: Some(&mut share) };
    let mut room = Room { floats: &mut floats, rows: &mut rows };
    let inputs = case.inputs();
    let report = run(&problem, schedule, tile, &inputs, &mut buffers.outputs(), &mut lost, &mut room)?;
    Ok(ScheduleRun { buffers, report, d, share })
}

/// Runs a case with a schedule, as [`try_run`] does.
///
/// # Panics
/// Panics if the case or its run is refused.
#[must_use]
pub fn ran(case: &Case, schedule: &Schedule, tile: TileSize) -> ScheduleRun {
    try_run(case, schedule, tile).unwrap_or_else(|e| panic!("{case:?}: {e}"))
}

/// Creates a case of one head from queries `q`, keys `k` and values `v`. Queries and keys are single numbers, whose
/// products are the scores in base-2 units.
///
/// # Panics
/// Panics if `q`, `k` and `v` do not make a valid problem.
#[must_use]
pub fn scored(q: &[f32], k: &[f32], v: &[f32]) -> Case {
    scored_in(DType::F32, [q, k, v])
}

/// Creates the case of [`scored`] with elements of the type `dtype`, to which `q`, `k` and `v` are rounded.
///
/// # Panics
/// Panics as [`scored`] does.
#[must_use]
pub fn scored_in(dtype: DType, [q, k, v]: [&[f32]; 3]) -> Case {
    let params = Params {
        dtype,
        scale: Some(std::f32::consts::LN_2),
        ..Params::plain(q.len(), k.len(), 1, v.len() / k.len())
    };
    let mut case = params.build("scores by hand");
    q.iter().enumerate().for_each(|(i, x)| case.q.set(i, *x));
    k.iter().enumerate().for_each(|(i, x)| case.k.set(i, *x));
    v.iter().enumerate().for_each(|(i, x)| case.v.set(i, *x));
    case
}

/// Returns the error `what` if `holds` is false.
fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// Checks every row of a run of a case without past keys: its output, its log-sum-exp, and the sum of its skipped
/// weights. `by` is the executed arithmetic. The output of a row that skipped nothing may also fit the bounds of the
/// exact run, because the exact schedule recomputes rows. Returns the largest ratio of an error to its bound.
///
/// # Errors
/// Returns a description of the first quantity that exceeds its bound.
pub fn judged(case: &Case, schedule: &Schedule, by: Executed, ran: &ScheduleRun) -> Result<f64, String> {
    let (problem, inputs) = (case.problem(), case.inputs());
    let spec = problem.spec();
    let arithmetic = Arithmetic::of(&problem, by);
    let exact = Arithmetic::of(&problem, scalar::executed(&problem));
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let mut used = 0.0f64;
    let mut y = vec![0.0; dv];
    for b in 0..problem.sequences() {
        let sequence = problem.sequence(&inputs.lengths, b);
        for head in 0..problem.heads() {
            for i in 0..sequence.queries {
                let (batch, token) = (sequence.batch, sequence.query0 + i);
                let at = (batch * problem.heads() + head) * spec.query.tokens() + token;
                let left = f64::from(ran.share[at]);
                let row = reference::row(&problem, &inputs, b, head, i, &mut y);
                let mut ln_p = Vec::new();
                reference::log_probabilities(&problem, &inputs, b, head, i, &row, |_, x| ln_p.push(x));
                let logs: Vec<f64> = ln_p.iter().map(|x| x.unwrap_or(f64::NEG_INFINITY)).collect();
                let (m, s) = (f64::from(ran.buffers.m[at]), f64::from(ran.buffers.s[at]));
                if row.lse == f64::NEG_INFINITY {
                    let empty = (m, s, ran.d[at], left) == (f64::NEG_INFINITY, 0.0, 0.0, 0.0);
                    require(empty, || format!("{case:?} row {at} is not empty: {m} {s}"))?;
                }
                let ln_s = if row.lse.is_finite() { row.lse - m } else { 0.0 };
                let mut frozen = Row::frozen(arithmetic, &logs, ln_s);
                let mut again = Row::new(exact, &logs);
                let new = |a: &Arithmetic| y.iter().map(|y| Component::new(a, *y)).collect::<Vec<_>>();
                let (mut one, mut two) = (new(&arithmetic), new(&exact));
                let q0 = spec.query.row(batch, head, token);
                let q: Vec<f32> = (0..d).map(|x| inputs.query.get(q0 + x)).collect();
                let mut size = 0.0f64;
                for (j, _) in ln_p.iter().enumerate().filter(|(_, x)| x.is_some()) {
                    let k0 = spec.key.row(batch, problem.kv_head(head), sequence.key0 + j);
                    let v0 = spec.value.row(batch, problem.kv_head(head), sequence.key0 + j);
                    let bias = reference::bias_magnitude(&problem, &inputs, b, head, i, j);
                    let score = arithmetic.score(&q, |x| inputs.key.get(k0 + x));
                    size = size.max(score.magnitude + bias);
                    let keys = [frozen.absorb(j, &score, bias), again.absorb(j, &score, bias)];
                    for x in 0..dv {
                        let v = f64::from(inputs.value.get(v0 + x));
                        one[x].absorb(&keys[0], v);
                        two[x].absorb(&keys[1], v);
                    }
                }
                let to = spec.output.row(batch, head, token);
                for x in 0..dv {
                    let found = f64::from(ran.buffers.output.get(to + x));
                    let bounds = frozen.bounds_left_out(&one[x], left);
                    let again = again.bounds(&two[x]);
                    // If a row skipped nothing, its output must also fit the bounds for the executed order of
                    // additions, or those of the exact run.
                    let mut within = bounds.admit(y[x], found);
                    if left == 0.0 {
                        within = within && frozen.bounds(&one[x]).admit(y[x], found);
                        within |= again.admit(y[x], found);
                    }
                    let most = bounds.worst.max(again.worst);
                    require(within, || {
                        format!(
                            "{case:?} {schedule:?} row {at} column {x}: {found:e}, {:e}, {bounds:?}",
                            y[x]
                        )
                    })?;
                    if y[x].is_finite() {
                        used = used.max((found - y[x]).abs() / most);
                    }
                }
                let lse = f64::from(ran.buffers.lse[at]);
                if !row.lse.is_finite() {
                    let same = lse.to_bits() == row.lse.to_bits() || row.lse.is_nan();
                    require(same, || format!("{case:?} row {at}: log-sum-exp {lse}, {}", row.lse))?;
                    continue;
                }
                // Log-sum-exp covers all keys. It includes D. If D is only an upper bound, log-sum-exp may therefore be too
                // large.
                let off = 2.0 * (d as f64 + 20.0) * 6e-8 * size + 4e-5 + 2e-7 * row.lse.abs();
                let above = match schedule.skip {
                    Skip::Blocks(_) | Skip::Rows(_) => -(1.0 - left).ln(),
                    Skip::Budget(_) if ran.report.unseen_blocks > 0 => -(1.0 - left).ln(),
                    _ => 0.0,
                };
                let within = lse >= row.lse - off && lse <= row.lse + above + off;
                require(within, || {
                    format!("{case:?} {schedule:?} row {at}: log-sum-exp {lse}, {}", row.lse)
                })?;
                let all = m + (s + f64::from(ran.d[at])).ln();
                let same = (all - lse).abs() <= 2e-6 + 2e-7 * lse.abs();
                require(same, || format!("{case:?} row {at}: log-sum-exp {lse}, of its state {all}"))?;
                if let Skip::Budget(budget) = schedule.skip {
                    let inside = left <= f64::from(budget) * 1.000_001;
                    require(inside, || format!("{case:?} row {at}: {left} of a budget of {budget}"))?;
                }
                let naive = f64::from(ran.d[at]) / (s + f64::from(ran.d[at]));
                // Both numbers are f32, and may be subnormal.
                let near = naive <= left * 1.000_001 + 1e-37 && left <= naive * 1.001 + 1e-37;
                require(near, || format!("{case:?} row {at}: left out {left}, of its state {naive}"))?;
            }
        }
    }
    let report = &ran.report;
    let whole = report.accepted + report.recomputed == problem.rows() as u64
        && f64::from(ran.share.iter().copied().fold(0.0, f32::max)) >= report.worst_share
        && report.mean_share() <= report.worst_share * 1.000_001;
    require(whole, || format!("{case:?} {schedule:?}: {report:?}"))?;
    Ok(used)
}

/// Judges a run of core's scalar code as [`judged`] does, but panics instead of returning an error.
///
/// # Panics
/// Panics if an error exceeds its bound.
#[must_use]
pub fn judge(case: &Case, schedule: &Schedule, tile: TileSize, ran: &ScheduleRun) -> f64 {
    judge_by(case, schedule, executed(&case.problem(), schedule, tile), ran)
}

/// Judges a run as [`judged`] does, but panics instead of returning an error.
///
/// # Panics
/// Panics as [`judge`] does.
#[must_use]
pub fn judge_by(case: &Case, schedule: &Schedule, by: Executed, ran: &ScheduleRun) -> f64 {
    judged(case, schedule, by, ran).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs a case with a schedule and judges it.
///
/// # Panics
/// Panics if the case is refused, or an error exceeds its bound.
pub fn run_and_judge(case: &Case, schedule: &Schedule, tile: TileSize) -> ScheduleRun {
    let ran = ran(case, schedule, tile);
    let used = judge(case, schedule, tile, &ran);
    assert!(used <= 1.0, "{case:?} {schedule:?}: {used} of the bound");
    ran
}

/// Sums of a row in f64, relative to a score of zero, over the weights that an error budget keeps and skips.
#[derive(Clone, Debug)]
pub struct Account {
    /// Sum of the weights that were kept.
    pub kept: f64,
    /// Sum of the weights that were skipped.
    pub left: f64,
    /// Sum of the values times their weights, over the weights that were kept.
    pub weighted: f64,
}

/// Skips blocks of `keys` keys by the rule of the error budget, computed in f64 from the definition. All rows in one
/// range of `tiles` keep or skip a block together. Scores are `q_i k_j` in base-2 units. Returns the sums of each row,
/// and the number of skipped pairs of a tile and a block.
///
/// # Panics
/// Panics if a decision is so close that arithmetic in f32 could decide differently.
#[must_use]
pub fn account(
    [q, k, v]: [&[f32]; 3],
    budget: f64,
    tiles: &[Range<usize>],
    keys: usize,
) -> (Vec<Account>, u64) {
    let mut all = vec![Account { kept: 0.0, left: 0.0, weighted: 0.0 }; q.len()];
    let mut skipped = 0;
    for tile in tiles {
        let (rows, q) = (&mut all[tile.clone()], &q[tile.clone()]);
        for (k, v) in k.chunks(keys).zip(v.chunks(keys)) {
            let weights = |q: f32| k.iter().map(move |k| (f64::from(q) * f64::from(*k)).exp2());
            let fits = |(row, q): (&Account, &f32)| {
                let b: f64 = weights(*q).sum();
                let (left, most) = (row.left + b, budget * (row.kept + row.left + b));
                assert!((left / most - 1.0).abs() > 1e-4, "{left} {most}");
                left < most
            };
            let fits = rows.iter().zip(q).all(fits);
            skipped += u64::from(fits);
            for (row, q) in rows.iter_mut().zip(q) {
                for (w, v) in weights(*q).zip(v) {
                    if fits {
                        row.left += w;
                    } else {
                        row.kept += w;
                        row.weighted += w * f64::from(*v);
                    }
                }
            }
        }
    }
    (all, skipped)
}

/// Checks that reported shares are rounded up, for rows whose reference is zero. The share of a row must be at least the share
/// that follows from its sums `S` and `D`, if each sum has `additions` roundings. Returns the number of rows that skipped
/// something.
///
/// # Panics
/// Panics if a share is below the share that follows from `S` and `D`, or above it by more than a few roundings.
#[must_use]
pub fn rounded_outwards(ran: &ScheduleRun, additions: usize) -> usize {
    let mut rows = 0;
    for (i, d) in ran.d.iter().enumerate() {
        if ran.buffers.m[i] == 0.0 && *d > 0.0 {
            let (found, least) = (f64::from(ran.share[i]), share(ran.buffers.s[i], *d, additions));
            assert!(found >= least && found <= least * 1.000_000_3, "row {i}: {found:e} {least:e}");
            rows += 1;
        }
    }
    rows
}

/// Compares the sums, the shares and the outputs of a run of [`scored`] with the accounts of its rows.
///
/// # Panics
/// Panics if an error exceeds a few roundings.
pub fn compare(ran: &ScheduleRun, rows: &[Account]) {
    let rounding = match ran.buffers.output.elements().dtype() {
        DType::F32 => 0.0,
        DType::F16 => 2f64.powi(-11),
        DType::Bf16 => 2f64.powi(-8),
    };
    for (i, row) in rows.iter().enumerate() {
        let close = |a: f64, b: f64, by: f64, what: &str| {
            assert!((a - b).abs() <= by * b.abs(), "row {i}: {what} {a:e} {b:e}");
        };
        let near = |a: f64, b: f64, what: &str| close(a, b, 2e-5, what);
        let m = f64::from(ran.buffers.m[i]).exp();
        near(f64::from(ran.buffers.s[i]) * m, row.kept, "S");
        near(f64::from(ran.d[i]) * m, row.left, "D");
        near(f64::from(ran.share[i]), row.left / (row.kept + row.left), "D / (S + D)");
        close(f64::from(ran.buffers.output.get(i)), row.weighted / row.kept, 2e-5 + rounding, "y");
    }
}
