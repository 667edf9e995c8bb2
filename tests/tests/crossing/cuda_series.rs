//! Compares recurrence, selective scan and convolution with f64, on the GPU back end. Covers the cases of the CPU's
//! tests, lengths around the sizes of tiles and parts, and values that are not finite. Also tests states that are
//! replaced in place.

use super::linear_convolution::Case as Convolution;
use super::linear_recurrence::{self, Case as Recurrence};
use super::linear_recurrence_range;
use super::linear_selective::{self, Case as Selective, Params};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::series::Series;
use elsa_core::series::convolution::{self, Method};
use elsa_core::series::recurrence::{self, Gate};
use elsa_kernels::cuda::series::PRECISION;
use elsa_oracle::cases::Data;
use elsa_oracle::gpu_engine;
use elsa_oracle::series::Order;
use elsa_oracle::standin::{child, is_child, said};
use elsa_runtime::{
    Backend, ConvolutionOptions, Engine, Fallback, Reason, RecurrenceOptions, SelectiveOptions,
};

/// Computes a case twice, checks that both runs have the same bits, and returns the largest ratio of an error to its
/// bound.
fn recurrence(engine: &Engine, what: &str, case: &Recurrence, parts: Option<usize>) -> f64 {
    let (found, again) = (case.engine(engine, parts), case.engine(engine, parts));
    assert_eq!(found.out.bits(), again.out.bits(), "{what}");
    case.check(what, &found, &PRECISION)
}

fn selective(engine: &Engine, what: &str, case: &Selective) -> f64 {
    let (found, again) = (case.engine(engine), case.engine(engine));
    assert_eq!(found.out.bits(), again.out.bits(), "{what}");
    case.check(what, &found, &PRECISION)
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn recurrences_match_f64_in_one_part_and_in_several() {
    let engine = gpu_engine(Fallback::Fail);
    for (number, case) in linear_recurrence::cases().iter().enumerate() {
        // Each case runs with one of three numbers of parts, so that every order, type and length occurs.
        let parts = [None, Some(2), Some(5)][number % 3];
        recurrence(&engine, &format!("case {number}, parts {parts:?}"), case, parts);
    }
    for tokens in [15, 16, 17, 1000] {
        for parts in [None, Some(4)] {
            let case = Recurrence::new(7, [1, tokens, 33], [Order::Gaps; 3], DType::F32, Gate::Log, true);
            recurrence(&engine, &format!("{tokens} tokens, parts {parts:?}"), &case, parts);
        }
    }
    linear_recurrence::hard_gates(std::slice::from_ref(&engine));
    linear_recurrence_range::large_logarithms(std::slice::from_ref(&engine));
    linear_recurrence::vanishing_states(std::slice::from_ref(&engine));
    linear_recurrence::vanishing_products(std::slice::from_ref(&engine));
}

/// Returns `params` with tensors for which a lane of a GPU computes a whole channel.
fn by_channel(params: Params) -> Params {
    Params { states: 16, orders: [Order::TokensFirst; 5], ..params }
}

/// Returns the token of an element of `u`.
fn token_of(params: &Params, at: usize) -> usize {
    let [_, tokens, channels] = params.shape;
    if params.orders[0] == Order::TokensFirst { at / channels % tokens } else { at % tokens }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn selective_scans_match_f64() {
    let engine = gpu_engine(Fallback::Fail);
    for (seed, params) in linear_selective::cases().into_iter().enumerate() {
        let states = params.states.min(128);
        let case = Selective::new(Params { states, ..params }, seed as u64);
        selective(&engine, "case", &case);
    }
    for tokens in [7, 8, 9] {
        for states in [1, 3, 64, 100] {
            let case = Selective::new(Params::mamba([1, tokens, 9], states), 5);
            selective(&engine, "around a tile", &case);
        }
    }
    // A lane computes a channel, with channels and tokens around the sizes of tiles, groups of channels that share coefficients,
    // and each optional input.
    for (seed, of_group) in [1, 31, 32, 33, 50].into_iter().enumerate() {
        for tokens in [1, 15, 16, 17, 400] {
            let of = |bit: usize| (seed + tokens) >> bit & 1 == 1;
            // A device with more SMs needs more channels.
            let found = [1, 16, 600].into_iter().find_map(|groups| {
                let params = by_channel(Params {
                    groups: [Some(groups), Some(1)],
                    softplus: of(0),
                    gated: of(1),
                    skip: of(2),
                    bias: of(0),
                    past: of(1),
                    reverse: of(2),
                    ..Params::mamba([2, tokens, groups * of_group], 16)
                });
                let case = Selective::new(params, seed as u64);
                let plan = engine.selective_plan(&case.problem, &SelectiveOptions::default()).unwrap();
                let choice = plan.gpu_choice().unwrap();
                (choice.by_channel && (choice.parts > 1) == (tokens == 400)).then_some(case)
            });
            selective(&engine, &format!("{of_group} channels of a group, {tokens} tokens"), &found.unwrap());
        }
    }
    linear_selective::hard_rates(std::slice::from_ref(&engine));
    linear_selective::steps_and_rates_beyond_f32(std::slice::from_ref(&engine));
}

/// Checks that scans of few channels are computed in parts if they have many tokens, in one part if they have few, and
/// that the bound holds in both cases.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn long_selective_scans_go_by_parts() {
    let engine = gpu_engine(Fallback::Fail);
    for (tokens, reverse) in [(8, false), (1023, false), (1024, true), (1025, false)] {
        let params = Params { past: true, reverse, ..Params::mamba([1, tokens, 3], 5) };
        let case = Selective::new(params, 11);
        let plan = engine.selective_plan(&case.problem, &SelectiveOptions::default()).unwrap();
        assert_eq!(plan.gpu_choice().unwrap().parts > 1, tokens > 8, "{tokens} tokens");
        selective(&engine, "parts", &case);
    }
    // The product of these factors leaves the range of f32 while the state is zero. The state stays zero, and the next
    // part depends only on the inputs of the last tokens of this part.
    let params = Params { softplus: false, gated: false, bias: false, ..Params::mamba([1, 1024, 3], 5) };
    for params in [params, by_channel(params)] {
        let mut case = Selective::new(params, 12);
        let late = |at: usize| token_of(&params, at) % 16 >= 14;
        let data = |case: &Selective, of: fn(usize, bool) -> f32| {
            Data::of(DType::F32, case.problem.spec().u.extent(), |i| of(i, late(i)))
        };
        case.u = data(&case, |i, late| if late { 0.5 + (i % 7) as f32 } else { 0.0 });
        case.delta = data(&case, |_, late| if late { 0.25 } else { 8.0 });
        case.a.iter_mut().for_each(|a| *a = 1.0);
        selective(&engine, "growing factors", &case);
        assert!(case.engine(&engine).present.iter().all(|x| x.is_finite() || x.is_infinite()));
    }
}

/// Checks that a gate of zero clears states that are infinite or NaN, although all rates and time steps are ordinary. A state
/// is also cleared if it has become infinite in the same tile, and if its part is folded.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn gates_of_zero_clear_what_is_not_finite() {
    let engine = gpu_engine(Fallback::Fail);
    let any = |tokens| Params { softplus: false, bias: false, ..Params::mamba([1, tokens, 3], 5) };
    let lanes = |tokens| by_channel(any(tokens));
    for (tokens, input, clears) in [(40, 18, 20), (40, 3, 33), (1024, 500, 503), (1024, 100, 900)] {
        for (value, params) in
            [f32::INFINITY, f32::NAN, 3e38].into_iter().flat_map(|x| [(x, any(tokens)), (x, lanes(tokens))])
        {
            let mut case = Selective::new(params, 13);
            let extent = case.problem.spec().u.extent();
            let is = |at: usize, token: usize| token_of(&params, at) == token;
            case.u = Data::of(DType::F32, extent, |i| if is(i, input) { value } else { (i as f32).sin() });
            case.delta = Data::of(DType::F32, extent, |i| if is(i, clears) { 200.0 } else { 0.25 });
            case.a.iter_mut().for_each(|a| *a = -1.0);
            selective(&engine, &format!("{value} at {input} of {tokens}, cleared at {clears}"), &case);
            assert!(case.engine(&engine).present.iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn convolutions_match_f64() {
    let engine = gpu_engine(Fallback::Fail);
    let dtypes = [DType::F32, DType::F32, DType::F16, DType::Bf16];
    let mut seed = 0;
    for (shape, taps) in [
        ([2, 0, 3], 4),
        ([2, 1, 3], 4),
        ([1, 1, 1], 1),
        ([2, 3, 5], 40),
        ([1, 67, 35], 4),
        ([2, 130, 33], 2),
        ([1, 16, 6], 16),
        ([1, 70, 6], 150),
        ([1, 1000, 2], 17),
    ] {
        for shift in 0..4 {
            let orders = [Order::ALL[(shift + 1) % 4], Order::ALL[(shift + seed as usize / 8) % 4]];
            let case = Convolution::new(seed, shape, taps, orders, dtypes[shift]);
            seed += 1;
            let (found, again) = (case.engine(&engine, Method::Direct), case.engine(&engine, Method::Direct));
            assert_eq!(found.out.bits(), again.out.bits());
            case.check("convolution", &found, Method::Direct, &PRECISION);
        }
    }
}

/// Checks that a value that is not finite reaches only the outputs that a weight connects to it. An infinite weight
/// must have no effect on outputs before the first input that it multiplies.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn convolutions_of_what_is_not_finite() {
    let engine = gpu_engine(Fallback::Fail);
    let (tokens, taps) = (40, 20);
    let series = Series::tokens_first("u", [1, tokens, 1]).unwrap();
    let problem = convolution::Spec::new(series, taps, series).check().unwrap();
    let plan = engine.convolution_plan(&problem, &ConvolutionOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let mut run = |u: &[f32], filter: &[f32]| {
        let mut out = vec![0.0; tokens];
        let inputs = convolution::Inputs { u: Elements::F32(u), filter, bias: None, past_state: None };
        let to = convolution::Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
        plan.bind(inputs, to, &mut workspace).unwrap().run().unwrap();
        let mut want = vec![0.0; tokens];
        let to = convolution::Outputs { out: Some(ElementsMut::F32(&mut want)), present_state: None };
        convolution::scalar::run(&problem, &inputs, &mut { to }).unwrap();
        for (x, y) in out.iter().zip(&want) {
            assert!((x.is_nan() && y.is_nan()) || x == y || (x - y).abs() <= 1e-5, "{out:?} for {want:?}");
        }
        out
    };
    let plain: Vec<f32> = (0..tokens).map(|i| (i as f32 * 0.7).sin()).collect();
    let filter: Vec<f32> = (0..taps).map(|k| 1.0 / (k + 1) as f32).collect();
    for (token, value) in [(0, f32::INFINITY), (13, f32::NEG_INFINITY), (39, f32::NAN), (5, f32::NAN)] {
        let mut u = plain.clone();
        u[token] = value;
        let out = run(&u, &filter);
        for (t, x) in out.iter().enumerate() {
            assert_eq!(x.is_finite(), t < token || t >= token + taps, "token {t} for {value} at {token}");
        }
    }
    let mut hard = filter;
    hard[17] = f32::INFINITY;
    let out = run(&plain, &hard);
    assert!(out[..17].iter().all(|x| x.is_finite()) && out[18..].iter().all(|x| !x.is_finite()), "{out:?}");
}

/// Checks that a sequence has the same bits alone and in a batch, computed in one part or in several.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn bits_do_not_depend_on_the_batch() {
    let engine = gpu_engine(Fallback::Fail);
    let (tokens, channels) = (1030, 3);
    let data = |n: usize| (0..n).map(|i| (i % (tokens * channels)) as f32 * 0.37).map(f32::sin);
    let run = |batch: usize, parts| {
        let series = Series::channels_first("b", [batch, channels, tokens]).unwrap();
        let problem = recurrence::Spec::new(series, series, series).check().unwrap();
        let options = RecurrenceOptions::default().parts(parts);
        let plan = engine.recurrence_plan(&problem, &options).unwrap();
        let b: Vec<f32> = data(batch * tokens * channels).collect();
        // The factors are near one, so that states outlive a part.
        let a: Vec<f32> = b.iter().map(|x| 1.0 - 1e-3 * x.abs()).collect();
        let (mut out, mut workspace) = (vec![0.0; b.len()], plan.workspace().unwrap());
        let inputs = recurrence::Inputs { a: Elements::F32(&a), b: Elements::F32(&b), past_state: None };
        let to = recurrence::Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
        let report = plan.bind(inputs, to, &mut workspace).unwrap().run().unwrap();
        assert_eq!((report.backend, report.fallback), (Backend::Cuda, None));
        out.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
    };
    for parts in [None, Some(1)] {
        let (one, two) = (run(1, parts), run(2, parts));
        assert_eq!([&one[..], &one[..]].concat(), two, "{parts:?}");
    }
    assert_ne!(run(1, None), run(1, Some(1)), "parts have bits of their own");
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn what_the_gpu_does_not_compute_the_cpu_does() {
    let (fails, falls) = (gpu_engine(Fallback::Fail), gpu_engine(Fallback::Cpu));
    let case = Convolution::new(4, [1, 20, 3], 5, [Order::TokensFirst; 2], DType::F32);
    let fft = ConvolutionOptions::default().method(Method::Fft);
    let refused = fails.convolution_plan(&case.problem, &fft).unwrap_err().to_string();
    assert!(refused.starts_with("backend: cuda has no convolution by FFT;"), "{refused}");
    let plan = falls.convolution_plan(&case.problem, &fft).unwrap();
    assert!(matches!(plan.backend(), Backend::Cpu(_)) && plan.refusal().is_some());
    let division = plan.division_of(plan.backend());
    assert_eq!(division.method, Method::Fft);
    case.check("fft", &case.engine(&falls, Method::Fft), Method::Fft, &division.precision);
    let wide = Selective::new(Params::mamba([1, 3, 2], 129), 1);
    let refused = fails.selective_plan(&wide.problem, &SelectiveOptions::default()).unwrap_err().to_string();
    assert_eq!(refused, "states: 129; allowed on a GPU: at most 128");
    let plan = falls.selective_plan(&wide.problem, &SelectiveOptions::default()).unwrap();
    let precision = plan.division_of(plan.backend()).precision;
    wide.check("wide", &wide.engine(&falls), &precision);
}

/// Returns a recurrence whose states are replaced in place.
fn in_place() -> Recurrence {
    let case = Recurrence::new(2, [2, 70, 33], [Order::TokensFirst; 3], DType::F32, Gate::Log, false);
    assert!(case.problem.spec().in_place);
    case
}

/// Runs the case in place once, in a child process, and prints the back end and whether the output is correct.
#[test]
#[ignore = "run by the other tests in a child"]
fn scenario() {
    if !is_child() {
        return;
    }
    let (case, engine) = (in_place(), gpu_engine(Fallback::Cpu));
    let plan = engine.recurrence_plan(&case.problem, &RecurrenceOptions::default()).unwrap();
    let (found, report) = case.report(&plan);
    case.check(&report.backend.to_string(), &found, &plan.division_of(report.backend).precision);
    let fell = matches!(report.fallback, Some(Reason::Device(_)));
    println!("run: {} {fell}", report.backend);
}

/// Makes the device fail at each of its calls. The states must stay unchanged, so that the CPU can compute from them.
#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn states_in_place_outlive_a_failing_device() {
    let library = elsa_oracle::standin::folder();
    for fault in ["cuLaunchKernel:1:700", "cuMemcpyDtoHAsync_v2:1:700", "cuStreamSynchronize:2:700"] {
        let output = child("cuda_series::scenario", &library, &[("ELSA_STANDIN_FAIL", fault)]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = said(&output, "run");
        assert!(output.status.success() && said.len() == 1 && said[0].ends_with("true"), "{fault}: {text}");
    }
}
