//! The one pure chooser for CPUs: from a problem, a device and options to everything that `run` does not decide.

use super::choice::{BLOCK_SIZES, ChooseError, CpuChoice, MOST_TILES, Method, Options};
use super::kernel::{KernelSpec, KeyLayout};
use super::layout::WorkspaceLayout;
use crate::attention::problem::Problem;
use crate::attention::schedule::{BLOCKS_PER_SEGMENT, Tiling};
use crate::dtype::DType;
use crate::profile::DeviceProfile;

/// Multiply-adds for each lane that make a worker worth waking.
const WORK_PER_LANE: f64 = 32_768.0;

/// Chooses kernel, tiles, division and workspace for `problem` on `device`. Of `kernels`, which must all be
/// present there and are in order of preference, the first that is meant for as many queries is taken.
///
/// Nothing here changes a bit of the answer except the kernel, `method` and `block`: tile width, group and
/// workers only say who computes a row, and when. The kernel depends on the number of queries of a sequence,
/// never on the batch; packed sequences, whose lengths come with the data, take the one for any number.
///
/// A budget is a hard cap. Where the preferred form does not fit, fewer tiles share a block, then fewer
/// workers run, then tiles get narrower.
///
/// # Errors
/// A block size that is not offered; a budget that even the smallest form exceeds; no kernel.
pub fn choose<'a>(
    problem: &Problem,
    device: &DeviceProfile,
    kernels: impl IntoIterator<Item = &'a KernelSpec>,
    options: &Options,
) -> Result<CpuChoice, ChooseError> {
    if !BLOCK_SIZES.contains(&options.block) {
        return Err(ChooseError::Block { found: options.block });
    }
    let s = problem.spec();
    if s.packed.is_some() && options.method == Method::Math {
        return Err(ChooseError::Packed);
    }
    let (queries, keys) = (s.query.tokens(), problem.keys());
    let at_once = if s.packed.is_some() { usize::MAX } else { queries };
    let mut candidates = kernels.into_iter().enumerate();
    let (candidate, kernel) =
        candidates.find(|(_, k)| at_once <= k.most_queries).ok_or(ChooseError::NoKernel)?;
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let segment = options.block * BLOCKS_PER_SEGMENT;
    let shaped = s.dtype != DType::F32 || s.past_key.is_some();
    let heads = problem.sequences().saturating_mul(problem.heads());
    let tiles = Tiling::new(queries, kernel.lanes, kernel.vectors).count().max(1);
    // A worker must have more to do than waking it costs: some microseconds of arithmetic.
    let work = heads as f64 * queries as f64 * keys as f64 * (d + dv) as f64;
    let worth =
        if options.all_workers { f64::INFINITY } else { work / (WORK_PER_LANE * kernel.lanes as f64) };
    let workers = (worth.clamp(1.0, options.workers.max(1) as f64) as usize)
        .clamp(1, tiles.saturating_mul(heads).max(1));
    let mut choice = CpuChoice {
        kernel: *kernel,
        candidate,
        method: options.method,
        block: options.block,
        segment,
        segments: keys.div_ceil(segment).max(1),
        vectors: kernel.vectors,
        group: 1,
        workers,
        head_dim: d.next_multiple_of(4),
        value_dim: dv.next_multiple_of(4),
        stage_keys: shaped || !d.is_multiple_of(4) || matches!(kernel.keys, KeyLayout::Panels(_)),
        stage_values: shaped || !dv.is_multiple_of(4),
        convert: s.dtype != DType::F32,
        masked: problem.is_masked(),
        sequences: problem.sequences(),
        extent: [queries, keys, heads],
    };
    // As many tiles share a block as keep eight units for every worker, and their states half of L2.
    let even = match workers {
        1 => usize::MAX,
        _ => (tiles.saturating_mul(heads) / (8 * workers)).max(1),
    };
    let state = (choice.head_dim + choice.levels() * (choice.value_dim + 2)) * choice.width() * 4;
    let cached = (device.l2 / 2 / state).max(1);
    // Where blocks are copied into shape, more tiles share the copy.
    let preferred =
        if choice.stage_keys || choice.stage_values { kernel.group.max(MOST_TILES) } else { kernel.group };
    choice.group = preferred.min(even).min(tiles).min(cached);
    let size = |choice: &CpuChoice| WorkspaceLayout::of(choice).map(|layout| layout.bytes());
    let Some(budget) = options.budget else {
        return match size(&choice) {
            Some(_) => Ok(choice),
            None => Err(ChooseError::Memory { needed: usize::MAX }),
        };
    };
    loop {
        match size(&choice) {
            Some(needed) if needed <= budget => return Ok(choice),
            _ if choice.group > 1 => choice.group = choice.group.div_ceil(2),
            _ if choice.workers > 1 => choice.workers -= 1,
            _ if choice.vectors > 1 => choice.vectors -= 1,
            needed => return Err(ChooseError::Budget { needed: needed.unwrap_or(usize::MAX), budget }),
        }
    }
}
