//! Compares the selective scan with an f64 scan, on the scalar fallback and on every CPU back end. Also compares the
//! f64 scan with the definition in `mamba_ssm`.

use elsa_core::argument::ArgumentError as E;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::series::bound::{Judged, Precision};
use elsa_core::series::selective::{
    Coefficient, Inputs, MAX_STATES, Outputs, Problem, Spec, reference, scalar,
};
use elsa_core::series::{Series, token_of};
use elsa_oracle::SLOW;
use elsa_oracle::cases::Data;
use elsa_oracle::random::seeded;
use elsa_oracle::series::{Order, SeriesOutputs, UNWRITTEN, check, normals, precision};
use elsa_oracle::strides::{TURNS, far_series};
use elsa_oracle::{cpu_engines, engines};
use elsa_runtime::{BindError, Engine, SelectiveOptions};

/// Parameters of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    pub(crate) shape: [usize; 3],
    pub(crate) states: usize,
    /// Number of groups of `B` and of `C`; `None` if the coefficients of a channel are the same for all tokens.
    pub(crate) groups: [Option<usize>; 2],
    pub(crate) orders: [Order; 5],
    pub(crate) dtype: DType,
    pub(crate) softplus: bool,
    pub(crate) gated: bool,
    pub(crate) skip: bool,
    pub(crate) bias: bool,
    pub(crate) past: bool,
    pub(crate) in_place: bool,
    pub(crate) reverse: bool,
}

impl Params {
    /// Returns the parameters of Mamba's layers: with every optional input, in the order `[batch, channels, tokens]`.
    pub(crate) fn mamba(shape: [usize; 3], states: usize) -> Params {
        Params {
            shape,
            states,
            groups: [Some(1); 2],
            orders: [Order::ChannelsFirst; 5],
            dtype: DType::F32,
            softplus: true,
            gated: true,
            skip: true,
            bias: true,
            past: false,
            in_place: false,
            reverse: false,
        }
    }
}

/// A selective scan with its tensors.
pub(crate) struct Case {
    pub(crate) params: Params,
    pub(crate) problem: Problem,
    pub(crate) u: Data,
    pub(crate) delta: Data,
    pub(crate) a: Vec<f32>,
    b: Data,
    c: Data,
    d: Vec<f32>,
    z: Data,
    bias: Vec<f32>,
    past: Vec<f32>,
}

impl Case {
    pub(crate) fn new(params: Params, seed: u64) -> Case {
        let mut r = seeded(seed);
        let ([batch, tokens, channels], n) = (params.shape, params.states);
        let series = params.orders.map(|order| order.series(params.shape));
        let mut coefficient = |groups: Option<usize>, order: Order| match groups {
            Some(groups) => {
                let series = order.series([batch, tokens, groups * n]);
                (Coefficient::Token(series), Data::of(params.dtype, series.extent(), |_| r.normal()))
            }
            None => (Coefficient::Channel, Data::of(params.dtype, channels * n, |_| r.normal())),
        };
        let (b, b_data) = coefficient(params.groups[0], params.orders[1]);
        let (c, c_data) = coefficient(params.groups[1], params.orders[2]);
        let mut spec = Spec::new(series[0], series[1], n, b, c, series[2]);
        spec.z = params.gated.then_some(series[3]);
        (spec.softplus, spec.reverse, spec.in_place) = (params.softplus, params.reverse, params.in_place);
        let mut of =
            |series: Series, factor: f32| Data::of(params.dtype, series.extent(), |_| factor * r.normal());
        let (u, mut delta, z) = (of(series[0], 1.0), of(series[1], 1.0), of(series[3], 2.0));
        if !params.softplus {
            delta = Data::of(params.dtype, series[1].extent(), |i| delta.elements().get(i).abs());
        }
        Case {
            params,
            problem: spec.check().unwrap(),
            u,
            delta,
            // The rates go from −1 to −N, as in Mamba's initialisation, with noise.
            a: (0..channels * n).map(|i| -((i % n) as f32 + 1.0) * (1.0 + 0.1 * r.normal())).collect(),
            b: b_data,
            c: c_data,
            d: normals(&mut r, channels, 1.0),
            z,
            bias: normals(&mut r, channels, 0.5),
            past: normals(&mut r, batch * channels * n, 1.0),
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        let p = &self.params;
        Inputs {
            u: self.u.elements(),
            delta: self.delta.elements(),
            a: &self.a,
            b: self.b.elements(),
            c: self.c.elements(),
            d: p.skip.then_some(&self.d[..]),
            z: p.gated.then_some(self.z.elements()),
            delta_bias: p.bias.then_some(&self.bias[..]),
            past_state: (p.past && !p.in_place).then_some(&self.past[..]),
        }
    }

    /// Returns the states of a channel before the first token.
    fn past(&self, batch: usize, channel: usize) -> &[f32] {
        let n = self.params.states;
        let at = (batch * self.params.shape[2] + channel) * n;
        if self.params.past || self.params.in_place { &self.past[at..at + n] } else { &[] }
    }

    fn room(&self) -> SeriesOutputs {
        let present = if self.params.in_place {
            self.past.clone()
        } else {
            vec![UNWRITTEN; self.problem.state_values()]
        };
        SeriesOutputs::unwritten(self.params.dtype, self.problem.spec().out.extent(), present)
    }

    fn scalar(&self) -> SeriesOutputs {
        let mut found = self.room();
        scalar::run(&self.problem, &self.inputs(), &mut found.outputs()).unwrap();
        found
    }

    pub(crate) fn engine(&self, engine: &Engine) -> SeriesOutputs {
        let mut found = self.room();
        let options = SelectiveOptions::default().all_workers(true);
        let plan = engine.selective_plan(&self.problem, &options).unwrap();
        let mut workspace = plan.workspace().unwrap();
        plan.bind(self.inputs(), found.outputs(), &mut workspace).unwrap().run().unwrap();
        found
    }

    pub(crate) fn check(&self, what: &str, found: &SeriesOutputs, precision: &Precision) -> f64 {
        let (p, n, mut worst) = (&self.problem, self.params.states, 0.0);
        for batch in 0..p.batch() {
            for channel in 0..p.channels() {
                let mut last = vec![Judged { value: 0.0, bound: 0.0 }; n];
                let (past, dtype) = (self.past(batch, channel), self.params.dtype);
                let at = [batch, channel];
                reference::outputs(
                    p,
                    &self.inputs(),
                    past,
                    precision,
                    dtype,
                    at,
                    &mut last,
                    |token, exact| {
                        let found = found.out.elements().get(p.spec().out.at(batch, token, channel));
                        let what =
                            format!("{what}: {:?}: {batch}, token {token}, channel {channel}", self.params);
                        check(&what, found, exact, dtype, &mut worst);
                    },
                );
                let state = (batch * p.channels() + channel) * n;
                for (x, last) in found.present[state..state + n].iter().zip(last) {
                    let what = format!("{what}: {:?}: last state", self.params);
                    check(&what, *x, last, DType::F32, &mut worst);
                }
            }
        }
        worst
    }
}

pub(crate) fn cases() -> Vec<Params> {
    use Order::{ChannelsFirst, Gaps, Heads, TokensFirst};
    let n = if SLOW { 9 } else { 70 };
    let mamba = Params::mamba([2, n, 35], 16);
    let plain = Params {
        softplus: false,
        gated: false,
        skip: false,
        bias: false,
        orders: [TokensFirst; 5],
        ..Params::mamba([1, n, 32], 4)
    };
    let all = vec![
        mamba,
        plain,
        // As in VMamba, states have one element, and channels share coefficients in groups.
        Params { groups: [Some(4); 2], ..Params::mamba([1, n, 48], 1) },
        // The groups of two channels for `B` do not fit within the groups of three channels for `C`.
        Params { groups: [Some(3), Some(2)], past: true, ..Params::mamba([1, n, 6], 5) },
        Params { groups: [None, Some(1)], reverse: true, past: true, ..mamba },
        Params { groups: [None; 2], orders: [Gaps, Heads, TokensFirst, ChannelsFirst, Gaps], ..mamba },
        Params { reverse: true, in_place: true, orders: [Heads, Gaps, Heads, Heads, Gaps], ..mamba },
        Params { dtype: DType::F16, past: true, ..mamba },
        Params { dtype: DType::Bf16, reverse: true, orders: [TokensFirst; 5], ..mamba },
        Params { softplus: false, bias: true, in_place: true, ..plain },
        Params { gated: true, shape: [3, 1, 3], past: true, ..plain },
        Params { shape: [2, 0, 3], in_place: true, ..mamba },
        Params { skip: true, shape: [1, 3, 2], states: MAX_STATES, ..mamba },
        Params { dtype: DType::F16, shape: [1, 5, 3], states: 70, orders: [ChannelsFirst; 5], ..mamba },
    ];
    all
}

#[test]
fn every_back_end_matches_f64() {
    let engines = cpu_engines(2);
    for (seed, params) in cases().into_iter().enumerate() {
        let case = Case::new(params, seed as u64);
        case.check("scalar", &case.scalar(), &scalar::PRECISION);
        for engine in &engines {
            let found = case.engine(engine);
            case.check(engine.backend().name(), &found, &precision(engine));
            let gap = |i: usize| found.out.elements().get(i).to_bits() == UNWRITTEN.to_bits();
            let s = case.problem.spec();
            let written = s.out.extent() - (0..s.out.extent()).filter(|i| gap(*i)).count();
            assert_eq!(written, params.shape.iter().product::<usize>(), "{params:?}");
        }
    }
}

/// Computes `selective_scan_ref` of `mamba_ssm` in f64, with its order of operations.
fn mamba(case: &Case, batch: usize, channel: usize) -> Vec<f64> {
    let (p, s, n) = (&case.params, case.problem.spec(), case.params.states);
    let get = |x: &Data, i: usize| f64::from(x.elements().get(i));
    let mut x: Vec<f64> = vec![0.0; n];
    for (x, past) in x.iter_mut().zip(case.past(batch, channel)) {
        *x = f64::from(*past);
    }
    let mut out = Vec::new();
    for step in 0..p.shape[1] {
        let t = token_of(step, p.shape[1], p.reverse);
        let mut delta = get(&case.delta, s.delta.at(batch, t, channel));
        delta += if p.bias { f64::from(case.bias[channel]) } else { 0.0 };
        if p.softplus {
            delta = delta.exp().ln_1p();
        }
        let u = get(&case.u, s.u.at(batch, t, channel));
        let of = |coefficient: &Coefficient, data: &Data, groups: Option<usize>, i: usize| match coefficient {
            Coefficient::Channel => get(data, channel * n + i),
            Coefficient::Token(series) => {
                let group = channel / (p.shape[2] / groups.unwrap());
                get(data, series.at(batch, t, group * n + i))
            }
        };
        let mut y = 0.0;
        for (i, x) in x.iter_mut().enumerate() {
            let a = f64::from(case.a[channel * n + i]);
            *x = (delta * a).exp() * *x + delta * of(&s.b, &case.b, p.groups[0], i) * u;
            y += *x * of(&s.c, &case.c, p.groups[1], i);
        }
        y += if p.skip { u * f64::from(case.d[channel]) } else { 0.0 };
        if let Some(series) = &s.z {
            let z = get(&case.z, series.at(batch, t, channel));
            y *= z / (1.0 + (-z).exp());
        }
        out.push(y);
    }
    out
}

#[test]
fn the_oracle_is_the_definition() {
    for (seed, params) in cases().into_iter().enumerate() {
        let case = Case::new(params, seed as u64);
        let (p, channel) = (&case.problem, params.shape[2] - 1);
        for batch in 0..params.shape[0] {
            let want = mamba(&case, batch, channel);
            let (mut step, mut last) = (0, [Judged { value: 0.0, bound: 0.0 }; 0]);
            let (past, at) = (case.past(batch, channel), [batch, channel]);
            let inputs = case.inputs();
            let libm = &scalar::PRECISION;
            reference::outputs(p, &inputs, past, libm, DType::F32, at, &mut last, |_, exact| {
                let error = (exact.value - want[step]).abs();
                assert!(
                    error <= 1e-12 * (1.0 + want[step].abs()),
                    "{params:?}: {exact:?} for {}",
                    want[step]
                );
                // The bound must not be vacuous.
                assert!(exact.bound <= 2e-3 * (1.0 + want[step].abs()), "{params:?}: {exact:?}");
                step += 1;
            });
            assert_eq!(step, want.len());
        }
    }
}

/// Checks that the L2 error of a plain problem is at most 5e-7, relative to the norm of the f64 output.
#[test]
fn errors_stay_below_the_goal() {
    let n = if SLOW { 60 } else { 600 };
    let case = Case::new(Params::mamba([1, n, 32], 16), 5);
    for engine in cpu_engines(2) {
        let found = case.engine(&engine);
        let worst = case.check(engine.backend().name(), &found, &precision(&engine));
        let (mut error, mut size) = (0.0, 0.0);
        for channel in 0..32 {
            for (token, want) in mamba(&case, 0, channel).into_iter().enumerate() {
                let x = f64::from(found.out.elements().get(case.problem.spec().out.at(0, token, channel)));
                error += (x - want).powi(2);
                size += want.powi(2);
            }
        }
        let relative = f64::sqrt(error / size);
        println!("{}: {relative:e} relative L2, {worst:e} of the bound", engine.backend());
        assert!(relative <= 5e-7, "{}: {relative:e}", engine.backend());
    }
}

/// Checks that steps of one token, each continued from the previous state, have the bits of a single call. The bits
/// are also the same with three threads, and for a sequence alone and in a batch.
#[test]
fn decode_steps_threads_and_batch_change_no_bit() {
    let (tokens, channels, states) = (if SLOW { 5 } else { 40 }, 37, 8);
    let params = Params {
        orders: [Order::TokensFirst; 5],
        in_place: true,
        ..Params::mamba([2, tokens, channels], states)
    };
    let case = Case::new(params, 6);
    for (one, many) in cpu_engines(1).iter().zip(&cpu_engines(3)) {
        let whole = case.engine(one);
        let other = case.engine(many);
        assert_eq!(whole.out.bits(), other.out.bits(), "{}", one.backend());
        let mut state = case.past.clone();
        let per = channels * states;
        for batch in 0..2 {
            for token in 0..tokens {
                let slice = |x: &Data, width: usize| {
                    let at = (batch * tokens + token) * width;
                    Data::of(DType::F32, width, |i| x.elements().get(at + i))
                };
                let params = Params { shape: [1, 1, channels], ..params };
                let step = Case {
                    u: slice(&case.u, channels),
                    delta: slice(&case.delta, channels),
                    b: slice(&case.b, states),
                    c: slice(&case.c, states),
                    z: slice(&case.z, channels),
                    a: case.a.clone(),
                    d: case.d.clone(),
                    bias: case.bias.clone(),
                    past: state[batch * per..(batch + 1) * per].to_vec(),
                    ..Case::new(params, 0)
                };
                let found = step.engine(many);
                state[batch * per..(batch + 1) * per].copy_from_slice(&found.present);
                for channel in 0..channels {
                    let at = (batch * tokens + token) * channels + channel;
                    let [x, y] = [found.out.elements().get(channel), whole.out.elements().get(at)];
                    assert_eq!(x.to_bits(), y.to_bits(), "{}: token {token}", one.backend());
                }
            }
        }
        assert_eq!(state, whole.present);
    }
}

/// Runs [`hard_rates`] on every CPU back end.
#[test]
fn hard_rates_do_what_they_say() {
    hard_rates(&cpu_engines(1));
}

/// Checks rates that clear the state, states that are not finite, and NaN, on each of the engines.
pub(crate) fn hard_rates(engines: &[Engine]) {
    let tokens = 6;
    let series = Series::tokens_first("u", [1, tokens, 1]).unwrap();
    let two = Coefficient::Token(Series::tokens_first("b", [1, tokens, 2]).unwrap());
    let problem = Spec::new(series, series, 2, two, two, series).check().unwrap();
    // Per unit of time, the first element of the state decays by a factor of 1/e; the second is cleared at once.
    let a = [-1.0, f32::NEG_INFINITY];
    let (u, mut delta) = ([1.0; 6], [1.0; 6]);
    delta[3] = 2000.0;
    let (b, c) = ([1.0; 12], [1.0; 12]);
    for engine in engines {
        let run = |delta: &[f32], past: [f32; 2]| {
            let (mut out, mut last) = ([UNWRITTEN; 6], [UNWRITTEN; 2]);
            let plan = engine.selective_plan(&problem, &SelectiveOptions::default()).unwrap();
            let of = Elements::F32;
            let inputs = Inputs {
                u: of(&u),
                delta: of(delta),
                a: &a,
                b: of(&b),
                c: of(&c),
                d: None,
                z: None,
                delta_bias: None,
                past_state: Some(&past),
            };
            let outputs = Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: Some(&mut last) };
            plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
            (out, last)
        };
        // The first element stays infinite until 2000 units of time pass; the second is cleared at once.
        let (out, last) = run(&delta, [f32::INFINITY, f32::NAN]);
        assert!(out[..3].iter().all(|x| *x == f32::INFINITY), "{}: {out:?}", engine.backend());
        assert_eq!(out[3], 4000.0);
        assert!(out[4..].iter().all(|x| x.is_finite()) && last[1] == 1.0, "{out:?} {last:?}");
        let mut poisoned = delta;
        poisoned[4] = f32::NAN;
        let (out, last) = run(&poisoned, [0.0; 2]);
        assert!(out[..4].iter().all(|x| x.is_finite()) && out[4..].iter().all(|x| x.is_nan()), "{out:?}");
        assert!(last[0].is_nan() && last[1] == 1.0, "{last:?}");
    }
}

/// Checks time steps whose softplus underflows to zero: an infinite rate must nevertheless clear the state. Also checks
/// factors beyond the range of f32, which must multiply the state.
pub(crate) fn steps_and_rates_beyond_f32(engines: &[Engine]) {
    let tokens = 6;
    let series = Series::tokens_first("u", [1, tokens, 1]).unwrap();
    let two = Coefficient::Token(Series::tokens_first("b", [1, tokens, 2]).unwrap());
    let run =
        |engine: Option<&Engine>, softplus: bool, delta: &[f32], a: &[f32], b: &[f32], past: [f32; 2]| {
            let mut spec = Spec::new(series, series, 2, two, two, series);
            spec.softplus = softplus;
            let problem = spec.check().unwrap();
            let (mut out, mut last) = ([UNWRITTEN; 6], [UNWRITTEN; 2]);
            let inputs = Inputs {
                u: Elements::F32(&[1.0; 6]),
                delta: Elements::F32(delta),
                a,
                b: Elements::F32(b),
                c: Elements::F32(&[1.0; 12]),
                d: None,
                z: None,
                delta_bias: None,
                past_state: Some(&past),
            };
            let mut outputs =
                Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: Some(&mut last) };
            match engine {
                None => scalar::run(&problem, &inputs, &mut outputs).unwrap(),
                Some(engine) => {
                    let plan = engine.selective_plan(&problem, &SelectiveOptions::default()).unwrap();
                    plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
                }
            }
            (out, last)
        };
    for engine in engines.iter().map(Some).chain([None]) {
        let what = engine.map_or("scalar".into(), |engine| engine.backend().to_string());
        let close = |found: f32, want: f64| (f64::from(found) - want).abs() <= 1e-5 * want.abs() + 1e-36;
        // Each token clears the second element, which then contains only the contribution of the token itself.
        let delta = [-91.0, -104.0, 0.5, -500.0, 1.0, -91.0];
        let (out, last) = run(engine, true, &delta, &[-1.0, f32::NEG_INFINITY], &[1.0; 12], [0.0, f32::NAN]);
        let step = |raw: f32| f64::from(raw).exp().ln_1p();
        let mut first = 0.0;
        for (found, raw) in out.iter().zip(delta) {
            first = first * (-step(raw)).exp() + step(raw);
            assert!(close(*found, first + step(raw)), "{what}: {out:?}");
        }
        assert!(last[1].abs() <= 1e-36, "{what}: {last:?}");
        // Softplus is exactly zero only for minus infinity, and zero times an infinite rate is NaN.
        let (out, _) =
            run(engine, true, &[f32::NEG_INFINITY; 6], &[-1.0, f32::NEG_INFINITY], &[1.0; 12], [0.0; 2]);
        assert!(out.iter().all(|x| x.is_nan()), "{what}: {out:?}");
        // A state of zero stays zero, and a state of 1e-30 grows to its exact value.
        let mut b = [0.0; 12];
        b[10] = 3.0;
        let delta = [1.0, -0.5, 1.0, 0.25, 1.0, 1.0];
        let (_, last) = run(engine, false, &delta, &[200.0, 95.0], &b, [0.0; 2]);
        assert_eq!(last, [3.0, 0.0], "{what}");
        let delta = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let (out, _) = run(engine, false, &delta, &[-1.0, 120.0], &[0.0; 12], [0.0, 1e-30]);
        let want = f64::from(1e-30f32) * 120f64.exp();
        assert!(out.iter().all(|x| close(*x, want)), "{what}: {out:?}, not {want:e}");
    }
}

#[test]
fn steps_and_rates_beyond_f32_follow_the_state() {
    steps_and_rates_beyond_f32(&cpu_engines(1));
}

#[test]
fn bad_input_is_refused_and_nothing_written() {
    let series = |shape| Series::tokens_first("x", shape).unwrap();
    let (u, token) = (series([1, 2, 6]), |n| Coefficient::Token(series([1, 2, n])));
    let spec = |n, b, c| Spec::new(u, u, n, b, c, u);
    let refused = |spec: Spec| spec.check().unwrap_err();
    let count = |found| E::Count { argument: "states", found, min: 1, max: MAX_STATES };
    assert_eq!(refused(spec(0, token(1), token(1))), count(0));
    assert_eq!(refused(spec(300, token(300), token(300))), count(300));
    let multiple =
        |argument, found, allowed, of| E::Multiple { argument, axis: "channels", found, allowed, of };
    assert_eq!(refused(spec(4, token(6), token(4))), multiple("b", 6, 4, "a"));
    assert_eq!(refused(spec(4, token(4), token(16))), multiple("u", 6, 4, "b or c in groups"));
    assert_eq!(refused(spec(4, token(4), token(0))), E::Zero { argument: "c", axis: "channels" });
    let mut gated = spec(4, token(4), Coefficient::Channel);
    gated.z = Some(series([1, 2, 5]));
    let mismatch = E::Mismatch { argument: "z", axis: "channels", found: 5, allowed: 6, of: "u" };
    assert_eq!(refused(gated), mismatch);
    let problem = spec(4, token(4), Coefficient::Channel).check().unwrap();
    let (u, b, c) = ([0.0; 12], [0.0; 8], [0.0; 24]);
    let good = Inputs {
        u: Elements::F32(&u),
        delta: Elements::F32(&u),
        a: &c,
        b: Elements::F32(&b),
        c: Elements::F32(&c),
        d: None,
        z: None,
        delta_bias: None,
        past_state: None,
    };
    for engine in cpu_engines(1) {
        for (inputs, error) in [
            (Inputs { a: &c[1..], ..good }, E::Short { argument: "a", found: 23, needed: 24 }),
            (Inputs { c: Elements::F32(&b), ..good }, E::Short { argument: "c", found: 8, needed: 24 }),
            (Inputs { d: Some(&b[..5]), ..good }, E::Short { argument: "d", found: 5, needed: 6 }),
            (
                Inputs { z: Some(Elements::F32(&u)), ..good },
                E::Needs { argument: "z", other: "its shape in the problem" },
            ),
        ] {
            let mut out = [UNWRITTEN; 12];
            let plan = engine.selective_plan(&problem, &SelectiveOptions::default()).unwrap();
            let outputs = Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
            let refused = plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).err();
            assert_eq!(refused, Some(BindError::Problem(error)));
            assert_eq!(out, [UNWRITTEN; 12]);
        }
    }
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    let engines = engines(2);
    for (seed, shape) in (0..).zip([[1, 1, 64], [1, 1, 3], [1, 9, 1], [2, 1, 1]]) {
        for (order, turn) in
            Order::ALL.into_iter().flat_map(|order| (0..TURNS).map(move |turn| (order, turn)))
        {
            let params =
                Params { orders: [order; 5], past: true, reverse: turn < 2, ..Params::mamba(shape, 16) };
            let mut case = Case::new(params, seed);
            let bits = |case: &Case| engines.iter().map(|e| case.engine(e).bits()).collect::<Vec<_>>();
            let want = bits(&case);
            let (mut spec, far) = (*case.problem.spec(), |series| far_series(series, turn));
            [spec.u, spec.delta, spec.out] = [spec.u, spec.delta, spec.out].map(far);
            spec.z = spec.z.map(far);
            for coefficient in [&mut spec.b, &mut spec.c] {
                if let Coefficient::Token(series) = coefficient {
                    *series = far(*series);
                }
            }
            case.problem = spec.check().unwrap();
            assert_eq!(bits(&case), want, "{params:?}");
        }
    }
}
