//! Compares gradients of the scalar fallback and of every CPU back end with f64.

use crate::backward_tasks::of_seven_tasks;
use elsa_core::argument::ArgumentError as E;
use elsa_core::attention::backward::{BackwardInputs, BackwardProblem, BackwardSpec, Statistics, scalar};
use elsa_core::attention::{Alignment, MaskKind, Outputs, Spec, Window};
use elsa_core::dtype::{DType, Elements};
use elsa_core::plan::ChooseError;
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Case, Data, MaskParams, Params, any_case, some_hard_cases};
use elsa_oracle::gradients::{GradientBuffers, GradientCase};
use elsa_oracle::strides::{TURNS, far_case};
use elsa_oracle::{SLOW, cpu_engines};
use elsa_runtime::{BackwardPlanOptions, BindError, Engine, PlanError, PlanOptions};
use proptest::prelude::*;

/// Compares the gradients of a case with the exact gradients, on the scalar fallback and on every engine.
fn check(case: &Case, engines: &[Engine]) {
    let Some(given) = GradientCase::of(case) else { return };
    let exact = given.exact();
    exact
        .check(&given.scalar(), &scalar::structure(&given.problem))
        .unwrap_or_else(|e| panic!("{case:?}: scalar: {e}"));
    for engine in engines {
        let (found, structure) = given.engine(engine, given.inputs(), None);
        exact.check(&found, &structure).unwrap_or_else(|e| panic!("{case:?}: {}: {e}", engine.backend()));
    }
}

/// Returns cases that only the backward pass needs: their numbers of rows and keys are near the sizes of its tiles and
/// chunks.
fn own_cases() -> Vec<Case> {
    let mask = |kind, dims: &[usize]| Some(MaskParams { kind, dims: dims.to_vec(), density: 0.6 });
    let causal = Some(Alignment::BottomRight);
    let window = Window { left: Some(70), right: Some(3) };
    let n = if cfg!(miri) { 70 } else { 530 };
    let cases = [
        ("two chunks", Params { heads: 2, kv_heads: 1, ..Params::plain(50, n, 20, 12) }),
        ("many tiles", Params { causal, ..Params::plain(n, 97, 8, 8) }),
        (
            "all at once",
            Params {
                heads: 4,
                kv_heads: 2,
                causal,
                window,
                softcap: Some(1.5),
                mask: mask(MaskKind::Bool, &[49, 130]),
                gain: 3.0,
                ..Params::plain(49, 130, 33, 17)
            },
        ),
        (
            "float mask",
            Params {
                mask: mask(MaskKind::Additive(DType::F32), &[2, 1, 51, 66]),
                heads: 2,
                kv_heads: 2,
                batch: 2,
                ..Params::plain(51, 66, 16, 16)
            },
        ),
        (
            "halves",
            Params {
                dtype: DType::F16,
                heads: 2,
                kv_heads: 1,
                layout: Layout::Bnhd,
                ..Params::plain(50, 67, 24, 8)
            },
        ),
        ("long chains", Params::plain(5, 9, 200, 150)),
    ];
    cases.into_iter().map(|(name, params)| Params { scale: Some(0.3), ..params }.build(name)).collect()
}

#[test]
fn hard_cases_match_f64() {
    let engines = cpu_engines(2);
    let cases = if cfg!(miri) { Vec::new() } else { some_hard_cases() };
    for case in cases.iter().step_by(if SLOW { 3 } else { 2 }).chain(&own_cases()) {
        check(case, &engines);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if SLOW { 8 } else { 96 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_case_matches_f64(case in any_case()) {
        check(&case, &cpu_engines(1));
    }
}

/// Checks that the errors of plain problems are at most 5e-7, relative to the sums of the absolute values of terms.
#[test]
fn errors_stay_below_the_goal() {
    let n = if SLOW { 130 } else { 400 };
    let case = Params { heads: 2, kv_heads: 1, ..Params::plain(n, n, 64, 64) }.build("plain");
    let given = GradientCase::of(&case).unwrap();
    let exact = given.exact();
    let report = |name: String, found: &GradientBuffers, structure| {
        let worst = exact.check(found, &structure).unwrap();
        println!("{name}: {worst:e} of the bound {:e}", structure.bound(exact.largest));
        assert!(worst <= 5e-7, "{name}: {worst:e}");
        // The bound covers the worst case of every rounding, but must not be vacuous.
        assert!(structure.bound(exact.largest) <= 1e4 * worst, "{name}: {worst:e}");
    };
    report("scalar".into(), &given.scalar(), scalar::structure(&given.problem));
    for engine in cpu_engines(2) {
        let (found, structure) = given.engine(&engine, given.inputs(), None);
        report(engine.backend().to_string(), &found, structure);
    }
}

/// Checks that a state keeps the digits that a log-sum-exp loses when scores are large.
#[test]
fn states_serve_where_exp_overflows() {
    for engine in cpu_engines(1) {
        for gain in [1.0f32, 1000.0, 4000.0] {
            let mut case = Params { scale: Some(1.0), ..Params::plain(40, 70, 1, 8) }.build("large");
            // The scores are near −gain and gain, and exact in f32, so that their rounding is not measured.
            (0..40)
                .for_each(|i| case.q.set(case.spec.query.row(0, 0, i), if i % 2 == 0 { 1.0 } else { -1.0 }));
            (0..70).for_each(|j| case.k.set(case.spec.key.row(0, 0, j), gain + (j % 7) as f32 / 4.0));
            let given = GradientCase::of(&case).unwrap();
            let exact = given.exact();
            let of = |statistics| {
                let (found, structure) =
                    given.engine(&engine, BackwardInputs { statistics, ..given.inputs() }, None);
                exact.check(&found, &structure).unwrap_or_else(|e| panic!("{gain}: {e}"))
            };
            let by_state = of(Statistics::State { m: &given.m, s: &given.s });
            let by_lse = of(Statistics::LogSumExp(&given.lse));
            // A score in base-2 units is rounded once, for example 5,771 by up to 2.4e-4.
            assert!(by_state <= 1e-6 + f64::from(gain) * 1.5e-7, "{gain}: {by_state:e}");
            assert!(by_lse <= 1e-6 + f64::from(gain) * 3e-7, "{gain}: {by_lse:e}");
        }
    }
}

/// Compares the gradients with finite differences of the loss in f64. The differences do not use the formula of the
/// gradients.
#[test]
fn finite_differences_agree() {
    let causal = Some(Alignment::BottomRight);
    let mask = Some(MaskParams { kind: MaskKind::Additive(DType::F32), dims: vec![5, 9], density: 0.7 });
    let params =
        Params { heads: 2, kv_heads: 1, causal, softcap: Some(2.0), mask, ..Params::plain(5, 9, 3, 4) };
    let case = params.build("differences");
    let given = GradientCase::of(&case).unwrap();
    let loss = |case: &Case| {
        let problem = case.problem();
        let mut y = vec![0.0; 4];
        let mut sum = 0.0;
        for head in 0..2 {
            for i in 0..5 {
                elsa_core::attention::reference::row(&problem, &case.inputs(), 0, head, i, &mut y);
                let at = case.spec.output.row(0, head, i);
                sum += (0..4).map(|x| y[x] * f64::from(given.upstream.get(at + x))).sum::<f64>();
            }
        }
        sum
    };
    let mut all = vec![("scalar".to_string(), given.scalar())];
    for engine in cpu_engines(1) {
        all.push((engine.backend().to_string(), given.engine(&engine, given.inputs(), None).0));
        all.push((format!("tasks on {}", engine.backend()), of_seven_tasks(&engine, &given)));
    }
    // The step is a power of two, so that adding it to elements of order one changes only their last bits.
    let step = 1.0f32 / 1024.0;
    for (of, data) in [&case.q, &case.k, &case.v].into_iter().enumerate() {
        for x in 0..data.len() {
            let moved = |by: f32| {
                let mut case = case.clone();
                let to = [&mut case.q, &mut case.k, &mut case.v].into_iter().nth(of).unwrap();
                to.set(x, data.get(x) + by);
                let at = f64::from(to.get(x));
                (at, loss(&case))
            };
            let ((a, down), (b, up)) = (moved(-step), moved(step));
            let slope = (up - down) / (b - a);
            for (name, found) in &all {
                let got = f64::from([&found.query, &found.key, &found.value][of][x]);
                assert!((got - slope).abs() <= 3e-6 * (1.0 + slope.abs()), "{name} {of} {x}: {got} {slope}");
            }
        }
    }
}

/// Puts NaN and infinities into masked keys and into the upstream gradients of some rows, and checks which gradients
/// they reach.
#[test]
fn nothing_leaks_and_poison_stays_where_it_is() {
    let n = 60;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mask = Some(MaskParams { kind: MaskKind::Bool, dims: vec![50, n], density: 1.0 });
        let mut case = Params { mask, heads: 2, kv_heads: 1, ..Params::plain(50, n, 8, 8) }.build("poison");
        // No row attends key 7, only row 3 attends key 9, and row 5 attends no key.
        let of = |i: usize, j: usize| j != 7 && (j != 9 || i == 3) && i != 5;
        let elements = (0..50 * n).map(|x| u8::from(of(x / n, x % n))).collect();
        case.mask = Some(elsa_oracle::cases::MaskData::Bool(elements));
        for token in [7, 9] {
            case.fill_key(0, token, bad);
            case.fill_value(0, token, bad);
        }
        let mut given = GradientCase::of(&case).unwrap();
        // The upstream gradient of row 5, which attends no key, is not read.
        for head in 0..2 {
            let at = given.problem.spec().upstream.row(0, head, 5);
            (0..8).for_each(|x| given.upstream.set(at + x, bad));
        }
        let mut all = vec![given.scalar()];
        all.extend(cpu_engines(1).iter().map(|e| given.engine(e, given.inputs(), None).0));
        let spec = *given.problem.spec();
        for found in all {
            let row = |data: &[f32], at: usize| data[at..at + 8].to_vec();
            for i in 0..50 {
                let dq = row(&found.query, spec.query.row(0, 1, i));
                match i {
                    3 if bad.is_nan() => assert!(dq.iter().all(|x| x.is_nan()), "{bad}: {dq:?}"),
                    3 => {}
                    5 => assert_eq!(dq, [0.0; 8]),
                    _ => assert!(dq.iter().all(|x| x.is_finite()), "{bad}: row {i}: {dq:?}"),
                }
            }
            for (data, view) in [(&found.key, &spec.key), (&found.value, &spec.value)] {
                assert_eq!(row(data, view.row(0, 0, 7)), [0.0; 8], "{bad}");
            }
        }
    }
}

#[test]
fn threads_and_batch_change_no_bit() {
    let cases = [
        Params { heads: 2, kv_heads: 1, ..Params::plain(100, 1300, 16, 8) },
        Params { causal: Some(Alignment::BottomRight), ..Params::plain(200, 1100, 8, 20) },
        Params { packed: Some(vec![(30, 700), (5, 3), (0, 9)]), ..Params::plain(0, 0, 8, 8) },
    ];
    let keys = if SLOW { 2 } else { 3 };
    for params in &cases[..keys] {
        let case = params.build("bits");
        let given = GradientCase::of(&case).unwrap();
        for (one, many) in cpu_engines(1).iter().zip(cpu_engines(3)) {
            let want = given.engine(one, given.inputs(), None).0.bits();
            assert_eq!(given.engine(&many, given.inputs(), None).0.bits(), want, "{case:?}");
        }
    }
    // A sequence has the same bits alone and in a batch.
    let params = Params { batch: 2, ..cases[0].clone() };
    let both = GradientCase::of(&params.build("batch")).unwrap();
    let mut alone = params.build("alone");
    for view in [&mut alone.spec.query, &mut alone.spec.key, &mut alone.spec.value, &mut alone.spec.output] {
        let [_, h, n, d] = view.shape();
        *view = View::new("x", [1, h, n, d], view.strides()).unwrap();
    }
    let mut first = GradientCase::of(&alone).unwrap();
    first.upstream = both.upstream.clone();
    for engine in cpu_engines(2) {
        let (batch, alone) =
            (both.engine(&engine, both.inputs(), None).0, first.engine(&engine, first.inputs(), None).0);
        for (batch, alone) in [(batch.query, alone.query), (batch.key, alone.key), (batch.value, alone.value)]
        {
            let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&batch[..alone.len()]), bits(&alone));
        }
    }
}

#[test]
fn budgets_are_kept() {
    let case = Params { scale: Some(0.25), ..Params::plain(70, 1300, 16, 16) }.build("budget");
    let given = GradientCase::of(&case).unwrap();
    let exact = given.exact();
    for engine in cpu_engines(2) {
        let plan = |budget| {
            engine.backward_plan(
                &given.problem,
                &BackwardPlanOptions::default().budget(budget).all_workers(true),
            )
        };
        let free = plan(None).unwrap();
        let refused = plan(Some(1000)).unwrap_err();
        let PlanError::Refused(ChooseError::Budget { needed, budget: 1000 }) = refused else {
            panic!("{refused}")
        };
        assert!(needed < free.workspace_bytes());
        for budget in [needed, needed + (free.workspace_bytes() - needed) / 2] {
            assert!(plan(Some(budget)).unwrap().workspace_bytes() <= budget);
            let (found, structure) = given.engine(&engine, given.inputs(), Some(budget));
            exact.check(&found, &structure).unwrap();
        }
        assert!(plan(Some(needed - 1)).is_err());
    }
}

#[test]
fn bad_calls_are_refused_and_nothing_is_written() {
    let case = Params { heads: 2, kv_heads: 1, ..Params::plain(5, 6, 40, 30) }.build("refused");
    let given = GradientCase::of(&case).unwrap();
    let (lse, m) = (vec![0.0; 9], vec![0.0; 11]);
    let short = vec![0.0; 3];
    let half = Data::filled(DType::F16, 2000, 0.0);
    let good = given.inputs();
    let mut no_key = good;
    no_key.forward.key = Elements::F32(&short);
    let bad = [
        (BackwardInputs { statistics: Statistics::LogSumExp(&lse), ..good }, "lse"),
        (BackwardInputs { statistics: Statistics::State { m: &m, s: &given.s }, ..good }, "state_m"),
        (BackwardInputs { statistics: Statistics::State { m: &given.m, s: &lse }, ..good }, "state_s"),
        (BackwardInputs { output: Elements::F32(&short), ..good }, "out"),
        (BackwardInputs { upstream: Elements::F32(&short), ..good }, "d_out"),
        (BackwardInputs { upstream: half.elements(), ..good }, "d_out"),
        (no_key, "k"),
    ];
    for engine in cpu_engines(1) {
        let plan = engine.backward_plan(&given.problem, &BackwardPlanOptions::default()).unwrap();
        for (inputs, argument) in bad {
            let mut room = GradientBuffers::room(&given.problem);
            let mut workspace = plan.workspace().unwrap();
            let error = plan.bind(inputs, room.gradients(), &mut workspace).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{argument}: ")), "{error}");
            let mut scratch = vec![0.0; scalar::scratch_len(&given.problem).unwrap()];
            let same = scalar::run(&given.problem, &inputs, &mut room.gradients(), &mut scratch).unwrap_err();
            assert_eq!(BindError::Problem(same), error);
            assert!(room.bits().iter().all(|bits| *bits == f32::NAN.to_bits()));
        }
        for of in 0..3 {
            let mut room = GradientBuffers::room(&given.problem);
            let GradientBuffers { query, key, value } = &mut room;
            let buffers = [query, key, value];
            let needed = buffers[of].len();
            buffers[of].pop();
            let argument = ["d_q", "d_k", "d_v"][of];
            let mut workspace = plan.workspace().unwrap();
            let error = plan.bind(good, room.gradients(), &mut workspace).unwrap_err();
            assert_eq!(error, BindError::Problem(E::Short { argument, found: needed - 1, needed }));
        }
        // The workspace of a smaller plan is too small.
        let small = GradientCase::of(&Params::plain(2, 2, 1, 1).build("small")).unwrap();
        let other = engine.backward_plan(&small.problem, &BackwardPlanOptions::default()).unwrap();
        let mut room = GradientBuffers::room(&given.problem);
        let mut workspace = other.workspace().unwrap();
        let error = plan.bind(good, room.gradients(), &mut workspace).unwrap_err();
        assert!(matches!(error, BindError::Room { .. }), "{error}");
    }
    let mut scratch = [0.0; 3];
    let mut room = GradientBuffers::room(&given.problem);
    let error = scalar::run(&given.problem, &good, &mut room.gradients(), &mut scratch).unwrap_err();
    assert!(matches!(error, E::Short { argument: "scratch", found: 3, .. }), "{error}");
}

#[test]
fn problems_without_a_backward_pass_are_refused() {
    let of = |n, d| View::dense("x", Layout::Bhnd, &[2, n, d], None).unwrap();
    let spec = Spec::new(DType::F32, of(4, 3), of(5, 3), of(5, 2), of(4, 2));
    let problem = spec.check().unwrap();
    let good = BackwardSpec::new(&problem).unwrap();
    let mismatch = |argument, axis, found, allowed, of| E::Mismatch { argument, axis, found, allowed, of };
    for (bad, error) in [
        (BackwardSpec { upstream: of(3, 2), ..good }, mismatch("d_out", "tokens", 3, 4, "out")),
        (BackwardSpec { query: of(4, 2), ..good }, mismatch("d_q", "head size", 2, 3, "q")),
        (BackwardSpec { key: of(4, 3), ..good }, mismatch("d_k", "tokens", 4, 5, "k")),
        (BackwardSpec { value: of(5, 3), ..good }, mismatch("d_v", "head size", 3, 2, "v")),
        (
            BackwardSpec { key: View::new("x", [1, 2, 5, 3], [0, 0, 3, 1]).unwrap(), ..good },
            E::Overlap { argument: "d_k" },
        ),
    ] {
        assert_eq!(bad.check(&problem).unwrap_err(), error);
    }
    let past = spec.past_key(of(2, 3)).past_value(of(2, 2)).check().unwrap();
    let error = BackwardProblem::new(&past).unwrap_err();
    assert_eq!(error, E::Conflict { argument: "past_k", other: "d_out" });
    // If the batch shares the keys, each sequence still has a separate gradient of the keys.
    let shared = View::new("k", [3, 2, 5, 3], [0, 15, 3, 1]).unwrap();
    let of = |n, d| View::dense("x", Layout::Bhnd, &[3, 2, n, d], None).unwrap();
    let shared = Spec::new(DType::F32, of(4, 3), of(5, 3), of(5, 2), of(4, 2)).key(shared);
    let problem = BackwardProblem::new(&shared.check().unwrap()).unwrap();
    assert_eq!(problem.spec().key, of(5, 3));
}

/// Checks that a 16-bit output increases the errors of gradients only by the rounding of the output and the resulting
/// rounding of `D`.
#[test]
fn outputs_of_16_bits_cost_their_rounding() {
    let case = Params { dtype: DType::F16, ..Params::plain(30, 40, 16, 16) }.build("f16");
    let given = GradientCase::of(&case).unwrap();
    let exact = given.exact();
    for engine in cpu_engines(1) {
        let problem = case.problem();
        let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
        let mut output = Data::filled(DType::F16, case.spec.output.extent(), 0.0);
        let mut workspace = plan.workspace().unwrap();
        let outputs = Outputs::new(output.elements_mut());
        plan.bind(case.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
        let inputs = BackwardInputs { output: output.elements(), ..given.inputs() };
        let (found, mut structure) = given.engine(&engine, inputs, None);
        structure.exp2_relative += DType::F16.unit_roundoff();
        let worst = exact.check(&found, &structure).unwrap();
        assert!(worst > 1e-6, "{worst:e}: is the output read at all?");
    }
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    // The keys of the long cases are more than one chunk.
    let n = if cfg!(miri) { 70 } else { 530 };
    let plain = |queries, keys| Params {
        heads: 2,
        kv_heads: 1,
        scale: Some(0.3),
        ..Params::plain(queries, keys, 16, 8)
    };
    let cases = [
        plain(1, 1),
        plain(1, n),
        Params { heads: 1, layout: Layout::Bnhd, ..plain(1, n) },
        plain(70, 1),
        Params { dtype: DType::F16, ..plain(1, 1) },
    ];
    for params in cases {
        let case = params.build("single elements");
        let want = GradientCase::of(&case).unwrap();
        for turn in 0..TURNS {
            let given = GradientCase::of(&far_case(&case, turn)).unwrap();
            assert_eq!(given.scalar().bits(), want.scalar().bits(), "{case:?}");
            for engine in cpu_engines(2) {
                let [found, want] = [&given, &want].map(|of| of.engine(&engine, of.inputs(), None).0.bits());
                assert_eq!(found, want, "{} {case:?}", engine.backend());
            }
        }
    }
}
