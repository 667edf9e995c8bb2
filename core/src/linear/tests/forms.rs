//! Compares every rule, form, direction and option with the oracle.

use super::*;
use crate::argument::ArgumentError;

#[test]
#[cfg_attr(miri, ignore = "many calls, and nothing unsafe")]
fn every_form_of_every_rule_in_every_direction() {
    for &(rule, per_dim) in kinds() {
        for direction in Direction::ALL {
            for (seed, tokens) in
                [0usize, 9, 1, 7, 8, 12, 29].into_iter().take(if SLOW { 2 } else { 7 }).enumerate()
            {
                let mut case = Case::new(rule, per_dim, tokens, [5, 3]);
                case.direction = direction;
                case.past = seed % 2 == 1 && direction != Direction::Bidirectional;
                let case = case.fill(Style::Plain, seed as u64);
                for walk in walks() {
                    case.check_walk(walk);
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "many calls, and nothing unsafe")]
fn heads_sequences_types_and_states() {
    for &(rule, per_dim) in kinds() {
        for (seed, heads) in [[4, 1, 2], [1, 1, 4], [2, 2, 4], [6, 3, 3]]
            .into_iter()
            .take(if SLOW { 1 } else { 4 })
            .enumerate()
        {
            let mut case = Case::new(rule, per_dim, 21, [4, 6]);
            (case.heads, case.batch) = (heads, 2);
            (case.past, case.in_place) = (true, seed % 2 == 0);
            // An epsilon that is as large as the sums of squares affects every output.
            case.normalize = [None, None, Some(1e-6), Some(0.5)][seed];
            case.one_beta = seed == 1;
            case.dtype = [DType::F32, DType::F16, DType::Bf16, DType::F32][seed];
            let case = case.fill(Style::Plain, seed as u64);
            let mut packed = case.clone();
            (packed.batch, packed.cu_seqlens) = (1, Some(vec![0, 0, 9, 10, 21]));
            let packed = packed.fill(Style::Plain, 9);
            for walk in walks() {
                case.check_walk(walk);
                packed.check_walk(walk);
            }
        }
    }
}

#[test]
fn the_example_of_the_article_in_every_form() {
    let mut case = Case::new(Rule::Gated, false, 4, [1, 1]).fill(Style::Plain, 0);
    case.scale = Some(1.0);
    (case.query, case.key) = (vec![1.0; 4], vec![1.0; 4]);
    (case.value, case.decay) = (vec![1.0, 2.0, 3.0, 4.0], vec![libm::logf(0.5); 4]);
    for walk in walks() {
        let found = case.run(walk).output;
        for (found, expected) in found.iter().zip([1.0, 2.5, 4.25, 6.125]) {
            assert!((found - expected).abs() <= 1e-6, "{} {found}", walk.form.name());
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "many calls, and nothing unsafe")]
fn gates_clear_by_selection_and_nan_poisons() {
    for (rule, per_dim) in
        [(Rule::Gated, false), (Rule::Gated, true), (Rule::GatedDelta, false), (Rule::GatedDelta, true)]
    {
        for poison in [f32::NAN, f32::INFINITY] {
            let mut case = Case::new(rule, per_dim, 30, [3, 2]);
            case.past = true;
            let mut case = case.fill(Style::Plain, 1);
            case.state.fill(poison);
            case.value[2 * 4] = poison;
            let each = if per_dim { 3 } else { 1 };
            case.decay[13 * each..14 * each].fill(f32::NEG_INFINITY);
            for walk in walks() {
                let Answer { output, present } = case.run(walk);
                let name = format!("{} {per_dim} {poison} {}", rule.name(), walk.form.name());
                assert!(output[..13 * 2].iter().all(|x| !x.is_finite()), "{name} {output:?}");
                assert!(output[13 * 2..].iter().chain(&present).all(|x| x.is_finite()), "{name} {output:?}");
                case.check_walk(walk);
            }
            // A NaN gate makes outputs NaN from its token on, until another gate clears the state.
            case.decay[20 * each..21 * each].fill(f32::NAN);
            case.decay[26 * each..27 * each].fill(f32::NEG_INFINITY);
            for walk in walks() {
                let output = case.run(walk).output;
                assert!(output[13 * 2..20 * 2].iter().all(|x| x.is_finite()), "{output:?}");
                assert!(output[20 * 2..26 * 2].iter().all(|x| x.is_nan()), "{output:?}");
                assert!(output[26 * 2..].iter().all(|x| x.is_finite()), "{output:?}");
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "many calls, and nothing unsafe")]
fn states_vanish_before_they_are_subnormal() {
    let mut case = Case::new(Rule::Gated, false, 120, [3, 2]);
    case.past = true;
    let mut case = case.fill(Style::Plain, 1);
    case.value.fill(0.0);
    case.decay.fill(-1.0);
    for walk in walks().into_iter().filter(|walk| walk.form != Form::Parallel) {
        for tokens in [80, 90, 100, 120] {
            case.tokens = tokens;
            let present = case.run(walk).present;
            assert!(present.iter().all(|x| *x == 0.0 || x.abs() >= f32::MIN_POSITIVE), "{present:?}");
            assert!(tokens < 120 || present.iter().all(|x| *x == 0.0));
        }
    }
}

#[test]
fn bad_calls_are_refused() {
    let case = Case::new(Rule::Delta, false, 4, [3, 2]).fill(Style::Plain, 1);
    let problem = case.problem();
    for (walk, argument) in [
        (Walk { form: Form::Chunk, chunk: 0, part: 1 }, "chunk"),
        (Walk { form: Form::Scan, chunk: 1, part: 0 }, "part"),
        (Walk::new(Form::Scan), "scratch"),
    ] {
        let mut refused = None;
        let answer = case.collect(|_, inputs, outputs| {
            let short = scalar::scratch_len(&problem, &walk).unwrap().saturating_sub(1);
            refused = scalar::run(&problem, &walk, inputs, outputs, &mut vec![0.0; short]).err();
        });
        let name = match refused {
            Some(ArgumentError::Count { argument, .. } | ArgumentError::Short { argument, .. }) => argument,
            other => panic!("{other:?}"),
        };
        assert_eq!(name, argument);
        assert!(answer.output.iter().all(|x| x.is_nan()));
    }
}
