//! Compares error bounds with the errors of outputs for hard problems.

use elsa_core::attention::certificate::Certificate;
use elsa_kernels::registry;
use elsa_oracle::bounds::{Drawn, Findings, Judge, Judged, hunters};
use elsa_oracle::{SLOW, present};
use elsa_runtime::{Engine, EngineOptions, Method, PlanOptions};

/// Checks that no error exceeds the bounds, over problems of every kind on every back end.
#[test]
fn no_error_exceeds_its_bounds() {
    let problems = if cfg!(miri) {
        1
    } else if SLOW {
        60
    } else {
        100
    };
    for hunter in hunters() {
        let mut found = Findings::default();
        (0..problems).for_each(|seed| hunter.hunt(seed, 100, &mut found));
        let Findings { rows, worst, likely, prior, .. } = found;
        println!(
            "{}: {rows} rows, {worst:.2e} of worst, {likely:.2e} of likely, {prior:.2e} of prior",
            hunter.name
        );
        assert!(found.which.is_empty(), "{:#?}", found.which);
        assert!(rows > 0, "{}", hunter.name);
    }
}

/// Checks that problems for Tensor Cores have their shapes, and that the findings count outliers and cancellation.
#[test]
fn problems_for_tensor_cores_have_outliers_and_cancel() {
    let core = &hunters()[0];
    let (mut found, mut rows) = (Findings::default(), [0; 2]);
    for seed in 0..if cfg!(miri) { 8 } else { 40 } {
        let drawn = Drawn::for_tensor_cores(seed, 20);
        assert_eq!([drawn.problem.head_dim() % 4, drawn.problem.value_dim() % 4], [0; 2], "{seed}");
        let before = found.rows;
        core.judge(&drawn, "seed", &mut found);
        rows[0] += if drawn.has_outliers() { found.rows - before } else { 0 };
        rows[1] += if drawn.cancels() { found.rows - before } else { 0 };
    }
    assert!(found.which.is_empty(), "{:#?}", found.which);
    assert_eq!([found.outliers, found.cancelling], rows);
    assert!(rows[0] * 2 > found.rows && rows[1] > 0 && rows[1] < found.rows, "{rows:?} of {}", found.rows);
    assert_eq!(found.with_refusals, 0);
}

/// Checks, for every kernel that plans choose, that the bound of a run uses the name of this kernel and the constants
/// that the table lists for it.
#[test]
fn no_kernel_runs_with_the_bound_of_another() {
    for present in present() {
        let options = EngineOptions::default().backend(present.backend);
        let engine = Engine::new(&options).unwrap();
        for (queries, method) in [
            (1, Method::Elsa),
            (3, Method::Elsa),
            (100, Method::Elsa),
            (1, Method::Math),
            (100, Method::Math),
        ] {
            let problem = Drawn::gaussian(1, queries, 300, 24).problem;
            let Ok(plan) = engine.plan(&problem, &PlanOptions::default().method(method)) else {
                continue;
            };
            let executed = plan.certificate().executed;
            assert_eq!(executed.kernel, plan.kernel());
            let Some(kernel) = registry::ATTENTION.iter().find(|kernel| kernel.spec.name == plan.kernel())
            else {
                continue;
            };
            let spec = &kernel.spec;
            assert_eq!(
                (executed.exp2_relative, executed.fused),
                (spec.exp2_relative, spec.fused),
                "{}",
                spec.name
            );
            assert_eq!(executed.order.lanes, spec.weight_sums, "{}", spec.name);
            assert!(executed.chain <= spec.chain && executed.half_chain == 0, "{}", spec.name);
            assert_eq!(executed.order.normalizes, method == Method::Math, "{}", spec.name);
        }
    }
}

/// Checks that the theorem as printed, `‖ŷ − y‖ ≤ u L(n, B) ‖y‖`, is violated if values cancel, while the bounds hold. Keys
/// come in equal pairs, and the two values of a pair cancel to within a millionth.
#[test]
fn the_printed_theorem_is_violated_and_the_bounds_hold() {
    let drawn = Drawn::cancelling(3, 8, 512, 32);
    for hunter in hunters() {
        let Some((answer, executed)) = hunter.answer(&drawn) else { continue };
        let printed =
            Certificate::new(drawn.problem.spec().dtype, drawn.problem.keys(), executed).published_bound;
        let mut judge = Judge::new(&drawn, executed);
        let mut violated = 0;
        for query in 0..8 {
            assert!(judge.row(0, query, &answer));
            let norm =
                |of: fn(&Judged) -> f64| judge.judged.iter().map(|x| of(x).powi(2)).sum::<f64>().sqrt();
            let (error, y) = (norm(|x| x.error), norm(|x| x.y));
            violated += usize::from(error > 10.0 * printed * y);
            for x in &judge.judged {
                assert!(x.error <= x.bounds.worst && x.error <= x.prior, "{}: {x:?}", hunter.name);
            }
        }
        assert_eq!(violated, 8, "{}", hunter.name);
    }
}

/// Returns `x (1 + δ)` with the largest rounding error in the direction of `sign`.
fn rounded(x: f64, sign: f64) -> f64 {
    let binade = f64::from_bits(x.abs().to_bits() & f64::INFINITY.to_bits());
    x + sign.signum() * binade * 2f64.powi(-24)
}

/// Checks that the worst case is almost attained: if every rounding moves one component in the same direction, by at
/// most the unit roundoff, the error reaches most of the bound. A bound that only knows the size of the roundings
/// cannot be much tighter.
#[test]
fn roundings_that_align_reach_most_of_the_worst_case() {
    let (queries, keys, d) = (4, 400, 64);
    let drawn = Drawn::gaussian(11, queries, keys, d);
    let core = &hunters()[0];
    let (answer, executed) = core.answer(&drawn).unwrap();
    let mut judge = Judge::new(&drawn, executed);
    let (inputs, factor) = (drawn.inputs(), drawn.problem.score_factors().0);
    for row in 0..queries {
        assert!(judge.row(0, row, &answer));
        let component = 5;
        let (y, worst) = (judge.judged[component].y, judge.judged[component].bounds.worst);
        // This loop repeats the scalar fallback key by key, and rounds everything in the direction that raises the
        // result.
        let mut state: Option<(f64, f64, f64)> = None;
        for j in 0..keys {
            let v = f64::from(inputs.value.get(j * d + component));
            let towards = v - y;
            let mut score = 0.0;
            for c in 0..d {
                let q = f64::from(inputs.query.get(row * d + c) * factor);
                let product = q * f64::from(inputs.key.get(j * d + c));
                score = rounded(score + rounded(product, towards), towards);
            }
            let m = match state {
                Some((m, ..)) if score <= m + 8.0 => m,
                _ => score.round(),
            };
            let (s, w) = state.map_or((0.0, 0.0), |(old, s, w)| (s * (old - m).exp2(), w * (old - m).exp2()));
            let weight =
                rounded(score - m, towards).exp2() * (1.0 + executed.exp2_relative * towards.signum());
            let s = rounded(s + weight, -y);
            state = Some((m, s, rounded(w + rounded(weight * v, 1.0), 1.0)));
        }
        let (_, s, w) = state.unwrap();
        let reached = (w / s - y).abs() / worst;
        println!("row {row}: {reached:.3} of the worst case");
        assert!(reached > 0.7 && reached < 1.0, "row {row}: {reached}");
    }
}
