//! Schedules with frozen references and skipped blocks, by the scalar run: every answer beside the f64 oracle and its bound,
//! what was left out beside an f64 account of it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_core::argument::ArgumentError;
use elsa_core::attention::bound::rounding::{Component, Row};
use elsa_core::attention::bound::{Arithmetic, Norms, left_out};
use elsa_core::attention::traversal::scalar::{executed, run};
use elsa_core::attention::traversal::{
    First, KeySide, LeftOut, Movers, Order, QuerySide, Report, Room, RowRoom, Schedule, Skip, TABLE_3,
    TABLE_4, Thinned, Tile, odds, scratch_len, share,
};
use elsa_core::attention::{
    Alignment, Chunk, Inputs, MaskKind, Outputs, Spec, StateOut, Window, reference, scalar,
};
use elsa_core::dtype::{DType, Elements};
use elsa_core::monoid::{Monoid, identity_holds};
use elsa_core::state::{NaturalMerge, State};
use elsa_core::view::{Layout, View};
use elsa_tests::SLOW;
use elsa_tests::cases::{Buffers, Case, MaskParams, Params, any_case, hard_cases};
use elsa_tests::random::Random;
use proptest::prelude::*;

const TILE: Tile = Tile { rows: 8, keys: 16 };

/// What a run answered.
struct Ran {
    buffers: Buffers,
    report: Report,
    d: Vec<f32>,
    share: Vec<f32>,
}

fn try_run(case: &Case, schedule: &Schedule, tile: Tile) -> Result<Ran, ArgumentError> {
    let problem = case.problem();
    let mut buffers = case.buffers();
    let mut floats = vec![f32::NAN; scratch_len(&problem, tile).unwrap()];
    let mut rows = vec![RowRoom::default(); tile.rows];
    let [mut d, mut share] = [(); 2].map(|()| vec![f32::NAN; problem.rows()]);
    let mut lost = LeftOut { d: Some(&mut d), share: Some(&mut share) };
    let mut room = Room { floats: &mut floats, rows: &mut rows };
    let inputs = case.inputs();
    let report = run(&problem, schedule, tile, &inputs, &mut buffers.outputs(), &mut lost, &mut room)?;
    Ok(Ran { buffers, report, d, share })
}

fn ran(case: &Case, schedule: &Schedule, tile: Tile) -> Ran {
    try_run(case, schedule, tile).unwrap_or_else(|e| panic!("{case:?}: {e}"))
}

/// One head with queries `q` and keys `k` of one dim, whose scores are products in base-2 units, and values `v`.
fn scored(q: &[f32], k: &[f32], v: &[f32]) -> Case {
    let params = Params {
        scale: Some(std::f32::consts::LN_2),
        ..Params::plain(q.len(), k.len(), 1, v.len() / k.len())
    };
    let mut case = params.build("scores by hand");
    q.iter().enumerate().for_each(|(i, x)| case.q.set(i, *x));
    k.iter().enumerate().for_each(|(i, x)| case.k.set(i, *x));
    v.iter().enumerate().for_each(|(i, x)| case.v.set(i, *x));
    case
}

/// Checks every row of a case without past and packed sequences: its answer by the bounds of the schedule and of the exact
/// run, which recomputes rows; its log-sum-exp; and what it left out. Returns the largest share of the bound that was used.
fn judge(case: &Case, schedule: &Schedule, tile: Tile, ran: &Ran) -> f64 {
    let (problem, inputs) = (case.problem(), case.inputs());
    let spec = problem.spec();
    let arithmetic = Arithmetic::of(&problem, executed(&problem, schedule, tile));
    let exact = Arithmetic::of(&problem, scalar::executed(&problem));
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let mut used = 0.0f64;
    let mut y = vec![0.0; dv];
    for b in 0..spec.query.batch() {
        for head in 0..problem.heads() {
            for i in 0..spec.query.tokens() {
                let at = (b * problem.heads() + head) * spec.query.tokens() + i;
                let left = f64::from(ran.share[at]);
                let row = reference::row(&problem, &inputs, b, head, i, &mut y);
                let mut ln_p = Vec::new();
                reference::log_probabilities(&problem, &inputs, b, head, i, &row, |_, x| ln_p.push(x));
                let logs: Vec<f64> = ln_p.iter().map(|x| x.unwrap_or(f64::NEG_INFINITY)).collect();
                let (m, s) = (f64::from(ran.buffers.m[at]), f64::from(ran.buffers.s[at]));
                if row.lse == f64::NEG_INFINITY {
                    assert_eq!((m, s, ran.d[at], left), (f64::NEG_INFINITY, 0.0, 0.0, 0.0), "{case:?} {at}");
                }
                let ln_s = if row.lse.is_finite() { row.lse - m } else { 0.0 };
                let mut frozen = Row::frozen(arithmetic, &logs, ln_s);
                let mut again = Row::new(exact, &logs);
                let new = |a: &Arithmetic| y.iter().map(|y| Component::new(a, *y)).collect::<Vec<_>>();
                let (mut one, mut two) = (new(&arithmetic), new(&exact));
                let q0 = spec.query.row(b, head, i);
                let q: Vec<f32> = (0..d).map(|x| inputs.query.get(q0 + x)).collect();
                let mut size = 0.0f64;
                for (j, _) in ln_p.iter().enumerate().filter(|(_, x)| x.is_some()) {
                    let k0 = spec.key.row(b, problem.kv_head(head), j);
                    let v0 = spec.value.row(b, problem.kv_head(head), j);
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
                let to = spec.output.row(b, head, i);
                for x in 0..dv {
                    let found = f64::from(ran.buffers.output.get(to + x));
                    let bounds = frozen.bounds_left_out(&one[x], left);
                    let again = again.bounds(&two[x]);
                    let within = bounds.admit(y[x], found) || (left == 0.0 && again.admit(y[x], found));
                    let most = bounds.worst.max(again.worst);
                    assert!(
                        within,
                        "{case:?} {schedule:?} row {at} column {x}: {found:e}, {:e}, {bounds:?}",
                        y[x]
                    );
                    if y[x].is_finite() {
                        used = used.max((found - y[x]).abs() / most);
                    }
                }
                if !row.lse.is_finite() {
                    assert!(
                        f64::from(ran.buffers.lse[at]).to_bits() == row.lse.to_bits() || row.lse.is_nan()
                    );
                    continue;
                }
                // Log-sum-exp is that of all keys; where D is an upper bound it may lie above by what D may be too much.
                let lse = f64::from(ran.buffers.lse[at]);
                let off = 2.0 * (d as f64 + 20.0) * 6e-8 * size + 4e-5 + 2e-7 * row.lse.abs();
                let above = match schedule.skip {
                    Skip::Blocks(_) | Skip::Rows(_) => -(1.0 - left).ln(),
                    _ => 0.0,
                };
                let within = lse >= row.lse - off && lse <= row.lse + above + off;
                assert!(within, "{case:?} {schedule:?} row {at}: log-sum-exp {lse}, {}", row.lse);
                let all = m + (s + f64::from(ran.d[at])).ln();
                assert!((all - lse).abs() <= 2e-6 + 2e-7 * lse.abs(), "{case:?} row {at}: {all} {lse}");
                if let Skip::Budget(budget) = schedule.skip {
                    assert!(left <= f64::from(budget) * 1.000_001, "{case:?} row {at}: {left}");
                }
                let naive = f64::from(ran.d[at]) / (s + f64::from(ran.d[at]));
                assert!(
                    naive <= left * 1.000_001 && left <= naive * 1.001,
                    "{case:?} row {at}: {naive} {left}"
                );
            }
        }
    }
    let report = &ran.report;
    assert_eq!(report.accepted + report.recomputed, problem.rows() as u64, "{report:?}");
    assert!(f64::from(ran.share.iter().copied().fold(0.0, f32::max)) >= report.worst_share);
    assert!(report.mean_share() <= report.worst_share);
    used
}

fn run_and_judge(case: &Case, schedule: &Schedule, tile: Tile) -> Ran {
    let ran = ran(case, schedule, tile);
    let used = judge(case, schedule, tile, &ran);
    assert!(used <= 1.0);
    ran
}

/// The settings that leave nothing out: the article's ten, the lagging references of the exact one in tiles, own blocks
/// of representatives, and the gate.
fn frozen_settings() -> Vec<Schedule> {
    let own = First::Proxy { keys: KeySide::SignedAbsMax, queries: QuerySide::Row, block: Some(5) };
    let mut settings: Vec<Schedule> = TABLE_3.iter().map(|(_, schedule)| *schedule).collect();
    settings.push(Schedule { threshold: 7.5, ..Schedule::EXACT });
    settings.push(Schedule { first: own, threshold: 3.0, ..Schedule::VFA });
    settings.push(Schedule { gate: true, ..Schedule::EXACT });
    settings.push(Schedule { gate: true, ..Schedule::VFA });
    settings
}

fn check_frozen(case: &Case, schedule: &Schedule) -> Result<Report, String> {
    let ran = try_run(case, schedule, TILE).map_err(|e| e.to_string())?;
    if ran.buffers.present != case.naive_present() {
        return Err("the present is not past and new keys".into());
    }
    // A block and the blocks, or a segment and the tree of a row that was computed again.
    let additions = executed(&case.problem(), schedule, TILE).into_s.max(516);
    case.naive().check_all(&ran.buffers, additions).map_err(|e| format!("{schedule:?}: {e}"))?;
    if ran.report.skipped_row_blocks > 0 || ran.share.iter().chain(&ran.d).any(|x| *x != 0.0) {
        return Err(format!("{schedule:?} left out: {:?}", ran.report));
    }
    Ok(ran.report)
}

#[test]
fn frozen_runs_are_exact_on_hard_cases() {
    let settings = frozen_settings();
    let (mut accepted, mut recomputed, mut gated) = (0, 0, 0);
    for (n, case) in hard_cases().iter().enumerate().step_by(if SLOW { 9 } else { 1 }) {
        for schedule in [&Schedule::VFA, &settings[n % settings.len()]] {
            let report = check_frozen(case, schedule).unwrap_or_else(|e| panic!("{case:?}: {e}"));
            accepted += report.accepted;
            recomputed += report.recomputed;
            gated += report.gated;
        }
    }
    // Most rows pass the guard, some do not.
    assert!(accepted > 5 * recomputed && recomputed > 0 && gated > 0, "{accepted} {recomputed} {gated}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if SLOW { 8 } else { 128 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn frozen_runs_are_exact_on_random_cases(case in any_case(), n in any::<proptest::sample::Index>()) {
        let settings = frozen_settings();
        let checked = check_frozen(&case, &settings[n.index(settings.len())]);
        prop_assert!(checked.is_ok(), "{checked:?}");
    }
}

/// Problems whose rows the bounds judge: masks, causality, windows, groups, caps, halves; some of them concentrated.
fn judged() -> Vec<Case> {
    let heads =
        |queries, keys, d, dv| Params { heads: 4, kv_heads: 2, ..Params::plain(queries, keys, d, dv) };
    let mask = |kind| Some(MaskParams { kind, dims: vec![40, 130], density: 0.6 });
    let causal = Some(Alignment::BottomRight);
    let cases = [
        Params { gain: 4.0, ..heads(40, 130, 16, 3) }.build("plain"),
        Params { gain: 6.0, causal, batch: 2, ..heads(70, 70, 8, 4) }.build("causal"),
        Params { gain: 3.0, mask: mask(MaskKind::Bool), ..heads(40, 130, 8, 3) }.build("a mask"),
        Params { gain: 3.0, mask: mask(MaskKind::Additive(DType::F32)), ..heads(40, 130, 8, 3) }
            .build("added"),
        Params { gain: 5.0, causal, window: Window { left: Some(45), right: None }, ..heads(90, 90, 8, 2) }
            .build("a window"),
        Params { gain: 9.0, softcap: Some(20.0), causal, ..heads(50, 50, 16, 2) }.build("a cap"),
        Params { gain: 4.0, dtype: DType::F16, causal, ..heads(50, 80, 16, 2) }.build("halves"),
        Params { gain: 4.0, lengths: true, batch: 3, ..heads(20, 100, 8, 2) }.build("lengths"),
        Params::plain(1, 1, 4, 3).build("one key"),
        Params { gain: 60.0, ..heads(33, 97, 8, 2) }.build("one key weighs"),
    ];
    if SLOW { cases.into_iter().step_by(4).collect() } else { cases.into() }
}

#[test]
fn every_answer_is_within_the_bound_of_its_schedule() {
    let mut schedules = frozen_settings();
    schedules.extend(TABLE_4.iter().map(|(_, schedule)| *schedule));
    for budget in [1e-4, 1e-2, 0.2, 0.9] {
        schedules.push(Schedule::within(budget));
        schedules.push(Schedule { skip: Skip::Budget(budget), ..Schedule::VFA });
        schedules.push(Schedule { gate: true, ..Schedule::within(budget) });
    }
    let mut skipped = vec![0; schedules.len()];
    for (c, case) in judged().iter().enumerate() {
        for (n, schedule) in schedules.iter().enumerate().filter(|(n, _)| (n + c) % 3 == 0) {
            let ran = run_and_judge(case, schedule, Tile { rows: 4 + 4 * (n % 3), keys: 8 + 4 * (c % 3) });
            skipped[n] += ran.report.skipped_row_blocks;
        }
    }
    for (schedule, skipped) in schedules.iter().zip(skipped).filter(|_| !SLOW) {
        let may = match schedule.skip {
            Skip::Never => false,
            Skip::Budget(budget) => budget > 1e-3,
            Skip::Blocks(_) | Skip::Rows(_) => true,
        };
        assert!(
            if may { skipped > 0 } else { schedule.skip != Skip::Never || skipped == 0 },
            "{schedule:?} {skipped}"
        );
    }
}

/// The sums of a row in f64, relative to a score of zero, as a budget's run decides them.
struct Account {
    kept: f64,
    left: f64,
    weighted: f64,
}

/// Leaves blocks out by the rule of the budget, in f64 and from the definition: scores are `q_i k_j` in base-2 units. Panics if
/// a decision is too close for arithmetic in f32.
fn account(q: &[f32], k: &[f32], v: &[f32], budget: f64, tile: Tile) -> (Vec<Account>, u64) {
    let mut rows: Vec<Account> = q.iter().map(|_| Account { kept: 0.0, left: 0.0, weighted: 0.0 }).collect();
    let mut skipped = 0;
    for (rows, q) in rows.chunks_mut(tile.rows).zip(q.chunks(tile.rows)) {
        for (k, v) in k.chunks(tile.keys).zip(v.chunks(tile.keys)) {
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
    (rows, skipped)
}

/// Runs a budget over scores by hand, and compares sums, answers and counts with the f64 account.
fn check_account(q: &[f32], k: &[f32], v: &[f32], budget: f32, tile: Tile) -> (Ran, Vec<Account>) {
    let case = scored(q, k, v);
    let schedule = Schedule { threshold: 2.0, ..Schedule::within(budget) };
    let ran = run_and_judge(&case, &schedule, tile);
    let (rows, skipped) = account(q, k, v, f64::from(budget), tile);
    assert_eq!((ran.report.skipped_blocks, ran.report.recomputed), (skipped, 0), "{:?}", ran.report);
    for (i, row) in rows.iter().enumerate() {
        let near = |a: f64, b: f64, what: &str| {
            assert!((a - b).abs() <= 2e-5 * b.abs(), "row {i}: {what} {a:e} {b:e}");
        };
        let m = f64::from(ran.buffers.m[i]).exp();
        near(f64::from(ran.buffers.s[i]) * m, row.kept, "S");
        near(f64::from(ran.d[i]) * m, row.left, "D");
        near(f64::from(ran.share[i]), row.left / (row.kept + row.left), "D / (S + D)");
        near(f64::from(ran.buffers.output.get(i)), row.weighted / row.kept, "y");
    }
    (ran, rows)
}

#[test]
fn mass_just_below_the_budget_in_every_block_is_left_out() {
    let (budget, blocks) = (0.05f32, 40);
    for (of_budget, all) in [(0.98, true), (1.05, false)] {
        // Block 0 weighs one, each of the others an equal part of the budget.
        let each = of_budget * f64::from(budget) / (1.0 - f64::from(budget)) / blocks as f64;
        let mut k = vec![-100.0f32; TILE.keys * (blocks + 1)];
        k[3] = 0.0;
        (1..=blocks).for_each(|n| k[n * TILE.keys + n % TILE.keys] = each.log2() as f32);
        let v: Vec<f32> = (0..k.len()).map(|j| if j < TILE.keys { 1.0 } else { -1.0 }).collect();
        let (ran, rows) = check_account(&[1.0; 11], &k, &v, budget, TILE);
        assert_eq!(ran.report.skipped_blocks == 2 * blocks as u64, all, "{:?}", ran.report);
        // Values lie as far apart as the bound supposes, and the bound is used up.
        if all {
            let y = 1.0 - 2.0 * rows[0].left / (rows[0].left + rows[0].kept);
            let error = (f64::from(ran.buffers.output.get(0)) - y).abs();
            let bound = left_out(f64::from(ran.share[0]), 2.0);
            assert!(error > 0.999 * bound && error <= bound * 1.000_001, "{error} {bound}");
        }
    }
}

/// References rise after blocks were left out, by more than a few bits and by hundreds; neighbours vote apart.
#[test]
fn what_was_left_out_follows_the_reference_and_every_row_votes() {
    let mut random = Random::new(41);
    let mut seen = [0u64; 3];
    for n in 0..if SLOW { 6 } else { 60 } {
        let keys = 12 * TILE.keys;
        let steps = [0.5f32, 3.0, 12.0][n % 3];
        // Scores rise from block to block now and then; within a block they scatter.
        let mut level = 0.0f32;
        let k: Vec<f32> = (0..keys)
            .map(|j| {
                if j % TILE.keys == 0 {
                    level += if random.below(3) == 0 { steps * 3.0 } else { -steps };
                }
                level + 2.0 * random.normal()
            })
            .collect();
        let v: Vec<f32> = (0..keys).map(|_| random.normal() + 3.0).collect();
        // Rows with flatter and with steeper scores.
        let q: Vec<f32> = (0..19).map(|_| 0.2 + random.unit() as f32).collect();
        let (ran, _) = check_account(&q, &k, &v, 0.1, TILE);
        seen[0] += ran.report.skipped_blocks;
        seen[1] += ran.report.blocks - ran.report.skipped_blocks;
        seen[2] += ran.report.rescaled_row_blocks;
    }
    assert!(seen.iter().all(|seen| *seen > 10), "{seen:?}");
    // One row alone objects to each block but the first.
    let mut q = vec![1.0f32; 8];
    q[5] = 0.01;
    let k: Vec<f32> = (0..10 * TILE.keys).map(|j| if j < TILE.keys { 0.0 } else { -20.0 }).collect();
    let v: Vec<f32> = (0..k.len()).map(|j| j as f32).collect();
    let (ran, _) = check_account(&q, &k, &v, 0.01, TILE);
    assert_eq!(ran.report.skipped_blocks, 0);
    let (ran, _) = check_account(&[1.0; 8], &k, &v, 0.01, TILE);
    assert_eq!((ran.report.skipped_blocks, ran.report.skipped_row_blocks), (9, 72));
    assert_eq!((ran.report.block_sparsity(), ran.report.row_sparsity()), (0.9, 0.9));
}

/// The largest score lies where references are frozen: in the last block, by a little and by hundreds of bits.
#[test]
fn a_maximum_in_the_last_block_is_found() {
    for (above, computed_again) in
        [(3.0f32, false), (20.0, false), (30.0, true), (120.0, true), (130.0, true), (300.0, true)]
    {
        let mut k: Vec<f32> = (0..6 * TILE.keys).map(|j| (j % 7) as f32 * 0.1).collect();
        *k.last_mut().unwrap() = above;
        let v: Vec<f32> = (0..k.len()).map(|j| j as f32 * 0.01).collect();
        let case = scored(&[1.0; 5], &k, &v);
        let without = Schedule { first: First::None, ..Schedule::VFA };
        let sequential = Schedule { order: Order::Sequential, ..without };
        for schedule in [without, sequential, Schedule { skip: Skip::Budget(0.01), ..without }] {
            let ran = run_and_judge(&case, &schedule, TILE);
            assert_eq!(ran.report.recomputed, if computed_again { 5 } else { 0 }, "{above} {schedule:?}");
            assert!((f64::from(ran.buffers.lse[0]) / std::f64::consts::LN_2) >= f64::from(above) - 1e-3);
        }
        // A representative of the last block knows.
        let ran = run_and_judge(&case, &Schedule::VFA, TILE);
        assert_eq!(ran.report.recomputed, 0, "{above}");
    }
}

/// What stands for a block lies hundreds of bits off the scores, above and below.
#[test]
fn rows_whose_representatives_are_far_off_are_computed_again() {
    let (d, keys) = (16, 6 * TILE.keys);
    // Every key has one large element: together they stand for a score sixteen times as large.
    for (large, off) in [(14.0f32, 200.0), (1.5, 22.5), (1.65, 24.75)] {
        let mut case =
            Params { scale: Some(std::f32::consts::LN_2), ..Params::plain(9, keys, d, 2) }.build("one-hot");
        (0..9 * d).for_each(|x| case.q.set(x, 1.0));
        (0..keys * d).for_each(|x| case.k.set(x, if x % d == x / d % d { large } else { 0.0 }));
        for schedule in [Schedule::VFA, Schedule { skip: Skip::Budget(0.3), ..Schedule::VFA }] {
            let ran = run_and_judge(&case, &schedule, TILE);
            // 96 equal weights raise the sum by 6.6 bits.
            let again = off - 6.6 > 24.0;
            assert_eq!(ran.report.recomputed, if again { 9 } else { 0 }, "{large}: {:?}", ran.report);
        }
        // Before weights exist the same representatives leave every key out.
        if off > 100.0 {
            let ran = run_and_judge(&case, &Schedule::vsa(1e-3), TILE);
            assert_eq!((ran.report.recomputed, ran.report.lost_maximum), (9, 9), "{:?}", ran.report);
        }
    }
    // Keys cancel in the mean: 200 bits too low beside scores of ±200.
    let k: Vec<f32> =
        (0..keys).map(|j| if j < TILE.keys { 0.0 } else { 200.0 - 400.0 * (j % 2) as f32 }).collect();
    let v: Vec<f32> = (0..keys).map(|j| j as f32).collect();
    let first = First::Proxy { keys: KeySide::Mean, queries: QuerySide::Row, block: None };
    let ran = run_and_judge(&scored(&[1.0; 9], &k, &v), &Schedule { first, ..Schedule::VFA }, TILE);
    assert_eq!(ran.report.recomputed, 9);
}

/// A representative that is only a little too high drops a row's maximum where blocks go before weights exist.
#[test]
fn a_dropped_maximum_is_seen() {
    // The row's largest scores lie in blocks 2 and later, eight bits below what stands for them.
    let (d, keys) = (2, 5 * TILE.keys);
    let mut case =
        Params { scale: Some(std::f32::consts::LN_2), ..Params::plain(4, keys, d, 1) }.build("two dims");
    (0..4 * d).for_each(|x| case.q.set(x, 1.0));
    for j in 0..keys {
        let (even, odd) = if j < 2 * TILE.keys {
            (-4.0, -4.0)
        } else if j % 2 == 0 {
            (10.0, 0.0)
        } else {
            (0.0, 10.0)
        };
        case.k.set(j * d, even);
        case.k.set(j * d + 1, odd);
    }
    let skips = Schedule { movers: Movers::SinkAndOwn, ..Schedule::vsa(0.01) };
    let ran = run_and_judge(&case, &skips, TILE);
    assert_eq!((ran.report.lost_maximum, ran.report.recomputed), (4, 4), "{:?}", ran.report);
    assert_eq!(ran.report.worst_share, 0.0);
}

#[test]
fn values_that_are_not_finite_are_never_left_out() {
    let mut k = vec![-30.0f32; 6 * TILE.keys];
    k[0] = 0.0;
    let (j, rows) = (3 * TILE.keys + 5, 8);
    let skips = [Skip::Budget(0.1), Skip::Blocks(0.1), Skip::Rows(0.1)];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for skip in skips {
            let mut v = vec![1.0f32; k.len()];
            let plain =
                run_and_judge(&scored(&[1.0; 8], &k, &v), &Schedule { skip, ..Schedule::EXACT }, TILE);
            assert_eq!(plain.report.skipped_blocks, 5, "{skip:?}");
            v[j] = bad;
            let case = scored(&[1.0; 8], &k, &v);
            let found = run_and_judge(&case, &Schedule { skip, ..Schedule::EXACT }, TILE);
            assert_eq!((found.report.skipped_blocks, found.report.recomputed), (4, rows), "{skip:?} {bad}");
            let y = found.buffers.output.get(0);
            assert!(if bad.is_nan() { y.is_nan() } else { y == bad }, "{skip:?} {bad} {y}");
            // Rows that attend the key alone are spoilt.
            let mut causal = case.clone();
            causal.spec.causal = Some(Alignment::TopLeft);
            let found = run_and_judge(&causal, &Schedule { skip, ..Schedule::EXACT }, TILE);
            assert!((0..8).all(|i| found.buffers.output.get(i) == 1.0), "{skip:?} {bad}");
        }
    }
    // NaN among scores poisons its rows alone, and infinite ones are computed again.
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut k = k.clone();
        k[j] = bad;
        for schedule in [Schedule::VFA, Schedule::vsa(0.1), Schedule::within(0.1), Schedule::blasst_rows(0.1)]
        {
            let q = [1.0, 1.0, 0.5, 1.0];
            run_and_judge(&scored(&q, &k, &vec![1.0; k.len()]), &schedule, TILE);
        }
    }
}

#[test]
fn masked_rows_are_empty_and_leave_the_others_alone() {
    let (rows, keys) = (12, 5 * TILE.keys);
    let mask = MaskParams { kind: MaskKind::Bool, dims: vec![rows, keys], density: 0.5 };
    let mut case =
        Params { gain: 5.0, mask: Some(mask), ..Params::plain(rows, keys, 8, 2) }.build("masked rows");
    let Some(elsa_tests::cases::MaskData::Bool(mask)) = &mut case.mask else { panic!() };
    for i in [0, 5, 11] {
        mask[i * keys..(i + 1) * keys].fill(0);
    }
    // A row with keys in the last block alone.
    mask[3 * keys..4 * keys - 4].fill(0);
    mask[4 * keys - 2] = 1;
    let mut all = frozen_settings();
    all.extend([Schedule::within(0.3), Schedule::vsa(0.3), Schedule::blasst_rows(0.5)]);
    for schedule in all {
        let ran = run_and_judge(&case, &schedule, TILE);
        for i in [0, 5, 11] {
            let row: Vec<f32> = (0..2).map(|x| ran.buffers.output.get(i * 2 + x)).collect();
            assert_eq!((&row[..], ran.buffers.lse[i]), (&[0.0, 0.0][..], f32::NEG_INFINITY), "{schedule:?}");
        }
    }
}

#[test]
fn representatives_see_attended_keys_only() {
    // Keys of the future and beyond the valid ones would put references hundreds of bits too high, or make them NaN.
    let keys = 4 * TILE.keys;
    for bad in [1e4f32, f32::NAN] {
        let k: Vec<f32> = (0..keys).map(|j| if j < 24 { 0.25 * (j % 3) as f32 } else { bad }).collect();
        let v: Vec<f32> = (0..keys).map(|j| j as f32).collect();
        let mut causal = scored(&[1.0; 24], &k, &v);
        causal.spec.causal = Some(Alignment::TopLeft);
        let mut valid = scored(&[1.0; 24], &k, &v);
        valid.spec.key_lengths = true;
        valid.lengths = Some(vec![24]);
        for case in [causal, valid] {
            for (_, schedule) in TABLE_3 {
                let ran = run_and_judge(&case, &schedule, TILE);
                assert_eq!(ran.report.recomputed, 0, "{schedule:?}");
            }
        }
    }
}

#[test]
fn exact_is_the_fallback_bit_for_bit_and_repeats_change_nothing() {
    let step = if SLOW { 20 } else { 5 };
    for case in hard_cases().iter().step_by(step) {
        let problem = case.problem();
        let mut want = case.buffers();
        let mut scratch = vec![0.0; scalar::scratch_len(&problem).unwrap()];
        scalar::run(&problem, &case.inputs(), &mut want.outputs(), &mut scratch).unwrap();
        let bits = |x: &Buffers| -> Vec<u32> {
            let all = (0..x.output.len()).map(|i| x.output.get(i)).collect::<Vec<_>>();
            all.iter().chain(&x.lse).chain(&x.m).chain(&x.s).chain(&x.w).map(|x| x.to_bits()).collect()
        };
        let found = ran(case, &Schedule::EXACT, TILE);
        assert_eq!(bits(&found.buffers), bits(&want), "{case:?}");
        assert!(found.d.iter().chain(&found.share).all(|x| *x == 0.0) || case.cu.is_some());
        let schedule = Schedule { skip: Skip::Budget(0.2), ..Schedule::VFA };
        let [one, two] = [(); 2].map(|()| ran(case, &schedule, TILE));
        assert_eq!((bits(&one.buffers), one.report), (bits(&two.buffers), two.report), "{case:?}");
    }
    // A sequence of a batch has the bits that it has alone.
    let params = Params { gain: 5.0, causal: Some(Alignment::TopLeft), ..Params::plain(30, 70, 8, 4) };
    let alone = params.build("alone");
    let mut both = Params { batch: 2, ..params }.build("a batch");
    for (to, from) in [(&mut both.q, &alone.q), (&mut both.k, &alone.k), (&mut both.v, &alone.v)] {
        (0..to.len()).for_each(|i| to.set(i, from.get(i % from.len())));
    }
    let schedule = Schedule { skip: Skip::Budget(0.1), ..Schedule::VFA };
    let [alone, both] = [alone, both].map(|case| ran(&case, &schedule, TILE).buffers.output);
    assert!((0..both.len()).all(|i| both.get(i).to_bits() == alone.get(i % alone.len()).to_bits()));
}

#[test]
fn refusals_write_nothing() {
    let case = Params::plain(5, 40, 4, 4).build("refused");
    let problem = case.problem();
    let refused = |schedule: Schedule, tile: Tile, fewer: usize, rows: usize, of_share: usize| {
        let mut buffers = case.buffers();
        let mut floats = vec![0.0; scratch_len(&problem, TILE).unwrap() - fewer];
        let mut list = vec![RowRoom::default(); rows];
        let mut share = vec![f32::NAN; of_share];
        let mut lost = LeftOut { d: None, share: Some(&mut share) };
        let mut room = Room { floats: &mut floats, rows: &mut list };
        let found =
            run(&problem, &schedule, tile, &case.inputs(), &mut buffers.outputs(), &mut lost, &mut room);
        let untouched = (0..buffers.output.len()).all(|i| buffers.output.get(i).is_nan());
        assert!(untouched && share.iter().all(|x| x.is_nan()), "{found:?}");
        found.unwrap_err().to_string()
    };
    let schedule = Schedule::within(0.1);
    for (message, argument) in [
        (refused(Schedule::within(1.0), TILE, 0, 8, 5), "error_budget: 1;"),
        (refused(Schedule::within(f32::NAN), TILE, 0, 8, 5), "error_budget: NaN;"),
        (refused(Schedule::vsa(0.0), TILE, 0, 8, 5), "lambda: 0;"),
        (refused(Schedule { threshold: 8.5, ..schedule }, TILE, 0, 8, 5), "rescale_threshold: 8.5;"),
        (refused(schedule, Tile { rows: 0, ..TILE }, 0, 8, 5), "tile_rows: 0;"),
        (refused(schedule, Tile { keys: 0, ..TILE }, 0, 8, 5), "tile_keys: 0;"),
        (refused(schedule, TILE, 1, 8, 5), "scratch: "),
        (refused(schedule, TILE, 0, 7, 5), "scratch_rows: 7 "),
        (refused(schedule, TILE, 0, 8, 6), "left_out_share: "),
        (refused(Schedule::EXACT, TILE, 0, 8, 4), "left_out_share: "),
    ] {
        assert!(message.starts_with(argument), "{message}");
    }
}

/// The gate's rows beside the bound, up to its limit: reference zero, sums between 2^-48 and 2^48 and beyond.
#[test]
fn scores_at_the_limit_of_the_gate_need_no_reference() {
    let (d, keys) = (4, 8 * TILE.keys);
    let schedule = Schedule { gate: true, ..Schedule::EXACT };
    for (reach, sign, open) in
        [(47.9f32, 1.0f32, true), (47.9, -1.0, true), (0.0, 1.0, true), (48.1, 1.0, false)]
    {
        let mut case = Params { scale: Some(std::f32::consts::LN_2), ..Params::plain(9, keys, d, 2) }
            .build("at the limit");
        let mut random = Random::new(7);
        (0..9 * d).for_each(|x| case.q.set(x, if x % d == 0 { 1.0 } else { 0.0 }));
        for j in 0..keys {
            let score = if j == 40 { reach } else { reach * random.unit() as f32 };
            (0..d).for_each(|x| case.k.set(j * d + x, if x == 0 { sign * score } else { 0.0 }));
        }
        let ran = run_and_judge(&case, &schedule, TILE);
        assert_eq!(
            (ran.report.gated, ran.report.recomputed),
            (if open { 9 } else { 0 }, 0),
            "{reach} {sign}"
        );
        assert!(!open || ran.buffers.m.iter().all(|m| *m == 0.0));
        // The prior bound holds for gated and for frozen rows, too.
        let problem = case.problem();
        let norms = Norms { query: 1.0, key: f64::from(reach), bias: 0.0 };
        for schedule in [schedule, Schedule::VFA] {
            let frozen =
                Arithmetic::of(&problem, executed(&problem, &schedule, TILE)).prior_frozen(keys, &norms);
            let ran = run_and_judge(&case, &schedule, TILE);
            let largest = (0..case.v.len()).map(|i| f64::from(case.v.get(i).abs())).fold(0.0, f64::max);
            let mut y = [0.0; 2];
            reference::row(&problem, &case.inputs(), 0, 0, 3, &mut y);
            let error =
                (0..2).map(|x| (f64::from(ran.buffers.output.get(6 + x)) - y[x]).abs()).fold(0.0, f64::max);
            assert!(frozen.claims() && error <= frozen.absolute(largest), "{error:e} {frozen:?}");
        }
    }
    // Values without room, and a NaN, keep it shut.
    for v in [1e25f32, f32::NAN, f32::INFINITY] {
        let ran = run_and_judge(&scored(&[1.0; 3], &[0.5; 20], &[v; 20]), &schedule, TILE);
        assert_eq!(ran.report.gated, 0, "{v}");
    }
    let ran = ran(&scored(&[1.0, f32::NAN], &[0.5; 20], &[1.0; 20]), &schedule, TILE);
    assert_eq!(ran.report.gated, 0);
}

type T = Thinned<[f32; 2]>;

fn bracketed(states: &[T], random: &mut Random) -> T {
    match states {
        [] => T::identity(),
        [one] => *one,
        _ => {
            let cut = 1 + random.below(states.len() - 1);
            let (a, b) = states.split_at(cut);
            bracketed(a, random).combine(&bracketed(b, random))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if SLOW { 30 } else { 400 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// States of any origin, each within the budget by its own sums, merge within it in any bracketing; and `D` is the sum
    /// of theirs, brought to one reference.
    #[test]
    fn a_budget_is_closed_under_the_merge(seed in any::<u64>(), n in 1usize..60, budget in 1e-6f32..0.95, far in prop_oneof![Just(3.0f32), Just(40.0), Just(150.0)]) {
        let mut random = Random::new(seed);
        let odds = odds(budget, 64);
        let states: Vec<T> = (0..n)
            .map(|_| {
                let m = (far * random.normal()).round();
                let s = (1.0 + random.unit() as f32) * (random.below(20) as f32 - 10.0).exp2();
                let used = if random.below(3) == 0 { 1.0 } else { random.unit() as f32 };
                T { state: State { m, s, w: [random.normal(), 1.0] }, d: (odds * s) * used }
            })
            .collect();
        let all = bracketed(&states, &mut random);
        let left = share(all.state.s, all.d, 64);
        prop_assert!(left <= f64::from(budget), "{left} {budget}");
        let at = |x: f32, m: f32| f64::from(x) * (f64::from(m) - f64::from(all.state.m)).exp2();
        let d: f64 = states.iter().map(|x| at(x.d, x.state.m)).sum();
        let s: f64 = states.iter().map(|x| at(x.state.s, x.state.m)).sum();
        prop_assert!((f64::from(all.d) - d).abs() <= 1e-5 * d, "{} {d}", all.d);
        prop_assert!((f64::from(all.state.s) - s).abs() <= 1e-5 * s, "{} {s}", all.state.s);
        prop_assert!(d <= f64::from(budget) * (s + d));
        prop_assert!(identity_holds(&all, |a, b| a == b));
        let lse = f64::from(all.state.m) * std::f64::consts::LN_2 + (s + d).ln();
        prop_assert!((f64::from(all.log_sum_exp()) - lse).abs() <= 1e-5 + 1e-6 * lse.abs());
    }
}

/// Parts of the keys decide by themselves; what they export merges within the budget, and within the bound.
#[test]
fn split_runs_keep_the_budget_together() {
    let (queries, keys, d, dv) = (20, 230, 8, 3);
    let mut random = Random::new(3);
    let mut tensor = |n: usize, gain: f32| (0..n).map(|_| gain * random.normal()).collect::<Vec<f32>>();
    let (q, k, v) = (tensor(queries * d, 4.0), tensor(keys * d, 1.0), tensor(keys * dv, 1.0));
    let view = |n: usize, d: usize| View::dense("x", Layout::Bhnd, &[n, d], None).unwrap();
    for causal in [None, Some(Alignment::BottomRight)] {
        for budget in [0.02f32, 0.3] {
            // `(m, S, D, W)` of every row.
            let mut merged: Option<(Vec<f32>, Vec<f32>, Vec<f32>, Vec<f32>)> = None;
            let mut skipped = 0;
            for part in [0..70usize, 70..71, 71..160, 160..230] {
                let n = part.len();
                let mut spec =
                    Spec::new(DType::F32, view(queries, d), view(n, d), view(n, dv), view(queries, dv));
                spec.causal = causal;
                let problem = spec.check().unwrap();
                let (k, v) = (&k[part.start * d..part.end * d], &v[part.start * dv..part.end * dv]);
                let mut inputs = Inputs::new(Elements::F32(&q), Elements::F32(k), Elements::F32(v));
                inputs.lengths.chunk = Some(Chunk::of_keys(part.start, keys));
                let [mut m, mut s, mut lost] = [(); 3].map(|()| vec![f32::NAN; queries]);
                let mut w = vec![f32::NAN; queries * dv];
                let mut outputs = Outputs::states(StateOut { m: &mut m, s: &mut s, w: &mut w });
                let mut floats = vec![f32::NAN; scratch_len(&problem, TILE).unwrap()];
                let mut room = Room { floats: &mut floats, rows: &mut [RowRoom::default(); 8] };
                let mut out = LeftOut { d: Some(&mut lost), share: None };
                let schedule = Schedule { order: Order::SinkOwnRest, ..Schedule::within(budget) };
                let report =
                    run(&problem, &schedule, TILE, &inputs, &mut outputs, &mut out, &mut room).unwrap();
                skipped += report.skipped_blocks;
                merged = Some(match merged {
                    None => (m, s, lost, w),
                    Some((ma, sa, da, wa)) => {
                        let merges: Vec<NaturalMerge> =
                            (0..queries).map(|i| NaturalMerge::of((ma[i], sa[i]), (m[i], s[i]))).collect();
                        (
                            merges.iter().map(|x| x.m).collect(),
                            merges.iter().map(|x| x.s).collect(),
                            (0..queries).map(|i| merges[i].w(da[i], lost[i])).collect(),
                            (0..queries * dv).map(|i| merges[i / dv].w(wa[i], w[i])).collect(),
                        )
                    }
                });
            }
            assert!(skipped > 0, "{budget}");
            let (m, s, lost, w) = merged.unwrap();
            let mut spec =
                Spec::new(DType::F32, view(queries, d), view(keys, d), view(keys, dv), view(queries, dv));
            spec.causal = causal;
            let problem = spec.check().unwrap();
            let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
            let mut y = vec![0.0; dv];
            for i in 0..queries {
                let row = reference::row(&problem, &inputs, 0, 0, i, &mut y);
                let left = share(s[i], lost[i], 64);
                assert!(left <= f64::from(budget), "row {i}: {left}");
                let lse = f64::from(m[i]) + (f64::from(s[i]) + f64::from(lost[i])).ln();
                assert!((lse - row.lse).abs() < 1e-5, "row {i}: {lse} {}", row.lse);
                for x in 0..dv {
                    let column = (0..keys).map(|j| f64::from(v[j * dv + x]));
                    let spread = column.clone().fold(f64::MIN, f64::max) - column.fold(f64::MAX, f64::min);
                    let found = f64::from(w[i * dv + x]) / f64::from(s[i]);
                    let off = (found - y[x]).abs();
                    assert!(off <= left_out(left, spread) + 1e-5, "row {i}: {off} {left}");
                }
            }
        }
    }
}
