//! `elsa run`: computes attention over tensors in files and writes the results to files.

mod args;
mod inputs;
mod task;
mod tasks;

pub use args::RunArgs;

use crate::args::warn_without_effect;
use crate::certified::Certified;
use crate::error::{Error, one_line, say};
use crate::flag::flag;
use crate::job::Job;
use crate::left_out::LeftOut;
use crate::progress;
use crate::report::{self, count, object};
use crate::stream;
use crate::task::origin;
use crate::tensor_cores::TensorCores;
use elsa_core::attention::{Operand, Outputs, StateOut};
use elsa_files::sums::Sums;
use elsa_files::{Array, Buffer, Content, Output, zeros};
use std::io::Write;

/// Runs the command on tensors that are read from their files part by part, within the memory budget.
fn streamed(args: &RunArgs) -> Result<(), Error> {
    if args.certificate && args.stream.resume {
        let found = "given with --resume".into();
        let allowed = "without it: a journal does not hold what an earlier process has measured".into();
        return Err(Error::Argument { argument: "certificate", found, allowed });
    }
    let job = Job::headers(&args.problem, [args.present_k.is_some(), args.present_v.is_some()])?;
    let wanted = stream::OutputRequest {
        lse: args.lse_out.is_some(),
        states: args.state_out.is_some(),
        presents: [args.present_k.is_some(), args.present_v.is_some()],
        certificate: args.certificate,
    };
    let done = stream::run(&job, &args.stream, &args.engine, wanted, || args.writer())?;
    let mut stdout = crate::foreign::stdout();
    if let Some(certificate) = &done.certificate {
        certificate.print(&mut stdout, args.json, args.verbose)?;
    }
    if args.json {
        report::json(&mut stdout, &done.report(inputs::sizes(&job.problem)))?;
    } else {
        say(&format!("read {}", inputs::axes(&job.problem)));
        say(&format!(
            "wrote {} {:?} {} {}",
            one_line(&args.out.as_ref().map(ToString::to_string).unwrap_or_default()),
            job.shapes[Operand::Output],
            job.problem.spec().dtype,
            done
        ));
        args.tell_others();
    }
    tell(inputs::exchanged(&job.problem.spec().query, job.problem.keys()));
    Ok(())
}

/// Prints messages, one on each line of standard error.
fn tell(messages: impl IntoIterator<Item = String>) {
    messages.into_iter().for_each(|message| say(&message));
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the outputs are not computed and written completely. Regular targets are then unchanged, unless
/// the error is a failed rename.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    if args.task.is_given() {
        return task::run(args);
    }
    if let Some(chunks) = &args.task.quorum {
        return tasks::run(args, chunks);
    }
    args.task.unused()?;
    args.traversal.excluded_by("host-budget", args.stream.is_asked())?;
    let takes = args.state_out.is_some() && !args.stream.is_asked();
    args.task.names(takes, "with --state-out, and without --host-budget")?;
    if args.stream.is_asked() { streamed(args) } else { whole(args) }
}

/// Runs the command on tensors that are completely in memory.
fn whole(args: &RunArgs) -> Result<(), Error> {
    let job = Job::load(&args.problem, [args.present_k.is_some(), args.present_v.is_some()])?;
    let problem = job.problem;
    let engine = args.engine.engine()?;
    let options = args.traversal.options(args.engine.plan_options())?;
    let options = options.certify(args.certificate);
    let plan = engine.plan(&problem, &options)?;
    warn_without_effect(&options, &plan);
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
    let (done, ms) = progress::timed(2.0 * job.multiplications(), || bound.run())?;
    let certificate = match args.certificate {
        true => Some(Certified::of(&bound.certificate()?)),
        false => None,
    };
    let executed = plan.certificate_of(done.backend).executed;
    let tensor_cores = bound.refused_blocks()?.map(|blocks| TensorCores::of(blocks, &executed));
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
    if let Some(certificate) = certificate {
        certificate.print(&mut stdout, args.json, args.verbose)?;
    }
    let kernel = plan.kernel_of(done.backend);
    if args.json {
        let report = object! {
            what: "run",
            backend: done.backend.to_string(),
            kernel: kernel,
            threads: engine.threads(),
            dtype: dtype.name(),
            shape: inputs::sizes(&problem),
            workspace_bytes: plan.workspace_bytes(),
            // The reason why the CPU computed instead of the requested GPU.
            fallback: done.fallback.map(|reason| reason.to_string()),
            ms: ms,
            tensor_cores: tensor_cores,
            left_out: left_out,
        };
        report::json(&mut stdout, &report)?;
    } else {
        say(&format!("read {}", inputs::axes(&problem)));
        say(&format!(
            "wrote {} {:?} {dtype} in {ms:.3} ms ({}, {}, {}, {} bytes of workspace)",
            one_line(&args.out.as_ref().map(ToString::to_string).unwrap_or_default()),
            job.shapes[Operand::Output],
            done.backend,
            kernel,
            count(engine.threads() as u64, "thread"),
            plan.workspace_bytes()
        ));
        args.tell_others();
        if let Some(tensor_cores) = tensor_cores {
            writeln!(stdout, "{tensor_cores}")?;
        }
        if let Some(left_out) = left_out {
            writeln!(stdout, "{left_out}")?;
            if args.verbose {
                writeln!(stdout, "{}", left_out.details())?;
            }
        }
    }
    tell(inputs::exchanged(&problem.spec().query, problem.keys()));
    tell(inputs::not_numbers(&job)?);
    Ok(())
}
