//! The verdict on one answer.

use super::extract::Extraction;
use crate::args::warn_without_half_scores;
use crate::error::Error;
use crate::memory::Buffer;
use crate::oracle::{Comparison, Explained, Oracle, Total};
use crate::rows::{RowId, for_rows, output_row, rows};
use crate::{machine, progress};
use elsa_core::attention::certificate::{Certificate, Executed};
use elsa_core::attention::{Inputs, Outputs, Problem};
use elsa_core::drift::{Drift, Metrics, larger, percentile};
use elsa_core::dtype::Elements;
use elsa_runtime::{Engine, PlanOptions};
use serde::{Serialize, Serializer};

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

/// The result of one case, which `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// `verify`.
    pub what: &'static str,
    /// Name of the case.
    pub case: String,
    /// The back end that computed.
    pub backend: String,
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
    /// Rows whose Y was compared, which are all.
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
    /// Relative L2 error of Y if every component is at its worst-case bound.
    pub y_rel_l2_allowed: f64,
    /// Relative L2 error of Y if every component is at its likely bound.
    pub y_rel_l2_likely: f64,
    /// Components of Y beyond the worst case.
    pub beyond: usize,
    /// Components of Y beyond the likely case.
    pub unlikely: usize,
    /// The greatest number of them that the model of the likely case expects.
    pub unlikely_allowed: usize,
    /// Components of Y and probabilities that are finite where the oracle's are not, or the reverse.
    pub not_finite: usize,
    /// Rows whose most likely key differs by more than rounding explains.
    pub argmax_unexplained: usize,
    /// The certificate of the plan.
    #[serde(serialize_with = "line")]
    pub certificate: Certificate,
    /// Whether the answer is verified.
    pub passed: bool,
}

/// Whether an answer is verified. With `random`, its tensors are random, so the likely case must hold too.
fn passes(explained: &Explained, not_finite: usize, argmax_unexplained: usize, random: bool) -> bool {
    let likely = !(random && explained.surprises());
    explained.holds() && not_finite == 0 && argmax_unexplained == 0 && likely
}

/// Serializes a certificate as the JSON of its `Display`.
fn line<S: Serializer>(certificate: &Certificate, serializer: S) -> Result<S::Ok, S::Error> {
    let json = serde_json::value::RawValue::from_string(certificate.to_string());
    json.map_err(serde::ser::Error::custom)?.serialize(serializer)
}

/// Computes an answer, compares it with the oracle and judges it. With `random`, the tensors are random, so the
/// likely case must hold too.
///
/// # Errors
/// Options that the engine refuses, and failures of the device or of memory.
pub fn judge(
    engine: &Engine,
    options: &PlanOptions,
    name: &str,
    problem: &Problem,
    inputs: Inputs<'_>,
    random: bool,
) -> Result<Verdict, Error> {
    let spec = problem.spec();
    let plan = engine.plan(problem, options)?;
    warn_without_half_scores(options, &plan);
    let mut output = Buffer::zeros("out", spec.dtype, spec.output.extent())?;
    let mut workspace = plan.workspace()?;
    let report = {
        // Present keys are not requested, so the problem has none.
        let mut bound = plan.bind(inputs, Outputs::new(output.elements_mut()), &mut workspace)?;
        bound.run()?
    };
    let all = rows(problem, &inputs);
    let certificate = plan.certificate_of(report.backend);
    let executed = certificate.executed;
    let bar = progress::bar(all.len() as u64, oracle_seconds(problem, all.len()));
    let (compared, y_max_rel) = compare(problem, inputs, &executed, &all, output.elements(), |n| bar.inc(n));
    bar.finish_and_clear();
    let y_rows: Vec<Metrics> = compared.iter().map(|row| row.drift.metrics()).collect();
    let total = Total::of(&compared);
    let (y_total, explained) = (total.drift.as_ref(), total.explained);

    // The head size that the GPU's kernel takes. A greater one would choose another kernel.
    let widest = plan.gpu_choice().map(|choice| choice.kernel.head_dim);
    let extraction = Extraction { engine, options, executed, widest };
    let p = extraction.compare(problem, inputs, &all)?;
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

/// Compares the rows `all` of an answer with the oracle's. Returns also the greatest `|δY| / |Y|` of a component whose
/// reference is finite and not zero; NaN if one of them is NaN in the answer.
fn compare(
    problem: &Problem,
    inputs: Inputs<'_>,
    executed: &Executed,
    all: &[RowId],
    found: Elements<'_>,
    done: impl Fn(u64) + Sync,
) -> (Vec<Comparison>, f64) {
    let compared: Vec<(Comparison, f64)> = for_rows(
        all,
        || Oracle::new(problem, inputs, executed),
        |oracle, row| {
            oracle.row(row);
            let at = output_row(problem, &inputs, row);
            let comparison = Comparison::of(oracle, |c| f64::from(found.get(at + c)));
            let relative = oracle.y.iter().enumerate().filter(|(_, y)| **y != 0.0 && y.is_finite());
            let relative = relative.map(|(c, y)| ((f64::from(found.get(at + c)) - y) / y).abs());
            (comparison, relative.fold(0.0, larger))
        },
        done,
    );
    let largest = compared.iter().map(|(_, x)| *x).fold(0.0, larger);
    (compared.into_iter().map(|(comparison, _)| comparison).collect(), largest)
}

/// A rough estimate of the oracle's time in seconds, to decide whether to show a bar.
fn oracle_seconds(problem: &Problem, rows: usize) -> f64 {
    let work =
        rows as f64 * problem.keys() as f64 * (3 * problem.head_dim() + 2 * problem.value_dim()) as f64;
    work / 1e9 / machine::cores() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::shape::Shape;
    use elsa_core::dtype::DType;
    use elsa_core::view::View;
    use elsa_runtime::EngineOptions;

    /// Judges the answer of a run whose tensors are `random` or might be given, once `change` has changed it. Returns
    /// whether it is verified, its components, those beyond the worst case, and the greatest relative error.
    fn judged(dtype: DType, random: bool, change: impl Fn(f32) -> f32) -> (bool, usize, usize, f64) {
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
        let report =
            plan.bind(inputs, Outputs::new(output.elements_mut()), &mut workspace).unwrap().run().unwrap();
        for i in 0..spec.output.extent() {
            let y = output.elements().get(i);
            output.elements_mut().set(i, change(y));
        }
        let executed = plan.certificate_of(report.backend).executed;
        let all = rows(&problem, &inputs);
        let (compared, largest) = compare(&problem, inputs, &executed, &all, output.elements(), |_| ());
        let explained = Total::of(&compared).explained;
        let passed = passes(&explained, explained.not_finite, 0, random);
        (passed, explained.components, explained.beyond, largest)
    }

    #[test]
    fn a_thousandth_too_much_is_refused_where_the_type_resolves_it() {
        for random in [false, true] {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                let (passed, _, beyond, _) = judged(dtype, random, |y| y);
                assert!(passed && beyond == 0, "{dtype}: {beyond}");
            }
            // An f16 number moves by one step or two, a bf16 number by none or one.
            for (dtype, factor) in [(DType::F32, 1.001), (DType::F16, 1.001), (DType::Bf16, 1.01)] {
                let (passed, all, beyond, _) = judged(dtype, random, |y| y * factor);
                assert!(!passed && 2 * beyond > all, "{dtype}: {beyond} of {all}");
            }
        }
    }

    #[test]
    fn an_answer_that_is_nan_has_no_greatest_error() {
        let (passed, _, _, largest) = judged(DType::F32, false, |y| if y > 0.1 { f32::NAN } else { y });
        assert!(!passed && largest.is_nan(), "{largest}");
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
