//! Plans of the per-channel operators: methods, parts, workers, and the layouts of workspaces.
//!
//! A *tile* is a group of neighbouring channels of one sequence that the kernel processes at once. Workers share the
//! tiles. Bits depend on the problem, the kernel, the method and the parts, never on the workers.
//!
//! **Form of a recurrence.** One pass over the tokens computes a recurrence; workers share its tiles and sequences. If
//! there are few channels and many tokens, two levels are possible instead: each part of the tokens is reduced to one
//! map, the states before the parts are computed one after another, and each part is computed from the state before it.
//! That is twice the work, so it is done only on request ([`Options::parts`]). The states before the parts are not
//! computed by a scan of the maps, because a product of factors may exceed the range of f32 even if the state does not
//! exceed it. A part with such a product is processed again from its exact state.
//!
//! **Method of a convolution.** The direct method needs `K` multiply-adds per output. The number of operations that the
//! FFT needs per output grows with the logarithm of the length. The FFT runs in f64 and without the vector instructions
//! of the kernel. [`method`] compares the two.

use crate::plan::ChooseError;
use crate::profile::InstructionSet;
use crate::room::{self, Cursor, Span};
use crate::series::bound::Precision;
use crate::series::convolution::{self, Method, fft_length};
use crate::series::{recurrence, selective};
use crate::workers::{WORK_PER_LANE, worthwhile};

/// Number of tokens in a block that the kernel processes at once: a multiple of four.
pub const BLOCK: usize = 64;

/// Maximum number of parts of a recurrence.
pub const MAX_PARTS: usize = 1024;

/// Cost of an FFT of length `n`, divided by `n log2 n`. The unit is the cost of one vector multiply-add of the direct
/// method. The value follows from the crossover of the two methods, measured at 450 taps with 16 lanes (the example
/// `series` of the runtime). For 1024 to 16384 tokens the measured cost is 0.4 to 0.55.
const FFT_COST: f64 = 0.5;

/// The properties of the series kernels for one instruction set. The planner and the error bounds use them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesKernelSpec {
    /// Common name of the kernels: `series_f32_c<channels per tile>__<instruction set>`.
    pub name: &'static str,
    /// Instruction set that the kernels require.
    pub set: InstructionSet,
    /// Number of lanes per vector.
    pub lanes: usize,
    /// Number of channels per tile.
    pub width: usize,
    /// Accuracy of the functions that the kernels compute.
    pub precision: Precision,
}

/// Options of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest workspace, in bytes; `None` is unlimited. A small budget reduces the number of workers; the bits of the
    /// output stay the same.
    pub budget: Option<usize>,
    /// Number of workers of the engine.
    pub workers: usize,
    /// `true` if all workers take part, even in a small problem.
    pub all_workers: bool,
    /// Number of parts into which a recurrence is divided to run in two levels; `None` for one pass. Other operators
    /// ignore it.
    pub parts: Option<usize>,
}

/// Choices of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesChoice {
    /// Properties of the kernels that the plan runs.
    pub kernel: SeriesKernelSpec,
    /// Number of tiles per sequence.
    pub tiles: usize,
    /// Number of parts into which the tokens are divided; one for a single pass.
    pub parts: usize,
    /// Method of a convolution.
    pub method: Method,
    /// Length of the FFTs of a convolution; zero for other methods and operators.
    pub fft_length: usize,
    /// Number of tokens per block.
    pub block: usize,
    /// Number of workers that take part in a call.
    pub workers: usize,
}

/// Layout of a workspace, in f32 values. Regions that an operator does not use are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesLayout {
    /// Distance from one worker's region to the next.
    pub worker_stride: usize,
    /// Up to four series of a worker, `[token][channel]`. For a convolution, the first span also contains the inputs before
    /// the block.
    pub series: [Span; 4],
    /// Two coefficients of a worker's selective scan, `[token][state]` or `[state][channel]`.
    pub coefficients: [Span; 2],
    /// Rates of a selective scan, `[state][channel]`, or weights of a convolution, `[tap][channel]`.
    pub parameters: Span,
    /// Two rows of parameters, `[channel]`.
    pub rows: [Span; 2],
    /// State of a tile, `[state][channel]`.
    pub state: Span,
    /// Buffer for type conversions, `[channel][token]`.
    pub convert: Span,
    /// Signal, spectrum of the filter, spectrum of the signal, and scratch of the FFTs, in f64.
    pub spectra: [Span; 4],
    /// The factor and addend of the map of each part of each tile, and the state before the part. All workers share this
    /// region, which follows the workers' regions.
    pub maps: Span,
    /// Total number of f32 values, without the padding for alignment.
    pub total: usize,
}

impl SeriesLayout {
    /// Returns the size of a workspace with arbitrary alignment, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        room::bytes(self.total)
    }
}

/// Returns the tokens in part `part` if a pass over `tokens` tokens has `parts` parts. Tokens are numbered in the order
/// of the pass.
#[must_use]
pub const fn part_tokens(tokens: usize, parts: usize, part: usize) -> core::ops::Range<usize> {
    let each = tokens / parts;
    let more = tokens % parts;
    let start = part * each + if part < more { part } else { more };
    start..start + each + (part < more) as usize
}

/// Returns the faster method for a convolution, as estimated from the number of operations and vector lanes.
#[must_use]
pub fn method(problem: &convolution::Problem, kernel: &SeriesKernelSpec) -> Method {
    let (tokens, taps) = (problem.tokens(), problem.taps());
    // For a single token, an FFT saves nothing.
    if tokens < 2 {
        return Method::Direct;
    }
    let length = fft_length(tokens, taps) as f64;
    let spectra = 3.0 * length * libm::log2(length) * FFT_COST;
    let direct = tokens as f64 * taps as f64 / kernel.lanes as f64;
    if direct <= spectra { Method::Direct } else { Method::Fft }
}

/// Returns the number of f32 values that occupy as much memory as `n` f64 values.
const fn doubles(n: usize) -> usize {
    n.saturating_mul(2)
}

/// Completes a layout: places `workers` regions, each with the size that `worker` has allocated, and then the maps.
fn lay(
    worker: Cursor,
    layout: SeriesLayout,
    workers: usize,
    maps: &[usize],
) -> Result<SeriesLayout, ChooseError> {
    let mut all = worker.after();
    let region = all.take(&[workers, worker.end()]);
    let maps = all.take(maps);
    if all.has_overflowed() {
        return Err(ChooseError::Memory { needed: usize::MAX });
    }
    let worker_stride = region.len.checked_div(workers).unwrap_or(0);
    Ok(SeriesLayout { worker_stride, maps, total: all.end(), ..layout })
}

/// Selects the number of workers that `work` multiply-adds justify, at most `items`. If the workspace would exceed the
/// budget, reduces the number of workers.
fn fit(
    mut choice: SeriesChoice,
    options: &Options,
    work: f64,
    items: usize,
    layout: impl Fn(&SeriesChoice, usize) -> Result<SeriesLayout, ChooseError>,
) -> Result<(SeriesChoice, SeriesLayout), ChooseError> {
    let each = if options.all_workers { 0.0 } else { WORK_PER_LANE * choice.kernel.lanes as f64 };
    let most = options.workers.clamp(1, items.max(1));
    choice.workers = worthwhile(work, each, most);
    loop {
        let found = layout(&choice, choice.workers)?;
        match options.budget {
            Some(budget) if found.bytes() > budget => {
                if choice.workers == 1 {
                    return Err(ChooseError::Budget { needed: found.bytes(), budget });
                }
                choice.workers -= 1;
            }
            _ => return Ok((choice, found)),
        }
    }
}

fn plain(kernel: &SeriesKernelSpec, channels: usize) -> SeriesChoice {
    SeriesChoice {
        kernel: *kernel,
        tiles: channels.div_ceil(kernel.width),
        parts: 1,
        method: Method::Direct,
        fft_length: 0,
        block: BLOCK,
        workers: 1,
    }
}

/// Plans a recurrence.
///
/// # Errors
/// Returns an error if the number of parts is out of bounds, if the smallest workspace exceeds the budget, or if the
/// size of the workspace overflows.
pub fn choose_recurrence(
    problem: &recurrence::Problem,
    kernel: &SeriesKernelSpec,
    options: &Options,
) -> Result<(SeriesChoice, SeriesLayout), ChooseError> {
    let mut choice = plain(kernel, problem.channels());
    if let Some(found) = options.parts
        && !(1..=MAX_PARTS).contains(&found)
    {
        return Err(ChooseError::Parts { found, min: 1, max: MAX_PARTS });
    }
    choice.parts = options.parts.unwrap_or(1).min(problem.tokens().max(1));
    let tiles = problem.batch().saturating_mul(choice.tiles);
    let (w, parts) = (kernel.width, choice.parts);
    let passes = if parts > 1 { 2.0 } else { 1.0 };
    // A step counts as eight multiply-adds, including the exponential.
    let work = 8.0 * passes * problem.tokens() as f64 * problem.states() as f64;
    fit(choice, options, work, tiles.saturating_mul(parts), |choice, workers| {
        let mut at = Cursor::default();
        let mut layout = SeriesLayout::default();
        for span in &mut layout.series[..3] {
            *span = at.take(&[choice.block, w]);
        }
        layout.state = at.take(&[w]);
        layout.rows[0] = at.take(&[w]);
        layout.convert = at.take(&[w, choice.block]);
        let maps = if parts > 1 { [tiles, parts, 3, w] } else { [0; 4] };
        lay(at, layout, workers, &maps)
    })
}

/// Plans a selective scan.
///
/// # Errors
/// Returns an error if the smallest workspace exceeds the budget, or if the size of the workspace overflows.
pub fn choose_selective(
    problem: &selective::Problem,
    kernel: &SeriesKernelSpec,
    options: &Options,
) -> Result<(SeriesChoice, SeriesLayout), ChooseError> {
    let mut choice = plain(kernel, problem.channels());
    // Channels of a tile share their coefficients.
    let group = problem.tile_group().max(1);
    choice.tiles = if group < problem.channels() {
        (problem.channels() / group).saturating_mul(group.div_ceil(kernel.width))
    } else {
        choice.tiles
    };
    let tiles = problem.batch().saturating_mul(choice.tiles);
    let (w, n) = (kernel.width, problem.states());
    let work = 24.0 * problem.tokens() as f64 * problem.state_values() as f64;
    fit(choice, options, work, tiles, |choice, workers| {
        let mut at = Cursor::default();
        let mut layout = SeriesLayout::default();
        for span in &mut layout.series {
            *span = at.take(&[choice.block, w]);
        }
        for span in &mut layout.coefficients {
            *span = at.take(&[n.next_multiple_of(w), choice.block.max(w)]);
        }
        layout.parameters = at.take(&[n, w]);
        for span in &mut layout.rows {
            *span = at.take(&[w]);
        }
        layout.state = at.take(&[n, w]);
        layout.convert = at.take(&[w, choice.block]);
        lay(at, layout, workers, &[0])
    })
}

/// Plans a convolution by `method`. `scratch` is the number of f64 values of scratch that the FFTs need.
///
/// # Errors
/// Returns an error if the smallest workspace exceeds the budget, or if the size of the workspace overflows.
pub fn choose_convolution(
    problem: &convolution::Problem,
    kernel: &SeriesKernelSpec,
    options: &Options,
    method: Method,
    scratch: usize,
) -> Result<(SeriesChoice, SeriesLayout), ChooseError> {
    let mut choice = SeriesChoice { method, ..plain(kernel, problem.channels()) };
    let (w, taps) = (kernel.width, problem.taps());
    let items = match method {
        Method::Direct => problem.batch().saturating_mul(choice.tiles),
        Method::Fft => {
            choice.fft_length = fft_length(problem.tokens(), taps);
            problem.channels()
        }
    };
    let outputs = (problem.batch() * problem.channels()) as f64 * problem.tokens() as f64;
    let work = match method {
        Method::Direct => {
            // Each block needs a copy of the inputs before it, so blocks are at least as long as these inputs.
            choice.block = BLOCK.max(problem.history().min(problem.tokens()).next_multiple_of(4));
            outputs * taps as f64
        }
        Method::Fft => outputs * 3.0 * libm::log2(choice.fft_length as f64) * kernel.lanes as f64,
    };
    fit(choice, options, work, items, |choice, workers| {
        let mut at = Cursor::default();
        let mut layout = SeriesLayout::default();
        match method {
            Method::Direct => {
                layout.series[0] = at.take(&[problem.history().saturating_add(choice.block), w]);
                layout.series[1] = at.take(&[choice.block, w]);
                layout.parameters = at.take(&[taps, w]);
                layout.rows[0] = at.take(&[w]);
                layout.convert = at.take(&[w, choice.block]);
            }
            Method::Fft => {
                let n = choice.fft_length;
                let spectrum = doubles(n / 2 + 1);
                for (span, len) in layout.spectra.iter_mut().zip([n, spectrum, spectrum, scratch]) {
                    *span = at.take(&[doubles(len)]);
                }
                layout.series[0] = at.take(&[problem.tokens().next_multiple_of(w)]);
            }
        }
        lay(at, layout, workers, &[0])
    })
}
