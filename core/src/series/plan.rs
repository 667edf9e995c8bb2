//! Plans of the per-channel operators: methods, parts, workers, and the layouts of workspaces.
//!
//! A *tile* is the group of neighbouring channels of one sequence that the kernel processes at once. Workers share the
//! tiles. Bits depend on the problem, the kernel, the method and the parts, never on workers.
//!
//! **Form of a recurrence.** One pass over the tokens computes it; tiles and sequences share the work. Few channels and
//! many tokens can be computed in two levels instead: parts of the tokens fold to one map each, the states before the
//! parts follow one after another, and each part is computed from its own. That is twice the work, so it is done only
//! on request ([`Options::parts`]). The states between parts are not a scan of maps: a product of factors may leave the
//! range of f32 where the state does not, and such a part is processed again from its exact state.
//!
//! **Method of a convolution.** The direct method takes `K` multiply-adds per output. The FFT takes a number that grows
//! with the logarithm of the length, in f64 and without the vectors of the kernel. [`method`] compares the two.

use crate::plan::ChooseError;
use crate::profile::InstructionSet;
use crate::room::{Cursor, Span, with_alignment};
use crate::series::bound::Precision;
use crate::series::convolution::{self, Method, fft_length};
use crate::series::{recurrence, selective};
use crate::workers::{WORK_PER_LANE, worthwhile};

/// Number of tokens in a block that the kernel receives at once: a multiple of four.
pub const BLOCK: usize = 64;

/// Maximum number of parts of a recurrence.
pub const MAX_PARTS: usize = 1024;

/// Time of a transform per value and doubling of its length, in multiply-adds of a vector of the direct method. Measured as the
/// crossover of the two methods, at 450 taps with 16 lanes (the example `series` of the runtime); it is 0.4 to 0.55 for 1024
/// to 16384 tokens.
const FFT_COST: f64 = 0.5;

/// The kernels of series of an instruction set, as planners and error bounds see them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesKernelSpec {
    /// Name of the kernels: `series_f32_c<channels of a tile>__<instruction set>`.
    pub name: &'static str,
    /// The instruction set that they require.
    pub set: InstructionSet,
    /// Lanes of a vector.
    pub lanes: usize,
    /// Channels of a tile.
    pub width: usize,
    /// Accuracy of their functions.
    pub precision: Precision,
}

/// Options of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest workspace, in bytes; `None` is unlimited. A small budget reduces the number of workers and changes no bit.
    pub budget: Option<usize>,
    /// Number of workers of the engine.
    pub workers: usize,
    /// `true` if all workers take part, however small the problem.
    pub all_workers: bool,
    /// Number of parts of a recurrence that runs in two levels; `None` for one pass. Other operators ignore it.
    pub parts: Option<usize>,
}

/// Choices of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesChoice {
    /// The kernel.
    pub kernel: SeriesKernelSpec,
    /// Tiles of a sequence.
    pub tiles: usize,
    /// Number of parts of the tokens; one for a single pass.
    pub parts: usize,
    /// Method of a convolution.
    pub method: Method,
    /// Length of the transforms of a convolution by FFT; otherwise zero.
    pub fft_length: usize,
    /// Tokens of a block.
    pub block: usize,
    /// Number of workers.
    pub workers: usize,
}

/// Layout of a workspace, in f32 values. Regions that an operator does not use are empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeriesLayout {
    /// Distance from one worker's region to the next.
    pub worker_stride: usize,
    /// Within a worker's region: up to four series, `[token][channel]`, a convolution's with the inputs before a block.
    pub series: [Span; 4],
    /// Two coefficients, `[token][state]` or `[state][channel]`.
    pub coefficients: [Span; 2],
    /// Rates, `[state][channel]`; or weights, `[tap][channel]`.
    pub parameters: Span,
    /// Two rows of parameters.
    pub rows: [Span; 2],
    /// States, `[state][channel]`.
    pub state: Span,
    /// Room for conversions, `[channel][token]`.
    pub convert: Span,
    /// Signal, spectra of filter and signal, and scratch memory of the transforms, in f64.
    pub spectra: [Span; 4],
    /// After all workers: the factor, addend and state before of each part of each tile.
    pub maps: Span,
    /// Number of values of all.
    pub total: usize,
}

impl SeriesLayout {
    /// Returns the number of f32 values of a workspace with arbitrary alignment: the regions, and a line for the padding
    /// that aligns the first one.
    #[must_use]
    pub const fn floats(&self) -> usize {
        with_alignment(self.total)
    }

    /// Returns the size of the workspace in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.floats() * 4
    }
}

/// Returns the tokens of part `part` of a pass over `tokens` in `parts` parts, by their number in the order of the pass.
#[must_use]
pub const fn part_tokens(tokens: usize, parts: usize, part: usize) -> core::ops::Range<usize> {
    let each = tokens / parts;
    let more = tokens % parts;
    let start = part * each + if part < more { part } else { more };
    start..start + each + (part < more) as usize
}

/// Returns the method of a convolution: that which takes less time by count, for a kernel with these lanes.
#[must_use]
pub fn method(problem: &convolution::Problem, kernel: &SeriesKernelSpec) -> Method {
    let (tokens, taps) = (problem.tokens(), problem.taps());
    // One token has nothing to share.
    if tokens < 2 {
        return Method::Direct;
    }
    let length = fft_length(tokens, taps) as f64;
    let spectra = 3.0 * length * libm::log2(length) * FFT_COST;
    let direct = tokens as f64 * taps as f64 / kernel.lanes as f64;
    if direct <= spectra { Method::Direct } else { Method::Fft }
}

/// Converts a number of f64 values to the number of f32 values that take the same room.
const fn doubles(n: usize) -> usize {
    n.saturating_mul(2)
}

/// Lays out a workspace for `workers` workers.
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

/// Selects the number of workers that `work` multiply-adds and `items` justify, or fewer if the budget requires it.
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
/// Returns an error if the parts are out of bounds, if the smallest workspace exceeds the budget, or if its size overflows.
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
    // A step is some ten operations, with the exponential.
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
/// Returns an error if the smallest workspace exceeds the budget, or if its size overflows.
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

/// Plans a convolution by `method`. `scratch` is the number of f64 values that the transforms work in.
///
/// # Errors
/// Returns an error if the smallest workspace exceeds the budget, or if its size overflows.
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
            // A block keeps the inputs before it, which are copied once for each.
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
