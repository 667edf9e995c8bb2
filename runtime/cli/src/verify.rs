//! `elsa verify`: the answer against the f64 oracle.
//!
//! The answer `Y` is compared row by row with [`elsa_core::attention::reference`]. The probabilities `P` as executed are
//! extracted by running the same plan options on the same queries and keys with one-hot values: with columns
//! `j0..j1` of the identity as values, the output is `P[:, j0..j1]`. Their output type is the problem's, so
//! for f16 and bf16 the figures of `P` hold that rounding.
//!
//! The six metrics are those of ELSA section C.2 as [`elsa_core::drift`] defines them; each as median, 95th and
//! 99th percentile over rows, and in total. NaN that is attended makes them NaN.
//!
//! What fails is what rounding cannot explain, by the worst case of [`elsa_core::attention::bound::rounding`], which nothing
//! here tunes: a component of Y further from the oracle than that; one that is finite where the oracle's is
//! not, or the reverse; a row whose most likely key differs although the oracle's two keys lie further apart
//! than their errors allow.
//!
//! The worst case is far from what happens. More components beyond the likely case of the same module than its
//! model expects are therefore a warning, and for the built-in scenarios a failure: their numbers are random
//! and independent, as the model wants. Tensors from files may repeat tokens, and with them roundings.

use crate::args::{Scenario, VerifyArgs};
use crate::bench::progress;
use crate::data::Random;
use crate::error::{Error, zeros};
use crate::job::{self, Job};
use crate::oracle::{Comparison, Explained, Oracle, RowId, Total, for_rows, output_row, rows, sample};
use crate::tensor::output::Buffer;
use elsa_core::attention::bound::rounding::UNLIKELY;
use elsa_core::attention::certificate::{Certificate, Executed};
use elsa_core::attention::{Alignment, Inputs, Outputs, Problem, Spec, Window};
use elsa_core::attention::{MaskElements, MaskKind, MaskView};
use elsa_core::drift::{Drift, Metrics, RowDrift, percentile};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use elsa_runtime::{Engine, PlanOptions};
use indicatif::ProgressBar;
use serde::{Serialize, Serializer};
use std::collections::HashMap;
use std::io::Write;

/// What is said below the flags.
pub const HELP: &str = "\
The answer is compared with attention in f64. Verification fails (exit status 4) when
- a component of Y lies further from the oracle than rounding can take it in the worst case:
  |dY| <= (1 + h) [sum p_j F_j |v_j - y| + (g(A) + g(A+1)) sum p_j (1 + E_j) |v_j|] / (1 - D) + h |y| + t
  with u = 2^-24, g(k) = k u / (1 - k u), A the additions on the way of a weight, E_j = exp(delta_j) - 1,
  delta_j = g(d+6) |scale| sum |q||k_j| + u [5 |mask_j| + 2 (|ln p_j| + 6) + 8 (1 + softcap)],
  and where f16 is summed in halves, chains of c: + c 2^-11 / (1 - c 2^-11) of that magnitude + |scale| d 2^-25;
  F_j = (1 + E_j)(1 + g(A)) - 1, D = sum p_j F_j, h = g(3) + roundoff of a half output, t its least normal;
- a component is finite where the oracle's is not, or the reverse;
- the most likely key differs from the oracle's, and the two lie further apart than their errors allow;
- in a scenario, more components lie beyond the likely case than its model expects. That is the same analysis
  with errors of random sign (Azuma-Hoeffding, one component in 10^9). For given tensors it is a warning, since
  repeated tokens repeat their roundings.
Nothing in either bound is fitted. P is what the kernel gives for one-hot values, over a sample of rows where
all would take too long. NaN is null in JSON.

Scenarios: regular is 8 heads, 1,024 tokens, d = 64, standard normal; long is 65,536 keys, 256 queries, d = 64;
stress has scores that overflow a naive exponential, one dominant key, values that cancel, masks, causal.";

/// Multiplications spent on extracting P; beyond that, rows are sampled where the mask allows it.
const EXTRACTION: usize = 3 << 35;

/// Rows of P in a sample.
const SAMPLE: usize = 64;

/// One of the six metrics.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Metric {
    /// Over rows.
    pub median: f64,
    /// Over rows.
    pub p95: f64,
    /// Over rows.
    pub p99: f64,
    /// Over everything: the greatest, the ratio of norms, or the mean.
    pub total: f64,
}

impl Metric {
    /// Of a measure of rows, and of all of them together.
    fn of(rows: &[Metrics], total: Option<&Metrics>, measure: fn(&Metrics) -> f64) -> Metric {
        let mut each: Vec<f64> = rows.iter().map(measure).collect();
        let [median, p95, p99] =
            [50, 95, 99].map(|percent| percentile(&mut each, percent).unwrap_or(f64::NAN));
        Metric { median, p95, p99, total: total.map_or(f64::NAN, measure) }
    }
}

/// What `--json` prints for each case.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// `verify`.
    pub what: &'static str,
    /// Name of the case.
    pub case: String,
    /// Back end that computed.
    pub backend: String,
    /// Its kernel.
    pub kernel: &'static str,
    /// Why the CPU computed in place of the GPU that was to.
    pub fallback: Option<String>,
    /// Workers of the engine.
    pub threads: usize,
    /// Element type.
    pub dtype: &'static str,
    /// Query heads of all sequences, queries and keys of the longest sequence, head sizes.
    pub shape: [usize; 5],
    /// Rows whose Y was compared: all of them.
    pub rows: usize,
    /// Rows whose P was compared.
    pub p_rows: usize,
    /// `max |δP|`.
    pub p_max_abs: Metric,
    /// `‖δP‖ / ‖P‖`.
    pub p_rel_l2: Metric,
    /// Jensen–Shannon divergence in nats; the total is the mean.
    pub js: Metric,
    /// Rows whose most likely key differs; the total is the rate.
    pub argmax: Metric,
    /// `max |δY|`.
    pub y_max_abs: Metric,
    /// `‖δY‖ / ‖Y‖`.
    pub y_rel_l2: Metric,
    /// Greatest `|δY| / |Y|` of a component whose reference is not zero.
    pub y_max_rel: f64,
    /// Relative L2 error of Y that rounding explains in the worst case.
    pub y_rel_l2_allowed: f64,
    /// Relative L2 error of Y when every component is at its likely bound.
    pub y_rel_l2_likely: f64,
    /// Components of Y beyond the worst case.
    pub beyond: usize,
    /// Components of Y beyond the likely case.
    pub unlikely: usize,
    /// The most of them that the model of the likely case leads one to expect.
    pub unlikely_allowed: usize,
    /// Components of Y that are finite where the oracle's are not, or the reverse.
    pub not_finite: usize,
    /// Most likely keys that differ beyond what rounding explains.
    pub argmax_unexplained: usize,
    /// The certificate of the plan.
    #[serde(serialize_with = "line")]
    pub certificate: Certificate,
    /// Whether the answer is verified.
    pub passed: bool,
}

/// Whether an answer is verified. With `random`, the numbers are such that the likely case must hold too.
fn passes(explained: &Explained, not_finite: usize, argmax_unexplained: usize, random: bool) -> bool {
    let likely = !(random && explained.surprises());
    explained.holds() && not_finite == 0 && argmax_unexplained == 0 && likely
}

/// A certificate as the JSON that it writes of itself.
fn line<S: Serializer>(certificate: &Certificate, serializer: S) -> Result<S::Ok, S::Error> {
    let json = serde_json::value::RawValue::from_string(certificate.to_string());
    json.map_err(serde::ser::Error::custom)?.serialize(serializer)
}

/// Runs the command.
///
/// # Errors
/// Wrong requests, failing devices, and answers that rounding does not explain.
pub fn verify(args: &VerifyArgs) -> Result<(), Error> {
    let engine = job::engine(&args.engine)?;
    let options = args.engine.plan_options();
    let mut failed = Vec::new();
    let mut show = |name: &str, problem: &Problem, inputs: Inputs<'_>| -> Result<(), Error> {
        let verdict = case(&engine, &options, name, problem, inputs, args.scenario.is_some())?;
        let mut out = std::io::stdout().lock();
        if args.json {
            writeln!(out, "{}", crate::json(&verdict)?)?;
        } else {
            print(&mut out, &verdict)?;
        }
        if !verdict.passed {
            failed.push(format!(
                "{name}: {} components of Y beyond the worst case, {} beyond the likely case, {} not finite, \
                 {} argmax unexplained",
                verdict.beyond, verdict.unlikely, verdict.not_finite, verdict.argmax_unexplained
            ));
        }
        Ok(())
    };
    match args.scenario {
        Some(scenario) => {
            for made in scenario_cases(scenario)? {
                show(made.name, &made.problem, made.inputs())?;
            }
        }
        None => {
            let job = Job::load(&args.problem, [false, false])?;
            show("given", &job.problem, job.inputs()?)?;
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::Verification(failed.join("; "))) }
}

/// A made-up problem with its data.
struct Made {
    name: &'static str,
    problem: Problem,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    mask: Option<Vec<u8>>,
    kv_lens: Option<Vec<i64>>,
}

impl Made {
    fn inputs(&self) -> Inputs<'_> {
        let mut inputs = Inputs::new(self.q.elements(), self.k.elements(), self.v.elements());
        inputs.mask = self.mask.as_deref().map(MaskElements::Bool);
        inputs.lengths.keys = self.kv_lens.as_deref();
        inputs
    }
}

fn spec(heads: usize, queries: usize, keys: usize, d: usize) -> Result<Spec, Error> {
    let view = |name, tokens| View::dense(name, Layout::Bhnd, &[heads, tokens, d], None);
    Ok(Spec::new(DType::F32, view("q", queries)?, view("k", keys)?, view("v", keys)?, view("out", queries)?))
}

fn scenario_cases(scenario: Scenario) -> Result<Vec<Made>, Error> {
    let mut random = Random::new(1);
    let mut make = |name, spec: Spec, q_scale: f64| -> Result<Made, Error> {
        let q = random.normals("scenario", DType::F32, spec.query.extent(), q_scale)?;
        let k = random.normals("scenario", DType::F32, spec.key.extent(), 1.0)?;
        let v = random.normals("scenario", DType::F32, spec.value.extent(), 1.0)?;
        Ok(Made { name, problem: spec.check()?, q, k, v, mask: None, kv_lens: None })
    };
    match scenario {
        Scenario::Regular => Ok(vec![make("regular", spec(8, 1024, 1024, 64)?, 1.0)?]),
        Scenario::Long => Ok(vec![make("long", spec(1, 256, 65_536, 64)?, 1.0)?]),
        Scenario::Stress => {
            // Scores of standard deviation 64 and maxima near 250: exp overflows f32 beyond 88.7.
            let overflow = make("overflow", spec(2, 128, 768, 64)?, 64.0)?;

            // Every query and one key share a large component: that key scores 72 and takes nearly all.
            let mut dominant = make("dominant", spec(2, 128, 768, 64)?, 1.0)?;
            if let (Buffer::F32(q), Buffer::F32(k)) = (&mut dominant.q, &mut dominant.k) {
                for row in q.chunks_mut(64) {
                    row[0] = 24.0;
                }
                for head in k.chunks_mut(768 * 64) {
                    head[517 * 64] = 24.0;
                }
            }

            // Values that come in pairs of opposite sign at pairs of equal keys, and a small remainder.
            let mut cancelling = make("cancelling", spec(2, 128, 768, 64)?, 1.0)?;
            if let (Buffer::F32(k), Buffer::F32(v)) = (&mut cancelling.k, &mut cancelling.v) {
                for (keys, values) in k.chunks_mut(128).zip(v.chunks_mut(128)) {
                    let ((k0, k1), (v0, v1)) = (keys.split_at_mut(64), values.split_at_mut(64));
                    k1.copy_from_slice(k0);
                    for (a, b) in v0.iter_mut().zip(v1) {
                        let small = *b * 1e-3;
                        *a *= 1e3;
                        *b = small - *a;
                    }
                }
            }

            // A boolean mask with rows that attend nothing and a key that is NaN but masked out everywhere.
            let mut masked_spec = spec(2, 128, 768, 64)?;
            masked_spec.mask = Some(MaskView::dense(MaskKind::Bool, &[128, 768])?);
            let mut masked = make("masked", masked_spec, 1.0)?;
            let mut bits = Random::new(3);
            let mut mask: Vec<u8> = (0..128 * 768).map(|_| u8::from(bits.uniform() < 0.3)).collect();
            mask[5 * 768..6 * 768].fill(0);
            for row in mask.chunks_mut(768) {
                row[300] = 0;
            }
            masked.mask = Some(mask);
            if let (Buffer::F32(k), Buffer::F32(v)) = (&mut masked.k, &mut masked.v) {
                k[300 * 64..301 * 64].fill(f32::NAN);
                v[300 * 64..301 * 64].fill(f32::NAN);
            }

            // Causal with a window, fewer valid keys than there are, and a soft cap.
            let mut causal_spec = spec(2, 512, 768, 64)?;
            causal_spec.causal = Some(Alignment::BottomRight);
            causal_spec.window = Window { left: Some(200), right: None };
            causal_spec.softcap = Some(30.0);
            causal_spec.key_lengths = true;
            let mut causal = make("causal", causal_spec, 8.0)?;
            causal.kv_lens = Some(vec![701]);
            Ok(vec![overflow, dominant, cancelling, masked, causal])
        }
    }
}

/// Computes, compares and judges, with `random` as [`passes`] has it.
fn case(
    engine: &Engine,
    options: &PlanOptions,
    name: &str,
    problem: &Problem,
    inputs: Inputs<'_>,
    random: bool,
) -> Result<Verdict, Error> {
    let spec = problem.spec();
    let plan = engine.plan(problem, options)?;
    let mut output = Buffer::zeros("out", spec.dtype, spec.output.extent())?;
    let mut workspace = plan.workspace()?;
    let report = {
        // Present keys are not asked for, so that the problem has none.
        let mut bound = plan.bind(inputs, Outputs::new(output.elements_mut()), &mut workspace)?;
        bound.run()?
    };
    let all = rows(problem, &inputs);
    let certificate = plan.certificate_of(report.backend);
    let executed = certificate.executed;
    let bar = progress(all.len() as u64, oracle_seconds(problem, all.len()));
    let found = output.elements();
    let compared: Vec<(Comparison, f64)> = for_rows(
        &all,
        || Oracle::new(problem, inputs, &executed),
        |oracle, row| {
            oracle.row(row);
            let at = output_row(problem, &inputs, row);
            let comparison = Comparison::of(oracle, |c| f64::from(found.get(at + c)));
            let relative = oracle.y.iter().enumerate().filter(|(_, y)| **y != 0.0 && y.is_finite());
            let relative = relative.map(|(c, y)| ((f64::from(found.get(at + c)) - y) / y).abs());
            (comparison, relative.fold(0.0, f64::max))
        },
        |n| bar.inc(n),
    );
    bar.finish_and_clear();
    let y_max_rel = compared.iter().map(|(_, x)| *x).fold(0.0, f64::max);
    let compared: Vec<Comparison> = compared.into_iter().map(|(comparison, _)| comparison).collect();
    let y_rows: Vec<Metrics> = compared.iter().map(|row| row.drift.metrics()).collect();
    let total = Total::of(&compared);
    let (y_total, explained) = (total.drift.as_ref(), total.explained);

    // A GPU's kernel takes so many values; others might be another kernel's.
    let widest = plan.gpu_choice().map(|choice| choice.kernel.head_dim);
    let extraction = Extraction { engine, options, executed, widest };
    let p = extraction.probabilities(problem, inputs, &all)?;
    let mut p_drift = Drift::new();
    let p_rows: Vec<Metrics> = p.iter().map(|row| p_drift.finish_row(&row.drift)).collect();
    let p_total = p_drift.metrics();
    let p_total = p_total.as_ref();
    let argmax_unexplained = p.iter().filter(|row| row.unexplained).count();
    let not_finite = explained.not_finite + p.iter().map(|row| row.not_finite).sum::<usize>();
    let longest = (0..problem.sequences()).map(|i| problem.sequence(&inputs.lengths, i));
    let (queries, keys) = longest.fold((0, 0), |(q, k), s| (q.max(s.queries), k.max(s.keys)));
    let heads = problem.sequences() * problem.heads();
    Ok(Verdict {
        what: "verify",
        case: name.into(),
        backend: report.backend.to_string(),
        kernel: plan.kernel_of(report.backend),
        fallback: report.fallback.as_ref().map(ToString::to_string),
        threads: engine.threads(),
        dtype: spec.dtype.name(),
        shape: [heads, queries, keys, problem.head_dim(), problem.value_dim()],
        rows: all.len(),
        p_rows: p.len(),
        p_max_abs: Metric::of(&p_rows, p_total, |m| m.max_abs_p),
        p_rel_l2: Metric::of(&p_rows, p_total, |m| m.rel_l2_p),
        js: Metric::of(&p_rows, p_total, |m| m.js),
        argmax: Metric::of(&p_rows, p_total, |m| m.argmax),
        y_max_abs: Metric::of(&y_rows, y_total, |m| m.max_abs_y),
        y_rel_l2: Metric::of(&y_rows, y_total, |m| m.rel_l2_y),
        y_max_rel,
        y_rel_l2_allowed: explained.worst(),
        y_rel_l2_likely: explained.likely(),
        beyond: explained.beyond,
        unlikely: explained.unlikely,
        unlikely_allowed: explained.unlikely_allowed(),
        not_finite,
        argmax_unexplained,
        certificate,
        passed: passes(&explained, not_finite, argmax_unexplained, random),
    })
}

/// A rough guess at the oracle's time, to decide whether a bar is worth showing.
fn oracle_seconds(problem: &Problem, rows: usize) -> f64 {
    let work =
        rows as f64 * problem.keys() as f64 * (3 * problem.head_dim() + 2 * problem.value_dim()) as f64;
    work / 1e9 / crate::board::cores() as f64
}

/// The probabilities of one row, compared with the oracle's.
#[derive(Clone, Copy, Debug, Default)]
struct PRow {
    /// Their drift, probabilities only.
    drift: RowDrift,
    /// Whether the most likely key differs beyond what the errors of the scores allow.
    unexplained: bool,
    /// Probabilities that are a number on one side only.
    not_finite: usize,
}

impl PRow {
    /// `found`, the row as executed, against the oracle's.
    fn of(oracle: &Oracle<'_>, found: impl Fn(usize) -> f64, u_out: f64) -> PRow {
        let mut row = PRow::default();
        let mut nan = false;
        for (j, &p) in oracle.p.iter().enumerate() {
            let x = found(j);
            row.drift.probability(x, p);
            nan |= p.is_nan();
            row.not_finite += usize::from(x.is_finite() != p.is_finite());
        }
        if row.drift.metrics().argmax != 0.0 && !nan {
            let (best, picked) = (row.drift.reference_argmax(), row.drift.computed_argmax());
            let gap = (oracle.p[best] / oracle.p[picked]).ln();
            let allowed = oracle.delta[best] + oracle.delta[picked] + 4.0 * u_out;
            row.unexplained = gap.is_nan() || gap > allowed;
        }
        row
    }
}

/// How P is extracted.
#[derive(Clone, Copy)]
struct Extraction<'a> {
    engine: &'a Engine,
    options: &'a PlanOptions,
    /// Of the run whose P it is.
    executed: Executed,
    /// Most values that its kernel takes.
    widest: Option<usize>,
}

impl Extraction<'_> {
    /// Extracts and compares P: all rows, or a sample of them.
    fn probabilities(
        &self,
        problem: &Problem,
        inputs: Inputs<'_>,
        all: &[RowId],
    ) -> Result<Vec<PRow>, Error> {
        let spec = *problem.spec();
        let cost = all.len().saturating_mul(problem.keys()).saturating_mul(problem.keys());
        // Which keys a row attends must not depend on its place among the queries.
        let free = spec.causal.is_none()
            && spec.window == Window::default()
            && spec.packed.is_none()
            && spec.query.batch() == 1
            && spec.mask.as_ref().is_none_or(MaskView::same_for_all_queries);
        if cost <= EXTRACTION || !free || spec.query.tokens() <= SAMPLE {
            return self.extract(problem, inputs, all);
        }
        let queries: Vec<RowId> =
            (0..spec.query.tokens()).map(|query| RowId { sequence: 0, head: 0, query }).collect();
        let per_head = SAMPLE.div_ceil(problem.heads()).max(2);
        let picked = sample(&queries, per_head);
        let (heads, d) = (problem.heads(), problem.head_dim());
        let mut q = Buffer::zeros("q", spec.dtype, heads * picked.len() * d)?;
        let mut elements = q.elements_mut();
        for head in 0..heads {
            for (i, row) in picked.iter().enumerate() {
                for c in 0..d {
                    let x = inputs.query.get(spec.query.row(0, head, row.query) + c);
                    elements.set((head * picked.len() + i) * d + c, x);
                }
            }
        }
        let mut sampled = spec;
        sampled.query = View::dense("q", Layout::Bhnd, &[heads, picked.len(), d], None)?;
        sampled.output = View::dense("out", Layout::Bhnd, &[heads, picked.len(), problem.value_dim()], None)?;
        let sampled = sampled.check()?;
        let inputs = Inputs { query: q.elements(), ..inputs };
        let rows = rows(&sampled, &inputs);
        self.extract(&sampled, inputs, &rows)
    }

    fn extract(&self, problem: &Problem, inputs: Inputs<'_>, rows: &[RowId]) -> Result<Vec<PRow>, Error> {
        let Extraction { engine, options, executed, widest } = *self;
        let spec = *problem.spec();
        let (total, past) = (problem.keys(), problem.past());
        let new = total - past;
        if total == 0 || rows.is_empty() {
            return Ok(Vec::new());
        }
        let columns = if total <= 8192 { 512 } else { 256 }.min(total).min(widest.unwrap_or(usize::MAX));
        // Keys of the whole problem; a packed sequence has some of them.
        let mut stored: Vec<f32> = zeros("verify", rows.len().saturating_mul(total))?;
        let index: HashMap<(usize, usize, usize), usize> =
            rows.iter().enumerate().map(|(i, r)| ((r.sequence, r.head, r.query), i)).collect();

        // One-hot values, shared by all sequences and heads.
        let [b, hk, ..] = spec.value.shape();
        let [_, h, n, _] = spec.query.shape();
        let mut one_hot = spec;
        one_hot.value = View::new("v", [b, hk, new, columns], [0, 0, columns, 1])?;
        one_hot.past_value = match spec.past_value {
            Some(_) => Some(View::new("past-v", [b, hk, past, columns], [0, 0, columns, 1])?),
            None => None,
        };
        (one_hot.present_key, one_hot.present_value) = (None, None);
        one_hot.output = View::dense("out", Layout::Bhnd, &[b, h, n, columns], None)?;
        let one_hot = one_hot.check()?;
        let plan = engine.plan(&one_hot, options)?;
        let mut workspace = plan.workspace()?;
        let mut values = Buffer::zeros("verify", spec.dtype, new * columns)?;
        let mut past_values = Buffer::zeros("verify", spec.dtype, past * columns)?;
        let mut output = Buffer::zeros("verify", spec.dtype, one_hot.spec().output.extent())?;
        let chunks = total.div_ceil(columns);
        let flops =
            chunks as f64 * rows.len() as f64 * total as f64 * (problem.head_dim() + columns) as f64 * 2.0;
        let bar: ProgressBar = progress(chunks as u64, flops / 2e10);
        for chunk in 0..chunks {
            let first = chunk * columns;
            let mark = |value: f32, values: &mut Buffer, past_values: &mut Buffer| {
                for (c, j) in (first..(first + columns).min(total)).enumerate() {
                    if j < past {
                        past_values.elements_mut().set(j * columns + c, value);
                    } else {
                        values.elements_mut().set((j - past) * columns + c, value);
                    }
                }
            };
            mark(1.0, &mut values, &mut past_values);
            let given = Inputs {
                value: values.elements(),
                past_value: inputs.past_value.map(|_| past_values.elements()),
                ..inputs
            };
            plan.bind(given, Outputs::new(output.elements_mut()), &mut workspace)?.run()?;
            let found = output.elements();
            for (i, row) in rows.iter().enumerate() {
                let at = output_row(&one_hot, &given, *row);
                for c in 0..columns.min(total - first) {
                    stored[i * total + first + c] = found.get(at + c);
                }
            }
            mark(0.0, &mut values, &mut past_values);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let u_out = spec.dtype.unit_roundoff();
        Ok(for_rows(
            rows,
            || Oracle::new(problem, inputs, &executed),
            |oracle, row| {
                oracle.row(row);
                let i = index.get(&(row.sequence, row.head, row.query)).copied().unwrap_or(0);
                let key0 = problem.sequence(&inputs.lengths, row.sequence).key0;
                PRow::of(oracle, |j| f64::from(stored[i * total + key0 + j]), u_out)
            },
            |_| {},
        ))
    }
}

fn print(out: &mut impl Write, v: &Verdict) -> std::io::Result<()> {
    let [heads, queries, keys, d, dv] = v.shape;
    writeln!(
        out,
        "{}: {} heads, {} queries, {} keys, d {}, d_v {}, {}; {}, kernel {}, {} threads",
        v.case, heads, queries, keys, d, dv, v.dtype, v.backend, v.kernel, v.threads
    )?;
    writeln!(out, "  {:<22}{:>11}{:>11}{:>11}{:>11}", "", "median", "p95", "p99", "total")?;
    for (name, m) in [
        ("max |dP|", v.p_max_abs),
        ("|dP| / |P|", v.p_rel_l2),
        ("Jensen-Shannon", v.js),
        ("argmax differs", v.argmax),
        ("max |dY|", v.y_max_abs),
        ("|dY| / |Y|", v.y_rel_l2),
    ] {
        writeln!(out, "  {name:<22}{:>11.2e}{:>11.2e}{:>11.2e}{:>11.2e}", m.median, m.p95, m.p99, m.total)?;
    }
    writeln!(out, "  rows: Y on all {}, P on {}", v.rows, v.p_rows)?;
    let measured = v.y_rel_l2.total;
    writeln!(
        out,
        "  |dY| / |Y| explained by rounding: worst case {:.2e}, of which {:.2e} is used; likely case {:.2e}, of \
         which {:.2e}",
        v.y_rel_l2_allowed,
        measured / v.y_rel_l2_allowed,
        v.y_rel_l2_likely,
        measured / v.y_rel_l2_likely
    )?;
    writeln!(out, "  greatest relative error of a component: {:.2e}", v.y_max_rel)?;
    let Certificate { executed, published_depth, published_bound, output_rounding, .. } = v.certificate;
    writeln!(
        out,
        "  merge depth: published L(n, {}) = {published_depth}, executed {} over segments of {} blocks; additions \
         on the longest path {}",
        executed.block, executed.merge_depth, executed.segment_blocks, executed.additions
    )?;
    writeln!(
        out,
        "  certificate: |dY| / |Y| <= {published_bound:.2e} + {output_rounding:.2e}, ELSA theorem 1 as published; \
         not rigorous: leaves out the rounding of scores, additions within a leaf, cancellation of values"
    )?;
    if v.unlikely > v.unlikely_allowed {
        writeln!(
            out,
            "  warning: {} components beyond the likely case, {} expected at most: roundings that are not random, \
             or a fault",
            v.unlikely, v.unlikely_allowed
        )?;
    }
    let verdict = if v.passed { "verified" } else { "FAILED" };
    writeln!(
        out,
        "  {verdict}: {} of {} components beyond the worst case, {} beyond the likely case (one in {:.0e}), {} not \
         finite, {} argmax unexplained",
        v.beyond,
        v.rows * dv,
        v.unlikely,
        1.0 / UNLIKELY,
        v.not_finite,
        v.argmax_unexplained
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::dtype::Elements;

    fn oracle_with<'a>(problem: &'a Problem, inputs: Inputs<'a>, p: &[f64], delta: f64) -> Oracle<'a> {
        let mut oracle = Oracle::new(
            problem,
            inputs,
            &Executed { block: 1, segment_blocks: 1, merge_depth: 0, additions: 1, half_chain: 0 },
        );
        oracle.p = p.to_vec();
        oracle.delta = vec![delta; p.len()];
        oracle
    }

    #[test]
    fn rows_of_probabilities_are_judged() {
        let problem = spec(1, 1, 3, 4).unwrap().check().unwrap();
        let zeros = [0.0f32; 12];
        let inputs = Inputs::new(Elements::F32(&zeros[..4]), Elements::F32(&zeros), Elements::F32(&zeros));
        let judge =
            |p: &[f64], x: &[f64], delta| PRow::of(&oracle_with(&problem, inputs, p, delta), |j| x[j], 0.0);
        let same = judge(&[0.5, 0.25, 0.25], &[0.5, 0.25, 0.25], 0.0);
        assert!(same.drift.metrics().js == 0.0 && !same.unexplained && same.not_finite == 0);
        // The columns of `found` are the computed side, those of the oracle the reference.
        let far = judge(&[1.0, 0.0, 0.0], &[0.0, 1.0, 0.0], 0.1);
        assert!(far.drift.metrics().argmax == 1.0 && far.unexplained);
        assert_eq!((far.drift.reference_argmax(), far.drift.computed_argmax()), (0, 1));
        // A tie that rounding turns is explained, a gap is not.
        let gap = 0.01f64;
        let p = [0.4 * gap.exp(), 0.4, 0.2];
        assert!(!judge(&p, &[0.4, 0.41, 0.2], 0.006).unexplained);
        assert!(judge(&p, &[0.4, 0.41, 0.2], 0.004).unexplained);
        // NaN on one side is no number there; on both it is what the row must give.
        let poisoned = [f64::NAN; 3];
        assert_eq!(judge(&p, &[f64::NAN, 0.4, 0.2], 0.0).not_finite, 1);
        let both = judge(&poisoned, &poisoned, 0.0);
        assert!(both.not_finite == 0 && !both.unexplained && both.drift.metrics().js.is_nan());
    }

    #[test]
    fn what_the_model_does_not_expect_fails_where_the_model_must_hold() {
        let explained =
            |beyond, unlikely| Explained { components: 1000, beyond, unlikely, ..Explained::default() };
        for (beyond, unlikely, given, made) in
            [(0, 0, true, true), (0, 1, true, true), (0, 2, true, false), (1, 1, false, false)]
        {
            let explained = explained(beyond, unlikely);
            assert_eq!(passes(&explained, 0, 0, false), given, "{explained:?}");
            assert_eq!(passes(&explained, 0, 0, true), made, "{explained:?}");
        }
        assert!(!passes(&explained(0, 0), 1, 0, false) && !passes(&explained(0, 0), 0, 1, false));
    }
}
