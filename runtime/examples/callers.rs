//! Measures how many calls per second one to four callers complete. The callers either share one engine, or each caller
//! has its own engine. An engine has one thread or two.
//!
//! `cargo run --release -p elsa-runtime --example callers [heads,queries,keys,d]`. Every caller is a thread with its
//! own plan and workspace. Calls of an engine with one thread run concurrently. Calls of a shared engine with two
//! threads need both threads and therefore run one after another; if each caller has its own engine with two threads,
//! the calls compete for the cores.

use elsa_core::attention::{Inputs, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Engine, EngineOptions, PlanOptions};
use std::sync::Barrier;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Duration of the measurement of one table cell.
const TIME: Duration = Duration::from_secs(1);
const MOST_CALLERS: usize = 4;

/// Calls attention for [`TIME`] and returns the calls per second.
fn call(engine: &Engine, [heads, queries, keys, d]: [usize; 4], start: &Barrier) -> Result<f64, Failure> {
    let view = |n| View::dense("shape", Layout::Bhnd, &[heads, n, d], None);
    let (query, key) = (view(queries)?, view(keys)?);
    let problem = Spec::new(DType::F32, query, key, key, query).check()?;
    let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
    let (q, k) = (wave(query.count()), wave(key.count()));
    let mut y = vec![0.0; query.count()];
    let plan = engine.plan(&problem, &PlanOptions::default())?;
    let mut workspace = plan.workspace()?;
    start.wait();
    let begin = Instant::now();
    let mut calls = 0;
    while begin.elapsed() < TIME {
        let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&k));
        plan.run(inputs, Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?;
        calls += 1;
    }
    Ok(f64::from(calls) / begin.elapsed().as_secs_f64())
}

/// Returns the calls per second of all callers together; caller `i` uses engine `i` modulo the number of engines.
fn together(engines: &[Engine], callers: usize, shape: [usize; 4]) -> Result<f64, Failure> {
    let start = Barrier::new(callers);
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..callers)
            .map(|i| (&engines[i % engines.len()], &start))
            .map(|(engine, start)| s.spawn(move || call(engine, shape, start)))
            .collect();
        let rates = threads.into_iter().map(|thread| thread.join().map_err(|_| "a caller panicked")?);
        rates.sum::<Result<f64, Failure>>()
    })
}

fn main() -> Result<(), Failure> {
    let text = std::env::args().nth(1).unwrap_or_else(|| "1,256,256,64".to_owned());
    let numbers: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    let shape = <[usize; 4]>::try_from(numbers?).map_err(|_| "allowed: heads,queries,keys,d")?;
    let engine = |threads| Engine::new(&EngineOptions::default().threads(threads));
    println!("calls per second, {text}, {}", engine(1)?.kernel());
    println!("threads  engine  {}", (1..=MOST_CALLERS).map(|n| format!("{n:>9}")).collect::<String>());
    for threads in [1, 2] {
        let shared = [engine(threads)?];
        let own = (0..MOST_CALLERS).map(|_| engine(threads)).collect::<Result<Vec<_>, _>>()?;
        for (name, engines) in [("shared", &shared[..]), ("each", &own)] {
            let rates: Vec<f64> =
                (1..=MOST_CALLERS).map(|n| together(engines, n, shape)).collect::<Result<_, _>>()?;
            let cells: String = rates.iter().map(|rate| format!("{rate:>9.0}")).collect();
            println!("{threads:>7}  {name:<7} {cells}");
        }
    }
    Ok(())
}
