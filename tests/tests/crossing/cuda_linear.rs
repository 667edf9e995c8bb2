//! Compares linear attention with the recurrence in f64, on the GPU back end. Covers rules, forms, directions and
//! options. Also tests states that are replaced in place.

use crate::linear_poison::{gates_follow, padding_is_nothing, poisons_as_the_loop};
use elsa_core::dtype::DType;
use elsa_core::linear::{Direction, Form, Rule};
use elsa_core::monoid::Monoid;
use elsa_core::scan::blelloch;
use elsa_core::view::{Layout, View};
use elsa_oracle::gpu_engine;
use elsa_oracle::linear::{Case, GateKind, LinearOutputs, Packing, Params, RULES};
use elsa_oracle::standin::{child, is_child, said};
use elsa_runtime::{Backend, Engine, Fallback, LinearPlanOptions, PlanError, Reason};

/// Runs a case twice in one workspace, and checks that both runs have the same bits.
fn run_twice(engine: &Engine, case: &Case, options: &LinearPlanOptions) -> LinearOutputs {
    let plan = engine.linear_plan(&case.problem, options).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let [first, second] = [0, 1].map(|_| case.run(&plan, &mut workspace).0);
    assert_eq!(first.bits(), second.bits(), "{options:?} {}", case.name);
    first
}

fn of(form: Form, chunk: Option<usize>, parts: Option<usize>) -> LinearPlanOptions {
    LinearPlanOptions::default().form(form).chunk(chunk).parts(parts)
}

/// Returns options for every form, some with few chunks between states or with few parts. The last is the quadratic
/// form.
fn forms() -> [LinearPlanOptions; 8] {
    [
        LinearPlanOptions::default(),
        of(Form::Recurrent, None, None),
        of(Form::FusedChunk, None, None),
        of(Form::Chunk, None, None),
        of(Form::Chunk, Some(24), None),
        of(Form::Scan, None, None),
        of(Form::Scan, None, Some(5)),
        of(Form::Parallel, None, None),
    ]
}

fn check_all(engine: &Engine, params: &Params, forms: &[LinearPlanOptions]) {
    let case = params.build();
    for options in forms {
        let named = Case { name: format!("{options:?} {}", case.name), ..case.clone() };
        named.check_on(engine, options);
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn every_rule_form_and_direction() {
    let engine = gpu_engine(Fallback::Fail);
    for (rule, per_dim) in RULES {
        for direction in Direction::ALL {
            let past = direction != Direction::Bidirectional;
            let params = Params { per_dim, direction, past, ..Params::plain(rule, 67, [12, 20]) };
            check_all(&engine, &params, &forms()[1..]);
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn what_the_loop_poisons_and_nothing_else() {
    let engine = gpu_engine(Fallback::Fail);
    poisons_as_the_loop(40, &forms()[1..], |case, options| case.run_on(&engine, options));
    padding_is_nothing(&engine);
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn gates_beyond_f32_follow_the_state() {
    gates_follow(&gpu_engine(Fallback::Fail));
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn lengths_around_chunks_and_head_sizes() {
    let engine = gpu_engine(Fallback::Fail);
    for (rule, per_dim) in RULES {
        for tokens in [0, 1, 15, 16, 17, 33] {
            let params = Params { per_dim, past: true, ..Params::plain(rule, tokens, [8, 5]) };
            check_all(&engine, &params, &forms()[tokens % 2..]);
        }
        let large: &[usize] = if per_dim { &[64, 65, 128] } else { &[64, 65, 128, 129, 256] };
        for dim in large.iter().copied() {
            let params = Params { per_dim, past: true, ..Params::plain(rule, 33, [dim, 8]) };
            check_all(&engine, &params, &forms()[1..3]);
            check_all(&engine, &params, &forms()[6..]);
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn heads_layouts_types_and_states() {
    let engine = gpu_engine(Fallback::Fail);
    let (mut n, packings) = (0, [Packing::Heads, Packing::Tokens, Packing::Gaps]);
    for (rule, per_dim) in RULES {
        for heads in [[4, 1, 1], [1, 1, 4], [4, 2, 2], [2, 2, 4], [4, 1, 2]] {
            for packing in [packings[n % 3], packings[(n + 1 + n / 6 % 2) % 3]] {
                n += 1;
                let dims = [[16, 8], [7, 3], [8, 36], [20, 12]][n % 4];
                let mut params = Params { per_dim, heads, packing, ..Params::plain(rule, 35, dims) };
                (params.batch, params.seed) = (1 + n % 2, n as u64);
                params.dtype = [DType::F32, DType::F16, DType::Bf16][n % 3];
                params.gate_dtype = [DType::F32, params.dtype][n / 3 % 2];
                params.direction = Direction::ALL[n / 2 % 4];
                let both = params.direction == Direction::Bidirectional;
                (params.past, params.in_place) = (!both && n % 5 != 0, !both && n % 5 > 2);
                params.present = n % 7 != 3 || params.in_place;
                params.normalize = (n % 4 == 1).then_some(1e-6);
                params.scale = (n % 7 == 2).then_some(-0.75);
                params.shared_beta = n % 3 == 1;
                if n % 4 == 3 {
                    params.batch = 1;
                    params.packed = Some(vec![0, 0, 11, 12, 35]);
                }
                let forms = forms();
                check_all(&engine, &params, &[forms[1 + n % 2], forms[3 + n % (forms.len() - 3)]]);
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn gates_and_keys_that_break_naive_code() {
    let engine = gpu_engine(Fallback::Fail);
    for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        for gates in [GateKind::Hard, GateKind::Clearing] {
            let params = Params { per_dim, gates, past: true, ..Params::plain(rule, 70, [8, 8]) };
            check_all(&engine, &params, &forms()[1..]);
        }
    }
    for rule in [Rule::Delta, Rule::GatedDelta] {
        let plain = Params::plain(rule, 70, [8, 8]);
        let params = Params { equal_keys: true, most_beta: 1.9, normalize: Some(0.0), ..plain };
        check_all(&engine, &params, &forms()[1..]);
    }
}

/// Checks that a gate of −∞ clears the state even of NaN, and that nothing else removes a NaN.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn infinite_gates_clear_whatever_a_state_holds() {
    let engine = gpu_engine(Fallback::Fail);
    for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        for options in forms() {
            // Seven dims are not a multiple of four, so the rows of a head are padded with rows of zeros.
            let params = Params { per_dim, past: true, ..Params::plain(rule, 70, [7, 16]) };
            let mut case = params.build();
            let past = case.past.clone();
            if let Some(past) = &mut case.past {
                past[..16].copy_from_slice(&[f32::NAN; 16]);
            }
            let found = case.run_on(&engine, &options);
            let any_nan = |rows: &[f64]| rows.iter().any(|x| x.is_nan());
            assert!(any_nan(&found.rows(&case)) && any_nan(&found.states(&case)), "{options:?}");
            let clear = |case: &mut Case, at: usize| {
                if let Some(decay) = &mut case.decay {
                    let dims = if per_dim { 7 } else { 1 };
                    (0..dims).for_each(|x| decay.set(at * dims + x, f32::NEG_INFINITY));
                }
            };
            // The first case has a NaN in a value instead of the past state, and a gate that clears at token 36, after
            // the first part of a scan. In the other cases a gate clears the past state at token 36 or, within the
            // first part, at token 0.
            let mut values = Case { past, ..case.clone() };
            values.value.set(2 * 16 + 5, f32::NAN);
            clear(&mut values, 36);
            let answer = values.check_on(&engine, &options).1;
            assert!(answer.output[36 * 16..].iter().all(|x| x.is_finite()), "{options:?}");
            for at in [36, 0] {
                clear(&mut case, at);
                let answer = case.check_on(&engine, &options).1;
                assert!(answer.output[at * 16..].iter().all(|x| x.is_finite()), "{options:?}");
            }
        }
    }
}

/// Checks that the chunk forms have the same bits at any distance between stored states, and that they are those of the
/// fused chunk form unless all chunks are computed at once. A sequence has the same bits alone and in a batch, and in
/// every run.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn bits_depend_neither_on_boundaries_nor_on_the_batch() {
    let engine = gpu_engine(Fallback::Fail);
    for (rule, per_dim) in RULES {
        let params = Params { per_dim, past: true, ..Params::plain(rule, 131, [12, 36]) };
        let case = params.build();
        let forms = forms();
        let mut alone: Vec<LinearOutputs> = Vec::new();
        for options in &forms[1..] {
            alone.push(run_twice(&engine, &case, options));
        }
        assert_eq!(alone[2].bits(), alone[3].bits(), "{}", case.name);
        let twice = repeated(&params, &case, 2);
        for (options, one) in forms[1..].iter().zip(&alone) {
            let two = twice.run_on(&engine, options);
            let n = one.output.len();
            let same = |i: usize| two.output.get(i).to_bits() == one.output.get(i % n).to_bits();
            assert!((0..2 * n).all(same), "{options:?} {}", case.name);
        }
    }
    let large = Params { past: true, ..Params::plain(Rule::GatedDelta, 131, [130, 8]) }.build();
    let [fused, chunk] = [1, 2].map(|n| run_twice(&engine, &large, &forms()[1..][n]));
    assert_eq!(fused.bits(), chunk.bits(), "{}", large.name);
}

/// Checks that a launch of few blocks uses a kernel whose blocks have half the columns. Its outputs are within their
/// bounds, and have the bits that the other kernel computes in a batch with enough blocks.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn blocks_of_half_the_columns_change_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    let forms = [of(Form::Recurrent, None, None), of(Form::FusedChunk, None, None)];
    let rules = [Rule::Linear, Rule::Gated, Rule::Delta, Rule::GatedDelta];
    for (n, rule) in rules.into_iter().cycle().take(12).enumerate() {
        let direction = [Direction::Forward, Direction::Reverse, Direction::Bidirectional][n % 3];
        let dims = [[128, 20], [100, 7], [65, 32]][n % 3];
        let mut params = Params { direction, seed: n as u64, ..Params::plain(rule, 67 + n, dims) };
        params.past = direction != Direction::Bidirectional;
        // The gates leave some chunks plain and mark others.
        params.dtype = [DType::F32, DType::F16, DType::Bf16][n % 3];
        params.gates = [GateKind::Mild, GateKind::Clearing, GateKind::Hard][(n + n / 3) % 3];
        params.normalize = (n % 4 == 1 && n % 3 > 0).then_some(1e-6);
        let case = params.build();
        for options in &forms {
            let plan = engine.linear_plan(&case.problem, options).unwrap();
            let kernel = plan.kernel_of(Backend::Cuda);
            assert_eq!(kernel, "linear_pairs_head_d128__sm53");
            let answer = case.answer(|tokens| plan.executed_of(Backend::Cuda, tokens));
            let found = run_twice(&engine, &case, options);
            found.check(&case, &answer);
            // This is the smallest batch that fills the device with blocks of all columns.
            let batch = plan.gpu_choice().unwrap().pairs + 1;
            let many = repeated(&params, &case, batch);
            let plan = engine.linear_plan(&many.problem, options).unwrap();
            assert_eq!(plan.kernel_of(Backend::Cuda), "linear_walk_head_d128__sm53");
            let others = many.run_on(&engine, options);
            let len = found.output.len();
            let same = |i: usize| others.output.get(i).to_bits() == found.output.get(i % len).to_bits();
            assert!((0..batch * len).all(same), "{options:?} {}", case.name);
            if let (Some(all), Some(one)) = (&others.present, &found.present) {
                let same = |(i, x): (usize, &f32)| x.to_bits() == one[i % one.len()].to_bits();
                assert!(all.iter().enumerate().all(same), "{options:?} {}", case.name);
            }
        }
    }
}

/// Returns a batch that contains a case `batch` times.
pub(crate) fn repeated(params: &Params, case: &Case, batch: usize) -> Case {
    let mut many = Params { batch, ..params.clone() }.build();
    for (to, one) in
        [(&mut many.query, &case.query), (&mut many.key, &case.key), (&mut many.value, &case.value)]
            .into_iter()
            .chain(many.decay.as_mut().zip(case.decay.as_ref()))
            .chain(many.beta.as_mut().zip(case.beta.as_ref()))
    {
        for i in 0..to.len() {
            to.set(i, one.get(i % one.len()));
        }
    }
    if let (Some(to), Some(one)) = (&mut many.past, &case.past) {
        *to = one.repeat(batch);
    }
    many
}

/// Varies everything but rule, tokens, dims and seed with `n`: heads, gates, direction, states, type, layout, norms, batch, packing.
pub(crate) fn awkward(n: usize, plain: Params) -> Params {
    let directions = [Direction::Forward, Direction::Reverse, Direction::Bidirectional];
    let (tokens, both) = (plain.tokens, directions[n / 2 % 3] == Direction::Bidirectional);
    let is_packed = n % 7 == 3;
    Params {
        heads: [[1, 1, 1], [4, 2, 2], [1, 1, 2], [2, 1, 1]][n / 3 % 4],
        gates: [GateKind::Mild, GateKind::Hard, GateKind::Clearing][n / 3 % 3],
        direction: directions[n / 2 % 3],
        past: !both && !n.is_multiple_of(5),
        in_place: !both && n % 5 > 2,
        dtype: [DType::F32, DType::F32, DType::F16, DType::Bf16][n / 5 % 4],
        packing: [Packing::Heads, Packing::Tokens, Packing::Gaps][n / 5 % 3],
        normalize: (n % 7 == 1).then_some(1e-6),
        batch: if is_packed { 1 } else { 1 + n % 2 },
        packed: is_packed.then(|| vec![0, 0, tokens as i64 / 3, tokens as i64]),
        ..plain
    }
}

/// Checks a case in long chunks that are all computed at once.
pub(crate) fn check_long_chunks(engine: &Engine, case: &Case) {
    let options = LinearPlanOptions::default().form(Form::Chunk);
    let plan = engine.linear_plan(&case.problem, &options).unwrap();
    let kernel = plan.kernel_of(Backend::Cuda);
    assert!(kernel.starts_with("linear_long_answers"), "{kernel} {}", case.name);
    case.check_on(engine, &options);
}

/// Returns the output bits of the tokens in `range` and the bits of the last state of sequence `index`, if the case returns
/// states, for a case of one head.
fn bits_of(found: &LinearOutputs, case: &Case, index: usize, range: std::ops::Range<usize>) -> Vec<u64> {
    let (dk, dv) = (case.problem.key_dim(), case.problem.value_dim());
    let (rows, states) = (found.rows(case), found.states(case));
    let state = states.chunks_exact(dk * dv).nth(index).unwrap_or_default();
    let all = rows[range.start * dv..range.end * dv].iter().chain(state);
    all.map(|x| x.to_bits()).collect()
}

/// Checks that a packed sequence has the same bits alone and packed with any others. In the tested problems, the form
/// or the parts of a sequence depend on its number of tokens. The same holds for states that are replaced in place
/// while several heads read them.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn packed_sequences_have_their_bits_alone() {
    let engine = gpu_engine(Fallback::Fail);
    let default = LinearPlanOptions::default();
    let scan = of(Form::Scan, None, Some(4));
    let chunk = of(Form::Chunk, None, None);
    for (n, (rule, per_dim)) in RULES.into_iter().enumerate() {
        let all = [
            (default, true, vec![1, 23, 24, 65, 111, 112, 240, 500]),
            (default, false, vec![1, 23, 24, 111, 112, 512, 513]),
            (scan, true, vec![130, 7, 33]),
            (chunk, true, vec![130, 7, 64]),
        ];
        for (options, present, lengths) in all {
            let total: usize = lengths.iter().sum();
            let direction = Direction::ALL[[0, 1, 3][n % 3]];
            let params =
                Params { per_dim, direction, past: true, present, ..Params::plain(rule, total, [4, 4]) };
            let mut whole = params.build();
            let bounds = [0].into_iter().chain(lengths.iter().scan(0, |end, n| {
                *end += *n as i64;
                Some(*end)
            }));
            whole.bounds = Some(bounds.collect());
            let mut spec = *whole.problem.spec();
            let states = View::dense("past", Layout::Bhnd, &[lengths.len(), 1, 4, 4], None).unwrap();
            (spec.packed, spec.past_state, spec.present_state) =
                (Some(lengths.len()), Some(states), present.then_some(states));
            whole.problem = spec.check().unwrap();
            whole.past = Some((0..lengths.len() * 16).map(|i| (i as f32 * 0.7).sin()).collect());
            let together = whole.run_on(&engine, &options);
            let mut start = 0;
            for (index, tokens) in lengths.into_iter().enumerate() {
                let mut alone = params.build().cut(start).1.cut(tokens).0;
                alone.past = whole.past.as_ref().map(|past| past[index * 16..][..16].to_vec());
                let found = alone.run_on(&engine, &options);
                assert!(
                    bits_of(&together, &whole, index, start..start + tokens)
                        == bits_of(&found, &alone, 0, 0..tokens),
                    "{options:?} {tokens} {}",
                    alone.name
                );
                start += tokens;
            }
        }
    }
    // Some sequences are computed token by token, others are not, and each state has several readers.
    for (rule, in_place) in [(Rule::GatedDelta, true), (Rule::Linear, false)] {
        let plain = Params::plain(rule, 90, [8, 4]);
        let packed = Some(vec![0, 3, 70, 90]);
        let params = Params { heads: [2, 1, 1], past: true, in_place, packed, ..plain };
        check_all(&engine, &params, &[default]);
    }
}

/// Monoid of f32 numbers under addition.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sum(f32);

impl Monoid for Sum {
    fn identity() -> Sum {
        Sum(0.0)
    }

    fn combine(&self, later: &Sum) -> Sum {
        Sum(self.0 + later.0)
    }
}

/// Checks that the states before the parts of a scan have the bits of core's Blelloch scan. The added values are chosen
/// so that other orders would give other bits.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn parts_are_carried_in_the_order_of_core() {
    let engine = gpu_engine(Fallback::Fail);
    // The delta rule is tested as well; with equal unit keys it replaces the row that it writes.
    for (rule, parts) in [(Rule::Linear, 12), (Rule::Linear, 3), (Rule::Gated, 12), (Rule::Delta, 12)] {
        let tokens = 16 * parts;
        let params = Params { scale: Some(1.0), ..Params::plain(rule, tokens, [2, 4]) };
        let mut case = params.build();
        let value = |part: usize| (part as f32 * 1.3).sin() * 3.0 + 0.1;
        for t in 0..tokens {
            let last = t % 16 == 15;
            for x in 0..2 {
                case.query.set(2 * t + x, 1.0 - x as f32);
                // Only the last token of a part writes, and only to the row of the state that every query reads.
                case.key.set(2 * t + x, if x == 0 && last { 1.0 } else { 0.0 });
            }
            (0..4).for_each(|x| case.value.set(4 * t + x, if last { value(t / 16) } else { 0.0 }));
            if let Some(decay) = &mut case.decay {
                decay.set(t, 0.0);
            }
            if let Some(beta) = &mut case.beta {
                beta.set(t, 1.0);
            }
        }
        let found = case.run_on(&engine, &of(Form::Scan, None, Some(parts)));
        let mut sums: Vec<Sum> = (0..parts - 1).map(|part| Sum(value(part))).collect();
        let mut chain = sums.clone();
        blelloch::inclusive(&mut sums[..]);
        (1..chain.len()).for_each(|p| chain[p] = chain[p - 1].combine(&chain[p]));
        assert!(parts == 3 || sums != chain, "another order has the same bits");
        for p in 1..parts {
            // The delta rule replaces the state instead of adding to it, because keys are equal unit vectors.
            let expected = if rule.is_delta() { value(p - 1) } else { sums[p - 1].0 };
            let of_part = found.output.get(4 * 16 * p);
            let off = (of_part - expected).abs();
            assert!(if rule.is_delta() { off <= 1e-5 } else { off == 0.0 }, "{rule:?}, part {p}: {of_part}");
        }
    }
    // States have several blocks of rows, and neither their sizes nor the number of parts are powers of two.
    for (rule, per_dim) in RULES {
        let params = Params { per_dim, past: true, ..Params::plain(rule, 111, [36, 10]) };
        check_all(&engine, &params, &[of(Form::Scan, None, Some(7))]);
    }
}

/// Runs the quadratic form with several blocks of rows and of columns, shared heads, and gates that clear the state or
/// make it grow.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn every_token_against_every_earlier_one() {
    let engine = gpu_engine(Fallback::Fail);
    let quadratic = [of(Form::Parallel, None, None)];
    for (n, gates) in [GateKind::Mild, GateKind::Hard, GateKind::Clearing].into_iter().enumerate() {
        for direction in [Direction::Forward, Direction::Reverse, Direction::Bidirectional] {
            let past = direction != Direction::Bidirectional;
            let dims = [[36, 70], [5, 66], [64, 3]][n];
            let mut params = Params { gates, direction, past, ..Params::plain(Rule::Gated, 150, dims) };
            params.heads = [[2, 1, 1], [1, 1, 2], [2, 1, 2]][n];
            params.normalize = (n == 1).then_some(1e-6);
            params.packed = (n == 2).then(|| vec![0, 0, 20, 150]);
            check_all(&engine, &params, &quadratic);
        }
    }
    // An infinite value affects no token after a gate that clears it, but a NaN gate poisons all later tokens.
    for at in [10, 100] {
        let mut case = Params { past: true, ..Params::plain(Rule::Gated, 150, [8, 4]) }.build();
        case.value.set(4 * at, f32::INFINITY);
        if let Some(decay) = &mut case.decay {
            decay.set(at + 1, f32::NEG_INFINITY);
            decay.set(at + 3, f32::NAN);
        }
        let rows = case.run_on(&engine, &quadratic[0]).rows(&case);
        let finite = |t: usize| rows[4 * t..4 * t + 4].iter().all(|x| x.is_finite());
        assert!((0..at).all(finite) && !finite(at) && finite(at + 1) && finite(at + 2));
        assert!((at + 3..150).all(|t| rows[4 * t..4 * t + 4].iter().all(|x| x.is_nan())));
    }
    let mut case = Params::plain(Rule::Gated, 150, [8, 4]).build();
    if let Some(decay) = &mut case.decay {
        decay.set(0, f32::NAN);
    }
    let rows = case.run_on(&engine, &quadratic[0]).rows(&case);
    assert!(rows.iter().all(|x| x.is_nan()), "a gate before all values poisons them, too");
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn what_the_gpu_does_not_compute_the_cpu_does() {
    let wide = Params::plain(Rule::Linear, 5, [1025, 4]).build();
    let chunks = of(Form::FusedChunk, None, None);
    let gates_of_many = Params { per_dim: true, ..Params::plain(Rule::Gated, 5, [129, 4]) }.build();
    let parallel = of(Form::Parallel, None, None);
    let plain = LinearPlanOptions::default();
    let (fails, falls) = (gpu_engine(Fallback::Fail), gpu_engine(Fallback::Cpu));
    for (case, options, text) in [
        (&wide, &plain, "d_k: 1025; allowed on a GPU: at most 1024"),
        (&wide, &chunks, "d_k: 1025; allowed on a GPU: at most 256"),
        (&gates_of_many, &chunks, "d_k: 129; allowed on a GPU: at most 128"),
        (&gates_of_many, &parallel, "d_k: 129; allowed on a GPU: at most 128"),
    ] {
        let refused: PlanError = fails.linear_plan(&case.problem, options).unwrap_err();
        assert_eq!(refused.to_string(), text);
        let plan = falls.linear_plan(&case.problem, options).unwrap();
        assert!(matches!(plan.backend(), Backend::Cpu(_)) && plan.gpu_choice().is_none());
        let (found, report) = case.run(&plan, &mut plan.workspace().unwrap());
        assert!(matches!(report.fallback, Some(Reason::Plan(_))));
        let answer = case.answer(|tokens| plan.executed_of(report.backend, tokens));
        found.check(case, &answer);
    }
    let tight = LinearPlanOptions::default().budget(1000);
    let long = Params::plain(Rule::Delta, 300, [16, 16]).build();
    let plan = fails.linear_plan(&long.problem, &tight).unwrap();
    assert_eq!(plan.gpu_choice().unwrap().form, Form::Recurrent, "what fits no budget goes token by token");
    let scan = tight.form(Form::Scan);
    let refused = fails.linear_plan(&long.problem, &scan).unwrap_err().to_string();
    assert!(refused.contains("transitions of parts"), "{refused}");
}

/// Returns a case whose states are replaced in place, in page-locked memory that an integrated GPU would access
/// directly.
fn in_place() -> Case {
    Params { past: true, in_place: true, batch: 2, ..Params::plain(Rule::GatedDelta, 70, [16, 40]) }.build()
}

/// Runs the case in place once, in a child process, and prints the back end and whether the output is correct.
#[test]
#[ignore = "run by the other tests in a child"]
fn scenario() {
    if !is_child() {
        return;
    }
    let (case, engine) = (in_place(), gpu_engine(Fallback::Cpu));
    let plan = engine.linear_plan(&case.problem, &LinearPlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let (mut found, past) = (case.room(), case.past.clone().unwrap());
    let Ok(mut states) = engine.host_buffer::<f32>(past.len()) else { return println!("run: no memory") };
    states.copy_from_slice(&past);
    let outputs = elsa_core::linear::Outputs {
        output: Some(found.output.elements_mut()),
        present_state: Some(&mut states),
    };
    let report = plan.bind(case.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
    found.present = Some(states.to_vec());
    found.check(&case, &case.answer(|tokens| plan.executed_of(report.backend, tokens)));
    println!("run: {} {}", report.backend, report.fallback.is_some());
}

/// Makes the device fail at each of its calls. The states must stay unchanged, so that the CPU can compute from them.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn states_in_place_outlive_a_failing_device() {
    let library = elsa_oracle::standin::folder();
    let mut fell = 0;
    for call in ["cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"] {
        for number in 1..4 {
            let fault = format!("{call}:{number}:700");
            let output = child("cuda_linear::scenario", &library, &[("ELSA_STANDIN_FAIL", &fault)]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let said = said(&output, "run");
            assert!(output.status.success() && said.len() == 1, "{fault}: {text}");
            fell += usize::from(said[0].ends_with("true"));
        }
    }
    assert!(fell >= 8, "{fell} faults were met");
}
