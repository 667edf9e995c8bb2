//! Tests values that are not finite in linear attention, with head sizes that do not fill the lanes: a call poisons
//! exactly the outputs that the recurrence as written poisons, in every rule and form, on every back end.

use elsa_core::linear::{Form, Rule};
use elsa_core::random::Random;
use elsa_oracle::linear::{Case, LinearOutputs, Params, RULES};
use elsa_oracle::random::seeded;
use elsa_oracle::{SLOW, engines};
use elsa_runtime::{Engine, LinearPlanOptions};

/// Returns every form, with few tokens per chunk and part.
fn forms() -> Vec<LinearPlanOptions> {
    let of = |form, chunk, parts| {
        LinearPlanOptions::default().form(form).chunk(chunk).parts(parts).all_workers(true)
    };
    vec![
        of(Form::Recurrent, None, None),
        of(Form::FusedChunk, Some(8), None),
        of(Form::Chunk, Some(24), None),
        of(Form::Scan, Some(8), Some(3)),
        of(Form::Parallel, None, None),
    ]
}

/// Computes a case with one head and no gaps by the naive loop in f64. In this loop, a gate of `−∞` clears its rows.
/// Returns the outputs, and the state after the last token.
fn naive(case: &Case) -> (Vec<f64>, Vec<f64>) {
    let (dk, dv) = (case.problem.key_dim(), case.problem.value_dim());
    let (tokens, scale) = (case.problem.tokens(), f64::from(case.problem.scale()));
    let mut state: Vec<f64> = match &case.past {
        Some(past) => past.iter().map(|x| f64::from(*x)).collect(),
        None => vec![0.0; dk * dv],
    };
    let mut out = Vec::new();
    for t in 0..tokens {
        let of = |data: &elsa_oracle::cases::Data, n: usize, x: usize| f64::from(data.get(t * n + x));
        for r in 0..dk {
            let Some(decay) = &case.decay else { break };
            let gates = decay.len() / tokens;
            let gate = of(decay, gates, if gates > 1 { r } else { 0 });
            for s in &mut state[r * dv..(r + 1) * dv] {
                *s = if gate == f64::NEG_INFINITY { 0.0 } else { *s * gate.exp() };
            }
        }
        for c in 0..dv {
            let mut written = of(&case.value, dv, c);
            if let Some(beta) = &case.beta {
                let held: f64 = (0..dk).map(|r| of(&case.key, dk, r) * state[r * dv + c]).sum();
                written = of(beta, 1, 0) * (written - held);
            }
            for r in 0..dk {
                state[r * dv + c] += of(&case.key, dk, r) * written;
            }
            out.push(scale * (0..dk).map(|r| of(&case.query, dk, r) * state[r * dv + c]).sum::<f64>());
        }
    }
    (out, state)
}

/// Draws a case of `tokens` tokens with one to three numbers that are not finite, and gates that may clear their
/// effects.
fn hard(random: &mut Random, rule: Rule, per_dim: bool, dims: [usize; 2], tokens: usize) -> Case {
    let (past, seed) = (random.below(2) == 0, 1 + random.below(1 << 20) as u64);
    let mut case = Params { per_dim, past, seed, ..Params::plain(rule, tokens, dims) }.build();
    const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for _ in 0..1 + random.below(3) {
        let (bad, first) = (BAD[random.below(3)], random.below(tokens));
        let Case { query, key, value, decay, beta, past, .. } = &mut case;
        match (random.below(7), decay, beta, past) {
            (0, ..) => query.set(first * dims[0] + random.below(dims[0]), bad),
            (1, ..) => key.set(first * dims[0] + random.below(dims[0]), bad),
            (2, Some(decay), ..) => {
                let gates = decay.len() / tokens;
                let gate = if bad == f32::NEG_INFINITY { f32::NAN } else { bad };
                decay.set(first * gates + random.below(gates), gate);
            }
            (3, _, Some(beta), _) => beta.set(first, bad),
            (4, .., Some(past)) => past[random.below(dims[0] * dims[1])] = bad,
            _ => value.set(first * dims[1] + random.below(dims[1]), bad),
        }
    }
    if let Some(decay) = &mut case.decay {
        for _ in 0..random.below(4) {
            let (gates, token) = (decay.len() / tokens, random.below(tokens));
            let all = random.below(3) > 0;
            (0..gates).filter(|_| all || random.below(2) == 0).collect::<Vec<_>>().into_iter().for_each(
                |x| {
                    decay.set(token * gates + x, f32::NEG_INFINITY);
                },
            );
        }
    }
    case
}

/// Asserts that a call poisoned exactly the values that the naive loop poisons, and that the other values are accurate.
fn check(what: &str, case: &Case, found: &LinearOutputs) {
    let (out, state) = naive(case);
    for (kind, found, want) in [("output", found.rows(case), out), ("state", found.states(case), state)] {
        assert_eq!(found.len(), want.len());
        let size = want.iter().filter(|x| x.is_finite()).fold(1.0f64, |a, x| a.max(x.abs()));
        for (i, (found, want)) in found.iter().zip(&want).enumerate() {
            let near = (found - want).abs() <= 1e-5 * size;
            let same = if want.is_finite() { near } else { !found.is_finite() };
            assert!(same, "{kind} {i}: {found}, not {want}; {what}: {}", case.name);
        }
    }
}

/// Runs `rounds` random cases of every rule in every form.
pub(crate) fn poisons_as_the_loop(
    rounds: usize,
    forms: &[LinearPlanOptions],
    run: impl Fn(&Case, &LinearPlanOptions) -> LinearOutputs,
) {
    let mut random = seeded(41);
    for round in 0..rounds {
        for (rule, per_dim) in RULES {
            let odd = |random: &mut Random| [1, 2, 3, 5, 6, 7, 9, 10, 13, 18][random.below(10)];
            let dims = [odd(&mut random), odd(&mut random)];
            let tokens = 1 + [8, 30, 75][random.below(3)] - random.below(6);
            let case = hard(&mut random, rule, per_dim, dims, tokens);
            for options in forms {
                let found = run(&case, options);
                check(&format!("round {round}, {options:?}"), &case, &found);
            }
        }
    }
}

#[test]
fn what_the_loop_poisons_and_nothing_else() {
    for engine in engines(1) {
        poisons_as_the_loop(if SLOW { 2 } else { 40 }, &forms(), |case, options| {
            case.run_on(&engine, options)
        });
    }
}

/// Runs three tokens whose queries and keys consist of ones, in every form, and checks the outputs. Rules with gates
/// have one gate per dim; the gates of token `clears` clear the state.
fn of_ones(engine: &Engine, rule: Rule, dim: usize, values: [f32; 3], clears: Option<usize>) {
    let per_dim = rule.is_gated();
    let mut case = Params { per_dim, scale: Some(1.0), ..Params::plain(rule, 3, [dim, 1]) }.build();
    for i in 0..3 * dim {
        case.query.set(i, 1.0);
        case.key.set(i, 1.0);
        if let Some(decay) = &mut case.decay {
            decay.set(i, if clears == Some(i / dim) { f32::NEG_INFINITY } else { 0.0 });
        }
    }
    values.iter().enumerate().for_each(|(t, v)| case.value.set(t, *v));
    let mut sum = 0.0;
    let want = [0, 1, 2].map(|t| {
        sum = if clears == Some(t) { 0.0 } else { sum };
        sum += dim as f64 * f64::from(values[t]);
        sum
    });
    for options in forms() {
        let found = case.run_on(engine, &options).rows(&case);
        let same =
            found.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
        assert!(same, "{} {options:?}: {found:?}, not {want:?}", engine.backend());
    }
}

/// Checks that the padding of rows changes no infinity, and that a NaN in the padding does not survive a gate that
/// clears.
pub(crate) fn padding_is_nothing(engine: &Engine) {
    for dim in 1..=9 {
        of_ones(engine, Rule::Gated, dim, [f32::NAN, 1.0, 1.0], Some(1));
        of_ones(engine, Rule::Gated, dim, [f32::INFINITY, 1.0, 1.0], Some(2));
        of_ones(engine, Rule::Linear, dim, [f32::INFINITY, 1.0, 1.0], None);
        of_ones(engine, Rule::Linear, dim, [1.0, f32::NEG_INFINITY, 1.0], None);
    }
}

#[test]
fn padding_changes_no_infinity_and_outlives_no_gate() {
    engines(1).iter().for_each(padding_is_nothing);
}

/// Checks that a gate beyond the range of f32 multiplies the contents of the state: zero stays zero, and small numbers
/// grow to their exact value.
pub(crate) fn gates_follow(engine: &Engine) {
    for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        for (gate, past) in [(89.0, 0.0), (95.0, 1e-30), (130.0, 1e-38), (600.0, 0.0), (89.0, 1e-10)] {
            let params = Params { per_dim, past: true, ..Params::plain(rule, 9, [3, 5]) };
            let mut case = params.build();
            let gates = if per_dim { 3 } else { 1 };
            if let (Some(decay), Some(states)) = (&mut case.decay, &mut case.past) {
                (0..gates).for_each(|x| decay.set(x, gate));
                (0..9 * gates).skip(gates).for_each(|x| decay.set(x, 0.0));
                states.iter_mut().for_each(|s| *s = past);
            }
            if let Some(beta) = &mut case.beta {
                (0..9).for_each(|t| beta.set(t, 1e-3));
            }
            let (out, _) = naive(&case);
            let size = out.iter().fold(1.0f64, |a, x| a.max(x.abs()));
            for options in forms() {
                for (found, want) in case.run_on(engine, &options).rows(&case).iter().zip(&out) {
                    let near = (found - want).abs() <= 1e-5 * size;
                    assert!(
                        near,
                        "{} {rule:?} {per_dim} {options:?} {gate} {past}: {found}, not {want}",
                        engine.backend()
                    );
                }
            }
        }
    }
}

#[test]
fn gates_beyond_f32_follow_the_state() {
    engines(1).iter().for_each(gates_follow);
}
