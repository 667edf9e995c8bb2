//! Merges the states of tasks within a memory budget: one window of query tokens after another. A window has the bits that
//! the merge of all tokens has, because each row is merged alone.

use super::args::MergeArgs;
use super::members::{self, Member};
use super::sums::{Done, Sums, shape};
use crate::error::Error;
use crate::flag::flag;
use crate::progress;
use crate::stream::Outputs;
use crate::task::planned;
use elsa_core::attention::Operand;
use elsa_core::dtype::DType;
use elsa_core::quorum::{Run, Span};
use elsa_core::scan::stack::MergeStack;
use elsa_core::view::{Layout, View};
use elsa_files::task::{Kind, Whole};
use elsa_files::{Buffer, FileError, Writer};
use elsa_runtime::{RowStates, Sink, TaskMerge};
use std::ops::Range;

/// Returns an error for an output that a merge within a budget does not write.
///
/// # Errors
/// Returns an error if states are requested.
pub fn outputs_allowed(args: &MergeArgs) -> Result<(), Error> {
    match args.host_budget.is_some() && args.state_out.is_some() {
        true => {
            let (found, allowed) = ("given with --host-budget".into(), "without it".into());
            Err(Error::Argument { argument: "state-out", found, allowed })
        }
        false => Ok(()),
    }
}

/// Merges the states in the files, and writes the outputs, with at most `budget` bytes of memory for the process.
/// `fixed` is the part of the budget that the process uses for other things.
///
/// # Errors
/// Returns an error if the outputs are not computed and written completely. All regular targets are then unchanged,
/// unless the error is a failed rename.
pub(super) fn states(
    args: &MergeArgs,
    members: &[Member<'_>],
    whole: &Whole,
    [budget, fixed]: [usize; 2],
) -> Result<Done, Error> {
    let layout = args.layout.unwrap_or(Layout::Bhnd);
    let [batch, heads, _, queries, _, _, dim] = whole.shape;
    let out = shape(layout, [batch, heads, queries, dim]);
    let mut writer = Writer::new(args.reads());
    let mut shapes = Vec::new();
    for (operand, source, dtype, shape) in [
        (Operand::Output, &args.out, whole.dtype(), out.clone()),
        (Operand::LogSumExp, &args.lse_out, DType::F32, vec![batch, heads, queries]),
    ] {
        if let Some(source) = source {
            writer.add(flag(operand.argument()), source)?;
            shapes.push((operand, dtype, shape));
        }
    }
    drop(members::sums(members, Kind::States, whole)?);
    let width = width(whole, members.len(), [budget, fixed])?;
    let mut outputs = Outputs::new(writer.prepared(), &shapes, None)?;
    let windows = queries.div_ceil(width);
    outputs.show(progress::bar(windows as u64, windows as f64));
    let mut sums = Sums::of(members, |_| Ok(0))?;
    for first in (0..queries).step_by(width) {
        let window = first..queries.min(first.saturating_add(width));
        let mut merge = TaskMerge::new(whole.sequences(), window.len(), dim, members.len())
            .map_err(planned("host-budget"))?;
        for member in members {
            let (spans, rows) = within(member.task.queries(), &window)?;
            let states = match rows.is_empty() {
                true => RowStates::empty(0, dim).map_err(planned("host-budget"))?,
                false => {
                    member.read(|of, task, file, length| of.states_of_rows(task, file, length, &rows))?
                }
            };
            member.check(&states, &rows)?;
            merge.push_spans(&spans, &states)?;
            sums.bytes += 4 * (2 * states.m.len() + states.w.len());
        }
        let states = merge.finish();
        if args.out.is_some() {
            let sizes = shape(layout, [batch, heads, window.len(), dim]);
            let view = View::dense("out", layout, &sizes, Some(heads))?;
            let mut data = Buffer::zeros("out", whole.dtype(), view.extent())?;
            states.output(&view, &mut data.elements_mut());
            // In each of these layouts, the rows of a window are consecutive within a part of the output.
            let parts = if layout == Layout::Bhnd { batch * heads } else { batch };
            write(&mut outputs, Operand::Output, data.bytes(), parts, (&window, queries))?;
        }
        if args.lse_out.is_some() {
            let mut lse = Buffer::zeros("lse-out", DType::F32, states.rows())?;
            if let Buffer::F32(lse) = &mut lse {
                lse.iter_mut().zip(states.log_sum_exp()).for_each(|(to, from)| *to = from);
            }
            write(&mut outputs, Operand::LogSumExp, lse.bytes(), batch * heads, (&window, queries))?;
        }
        Sink::<Operand>::advanced(&mut outputs);
    }
    outputs.commit()?;
    let first = args.out.as_ref().or(args.lse_out.as_ref()).map(ToString::to_string);
    Ok((sums, first.unwrap_or_default(), out))
}

/// Returns the number of tokens of a window that fits into the budget.
///
/// # Errors
/// Returns an error if not even one token fits.
fn width(whole: &Whole, tasks: usize, [budget, fixed]: [usize; 2]) -> Result<usize, Error> {
    let [.., queries, keys, _, dim] = whole.shape;
    let rows = whole.sequences();
    // The states of every level of the merge tree and of a file, the output, and the log-sum-exp.
    let state = rows.saturating_mul(4).saturating_mul(dim.saturating_add(2));
    let token = state.saturating_mul(MergeStack::capacity(tasks) + 1);
    let token = token.saturating_add(rows.saturating_mul(4).saturating_mul(dim.saturating_add(1)));
    // The checksums of all tokens have been read and released, but the allocator may keep their memory.
    let sums = if whole.run.is_empty() { queries.saturating_add(keys).saturating_mul(16) } else { 0 };
    let fixed = fixed.saturating_add(sums);
    match budget.saturating_sub(fixed) / token.max(1) {
        0 => Err(Error::Argument {
            argument: "host-budget",
            found: budget.to_string(),
            allowed: format!("at least {} bytes", fixed.saturating_add(token)),
        }),
        tokens => Ok(tokens.min(queries.max(1))),
    }
}

/// Returns the part of a task's query runs within the window: its place in the merge of the window, and the rows of the
/// task's file that have its states.
fn within(runs: &[Run], window: &Range<usize>) -> Result<(Vec<Span>, Vec<Range<usize>>), Error> {
    let (mut spans, mut rows) = (members::reserved(runs.len())?, members::reserved(runs.len())?);
    let mut offset = 0;
    for run in runs.iter().map(Run::span) {
        let (from, to) = (run.start.max(window.start), (run.start + run.tokens).min(window.end));
        if from < to {
            let tokens = to - from;
            spans.push(Span { start: from - window.start, offset, tokens });
            let row = run.offset + (from - run.start);
            rows.push(row..row + tokens);
            offset += tokens;
        }
    }
    Ok((spans, rows))
}

/// Writes the rows of a window to an output of `queries` rows in each of its `parts` parts. `bytes` are the rows, part by
/// part.
fn write(
    outputs: &mut Outputs,
    operand: Operand,
    bytes: &[u8],
    parts: usize,
    (window, queries): (&Range<usize>, usize),
) -> Result<(), Error> {
    let size = bytes.len() / parts.max(1);
    let row = size / window.len().max(1);
    for (part, bytes) in bytes.chunks_exact(size.max(1)).enumerate() {
        let offset = (part * queries + window.start) * row;
        outputs.write(operand, offset as u64, bytes).map_err(|source| {
            let (argument, path) = outputs.target(operand);
            FileError::Write { argument, path, source }
        })?;
    }
    Ok(())
}
