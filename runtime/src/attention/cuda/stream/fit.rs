//! Fits a stream into budgets: finds the largest division that fits, and tries finer divisions if memory is refused.

use super::engine::GpuStream;
use super::plan::{self, GpuStreamOptions, KeysFrom, MOST_KEYS, StreamDivision, StreamPlan};
use super::steps;
use crate::attention::guard::{Attempt, Guard, Limits, MOST_TASKS, StreamFit, parallel};
use crate::attention::stream::error::StreamError;
use crate::cuda::gpu::Gpu;
use crate::engine::{Engine, Fallback};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::Problem;
use elsa_core::attention::plan::GpuChoice;
use std::sync::Arc;

/// Smallest and largest number of keys per split; `SPLIT_BYTES` may require fewer. Each thread block of a split reads
/// its queries and writes a partial state; the shorter the splits, the more often this happens.
const SPLIT: [usize; 2] = [1024, 8192];
/// Smallest number of chunks per run; if splits already have their smallest length, there may be fewer. The copy of the
/// first chunk is not hidden by computation, so the first chunk should be short.
const CHUNKS: usize = 32;
/// Largest total size in bytes of two splits, one for each of the two chunk buffers.
const SPLIT_BYTES: usize = 16 << 20;
/// Largest number of splits per chunk that the search selects.
const MOST_SPLITS: usize = 64;
/// Smallest number of thread blocks per chunk, in percent of the number that the device can run at once.
const FILL_PERCENT: usize = 90;

/// Memory limits of a stream, in bytes; `None` allows all available memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamBudget {
    /// Limit of device memory. On an integrated GPU, device and page-locked memory are both memory of the host, and the
    /// smaller of the two limits applies to their sum.
    pub device: Option<usize>,
    /// Limit of page-locked memory.
    pub pinned: Option<usize>,
}

/// Request for a stream: its inputs and outputs, and preferences for its division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamWants {
    /// Source of keys and values.
    pub keys: KeysFrom,
    /// `true` to return the output.
    pub output: bool,
    /// `true` to return log-sum-exp.
    pub lse: bool,
    /// `true` to return states.
    pub states: bool,
    /// `true` if short chains of f16 products may be summed in f16.
    pub half_scores: bool,
    /// Length of a chunk, as a multiple of the default length (ELSA-Lean's `η`, appendix I of the paper). The number of
    /// splits per chunk is rounded up to a power of two, and reduced if the budget requires it. The bits of the results
    /// do not depend on `eta`.
    pub eta: f64,
    /// Division of an earlier run that this stream continues. If it is `None`, a division is searched for.
    pub division: Option<StreamDivision>,
}

impl StreamWants {
    /// Creates a request for the output, with a division chosen by the search.
    #[must_use]
    pub const fn new(keys: KeysFrom) -> StreamWants {
        let (output, lse, states, half_scores) = (true, false, false, false);
        StreamWants { keys, output, lse, states, half_scores, eta: 1.0, division: None }
    }

    const fn options(&self, division: StreamDivision) -> GpuStreamOptions {
        let StreamWants { keys, output, lse, states, half_scores, .. } = *self;
        GpuStreamOptions { division, keys, output, lse, states, half_scores }
    }
}

/// A stream that fits into memory, or the reason why the CPU must compute.
#[derive(Debug)]
pub enum Fitted {
    /// The GPU computes, with this stream.
    Gpu(Box<GpuStream>, StreamFit),
    /// The CPU must compute: not even the finest division fits, and the engine has [`Fallback::Cpu`].
    Cpu {
        /// Error of the last attempt.
        reason: StreamError,
        /// Number of attempts for which memory was refused.
        refused: usize,
    },
}

/// A search for a division of queries and keys.
struct Search<'a> {
    engine: &'a Engine,
    gpu: &'a Arc<Gpu>,
    problem: &'a Problem,
    wants: &'a StreamWants,
    budget: [usize; 2],
    choice: GpuChoice,
}

impl GpuStream {
    /// Creates the stream with the largest number of resident queries that fits `budget`, and allocates all memory of
    /// the stream. If the device, the system or the budget refuses the memory, the number of resident tasks is reduced
    /// first, and then the size of a task. If `wants` has a division, only that division is tried.
    ///
    /// # Errors
    /// Returns an error if the engine has no GPU, if `eta` is not a positive finite number, if the problem is not
    /// supported, or if the device fails. With [`Fallback::Fail`], also returns an error if not even the finest
    /// division fits.
    pub fn fit(
        engine: &Engine,
        problem: &Problem,
        wants: &StreamWants,
        budget: &StreamBudget,
    ) -> Result<Fitted, StreamError> {
        let gpu = engine.gpu().ok_or(StreamError::NoGpu)?;
        if !(wants.eta.is_finite() && wants.eta > 0.0) {
            let (argument, allowed) = ("eta", "a positive finite number");
            return Err(ArgumentError::Number { argument, found: wants.eta as f32, allowed }.into());
        }
        let (_, choice) = plan::kernel(gpu, problem, wants.half_scores)?;
        let mut device = budget.device.unwrap_or(usize::MAX);
        let mut pinned = budget.pinned.unwrap_or(usize::MAX);
        if budget.device.is_none() {
            device = gpu.context()?.enter()?.free_memory()?;
        }
        if gpu.profile().integrated {
            let least = device.min(pinned);
            (device, pinned) = (least, least);
        }
        let search = Search { engine, gpu, problem, wants, budget: [device, pinned], choice };
        search.run()
    }
}

impl Search<'_> {
    fn run(&self) -> Result<Fitted, StreamError> {
        if let Some(division) = self.wants.division {
            return self.given(division);
        }
        let limits = self.limits();
        let split = self.split(&limits);
        let (task, tasks, splits) = self.first(&limits, split);
        let mut guard = Guard::new(limits, task, tasks, split, splits);
        let mut reason = StreamError::NoGpu;
        while let Some(attempt) = guard.next() {
            match self.allocate(division(&attempt)) {
                Ok(stream) => {
                    let more = if attempt.calibrates { self.more(&attempt, &stream)? } else { 0 };
                    if guard.grant(more) {
                        // The memory of one task is freed before the memory of several tasks is allocated.
                        stream.close()?;
                        continue;
                    }
                    let blocks = self.blocks(attempt.rows, attempt.splits);
                    let fit = StreamFit {
                        n_cap: attempt.tasks,
                        n_parallel: parallel(attempt.tasks, blocks, self.room()),
                        task_rows: attempt.rows,
                        refused: guard.refused(),
                    };
                    return Ok(Fitted::Gpu(Box::new(stream), fit));
                }
                Err(e) if e.is_memory() => {
                    log::debug!("{attempt:?}: {e}");
                    reason = e;
                    guard.refuse();
                }
                Err(e) => return Err(e),
            }
        }
        self.given_up(reason, guard.refused())
    }

    /// Tries the division of an earlier run.
    fn given(&self, division: StreamDivision) -> Result<Fitted, StreamError> {
        match self.allocate(division) {
            Ok(stream) => {
                let blocks = self.blocks(division.rows, division.splits);
                let n_parallel = parallel(1, blocks, self.room());
                let fit = StreamFit { n_cap: 1, n_parallel, task_rows: division.rows, refused: 0 };
                Ok(Fitted::Gpu(Box::new(stream), fit))
            }
            Err(e) if e.is_memory() => self.given_up(e, 1),
            Err(e) => Err(e),
        }
    }

    /// Returns the result of a search that found no stream. Depending on the engine's fallback, it is [`Fitted::Cpu`]
    /// or an error.
    fn given_up(&self, reason: StreamError, refused: usize) -> Result<Fitted, StreamError> {
        match self.engine.fallback() {
            Fallback::Cpu => {
                self.gpu.warn(&reason);
                Ok(Fitted::Cpu { reason, refused })
            }
            Fallback::Fail => Err(reason),
        }
    }

    /// Returns the sizes that limit the search. With windows, queries and keys are not divided.
    fn limits(&self) -> Limits {
        let queries = self.problem.spec().query.tokens();
        let (unit, tile) = (self.choice.kernel.rows.max(1), self.choice.kernel.keys.max(1));
        match self.problem.spec().windows {
            Some(_) => {
                let keys = self.problem.keys().max(1).next_multiple_of(tile);
                Limits { queries, unit: queries.max(1).next_multiple_of(unit), tile: keys }
            }
            None => Limits { queries, unit, tile },
        }
    }

    /// Returns the number of thread blocks that the device can run at once.
    fn room(&self) -> usize {
        let profile = self.gpu.profile();
        profile.sms.max(1) * self.choice.kernel.resources.resident(profile)
    }

    /// Returns the number of thread blocks per chunk, for `rows` resident queries per sequence and head.
    fn blocks(&self, rows: usize, splits: usize) -> usize {
        let blocks = rows.div_ceil(self.choice.kernel.rows.max(1));
        blocks.saturating_mul(splits).saturating_mul(self.problem.heads() * steps::at_once(self.problem))
    }

    /// Returns the number of bytes of device memory and the number of bytes of page-locked memory that a division
    /// needs. On an integrated GPU, both numbers are the total of device and page-locked memory.
    fn bytes(&self, division: StreamDivision) -> Result<[usize; 2], StreamError> {
        let [device, pinned] =
            StreamPlan::new(self.gpu, self.problem, &self.wants.options(division))?.bytes();
        Ok(if self.gpu.profile().integrated { [device.saturating_add(pinned); 2] } else { [device, pinned] })
    }

    fn fits(&self, division: StreamDivision) -> bool {
        let [device, pinned] = self.budget;
        self.bytes(division).is_ok_and(|[a, b]| a <= device && b <= pinned)
    }

    /// Returns the largest number of tasks that fit the budget, but at most `most`. Each task has `rows` queries, and a
    /// chunk has `splits` splits of `split` keys.
    fn most_tasks(&self, rows: usize, most: usize, split: usize, splits: usize) -> usize {
        let division = |tasks: usize| StreamDivision { rows: rows * tasks, keys: split * splits, splits };
        let (mut fits, mut too_many) = (0, most + 1);
        while too_many - fits > 1 {
            let tasks = fits + (too_many - fits) / 2;
            if self.fits(division(tasks)) {
                fits = tasks;
            } else {
                too_many = tasks;
            }
        }
        fits
    }

    /// Returns `true` if a chunk of `splits` splits has enough thread blocks for the device.
    fn fills(&self, rows: usize, splits: usize) -> bool {
        self.blocks(rows, splits).saturating_mul(100) >= self.room().saturating_mul(FILL_PERCENT)
    }

    /// Returns the number of keys per split. This number determines the bits of the result. It therefore depends only
    /// on the problem and the device, and not on the budget.
    fn split(&self, limits: &Limits) -> usize {
        let spec = self.problem.spec();
        let mut splits = 1;
        while splits < MOST_SPLITS && !self.fills(limits.queries, splits) {
            splits *= 2;
        }
        let wanted = self.problem.keys() / CHUNKS / splits;
        let [least, most] = SPLIT;
        let mut split = least;
        while split < most && 2 * split <= wanted {
            split *= 2;
        }
        let dims = self.problem.head_dim().saturating_add(self.problem.value_dim());
        let rows = spec.key.batch().saturating_mul(self.problem.kv_heads());
        let key = dims.saturating_mul(rows).saturating_mul(spec.dtype.size());
        while split > limits.tile && key.saturating_mul(2 * split) > SPLIT_BYTES {
            split /= 2;
        }
        split.next_multiple_of(limits.tile)
    }

    /// Returns the numbers with which the search starts: queries per task, tasks, and splits per chunk. The number of
    /// splits is the smallest with which the thread blocks fill the device, and the number of queries is the largest
    /// that fits the budget. A task has the rows of one thread block. It has more rows if there would otherwise be too
    /// many tasks.
    fn first(&self, limits: &Limits, split: usize) -> (usize, usize, usize) {
        let task = limits.unit * limits.queries.div_ceil(limits.unit).div_ceil(MOST_TASKS).max(1);
        let most = limits.queries.div_ceil(task).max(1);
        let mut best = (task, 1, 1);
        let mut splits = 1;
        while splits <= MOST_SPLITS {
            let tasks = self.most_tasks(task, most, split, splits);
            if tasks == 0 {
                break;
            }
            best = (task, tasks, splits);
            let enough = split.saturating_mul(splits) >= self.problem.keys();
            if enough || self.fills(limits.queries.min(task * tasks), splits) {
                break;
            }
            splits *= 2;
        }
        if self.wants.eta == 1.0 {
            return best;
        }
        // `eta` multiplies the number of splits that has been found.
        let most = (MOST_KEYS / split).min(self.problem.keys().div_ceil(split)).clamp(1, MOST_SPLITS);
        let wanted = (self.wants.eta * best.2 as f64).ceil().clamp(1.0, most.next_power_of_two() as f64);
        let mut splits = (wanted as usize).next_power_of_two();
        loop {
            let tasks = self.most_tasks(task, limits.queries.div_ceil(task).max(1), split, splits);
            if tasks > 0 || splits == 1 {
                return (task, tasks.max(1), splits);
            }
            splits /= 2;
        }
    }

    /// Allocates a stream, if the division fits the budget.
    fn allocate(&self, division: StreamDivision) -> Result<GpuStream, StreamError> {
        let (needed, budget) = (self.bytes(division)?, self.budget);
        for (argument, which) in [("device budget", 0), ("pinned budget", 1)] {
            if needed[which] > budget[which] {
                let (budget, needed) = (budget[which], needed[which]);
                return Err(StreamError::Budget { argument, budget, needed });
            }
        }
        GpuStream::new(self.engine, self.problem, &self.wants.options(division))
    }

    /// Returns the number of additional tasks that fit into the unused part of the budget and of the device's memory.
    /// Computes this number from the number of bytes that one more task would need.
    fn more(&self, attempt: &Attempt, stream: &GpuStream) -> Result<usize, StreamError> {
        let next = Attempt { tasks: attempt.tasks + 1, ..*attempt };
        let (now, then) = (self.bytes(division(attempt))?, self.bytes(division(&next))?);
        let free = stream.context.enter()?.free_memory()?;
        let left = [(self.budget[0].saturating_sub(now[0])).min(free), self.budget[1].saturating_sub(now[1])];
        let more = |which: usize| match then[which].saturating_sub(now[which]) {
            0 => usize::MAX,
            task => left[which] / task,
        };
        Ok(more(0).min(more(1)))
    }
}

/// Returns the division of an attempt.
const fn division(attempt: &Attempt) -> StreamDivision {
    StreamDivision { rows: attempt.resident(), keys: attempt.keys(), splits: attempt.splits }
}
