//! Makes all decisions that precede `run` on a CPU, from a problem, a device and options.
//!
//! The chooser is a pure function. It chooses the micro-kernel, the widest tile, the number of tiles that share a key
//! block (the *group*), the number of workers, and whether keys, values and rows are copied. The options determine the
//! block and the segment.
//!
//! **The naive way** selects the fastest kernel, wakes every thread, gives each thread one tile at a time, and allocates
//! the memory that this requires.
//!
//! **Why the code differs.**
//!
//! 1. *The kernel depends on the number of queries, never on the batch.* Kernels add in different orders, so the
//!    kernel affects the bits. A sequence must produce the same bits alone and in a batch, so the kernel is chosen by
//!    the number of queries of one sequence. The lengths of packed sequences are not known here, so packed problems use
//!    the kernel that accepts any number of queries.
//! 2. *The work determines the number of workers.* Waking a thread takes a few microseconds. There is one worker for
//!    every [`WORK_PER_LANE`] multiply-adds per lane, unless the options request all workers. In both cases there is at
//!    most one worker per tile. The plan has enough workers for all the keys that a call may have. A call with shorter
//!    lengths uses fewer workers ([`CpuChoice::workers_for`]).
//! 3. *The group balances three costs.* A larger group reads, and possibly copies, each key block less often. But
//!    its queries and states must stay in cache together with the block, so they take at most half of L2. And if there
//!    are several workers, each needs at least eight tasks; otherwise the last task leaves the other workers idle.
//! 4. *Blocks are copied only if the kernel cannot read them in place.* Kernels read f32 rows whose length is a
//!    multiple of four. Blocks of 16-bit types and of other head sizes are copied one by one. The same applies to the
//!    keys of a kernel that reads panels. It also applies to all blocks of a problem with a past, because the rows of
//!    such a problem are in two tensors. If blocks are copied, more tiles share a block.
//! 5. *Data shared by heads or sequences is prepared once* ([`super::share`]).
//! 6. *A budget is a hard limit.* The chooser reduces the workspace until it fits: first workers keep no bias, then the
//!    group is halved, then workers are removed, then tiles lose one vector at a time. If even the smallest workspace
//!    does not fit, the error reports the bytes that it needs.
//! 7. *A measurement may override the block, the group and the workers* (`tuned.rs`).
//! 8. *Speed never changes a bit.* Tile width, group, workers and copies only determine which worker computes a
//!    row, and when. Only the kernel, the method and the block size can change the output.

use super::choice::{BLOCK_SIZES, CpuChoice, CpuDivision, Keeps, MAX_TILES, Method, Options, TaskOrder};
use super::kernel::{KernelSpec, KeyLayout};
use super::layout::WorkspaceLayout;
use super::share::share;
use crate::attention::bias::{BiasView, TableView};
use crate::attention::problem::Problem;
use crate::attention::scalar;
use crate::attention::schedule::{BLOCKS_PER_SEGMENT, Tiling};
use crate::attention::traversal::foresees;
use crate::attention::windows::Windows;
use crate::dtype::DType;
use crate::plan::ChooseError;
use crate::profile::DeviceProfile;
use crate::workers::{WORK_PER_LANE, worthwhile};

/// Chooses the kernel, tiles, workers and workspace for `problem` on `device`. The device must be able to execute all
/// `kernels`, which are in order of preference; the first that accepts the number of queries is used.
///
/// Only the kernel, `method` and `block` can change a bit of the output. The kernel depends on the number of
/// queries of a sequence, never on the batch. Packed sequences, whose lengths arrive with the data, use the kernel
/// that accepts any number of queries.
///
/// A budget is a hard limit. If the preferred workspace exceeds it, workers keep no bias, then tasks serve fewer
/// heads, then fewer tiles share a block, then fewer workers run, then tiles become narrower.
///
/// # Errors
/// Returns an error if the block size is not supported, if the problem is packed and the method is [`Method::Math`], if
/// no kernel accepts the number of queries, if the size of the workspace overflows, or if even the smallest workspace
/// exceeds the budget.
pub fn choose<'a>(
    problem: &Problem,
    device: &DeviceProfile,
    kernels: impl IntoIterator<Item = &'a KernelSpec>,
    options: &Options,
) -> Result<CpuChoice, ChooseError> {
    let options = &match options.division {
        Some(CpuDivision { block, workers, .. }) => {
            Options { block, workers: options.workers.min(workers), all_workers: true, ..*options }
        }
        None => *options,
    };
    if !BLOCK_SIZES.contains(&options.block) {
        return Err(ChooseError::Block { found: options.block });
    }
    let s = problem.spec();
    if s.packed.is_some() && options.method == Method::Math {
        return Err(ChooseError::Packed);
    }
    let (queries, keys) = (s.query.tokens(), problem.keys());
    let max_queries = if s.packed.is_some() { usize::MAX } else { queries };
    let mut candidates = kernels.into_iter().enumerate();
    let (candidate, kernel) =
        candidates.find(|(_, k)| max_queries <= k.most_queries).ok_or(ChooseError::NoKernel)?;
    let (d, dv) = (problem.head_dim(), problem.value_dim());
    let segment = options.block * BLOCKS_PER_SEGMENT;
    let copied = s.dtype != DType::F32 || (s.has_past() && !s.append);
    let heads = problem.sequences().saturating_mul(problem.heads());
    let tiles = Tiling::new(queries, kernel.lanes, kernel.vectors).count().max(1);
    // Waking a worker takes a few microseconds, so its share of the arithmetic must take longer.
    let work_per_worker = if options.all_workers { 0.0 } else { WORK_PER_LANE * kernel.lanes as f64 };
    let pairs = heads as f64 * queries as f64 * keys as f64;
    let most = options.workers.clamp(1, tiles.saturating_mul(heads).max(1));
    let mut choice = CpuChoice {
        kernel: *kernel,
        candidate,
        method: options.method,
        block: options.block,
        segment,
        segments: keys.div_ceil(segment).max(1),
        vectors: kernel.vectors,
        group: 1,
        heads: 1,
        workers: worthwhile(pairs * (d + dv) as f64, work_per_worker, most),
        work_per_worker,
        head_dim: d.next_multiple_of(4),
        value_dim: dv.next_multiple_of(4),
        stage_keys: copied || !d.is_multiple_of(4) || matches!(kernel.keys, KeyLayout::Panels(_)),
        stage_values: copied || !dv.is_multiple_of(4),
        convert: s.dtype != DType::F32,
        masked: problem.is_masked(),
        order: TaskOrder::Tiles,
        keeps: Keeps::default(),
        row_mask: s.mask.is_some_and(|mask| mask.same_for_all_queries()),
        adds_two: s.mask.is_some() && s.bias.is_some(),
        entries: match s.bias {
            Some(BiasView::Table(table)) => table.entries,
            _ => 0,
        },
        lines: match (s.bias, s.windows) {
            (Some(BiasView::Table(TableView { indexed: false, .. })), Some(windows)) => {
                (2 * windows.size[0] - 1) * windows.size[1]
            }
            _ => 0,
        },
        divided: s.windows.filter(Windows::is_shifted).map_or(0, |windows| windows.tokens()),
        certify: options.certify,
        schedule: options.schedule,
        foresees: options.schedule.budget().is_some() && foresees(problem, &options.schedule),
        recorded: 0,
        scratch: 0,
        resident: 0,
        sequences: problem.sequences(),
        extent: [queries, keys, heads],
    };
    if !choice.schedule.is_exact() {
        choice.recorded = problem.rows();
    }
    if choice.traverses() {
        let needed = usize::MAX;
        choice.scratch = scalar::scratch_len(problem).ok_or(ChooseError::Memory { needed })?;
    }
    // Group size: leave at least eight tasks per worker, and keep queries and states in half of L2.
    let balanced = match choice.workers {
        1 => usize::MAX,
        workers => (tiles.saturating_mul(heads) / workers.saturating_mul(8)).max(1),
    };
    let states = choice.levels().saturating_mul(choice.value_dim + 2);
    let tile_bytes = choice.head_dim.saturating_add(states).saturating_mul(choice.width() * 4);
    let fitting = (device.l2 / 2 / tile_bytes).max(1);
    // If blocks are copied, more tiles share the copy.
    let preferred =
        if choice.stage_keys || choice.stage_values { kernel.group.max(MAX_TILES) } else { kernel.group };
    choice.group = match options.division {
        Some(division) => division.group.clamp(1, kernel.group.max(MAX_TILES)).min(tiles),
        None => preferred.min(balanced).min(tiles).min(fitting),
    };
    share(&mut choice, problem, device, fitting.min(balanced), tiles);
    choice.heads = heads_per_task(&choice, problem, fitting);
    let size = |choice: &CpuChoice| WorkspaceLayout::of(choice).map(|layout| layout.bytes());
    let Some(budget) = options.budget else {
        return match size(&choice) {
            Some(_) => Ok(choice),
            None => Err(ChooseError::Memory { needed: usize::MAX }),
        };
    };
    let fits = |choice: &CpuChoice| size(choice).is_some_and(|needed| needed <= budget);
    loop {
        match size(&choice) {
            Some(needed) if needed <= budget => return Ok(choice),
            _ if choice.keeps.any() => choice.keeps = Keeps::default(),
            _ if choice.heads > 1 => choice.heads = choice.heads.div_ceil(2),
            _ if choice.group > 1 => choice.group = choice.group.div_ceil(2),
            _ if choice.workers > 1 => choice.workers = fewer_workers(&choice, fits),
            _ if choice.vectors > 1 => choice.vectors -= 1,
            needed => return Err(ChooseError::Budget { needed: needed.unwrap_or(usize::MAX), budget }),
        }
    }
}

/// Returns the number of query heads that a task serves. More than one head pays off if the kernel steps through a block
/// with several tiles together. Masks must be the same for all heads, and every worker should get a task. `fitting` is
/// the number of tiles whose queries and states fit in cache.
fn heads_per_task(choice: &CpuChoice, problem: &Problem, fitting: usize) -> usize {
    let s = problem.spec();
    let same = s.bias.is_none() && s.mask.is_none_or(|mask| mask.shape()[1] == 1) && !choice.keeps.any();
    let exact = choice.method == Method::Elsa && choice.schedule.is_exact();
    if choice.kernel.together == 1 || !same || !exact {
        return 1;
    }
    let key_heads = problem.sequences().saturating_mul(problem.kv_heads()).max(1);
    let most = problem.group().div_ceil(choice.workers.div_ceil(key_heads).max(1));
    most.min(fitting.min(MAX_TILES) / choice.group.max(1)).max(1)
}

/// Returns the largest number of workers below that of `choice` for which the workspace fits; 1 if it never fits. The
/// workspace must grow with the number of workers.
fn fewer_workers(choice: &CpuChoice, fits: impl Fn(&CpuChoice) -> bool) -> usize {
    let (mut few, mut many) = (1, choice.workers);
    while many - few > 1 {
        let workers = usize::midpoint(few, many);
        match fits(&CpuChoice { workers, ..*choice }) {
            true => few = workers,
            false => many = workers,
        }
    }
    few
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::mask::{MaskKind, MaskView};
    use crate::attention::problem::Spec;
    use crate::profile::InstructionSet;
    use crate::view::{Layout, View};

    const WIDE: KernelSpec = KernelSpec {
        name: "wide",
        set: InstructionSet::Scalar,
        lanes: 16,
        vectors: 3,
        tile_keys: 8,
        group: 4,
        keys: KeyLayout::Rows,
        most_queries: usize::MAX,
        weight_scale: 1.0,
        chain: 64,
        weight_sums: 1,
        exp2_relative: 1.6e-7,
        fused: true,
        raises: false,
        together: 1,
    };

    fn spec(dtype: DType, heads: usize, queries: usize, keys: usize, [d, dv]: [usize; 2]) -> Spec {
        let of = |n, d| View::dense("x", Layout::Bhnd, &[heads, n, d], None).unwrap();
        Spec::new(dtype, of(queries, d), of(keys, d), of(keys, dv), of(queries, dv))
    }

    fn chosen(spec: Spec, kernel: &KernelSpec, l2: usize, workers: usize, all_workers: bool) -> CpuChoice {
        let device = DeviceProfile { l2, ..DeviceProfile::modest() };
        let options = Options { workers, all_workers, ..Options::default() };
        choose(&spec.check().unwrap(), &device, [kernel], &options).unwrap()
    }

    /// Checks the number of workers for a problem of two heads with two tiles each. The work of the problem justifies 3.5
    /// workers.
    #[test]
    fn workers_follow_the_work_and_the_tiles() {
        let workers =
            |most, all| chosen(spec(DType::F32, 2, 64, 256, [24, 32]), &WIDE, 1 << 20, most, all).workers;
        assert_eq!([0, 1, 2, 3, 8].map(|most| workers(most, false)), [1, 1, 2, 3, 3]);
        assert_eq!([0, 1, 2, 3, 8].map(|most| workers(most, true)), [1, 1, 2, 3, 4]);
        let few = chosen(spec(DType::F32, 2, 64, 25, [24, 32]), &WIDE, 1 << 20, 8, false);
        assert_eq!(few.workers, 1);
    }

    /// Checks that a call has no more workers than its plan, and no more than the pairs of queries and keys of the call
    /// justify.
    #[test]
    fn the_workers_of_a_call_follow_its_lengths() {
        let choice = |all| chosen(spec(DType::F32, 2, 64, 256, [24, 32]), &WIDE, 1 << 20, 8, all);
        let pairs =
            [0, 2 * 64, 2 * 64 * 146, 2 * 64 * 147, 2 * 64 * 219, 2 * 64 * 220, 2 * 64 * 256, usize::MAX];
        assert_eq!(pairs.map(|n| choice(false).workers_for(n as f64)), [1, 1, 1, 2, 2, 3, 3, 3]);
        assert_eq!(pairs.map(|n| choice(true).workers_for(n as f64)), [4; 8]);
        let few = CpuChoice { workers: 2, ..choice(false) };
        assert_eq!(pairs.map(|n| few.workers_for(n as f64)), [1, 1, 1, 2, 2, 2, 2, 2]);
    }

    /// Checks that a task serves all heads that read its key head if tiles take their steps together, unless there
    /// would be fewer tasks than workers, too many tiles, or masks that differ between the heads.
    #[test]
    fn heads_that_share_keys_share_a_task() {
        let row = KernelSpec { lanes: 1, vectors: 1, together: 4, ..WIDE };
        let grouped = |heads, kv_heads, queries| {
            let of = |h, n| View::dense("x", Layout::Bhnd, &[h, n, 32], None).unwrap();
            let key = of(kv_heads, 4096);
            Spec::new(DType::F32, of(heads, queries), key, key, of(heads, queries))
        };
        let heads = |spec: Spec, workers| {
            let choice = chosen(spec, &row, 8 << 20, workers, true);
            (choice.heads, choice.head_sets(spec.check().unwrap().group()))
        };
        assert_eq!(heads(grouped(32, 8, 1), 1), (4, 1));
        assert_eq!(heads(grouped(32, 8, 1), 8), (4, 1));
        assert_eq!(heads(grouped(32, 8, 1), 9), (2, 2));
        assert_eq!(heads(grouped(32, 8, 1), 32), (1, 4));
        assert_eq!(heads(grouped(7, 1, 1), 3), (3, 3));
        assert_eq!(heads(grouped(64, 1, 1), 1), (MAX_TILES, 3));
        assert_eq!(heads(grouped(64, 1, 4), 1), (MAX_TILES / 4, 11));
        assert_eq!(heads(grouped(8, 8, 1), 1), (1, 1));
        let masked = |dims: &[usize]| {
            let mask = Some(MaskView::dense(MaskKind::Bool, dims).unwrap());
            heads(Spec { mask, ..grouped(8, 2, 1) }, 1).0
        };
        assert_eq!([masked(&[1, 1, 1, 4096]), masked(&[1, 8, 1, 4096])], [4, 1]);
        assert_eq!(chosen(grouped(32, 8, 1), &WIDE, 8 << 20, 1, true).heads, 1);
    }

    /// Checks that measured decisions replace those of the chooser, as far as there are tiles and threads.
    #[test]
    fn a_measured_division_decides() {
        let problem = spec(DType::F32, 2, 480, 256, [24, 32]).check().unwrap();
        let device = DeviceProfile { l2: 1 << 20, ..DeviceProfile::modest() };
        let choice = |workers, division| {
            let options = Options { workers, division, ..Options::default() };
            choose(&problem, &device, [&WIDE], &options).map(|choice| choice.division())
        };
        let division = |block, group, workers| CpuDivision { block, group, workers };
        assert_eq!(choice(4, Some(division(128, 2, 3))), Ok(division(128, 2, 3)));
        assert_eq!(choice(2, Some(division(256, 1, 3))), Ok(division(256, 1, 2)));
        // A head has ten tiles.
        assert_eq!(choice(1, Some(division(64, 99, 1))), Ok(division(64, MAX_TILES.min(10), 1)));
        assert_eq!(choice(0, Some(division(64, 0, 0))), Ok(division(64, 1, 1)));
        assert_eq!(choice(1, Some(division(65, 1, 1))), Err(ChooseError::Block { found: 65 }));
        assert_ne!(choice(4, None), choice(4, Some(division(128, 2, 3))));
    }

    #[test]
    fn only_what_the_kernel_cannot_read_in_place_is_copied() {
        let copies = |spec, kernel: &KernelSpec| {
            let choice = chosen(spec, kernel, 1 << 20, 1, false);
            (choice.stage_keys, choice.stage_values, choice.convert)
        };
        let of = |dtype, sizes| spec(dtype, 1, 64, 64, sizes);
        assert_eq!(copies(of(DType::F32, [8, 12]), &WIDE), (false, false, false));
        assert_eq!(copies(of(DType::F32, [7, 12]), &WIDE), (true, false, false));
        assert_eq!(copies(of(DType::F32, [8, 13]), &WIDE), (false, true, false));
        assert_eq!(copies(of(DType::F16, [8, 12]), &WIDE), (true, true, true));
        let panels = KernelSpec { keys: KeyLayout::Panels(8), ..WIDE };
        assert_eq!(copies(of(DType::F32, [8, 12]), &panels), (true, false, false));
        let plain = of(DType::F32, [8, 12]);
        let past = Spec { past_key: Some(plain.key), past_value: Some(plain.value), ..plain };
        assert_eq!(copies(past, &WIDE), (true, true, false));
    }

    /// Checks that the group (the tiles that share a key block) has the size that the kernel prefers, or is larger if
    /// blocks are copied. The size of the group is limited by the number of tiles, by half of L2 and, with several workers,
    /// by eight tasks per worker.
    #[test]
    fn the_group_balances_its_costs() {
        let group = |dtype, heads, queries, keys, l2, workers| {
            let spec = spec(dtype, heads, queries, keys, [64, 64]);
            chosen(spec, &WIDE, l2, workers, true).group
        };
        let large = 64 << 20;
        assert_eq!(group(DType::F32, 1, 1440, 100, large, 1), 4);
        assert_eq!(group(DType::F16, 1, 1440, 100, large, 1), MAX_TILES);
        assert_eq!(group(DType::F16, 1, 96, 100, large, 1), 2);
        // In the first case only keys are copied, in the second only values.
        for dims in [[63, 64], [64, 63]] {
            assert_eq!(chosen(spec(DType::F32, 1, 1440, 100, dims), &WIDE, large, 1, true).group, MAX_TILES);
        }
        // Size in bytes of the queries and states of 48 rows. A row has one state, or two if there is more than one
        // segment of keys.
        let (one, two) = ((64 + 66) * 48 * 4, (64 + 2 * 66) * 48 * 4);
        for (keys, tile) in [(100, one), (600, two)] {
            assert_eq!(group(DType::F32, 1, 1440, keys, 2 * 3 * tile, 1), 3);
            assert_eq!(group(DType::F32, 1, 1440, keys, 2 * 3 * tile - 1, 1), 2);
        }
        assert_eq!(group(DType::F32, 1, 1440, 100, 0, 1), 1);
        // The four heads have 30 tiles each.
        assert_eq!(
            [2, 3, 15, 16].map(|workers| group(DType::F16, 4, 1440, 100, large, workers)),
            [7, 5, 1, 1]
        );
    }

    /// Checks that the budget removes no more workers than necessary.
    #[test]
    fn the_budget_keeps_as_many_workers_as_fit() {
        let problem = spec(DType::F32, 4, 1440, 100, [64, 64]).check().unwrap();
        let with = |budget| {
            let options = Options { workers: 8, all_workers: true, budget, ..Options::default() };
            choose(&problem, &DeviceProfile::modest(), [&WIDE], &options).unwrap()
        };
        let most = with(None);
        assert_eq!((most.workers, most.group), (8, 1));
        let bytes = |workers| WorkspaceLayout::of(&CpuChoice { workers, ..most }).unwrap().bytes();
        for workers in 1..8 {
            for budget in [bytes(workers), bytes(workers + 1) - 1] {
                let choice = with(Some(budget));
                assert_eq!((choice.workers, choice.vectors), (workers, 3));
            }
        }
    }

    #[test]
    fn sizes_are_rounded_up_and_segments_counted() {
        let choice = chosen(spec(DType::F32, 2, 5, 1025, [5, 9]), &WIDE, 1 << 20, 1, false);
        assert_eq!((choice.head_dim, choice.value_dim), (8, 12));
        assert_eq!((choice.block, choice.segment, choice.segments), (64, 512, 3));
        assert_eq!((choice.sequences, choice.extent, choice.masked), (1, [5, 1025, 2], false));
        let empty = chosen(spec(DType::F32, 2, 5, 0, [5, 9]), &WIDE, 1 << 20, 1, false);
        assert_eq!(empty.segments, 1);
    }
}
