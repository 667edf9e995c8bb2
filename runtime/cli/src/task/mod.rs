//! `elsa run --task`: the states of one task of a division by quorums, from its own tokens, to a file.

pub mod file;

use crate::args::{ProblemArgs, warn_without_half_scores};
use crate::error::{Error, one_line, say};
use crate::job::Job;
use crate::progress;
use crate::report;
use crate::run::RunArgs;
use crate::tensor::output::{Output, Writer};
use crate::tensor::{Accept, Part, Source, Tensor};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Chunk, Operand, StateOut};
use elsa_core::quorum::{Division, Run, Task, TaskPath};
use elsa_core::view::{Layout, View};
use elsa_runtime::{Held, RowStates, TaskError, TaskPlan};
use file::{Description, Whole};
use serde::Serialize;
use std::cell::Cell;
use std::ops::Range;
use std::time::Instant;

impl From<TaskError> for Error {
    fn from(error: TaskError) -> Error {
        match error {
            TaskError::Quorum(source) => Error::Quorum { argument: "task", source },
            TaskError::Argument(fault) => Error::Problem(fault),
            TaskError::Plan(e) => Error::Plan(e),
            TaskError::Bind(e) => Error::Bind(e),
            TaskError::Run(e) => Error::Run(e),
            TaskError::Memory { bytes } => Error::Memory { argument: "state-out", bytes },
            _ => Error::States(error.to_string()),
        }
    }
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    what: &'static str,
    /// Path of the task.
    task: String,
    /// Chunks of each level.
    quorum: Vec<usize>,
    /// Tasks of the division.
    tasks: u64,
    backend: Option<String>,
    kernel: Option<&'static str>,
    threads: usize,
    dtype: &'static str,
    /// Batch, heads, key heads, queries, keys, head size and head size of values of the whole.
    shape: [usize; 7],
    /// Query and key tokens of the task.
    tokens: [usize; 2],
    /// Pairs of a query and a key that the task computes, for one head.
    pairs: f64,
    calls: usize,
    /// Calls that causality, windows or lengths made unnecessary.
    skipped: usize,
    /// Bytes of tensors that were read.
    bytes_read: usize,
    /// Bytes of states that were written.
    bytes_written: usize,
    workspace_bytes: usize,
    /// Why the CPU computed in place of the requested GPU.
    fallback: Option<String>,
    ms: f64,
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps the states from being complete. No file has changed then.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    let given = [
        (args.out.is_some(), "out"),
        (args.lse_out.is_some(), "lse-out"),
        (args.present_k.is_some(), "present-k"),
        (args.present_v.is_some(), "present-v"),
        (args.certificate, "certificate"),
        (args.stream.is_asked(), "host-budget"),
        (args.problem.past_k.is_some(), "past-k"),
        (args.problem.past_v.is_some(), "past-v"),
        (args.problem.cu_seqlens_q.is_some(), "cu-seqlens-q"),
        (args.problem.cu_seqlens_k.is_some(), "cu-seqlens-k"),
        (args.problem.windows.is_some(), "windows"),
        (args.problem.source(Operand::Bias).is_some(), args.problem.flag("bias")),
    ];
    if let Some((_, argument)) = given.into_iter().find(|(given, _)| *given) {
        return Err(ArgumentError::Conflict { argument, other: "task" }.into());
    }
    let Some(path) = &args.state_out else {
        let (argument, found) = ("state-out", "missing".into());
        return Err(Error::Argument { argument, found, allowed: "path.npz, with --task".into() });
    };
    let (division, name) = args.task.chosen()?;
    let (job, held, bytes_read) = load(args, &division, &name)?;
    let problem = job.problem;
    let engine = args.engine.engine()?;
    let options = args.engine.plan_options();
    let mut plan = TaskPlan::new(&engine, &problem, &division, &name, held, &options)?;
    if let Some(plan) = plan.plans().first() {
        warn_without_half_scores(&options, plan);
    }
    let mut writer = Writer::default();
    writer.add_archive("state-out", path)?;

    let inputs = job.inputs()?;
    let whole = Whole::of(&division, &problem, plan.totals(), &inputs.lengths);
    let shape = whole.shape;
    let tokens = [plan.task().query_tokens(), plan.task().key_tokens()];
    let mut states = RowStates::empty(whole.sequences() * tokens[0], problem.value_dim())?;
    let pairs = plan.task().pair_count() as f64;
    let dims = (problem.head_dim() + problem.value_dim()) as f64;
    // A small board does ten billion operations a second.
    let spinner = progress::spinner(2.0 * pairs * whole.sequences() as f64 * dims / 1e10);
    let start = Instant::now();
    let out = StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w };
    let done = plan.run(&inputs, out);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    spinner.finish_and_clear();
    let done = done?;
    let bytes_written = 4 * (2 * states.m.len() + states.w.len());
    let arrays = Description::new(whole, name).arrays(plan.task().queries(), states);
    job.unchanged()?;
    writer.commit(&[Output::Archive(arrays)])?;

    let dtype = problem.spec().dtype;
    if args.json {
        let report = Report {
            what: "task",
            task: name.to_string(),
            quorum: division.sets().iter().map(|set| set.chunks()).collect(),
            tasks: division.tasks(),
            backend: done.backend.map(|backend| backend.to_string()),
            kernel: done.kernel,
            threads: engine.threads(),
            dtype: dtype.name(),
            shape,
            tokens,
            pairs,
            calls: done.calls,
            skipped: done.skipped,
            bytes_read,
            bytes_written,
            workspace_bytes: plan.workspace_bytes(),
            fallback: done.fallback.map(|reason| reason.to_string()),
            ms,
        };
        report::json(&mut std::io::stdout().lock(), &report)?;
    } else {
        say(&format!(
            "wrote {}: task {name} of {}, {} of {} queries and {} of {} keys, {} calls in {ms:.3} ms",
            one_line(&path.display().to_string()),
            division.tasks(),
            tokens[0],
            shape[3],
            tokens[1],
            shape[4],
            done.calls
        ));
    }
    Ok(())
}

/// Reads the tokens of the task, and makes its problem. Returns whose tokens they are and the bytes read.
fn load(args: &RunArgs, division: &Division, name: &TaskPath) -> Result<(Job, Held, usize), Error> {
    let problem = &args.problem;
    let bytes = Cell::new(0);
    let counted = |tensor: Tensor| {
        bytes.set(bytes.get() + tensor.shape().iter().product::<usize>() * tensor.dtype().size());
        tensor
    };
    let held = |[queries, keys]: [usize; 2]| Held::Gathered { queries, keys };
    let place = |[query_total, key_total]: [usize; 2]| Chunk { key_total, query_total, ..Chunk::default() };
    if let Some(totals) = args.task.tokens {
        let job = Job::load_by(problem, [false; 2], Some(place(totals)), |_, argument, source, accept| {
            Tensor::load(argument, source, accept).map(counted)
        })?;
        return Ok((job, held(totals), bytes.get()));
    }
    let totals = totals(problem)?;
    let task = Task::new(division, name, totals[0], totals[1])
        .map_err(|source| Error::Quorum { argument: "task", source })?;
    let (rows, columns) = (spans(task.queries()), spans(task.keys()));
    let job = Job::load_by(problem, [false; 2], Some(place(totals)), |operand, argument, source, accept| {
        let part = |shape: &[usize]| {
            let mut picks = vec![None; shape.len()];
            match operand {
                Operand::Mask => {
                    for (back, spans) in [(2, &rows), (1, &columns)] {
                        let axis = shape.len().checked_sub(back).filter(|axis| shape[*axis] != 1);
                        if let Some(axis) = axis {
                            picks[axis] = Some(spans.clone());
                        }
                    }
                }
                operand => {
                    let spans = if operand == Operand::Query { &rows } else { &columns };
                    if let Some(pick) = token_axis(problem.layout, shape).and_then(|axis| picks.get_mut(axis))
                    {
                        *pick = Some(spans.clone());
                    }
                }
            }
            Part::of(shape, &picks)
        };
        if operand == Operand::Mask {
            check_mask(argument, source, totals)?;
        }
        match accept {
            Accept::Lengths => Tensor::load(argument, source, accept).map(counted),
            _ => Tensor::load_part(argument, source, accept, &part).map(counted),
        }
    })?;
    Ok((job, held(totals), bytes.get()))
}

/// Query and key tokens of the files of a whole.
fn totals(args: &ProblemArgs) -> Result<[usize; 2], Error> {
    let layout = args.layout.unwrap_or(Layout::Bhnd);
    let view = |operand: Operand, heads| -> Result<Option<View>, Error> {
        let argument = operand.argument();
        let Some(source) = args.source(operand) else { return Ok(None) };
        let shape = Tensor::shape_at(argument, source)?;
        Ok(Some(View::dense(argument, layout, &shape, heads)?))
    };
    let kv_heads = args.kv_heads.or(args.heads);
    let query = view(Operand::Query, args.heads)?;
    let (key, value) = (view(Operand::Key, kv_heads)?, view(Operand::Value, kv_heads)?);
    let tokens = |view: Option<View>| view.map_or(0, |view| view.tokens());
    let [queries, keys, values] = [query, key, value].map(tokens);
    if values != keys {
        let (argument, axis, of) = ("v", "tokens", "k");
        return Err(ArgumentError::Mismatch { argument, axis, found: values, allowed: keys, of }.into());
    }
    Ok([queries, keys])
}

/// Requires that a mask covers all queries and keys, or one of each that stands for all.
fn check_mask(argument: &'static str, source: &Source, [queries, keys]: [usize; 2]) -> Result<(), Error> {
    let shape = Tensor::shape_at(argument, source)?;
    for (back, axis, allowed, of) in [(2, "queries", queries, "q"), (1, "keys", keys, "k")] {
        let found = shape.len().checked_sub(back).map_or(1, |at| shape[at]);
        if found != 1 && found != allowed {
            return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of }.into());
        }
    }
    Ok(())
}

/// The axis of the tokens.
fn token_axis(layout: Option<Layout>, shape: &[usize]) -> Option<usize> {
    match layout.unwrap_or(Layout::Bhnd) {
        Layout::Bhnd | Layout::Bnc => shape.len().checked_sub(2),
        Layout::Bnhd => Some(usize::from(shape.len() == 4)),
    }
}

fn spans(runs: &[Run]) -> Vec<Range<usize>> {
    runs.iter().map(|run| run.span().start..run.span().start + run.span().tokens).collect()
}
