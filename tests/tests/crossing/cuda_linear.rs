//! Linear attention on the GPU back end, against the recurrence in f64: rules, forms, directions, options, and what a
//! device does to states in place.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_core::dtype::DType;
use elsa_core::linear::{Direction, Form, Rule};
use elsa_runtime::{Backend, Engine, EngineOptions, Fallback, LinearPlanOptions, PlanError, Reason};
use elsa_tests::linear::{Answer, Case, Found, GateKind, Packing, Params};
use elsa_tests::standin::{child, is_child, said};

const RULES: [(Rule, bool); 6] = [
    (Rule::Linear, false),
    (Rule::Gated, false),
    (Rule::Gated, true),
    (Rule::Delta, false),
    (Rule::GatedDelta, false),
    (Rule::GatedDelta, true),
];

fn engine(fallback: Fallback) -> Engine {
    let backend = Some(Backend::Cuda);
    Engine::new(&EngineOptions { backend, threads: Some(1), fallback, ..EngineOptions::default() }).unwrap()
}

/// Runs a case on the GPU, twice in one workspace: the bits are the same.
fn run(engine: &Engine, case: &Case, options: &LinearPlanOptions) -> Found {
    let plan = engine.linear_plan(&case.problem, options).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let mut of = || {
        let mut found = case.room();
        let report = plan.bind(case.inputs(), found.outputs(), &mut workspace).unwrap().run().unwrap();
        assert_eq!((report.backend, report.fallback), (Backend::Cuda, None), "{}", case.name);
        found
    };
    let first = of();
    assert_eq!(first.bits(), of().bits(), "{options:?} {}", case.name);
    first
}

/// Runs a case on the GPU and compares it with the recurrence in f64, within the bound of what the plan executes.
fn check(engine: &Engine, case: &Case, options: &LinearPlanOptions) -> Answer {
    let plan = engine.linear_plan(&case.problem, options).unwrap();
    let answer = case.answer(|tokens| plan.executed_of(Backend::Cuda, tokens));
    run(engine, case, options).check(case, &answer);
    answer
}

/// Options for every form, with few chunks between states, and few parts.
fn forms() -> Vec<LinearPlanOptions> {
    let of = |form, chunk, parts| LinearPlanOptions { form, chunk, parts, ..LinearPlanOptions::default() };
    vec![
        of(None, None, None),
        of(Some(Form::Recurrent), None, None),
        of(Some(Form::FusedChunk), None, None),
        of(Some(Form::Chunk), None, None),
        of(Some(Form::Chunk), Some(24), None),
        of(Some(Form::Scan), None, None),
        of(Some(Form::Scan), None, Some(5)),
    ]
}

fn check_all(engine: &Engine, params: &Params, forms: &[LinearPlanOptions]) {
    let case = params.build();
    for options in forms {
        let named = Case { name: format!("{options:?} {}", case.name), ..case.clone() };
        check(engine, &named, options);
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn every_rule_form_and_direction() {
    let engine = engine(Fallback::Fail);
    for (rule, per_dim) in RULES {
        for direction in Direction::ALL {
            let past = direction != Direction::Bidirectional;
            let mut params = Params { per_dim, direction, past, ..Params::plain(rule, 83, [12, 20]) };
            params.heads = [2, 1, 2];
            check_all(&engine, &params, &forms());
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn lengths_around_chunks_and_head_sizes() {
    let engine = engine(Fallback::Fail);
    for (rule, per_dim) in RULES {
        for tokens in [0, 1, 15, 16, 17, 33] {
            let params = Params { per_dim, past: true, ..Params::plain(rule, tokens, [8, 5]) };
            check_all(&engine, &params, &forms());
        }
        let large: &[usize] = if per_dim { &[64, 65, 128] } else { &[64, 65, 128, 129, 256] };
        for dim in large.iter().copied() {
            let params = Params { per_dim, past: true, ..Params::plain(rule, 35, [dim, 40]) };
            check_all(&engine, &params, &forms()[1..3]);
            check_all(&engine, &params, &forms()[6..]);
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn heads_layouts_types_and_states() {
    let engine = engine(Fallback::Fail);
    let mut n = 0;
    for (rule, per_dim) in RULES {
        for heads in [[4, 1, 1], [1, 1, 4], [4, 2, 2], [2, 2, 4], [4, 1, 2]] {
            for packing in [Packing::Heads, Packing::Tokens, Packing::Gaps] {
                n += 1;
                let dims = [[16, 32], [7, 3], [32, 16], [20, 48]][n % 4];
                let mut params = Params { per_dim, heads, packing, ..Params::plain(rule, 37, dims) };
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
                    params.packed = Some(vec![0, 0, 11, 12, 37]);
                }
                let forms = forms();
                check_all(&engine, &params, &[forms[1 + n % 2], forms[3 + n % 4]]);
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn gates_and_keys_that_break_naive_code() {
    let engine = engine(Fallback::Fail);
    for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        for gates in [GateKind::Hard, GateKind::Clearing] {
            let params = Params { per_dim, gates, past: true, ..Params::plain(rule, 90, [16, 16]) };
            check_all(&engine, &params, &forms());
        }
    }
    for rule in [Rule::Delta, Rule::GatedDelta] {
        let plain = Params::plain(rule, 90, [16, 16]);
        let params = Params { equal_keys: true, most_beta: 1.9, normalize: Some(0.0), ..plain };
        check_all(&engine, &params, &forms());
    }
}

/// What a gate of −∞ clears may be NaN; nothing else removes a NaN.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn infinite_gates_clear_whatever_a_state_holds() {
    let engine = engine(Fallback::Fail);
    for (rule, per_dim) in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        for options in forms() {
            let params = Params { per_dim, past: true, ..Params::plain(rule, 70, [8, 16]) };
            let mut case = params.build();
            if let Some(past) = &mut case.past {
                past[..16].copy_from_slice(&[f32::NAN; 16]);
            }
            let found = run(&engine, &case, &options);
            let any_nan = |rows: &[f64]| rows.iter().any(|x| x.is_nan());
            assert!(any_nan(&found.rows(&case)) && any_nan(&found.states(&case)), "{options:?}");
            if let Some(decay) = &mut case.decay {
                let dims = if per_dim { 8 } else { 1 };
                (0..dims).for_each(|x| decay.set(x, f32::NEG_INFINITY));
            }
            let answer = check(&engine, &case, &options);
            assert!(answer.output.iter().all(|x| x.is_finite()));
        }
    }
}

/// Chunks and fused chunks have the same bits, at any distance of states; a sequence has its bits alone and in a batch; and a
/// stream that is cut at the ends of chunks has those of the whole.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn bits_depend_neither_on_boundaries_nor_on_the_batch() {
    let engine = engine(Fallback::Fail);
    for (rule, per_dim) in RULES {
        let params = Params { per_dim, past: true, ..Params::plain(rule, 100, [12, 40]) };
        let case = params.build();
        let forms = forms();
        let fused = run(&engine, &case, &forms[2]);
        for chunk in &forms[3..5] {
            assert_eq!(fused.bits(), run(&engine, &case, chunk).bits(), "{chunk:?} {}", case.name);
        }
        let mut twice = Params { batch: 2, ..params.clone() }.build();
        let repeat = |data: &mut Vec<f32>, one: &[f32]| *data = [one, one].concat();
        for (to, one) in
            [(&mut twice.query, &case.query), (&mut twice.key, &case.key), (&mut twice.value, &case.value)]
                .into_iter()
                .chain(twice.decay.as_mut().zip(case.decay.as_ref()))
                .chain(twice.beta.as_mut().zip(case.beta.as_ref()))
        {
            for i in 0..to.len() {
                to.set(i, one.get(i % one.len()));
            }
        }
        if let (Some(to), Some(one)) = (&mut twice.past, &case.past) {
            repeat(to, one);
        }
        for options in &forms {
            let (one, two) = (run(&engine, &case, options), run(&engine, &twice, options));
            let n = one.output.len();
            let same = |i: usize| two.output.get(i).to_bits() == one.output.get(i % n).to_bits();
            assert!((0..2 * n).all(same), "{options:?} {}", case.name);
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only cuda, or gpu-test"]
fn what_the_gpu_does_not_compute_the_cpu_does() {
    let wide = Params::plain(Rule::Linear, 5, [257, 4]).build();
    let parallel = LinearPlanOptions { form: Some(Form::Parallel), ..LinearPlanOptions::default() };
    let plain = LinearPlanOptions::default();
    let (fails, falls) = (engine(Fallback::Fail), engine(Fallback::Cpu));
    let narrow = Params::plain(Rule::Linear, 5, [8, 4]).build();
    for (case, options, text) in [
        (&wide, &plain, "d_k: 257; allowed on a GPU: at most 256"),
        (&narrow, &parallel, "form: parallel; allowed on a GPU: recurrent, chunk, fused-chunk, scan"),
    ] {
        let refused: PlanError = fails.linear_plan(&case.problem, options).unwrap_err();
        assert_eq!(refused.to_string(), text);
        let plan = falls.linear_plan(&case.problem, options).unwrap();
        assert!(matches!(plan.backend(), Backend::Cpu(_)) && plan.gpu_choice().is_none());
        let mut found = case.room();
        let mut workspace = plan.workspace().unwrap();
        let report = plan.bind(case.inputs(), found.outputs(), &mut workspace).unwrap().run().unwrap();
        assert!(matches!(report.fallback, Some(Reason::Plan(_))));
        let answer = case.answer(|tokens| plan.executed_of(report.backend, tokens));
        found.check(case, &answer);
    }
    let tight = LinearPlanOptions { budget: Some(1000), ..LinearPlanOptions::default() };
    let long = Params::plain(Rule::Delta, 300, [16, 16]).build();
    let plan = fails.linear_plan(&long.problem, &tight).unwrap();
    assert_eq!(plan.gpu_choice().unwrap().form, Form::Recurrent, "what fits no budget goes token by token");
    let scan = LinearPlanOptions { form: Some(Form::Scan), ..tight };
    let refused = fails.linear_plan(&long.problem, &scan).unwrap_err().to_string();
    assert!(refused.contains("transitions of parts"), "{refused}");
}

/// A case whose states are replaced in page-locked memory, which an integrated GPU would use in place.
fn in_place() -> Case {
    Params { past: true, in_place: true, batch: 2, ..Params::plain(Rule::GatedDelta, 70, [16, 40]) }.build()
}

/// What a child does: it runs the case in place once, and says which back end computed, and whether the answer is right.
#[test]
#[ignore = "run by the other tests in a child"]
fn scenario() {
    if !is_child() {
        return;
    }
    println!();
    let (case, engine) = (in_place(), engine(Fallback::Cpu));
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

/// A device that fails at any of its calls leaves the states as they were, so that the CPU computes from them.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only cuda"]
fn states_in_place_outlive_a_failing_device() {
    let library = elsa_tests::standin::folder();
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
