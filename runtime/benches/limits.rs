//! Measures the overhead of a call beyond its arithmetic, and the limits of calls that are not bound by arithmetic.
//!
//! `cargo bench -p elsa-runtime --bench limits -- [--rounds N] [--threads N] [--json] [part]...`, where a part is
//! one of
//!
//! - `start`: the time from the start of a process to its first result, and the time of each step: engine, plan,
//!   workspace and binding, first call. Each sample runs in a new process of this benchmark.
//! - `plan`: the time to create a plan, by shape.
//! - `threads`: one head on several threads, compared with the same head on one thread. Both results must be bitwise
//!   equal.
//! - `decode`: one query against a long cache, in bytes per second. It is compared with two simpler loops. The first
//!   copies memory; its rate counts both the bytes read and the bytes written. The second sums the same keys and values
//!   as integers; it reads the same data as attention and computes almost nothing.
//! - `error`: relative L2 error of 48 rows against f64, by number of keys. Also shows the number of additions on the
//!   longest path from a key to the output.
//!
//! The variants to compare run alternately, in slices of 20 ms. Ratios are formed within a round, and their median and
//! quartiles are printed, because the machine may be shared.

#![forbid(unsafe_code)]

use elsa_core::attention::reference;
use elsa_core::attention::{Inputs, Outputs, Problem, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::random::Random;
use elsa_core::view::{Layout, View};
use elsa_runtime::{Engine, EngineOptions, PlanOptions};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const PARTS: [&str; 5] = ["start", "plan", "threads", "decode", "error"];
/// Number of tokens in the call that `start` measures in a new process: one head, d = 64.
const FIRST: usize = 196;
/// Shapes `[heads, queries, keys, d]` for which `plan` creates plans.
const PLANNED: [[usize; 4]; 5] =
    [[1, 64, 64, 64], [1, 196, 196, 64], [12, 196, 196, 64], [8, 1024, 1024, 64], [32, 1, 4096, 128]];
/// Numbers of tokens for which `threads` measures one head of d = 64.
const SHARED: [usize; 5] = [196, 576, 900, 1024, 4096];
/// Numbers of keys per head in the caches of `decode`: 32 heads, one query, d = 128. The small caches fit in the
/// processor's cache, the large ones do not.
const CACHES: [usize; 4] = [64, 512, 4096, 16_384];
/// Numbers of keys for which the error is measured.
const KEYS: [usize; 9] = [256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];
/// Number of query rows whose error is measured.
const ROWS: usize = 48;
const SLICE: Duration = Duration::from_millis(20);

struct Request {
    rounds: usize,
    threads: usize,
    json: bool,
    parts: Vec<String>,
}

impl Request {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Request, Failure> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut request = Request { rounds: 25, threads, json: false, parts: Vec::new() };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg}: no value"));
            match arg.as_str() {
                "--rounds" => request.rounds = value()?.parse()?,
                "--threads" => request.threads = value()?.parse()?,
                "--json" => request.json = true,
                // Cargo passes this option to every benchmark.
                "--bench" => {}
                part if PARTS.contains(&part) => request.parts.push(arg),
                part => return Err(format!("{part}: allowed: {}", PARTS.join(", ")).into()),
            }
        }
        if request.rounds == 0 || request.threads == 0 {
            return Err("--rounds and --threads: at least 1".into());
        }
        if request.parts.is_empty() {
            request.parts = PARTS.map(str::to_owned).into();
        }
        Ok(request)
    }

    /// Prints `line`, or `object` with `--json`.
    fn tell(&self, line: &str, object: serde_json::Value) {
        println!("{}", if self.json { object.to_string() } else { line.to_owned() });
    }

    fn title(&self, text: &str) {
        if !self.json {
            println!("\n{text}");
        }
    }
}

/// A problem and its random tensors.
struct Data {
    problem: Problem,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Data {
    fn new([heads, queries, keys, d]: [usize; 4]) -> Result<Data, Failure> {
        let problem = problem([heads, queries, keys, d])?;
        let mut random = Random::new(1);
        let mut rows = |tokens: usize| (0..heads * tokens * d).map(|_| random.normal()).collect();
        Ok(Data { problem, q: rows(queries), k: rows(keys), v: rows(keys) })
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs::new(Elements::F32(&self.q), Elements::F32(&self.k), Elements::F32(&self.v))
    }
}

fn problem([heads, queries, keys, d]: [usize; 4]) -> Result<Problem, Failure> {
    let view = |tokens: usize| View::dense("shape", Layout::Bhnd, &[heads, tokens, d], None);
    let (q, k) = (view(queries)?, view(keys)?);
    Ok(Spec::new(DType::F32, q, k, k, q).check()?)
}

fn engine(threads: usize) -> Result<Engine, Failure> {
    Ok(Engine::new(&EngineOptions::default().threads(threads))?)
}

/// Calls `call` repeatedly for the time [`SLICE`], and returns the mean number of seconds per call.
fn slice(mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    call()?;
    let (start, mut calls) = (Instant::now(), 0u32);
    loop {
        call()?;
        calls += 1;
        let elapsed = start.elapsed();
        if elapsed >= SLICE {
            return Ok(elapsed.as_secs_f64() / f64::from(calls));
        }
    }
}

/// Computes the first result of this process and prints the microseconds of each step.
fn first() -> Result<(), Failure> {
    let data = Data::new([1, FIRST, FIRST, 64])?;
    let mut y = vec![0.0f32; data.q.len()];
    let clock = Instant::now();
    let mut last = 0.0;
    let mut lap = || {
        let now = clock.elapsed().as_secs_f64() * 1e6;
        now - std::mem::replace(&mut last, now)
    };
    let engine = Engine::new(&EngineOptions::default())?;
    let made = lap();
    let plan = engine.plan(&data.problem, &PlanOptions::default())?;
    let planned = lap();
    let mut workspace = plan.workspace()?;
    let mut bound = plan.bind(data.inputs(), Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?;
    let ready = lap();
    bound.run()?;
    let ran = lap();
    println!("{made} {planned} {ready} {ran}");
    Ok(())
}

fn start(request: &Request) -> Result<(), Failure> {
    request.title(&format!("a fresh process, 1 head, {FIRST} tokens, d = 64; microseconds"));
    let program = std::env::current_exe()?;
    let mut samples: [Vec<f64>; 5] = Default::default();
    for _ in 0..request.rounds {
        let clock = Instant::now();
        let mut child = Command::new(&program).arg("--first").stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        let whole = clock.elapsed().as_secs_f64() * 1e6;
        child.wait()?;
        let steps: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let steps = <[f64; 4]>::try_from(steps?).map_err(|_| format!("the child said: {line}"))?;
        for (to, x) in samples.iter_mut().zip(steps.into_iter().chain([whole])) {
            to.push(x);
        }
    }
    let names = ["engine", "plan", "workspace and binding", "first call", "process to first answer"];
    for (name, x) in names.iter().zip(samples) {
        let (n, [low, middle, high]) = (x.len(), quartiles(x));
        request.tell(
            &format!("{name:<26} {middle:>9.1} ({low:.1}-{high:.1}), {n} samples"),
            json!({"what": "start", "step": name, "microseconds": [low, middle, high], "samples": n}),
        );
    }
    Ok(())
}

fn plan(request: &Request) -> Result<(), Failure> {
    request.title("a plan; microseconds");
    let engine = engine(request.threads)?;
    for shape in PLANNED {
        let problem = problem(shape)?;
        let mut x = Vec::new();
        for _ in 0..request.rounds * 40 {
            let clock = Instant::now();
            let plan = engine.plan(&problem, &PlanOptions::default())?;
            x.push(clock.elapsed().as_secs_f64() * 1e6);
            drop(plan);
        }
        let (n, [low, middle, high]) = (x.len(), quartiles(x));
        request.tell(
            &format!("{:<26} {middle:>9.2} ({low:.2}-{high:.2}), {n} samples", format!("{shape:?}")),
            json!({"what": "plan", "shape": shape, "microseconds": [low, middle, high], "samples": n}),
        );
    }
    Ok(())
}

fn threads(request: &Request) -> Result<(), Failure> {
    let n = request.threads;
    request.title(&format!("{n} threads against one, 1 head, d = 64; times as fast"));
    let engines = [engine(1)?, engine(n)?];
    for tokens in SHARED {
        let data = Data::new([1, tokens, tokens, 64])?;
        let mut y = [vec![0.0f32; data.q.len()], vec![0.0f32; data.q.len()]];
        let mut quotients = Vec::new();
        {
            let [one, several] = &mut y;
            let plans = [
                engines[0].plan(&data.problem, &PlanOptions::default())?,
                engines[1].plan(&data.problem, &PlanOptions::default())?,
            ];
            let mut spaces = [plans[0].workspace()?, plans[1].workspace()?];
            let [first, second] = &mut spaces;
            let mut one = plans[0].bind(data.inputs(), Outputs::new(ElementsMut::F32(one)), first)?;
            let mut several =
                plans[1].bind(data.inputs(), Outputs::new(ElementsMut::F32(several)), second)?;
            for _ in 0..request.rounds {
                let alone = slice(|| Ok(one.run().map(drop)?))?;
                quotients.push(alone / slice(|| Ok(several.run().map(drop)?))?);
            }
        }
        if y[0].iter().zip(&y[1]).any(|(a, b)| a.to_bits() != b.to_bits()) {
            return Err(format!("{tokens} tokens: {n} threads give other bits than one").into());
        }
        let [low, middle, high] = quartiles(quotients);
        request.tell(
            &format!("{tokens:>6} tokens {middle:>8.2} ({low:.2}-{high:.2}), same bits"),
            json!({"what": "threads", "threads": n, "tokens": tokens, "speedup": [low, middle, high]}),
        );
    }
    Ok(())
}

/// Adds up the bits of `x` as integers, on `threads` threads.
fn read(x: &[f32], threads: usize) -> u32 {
    let part = x.len().div_ceil(threads);
    let add = |x: &[f32]| {
        let mut sums = [0u32; 64];
        for line in x.chunks_exact(64) {
            for (sum, x) in sums.iter_mut().zip(line) {
                *sum = sum.wrapping_add(x.to_bits());
            }
        }
        sums.into_iter().fold(0, u32::wrapping_add)
    };
    if threads == 1 {
        return add(x);
    }
    std::thread::scope(|scope| {
        let parts: Vec<_> = x.chunks(part).map(|x| scope.spawn(move || add(x))).collect();
        parts.into_iter().filter_map(|part| part.join().ok()).fold(0, u32::wrapping_add)
    })
}

/// Copies `from` to `to` on `threads` threads.
fn copy(from: &[f32], to: &mut [f32], threads: usize) {
    if threads == 1 {
        return to.copy_from_slice(from);
    }
    let part = from.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}

fn decode(request: &Request) -> Result<(), Failure> {
    for n in if request.threads == 1 { vec![1] } else { vec![1, request.threads] } {
        request.title(&format!("decode, 32 heads, 1 query, d = 128, {n} thread(s); GB/s"));
        let engine = engine(n)?;
        // A copy on several threads starts new threads each time. Small caches are left out, so that the start of
        // threads does not count.
        let caches = if n == 1 { &CACHES[..] } else { &CACHES[2..] };
        for &keys in caches {
            let data = Data::new([32, 1, keys, 128])?;
            let mut y = vec![0.0f32; data.q.len()];
            let plan = engine.plan(&data.problem, &PlanOptions::default())?;
            let mut workspace = plan.workspace()?;
            let mut bound =
                plan.bind(data.inputs(), Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?;
            let mut to = vec![0.0f32; data.k.len()];
            // Attention reads keys and values; a copy reads and writes as many bytes.
            let bytes = 8.0 * data.k.len() as f64;
            let (mut rates, mut copies, mut reads) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..request.rounds {
                rates.push(bytes / slice(|| Ok(bound.run().map(drop)?))? / 1e9);
                copies.push(
                    bytes
                        / slice(|| {
                            copy(&data.k, std::hint::black_box(&mut to), n);
                            Ok(())
                        })?
                        / 1e9,
                );
                reads.push(
                    bytes
                        / slice(|| {
                            std::hint::black_box(read(&data.k, n).wrapping_add(read(&data.v, n)));
                            Ok(())
                        })?
                        / 1e9,
                );
            }
            let of_read = quartiles(rates.iter().zip(&reads).map(|(a, b)| a / b).collect());
            let [low, middle, high] = quartiles(rates.iter().zip(&copies).map(|(a, b)| a / b).collect());
            let (rate, copied, added) = (quartiles(rates)[1], quartiles(copies)[1], quartiles(reads)[1]);
            request.tell(
                &format!(
                    "{keys:>6} keys, {:>6.1} MB: attention {rate:>6.1}, copy {copied:>6.1}, read {added:>6.1}; \
                     of copy {middle:.2} ({low:.2}-{high:.2}), of read {:.2} ({:.2}-{:.2})",
                    bytes / 1e6,
                    of_read[1],
                    of_read[0],
                    of_read[2]
                ),
                json!({"what": "decode", "threads": n, "keys": keys, "bytes": bytes, "gbytes": rate,
                    "copy": copied, "of_copy": [low, middle, high], "read": added, "of_read": of_read}),
            );
        }
    }
    Ok(())
}

fn error(request: &Request) -> Result<(), Failure> {
    request.title(&format!("relative L2 error of {ROWS} rows, 1 head, d = 64"));
    let engine = engine(request.threads)?;
    for keys in KEYS {
        let data = Data::new([1, ROWS, keys, 64])?;
        let mut y = vec![0.0f32; data.q.len()];
        let plan = engine.plan(&data.problem, &PlanOptions::default())?;
        let mut workspace = plan.workspace()?;
        plan.run(data.inputs(), Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?;
        let mut truth = vec![0.0f64; 64];
        let (mut off, mut norm) = (0.0, 0.0);
        for i in 0..ROWS {
            let _ = reference::row(&data.problem, &data.inputs(), 0, 0, i, &mut truth);
            for (got, want) in y[i * 64..(i + 1) * 64].iter().zip(&truth) {
                off += (f64::from(*got) - want).powi(2);
                norm += want * want;
            }
        }
        let error = (off / norm).sqrt();
        let additions = plan.certificate().executed.additions;
        request.tell(
            &format!("{keys:>6} keys {error:>9.2e}, {additions} additions on the longest path"),
            json!({"what": "error", "kernel": plan.kernel(), "keys": keys, "error": error,
                "additions": additions}),
        );
    }
    Ok(())
}

/// Returns the quartiles of `x`; the middle one is the median.
fn quartiles(mut x: Vec<f64>) -> [f64; 3] {
    x.sort_by(f64::total_cmp);
    let at =
        |quarter: usize| x.get((x.len().saturating_sub(1) * quarter + 2) / 4).copied().unwrap_or(f64::NAN);
    [at(1), at(2), at(3)]
}

/// Runs the parts that the command line names, or all of them.
fn main() -> Result<(), Failure> {
    if std::env::args().nth(1).is_some_and(|arg| arg == "--first") {
        return first();
    }
    let request = Request::parse(std::env::args().skip(1))?;
    if !request.json {
        let engine = engine(request.threads)?;
        println!(
            "{} threads, {}",
            request.threads,
            engine.plan(&problem([1, FIRST, FIRST, 64])?, &PlanOptions::default())?.kernel()
        );
    }
    for part in &request.parts {
        match part.as_str() {
            "start" => start(&request)?,
            "plan" => plan(&request)?,
            "threads" => threads(&request)?,
            "decode" => decode(&request)?,
            _ => error(&request)?,
        }
    }
    Ok(())
}
