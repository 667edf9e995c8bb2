//! Runs recurrences, selective scans and convolutions with hostile shapes. Nothing may panic, and refusals must have a
//! message. Accepted problems are computed by the scalar code of core and by an engine, within the bound of the f64
//! oracle.
//!
//! The fuzzer's input determines the problem: its sizes are mostly small and consistent, with an occasional inconsistent
//! size or a size near the end of the address space. Gates are occasionally infinite, zero, tiny or NaN, and buffers are
//! occasionally too short.
#![no_main]

use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::random::Random;
use elsa_core::series::Series;
use elsa_core::series::bound::{Judged, Precision};
use elsa_core::series::convolution::{self, Method, Taps};
use elsa_core::series::recurrence::{self, Gate};
use elsa_core::series::selective::{self, Coefficient};
use elsa_core::view::View;
use elsa_oracle::cases::Data;
use elsa_runtime::{ConvolutionOptions, Engine, EngineOptions, RecurrenceOptions, SelectiveOptions};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

/// Number of elements in the largest buffer.
const SMALL: usize = 1 << 12;
/// Precision of the least accurate kernel.
const PRECISION: Precision = Precision { exp: 2e-7, exponent: 1.0, softplus: 4e-7, silu: 4e-7 };
/// Initial value of outputs, which no computation produces.
const UNWRITTEN: f32 = -24_576.0;

fuzz_target!(|bytes: &[u8]| {
    let mut u = Unstructured::new(bytes);
    // Input that ends early is not an error, only fewer choices.
    let _ = match u.int_in_range(0..=2u8) {
        Ok(0) => of_recurrence(&mut u),
        Ok(1) => of_selective(&mut u),
        _ => of_convolution(&mut u),
    };
});

/// Returns the best engine of the machine, with one thread.
fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let options = EngineOptions::default().threads(1);
        Engine::new(&options).expect("an engine of the CPU")
    })
}

/// Returns the value if it was accepted, otherwise `None`. Checks that the message of a refusal is one line in the form
/// `argument: limits`.
fn accepted<T>(made: std::result::Result<T, ArgumentError>) -> Option<T> {
    made.map_err(|error| {
        let text = error.to_string();
        assert!(text.contains(": ") && !text.contains('\n'), "{text}");
    })
    .ok()
}

/// Picks a size: mostly at most `most`, occasionally any number.
fn size(u: &mut Unstructured<'_>, most: usize) -> Result<usize> {
    Ok(match u.int_in_range(0..=63u8)? {
        0 => u.arbitrary()?,
        1 => *u.choose(&[usize::MAX, usize::MAX / 2, isize::MAX as usize / 4, 1 << 32, 1 << 16])?,
        _ => u.int_in_range(0..=most)?,
    })
}

/// Picks `n`, or occasionally another size.
fn about(u: &mut Unstructured<'_>, n: usize) -> Result<usize> {
    if u.ratio(1, 96)? { size(u, 9) } else { Ok(n) }
}

/// Picks a series; `None` if its layout is refused.
fn series(u: &mut Unstructured<'_>, [b, t, c]: [usize; 3]) -> Result<Option<Series>> {
    let [b, t, c] = [about(u, b)?, about(u, t)?, about(u, c)?];
    let made = match u.int_in_range(0..=7u8)? {
        0..=2 => Series::tokens_first("x", [b, t, c]),
        3..=5 => Series::channels_first("x", [b, c, t]),
        6 => View::new("x", [b, 1, t, c], [c.wrapping_add(3).wrapping_mul(t), 0, c.wrapping_add(3), 1])
            .map(Series::of),
        _ => {
            let strides = [size(u, 99)?, size(u, 99)?, size(u, 99)?, about(u, 1)?];
            View::new("x", [b, c, t, 1], strides).map(Series::of)
        }
    };
    Ok(accepted(made))
}

fn shape(u: &mut Unstructured<'_>) -> Result<[usize; 3]> {
    Ok([size(u, 2)?, size(u, 70)?, size(u, 9)?])
}

fn dtype(u: &mut Unstructured<'_>) -> Result<DType> {
    Ok(*u.choose(&[DType::F32, DType::F32, DType::F16, DType::Bf16])?)
}

/// Picks values in −1 .. 1, occasionally with some of `special` among them. Buffers may have one element too few or too
/// many.
fn values(u: &mut Unstructured<'_>, dtype: DType, n: usize, special: &[f32]) -> Result<Data> {
    let n = match u.int_in_range(0..=95u8)? {
        0 => n.saturating_sub(1),
        1..=9 => n + 1,
        _ => n,
    };
    let (mut random, strange) = (Random::new(u.arbitrary()?), u.ratio(1, 4)?);
    Ok(Data::of(dtype, n, |_| {
        let x = random.signed();
        if strange && random.below(32) == 0 {
            special.get(random.below(special.len().max(1))).copied().unwrap_or(x)
        } else {
            x
        }
    }))
}

fn numbers(u: &mut Unstructured<'_>, n: usize) -> Result<Vec<f32>> {
    let made = values(u, DType::F32, n, &[])?;
    let x = made.elements();
    Ok((0..x.len()).map(|i| x.get(i)).collect())
}

fn some<T>(
    u: &mut Unstructured<'_>,
    of: impl FnOnce(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Option<T>> {
    if u.arbitrary()? { of(u).map(Some) } else { Ok(None) }
}

/// Requires that the error of a value is within its bound.
fn near(what: &str, found: f32, exact: Judged, dtype: DType) {
    let distance = exact.distance(found, dtype);
    assert!(distance <= 1.0, "{what}: {found:e} for {exact:?}");
}

fn of_recurrence(u: &mut Unstructured<'_>) -> Result<()> {
    let shape = shape(u)?;
    let made = (series(u, shape)?, series(u, shape)?, series(u, shape)?);
    let (Some(a), Some(b), Some(out)) = made else { return Ok(()) };
    let mut spec = recurrence::Spec::new(a, b, out);
    spec.gate = *u.choose(&[Gate::Factor, Gate::Log])?;
    (spec.reverse, spec.in_place) = (u.arbitrary()?, u.ratio(1, 4)?);
    let Some(problem) = accepted(spec.check()) else { return Ok(()) };
    let sizes = [a.extent(), b.extent(), out.extent(), problem.states(), problem.tokens()];
    if sizes.into_iter().any(|n| n > SMALL) {
        return Ok(());
    }
    let (dtype, gate) = (dtype(u)?, dtype(u)?);
    let special: &[f32] = match spec.gate {
        Gate::Factor => &[0.0, -0.0, f32::NAN, 1e-39, 1.5],
        Gate::Log => &[f32::NEG_INFINITY, -1000.0, f32::NAN, 0.0, -86.9],
    };
    let (gates, addends) =
        (values(u, gate, a.extent(), special)?, values(u, dtype, b.extent(), &[f32::NAN])?);
    let past = some(u, |u| numbers(u, problem.states()))?;
    let options =
        RecurrenceOptions::default().parts(if u.ratio(1, 3)? { Some(u.int_in_range(0..=9)?) } else { None });
    let given = past.as_deref().filter(|_| !spec.in_place);
    let inputs = recurrence::Inputs { a: gates.elements(), b: addends.elements(), past_state: given };
    let before =
        past.clone().unwrap_or_else(|| vec![if spec.in_place { 0.5 } else { 0.0 }; problem.states()]);
    for by_engine in [false, true] {
        let mut found = Data::of(dtype, out.extent(), |_| UNWRITTEN);
        let mut present = if spec.in_place { before.clone() } else { vec![UNWRITTEN; problem.states()] };
        let mut outputs =
            recurrence::Outputs { out: Some(found.elements_mut()), present_state: Some(&mut present) };
        if accepted(problem.check_data(&inputs, &outputs)).is_none() {
            return Ok(());
        }
        if by_engine {
            let Ok(plan) = engine().recurrence_plan(&problem, &options) else { return Ok(()) };
            let mut workspace = plan.workspace().expect("little memory");
            let mut bound = plan.bind(inputs, outputs, &mut workspace).expect("checked data");
            bound.run().expect("a run on the CPU");
        } else {
            recurrence::scalar::run(&problem, &inputs, &mut outputs).expect("checked data");
        }
        // A problem without elements may have so many batches that not all can be visited.
        for batch in 0..problem.batch().min(SMALL) {
            for channel in 0..problem.channels() {
                let past = before[batch * problem.channels() + channel];
                let see = |token, exact| {
                    near("recurrence", found.elements().get(out.at(batch, token, channel)), exact, dtype);
                };
                let at = [batch, channel];
                recurrence::reference::states(&problem, &inputs, past, &PRECISION, dtype, at, see);
            }
        }
    }
    Ok(())
}

fn of_selective(u: &mut Unstructured<'_>) -> Result<()> {
    let shape = shape(u)?;
    let states = size(u, 6)?;
    let groups = if u.arbitrary()? { 2 } else { 1 };
    let of = [shape[0], shape[1], states.wrapping_mul(groups)];
    let made = (series(u, shape)?, series(u, shape)?, series(u, shape)?, series(u, of)?, series(u, of)?);
    let (Some(input), Some(delta), Some(out), Some(b), Some(c)) = made else { return Ok(()) };
    let coefficient = |u: &mut Unstructured<'_>, series| -> Result<Coefficient> {
        Ok(if u.ratio(1, 4)? { Coefficient::Channel } else { Coefficient::Token(series) })
    };
    let (of_b, of_c) = (coefficient(u, b)?, coefficient(u, c)?);
    let mut spec = selective::Spec::new(input, delta, states, of_b, of_c, out);
    spec.z = if u.arbitrary()? { series(u, shape)? } else { None };
    (spec.softplus, spec.reverse, spec.in_place) = (u.arbitrary()?, u.arbitrary()?, u.ratio(1, 4)?);
    let Some(problem) = accepted(spec.check()) else { return Ok(()) };
    let extents = [input, delta, out, b, c].map(|series| series.extent());
    let rest = [problem.state_values(), problem.channels().saturating_mul(states), problem.tokens()];
    if extents.into_iter().chain(rest).any(|n| n > SMALL) || spec.z.is_some_and(|z| z.extent() > SMALL) {
        return Ok(());
    }
    let (dtype, channels) = (dtype(u)?, problem.channels());
    let values_of = |u: &mut Unstructured<'_>, coefficient: &Coefficient| match coefficient {
        Coefficient::Token(series) => values(u, dtype, series.extent(), &[]),
        Coefficient::Channel => values(u, DType::F32, channels * states, &[]),
    };
    let [of_input, of_delta] = [
        values(u, dtype, input.extent(), &[f32::NAN])?,
        values(u, dtype, delta.extent(), &[f32::NAN, 40.0])?,
    ];
    let (b, c) = (values_of(u, &of_b)?, values_of(u, &of_c)?);
    let rates: Vec<f32> = numbers(u, channels * states)?.iter().map(|x| -x.abs()).collect();
    let z = spec.z.map(|z| values(u, dtype, z.extent(), &[])).transpose()?;
    let (d, bias) = (some(u, |u| numbers(u, channels))?, some(u, |u| numbers(u, channels))?);
    let past = some(u, |u| numbers(u, problem.state_values()))?;
    let inputs = selective::Inputs {
        u: of_input.elements(),
        delta: of_delta.elements(),
        a: &rates,
        b: b.elements(),
        c: c.elements(),
        d: d.as_deref(),
        z: z.as_ref().map(Data::elements),
        delta_bias: bias.as_deref(),
        past_state: past.as_deref().filter(|_| !spec.in_place),
    };
    let before = past.clone().unwrap_or_else(|| vec![0.0; problem.state_values()]);
    for by_engine in [false, true] {
        let mut found = Data::of(dtype, out.extent(), |_| UNWRITTEN);
        let mut present = before.clone();
        let mut outputs =
            selective::Outputs { out: Some(found.elements_mut()), present_state: Some(&mut present) };
        if accepted(problem.check_data(&inputs, &outputs)).is_none() {
            return Ok(());
        }
        if by_engine {
            let plan = engine().selective_plan(&problem, &SelectiveOptions::default());
            let Ok(plan) = plan else { return Ok(()) };
            let mut workspace = plan.workspace().expect("little memory");
            let mut bound = plan.bind(inputs, outputs, &mut workspace).expect("checked data");
            bound.run().expect("a run on the CPU");
        } else {
            selective::scalar::run(&problem, &inputs, &mut outputs).expect("checked data");
        }
        // A problem without elements may have so many batches that not all can be visited.
        for batch in 0..problem.batch().min(SMALL) {
            for channel in 0..channels {
                let first = (batch * channels + channel) * states;
                let (past, at) = (&before[first..first + states], [batch, channel]);
                let mut last = vec![Judged { value: 0.0, bound: 0.0 }; states];
                let see = |token, exact| {
                    near("selective", found.elements().get(out.at(batch, token, channel)), exact, dtype);
                };
                let last_of = &mut last;
                selective::reference::outputs(&problem, &inputs, past, &PRECISION, dtype, at, last_of, see);
                if problem.tokens() > 0 {
                    for (found, exact) in present[first..].iter().zip(last) {
                        near("last state", *found, exact, DType::F32);
                    }
                }
            }
        }
    }
    Ok(())
}

fn of_convolution(u: &mut Unstructured<'_>) -> Result<()> {
    let shape = shape(u)?;
    let (Some(input), Some(out)) = (series(u, shape)?, series(u, shape)?) else { return Ok(()) };
    let mut spec = convolution::Spec::new(input, size(u, 80)?, out);
    (spec.shared, spec.order) = (u.arbitrary()?, *u.choose(&[Taps::NewestFirst, Taps::NewestLast])?);
    (spec.silu, spec.reverse, spec.in_place) = (u.arbitrary()?, u.arbitrary()?, u.ratio(1, 4)?);
    let Some(problem) = accepted(spec.check()) else { return Ok(()) };
    let sizes = [input.extent(), out.extent(), problem.weights(), problem.states(), problem.tokens()];
    if sizes.into_iter().chain([spec.taps, problem.channels()]).any(|n| n > SMALL) {
        return Ok(());
    }
    let (dtype, channels) = (dtype(u)?, problem.channels());
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let (data, filter) = (values(u, dtype, input.extent(), &special)?, numbers(u, problem.weights())?);
    let bias = some(u, |u| numbers(u, channels))?;
    let past = some(u, |u| numbers(u, problem.states()))?;
    let method = *u.choose(&Method::ALL)?;
    let inputs = convolution::Inputs {
        u: data.elements(),
        filter: &filter,
        bias: bias.as_deref(),
        past_state: past.as_deref().filter(|_| !spec.in_place),
    };
    let before = past.clone().unwrap_or_else(|| vec![0.0; problem.states()]);
    for by_engine in [false, true] {
        let mut found = Data::of(dtype, out.extent(), |_| UNWRITTEN);
        let mut present = before.clone();
        let mut outputs =
            convolution::Outputs { out: Some(found.elements_mut()), present_state: Some(&mut present) };
        if accepted(problem.check_data(&inputs, &outputs)).is_none() {
            return Ok(());
        }
        if by_engine {
            let options = ConvolutionOptions::default().method(method);
            let Ok(plan) = engine().convolution_plan(&problem, &options) else { return Ok(()) };
            let mut workspace = plan.workspace().expect("little memory");
            let mut bound = plan.bind(inputs, outputs, &mut workspace).expect("checked data");
            bound.run().expect("a run on the CPU");
        } else {
            convolution::scalar::run(&problem, &inputs, &mut outputs).expect("checked data");
        }
        let by = if by_engine { method } else { Method::Direct };
        let history = problem.history();
        // A problem without elements may have so many batches that not all can be visited.
        for batch in 0..problem.batch().min(SMALL) {
            for channel in 0..channels {
                let first = (batch * channels + channel) * history;
                let (past, at) = (&before[first..first + history], [batch, channel]);
                let see = |token, exact| {
                    near("convolution", found.elements().get(out.at(batch, token, channel)), exact, dtype);
                };
                convolution::reference::outputs(&problem, &inputs, past, by, &PRECISION, dtype, at, see);
            }
        }
    }
    Ok(())
}
