//! Loads the tokens of a task. The files contain either the tokens of the whole problem or only those of the task.

use crate::args::{ProblemArgs, TaskArgs};
use crate::error::Error;
use crate::job::Job;
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Chunk, Operand};
use elsa_core::quorum::{Division, Run, Task, TaskPath};
use elsa_core::view::{Layout, View};
use elsa_files::{Accept, Part, Tensor, TensorPath};
use elsa_runtime::TaskTokens;
use std::cell::Cell;
use std::ops::Range;

/// Inputs of a task.
pub struct Loaded {
    /// Tensors with the task's tokens, and their problem.
    pub job: Job,
    /// The tokens that the tensors contain: always [`TaskTokens::Gathered`], that is, only the task's tokens.
    pub held: TaskTokens,
    /// The rows of the task's queries, which later reads select from further files with one row per query.
    pub rows: Rows,
    /// Size of the tensors that were read, in bytes.
    pub bytes: usize,
}

/// Rows to read from a file that has one row per query.
pub struct Rows {
    /// Number of query tokens in the whole problem, and the ranges to read; `None` reads all rows of the file.
    of: Option<(usize, Vec<Range<usize>>)>,
}

impl Rows {
    /// Selects all rows of a file.
    #[must_use]
    pub const fn all() -> Rows {
        Rows { of: None }
    }

    /// Returns the shape that a file must have. `read` is the shape of the rows that are selected from the file, and
    /// `axis` is the index of the query axis.
    #[must_use]
    pub fn shape(&self, read: &[usize], axis: usize) -> Vec<usize> {
        let mut shape = read.to_vec();
        if let (Some((queries, _)), Some(n)) = (&self.of, shape.get_mut(axis)) {
            *n = *queries;
        }
        shape
    }

    /// Checks that the query axis of a file has the number of queries of the whole problem.
    ///
    /// # Errors
    /// Returns an error if the file has a different number of queries.
    pub fn covers(&self, argument: &'static str, shape: &[usize], axis: Option<usize>) -> Result<(), Error> {
        match (&self.of, axis.and_then(|axis| shape.get(axis))) {
            (Some((queries, _)), Some(found)) if found != queries => {
                let (found, allowed) = (format!("queries {found}"), format!("{queries}, as q has"));
                Err(Error::Argument { argument, found, allowed })
            }
            _ => Ok(()),
        }
    }

    /// Reads the selected rows of a floating-point tensor; `axis` returns the query axis of a shape.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or has a different number of queries than the whole problem.
    pub fn load(
        &self,
        argument: &'static str,
        source: &TensorPath,
        axis: impl Fn(&[usize]) -> Option<usize>,
    ) -> Result<Tensor, Error> {
        let Some((_, spans)) = &self.of else { return Ok(Tensor::load(argument, source, Accept::Float)?) };
        let shape = Tensor::shape_at(argument, source)?;
        self.covers(argument, &shape, axis(&shape))?;
        Ok(Tensor::load_part(argument, source, Accept::Float, &|shape| {
            let mut picks = vec![None; shape.len()];
            if let Some(pick) = axis(shape).and_then(|axis| picks.get_mut(axis)) {
                *pick = Some(spans.clone());
            }
            Part::of(shape, &picks)
        })?)
    }
}

/// Refuses flags that the flag `other` does not support. Each entry has `true` if the flag is given, and the name of the
/// flag.
///
/// # Errors
/// Returns an error for the first flag that is given.
pub fn refuse(other: &'static str, flags: &[(bool, &'static str)]) -> Result<(), Error> {
    match flags.iter().find(|(given, _)| *given) {
        Some((_, argument)) => Err(ArgumentError::Conflict { argument, other }.into()),
        None => Ok(()),
    }
}

/// Refuses flags of problems that tasks do not support. The flag `other` requests the tasks.
///
/// # Errors
/// Returns an error for the first flag that is given.
pub fn supported(other: &'static str, problem: &ProblemArgs) -> Result<(), Error> {
    refuse(
        other,
        &[
            (problem.past_k.is_some(), "past-k"),
            (problem.past_v.is_some(), "past-v"),
            (problem.cu_seqlens_q.is_some(), "cu-seqlens-q"),
            (problem.cu_seqlens_k.is_some(), "cu-seqlens-k"),
            (problem.windows.is_some(), "windows"),
            (problem.source(Operand::Bias).is_some(), problem.flag("bias")),
        ],
    )
}

/// Loads the tokens of task `name` of `division`, and creates their problem.
///
/// # Errors
/// Returns an error for a flag that tasks do not support, or for the first file that does not fit the problem.
pub fn load(
    problem: &ProblemArgs,
    args: &TaskArgs,
    division: &Division,
    name: &TaskPath,
) -> Result<Loaded, Error> {
    supported("task", problem)?;
    let bytes = Cell::new(0);
    let counted = |tensor: Tensor| {
        bytes.set(bytes.get() + tensor.shape().iter().product::<usize>() * tensor.dtype().size());
        tensor
    };
    let held = |[queries, keys]: [usize; 2]| TaskTokens::Gathered { queries, keys };
    let place = |[query_total, key_total]: [usize; 2]| Chunk { key_total, query_total, ..Chunk::default() };
    if let Some(totals) = args.tokens {
        let job = Job::load_by(problem, [false; 2], Some(place(totals)), |_, argument, source, accept| {
            Ok(counted(Tensor::load(argument, source, accept)?))
        })?;
        let rows = Rows { of: None };
        return Ok(Loaded { job, held: held(totals), rows, bytes: bytes.get() });
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
            Accept::Lengths => Ok(counted(Tensor::load(argument, source, accept)?)),
            _ => Ok(counted(Tensor::load_part(argument, source, accept, &part)?)),
        }
    })?;
    let rows = Rows { of: Some((totals[0], rows)) };
    Ok(Loaded { job, held: held(totals), rows, bytes: bytes.get() })
}

/// Returns the numbers of query and key tokens in the files of the whole problem.
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

/// Checks the last two axes of a mask. They must cover all queries and all keys of the problem, respectively, or have
/// size 1.
fn check_mask(argument: &'static str, source: &TensorPath, [queries, keys]: [usize; 2]) -> Result<(), Error> {
    let shape = Tensor::shape_at(argument, source)?;
    for (back, axis, allowed, of) in [(2, "queries", queries, "q"), (1, "keys", keys, "k")] {
        let found = shape.len().checked_sub(back).map_or(1, |at| shape[at]);
        if found != 1 && found != allowed {
            return Err(ArgumentError::Mismatch { argument, axis, found, allowed, of }.into());
        }
    }
    Ok(())
}

/// Returns the index of the token axis.
#[must_use]
pub fn token_axis(layout: Option<Layout>, shape: &[usize]) -> Option<usize> {
    match layout.unwrap_or(Layout::Bhnd) {
        Layout::Bhnd | Layout::Bnc => shape.len().checked_sub(2),
        Layout::Bnhd => Some(usize::from(shape.len() == 4)),
    }
}

fn spans(runs: &[Run]) -> Vec<Range<usize>> {
    runs.iter().map(|run| run.span().start..run.span().start + run.span().tokens).collect()
}
