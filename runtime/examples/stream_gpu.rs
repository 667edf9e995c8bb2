//! Compares streaming on a GPU with runs in memory: their times, the overlap of transfers with computation, and the
//! memory in use under a budget.
//!
//! `cargo run --release -p elsa-runtime --example stream_gpu [keys]`. Keys and values are in page-locked memory. In the
//! first table, all queries are resident; `speed` is the device time of the in-memory run divided by the device time of
//! the stream. In the second table, device memory is limited by a budget; `taken` is the decrease of free device
//! memory.

use elsa_core::attention::{Inputs, Lengths, Outputs, Problem, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use elsa_runtime::{
    Engine, EngineOptions, Fallback, Fitted, GpuStream, HostBuffer, KeysFrom, PlanOptions, StreamBudget,
    StreamCall, StreamKeys, StreamRows, StreamTimes, StreamTokens, StreamWants,
};
use half::f16;

type Failure = Box<dyn std::error::Error>;

/// Number of runs of each kind. The median of these runs is reported.
const RUNS: usize = 5;
const WANTS: StreamWants = StreamWants::new(KeysFrom::Host);

/// Element type and sizes of a problem.
#[derive(Clone, Copy)]
struct Shape {
    dtype: DType,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    d: usize,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { dtype, heads, kv_heads, queries, keys, d } = self;
        write!(f, "{dtype} {heads}/{kv_heads} x {queries} x {keys} x {d}")
    }
}

/// Fills `bytes` with a sine wave in elements of type `dtype`.
fn wave(bytes: &mut [u8], dtype: DType, step: f32) {
    match dtype {
        DType::F32 => {
            for (i, x) in bytes.chunks_exact_mut(4).enumerate() {
                x.copy_from_slice(&((i % 65_521) as f32 * step).sin().to_ne_bytes());
            }
        }
        _ => {
            for (i, x) in bytes.chunks_exact_mut(2).enumerate() {
                x.copy_from_slice(&f16::from_f32(((i % 65_521) as f32 * step).sin()).to_ne_bytes());
            }
        }
    }
}

/// Tensors in page-locked memory.
struct Data {
    problem: Problem,
    query: HostBuffer<u8>,
    key: HostBuffer<u8>,
    value: HostBuffer<u8>,
}

impl Data {
    fn new(engine: &Engine, shape: Shape) -> Result<Data, Failure> {
        let Shape { dtype, heads, kv_heads, queries, keys, d } = shape;
        let query = View::dense("q", Layout::Bhnd, &[heads, queries, d], None)?;
        let key = View::dense("k", Layout::Bhnd, &[kv_heads, keys, d], None)?;
        let problem = Spec::new(dtype, query, key, key, query).check()?;
        let filled = |view: View, step| -> Result<HostBuffer<u8>, Failure> {
            let mut buffer = engine.host_buffer::<u8>(view.count() * dtype.size())?;
            wave(&mut buffer, dtype, step);
            Ok(buffer)
        };
        Ok(Data { problem, query: filled(query, 0.37)?, key: filled(key, 0.11)?, value: filled(key, 0.23)? })
    }

    fn stream(&self, stream: &mut GpuStream, output: &mut [u8]) -> Result<StreamTimes, Failure> {
        let size = self.problem.spec().dtype.size();
        let (heads, row) = (self.problem.heads(), self.problem.head_dim() * size);
        let tokens = self.problem.spec().query.tokens();
        let mut queries = |StreamTokens { tokens: range, .. }: &StreamTokens, to: &mut [u8]| {
            for (h, to) in (0..heads).zip(to.chunks_exact_mut(range.len() * row)) {
                to.copy_from_slice(&self.query[(h * tokens + range.start) * row..][..range.len() * row]);
            }
            Ok(())
        };
        let mut results = |rows: &StreamRows<'_>| {
            let len = rows.tokens.len() * row;
            for (h, from) in (0..heads).zip(rows.output.chunks_exact(len)) {
                output[(h * tokens + rows.tokens.start) * row..][..len].copy_from_slice(from);
            }
            Ok(())
        };
        let keys = StreamKeys::Host { key: &self.key, value: &self.value };
        let lengths = Lengths::default();
        let (queries, results) = (&mut queries, &mut results);
        Ok(stream.run(StreamCall { lengths, queries, keys, addends: None, results, from: 0 })?)
    }

    /// Runs the problem in memory; returns the device time in milliseconds and the output.
    fn in_memory(&self, engine: &Engine) -> Result<(f64, Vec<u8>), Failure> {
        let plan = engine.plan(&self.problem, &PlanOptions::default())?;
        let mut workspace = plan.workspace()?;
        let view = self.problem.spec().output;
        let mut times = Vec::new();
        let bytes = match self.problem.spec().dtype {
            DType::F32 => {
                let of = |bytes: &[u8]| -> Vec<f32> {
                    bytes
                        .chunks_exact(4)
                        .map(|x| f32::from_ne_bytes(x.try_into().unwrap_or_default()))
                        .collect()
                };
                let (q, k, v) = (of(&self.query), of(&self.key), of(&self.value));
                let mut y = vec![0.0f32; view.count()];
                let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
                let mut bound = plan.bind(inputs, Outputs::new(ElementsMut::F32(&mut y)), &mut workspace)?;
                bound.run()?;
                for _ in 0..RUNS {
                    times.push(device_ms(bound.run_timed()?.1));
                }
                bound.run()?;
                drop(bound);
                y.iter().flat_map(|x| x.to_ne_bytes()).collect()
            }
            _ => {
                let of = |bytes: &[u8]| -> Vec<f16> {
                    bytes
                        .chunks_exact(2)
                        .map(|x| f16::from_ne_bytes(x.try_into().unwrap_or_default()))
                        .collect()
                };
                let (q, k, v) = (of(&self.query), of(&self.key), of(&self.value));
                let mut y = vec![f16::ZERO; view.count()];
                let inputs = Inputs::new(Elements::F16(&q), Elements::F16(&k), Elements::F16(&v));
                let mut bound = plan.bind(inputs, Outputs::new(ElementsMut::F16(&mut y)), &mut workspace)?;
                bound.run()?;
                for _ in 0..RUNS {
                    times.push(device_ms(bound.run_timed()?.1));
                }
                bound.run()?;
                drop(bound);
                y.iter().flat_map(|x| x.to_ne_bytes()).collect()
            }
        };
        Ok((median(times), bytes))
    }
}

fn device_ms(times: Option<elsa_runtime::CallTimes>) -> f64 {
    times.map_or(f64::NAN, |times| times.device.as_secs_f64() * 1e3)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the largest difference between two outputs, or NaN if a difference is NaN.
fn difference(a: &[u8], b: &[u8], dtype: DType) -> f64 {
    let value = |x: &[u8]| match dtype {
        DType::F32 => f32::from_ne_bytes(x.try_into().unwrap_or_default()),
        _ => f16::from_ne_bytes(x.try_into().unwrap_or_default()).to_f32(),
    };
    let pairs = a.chunks_exact(dtype.size()).zip(b.chunks_exact(dtype.size()));
    pairs
        .map(|(a, b)| f64::from((value(a) - value(b)).abs()))
        .fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

fn fitted(engine: &Engine, problem: &Problem, device: Option<usize>) -> Result<GpuStream, Failure> {
    let budget = StreamBudget { device, pinned: None };
    match GpuStream::fit(engine, problem, &WANTS, &budget)? {
        Fitted::Gpu(stream, _) => Ok(*stream),
        Fitted::Cpu { reason, .. } => Err(reason.into()),
    }
}

fn main() -> Result<(), Failure> {
    let keys = std::env::args().nth(1).map_or(Ok(1 << 19), |text| text.parse::<usize>())?;
    let engine =
        Engine::new(&EngineOptions::default().backend(elsa_runtime::Backend::Cuda).fallback(Fallback::Fail))?;
    println!("{}", engine.device().map_or("", |device| &device.name));
    println!(
        "{:<34}{:>8}{:>8}{:>8}{:>9}{:>9}{:>9}{:>9}{:>7}{:>8}{:>10}",
        "shape",
        "chunk",
        "splits",
        "memory",
        "stream",
        "copy",
        "compute",
        "wait",
        "speed",
        "overlap",
        "largest"
    );
    let f32 =
        |heads, kv_heads, queries, keys, d| Shape { dtype: DType::F32, heads, kv_heads, queries, keys, d };
    let f16 =
        |heads, kv_heads, queries, keys, d| Shape { dtype: DType::F16, heads, kv_heads, queries, keys, d };
    for shape in [
        f32(1, 1, 1024, keys, 64),
        f32(1, 1, 4096, keys, 64),
        f32(1, 1, 8192, keys, 64),
        f32(1, 1, 4096, keys, 128),
        f32(8, 2, 4096, keys / 4, 128),
        f16(1, 1, 4096, keys, 64),
        f16(8, 2, 4096, keys / 4, 128),
    ] {
        let data = Data::new(&engine, shape)?;
        let (memory, want) = data.in_memory(&engine)?;
        let mut stream = fitted(&engine, &data.problem, None)?;
        let mut output = vec![0; want.len()];
        data.stream(&mut stream, &mut output)?;
        let mut all = Vec::new();
        for _ in 0..RUNS {
            all.push(data.stream(&mut stream, &mut output)?);
        }
        all.sort_by(|a, b| a.total_ms.total_cmp(&b.total_ms));
        let t = all[all.len() / 2];
        let division = stream.division();
        println!(
            "{:<34}{:>8}{:>8}{memory:>8.2}{:>9.2}{:>9.2}{:>9.2}{:>9.3}{:>7.3}{:>8.4}{:>10.1e}",
            shape.to_string(),
            division.keys,
            division.splits,
            t.total_ms,
            t.copy_ms,
            t.compute_ms,
            t.wait_ms,
            memory / t.total_ms,
            t.overlap(),
            difference(&want, &output, shape.dtype)
        );
    }
    println!(
        "\n{:<34}{:>10}{:>8}{:>8}{:>8}{:>8}{:>12}{:>12}{:>8}{:>9}",
        "shape", "budget", "rows", "of", "chunk", "splits", "planned", "taken", "used", "ms"
    );
    for mebibytes in [64usize, 256, 1024] {
        for shape in [f32(8, 8, 65_536, 8192, 64), f16(32, 8, 32_768, 8192, 128)] {
            let data = Data::new(&engine, shape)?;
            let budget = mebibytes << 20;
            // Loads the kernels first, so that their memory is not counted.
            GpuStream::kernel_rows(&engine, &data.problem, false)?;
            engine.load_kernels()?;
            let before = engine.free_device_memory()?.unwrap_or(0);
            let mut stream = fitted(&engine, &data.problem, Some(budget))?;
            let mut output = vec![0; data.query.len()];
            let times = data.stream(&mut stream, &mut output)?;
            let taken = before.saturating_sub(engine.free_device_memory()?.unwrap_or(0));
            let division = stream.division();
            println!(
                "{:<34}{:>6} MiB{:>8}{:>8}{:>8}{:>8}{:>12}{taken:>12}{:>8.3}{:>9.1}",
                shape.to_string(),
                mebibytes,
                division.rows,
                shape.queries,
                division.keys,
                division.splits,
                stream.bytes()[0],
                stream.bytes()[0] as f64 / budget as f64,
                times.total_ms
            );
            if taken > budget {
                return Err(format!("{taken} bytes are taken of {budget}").into());
            }
        }
    }
    Ok(())
}
