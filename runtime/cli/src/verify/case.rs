//! The data and the verdict of one answer, as `elsa verify` prints them.

use super::audit::Audit;
use crate::left_out::LeftOut;
use crate::picture::HeatMap;
use crate::verdict::Verdict;
use elsa_core::attention::certificate::Certificate;
use elsa_core::attention::drift::Metrics;
use elsa_core::drift::percentile;
use serde::{Serialize, Serializer};

/// One of the six metrics.
#[derive(Clone, Copy, Debug, Default, Serialize)]
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
    /// A metric that is unknown.
    const NONE: Metric = Metric { median: f64::NAN, p95: f64::NAN, p99: f64::NAN, total: f64::NAN };

    /// Returns the percentiles of `measure` over `rows`, and its value in `total`.
    #[must_use]
    pub fn of(rows: &[Metrics], total: Option<&Metrics>, measure: fn(&Metrics) -> f64) -> Metric {
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
    /// Computed value.
    pub found: f64,
    /// Exact value.
    pub exact: f64,
    /// The worst-case bound of their difference.
    pub allowed: f64,
}

/// ELSA Theorem 1 as printed, row by row: `‖ŷ − y‖ / ‖y‖ ≤ u L(n, B)`, and the rounding of a 16-bit output.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Printed {
    /// Bound of the theorem.
    pub bound: f64,
    /// The greatest share of it that a row uses.
    pub used: f64,
    /// Rows that violate it.
    pub rows_beyond: usize,
}

/// The result of one case, which `--json` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Case {
    /// Kind of the record: `verify`.
    pub what: &'static str,
    /// PASS, FAIL or NO CLAIM.
    pub verdict: Verdict,
    /// Why.
    pub why: String,
    /// Name of the case.
    pub case: String,
    /// Origin of the judged answer: the back end, or a file.
    pub subject: String,
    /// The arithmetic that is assumed of an answer that something else computed.
    pub assumed: Option<&'static str>,
    /// The back end that computed; none for a file.
    pub backend: Option<String>,
    /// Kernel that ran.
    pub kernel: &'static str,
    /// Reason why the CPU computed instead of the requested GPU.
    pub fallback: Option<String>,
    /// Workers of the engine.
    pub threads: usize,
    /// Element type.
    pub dtype: &'static str,
    /// Query heads of all sequences, queries and keys of the longest sequence, head sizes.
    pub shape: [usize; 5],
    /// Rows whose Y was compared.
    pub rows: usize,
    /// Number of all rows.
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
    /// Greatest worst-case bound of a row, relative to its terms as in `error_over_terms`.
    pub bound_over_terms: f64,
    /// Median of this bound over rows, relative to their terms.
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
    /// The theorem as printed, to compare with the bound.
    pub printed: Option<Printed>,
    /// The certificate of the plan.
    #[serde(serialize_with = "line")]
    pub certificate: Option<Certificate>,
    /// Blocks skipped by a run under a schedule other than the exact one.
    pub left_out: Option<LeftOut>,
    /// Rows that were drawn in place of all.
    pub audit: Option<Audit>,
    /// `true` if the likely case must hold: the tensors are random, or something else computed the answer, the likely
    /// case does not hold, and no two tokens are equal.
    pub random: bool,
    /// `true` if the verdict is PASS.
    pub passed: bool,
    /// Data of the pictures; not printed.
    #[serde(skip)]
    pub pictures: Pictures,
}

/// Data of the pictures.
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

impl Case {
    /// Creates a case without numbers. `rows` are the number of rows to compare, and of all rows.
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

    /// Returns `true` if more components exceed the likely case than its model expects.
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
