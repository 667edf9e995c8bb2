//! Compares core's scalar linear attention, in every form, with the f64 oracle. Checks that errors are within the
//! bound, that the bound is not unreasonably loose, and which runs have identical bits.

use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::linear::bound::{self, Executed, Judgement, Solve};
use elsa_core::linear::scalar::{self, Walk};
use elsa_core::linear::{Direction, Form, Rule, reference};
use elsa_core::random::Random;
use elsa_oracle::cases::Data;
use elsa_oracle::linear::{Case, LinearOutputs, Params, RULES};

/// Kind of numbers that fill a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// Unit keys, rates up to one, gates near one.
    Plain,
    /// Gates whose logarithms are −1000, −∞, −30, 0 and +1, among mild gates.
    Gates,
    /// One key for all tokens, rates of 1.9.
    EqualKeys,
    /// Keys within a hundredth of one another, rates of 1.
    NearKeys,
    /// Keys and rates with `β |k|² = 2.2`, which let states grow.
    Growing,
    /// Large values in pairs that cancel each other.
    Cancelling,
    /// Numbers that underflow when they are multiplied.
    Small,
    /// Gates with logarithms down to −23, which are too strong to be split into factors.
    Wild,
    /// Queries and keys whose products underflow, and values that are large enough to compensate for it.
    Faint,
}

const STYLES: [Style; 9] = [
    Style::Plain,
    Style::Gates,
    Style::EqualKeys,
    Style::NearKeys,
    Style::Growing,
    Style::Cancelling,
    Style::Small,
    Style::Wild,
    Style::Faint,
];

/// Builds a case without gaps between rows, with numbers of kind `style`.
fn filled(params: &Params, style: Style, seed: u64) -> Case {
    let mut case = params.build();
    let mut random = Random::new(seed.wrapping_mul(77).wrapping_add(style as u64));
    let Params { batch: b, heads: [hq, hk, hv], tokens: n, dims: [dk, dv], .. } = *params;
    let size = if style == Style::Small { 1e-20 } else { 1.0 };
    let faint = if style == Style::Faint { 1e-21 } else { 1.0 };
    let query: Vec<f32> = (0..b * hq * n * dk).map(|_| faint * random.normal()).collect();
    let mut key: Vec<f32> = (0..b * hk * n * dk).map(|_| random.normal()).collect();
    let mut value: Vec<f32> = (0..b * hv * n * dv).map(|_| size / faint * random.normal()).collect();
    for head in key.chunks_exact_mut((n * dk).max(1)) {
        let one: Vec<f32> = head.iter().take(dk).copied().collect();
        for key in head.chunks_exact_mut(dk) {
            match style {
                Style::EqualKeys => key.copy_from_slice(&one),
                Style::NearKeys => key.iter_mut().zip(&one).for_each(|(k, one)| *k = one + 0.01 * *k),
                _ => {}
            }
            let norm = key.iter().map(|k| k * k).sum::<f32>().sqrt().max(1e-3);
            let length = if style == Style::Growing { 2.2f32.sqrt() } else { 1.0 };
            key.iter_mut().for_each(|k| *k *= length * size * faint / norm);
        }
    }
    if style == Style::Cancelling {
        for head in value.chunks_exact_mut((n * dv).max(1)) {
            for pair in head.chunks_exact_mut(2 * dv) {
                let (a, b) = pair.split_at_mut(dv);
                b.iter_mut().zip(a).for_each(|(b, a)| *b = -*a * 1.000_001);
            }
            head.iter_mut().for_each(|v| *v *= 1e4);
        }
    }
    let of = |x: Vec<f32>| Data::of(params.dtype, x.len(), |i| x[i]);
    (case.query, case.key, case.value) = (of(query), of(key), of(value));
    if let Some(decay) = &mut case.decay {
        for i in 0..decay.len() {
            let mild = (1.0 - 0.2 * random.unit()).ln() as f32;
            let gate = match (style, random.below(24)) {
                (Style::Gates, 0) => -1000.0,
                (Style::Gates, 1) => f32::NEG_INFINITY,
                (Style::Gates, 2) => -30.0,
                (Style::Gates, 3) => 1.0,
                (Style::Gates, 4) => 0.0,
                (Style::Wild, x) => -(x as f32),
                (Style::Small, _) => 30.0 * mild,
                _ => mild,
            };
            decay.set(i, gate);
        }
    }
    if let Some(beta) = &mut case.beta {
        for i in 0..beta.len() {
            let rate = match style {
                Style::EqualKeys => 1.9,
                Style::NearKeys | Style::Growing => 1.0,
                _ => random.unit() as f32,
            };
            beta.set(i, rate);
        }
    }
    case.past.iter_mut().flatten().for_each(|s| *s = size * random.normal());
    case
}

/// Returns every form, with chunks of 8 and parts of 12 tokens.
fn walks() -> [Walk; 5] {
    Form::ALL.map(|form| Walk { form, chunk: 8, part: 12 })
}

/// Returns the outputs and the states of the f64 oracle, in the layout of the oracle's answer.
fn exact(case: &Case) -> [Vec<f64>; 2] {
    let (p, inputs) = (&case.problem, case.all_inputs());
    let (heads, tokens, dv) = (p.output_heads(), p.tokens(), p.value_dim());
    let mut output = vec![0.0; p.spec().query.batch() * heads * tokens * dv];
    let mut states = vec![0.0; p.sequences() * p.state_heads() * p.key_dim() * dv];
    let mut scratch = vec![f64::NAN; reference::scratch_len(p)];
    for (at, present) in states.chunks_exact_mut(p.key_dim() * dv).enumerate() {
        let (index, state) = (at / p.state_heads(), at % p.state_heads());
        let sequence = p.sequence(inputs.cu_seqlens, index);
        let (first, readers) = p.readers(state);
        let mut rows = vec![0.0; readers * sequence.tokens * dv];
        reference::head(p, &inputs, index, state, &mut rows, present, &mut scratch);
        for (reader, rows) in rows.chunks(sequence.tokens.max(1) * dv).enumerate() {
            let head = sequence.batch * heads + first + reader;
            let to = (head * tokens + sequence.start) * dv;
            output[to..to + rows.len()].copy_from_slice(rows);
        }
    }
    [output, states]
}

/// Requires that every error is within the bound for `executed`, that the exact values in the case's answer are those of
/// the oracle, and that a result is not finite if the exact one is not. Returns the largest ratio of an error to its bound.
fn check(case: &Case, found: &LinearOutputs, executed: Executed) -> f64 {
    let (answer, [output, states]) = (case.answer(|_| executed), exact(case));
    let mut share = 0.0f64;
    for (what, found, exact, errors, oracle) in [
        ("output", found.rows(case), &answer.output, &answer.output_error, output),
        ("state", found.states(case), &answer.present, &answer.present_error, states),
    ] {
        let what = format!("{what} of {executed:?} {}", case.name);
        let absent = found.is_empty() && case.problem.spec().present_state.is_none();
        assert!(found.len() == exact.len() || absent, "{what}");
        for (i, (found, (exact, error))) in found.iter().zip(exact.iter().zip(errors)).enumerate() {
            let want = oracle[i];
            if !exact.is_finite() {
                assert!(!found.is_finite() && !want.is_finite(), "{i}: {found} {want}: {what}");
                continue;
            }
            assert!((want - exact).abs() <= 1e-12 * exact.abs() + 1e-6 * error, "{want:e} {exact:e}");
            let off = (found - exact).abs();
            assert!(off <= *error, "{i}: {found:e} for {exact:e}, off by {off:e}, bound {error:e}: {what}");
            if off > 0.0 && error.is_finite() {
                share = share.max(off / error);
            }
        }
    }
    share
}

/// Runs a case and checks its results. Returns the largest ratio of an error to its bound.
fn check_walk(case: &Case, walk: Walk) -> f64 {
    check(case, &case.scalar(&walk), scalar::executed(&case.problem, &walk))
}

#[test]
fn every_form_of_every_rule_in_every_direction() {
    for (rule, per_dim) in RULES {
        for direction in Direction::ALL {
            for (seed, tokens) in [0, 9, 1, 7, 8, 12, 29].into_iter().enumerate() {
                let past = seed % 2 == 1 && direction != Direction::Bidirectional;
                let params = Params { per_dim, direction, past, ..Params::plain(rule, tokens, [5, 3]) };
                let case = filled(&params, Style::Plain, seed as u64);
                for walk in walks() {
                    check_walk(&case, walk);
                }
            }
        }
    }
}

#[test]
fn heads_sequences_types_and_states() {
    for (rule, per_dim) in RULES {
        for (seed, heads) in [[4, 1, 2], [1, 1, 4], [2, 2, 4], [6, 3, 3]].into_iter().enumerate() {
            let mut params = Params { per_dim, heads, past: true, ..Params::plain(rule, 21, [4, 6]) };
            (params.batch, params.in_place, params.shared_beta) = (2, seed % 2 == 0, seed == 1);
            // An epsilon that is as large as the sums of squares affects every output.
            params.normalize = [None, None, Some(1e-6), Some(0.5)][seed];
            params.dtype = [DType::F32, DType::F16, DType::Bf16, DType::F32][seed];
            let case = filled(&params, Style::Plain, seed as u64);
            (params.batch, params.packed) = (1, Some(vec![0, 0, 9, 10, 21]));
            let packed = filled(&params, Style::Plain, 9);
            for walk in walks() {
                check_walk(&case, walk);
                check_walk(&packed, walk);
            }
        }
    }
}

#[test]
fn gates_clear_by_selection_and_nan_poisons() {
    for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        for poison in [f32::NAN, f32::INFINITY] {
            let params = Params { per_dim, past: true, ..Params::plain(rule, 30, [3, 2]) };
            let mut case = filled(&params, Style::Plain, 1);
            case.past.iter_mut().flatten().for_each(|s| *s = poison);
            case.value.set(2 * 4, poison);
            let each = if per_dim { 3 } else { 1 };
            let set = |case: &mut Case, token: usize, gate: f32| {
                let decay = case.decay.as_mut().unwrap();
                (token * each..(token + 1) * each).for_each(|i| decay.set(i, gate));
            };
            set(&mut case, 13, f32::NEG_INFINITY);
            for walk in walks() {
                let found = case.scalar(&walk);
                let (rows, states) = (found.rows(&case), found.states(&case));
                let name = format!("{poison} {walk:?} {}", case.name);
                assert!(rows[..13 * 2].iter().all(|x| !x.is_finite()), "{name} {rows:?}");
                assert!(rows[13 * 2..].iter().chain(&states).all(|x| x.is_finite()), "{name} {rows:?}");
                check_walk(&case, walk);
            }
            // A NaN gate makes outputs NaN from its token on, until another gate clears the state.
            set(&mut case, 20, f32::NAN);
            set(&mut case, 26, f32::NEG_INFINITY);
            for walk in walks() {
                let rows = case.scalar(&walk).rows(&case);
                assert!(rows[13 * 2..20 * 2].iter().all(|x| x.is_finite()), "{rows:?}");
                assert!(rows[20 * 2..26 * 2].iter().all(|x| x.is_nan()), "{rows:?}");
                assert!(rows[26 * 2..].iter().all(|x| x.is_finite()), "{rows:?}");
            }
        }
    }
}

#[test]
fn states_vanish_before_they_are_subnormal() {
    for walk in walks().into_iter().filter(|walk| walk.form != Form::Parallel) {
        for tokens in [80, 90, 100, 120] {
            let params = Params { past: true, ..Params::plain(Rule::Gated, tokens, [3, 2]) };
            let mut case = filled(&params, Style::Plain, 1);
            (case.value, case.decay) =
                (Data::filled(DType::F32, tokens * 2, 0.0), Some(Data::filled(DType::F32, tokens, -1.0)));
            let present = case.scalar(&walk).present.unwrap();
            assert!(present.iter().all(|x| *x == 0.0 || x.abs() >= f32::MIN_POSITIVE), "{present:?}");
            assert!(tokens < 120 || present.iter().all(|x| *x == 0.0), "{present:?}");
        }
    }
}

#[test]
fn bad_calls_are_refused() {
    let case = Params::plain(Rule::Delta, 4, [3, 2]).build();
    for (walk, argument) in [
        (Walk { form: Form::Chunk, chunk: 0, part: 1 }, "chunk"),
        (Walk { form: Form::Scan, chunk: 1, part: 0 }, "part"),
        (Walk::new(Form::Scan), "scratch"),
    ] {
        let short = scalar::scratch_len(&case.problem, &walk).unwrap().saturating_sub(1);
        let (mut found, mut scratch) = (case.room(), vec![0.0; short]);
        let (inputs, mut outputs) = (case.inputs(), found.outputs());
        let name = match scalar::run(&case.problem, &walk, &inputs, &mut outputs, &mut scratch) {
            Err(ArgumentError::Count { argument, .. } | ArgumentError::Short { argument, .. }) => argument,
            other => panic!("{other:?}"),
        };
        assert_eq!(name, argument);
        assert!(found.bits().iter().all(|x| f32::from_bits(*x).is_nan()));
    }
}

#[test]
fn a_stream_cut_at_the_ends_of_chunks_keeps_its_bits() {
    for (rule, per_dim) in RULES {
        for style in [Style::Plain, Style::Gates] {
            let params = Params { per_dim, past: true, ..Params::plain(rule, 37, [5, 3]) };
            let case = filled(&params, style, 2);
            for walk in walks() {
                let cuts: &[usize] = match walk.form {
                    Form::Recurrent => &[1, 2, 17, 36],
                    Form::Chunk | Form::FusedChunk => &[8, 16, 32],
                    Form::Parallel | Form::Scan => continue,
                };
                let whole = case.scalar(&walk);
                for cut in cuts {
                    let (first, second) = case.cut(*cut);
                    let start = first.scalar(&walk);
                    let second = Case { past: start.present.clone(), ..second };
                    let end = second.scalar(&walk);
                    let joined = [start.rows(&first), end.rows(&second)].concat();
                    assert_eq!(joined, whole.rows(&case), "{cut} {walk:?} {}", case.name);
                    assert_eq!(end.present, whole.present, "{cut} {walk:?} {}", case.name);
                }
            }
        }
    }
}

#[test]
fn both_chunked_forms_have_the_same_bits_and_others_differ() {
    for (rule, per_dim) in RULES {
        let params = Params { per_dim, ..Params::plain(rule, 37, [5, 3]) };
        let case = filled(&params, Style::Plain, 2);
        let [recurrent, chunk, fused, parallel, scan] = walks().map(|walk| case.scalar(&walk).bits());
        assert_eq!(chunk, fused);
        // The other forms have different orders of operations, and therefore different bits.
        for (a, b) in
            [(&recurrent, &chunk), (&recurrent, &parallel), (&chunk, &parallel), (&recurrent, &scan)]
        {
            assert_ne!(a, b, "{}", rule.name());
        }
    }
}

/// Checks that packed sequences, one of them empty, have the bits of single runs.
#[test]
fn packed_sequences_are_single_runs() {
    for (rule, per_dim) in RULES {
        let mut params = Params { per_dim, past: true, ..Params::plain(rule, 40, [4, 3]) };
        let problem = params.build().problem;
        params.packed = Some(vec![0, 17, 17, 40]);
        let packed = filled(&params, Style::Plain, 5);
        let past = |index: usize| packed.past.as_ref().map(|past| past[12 * index..][..12].to_vec());
        let (first, last) = Case { problem, bounds: None, ..packed.clone() }.cut(17);
        let (first, last) = (Case { past: past(0), ..first }, Case { past: past(2), ..last });
        for walk in walks() {
            let (found, start, end) = (packed.scalar(&walk), first.scalar(&walk), last.scalar(&walk));
            assert_eq!(found.rows(&packed), [start.rows(&first), end.rows(&last)].concat(), "{walk:?}");
            let states = [start.present.unwrap(), past(1).unwrap(), end.present.unwrap()].concat();
            assert_eq!(found.present.unwrap(), states, "{walk:?}");
        }
    }
}

#[test]
fn reverse_is_forward_over_reversed_tokens() {
    for (rule, per_dim) in RULES {
        let forward = Params { per_dim, past: true, ..Params::plain(rule, 21, [4, 3]) };
        let params = Params { direction: Direction::Reverse, ..forward.clone() };
        let case = filled(&params, Style::Plain, 5);
        let flip = |x: &Data| {
            let width = x.len() / 21;
            Data::of(DType::F32, x.len(), |i| x.get((20 - i / width) * width + i % width))
        };
        let flipped = Case {
            query: flip(&case.query),
            key: flip(&case.key),
            value: flip(&case.value),
            decay: case.decay.as_ref().map(flip),
            beta: case.beta.as_ref().map(flip),
            problem: forward.build().problem,
            ..case.clone()
        };
        for walk in walks() {
            let (found, turned) = (case.scalar(&walk), flipped.scalar(&walk));
            let back = LinearOutputs { output: flip(&turned.output), ..turned };
            assert_eq!(found.bits(), back.bits(), "{walk:?}");
        }
    }
}

#[test]
fn hard_data_stay_within_the_bound() {
    let mut largest = 0.0f64;
    for (rule, per_dim) in RULES {
        for style in STYLES {
            for (seed, tokens) in [33, 64, 100].into_iter().enumerate() {
                let mut params = Params { per_dim, ..Params::plain(rule, tokens, [6, 4]) };
                params.direction = Direction::ALL[(seed + style as usize) % 4];
                params.past = seed == 1 && params.direction != Direction::Bidirectional;
                params.normalize = (seed == 2).then_some(1e-6);
                let case = filled(&params, style, seed as u64);
                for form in Form::ALL {
                    for (chunk, part) in [(5, 7), (16, 32)] {
                        largest = largest.max(check_walk(&case, Walk { form, chunk, part }));
                    }
                }
            }
        }
    }
    // A bound far above every error would prove nothing.
    assert!(largest > 0.05, "{largest}");
}

/// Checks the relative error of plain problems in the Euclidean norm. Also prints the relative bound, and the median
/// ratio of bound to error.
#[test]
fn errors_are_small_and_bounds_not_absurd() {
    for (rule, per_dim) in RULES {
        let params = Params { per_dim, ..Params::plain(rule, 512, [32, 16]) };
        let case = filled(&params, Style::Plain, 1);
        for walk in Form::ALL.map(|form| Walk { form, chunk: 16, part: 128 }) {
            let (rows, name) = (case.scalar(&walk).rows(&case), walk.form.name());
            let answer = case.answer(|_| scalar::executed(&case.problem, &walk));
            let off = rows.iter().zip(&answer.output).map(|(found, exact)| (found - exact).abs());
            let off: Vec<f64> = off.collect();
            let ratios = answer.output_error.iter().zip(&off).map(|(bound, off)| bound / off.max(1e-30));
            let mut ratios: Vec<f64> = ratios.collect();
            ratios.sort_by(f64::total_cmp);
            let ratio = ratios[ratios.len() / 2];
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let [error, bound] = [&off, &answer.output_error].map(|x| norm(x) / norm(&answer.output));
            let rule = rule.name();
            println!("{rule:12} {per_dim:5} {name:12} error {error:.2e} bound {bound:.2e} ratio {ratio:.0}");
            assert!(error <= 5e-7, "{rule} {name} {error:e}");
        }
    }
}

#[test]
fn the_gain_is_one_while_rates_contract_and_reported_beyond() {
    for (style, expected) in [(Style::Plain, 1.0), (Style::EqualKeys, 1.0), (Style::Growing, 1.2f64.powi(40))]
    {
        let case = filled(&Params::plain(Rule::Delta, 40, [6, 4]), style, 1);
        let executed = scalar::executed(&case.problem, &Walk::new(Form::Chunk));
        let mut scratch = vec![f64::NAN; bound::scratch_len(&case.problem, &executed).unwrap()];
        let (mut rows, mut states) = ([(); 2].map(|()| vec![0.0; 40 * 4]), [(); 2].map(|()| vec![0.0; 24]));
        let ([output, output_error], [present, present_error]) = (&mut rows, &mut states);
        let mut to = Judgement { output, output_error, present, present_error };
        let judged = bound::head(&case.problem, &case.inputs(), &executed, 0, 0, &mut to, &mut scratch);
        assert!((judged.gain / expected - 1.0).abs() < 1e-3, "{style:?} {judged:?} {expected}");
    }
}

#[test]
fn a_bound_grows_with_what_is_executed() {
    for (rule, per_dim) in RULES {
        let params = Params { per_dim, ..Params::plain(rule, 64, [6, 4]) };
        let case = filled(&params, Style::Plain, 1);
        let plain = scalar::executed(&case.problem, &Walk { form: Form::Chunk, chunk: 16, part: 16 });
        let sum = |executed: Executed| case.answer(|_| executed).output_error.iter().sum::<f64>();
        let base = sum(plain);
        for more in [
            Executed { query_relative: 1e-4, ..plain },
            Executed { key_relative: 1e-4, ..plain },
            Executed { dims: 1000, ..plain },
            Executed { tokens: 1000, ..plain },
        ] {
            assert!(sum(more) > 1.1 * base, "{} {more:?}", rule.name());
        }
        if rule.is_gated() {
            assert!(sum(Executed { exp_relative: 1e-4, ..plain }) > 1.1 * base);
        }
        if rule.is_delta() {
            assert!(sum(Executed { solve: Solve::Factors, ..plain }) > 1.1 * base);
        }
        let recurrent = Executed { form: Form::Recurrent, chunk: 1, tokens: 1, ..plain };
        assert!(sum(Executed { form: Form::Scan, ..recurrent }) > 1.01 * sum(recurrent), "{}", rule.name());
    }
}

#[test]
fn both_directions_and_their_sum_count() {
    for (rule, per_dim) in RULES {
        let [forward, reverse, both, _] = Direction::ALL.map(|direction| {
            let params = Params { per_dim, direction, ..Params::plain(rule, 30, [6, 4]) };
            let case = filled(&params, Style::Plain, 1);
            let executed = scalar::executed(&case.problem, &Walk::new(Form::Chunk));
            case.answer(|_| executed)
        });
        for i in 0..both.output.len() {
            let rounded = DType::F32.unit_roundoff() * both.output[i].abs();
            let sum = forward.output_error[i] + reverse.output_error[i] + rounded;
            assert!(both.output_error[i] >= sum * (1.0 - 1e-12), "{} {i}", rule.name());
        }
    }
}

/// Computes a delta recurrence in f64 in which every row has the largest error that `Executed` allows, with the sign
/// that moves the first column of the last output upwards.
#[test]
fn residuals_that_align_stay_within_the_bound() {
    let (tokens, [dk, dv]) = (200, [6, 2]);
    for (style, per_dim) in [(Style::Plain, false), (Style::EqualKeys, true), (Style::Growing, false)] {
        let plain = Params::plain(Rule::GatedDelta, tokens, [dk, dv]);
        let mut case = filled(&Params { per_dim, scale: Some(1.0), ..plain }, style, 4);
        let decay = case.decay.as_mut().unwrap();
        (0..decay.len()).for_each(|i| decay.set(i, 0.01 * decay.get(i)));
        let dims = 400;
        let rate = dims as f64 * DType::F32.unit_roundoff();
        let executed = Executed { dims, ..scalar::executed(&case.problem, &Walk::new(Form::Recurrent)) };
        let exact = case.answer(|_| executed);
        let each = if per_dim { dk } else { 1 };
        let (decay, rates) = (case.decay.as_ref().unwrap(), case.beta.as_ref().unwrap());
        let gate = |t: usize, x: usize| f64::from(decay.get(t * each + x % each)).exp();
        let key = |t: usize, x: usize| f64::from(case.key.get(t * dk + x));
        // `y_t` is the effect on the last output of an error of the state after token `t`: `y_t = A_{t+1}ᵀ y_{t+1}`.
        let last = tokens - 1;
        let mut sees = vec![vec![0.0; dk]; tokens];
        sees[last] = (0..dk).map(|x| f64::from(case.query.get(last * dk + x))).collect();
        for t in (1..tokens).rev() {
            let along: f64 = (0..dk).map(|x| key(t, x) * sees[t][x]).sum();
            let beta = f64::from(rates.get(t));
            sees[t - 1] = (0..dk).map(|x| gate(t, x) * (sees[t][x] - beta * along * key(t, x))).collect();
        }
        let mut state = vec![0.0; dk];
        for t in 0..tokens {
            let beta = f64::from(rates.get(t));
            let v = f64::from(case.value.get(t * dv));
            (0..dk).for_each(|x| state[x] *= gate(t, x));
            let read: f64 = (0..dk).map(|x| key(t, x) * state[x]).sum();
            let terms: f64 = (0..dk).map(|x| (key(t, x) * state[x]).abs()).sum::<f64>() + v.abs();
            let sign = (0..dk).map(|x| key(t, x) * sees[t][x]).sum::<f64>().signum();
            let u = beta * (v - read) + sign * beta.abs() * rate * terms;
            (0..dk).for_each(|x| state[x] += key(t, x) * u);
        }
        let answer: f64 = (0..dk).map(|x| sees[last][x] * state[x]).sum();
        let (off, bound) = ((answer - exact.output[last * dv]).abs(), exact.output_error[last * dv]);
        assert!(off <= bound, "{style:?}: {off:e} {bound:e}");
        println!("{style:?}: {:.2} of the bound", off / bound);
        assert!(off > 0.01 * bound, "{style:?}: {off:e} {bound:e}");
    }
}
