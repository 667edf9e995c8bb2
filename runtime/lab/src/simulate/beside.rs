//! Streaming and quorums, run on this machine with several sizes and budgets: time, memory and traffic.
//!
//! Both methods compute attention for the same random tensors, and their outputs must agree. A budget is a fraction of
//! the size of all tensors.
//!
//! - **Streaming** is [`Engine::stream`]. The budget does not include the memory that the process already uses. The
//!   peak memory of streaming is taken from the plan's account.
//! - **Quorums** use the fewest levels at which the tokens, states and workspace of a task fit the budget. Tasks run
//!   one after another. The tokens of a task are gathered before it runs, and the states of all tasks are merged. The
//!   time covers gathering, planning, running and merging. The merged states of the whole problem do not count towards
//!   the budget.

use super::costs::Pass;
use crate::model::Division as Sizes;
use elsa_cli::error::Error;
use elsa_cli::progress::bar;
use elsa_cli::shape::{Data, Shape};
use elsa_core::attention::plan::Part;
use elsa_core::attention::{Inputs, Lengths, Operand, StateOut};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::quorum::{Division, InterestSet, Task};
use elsa_core::view::{Layout, View};
use elsa_files::{FileError, zeros};
use elsa_runtime::{
    Engine, EngineOptions, PlanOptions, RowStates, StreamError, StreamOptions, TaskMerge, TaskPlan,
    TaskTokens,
};
use serde::Serialize;
use std::io;
use std::time::Instant;

/// Budgets, as fractions of the size of all tensors.
const SHARES: [f64; 3] = [1.0, 0.5, 0.25];
/// Maximum number of tasks that are run for one size and budget.
const TASKS: usize = 400;
/// Number of runs for each method, size and budget. The reported time is the median of these runs.
pub const RUNS: usize = 5;
/// Tolerated difference between the two outputs, relative to the largest element; actual differences are far smaller.
const APART: f32 = 1e-4;

/// Cost of a method at one size and budget.
#[derive(Clone, Debug, Serialize)]
pub struct MethodCost {
    /// Number of tokens.
    pub tokens: usize,
    /// The budget in bytes.
    pub budget: f64,
    /// Ratio of the budget to the bytes of all tensors.
    pub share: f64,
    /// `streaming` or `quorums`.
    pub method: &'static str,
    /// Number of levels of division; zero for streaming.
    pub level: u32,
    /// Number of units of a streamed run, or number of tasks of a division.
    pub tasks: usize,
    /// Time in seconds: the median of [`RUNS`] runs. The runs of the two methods alternate.
    pub seconds: f64,
    /// Time in seconds that the model predicts.
    pub modelled: f64,
    /// Peak memory in bytes.
    pub peak_bytes: f64,
    /// Bytes of tensors read and written.
    pub moved_bytes: f64,
}

/// Builds the error of a streamed run that failed.
fn failed(e: StreamError) -> Error {
    FileError::Write { argument: "beside", path: "tensors in memory".into(), source: io::Error::other(e) }
        .into()
}

/// Copies the bytes of a tensor from byte `offset` on, until `to` is full.
fn copy(data: &[f32], offset: u64, to: &mut [u8]) -> io::Result<()> {
    let bytes: &[u8] = bytemuck::cast_slice(data);
    let from = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)?.get(..to.len()));
    to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

/// The tensors of the whole problem.
struct Whole {
    shape: Shape,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Whole {
    fn new(heads: usize, tokens: usize, dim: usize) -> Result<Whole, Error> {
        let shape = Shape::plain(1, heads, tokens, tokens, dim);
        let data = Data::random(&shape, &shape.problem(DType::F32)?)?;
        let take =
            |elements: Elements<'_>| (0..elements.len()).map(|i| elements.get(i)).collect::<Vec<f32>>();
        let (q, k, v) = (take(data.query.elements()), take(data.key.elements()), take(data.value.elements()));
        Ok(Whole { shape, q, k, v })
    }

    /// Returns the size of queries, keys, values and outputs in bytes.
    fn bytes(&self) -> f64 {
        (4 * self.q.len() * size_of::<f32>()) as f64
    }

    /// Computes `out` in a streamed run; returns `None` if the budget is too small.
    fn stream(&self, engine: &Engine, budget: f64, out: &mut [f32]) -> Result<Option<MethodCost>, Error> {
        let problem = self.shape.problem(DType::F32)?;
        // The account of any plan contains the memory that the process already uses; the budget comes on top of it.
        let Ok(any) = engine.stream(&problem, &ample()) else {
            return Ok(None);
        };
        let fixed = any.account().of(Part::Fixed);
        let Ok(plan) = engine.stream(&problem, &StreamOptions::new(fixed + budget as usize)) else {
            return Ok(None);
        };
        let (q, k, v) = (&self.q, &self.k, &self.v);
        let mut source = |operand: Operand, offset: u64, to: &mut [u8]| match operand {
            Operand::Query => copy(q, offset, to),
            Operand::Key => copy(k, offset, to),
            Operand::Value => copy(v, offset, to),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(out);
        let mut sink = |_: Operand, offset: u64, from: &[u8]| {
            let at = usize::try_from(offset)
                .ok()
                .and_then(|offset| bytes.get_mut(offset..)?.get_mut(..from.len()));
            at.ok_or(io::ErrorKind::WriteZero)?.copy_from_slice(from);
            Ok(())
        };
        let start = Instant::now();
        let report = plan.run(&Lengths::default(), &mut source, &mut sink, 0).map_err(failed)?;
        Ok(Some(MethodCost {
            tokens: self.shape.keys,
            budget,
            share: budget / self.bytes(),
            method: "streaming",
            level: 0,
            tasks: report.units,
            seconds: start.elapsed().as_secs_f64(),
            modelled: f64::NAN,
            peak_bytes: (plan.account().total() - plan.account().of(Part::Fixed)) as f64,
            moved_bytes: (report.times.bytes + report.written) as f64,
        }))
    }

    /// Gathers the tokens of `task` from `tensor`.
    fn gather(&self, tensor: &[f32], task: &Task) -> Result<Vec<f32>, Error> {
        let Shape { heads, keys: tokens, dim, .. } = self.shape;
        let mut part = zeros::<f32>("beside", heads * task.query_tokens() * dim)?;
        let mut at = 0;
        for head in 0..heads {
            for run in task.queries() {
                let (start, count) = (run.span().start, run.span().tokens);
                let from = (head * tokens + start) * dim;
                part[at..at + count * dim].copy_from_slice(&tensor[from..from + count * dim]);
                at += count * dim;
            }
        }
        Ok(part)
    }

    /// Computes `out` by running the tasks of `division` one after another and merging their states; returns `None` if
    /// a task needs more than `budget` bytes.
    fn divide(
        &self,
        engine: &Engine,
        division: &Division,
        budget: f64,
        out: &mut [f32],
    ) -> Result<Option<MethodCost>, Error> {
        let Shape { heads, keys: tokens, dim, .. } = self.shape;
        let float = size_of::<f32>();
        let tasks = usize::try_from(division.tasks()).unwrap_or(usize::MAX);
        let (mut peak, mut moved) = (0, 0);
        let start = Instant::now();
        let mut merge = TaskMerge::new(heads, tokens, dim, tasks)?;
        for number in 0..division.tasks() {
            let path = division.path(number).map_err(|source| Error::Quorum { argument: "c", source })?;
            let task = Task::new(division, &path, tokens, tokens)
                .map_err(|source| Error::Quorum { argument: "c", source })?;
            let rows = task.query_tokens();
            let problem = Shape::plain(1, heads, rows, rows, dim).problem(DType::F32);
            // If there are fewer tokens than chunks, some tasks have no tokens.
            let Ok(problem) = problem else {
                merge.push(task.queries(), &RowStates::empty(0, dim)?)?;
                continue;
            };
            let held = TaskTokens::Gathered { queries: tokens, keys: tokens };
            let mut plan = TaskPlan::new(engine, &problem, division, &path, held, &PlanOptions::default())?;
            // Bytes of the gathered queries, keys and values, and of the states m, S and W.
            let (gathered, states) = (3 * heads * rows * dim * float, heads * rows * (dim + 2) * float);
            peak = peak.max(gathered + states + plan.workspace_bytes());
            if peak as f64 > budget {
                return Ok(None);
            }
            moved += gathered + states;
            let parts = [&self.q, &self.k, &self.v].map(|tensor| self.gather(tensor, &task));
            let [q, k, v] = parts;
            let (q, k, v) = (q?, k?, v?);
            let inputs = Inputs::new(Elements::F32(&q), Elements::F32(&k), Elements::F32(&v));
            let mut states = RowStates::empty(heads * rows, dim)?;
            plan.run(&inputs, StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w })?;
            merge.push(task.queries(), &states)?;
        }
        let view = View::dense("out", Layout::Bhnd, &[1, heads, tokens, dim], None)?;
        merge.finish().output(&view, &mut ElementsMut::F32(out));
        Ok(Some(MethodCost {
            tokens,
            budget,
            share: budget / self.bytes(),
            method: "quorums",
            level: u32::try_from(division.levels()).unwrap_or(u32::MAX),
            tasks,
            seconds: start.elapsed().as_secs_f64(),
            modelled: f64::NAN,
            peak_bytes: peak as f64,
            moved_bytes: moved as f64,
        }))
    }
}

/// Returns options whose host budget is half of the machine's available memory.
fn ample() -> StreamOptions {
    let bytes = elsa_runtime::available_memory().map_or(1 << 40, |available| available.bytes / 2);
    StreamOptions::new(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Returns the run with the median time; `None` if `runs` is empty.
fn typical(mut runs: Vec<MethodCost>) -> Option<MethodCost> {
    runs.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle)
}

/// Runs both methods for each number of tokens in `sizes`, with `heads` heads of size `dim`.
///
/// # Errors
/// Returns errors of an engine, a plan or a run, and an error if the outputs of the two methods differ.
pub fn beside(
    sizes: &[usize],
    (heads, dim): (usize, usize),
    threads: Option<usize>,
    set: &InterestSet,
    forward: &Pass,
) -> Result<Vec<MethodCost>, Error> {
    let engine = Engine::new(&EngineOptions::default().threads(threads))?;
    let progress = bar((sizes.len() * SHARES.len()) as u64, 2.0);
    let mut all = Vec::new();
    for &tokens in sizes {
        let whole = Whole::new(heads, tokens, dim)?;
        let count = whole.q.len();
        let (mut streamed, mut merged) = (zeros::<f32>("beside", count)?, zeros::<f32>("beside", count)?);
        let model = Sizes::new(tokens as f64, set.chunks(), set.members().len());
        for share in SHARES {
            let budget = whole.bytes() * share;
            let (mut streaming, mut quorums) = (Vec::new(), Vec::new());
            // The methods alternate, so that other load on the machine affects both.
            for _ in 0..RUNS {
                streaming.extend(whole.stream(&engine, budget, &mut streamed)?);
                let mut found = None;
                for levels in 1..=set.chunks() {
                    if set.chunks().checked_pow(levels as u32).is_none_or(|tasks| tasks > TASKS) {
                        break;
                    }
                    let division = Division::new(&vec![set.chunks(); levels])
                        .map_err(|source| Error::Quorum { argument: "c", source })?;
                    found = whole.divide(&engine, &division, budget, &mut merged)?;
                    if found.is_some() {
                        break;
                    }
                }
                quorums.extend(found);
            }
            let (streaming, quorums) = (typical(streaming), typical(quorums));
            if streaming.is_some() && quorums.is_some() {
                let largest = streamed.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                let apart = streamed.iter().zip(&merged).map(|(a, b)| (a - b).abs());
                if !apart.clone().all(|x| x <= APART * largest) {
                    let most = apart.fold(0.0f32, f32::max);
                    return Err(Error::Verification(format!(
                        "streaming and quorums differ by {most:e} at {tokens} tokens"
                    )));
                }
            }
            let modelled = |ran: MethodCost| MethodCost {
                modelled: super::study::skipping(forward.time, model, f64::from(ran.level)),
                ..ran
            };
            all.extend([streaming, quorums].into_iter().flatten().map(modelled));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::sets;
    use super::*;

    #[test]
    fn both_run_agree_and_keep_to_their_budgets() {
        let set = InterestSet::of(7).unwrap();
        let pass = sets::named("jetson-tx2").unwrap().forward;
        let size = if cfg!(miri) { 40 } else { 700 };
        let all = beside(&[size], (2, 16), Some(1), &set, &pass).unwrap();
        let quorums: Vec<&MethodCost> = all.iter().filter(|ran| ran.method == "quorums").collect();
        assert!(quorums.len() >= 2 && quorums[0].level == 1, "{all:?}");
        for ran in &all {
            assert!(ran.peak_bytes <= ran.budget && ran.seconds > 0.0 && ran.modelled > 0.0, "{ran:?}");
        }
        for ran in quorums {
            // Each token is moved `l^levels` times: in as a query, key and value, out as a state.
            let copies = 3f64.powi(ran.level as i32);
            let bytes = copies * (size * 2 * (3 * 16 + 16 + 2) * 4) as f64;
            assert!((ran.moved_bytes / bytes - 1.0).abs() < 0.02, "{ran:?} {bytes}");
        }
    }
}
