//! `elsa linear run`: computes linear attention over tensors in files and writes the results to files.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

use super::args::{FormArgs, SemanticsArgs, TensorArgs};
use super::job::{LinearJob, Written};
use super::judge::{Answer, judge};
use crate::args::{FILE, ForceArgs, HostArgs, required};
use crate::certified::Certified;
use crate::error::{Error, one_line, say};
use crate::flag::flag;
use crate::progress;
use crate::report::{self, count, object};
use clap::Args;
use elsa_core::linear::{Operand, Outputs, Problem};
use elsa_files::{Buffer, Content, Output, TensorPath, Writer, leaves_enough, zeros};
use elsa_runtime::{LinearPlan, PlanError};

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa linear run --rule linear --q q.npy --k k.npy --v v.npy --out y.npy
  elsa linear run --rule gated --q q.npy --k k.npy --v v.npy --decay g.npy --out y.npy \\
      --present-state s.npy
  elsa linear run --rule gated-delta --q q.npy --k k.npy --v v.npy --decay g.npy --beta b.npy \\
      --normalize --out y.npy
  elsa linear run --rule gated --q q.npy --k k.npy --v v.npy --decay g.npy --past-state s.npy \\
      --present-state s.npy --force --out y.npy
The first example reads files that numpy.save('q.npy', q) writes: float32 arrays [batch, heads, tokens, dim]. decay and
beta are [batch, heads, tokens]. With --layout bnhd they are [batch, tokens, heads, dim] and [batch, tokens, heads].
Each head of v has a state. The heads of k divide those of v; the heads of q divide them, or are a multiple. The output
has as many heads as the larger of q and v.
A decode step is a call with one token. Its present state is the past state of the next step; with --force both may be
the same file.
The certificate gives a bound on the error of the output, proved for the form, the kernel and these tensors, and the
error relative to the recurrence in f64. It takes several times as long as the run.
Files are those of elsa run. States are f32 for any type of q; f16 and bf16 states are widened.

Exit status: 0 done; 2 the request was wrong, and nothing was written; 3 the device or the system failed. Outputs appear
when all of them are complete.";

/// `elsa linear run`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa linear run --rule <RULE> --q <FILE> --k <FILE> --v <FILE> --out <FILE> [OPTIONS]",
    after_help = HELP, mut_arg("q", required), mut_arg("k", required), mut_arg("v", required))]
pub struct LinearRunArgs {
    /// Output, of the inputs' type and layout (bf16 goes to .npy as f32)
    #[arg(long, value_name = FILE, required_unless_present = "present_state")]
    pub out: Option<TensorPath>,
    /// Write the states after the last token, f32 [sequences, heads of v, dim of k, dim of v]; --past-state may be the same file
    #[arg(long, value_name = FILE)]
    pub present_state: Option<TensorPath>,
    /// Also compute the recurrence in f64, and print a bound on the output's error. With --json or --verbose it is a
    /// line of JSON
    #[arg(long)]
    pub certificate: bool,
    /// Permission for outputs to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
    /// Print all numbers of the certificate
    #[arg(long, conflicts_with = "json")]
    pub verbose: bool,
    /// Semantics.
    #[command(flatten)]
    pub semantics: SemanticsArgs,
    /// Tensors.
    #[command(flatten)]
    pub tensors: TensorArgs,
    /// Order of operations.
    #[command(flatten)]
    pub form: FormArgs,
    /// Engine.
    #[command(flatten)]
    pub host: HostArgs,
}

/// Estimates the multiplications and additions of the recurrence of `problem`, for a progress display.
#[must_use]
pub fn operations(problem: &Problem) -> f64 {
    let tokens = problem.tokens() as f64 * problem.spec().query.batch() as f64;
    let state = problem.key_dim() as f64 * problem.value_dim() as f64;
    6.0 * tokens * state * problem.output_heads() as f64
}

/// Returns the reason for skipping a form that the user did not name: the problem does not support the form, or the
/// form does not fit into memory. Returns `None` for any other error.
#[must_use]
pub fn refusal(e: &PlanError) -> Option<String> {
    match e {
        PlanError::Refused(why) => Some(why.to_string()),
        _ => None,
    }
}

/// Judges the results of a run, and returns the certificate.
fn certificate(
    job: &LinearJob,
    plan: &LinearPlan,
    done: &elsa_runtime::Report,
    out: Option<&Buffer>,
    present: Option<&[f32]>,
) -> Result<Certified, Error> {
    let (problem, inputs, backend) = (&job.problem, job.inputs()?, done.backend);
    let executed: Vec<_> = (0..problem.sequences())
        .map(|at| plan.executed_of(backend, problem.sequence(inputs.cu_seqlens, at).tokens))
        .collect();
    let output = out.map(Buffer::elements);
    let bar = progress::bar((problem.sequences() * problem.state_heads()) as u64, operations(problem) / 5e8);
    let judged = judge(problem, &inputs, &[Answer { executed: &executed, output, present }], &bar);
    bar.finish_and_clear();
    let judged = judged?.first().copied().unwrap_or_default();
    if judged.beyond > 0 {
        return Err(Error::Verification(format!("{} elements are beyond their bounds", judged.beyond)));
    }
    let claims = judged.unclaimed == 0 && judged.not_finite == 0;
    let sentence = if claims {
        format!(
            "every number of the output is proven to be within {:.1e} of the recurrence",
            judged.bound_abs
        )
    } else {
        "nothing is proven about the output; an element has no bound or is not finite".to_owned()
    };
    let mut json = Vec::new();
    let numbers = object! {
        what: "certificate",
        // The claim is `none` if an element has no bound or is not finite.
        claim: if claims { "bound" } else { "none" },
        kernel: plan.kernel_of(backend),
        form: plan.division_of(backend).form.name(),
        absolute: judged.bound_abs,
        relative: judged.bound_l2,
        gain: judged.gain,
        measured_absolute: judged.max_abs,
        measured_relative: judged.rel_l2,
        not_finite: judged.not_finite,
    };
    report::json(&mut json, &numbers)?;
    Ok(Certified::new(&sentence, String::from_utf8_lossy(&json).trim_end().to_owned()))
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the outputs are not computed and written completely. All regular targets are then unchanged,
/// unless the error is a failed rename.
pub fn run(args: &LinearRunArgs) -> Result<(), Error> {
    let written = Written { present_state: args.present_state.is_some() };
    let job = LinearJob::load(&args.tensors, &args.semantics, written)?;
    let problem = job.problem;
    let engine = args.host.engine()?;
    let plan = engine.linear_plan(&problem, &args.form.plan_options(args.host.budget))?;
    let mut reads = args.force.reads();
    args.tensors.add_to(&mut reads);
    let mut writer = Writer::new(reads);
    for (operand, source) in [(Operand::Output, &args.out), (Operand::PresentState, &args.present_state)] {
        if let Some(source) = source {
            writer.add(flag(operand.argument()), source)?;
        }
    }

    let dtype = problem.spec().dtype;
    let elements = |operand| problem.memory(operand).map_or(0, |memory| memory.elements);
    let out = args.out.as_ref().map(|_| Buffer::zeros("out", dtype, elements(Operand::Output)));
    let mut out = out.transpose()?;
    let state =
        args.present_state.as_ref().map(|_| zeros::<f32>("present-state", elements(Operand::PresentState)));
    let mut state = state.transpose()?;
    let mut workspace = plan.workspace()?;
    leaves_enough("budget", plan.workspace_bytes())?;
    let outputs =
        Outputs { output: out.as_mut().map(Buffer::elements_mut), present_state: state.as_deref_mut() };
    let mut bound = plan.bind(job.inputs()?, outputs, &mut workspace)?;
    let (done, ms) = progress::timed(operations(&problem), || bound.run())?;
    let certificate = match args.certificate {
        true => Some(certificate(&job, &plan, &done, out.as_ref(), state.as_deref())?),
        false => None,
    };

    let file = |operand, data| Output::Tensor(Content { shape: job.shapes[operand].clone(), data });
    let mut contents = Vec::new();
    contents.extend(out.map(|data| file(Operand::Output, data)));
    contents.extend(state.map(|data| file(Operand::PresentState, Buffer::F32(data))));
    job.unchanged()?;
    writer.commit(&contents)?;

    let mut stdout = crate::foreign::stdout();
    if let Some(certificate) = certificate {
        certificate.print(&mut stdout, args.json, args.verbose)?;
    }
    let choice = plan.division_of(done.backend);
    let kernel = plan.kernel_of(done.backend);
    if args.json {
        let shape = object! {
            batch: problem.sequences(),
            heads: problem.heads(),
            key_heads: problem.spec().key.heads(),
            states: problem.state_heads(),
            tokens: problem.tokens(),
            dim: problem.key_dim(),
            value_dim: problem.value_dim(),
        };
        let report = object! {
            what: "linear",
            rule: problem.rule().name(),
            direction: problem.spec().direction.name(),
            form: choice.form.name(),
            chunk: choice.chunk,
            parts: choice.parts,
            backend: done.backend.to_string(),
            kernel: kernel,
            threads: engine.threads(),
            dtype: dtype.name(),
            shape: shape,
            workspace_bytes: plan.workspace_bytes(),
            // The reason why the CPU computed instead of the requested GPU.
            fallback: done.fallback.map(|reason| reason.to_string()),
            ms: ms,
        };
        report::json(&mut stdout, &report)?;
    } else {
        let files = [&args.out, &args.present_state].map(|source| source.as_ref().map(ToString::to_string));
        let files: Vec<String> = files.into_iter().flatten().collect();
        say(&format!(
            "wrote {} in {ms:.3} ms ({}, form {}, {}, {kernel}, {}, {} bytes of workspace)",
            one_line(&files.join(" and ")),
            problem.rule().name(),
            choice.form.name(),
            done.backend,
            count(engine.threads() as u64, "thread"),
            plan.workspace_bytes()
        ));
    }
    Ok(())
}
