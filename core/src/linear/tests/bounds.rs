//! Checks that the error bound is never exceeded and not unreasonably loose.

use super::*;
use crate::linear::bound::Solve;

#[test]
fn hard_data_stay_within_the_bound() {
    let mut largest = 0.0f64;
    for &(rule, per_dim) in kinds() {
        for style in Style::ALL.into_iter().step_by(if SLOW { 4 } else { 1 }) {
            for (seed, tokens) in [33usize, 64, 100].into_iter().take(if SLOW { 1 } else { 3 }).enumerate() {
                let mut case = Case::new(rule, per_dim, tokens, [6, 4]);
                case.past = seed == 1;
                case.direction = Direction::ALL[(seed + style as usize) % 4];
                case.past &= case.direction != Direction::Bidirectional;
                case.normalize = (seed == 2).then_some(1e-6);
                let case = case.fill(style, seed as u64);
                for form in Form::ALL {
                    for (chunk, part) in [(5, 7), (16, 32)] {
                        largest = largest.max(case.check_walk(Walk { form, chunk, part }));
                    }
                }
            }
        }
    }
    // A bound far above every error would prove nothing.
    let near = if SLOW { 0.02 } else { 0.05 };
    assert!(largest > near, "{largest}");
}

/// Returns three figures for the outputs: the median ratio of bound to error, and the relative error and the relative
/// bound in the Euclidean norm.
fn figures(case: &Case, walk: Walk) -> [f64; 3] {
    let answer = case.run(walk);
    let ([exact, _], [errors, _], _) = case.judge(&scalar::executed(&case.problem(), &walk));
    let mut ratios: Vec<f64> = answer
        .output
        .iter()
        .zip(exact.iter().zip(&errors))
        .map(|(found, (exact, error))| error / (f64::from(*found) - exact).abs().max(1e-30))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let norm = |x: &[f64]| libm::sqrt(x.iter().map(|x| x * x).sum::<f64>());
    [ratios[ratios.len() / 2], relative(&answer.output, &exact), norm(&errors) / norm(&exact)]
}

#[test]
fn errors_are_small_and_bounds_not_absurd() {
    for &(rule, per_dim) in kinds() {
        for walk in Form::ALL.map(|form| Walk { form, chunk: 16, part: 128 }) {
            let case =
                Case::new(rule, per_dim, if SLOW { 48 } else { 512 }, if SLOW { [8, 4] } else { [32, 16] })
                    .fill(Style::Plain, 1);
            let [ratio, error, bound] = figures(&case, walk);
            std::println!(
                "{:12} {per_dim:5} {:12} error {error:.2e} bound {bound:.2e} ratio {ratio:.0}",
                rule.name(),
                walk.form.name()
            );
            assert!(error <= 5e-7, "{} {} {error:e}", rule.name(), walk.form.name());
        }
    }
}

#[test]
fn the_gain_is_one_while_rates_contract_and_reported_beyond() {
    for (style, expected) in
        [(Style::Plain, 1.0), (Style::EqualKeys, 1.0), (Style::Growing, libm::pow(1.2, 40.0))]
    {
        let case = Case::new(Rule::Delta, false, 40, [6, 4]).fill(style, 1);
        let executed = scalar::executed(&case.problem(), &Walk::new(Form::Chunk));
        let (_, _, gain) = case.judge(&executed);
        assert!((gain / expected - 1.0).abs() < 1e-3, "{style:?} {gain} {expected}");
    }
}

#[test]
fn a_bound_grows_with_what_is_executed() {
    for &(rule, per_dim) in kinds() {
        let case = Case::new(rule, per_dim, 64, [6, 4]).fill(Style::Plain, 1);
        let plain = scalar::executed(&case.problem(), &Walk { form: Form::Chunk, chunk: 16, part: 16 });
        let sum = |executed: &Executed| case.judge(executed).1[0].iter().sum::<f64>();
        let base = sum(&plain);
        for more in [
            Executed { query_relative: 1e-4, ..plain },
            Executed { key_relative: 1e-4, ..plain },
            Executed { dims: 1000, ..plain },
            Executed { tokens: 1000, ..plain },
        ] {
            assert!(sum(&more) > 1.1 * base, "{} {more:?}", rule.name());
        }
        if rule.is_gated() {
            assert!(sum(&Executed { exp_relative: 1e-4, ..plain }) > 1.1 * base);
        }
        if rule.is_delta() {
            assert!(sum(&Executed { solve: Solve::Factors, ..plain }) > 1.1 * base);
        }
        let recurrent = Executed { form: Form::Recurrent, chunk: 1, tokens: 1, ..plain };
        assert!(sum(&Executed { form: Form::Scan, ..recurrent }) > 1.01 * sum(&recurrent), "{}", rule.name());
    }
}

#[test]
fn both_directions_and_their_sum_count() {
    for &(rule, per_dim) in kinds() {
        let mut case = Case::new(rule, per_dim, 30, [6, 4]).fill(Style::Plain, 1);
        let executed = scalar::executed(&case.problem(), &Walk::new(Form::Chunk));
        let errors = Direction::ALL.map(|direction| {
            case.direction = direction;
            let ([exact, _], [errors, _], _) = case.judge(&executed);
            (exact, errors)
        });
        let [(_, forward), (_, reverse), (exact, both), _] = &errors;
        for i in 0..both.len() {
            let sum = forward[i] + reverse[i] + DType::F32.unit_roundoff() * exact[i].abs();
            assert!(both[i] >= sum * (1.0 - 1e-12), "{} {i}", rule.name());
        }
    }
}

/// Computes a delta recurrence in f64 in which every row has the largest error that `Executed` allows, with the sign
/// that moves the first column of the last output upwards.
#[test]
fn residuals_that_align_stay_within_the_bound() {
    let (tokens, [dk, dv]) = (if SLOW { 30usize } else { 200 }, [6usize, 2]);
    for (style, per_dim) in [(Style::Plain, false), (Style::EqualKeys, true), (Style::Growing, false)] {
        let mut case = Case::new(Rule::GatedDelta, per_dim, tokens, [dk, dv]).fill(style, 4);
        case.decay.iter_mut().for_each(|g| *g *= 0.01);
        case.scale = Some(1.0);
        let dims = 400;
        let rate = dims as f64 * DType::F32.unit_roundoff();
        let executed = Executed { dims, ..scalar::executed(&case.problem(), &Walk::new(Form::Recurrent)) };
        let ([exact, _], [errors, _], _) = case.judge(&executed);
        let each = if per_dim { dk } else { 1 };
        let gate = |t: usize, x: usize| libm::exp(f64::from(case.decay[t * each + x % each]));
        let key = |t: usize, x: usize| f64::from(case.key[t * dk + x]);
        // `y_t` is the effect on the last output of an error of the state after token `t`: `y_t = A_{t+1}ᵀ y_{t+1}`.
        let last = tokens - 1;
        let mut sees = vec![vec![0.0; dk]; tokens];
        sees[last] = (0..dk).map(|x| f64::from(case.query[last * dk + x])).collect();
        for t in (1..tokens).rev() {
            let along: f64 = (0..dk).map(|x| key(t, x) * sees[t][x]).sum();
            let beta = f64::from(case.beta[t]);
            sees[t - 1] = (0..dk).map(|x| gate(t, x) * (sees[t][x] - beta * along * key(t, x))).collect();
        }
        let mut state = vec![0.0; dk];
        for t in 0..tokens {
            let beta = f64::from(case.beta[t]);
            let v = f64::from(case.value[t * dv]);
            (0..dk).for_each(|x| state[x] *= gate(t, x));
            let read: f64 = (0..dk).map(|x| key(t, x) * state[x]).sum();
            let terms: f64 = (0..dk).map(|x| (key(t, x) * state[x]).abs()).sum::<f64>() + v.abs();
            let sign = (0..dk).map(|x| key(t, x) * sees[t][x]).sum::<f64>().signum();
            let u = beta * (v - read) + sign * beta.abs() * rate * terms;
            (0..dk).for_each(|x| state[x] += key(t, x) * u);
        }
        let answer: f64 = (0..dk).map(|x| sees[last][x] * state[x]).sum();
        let (off, bound) = ((answer - exact[last * dv]).abs(), errors[last * dv]);
        assert!(off <= bound, "{style:?}: {off:e} {bound:e}");
        std::println!("{style:?}: {:.2} of the bound", off / bound);
        assert!(off > 0.01 * bound, "{style:?}: {off:e} {bound:e}");
    }
}
