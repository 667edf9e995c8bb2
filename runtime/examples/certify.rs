//! Measures the cost of a certificate: the time of a plan with certificates, divided by the time of a plan without
//! them.
//!
//! `cargo run --release -p elsa-runtime --example certify -- [BACKEND [THREADS [ROUNDS]]]`
//!
//! In each round, both plans run for a slice of a few milliseconds. Which plan runs first alternates from round to
//! round. Ratios are formed within a round; their medians and quartiles are printed. With one CPU thread, the program
//! measures the processor time of that thread; otherwise it measures wall time. On a GPU, the tensors are in device
//! memory. The program then also prints the ratio of device times, which are measured between events before and after a
//! call. Last, it prints the time of fetching a certificate.
#![forbid(unsafe_code)]

use elsa_core::attention::{Inputs, Outputs, Spec};
use elsa_core::drift::percentile;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Backend, Bound, Engine, EngineOptions, PlanOptions};
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

/// `batch, heads, queries, keys, d`.
const SHAPES: [[usize; 5]; 6] = [
    [1, 12, 900, 900, 64],
    [1, 1, 900, 900, 64],
    [1, 8, 1024, 1024, 64],
    [1, 12, 2048, 2048, 64],
    [4, 12, 197, 197, 64],
    [1, 12, 1, 4096, 64],
];
/// Length of a slice in seconds.
const SLICE: f64 = 8e-3;

/// Returns the time of `clock` in seconds.
fn now(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Runs calls for one slice. Returns the seconds per call, measured with `clock` and with the GPU's events; the second
/// value is NaN on a CPU.
fn slice(bound: &mut Bound<'_>, clock: ClockId) -> Result<[f64; 2], Failure> {
    bound.run_resident()?;
    let (start, mut calls, mut device) = (now(clock), 0.0, 0.0);
    let wall = loop {
        bound.run_resident()?;
        calls += 1.0;
        let elapsed = now(clock) - start;
        if elapsed >= SLICE {
            break elapsed / calls;
        }
    };
    let mut timed = 0.0;
    for _ in 0..(calls as usize).min(200) {
        if let (_, Some(times)) = bound.run_timed()? {
            device += times.device.as_secs_f64();
            timed += 1.0;
        } else {
            break;
        }
    }
    Ok([wall, device / timed])
}

/// Returns the three quartiles of `x`.
fn quartiles(mut x: Vec<f64>) -> [f64; 3] {
    [25, 50, 75].map(|percent| percentile(&mut x, percent).unwrap_or(f64::NAN))
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let backend: Option<Backend> = arguments.next().map(|name| name.parse()).transpose()?;
    let threads = arguments.next().map(|threads| threads.parse()).transpose()?;
    let rounds: usize = arguments.next().map_or(Ok(40), |rounds| rounds.parse())?;
    let engine = Engine::new(&EngineOptions::default().backend(backend).threads(threads))?;
    let alone = engine.threads() == 1 && engine.backend() != Backend::Cuda;
    let (clock, name) = match alone {
        true => (ClockId::ThreadCPUTime, "processor"),
        false => (ClockId::Monotonic, "wall"),
    };
    println!("{}, {} threads, {rounds} rounds; medians (and quartiles)", engine.backend(), engine.threads());
    for shape @ [batch, heads, queries, keys, dim] in SHAPES {
        let view = |tokens| View::dense("q", Layout::Bhnd, &[batch, heads, tokens, dim], None);
        let (few, many) = (view(queries)?, view(keys)?);
        let x: Vec<f32> = (0..many.count()).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 500.0).collect();
        let problem = Spec::new(DType::F32, few, many, many, few).check()?;
        let inputs = || Inputs::new(Elements::F32(&x[..few.count()]), Elements::F32(&x), Elements::F32(&x));
        let [plain, certifying] =
            [false, true].map(|certify| engine.plan(&problem, &PlanOptions::default().certify(certify)));
        let (plain, certifying) = (plain?, certifying?);
        let (mut a, mut b) = (plain.workspace()?, certifying.workspace()?);
        let mut outputs = [vec![0.0f32; few.count()], vec![0.0f32; few.count()]];
        let [of_plain, of_certifying] = &mut outputs;
        let mut bounds = [
            plain.bind(inputs(), Outputs::new(ElementsMut::F32(of_plain)), &mut a)?,
            certifying.bind(inputs(), Outputs::new(ElementsMut::F32(of_certifying)), &mut b)?,
        ];
        let (mut ratios, mut times) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for round in 0..rounds {
            let mut taken = [[0.0; 2]; 2];
            for turn in 0..2 {
                let at = (turn + round) % 2;
                taken[at] = slice(&mut bounds[at], clock)?;
            }
            for clock in 0..2 {
                ratios[clock].push(taken[1][clock] / taken[0][clock]);
                times[clock].push(taken[0][clock]);
            }
        }
        let start = Instant::now();
        let certified = bounds[1].certificate()?;
        let fetched = start.elapsed().as_secs_f64();
        let bound = certified.claim().map_or(f64::NAN, |prior| prior.relative);
        println!("{shape:?}: bound {bound:.1e}, fetched in {:.1} us", fetched * 1e6);
        for ((name, ratios), times) in [name, "device"].into_iter().zip(ratios).zip(times) {
            let [low, middle, high] = quartiles(ratios);
            if middle.is_finite() {
                let plain = quartiles(times)[1] * 1e6;
                println!("  {name:<10}{middle:.4} ({low:.4}-{high:.4}) of {plain:.1} us");
            }
        }
    }
    Ok(())
}
