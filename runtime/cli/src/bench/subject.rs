//! A method applied to a problem: its plan and memory, its first call, and the oracle's judgement of the output.

use super::grid::Case;
use super::method::{Algorithm, Baseline, Prepared, no_room};
use super::progress::{Part, Progress};
use crate::args::warn_without_effect;
use crate::error::{Error, say};
use crate::left_out::LeftOut;
use crate::oracle::{Bounded, Comparison, Total, compare};
use crate::rows::{RowId, rows, sample};
use elsa_core::attention::{Inputs, Problem};
use elsa_core::dtype::Elements;
use elsa_core::plan::ChooseError;
use elsa_files::Buffer;
use elsa_runtime::{Backend, Engine, PlanError, PlanOptions};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Maximum number of multiplications that the oracle does for one output. For larger shapes, it computes a sample of
/// the rows.
const ORACLE: usize = 1 << 28;

/// A method applied to a problem.
pub struct Subject {
    /// The method.
    pub method: Algorithm,
    /// `true` for the duplicate of the first method. The duplicate measures the noise.
    pub copy: bool,
    /// The prepared method.
    pub prepared: Prepared,
    /// The answer of the last call.
    pub output: Buffer,
    /// `true` if the plan runs under a schedule other than the exact schedule.
    traverses: bool,
    /// Latency of the first call in milliseconds, including the time to load the kernels of the plan.
    pub cold_ms: f64,
    /// The answer of the first call.
    first: Buffer,
    /// Comparisons of rows of the first answer with the oracle.
    compared: Vec<Comparison>,
}

/// Prepares each of `methods` for the problem of `case`, and the first method once more, as a duplicate. With
/// `lenient`, a planned method after the first is skipped if the problem, the options or the budget do not allow it.
///
/// # Errors
/// Returns an error if the engine refuses the options or the system refuses memory.
pub fn prepare(
    engine: &Engine,
    case: &Case,
    problem: &Problem,
    methods: &[Algorithm],
    lenient: bool,
    options: &PlanOptions,
) -> Result<Vec<Subject>, Error> {
    let mut subjects: Vec<Subject> = Vec::new();
    let copied = methods.first().map(|method| (*method, true));
    for (method, copy) in methods.iter().map(|method| (*method, false)).chain(copied) {
        let (prepared, loading) = match method.planned() {
            None => (Prepared::Rows(Baseline::new(engine, case, problem, options)?), 0.0),
            Some(planned) => {
                let before = engine.loaded_kernels().len();
                let may_skip = lenient && !subjects.is_empty();
                let options = options.method(planned);
                let Some(prepared) = plan(engine, case, problem, method, may_skip, &options)? else {
                    continue;
                };
                (prepared, engine.loaded_kernels()[before..].iter().map(|kernel| kernel.ms).sum::<f64>())
            }
        };
        let zeros = || Buffer::zeros("out", case.dtype, problem.spec().output.extent());
        let (output, first) = (zeros()?, zeros()?);
        subjects.push(Subject {
            method,
            copy,
            prepared,
            output,
            traverses: options.traverses(),
            cold_ms: loading,
            first,
            compared: Vec::new(),
        });
    }
    Ok(subjects)
}

/// Plans `method` with `options`, which name it too. Returns `None` if the problem, the options or the budget do not
/// allow the method, and it may be skipped.
fn plan(
    engine: &Engine,
    case: &Case,
    problem: &Problem,
    method: Algorithm,
    may_skip: bool,
    options: &PlanOptions,
) -> Result<Option<Prepared>, Error> {
    let plan = match engine.plan(problem, options) {
        Err(PlanError::Refused(ChooseError::Budget { needed, .. })) if may_skip => {
            warn_without_room(method, case.shape.keys, needed);
            return Ok(None);
        }
        // The method does not support the requested schedule or error budget.
        Err(PlanError::Option(_)) if may_skip => return Ok(None),
        Err(PlanError::Refused(ChooseError::Packed)) if may_skip => return Ok(None),
        Err(PlanError::Refused(ChooseError::Budget { needed, budget })) => {
            return Err(no_room(budget, needed, method, case));
        }
        plan => plan?,
    };
    warn_without_effect(options, &plan);
    let workspace = plan.workspace()?;
    Ok(Some(Prepared::Planned { plan, workspace }))
}

/// Rows of a problem that are compared with the oracle.
pub struct Check<'a> {
    problem: &'a Problem,
    inputs: Inputs<'a>,
    rows: Vec<RowId>,
}

impl<'a> Check<'a> {
    /// Selects the rows to check: all of them, or an even sample if there are many.
    #[must_use]
    pub fn new(case: &Case, problem: &'a Problem, inputs: Inputs<'a>) -> Check<'a> {
        let all = rows(problem, &inputs);
        let per_row = case.shape.keys.saturating_mul(4 * case.shape.dim).max(1);
        Check { problem, inputs, rows: sample(&all, (ORACLE / per_row).max(16)) }
    }

    /// Makes the first call of each of `subjects` and compares its output with the oracle. Duplicates are skipped.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn first_calls(&self, subjects: &mut [Subject], progress: &Progress) -> Result<(), Error> {
        let looked = AtomicU64::new(0);
        let wanted = self.rows.len() * subjects.iter().filter(|subject| !subject.copy).count();
        for subject in subjects.iter_mut().filter(|subject| !subject.copy) {
            let Subject { prepared, output, .. } = subject;
            let (backend, spent) = {
                let mut call = prepared.bind(self.inputs, output.elements_mut())?;
                let start = Instant::now();
                (call.run()?, start.elapsed())
            };
            subject.cold_ms += spent.as_secs_f64() * 1e3;
            let found = subject.output.elements();
            let executed = subject.prepared.certificate_of(backend).executed;
            let (problem, inputs) = (self.problem, self.inputs);
            let traversed = if subject.traverses { Some(subject.prepared.traversed()?) } else { None };
            if let Some(traversed) = &traversed {
                say(&LeftOut::of(traversed, problem, &inputs).to_string());
            }
            let bounded = Bounded { executed: &executed, shares: traversed.map(|ran| ran.share) };
            subject.compared = compare(problem, inputs, bounded, &self.rows, found, |rows| {
                let done = looked.fetch_add(rows, Ordering::Relaxed) + rows;
                progress.tell(Part::Check, done as f64 / wanted as f64);
            });
            subject.first = subject.output.clone();
        }
        Ok(())
    }
}

impl Subject {
    /// Returns the oracle's judgement of the first output. An element of an output in `later` also counts as wrong if
    /// its bits differ from those of the first output.
    #[must_use]
    pub fn judged<'a>(&self, later: impl Iterator<Item = &'a Buffer>) -> Total {
        let mut total = Total::of(&self.compared);
        total.explained.beyond +=
            later.map(|answer| differing(self.first.elements(), answer.elements())).sum::<usize>();
        total
    }

    /// Returns `true` if the error in `total` is within the certificate of the plan on `backend`.
    #[must_use]
    pub fn certified(&self, total: &Total, backend: Backend) -> bool {
        let certificate = self.prepared.certificate_of(backend);
        // The published bound covers only the rounding errors, not skipped blocks.
        let published = certificate.published_bound + certificate.output_rounding;
        total.explained.holds() && (self.traverses || total.relative() <= published)
    }
}

/// Logs a warning, once per process, that a method is left out because the memory budget has no room for it.
fn warn_without_room(method: Algorithm, keys: usize, needed: usize) {
    static WARNED: Once = Once::new();
    let method = method.name();
    WARNED.call_once(|| {
        log::warn!("--budget has no room for {method}: {needed} bytes at {keys} keys; where it has none, {method} is left out");
    });
}

/// Returns the number of elements whose bits differ.
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
        assert_eq!(differing(Elements::F32(&zero), Elements::F32(&zero[..1])), 1);
    }
}
