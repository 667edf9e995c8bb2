//! The numbers of one answer, and the verdict on them.

use super::audit::{self, Audit};
use super::extract::{Extraction, HeatMap};
use super::verdict::{Verdict, why};
use crate::args::warn_without_half_scores;
use crate::error::Error;
use crate::memory::Buffer;
use crate::oracle::{Comparison, Oracle, Sizes, Total, key, value};
use crate::rows::{RowId, for_rows, output_row, rows};
use crate::{machine, progress};
use elsa_core::attention::certificate::{Certificate, Executed, Order};
use elsa_core::attention::{Inputs, Outputs, Problem};
use elsa_core::drift::{Drift, Metrics, larger, percentile};
use elsa_core::dtype::{DType, Elements};
use elsa_runtime::{Engine, PlanOptions};
use serde::{Serialize, Serializer};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// One of the six metrics.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Metric {
    /// Median over rows.
    pub median: f64,
    /// 95th percentile over rows.
    pub p95: f64,
    /// 99th percentile over rows.
    pub p99: f64,
    /// Over all rows together: the greatest, the ratio of norms, or the mean.
    pub total: f64,
}

impl Metric {
    /// The percentiles of `measure` over `rows`, and its value in `total`.
    fn of(rows: &[Metrics], total: Option<&Metrics>, measure: fn(&Metrics) -> f64) -> Metric {
        let mut each: Vec<f64> = rows.iter().map(measure).collect();
        let [median, p95, p99] =
            [50, 95, 99].map(|percent| percentile(&mut each, percent).unwrap_or(f64::NAN));
        Metric { median, p95, p99, total: total.map_or(f64::NAN, measure) }
    }
}

/// The component of an answer that uses most of its bound.
#[derive(Clone, Debug, Serialize)]
pub struct Worst {
    /// Sequence, query head, query and component.
    pub at: [usize; 4],
    /// What the answer has.
    pub found: f64,
    /// What exact attention has.
    pub exact: f64,
    /// The worst-case bound of their difference.
    pub allowed: f64,
}

/// ELSA Theorem 1 as printed, row by row: `‖ŷ − y‖ / ‖y‖ ≤ u L(n, B)`, and the rounding of a 16-bit output.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Printed {
    /// What it allows.
    pub bound: f64,
    /// The greatest share of it that a row uses.
    pub used: f64,
    /// Rows that violate it.
    pub rows_beyond: usize,
}

/// The result of one case, which `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// `verify`.
    pub what: &'static str,
    /// PASS, FAIL or NO CLAIM.
    pub verdict: Verdict,
    /// Why.
    pub why: String,
    /// Name of the case.
    pub case: String,
    /// What is judged: the back end, or a file.
    pub subject: String,
    /// The arithmetic that is assumed of an answer that something else computed.
    pub assumed: Option<&'static str>,
    /// The back end that computed; none for a file.
    pub backend: Option<String>,
    /// Its kernel.
    pub kernel: &'static str,
    /// Why the CPU computed in place of the requested GPU.
    pub fallback: Option<String>,
    /// Workers of the engine.
    pub threads: usize,
    /// Element type.
    pub dtype: &'static str,
    /// Query heads of all sequences, queries and keys of the longest sequence, head sizes.
    pub shape: [usize; 5],
    /// Rows whose Y was compared.
    pub rows: usize,
    /// Rows that there are.
    pub rows_of: usize,
    /// Rows whose P was compared.
    pub p_rows: usize,
    /// `max |δP|`.
    pub p_max_abs: Option<Metric>,
    /// `‖δP‖ / ‖P‖`.
    pub p_rel_l2: Option<Metric>,
    /// Jensen–Shannon divergence in nats; the total is the mean.
    pub js: Option<Metric>,
    /// Rows whose most likely key differs; the total is the rate.
    pub argmax: Option<Metric>,
    /// `max |δY|`.
    pub y_max_abs: Metric,
    /// `‖δY‖ / ‖Y‖`.
    pub y_rel_l2: Metric,
    /// Greatest `|δY| / |Y|` of a component whose reference is not zero.
    pub y_max_rel: f64,
    /// Relative L2 error of Y if every component is at its worst-case bound.
    pub y_rel_l2_allowed: f64,
    /// Relative L2 error of Y if every component is at its likely bound.
    pub y_rel_l2_likely: f64,
    /// Greatest error of a row relative to the terms that are added up, in the maximum norm:
    /// `max |δy_c| / max Σ p_j |v_jc|`.
    pub error_over_terms: f64,
    /// Greatest worst-case bound of a row, relative to the same.
    pub bound_over_terms: f64,
    /// Median over rows of the same.
    pub bound_over_terms_median: f64,
    /// Greatest share of its worst-case bound that a row's error uses.
    pub bound_used: f64,
    /// Largest score that roundings have to be counted for, `|scale| Σ |q_c k_c|`.
    pub score: f64,
    /// Components of Y that were compared.
    pub components: usize,
    /// Components of Y beyond the worst case.
    pub beyond: usize,
    /// Components of Y beyond the likely case.
    pub unlikely: usize,
    /// The greatest number of them that the model of the likely case expects.
    pub unlikely_allowed: usize,
    /// Components of Y and probabilities that are finite where the oracle's are not, or the reverse.
    pub not_finite: usize,
    /// Components of Y that are not finite because the row leaves the range of the arithmetic.
    pub beyond_range: usize,
    /// Rows whose bound says nothing.
    pub rows_without_claim: usize,
    /// Rows whose answer is smaller than its bound, because values cancel.
    pub rows_cancelling: usize,
    /// Rows whose most likely key differs by more than rounding explains.
    pub argmax_unexplained: usize,
    /// The component that uses most of its bound.
    pub worst_component: Option<Worst>,
    /// The theorem as printed, beside the bound.
    pub printed: Option<Printed>,
    /// The certificate of the plan.
    #[serde(serialize_with = "line")]
    pub certificate: Option<Certificate>,
    /// Rows that were drawn in place of all.
    pub audit: Option<Audit>,
    /// Whether the likely case must hold: the tensors are random, or something else computed the answer, the likely case
    /// does not hold, and no two tokens are equal.
    pub random: bool,
    /// Whether the verdict is PASS.
    pub passed: bool,
    /// What pictures show; not printed.
    #[serde(skip)]
    pub pictures: Pictures,
}

/// What pictures show.
#[derive(Clone, Debug, Default)]
pub struct Pictures {
    /// Errors of rows and their bounds, relative to the terms.
    pub rows: Vec<[f64; 2]>,
    /// `|δP|` of the first head, if P was extracted.
    pub heat: Option<HeatMap>,
}

/// Serializes a certificate as the JSON of its `Display`.
fn line<S: Serializer>(certificate: &Option<Certificate>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(certificate) = certificate else { return serializer.serialize_none() };
    let json = serde_json::value::RawValue::from_string(certificate.to_string());
    json.map_err(serde::ser::Error::custom)?.serialize(serializer)
}

/// What computes the answer of a case.
pub enum Subject<'a> {
    /// A run.
    Run {
        /// Its engine.
        engine: &'a Engine,
        /// The options of its plan.
        options: &'a PlanOptions,
    },
    /// Something else, which wrote a file.
    File {
        /// Its name.
        name: String,
        /// The answer, in the layout of the output.
        output: Elements<'a>,
    },
}

/// The arithmetic that is assumed of an answer that something else computed.
const ASSUMED: &str = "FP32 in any order";

/// The structure and the constants of [`ASSUMED`]: sums in one chain, which is the longest path of any order; products that
/// are rounded before they are added; weights that may be divided by their sum before they meet the values; and an exponential that is off by four units in the last place.
fn any_order(problem: &Problem) -> Executed {
    let additions = problem.keys().saturating_sub(1);
    Executed {
        kernel: ASSUMED,
        block: problem.keys().max(1),
        segment_blocks: 1,
        merge_depth: 0,
        additions,
        into_s: additions,
        into_w: additions,
        chain: problem.head_dim(),
        chain_depth: 0,
        fused: false,
        exp2_relative: 8.0 * DType::F32.unit_roundoff(),
        half_chain: 0,
        order: Order { normalizes: true, ..Order::ANY },
    }
}

/// What is asked about a case.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether its tensors are random, so that the likely case must hold, too.
    pub random: bool,
    /// How many rows are drawn in place of all, and with which seed.
    pub audit: Option<(usize, u64)>,
}

/// Computes or takes an answer, compares it with the oracle and judges it.
///
/// # Errors
/// Options that the engine refuses, and failures of the device or of memory.
pub fn judge(
    subject: &Subject<'_>,
    problem: &Problem,
    inputs: Inputs<'_>,
    request: Request<'_>,
) -> Result<Case, Error> {
    let spec = problem.spec();
    let Request { name, random, audit } = request;
    let all = rows(problem, &inputs);
    let looked = audit.map_or_else(|| all.clone(), |(count, seed)| audit::draw(&all, count, seed));
    let heads = problem.sequences() * problem.heads();
    let longest = (0..problem.sequences()).map(|i| problem.sequence(&inputs.lengths, i));
    let (queries, keys) = longest.fold((0, 0), |(q, k), s| (q.max(s.queries), k.max(s.keys)));
    let mut case = Case {
        what: "verify",
        verdict: Verdict::NoClaim,
        why: String::new(),
        case: name.into(),
        subject: String::new(),
        assumed: None,
        backend: None,
        kernel: "",
        fallback: None,
        threads: machine::cores(),
        dtype: spec.dtype.name(),
        shape: [heads, queries, keys, problem.head_dim(), problem.value_dim()],
        rows: looked.len(),
        rows_of: all.len(),
        p_rows: 0,
        p_max_abs: None,
        p_rel_l2: None,
        js: None,
        argmax: None,
        y_max_abs: Metric::of(&[], None, |_| f64::NAN),
        y_rel_l2: Metric::of(&[], None, |_| f64::NAN),
        y_max_rel: 0.0,
        y_rel_l2_allowed: 0.0,
        y_rel_l2_likely: 0.0,
        error_over_terms: 0.0,
        bound_over_terms: 0.0,
        bound_over_terms_median: 0.0,
        bound_used: 0.0,
        score: 0.0,
        components: 0,
        beyond: 0,
        unlikely: 0,
        unlikely_allowed: 0,
        not_finite: 0,
        beyond_range: 0,
        rows_without_claim: 0,
        rows_cancelling: 0,
        argmax_unexplained: 0,
        worst_component: None,
        printed: None,
        certificate: None,
        audit: None,
        random,
        passed: false,
        pictures: Pictures::default(),
    };
    match subject {
        Subject::File { name, output } => {
            let executed = any_order(problem);
            (case.subject, case.assumed, case.kernel) = (name.clone(), Some(ASSUMED), "");
            case.compare(problem, inputs, &executed, &looked, *output);
            case.random |= case.surprises() && tokens_differ(problem, inputs);
            if let Some((_, seed)) = audit {
                case.audit = Some(audit::precisely(problem, inputs, &looked, seed));
            }
        }
        Subject::Run { engine, options } => {
            let plan = engine.plan(problem, options)?;
            warn_without_half_scores(options, &plan);
            let mut output = Buffer::zeros("out", spec.dtype, spec.output.extent())?;
            let mut workspace = plan.workspace()?;
            let report = {
                // Present keys are not requested, so the problem has none.
                let mut bound = plan.bind(inputs, Outputs::new(output.elements_mut()), &mut workspace)?;
                bound.run()?
            };
            let certificate = plan.certificate_of(report.backend);
            let executed = certificate.executed;
            case.subject = report.backend.to_string();
            case.backend = Some(report.backend.to_string());
            case.kernel = plan.kernel_of(report.backend);
            case.fallback = report.fallback.as_ref().map(ToString::to_string);
            case.threads = engine.threads();
            case.certificate = Some(certificate);
            case.compare(problem, inputs, &executed, &looked, output.elements());
            if let Some((_, seed)) = audit {
                case.audit = Some(audit::precisely(problem, inputs, &looked, seed));
            } else {
                // The head size that the GPU's kernel takes. A greater one would choose another kernel.
                let widest = plan.gpu_choice().map(|choice| choice.kernel.head_dim);
                case.probabilities(&Extraction { engine, options, executed, widest }, problem, inputs, &all)?;
            }
        }
    }
    case.verdict = Verdict::of(&case);
    case.passed = case.verdict == Verdict::Pass;
    case.why = why(&case);
    Ok(case)
}

/// What one row says.
struct Judged {
    comparison: Comparison,
    /// Greatest `|δy| / |y|` of a component whose reference is finite and not zero; NaN if the answer is NaN there.
    relative: f64,
    /// The component that uses most of its bound, and the share.
    worst: Option<(f64, Worst)>,
}

impl Case {
    /// Whether more components lie beyond the likely case than its model expects.
    #[must_use]
    pub fn surprises(&self) -> bool {
        self.unlikely > self.unlikely_allowed
    }

    /// Compares `rows` of the answer `found` with the oracle's.
    fn compare(
        &mut self,
        problem: &Problem,
        inputs: Inputs<'_>,
        executed: &Executed,
        rows: &[RowId],
        found: Elements<'_>,
    ) {
        let bar = progress::bar(rows.len() as u64, oracle_seconds(problem, rows.len()));
        let judged = for_rows(
            rows,
            || Oracle::new(problem, inputs, executed),
            |oracle, row| {
                oracle.row(row);
                let at = output_row(problem, &inputs, row);
                judge_row(oracle, row, |c| f64::from(found.get(at + c)))
            },
            |n| bar.inc(n),
        );
        bar.finish_and_clear();
        self.y_max_rel = judged.iter().map(|row| row.relative).fold(0.0, larger);
        let printed = self.certificate.map(|c| c.published_bound + c.output_rounding);
        let mut bounds = Vec::with_capacity(judged.len());
        let (mut used, mut rows_beyond, mut most) = (0.0, 0, -1.0);
        let mut compared = Vec::with_capacity(judged.len());
        for Judged { comparison, worst, .. } in judged {
            let sizes: &Sizes = &comparison.sizes;
            let (error, bound) = (sizes.relative(sizes.error), sizes.relative(sizes.bound));
            self.error_over_terms = larger(self.error_over_terms, error);
            self.bound_over_terms = larger(self.bound_over_terms, bound);
            self.bound_used = larger(self.bound_used, worst.as_ref().map_or(0.0, |(share, _)| *share));
            self.score = larger(self.score, sizes.score);
            let claims = sizes.claims() && comparison.explained.beyond_range == 0;
            self.rows_without_claim += usize::from(!claims);
            self.rows_cancelling += usize::from(claims && sizes.cancels());
            self.pictures.rows.push([error, bound]);
            bounds.push(bound);
            if let Some((share, worst)) = worst
                && share > most
            {
                (most, self.worst_component) = (share, Some(worst));
            }
            let relative = comparison.drift.metrics().rel_l2_y;
            if let Some(printed) = printed.filter(|_| !relative.is_nan()) {
                used = larger(used, relative / printed);
                rows_beyond += usize::from(relative > printed);
            }
            compared.push(comparison);
        }
        self.bound_over_terms_median = percentile(&mut bounds, 50).unwrap_or(0.0);
        self.printed = printed.map(|bound| Printed { bound, used, rows_beyond });
        let rows: Vec<Metrics> = compared.iter().map(|row| row.drift.metrics()).collect();
        let total = Total::of(&compared);
        let (drift, explained) = (total.drift.as_ref(), total.explained);
        self.y_max_abs = Metric::of(&rows, drift, |m| m.max_abs_y);
        self.y_rel_l2 = Metric::of(&rows, drift, |m| m.rel_l2_y);
        self.y_rel_l2_allowed = explained.worst();
        self.y_rel_l2_likely = explained.likely();
        self.components = explained.components;
        self.beyond = explained.beyond;
        self.beyond_range = explained.beyond_range;
        self.unlikely = explained.unlikely;
        self.unlikely_allowed = explained.unlikely_allowed();
        self.not_finite = explained.not_finite;
    }

    /// Extracts P and compares it with the oracle's.
    fn probabilities(
        &mut self,
        extraction: &Extraction<'_>,
        problem: &Problem,
        inputs: Inputs<'_>,
        all: &[RowId],
    ) -> Result<(), Error> {
        let (p, heat) = extraction.compare(problem, inputs, all)?;
        let mut drift = Drift::new();
        let rows: Vec<Metrics> = p.iter().map(|row| drift.finish_row(&row.drift)).collect();
        let total = drift.metrics();
        let metric = |measure| Some(Metric::of(&rows, total.as_ref(), measure));
        self.p_rows = p.len();
        self.p_max_abs = metric(|m| m.max_abs_p);
        self.p_rel_l2 = metric(|m| m.rel_l2_p);
        self.js = metric(|m| m.js);
        self.argmax = metric(|m| m.argmax);
        self.argmax_unexplained = p.iter().filter(|row| row.unexplained).count();
        self.not_finite += p.iter().map(|row| row.not_finite).sum::<usize>();
        self.pictures.heat = heat;
        Ok(())
    }
}

/// Whether the keys of each head differ from each other, and the values, so that no rounding repeats because a token does.
fn tokens_differ(problem: &Problem, inputs: Inputs<'_>) -> bool {
    let mut seen = HashSet::new();
    (0..problem.sequences()).all(|sequence| {
        let s = problem.sequence(&inputs.lengths, sequence);
        (0..problem.kv_heads()).all(|head| {
            [(key as fn(_, _, _, _, _) -> _, problem.head_dim()), (value, problem.value_dim())]
                .into_iter()
                .all(|(line, width)| {
                    seen.clear();
                    (0..s.keys).all(|j| {
                        let (elements, at) = line(problem, &inputs, &s, head, j);
                        let mut hasher = DefaultHasher::new();
                        (0..width).for_each(|c| elements.get(at + c).to_bits().hash(&mut hasher));
                        seen.insert(hasher.finish())
                    })
                })
        })
    })
}

/// Compares a row, whose components `found` reads, with the oracle's.
fn judge_row(oracle: &Oracle<'_>, row: RowId, found: impl Fn(usize) -> f64) -> Judged {
    let comparison = Comparison::of(oracle, &found);
    let relative = oracle.y.iter().enumerate().filter(|(_, y)| **y != 0.0 && y.is_finite());
    let relative = relative.map(|(c, y)| ((found(c) - y) / y).abs()).fold(0.0, larger);
    let mut worst: Option<(f64, Worst)> = None;
    for (c, (&exact, bounds)) in oracle.y.iter().zip(&oracle.bounds).enumerate() {
        let x = found(c);
        let share = match (x.is_finite(), exact.is_finite()) {
            (true, true) if x == exact => 0.0,
            (true, true) => (x - exact).abs() / bounds.worst,
            _ if oracle.stands_for(x, c) || (exact.is_finite() && oracle.beyond_range) => continue,
            _ => f64::INFINITY,
        };
        if worst.as_ref().is_none_or(|(most, _)| share > *most) {
            let at = [row.sequence, row.head, row.query, c];
            worst = Some((share, Worst { at, found: x, exact, allowed: bounds.worst }));
        }
    }
    Judged { comparison, relative, worst }
}

/// A rough estimate of the oracle's time in seconds, to decide whether to show a bar.
fn oracle_seconds(problem: &Problem, rows: usize) -> f64 {
    let work =
        rows as f64 * problem.keys() as f64 * (3 * problem.head_dim() + 2 * problem.value_dim()) as f64;
    work / 1e9 / machine::cores() as f64
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::random::Random;
    use crate::shape::Shape;
    use elsa_core::view::View;
    use elsa_runtime::EngineOptions;

    /// A case that passes, with a number of its own in every field.
    pub fn case() -> Case {
        let metric = |x: f64| Metric { median: x, p95: 2.0 * x, p99: 3.0 * x, total: 4.0 * x };
        let shape = Shape::plain(1, 1, 1, 1, 16);
        let executed = any_order(&shape.problem(DType::F16).unwrap());
        let executed = Executed { block: 64, segment_blocks: 8, merge_depth: 3, additions: 73, ..executed };
        Case {
            what: "verify",
            verdict: Verdict::Pass,
            why: "because".into(),
            case: "given".into(),
            subject: "avx2".into(),
            assumed: None,
            backend: Some("avx2".into()),
            kernel: "kernel",
            fallback: None,
            threads: 5,
            dtype: "f16",
            shape: [2, 30, 4000, 16, 24],
            rows: 60,
            rows_of: 90,
            p_rows: 7,
            p_max_abs: Some(metric(1e-9)),
            p_rel_l2: Some(metric(1e-8)),
            js: Some(metric(1e-7)),
            argmax: Some(metric(1e-6)),
            y_max_abs: metric(1e-5),
            y_rel_l2: metric(1e-4),
            y_max_rel: 0.125,
            y_rel_l2_allowed: 1e-3,
            y_rel_l2_likely: 5e-4,
            error_over_terms: 1e-3,
            bound_over_terms: 0.05,
            bound_over_terms_median: 0.02,
            bound_used: 0.25,
            score: 7.0,
            components: 1440,
            beyond: 0,
            unlikely: 1,
            unlikely_allowed: 1,
            not_finite: 0,
            beyond_range: 0,
            rows_without_claim: 0,
            rows_cancelling: 0,
            argmax_unexplained: 0,
            worst_component: Some(Worst { at: [0, 1, 2, 3], found: 0.5, exact: 0.25, allowed: 1e-6 }),
            printed: Some(Printed { bound: 4e-6, used: 1.5, rows_beyond: 2 }),
            certificate: Some(Certificate::new(DType::F16, 4000, executed)),
            audit: Some(Audit { seed: 9, precise_rows: 8, oracle_error: 1e-16 }),
            random: false,
            passed: true,
            pictures: Pictures { rows: vec![[1e-8, 1e-6], [3e-8, 2e-6]], heat: None },
        }
    }

    /// Judges the answer of a run whose tensors are `random` or might be given, once `change` has changed it.
    fn judged(dtype: DType, random: bool, change: impl Fn(f32) -> f32) -> Case {
        let problem = Shape::plain(1, 2, 40, 300, 32).problem(dtype).unwrap();
        let mut numbers = Random::new(5);
        let mut normals = |name, view: &View| numbers.normals(name, dtype, view.extent(), 1.0).unwrap();
        let spec = problem.spec();
        let [q, k, v] =
            [("q", &spec.query), ("k", &spec.key), ("v", &spec.value)].map(|(n, x)| normals(n, x));
        let inputs = Inputs::new(q.elements(), k.elements(), v.elements());
        let engine = Engine::new(&EngineOptions::default()).unwrap();
        let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
        let mut output = Buffer::zeros("out", dtype, spec.output.extent()).unwrap();
        let mut workspace = plan.workspace().unwrap();
        plan.bind(inputs, Outputs::new(output.elements_mut()), &mut workspace).unwrap().run().unwrap();
        for i in 0..spec.output.extent() {
            let y = output.elements().get(i);
            output.elements_mut().set(i, change(y));
        }
        let subject = Subject::File { name: "changed".into(), output: output.elements() };
        judge(&subject, &problem, inputs, Request { name: "given", random, audit: None }).unwrap()
    }

    #[test]
    fn a_thousandth_too_much_is_refused_where_the_type_resolves_it() {
        for random in [false, true] {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                let right = judged(dtype, random, |y| y);
                assert!(right.passed && right.beyond == 0, "{dtype}: {}", right.why);
                // An f16 number moves by one step or two, a bf16 number by none or one.
                let factor = if dtype == DType::Bf16 { 1.01 } else { 1.001 };
                let wrong = judged(dtype, random, |y| y * factor);
                assert!(
                    wrong.verdict == Verdict::Fail && 8 * wrong.beyond > wrong.components,
                    "{dtype}: {}",
                    wrong.why
                );
            }
        }
    }

    #[test]
    fn an_answer_that_is_nan_has_no_greatest_error() {
        let case = judged(DType::F32, false, |y| if y > 0.1 { f32::NAN } else { y });
        assert!(case.verdict == Verdict::Fail && case.y_max_rel.is_nan(), "{}", case.why);
    }
}
