//! `elsa run`: computes attention over tensors in files.
// Doc comments of flags are their help texts, where brackets hold shapes.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::{
    EngineArgs, FILE, ForceArgs, ProblemArgs, TaskArgs, TraversalArgs, warn_without_half_scores,
};
use crate::error::{Error, one_line, say};
use crate::flag::flag;
use crate::job::Job;
use crate::left_out::LeftOut;
use crate::progress;
use crate::report;
use crate::stream::{self, StreamArgs};
use crate::task::origin;
use crate::task::sums::Sums;
use clap::{Arg, Args};
use elsa_core::attention::{Operand, Outputs, Problem, StateOut};
use elsa_files::{Array, Buffer, Content, Output, Reads, Source, Writer, zeros};
use elsa_runtime::PlanOptions;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --causal=top-left --window 128,0 \\
      --lse-out lse.npy
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --mask padding.npy --threads 2 --budget 4MiB
  elsa run --q new-q.npy --k new-k.npy --v new-v.npy --past-k k.npy --past-v v.npy \\
      --present-k all-k.npy --present-v all-v.npy --causal --out y.npy
  elsa run --q in.safetensors#q --k in.safetensors#k --v in.safetensors#v \\
      --out out.safetensors#y --layout bnc --heads 12
  elsa run --q wq.npy --k wk.npy --v wv.npy --out y.npy --bias-table table.npy --windows 7x7 \\
      --picture 14x14 --shift 3,3
  elsa run --q q.npy --k k.npy --v v.npy --quorum 7 --task 0/7 --state-out task0.npz
  elsa run --q q.npy --k k.npy --v v.npy --out y.npy --error-budget 0.001
  elsa run --q packed.npy --k packed.npy --v packed.npy --cu-seqlens-q bounds.npy \\
      --cu-seqlens-k bounds.npy --out y.npy
The first reads files that numpy.save('q.npy', q) writes, float32 arrays [batch, heads, tokens, dim]. The one with
windows reads [pictures * 4, heads, 49, dim] and a table [169, heads].

Files are little-endian. Inputs may be members of .npz files: --q in.npz#q. .npy files in Fortran order are converted
to C order. f64 is rounded to f32, and a notice says so. A .safetensors file may hold several inputs and outputs: an
output replaces the tensor of its name and keeps the others and the file's metadata. .npy has no bf16, so bf16 outputs
are written as f32. Without --force no output replaces a tensor that the command reads, by any name or link.

The range is that of f32: weights are exact down to 2^-126 of a row's largest and zero below. Scores, and queries times
the scale, must stay below 1.1e38, and keys * 2^8 * max |v| below 3.4e38; beyond that a row is infinite or NaN. Finite
masks and biases count as at least -1.18e38. A row that is masked completely is the mean of its values if the masks are
finite, and zero if they are -inf.

With --host-budget tensors stay in their files, even if they are larger than memory, and the process stays within the
budget. If the system refuses memory, fewer rows are kept, with the same bits, and a line and the field refused of
--json report it. Members of .npz files are read once more for their checksums. Deflated members and files in Fortran
order are unpacked into an unnamed file in the folder of the output, which needs disk space. If a budget is refused,
the number that the message names is enough. --resume continues a run that was killed at any time; its outputs must not
be in an input's file. elsa info --budget prints what a budget is used for.

On a GPU head sizes go up to 256. Larger ones are computed by the CPU, or refused with --fallback fail.

The certificate bounds the error of the output, proved for the kernel that ran and the norms of these tensors: each
element is within bound * sum_j p_j |v_j| of the exact one, and every element is within absolute. Its claim is none if
a tensor is not finite or scores are too large; the field why gives the reason. It also contains the bound published
with ELSA, labelled as not rigorous. --certificate computes on the CPU, reads masks and biases once more, and excludes
--resume. elsa verify measures the error of an answer.

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed; 141 the
reader of standard output closed it. Outputs are then complete, as they are if printing fails. elsa help lists the
environment variables.";

/// Marks a flag as required.
fn required(flag: Arg) -> Arg {
    flag.required(true)
}

/// `elsa run`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa run --q <FILE> --k <FILE> --v <FILE> --out <FILE> [OPTIONS]", after_help = HELP,
    mut_arg("q", required), mut_arg("k", required), mut_arg("v", required))]
pub struct RunArgs {
    /// Output, of the inputs' type and layout (bf16 goes to .npy as f32)
    #[arg(long, value_name = FILE, required_unless_present_any = ["task", "task_path"])]
    pub out: Option<Source>,
    /// Write past and new keys, [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub present_k: Option<Source>,
    /// Write past and new values, [batch, heads, tokens, dim]
    #[arg(long, value_name = FILE)]
    pub present_v: Option<Source>,
    /// Write the log-sum-exp of each row, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE)]
    pub lse_out: Option<Source>,
    /// Write the state of each row as .npz: m, S, W, in natural-log units. W / S is the answer at any m; S exp(m) is the
    /// sum of exp(score) where |m| is below 2^30, and m + log S its logarithm within the spacing of f32 beyond
    #[arg(long, value_name = "FILE.npz")]
    pub state_out: Option<PathBuf>,
    /// Measure the tensors, and print a bound on the output's error as one JSON line
    #[arg(long)]
    pub certificate: bool,
    /// Permission for outputs to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
    /// The problem.
    #[command(flatten)]
    pub problem: ProblemArgs,
    /// Part of the work.
    #[command(flatten)]
    pub task: TaskArgs,
    /// Engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Traversal of the keys.
    #[command(flatten)]
    pub traversal: TraversalArgs,
    /// Tensors that stay in their files.
    #[command(flatten)]
    pub stream: StreamArgs,
}

impl RunArgs {
    /// Returns the files that the command reads.
    #[must_use]
    pub fn reads(&self) -> Reads {
        let mut reads = self.force.reads();
        self.problem.add_to(&mut reads);
        self.engine.add_to(&mut reads);
        reads
    }

    /// Checks that every output can be written. The outputs are prepared in the order in which [`run`] lists them.
    pub fn writer(&self) -> Result<Writer, Error> {
        let mut writer = Writer::new(self.reads());
        for (operand, source) in [
            (Operand::Output, self.out.as_ref()),
            (Operand::PresentKey, self.present_k.as_ref()),
            (Operand::PresentValue, self.present_v.as_ref()),
            (Operand::LogSumExp, self.lse_out.as_ref()),
        ] {
            if let Some(source) = source {
                writer.add(flag(operand.argument()), source)?;
            }
        }
        if let Some(path) = &self.state_out {
            writer.add_archive("state-out", path)?;
        }
        Ok(writer)
    }
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    what: &'static str,
    backend: String,
    kernel: &'static str,
    threads: usize,
    dtype: &'static str,
    shape: Sizes,
    workspace_bytes: usize,
    /// Reason why the CPU computed instead of the requested GPU.
    fallback: Option<String>,
    ms: f64,
    /// Blocks skipped by a run under a schedule other than the exact one.
    left_out: Option<LeftOut>,
}

/// The sizes of a problem.
#[derive(Debug, Serialize)]
pub struct Sizes {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    value_dim: usize,
}

impl Sizes {
    /// Returns the sizes of `problem`.
    #[must_use]
    pub fn of(problem: &Problem) -> Sizes {
        Sizes {
            batch: problem.sequences(),
            heads: problem.heads(),
            kv_heads: problem.kv_heads(),
            queries: problem.spec().query.tokens(),
            keys: problem.keys(),
            dim: problem.head_dim(),
            value_dim: problem.value_dim(),
        }
    }
}

/// Runs the command on tensors that stay in their files.
fn streamed(args: &RunArgs) -> Result<(), Error> {
    if args.certificate && args.stream.resume {
        let found = "given with --resume".into();
        let allowed = "without it: a journal does not hold what an earlier process has measured".into();
        return Err(Error::Argument { argument: "certificate", found, allowed });
    }
    let job = Job::headers(&args.problem, [args.present_k.is_some(), args.present_v.is_some()])?;
    let wanted = stream::Wanted {
        lse: args.lse_out.is_some(),
        states: args.state_out.is_some(),
        presents: [args.present_k.is_some(), args.present_v.is_some()],
        certificate: args.certificate,
    };
    let done = stream::run(&job, &args.stream, &args.engine, wanted, || args.writer())?;
    let mut stdout = crate::foreign::stdout();
    if let Some(certificate) = &done.certificate {
        writeln!(stdout, "{certificate}")?;
    }
    if args.json {
        let sizes = Sizes::of(&job.problem);
        report::json(&mut stdout, &done.report(sizes))?;
    } else {
        say(&format!(
            "wrote {} {:?} {} {}",
            one_line(&args.out.as_ref().map(ToString::to_string).unwrap_or_default()),
            job.shapes[Operand::Output],
            job.problem.spec().dtype,
            done
        ));
    }
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// Any failure that leaves the outputs incomplete. No file has changed then.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    args.task.unused()?;
    args.traversal.excluded_by("host-budget", args.stream.is_asked())?;
    let takes = args.state_out.is_some() && !args.stream.is_asked();
    args.task.names(takes, "with --state-out, and without --host-budget")?;
    if args.stream.is_asked() {
        return streamed(args);
    }
    let job = Job::load(&args.problem, [args.present_k.is_some(), args.present_v.is_some()])?;
    let problem = job.problem;
    let engine = args.engine.engine()?;
    let options = args.traversal.options(args.engine.plan_options())?;
    let options = PlanOptions { certify: args.certificate, ..options };
    let plan = engine.plan(&problem, &options)?;
    warn_without_half_scores(&options, &plan);
    let writer = args.writer()?;

    let dtype = problem.spec().dtype;
    let elements = |operand| problem.memory(operand).map_or(0, |memory| memory.elements);
    let tensor = |operand: Operand| Buffer::zeros(flag(operand.argument()), dtype, elements(operand));
    let floats = |operand: Operand| zeros::<f32>(flag(operand.argument()), elements(operand));
    let mut out = tensor(Operand::Output)?;
    let mut present_k = args.present_k.as_ref().map(|_| tensor(Operand::PresentKey)).transpose()?;
    let mut present_v = args.present_v.as_ref().map(|_| tensor(Operand::PresentValue)).transpose()?;
    let mut lse = args.lse_out.as_ref().map(|_| floats(Operand::LogSumExp)).transpose()?;
    let mut state = match &args.state_out {
        Some(_) => Some([
            floats(Operand::StateReference)?,
            floats(Operand::StateSum)?,
            floats(Operand::StateWeighted)?,
        ]),
        None => None,
    };

    let mut workspace = plan.workspace()?;
    let mut outputs = Outputs::new(out.elements_mut());
    outputs.present_key = present_k.as_mut().map(Buffer::elements_mut);
    outputs.present_value = present_v.as_mut().map(Buffer::elements_mut);
    outputs.lse = lse.as_deref_mut();
    outputs.state = state.as_mut().map(|[m, s, w]| StateOut { m, s, w });
    let mut bound = plan.bind(job.inputs()?, outputs, &mut workspace)?;
    let dims = problem.head_dim() + problem.value_dim();
    let operations = 2.0 * problem.rows() as f64 * problem.keys() as f64 * dims as f64;
    // A small board does ten billion operations a second.
    let spinner = progress::spinner(operations / 1e10);
    let start = Instant::now();
    let done = bound.run();
    let ms = start.elapsed().as_secs_f64() * 1e3;
    spinner.finish_and_clear();
    let done = done?;
    let certified = match args.certificate {
        true => Some(bound.certified()?.to_string()),
        false => None,
    };
    let left_out = match options.traverses() {
        true => Some(LeftOut::of(&bound.traversed()?, &problem, &job.inputs()?)),
        false => None,
    };

    let run = args.task.run_id.as_deref();
    let sums = match (run, &state) {
        (None, Some(_)) => Sums::of(&problem, &job.inputs()?, None, None)?,
        _ => Sums::default(),
    };
    let content = |operand, data| Content { shape: job.shapes[operand].clone(), data };
    let file = |operand, data| Output::Tensor(content(operand, data));
    let mut contents = vec![file(Operand::Output, out)];
    contents.extend(present_k.map(|data| file(Operand::PresentKey, data)));
    contents.extend(present_v.map(|data| file(Operand::PresentValue, data)));
    contents.extend(lse.map(|data| file(Operand::LogSumExp, Buffer::F32(data))));
    contents.extend(state.map(|[m, s, w]| {
        let mut arrays: Vec<(&str, Array)> = vec![
            ("m", content(Operand::StateReference, Buffer::F32(m)).into()),
            ("S", content(Operand::StateSum, Buffer::F32(s)).into()),
            ("W", content(Operand::StateWeighted, Buffer::F32(w)).into()),
        ];
        arrays.extend(origin::arrays(run.unwrap_or_default(), sums));
        Output::Archive(arrays)
    }));
    job.unchanged()?;
    writer.commit(&contents)?;

    let mut stdout = crate::foreign::stdout();
    if let Some(certified) = certified {
        writeln!(stdout, "{certified}")?;
    }
    let kernel = plan.kernel_of(done.backend);
    if args.json {
        let report = Report {
            what: "run",
            backend: done.backend.to_string(),
            kernel,
            threads: engine.threads(),
            dtype: dtype.name(),
            shape: Sizes::of(&problem),
            workspace_bytes: plan.workspace_bytes(),
            fallback: done.fallback.map(|reason| reason.to_string()),
            ms,
            left_out,
        };
        report::json(&mut stdout, &report)?;
    } else {
        say(&format!(
            "wrote {} {:?} {dtype} in {ms:.3} ms ({}, {}, {} threads, {} bytes of workspace)",
            one_line(&args.out.as_ref().map(ToString::to_string).unwrap_or_default()),
            job.shapes[Operand::Output],
            done.backend,
            kernel,
            engine.threads(),
            plan.workspace_bytes()
        ));
        if let Some(left_out) = left_out {
            writeln!(stdout, "{left_out}")?;
        }
    }
    Ok(())
}
