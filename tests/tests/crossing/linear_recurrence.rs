//! Compares the first-order recurrence with a recurrence in f64, on the scalar fallback and on every CPU back end. Also
//! compares the f64 recurrence with the definition.

use elsa_core::argument::ArgumentError as E;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::monoid::{Monoid, associativity_holds, identity_holds};
use elsa_core::plan::ChooseError;
use elsa_core::random::Random;
use elsa_core::scan::{Scan, ScanForm};
use elsa_core::series::bound::{Judged, Precision};
use elsa_core::series::recurrence::{Gate, Inputs, Map, Outputs, Problem, Spec, reference, scalar};
use elsa_core::series::selective::{self, Coefficient};
use elsa_core::series::{Series, convolution, token_of};
use elsa_core::view::View;
use elsa_oracle::SLOW;
use elsa_oracle::cases::Data;
use elsa_oracle::random::seeded;
use elsa_oracle::series::{Order, SeriesOutputs, UNWRITTEN, check, normals, precision};
use elsa_oracle::strides::{TURNS, far_series};
use elsa_oracle::{cpu_engines, engines};
use elsa_runtime::{BindError, Engine, PlanError, RecurrenceOptions, RecurrencePlan, Report, RunError};

/// A recurrence problem with its tensors.
pub(crate) struct Case {
    pub(crate) problem: Problem,
    a: Data,
    b: Data,
    past: Option<Vec<f32>>,
    dtype: DType,
}

impl Case {
    /// Draws a case: `shape` is batch, tokens and channels; `special` adds infinities, NaNs and large numbers to the
    /// gates.
    pub(crate) fn new(
        seed: u64,
        shape: [usize; 3],
        [order_a, order_b, order_out]: [Order; 3],
        dtype: DType,
        gate: Gate,
        special: bool,
    ) -> Case {
        let mut r = seeded(seed);
        let (a, b) = (order_a.series(shape), order_b.series(shape));
        let mut spec = Spec::new(a, b, order_out.series(shape));
        spec.gate = gate;
        spec.reverse = seed % 3 == 1;
        spec.in_place = seed % 4 == 2;
        let gates = |r: &mut Random| {
            if special && r.below(9) == 0 {
                return [f32::NEG_INFINITY, -1000.0, f32::NAN, 1.0, 0.0, -0.0, 1e-39, -86.95][r.below(8)];
            }
            match gate {
                Gate::Log => -0.3 * r.normal().abs(),
                Gate::Factor => 0.7 * r.normal(),
            }
        };
        let past =
            (!seed.is_multiple_of(5) || spec.in_place).then(|| normals(&mut r, shape[0] * shape[2], 2.0));
        Case {
            problem: spec.check().unwrap(),
            // As a factor, minus infinity has no special meaning, so it is replaced by zero.
            a: Data::of(dtype, a.extent(), |_| match gates(&mut r) {
                x if gate == Gate::Factor && x == f32::NEG_INFINITY => 0.0,
                x => x,
            }),
            b: Data::of(dtype, b.extent(), |_| r.normal()),
            past,
            dtype,
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        let past_state = self.past.as_deref().filter(|_| !self.problem.spec().in_place);
        Inputs { a: self.a.elements(), b: self.b.elements(), past_state }
    }

    fn room(&self) -> SeriesOutputs {
        let present = match &self.past {
            Some(past) if self.problem.spec().in_place => past.clone(),
            _ => vec![UNWRITTEN; self.problem.states()],
        };
        SeriesOutputs::unwritten(self.dtype, self.problem.spec().out.extent(), present)
    }

    fn scalar(&self) -> SeriesOutputs {
        let mut found = self.room();
        scalar::run(&self.problem, &self.inputs(), &mut found.outputs()).unwrap();
        found
    }

    pub(crate) fn engine(&self, engine: &Engine, parts: Option<usize>) -> SeriesOutputs {
        let options = RecurrenceOptions::default().all_workers(true).parts(parts);
        self.report(&engine.recurrence_plan(&self.problem, &options).unwrap()).0
    }

    /// Runs a plan and returns its outputs and report.
    pub(crate) fn report(&self, plan: &RecurrencePlan) -> (SeriesOutputs, Report) {
        self.run(plan).unwrap()
    }

    /// Runs a plan and returns its outputs and report, or the reason why the run ended early.
    pub(crate) fn run(&self, plan: &RecurrencePlan) -> Result<(SeriesOutputs, Report), RunError> {
        let mut found = self.room();
        let mut workspace = plan.workspace().unwrap();
        let report = plan.bind(self.inputs(), found.outputs(), &mut workspace).unwrap().run()?;
        Ok((found, report))
    }

    /// Compares the outputs of a call with f64; returns the largest ratio of error to bound.
    pub(crate) fn check(&self, what: &str, found: &SeriesOutputs, precision: &Precision) -> f64 {
        let (p, mut worst) = (&self.problem, 0.0);
        for batch in 0..p.batch() {
            for channel in 0..p.channels() {
                let state = batch * p.channels() + channel;
                let past = self.past.as_ref().map_or(0.0, |past| past[state]);
                let mut last = Judged { value: past.into(), bound: 0.0 };
                let at = [batch, channel];
                reference::states(p, &self.inputs(), past, precision, self.dtype, at, |token, exact| {
                    let found = found.out.elements().get(p.spec().out.at(batch, token, channel));
                    let what = format!("{what}: sequence {batch}, token {token}, channel {channel}");
                    check(&what, found, exact, self.dtype, &mut worst);
                });
                reference::states(p, &self.inputs(), past, precision, DType::F32, at, |_, exact| {
                    last = exact
                });
                if p.tokens() == 0 {
                    assert_eq!(found.present[state], past, "{what}: no token changes the state");
                } else {
                    check(&format!("{what}: last state"), found.present[state], last, DType::F32, &mut worst);
                }
            }
        }
        worst
    }
}

/// Precision of the least accurate kernel.
const PRECISION: Precision = Precision { exp: 4e-7, exponent: 2.2, softplus: 7e-7, silu: 7e-7 };

pub(crate) fn cases() -> Vec<Case> {
    let shapes: &[[usize; 3]] = if SLOW {
        &[[1, 5, 3], [2, 67, 4]]
    } else {
        &[[1, 0, 3], [1, 1, 1], [2, 5, 3], [1, 65, 33], [2, 63, 34], [1, 130, 6], [1, 200, 64]]
    };
    let dtypes = [DType::F32, DType::F32, DType::F16, DType::Bf16];
    let mut all = Vec::new();
    let mut seed = 0;
    for shape in shapes {
        for gate in [Gate::Log, Gate::Factor] {
            for special in [false, true] {
                for shift in 0..4 {
                    let order = |i: usize| Order::ALL[(i + shift + seed as usize / 16) % 4];
                    let orders = [order(0), order(1 + shift), order(3)];
                    all.push(Case::new(seed, *shape, orders, dtypes[shift], gate, special));
                    seed += 1;
                }
            }
        }
    }
    all
}

#[test]
fn every_back_end_matches_f64_in_every_form() {
    let engines = cpu_engines(2);
    for (number, case) in cases().iter().enumerate() {
        case.check(&format!("case {number}: scalar"), &case.scalar(), &scalar::PRECISION);
        for engine in &engines {
            for parts in [None, Some(2), Some(5)] {
                let what = format!("case {number}: {}, parts {parts:?}", engine.backend());
                case.check(&what, &case.engine(engine, parts), &precision(engine));
            }
        }
    }
}

/// Checks that the f64 recurrence equals the sum of all addends, each multiplied by the later factors.
#[test]
fn the_oracle_is_the_sum_over_earlier_tokens() {
    let case = Case::new(3, [1, 40, 2], [Order::TokensFirst; 3], DType::F32, Gate::Log, false);
    let (p, s) = (&case.problem, case.problem.spec());
    for channel in 0..2 {
        let past = case.past.as_ref().map_or(0.0, |past| past[channel]);
        let decay =
            |i: usize| f64::from(case.a.elements().get(s.a.at(0, token_of(i, 40, s.reverse), channel)));
        let added =
            |i: usize| f64::from(case.b.elements().get(s.b.at(0, token_of(i, 40, s.reverse), channel)));
        let mut step = 0;
        reference::states(p, &case.inputs(), past, &Precision::LIBM, DType::F32, [0, channel], |_, exact| {
            let from = |j: usize| (j..=step).map(decay).sum::<f64>().exp();
            let sum: f64 =
                f64::from(past) * from(0) + (0..=step).map(|j| from(j + 1) * added(j)).sum::<f64>();
            assert!((exact.value - sum).abs() <= 1e-13 * (1.0 + sum.abs()), "{exact:?} for {sum}");
            assert!(exact.bound <= 1e-4 * (1.0 + sum.abs()));
            step += 1;
        });
        assert_eq!(step, 40);
    }
}

/// Checks that every scan algorithm of core, applied to the maps of the tokens, yields the states.
#[test]
fn every_scan_of_tokens_gives_the_states() {
    let n = if SLOW { 70 } else { 300 };
    for (seed, special) in [(0, false), (5, true)] {
        let case = Case::new(seed, [1, n, 1], [Order::TokensFirst; 3], DType::F32, Gate::Factor, special);
        let p = &case.problem;
        let of = |i: usize| {
            let token = token_of(i, n, p.spec().reverse);
            Map { a: case.a.elements().get(token), b: case.b.elements().get(token) }
        };
        for scan in Scan::ALL.into_iter().filter(|scan| scan.depth(ScanForm::Inclusive, n).is_some()) {
            let mut maps: Vec<Map> = (0..n).map(of).collect();
            let mut scratch = vec![Map::identity(); scan.scratch_len(ScanForm::Inclusive, n)];
            scan.inclusive(&mut maps, &mut scratch).unwrap();
            // Each level of the tree rounds the result of the preceding part once more.
            let depth = scan.depth(ScanForm::Inclusive, n).unwrap() as f64;
            let (mut worst, mut step) = (0.0, 0);
            reference::states(p, &case.inputs(), 0.0, &Precision::LIBM, DType::F32, [0, 0], |_, exact| {
                let exact = Judged { bound: (1.0 + depth) * exact.bound, ..exact };
                check(scan.name(), maps[step].of(0.0), exact, DType::F32, &mut worst);
                step += 1;
            });
        }
    }
    // The laws of a monoid hold exactly for maps whose arithmetic is exact.
    let of = |a, b| Map { a, b };
    let some = [of(0.5, 3.0), of(-2.0, 0.25), of(0.0, 1.0), of(4.0, -8.0), Map::identity()];
    for x in &some {
        assert!(identity_holds(x, |a, b| a == b), "{x:?}");
        for (y, z) in some.iter().flat_map(|y| some.iter().map(move |z| (y, z))) {
            assert!(associativity_holds(x, y, z, |a, b| a == b), "{x:?} {y:?} {z:?}");
        }
    }
    let cleared = of(f32::NAN, f32::INFINITY).combine(&of(0.0, 2.0));
    assert_eq!(cleared, of(0.0, 2.0), "a factor of zero clears what came before");
}

/// Checks that bits do not depend on the number of threads, on neighbouring sequences or on a second run.
#[test]
fn bits_depend_on_problem_and_parts_alone() {
    let shape = if SLOW { [2, 70, 20] } else { [3, 300, 70] };
    let case = Case::new(4, shape, [Order::Gaps; 3], DType::F32, Gate::Log, true);
    for parts in [None, Some(4)] {
        for (one, many) in cpu_engines(1).iter().zip(&cpu_engines(3)) {
            let (first, second) = (case.engine(one, parts), case.engine(many, parts));
            assert_eq!(first.out.bits(), second.out.bits(), "{} {parts:?}", one.backend());
            assert_eq!(first.out.bits(), case.engine(many, parts).out.bits());
            // The last sequence is also computed alone.
            let mut spec = *case.problem.spec();
            let alone = |series: Series| {
                let view = *series.view();
                let [_, h, t, d] = view.shape();
                Series::of(View::new("x", [1, h, t, d], view.strides()).unwrap())
            };
            let start = (shape[0] - 1) * spec.b.view().strides()[0];
            (spec.a, spec.b, spec.out) = (alone(spec.a), alone(spec.b), alone(spec.out));
            let of = |x: &Data| Data::of(DType::F32, spec.b.extent(), |i| x.elements().get(start + i));
            let problem = spec.check().unwrap();
            let past = case.past.as_ref().map(|past| past[(shape[0] - 1) * shape[2]..].to_vec());
            let last = Case { problem, a: of(&case.a), b: of(&case.b), past, dtype: DType::F32 };
            let found = last.engine(many, parts);
            for token in 0..shape[1] {
                for channel in 0..shape[2] {
                    let at = spec.out.at(0, token, channel);
                    let [x, y] = [found.out.elements().get(at), first.out.elements().get(start + at)];
                    assert_eq!(x.to_bits(), y.to_bits());
                }
            }
        }
    }
}

/// Checks that a stream that is cut anywhere and continued from its state keeps its bits, even one token at a time.
#[test]
fn states_continue_a_stream() {
    let (n, c) = (if SLOW { 12 } else { 150 }, 5);
    let mut r = seeded(8);
    let (a, b) = (normals(&mut r, n * c, 0.4), normals(&mut r, n * c, 1.0));
    let run = |engine: &Engine, from: usize, to: usize, state: &mut [f32], out: &mut [f32]| {
        let series = Series::tokens_first("b", [1, to - from, c]).unwrap();
        let mut spec = Spec::new(series, series, series);
        (spec.gate, spec.in_place) = (Gate::Log, true);
        let plan = engine.recurrence_plan(&spec.check().unwrap(), &RecurrenceOptions::default()).unwrap();
        let part = |x| Elements::F32(x);
        let inputs =
            Inputs { a: part(&a[from * c..to * c]), b: part(&b[from * c..to * c]), past_state: None };
        let out = Some(ElementsMut::F32(&mut out[from * c..to * c]));
        let mut workspace = plan.workspace().unwrap();
        let outputs = Outputs { out, present_state: Some(state) };
        plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
    };
    for engine in cpu_engines(1) {
        let (mut whole, mut state) = (vec![0.0; n * c], vec![0.5; c]);
        run(&engine, 0, n, &mut state, &mut whole);
        for each in [1, 7] {
            let (mut pieces, mut carried) = (vec![0.0; n * c], vec![0.5; c]);
            for from in (0..n).step_by(each) {
                run(&engine, from, n.min(from + each), &mut carried, &mut pieces);
            }
            assert_eq!(pieces, whole, "{} by {each}", engine.backend());
            assert_eq!(carried, state);
        }
    }
}

/// Runs a recurrence of one channel with factors `a` and addends `b` on all engines, in one part and in four, and calls
/// `see` with the name and the outputs of each run.
pub(crate) fn of_one_channel(
    engines: &[Engine],
    a: &[f32],
    b: &[f32],
    gate: Gate,
    past: f32,
    mut see: impl FnMut(&str, &[f32]),
) {
    let series = Series::tokens_first("b", [1, a.len(), 1]).unwrap();
    let mut spec = Spec::new(series, series, series);
    spec.gate = gate;
    let problem = spec.check().unwrap();
    let past = [past];
    let inputs = Inputs { a: Elements::F32(a), b: Elements::F32(b), past_state: Some(&past) };
    for engine in engines {
        for parts in [None, Some(4)] {
            let mut out = vec![UNWRITTEN; a.len()];
            let options = RecurrenceOptions::default().parts(parts);
            let plan = engine.recurrence_plan(&problem, &options).unwrap();
            let outputs = Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
            plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
            see(&format!("{} {parts:?}", engine.backend()), &out);
        }
    }
}

#[test]
fn hard_gates_do_what_they_say() {
    hard_gates(&cpu_engines(2));
}

/// Checks gates that are zero or NaN, and products of factors beyond the range of f32.
pub(crate) fn hard_gates(engines: &[Engine]) {
    // A logarithm of minus infinity, or a factor of zero, clears a state that is not finite.
    let b = [1.0, f32::INFINITY, 2.0, f32::NAN, 3.0, 4.0, 5.0, 6.0];
    let off = f32::NEG_INFINITY;
    let want = [2.0, f32::INFINITY, 2.0, f32::NAN, 3.0, 7.0, 12.0, 6.0];
    for (gate, a) in [
        (Gate::Log, [0.0, 0.0, off, 0.0, off, 0.0, 0.0, -1000.0]),
        (Gate::Factor, [1., 1., 0., 1., 0., 1., 1., 0.]),
    ] {
        of_one_channel(engines, &a, &b, gate, 1.0, |what, out| {
            for (x, want) in out.iter().zip(want) {
                assert!(x.to_bits() == want.to_bits() || (x.is_nan() && want.is_nan()), "{what}: {out:?}");
            }
        });
    }
    // A NaN gate poisons from its token on.
    let mut gates = [0.0; 12];
    gates[5] = f32::NAN;
    of_one_channel(engines, &gates, &[1.0; 12], Gate::Log, 0.0, |what, out| {
        assert!(
            out[..5].iter().all(|x| x.is_finite()) && out[5..].iter().all(|x| x.is_nan()),
            "{what}: {out:?}"
        );
    });
    // The product of these factors leaves the range of f32, but a state that starts at zero or at 1e-30 does not.
    let large: Vec<f32> = (0..64).map(|i| if i % 16 < 8 { 1e5 } else { 1e-5 }).collect();
    for past in [0.0, 1e-30] {
        let mut added = [0.0; 64];
        added[36] = 3.0;
        of_one_channel(engines, &large, &added, Gate::Factor, past, |what, out| {
            let mut h = f64::from(past);
            for (i, x) in out.iter().enumerate() {
                h = h * f64::from(large[i]) + f64::from(added[i]);
                let error = (f64::from(*x) - h).abs();
                assert!(error <= 1e-5 * h.abs() || h > 3e38, "{what}: token {i}: {x:e} for {h:e}");
            }
        });
    }
}

/// Checks that a decaying state becomes exactly zero without being subnormal on the way.
#[test]
fn a_state_vanishes_before_it_is_subnormal() {
    vanishing_states(&cpu_engines(2));
}

/// Checks that infinity and NaN remain when a product of factors underflows to zero although no single factor is zero.
pub(crate) fn vanishing_products(engines: &[Engine]) {
    let mut case = Case::new(3, [1, 300, 40], [Order::TokensFirst; 3], DType::F32, Gate::Log, false);
    case.a = Data::of(DType::F32, case.a.elements().len(), |_| -20.0);
    for (what, x) in [("NaN", f32::NAN), ("infinity", f32::INFINITY)] {
        if let Some(past) = &mut case.past {
            past[1] = x;
        }
        // This addend is in the middle of a part.
        case.b.elements_mut().set(case.problem.spec().b.at(0, 90, 2), x);
        for engine in engines {
            for parts in [1, 2, 3, 7] {
                let found = case.engine(engine, Some(parts));
                case.check(&format!("{what}, {parts} parts, {}", engine.backend()), &found, &PRECISION);
                assert!(!found.present[1].is_finite() && !found.present[2].is_finite());
            }
        }
    }
}

#[test]
fn products_that_vanish_remove_nothing() {
    vanishing_products(&cpu_engines(2));
}

/// Checks states that decay below the smallest normal number.
pub(crate) fn vanishing_states(engines: &[Engine]) {
    let n = if SLOW { 200 } else { 1000 };
    of_one_channel(engines, &vec![0.75; n], &vec![0.0; n], Gate::Factor, 1e-20, |what, out| {
        assert!(out.iter().all(|x| *x == 0.0 || x.is_normal()), "{what}");
        assert!(out[0] > 0.0 && out[n - 1] == 0.0, "{what}");
    });
}

/// Measures the errors over 65,536 tokens, in one part and in several.
#[test]
fn long_sequences_keep_the_error_small() {
    let n = if SLOW { 600 } else { 65_536 };
    let mut case = Case::new(7, [1, n, 2], [Order::TokensFirst; 3], DType::F32, Gate::Log, false);
    let mut r = seeded(9);
    case.a = Data::of(DType::F32, 2 * n, |_| -1e-3 * r.unit() as f32);
    let (p, mut exact) = (&case.problem, Vec::new());
    for channel in 0..2 {
        let past = case.past.as_ref().map_or(0.0, |past| past[channel]);
        reference::states(p, &case.inputs(), past, &PRECISION, DType::F32, [0, channel], |token, judged| {
            exact.push((p.spec().out.at(0, token, channel), judged));
        });
    }
    for engine in cpu_engines(2) {
        for parts in [None, Some(16)] {
            let found = case.engine(&engine, parts);
            let (mut worst, mut error, mut size) = (0.0, 0.0, 0.0);
            for (at, exact) in &exact {
                let x = found.out.elements().get(*at);
                check("long", x, *exact, DType::F32, &mut worst);
                error += (f64::from(x) - exact.value).powi(2);
                size += exact.value.powi(2);
            }
            let relative = f64::sqrt(error / size);
            println!("{} {parts:?}: {relative:e} relative L2, {worst:e} of the bound", engine.backend());
            assert!(relative <= 2e-5, "{}: {relative:e}", engine.backend());
        }
    }
}

#[test]
fn bad_input_is_refused_and_nothing_written() {
    let series = |shape| Series::tokens_first("x", shape).unwrap();
    let (good, other) = (series([1, 4, 3]), series([1, 4, 2]));
    let mismatch = E::Mismatch { argument: "a", axis: "channels", found: 2, allowed: 3, of: "b" };
    assert_eq!(Spec::new(other, good, good).check().unwrap_err(), mismatch);
    let shared = Series::of(View::new("out", [1, 3, 4, 1], [0, 0, 1, 1]).unwrap());
    assert_eq!(Spec::new(good, good, shared).check().unwrap_err(), E::Overlap { argument: "out" });
    // No memory can hold these numbers of channels. The first problem is refused; the second has no tokens and is done
    // at once.
    let empty = |shape| Series::of(View::new("x", shape, [0, 0, 0, 1]).unwrap());
    let beyond = empty([0, 1 << 40, 5, 1 << 40]);
    assert!(matches!(Spec::new(beyond, beyond, beyond).check(), Err(E::TooLarge { .. })));
    let many = empty([1, 1 << 58, 0, 1]);
    let nothing = Spec::new(many, many, many).check().unwrap();
    let mut spec = Spec::new(good, good, good);
    let problem = spec.check().unwrap();
    spec.in_place = true;
    let in_place = spec.check().unwrap();
    let (a, b) = ([0.5; 12], [1.0; 11]);
    let (full, past) = (Elements::F32(&a), [0.0; 3]);
    let inputs = |b, past_state| Inputs { a: full, b, past_state };
    for engine in cpu_engines(1) {
        let bind = |problem: &Problem, inputs: Inputs<'_>, wanted: bool, state: Option<usize>| {
            let (mut out, mut present) = ([UNWRITTEN; 12], [UNWRITTEN; 3]);
            let plan = engine.recurrence_plan(problem, &RecurrenceOptions::default()).unwrap();
            let outputs = Outputs {
                out: wanted.then_some(ElementsMut::F32(&mut out)),
                present_state: state.map(|n| &mut present[..n]),
            };
            let mut workspace = plan.workspace().unwrap();
            let bound = plan.bind(inputs, outputs, &mut workspace);
            let refused = bound.map(|mut bound| bound.run().unwrap()).err();
            assert!(out.iter().chain(&present).all(|x| *x == UNWRITTEN));
            refused
        };
        assert_eq!(bind(&nothing, inputs(full, None), true, None), None);
        let named = |e: E| Some(BindError::Problem(e));
        let short = |argument, found, needed| named(E::Short { argument, found, needed });
        assert_eq!(bind(&problem, inputs(Elements::F32(&b), None), true, None), short("b", 11, 12));
        let found = bind(&problem, inputs(full, Some(&past[..2])), true, None);
        assert_eq!(found, short("past_state", 2, 3));
        assert_eq!(bind(&problem, inputs(full, None), true, Some(2)), short("present_state", 2, 3));
        assert_eq!(bind(&problem, inputs(full, None), false, None), named(E::NoOutput { argument: "out" }));
        let conflict = E::Conflict { argument: "past_state", other: "in_place" };
        assert_eq!(bind(&in_place, inputs(full, Some(&past)), true, Some(3)), named(conflict));
        let needs = E::Needs { argument: "in_place", other: "present_state" };
        assert_eq!(bind(&in_place, inputs(full, None), true, None), named(needs));
        for parts in [0, 5000] {
            let options = RecurrenceOptions::default().parts(parts);
            let refused = engine.recurrence_plan(&problem, &options).unwrap_err();
            assert!(
                matches!(refused, PlanError::Refused(ChooseError::Parts { found, .. }) if found == parts)
            );
        }
        let options = RecurrenceOptions::default().budget(100);
        let refused = engine.recurrence_plan(&problem, &options).unwrap_err();
        assert!(matches!(refused, PlanError::Refused(ChooseError::Budget { budget: 100, .. })), "{refused}");
    }
}

#[test]
fn any_number_of_batches_without_elements_ends_at_once() {
    for shape in [[1 << 40, 0, 2], [1 << 40, 3, 0]] {
        let series = Series::tokens_first("u", shape).unwrap();
        let problem = Spec::new(series, series, series).check().unwrap();
        let inputs = Inputs { a: Elements::F32(&[]), b: Elements::F32(&[]), past_state: None };
        let (mut none, mut more) = ([], [0.0]);
        let mut outputs = Outputs {
            out: Some(ElementsMut::F32(&mut none)),
            present_state: (shape[2] == 0).then_some(&mut more[..]),
        };
        scalar::run(&problem, &inputs, &mut outputs).unwrap();
        for engine in cpu_engines(1) {
            let plan = engine.recurrence_plan(&problem, &RecurrenceOptions::default()).unwrap();
            let outputs = Outputs { out: Some(ElementsMut::F32(&mut none)), present_state: None };
            plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
        }
        let spec =
            selective::Spec::new(series, series, 1, Coefficient::Channel, Coefficient::Channel, series);
        let problem = spec.check().unwrap();
        let rates = vec![-1.0; shape[2]];
        let inputs = selective::Inputs {
            u: Elements::F32(&[]),
            delta: Elements::F32(&[]),
            a: &rates,
            b: Elements::F32(&rates),
            c: Elements::F32(&rates),
            d: None,
            z: None,
            delta_bias: None,
            past_state: None,
        };
        let out = ElementsMut::F32(&mut none);
        selective::scalar::run(
            &problem,
            &inputs,
            &mut selective::Outputs { out: Some(out), present_state: None },
        )
        .unwrap();
        let problem = convolution::Spec::new(series, 1, series).check().unwrap();
        let inputs =
            convolution::Inputs { u: Elements::F32(&[]), filter: &rates, bias: None, past_state: None };
        let out = ElementsMut::F32(&mut none);
        convolution::scalar::run(
            &problem,
            &inputs,
            &mut convolution::Outputs { out: Some(out), present_state: None },
        )
        .unwrap();
    }
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    let engines = engines(2);
    // Seeds 1 and 4 reverse the tokens.
    for (seed, shape) in (0..).zip([[1, 1, 5], [1, 1, 64], [1, 9, 1], [2, 1, 1], [1, 1, 64]]) {
        for (order, turn) in
            Order::ALL.into_iter().flat_map(|order| (0..TURNS).map(move |turn| (order, turn)))
        {
            let mut case = Case::new(seed, shape, [order; 3], DType::F32, Gate::Log, false);
            let bits = |case: &Case| engines.iter().map(|e| case.engine(e, None).bits()).collect::<Vec<_>>();
            let want = bits(&case);
            let mut spec = *case.problem.spec();
            [spec.a, spec.b, spec.out] = [spec.a, spec.b, spec.out].map(|series| far_series(series, turn));
            case.problem = spec.check().unwrap();
            assert_eq!(bits(&case), want, "{spec:?}");
        }
    }
}
