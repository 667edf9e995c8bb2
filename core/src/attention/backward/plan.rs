//! Plans a backward pass: chunks and parts of keys, workers, and the layout of the workspace.

use super::bound::Structure;
use super::problem::BackwardProblem;
use crate::attention::schedule::BLOCKS_PER_SEGMENT;
use crate::attention::sequence::Sequence;
use crate::plan::ChooseError;
use crate::profile::InstructionSet;
use crate::room::{self, Cursor, Span, checked_bytes, table};
use crate::workers::{WORK_PER_LANE, worthwhile};
use core::ops::Range;

/// Largest number of parts into which the keys of a head are divided. Each part except the first has a separate gradient
/// of the queries.
pub const MOST_PARTS: usize = 8;

/// Target for the total number of parts of all key heads. Each key head has an equal share of this number, rounded up.
const PARTS_OF_ALL: usize = 16;

/// Properties of a CPU micro-kernel of the backward pass that the chooser and the error bound use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardKernelSpec {
    /// Name of the kernel, in the grammar of [`KernelSpec`](crate::attention::plan::KernelSpec).
    pub name: &'static str,
    /// The instruction set that it requires.
    pub set: InstructionSet,
    /// Number of f32 lanes of a vector. Rows of queries and gradients are padded to a multiple of it.
    pub lanes: usize,
    /// Number of query rows per tile, a multiple of `panel`.
    pub rows: usize,
    /// Number of adjacent query rows in a panel, a multiple of four.
    pub panel: usize,
    /// Number of keys per register tile.
    pub tile_keys: usize,
    /// Number of keys per block, a multiple of `tile_keys`.
    pub block: usize,
    /// Factor by which the kernel's weights exceed `2^x`.
    pub weight_scale: f64,
    /// Longest chain of multiply-adds in a score.
    pub chain: usize,
    /// Largest relative error of a weight, compared with `weight_scale · 2^x`.
    pub exp2_relative: f64,
}

impl BackwardKernelSpec {
    /// Returns the number of keys per chunk. A worker keeps the gradients of a chunk while it visits the queries.
    #[must_use]
    pub const fn chunk(&self) -> usize {
        self.block * BLOCKS_PER_SEGMENT
    }
}

/// Options of a backward plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardOptions {
    /// Largest workspace, in bytes; `None` for no limit.
    pub budget: Option<usize>,
    /// Number of workers of the engine.
    pub workers: usize,
    /// `true` if all workers take part, even in a small problem.
    pub all_workers: bool,
}

/// The decisions of a backward plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardChoice {
    /// The chosen micro-kernel.
    pub kernel: BackwardKernelSpec,
    /// Head size of queries and keys, rounded up to a multiple of four.
    pub head_dim: usize,
    /// Head size of values, rounded up to a multiple of four.
    pub value_dim: usize,
    /// Head size of queries and keys, rounded up to whole vectors.
    pub head_row: usize,
    /// Head size of values, rounded up to whole vectors.
    pub value_row: usize,
    /// Largest number of parts into which the keys of a head are divided.
    pub parts: usize,
    /// Number of workers that take part.
    pub workers: usize,
    /// Number of query rows of the problem, and the head size of queries.
    rows: [usize; 2],
    sequences: usize,
    keys: usize,
    queries: usize,
    group: usize,
}

impl BackwardChoice {
    /// Returns the indices of the chunks in part `part` of a sequence with `keys` keys; empty if the sequence has fewer
    /// parts. For a given plan, the indices depend on `keys` and `part` only.
    #[must_use]
    pub fn chunks(&self, keys: usize, part: usize) -> Range<usize> {
        let chunks = keys.div_ceil(self.kernel.chunk());
        let parts = self.parts_of(keys);
        if part < parts { part * chunks / parts..(part + 1) * chunks / parts } else { 0..0 }
    }

    /// Returns the number of parts of a sequence with `keys` keys; zero without keys.
    #[must_use]
    pub fn parts_of(&self, keys: usize) -> usize {
        self.parts.min(keys.div_ceil(self.kernel.chunk()))
    }

    /// Returns the structure for the error bound. Requires that, in the forward pass, every weight passes through at
    /// most `forward` additions on its way into a sum.
    #[must_use]
    pub fn structure(&self, forward: usize, softcap: Option<f32>) -> Structure {
        let (block, chunk) = (self.kernel.block, self.kernel.chunk());
        let chunks = self.keys.div_ceil(chunk);
        let dots =
            |dim: usize| dim.min(self.kernel.chain) + dim.div_ceil(self.kernel.chain).saturating_sub(1);
        // Additions on the way into a query gradient: the keys of a block, the blocks of a part, and the parts.
        let into_queries = block.min(self.keys)
            + self.keys.min(chunks.div_ceil(self.parts.max(1)) * chunk).div_ceil(block)
            + self.parts;
        // Additions on the way into a key gradient: the rows of a panel, then the panels of all tiles and query heads.
        let into_keys =
            self.kernel.rows.min(self.queries) + self.queries.div_ceil(self.kernel.rows) * self.group;
        Structure {
            score: dots(self.head_dim),
            upstream: dots(self.value_dim),
            additions: into_queries.max(into_keys),
            forward,
            exp2_relative: self.kernel.exp2_relative,
            softcap,
        }
    }
}

/// The regions of one worker's part of the workspace. Offsets are relative to the start of this part, in f32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardRegions {
    /// Keys of a chunk, `[chunk + tile_keys][head_dim]`.
    pub keys: Span,
    /// Values of a chunk, `[chunk + tile_keys][value_dim]`.
    pub values: Span,
    /// Gradients of the keys of a chunk, `[chunk + tile_keys][head_row]`.
    pub d_keys: Span,
    /// Gradients of the values of a chunk, `[chunk + tile_keys][value_row]`.
    pub d_values: Span,
    /// Queries of a tile, times the factor of the scores, `[panel][head_dim][rows of a panel]`.
    pub query_columns: Span,
    /// Upstream gradients of a tile, `[panel][value_dim][rows of a panel]`.
    pub upstream_columns: Span,
    /// Queries of a tile, in strips of dims, `[strip][rows][dims of a strip]`.
    pub query_rows: Span,
    /// Upstream gradients of a tile, in the layout of `query_rows`.
    pub upstream_rows: Span,
    /// Gradients of the queries of a tile, `[panel][head_dim][rows of a panel]`.
    pub d_query: Span,
    /// Four statistics for each row of a tile, `[4][rows]`.
    pub statistics: Span,
    /// Scores of a tile of queries and a block of keys, `[block + tile_keys][rows]`.
    pub scores: Span,
    /// Probabilities, in the layout of `scores`.
    pub probabilities: Span,
    /// Gradients of the scores, in the layout of `scores`.
    pub d_scores: Span,
    /// Gradients of the scores, grouped by panel, `[panel][block][rows of a panel]`.
    pub d_scores_by_panel: Span,
    /// Bias of a tile of queries and a block of keys, `[block][rows]`.
    pub bias: Span,
    /// Rows of queries or upstream gradients of a tile, converted to f32, `[rows][dim]`.
    pub convert: Span,
}

/// The layout of a backward workspace. Offsets are in f32 values. If the workspace starts on a 64-byte boundary, so does
/// every region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardLayout {
    /// The regions of one worker.
    pub worker: BackwardRegions,
    /// Distance between the regions of consecutive workers, in f32 values.
    pub worker_stride: usize,
    /// Gradients of the queries from all parts except the first, `[parts − 1][rows of the problem][head_dim]`. They
    /// follow the regions of the last worker.
    pub parts: Span,
    /// Table of the sequences of a call.
    pub sequences: Span,
    /// Total number of f32 values, without the padding that aligns the workspace.
    pub total: usize,
}

impl BackwardLayout {
    /// Lays out the workspace for the choice `c`. Returns `None` if the size of the workspace overflows.
    #[must_use]
    pub fn of(c: &BackwardChoice) -> Option<BackwardLayout> {
        let k = &c.kernel;
        let (padded, tall) = (k.chunk() + k.tile_keys, k.block + k.tile_keys);
        let mut at = Cursor::default();
        let worker = BackwardRegions {
            keys: at.take(&[padded, c.head_dim]),
            values: at.take(&[padded, c.value_dim]),
            d_keys: at.take(&[padded, c.head_row]),
            d_values: at.take(&[padded, c.value_row]),
            query_columns: at.take(&[c.head_dim, k.rows]),
            upstream_columns: at.take(&[c.value_dim, k.rows]),
            query_rows: at.take(&[k.rows, c.head_row]),
            upstream_rows: at.take(&[k.rows, c.value_row]),
            d_query: at.take(&[c.head_dim, k.rows]),
            statistics: at.take(&[4, k.rows]),
            scores: at.take(&[tall, k.rows]),
            probabilities: at.take(&[tall, k.rows]),
            d_scores: at.take(&[tall, k.rows]),
            d_scores_by_panel: at.take(&[tall, k.rows]),
            bias: at.take(&[k.block, k.rows]),
            convert: at.take(&[k.rows, c.head_row.max(c.value_row)]),
        };
        let mut all = at.after();
        all.take(&[c.workers, at.end()]);
        let parts = all.take(&[c.parts.saturating_sub(1), c.rows[0], c.rows[1]]);
        let sequences = all.take(&[table::<Sequence>(c.sequences)?]);
        let layout = BackwardLayout { worker, worker_stride: at.end(), parts, sequences, total: all.end() };
        checked_bytes(layout.total).filter(|_| !all.has_overflowed()).map(|_| layout)
    }

    /// Returns the size in bytes that suffices for a workspace of any alignment.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        room::bytes(self.total)
    }
}

/// Chooses how the backward pass of `problem` is divided.
///
/// The keys of a head are divided into parts. All key heads together have about sixteen parts, regardless of batch and
/// workers. If the query gradients of the parts exceed the budget, the chooser first halves the number of parts, which
/// changes the order of additions. Then it reduces the number of workers, which does not change the order.
///
/// # Errors
/// Returns an error if a workspace with one part and one worker exceeds the budget, or if the size of the workspace
/// overflows.
pub fn choose(
    problem: &BackwardProblem,
    kernel: &BackwardKernelSpec,
    options: &BackwardOptions,
) -> Result<(BackwardChoice, BackwardLayout), ChooseError> {
    let forward = problem.forward();
    let spec = forward.spec();
    let (d, dv, keys) = (forward.head_dim(), forward.value_dim(), forward.keys());
    let chunks = keys.div_ceil(kernel.chunk());
    let parts = PARTS_OF_ALL.div_ceil(forward.kv_heads().max(1)).min(MOST_PARTS).min(chunks).max(1);
    let pairs = forward.rows() as f64 * keys as f64;
    let per_worker = if options.all_workers { 0.0 } else { WORK_PER_LANE * kernel.lanes as f64 };
    let tasks = forward.sequences().saturating_mul(forward.kv_heads()).saturating_mul(parts).max(1);
    let workers = worthwhile(2.5 * pairs * (d + dv) as f64, per_worker, options.workers.min(tasks));
    let mut choice = BackwardChoice {
        kernel: *kernel,
        head_dim: d.next_multiple_of(4),
        value_dim: dv.next_multiple_of(4),
        head_row: d.next_multiple_of(kernel.lanes.max(4)),
        value_row: dv.next_multiple_of(kernel.lanes.max(4)),
        parts,
        workers,
        rows: [forward.rows(), d],
        sequences: forward.sequences(),
        keys,
        queries: spec.query.tokens(),
        group: forward.group(),
    };
    loop {
        let layout = BackwardLayout::of(&choice).ok_or(ChooseError::Memory { needed: usize::MAX })?;
        match options.budget {
            Some(budget) if layout.bytes() > budget => {
                if choice.parts > 1 {
                    choice.parts = choice.parts.div_ceil(2);
                } else if choice.workers > 1 {
                    choice.workers -= 1;
                } else {
                    return Err(ChooseError::Budget { needed: layout.bytes(), budget });
                }
            }
            _ => return Ok((choice, layout)),
        }
    }
}
