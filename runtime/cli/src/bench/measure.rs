//! The measurement of one shape.

use crate::args::warn_without_half_scores;
use crate::error::Error;
use crate::memory::Buffer;
use crate::oracle::{Comparison, Oracle, Total};
use crate::rows::{for_rows, output_row, rows, sample};
use crate::shape::{Data, MaskForm, Shape};
use elsa_core::attention::plan::ChooseError;
use elsa_core::attention::{Outputs, Windows};
use elsa_core::drift::percentile;
use elsa_core::dtype::{DType, Elements};
use elsa_runtime::{Backend, Bound, Engine, Method, Plan, PlanError, PlanOptions};
use serde::Serialize;
use stats_alloc::INSTRUMENTED_SYSTEM;
use std::sync::Once;
use std::time::{Duration, Instant};

/// [`Method::Elsa`] in records and flags.
pub const ELSA: &str = "elsa";
/// [`Method::Math`] in records and flags.
pub const MATH: &str = "math";

/// Time that one method runs before the other takes over.
const SLICE: Duration = Duration::from_millis(4);

/// The most samples that are kept: enough for every quantile that is reported.
const SAMPLES: usize = 1 << 20;

/// The most multiplications that the oracle does for one answer. Larger shapes are sampled.
const ORACLE: usize = 1 << 28;

/// The latency of one method on one shape, which `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// `bench`.
    pub what: &'static str,
    /// The back end that computed.
    pub backend: String,
    /// Its kernel.
    pub kernel: &'static str,
    /// `elsa` or `math`.
    pub method: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// Sequences.
    pub batch: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Query tokens.
    pub queries: usize,
    /// Key tokens.
    pub n: usize,
    /// Head size.
    pub d: usize,
    /// The corner of the causal mask; null without one.
    pub causal: Option<&'static str>,
    /// The sides of the sliding window, −1 where it is open; null without one.
    pub window: Option<[i64; 2]>,
    /// The form of the mask; null without one.
    pub mask: Option<&'static str>,
    /// The windows of a picture; null without.
    pub windows: Option<Grid>,
    /// The shape whole, as it is written.
    pub shape: String,
    /// Timed calls, without the cold one.
    pub samples: usize,
    /// Median latency.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Greatest latency.
    pub max_ms: f64,
    /// Latency of the first call; on a GPU with the loading of its kernels.
    pub cold_ms: f64,
    /// Operations per second at the median latency, in 10⁹.
    pub gflops: f64,
    /// Workspace of the plan.
    pub workspace_bytes: usize,
    /// Bytes allocated during all timed calls together.
    pub alloc_bytes: usize,
    /// Median of math over the median of this method; null if math was not measured.
    pub speedup_vs_math: Option<f64>,
    /// Relative L2 distance from the oracle.
    pub rel_l2: f64,
    /// Whether that distance is within the certificate.
    pub certified: bool,
    /// Energy of a call.
    pub energy_mj: Option<f64>,
    /// Power while running.
    pub power_mw: Option<f64>,
    /// Temperature of the hottest thermal zone.
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

/// The windows of a picture in records: rows and columns, in tokens.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Grid {
    /// The picture.
    pub picture: [usize; 2],
    /// A window.
    pub size: [usize; 2],
    /// How far the picture was rolled.
    pub shift: [usize; 2],
}

impl From<Windows> for Grid {
    fn from(Windows { picture, size, shift }: Windows) -> Grid {
        Grid { picture, size, shift }
    }
}

/// One method on one shape.
struct Contender<'a> {
    bound: Bound<'a>,
    backend: Backend,
    /// Latencies in milliseconds.
    times: Vec<f64>,
    /// Bytes allocated so far.
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
            // The capacity is reserved, so keeping a sample allocates nothing.
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

/// Measures `methods` on `shape` for about `seconds`; on a GPU only the method elsa. `lenient`: of several methods,
/// one beside the first is left out where the budget has no room for it. Returns each record with the comparison of
/// its answer.
///
/// # Errors
/// Options that the engine refuses, and failures of the device or of memory.
pub fn measure(
    engine: &Engine,
    methods: &[Method],
    lenient: bool,
    options: &PlanOptions,
    dtype: DType,
    shape: Shape,
    seconds: f64,
) -> Result<Vec<(Record, Total)>, Error> {
    let problem = shape.problem(dtype)?;
    let spec = problem.spec();
    let data = Data::random(&shape, &problem)?;
    let inputs = data.inputs();

    let on_gpu = engine.backend() == Backend::Cuda;
    let methods = methods.iter().copied().filter(|method| !on_gpu || *method == Method::Elsa);
    let mut plans: Vec<Plan> = Vec::new();
    let (mut planned, mut loading) = (Vec::new(), Vec::new());
    for method in methods {
        let before = engine.loaded_kernels().len();
        let options = PlanOptions { method, ..*options };
        let plan = match engine.plan(&problem, &options) {
            Err(PlanError::Refused(ChooseError::Budget { needed, .. })) if lenient && !plans.is_empty() => {
                warn_without_room(method, shape, needed);
                continue;
            }
            Err(PlanError::Refused(ChooseError::Budget { needed, budget })) => {
                return Err(Error::Argument {
                    argument: "budget",
                    found: format!("{budget} bytes"),
                    allowed: format!(
                        "at least {needed} for the method {} at {} keys",
                        name(method),
                        shape.keys
                    ),
                });
            }
            plan => plan?,
        };
        warn_without_half_scores(&options, &plan);
        plans.push(plan);
        planned.push(method);
        loading.push(engine.loaded_kernels()[before..].iter().map(|kernel| kernel.ms).sum::<f64>());
    }
    let mut workspaces = Vec::new();
    let mut outputs = Vec::new();
    for plan in &plans {
        workspaces.push(plan.workspace()?);
        outputs.push(Buffer::zeros("out", dtype, spec.output.extent())?);
    }

    // The first call of each method. Its answer is kept and checked.
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
        if start.elapsed().as_secs_f64() >= seconds {
            break;
        }
    }
    // Copies the answers back from the GPU's memory, where timed calls leave them.
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
        // The last call must have returned the bits of the first.
        total.explained.beyond += differing(firsts[i].elements(), outputs[i].elements());
        let rel_l2 = total.relative();
        let certificate = plans[i].certificate_of(backend);
        records.push((
            Record {
                what: "bench",
                backend: backend.to_string(),
                kernel: plans[i].kernel_of(backend),
                method: name(planned[i]),
                dtype: dtype.name(),
                batch: shape.batch,
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                queries: shape.queries,
                n: shape.keys,
                d: shape.dim,
                causal: shape.corner(),
                window: shape.sides(),
                mask: shape.mask.map(MaskForm::name),
                windows: shape.windows.map(Grid::from),
                shape: shape.to_string(),
                samples,
                p50_ms: p50,
                p90_ms: p90,
                p99_ms: p99,
                max_ms: max,
                cold_ms: colds[i],
                gflops: shape.operations() / (p50 * 1e6),
                workspace_bytes: plans[i].workspace_bytes(),
                alloc_bytes,
                speedup_vs_math: None,
                rel_l2,
                certified: total.explained.holds()
                    && rel_l2 <= certificate.published_bound + certificate.output_rounding,
                energy_mj: None,
                power_mw: None,
                temp_c: None,
                gpu_mhz: None,
                cpu_mhz: None,
                emc_mhz: None,
                throttled: None,
            },
            total,
        ));
    }
    let math = records.iter().find(|(record, _)| record.method == MATH).map(|(record, _)| record.p50_ms);
    for (record, _) in &mut records {
        record.speedup_vs_math = math.map(|math| math / record.p50_ms);
    }
    Ok(records)
}

/// The name of a method in records and flags.
fn name(method: Method) -> &'static str {
    match method {
        Method::Elsa => ELSA,
        Method::Math => MATH,
    }
}

/// Warns once that a method is left out.
fn warn_without_room(method: Method, shape: Shape, needed: usize) {
    static WARNED: Once = Once::new();
    let (method, keys) = (name(method), shape.keys);
    WARNED.call_once(|| {
        log::warn!("--budget has no room for {method}: {needed} bytes at {keys} keys; where it has none, {method} is left out");
    });
}

/// The number of elements whose bits differ.
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
