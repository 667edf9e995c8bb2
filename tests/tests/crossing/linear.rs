//! Compares linear attention with the recurrence in f64, on every back end. Covers rules, forms, directions and
//! options.

use elsa_core::dtype::DType;
use elsa_core::linear::{Direction, Form, Rule};
use elsa_core::view::View;
use elsa_oracle::linear::{Case, GateKind, Packing, Params, RULES};
use elsa_oracle::random::seeded;
use elsa_oracle::strides::{TURNS, far};
use elsa_oracle::{SLOW, engines};
use elsa_runtime::{Backend, Engine, EngineOptions, LinearPlanOptions};

/// Returns options for every form, with small chunks and few parts.
fn forms() -> Vec<LinearPlanOptions> {
    let plain = LinearPlanOptions::default().all_workers(true);
    let mut forms = vec![plain];
    for form in Form::ALL {
        let chunks: &[Option<usize>] = match form {
            Form::Recurrent | Form::Parallel => &[None],
            _ => &[None, Some(8), Some(24)],
        };
        for chunk in chunks.iter().copied() {
            let parts = (form == Form::Scan && chunk.is_some()).then_some(3);
            forms.push(plain.form(form).chunk(chunk).parts(parts));
        }
    }
    forms
}

fn check_all(engines: &[Engine], case: &Case, forms: &[LinearPlanOptions]) {
    for engine in engines {
        for options in forms {
            let name = format!("{} {options:?} {}", engine.backend(), case.name);
            Case { name, ..case.clone() }.check_on(engine, options);
        }
    }
}

#[test]
fn every_rule_form_and_direction() {
    let engines = engines(2);
    for (rule, per_dim) in RULES {
        for direction in Direction::ALL {
            let past = direction != Direction::Bidirectional;
            let mut params = Params { per_dim, direction, past, ..Params::plain(rule, 83, [12, 20]) };
            params.heads = [2, 1, 2];
            check_all(&engines, &params.build(), &forms());
        }
    }
}

/// Runs one problem per form, small enough for Miri.
#[test]
fn small_calls() {
    let forms = forms();
    // Miri is an interpreter, so it runs only the rule that has all operations.
    for (rule, per_dim) in &RULES[if cfg!(miri) { 5 } else { 0 }..] {
        let params = Params { per_dim: *per_dim, past: true, ..Params::plain(*rule, 11, [3, 2]) };
        let least = |options: &&LinearPlanOptions| !cfg!(miri) || options.chunk == Some(8);
        let forms: Vec<LinearPlanOptions> = forms.iter().filter(least).copied().collect();
        assert!(forms.len() >= 3);
        // Finding the back ends needs system calls that Miri lacks, so the environment names a back end.
        let chosen = || Engine::new(&EngineOptions::default().threads(2)).unwrap();
        let engines = if cfg!(miri) { vec![chosen()] } else { engines(2) };
        check_all(&engines, &params.build(), &forms);
    }
}

#[test]
fn lengths_around_chunks() {
    let engines = engines(1);
    let lengths: &[usize] = if SLOW { &[0, 1, 65] } else { &[0, 1, 7, 8, 9, 63, 64, 65, 129] };
    for (rule, per_dim) in RULES {
        for tokens in lengths.iter().copied() {
            let params = Params { per_dim, past: true, ..Params::plain(rule, tokens, [8, 5]) };
            check_all(&engines, &params.build(), &forms());
        }
    }
}

#[test]
fn heads_layouts_types_and_states() {
    let engines = engines(2);
    let mut n = 0;
    for (rule, per_dim) in RULES {
        for heads in [[4, 1, 1], [1, 1, 4], [4, 2, 2], [2, 2, 4], [4, 1, 2]] {
            for packing in [Packing::Heads, Packing::Tokens, Packing::Gaps] {
                n += 1;
                // The options are random, so that no two options always occur together.
                let mut random = seeded(n);
                let dims = [[16, 32], [7, 3], [32, 16], [20, 48]][random.below(4)];
                let mut params = Params { per_dim, heads, packing, ..Params::plain(rule, 37, dims) };
                (params.batch, params.seed) = (1 + random.below(2), n);
                params.dtype = [DType::F32, DType::F16, DType::Bf16][random.below(3)];
                params.gate_dtype = [DType::F32, params.dtype][random.below(2)];
                params.direction = Direction::ALL[random.below(4)];
                let both = params.direction == Direction::Bidirectional;
                params.past = !both && random.below(5) > 0;
                params.in_place = params.past && random.below(2) > 0;
                params.normalize = (random.below(4) == 0).then_some(0.25);
                params.scale = (random.below(6) == 0).then_some(-0.75);
                params.shared_beta = random.below(2) > 0;
                if random.below(4) == 0 {
                    params.batch = 1;
                    params.packed = Some(vec![0, 0, 11, 12, 37]);
                }
                let forms = forms();
                check_all(&engines, &params.build(), &[forms[0], forms[1 + random.below(forms.len() - 1)]]);
            }
        }
    }
}

/// Checks that a certificate has the largest bound of all elements and of each channel, also of packed sequences whose
/// states are replaced in place.
#[test]
fn certificates_have_the_largest_bounds() {
    let most = |errors: &mut dyn Iterator<Item = &f64>| errors.copied().fold(0.0, f64::max);
    for engine in &engines(2) {
        for (rule, per_dim) in RULES {
            for (in_place, packed) in [(false, None), (true, Some(vec![0, 0, 11, 12, 37]))] {
                let plain = Params::plain(rule, 37, [7, 5]);
                let params =
                    Params { per_dim, past: true, present: true, in_place, packed, batch: 1, ..plain };
                let case = params.build();
                let plan = engine.linear_plan(&case.problem, &LinearPlanOptions::default()).unwrap();
                let answer = case.answer(|tokens| plan.executed_of(plan.backend(), tokens));
                let found = plan.certificate(plan.backend(), &case.all_inputs()).unwrap();
                assert_eq!(found.output, most(&mut answer.output_error.iter()), "{}", case.name);
                assert_eq!(found.present, most(&mut answer.present_error.iter()), "{}", case.name);
                assert_eq!((found.channels.len(), found.unclaimed), (5, 0), "{}", case.name);
                for (channel, bound) in found.channels.iter().enumerate() {
                    let errors = &mut answer.output_error.iter().skip(channel).step_by(5);
                    assert_eq!(*bound, most(errors), "{} channel {channel}", case.name);
                }
                assert!(found.output > 0.0 && found.output < 1e-3 && found.gain > 0.0, "{found:?}");
                assert_eq!(plan.certificate(plan.backend(), &case.inputs()).is_err(), in_place);
            }
        }
    }
}

#[test]
fn gates_that_break_naive_code() {
    let engines = engines(1);
    for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        for gates in [GateKind::Hard, GateKind::Clearing] {
            let params = Params { per_dim, gates, past: true, ..Params::plain(rule, 90, [16, 16]) };
            check_all(&engines, &params.build(), &forms());
        }
    }
}

#[test]
fn keys_that_are_nearly_equal() {
    let engines = engines(1);
    for rule in [Rule::Delta, Rule::GatedDelta] {
        let params = Params {
            equal_keys: true,
            most_beta: 1.9,
            normalize: Some(0.0),
            ..Params::plain(rule, 90, [16, 16])
        };
        check_all(&engines, &params.build(), &forms());
    }
}

/// Checks that a gate of −∞ clears the state even of NaN, and that nothing else removes a NaN.
#[test]
fn infinite_gates_clear_whatever_a_state_holds() {
    for engine in &engines(1) {
        for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
            for options in forms() {
                let mut params = Params { per_dim, past: true, ..Params::plain(rule, 70, [8, 16]) };
                let nan_at = |params: &Params| {
                    let mut case = params.build();
                    if let Some(past) = &mut case.past {
                        past[..16].copy_from_slice(&[f32::NAN; 16]);
                    }
                    case
                };
                let mut case = nan_at(&params);
                if let Some(decay) = &mut case.decay {
                    let dims = if per_dim { 8 } else { 1 };
                    (0..dims).for_each(|x| decay.set(x, f32::NEG_INFINITY));
                }
                let found = case.run_on(engine, &options);
                assert!(found.rows(&case).iter().all(|x| x.is_finite()), "{options:?}");
                let past = case.past.replace(vec![0.0; 8 * 16]);
                assert_eq!(found.bits(), case.run_on(engine, &options).bits(), "{options:?}");
                case.past = past;
                params.seed = 2;
                let case = nan_at(&params);
                let found = case.run_on(engine, &options);
                let all_nan = |rows: &[f64]| rows.iter().any(|x| x.is_nan());
                assert!(all_nan(&found.rows(&case)) && all_nan(&found.states(&case)), "{options:?}");
            }
        }
    }
}

/// Checks that a state keeps its NaN when finite gates shrink everything else in it to nothing, gradually or at once.
#[test]
fn a_nan_outlives_whatever_decays() {
    for engine in &engines(1) {
        for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
            for (gate, tokens) in [(-4.0, 70), (-1000.0, 70), (-90.0, 1), (f32::MIN, 1)] {
                for options in forms() {
                    let params = Params { per_dim, past: true, ..Params::plain(rule, 70, [8, 16]) };
                    let mut case = params.build();
                    if let Some(past) = &mut case.past {
                        past[..16].fill(f32::NAN);
                    }
                    if let Some(decay) = &mut case.decay {
                        (0..decay.len() / 70 * tokens).for_each(|i| decay.set(i, gate));
                    }
                    let states = case.run_on(engine, &options).states(&case);
                    assert!(states[..16].iter().all(|x| x.is_nan()), "{options:?} {gate} {rule:?}");
                }
            }
        }
    }
}

/// Checks a call of few tokens, which works directly in the present state. The bits of its results must not depend on
/// whether the past state is in the same memory or in other memory. Without a present state, the output must have the
/// same bits too. Also runs calls without a past.
#[test]
fn few_tokens_pass_the_state_where_it_is() {
    for engine in &engines(2) {
        for (rule, per_dim) in RULES {
            for (n, tokens) in [1, 2, 5, 8, 9].into_iter().enumerate() {
                for form in [None, Some(Form::FusedChunk), Some(Form::Chunk)] {
                    let mut params = Params { per_dim, past: true, ..Params::plain(rule, tokens, [8, 80]) };
                    params.packing = [Packing::Heads, Packing::Tokens, Packing::Gaps][n % 3];
                    params.direction = [Direction::Forward, Direction::Reverse][n % 2];
                    (params.batch, params.heads) = (2, [2, 1, 2]);
                    let options = LinearPlanOptions::default().form(form).all_workers(true);
                    check_all(std::slice::from_ref(engine), &params.build(), &[options]);
                    let apart = params.build();
                    let found = apart.run_on(engine, &options);
                    params.in_place = true;
                    let case = params.build();
                    assert_eq!(case.run_on(engine, &options).bits(), found.bits(), "{}", case.name);
                    (params.in_place, params.present) = (false, false);
                    let case = params.build();
                    assert_eq!(
                        case.run_on(engine, &options).rows(&case),
                        found.rows(&apart),
                        "{}",
                        case.name
                    );
                    (params.past, params.present) = (false, true);
                    check_all(std::slice::from_ref(engine), &params.build(), &[options]);
                }
            }
        }
    }
}

/// Runs calls of one token, with gates of every kind and with head sizes that do or do not fill vectors and strips. The
/// bits are the same if the past state is replaced in place, and an absent past counts as zeros.
#[test]
fn one_token_of_every_size() {
    let options = LinearPlanOptions::default().all_workers(true);
    for engine in &engines(2) {
        for (rule, per_dim) in RULES {
            let sizes = [[1, 1], [63, 65], [64, 64], [65, 63], [128, 128], [13, 200], [200, 128]];
            for (n, dims) in sizes.into_iter().enumerate() {
                let mut params = Params { per_dim, past: true, ..Params::plain(rule, 1, dims) };
                params.gates = [GateKind::Mild, GateKind::Hard, GateKind::Clearing][n % 3];
                params.packing = [Packing::Heads, Packing::Tokens, Packing::Gaps][n / 2 % 3];
                params.heads = [[2, 1, 2], [4, 2, 2]][n % 2];
                let mut apart = params.build();
                check_all(std::slice::from_ref(engine), &apart, &[options]);
                let found = apart.run_on(engine, &options);
                params.in_place = true;
                let case = params.build();
                assert_eq!(case.run_on(engine, &options).bits(), found.bits(), "{}", case.name);
                (params.in_place, params.past) = (false, false);
                let case = params.build();
                check_all(std::slice::from_ref(engine), &case, &[options]);
                apart.past.iter_mut().for_each(|past| past.fill(0.0));
                let zeros = apart.run_on(engine, &options);
                assert_eq!(case.run_on(engine, &options).bits(), zeros.bits(), "{}", case.name);
            }
        }
    }
}

/// The stride of an axis with one element may be any number. No address that is computed from it may overflow, not even
/// one that is only prefetched.
#[test]
fn strides_of_single_tokens_and_heads_do_not_matter() {
    let mut turn = 0;
    for engine in &engines(2) {
        for (rule, per_dim) in RULES {
            for direction in [Direction::Forward, Direction::Reverse, Direction::Bidirectional] {
                let present = direction != Direction::Bidirectional;
                let params =
                    Params { per_dim, direction, past: present, present, ..Params::plain(rule, 1, [64, 64]) };
                let mut case = params.build();
                for options in forms() {
                    let want = case.run_on(engine, &options);
                    let dense = case.problem;
                    turn = (turn + 1) % TURNS;
                    let of = |view: View| far(view, turn);
                    let spec = *dense.spec();
                    let mut strided = spec.query(of(spec.query)).key(of(spec.key)).value(of(spec.value));
                    strided.output = of(spec.output);
                    (strided.decay, strided.beta) = (spec.decay.map(of), spec.beta.map(of));
                    (strided.past_state, strided.present_state) =
                        (spec.past_state.map(of), spec.present_state.map(of));
                    case.problem = strided.check().unwrap();
                    assert_eq!(case.run_on(engine, &options).bits(), want.bits(), "{}", case.name);
                    case.problem = dense;
                }
            }
        }
    }
}

/// Checks that the state after a token contains only normal numbers and zeros, whether or not it is replaced in place.
/// The error of each number must be small relative to the number.
#[test]
fn a_token_leaves_no_subnormal_number() {
    const LEAST: f32 = f32::MIN_POSITIVE;
    let held = [3.0 * LEAST, -3.0 * LEAST, 1.5 * LEAST, 0.75 * LEAST, -0.0, 1e-30, 1e-20, -0.7];
    for engine in &engines(1) {
        for (rule, per_dim) in RULES {
            for (gate, in_place) in [(0.5f32, false), (0.5, true), (1.0, false), (1.0, true)] {
                let mut params = Params { per_dim, past: true, ..Params::plain(rule, 1, [8, 85]) };
                params.in_place = in_place;
                let mut case = params.build();
                // Keys are zero, so the token writes only zeros.
                (0..case.key.len()).for_each(|i| case.key.set(i, 0.0));
                for decay in case.decay.iter_mut() {
                    (0..decay.len()).for_each(|i| decay.set(i, gate.ln()));
                }
                let past: Vec<f32> = held.iter().copied().cycle().take(8 * 85).collect();
                case.past = Some(past.clone());
                let states = case.run_on(engine, &LinearPlanOptions::default()).states(&case);
                // The linear rule does not multiply the state, so subnormal numbers remain.
                let changes = rule != Rule::Linear;
                let factor = if rule.is_gated() { f64::from(gate) } else { 1.0 };
                for (got, was) in states.into_iter().zip(past) {
                    let want = f64::from(was) * factor;
                    let want = if changes && want.abs() < f64::from(LEAST) { 0.0 } else { want };
                    let limit = 1e-6 * want.abs() + if want == 0.0 { 0.0 } else { 2f64.powi(-143) };
                    assert!((got - want).abs() <= limit, "{}: {got:e} instead of {want:e}", case.name);
                }
            }
        }
    }
}

/// Checks that a gate of −∞ within a sequence removes even a NaN, also in a later part of a scan.
#[test]
fn infinite_gates_clear_in_every_part() {
    for engine in &engines(1) {
        for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
            for options in forms() {
                let params = Params { per_dim, past: true, ..Params::plain(rule, 70, [8, 16]) };
                let mut case = params.build();
                let dims = if per_dim { 8 } else { 1 };
                if let Some(decay) = &mut case.decay {
                    (30 * dims..31 * dims).for_each(|x| decay.set(x, f32::NEG_INFINITY));
                }
                let clean = case.run_on(engine, &options).present;
                if let Some(past) = &mut case.past {
                    past[..16].fill(f32::NAN);
                }
                assert_eq!(case.run_on(engine, &options).present, clean, "{options:?} {rule:?} {per_dim}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_batch_or_repetition() {
    for (rule, per_dim) in RULES {
        for options in forms() {
            for (one, three) in engines(1).into_iter().zip(engines(3)) {
                let mut params = Params { per_dim, past: true, ..Params::plain(rule, 75, [12, 52]) };
                params.batch = 2;
                let case = params.build();
                let first = case.run_on(&one, &options);
                assert_eq!(first.bits(), case.run_on(&three, &options).bits(), "{options:?} {}", case.name);
                assert_eq!(first.bits(), case.run_on(&one, &options).bits(), "{options:?} {}", case.name);
            }
        }
    }
}

/// Checks that a stream that is cut at the end of a chunk and continued from its state has the bits of one call.
#[test]
fn a_stream_cut_at_the_ends_of_chunks_keeps_its_bits() {
    for engine in &engines(1) {
        for (rule, per_dim) in RULES {
            for options in forms() {
                let params = Params { per_dim, past: true, ..Params::plain(rule, 192, [8, 20]) };
                let case = params.build();
                let plan = engine.linear_plan(&case.problem, &options).unwrap();
                let report = case.run(&plan, &mut plan.workspace().unwrap()).1;
                let division = plan.division_of(report.backend);
                if matches!(division.form, Form::Scan | Form::Parallel) {
                    continue;
                }
                // The form is fixed, because the chooser might prefer another form for fewer tokens.
                let options = options.form(division.form);
                let whole = case.run_on(engine, &options);
                let cut = 2 * division.chunk;
                let (first, second) = case.cut(cut);
                let start = first.run_on(engine, &options);
                let second = Case { past: start.present.clone(), ..second };
                let end = second.run_on(engine, &options);
                let joined = [start.rows(&first), end.rows(&second)].concat();
                assert_eq!(whole.rows(&case), joined, "{division:?}");
                assert_eq!(whole.present, end.present, "{division:?}");
            }
        }
    }
}

/// Checks that a packed sequence, also next to empty sequences, has the bits of a call with this sequence alone.
#[test]
fn packed_sequences_get_the_bits_of_single_calls() {
    for engine in &engines(2) {
        for (rule, per_dim) in RULES {
            for options in forms() {
                let mut params = Params { per_dim, past: true, ..Params::plain(rule, 80, [8, 20]) };
                let alone = params.build();
                params.packed = Some(vec![0, 0, 80, 80]);
                let mut packed = params.build();
                (packed.query, packed.key, packed.value) =
                    (alone.query.clone(), alone.key.clone(), alone.value.clone());
                (packed.decay, packed.beta) = (alone.decay.clone(), alone.beta.clone());
                if let (Some(past), Some(own)) = (&mut packed.past, &alone.past) {
                    past[own.len()..2 * own.len()].copy_from_slice(own);
                }
                let (found, expected) = (packed.run_on(engine, &options), alone.run_on(engine, &options));
                assert_eq!(found.rows(&packed), expected.rows(&alone), "{options:?} {rule:?}");
                let states = found.states(&packed);
                let own = expected.states(&alone);
                assert_eq!(states[own.len()..2 * own.len()], own, "{options:?} {rule:?}");
            }
        }
    }
}

/// Returns an engine on a CPU back end; `None` if only the GPU is tested.
fn cpu() -> Option<Engine> {
    engines(2).into_iter().find(|engine| matches!(engine.backend(), Backend::Cpu(_)))
}

/// Checks that packing a short sequence with others changes neither its parts nor its number of tokens per pass. The
/// number of other packed tokens must not matter.
#[test]
fn packed_sequences_have_parts_of_their_own() {
    let Some(engine) = cpu() else { return };
    for rule in [Rule::Gated, Rule::GatedDelta] {
        for (form, tokens, others) in
            [(Form::Scan, 1100, 2500), (Form::Parallel, 5, 40), (Form::Parallel, 9, 40)]
        {
            let options = LinearPlanOptions::default().form(form);
            let mut params = Params::plain(rule, tokens, [4, 5]);
            let alone = params.build();
            (params.tokens, params.packed) =
                (tokens + others, Some(vec![0, tokens as i64, (tokens + others) as i64]));
            let mut packed = params.build();
            let pairs = [
                (Some(&mut packed.query), Some(&alone.query)),
                (Some(&mut packed.key), Some(&alone.key)),
                (Some(&mut packed.value), Some(&alone.value)),
                (packed.decay.as_mut(), alone.decay.as_ref()),
                (packed.beta.as_mut(), alone.beta.as_ref()),
            ];
            for (to, from) in pairs.into_iter().filter_map(|(to, from)| to.zip(from)) {
                (0..from.len()).for_each(|i| to.set(i, from.get(i)));
            }
            let (found, expected) = (packed.run_on(&engine, &options), alone.run_on(&engine, &options));
            assert_eq!(found.rows(&packed)[..tokens * 5], expected.rows(&alone), "{form:?} {rule:?}");
            assert_eq!(found.states(&packed)[..20], expected.states(&alone), "{form:?} {rule:?}");
        }
    }
}

/// Checks a row of the state that becomes infinite at the end of a part and is cleared by the first token of the next
/// part. Like the recurrence, a scan must clear this row and no other row. This must hold for any number of parts
/// before and after that part.
#[test]
fn rows_that_a_part_clears_at_once_are_gone() {
    let Some(engine) = cpu() else { return };
    const D: usize = 4;
    for part in 1..6 {
        let params = Params { per_dim: true, past: true, ..Params::plain(Rule::GatedDelta, 48, [D, 3]) };
        let mut case = params.build();
        let last = 8 * part - 1;
        for t in 0..=last {
            (0..3).for_each(|c| case.value.set(t * 3 + c, if t < last { 0.0 } else { 1e25 }));
        }
        for x in 0..D {
            case.key.set(last * D + x, if x == 1 { 1e25 } else { 1e-25 });
            case.query.set(last * D + x, 0.0);
        }
        let (Some(decay), Some(beta)) = (&mut case.decay, &mut case.beta) else { return };
        beta.set(last, 1.0);
        decay.set((last + 1) * D + 1, f32::NEG_INFINITY);
        let with = |form, chunk, parts| LinearPlanOptions::default().form(form).chunk(chunk).parts(parts);
        let expected = case.run_on(&engine, &with(Form::Recurrent, None, None)).states(&case);
        let found = case.run_on(&engine, &with(Form::Scan, Some(8), Some(6))).states(&case);
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                expected.is_finite() && (found - expected).abs() <= 1e-5 * (1.0 + expected.abs()),
                "{part}: {found} {expected}"
            );
        }
    }
}

/// Checks that outputs below the smallest normal number become zero: with few and many tokens, one and two readers, in
/// every form.
#[test]
fn outputs_that_would_be_subnormal_are_zero() {
    let Some(engine) = cpu() else { return };
    for rule in [Rule::Linear, Rule::Delta] {
        for (tokens, readers) in [(1, 1), (1, 2), (11, 1), (11, 2)] {
            for direction in [Direction::Forward, Direction::NonCausal] {
                let mut params = Params { past: true, direction, ..Params::plain(rule, tokens, [4, 20]) };
                params.heads[0] = readers;
                let mut case = params.build();
                // The default scale is one half, so an output is half of this number, which is subnormal.
                case.past = Some(vec![1.5 * f32::MIN_POSITIVE; 80]);
                (0..case.key.len()).for_each(|i| case.key.set(i, 0.0));
                (0..case.query.len()).for_each(|i| case.query.set(i, if i % 4 == 0 { 1.0 } else { 0.0 }));
                for options in forms() {
                    let rows = case.run_on(&engine, &options).rows(&case);
                    assert!(
                        rows.iter().all(|y| *y == 0.0),
                        "{options:?} {rule:?} {tokens} {readers} {direction:?}"
                    );
                    let mut twice = case.clone();
                    (0..case.query.len()).for_each(|i| twice.query.set(i, 2.0 * case.query.get(i)));
                    let rows = twice.run_on(&engine, &options).rows(&twice);
                    assert!(
                        rows.iter().all(|y| *y > 0.0),
                        "{options:?} {rule:?} {tokens} {readers} {direction:?}"
                    );
                }
            }
        }
    }
}
