//! `elsa merge`: merges the states of all tasks of a division into the full answer, or adds their shares of gradients.

mod args;
mod refusal;
mod windows;

pub use args::MergeArgs;
pub use windows::outputs_allowed;

use crate::error::{Error, one_line, say};
use crate::flag::flag;
use crate::report::{self, count, object};
use crate::task::{origin, planned};
use elsa_core::attention::Operand;
use elsa_core::view::{Layout, View};
use elsa_files::merge::{Member, Totals, check_run, reserved, shape, sums, tree};
use elsa_files::task::{Kind, Whole};
use elsa_files::{Array, Buffer, Content, Output, Writer, zeros};
use elsa_runtime::{GradientMerge, RowStates, TaskGradients, TaskMerge, fixed_memory};
use std::time::Instant;
use windows::Done;

/// Name of the argument that lists the files, for messages.
const STATES: &str = "STATES";

/// A finished merge.
pub struct Merged {
    /// Content of the files.
    kind: Kind,
    /// The complete problem.
    whole: Whole,
    totals: Totals,
    /// The first output, and the shape of its tensor.
    first: (String, Vec<usize>),
    tasks: usize,
    /// Time in milliseconds.
    pub ms: f64,
}

impl Merged {
    /// Names the outputs on standard error, one on each line.
    pub fn tell(&self, args: &MergeArgs) {
        let (first, shape) = &self.first;
        let of = count(self.tasks as u64, "task");
        say(&format!("wrote {} {shape:?} of {of} in {:.3} ms", one_line(first), self.ms));
        args.outputs().filter(|path| path != first).for_each(|path| say(&format!("wrote {path}")));
    }
}

/// Runs the command.
///
/// # Errors
/// Returns the errors of [`join`], and an error if standard output fails.
pub fn merge(args: &MergeArgs) -> Result<(), Error> {
    let merged = join(args, fixed_memory(0))?;
    if args.json {
        let what = match merged.kind {
            Kind::States => "merge",
            Kind::Gradients => "merge of gradients",
        };
        let report = object! {
            what: what,
            tasks: merged.tasks,
            // The shape has batch, heads, key heads, queries, keys, head size and head size of values.
            shape: merged.whole.shape,
            dtype: merged.whole.dtype().name(),
            pairs: merged.totals.pairs as f64,
            tokens: merged.totals.tokens,
            bytes_read: merged.totals.bytes,
            ms: merged.ms,
        };
        report::json(&mut crate::foreign::stdout(), &report)?;
    } else {
        merged.tell(args);
    }
    Ok(())
}

/// Merges the files of `args` and writes the outputs. `fixed` is the number of bytes of a budget that the process uses for
/// other things.
///
/// # Errors
/// Returns an error if the outputs are not computed and written completely. All regular targets are then unchanged,
/// unless the error is a failed rename.
pub fn join(args: &MergeArgs, fixed: usize) -> Result<Merged, Error> {
    outputs_allowed(args)?;
    let start = Instant::now();
    let mut members = reserved(STATES, args.states.len())?;
    for path in &args.states {
        members.push(Member::open(STATES, path)?);
    }
    let (kind, whole) = tree(&mut members)?;
    args.check(kind)?;
    if let Some(run) = &args.run_id {
        check_run("run-id", run, &whole)?;
    }
    let (totals, first, shape) = match (kind, args.host_budget) {
        (Kind::States, None) => states(args, &members, &whole)?,
        (Kind::States, Some(budget)) => windows::states(args, &members, &whole, [budget, fixed])?,
        (Kind::Gradients, None) => gradients(args, &members, &whole)?,
        (Kind::Gradients, Some(_)) => {
            let (found, allowed) = ("given for files of shares".into(), "without it".into());
            return Err(Error::Argument { argument: "host-budget", found, allowed });
        }
    };
    let ms = start.elapsed().as_secs_f64() * 1e3;
    Ok(Merged { kind, whole, totals, first: (first, shape), tasks: members.len(), ms })
}

/// Merges the states in the files, and writes the outputs.
fn states(args: &MergeArgs, members: &[Member<'_>], whole: &Whole) -> Result<Done, Error> {
    let mut writer = Writer::new(args.reads());
    for (operand, source) in [(Operand::Output, &args.out), (Operand::LogSumExp, &args.lse_out)] {
        if let Some(source) = source {
            writer.add(flag(operand.argument()), source)?;
        }
    }
    if let Some(path) = &args.state_out {
        writer.add_archive("state-out", path)?;
    }
    let tokens = sums(members, Kind::States, whole)?;
    let [batch, heads, _, queries, _, _, dim] = whole.shape;
    let mut merge =
        TaskMerge::new(whole.sequences(), queries, dim, members.len()).map_err(planned("state-out"))?;
    let totals = Totals::of(members, |member| {
        let states = member.read(|description, task, file, length| description.states(task, file, length))?;
        member.check(&states, std::slice::from_ref(&(0..member.task.query_tokens())))?;
        merge.push(member.task.queries(), &states)?;
        Ok::<_, Error>(4 * (2 * states.m.len() + states.w.len()))
    })?;
    let states = merge.finish();

    let layout = args.layout.unwrap_or(Layout::Bhnd);
    let shape = shape(layout, [batch, heads, queries, dim]);
    let mut contents = Vec::new();
    if args.out.is_some() {
        let view = View::dense("out", layout, &shape, Some(heads))?;
        let mut data = Buffer::zeros("out", whole.dtype(), view.extent())?;
        states.output(&view, &mut data.elements_mut());
        contents.push(Output::Tensor(Content { shape: shape.clone(), data }));
    }
    let rows = vec![batch, heads, queries];
    if args.lse_out.is_some() {
        let mut lse = zeros::<f32>("lse-out", states.rows())?;
        lse.iter_mut().zip(states.log_sum_exp()).for_each(|(to, from)| *to = from);
        contents.push(Output::Tensor(Content { shape: rows.clone(), data: Buffer::F32(lse) }));
    }
    if args.state_out.is_some() {
        let array = |shape: Vec<usize>, data| Content { shape, data: Buffer::F32(data) }.into();
        let RowStates { m, s, w } = states;
        let mut arrays: Vec<(&str, Array)> = vec![
            ("m", array(rows.clone(), m)),
            ("S", array(rows, s)),
            ("W", array(vec![batch, heads, queries, dim], w)),
        ];
        arrays.extend(origin::arrays(&whole.run, tokens));
        contents.push(Output::Archive(arrays));
    }
    writer.commit(&contents)?;
    let first = args.out.as_ref().or(args.lse_out.as_ref()).map(ToString::to_string);
    let first = first.or(args.state_out.as_ref().map(|path| path.display().to_string()));
    Ok((totals, first.unwrap_or_default(), shape))
}

/// Adds the shares of gradients in the files, and writes the gradients.
fn gradients(args: &MergeArgs, members: &[Member<'_>], whole: &Whole) -> Result<Done, Error> {
    let layout = args.layout.unwrap_or(Layout::Bhnd);
    let [batch, heads, kv_heads, queries, keys, dim, value_dim] = whole.shape;
    let mut writer = Writer::new(args.reads());
    let mut outputs = Vec::new();
    for (argument, source, [heads, tokens, dim]) in [
        ("d_q", &args.dq_out, [heads, queries, dim]),
        ("d_k", &args.dk_out, [kv_heads, keys, dim]),
        ("d_v", &args.dv_out, [kv_heads, keys, value_dim]),
    ] {
        let shape = shape(layout, [batch, heads, tokens, dim]);
        let view = View::dense(argument, layout, &shape, Some(heads))?;
        if let Some(source) = source {
            writer.add(flag(argument), source)?;
        }
        outputs.push((argument, source, shape, view));
    }
    sums(members, Kind::Gradients, whole)?;
    let mut merge = GradientMerge::new(&whole.gradients(), members.len()).map_err(planned("shares-out"))?;
    let totals = Totals::of(members, |member| {
        let shares = member.read(|description, task, file, length| description.shares(task, file, length))?;
        merge.push(&member.task, &shares)?;
        Ok::<_, Error>(4 * (shares.query.len() + shares.key.len() + shares.value.len()))
    })?;
    let TaskGradients { query, key, value } = merge.finish();
    let (mut contents, mut first) = (Vec::new(), None);
    for ((argument, source, shape, view), dense) in outputs.into_iter().zip([query, key, value]) {
        if let Some(source) = source {
            let mut data = zeros(flag(argument), view.extent())?;
            TaskGradients::lay(&dense, &view, &mut data);
            first.get_or_insert_with(|| (source.to_string(), shape.clone()));
            contents.push(Output::Tensor(Content { shape, data: Buffer::F32(data) }));
        }
    }
    writer.commit(&contents)?;
    let (first, shape) = first.unwrap_or_default();
    Ok((totals, first, shape))
}
