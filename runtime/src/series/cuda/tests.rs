//! Tests of per-channel operators on device tensors: they give the same bits as host tensors, and invalid calls are
//! refused before a launch.

use crate::testing::{bits, gpu_engine};
use crate::{
    Backend, BindError, DeviceElements, Engine, HostBuffer, SelectiveDeviceInputs, SelectiveOptions,
    SeriesDeviceOutputs,
};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::random;
use elsa_core::series::Series;
use elsa_core::series::selective::{Coefficient, Inputs, Outputs, Problem, Spec};

const TOKENS: usize = 1100;
const CHANNELS: usize = 6;
const STATES: usize = 5;

/// Creates the problem of a selective scan in parts, with present states in the memory of the past states.
fn problem() -> Problem {
    let u = Series::channels_first("u", [1, CHANNELS, TOKENS]).unwrap();
    let b = Coefficient::Token(Series::channels_first("b", [1, STATES, TOKENS]).unwrap());
    let mut spec = Spec::new(u, u, STATES, b, Coefficient::Channel, u);
    (spec.softplus, spec.in_place) = (true, true);
    spec.check().unwrap()
}

fn noise(engine: &Engine, len: usize, to: impl Fn(f32) -> f32) -> HostBuffer<f32> {
    let mut buffer = engine.host_buffer::<f32>(len).unwrap();
    buffer.iter_mut().zip(random::noise(len as u64, len)).for_each(|(value, x)| *value = to(x));
    buffer
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn device_tensors_have_the_bits_of_host_tensors() {
    let (engine, problem) = (gpu_engine(), problem());
    let plan = engine.selective_plan(&problem, &SelectiveOptions::default()).unwrap();
    assert!(plan.gpu_choice().unwrap().parts > 1);
    let mut workspace = plan.workspace().unwrap();
    plan.warm(&mut workspace).unwrap();
    let plain = |x: f32| x;
    let [u, delta] = [plain, |x: f32| x - 2.0].map(|of| noise(&engine, CHANNELS * TOKENS, of));
    let (a, c) = (noise(&engine, CHANNELS * STATES, |x| -2.0 - x), noise(&engine, CHANNELS * STATES, plain));
    let (b, bias) = (noise(&engine, STATES * TOKENS, plain), noise(&engine, CHANNELS, plain));
    let mut states = noise(&engine, CHANNELS * STATES, plain);
    let (before, mut output) = (states.to_vec(), engine.host_buffer::<f32>(CHANNELS * TOKENS).unwrap());
    let inputs = Inputs {
        u: Elements::F32(&u),
        delta: Elements::F32(&delta),
        a: &a,
        b: Elements::F32(&b),
        c: Elements::F32(&c),
        d: None,
        z: None,
        delta_bias: Some(&bias),
        past_state: None,
    };
    let outputs = Outputs { out: Some(ElementsMut::F32(&mut output)), present_state: Some(&mut states) };
    plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
    let expected = (bits(&output), bits(&states));
    assert!(output.iter().chain(&*states).all(|x| x.is_finite()) && before != states.to_vec());

    let at = |buffer: &HostBuffer<f32>| buffer.device_address().unwrap();
    let of = |buffer| DeviceElements { address: at(buffer), dtype: DType::F32 };
    let on_device = SelectiveDeviceInputs {
        u: of(&u),
        delta: of(&delta),
        a: at(&a),
        b: of(&b),
        c: of(&c),
        d: None,
        z: None,
        delta_bias: Some(at(&bias)),
        past_state: None,
    };
    let to = SeriesDeviceOutputs { out: Some(of(&output)), present_state: Some(at(&states)) };
    output.fill(f32::NAN);
    states.copy_from_slice(&before);
    // SAFETY: the buffers outlive the call, which is waited for before they are read. The outputs do not overlap.
    let report = unsafe {
        let mut bound = plan.bind_device(&on_device, &to, None, &mut workspace).unwrap();
        let report = bound.run().unwrap();
        bound.wait().unwrap();
        report
    };
    assert_eq!((report.backend, report.copied), (Backend::Cuda, 0));
    assert_eq!((bits(&output), bits(&states)), expected);

    let odd = DeviceElements { address: at(&output) + 2, dtype: DType::F32 };
    let far = DeviceElements { address: at(&b) + 4, dtype: DType::F32 };
    let absent = SeriesDeviceOutputs { present_state: None, ..to };
    for (inputs, outputs, text) in [
        (SelectiveDeviceInputs { past_state: Some(at(&states)), ..on_device }, to, "past_state"),
        (SelectiveDeviceInputs { z: Some(on_device.u), ..on_device }, to, "z"),
        (SelectiveDeviceInputs { b: far, ..on_device }, to, "b: "),
        (on_device, SeriesDeviceOutputs { out: Some(odd), ..to }, "out: address"),
        (on_device, absent, "in_place"),
    ] {
        // SAFETY: no call is run.
        let refused: BindError =
            unsafe { plan.bind_device(&inputs, &outputs, None, &mut workspace).map(drop).unwrap_err() };
        assert!(refused.to_string().starts_with(text), "{text}: {refused}");
    }
    // The same memory is long enough for elements of half the size.
    let half = SelectiveDeviceInputs { b: DeviceElements { dtype: DType::F16, ..far }, ..on_device };
    // SAFETY: no call is run.
    assert!(unsafe { plan.bind_device(&half, &to, None, &mut workspace) }.is_ok());
}
