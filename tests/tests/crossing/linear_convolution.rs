//! Compares both methods of the causal convolution with f64, on the scalar fallback and on every CPU back end.

use elsa_core::argument::ArgumentError as E;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::series::Series;
use elsa_core::series::bound::Precision;
use elsa_core::series::convolution::{
    Inputs, Method, Outputs, Problem, Spec, Taps, fft_length, reference, scalar,
};
use elsa_core::series::plan::method;
use elsa_kernels::registry::series_of;
use elsa_oracle::SLOW;
use elsa_oracle::cases::Data;
use elsa_oracle::random::seeded;
use elsa_oracle::series::{Order, SeriesOutputs, UNWRITTEN, check, normals, precision};
use elsa_oracle::strides::{TURNS, far_series};
use elsa_oracle::{cpu_engines, engines};
use elsa_runtime::{Backend, ConvolutionOptions, Engine};

/// A convolution problem with its tensors.
pub(crate) struct Case {
    pub(crate) problem: Problem,
    pub(crate) u: Data,
    filter: Vec<f32>,
    bias: Option<Vec<f32>>,
    past: Option<Vec<f32>>,
    dtype: DType,
}

impl Case {
    pub(crate) fn new(seed: u64, shape: [usize; 3], taps: usize, orders: [Order; 2], dtype: DType) -> Case {
        let mut r = seeded(seed);
        let u = orders[0].series(shape);
        let mut spec = Spec::new(u, taps, orders[1].series(shape));
        spec.shared = seed % 5 == 3;
        spec.order = if seed % 2 == 1 { Taps::NewestLast } else { Taps::NewestFirst };
        spec.silu = seed % 3 == 2;
        spec.reverse = seed % 4 == 1;
        spec.in_place = seed % 7 == 2;
        let problem = spec.check().unwrap();
        let past = !seed.is_multiple_of(3) || spec.in_place;
        Case {
            u: Data::of(dtype, u.extent(), |_| r.normal()),
            filter: normals(&mut r, problem.weights(), 1.0),
            bias: seed.is_multiple_of(2).then(|| normals(&mut r, shape[2], 1.0)),
            past: past.then(|| normals(&mut r, problem.states(), 1.0)),
            problem,
            dtype,
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            u: self.u.elements(),
            filter: &self.filter,
            bias: self.bias.as_deref(),
            past_state: self.past.as_deref().filter(|_| !self.problem.spec().in_place),
        }
    }

    fn room(&self) -> SeriesOutputs {
        let present = match &self.past {
            Some(past) if self.problem.spec().in_place => past.clone(),
            _ => vec![UNWRITTEN; self.problem.states()],
        };
        SeriesOutputs::unwritten(self.dtype, self.problem.spec().out.extent(), present)
    }

    pub(crate) fn scalar(&self) -> SeriesOutputs {
        let mut found = self.room();
        scalar::run(&self.problem, &self.inputs(), &mut found.outputs()).unwrap();
        found
    }

    pub(crate) fn engine(&self, engine: &Engine, method: Method) -> SeriesOutputs {
        let mut found = self.room();
        let options = ConvolutionOptions::default().all_workers(true).method(method);
        let plan = engine.convolution_plan(&self.problem, &options).unwrap();
        let mut workspace = plan.workspace().unwrap();
        plan.bind(self.inputs(), found.outputs(), &mut workspace).unwrap().run().unwrap();
        found
    }

    /// Returns the last inputs of a channel, the oldest first.
    fn last(&self, batch: usize, channel: usize) -> Vec<f32> {
        let (p, s, history) = (&self.problem, self.problem.spec(), self.problem.history());
        let state = (batch * p.channels() + channel) * history;
        let past =
            self.past.as_ref().map_or(vec![0.0; history], |past| past[state..state + history].to_vec());
        let token = |step: usize| if s.reverse { p.tokens() - 1 - step } else { step };
        let new = (0..p.tokens()).map(|step| self.u.elements().get(s.u.at(batch, token(step), channel)));
        let all: Vec<f32> = past.into_iter().chain(new).collect();
        all[all.len() - history..].to_vec()
    }

    pub(crate) fn check(
        &self,
        what: &str,
        found: &SeriesOutputs,
        method: Method,
        precision: &Precision,
    ) -> f64 {
        let (p, mut worst) = (&self.problem, 0.0);
        let what = format!("{what}: {:?} by {}", p.spec(), method.name());
        for batch in 0..p.batch() {
            for channel in 0..p.channels() {
                let state = (batch * p.channels() + channel) * p.history();
                let past = self.past.as_ref().map_or(&[][..], |past| &past[state..state + p.history()]);
                let (at, inputs) = ([batch, channel], self.inputs());
                reference::outputs(p, &inputs, past, method, precision, self.dtype, at, |token, exact| {
                    let found = found.out.elements().get(p.spec().out.at(batch, token, channel));
                    check(
                        &format!("{what}, {batch} {token} {channel}"),
                        found,
                        exact,
                        self.dtype,
                        &mut worst,
                    );
                });
                let last = &found.present[state..state + p.history()];
                assert_eq!(last, self.last(batch, channel), "{what}: the state is the last inputs");
            }
        }
        worst
    }
}

#[test]
fn every_back_end_matches_f64_by_both_methods() {
    let engines = cpu_engines(2);
    let shapes: &[([usize; 3], usize)] = if SLOW {
        &[([1, 5, 3], 4), ([1, 9, 2], 12)]
    } else {
        &[
            ([2, 0, 3], 4),
            ([2, 1, 3], 4),
            ([1, 1, 1], 1),
            ([2, 3, 5], 4),
            ([1, 67, 35], 4),
            ([2, 130, 33], 2),
            ([1, 64, 6], 64),
            ([1, 70, 6], 150),
            ([1, 200, 2], 97),
        ]
    };
    let dtypes = [DType::F32, DType::F32, DType::F16, DType::Bf16];
    let mut seed = 0;
    for (shape, taps) in shapes {
        for shift in 0..4 {
            let orders = [Order::ALL[(shift + 1) % 4], Order::ALL[(shift + seed as usize / 8) % 4]];
            let case = Case::new(seed, *shape, *taps, orders, dtypes[shift]);
            seed += 1;
            case.check("scalar", &case.scalar(), Method::Direct, &scalar::PRECISION);
            for engine in &engines {
                for method in Method::ALL {
                    case.check(
                        engine.backend().name(),
                        &case.engine(engine, method),
                        method,
                        &precision(engine),
                    );
                }
            }
        }
    }
}

/// Checks the inputs 1 to 4 with the relative decay 1, 1/2, 1/4, 1/8, by both methods and in decode steps.
#[test]
fn the_example_of_the_article_comes_out() {
    let (u, alpha) = ([1.0, 2.0, 3.0, 4.0], [1.0, 0.5, 0.25, 0.125]);
    let want = [1.0, 2.5, 4.25, 6.125];
    let of = |tokens: usize, in_place: bool| {
        let series = Series::tokens_first("u", [1, tokens, 1]).unwrap();
        let mut spec = Spec::new(series, 4, series);
        spec.in_place = in_place;
        spec.check().unwrap()
    };
    for engine in cpu_engines(1) {
        for method in Method::ALL {
            let options = ConvolutionOptions::default().method(method);
            let run = |problem: &Problem, u: &[f32], out: &mut [f32], state: Option<&mut [f32]>| {
                let plan = engine.convolution_plan(problem, &options).unwrap();
                let inputs = Inputs { u: Elements::F32(u), filter: &alpha, bias: None, past_state: None };
                let outputs = Outputs { out: Some(ElementsMut::F32(out)), present_state: state };
                plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
            };
            let mut out = [0.0; 4];
            run(&of(4, false), &u, &mut out, None);
            for (x, want) in out.iter().zip(want) {
                assert!((x - want).abs() <= 1e-6, "{} {}: {out:?}", engine.backend(), method.name());
            }
            let (step, mut state) = (of(1, true), [0.0; 3]);
            for (u, want) in u.iter().zip(want) {
                let mut out = [0.0];
                run(&step, &[*u], &mut out, Some(&mut state));
                assert!((out[0] - want).abs() <= 1e-6, "{} {}: {out:?}", engine.backend(), method.name());
            }
            assert_eq!(state, [2.0, 3.0, 4.0]);
        }
    }
}

/// Checks `CausalConvWithState` of ONNX opset 27 against its definition: a cross-correlation over the past state and
/// the input.
#[test]
fn the_onnx_operator_comes_out() {
    let (batch, channels, tokens, taps) = (2, 3, 5, 4);
    let mut r = seeded(11);
    let (x, w) = (normals(&mut r, batch * channels * tokens, 1.0), normals(&mut r, channels * taps, 1.0));
    let (bias, past) = (normals(&mut r, channels, 1.0), normals(&mut r, batch * channels * 3, 1.0));
    let series = Series::channels_first("x", [batch, channels, tokens]).unwrap();
    let mut spec = Spec::new(series, taps, series);
    (spec.order, spec.silu) = (Taps::NewestLast, true);
    let problem = spec.check().unwrap();
    for engine in cpu_engines(1) {
        let (mut out, mut present) = (vec![0.0; x.len()], vec![0.0; past.len()]);
        let inputs = Inputs { u: Elements::F32(&x), filter: &w, bias: Some(&bias), past_state: Some(&past) };
        let outputs = Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: Some(&mut present) };
        let plan = engine.convolution_plan(&problem, &ConvolutionOptions::default()).unwrap();
        plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
        for line in 0..batch * channels {
            let padded: Vec<f64> = past[line * 3..line * 3 + 3]
                .iter()
                .chain(&x[line * tokens..(line + 1) * tokens])
                .map(|x| f64::from(*x))
                .collect();
            for t in 0..tokens {
                let c = line % channels;
                let weights = &w[c * taps..(c + 1) * taps];
                let sum: f64 = weights.iter().zip(&padded[t..]).map(|(w, x)| f64::from(*w) * x).sum();
                let sum = sum + f64::from(bias[c]);
                let want = sum / (1.0 + (-sum).exp());
                let error = (f64::from(out[line * tokens + t]) - want).abs();
                assert!(error <= 2e-6, "{}: {error:e}", engine.backend());
            }
            let last: Vec<f64> = present[line * 3..line * 3 + 3].iter().map(|x| f64::from(*x)).collect();
            assert_eq!(last, padded[tokens..]);
        }
    }
}

/// Checks that a value that is not finite reaches only the outputs from its token on, for the length of the filter.
/// This must hold with the FFT and with the direct method.
#[test]
fn methods_agree_on_what_is_not_finite() {
    let (tokens, taps) = (40, 5);
    let series = Series::tokens_first("u", [1, tokens, 1]).unwrap();
    let problem = Spec::new(series, taps, series).check().unwrap();
    let run = |engine: &Engine, method, u: &[f32], filter: &[f32]| {
        let mut out = vec![UNWRITTEN; tokens];
        let options = ConvolutionOptions::default().method(method);
        let plan = engine.convolution_plan(&problem, &options).unwrap();
        let inputs = Inputs { u: Elements::F32(u), filter, bias: None, past_state: None };
        let outputs = Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
        plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
        out
    };
    let mut r = seeded(3);
    let (plain, filter) = (normals(&mut r, tokens, 1.0), [1.0, -0.5, 0.0, 0.25, 2.0]);
    for engine in cpu_engines(1) {
        for (token, value) in
            [(10, f32::NAN), (0, f32::INFINITY), (11, f32::INFINITY), (13, f32::NEG_INFINITY), (39, f32::NAN)]
        {
            let mut u = plain.clone();
            u[token] = value;
            u[10] = if token > 10 && token < 20 { f32::INFINITY } else { u[10] };
            let (direct, fft) =
                (run(&engine, Method::Direct, &u, &filter), run(&engine, Method::Fft, &u, &filter));
            for (t, (x, y)) in direct.iter().zip(&fft).enumerate() {
                let same = (x.is_nan() && y.is_nan()) || x == y || (x - y).abs() <= 1e-5;
                assert!(same, "{}: token {t}: {x} and {y} for {value} at {token}", engine.backend());
                assert!(t >= token.min(10) || x.is_finite());
            }
        }
        let mut bad = filter;
        bad[2] = f32::NAN;
        let out = run(&engine, Method::Fft, &plain, &bad);
        assert!(out[..2].iter().all(|x| x.is_finite()) && out[2..].iter().all(|x| x.is_nan()), "{out:?}");
    }
}

/// Checks small outputs that follow large ones; transforms in f32 would have an error of 1e-4 there.
#[test]
fn fft_keeps_small_outputs_beside_large_ones() {
    let n = if SLOW { 100 } else { 3000 };
    let series = Series::tokens_first("u", [1, n, 1]).unwrap();
    let problem = Spec::new(series, n, series).check().unwrap();
    let u: Vec<f32> = (0..n).map(|t| if t < n / 2 { 1e4 } else { 1e-3 }).collect();
    let filter: Vec<f32> = (0..n).map(|k| if k < 8 { 0.5f32.powi(k as i32) } else { 0.0 }).collect();
    for engine in cpu_engines(1) {
        let options = ConvolutionOptions::default().method(Method::Fft);
        let plan = engine.convolution_plan(&problem, &options).unwrap();
        let mut out = vec![0.0; n];
        let inputs = Inputs { u: Elements::F32(&u), filter: &filter, bias: None, past_state: None };
        let outputs = Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
        plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
        let want = 1e-3 * (2.0 - 0.5f64.powi(7));
        let error = (f64::from(out[n - 1]) - want).abs() / want;
        assert!(error <= 1e-6, "{}: {error:e}", engine.backend());
    }
}

/// Checks that bits do not depend on the number of threads, that a stream has the bits of one call with the direct method, and
/// that the chooser picks each method for its intended sizes.
#[test]
fn bits_and_choice_do_not_depend_on_threads() {
    let shape = if SLOW { [2, 10, 20] } else { [2, 150, 70] };
    let case = Case::new(4, shape, 6, [Order::TokensFirst; 2], DType::F32);
    for (one, many) in cpu_engines(1).iter().zip(&cpu_engines(3)) {
        for method in Method::ALL {
            let (x, y) = (case.engine(one, method), case.engine(many, method));
            assert_eq!(x.out.bits(), y.out.bits(), "{} {}", one.backend(), method.name());
            assert_eq!(x.present, y.present);
        }
        let Backend::Cpu(set) = one.backend() else { continue };
        let kernel = &series_of(set).unwrap().spec;
        let of = |tokens: usize, taps: usize| {
            let series = Series::tokens_first("u", [1, tokens, 1]).unwrap();
            method(&Spec::new(series, taps, series).check().unwrap(), kernel)
        };
        assert_eq!((of(4096, 4), of(1, 4096)), (Method::Direct, Method::Direct));
        assert_eq!(of(65_536, 65_536), Method::Fft);
    }
    for tokens in [0, 1, 5, 100, 4097] {
        let n = fft_length(tokens, tokens.max(1));
        assert!(n >= 2 * tokens && n.is_multiple_of(2) && n <= 4.max(4 * tokens), "{tokens}: {n}");
    }
}

#[test]
fn bad_input_is_refused() {
    let series = |shape| Series::tokens_first("x", shape).unwrap();
    let (u, out) = (series([1, 4, 3]), series([1, 5, 3]));
    let refused = |spec: Spec| spec.check().unwrap_err();
    assert_eq!(refused(Spec::new(u, 0, u)), E::Zero { argument: "filter", axis: "taps" });
    let tokens = E::Mismatch { argument: "out", axis: "tokens", found: 5, allowed: 4, of: "u" };
    assert_eq!(refused(Spec::new(u, 4, out)), tokens);
    assert!(matches!(refused(Spec::new(u, usize::MAX / 2, u)), E::TooLarge { argument: "filter", .. }));
    let problem = Spec::new(u, 4, u).check().unwrap();
    let (x, mut y, mut state) = ([0.0; 12], [UNWRITTEN; 12], [UNWRITTEN; 9]);
    let inputs = Inputs { u: Elements::F32(&x), filter: &x[..11], bias: None, past_state: None };
    let mut outputs = Outputs { out: Some(ElementsMut::F32(&mut y)), present_state: Some(&mut state) };
    let short = E::Short { argument: "filter", found: 11, needed: 12 };
    assert_eq!(scalar::run(&problem, &inputs, &mut outputs), Err(short));
    assert_eq!((y, state), ([UNWRITTEN; 12], [UNWRITTEN; 9]));
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    let engines = engines(2);
    // Seeds 1 and 5 reverse the tokens.
    for (seed, shape) in (0..).zip([[1, 1, 5], [1, 1, 64], [1, 9, 1], [2, 1, 1], [1, 2, 1], [1, 1, 64]]) {
        for (order, turn) in
            Order::ALL.into_iter().flat_map(|order| (0..TURNS).map(move |turn| (order, turn)))
        {
            let mut case = Case::new(seed, shape, 4, [order; 2], DType::F32);
            let bits = |case: &Case| {
                let of = |engine: &Engine| {
                    let methods = Method::ALL.into_iter();
                    // A GPU has only the direct method.
                    let methods =
                        methods.filter(|m| *m == Method::Direct || engine.backend() != Backend::Cuda);
                    methods.map(|method| case.engine(engine, method).bits()).collect::<Vec<_>>()
                };
                engines.iter().map(of).collect::<Vec<_>>()
            };
            let want = bits(&case);
            let mut spec = *case.problem.spec();
            (spec.u, spec.out) = (far_series(spec.u, turn), far_series(spec.out, turn));
            case.problem = spec.check().unwrap();
            assert_eq!(bits(&case), want, "{spec:?}");
        }
    }
}
