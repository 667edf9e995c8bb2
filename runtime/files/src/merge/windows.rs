//! Merges the states of tasks within a memory budget: one window of query tokens after another. A window has the bits that
//! the merge of all tokens has, because each row is merged alone.

use super::error::MergeError;
use super::members::{Member, Totals, reserved};
use crate::Buffer;
use crate::task::Whole;
use elsa_core::dtype::DType;
use elsa_core::quorum::{Run, Span};
use elsa_core::scan::stack::MergeStack;
use elsa_core::view::{Layout, View};
use elsa_runtime::{RowStates, TaskMerge};
use std::ops::Range;

/// Memory that a merge may use.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The caller's argument with the budget, for messages.
    pub argument: &'static str,
    /// Largest number of bytes of the process; `None` merges all tokens at once.
    pub bytes: Option<usize>,
    /// Number of bytes that the process uses for other things.
    pub fixed: usize,
}

/// Merged states of some consecutive query tokens.
pub struct Window<'a> {
    whole: &'a Whole,
    tokens: Range<usize>,
    states: RowStates,
}

/// Rows of a window in an output of the complete problem.
pub struct Rows {
    data: Buffer,
    /// Number of parts of the output. The rows of the window are consecutive in each part.
    parts: usize,
    /// Numbers of tokens before the window, in the window, and in the output.
    tokens: [usize; 3],
}

impl Rows {
    /// Returns the byte offset of each part's rows in the output, and their bytes.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let bytes = self.data.bytes();
        let [first, count, all] = self.tokens;
        let size = bytes.len() / self.parts.max(1);
        let row = size / count.max(1);
        let pieces = bytes.chunks_exact(size.max(1)).enumerate();
        pieces.map(move |(part, bytes)| (((part * all + first) * row) as u64, bytes))
    }
}

impl Window<'_> {
    /// Computes the output of the window's rows, in the layout `layout` and with the element type of the problem.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory.
    pub fn output(&self, layout: Layout) -> Result<Rows, MergeError> {
        let [batch, heads, .., dim] = self.whole.shape;
        let shape = shape(layout, [batch, heads, self.tokens.len(), dim]);
        let view = View::dense("out", layout, &shape, Some(heads))?;
        let mut data = Buffer::zeros("out", self.whole.dtype(), view.extent())?;
        self.states.output(&view, &mut data.elements_mut());
        Ok(self.rows(data, if layout == Layout::Bhnd { batch * heads } else { batch }))
    }

    /// Computes the log-sum-exp of the window's rows, f32 `[batch, heads, queries]`. If the system refuses memory, the
    /// error names `argument`.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory.
    pub fn log_sum_exp(&self, argument: &'static str) -> Result<Rows, MergeError> {
        let mut lse = Buffer::zeros(argument, DType::F32, self.states.rows())?;
        if let Buffer::F32(lse) = &mut lse {
            lse.iter_mut().zip(self.states.log_sum_exp()).for_each(|(to, from)| *to = from);
        }
        Ok(self.rows(lse, self.whole.sequences()))
    }

    fn rows(&self, data: Buffer, parts: usize) -> Rows {
        Rows { data, parts, tokens: [self.tokens.start, self.tokens.len(), self.whole.shape[3]] }
    }
}

/// Returns the shape in the layout `layout` of a tensor with `batch` sequences, `heads` heads, `tokens` tokens and head
/// size `dim`.
#[must_use]
pub fn shape(layout: Layout, [batch, heads, tokens, dim]: [usize; 4]) -> Vec<usize> {
    match layout {
        Layout::Bhnd => vec![batch, heads, tokens, dim],
        Layout::Bnhd => vec![batch, tokens, heads, dim],
        Layout::Bnc => vec![batch, tokens, heads.saturating_mul(dim)],
    }
}

/// Merges the states in the files of `members`, which are in the order of the merge tree. Calls `begin` with the number
/// of windows, and then `take` with what `begin` has returned and with each window, in the order of the tokens. Returns
/// the totals and the result of `begin`.
///
/// # Errors
/// Returns an error if the budget is too small for one token, if a file has changed or is malformed, if the system refuses
/// memory, or if a function fails.
pub fn windows<T, E: From<MergeError>>(
    members: &[Member<'_>],
    whole: &Whole,
    budget: Budget,
    begin: impl FnOnce(usize) -> Result<T, E>,
    mut take: impl FnMut(&mut T, &Window<'_>) -> Result<(), E>,
) -> Result<(Totals, T), E> {
    let argument = budget.argument;
    let [.., queries, _, _, dim] = whole.shape;
    let width = width(whole, members.len(), budget)?;
    let mut taker = begin(queries.div_ceil(width))?;
    let mut totals = Totals::of(members, |_| Ok::<_, E>(0))?;
    for first in (0..queries).step_by(width) {
        let tokens = first..queries.min(first.saturating_add(width));
        let mut merge = TaskMerge::new(whole.sequences(), tokens.len(), dim, members.len())
            .map_err(MergeError::planned(argument))?;
        for member in members {
            let (spans, rows) = within(argument, member.task.queries(), &tokens)?;
            let states = match rows.is_empty() {
                true => RowStates::empty(0, dim).map_err(MergeError::planned(argument))?,
                false => {
                    member.read(|of, task, file, length| of.states_of_rows(task, file, length, &rows))?
                }
            };
            member.check(&states, &rows)?;
            merge.push_spans(&spans, &states).map_err(MergeError::from)?;
            totals.bytes += 4 * (2 * states.m.len() + states.w.len());
        }
        take(&mut taker, &Window { whole, tokens, states: merge.finish() })?;
    }
    Ok((totals, taker))
}

/// Returns the number of tokens of a window that fits into the budget.
///
/// # Errors
/// Returns an error if not even one token fits.
fn width(
    whole: &Whole,
    tasks: usize,
    Budget { argument, bytes, fixed }: Budget,
) -> Result<usize, MergeError> {
    let [.., queries, keys, _, dim] = whole.shape;
    let Some(budget) = bytes else { return Ok(queries.max(1)) };
    let rows = whole.sequences();
    // The states of every level of the merge tree and of a file, the output, and the log-sum-exp.
    let state = rows.saturating_mul(4).saturating_mul(dim.saturating_add(2));
    let token = state.saturating_mul(MergeStack::capacity(tasks) + 1);
    let token = token.saturating_add(rows.saturating_mul(4).saturating_mul(dim.saturating_add(1)));
    // The checksums of all tokens have been read and released, but the allocator may keep their memory.
    let sums = if whole.run.is_empty() { queries.saturating_add(keys).saturating_mul(16) } else { 0 };
    let fixed = fixed.saturating_add(sums);
    match budget.saturating_sub(fixed) / token.max(1) {
        0 => Err(MergeError::Budget { argument, found: budget, least: fixed.saturating_add(token) }),
        tokens => Ok(tokens.min(queries.max(1))),
    }
}

/// Returns the part of a task's query runs within the window: its place in the merge of the window, and the rows of the
/// task's file that have its states.
fn within(
    argument: &'static str,
    runs: &[Run],
    window: &Range<usize>,
) -> Result<(Vec<Span>, Vec<Range<usize>>), MergeError> {
    let (mut spans, mut rows) = (reserved(argument, runs.len())?, reserved(argument, runs.len())?);
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
