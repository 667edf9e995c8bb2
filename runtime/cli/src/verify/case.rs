//! The record of one judged output, with its numbers and its verdict, as `elsa verify` prints it.

use super::audit::Audit;
use crate::left_out::LeftOut;
use crate::picture::HeatMap;
use crate::tensor_cores::TensorCores;
use crate::verdict::Verdict;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::drift::Metrics;
use elsa_core::drift::percentile;
use serde::{Serialize, Serializer};

/// One of the six metrics that section C.2 of the ELSA paper defines.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Metric {
    /// Median over rows.
    pub median: f64,
    /// 95th percentile over rows.
    pub p95: f64,
    /// 99th percentile over rows.
    pub p99: f64,
    /// Value over all rows together. Depending on the metric, it is the maximum, the ratio of norms, or the mean.
    pub total: f64,
}

impl Metric {
    /// A metric whose values are unknown.
    const NONE: Metric = Metric { median: f64::NAN, p95: f64::NAN, p99: f64::NAN, total: f64::NAN };

    /// Computes the percentiles of `measure` over `rows`, and the total by applying `measure` to `total`.
    #[must_use]
    pub fn of(rows: &[Metrics], total: Option<&Metrics>, measure: fn(&Metrics) -> f64) -> Metric {
        let mut each: Vec<f64> = rows.iter().map(measure).collect();
        let [median, p95, p99] =
            [50, 95, 99].map(|percent| percentile(&mut each, percent).unwrap_or(f64::NAN));
        Metric { median, p95, p99, total: total.map_or(f64::NAN, measure) }
    }
}

/// The output component that uses the largest share of its error bound.
#[derive(Clone, Debug, Serialize)]
pub struct Worst {
    /// Indices of the sequence, query head, query and component.
    pub at: [usize; 4],
    /// Computed value.
    pub found: f64,
    /// Exact value.
    pub exact: f64,
    /// Worst-case bound on the difference between the two values.
    pub allowed: f64,
}

/// ELSA Theorem 1 as printed in the paper, applied to each row: `‖ŷ − y‖ / ‖y‖ ≤ u L(n, B)`, plus the rounding of a
/// 16-bit output.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Printed {
    /// Bound of the theorem on the relative error of a row.
    pub bound: f64,
    /// Largest ratio of a row's error to the bound.
    pub used: f64,
    /// Number of rows that violate the bound.
    pub rows_beyond: usize,
}

/// The result of one case, which `--json` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Case {
    /// Kind of the record: `verify`.
    pub what: &'static str,
    /// Verdict: PASS, FAIL or NO CLAIM.
    pub verdict: Verdict,
    /// Reason for the verdict, in one sentence.
    pub why: String,
    /// Name of the case.
    pub case: String,
    /// Origin of the judged output: the name of a back end or of a file.
    pub subject: String,
    /// Arithmetic that is assumed for an output from a file; `None` for a run.
    pub assumed: Option<&'static str>,
    /// Back end that computed the output; `None` for a file.
    pub backend: Option<String>,
    /// Name of the kernel that ran; empty for a file.
    pub kernel: &'static str,
    /// Reason why the CPU computed instead of the requested GPU.
    pub fallback: Option<String>,
    /// Number of threads of the engine.
    pub threads: usize,
    /// Element type of the inputs.
    pub dtype: &'static str,
    /// Number of query heads over all sequences, number of queries and of keys in the longest sequence, head size of
    /// keys, and head size of values.
    pub shape: [usize; 5],
    /// Number of rows of the output Y that were compared.
    pub rows: usize,
    /// Number of rows of the output Y in total.
    pub rows_of: usize,
    /// Number of rows of the probabilities P that were compared.
    pub p_rows: usize,
    /// Largest error of a probability: `max |δP|`.
    pub p_max_abs: Option<Metric>,
    /// Relative L2 error of the probabilities: `‖δP‖ / ‖P‖`.
    pub p_rel_l2: Option<Metric>,
    /// Jensen–Shannon divergence between the probabilities of the run and the oracle's probabilities, in nats. The
    /// total is the mean over rows.
    pub js: Option<Metric>,
    /// For each row: 1 if the most likely key differs from the oracle's most likely key, and 0 otherwise. The total is
    /// the share of the rows with 1.
    pub argmax: Option<Metric>,
    /// Largest error of an output component: `max |δY|`.
    pub y_max_abs: Metric,
    /// Relative L2 error of the output: `‖δY‖ / ‖Y‖`.
    pub y_rel_l2: Metric,
    /// Largest `|δY| / |Y|` over the components whose exact value is not zero.
    pub y_max_rel: f64,
    /// Relative L2 error that Y would have if the error of every component were its worst-case bound.
    pub y_rel_l2_allowed: f64,
    /// Relative L2 error that Y would have if the error of every component were its likely bound.
    pub y_rel_l2_likely: f64,
    /// Largest error of a row, divided by the row's `max Σ p_j |v_jc|`: `max |δy_c| / max Σ p_j |v_jc|`, with maxima over
    /// the components c.
    pub error_over_terms: f64,
    /// Largest worst-case bound of a row, divided by the row's `max Σ p_j |v_jc|`.
    pub bound_over_terms: f64,
    /// Median, over all rows, of the ratio of a row's worst-case bound to the row's `max Σ p_j |v_jc|`.
    pub bound_over_terms_median: f64,
    /// Largest ratio of a component's error to its worst-case bound.
    pub bound_used: f64,
    /// Largest sum of the absolute products in a score, `|scale| Σ |q_c k_c|`, which determines the rounding of scores.
    pub score: f64,
    /// Number of components of Y that were compared.
    pub components: usize,
    /// Number of components of Y whose error exceeds the worst-case bound.
    pub beyond: usize,
    /// Number of components of Y whose error exceeds the likely bound.
    pub unlikely: usize,
    /// Largest number of components whose error may exceed the likely bound according to the model of likely errors.
    pub unlikely_allowed: usize,
    /// Number of components of Y, and of probabilities, that are finite in the output but not in the oracle, or in the
    /// oracle but not in the output.
    pub not_finite: usize,
    /// Number of components of Y that are not finite because their row leaves the range of the arithmetic.
    pub beyond_range: usize,
    /// Number of rows whose bound is too large to be meaningful.
    pub rows_without_claim: usize,
    /// Number of rows in which values cancel so strongly that the output is smaller than its bound.
    pub rows_cancelling: usize,
    /// Number of rows whose most likely key differs from the oracle's most likely key, although rounding cannot explain
    /// the difference.
    pub argmax_unexplained: usize,
    /// The component that uses the largest share of its worst-case bound.
    pub worst_component: Option<Worst>,
    /// The theorem as printed in the paper, for comparison with the worst-case bound.
    pub printed: Option<Printed>,
    /// Certificate of the plan; `None` for a file.
    #[serde(serialize_with = "line")]
    pub certificate: Option<Certificate>,
    /// Blocks that the run skipped under a schedule other than the exact schedule; `None` if there was no such run.
    pub left_out: Option<LeftOut>,
    /// Blocks of rows that Tensor Cores refused; `None` if the run was not on Tensor Cores.
    pub tensor_cores: Option<TensorCores>,
    /// Audit of the randomly drawn rows; `None` if all rows were compared.
    pub audit: Option<Audit>,
    /// `true` if too many errors beyond the likely bound are a failure. The value is `true` for random tensors. It is
    /// also `true` for an output from a file if no two tokens are equal and more components exceed the likely bound
    /// than the model of likely errors expects.
    pub random: bool,
    /// `true` if the verdict is PASS.
    pub passed: bool,
    /// Data for the plots on the HTML page. They are not printed.
    #[serde(skip)]
    pub pictures: Pictures,
}

/// Data for the plots on the HTML page.
#[derive(Clone, Debug, Default)]
pub struct Pictures {
    /// Error and bound of each row, divided by the row's `max Σ p_j |v_jc|`.
    pub rows: Vec<[f64; 2]>,
    /// `|δP|` of the first head, if P was extracted.
    pub heat: Option<HeatMap>,
}

/// Serializes a certificate as the JSON that its `Display` writes.
fn line<S: Serializer>(certificate: &Option<Certificate>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(certificate) = certificate else { return serializer.serialize_none() };
    let json = serde_json::value::RawValue::from_string(certificate.to_string());
    json.map_err(serde::ser::Error::custom)?.serialize(serializer)
}

impl Case {
    /// Creates a case without results. `rows` contains the number of rows to compare, and the number of all rows.
    #[must_use]
    pub fn new(name: &str, dtype: &'static str, shape: [usize; 5], rows: [usize; 2], random: bool) -> Case {
        let [rows, rows_of] = rows;
        Case {
            what: "verify",
            case: name.into(),
            dtype,
            shape,
            rows,
            rows_of,
            y_max_abs: Metric::NONE,
            y_rel_l2: Metric::NONE,
            random,
            ..Case::default()
        }
    }

    /// Returns `true` if more components exceed the likely bound than the model of likely errors expects.
    #[must_use]
    pub fn surprises(&self) -> bool {
        self.unlikely > self.unlikely_allowed
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::shape::Shape;
    use elsa_core::attention::certificate::Executed;
    use elsa_core::attention::scalar;
    use elsa_core::dtype::DType;

    /// Creates a case that passes, with a distinct number in every field that can be nonzero.
    pub fn case() -> Case {
        let metric = |x: f64| Metric { median: x, p95: 2.0 * x, p99: 3.0 * x, total: 4.0 * x };
        let shape = Shape::plain(1, 1, 1, 1, 16);
        let executed = scalar::executed(&shape.problem(DType::F16).unwrap());
        let executed = Executed { block: 64, segment_blocks: 8, merge_depth: 3, additions: 73, ..executed };
        Case {
            what: "verify",
            verdict: Verdict::Pass,
            why: "because".into(),
            case: "given".into(),
            subject: "avx2".into(),
            backend: Some("avx2".into()),
            kernel: "kernel",
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
            unlikely: 1,
            unlikely_allowed: 1,
            worst_component: Some(Worst { at: [0, 1, 2, 3], found: 0.5, exact: 0.25, allowed: 1e-6 }),
            printed: Some(Printed { bound: 4e-6, used: 1.5, rows_beyond: 2 }),
            certificate: Some(Certificate::new(DType::F16, 4000, executed)),
            audit: Some(Audit { seed: 9, precise_rows: 8, oracle_error: 1e-16 }),
            passed: true,
            pictures: Pictures { rows: vec![[1e-8, 1e-6], [3e-8, 2e-6]], heat: None },
            ..Case::default()
        }
    }
}
