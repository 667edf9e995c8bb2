//! Chooses the kernel, the row blocks, the division of the keys and the workspace of a GPU plan.
//!
//! A thread block computes a block of query rows over a split of the keys. If the keys are divided, each split
//! writes a partial state per row to memory, and a second kernel merges the states of a row in the balanced tree
//! over split numbers.
//!
//! **The naive way** has one kernel. It either never divides the keys, or divides them until batch, heads and row
//! blocks together fill the device.
//!
//! **Why the code differs.**
//!
//! 1. *The kernel with the least computation wins.* A block computes all of its rows and the kernel's full head size,
//!    even if the problem needs less. Kernels are ranked by computed rows times computed head size, including this
//!    excess. Tall blocks reuse keys best. They are used if the problem has many rows, and if its scores are unchanged
//!    or changed only by f32 elements and boolean masks. Short blocks are used if the problem is so small that the
//!    device has two SMs for each block. [`Race`] compares the kernels of equal head size that accept any number of
//!    rows of a plain problem, and selects the one that finishes soonest. Kernels with blocks of a few rows take part
//!    if their blocks leave half of the SMs idle. If there are few rows, reading dominates the time, and a block has
//!    the rows of all heads that share keys.
//! 2. *The division never depends on the batch.* It affects the bits, and a sequence must produce the same bits alone
//!    and in a batch. The division is a function of queries, keys, heads, windows of a picture, head sizes, device and
//!    budget. Packed sequences, whose lengths arrive with the data, are not divided.
//! 3. *The number of splits minimizes the finishing time.* For plain problems, and for small blocks that leave SMs
//!    idle, [`Race`] compares the numbers of splits. Otherwise the number is the one that brings the blocks of one
//!    sequence closest to [`BLOCKS_PER_SM`] per SM; more would only add merges. If reading dominates the time, there are
//!    as many blocks as can be resident on the device at once.
//! 4. *Causal problems start with their longest blocks.* The blocks of the last rows have the most keys. Blocks start
//!    in the order of their number of keys, over all heads. Keys are divided into more and more splits, up to
//!    [`CAUSAL_SPLITS`], until the longest block takes no longer than the average SM is busy. If some warps of the last
//!    row blocks have no rows, those blocks are short and start last.
//! 5. *With changed scores, the last blocks should not run alone.* Blocks with a mask or a bias are numerous and short, so
//!    the utilisation of the device at the end matters. Their keys are divided into a few splits if that improves the
//!    utilisation.
//! 6. *Splits have a minimum size, and partial states a maximum.* With fewer than [`min_chunk`] keys per split, the merge
//!    costs more than the division saves. Partial states take at most [`PARTIAL_BYTES`], or at most the size of the
//!    output if that is larger.
//! 7. *A budget is a hard limit.* If the partial states of the entire batch exceed it, the keys are not divided.
//! 8. *A batch that fills the device merges in place.* A launch may have one block per row block, or one block per split
//!    followed by a merge. If the first form finishes no later, each block processes all splits of its rows; the bits
//!    stay the same. Only this decision and the budget consider the batch.

use super::choice::Division;
use super::gpu_choice::{GpuChoice, GpuKernelSpec, GpuOptions, GpuWorkspaceLayout, Summation};
use super::race::{Generation, Race, Share, evenest};
use crate::attention::bias::BiasView;
use crate::attention::mask::{MaskKind, MaskView};
use crate::attention::problem::{Problem, Spec};
use crate::dtype::DType;
use crate::plan::ChooseError;
use crate::profile::GpuProfile;

/// Target number of blocks per SM for the division.
const BLOCKS_PER_SM: usize = 2;
/// Largest number of splits of a causal problem.
const CAUSAL_SPLITS: usize = 4;
/// Largest number of splits if the blocks fill the device and the scores are changed by a mask, a bias, shifted windows
/// or a soft cap.
const EVEN_SPLITS: usize = 3;
/// Smallest number of keys per split if [`EVEN_SPLITS`] applies.
const EVEN_CHUNK: usize = 256;
/// Limit of the partial states of a sequence, in bytes. If the output is larger, its size is the limit.
const PARTIAL_BYTES: usize = 32 << 20;
/// Largest number of tokens, rows or heads: the device counts them in 32 bits, and the sum of two lengths must not
/// overflow.
const MAX_COUNT: usize = 1 << 30;
/// Number of blocks per SM in the kernel that measures the tensors of a call.
pub(super) const MEASURING_BLOCKS: usize = 2;
/// Largest product of rows and head size for which a block counts as small.
const SMALL_BLOCK: usize = 2048;

/// Returns the smallest allowed number of keys per split for a problem with `keys` keys. A problem with few keys takes
/// little time, so an idle SM costs more than the merge of smaller splits.
const fn min_chunk(keys: usize) -> usize {
    if keys <= 1024 { 64 } else { 256 }
}

/// Returns the smallest allowed number of keys per split for a problem with `keys` keys and a kernel whose blocks have few
/// rows.
const fn min_rows_chunk(keys: usize) -> usize {
    if keys <= 1024 { 64 } else { 128 }
}

/// Returns `true` if the only additions to the scores are a boolean mask, one f32 mask or bias with key stride 1, or
/// both of these. Returns `false` if nothing is added.
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

/// Checks that the device can represent the counts of the problem.
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

/// Checks that a launch can have `counts[0] · counts[1] · …` blocks.
pub(super) fn check_blocks(counts: &[usize]) -> Result<(), ChooseError> {
    let blocks = counts.iter().try_fold(1usize, |a, n| a.checked_mul(*n)).unwrap_or(usize::MAX);
    match blocks > i32::MAX as usize {
        true => Err(ChooseError::Extent { axis: "blocks", found: blocks, max: i32::MAX as usize }),
        false => Ok(()),
    }
}

/// Returns the total number of thread blocks in a launch of the attention kernel; `None` on overflow.
fn blocks_at_once(problem: &Problem, choice: &GpuChoice) -> Option<usize> {
    let heads = problem.heads() / choice.heads_at_once.max(1);
    problem.sequences().checked_mul(heads)?.checked_mul(choice.splits)?.checked_mul(choice.row_blocks)
}

/// Returns the number of counters per head that packed sequences need for their row blocks.
fn places(problem: &Problem, choice: &GpuChoice) -> usize {
    problem.spec().query.tokens() / choice.kernel.rows.max(1) + problem.sequences()
}

/// Checks that the workspace of `choice` fits the memory budget.
pub(super) fn check_budget(choice: &GpuChoice, budget: Option<usize>) -> Result<(), ChooseError> {
    let layout = GpuWorkspaceLayout::of(choice, false).ok_or(ChooseError::Memory { needed: usize::MAX })?;
    match budget {
        Some(budget) if layout.bytes > budget => Err(ChooseError::Budget { needed: layout.bytes, budget }),
        _ => Ok(()),
    }
}

/// Chooses the kernel, the row blocks and the division of the keys for `problem` on `device`. Among the `kernels` that
/// can compute the problem, the chooser selects the one with the smallest product of computed rows and dims, including
/// padding. Among equal kernels, it selects the one that is limited to the fewest queries. For a plain problem, it then
/// prefers the kernel of equal head size that finishes soonest. Packed sequences, whose lengths arrive with the data,
/// use a kernel that accepts any number of queries, and their keys are not divided.
///
/// # Errors
/// Returns an error if no kernel supports the type or the head size, if a count exceeds 32 bits on the device, if
/// the size of the workspace overflows, or if the workspace exceeds the budget even with undivided keys.
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
    let past = s.has_past();
    let shifted = s.windows.is_some_and(|windows| windows.is_shifted());
    let changed = s.mask.is_some() || s.bias.is_some() || shifted || s.softcap.is_some();
    let unchanged = !changed && !past;
    let plain = !causal && unchanged;
    let added = !causal && !past && !shifted && s.softcap.is_none() && adds_f32(s);
    // The windows of a picture are always computed together.
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
        // A limit of zero means that the kernel cannot compute these problems; other limits are preferences.
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
    // Kernels with blocks of few rows may join the race if their blocks leave half of the SMs idle.
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
        // The number of computed rows times dims, including padding. A packed sequence may have any number of rows.
        let at_once = heads_at_once(k);
        let rows = queries.max(1).saturating_mul(at_once).next_multiple_of(k.rows.max(1));
        let rows = if packed { 1 } else { rows.div_ceil(at_once) };
        let work = rows.saturating_mul(k.head_dim);
        // Kernels that sum in f16 precede otherwise equal kernels, because the options allow such sums. Packed
        // sequences prefer the tallest blocks, regardless of the lengths.
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
        split: None,
    };
    if !packed {
        let (sms, resident) = (device.sms.max(1), kernel.resources.resident(device));
        let (fill, room) = (sms * resident.min(BLOCKS_PER_SM), sms * resident);
        let blocks = blocks_of(&kernel);
        let few = matches!(kernel.summation, Summation::Groups { .. });
        // Problems whose small blocks leave SMs idle also race.
        let small = !few && kernel.rows.saturating_mul(kernel.head_dim) <= SMALL_BLOCK && blocks <= sms;
        let splits = if let Some(Division { splits, .. }) = options.division {
            splits.min(keys.div_ceil(kernel.keys.max(1))).min(affordable).max(1)
        } else if small || (races && !few) || joins(&kernel) {
            race_of(&kernel).soonest().0
        } else {
            // This number of splits comes closest to filling the device.
            let nearest = (fill + blocks / 2) / blocks;
            let (wanted, least) = if few {
                (room / blocks, min_rows_chunk(keys))
            } else if causal {
                // This number of splits makes the longest block take no longer than the average SM is busy. The blocks
                // of the last rows have twice the average number of keys.
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
    // The number of blocks of a packed sequence is not known, but is at most one more than its rows fill.
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
