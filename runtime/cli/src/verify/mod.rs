//! `elsa verify`: compares an output with exact attention.
//!
//! The output `Y` is compared row by row with [`elsa_core::attention::reference`], attention in f64. `Y` is either
//! computed by a run or read from a file that another program wrote. The probabilities `P` of a run are extracted by
//! additional runs with the same plan options, queries and keys, but with one-hot values: if the values are columns
//! `j0..j1` of the identity matrix, the output is `P[:, j0..j1]`. This output has the type of the problem, so the
//! metrics of `P` include the rounding to f16 or bf16.
//!
//! The six metrics are those of ELSA section C.2 as defined in [`elsa_core::attention::drift`]. Each is reported as the
//! median, the 95th and the 99th percentile over rows, and in total. If a NaN is attended, the metrics are NaN.
//!
//! # Verdicts
//!
//! Errors are judged by the worst-case bound of [`elsa_core::attention::bound::rounding`], without any tuned tolerance.
//!
//! **FAIL**: rounding cannot explain the output.
//! 1. A component of `Y` differs from the oracle by more than the worst-case bound.
//! 2. A component of `Y` is finite and the oracle's component is not, or the oracle's component is finite and the
//!    component of `Y` is not. There are two exceptions, in which the output counts as correct. An attended infinity
//!    yields an infinity or NaN if f32 may lose the weight of the infinity. A value beyond the range of the output's
//!    type becomes infinite.
//! 3. A row's most likely key differs from the oracle's, although the oracle's probabilities of the two keys differ by
//!    more than their errors allow.
//! 4. More components exceed the likely bound than the model of likely errors expects, and the tensors are those of a
//!    scenario or of a shape. Their numbers are random and independent, as the model assumes. Tensors from files may
//!    repeat tokens, and then rounding errors repeat as well. So a run on tensors from files only gets a warning. But
//!    if the output is from a file too, and no two tokens are equal, the output fails. The arithmetic of an output from
//!    a file is only assumed. Errors of distinct tokens average out, so this number of large errors indicates reduced
//!    precision.
//!
//! **NO CLAIM**: nothing fails, but this does not prove anything.
//! 1. In some row, the bound is not below the sum of absolute terms: `max_c worst_c ≥ max_c Σ p_j |v_jc|`. Even an
//!    output of zeros would be within the bound.
//! 2. A component is not finite because f32 cannot represent an intermediate result: a score or a sum of weighted
//!    values is outside its range.
//! 3. The output is from a file, the tokens of the problem repeat, and too many components exceed the likely bound, as
//!    in number 4 under FAIL.
//!
//! **PASS**: everything else.
//!
//! The bound is compared with the absolute terms and not with `|y|`, because rounding errors are relative to the terms.
//! If values cancel, an output may be smaller than its bound, although every digit that the terms allow is correct. The
//! explanation of the verdict then states the number of rows in which this happens.

mod audit;
mod case;
mod extract;
mod html;
mod judge;
mod print;
mod verdict;

use crate::args::values::{dtype, one_of, ordinal, positive};
use crate::args::{EngineArgs, FILE, ForceArgs, ProblemArgs, TraversalArgs};
use crate::error::{Error, dashed, say};
use crate::job::Job;
use crate::report;
use crate::scenario::{self, Scenario};
use crate::shape::{self, Data, Named};
use crate::verdict::Verdict;
use case::Case;
use clap::{Arg, Args};
use elsa_core::attention::{Operand, Problem};
use elsa_core::dtype::DType;
use elsa_files::{Accept, Target, Tensor, TensorPath};
use judge::{Request, Subject, judge};
use print::print;
use std::io::Write;
use std::path::PathBuf;
use verdict::Summary;

/// Help text below the flags, without the scenarios. It contains the formula of
/// [`elsa_core::attention::bound::rounding`].
const HELP: &str = "\
Examples:
  elsa verify --q q.npy --k k.npy --v v.npy --y torch.npy   judges an answer of PyTorch
  elsa verify --q q.npy --k k.npy --v v.npy --verbose       prints metrics and bounds too
  elsa verify --scenario long --audit 32 --seed 7           32 of 256 rows, always the same ones
  elsa verify --scenario regular --html regular.html        a histogram of errors and a heat map
  elsa verify --shape 1,12,197,197,64 --dtype f16           random tensors of a shape of elsa bench

The answer is compared with attention in f64. The first word is the verdict:
  PASS      Rounding explains every difference, and its bound is smaller than the terms that are
            added up.
  FAIL      (exit status 4) One of these: rounding cannot explain a number; a number is NaN or
            infinite but not in exact attention, or the reverse; a row attends another key most;
            more numbers are beyond the likely case than chance allows, as with TF32 and 16-bit
            arithmetic. The last is tested with --scenario and --shape, and with --y if no tokens
            repeat.
  NO CLAIM  (exit status 6) Nothing fails, but one of these: the bound is as large as sum p |v|, so
            an answer of zeros would pass; numbers left the range of FP32; with --y, numbers are
            beyond the likely case and tokens repeat.
If values cancel, an answer may be smaller than its bound: bounds are relative to sum p |v|, and the verdict says so.

Metrics of --verbose, over rows and in total (P are the probabilities, Y is the output, d is the difference from exact
attention):
  max |dP|        largest error of a single probability
  |dP| / |P|      error of all probabilities of a row together, relative to their norm
  Jensen-Shannon  distance of the two distributions: 0 if equal, 0.69 if they share nothing
  argmax differs  share of rows that attend another key most
  max |dY|        largest error of a single number of the output
  |dY| / |Y|      error of a row of the output, relative to its norm
P is the output of the kernel for one-hot values, over a sample of rows if all would take too long. --json prints one
object for each case and a summary last; NaN is null.

The bound of a component has no fitted constant (core/BOUNDS.md derives it); u = 2^-24, g(k) = k u / (1 - k u):
  |dY| <= (1 + h) N / (1 - D) + h |y| + t, and never more than the largest |v_j - y|, because an
      average stays one
  N = sum p_j E_j |v_j - y| + u sum |W_r| + |y| u sum S_r + second order, with the partial sums W_r
      of the weighted values and S_r of the weights in the order of the run; if no order is known,
      each counts its longest path
  E_j = exp(delta_j) (1 + x) - 1 with x the error of the kernel's exponential, and delta_j the error
      of the score: of its partial sums, soft cap, mask and bias, and of its distance from the
      largest score
  D = sum p_j E_j and the roundings of the weights' sum; h = g(3) + roundoff of an f16 or bf16
      output; t is underflow
The likely case is the same analysis with errors of random sign (Azuma-Hoeffding, one component in 10^9). Theorem 1 of
ELSA is printed next to the bound, relative to |Y|. It omits the rounding of scores and the cancellation of values, so a
correct answer may violate it.";

/// Marks the flag of a tensor as required unless `--scenario` or `--shape` selects other tensors.
fn required(flag: Arg) -> Arg {
    scenario::required(flag).required_unless_present("shape")
}

/// `elsa verify`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa verify --q <FILE> --k <FILE> --v <FILE> [--y <FILE>] [OPTIONS]\n       \
    elsa verify --scenario <SCENARIO> [OPTIONS]\n       \
    elsa verify --shape <SHAPE> [OPTIONS]", after_help = format!("{HELP}\n\n{}", scenario::HELP),
    mut_arg("q", required), mut_arg("k", required), mut_arg("v", required))]
pub struct VerifyArgs {
    /// Judge this output of another program instead of running. It was computed from the same inputs. Its arithmetic is
    /// assumed to be FP32 in any order. Type of the inputs or f32, axes of the output
    #[arg(long, value_name = FILE, conflicts_with_all = ["scenario", "shape", "backend", "fallback", "device",
        "threads", "budget", "block", "half_scores", "tensor_cores"])]
    pub y: Option<TensorPath>,
    /// Built-in tensors instead of files
    #[arg(long, conflicts_with_all = ProblemArgs::names(), value_parser = one_of(Scenario::ALL))]
    pub scenario: Option<Scenario>,
    /// Random tensors of a shape instead of files; may be repeated
    #[arg(long, value_name = shape::VALUE, allow_negative_numbers = true, conflicts_with = "scenario",
        conflicts_with_all = ProblemArgs::names())]
    pub shape: Vec<Named>,
    /// With --shape: element type [default: f32]
    #[arg(long, value_parser = dtype())]
    pub dtype: Option<DType>,
    /// Compare R random rows instead of all, and recompute some of them in double-double. P is not extracted
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = positive)]
    pub audit: Option<usize>,
    /// Seed of the rows of --audit [default: from the system]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = ordinal::<u64>)]
    pub seed: Option<u64>,
    /// Write verdict, metrics, bounds and pictures as a page. It is self-contained
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
    /// Permission for pages to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Print one JSON object for each case, and a summary
    #[arg(long)]
    pub json: bool,
    /// Print the metrics and the bounds below the verdict of each case
    #[arg(long, conflicts_with = "json")]
    pub verbose: bool,
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
    /// Engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Traversal of the keys. With a schedule or a budget P is not extracted, and the bound includes skipped blocks.
    #[command(flatten)]
    pub traversal: TraversalArgs,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the request is wrong, if the device fails, if an output is wrong, or if no claim about an output
/// is possible.
pub fn verify(args: &VerifyArgs) -> Result<(), Error> {
    if args.seed.is_some() && args.audit.is_none() {
        let (found, allowed) = ("given without --audit".into(), "with --audit".into());
        return Err(Error::Argument { argument: "seed", found, allowed });
    }
    if args.dtype.is_some() && args.shape.is_empty() {
        let (found, allowed) = ("given without --shape".into(), "with --shape".into());
        return Err(Error::Argument { argument: "dtype", found, allowed });
    }
    args.traversal.excluded_by("y", args.y.is_some())?;
    let mut reads = args.force.reads();
    args.problem.add_to(&mut reads);
    args.engine.add_to(&mut reads);
    if let Some(source) = &args.y {
        source.add_to(&mut reads, "y");
    }
    let page = args.html.as_deref().map(|path| Target::new("html", path, &reads)).transpose()?;
    let audit = args.audit.map(|rows| (rows, args.seed.unwrap_or_else(audit::seed)));
    let mut verdicts = Vec::new();
    let mut shown = Vec::new();
    let mut show = |case: Case| -> Result<(), Error> {
        let mut out = crate::foreign::stdout();
        if args.json {
            report::json(&mut out, &case)?;
        } else {
            print(&mut out, &case, args.verbose)?;
        }
        verdicts.push((case.case.clone(), case.verdict));
        if args.html.is_some() {
            shown.push(case);
        }
        Ok(())
    };
    let random = args.scenario.is_some() || !args.shape.is_empty();
    let request = |name| Request { name, random, audit };
    let options = args.traversal.options(args.engine.plan_options())?;
    if let Some(scenario) = args.scenario {
        let engine = args.engine.engine()?;
        let subject = Subject::Run { engine: &engine, options: &options };
        for case in scenario.cases()? {
            show(judge(&subject, &case.problem, case.inputs(), request(case.name))?)?;
        }
    } else if !args.shape.is_empty() {
        let engine = args.engine.engine()?;
        let subject = Subject::Run { engine: &engine, options: &options };
        let dtype = args.dtype.unwrap_or(DType::F32);
        for shape in args.shape.iter().flat_map(|named| &named.shapes) {
            let problem = shape.problem(dtype)?;
            let data = Data::random(shape, &problem)?;
            let name = shape.to_string();
            show(judge(&subject, &problem, data.inputs(), Request { name: &name, random, audit })?)?;
        }
    } else if let Some(source) = &args.y {
        let job = Job::load(&args.problem, [false, false])?;
        let answer = answer(source, &job)?;
        let output = answer.elements().ok_or_else(|| wrong(&answer, &job.problem, &[]))?;
        let subject = Subject::File { name: source.to_string(), output };
        show(judge(&subject, &job.problem, job.inputs()?, request("given"))?)?;
        job.unchanged()?;
        answer.unchanged()?;
    } else {
        let engine = args.engine.engine()?;
        let job = Job::load(&args.problem, [false, false])?;
        let subject = Subject::Run { engine: &engine, options: &options };
        show(judge(&subject, &job.problem, job.inputs()?, request("given"))?)?;
        job.unchanged()?;
    }
    let summary = Summary::of(&verdicts);
    let mut out = crate::foreign::stdout();
    if args.json {
        report::json(&mut out, &summary)?;
    } else {
        out.paint(summary.verdict.style(), &summary.verdict.to_string())?;
        writeln!(out, ": {}", summary.words())?;
    }
    if let Some(page) = page {
        report::written(page, crate::foreign::page(&html::page(&summary, &shown)?).as_bytes())?;
    }
    match summary.verdict {
        Verdict::Pass => Ok(()),
        Verdict::Fail => Err(Error::Verification(summary.to_string())),
        Verdict::NoClaim => Err(Error::NoClaim(summary.to_string())),
    }
}

/// Reads the output at `source` for the problem of `job`.
fn answer(source: &TensorPath, job: &Job) -> Result<Tensor, Error> {
    let tensor = Tensor::load("y", source, Accept::Float)?;
    let shape = &job.shapes[Operand::Output];
    let dtype = job.problem.spec().dtype;
    let found = tensor.elements().map(|elements| elements.dtype());
    if tensor.shape() != shape || !found.is_some_and(|found| found == dtype || found == DType::F32) {
        return Err(wrong(&tensor, &job.problem, shape));
    }
    if let Some(notice) = tensor.notice() {
        say(&dashed(&notice));
    }
    Ok(tensor)
}

/// Builds the error for an output from a file that does not fit `problem`; `shape` is the shape that would fit.
fn wrong(tensor: &Tensor, problem: &Problem, shape: &[usize]) -> Error {
    let dtype = problem.spec().dtype;
    let types = if dtype == DType::F32 { String::new() } else { " or f32".to_owned() };
    Error::Argument {
        argument: "y",
        found: format!("{} {:?}", tensor.dtype().name(), tensor.shape()),
        allowed: format!("{dtype}{types} {shape:?}, as the output of q and v"),
    }
}
