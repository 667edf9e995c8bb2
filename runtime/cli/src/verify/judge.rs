//! Compares one output with exact attention and decides the verdict.

use super::audit;
use super::case::{Case, Metric, Printed, Worst};
use super::extract::Extraction;
use super::verdict::{decide, why};
use crate::args::warn_without_effect;
use crate::error::Error;
use crate::left_out::LeftOut;
use crate::oracle::{Bounded, Comparison, Oracle, Sizes, Total, key, value};
use crate::rows::{RowId, for_rows, output_row, rows};
use crate::tensor_cores::TensorCores;
use crate::verdict::Verdict;
use crate::{machine, progress};
use elsa_core::attention::certificate::{Executed, Order};
use elsa_core::attention::drift::{Drift, Metrics};
use elsa_core::attention::{Inputs, Outputs, Problem};
use elsa_core::drift::{larger, percentile};
use elsa_core::dtype::{DType, Elements};
use elsa_files::Buffer;
use elsa_runtime::{Engine, PlanOptions};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Origin of the output that is judged.
pub enum Subject<'a> {
    /// A run of this library.
    Run {
        /// Engine that computes the output.
        engine: &'a Engine,
        /// Options of the run's plan.
        options: &'a PlanOptions,
    },
    /// A file that another program wrote.
    File {
        /// Name of the file.
        name: String,
        /// The output, in the layout of the problem.
        output: Elements<'a>,
    },
}

/// Arithmetic that is assumed for an output from a file.
const ASSUMED: &str = "FP32 in any order";

/// Returns the structure and constants of [`ASSUMED`]. A sum is treated as one chain of additions, because no order has
/// a longer path. Products are rounded before they are added. Weights may be divided by their sum before they are
/// multiplied by the values. The exponential has an error of up to four units in the last place.
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
        split: false,
        one_product: false,
        order: Order { normalizes: true, ..Order::ANY },
    }
}

/// Settings of a judgement.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Name of the case.
    pub name: &'a str,
    /// `true` if the tensors are random, so that errors must also stay within the likely bound.
    pub random: bool,
    /// Number of random rows to compare, and the seed with which they are drawn; `None` compares all rows.
    pub audit: Option<(usize, u64)>,
}

/// Computes the output if `subject` is a run, or takes the output from `subject` if it is a file. Compares the output
/// with the oracle and judges it.
///
/// # Errors
/// Returns an error if the engine refuses the options, if the device fails, or if memory is not available.
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
    let shape = [heads, queries, keys, problem.head_dim(), problem.value_dim()];
    let mut case = Case::new(name, spec.dtype.name(), shape, [looked.len(), all.len()], random);
    match subject {
        Subject::File { name, output } => {
            let executed = any_order(problem);
            (case.subject, case.assumed, case.kernel) = (name.clone(), Some(ASSUMED), "");
            case.compare(problem, inputs, Bounded::by(&executed), &looked, *output);
            case.random |= case.surprises() && tokens_differ(problem, inputs);
            if let Some((_, seed)) = audit {
                case.audit = Some(audit::precisely(problem, inputs, &looked, seed));
            }
        }
        Subject::Run { engine, options } => {
            let plan = engine.plan(problem, options)?;
            warn_without_effect(options, &plan);
            let mut output = Buffer::zeros("out", spec.dtype, spec.output.extent())?;
            let mut workspace = plan.workspace()?;
            let report = {
                // The problem has no present keys, because none were requested.
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
            case.tensor_cores = workspace.refused_blocks()?.map(|blocks| TensorCores::of(blocks, &executed));
            let traversed = if options.traverses() { Some(workspace.traversed()?) } else { None };
            case.left_out = traversed.as_ref().map(|ran| LeftOut::of(ran, problem, &inputs));
            let bounded = Bounded { executed: &executed, shares: traversed.map(|ran| ran.share) };
            case.compare(problem, inputs, bounded, &looked, output.elements());
            if let Some((_, seed)) = audit {
                case.audit = Some(audit::precisely(problem, inputs, &looked, seed));
            } else if case.left_out.is_none() {
                // Values may be at most as wide as the head size of the GPU's kernel. Wider values would select another
                // kernel.
                let widest = plan.gpu_choice().map(|choice| choice.kernel.head_dim);
                case.probabilities(&Extraction { engine, options, executed, widest }, problem, inputs, &all)?;
            }
        }
    }
    case.verdict = decide(&case);
    case.passed = case.verdict == Verdict::Pass;
    case.why = why(&case);
    Ok(case)
}

/// Judgement of one row.
struct Judged {
    comparison: Comparison,
    /// Largest `|δy| / |y|` over the components whose exact value is finite and not zero; NaN if the output is NaN in
    /// one of these components.
    relative: f64,
    /// Largest ratio of a component's error to its bound, and this component.
    worst: Option<(f64, Worst)>,
}

impl Case {
    /// Compares `rows` of the output `found` with the oracle's rows.
    fn compare(
        &mut self,
        problem: &Problem,
        inputs: Inputs<'_>,
        bounded: Bounded<'_, '_>,
        rows: &[RowId],
        found: Elements<'_>,
    ) {
        let bar = progress::bar(rows.len() as u64, oracle_seconds(problem, rows.len()));
        let judged = for_rows(
            rows,
            || Oracle::bounded(problem, inputs, bounded),
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

    /// Extracts P and compares it with the oracle.
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

/// Returns `true` if, in each head, all keys are distinct and all values are distinct. Equal tokens would have equal
/// rounding errors, which do not average out.
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

/// Compares an output row with the oracle's row. `found` returns a component of the output row.
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

/// Returns a rough estimate of the seconds that the oracle takes. The estimate decides whether a progress bar is shown.
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
    use elsa_core::view::View;
    use elsa_runtime::EngineOptions;

    /// Calls [`judged_of`] with tokens that are all distinct.
    fn judged(dtype: DType, random: bool, change: impl Fn(f32) -> f32) -> Case {
        judged_of(dtype, random, false, change)
    }

    /// Computes the output of a run, applies `change` to every element, and judges it like an output from a file.
    /// `random` states whether the tensors count as random. With `repeated`, the first two keys of each head are equal,
    /// and so are their values.
    fn judged_of(dtype: DType, random: bool, repeated: bool, change: impl Fn(f32) -> f32) -> Case {
        let problem = Shape::plain(1, 2, 40, 300, 32).problem(dtype).unwrap();
        let mut numbers = Random::new(5);
        let mut normals = |name, view: &View| numbers.normals(name, dtype, view.extent(), 1.0).unwrap();
        let spec = problem.spec();
        let [q, mut k, mut v] =
            [("q", &spec.query), ("k", &spec.key), ("v", &spec.value)].map(|(n, x)| normals(n, x));
        for tensor in [&mut k, &mut v].into_iter().filter(|_| repeated) {
            for at in (0..2).flat_map(|head| head * 300 * 32..head * 300 * 32 + 32) {
                let x = tensor.elements().get(at);
                tensor.elements_mut().set(at + 32, x);
            }
        }
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
                // This factor changes an f16 number by at least one step. A bf16 number needs a greater factor.
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
    fn what_chance_does_not_explain_is_no_fp32_unless_tokens_repeat() {
        // The error is between the likely and the largest possible sum of rounding errors.
        let off = |y: f32| y + 1.5e-5;
        for (repeated, verdict, words) in
            [(false, Verdict::Fail, "not that of FP32"), (true, Verdict::NoClaim, "tokens that repeat")]
        {
            let right = judged_of(DType::F32, false, repeated, |y| y);
            assert!(right.passed, "{}", right.why);
            let case = judged_of(DType::F32, false, repeated, off);
            assert!(case.beyond == 0 && case.surprises(), "{}", case.why);
            assert!(case.verdict == verdict && case.why.contains(words), "{}: {}", case.verdict, case.why);
        }
    }

    #[test]
    fn an_answer_that_is_nan_has_no_greatest_error() {
        let case = judged(DType::F32, false, |y| if y > 0.1 { f32::NAN } else { y });
        assert!(case.verdict == Verdict::Fail && case.y_max_rel.is_nan(), "{}", case.why);
    }
}
