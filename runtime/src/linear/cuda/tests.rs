//! Tests of linear attention on device tensors: they give the same bits as host tensors, and invalid calls are refused
//! before a launch.

use crate::testing::{bits, gpu_engine};
use crate::{
    Backend, BindError, Engine, HostBuffer, LinearDeviceInputs, LinearDeviceOutputs, LinearPlanOptions,
};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::linear::{Direction, Inputs, Outputs, Problem, Rule, Spec};
use elsa_core::random;
use elsa_core::view::{Layout, View};

const STATES: usize = 2;
const TOKENS: usize = 70;
const DK: usize = 12;
const DV: usize = 8;

/// Creates a problem of two packed sequences. Present states replace past states in the same memory, and two heads of
/// queries read each state.
fn problem() -> Problem {
    let view = |heads, n, d| View::dense("x", Layout::Bhnd, &[1, heads, n, d], None).unwrap();
    let (query, key) = (view(2 * STATES, TOKENS, DK), view(STATES, TOKENS, DK));
    let mut spec = Spec::new(DType::F32, query, key, view(STATES, TOKENS, DV), view(2 * STATES, TOKENS, DV));
    (spec.rule, spec.direction, spec.packed) = (Rule::GatedDelta, Direction::Reverse, Some(2));
    spec.decay = Some(view(STATES, TOKENS, 1));
    spec.beta = Some(view(STATES, TOKENS, 1));
    let states = View::dense("x", Layout::Bhnd, &[2, STATES, DK, DV], None).unwrap();
    (spec.past_state, spec.present_state, spec.in_place) = (Some(states), Some(states), true);
    spec.check().unwrap()
}

fn noise(engine: &Engine, seed: u64, len: usize, to: impl Fn(f32) -> f32) -> HostBuffer<f32> {
    let mut buffer = engine.host_buffer::<f32>(len).unwrap();
    buffer.iter_mut().zip(random::noise(seed, len)).for_each(|(value, x)| *value = to(x));
    buffer
}

/// Allocates query, key, value, decay, beta and states.
fn tensors(engine: &Engine) -> [HostBuffer<f32>; 6] {
    let plain = |x: f32| x;
    [
        noise(engine, 1, 2 * STATES * TOKENS * DK, plain),
        noise(engine, 2, STATES * TOKENS * DK, |x| x / 4.0),
        noise(engine, 3, STATES * TOKENS * DV, plain),
        noise(engine, 4, STATES * TOKENS, |x| -0.1 * x.abs()),
        noise(engine, 5, STATES * TOKENS, f32::abs),
        noise(engine, 6, 2 * STATES * DK * DV, plain),
    ]
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn device_tensors_have_the_bits_of_host_tensors() {
    let (engine, problem) = (gpu_engine(), problem());
    let bounds = [0, 33, TOKENS as i64];
    let plan = engine.linear_plan(&problem, &LinearPlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let [q, k, v, decay, beta, mut states] = tensors(&engine);
    let before = states.to_vec();
    let mut output = engine.host_buffer::<f32>(2 * STATES * TOKENS * DV).unwrap();
    let mut inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
    (inputs.decay, inputs.beta) = (Some(Elements::F32(&decay)), Some(Elements::F32(&beta)));
    inputs.cu_seqlens = Some(&bounds);
    let outputs = Outputs { output: Some(ElementsMut::F32(&mut output)), present_state: Some(&mut states) };
    plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
    let expected = (bits(&output), bits(&states));
    assert!(output.iter().chain(&*states).all(|x| x.is_finite()) && before != states.to_vec());

    let at = |buffer: &HostBuffer<f32>| buffer.device_address().unwrap();
    let on_device = LinearDeviceInputs {
        query: at(&q),
        key: at(&k),
        value: at(&v),
        decay: Some(at(&decay)),
        beta: Some(at(&beta)),
        past_state: None,
        cu_seqlens: Some(&bounds),
    };
    let to = LinearDeviceOutputs { output: Some(at(&output)), present_state: Some(at(&states)) };
    // Runs once in the workspace's memory, and once in the caller's memory.
    let room = engine.host_buffer::<f32>(plan.workspace_bytes().div_ceil(4) + 64).unwrap();
    let aligned = at(&room).next_multiple_of(256);
    // SAFETY: nothing else uses the room until the workspace is dropped, which is before the room is.
    let lent = unsafe { plan.workspace_on_device(aligned, plan.workspace_bytes()) };
    for memory in [&mut workspace, &mut lent.unwrap()] {
        output.fill(f32::NAN);
        states.copy_from_slice(&before);
        // SAFETY: the buffers outlive the call, which is waited for before they are read. The outputs do not overlap.
        let report = unsafe {
            let mut bound = plan.bind_device(&on_device, &to, None, memory).unwrap();
            let report = bound.run().unwrap();
            bound.wait().unwrap();
            report
        };
        assert_eq!((report.backend, report.copied), (Backend::Cuda, 0));
        assert_eq!((bits(&output), bits(&states)), expected);
    }

    let wrong = [0, 71, 71];
    let odd = LinearDeviceOutputs { output: to.output.map(|x| x + 2), ..to };
    let none = LinearDeviceOutputs { output: None, present_state: None };
    let past = LinearDeviceInputs { past_state: Some(at(&states)), ..on_device };
    let far = LinearDeviceInputs { key: at(&k) + 4, ..on_device };
    for (inputs, outputs, text) in [
        (LinearDeviceInputs { decay: None, ..on_device }, to, "decay"),
        (LinearDeviceInputs { cu_seqlens: Some(&wrong), ..on_device }, to, "cu_seqlens"),
        (LinearDeviceInputs { cu_seqlens: None, ..on_device }, to, "cu_seqlens"),
        (past, to, "past_state"),
        (far, to, "k: "),
        (on_device, odd, "out: address"),
        (on_device, none, "out"),
        (on_device, LinearDeviceOutputs { present_state: None, ..to }, "present_state"),
    ] {
        // SAFETY: no call is run.
        let refused: BindError =
            unsafe { plan.bind_device(&inputs, &outputs, None, &mut workspace).map(drop).unwrap_err() };
        assert!(refused.to_string().starts_with(text), "{text}: {refused}");
    }
}
