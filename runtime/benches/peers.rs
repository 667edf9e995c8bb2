//! This library compared with its peers on the CPU: PyTorch, ONNX Runtime's MultiHeadAttention, and sgemm as the
//! upper limit that a matrix product reaches.
//!
//! `cargo bench -p elsa-runtime --bench peers -- [--threads N] [--rounds N] [--slice MS]
//! [--dtype f32|f16|bf16] [--backend NAME] [--json] [[batch,]heads,queries,keys,d]...`
//!
//! `ELSA_PEERS_PYTHON` names the Python that has the peers installed; `cargo xtask peers` creates one and runs
//! this benchmark. The back end `avx2` restricts PyTorch and sgemm to AVX2 too. Every answer, including those of
//! the peers, is compared with attention in f64 on the same data. An answer of this library that is too far off
//! ends the run.
//!
//! The speed of a shared machine varies, so nothing is measured by itself:
//!
//! 1. Every round gives each job a slice of a few milliseconds, and only slices of the same round are compared.
//!    The result is the median of the ratios over the rounds, with their quartiles.
//! 2. The order of the jobs rotates by one each round, so that no job always follows the same neighbour.
//! 3. A job starts when the threads of the previous job sleep (see `peers.py`). Its first slice is not measured:
//!    it wakes the pool, gives its threads time to settle on processors, and warms the caches.
//! 4. Each round times sgemm twice in a row. The second slice follows no other job, so the ratio of the two
//!    measures how much the jobs disturb each other; it should be near 1.
//! 5. A slice in which threads waited for a processor, because other programs had it or the system put two threads
//!    on the same one, is repeated at once. If repeating does not help, the round is dropped.
//! 6. The best peer of a shape is the one with the highest median rate, not the luckiest one of each round.

#![forbid(unsafe_code)]

mod common;

use common::{noise, quartiles};
use elsa_core::attention::{Inputs, Outputs, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Backend, Bound, Engine, EngineOptions, PlanOptions};
use half::{bf16, f16};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// The default shapes, `batch, heads, queries, keys, d`.
const SHAPES: [[usize; 5]; 11] = [
    [1, 1, 64, 64, 64],
    [1, 1, 196, 196, 64],
    [1, 12, 196, 196, 64],
    [1, 1, 900, 900, 64],
    [1, 8, 1024, 1024, 64],
    [1, 1, 4096, 4096, 64],
    [1, 8, 1024, 1024, 128],
    [1, 8, 1024, 1024, 32],
    [1, 16, 1041, 1041, 64],
    [1, 32, 1, 4096, 128],
    [64, 3, 49, 49, 32],
];
/// Name of the matrix product, which is not a peer, and the order of its square matrices.
const SGEMM: (&str, f64) = ("sgemm", 768.0);
/// Allowed error of the f32 arithmetic, on top of the rounding of the output: 2⁻¹⁹, far above that of correct
/// kernels and far below that of a wrong one.
const ARITHMETIC: f64 = 1.0 / 524_288.0;
/// The workers of this library sleep within microseconds of their last job.
const SETTLE: Duration = Duration::from_millis(1);

/// A slice is disturbed if its threads waited for a processor for more than this share of its time.
const DISTURBED: f64 = 0.03;
/// How often a disturbed slice is repeated before its round is dropped.
const RETAKES: u32 = 6;
/// Number of rounds tried for each requested one.
const TRIES: usize = 3;

const LEGEND: &str = "\
GFLOP/s (4 b h q k d / time) are medians over rounds; ratios are medians (and quartiles) within a
round; errors are relative L2 against f64. 'calm' is sgemm after another job over sgemm after itself, 'settle'
the longest time in ms for which threads of peers spun after their slice, 'rounds' those kept of those tried.";

/// The options of the command line.
struct Request {
    threads: usize,
    rounds: usize,
    slice: Option<Duration>,
    dtype: DType,
    backend: Option<Backend>,
    json: bool,
    shapes: Vec<[usize; 5]>,
}

impl Request {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Request, Failure> {
        let mut request = Request {
            threads: 1,
            rounds: 25,
            slice: None,
            dtype: DType::F32,
            backend: None,
            json: false,
            shapes: Vec::new(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg}: no value"));
            match arg.as_str() {
                "--threads" => request.threads = value()?.parse()?,
                "--rounds" => request.rounds = value()?.parse()?,
                "--slice" => request.slice = Some(Duration::from_millis(value()?.parse()?)),
                "--dtype" => {
                    request.dtype = match value()?.as_str() {
                        "f32" => DType::F32,
                        "f16" => DType::F16,
                        "bf16" => DType::Bf16,
                        other => return Err(format!("--dtype: {other}; allowed: f32, f16, bf16").into()),
                    }
                }
                "--backend" => request.backend = Some(value()?.parse()?),
                "--json" => request.json = true,
                // Cargo passes this to every benchmark.
                "--bench" => {}
                shape => request.shapes.push(parse_shape(shape)?),
            }
        }
        if request.rounds == 0 || request.slice().is_zero() {
            return Err("--rounds and --slice: at least 1".into());
        }
        if request.shapes.is_empty() {
            request.shapes = SHAPES.to_vec();
        }
        Ok(request)
    }

    /// Length of a slice. Pools of several threads need longer to reach their speed.
    fn slice(&self) -> Duration {
        self.slice.unwrap_or(Duration::from_millis(if self.threads == 1 { 6 } else { 20 }))
    }

    /// The instruction set to which the peers are restricted, and the variables that restrict PyTorch and its
    /// matrix product to it.
    fn isa(&self) -> Option<(&'static str, [(&'static str, &'static str); 3])> {
        let avx2 = [
            ("ATEN_CPU_CAPABILITY", "avx2"),
            ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
            ("ONEDNN_MAX_CPU_ISA", "AVX2"),
        ];
        (self.backend == Some(Backend::AVX2)).then_some(("avx2", avx2))
    }
}

fn parse_shape(text: &str) -> Result<[usize; 5], Failure> {
    let refused = || format!("{text}: allowed: [batch,]heads,queries,keys,d, each at least 1");
    let mut numbers: Vec<usize> =
        text.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| refused())?;
    if numbers.len() == 4 {
        numbers.insert(0, 1);
    }
    if numbers.contains(&0) {
        return Err(refused().into());
    }
    Ok(numbers.try_into().map_err(|_| refused())?)
}

/// The process that measures the peers.
struct Peers {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The jobs that `peers.py` has prepared.
#[derive(Deserialize)]
struct Prepared {
    jobs: Vec<String>,
    /// Peers that cannot be measured, and why.
    absent: BTreeMap<String, String>,
    versions: Map<String, Value>,
}

/// One slice of a job.
#[derive(Deserialize)]
struct Slice {
    /// Seconds per call.
    seconds: f64,
    calls: u64,
    /// Whether the threads hardly waited for a processor.
    calm: bool,
    /// Seconds for which pools kept spinning after the slice.
    settle: f64,
}

impl Peers {
    fn start(python: &str, request: &Request) -> Result<Peers, Failure> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers.py");
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(request.isa().into_iter().flat_map(|(_, variables)| variables));
        let mut child = command.spawn().map_err(|error| format!("{python}: {error}"))?;
        let to = child.stdin.take().ok_or("no pipe to the peers")?;
        let from = BufReader::new(child.stdout.take().ok_or("no pipe from the peers")?);
        Ok(Peers { child, to, from })
    }

    fn ask<T: for<'a> Deserialize<'a>>(&mut self, request: &Value) -> Result<T, Failure> {
        writeln!(self.to, "{request}")?;
        self.to.flush()?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(format!("the process of the peers ended: {}", self.child.wait()?).into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn slice(&mut self, name: &str, slice: Duration) -> Result<Slice, Failure> {
        self.ask(&json!({
            "slice": name, "seconds": slice.as_secs_f64(), "tries": RETAKES, "waited": DISTURBED }))
    }
}

/// Total seconds for which threads of this process were ready to run but had no processor (Linux).
fn waited() -> f64 {
    let of = |task: std::io::Result<std::fs::DirEntry>| -> Option<f64> {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    std::fs::read_dir("/proc/self/task").map_or(0.0, |tasks| tasks.filter_map(of).sum::<f64>() / 1e9)
}

/// Measures a slice of this library, as `measure` of `peers.py` does for a peer.
fn own_slice(bound: &mut Bound<'_>, slice: Duration) -> Result<Slice, Failure> {
    let mut take = || -> Result<Slice, Failure> {
        let before = waited();
        let (start, mut calls) = (Instant::now(), 0u32);
        let elapsed = loop {
            bound.run()?;
            calls += 1;
            let elapsed = start.elapsed();
            if elapsed >= slice {
                break elapsed;
            }
        };
        let calm = waited() - before <= DISTURBED * elapsed.as_secs_f64();
        let seconds = elapsed.as_secs_f64() / f64::from(calls);
        Ok(Slice { seconds, calls: calls.into(), calm, settle: 0.0 })
    };
    take()?;
    let mut taken = take()?;
    for _ in 1..RETAKES {
        if taken.calm {
            break;
        }
        taken = take()?;
    }
    std::thread::sleep(SETTLE);
    Ok(taken)
}

fn write(dir: &Path, name: &str, x: &[f32]) -> std::io::Result<()> {
    std::fs::write(dir.join(name), x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

/// The elements of a tensor, in the measured type.
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
    /// The elements widened to f32, which is exact for every type.
    fn widened(&self) -> Vec<f32> {
        let x = self.get();
        (0..x.len()).map(|i| x.get(i)).collect()
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

/// The measurements of one job.
#[derive(Default)]
struct Account {
    /// GFLOP/s in every round.
    rates: Vec<f64>,
    calls: u64,
    /// Relative L2 error against f64.
    error: Option<f64>,
}

impl Account {
    fn add(&mut self, work: f64, slice: &Slice) {
        self.rates.push(work / slice.seconds / 1e9);
        self.calls += slice.calls;
    }

    /// Quartiles of the ratios `self / other` within a round.
    fn over(&self, other: &Account) -> [f64; 3] {
        quartiles(self.rates.iter().zip(&other.rates).map(|(a, b)| a / b).collect())
    }

    fn rate(&self) -> [f64; 3] {
        quartiles(self.rates.clone())
    }
}

/// The measurements of one shape.
struct Outcome {
    own: Account,
    /// The second slice of sgemm in each round, which follows no other job.
    undisturbed: Account,
    others: Vec<(String, Account)>,
    absent: BTreeMap<String, String>,
    versions: Map<String, Value>,
    /// The longest time that pools kept spinning after a slice, in seconds.
    settle: f64,
    /// Number of rounds, including dropped ones.
    tried: usize,
}

impl Outcome {
    fn sgemm(&self) -> Option<&Account> {
        self.others.iter().find(|(name, _)| name == SGEMM.0).map(|(_, account)| account)
    }

    /// The peer with the highest median rate.
    fn best(&self) -> Option<&(String, Account)> {
        let peers = self.others.iter().filter(|(name, _)| name != SGEMM.0);
        peers.max_by(|(_, a), (_, b)| a.rate()[1].total_cmp(&b.rate()[1]))
    }
}

fn measure(
    engine: &Engine,
    peers: &mut Peers,
    request: &Request,
    dir: &Path,
    shape: [usize; 5],
) -> Result<Outcome, Failure> {
    let [b, h, nq, nk, d] = shape;
    let dtype = request.dtype;
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut make = |n| Tensor::of(dtype, noise(&mut seed, b * h * n * d));
    let (q, k, v, mut y) = (make(nq), make(nk), make(nk), make(nq));
    for (name, x) in [("q", &q), ("k", &k), ("v", &v)] {
        write(dir, name, &x.widened())?;
    }
    let isa = request.isa().map(|(name, _)| name);
    let prepared: Prepared = peers.ask(&json!({
        "shape": shape, "dtype": dtype.name(), "threads": request.threads, "dir": dir, "isa": isa }))?;

    let view = |n| View::dense("tensor", Layout::Bhnd, &[b, h, n, d], None);
    let problem = Spec::new(dtype, view(nq)?, view(nk)?, view(nk)?, view(nq)?).check()?;
    let plan = engine.plan(&problem, &PlanOptions::default())?;
    let mut workspace = plan.workspace()?;
    let inputs = Inputs::new(q.get(), k.get(), v.get());
    let mut bound = plan.bind(inputs, Outputs::new(y.get_mut()), &mut workspace)?;

    let work = 4.0 * (b * h * nq * nk * d) as f64;
    let sgemm = 2.0 * SGEMM.1.powi(3);
    let mut outcome = Outcome {
        own: Account::default(),
        undisturbed: Account::default(),
        others: prepared.jobs.into_iter().map(|name| (name, Account::default())).collect(),
        absent: prepared.absent,
        versions: prepared.versions,
        settle: 0.0,
        tried: 0,
    };
    let jobs = outcome.others.len() + 1;
    'rounds: while outcome.own.rates.len() < request.rounds {
        if outcome.tried == TRIES * request.rounds {
            break;
        }
        outcome.tried += 1;
        // Slices of the round by job; the last are this library's and the second of sgemm.
        let mut round: Vec<(usize, Slice)> = Vec::with_capacity(jobs + 1);
        for turn in 0..jobs {
            let job = (turn + outcome.tried) % jobs;
            let name = outcome.others.get(job).map(|(name, _)| name.as_str());
            let again = name.filter(|name| *name == SGEMM.0).map(|name| (jobs, Some(name)));
            for (job, name) in std::iter::once((job, name)).chain(again) {
                let slice = match name {
                    Some(name) => peers.slice(name, request.slice())?,
                    None => own_slice(&mut bound, request.slice())?,
                };
                if !slice.calm {
                    continue 'rounds;
                }
                round.push((job, slice));
            }
        }
        for (job, slice) in round {
            outcome.settle = outcome.settle.max(slice.settle);
            match outcome.others.get_mut(job) {
                Some((name, account)) => account.add(if name == SGEMM.0 { sgemm } else { work }, &slice),
                None if job == jobs => outcome.undisturbed.add(sgemm, &slice),
                None => outcome.own.add(work, &slice),
            }
        }
    }
    write(dir, "y", &y.widened())?;
    let errors: BTreeMap<String, f64> = peers.ask(&json!({ "check": dir.join("y") }))?;
    outcome.own.error = errors.get("elsa").copied();
    for (name, account) in &mut outcome.others {
        account.error = errors.get(name).copied();
    }
    let rounding = match dtype {
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => f16::EPSILON.to_f64(),
        DType::Bf16 => bf16::EPSILON.to_f64(),
    } / 2.0;
    let limit = rounding + ARITHMETIC;
    match outcome.own.error {
        Some(error) if error <= limit => Ok(outcome),
        error => {
            Err(format!("{shape:?}: relative L2 error {error:?} against f64; allowed: {limit:e}").into())
        }
    }
}

fn print(request: &Request, kernel: &str, shape: [usize; 5], outcome: &Outcome) {
    let ratio = |[low, middle, high]: [f64; 3]| format!("{middle:.2} ({low:.2}-{high:.2})");
    let own = &outcome.own;
    let to_sgemm = outcome.sgemm().map(|sgemm| own.over(sgemm));
    let undisturbed = outcome.sgemm().map(|sgemm| sgemm.over(&outcome.undisturbed));
    let to_best = outcome.best().map(|(name, account)| (name, own.over(account)));
    if request.json {
        let others: Map<String, Value> = outcome
            .others
            .iter()
            .map(|(name, account)| {
                let value = json!({ "gflops": account.rate()[1], "calls": account.calls,
                    "ratio": own.over(account), "rel_l2": account.error });
                (name.clone(), value)
            })
            .collect();
        println!(
            "{}",
            json!({ "what": "peers", "kernel": kernel, "threads": request.threads, "dtype": request.dtype.name(),
                "shape": shape, "rounds": own.rates.len(), "rounds_tried": outcome.tried, "slice_ms": request.slice().as_millis() as u64,
                "gflops": own.rate()[1], "gflops_quartiles": own.rate(), "calls": own.calls,
                "rel_l2": own.error, "best_peer": to_best.map(|(name, _)| name),
                "to_best_peer": to_best.map(|(_, x)| x[1]), "to_best_peer_quartiles": to_best.map(|(_, x)| x),
                "to_sgemm": to_sgemm.map(|x| x[1]), "to_sgemm_quartiles": to_sgemm,
                "sgemm_disturbed": undisturbed.map(|x| x[1]), "settle_ms": outcome.settle * 1e3,
                "peers": others, "absent": outcome.absent, "versions": outcome.versions })
        );
        return;
    }
    let mut list = Vec::new();
    for (name, account) in &outcome.others {
        let error = account.error.map_or(String::new(), |error| format!(" ({error:.0e})"));
        list.push(format!("{name} {:.1}{error}", account.rate()[1]));
    }
    println!(
        "{:>18} {:>7.1} {:>8.1e} {:>17} {:>17} {:>6.2} {:>7.1} {:>7}   {}",
        shape.map(|n| n.to_string()).join(","),
        own.rate()[1],
        own.error.unwrap_or(f64::NAN),
        to_best.map_or("-".to_owned(), |(_, x)| ratio(x)),
        to_sgemm.map_or("-".to_owned(), ratio),
        undisturbed.map_or(f64::NAN, |x| x[1]),
        outcome.settle * 1e3,
        format!("{}/{}", own.rates.len(), outcome.tried),
        list.join(", ")
    );
}

fn main() -> Result<(), Failure> {
    let request = Request::parse(std::env::args().skip(1))?;
    let python = std::env::var("ELSA_PEERS_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut peers = Peers::start(&python, &request)?;
    let options = EngineOptions {
        threads: Some(request.threads),
        backend: request.backend,
        ..EngineOptions::default()
    };
    let engine = Engine::new(&options)?;
    let dir = tempfile::tempdir()?;
    let (mut told, mut disturbed) = (request.json, 0);
    for &shape in &request.shapes {
        let outcome = measure(&engine, &mut peers, &request, dir.path(), shape)?;
        if outcome.best().is_none() {
            return Err(format!("{python}: no peer can be measured: {:?}", outcome.absent).into());
        }
        if outcome.own.rates.is_empty() {
            disturbed += 1;
            eprintln!("{shape:?}: other programs disturbed each of {} rounds", outcome.tried);
            continue;
        }
        if !told {
            told = true;
            println!("{} with {} thread(s), {}", engine.kernel(), request.threads, request.dtype);
            println!(
                "{} rounds of slices of {:?}; peers: {}",
                request.rounds,
                request.slice(),
                Value::from(outcome.versions.clone())
            );
            for (name, why) in &outcome.absent {
                println!("not measured: {name}: {why}");
            }
            println!("{LEGEND}");
            println!(
                "{:>18} {:>7} {:>8} {:>17} {:>17} {:>6} {:>7} {:>7}   peers",
                "b,h,q,k,d", "elsa", "error", "/ best peer", "/ sgemm", "calm", "settle", "rounds"
            );
        }
        print(&request, engine.kernel(), shape, &outcome);
    }
    let Peers { mut child, to, .. } = peers;
    drop(to);
    child.wait()?;
    if disturbed > 0 {
        return Err(format!("{disturbed} shape(s) could not be measured: the machine is busy").into());
    }
    Ok(())
}
