//! Tests runs that skip blocks within an error budget: compares their sums with sums in f64, and covers random states
//! and runs that split the keys.

use elsa_core::attention::bound::left_out;
use elsa_core::attention::traversal::scalar::run;
use elsa_core::attention::traversal::{
    LeftOut, Order, Room, RowRoom, Schedule, Skip, Thinned, TileSize, odds, scratch_len, share,
};
use elsa_core::attention::{Alignment, Chunk, Inputs, Outputs, Spec, StateOut};
use elsa_core::dtype::{DType, Elements};
use elsa_core::monoid::{Monoid, identity_holds};
use elsa_core::random::Random;
use elsa_core::state::State;
use elsa_core::view::{Layout, View};
use elsa_oracle::SLOW;
use elsa_oracle::random::seeded;
use elsa_oracle::schedules::scores::{equal_parts, rising};
use elsa_oracle::schedules::{Account, Merged, ScheduleRun, account, compare, run_and_judge, scored};
use proptest::prelude::*;

const TILE: TileSize = TileSize { rows: 8, keys: 16 };

/// Runs a case with given scores within an error budget, and compares sums, outputs and counts with the f64 account.
/// Returns the run and the account of each row.
fn check_account(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    budget: f32,
    tile: TileSize,
) -> (ScheduleRun, Vec<Account>) {
    let case = scored(q, k, v);
    let schedule = Schedule { threshold: 2.0, ..Schedule::within(budget) };
    let ran = run_and_judge(&case, &schedule, tile);
    let tiles: Vec<_> = (0..q.len()).step_by(tile.rows).map(|i| i..q.len().min(i + tile.rows)).collect();
    let (rows, skipped) = account([q, k, v], f64::from(budget), &tiles, tile.keys);
    assert_eq!((ran.report.skipped_blocks, ran.report.recomputed), (skipped, 0), "{:?}", ran.report);
    compare(&ran, &rows);
    (ran, rows)
}

#[test]
fn mass_just_below_the_budget_in_every_block_is_left_out() {
    let (budget, blocks) = (0.05f32, 40);
    for (of_budget, all) in [(0.98, true), (1.05, false)] {
        let [k, v] = equal_parts(TILE.keys, blocks, of_budget, budget);
        let (ran, rows) = check_account(&[1.0; 11], &k, &v, budget, TILE);
        assert_eq!(ran.report.skipped_blocks == 2 * blocks as u64, all, "{:?}", ran.report);
        // The values are as far apart as the bound assumes, so the error almost reaches the bound.
        if all {
            let y = 1.0 - 2.0 * rows[0].left / (rows[0].left + rows[0].kept);
            let error = (f64::from(ran.buffers.output.get(0)) - y).abs();
            let bound = left_out(f64::from(ran.share[0]), 2.0);
            assert!(error > 0.999 * bound && error <= bound * 1.000_001, "{error} {bound}");
        }
    }
}

/// Checks references that rise after blocks were skipped, by a few bits and by hundreds: the skipped sums follow the
/// reference. The rows of a tile vote separately, and one row can keep a block.
#[test]
fn what_was_left_out_follows_the_reference_and_every_row_votes() {
    let mut random = seeded(41);
    let mut seen = [0u64; 3];
    for n in 0..if SLOW { 6 } else { 60 } {
        let step = [0.5f32, 3.0, 12.0][n % 3];
        let [k, v] = rising(&mut random, TILE.keys, 12 * TILE.keys, step);
        // Some rows have flatter scores than others.
        let q: Vec<f32> = (0..19).map(|_| 0.2 + random.unit() as f32).collect();
        let (ran, _) = check_account(&q, &k, &v, 0.1, TILE);
        seen[0] += ran.report.skipped_blocks;
        seen[1] += ran.report.blocks - ran.report.skipped_blocks;
        seen[2] += ran.report.rescaled_row_blocks;
    }
    assert!(seen.iter().all(|seen| *seen > 10), "{seen:?}");
    // A single row votes against skipping each block after the first.
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

/// Checks that λ skips blocks: for all rows if the rows agree, or for single rows. Also checks that `D` is at least the
/// skipped sum.
#[test]
fn lambda_decides_by_blocks_or_by_rows() {
    let k: Vec<f32> = (0..10 * TILE.keys).map(|j| if j < TILE.keys { 0.0 } else { -20.0 }).collect();
    let v: Vec<f32> = (0..k.len()).map(|j| j as f32).collect();
    for objector in 0..8 {
        let mut q = vec![1.0f32; 8];
        for (objects, score) in [(false, 1.0), (true, 0.01)] {
            q[objector] = score;
            let case = scored(&q, &k, &v);
            let blocks = run_and_judge(&case, &Schedule::blasst(0.1), TILE);
            let rows = run_and_judge(&case, &Schedule::blasst_rows(0.1), TILE);
            let of = |ran: &ScheduleRun| (ran.report.skipped_blocks, ran.report.skipped_row_blocks);
            let want = if objects { [(0, 0), (0, 63)] } else { [(9, 72); 2] };
            assert_eq!([of(&blocks), of(&rows)], want, "{objector}");
            for (i, d) in rows.d.iter().enumerate() {
                let left = if objects && i == objector { 0.0 } else { 144.0 * (-20.0f64).exp2() };
                let d = f64::from(*d) * f64::from(rows.buffers.m[i]).exp();
                assert!(d >= left && d <= left * 1.000_01, "row {i}: {d:e} {left:e}");
            }
        }
    }
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
            // A causal mask keeps all rows from attending the key, and no output changes.
            let mut causal = case.clone();
            causal.spec.causal = Some(Alignment::TopLeft);
            let found = run_and_judge(&causal, &Schedule { skip, ..Schedule::EXACT }, TILE);
            assert!((0..8).all(|i| found.buffers.output.get(i) == 1.0), "{skip:?} {bad}");
        }
    }
    // A NaN score poisons only its own row. Rows with infinite scores are recomputed.
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

    /// Checks random states, each with sums that stay within the budget. If the states are merged in any bracketing, the
    /// result stays within the budget, and its `D` is the sum of all `D`, rescaled to one reference.
    #[test]
    fn a_budget_is_closed_under_the_merge(seed in any::<u64>(), n in 1usize..60, budget in 1e-6f32..0.95, far in prop_oneof![Just(3.0f32), Just(40.0), Just(150.0)]) {
        let mut random = seeded(seed);
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
        // The share is an upper bound, computed from sums that were rounded while they merged.
        prop_assert!(left <= f64::from(budget) * 1.000_1, "{left} {budget}");
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

/// Checks calls with different parts of the keys: they decide independently, and their states merge within the budget
/// and the bound.
#[test]
fn split_runs_keep_the_budget_together() {
    let (queries, keys, d, dv) = (20, 230, 8, 3);
    let mut random = seeded(3);
    let mut tensor = |n: usize, gain: f32| (0..n).map(|_| gain * random.normal()).collect::<Vec<f32>>();
    let (q, k, v) = (tensor(queries * d, 12.0), tensor(keys * d, 1.0), tensor(keys * dv, 1.0));
    let view = |n: usize, d: usize| View::dense("x", Layout::Bhnd, &[n, d], None).unwrap();
    for causal in [None, Some(Alignment::BottomRight)] {
        for budget in [0.02f32, 0.3] {
            let mut merged = Merged::default();
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
                merged.add([m, s, lost, w]);
            }
            assert!(skipped > 0, "{budget}");
            let mut spec =
                Spec::new(DType::F32, view(queries, d), view(keys, d), view(keys, dv), view(queries, dv));
            spec.causal = causal;
            let problem = spec.check().unwrap();
            let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
            merged.check(&problem, &inputs, budget, 64, 1e-5);
        }
    }
}
