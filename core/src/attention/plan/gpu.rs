//! The GPU chooser: the kernel, the blocks of rows, the division of the keys, and the workspace.
//!
//! A block of threads computes a block of query rows over a split of the keys. If the keys are divided, each split
//! leaves a partial state per row in memory, and a second kernel merges the states of a row in the balanced tree over
//! split numbers.
//!
//! **The naive way** has one kernel, never divides the keys, or divides them until batch, heads and blocks of rows
//! together fill the device.
//!
//! **Why the code differs.**
//!
//! 1. *The kernel is the one that computes least.* A block computes all of its rows and the kernel's whole head size,
//!    whatever the problem needs of them. Rows times head size, including that padding, ranks the kernels. Tall
//!    blocks, which reuse keys best, are for problems with many rows only whose scores nothing changes, or f32
//!    elements and boolean masks alone. Low blocks are for problems so small that the device has two SMs for each
//!    block. Of the kernels for any number of plain rows, those of the same head size, the one that ends soonest by
//!    [`Race`] is taken; blocks of a few rows take part where they leave every other SM idle. With few rows reading takes
//!    the time, and a block has the rows of all heads that share keys.
//! 2. *The division never depends on the batch.* It decides bits, and a sequence must get the same bits alone and in
//!    a batch. It is a function of queries, keys, heads, windows of a picture, head sizes, device and budget. Packed
//!    sequences, whose lengths arrive with the data, are not divided.
//! 3. *The number of splits ends soonest.* For plain problems, and small blocks that leave SMs idle, [`Race`] compares
//!    them. Else splits bring the blocks of one sequence closest to [`BLOCKS_PER_SM`] per SM; more would only add
//!    merges. Where reading takes the time, as many blocks as the device holds at once read together.
//! 4. *Causal problems start with their longest blocks.* Those of the last rows have the most keys. Blocks start in
//!    the order of their keys, over all heads, and are divided until the longest takes no longer than the average SM
//!    is busy, up to [`CAUSAL_SPLITS`].
//!    Blocks of the last rows whose warps have not all rows are short, and start last.
//! 5. *Where scores change, the last blocks do not wait alone.* Blocks with a mask or a bias are many and short enough for
//!    it to matter how full the device is at the end: their keys are divided a few times if that leaves it fuller.
//! 6. *Splits have a least size, and partial states a largest.* Below [`min_chunk`] keys the merge costs more than
//!    the division saves. Partial states take at most [`PARTIAL_BYTES`], or as many bytes as the output.
//! 7. *A budget is a hard limit.* If the partial states of the whole batch exceed it, the keys are not divided.
//! 8. *A batch that fills the device merges in place.* Where a block for each block of rows ends no later than one for
//!    each split and a merge, blocks take all splits, which changes no bit. This and the budget alone look at the batch.

use super::choice::{ChooseError, Division};
use super::gpu_choice::{GpuChoice, GpuKernelSpec, GpuOptions, GpuWorkspaceLayout, Summation};
use super::race::{Generation, Race, Share, evenest};
use crate::attention::bias::BiasView;
use crate::attention::mask::{MaskKind, MaskView};
use crate::attention::problem::{Problem, Spec};
use crate::dtype::DType;
use crate::profile::GpuProfile;

/// Blocks per SM that the division aims at.
const BLOCKS_PER_SM: usize = 2;
/// Largest number of splits of a causal problem.
const CAUSAL_SPLITS: usize = 4;
/// Largest number of splits of a problem with a mask, bias, shifted windows or a soft cap whose blocks fill the device, and
/// their least number of keys.
const EVEN_SPLITS: usize = 3;
const EVEN_CHUNK: usize = 256;
/// The partial states of a sequence may take this many bytes, or as many as its output does.
const PARTIAL_BYTES: usize = 32 << 20;
/// Largest number of tokens, rows or heads: the device counts them in 32 bits, and the sum of two lengths must not
/// overflow.
const MAX_COUNT: usize = 1 << 30;
/// Blocks per SM that measure the tensors of a call.
pub(super) const MEASURING_BLOCKS: usize = 2;
/// Rows times head size of the smallest blocks.
const SMALL_BLOCK: usize = 2048;

/// Smallest number of keys of a split. A problem with few keys is short, and there an idle SM costs more than the
/// merge of smaller splits.
const fn min_chunk(keys: usize) -> usize {
    if keys <= 1024 { 64 } else { 256 }
}

/// Smallest number of keys of a split where a block has few rows.
const fn min_rows_chunk(keys: usize) -> usize {
    if keys <= 1024 { 64 } else { 128 }
}

/// Whether f32 elements side by side for keys side by side, a boolean mask, or both are all that is added to scores.
pub(super) fn adds_f32(s: &Spec) -> bool {
    let near = |view: &MaskView| view.kind() == MaskKind::Additive(DType::F32) && view.strides()[3] == 1;
    let bits = s.mask.is_some_and(|mask| mask.kind() == MaskKind::Bool);
    match (&s.mask, &s.bias) {
        (None, None) | (_, Some(BiasView::Table(_))) => false,
        (Some(mask), None) => bits || near(mask),
        (None, Some(BiasView::Dense(bias))) => near(bias),
        (Some(_), Some(BiasView::Dense(bias))) => bits && near(bias),
    }
}

/// Checks that the device can count what the problem has.
pub(super) fn check_counts(problem: &Problem) -> Result<(), ChooseError> {
    let s = problem.spec();
    let entries = match s.bias {
        Some(BiasView::Table(table)) => table.entries,
        _ => 0,
    };
    let counts = [
        ("queries", s.query.tokens()),
        ("keys", problem.keys()),
        ("heads", problem.heads()),
        ("sequences", problem.sequences()),
        ("rows", problem.rows()),
        ("head size", problem.head_dim().max(problem.value_dim())),
        ("entries of the table", entries),
    ];
    match counts.into_iter().find(|(_, found)| *found > MAX_COUNT) {
        Some((axis, found)) => Err(ChooseError::Extent { axis, found, max: MAX_COUNT }),
        None => Ok(()),
    }
}

/// Checks that a launch of as many blocks as the product of `counts` is possible.
pub(super) fn check_blocks(counts: &[usize]) -> Result<(), ChooseError> {
    let blocks = counts.iter().try_fold(1usize, |a, n| a.checked_mul(*n)).unwrap_or(usize::MAX);
    match blocks > i32::MAX as usize {
        true => Err(ChooseError::Extent { axis: "blocks", found: blocks, max: i32::MAX as usize }),
        false => Ok(()),
    }
}

/// Blocks of threads that attend; `None` if they cannot be counted.
fn blocks_at_once(problem: &Problem, choice: &GpuChoice) -> Option<usize> {
    let heads = problem.heads() / choice.heads_at_once.max(1);
    problem.sequences().checked_mul(heads)?.checked_mul(choice.splits)?.checked_mul(choice.row_blocks)
}

/// Places in which blocks of rows of a head of packed sequences count.
fn places(problem: &Problem, choice: &GpuChoice) -> usize {
    problem.spec().query.tokens() / choice.kernel.rows.max(1) + problem.sequences()
}

/// Checks that the workspace of a choice fits the budget.
pub(super) fn check_budget(choice: &GpuChoice, budget: Option<usize>) -> Result<(), ChooseError> {
    let layout = GpuWorkspaceLayout::of(choice, false).ok_or(ChooseError::Memory { needed: usize::MAX })?;
    match budget {
        Some(budget) if layout.bytes > budget => Err(ChooseError::Budget { needed: layout.bytes, budget }),
        _ => Ok(()),
    }
}

/// Chooses the kernel, the blocks of rows and the division of the keys for `problem` on `device`. Of the
/// sufficient `kernels`, the chooser takes the one that computes the fewest rows times dims, including padding;
/// among equals, the one with the lowest limit of queries; for a plain problem, of those of its head size, the one that
/// ends soonest. Packed sequences, whose lengths arrive with the data,
/// use a kernel that takes any number of queries, and undivided keys.
///
/// # Errors
/// Returns an error if no kernel supports the type or the head size, if a count exceeds 32 bits on the device, if
/// the size of the workspace overflows, or if even the undivided form exceeds the budget.
pub fn choose_gpu<'a>(
    problem: &Problem,
    device: &GpuProfile,
    kernels: impl IntoIterator<Item = &'a GpuKernelSpec, IntoIter: Clone>,
    options: &GpuOptions,
) -> Result<GpuChoice, ChooseError> {
    let s = problem.spec();
    let (queries, keys, heads) = (s.query.tokens(), problem.keys(), problem.heads());
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let sixteen_bit = s.dtype != DType::F32;
    let packed = s.packed.is_some();
    let max_queries = if packed { usize::MAX } else { queries };
    let causal = problem.grows_with_the_row();
    let past = s.past_key.is_some() || s.past_value.is_some();
    let shifted = s.windows.is_some_and(|windows| windows.is_shifted());
    let changed = s.mask.is_some() || s.bias.is_some() || shifted || s.softcap.is_some();
    let unchanged = !changed && !past;
    let plain = !causal && unchanged;
    let added = !causal && !past && !shifted && s.softcap.is_none() && adds_f32(s);
    // The windows of a picture always come together.
    let together = s.windows.map_or(1, |windows| windows.count());
    let group = problem.group();
    let heads_at_once = |k: &GpuKernelSpec| match k.summation {
        Summation::Groups { .. } => group,
        Summation::Tiles { .. } => 1,
    };
    let row_blocks_of = |k: &GpuKernelSpec| queries.saturating_mul(heads_at_once(k)).div_ceil(k.rows.max(1));
    let blocks_of = |k: &GpuKernelSpec| {
        let columns = (heads / heads_at_once(k)).saturating_mul(together);
        row_blocks_of(k).saturating_mul(columns).max(1)
    };
    let partial_dim = dv.next_multiple_of(4);
    let output = heads.saturating_mul(queries).saturating_mul(dv).saturating_mul(s.dtype.size());
    let partial = heads.saturating_mul(queries).saturating_mul(4 * (partial_dim + 2));
    let affordable = output.max(PARTIAL_BYTES) / partial.max(1);
    // Plain problems race; packed sequences do not, since their lengths arrive with the data.
    let races = plain && !packed;
    let generation = Generation::of(device);
    let race_of = |k: &GpuKernelSpec| {
        let (blocks, sms) = (blocks_of(k), device.sms.max(1));
        let groups = matches!(k.summation, Summation::Groups { .. });
        let undivided = races && (groups || k.few_blocks && blocks.saturating_mul(2) > sms);
        let most = if undivided { 1 } else { affordable };
        let (tile, pace) = (k.keys.max(1), k.paces.on(generation));
        let live = Share { busy: k.busy_warps(queries), all: k.all_warps(queries) };
        let resident = k.resources.resident(device);
        Race { blocks, live, sms, resident, keys, most, tile, generation, pace, slow_edges: k.slow_edges }
    };
    let serves = |candidate: usize, k: &GpuKernelSpec| {
        let scores = !k.half_scores() || (options.half_scores && s.dtype == DType::F16);
        let limit = match (unchanged, added && d == k.head_dim && dv == k.head_dim) {
            (true, _) if causal && !packed => k.most_causal,
            (true, _) if causal => k.most_queries,
            (true, _) => k.most_plain,
            (_, true) => k.most_added,
            _ => k.most_queries,
        };
        let crowded = !races && k.few_blocks && blocks_of(k) > device.sms;
        // A kernel without a limit for these problems does not compute them; the limits themselves are preferences.
        let (limit, crowded) = match options.division {
            Some(division) if division.candidate == candidate && limit.max(k.most_queries) > 0 => {
                (usize::MAX, false)
            }
            Some(_) => return None,
            None => (limit, crowded),
        };
        let serves = k.sixteen_bit == sixteen_bit && max_queries <= limit && scores && !crowded;
        serves.then_some(limit)
    };
    // Blocks of few rows that join the race, though reading the keys takes them most of the time.
    let joins = |k: &GpuKernelSpec| {
        let idle = blocks_of(k).saturating_mul(2) <= device.sms;
        races && k.joins_race && queries > k.most_plain && idle && options.division.is_none() && !sixteen_bit
    };
    let mut widest = 0;
    let mut best: Option<(_, usize, GpuKernelSpec)> = None;
    let candidates = kernels.into_iter().enumerate();
    for (candidate, k) in candidates.clone() {
        let Some(limit) = serves(candidate, k) else { continue };
        widest = widest.max(k.head_dim);
        // Computed rows times dims, including padding. A packed sequence may have any number of rows.
        let at_once = heads_at_once(k);
        let rows = queries.max(1).saturating_mul(at_once).next_multiple_of(k.rows.max(1));
        let rows = if packed { 1 } else { rows.div_ceil(at_once) };
        let work = rows.saturating_mul(k.head_dim);
        // Among equals, prefer sums in f16: the options request them. Packed sequences take the tallest blocks, whatever
        // their lengths.
        let height = if packed { (usize::MAX - k.rows, !k.slow_edges) } else { (k.rows, false) };
        let rank = (work, limit, k.head_dim, height, !k.half_scores());
        if k.head_dim >= d.max(dv) && best.is_none_or(|(lowest, ..)| rank < lowest) {
            best = Some((rank, candidate, *k));
        }
    }
    if let Some((rank, _, first)) = best
        && races
        && let Summation::Tiles { .. } = first.summation
    {
        let alike =
            |k: &GpuKernelSpec| k.head_dim == first.head_dim && k.half_scores() == first.half_scores();
        let entrants = candidates.filter(|(candidate, k)| {
            let tiles = matches!(k.summation, Summation::Tiles { .. });
            alike(k) && (joins(k) || tiles && serves(*candidate, k).is_some())
        });
        let winner = entrants.min_by_key(|(_, k)| race_of(k).soonest().1);
        best = winner.map(|(candidate, k)| (rank, candidate, *k));
    }
    let Some((_, candidate, kernel)) = best else {
        return Err(match widest {
            0 => ChooseError::NoKernel,
            max => ChooseError::HeadSize { found: d.max(dv), max },
        });
    };
    let row_blocks = row_blocks_of(&kernel);
    check_counts(problem)?;
    let sequences = if packed || s.key_lengths { problem.sequences() } else { 0 };
    let whole = keys.max(1).next_multiple_of(kernel.keys.max(1));
    let idles = kernel.busy_warps(queries) < kernel.all_warps(queries);
    let mut choice = GpuChoice {
        kernel,
        candidate,
        heads_at_once: heads_at_once(&kernel),
        longest_first: causal && !packed && matches!(kernel.summation, Summation::Tiles { .. }),
        short_last: !causal && !packed && idles && row_blocks > 1,
        row_blocks,
        splits: 1,
        chunk: whole,
        partial_dim,
        rows: problem.rows(),
        sequences,
        records: if options.certify { MEASURING_BLOCKS * device.sms.max(1) } else { 0 },
        scores: 0,
        error_budget: options.error_budget,
        counting: 0,
        flushes: !sixteen_bit,
        keys,
        serial: false,
        cut: s.window.left.is_some(),
    };
    if !packed {
        let (sms, resident) = (device.sms.max(1), kernel.resources.resident(device));
        let (fill, room) = (sms * resident.min(BLOCKS_PER_SM), sms * resident);
        let blocks = blocks_of(&kernel);
        let few = matches!(kernel.summation, Summation::Groups { .. });
        // Small blocks that leave SMs idle.
        let small = !few && kernel.rows.saturating_mul(kernel.head_dim) <= SMALL_BLOCK && blocks <= sms;
        let splits = if let Some(Division { splits, .. }) = options.division {
            splits.min(keys.div_ceil(kernel.keys.max(1))).min(affordable).max(1)
        } else if small || (races && !few) || joins(&kernel) {
            race_of(&kernel).soonest().0
        } else {
            // The number of splits that comes closest to filling the device.
            let nearest = (fill + blocks / 2) / blocks;
            let (wanted, least) = if few {
                (room / blocks, min_rows_chunk(keys))
            } else if causal {
                // As many as keep the longest block below the average: those of the last rows have twice its keys.
                let even = (2 * room + blocks / 2) / blocks;
                (even.clamp(1, CAUSAL_SPLITS).max(nearest), min_chunk(keys))
            } else if changed && nearest < EVEN_SPLITS {
                (evenest(blocks, room, (keys / EVEN_CHUNK).clamp(1, EVEN_SPLITS)), min_chunk(keys))
            } else {
                (nearest, min_chunk(keys))
            };
            wanted.min(keys / least).min(affordable).max(1)
        };
        if splits > 1 {
            choice.chunk = keys.div_ceil(splits).next_multiple_of(kernel.keys.max(1));
            choice.splits = keys.div_ceil(choice.chunk);
        }
    }
    // Of packed sequences the blocks are not known: each has at most one more than its rows fill.
    let counting = |choice: &GpuChoice| match options.error_budget {
        Some(_) if queries == 0 => 0,
        Some(_) if packed => heads.saturating_mul(places(problem, choice)),
        Some(_) => blocks_at_once(problem, choice).unwrap_or(usize::MAX),
        None => 0,
    };
    choice.counting = counting(&choice);
    let size = |choice: &GpuChoice| GpuWorkspaceLayout::of(choice, false).map(|layout| layout.bytes);
    if let Some(budget) = options.budget
        && choice.divided()
        && size(&choice).is_none_or(|bytes| bytes > budget)
    {
        (choice.splits, choice.chunk) = (1, whole);
        choice.counting = counting(&choice);
    }
    let together = kernel.serial && plain && !packed && sequences == 0 && !choice.cut && choice.divided();
    choice.serial = together && race_of(&kernel).is_serial(problem.sequences(), choice.splits);
    check_budget(&choice, options.budget)?;
    check_blocks(&[problem.sequences(), heads / choice.heads_at_once, choice.splits, row_blocks])?;
    Ok(choice)
}

#[cfg(test)]
mod tests;
