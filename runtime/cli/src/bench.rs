//! `elsa bench`: latency on the machine at hand, every answer checked.
//!
//! For each shape and method the problem is planned and bound once. The first call is the cold one. Then the
//! methods take turns in slices of a few milliseconds, so that a machine that warms up or is disturbed does the
//! same to both, until the time for the shape is over. Nothing but the call is inside the clock; on a GPU the
//! tensors stay in its memory, as in a pipeline that lives there. The first answer
//! is compared with the f64 oracle, component by component, against the worst case of [`elsa_core::attention::bound::rounding`]; the last
//! one must equal it bit for bit.

use crate::args::{BenchArgs, Shape};
use crate::board;
use crate::data::Random;
use crate::error::Error;
use crate::oracle::{Comparison, Oracle, Total, for_rows, output_row, rows, sample};
use crate::tensor::output::Buffer;
use crate::{info, job};
use elsa_core::attention::{Inputs, Outputs};
use elsa_core::drift::percentile;
use elsa_core::dtype::Elements;
use elsa_runtime::{Backend, Bound, Engine, Method, Plan, PlanOptions};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use stats_alloc::INSTRUMENTED_SYSTEM;
use std::io::Write;
use std::time::{Duration, Instant};

/// What is said below the flags.
pub const HELP: &str = "\
Without --shape: tokens 64 100 144 196 256 324 400 484 576 676 784 900 at head size 64. The inputs are standard
normal. math is the same call with the score matrix materialised; a GPU has none, and elsa alone is measured
there, with tensors that stay in its memory. The cold call copies them, and loads the kernels. GFLOP/s counts 4 * B * H * NQ * NK * D
operations for a call. rel L2 is the distance from the f64 oracle, over all rows or, for large shapes, over an
even sample of them. certified says that it does not exceed the bound published with ELSA, plus the rounding of
the output for f16 and bf16. --json prints one object per line; n is NK; what the board does not tell is null.
Exit status 4: an answer is wrong, that is, further from the oracle than rounding explains.";

/// Tokens of the default grid: the sequence lengths of ELSA table 6.
pub const GRID: [usize; 12] = [64, 100, 144, 196, 256, 324, 400, 484, 576, 676, 784, 900];

/// Time that one method runs before the other takes over.
const SLICE: Duration = Duration::from_millis(4);

/// Samples that are kept; enough for any quantile that is reported.
const SAMPLES: usize = 1 << 20;

/// Multiplications that the oracle may take on for one answer. Larger shapes are sampled.
const ORACLE: usize = 1 << 28;

/// One line of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// `bench`.
    pub what: &'static str,
    /// Back end that computed.
    pub backend: String,
    /// Its kernel.
    pub kernel: &'static str,
    /// `elsa` or `math`.
    pub method: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// Sequences.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Key tokens.
    pub n: usize,
    /// Head size.
    pub d: usize,
    /// Timed calls, the cold one not among them.
    pub samples: usize,
    /// Median latency.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Greatest.
    pub max_ms: f64,
    /// First call; on a GPU with the loading of its kernels.
    pub cold_ms: f64,
    /// At the median.
    pub gflops: f64,
    /// Of the plan.
    pub workspace_bytes: usize,
    /// Allocated during all timed calls together.
    pub alloc_bytes: usize,
    /// Median of math over the median of this method; null when math was not measured.
    pub speedup_vs_math: Option<f64>,
    /// Distance from the oracle.
    pub rel_l2: f64,
    /// Whether that is within the certificate.
    pub certified: bool,
    /// Energy of a call.
    pub energy_mj: Option<f64>,
    /// Power while running.
    pub power_mw: Option<f64>,
    /// Hottest thermal zone.
    pub temp_c: Option<f64>,
    /// GPU clock.
    pub gpu_mhz: Option<f64>,
    /// CPU clock.
    pub cpu_mhz: Option<f64>,
    /// Memory clock.
    pub emc_mhz: Option<f64>,
    /// Whether the board reports throttling.
    pub throttled: Option<bool>,
}

/// Runs the command.
///
/// # Errors
/// Wrong requests, failing devices, and answers that are wrong.
pub fn bench(args: &BenchArgs) -> Result<(), Error> {
    let engine = job::engine(&args.engine)?;
    if engine.backend() == Backend::Cuda && args.method.math {
        if !args.method.elsa {
            return Err(Error::Argument {
                argument: "method",
                found: "math with the back end cuda".into(),
                allowed: "elsa, or another back end".into(),
            });
        }
        log::warn!("the back end cuda has no method math; elsa alone is measured");
    }
    let shapes: Vec<Shape> = if args.shape.is_empty() {
        GRID.map(|n| Shape { batch: 1, heads: args.heads, queries: n, keys: n, dim: 64 }).to_vec()
    } else {
        args.shape.clone()
    };
    let mut out = std::io::stdout().lock();
    let progress = progress(shapes.len() as u64, args.seconds * shapes.len() as f64);
    let mut header = false;
    for shape in &shapes {
        progress.set_message(format!("{}x{}x{}x{}", shape.batch, shape.heads, shape.queries, shape.keys));
        let records = measure(&engine, args, *shape)?;
        progress.suspend(|| -> Result<(), Error> {
            if args.json {
                for (record, _) in &records {
                    writeln!(out, "{}", crate::json(record)?)?;
                }
            } else {
                if !header {
                    writeln!(out, "{}", headline(&engine, args, &records))?;
                    header = true;
                }
                writeln!(out, "{}", row(shape, &records))?;
            }
            Ok(out.flush()?)
        })?;
        progress.inc(1);
        for (record, total) in &records {
            let explained = &total.explained;
            if !explained.holds() {
                return Err(Error::Verification(format!(
                    "{} at {} tokens: {} components are not finite, {} further from the oracle than rounding \
                     explains; rel L2 {:.3e}, allowed {:.3e}",
                    record.method,
                    record.n,
                    explained.not_finite,
                    explained.beyond,
                    record.rel_l2,
                    explained.worst()
                )));
            }
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// A bar on standard error that shows only on a terminal, and only for work of more than a second.
#[must_use]
pub fn progress(steps: u64, seconds: f64) -> ProgressBar {
    if seconds <= 1.0 {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// A spinner for one call of about `seconds`, shown as [`progress`] is.
#[must_use]
pub fn spinner(seconds: f64) -> ProgressBar {
    if seconds <= 1.0 {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn headline(engine: &Engine, args: &BenchArgs, records: &[(Record, Total)]) -> String {
    let kernel = records.first().map_or("", |(record, _)| record.kernel);
    let cpu = board::cpu_model().unwrap_or_else(|| "unknown CPU".into());
    let device = match engine.device() {
        Some(device) => device.name.clone(),
        None => format!("{} threads, {cpu}", engine.threads()),
    };
    format!(
        "{}, kernel {kernel}, {}, {device}\n\
         {:>7} {:>11} {:>11} {:>9} {:>9} {:>10} {:>11}",
        engine.backend(),
        args.dtype,
        "tokens",
        "elsa ms",
        "math ms",
        "speedup",
        "GFLOP/s",
        "rel L2",
        "workspace"
    )
}

fn row(shape: &Shape, records: &[(Record, Total)]) -> String {
    let of = |method: &str| records.iter().map(|(record, _)| record).find(|record| record.method == method);
    let ms = |record: Option<&Record>| record.map_or("-".into(), |r| format!("{:.4}", r.p50_ms));
    let (elsa, math) = (of("elsa"), of("math"));
    let speedup = elsa.and_then(|r| r.speedup_vs_math).map_or("-".into(), |x| format!("{x:.2}x"));
    let told = elsa.or(math);
    let tokens = if shape.queries == shape.keys {
        shape.keys.to_string()
    } else {
        format!("{}/{}", shape.queries, shape.keys)
    };
    format!(
        "{tokens:>7} {:>11} {:>11} {speedup:>9} {:>9.2} {:>10.2e} {:>11}",
        ms(elsa),
        ms(math),
        told.map_or(f64::NAN, |r| r.gflops),
        told.map_or(f64::NAN, |r| r.rel_l2),
        told.map_or(0, |r| r.workspace_bytes),
    )
}

/// One method on one shape.
struct Contender<'a> {
    bound: Bound<'a>,
    backend: elsa_runtime::Backend,
    times: Vec<f64>,
    alloc: usize,
}

impl Contender<'_> {
    /// Runs for a slice of time.
    fn slice(&mut self) -> Result<(), Error> {
        let before = INSTRUMENTED_SYSTEM.stats();
        let start = Instant::now();
        let mut last = start;
        loop {
            self.backend = self.bound.run_resident()?.backend;
            let now = Instant::now();
            // Capacity was reserved, so that keeping a sample allocates nothing.
            if self.times.len() < self.times.capacity() {
                self.times.push((now - last).as_secs_f64() * 1e3);
            }
            last = now;
            if now - start >= SLICE {
                break;
            }
        }
        let change = INSTRUMENTED_SYSTEM.stats() - before;
        self.alloc += change.bytes_allocated + usize::try_from(change.bytes_reallocated).unwrap_or(0);
        Ok(())
    }
}

fn measure(engine: &Engine, args: &BenchArgs, shape: Shape) -> Result<Vec<(Record, Total)>, Error> {
    let problem = info::problem(args.dtype, shape)?;
    let spec = problem.spec();
    let mut random = Random::new(2);
    let query = random.normals("shape", args.dtype, spec.query.extent(), 1.0)?;
    let key = random.normals("shape", args.dtype, spec.key.extent(), 1.0)?;
    let value = random.normals("shape", args.dtype, spec.value.extent(), 1.0)?;
    let inputs = Inputs::new(query.elements(), key.elements(), value.elements());

    let on_gpu = engine.backend() == Backend::Cuda;
    let methods: Vec<Method> =
        args.method.iter().filter(|method| !on_gpu || *method == Method::Elsa).collect();
    let mut plans: Vec<Plan> = Vec::new();
    let mut loading = Vec::new();
    for &method in &methods {
        let before = engine.loaded_kernels().len();
        let options = PlanOptions { method, ..args.engine.plan_options() };
        plans.push(engine.plan(&problem, &options)?);
        loading.push(engine.loaded_kernels()[before..].iter().map(|kernel| kernel.ms).sum::<f64>());
    }
    let mut workspaces = Vec::new();
    let mut outputs = Vec::new();
    for plan in &plans {
        workspaces.push(plan.workspace()?);
        outputs.push(Buffer::zeros("out", args.dtype, spec.output.extent())?);
    }

    // The first call of each, its answer kept and checked.
    let all = rows(&problem, &inputs);
    let per_row = shape.keys.saturating_mul(4 * shape.dim).max(1);
    let checked = sample(&all, (ORACLE / per_row).max(16));
    let (mut colds, mut firsts, mut compared) = (Vec::new(), Vec::new(), Vec::new());
    for (i, ((plan, workspace), output)) in plans.iter().zip(&mut workspaces).zip(&mut outputs).enumerate() {
        let mut bound = plan.bind(inputs, Outputs::new(output.elements_mut()), workspace)?;
        let start = Instant::now();
        let report = bound.run()?;
        colds.push(loading[i] + start.elapsed().as_secs_f64() * 1e3);
        let found = output.elements();
        let executed = plan.certificate_of(report.backend).executed;
        compared.push(for_rows(
            &checked,
            || Oracle::new(&problem, inputs, &executed),
            |oracle, row| {
                oracle.row(row);
                let at = output_row(&problem, &inputs, row);
                Comparison::of(oracle, |c| f64::from(found.get(at + c)))
            },
            |_| {},
        ));
        firsts.push(output.clone());
    }

    let mut contenders = Vec::new();
    for ((plan, workspace), output) in plans.iter().zip(&mut workspaces).zip(&mut outputs) {
        let bound = plan.bind(inputs, Outputs::new(output.elements_mut()), workspace)?;
        let times = Vec::with_capacity(SAMPLES);
        contenders.push(Contender { bound, backend: plan.backend(), times, alloc: 0 });
    }
    let start = Instant::now();
    loop {
        for contender in &mut contenders {
            contender.slice()?;
        }
        if start.elapsed().as_secs_f64() >= args.seconds {
            break;
        }
    }
    // Brings the answer back from where the timed calls left it.
    for contender in &mut contenders {
        contender.bound.run()?;
    }
    let measured: Vec<_> = contenders.into_iter().map(|c| (c.backend, c.times, c.alloc)).collect();
    let mut records = Vec::new();
    for (i, (backend, mut times, alloc_bytes)) in measured.into_iter().enumerate() {
        let samples = times.len();
        let [p50, p90, p99, max] =
            [50, 90, 99, 100].map(|percent| percentile(&mut times, percent).unwrap_or(f64::NAN));
        let mut total = Total::of(&compared[i]);
        // Every later call must give the bits of the first.
        total.explained.beyond += differing(firsts[i].elements(), outputs[i].elements());
        let rel_l2 = total.relative();
        let certificate = plans[i].certificate_of(backend);
        let flops = 4.0
            * shape.batch as f64
            * shape.heads as f64
            * shape.queries as f64
            * shape.keys as f64
            * shape.dim as f64;
        records.push((
            Record {
                what: "bench",
                backend: backend.to_string(),
                kernel: plans[i].kernel_of(backend),
                method: if methods[i] == Method::Elsa { "elsa" } else { "math" },
                dtype: args.dtype.name(),
                batch: shape.batch,
                heads: shape.heads,
                n: shape.keys,
                d: shape.dim,
                samples,
                p50_ms: p50,
                p90_ms: p90,
                p99_ms: p99,
                max_ms: max,
                cold_ms: colds[i],
                gflops: flops / (p50 * 1e6),
                workspace_bytes: plans[i].workspace_bytes(),
                alloc_bytes,
                speedup_vs_math: None,
                rel_l2,
                certified: total.explained.holds()
                    && rel_l2 <= certificate.published_bound + certificate.output_rounding,
                energy_mj: None,
                power_mw: None,
                temp_c: board::temperature(),
                gpu_mhz: None,
                cpu_mhz: board::cpu_mhz(),
                emc_mhz: None,
                throttled: None,
            },
            total,
        ));
    }
    let math = records.iter().find(|(record, _)| record.method == "math").map(|(record, _)| record.p50_ms);
    for (record, _) in &mut records {
        record.speedup_vs_math = math.map(|math| math / record.p50_ms);
    }
    Ok(records)
}

/// Elements of two tensors whose bits differ.
fn differing(a: Elements<'_>, b: Elements<'_>) -> usize {
    (0..a.len().max(b.len()))
        .filter(|&i| i >= a.len() || i >= b.len() || a.get(i).to_bits() != b.get(i).to_bits())
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_bits_are_counted() {
        let (zero, minus) = ([0.0f32, 1.0], [-0.0f32, 1.0]);
        assert_eq!(differing(Elements::F32(&zero), Elements::F32(&zero)), 0);
        assert_eq!(differing(Elements::F32(&zero), Elements::F32(&minus)), 1);
    }
}
