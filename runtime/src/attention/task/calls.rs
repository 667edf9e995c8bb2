//! Divides a task into calls. A call computes the pairs of one query run and one key range, and reads only the rows of
//! the task's tensors that these pairs need.

use super::mask::MaskTile;
use crate::error::PlanError;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Chunk, Inputs, Lengths, MaskView, Problem, Spec};
use elsa_core::dtype::Elements;
use elsa_core::quorum::{Division, Span, Task, TaskPath};
use elsa_core::view::{Layout, View};

/// Tokens in the tensors of a task: all tokens, or only the tokens of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskTokens {
    /// The tensors contain all tokens of the complete problem.
    Whole,
    /// The tensors contain only the task's tokens, in the task's order. Each axis of a mask also contains only these
    /// tokens, unless the axis is broadcast.
    Gathered {
        /// Number of query tokens in the complete problem.
        queries: usize,
        /// Number of key tokens in the complete problem.
        keys: usize,
    },
}

/// A call for a run of consecutive queries: the range of keys that the task pairs with the run, and the index of the
/// call's problem in [`Calls::shapes`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub keys: Span,
    pub shape: usize,
}

/// The calls of a task, one problem for each distinct shape of a call, and room for the largest tile of a mask.
#[derive(Debug)]
pub(super) struct Calls {
    problem: Problem,
    held: TaskTokens,
    totals: [usize; 2],
    task: Task,
    shapes: Vec<Problem>,
    runs: Vec<(Span, Vec<Call>)>,
    tile: Option<MaskTile>,
}

impl Calls {
    /// Lists the calls of the task at `path` in `division`. `held` specifies which tokens the problem's tensors
    /// contain.
    ///
    /// # Errors
    /// Returns an error if `division` does not have the path, if the tensors do not have the task's tokens, if tasks do
    /// not support the problem, or if the system refuses memory.
    pub fn new(
        problem: &Problem,
        division: &Division,
        path: &TaskPath,
        held: TaskTokens,
    ) -> Result<Calls, PlanError> {
        let spec = problem.spec();
        refuse_what_tasks_do_not_take(spec)?;
        let tokens = [spec.query.tokens(), spec.key.tokens()];
        let totals = match held {
            TaskTokens::Whole => tokens,
            TaskTokens::Gathered { queries, keys } => [queries, keys],
        };
        let task = Task::new(division, path, totals[0], totals[1]).map_err(PlanError::Task)?;
        if held != TaskTokens::Whole {
            for (argument, found, allowed) in
                [("q", tokens[0], task.query_tokens()), ("k", tokens[1], task.key_tokens())]
            {
                if found != allowed {
                    let fault =
                        ArgumentError::Mismatch { argument, axis: "tokens", found, allowed, of: "the task" };
                    return Err(fault.into());
                }
            }
        }
        let (shapes, runs) = (Vec::new(), Vec::new());
        let mut calls = Calls { problem: *problem, held, totals, task, shapes, runs, tile: None };
        calls.prepare()?;
        Ok(calls)
    }

    /// Fills the lists of the calls of every query run and of the distinct shapes of calls.
    fn prepare(&mut self) -> Result<(), PlanError> {
        let mut largest_tile = 0;
        for run in self.task.queries() {
            let queries = run.span();
            let mut calls = Vec::new();
            for keys in self.task.keys_of(run) {
                let same = |problem: &Problem| {
                    let spec = problem.spec();
                    (spec.query.tokens(), spec.key.tokens()) == (queries.tokens, keys.tokens)
                };
                let shape = match self.shapes.iter().position(same) {
                    Some(at) => at,
                    None => {
                        let problem = self.part(queries.tokens, keys.tokens)?;
                        largest_tile = largest_tile.max(problem.spec().mask.map_or(0, |mask| mask.extent()));
                        push(&mut self.shapes, problem)?;
                        self.shapes.len() - 1
                    }
                };
                push(&mut calls, Call { keys, shape })?;
            }
            push(&mut self.runs, (queries, calls))?;
        }
        if let Some(mask) = &self.problem.spec().mask {
            self.tile = Some(MaskTile::with_capacity(mask.kind(), largest_tile)?);
        }
        Ok(())
    }

    /// Returns a problem with `queries` query tokens and `keys` keys, and with the strides of the task's tensors. The
    /// output is dense.
    pub fn part(&self, queries: usize, keys: usize) -> Result<Problem, ArgumentError> {
        let spec = self.problem.spec();
        let [b, h, _, _] = spec.query.shape();
        let output = View::dense("out", Layout::Bhnd, &[b, h, queries, spec.value.dim()], None)?;
        let mask = match &spec.mask {
            Some(mask) => {
                let [mb, mh, mq, mk] = mask.shape();
                let axis = |whole, part| if whole == 1 { 1 } else { part };
                Some(MaskView::dense(mask.kind(), &[mb, mh, axis(mq, queries), axis(mk, keys)])?)
            }
            None => None,
        };
        let (query, key) = (of_tokens("q", &spec.query, queries)?, of_tokens("k", &spec.key, keys)?);
        let value = of_tokens("v", &spec.value, keys)?;
        spec.query(query).key(key).value(value).output(output).mask(mask).check()
    }

    /// Returns the problem of the task's tensors.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Returns the task.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Returns the numbers of query and key tokens in the complete problem.
    pub const fn totals(&self) -> [usize; 2] {
        self.totals
    }

    /// Returns the problems of the calls, one for each shape.
    pub fn shapes(&self) -> &[Problem] {
        &self.shapes
    }

    /// Returns every run of queries with its calls.
    pub fn runs(&self) -> &[(Span, Vec<Call>)] {
        &self.runs
    }

    /// Returns `given` with its chunk replaced by one that covers all queries and keys of the complete problem.
    pub fn lengths<'a>(&self, given: Lengths<'a>) -> Lengths<'a> {
        let whole = Chunk { key_total: self.totals[1], query_total: self.totals[0], ..Chunk::default() };
        Lengths { chunk: Some(whole), ..given }
    }

    /// Returns the position of a span's first token in the task's tensors.
    pub const fn place(&self, span: &Span) -> usize {
        match self.held {
            TaskTokens::Whole => span.start,
            TaskTokens::Gathered { .. } => span.offset,
        }
    }

    /// Returns the part of `inputs` that a call of `queries` uses; `None` if causality, windows or lengths exclude
    /// every pair of the call.
    pub fn inputs<'a>(&'a mut self, inputs: &Inputs<'a>, queries: &Span, call: Call) -> Option<Inputs<'a>> {
        let keys = &call.keys;
        let chunk = Chunk {
            key_offset: keys.start,
            key_total: self.totals[1],
            query_offset: queries.start,
            query_total: self.totals[0],
        };
        let lengths = Lengths { chunk: Some(chunk), ..inputs.lengths };
        if !attends(self.shapes.get(call.shape)?, &lengths) {
            return None;
        }
        let spec = *self.problem.spec();
        let (row, column) = (self.place(queries), self.place(keys));
        let mask = match (&spec.mask, inputs.mask, &mut self.tile) {
            (Some(view), Some(elements), Some(tile)) => {
                Some(tile.cut(view, elements, row..row + queries.tokens, column..column + keys.tokens))
            }
            _ => None,
        };
        Some(Inputs {
            query: from(inputs.query, &spec.query, row),
            key: from(inputs.key, &spec.key, column),
            value: from(inputs.value, &spec.value, column),
            mask,
            lengths,
            ..*inputs
        })
    }
}

/// Returns a view with `tokens` tokens and the strides of `view`.
pub(super) fn of_tokens(argument: &'static str, view: &View, tokens: usize) -> Result<View, ArgumentError> {
    let [b, h, _, d] = view.shape();
    View::new(argument, [b, h, tokens, d], view.strides())
}

/// Returns the elements of a tensor from token `token` on; an empty slice if the tensor ends before the token.
pub(super) fn from<'a>(data: Elements<'a>, view: &View, token: usize) -> Elements<'a> {
    let start = token.saturating_mul(view.strides()[2]);
    match data {
        Elements::F32(x) => Elements::F32(x.get(start..).unwrap_or_default()),
        Elements::F16(x) => Elements::F16(x.get(start..).unwrap_or_default()),
        Elements::Bf16(x) => Elements::Bf16(x.get(start..).unwrap_or_default()),
    }
}

/// Returns an error if the problem has a feature that tasks do not support.
fn refuse_what_tasks_do_not_take(spec: &Spec) -> Result<(), ArgumentError> {
    let given = [
        (spec.packed.is_some(), "cu_seqlens_q"),
        (spec.windows.is_some(), "windows"),
        (spec.bias.is_some(), "bias"),
    ];
    let rest = || given.into_iter().find_map(|(given, other)| given.then_some(other));
    match spec.past_or_present().or_else(rest) {
        Some(other) => Err(ArgumentError::Conflict { argument: "task", other }),
        None => Ok(()),
    }
}

/// Returns `true` if a row of some sequence may attend a key of the call.
fn attends(problem: &Problem, lengths: &Lengths<'_>) -> bool {
    (0..problem.sequences()).any(|index| {
        let sequence = problem.sequence(lengths, index);
        !sequence.ranges(0..sequence.queries).0.is_empty()
    })
}

/// Adds an entry to a list.
///
/// # Errors
/// Returns an error if the system refuses the memory.
pub(super) fn push<T>(list: &mut Vec<T>, entry: T) -> Result<(), PlanError> {
    let bytes = list.len().saturating_add(1).saturating_mul(size_of::<T>());
    list.try_reserve(1).map_err(|_| PlanError::TaskMemory { bytes })?;
    list.push(entry);
    Ok(())
}
