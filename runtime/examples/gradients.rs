//! Measures the time of the backward pass relative to that of the forward pass.
//!
//! `cargo run --release -p elsa-runtime --example gradients -- [HEADS,TOKENS,DIM]... [--causal] [--threads N] [--rounds N]`
//!
//! The two passes are measured alternately, and their ratio is formed within a round, because the machine may be
//! shared. The program prints the median of the ratios of all rounds, and the speed of the five matrix products,
//! computed from the median time. The forward pass also writes states, which the backward pass requires. `ELSA_BACKEND`
//! selects the back end.

#![forbid(unsafe_code)]

use elsa_core::attention::backward::{BackwardInputs, BackwardProblem, Gradients, Statistics};
use elsa_core::attention::{Alignment, Inputs, Outputs, Spec, StateOut};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::random;
use elsa_core::view::{Layout, View};
use elsa_runtime::{BackwardPlanOptions, Engine, EngineOptions, PlanOptions};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x.get(x.len() / 2).copied().unwrap_or(f64::NAN)
}

fn measure(
    engine: &Engine,
    [heads, tokens, dim]: [usize; 3],
    causal: Option<Alignment>,
    rounds: usize,
) -> Result<(), Failure> {
    let view = View::dense("q", Layout::Bhnd, &[heads, tokens, dim], None)?;
    let problem = Spec::new(DType::F32, view, view, view, view).causal(causal).check()?;
    let count = view.count();
    let [q, k, v, upstream] = [1, 2, 3, 4].map(|seed| random::noise(seed, count).collect::<Vec<f32>>());
    let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
    let plan = engine.plan(&problem, &PlanOptions::default())?;
    let backward = engine.backward_plan(&BackwardProblem::new(&problem)?, &BackwardPlanOptions::default())?;
    let (mut workspace, mut second) = (plan.workspace()?, backward.workspace()?);
    let [mut y, mut w, mut dq, mut dk, mut dv] = [(); 5].map(|()| vec![0.0f32; count]);
    let [mut m, mut s] = [(); 2].map(|()| vec![0.0f32; heads * tokens]);
    let (mut forward_times, mut backward_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=rounds {
        let mut outputs = Outputs::new(ElementsMut::F32(&mut y));
        outputs.state = Some(StateOut { m: &mut m, s: &mut s, w: &mut w });
        let mut bound = plan.bind(inputs, outputs, &mut workspace)?;
        let start = Instant::now();
        bound.run()?;
        let forward = start.elapsed().as_secs_f64();
        let inputs = BackwardInputs {
            forward: inputs,
            output: Elements::F32(&y),
            upstream: Elements::F32(&upstream),
            statistics: Statistics::State { m: &m, s: &s },
        };
        let gradients = Gradients { query: &mut dq, key: &mut dk, value: &mut dv };
        let mut bound = backward.bind(inputs, gradients, &mut second)?;
        let start = Instant::now();
        bound.run()?;
        let backward = start.elapsed().as_secs_f64();
        if round > 0 {
            forward_times.push(forward);
            backward_times.push(backward);
            ratios.push(backward / forward);
        }
    }
    let time = median(backward_times);
    let pairs = if causal.is_some() { tokens * (tokens + 1) / 2 } else { tokens * tokens };
    let products = 10.0 * (heads * pairs * dim) as f64;
    println!(
        "{heads},{tokens},{dim}: forward {:.3} ms, backward {:.3} ms, ratio {:.2}, {:.1} GFLOP/s, {} bytes, {} parts, {}",
        median(forward_times) * 1e3,
        time * 1e3,
        median(ratios),
        products / time / 1e9,
        backward.workspace_bytes(),
        backward.choice().parts,
        backward.kernel()
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let (mut shapes, mut causal, mut threads, mut rounds) = (Vec::new(), None, None, 9);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--threads" => {
                threads = Some(words.next().ok_or("--threads: missing; allowed: a number")?.parse()?)
            }
            "--causal" => causal = Some(Alignment::BottomRight),
            "--rounds" => rounds = words.next().ok_or("--rounds: missing; allowed: a number")?.parse()?,
            shape => {
                let sizes: Vec<usize> = shape.split(',').map(str::parse).collect::<Result<_, _>>()?;
                shapes.push(<[usize; 3]>::try_from(sizes).map_err(|_| "shapes are HEADS,TOKENS,DIM")?);
            }
        }
    }
    if shapes.is_empty() {
        shapes =
            vec![[1, 196, 64], [8, 512, 64], [1, 1024, 64], [8, 1024, 64], [1, 4096, 64], [4, 1024, 128]];
    }
    let engine = Engine::new(&EngineOptions::default().threads(threads))?;
    println!("{} threads, {}", engine.threads(), engine.backend());
    shapes.into_iter().try_for_each(|shape| measure(&engine, shape, causal, rounds))
}
