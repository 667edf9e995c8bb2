//! Measures recurrences, selective scans and convolutions on one thread of this machine, in nanoseconds per token and
//! channel.
//!
//! `cargo run --release -p elsa-runtime --example series`. The two methods of a convolution are measured alternately,
//! so that noise affects both; the chooser should switch from one method to the other at the size at which the ratio of
//! their median times crosses one.

#![forbid(unsafe_code)]

use elsa_core::dtype::{Elements, ElementsMut};
use elsa_core::series::convolution::{self, Method};
use elsa_core::series::plan::method;
use elsa_core::series::selective::{self, Coefficient};
use elsa_core::series::{Series, recurrence};
use elsa_runtime::{
    ConvolutionOptions, ConvolutionPlan, Engine, EngineOptions, RecurrenceOptions, RunError, SelectiveOptions,
};
use std::error::Error;
use std::time::Instant;

/// Returns the median of `times` divided by the number of elements.
fn median(mut times: Vec<f64>, elements: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2] / elements as f64
}

/// Runs a call and returns its duration in nanoseconds.
fn timed(mut run: impl FnMut() -> Result<(), RunError>) -> Result<f64, RunError> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64() * 1e9)
}

/// Returns `n` numbers between −1/2 and 1/2.
fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.618_034).fract() - 0.5).collect()
}

fn convolutions(engine: &Engine) -> Result<(), Box<dyn Error>> {
    let channels = 64;
    println!("convolution, {channels} channels: tokens, taps, direct, fft, direct / fft, chosen");
    for (tokens, taps) in [
        (1024, 64),
        (1024, 256),
        (1024, 1024),
        (4096, 64),
        (4096, 256),
        (4096, 512),
        (4096, 1024),
        (4096, 4096),
        (16_384, 256),
        (16_384, 512),
        (16_384, 1024),
        (16_384, 2048),
    ] {
        let series = Series::tokens_first("u", [1, tokens, channels])?;
        let problem = convolution::Spec::new(series, taps, series).check()?;
        let plan = |method| {
            let options = ConvolutionOptions::default().method(method);
            engine.convolution_plan(&problem, &options)
        };
        let (direct, fft) = (plan(Method::Direct)?, plan(Method::Fft)?);
        let direct_kernel = direct.choice().map(|choice| choice.kernel);
        let (u, filter) = (numbers(tokens * channels), numbers(taps * channels));
        let mut out = vec![0.0; u.len()];
        let inputs =
            convolution::Inputs { u: Elements::F32(&u), filter: &filter, bias: None, past_state: None };
        let (mut workspace, mut other) = (direct.workspace()?, fft.workspace()?);
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..5 {
            let runs: [(&ConvolutionPlan, _); 2] = [(&direct, &mut workspace), (&fft, &mut other)];
            for ((plan, workspace), times) in runs.into_iter().zip(&mut times) {
                let outputs =
                    convolution::Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
                let mut bound = plan.bind(inputs, outputs, workspace)?;
                times.push(timed(|| bound.run().map(|_| ()))?);
            }
        }
        let [direct, fft] = times.map(|times| median(times, tokens * channels));
        let chosen = direct_kernel.map_or("none", |kernel| method(&problem, &kernel).name());
        println!("{tokens} {taps} {direct:.2} {fft:.2} {:.2} {chosen}", direct / fft);
    }
    Ok(())
}

fn recurrences(engine: &Engine) -> Result<(), Box<dyn Error>> {
    let (tokens, channels) = (4096, 512);
    for order in ["tokens first", "channels first"] {
        for gate in [recurrence::Gate::Factor, recurrence::Gate::Log] {
            let series = if order == "tokens first" {
                Series::tokens_first("b", [1, tokens, channels])?
            } else {
                Series::channels_first("b", [1, channels, tokens])?
            };
            let spec = recurrence::Spec::new(series, series, series).gate(gate);
            let plan = engine.recurrence_plan(&spec.check()?, &RecurrenceOptions::default())?;
            let (a, b) = (numbers(tokens * channels), numbers(tokens * channels));
            let mut out = vec![0.0; b.len()];
            let inputs = recurrence::Inputs { a: Elements::F32(&a), b: Elements::F32(&b), past_state: None };
            let outputs = recurrence::Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: None };
            let mut workspace = plan.workspace()?;
            let mut bound = plan.bind(inputs, outputs, &mut workspace)?;
            let times: Result<Vec<f64>, RunError> =
                (0..9).map(|_| timed(|| bound.run().map(|_| ()))).collect();
            println!("recurrence, {order}, {gate:?}: {:.3} ns", median(times?, tokens * channels));
        }
    }
    Ok(())
}

fn scans(engine: &Engine) -> Result<(), Box<dyn Error>> {
    for (tokens, channels, states) in [(1, 1536, 16), (2048, 384, 16), (2048, 384, 1)] {
        let series = Series::channels_first("u", [1, channels, tokens])?;
        let of_token = Coefficient::Token(Series::channels_first("b", [1, states, tokens])?);
        let mut spec = selective::Spec::new(series, series, states, of_token, of_token, series);
        (spec.z, spec.softplus) = (Some(series), true);
        let plan = engine.selective_plan(&spec.check()?, &SelectiveOptions::default())?;
        let (u, b) = (numbers(tokens * channels), numbers(states * tokens));
        let a: Vec<f32> = (0..channels * states).map(|i| -((i % states) as f32 + 1.0)).collect();
        let d = numbers(channels);
        let (mut out, mut state) = (vec![0.0; u.len()], vec![0.0; a.len()]);
        let inputs = selective::Inputs {
            u: Elements::F32(&u),
            delta: Elements::F32(&u),
            a: &a,
            b: Elements::F32(&b),
            c: Elements::F32(&b),
            d: Some(&d),
            z: Some(Elements::F32(&u)),
            delta_bias: Some(&d),
            past_state: None,
        };
        let outputs =
            selective::Outputs { out: Some(ElementsMut::F32(&mut out)), present_state: Some(&mut state) };
        let mut workspace = plan.workspace()?;
        let mut bound = plan.bind(inputs, outputs, &mut workspace)?;
        let times: Result<Vec<f64>, RunError> = (0..9).map(|_| timed(|| bound.run().map(|_| ()))).collect();
        println!(
            "selective scan, {tokens} tokens, {channels} channels, {states} states: {:.2} ns",
            median(times?, tokens * channels)
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(&EngineOptions::default().threads(1))?;
    println!("{}", engine.backend());
    recurrences(&engine)?;
    scans(&engine)?;
    convolutions(&engine)
}
