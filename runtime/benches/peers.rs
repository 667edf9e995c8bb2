//! This library beside its peers on the CPU, in slices of a few milliseconds, so that a busy machine slows all
//! of them alike. Ratios are medians over rounds of quotients taken in the same round.
//!
//! `cargo bench -p elsa-runtime --bench peers -- [--threads N] [--rounds N] [--dtype f32|f16|bf16]
//! [--json] [heads,queries,keys,d]...`. `ELSA_PEERS_PYTHON` names the Python that has the peers (PyTorch, ONNX
//! Runtime); `cargo xtask peers` makes one and calls this.

#![forbid(unsafe_code)]

use elsa_core::problem::{Inputs, Outputs, Spec};
use elsa_core::view::{DType, Elements, ElementsMut, Layout, View};
use elsa_runtime::{Engine, EngineOptions, PlanOptions};
use half::{bf16, f16};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// Shapes `heads, queries, keys, d` that are measured when none is named.
const SHAPES: [[usize; 4]; 10] = [
    [1, 64, 64, 64],
    [1, 196, 196, 64],
    [12, 196, 196, 64],
    [1, 900, 900, 64],
    [8, 1024, 1024, 64],
    [1, 4096, 4096, 64],
    [8, 1024, 1024, 128],
    [8, 1024, 1024, 32],
    [16, 1041, 1041, 64],
    [32, 1, 4096, 128],
];
const SLICE: Duration = Duration::from_millis(6);

/// The process that measures peers.
struct Peers {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peers {
    fn start(python: &str) -> Result<Peers, Failure> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers.py");
        let mut child =
            Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().ok_or("no pipe to the peers")?;
        let from = BufReader::new(child.stdout.take().ok_or("no pipe from the peers")?);
        Ok(Peers { child, to, from })
    }

    fn ask(&mut self, request: &serde_json::Value) -> Result<serde_json::Value, Failure> {
        writeln!(self.to, "{request}")?;
        self.to.flush()?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(format!("the peers ended: {:?}", self.child.wait()?).into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x.get(x.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Numbers with the spread of a standard normal, the same in every run.
fn noise(seed: &mut u64, n: usize) -> Vec<f32> {
    let mut next = || {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (next() + next() + next() + next()) * 1.732).collect()
}

/// Elements of one tensor in the type that is measured.
enum Tensor {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Tensor {
    fn of(dtype: DType, x: Vec<f32>) -> Tensor {
        match dtype {
            DType::F32 => Tensor::F32(x),
            DType::F16 => Tensor::F16(x.into_iter().map(f16::from_f32).collect()),
            DType::Bf16 => Tensor::Bf16(x.into_iter().map(bf16::from_f32).collect()),
        }
    }
    fn get(&self) -> Elements<'_> {
        match self {
            Tensor::F32(x) => Elements::F32(x),
            Tensor::F16(x) => Elements::F16(x),
            Tensor::Bf16(x) => Elements::Bf16(x),
        }
    }
    fn get_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Tensor::F32(x) => ElementsMut::F32(x),
            Tensor::F16(x) => ElementsMut::F16(x),
            Tensor::Bf16(x) => ElementsMut::Bf16(x),
        }
    }
}

fn main() -> Result<(), Failure> {
    let (mut threads, mut rounds, mut json, mut dtype) = (1, 13, false, DType::F32);
    let mut shapes: Vec<[usize; 4]> = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg}: no value"));
        match arg.as_str() {
            "--threads" => threads = value()?.parse()?,
            "--rounds" => rounds = value()?.parse()?,
            "--dtype" => {
                dtype = match value()?.as_str() {
                    "f32" => DType::F32,
                    "f16" => DType::F16,
                    "bf16" => DType::Bf16,
                    other => return Err(format!("--dtype: {other}; allowed: f32, f16, bf16").into()),
                }
            }
            "--json" => json = true,
            "--bench" => {}
            shape => {
                let numbers = shape.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
                shapes
                    .push(numbers.try_into().map_err(|_| format!("{shape}: allowed: heads,queries,keys,d"))?);
            }
        }
    }
    if shapes.is_empty() {
        shapes = SHAPES.to_vec();
    }
    let python = std::env::var("ELSA_PEERS_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut peers = Peers::start(&python)?;
    let engine = Engine::new(&EngineOptions { threads: Some(threads), ..EngineOptions::default() })?;
    if !json {
        println!("{} with {threads} thread(s), {dtype}; {rounds} rounds of {SLICE:?}", engine.kernel());
        println!("GFLOP/s (4 h q k d / time), medians; ratios are medians of quotients of the same round");
        println!("{:>20} {:>8} {:>9} {:>9}   peers", "heads,q,k,d", "elsa", "/ best", "/ sgemm");
    }
    for shape @ [h, nq, nk, d] in shapes {
        let request = serde_json::json!({ "threads": threads, "shape": shape, "dtype": dtype.name() });
        let names: Vec<String> = serde_json::from_value(peers.ask(&request)?)?;
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        let mut make = |n| Tensor::of(dtype, noise(&mut seed, h * n * d));
        let (q, k, v, mut y) = (make(nq), make(nk), make(nk), make(nq));
        let view = |n| View::dense("tensor", Layout::Bhnd, &[h, n, d], None);
        let problem = Spec::new(dtype, view(nq)?, view(nk)?, view(nk)?, view(nq)?).check()?;
        let plan = engine.plan(&problem, &PlanOptions::default())?;
        let mut workspace = plan.workspace()?;
        let inputs = Inputs::new(q.get(), k.get(), v.get());
        let mut bound = plan.bind(inputs, Outputs::new(y.get_mut()), &mut workspace)?;
        let flops = 4.0 * (h * nq * nk * d) as f64;
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); names.len() + 1];
        for _ in 0..rounds {
            bound.run()?;
            let (start, mut calls) = (Instant::now(), 0u32);
            while start.elapsed() < SLICE {
                bound.run()?;
                calls += 1;
            }
            rates[0].push(flops * f64::from(calls) / start.elapsed().as_secs_f64() / 1e9);
            for (name, rates) in names.iter().zip(&mut rates[1..]) {
                let request = serde_json::json!({ "slice": name, "seconds": SLICE.as_secs_f64() });
                let seconds: f64 = serde_json::from_value(peers.ask(&request)?)?;
                let work = if name == "sgemm768" { 2.0 * 768f64.powi(3) } else { flops };
                rates.push(work / seconds / 1e9);
            }
        }
        let quotient =
            |than: &dyn Fn(usize) -> f64| median((0..rounds).map(|r| rates[0][r] / than(r)).collect());
        let of = |name: &str| names.iter().position(|n| n == name).map(|i| &rates[i + 1]);
        let best = |r: usize| {
            let peers = names.iter().zip(&rates[1..]).filter(|(n, _)| n.as_str() != "sgemm768");
            peers.map(|(_, x)| x[r]).fold(f64::NAN, f64::max)
        };
        let to_best = quotient(&best);
        let to_sgemm = of("sgemm768").map_or(f64::NAN, |x| quotient(&|r| x[r]));
        let medians: Vec<(String, f64)> =
            names.iter().zip(&rates[1..]).map(|(n, x)| (n.clone(), median(x.clone()))).collect();
        let own = median(rates[0].clone());
        if json {
            let peers: serde_json::Map<String, serde_json::Value> =
                medians.into_iter().map(|(n, x)| (n, x.into())).collect();
            println!(
                "{}",
                serde_json::json!({ "what": "peers", "kernel": engine.kernel(), "threads": threads,
                    "dtype": dtype.name(), "shape": shape, "rounds": rounds, "gflops": own,
                    "to_best_peer": to_best, "to_sgemm": to_sgemm, "peers": peers })
            );
        } else {
            let list: Vec<String> = medians.iter().map(|(n, x)| format!("{n} {x:.1}")).collect();
            let shape = format!("{h},{nq},{nk},{d}");
            println!("{shape:>20} {own:>8.1} {to_best:>9.2} {to_sgemm:>9.2}   {}", list.join(", "));
        }
    }
    drop(peers.to);
    peers.child.wait()?;
    Ok(())
}
