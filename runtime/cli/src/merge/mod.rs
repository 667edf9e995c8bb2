//! `elsa merge`: merges the states of all tasks of a division into the full answer, or adds their shares of gradients.
// Doc comments of flags are their help texts, in which brackets enclose shapes and are not links.
#![allow(rustdoc::broken_intra_doc_links)]

mod members;
mod windows;

pub use windows::outputs_allowed;

use crate::args::values::bytes;
use crate::args::{FILE, ForceArgs, layouts, run_id};
use crate::error::{Error, one_line, say};
use crate::flag::flag;
use crate::report::{self, count, object};
use crate::task::{origin, planned};
use clap::Args;
use elsa_core::attention::Operand;
use elsa_core::view::{Layout, View};
use elsa_files::task::{Kind, Whole};
use elsa_files::{Array, Buffer, Content, Output, Reads, TensorPath, Writer, zeros};
use elsa_runtime::{GradientMerge, RowStates, TaskGradients, TaskMerge, fixed_memory};
use members::{Member, tree};
use std::path::PathBuf;
use std::time::Instant;

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa run --q q.npy --k k.npy --v v.npy --quorum 7 --task 0/7 --state-out task0.npz
  elsa merge task0.npz task1.npz task2.npz task3.npz task4.npz task5.npz task6.npz --out y.npy \\
      --state-out y.npz
  elsa backward --q q.npy --k k.npy --v v.npy --d-out dy.npy --state y.npz --quorum 7 --task 0/7 \\
      --shares-out grad0.npz
  elsa merge grad0.npz grad1.npz grad2.npz grad3.npz grad4.npz grad5.npz grad6.npz \\
      --dq-out dq.npy --dk-out dk.npy --dv-out dv.npy
Run the first command for each task, 0/7 to 6/7, on as many boards or processes as you like. With c = l (l - 1) + 1
chunks, a task reads l of them: 3 of 7. --quorum 7,7 divides each task again. Tasks of two depths can be mixed, such as
--task-path 3 with 0.0 to 0.6.
States are maxima, sums and weighted sums of rows, so no score overflows. They merge in the order of the tasks, so the
same files give the same bits in any order. Shares of gradients are added in the same tree.
A file is refused if it holds states that no run produces, or if it belongs to another problem or to another --run-id.
Without --run-id, a file of other tensors is refused, too: files contain checksums of each token's queries, keys and
values, and shares also of its --d-out. Several tasks hold each token, and their checksums must agree.
These mistakes are not detected: files that all belong to one other run; other masks; other numbers in --out and --lse
of a backward pass; keys beyond --kv-lens, which have no effect; with --run-id, other tensors in a run of the same name;
and forged files.

Exit status: 0 done; 2 a task is missing, given twice or of another run, or a file is not that of a task, and nothing was
written; 3 the system failed.";

/// `elsa merge`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa merge <STATES>... --out <FILE> [OPTIONS]", after_help = HELP)]
pub struct MergeArgs {
    /// Files from elsa run --task of all tasks, in any order; or from elsa backward --task
    #[arg(required = true, value_name = "STATES")]
    pub states: Vec<PathBuf>,
    /// Output, of the inputs' type (bf16 goes to .npy as f32)
    #[arg(long, value_name = FILE,
        required_unless_present_any = ["lse_out", "state_out", "dq_out", "dk_out", "dv_out"])]
    pub out: Option<TensorPath>,
    /// Order of axes of the output, or the gradients: bhnd is [batch, heads, queries, dim], bnhd is [batch, queries, heads, dim], bnc is [batch,
    /// queries, heads*dim] [default: bhnd]
    #[arg(long, value_parser = layouts())]
    pub layout: Option<Layout>,
    /// Write the log-sum-exp of each row, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE)]
    pub lse_out: Option<TensorPath>,
    /// Write the state of each row as .npz: m, S, W, in natural-log units
    #[arg(long, value_name = "FILE.npz")]
    pub state_out: Option<PathBuf>,
    /// Gradient of q, f32, from shares
    #[arg(long, value_name = FILE)]
    pub dq_out: Option<TensorPath>,
    /// Gradient of k, f32, from shares
    #[arg(long, value_name = FILE)]
    pub dk_out: Option<TensorPath>,
    /// Gradient of v, f32, from shares
    #[arg(long, value_name = FILE)]
    pub dv_out: Option<TensorPath>,
    /// Limit of the process's peak memory. Bytes, or a number of KiB, MiB or GiB. States stay in their files, and the rows
    /// of some tokens are merged at a time; with a smaller budget the files are read more often. The results have the bits
    /// of a merge in memory. Not for shares
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = bytes)]
    pub host_budget: Option<usize>,
    /// Permission for outputs to replace inputs.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Require that elsa run or elsa backward gave the files this run name
    #[arg(long, value_name = "TEXT", value_parser = run_id)]
    pub run_id: Option<String>,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
}

impl MergeArgs {
    /// Returns the files that the command reads.
    fn reads(&self) -> Reads {
        let mut reads = self.force.reads();
        self.states.iter().for_each(|path| reads.add("STATES", path, None));
        reads
    }

    /// Returns the paths of the outputs.
    fn outputs(&self) -> impl Iterator<Item = String> {
        let tensors = [&self.out, &self.lse_out, &self.dq_out, &self.dk_out, &self.dv_out];
        let tensors = tensors.into_iter().flatten().map(ToString::to_string);
        tensors.chain(self.state_out.iter().map(|path| path.display().to_string()))
    }

    /// Checks that files of the kind `kind` can provide each requested output.
    fn check(&self, kind: Kind) -> Result<(), Error> {
        let [of_states, of_gradients] = [
            [
                (self.out.is_some(), "out"),
                (self.lse_out.is_some(), "lse-out"),
                (self.state_out.is_some(), "state-out"),
            ],
            [
                (self.dq_out.is_some(), "dq-out"),
                (self.dk_out.is_some(), "dk-out"),
                (self.dv_out.is_some(), "dv-out"),
            ],
        ];
        let (foreign, allowed) = match kind {
            Kind::States => (of_gradients, "out, --lse-out or --state-out"),
            Kind::Gradients => (of_states, "dq-out, --dk-out or --dv-out"),
        };
        match foreign.into_iter().find(|(given, _)| *given) {
            Some((_, argument)) => {
                let found = format!("given for files of {}", kind.name());
                Err(Error::Argument { argument, found, allowed: format!("--{allowed}") })
            }
            None => Ok(()),
        }
    }
}

/// Totals over the files of all tasks.
struct Sums {
    /// Number of pairs of a query and a key, for one head.
    pairs: u128,
    /// Numbers of query tokens and key tokens. A token counts once for each task that has it.
    tokens: [usize; 2],
    /// Number of bytes read.
    bytes: usize,
}

impl Sums {
    /// Calls `push` for each file in the order of the merge tree, and returns the totals. `push` reads the file and
    /// returns the number of bytes read.
    fn of(
        members: &[Member<'_>],
        mut push: impl FnMut(&Member<'_>) -> Result<usize, Error>,
    ) -> Result<Sums, Error> {
        let mut sums = Sums { pairs: 0, tokens: [0; 2], bytes: 0 };
        for member in members {
            let task = &member.task;
            sums.bytes += push(member)?;
            sums.pairs += task.pair_count();
            sums.tokens = [sums.tokens[0] + task.query_tokens(), sums.tokens[1] + task.key_tokens()];
        }
        Ok(sums)
    }
}

/// A finished merge.
pub struct Merged {
    /// Content of the files.
    kind: Kind,
    /// The complete problem.
    whole: Whole,
    sums: Sums,
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
            pairs: merged.sums.pairs as f64,
            tokens: merged.sums.tokens,
            bytes_read: merged.sums.bytes,
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
    let mut members = members::reserved(args.states.len())?;
    for path in &args.states {
        members.push(Member::open(path)?);
    }
    let (kind, whole) = tree(&mut members)?;
    args.check(kind)?;
    if let Some(run) = args.run_id.as_ref().filter(|run| **run != whole.run) {
        let (argument, found) = ("run-id", format!("{run:?}"));
        let allowed = match whole.run.is_empty() {
            true => "left out, as the files are of a run without a name".into(),
            false => format!("{:?}, as the files have", whole.run),
        };
        return Err(Error::Argument { argument, found, allowed });
    }
    let (sums, first, shape) = match (kind, args.host_budget) {
        (Kind::States, None) => states(args, &members, &whole)?,
        (Kind::States, Some(budget)) => windows::states(args, &members, &whole, [budget, fixed])?,
        (Kind::Gradients, None) => gradients(args, &members, &whole)?,
        (Kind::Gradients, Some(_)) => {
            let (found, allowed) = ("given for files of shares".into(), "without it".into());
            return Err(Error::Argument { argument: "host-budget", found, allowed });
        }
    };
    let ms = start.elapsed().as_secs_f64() * 1e3;
    Ok(Merged { kind, whole, sums, first: (first, shape), tasks: members.len(), ms })
}

/// Totals over the input files, name of the first output file, and shape of its tensor.
type Done = (Sums, String, Vec<usize>);

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
    let tokens = members::sums(members, Kind::States, whole)?;
    let [batch, heads, _, queries, _, _, dim] = whole.shape;
    let mut merge =
        TaskMerge::new(whole.sequences(), queries, dim, members.len()).map_err(planned("state-out"))?;
    let sums = Sums::of(members, |member| {
        let states = member.read(|description, task, file, length| description.states(task, file, length))?;
        member.check(&states, std::slice::from_ref(&(0..member.task.query_tokens())))?;
        merge.push(member.task.queries(), &states)?;
        Ok(4 * (2 * states.m.len() + states.w.len()))
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
    Ok((sums, first.unwrap_or_default(), shape))
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
    members::sums(members, Kind::Gradients, whole)?;
    let mut merge = GradientMerge::new(&whole.gradients(), members.len()).map_err(planned("shares-out"))?;
    let sums = Sums::of(members, |member| {
        let shares = member.read(|description, task, file, length| description.shares(task, file, length))?;
        merge.push(&member.task, &shares)?;
        Ok(4 * (shares.query.len() + shares.key.len() + shares.value.len()))
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
    Ok((sums, first, shape))
}

/// Returns the shape in the layout `layout` of a tensor with `batch` sequences, `heads` heads, `tokens` tokens and head
/// size `dim`.
fn shape(layout: Layout, [batch, heads, tokens, dim]: [usize; 4]) -> Vec<usize> {
    match layout {
        Layout::Bhnd => vec![batch, heads, tokens, dim],
        Layout::Bnhd => vec![batch, tokens, heads, dim],
        Layout::Bnc => vec![batch, tokens, heads.saturating_mul(dim)],
    }
}
