//! `elsa linear verify`: compares every form with the recurrence in f64. The differences must be within the error bound
//! of the form's execution.

use super::args::{FormArgs, SemanticsArgs, TensorArgs};
use super::data::{self, LinearShape, Sample, Semantics};
use super::job::{LinearJob, Written};
use super::judge::{Answer, Judged, judge};
use super::run::refusal;
use crate::args::values::{Choice, dtype};
use crate::args::{FILE, HostArgs};
use crate::error::{Error, say};
use crate::foreign::Shown;
use crate::progress;
use crate::report::{self, count, object};
use crate::verdict::Verdict;
use clap::Args;
use elsa_core::dtype::{DType, Elements};
use elsa_core::linear::bound::Executed;
use elsa_core::linear::{Direction, Form, Inputs, Operand, Outputs, Problem};
use elsa_files::{Accept, Buffer, Tensor, TensorPath, leaves_enough, zeros};
use elsa_runtime::Engine;
use serde::Serialize;
use std::io::Write;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa linear verify --rule gated-delta --shape 1,2,4096,64
  elsa linear verify --rule delta --shape 1,1,65536,32 --form chunk
  elsa linear verify --rule gated --q q.npy --k k.npy --v v.npy --decay g.npy --reverse
  elsa linear verify --rule gated --q q.npy --k k.npy --v v.npy --decay g.npy --y torch.npy
Output and last states are compared with the recurrence in f64, element by element. The bound of an element counts the
roundings of the form, times the recurrence over absolute values, or over norms for the delta rules.
Used is the largest quotient of an error and its bound. Gain is the factor by which the tokens magnify an error. It is
at most 1 if gates and beta |k|^2 <= 2 contract; otherwise answers may grow, and so does the bound.
--y judges a file by the bound of the form recurrent, or of --form. With --shape, keys and queries are random unit
vectors, gates are near 0.88 and rates near 0.5.

Exit status: 0 PASS; 2 the request was wrong; 3 the device or the system failed; 4 FAIL: an error exceeds its bound; 6 NO CLAIM:
a bound is infinite.";

/// `elsa linear verify`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa linear verify --rule <RULE> --q <FILE> --k <FILE> --v <FILE> [OPTIONS]\n       \
    elsa linear verify --rule <RULE> --shape <SHAPE> [OPTIONS]", after_help = HELP)]
pub struct LinearVerifyArgs {
    /// Random tensors instead of files. Batch, heads, tokens and head sizes; heads of v and of k if different
    #[arg(long, value_name = data::VALUE, allow_hyphen_values = true,
        conflicts_with_all = ["q", "k", "v", "decay", "beta", "past_state", "cu_seqlens", "layout", "heads", "kv_heads", "y"])]
    pub shape: Option<LinearShape>,
    /// With --shape: one gate for each dim of the key
    #[arg(long)]
    pub per_dim: bool,
    /// With --shape: element type [default: f32]
    #[arg(long, value_parser = dtype())]
    pub dtype: Option<DType>,
    /// Judge this output, in the shape and type of elsa linear run or f32, instead of running
    #[arg(long, value_name = FILE)]
    pub y: Option<TensorPath>,
    /// Print one JSON object for each form, and a summary
    #[arg(long)]
    pub json: bool,
    /// Print kernels, metrics and bounds too
    #[arg(long)]
    pub verbose: bool,
    /// Semantics.
    #[command(flatten)]
    pub semantics: SemanticsArgs,
    /// Tensors.
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Order of operations; with auto every form of the problem.
    #[command(flatten)]
    pub form: FormArgs,
    /// Engine.
    #[command(flatten)]
    pub host: HostArgs,
}

/// Results of a form, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Case {
    what: &'static str,
    rule: &'static str,
    direction: &'static str,
    form: &'static str,
    chunk: usize,
    backend: String,
    kernel: &'static str,
    threads: usize,
    verdict: Verdict,
    #[serde(flatten)]
    judged: Judged,
}

/// The tensors of the verification, which are from files or random.
enum Subject {
    Files(Box<LinearJob>),
    Random(Box<Sample>),
}

impl Subject {
    /// Reads or generates the tensors. The states after the last token are compared too, if the direction has them.
    fn of(args: &LinearVerifyArgs) -> Result<Subject, Error> {
        let semantics = &args.semantics;
        if let Some(shape) = &args.shape {
            if args.per_dim && !semantics.rule.is_gated() {
                let found = format!("given with --rule {}", semantics.rule.name());
                let allowed = "with the rules gated and gated-delta".into();
                return Err(Error::Argument { argument: "per-dim", found, allowed });
            }
            let semantics = Semantics { states: true, ..Semantics::of(semantics, args.per_dim) };
            let dtype = args.dtype.unwrap_or(DType::F32);
            return Ok(Subject::Random(Box::new(Sample::new(shape, &semantics, dtype)?)));
        }
        for (given, argument) in [(args.per_dim, "per-dim"), (args.dtype.is_some(), "dtype")] {
            if given {
                let (found, allowed) = ("given without --shape".into(), "with --shape".into());
                return Err(Error::Argument { argument, found, allowed });
            }
        }
        let present_state = semantics.order.direction() != Direction::Bidirectional;
        let job = LinearJob::load(&args.tensors, semantics, Written { present_state })?;
        Ok(Subject::Files(Box::new(job)))
    }

    fn problem(&self) -> &Problem {
        match self {
            Subject::Files(job) => &job.problem,
            Subject::Random(sample) => &sample.problem,
        }
    }

    fn inputs(&self) -> Result<Inputs<'_>, Error> {
        match self {
            Subject::Files(job) => job.inputs(),
            Subject::Random(sample) => Ok(sample.inputs()),
        }
    }
}

/// Outputs of a form, and data about its execution.
struct Run {
    case: Case,
    /// Data about the execution of each sequence. The error bound is computed from these data.
    executed: Vec<Executed>,
    output: Buffer,
    present: Option<Vec<f32>>,
}

/// Runs a form. If the output comes from `--y`, the form is only planned and does not run. A form may be impossible
/// because the problem does not support it, or because it does not fit into memory. The result is then an error if the
/// user named the form, and `None` otherwise.
fn run(args: &LinearVerifyArgs, engine: &Engine, given: &Subject, form: Form) -> Result<Option<Run>, Error> {
    let (problem, inputs) = (given.problem(), given.inputs()?);
    let form_args = FormArgs { form: Choice(Some(form)), ..args.form };
    let planned = engine.linear_plan(problem, &form_args.plan_options(args.host.budget));
    // If the output is given, nothing runs and no workspace is needed.
    let made = planned.and_then(|plan| {
        let workspace = if args.y.is_none() { Some(plan.workspace()?) } else { None };
        Ok((plan, workspace))
    });
    let (plan, workspace) = match made {
        Ok(made) => made,
        Err(e) => match refusal(&e).filter(|_| args.form.form.0.is_none()) {
            Some(why) => {
                say(&format!("form {} is left out: {why}", form.name()));
                return Ok(None);
            }
            None => return Err(e.into()),
        },
    };
    let count = |operand| problem.memory(operand).map_or(0, |memory| memory.elements);
    let mut output = Buffer::zeros("out", problem.spec().dtype, count(Operand::Output))?;
    let has_states = problem.spec().present_state.is_some();
    let present = has_states.then(|| zeros::<f32>("present-state", count(Operand::PresentState)));
    let mut present = present.transpose()?;
    let backend = match workspace {
        None => plan.backend(),
        Some(mut workspace) => {
            leaves_enough("budget", plan.workspace_bytes())?;
            let outputs =
                Outputs { output: Some(output.elements_mut()), present_state: present.as_deref_mut() };
            plan.run(inputs, outputs, &mut workspace)?.backend
        }
    };
    let case = Case {
        what: "linear verify",
        rule: problem.rule().name(),
        direction: problem.spec().direction.name(),
        form: form.name(),
        chunk: plan.division_of(backend).chunk,
        backend: backend.to_string(),
        kernel: plan.kernel_of(backend),
        threads: engine.threads(),
        verdict: Verdict::NoClaim,
        judged: Judged::default(),
    };
    let executed = (0..problem.sequences())
        .map(|at| plan.executed_of(backend, problem.sequence(inputs.cu_seqlens, at).tokens))
        .collect();
    Ok(Some(Run { case, executed, output, present }))
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the request is wrong, if the device fails, if rounding cannot explain an error of an output, or
/// if nothing can be claimed about an output.
pub fn verify(args: &LinearVerifyArgs) -> Result<(), Error> {
    let given = Subject::of(args)?;
    let problem = given.problem();
    let engine = args.host.engine()?;
    let named = args.form.form.0;
    let answer = args.y.as_ref().map(|source| answer(source, problem, &given)).transpose()?;
    let forms = match (named, &answer) {
        (Some(form), _) => vec![form],
        (None, Some(_)) => vec![Form::Recurrent],
        (None, None) => Form::ALL.to_vec(),
    };
    let mut runs = Vec::new();
    for form in forms {
        runs.extend(run(args, &engine, &given, form)?);
    }
    let answers: Vec<Answer<'_>> = runs
        .iter()
        .map(|run| Answer {
            executed: &run.executed,
            output: answer.as_ref().and_then(Tensor::elements).or(Some(run.output.elements())),
            present: run.present.as_deref().filter(|_| answer.is_none()),
        })
        .collect();
    let tasks = answers.len() * problem.sequences() * problem.state_heads();
    let work = super::run::operations(problem) * answers.len() as f64;
    let bar = progress::bar(tasks as u64, work / 5e8);
    bar.set_message("states in f64");
    let judged = judge(problem, &given.inputs()?, &answers, &bar);
    bar.finish_and_clear();
    let judged = judged?;
    if let Subject::Files(job) = &given {
        job.unchanged()?;
    }
    answer.as_ref().map_or(Ok(()), Tensor::unchanged)?;
    let named = args.y.as_ref().map(ToString::to_string);
    let mut out = crate::foreign::stdout();
    let mut verdicts = Vec::new();
    for (Run { case, .. }, judged) in runs.into_iter().zip(judged) {
        let case = Case { verdict: judged.verdict(), judged, ..case };
        verdicts.push(case.verdict);
        if args.json {
            report::json(&mut out, &case)?;
        } else {
            print(&mut out, &case, named.as_deref(), args.verbose)?;
        }
    }
    let failed = verdicts.iter().filter(|verdict| **verdict == Verdict::Fail).count();
    let verdict = match (failed, verdicts.iter().all(|verdict| *verdict == Verdict::Pass)) {
        (0, true) => Verdict::Pass,
        (0, false) => Verdict::NoClaim,
        _ => Verdict::Fail,
    };
    let forms = verdicts.len();
    if args.json {
        let summary = object! { what: "summary", verdict: verdict, forms: forms, failed: failed };
        report::json(&mut out, &summary)?;
    } else {
        out.paint(verdict.style(), &verdict.to_string())?;
        writeln!(out, ": {}, {failed} failed", count(forms as u64, "form"))?;
    }
    let told = format!("{failed} of {}", count(forms as u64, "form"));
    match verdict {
        Verdict::Pass => Ok(()),
        Verdict::Fail => Err(Error::Verification(told)),
        Verdict::NoClaim => Err(Error::NoClaim("a bound is infinite".into())),
    }
}

/// Prints the verdict on one form in a sentence. With `verbose`, also prints the kernel and the errors of its results.
fn print(out: &mut Shown<impl Write>, case: &Case, answer: Option<&str>, verbose: bool) -> Result<(), Error> {
    let Case { verdict, rule, direction, form, judged, .. } = case;
    out.paint(verdict.style(), &verdict.to_string())?;
    write!(out, " {rule} {direction}, {form}: ")?;
    if let Some(answer) = answer {
        write!(out, "{}: ", crate::error::one_line(answer))?;
    }
    match verdict {
        Verdict::Pass => writeln!(out, "every error is at most {:.2} % of its bound", 100.0 * judged.used)?,
        Verdict::Fail => writeln!(
            out,
            "rounding does not explain the errors of {} of {}",
            judged.beyond,
            count(judged.elements, "number")
        )?,
        Verdict::NoClaim => {
            writeln!(out, "no bound for {} of {}", judged.unclaimed, count(judged.elements, "number"))?;
        }
    }
    if verbose {
        let threads = count(case.threads as u64, "thread");
        if answer.is_none() {
            writeln!(out, "  chunks of {}, {}, {}, {threads}", case.chunk, case.backend, case.kernel)?;
        }
        writeln!(
            out,
            "  |dY| / |Y| {:.2e}, max |dY| {:.2e}; used {:.2e} of the bound, gain {:.3}; of {} elements {} beyond, {} without a \
             bound, {} not finite",
            judged.rel_l2,
            judged.max_abs,
            judged.used,
            judged.gain,
            judged.elements,
            judged.beyond,
            judged.unclaimed,
            judged.not_finite
        )?;
    }
    if let (Verdict::Fail, Some(worst)) = (verdict, judged.worst) {
        let [sequence, head, token, column] = worst.place;
        let (axis, row) = if worst.tensor == "out" { ("head", "token") } else { ("state", "row") };
        writeln!(
            out,
            "  worst: {} of sequence {sequence}, {axis} {head}, {row} {token}, column {column}: {:e}, allowed: {:e} within {:.2e}",
            worst.tensor, worst.found, worst.truth, worst.bound
        )?;
    }
    Ok(())
}

/// Reads the output to judge from `source`, the file of `--y`.
fn answer(source: &TensorPath, problem: &Problem, given: &Subject) -> Result<Tensor, Error> {
    let tensor = Tensor::load("y", source, Accept::Float)?;
    let shape = match given {
        Subject::Files(job) => job.shapes[Operand::Output].clone(),
        Subject::Random(_) => problem.spec().output.shape().to_vec(),
    };
    let dtype = problem.spec().dtype;
    let found = tensor.elements().map(|elements: Elements<'_>| elements.dtype());
    if tensor.shape() != shape || !found.is_some_and(|found| found == dtype || found == DType::F32) {
        let types = if dtype == DType::F32 { String::new() } else { " or f32".to_owned() };
        return Err(Error::Argument {
            argument: "y",
            found: format!("{} {:?}", tensor.dtype().name(), tensor.shape()),
            allowed: format!("{dtype}{types} {shape:?}, as the output of q and v"),
        });
    }
    Ok(tensor)
}
