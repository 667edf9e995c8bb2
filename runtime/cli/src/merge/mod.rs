//! `elsa merge`: the states of all tasks of a division, joined to the answer of the whole.
// Doc comments of flags are their help texts, where brackets hold shapes.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::args::{FILE, layouts};
use crate::error::{Error, one_line, say};
use crate::flag::flag;
use crate::memory::{self, Buffer, zeros};
use crate::report;
use crate::task::file::Description;
use crate::tensor::output::{Content, Output, Writer};
use crate::tensor::{Fault, InputFile, Source};
use clap::Args;
use elsa_core::attention::Operand;
use elsa_core::quorum::{QuorumError, Task, TaskPath, Tree};
use elsa_core::view::{Layout, View};
use elsa_runtime::TaskMerge;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The argument of the files, in messages.
const STATES: &str = "STATES";

/// The text below the flags.
const HELP: &str = "\
Examples:
  elsa run --q q.npy --k k.npy --v v.npy --quorum 7 --task 0/7 --state-out task0.npz
  elsa merge task0.npz task1.npz task2.npz task3.npz task4.npz task5.npz task6.npz --out y.npy
The first is done for each task, 0/7 to 6/7, by as many boards or processes; each reads l/c of the tokens, with c = l (l - 1) + 1
chunks: 3 of 7. --quorum 7,7 divides each task again. --task-path 3 beside 0.0 to 0.6 and so on mixes tasks of two depths.
States are maxima, sums and weighted sums of rows, so no score overflows, and they merge in the order of the tasks, whatever the
order of the files: the same files give the same bits.
Exit status: 0 done; 2 a task is missing, given twice or foreign, or a file is no task's, and nothing was written; 3 the system
failed.";

/// `elsa merge`.
#[derive(Args, Debug)]
#[command(override_usage = "elsa merge <STATES>... --out <FILE> [OPTIONS]", after_help = HELP)]
pub struct MergeArgs {
    /// The files that elsa run --task has written, of all tasks, in any order
    #[arg(required = true, value_name = "STATES")]
    pub states: Vec<PathBuf>,
    /// Output, of the inputs' type (bf16 goes to .npy as f32)
    #[arg(long, value_name = FILE, required_unless_present_any = ["lse_out", "state_out"])]
    pub out: Option<Source>,
    /// Order of axes of the output: bhnd is [batch, heads, queries, dim], bnhd is [batch, queries, heads, dim], bnc is [batch,
    /// queries, heads*dim] [default: bhnd]
    #[arg(long, value_parser = layouts())]
    pub layout: Option<Layout>,
    /// Write the log-sum-exp of each row, f32 [batch, heads, queries]
    #[arg(long, value_name = FILE)]
    pub lse_out: Option<Source>,
    /// Write the state of each row as .npz: m, S, W, in natural-log units
    #[arg(long, value_name = "FILE.npz")]
    pub state_out: Option<PathBuf>,
    /// Print a machine-readable report
    #[arg(long)]
    pub json: bool,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    what: &'static str,
    tasks: usize,
    /// Batch, heads, key heads, queries, keys, head size and head size of values.
    shape: [usize; 7],
    dtype: &'static str,
    /// Pairs of a query and a key, over all tasks, for one head.
    pairs: f64,
    /// Query and key tokens, over all tasks: each is moved once for each task that holds it.
    tokens: [usize; 2],
    /// Bytes of states that were read.
    bytes_read: usize,
    ms: f64,
}

/// A file with what it says about itself.
struct Member<'a> {
    path: &'a Path,
    description: Description,
    task: Task,
}

/// Runs the command.
///
/// # Errors
/// Whatever keeps the outputs from being complete. No file has changed then.
pub fn merge(args: &MergeArgs) -> Result<(), Error> {
    let start = Instant::now();
    let mut members = reserved(args.states.len())?;
    for path in &args.states {
        let (description, task) = with(path, |mut file, length| Description::read(&mut file, length))?;
        members.push(Member { path, description, task });
    }
    tree(&mut members)?;
    let whole = &first(&members)?.description.whole;
    let mut writer = Writer::default();
    for (operand, source) in [(Operand::Output, &args.out), (Operand::LogSumExp, &args.lse_out)] {
        if let Some(source) = source {
            writer.add(flag(operand.argument()), source)?;
        }
    }
    if let Some(path) = &args.state_out {
        writer.add_archive("state-out", path)?;
    }

    let [batch, heads, _, queries, _, _, dim] = whole.shape;
    let mut merge = TaskMerge::new(whole.sequences(), queries, dim, members.len())?;
    let (mut pairs, mut tokens, mut bytes_read) = (0, [0; 2], 0);
    for Member { path, description, task } in &members {
        let states = with(path, |mut file, length| {
            // The file may be another one by now.
            let (now, _) = Description::read(&mut file, length)?;
            match now == *description {
                true => Ok(Some(description.states(task, &mut file, length)?)),
                false => Ok(None),
            }
        })?;
        let states = states.ok_or_else(|| Error::Changed { argument: STATES, path: path.to_path_buf() })?;
        merge.push(task.queries(), &states)?;
        pairs += task.pair_count();
        tokens = [tokens[0] + task.query_tokens(), tokens[1] + task.key_tokens()];
        bytes_read += 4 * (2 * states.m.len() + states.w.len());
    }
    let states = merge.finish();

    let layout = args.layout.unwrap_or(Layout::Bhnd);
    let shape = match layout {
        Layout::Bhnd => vec![batch, heads, queries, dim],
        Layout::Bnhd => vec![batch, queries, heads, dim],
        Layout::Bnc => vec![batch, queries, heads.saturating_mul(dim)],
    };
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
        contents.push(Output::Archive(vec![
            ("m", array(rows.clone(), states.m)),
            ("S", array(rows, states.s)),
            ("W", array(vec![batch, heads, queries, dim], states.w)),
        ]));
    }
    writer.commit(&contents)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    if args.json {
        let (what, tasks, dtype) = ("merge", members.len(), whole.dtype().name());
        let pairs = pairs as f64;
        let report = Report { what, tasks, shape: whole.shape, dtype, pairs, tokens, bytes_read, ms };
        report::json(&mut std::io::stdout().lock(), &report)?;
    } else {
        let first = args.out.as_ref().or(args.lse_out.as_ref()).map(ToString::to_string);
        let first = first.or(args.state_out.as_ref().map(|path| path.display().to_string()));
        let first = one_line(&first.unwrap_or_default());
        say(&format!("wrote {first} {shape:?} of {} tasks in {ms:.3} ms", members.len()));
    }
    Ok(())
}

/// An empty vector with room for an entry for each of `files` files.
fn reserved<T>(files: usize) -> Result<Vec<T>, Error> {
    memory::reserved(files).map_err(|bytes| Error::Memory { argument: STATES, bytes })
}

/// Opens the file at `path`, and calls `read` with it and its length.
fn with<T>(path: &Path, read: impl FnOnce(&std::fs::File, u64) -> Result<T, Fault>) -> Result<T, Error> {
    let (argument, owned) = (STATES, || path.to_path_buf());
    let unread = |source| Error::Read { argument, path: owned(), source };
    let file = InputFile::open(path).map_err(unread)?;
    let done = read(file.reader(), file.length());
    if !file.unchanged() {
        return Err(Error::Changed { argument, path: owned() });
    }
    done.map_err(|fault| match fault {
        Fault::Content(source) => Error::Tensor { argument, path: owned(), source },
        Fault::Io(source) => unread(source),
        Fault::Memory(bytes) => Error::Memory { argument, bytes },
    })
}

/// The first of the files.
fn first<'a, 'b>(members: &'a [Member<'b>]) -> Result<&'a Member<'b>, Error> {
    members.first().ok_or_else(|| Error::States("no file; allowed: the files of all tasks".into()))
}

/// Brings the files into the order of their tree, and requires that they belong to one whole.
///
/// # Errors
/// Files of different wholes, and tasks that are missing or doubled.
fn tree(members: &mut [Member<'_>]) -> Result<(), Error> {
    let one = first(members)?;
    let whole = &one.description.whole;
    for Member { path, description, .. } in &*members {
        if let Some((name, found, allowed)) = whole.difference(&description.whole) {
            return Err(Error::States(format!(
                "{}: {name} {found}; allowed: {allowed}, as {} has",
                path.display(),
                one.path.display()
            )));
        }
    }
    let division = whole.division().map_err(|_| Error::States("no division".into()))?;
    members.sort_by_key(|member| member.description.path);
    let mut paths = reserved::<TaskPath>(members.len())?;
    paths.extend(members.iter().map(|member| member.description.path));
    let members = &*members;
    let whole = &first(members)?.description.whole;
    let at = |path: TaskPath| {
        let of = |member: &&Member<'_>| member.description.path == path;
        members.iter().filter(of).map(|member| member.path.display().to_string()).collect::<Vec<_>>()
    };
    match Tree::new(&division, &mut paths) {
        Ok(_) => Ok(()),
        Err(QuorumError::Doubled { path }) => Err(Error::States(format!(
            "{}: task {path} is there twice, or below another; allowed: each task once",
            at(path).join(", ")
        ))),
        Err(QuorumError::Missing { path }) => {
            let quorum: Vec<String> = whole.quorum.iter().map(ToString::to_string).collect();
            let which = match division.number(&path) {
                Some(number) => format!("--task {number}/{}", division.tasks()),
                None => format!("--task-path {path}"),
            };
            Err(Error::States(format!(
                "task {path} is missing; allowed: all tasks. Repeat it: elsa run --q FILE --k FILE --v FILE{} --quorum {} \
                 {which} --state-out FILE.npz",
                whole.flags(),
                quorum.join(",")
            )))
        }
        Err(other) => Err(Error::States(other.to_string())),
    }
}
