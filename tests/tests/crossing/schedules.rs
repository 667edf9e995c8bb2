//! Tests the scalar run of schedules with frozen references and skipped blocks: compares every output with the f64
//! oracle and its bound, and every sum of skipped weights with sums in f64.

use elsa_core::attention::bound::{Arithmetic, Norms};
use elsa_core::attention::traversal::scalar::{executed, run};
use elsa_core::attention::traversal::{
    First, KeySide, LeftOut, Movers, Order, QuerySide, Room, RowRoom, Schedule, Skip, TABLE_3, TABLE_4,
    TileSize, TraversalReport, scratch_len,
};
use elsa_core::attention::{Alignment, MaskKind, Window, reference, scalar};
use elsa_core::dtype::DType;
use elsa_oracle::SLOW;
use elsa_oracle::bounds::Findings;
use elsa_oracle::cases::{Case, MaskParams, Params, any_case, hard_cases};
use elsa_oracle::random::seeded;
use elsa_oracle::schedules::hunt::{Rule, Tally, hunt};
use elsa_oracle::schedules::{ran, run_and_judge, scored, try_run};
use proptest::prelude::*;

const TILE: TileSize = TileSize { rows: 8, keys: 16 };

/// Returns schedules that skip nothing: the settings of table 3 in the VFA article, the exact schedule with lagging
/// references in tiles, representatives of five keys each, and two schedules with the gate.
fn frozen_settings() -> Vec<Schedule> {
    let own = First::Proxy { keys: KeySide::SignedAbsMax, queries: QuerySide::Row, block: Some(5) };
    let mut settings: Vec<Schedule> = TABLE_3.iter().map(|(_, schedule)| *schedule).collect();
    settings.push(Schedule { threshold: 7.5, ..Schedule::EXACT });
    settings.push(Schedule { first: own, threshold: 3.0, ..Schedule::VFA });
    settings.push(Schedule { gate: true, ..Schedule::EXACT });
    settings.push(Schedule { gate: true, ..Schedule::VFA });
    settings
}

fn check_frozen(case: &Case, schedule: &Schedule) -> Result<TraversalReport, String> {
    let ran = try_run(case, schedule, TILE).map_err(|e| e.to_string())?;
    if ran.buffers.present != case.naive_present() {
        return Err("the present is not past and new keys".into());
    }
    // The path has the additions within a block and over the blocks. For a recomputed row, it has the additions of a
    // segment and of the merge tree instead.
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

/// Returns problems that cover masks, causality, windows, key groups, soft caps and 16-bit types; in some of them, few
/// keys have most of the weight.
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
    // Numbers of skipped pairs of a row and a block: if nothing may be skipped, with a budget, and with λ.
    let mut skipped = [0; 3];
    for (c, case) in judged().iter().enumerate() {
        for (n, schedule) in schedules.iter().enumerate().filter(|(n, _)| (n + c) % 3 == 0) {
            let ran =
                run_and_judge(case, schedule, TileSize { rows: 4 + 4 * (n % 3), keys: 8 + 4 * (c % 3) });
            skipped[match schedule.skip {
                Skip::Never => 0,
                Skip::Budget(_) => 1,
                Skip::Blocks(_) | Skip::Rows(_) => 2,
            }] += ran.report.skipped_row_blocks;
        }
    }
    assert!(skipped[0] == 0 && skipped[1] > 100 && skipped[2] > 100, "{skipped:?}");
}

/// Checks a row whose largest score is in the last block. This block is frozen, and the score exceeds all others by a
/// few bits or by hundreds of bits.
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
        // A representative of the last block makes the reference high enough, so no row is recomputed.
        let ran = run_and_judge(&case, &Schedule::VFA, TILE);
        assert_eq!(ran.report.recomputed, 0, "{above}");
    }
}

/// Checks frozen blocks with scores above the reference, which rises only in the last block, the one on the tile's
/// diagonal. Until then the scores are far from the reference, and the rounding errors of their distances do not show
/// in the sums.
#[test]
fn weights_from_before_a_late_move_are_not_trusted() {
    for (above, again) in [(6.3f32, false), (8.9, true), (20.7, true)] {
        let keys = 6 * TILE.keys;
        let own = keys - TILE.keys;
        let k: Vec<f32> = (0..keys)
            .map(|j| match j {
                _ if j < TILE.keys => 0.0,
                _ if j < own => above - 0.013 * (j % 7) as f32,
                _ => above,
            })
            .collect();
        let v: Vec<f32> = (0..keys).map(|j| if j < own { -1.0 } else { 1.0 }).collect();
        let mut case = scored(&[1.0; 5], &k, &v);
        case.spec.causal = Some(Alignment::BottomRight);
        let schedule = Schedule { first: First::None, order: Order::Sequential, ..Schedule::VFA };
        let ran = run_and_judge(&case, &schedule, TILE);
        assert_eq!(ran.report.recomputed, if again { 5 } else { 0 }, "{above}: {:?}", ran.report);
    }
}

/// Checks blocks whose representative is hundreds of bits above or below the scores.
#[test]
fn rows_whose_representatives_are_far_off_are_computed_again() {
    let (d, keys) = (16, 6 * TILE.keys);
    // Every key has one large element, so the score of their representative is sixteen times as large as theirs.
    for (large, again) in [(14.0f32, true), (2.0, false), (2.1, true)] {
        let mut case =
            Params { scale: Some(std::f32::consts::LN_2), ..Params::plain(9, keys, d, 2) }.build("one-hot");
        (0..9 * d).for_each(|x| case.q.set(x, 1.0));
        (0..keys * d).for_each(|x| case.k.set(x, if x % d == x / d % d { large } else { 0.0 }));
        for schedule in [Schedule::VFA, Schedule { skip: Skip::Budget(0.3), ..Schedule::VFA }] {
            let ran = run_and_judge(&case, &schedule, TILE);
            // The representative of a block is 210, 30 or 32 bits too high, and the sum of 96 equal weights adds 6.6
            // bits.
            assert_eq!(ran.report.recomputed, if again { 9 } else { 0 }, "{large}: {:?}", ran.report);
        }
        // A schedule that skips blocks before it computes weights skips every key because of these representatives.
        if large > 10.0 {
            let ran = run_and_judge(&case, &Schedule::vsa(1e-3), TILE);
            assert_eq!((ran.report.recomputed, ran.report.lost_maximum), (9, 9), "{:?}", ran.report);
        }
    }
    // Keys cancel in the mean, so the score of the representative is 200 bits below the largest score.
    let k: Vec<f32> =
        (0..keys).map(|j| if j < TILE.keys { 0.0 } else { 200.0 - 400.0 * (j % 2) as f32 }).collect();
    let v: Vec<f32> = (0..keys).map(|j| j as f32).collect();
    let first = First::Proxy { keys: KeySide::Mean, queries: QuerySide::Row, block: None };
    let ran = run_and_judge(&scored(&[1.0; 9], &k, &v), &Schedule { first, ..Schedule::VFA }, TILE);
    assert_eq!(ran.report.recomputed, 9);
}

/// Checks that a skipped maximum is detected: representatives that are only ten bits too high make every row skip its
/// largest score if blocks are skipped before their weights are computed.
#[test]
fn a_dropped_maximum_is_seen() {
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
fn masked_rows_are_empty_and_leave_the_others_alone() {
    let (rows, keys) = (12, 5 * TILE.keys);
    let mask = MaskParams { kind: MaskKind::Bool, dims: vec![rows, keys], density: 0.5 };
    let mut case =
        Params { gain: 5.0, mask: Some(mask), ..Params::plain(rows, keys, 8, 2) }.build("masked rows");
    let Some(elsa_oracle::cases::MaskData::Bool(mask)) = &mut case.mask else { panic!() };
    for i in [0, 5, 11] {
        mask[i * keys..(i + 1) * keys].fill(0);
    }
    // Row 3 attends keys only in the last block.
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
    // If representatives included future keys or keys beyond the valid ones, references would be hundreds of bits too
    // high, or NaN.
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
        let found = ran(case, &Schedule::EXACT, TILE);
        assert_eq!(found.buffers.bits(), want.bits(), "{case:?}");
        assert!(found.d.iter().chain(&found.share).all(|x| *x == 0.0) || case.cu.is_some());
        let schedule = Schedule { skip: Skip::Budget(0.2), ..Schedule::VFA };
        let [one, two] = [(); 2].map(|()| ran(case, &schedule, TILE));
        assert_eq!((one.buffers.bits(), one.report), (two.buffers.bits(), two.report), "{case:?}");
    }
    // A sequence has the same bits in a batch and alone.
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
    let refused = |schedule: Schedule, tile: TileSize, fewer: usize, rows: usize, of_share: usize| {
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
        (refused(schedule, TileSize { rows: 0, ..TILE }, 0, 8, 5), "tile_rows: 0;"),
        (refused(schedule, TileSize { keys: 0, ..TILE }, 0, 8, 5), "tile_keys: 0;"),
        (refused(schedule, TILE, 1, 8, 5), "scratch: "),
        (refused(schedule, TILE, 0, 7, 5), "scratch_rows: 7 "),
        (refused(schedule, TILE, 0, 8, 6), "left_out_share: "),
        (refused(Schedule::EXACT, TILE, 0, 8, 4), "left_out_share: "),
    ] {
        assert!(message.starts_with(argument), "{message}");
    }
}

/// Compares the errors of rows that pass the norm gate with their bound. The scores reach the limit of the gate, 48 in
/// base-2 units. The reference of these rows is zero.
#[test]
fn scores_at_the_limit_of_the_gate_need_no_reference() {
    let (d, keys) = (4, 8 * TILE.keys);
    let schedule = Schedule { gate: true, ..Schedule::EXACT };
    for (reach, sign, open) in
        [(47.9f32, 1.0f32, true), (47.9, -1.0, true), (0.0, 1.0, true), (48.1, 1.0, false)]
    {
        let mut case = Params { scale: Some(std::f32::consts::LN_2), ..Params::plain(9, keys, d, 2) }
            .build("at the limit");
        let mut random = seeded(7);
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
        // The prior bound holds for gated rows and for frozen rows.
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
    // Values whose sums may overflow, and NaN, keep the gate closed.
    for v in [1e25f32, f32::NAN, f32::INFINITY] {
        let ran = run_and_judge(&scored(&[1.0; 3], &[0.5; 20], &[v; 20]), &schedule, TILE);
        assert_eq!(ran.report.gated, 0, "{v}");
    }
    let ran = ran(&scored(&[1.0, f32::NAN], &[0.5; 20], &[1.0; 20]), &schedule, TILE);
    assert_eq!(ran.report.gated, 0);
}

/// Runs a short version of the hunt that `cargo xtask hunt --schedules` runs.
#[test]
fn no_answer_of_a_hunt_exceeds_its_bound() {
    for rule in Rule::ALL {
        let (mut found, mut tally) = (Findings::default(), Tally::default());
        // The problem of the last seed has weights that were computed before a late move of their reference.
        let seeds = (0..if SLOW { 20 } else { 200 }).chain([16_080]);
        seeds.for_each(|seed| hunt(rule, seed, &mut found, &mut tally));
        assert_eq!(found.violations, 0, "{:?}", found.which);
        assert!(found.worst > 0.0 && found.rows > 200, "{found:?}");
        assert_eq!(rule == Rule::Frozen, tally.row_blocks[1] == 0, "{rule:?} {tally:?}");
        assert!(tally.recomputed > 0, "{rule:?} {tally:?}");
    }
}
