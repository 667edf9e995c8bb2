//! Compares the six measures of drift with values computed by hand, for ties, for NaN and in chunks. Also tests
//! percentiles.

use elsa_core::attention::drift::{Drift, Metrics, RowDrift};
use elsa_core::attention::{Alignment, reference};
use elsa_core::drift::percentile;
use elsa_oracle::cases::Params;
use elsa_oracle::random::seeded;

fn row(p: &[(f64, f64)], y: &[(f64, f64)]) -> RowDrift {
    let mut row = RowDrift::new();
    p.iter().for_each(|(a, b)| row.probability(*a, *b));
    y.iter().for_each(|(a, b)| row.output(*a, *b));
    row
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-14 * (1.0 + b.abs())
}

#[test]
fn two_rows_by_hand() {
    let mut drift = Drift::new();
    assert_eq!(drift.metrics(), None);
    let a = drift.finish_row(&row(&[(0.5, 0.25), (0.5, 0.75)], &[(1.0, 3.0), (0.0, 4.0)]));
    assert!(close(a.max_abs_p, 0.25) && close(a.rel_l2_p, (0.125f64 / 0.625).sqrt()));
    // Divergence of (1/2, 1/2) and (1/4, 3/4) in nats, term by term from the definition.
    let js = 0.5 * (0.5 * (0.5f64 / 0.375).ln() + 0.5 * (0.5f64 / 0.625).ln())
        + 0.5 * (0.25 * (0.25f64 / 0.375).ln() + 0.75 * (0.75f64 / 0.625).ln());
    assert!(close(a.js, js), "{} {js}", a.js);
    // The computed maxima are equal, so the first key, 0, counts; the maximum of the reference is key 1.
    assert_eq!((a.argmax, a.argmax_strict), (1.0, 1.0));
    assert!(close(a.max_abs_y, 4.0) && close(a.rel_l2_y, (20.0f64 / 25.0).sqrt()));
    let b = drift.finish_row(&row(&[(1.0, 1.0), (0.0, 0.0)], &[(2.0, 2.0), (1.0, 0.0)]));
    assert_eq!((b.max_abs_p, b.rel_l2_p, b.js, b.argmax), (0.0, 0.0, 0.0, 0.0));
    let all = drift.metrics().unwrap();
    assert_eq!(drift.rows(), 2);
    assert!(close(all.max_abs_p, 0.25) && close(all.rel_l2_p, (0.125f64 / 1.625).sqrt()));
    assert!(close(all.js, js / 2.0));
    assert_eq!((all.argmax, all.argmax_strict), (0.5, 0.5));
    assert!(close(all.max_abs_y, 4.0) && close(all.rel_l2_y, (21.0f64 / 29.0).sqrt()));
}

#[test]
fn divergence_at_its_ends_and_never_negative() {
    // The divergence of disjoint distributions is ln 2.
    let far = row(&[(1.0, 0.0), (0.0, 1.0)], &[]).metrics();
    assert!(close(far.js, std::f64::consts::LN_2), "{}", far.js);
    assert_eq!(row(&[(0.0, 0.0), (1.0, 1.0)], &[]).metrics().js, 0.0);
    // The divergence of close distributions is Σ δ² / (8 p) to first order, and accurate where logarithms would cancel.
    for delta in [1e-3, 1e-6, 1e-9, 1e-12] {
        let got = row(&[(0.25 + delta, 0.25), (0.75 - delta, 0.75)], &[]).metrics().js;
        let (d1, d2) = ((0.25 + delta) - 0.25, (0.75 - delta) - 0.75);
        let want = d1 * d1 / (8.0 * 0.25) + d2 * d2 / (8.0 * 0.75);
        assert!((got / want - 1.0).abs() < 4.0 * delta + 1e-12, "{delta}: {got:e} {want:e}");
    }
    // The series for small `d` and the logarithms agree with each other and with the definition.
    for d in [0.01f64, 0.04, 0.0499, 0.05, 0.0501, 0.06, 0.3, 0.9, 1.0] {
        let (a, b) = ((1.0 + d) / 2.0, (1.0 - d) / 2.0);
        let log = |p: f64| if p == 0.0 { 0.0 } else { p * (p / 0.5).ln() };
        let want = 0.5 * (log(a) + log(b));
        let got = row(&[(a, b)], &[]).metrics().js;
        assert!((got - want).abs() < 1e-16 + 1e-13 * want, "{d}: {got:e} {want:e}");
    }
    // Up to its largest `d`, the series is as accurate as f64.
    for d in [0.01f64, 0.03, 0.0499] {
        let (a, b) = ((1.0 + d) / 2.0, (1.0 - d) / 2.0);
        let series = |k: i32| (a - b).powi(2 * k) / f64::from(k * (2 * k - 1));
        let want = 0.25 * (1..20).rev().map(series).sum::<f64>();
        let got = row(&[(a, b)], &[]).metrics().js;
        assert!((got / want - 1.0).abs() < 1.5e-15, "{d}: {got:e} {want:e}");
    }
    let mut random = seeded(5);
    for _ in 0..2000 {
        let p: Vec<f64> = (0..9).map(|_| random.unit()).collect();
        let sum: f64 = p.iter().sum();
        let pairs: Vec<(f64, f64)> = p.iter().map(|p| (f64::from((p / sum) as f32), p / sum)).collect();
        let js = row(&pairs, &[]).metrics().js;
        assert!((0.0..1e-14).contains(&js), "{js:e}");
    }
    assert!(row(&[(-0.5, 0.25)], &[]).metrics().js.is_nan(), "a negative probability is not a distribution");
    assert!(row(&[(-0.5, 0.5)], &[]).metrics().js.is_nan());
}

#[test]
fn argmax_and_ties() {
    let count = |p: &[(f64, f64)]| {
        let m = row(p, &[]).metrics();
        (m.argmax, m.argmax_strict)
    };
    assert_eq!(count(&[(0.6, 0.6), (0.4, 0.4)]), (0.0, 0.0));
    assert_eq!(count(&[(0.4, 0.6), (0.6, 0.4)]), (1.0, 1.0));
    // The reference has two equal maxima. Either is correct, but the first indices differ.
    assert_eq!(count(&[(0.3, 0.4), (0.2, 0.2), (0.5, 0.4)]), (0.0, 1.0));
    // The first of two equal computed maxima counts.
    assert_eq!(count(&[(0.5, 0.5), (0.5, 0.5)]), (0.0, 0.0));
    assert_eq!(count(&[(0.5, 0.49), (0.5, 0.51)]), (1.0, 1.0));
    let far = row(&[(0.1, 0.1), (0.2, 0.2), (0.5, 0.1), (0.2, 0.6)], &[]);
    assert_eq!((far.computed_argmax(), far.reference_argmax()), (2, 3));
    // In one of three rows, the computed argmax differs from the reference's.
    let mut drift = Drift::new();
    for p in [[(0.4, 0.6), (0.6, 0.4)], [(0.6, 0.6), (0.4, 0.4)], [(0.6, 0.6), (0.4, 0.4)]] {
        drift.finish_row(&row(&p, &[]));
    }
    let all = drift.metrics().unwrap();
    assert!(close(all.argmax, 1.0 / 3.0) && close(all.argmax_strict, 1.0 / 3.0), "{all:?}");
    // Rows without keys count as equal.
    assert_eq!(count(&[(0.0, 0.0), (0.0, 0.0)]), (0.0, 0.0));
    assert_eq!(count(&[]), (0.0, 0.0));
    // Two empty rows do not differ.
    let nothing = row(&[(0.0, 0.0)], &[(0.0, 0.0)]).metrics();
    assert_eq!((nothing.rel_l2_p, nothing.rel_l2_y, nothing.js), (0.0, 0.0, 0.0));
    // The reference row is empty, but the computed row is not.
    let leak = row(&[(0.0, 0.0), (1.0, 0.0)], &[(3.0, 0.0)]).metrics();
    assert_eq!((leak.max_abs_p, leak.rel_l2_p, leak.rel_l2_y), (1.0, f64::INFINITY, f64::INFINITY));
    assert!(leak.js > 0.3 && leak.argmax_strict == 1.0);
}

#[test]
fn nan_is_never_agreement() {
    const NAN: f64 = f64::NAN;
    for pair in [(NAN, 0.5), (0.5, NAN), (NAN, NAN)] {
        for at in 0..3 {
            let mut p = [(0.25, 0.25), (0.25, 0.25), (0.5, 0.5)];
            p[at] = pair;
            let mut drift = Drift::new();
            drift.finish_row(&row(&[(1.0, 1.0)], &[(1.0, 1.0)]));
            let one = drift.finish_row(&row(&p, &[(1.0, 1.0), pair, (2.0, 2.0)]));
            drift.finish_row(&row(&[(1.0, 1.0)], &[(1.0, 1.0)]));
            let all = drift.metrics().unwrap();
            for m in [one, all] {
                for x in [m.max_abs_p, m.rel_l2_p, m.js, m.max_abs_y, m.rel_l2_y] {
                    assert!(x.is_nan(), "{pair:?} at {at}: {m:?}");
                }
                assert!(m.argmax > 0.0 && m.argmax_strict > 0.0);
            }
        }
    }
    let infinite = row(&[], &[(f64::INFINITY, 1.0)]).metrics();
    assert_eq!(infinite.max_abs_y, f64::INFINITY);
    assert!(row(&[], &[(f64::INFINITY, f64::INFINITY)]).metrics().max_abs_y.is_nan());
}

#[test]
fn percentiles_by_nearest_rank() {
    assert_eq!(percentile(&mut [], 50), None);
    assert_eq!(percentile(&mut [1.0], 101), None);
    for percent in [0, 1, 50, 95, 99, 100] {
        assert_eq!(percentile(&mut [7.0], percent), Some(7.0));
    }
    let mut ten: Vec<f64> = (1..=10).rev().map(f64::from).collect();
    let wanted =
        [(0, 1.0), (1, 1.0), (10, 1.0), (11, 2.0), (50, 5.0), (51, 6.0), (95, 10.0), (99, 10.0), (100, 10.0)];
    for (percent, want) in wanted {
        assert_eq!(percentile(&mut ten, percent), Some(want), "{percent}");
    }
    let mut hundred: Vec<f64> = (1..=100).map(f64::from).collect();
    for percent in 1..=100 {
        assert_eq!(percentile(&mut hundred, percent), Some(f64::from(percent)));
    }
    // Values may be equal, and the largest may be infinite.
    assert_eq!(percentile(&mut [3.0, 1.0, 3.0, 3.0], 50), Some(3.0));
    assert_eq!(percentile(&mut [1.0, 2.0, 1.0, 1.0], 75), Some(1.0));
    assert_eq!(percentile(&mut [f64::INFINITY, 0.0], 100), Some(f64::INFINITY));
    assert_eq!(percentile(&mut [f64::INFINITY, 0.0], 50), Some(0.0));
    // A NaN of either sign makes every percentile NaN.
    for nan in [f64::NAN, -f64::NAN] {
        for percent in [0, 50, 100] {
            assert!(percentile(&mut [1.0, nan, 0.0], percent).unwrap().is_nan());
        }
    }
    // By definition, a percentile is the smallest value `v` for which at least this share of the values is at most `v`.
    let mut random = seeded(11);
    for n in 1..=60 {
        let mut x: Vec<f64> = (0..n).map(|_| random.below(20) as f64).collect();
        for percent in 1..=100u32 {
            let p = percentile(&mut x, percent).unwrap();
            let share = |v: f64| x.iter().filter(|x| **x <= v).count() * 100;
            assert!(share(p) >= percent as usize * n);
            assert!(x.iter().filter(|x| **x < p).all(|x| share(*x) < percent as usize * n));
        }
    }
}

/// Measures the drift of the oracle's probabilities and outputs after rounding to f32: it must not exceed the rounding,
/// and must be the same for rows that arrive at once and in chunks.
#[test]
fn drift_of_rounding_in_chunks() {
    const U: f64 = 5.960_464_477_539_063e-8;
    let causal = Some(Alignment::BottomRight);
    let case = Params { causal, ..Params::plain(20, 200, 8, 4) }.build("rounding");
    let (problem, inputs) = (case.problem(), case.inputs());
    let mut drift = Drift::new();
    let mut chunked = Drift::new();
    let mut line = vec![0.0; 4];
    for i in 0..20 {
        let stats = reference::row(&problem, &inputs, 0, 0, i, &mut line);
        let (mut whole, mut parts) = (RowDrift::new(), RowDrift::new());
        reference::probabilities(&problem, &inputs, 0, 0, i, |_, p| {
            whole.probability(f64::from(p as f32), p)
        });
        for start in (0..200).step_by(64) {
            let visit = |_, p| parts.probability(f64::from(p as f32), p);
            reference::probabilities_in(&problem, &inputs, 0, 0, i, &stats, start..start + 64, visit);
        }
        for y in &line {
            whole.output(f64::from(*y as f32), *y);
            parts.output(f64::from(*y as f32), *y);
        }
        let (a, b) = (drift.finish_row(&whole), chunked.finish_row(&parts));
        assert_eq!(a, b);
        assert!(a.rel_l2_p > 0.0 && a.rel_l2_p <= U && a.rel_l2_y <= U && a.js > 0.0 && a.js < U * U);
    }
    let all: Metrics = drift.metrics().unwrap();
    assert_eq!(Some(all), chunked.metrics());
    assert_eq!((all.argmax, drift.rows()), (0.0, 20));
    assert!(all.max_abs_p > 0.0 && all.max_abs_p <= U);
}
