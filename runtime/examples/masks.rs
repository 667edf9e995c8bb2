//! Measures the cost of masks: the time of calls with each kind of mask, relative to the call without one, on one
//! thread.
//!
//! `cargo run --release -p elsa-runtime --example masks -- [BACKEND [ROUNDS]]`
//!
//! In each round, calls with each kind of mask run for a slice of a few milliseconds. Each round starts with a
//! different kind of mask. The time of a slice is the processor time of the thread. Ratios are formed within a round;
//! their medians and quartiles are printed. Float masks are finite everywhere, four of five elements of boolean masks
//! are true, and padding ends each sequence at a different key.
#![forbid(unsafe_code)]

use elsa_core::attention::{Inputs, MaskElements, MaskKind, MaskView, Outputs, Spec};
use elsa_core::drift::percentile;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Backend, Bound, Engine, EngineOptions, PlanOptions};
use rustix::time::{ClockId, clock_gettime};

type Failure = Box<dyn std::error::Error>;

/// `batch, heads, tokens, d`.
const SHAPES: [[usize; 4]; 4] = [[1, 12, 197, 64], [64, 3, 49, 32], [4, 12, 256, 32], [1, 12, 900, 64]];
/// Duration of a slice in seconds.
const SLICE: f64 = 4e-3;

/// A kind of mask: its name, its axes, and its elements if they are boolean.
type Form<'a> = (&'a str, Vec<usize>, Option<&'a [u8]>);

/// Returns the processor time of this thread in seconds.
fn now() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Runs calls for one slice and returns the seconds per call.
fn slice(bound: &mut Bound<'_>) -> Result<f64, Failure> {
    bound.run()?;
    let (start, mut calls) = (now(), 0.0);
    loop {
        bound.run()?;
        calls += 1.0;
        let elapsed = now() - start;
        if elapsed >= SLICE {
            return Ok(elapsed / calls);
        }
    }
}

/// Returns the three quartiles of `x`.
fn quartiles(mut x: Vec<f64>) -> [f64; 3] {
    [25, 50, 75].map(|percent| percentile(&mut x, percent).unwrap_or(f64::NAN))
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let backend: Option<Backend> = arguments.next().map(|name| name.parse()).transpose()?;
    let rounds: usize = arguments.next().map_or(Ok(25), |rounds| rounds.parse())?;
    let engine = Engine::new(&EngineOptions::default().backend(backend).threads(1))?;
    println!(
        "{}, {rounds} rounds; medians (and quartiles) of the time over that of the plain call",
        engine.kernel()
    );
    for [batch, heads, tokens, dim] in SHAPES {
        let view = View::dense("q", Layout::Bhnd, &[batch, heads, tokens, dim], None)?;
        let x: Vec<f32> = (0..view.count()).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 500.0).collect();
        let full = batch * heads * tokens * tokens;
        let floats: Vec<f32> = (0..full).map(|i| (i * 31 % 7) as f32 * 0.1).collect();
        let whole = vec![1u8; full];
        let some: Vec<u8> = (0..full).map(|i| u8::from(i * 7919 % 5 != 0)).collect();
        let valid = |b: usize| tokens - tokens * (b + 1) / (2 * (batch + 1));
        let padding: Vec<u8> =
            (0..batch * tokens).map(|i| u8::from(i % tokens < valid(i / tokens))).collect();
        let forms: [Form<'_>; 10] = [
            ("float full", vec![batch, heads, tokens, tokens], None),
            ("float heads", vec![heads, tokens, tokens], None),
            ("float batch", vec![batch, 1, tokens, tokens], None),
            ("float all", vec![tokens, tokens], None),
            ("float row", vec![batch, 1, 1, tokens], None),
            ("bool full", vec![batch, heads, tokens, tokens], Some(&some)),
            ("bool batch", vec![batch, 1, tokens, tokens], Some(&some)),
            ("bool row", vec![batch, 1, 1, tokens], Some(&some)),
            ("padding", vec![batch, 1, 1, tokens], Some(&padding)),
            ("bool true", vec![batch, heads, tokens, tokens], Some(&whole)),
        ];
        let (mut plans, mut workspaces, mut given) = (Vec::new(), Vec::new(), Vec::new());
        for form in std::iter::once(None).chain(forms.iter().map(Some)) {
            let mut spec = Spec::new(DType::F32, view, view, view, view);
            let mut inputs = Inputs::new(Elements::F32(&x), Elements::F32(&x), Elements::F32(&x));
            if let Some((_, dims, elements)) = form {
                let kind = elements.map_or(MaskKind::Additive(DType::F32), |_| MaskKind::Bool);
                let mask = MaskView::dense(kind, dims)?;
                spec.mask = Some(mask);
                inputs.mask = Some(match elements {
                    Some(elements) => MaskElements::Bool(&elements[..mask.extent()]),
                    None => MaskElements::Additive(Elements::F32(&floats[..mask.extent()])),
                });
            }
            let plan = engine.plan(&spec.check()?, &PlanOptions::default())?;
            workspaces.push(plan.workspace()?);
            plans.push(plan);
            given.push(inputs);
        }
        let mut outputs = vec![vec![0.0f32; view.count()]; plans.len()];
        let mut bounds = Vec::new();
        for (((plan, workspace), y), inputs) in plans.iter().zip(&mut workspaces).zip(&mut outputs).zip(given)
        {
            bounds.push(plan.bind(inputs, Outputs::new(ElementsMut::F32(y)), workspace)?);
        }
        let mut times = vec![Vec::new(); bounds.len()];
        for round in 0..rounds {
            for turn in 0..bounds.len() {
                let at = (turn + round) % bounds.len();
                times[at].push(slice(&mut bounds[at])?);
            }
        }
        println!(
            "{batch} x {heads} x {tokens} x {dim}: plain {:.3} ms",
            quartiles(times[0].clone())[1] * 1e3
        );
        for ((name, ..), masked) in forms.iter().zip(&times[1..]) {
            let ratios = masked.iter().zip(&times[0]).map(|(masked, plain)| masked / plain).collect();
            let [low, middle, high] = quartiles(ratios);
            println!("  {name:<12}{middle:.2} ({low:.2}-{high:.2})");
        }
    }
    Ok(())
}
