//! Decisions that a stream makes once per shape: the kernel, the division, and the layout of the stream's memory.

use super::memory::{Area, AreaOffsets};
use super::{addends, steps};
use crate::attention::cuda::plan::GpuPlan;
use crate::attention::stream::error::StreamError;
use crate::cuda::gpu::Gpu;
use elsa_core::attention::plan::{GpuChoice, GpuOptions, GpuWorkspaceLayout, SEQUENCE_BYTES, choose_gpu};
use elsa_core::attention::{MaskView, Problem};
use elsa_core::plan::ChooseError;
use elsa_core::setters;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel};
use std::sync::Arc;

/// Division of queries and keys in a stream. The bits of the result depend only on the keys per split, `keys / splits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamDivision {
    /// Number of queries per sequence and head that are resident at once: all of them, or a multiple of the kernel's
    /// rows ([`GpuStream::kernel_rows`](super::GpuStream::kernel_rows)).
    pub rows: usize,
    /// Number of keys per chunk: `splits` times a multiple of 64.
    pub keys: usize,
    /// Number of splits per chunk, a power of two. Thread blocks compute the splits of a chunk concurrently.
    pub splits: usize,
}

/// Source of the keys and values of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysFrom {
    /// A function that fills page-locked memory, for example from a file or a network.
    Function,
    /// Host memory. An integrated GPU requires it to be page-locked, and uses it in place.
    Host,
    /// Device memory, which is used in place.
    Device,
}

/// Options of a stream.
///
/// ```
/// # use elsa_runtime::{GpuStreamOptions, KeysFrom, StreamDivision};
/// let division = StreamDivision { rows: 1024, keys: 4096, splits: 4 };
/// let options = GpuStreamOptions::new(division, KeysFrom::Host).lse(true);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuStreamOptions {
    /// Division of queries and keys.
    pub division: StreamDivision,
    /// Source of keys and values.
    pub keys: KeysFrom,
    /// `true` to return the output.
    pub output: bool,
    /// `true` to return log-sum-exp.
    pub lse: bool,
    /// `true` to return states.
    pub states: bool,
    /// `true` if short chains of f16 products may be summed in f16, as in
    /// [`PlanOptions`](crate::PlanOptions::half_scores).
    pub half_scores: bool,
}

setters! {
    GpuStreamOptions:
    division: StreamDivision, keys: KeysFrom, output: bool, lse: bool, states: bool, half_scores: bool;
    optional
}

impl GpuStreamOptions {
    /// Creates options that request only the output.
    #[must_use]
    pub const fn new(division: StreamDivision, keys: KeysFrom) -> GpuStreamOptions {
        GpuStreamOptions { division, keys, output: true, lse: false, states: false, half_scores: false }
    }
}

/// The decisions of a stream: its kernel, its division and the layout of its memory.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    pub gpu: Arc<Gpu>,
    pub problem: Problem,
    pub options: GpuStreamOptions,
    pub kernel: &'static GpuKernel,
    /// The chooser's decisions for a complete chunk.
    pub choice: GpuChoice,
    /// Layouts of device memory and of page-locked memory.
    pub layouts: [AreaOffsets; 2],
}

/// Chooses the kernel for the complete problem. The choice does not depend on the number of resident queries.
pub fn kernel(
    gpu: &Arc<Gpu>,
    problem: &Problem,
    half_scores: bool,
) -> Result<(&'static GpuKernel, GpuChoice), ChooseError> {
    let candidates = || GPU_KERNELS.iter().filter_map(|k| k.attention().map(|spec| (k, spec)));
    let options = GpuOptions { half_scores, ..GpuOptions::default() };
    let choice = choose_gpu(problem, gpu.profile(), candidates().map(|(_, spec)| spec), &options)?;
    let (kernel, _) = candidates().nth(choice.candidate).ok_or(ChooseError::NoKernel)?;
    Ok((kernel, choice))
}

/// Returns an error if the problem has an argument that streams do not support.
fn refuse(problem: &Problem, options: &GpuStreamOptions) -> Result<(), StreamError> {
    let s = problem.spec();
    if s.append {
        let allowed = "a past and a present apart, in a stream";
        return Err(StreamError::Unsupported { argument: "append", allowed });
    }
    if s.has_past() && options.keys != KeysFrom::Function {
        let allowed = "a stream on a GPU whose keys a function fills";
        return Err(StreamError::Unsupported { argument: "past_k", allowed });
    }
    Ok(())
}

impl StreamPlan {
    /// Chooses the kernel and lays out the memory.
    ///
    /// # Errors
    /// Returns an error if the problem or the division is not supported, or if a size overflows.
    pub fn new(
        gpu: &Arc<Gpu>,
        problem: &Problem,
        options: &GpuStreamOptions,
    ) -> Result<StreamPlan, StreamError> {
        refuse(problem, options)?;
        if !(options.output || options.lse || options.states) {
            return Err(StreamError::NoOutput);
        }
        let (kernel, mut choice) = kernel(gpu, problem, options.half_scores)?;
        let StreamDivision { rows, keys, splits } = options.division;
        let (queries, tile) = (problem.spec().query.tokens(), choice.kernel.keys.max(1));
        let division = |argument, found, allowed, multiple| {
            Err(StreamError::Division { argument, found, allowed, multiple })
        };
        if rows == 0 || (rows < queries && !rows.is_multiple_of(choice.kernel.rows)) {
            return division("rows", rows, "all queries, or fewer", choice.kernel.rows);
        }
        if !splits.is_power_of_two() || splits > MOST_SPLITS {
            return division("splits", splits, "a power of two up to 256", 1);
        }
        let unit = splits * tile;
        if keys == 0 || !keys.is_multiple_of(unit) || keys > MOST_KEYS {
            return division("keys", keys, "1 to 2^30", unit);
        }
        if problem.spec().windows.is_some() {
            // Positions refer to the picture of the call, so each block and each chunk must contain the complete picture.
            if rows < queries {
                return division("rows", rows, "with windows all queries", choice.kernel.rows);
            }
            if keys < problem.keys() {
                return division("keys", keys, "with windows all keys", unit);
            }
        }
        (choice.splits, choice.chunk) = (splits, keys / splits);
        if problem.spec().packed.is_some() {
            // Each step processes a single sequence, so it needs no table.
            choice.sequences = 0;
        }
        let rows = rows.min(queries).max(1);
        let keys = keys.min(problem.keys().max(1).next_multiple_of(tile));
        choice.splits = keys.div_ceil(choice.chunk);
        choice.row_blocks = rows.saturating_mul(choice.heads_at_once.max(1)).div_ceil(choice.kernel.rows);
        let options = GpuStreamOptions { division: StreamDivision { rows, ..options.division }, ..*options };
        let layouts = layouts(gpu, problem, &options, &choice, keys);
        let layouts = layouts.ok_or(ChooseError::Memory { needed: usize::MAX })?;
        let counts = [steps::at_once(problem), problem.heads(), choice.splits, choice.row_blocks];
        let found = counts.iter().try_fold(1usize, |a, n| a.checked_mul(*n)).unwrap_or(usize::MAX);
        if found > i32::MAX as usize {
            return Err(ChooseError::Extent { axis: "blocks", found, max: i32::MAX as usize }.into());
        }
        Ok(StreamPlan { gpu: gpu.clone(), problem: *problem, options, kernel, choice, layouts })
    }

    /// Returns a [`GpuPlan`] with this plan's choices. The returned plan fills in the kernels' parameters for a chunk
    /// of `keys` keys and for `rows` query rows in total.
    pub fn for_keys(&self, keys: usize, rows: usize) -> GpuPlan {
        let mut choice = self.choice;
        choice.splits = keys.div_ceil(choice.chunk.max(1)).max(1);
        choice.rows = rows;
        GpuPlan {
            gpu: self.gpu.clone(),
            choice,
            layout: GpuWorkspaceLayout::default(),
            attention: self.kernel,
            split: None,
            budget: None,
        }
    }

    /// Returns the size in bytes of the device buffer and of the page-locked buffer.
    pub const fn bytes(&self) -> [usize; 2] {
        [self.layouts[0].bytes, self.layouts[1].bytes]
    }
}

/// Largest number of splits per chunk.
const MOST_SPLITS: usize = 256;
/// Largest number of keys per chunk; the device counts keys in 32 bits.
pub const MOST_KEYS: usize = 1 << 30;

/// Lays out the areas on the device and in page-locked memory, for chunks of `keys` keys.
fn layouts(
    gpu: &Arc<Gpu>,
    problem: &Problem,
    options: &GpuStreamOptions,
    choice: &GpuChoice,
    keys: usize,
) -> Option<[AreaOffsets; 2]> {
    let s = problem.spec();
    let (size, integrated) = (s.dtype.size(), gpu.profile().integrated);
    let product = |factors: &[usize]| factors.iter().try_fold(1usize, |a, n| a.checked_mul(*n));
    let group = steps::at_once(problem);
    let rows = product(&[group, problem.heads(), options.division.rows])?;
    let slots = steps::slots(problem.keys().div_ceil(options.division.keys));
    let key_rows = product(&[group, problem.kv_heads(), keys])?;
    let [mask, bias] = addends::views(problem);
    let slice = |view: Option<MaskView>| {
        let view = view?;
        let counts = addends::counts(problem, &view, group, options.division.rows, keys);
        Some(product(&counts).and_then(|count| count.checked_mul(view.kind().size())))
    };
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    // Returns `None` if the stream does not have the area, and `Some(None)` if its size overflows.
    let bytes = |area: Area| -> Option<Option<usize>> {
        let states = options.states.then_some(());
        Some(match area {
            Area::Query => product(&[rows, d, size]),
            Area::Output => options.output.then(|| product(&[rows, dv, size]))?,
            Area::Lse => options.lse.then(|| product(&[rows, 4]))?,
            Area::Reference | Area::Sum => states.map(|()| product(&[rows, 4]))?,
            Area::Weighted => states.map(|()| product(&[rows, dv, 4]))?,
            Area::Table(_) => (choice.sequences > 0).then(|| product(&[choice.sequences, SEQUENCE_BYTES]))?,
            Area::Key(_) => product(&[key_rows, d, size]),
            Area::Value(_) => product(&[key_rows, dv, size]),
            Area::Mask(_) => slice(mask)?,
            Area::Bias(_) => slice(bias)?,
            Area::Index(_) => {
                addends::indexed(problem).then(|| product(&[options.division.rows, keys, 8]))?
            }
            Area::Positions => addends::table(problem).map(|[count, size]| product(&[count, size]))?,
            Area::PartialMs => product(&[rows, choice.splits, 8]),
            Area::PartialW => product(&[rows, choice.splits, choice.partial_dim, 4]),
            Area::PendingMs => product(&[rows, slots, 8]),
            Area::PendingW => product(&[rows, slots, choice.partial_dim, 4]),
        })
    };
    let mut overflow = false;
    let mut lay_out = |has: &dyn Fn(Area) -> bool| {
        AreaOffsets::of(|area| {
            let bytes = bytes(area).filter(|_| has(area))?;
            overflow |= bytes.is_none();
            bytes
        })
    };
    let on_device = |area: Area| match area {
        _ if area.is_inner() => true,
        _ if integrated => false,
        _ => !area.is_chunk() || options.keys != KeysFrom::Device,
    };
    let on_host = |area: Area| !area.is_inner() && (!area.is_chunk() || options.keys == KeysFrom::Function);
    let layouts = [lay_out(&on_device)?, lay_out(&on_host)?];
    (!overflow).then_some(layouts)
}
