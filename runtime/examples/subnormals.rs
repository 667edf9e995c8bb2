//! Measures the cost of small values under sharp scores: the time of calls whose values are small, divided by the time
//! of calls with ordinary values.
//!
//! `cargo run --release -p elsa-runtime --example subnormals`

use elsa_core::attention::{Inputs, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::random::noise;
use elsa_core::view::{Layout, View};
use elsa_runtime::{Backend, Engine, EngineOptions, PlanOptions};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let backend: Option<Backend> = std::env::args().nth(1).map(|name| name.parse()).transpose()?;
    let engine = Engine::new(&EngineOptions::default().backend(backend).threads(1))?;
    println!("{}", engine.kernel());
    let [tokens, dim] = [2048, 64];
    for queries in [tokens, 1] {
        let of = |n| View::dense("x", Layout::Bhnd, &[1, n, dim], None);
        let (few, all) = (of(queries)?, of(tokens)?);
        let plan =
            engine.plan(&Spec::new(DType::F32, few, all, all, few).check()?, &PlanOptions::default())?;
        let mut workspace = plan.workspace()?;
        for sharp in [1.0, 16.0] {
            let q: Vec<f32> = noise(1, few.count()).map(|x| x * sharp).collect();
            let k: Vec<f32> = noise(2, all.count()).map(|x| x * sharp).collect();
            let sizes = [1.0, 1e-4, 1e-8, 1e-10, 1e-20, 1e-30, 1e-37, 1e-38, 1e-40, 1e-44];
            let values: Vec<Vec<f32>> =
                sizes.iter().map(|size| noise(3, all.count()).map(|x| x * size).collect()).collect();
            let mut y = vec![0.0f32; few.count()];
            let mut times = vec![f64::INFINITY; sizes.len()];
            for _ in 0..10 {
                for (v, best) in values.iter().zip(&mut times) {
                    let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(v));
                    let mut bound =
                        plan.bind(inputs, Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?;
                    let start = Instant::now();
                    bound.run()?;
                    *best = best.min(start.elapsed().as_secs_f64());
                }
            }
            print!("{queries} queries, scores up to {:.0}: {:.3} ms", sharp * sharp * 8.0, times[0] * 1e3);
            for (size, time) in sizes.iter().zip(&times).skip(1) {
                print!(", {size:e} {:.2}", time / times[0]);
            }
            println!();
        }
    }
    Ok(())
}
