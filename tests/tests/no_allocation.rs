//! Checks that the runs of a warmed-up plan allocate no memory, including the first run, on any back end and for any
//! problem. Also checks that a workspace allocates the number of bytes that its plan reports.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_core::attention::traversal::Schedule;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::linear::{Form, Rule};
use elsa_core::series::{Series, convolution, recurrence, selective};
use elsa_oracle::cases::{Buffers, Case, some_hard_cases};
use elsa_oracle::gradients::{GradientBuffers, GradientCase};
use elsa_oracle::linear::Params;
use elsa_oracle::naive::Answer;
use elsa_oracle::present;
use elsa_runtime::{
    Backend, BackwardPlanOptions, Bound, ConvolutionOptions, Engine, EngineOptions, LinearPlanOptions,
    Method, Plan, PlanOptions, RecurrenceOptions, SelectiveOptions,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static GLOBAL: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Upper limit of the number of additions between a key and the result: method math sums all keys in one chain, and no
/// case has more than 4096 keys.
const ADDITIONS: usize = 4096;

/// Runs the backward pass of a case; returns the number of runs.
fn gradients(engine: &Engine, case: &Case) -> usize {
    let Some(given) = GradientCase::of(case) else { return 0 };
    let options = BackwardPlanOptions::default().all_workers(true);
    let plan = engine.backward_plan(&given.problem, &options).unwrap();
    // Threads started by an earlier run may still be allocating their names.
    let measured = |_| {
        let region = Region::new(GLOBAL);
        let workspace = plan.workspace().unwrap();
        (region.change().bytes_allocated == plan.workspace_bytes()).then_some(workspace)
    };
    let mut workspace = (0..3).find_map(measured).unwrap_or_else(|| panic!("{case:?}: other bytes"));
    let mut found = GradientBuffers::room(&given.problem);
    let (inputs, gradients) = (given.inputs(), found.gradients());
    // Threads start in the first run.
    plan.bind(inputs, GradientBuffers::room(&given.problem).gradients(), &mut workspace)
        .unwrap()
        .run()
        .unwrap();
    let region = Region::new(GLOBAL);
    let mut bound = plan.bind(inputs, gradients, &mut workspace).unwrap();
    bound.run().unwrap();
    bound.run().unwrap();
    let change = region.change();
    assert_eq!(change.allocations + change.reallocations, 0, "{case:?}: {change:?}");
    3
}

/// Runs a plan twice in a warmed-up workspace, calls `ask` on the bound call, and checks that nothing allocates.
/// Returns the outputs of the second run, and the result of `ask`.
fn runs_twice<T>(plan: &Plan, case: &Case, ask: impl FnOnce(&mut Bound<'_>) -> T) -> (Buffers, T) {
    let region = Region::new(GLOBAL);
    let mut workspace = plan.workspace().unwrap();
    // The workspace of a GPU plan is in device memory.
    if plan.backend() != Backend::Cuda {
        assert_eq!(region.change().bytes_allocated, plan.workspace_bytes(), "{case:?}");
    }
    let mut buffers = case.buffers();
    // Warming up starts the threads and prepares the states of a GPU.
    plan.warm(&mut workspace).unwrap();
    let (inputs, outputs) = (case.inputs(), buffers.outputs());
    let region = Region::new(GLOBAL);
    let mut bound = plan.bind(inputs, outputs, &mut workspace).unwrap();
    bound.run().unwrap();
    bound.run().unwrap();
    let answer = ask(&mut bound);
    let change = region.change();
    assert_eq!(change.allocations + change.reallocations, 0, "{case:?}: {change:?}");
    drop(bound);
    (buffers, answer)
}

/// Runs schedules and budgets of a case on the CPU; returns the number of runs.
fn schedules(engine: &Engine, case: &Case) -> usize {
    for schedule in [Schedule::within(0.2), Schedule::VFA] {
        let options = PlanOptions::default().schedule(schedule).all_workers(true);
        let plan = engine.plan(&case.problem(), &options).unwrap();
        let (_, rows) = runs_twice(&plan, case, |bound| bound.traversed().unwrap().d.len());
        assert_eq!(rows, case.problem().rows());
    }
    4
}

/// Runs linear attention in every form; returns the number of runs.
fn linear(engine: &Engine) -> usize {
    let mut runs = 0;
    for (rule, dtype) in [(Rule::Gated, DType::F32), (Rule::GatedDelta, DType::F16)] {
        for form in Form::ALL {
            let mut params = Params { dtype, past: true, ..Params::plain(rule, 70, [12, 20]) };
            params.heads = [4, 1, 2];
            let case = params.build();
            let options = LinearPlanOptions::default().form(form).all_workers(true);
            let plan = engine.linear_plan(&case.problem, &options).unwrap();
            // Threads started by an earlier run may still be allocating their names.
            let measured = |_| {
                let region = Region::new(GLOBAL);
                let workspace = plan.workspace().unwrap();
                let gpu = plan.backend() == Backend::Cuda;
                (gpu || region.change().bytes_allocated == plan.workspace_bytes()).then_some(workspace)
            };
            let found = (0..3).find_map(measured);
            let mut workspace = found.unwrap_or_else(|| panic!("{}: other bytes", case.name));
            let (mut first, mut room) = (case.room(), case.room());
            // In the first run, threads start, and a GPU gets its copies of the inputs.
            plan.bind(case.inputs(), first.outputs(), &mut workspace).unwrap().run().unwrap();
            let region = Region::new(GLOBAL);
            let mut bound = plan.bind(case.inputs(), room.outputs(), &mut workspace).unwrap();
            bound.run().unwrap();
            bound.run().unwrap();
            let change = region.change();
            assert_eq!(change.allocations + change.reallocations, 0, "{}: {change:?}", case.name);
            // A run that does nothing would not allocate, so the outputs are compared.
            assert_eq!(first.bits(), room.bits(), "{}", case.name);
            assert!(room.rows(&case).iter().all(|x| x.is_finite()), "{}", case.name);
            runs += 3;
        }
    }
    runs
}

/// Runs recurrences, selective scans and convolutions; returns the number of runs.
fn series(engine: &Engine) -> usize {
    let (tokens, channels) = (130, 20);
    let series = Series::channels_first("u", [1, channels, tokens]).unwrap();
    let (x, a) = (vec![0.5; tokens * channels], [-1.0; 80]);
    let of = Elements::F32(&x);
    let mut runs = 0;
    // The first round starts threads; the second must not allocate.
    macro_rules! measured {
        ($plan:expr, $inputs:expr, $outputs:ident) => {
            let (plan, inputs) = ($plan.unwrap(), $inputs);
            let mut workspace = plan.workspace().unwrap();
            for round in 0..2 {
                let mut out = vec![0.0; x.len()];
                let region = Region::new(GLOBAL);
                let outputs = $outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
                plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
                let change = region.change();
                let none = change.allocations + change.reallocations == 0;
                assert!(round == 0 || none, "{}: {change:?}", plan.kernel());
                runs += 1;
            }
        };
    }
    for parts in [None, Some(3)] {
        let problem = recurrence::Spec::new(series, series, series).check().unwrap();
        let options = RecurrenceOptions::default().parts(parts).all_workers(true);
        let inputs = recurrence::Inputs { a: of, b: of, past_state: None };
        use recurrence::Outputs;
        measured!(engine.recurrence_plan(&problem, &options), inputs, Outputs);
    }
    for method in [convolution::Method::Direct, convolution::Method::Fft] {
        let problem = convolution::Spec::new(series, 4, series).check().unwrap();
        let options = ConvolutionOptions::default().method(method).all_workers(true);
        let inputs = convolution::Inputs { u: of, filter: &a, bias: None, past_state: None };
        use convolution::Outputs;
        measured!(engine.convolution_plan(&problem, &options), inputs, Outputs);
    }
    let channel = selective::Coefficient::Channel;
    let problem = selective::Spec::new(series, series, 4, channel, channel, series).check().unwrap();
    let options = SelectiveOptions::default().all_workers(true);
    let inputs = selective::Inputs {
        u: of,
        delta: of,
        a: &a,
        b: Elements::F32(&a),
        c: Elements::F32(&a),
        d: None,
        z: None,
        delta_bias: None,
        past_state: None,
    };
    use selective::Outputs;
    measured!(engine.selective_plan(&problem, &options), inputs, Outputs);
    runs
}

// This binary has only one test, so that no other thread allocates at the same time.
#[test]
fn run_and_bind_allocate_nothing() {
    let mut runs = 0;
    let cases: Vec<(Case, Answer)> =
        some_hard_cases().into_iter().map(|case| (case.clone(), case.naive())).collect();
    for present in present() {
        let engine = Engine::new(&EngineOptions::default().backend(present.backend).threads(3)).unwrap();
        runs += linear(&engine);
        runs += series(&engine);
        if present.backend != Backend::Cuda {
            runs += cases.iter().step_by(9).map(|(case, _)| schedules(&engine, case)).sum::<usize>();
        }
        for (case, answer) in &cases {
            runs += gradients(&engine, case);
            for method in [Method::Elsa, Method::Math] {
                // Method math does not support packed sequences.
                if method == Method::Math && case.spec.packed.is_some() {
                    continue;
                }
                let problem = case.problem();
                // Every second plan certifies.
                let certify = runs % 4 == 0;
                let options = PlanOptions::default().method(method).all_workers(true).certify(certify);
                let plan = engine.plan(&problem, &options).unwrap();
                let (buffers, certified) = runs_twice(&plan, case, |bound| bound.certificate().is_ok());
                assert_eq!(certified, certify, "{case:?}");
                // A run that does nothing would not allocate, so the outputs are checked.
                answer.check_all(&buffers, ADDITIONS).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                runs += 2;
            }
        }
    }
    // The counter must count this allocation.
    let region = Region::new(GLOBAL);
    let kept = std::hint::black_box(vec![0u8; 100]);
    assert!(region.change().allocations > 0 && !kept.is_empty());
    println!("{runs} runs");
}
