//! Measures the candidates of a shape.
//!
//! 1. Every candidate takes a turn. Candidates that are much slower than the fastest take no further turns.
//! 2. The remaining candidates alternate until the time is over, for at least five turns each. Each round begins with a
//!    different candidate from the previous round. The chooser's own choice is never dropped.
//! 3. A turn consists of a few samples. A sample is the time of several calls, which take a few milliseconds together,
//!    divided by the number of calls. On a GPU it is the time of the device, and the calls are launched as one graph if
//!    the driver supports graphs.
//! 4. Candidates share one workspace and the memory of the tensors. So all candidates together need only the memory of
//!    one call.

use crate::bench::Case;
use crate::error::Error;
use crate::oracle::{Bounded, Total, compare};
use crate::rows::{rows, sample};
use crate::shape::Data;
use elsa_core::attention::plan::{CpuDivision, Division};
use elsa_core::attention::{Inputs, Outputs};
use elsa_files::Buffer;
use elsa_runtime::{Backend, Engine, Plan, PlanOptions, Workspace};
use std::time::{Duration, Instant};

/// Approximate duration of a sample.
const SAMPLE: Duration = Duration::from_millis(2);
/// Maximum number of calls in a sample.
const MOST_CALLS: usize = 64;
/// Number of samples per turn, not counting the warm-up.
const SAMPLES: usize = 3;
/// Minimum number of turns for each candidate that is not dropped after its first turn.
const TURNS: usize = 5;
/// A candidate remains if its time is at most this multiple of the shortest time.
const STAYS: f64 = 1.3;
/// A candidate wins if its time is at most this multiple of the time of the chooser's candidate.
const WINS: f64 = 0.98;
/// Maximum number of multiplications that the oracle does per output. For larger shapes, a sample of rows is compared.
const ORACLE: usize = 1 << 24;

/// The decision of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The kernel and the splits on a GPU.
    Gpu(Division),
    /// The block, the group and the workers on a CPU; `None` leaves them to the chooser.
    Cpu(Option<CpuDivision>),
}

impl Decision {
    /// Adds the decision to the options of a plan.
    #[must_use]
    pub fn options(self, options: &PlanOptions) -> PlanOptions {
        match self {
            Decision::Gpu(division) => options.division(division),
            Decision::Cpu(division) => options.cpu_division(division),
        }
    }
}

/// A candidate and its samples, in milliseconds per call.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The candidate's decision.
    pub decision: Decision,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// The plan's block, group and workers; `None` on a GPU.
    pub cpu: Option<CpuDivision>,
    samples: Vec<f64>,
}

impl Candidate {
    /// Describes the kernel and the rest of the decision.
    #[must_use]
    pub fn words(&self) -> String {
        match (self.decision, self.cpu) {
            (Decision::Gpu(division), _) => format!("{} in {}", self.kernel, division.splits),
            (Decision::Cpu(_), Some(CpuDivision { block, group, workers })) => {
                format!("block {block}, group {group}, workers {workers}")
            }
            (Decision::Cpu(_), None) => self.kernel.to_owned(),
        }
    }

    /// Returns the median of the samples, or infinity without samples.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::INFINITY)
    }
}

/// The turn of a candidate: the plan of the candidate, the inputs, and the number of calls per sample.
struct Turn<'a> {
    plan: &'a Plan,
    inputs: Inputs<'a>,
    calls: &'a mut usize,
}

impl Turn<'_> {
    /// Runs the turn and adds its samples to `samples`.
    fn take(
        self,
        samples: &mut Vec<f64>,
        output: &mut Buffer,
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        let mut bound = self.plan.bind(self.inputs, Outputs::new(output.elements_mut()), workspace)?;
        let on_gpu = self.plan.backend() == Backend::Cuda;
        let mut time = |calls: usize| -> Result<Duration, Error> {
            if on_gpu {
                let (_, time) = bound.time_on_device(calls)?;
                return time.filter(|time| !time.is_zero()).ok_or(Error::Untimed);
            }
            let start = Instant::now();
            for _ in 0..calls {
                bound.run()?;
            }
            Ok((start.elapsed() / calls as u32).max(Duration::from_nanos(1)))
        };
        if *self.calls == 0 {
            // The first launch may load the kernel.
            time(1)?;
            let one = time(1)?;
            *self.calls =
                (SAMPLE.as_secs_f64() / one.as_secs_f64()).ceil().clamp(1.0, MOST_CALLS as f64) as usize;
        }
        time(*self.calls)?;
        for _ in 0..SAMPLES {
            samples.push(time(*self.calls)?.as_secs_f64() * 1e3);
        }
        Ok(())
    }
}

/// Measures every candidate of `case` for about `seconds` in total. The first candidate is the chooser's own choice.
///
/// # Errors
/// Returns an error if the device does not support the problem, if it fails, or if memory is not available.
pub fn measure(
    engine: &Engine,
    case: &Case,
    options: &PlanOptions,
    seconds: f64,
) -> Result<Vec<Candidate>, Error> {
    let problem = case.shape.problem(case.dtype)?;
    let decisions: Vec<Decision> = if engine.backend() == Backend::Cuda {
        let all = engine.divisions(&problem, options)?;
        all.iter().map(|choice| Decision::Gpu(choice.division())).collect()
    } else {
        let others = engine.cpu_divisions(&problem, options)?;
        let others = others.iter().map(|choice| Decision::Cpu(Some(choice.division())));
        std::iter::once(Decision::Cpu(None)).chain(others).collect()
    };
    let plan = |decision: &Decision| engine.plan(&problem, &decision.options(options));
    let plans = decisions.iter().map(plan).collect::<Result<Vec<Plan>, _>>()?;
    let data = Data::random(&case.shape, &problem)?;
    let mut output = Buffer::zeros("out", case.dtype, problem.spec().output.extent())?;
    let mut workspace = Workspace::shared(&plans.iter().collect::<Vec<_>>())?;
    let candidate = |(&decision, plan): (&Decision, &Plan)| {
        let cpu = match decision {
            Decision::Gpu(_) => None,
            Decision::Cpu(_) => plan.choice().map(|choice| choice.division()),
        };
        Candidate { decision, kernel: plan.kernel(), cpu, samples: Vec::new() }
    };
    let mut candidates: Vec<Candidate> = decisions.iter().zip(&plans).map(candidate).collect();
    let mut calls = vec![0; candidates.len()];
    let mut staying: Vec<usize> = (0..candidates.len()).collect();
    let begin = Instant::now();
    for round in 0.. {
        for turn in 0..staying.len() {
            let at = staying[(turn + round) % staying.len()];
            let turn = Turn { plan: &plans[at], inputs: data.inputs(), calls: &mut calls[at] };
            turn.take(&mut candidates[at].samples, &mut output, &mut workspace)?;
        }
        let medians: Vec<f64> = candidates.iter().map(Candidate::median).collect();
        let shortest = medians.iter().copied().fold(f64::INFINITY, f64::min);
        staying.retain(|&at| at == 0 || medians[at] <= shortest * STAYS);
        if round + 1 >= TURNS && begin.elapsed().as_secs_f64() >= seconds {
            break;
        }
    }
    workspace.close()?;
    Ok(candidates)
}

/// Returns the fastest decision over all `cases`; `None` if there are no candidates. The first candidate of each case
/// is the chooser's. In each case, times are divided by the time of the chooser's candidate. Decisions are compared by
/// the geometric mean of these ratios over the cases. Returns the chooser's decision unless another decision is faster
/// by more than noise.
#[must_use]
pub fn winner(cases: &[&[Candidate]]) -> Option<Decision> {
    let own = cases.first()?.first()?.decision;
    let share = |decision: Decision| {
        let logs: f64 = cases
            .iter()
            .map(|case| {
                let time = |wanted| case.iter().find(|other| other.decision == wanted);
                let of = |wanted| time(wanted).map_or(f64::INFINITY, Candidate::median);
                (of(decision) / of(own)).ln()
            })
            .sum();
        (logs / cases.len() as f64).exp()
    };
    let decisions = cases.first()?.iter().map(|candidate| candidate.decision);
    let best = decisions.map(|decision| (share(decision), decision)).min_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(share, _)| *share <= WINS).map(|(_, decision)| decision).or(Some(own))
}

/// Compares the output of a plan with the f64 oracle.
///
/// # Errors
/// Returns an error if rounding cannot explain the error of the output, if the device fails, or if memory is not
/// available.
pub fn check(engine: &Engine, case: &Case, options: &PlanOptions) -> Result<(), Error> {
    let problem = case.shape.problem(case.dtype)?;
    let plan = engine.plan(&problem, options)?;
    let data = Data::random(&case.shape, &problem)?;
    let inputs = data.inputs();
    let mut output = Buffer::zeros("out", case.dtype, problem.spec().output.extent())?;
    let mut workspace = plan.workspace()?;
    let report = plan.run(inputs, Outputs::new(output.elements_mut()), &mut workspace)?;
    let (found, executed) = (output.elements(), plan.certificate_of(report.backend).executed);
    let per_row = case.shape.keys.saturating_mul(4 * case.shape.dim).max(1);
    let some = sample(&rows(&problem, &inputs), (ORACLE / per_row).max(16));
    let total = Total::of(&compare(&problem, inputs, Bounded::by(&executed), &some, found, |_| {}));
    if total.explained.holds() {
        return Ok(());
    }
    Err(Error::Verification(format!(
        "{} at {}: the answer is further from the oracle than rounding explains, and no file is written",
        plan.kernel(),
        case.shape
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Creates a candidate that divides the keys into `splits` splits and has the given samples.
    fn candidate(splits: usize, samples: &[f64]) -> Candidate {
        let decision = Decision::Gpu(Division { candidate: 0, splits });
        Candidate { decision, kernel: "k", cpu: None, samples: samples.to_vec() }
    }

    #[test]
    fn the_winner_is_faster_by_more_than_noise_over_all_batches() {
        let splits = |cases: &[&[Candidate]]| match winner(cases) {
            Some(Decision::Gpu(division)) => Some(division.splits),
            _ => None,
        };
        let own = candidate(1, &[1.0, 9.0, 1.0]);
        assert_eq!(splits(&[&[own.clone(), candidate(2, &[0.5, 0.5, 7.0])]]), Some(2));
        assert_eq!(splits(&[&[own.clone(), candidate(2, &[0.99])]]), Some(1));
        assert_eq!(splits(&[&[own.clone(), candidate(2, &[])]]), Some(1));
        // Two splits are twice as fast alone, but three times as slow in a batch.
        let alone = [own.clone(), candidate(2, &[0.5]), candidate(4, &[0.9])];
        let batch = [own, candidate(2, &[3.0]), candidate(4, &[0.95])];
        assert_eq!(splits(&[&alone, &batch]), Some(4));
        assert_eq!(splits(&[]), None);
    }

    #[test]
    fn decisions_about_a_cpu_compete_with_the_chooser() {
        let division = CpuDivision { block: 128, group: 2, workers: 3 };
        let of = |decision, ms| Candidate {
            decision: Decision::Cpu(decision),
            kernel: "k",
            cpu: Some(division),
            samples: vec![ms],
        };
        let (own, other) = (of(None, 1.0), of(Some(division), 0.9));
        assert_eq!(winner(&[&[own.clone(), other.clone()]]), Some(other.decision));
        assert_eq!(winner(&[&[own.clone(), of(Some(division), 0.99)]]), Some(own.decision));
        assert_eq!(
            (other.words(), candidate(3, &[]).words()),
            ("block 128, group 2, workers 3".into(), "k in 3".into())
        );
    }
}
