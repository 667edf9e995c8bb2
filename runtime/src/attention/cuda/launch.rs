//! Lists the launches of a run, in the order of [`Launches`]:
//!
//! 1. *The table of sequences* is copied to the device, if the plan has one.
//! 2. *The present kernel* runs if the problem has present tensors, once for keys and once for values. It copies past
//!    and new rows, or only new rows if the present tensors already contain the past. The attention kernel then reads
//!    the present tensors.
//! 3. *On Tensor Cores* the keys and values are first split into planes, and a kernel attends the rows that it does not refuse. If a
//!    tensor's rows cannot be read four elements at a time, every row is refused and these kernels do not run.
//! 4. *The attention kernel* has one thread block per sequence, head (or group of heads that share keys), split and row
//!    block. The method math runs three kernels instead: for the scores, for their softmax, and for the product with
//!    the values.
//! 5. *The merge kernel* merges partial states that the attention kernel does not merge itself. It runs if the keys are
//!    divided among blocks, or if the call outputs states or has no output tensor. Outside a capture, some kernels replace 4 and
//!    5 if there are few row blocks: the last block of each row block merges.
//! 6. *The measuring kernel* reads the inputs for the certificate of the run, if the plan certifies. It runs
//!    concurrently with the attention kernel and the kernels after it.

use super::marshal::{self, PartialStates, Sequences};
use super::plan::{Functions, GpuPlan, measuring, presenting};
use crate::cuda::gpu::Gpu;
use crate::cuda::launch::{Grid, Launches, Stored};
use crate::cuda::plan;
use crate::cuda::workspace::{GpuWorkspace, Needs};
use crate::error::{BindError, DeviceError};
use crate::tensors::DeviceTensors;
use elsa_core::attention::plan::{ARRIVALS, GpuWorkspaceLayout, SEQUENCE_BYTES};
use elsa_core::attention::{Lengths, Operand, Operands, Problem};
use elsa_kernels::cuda::attention::{
    AttentionArgs, Budget, LAST_MERGES, MATH_ROWS, MATH_TILE, MathArgs, MeasureArgs, Sequence, WithinArgs,
    merge_blocks,
};
use elsa_kernels::cuda::tensor::Divisor;
use elsa_kernels::cuda::{GpuKernel, HAS_TENSOR_CORES};
use std::sync::Arc;

const _: () = assert!(size_of::<Sequence>() == SEQUENCE_BYTES);

/// Number of threads per warp. The kernel that writes a present tensor copies one row per warp.
const WARP: u32 = 32;
/// Largest number of thread blocks per SM in the kernel that writes a present tensor. Each block copies several rows.
const PRESENT_BLOCKS: usize = 16;

/// Returns `true` if a call outputs states or has no output tensor. Every row then passes through partial states, even
/// if the keys are not divided.
fn is_partial(given: &Operands<bool>) -> bool {
    given[Operand::StateReference] || !given[Operand::Output]
}

impl plan::GpuPlan for GpuPlan {
    type Problem = Problem;

    fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn kernel(&self) -> &'static str {
        self.choice.split.map_or(self.choice.kernel.name, |split| split.kernel.name)
    }

    fn needs(&self) -> Needs {
        let layout = &self.layout;
        let records = layout.records.len.max(layout.left_out.len);
        Needs { scratch: layout.bytes, table: layout.sequences.len, records }
    }

    fn room(&self, given: &Operands<bool>) -> usize {
        match is_partial(given) {
            true => self.bytes_with_states(),
            false => self.layout.bytes,
        }
    }

    fn allows(&self, given: &Operands<bool>) -> Result<(), BindError> {
        self.check_partials(is_partial(given))
    }

    fn launches(
        &self,
        problem: &Problem,
        lengths: Lengths<'_>,
        DeviceTensors { at, .. }: &DeviceTensors<'_, Operand>,
        workspace: &mut GpuWorkspace,
    ) -> Result<Launches, DeviceError> {
        let c = &self.choice;
        let partial = is_partial(&Operands::from_fn(|operand| at[operand] != 0));
        let functions = self.functions(&workspace.context, problem, partial)?;
        let partials = partial_states(self, partial, workspace)?;
        workspace.reserve_records(self.needs().records)?;
        let sequences = fill_sequences(self, problem, &lengths, workspace)?;
        // States that the call outputs pass through the merge kernel.
        let serial = c.serial && !partial;
        let splits = if serial { 1 } else { c.splits };
        let call = marshal::attention(self, problem, at, partials, sequences, serial);
        let mut list = workspace.new_list();
        list.copy_table(sequences.table, c.sequences * size_of::<Sequence>());
        if let Some(function) = &functions.present {
            let grid = present_grid(self, problem)?;
            for present in marshal::presents(problem, at).iter().flatten() {
                let parameter = list.store(present)?;
                // SAFETY: *parameter*: the kernel takes a `PresentArgs`.
                unsafe { list.push(function, grid, parameter)? };
            }
        }
        if let Some(function) = &functions.measure {
            let records = workspace.scratch.address() + self.layout.records.start as u64;
            let measuring = measuring()?.resources().threads as u32;
            let grid = Grid::new(c.records as u32, measuring);
            let measuring = marshal::measure(self, problem, at, &sequences, records);
            let parameter = list.store(&MeasureArgs { call, measuring })?;
            // SAFETY: *parameter*: the kernel takes a `MeasureArgs`.
            unsafe { list.fork(function, grid, parameter) };
        }
        // The chooser has checked that the product below does not overflow for the longest possible sequence.
        let row_blocks = marshal::row_blocks(self, &sequences);
        let tiles = problem.sequences() * (problem.heads() / c.heads_at_once.max(1)) * splits * row_blocks;
        let budget = c.odds().map(|odds| {
            let left_out = workspace.scratch.address() + self.layout.left_out.start as u64;
            marshal::budget(self, problem, odds, left_out, partials)
        });
        let attention = Attend { problem, call, budget, functions: &functions, tiles };
        let scores = workspace.scratch.address() + self.layout.scores.start as u64;
        let blocks = match &functions.matrix {
            Some(_) => attention.math(&mut list, self, scores, sequences.most_keys)?,
            None if HAS_TENSOR_CORES && self.split.is_some() => {
                attention.split(&mut list, self, &sequences, workspace.scratch.address())?
            }
            None => attention.attend(&mut list, self)?,
        };
        if let (Some(function), false) = (&functions.merge, serial) {
            let (merge, states_at_once) = self.merging()?;
            let blocks = match tiles {
                0 => 0,
                _ => merge_blocks(states_at_once, problem.rows(), c.splits, c.partial_dim),
            };
            let grid = Grid::new(blocks as u32, merge.resources().threads as u32);
            let parameter = attention.parameter(&mut list)?;
            // SAFETY: *parameter*: the kernel takes a `WithinArgs` if there is an error budget, and an `AttentionArgs`
            // otherwise.
            unsafe { list.push(function, grid, parameter)? };
            let counted = problem.sequences() * problem.heads() * row_blocks;
            if !partial && c.splits <= c.kernel.merges && counted <= ARRIVALS {
                let flags = call.flags | LAST_MERGES;
                let parameter = list.store(&AttentionArgs { flags, ..call })?;
                let grid = Grid::new(tiles as u32, c.kernel.resources.threads as u32);
                let counters = (workspace.scratch.address() + self.layout.arrivals.start as u64, ARRIVALS);
                // SAFETY: *parameter*: a kernel that can merge takes an `AttentionArgs`. *counters*: it resets the counters,
                // and no region of a layout overlaps them.
                unsafe { list.instead(&functions.attention, grid, parameter, 2, counters) };
            }
        }
        list.shared_by(blocks);
        Ok(list)
    }
}

/// Returns the number of thread blocks and threads for the kernel that writes a present tensor.
fn present_grid(plan: &GpuPlan, problem: &Problem) -> Result<Grid, DeviceError> {
    let threads = (presenting()?.resources().threads as u32).max(WARP);
    let written = problem.keys() - problem.kept_tokens(Operand::PresentKey).unwrap_or(0);
    let rows = problem.spec().key.batch() * problem.kv_heads() * written;
    let most = PRESENT_BLOCKS * plan.gpu.profile().sms.max(1);
    let blocks = rows.div_ceil((threads / WARP) as usize).min(most);
    Ok(Grid::new(blocks as u32, threads))
}

/// Data for the launches of the attention kernel, the merge kernel and the kernels of method math.
struct Attend<'a> {
    problem: &'a Problem,
    call: AttentionArgs,
    /// Error budget of the plan, if it has one.
    budget: Option<Budget>,
    functions: &'a Functions,
    /// Number of row blocks, summed over all sequences, heads and splits.
    tiles: usize,
}

impl Attend<'_> {
    /// Stores in `list` the parameter that the attention kernel and the merge kernel share.
    fn parameter(&self, list: &mut Launches) -> Result<Stored, DeviceError> {
        match self.budget {
            Some(budget) => list.store(&WithinArgs { call: self.call, budget }),
            None => list.store(&self.call),
        }
    }

    /// Adds the launch of the attention kernel to `list`. Returns the number of thread blocks of this launch.
    fn attend(&self, list: &mut Launches, plan: &GpuPlan) -> Result<usize, DeviceError> {
        let threads = plan.choice.kernel.resources.threads as u32;
        let parameter = self.parameter(list)?;
        let grid = Grid::new(self.tiles as u32, threads);
        // SAFETY: *parameter*: the kernel takes a `WithinArgs` if there is an error budget, and an `AttentionArgs`
        // otherwise.
        unsafe { list.push(&self.functions.attention, grid, parameter)? };
        Ok(self.tiles)
    }

    /// Adds the launches on Tensor Cores to `list`, and that of the kernel for the rows that they refuse. The workspace is at
    /// address `scratch`. Returns the number of thread blocks on Tensor Cores, or of the last launch if they do not compute.
    fn split(
        &self,
        list: &mut Launches,
        plan: &GpuPlan,
        sequences: &Sequences,
        scratch: u64,
    ) -> Result<usize, DeviceError> {
        let (Some(choice), Some([planes, attend])) = (&plan.choice.split, &self.functions.split) else {
            return Ok(0);
        };
        let (refused, own) = marshal::split(plan, choice, self.problem, self.call, sequences, scratch);
        let possible = marshal::reads_four(&self.call);
        list.fill(
            scratch + plan.layout.zeroed.start as u64,
            choice.words().iter().sum(),
            u32::from(!possible),
        );
        let threads = |kernel: &GpuKernel| kernel.resources().threads as u32;
        let mut blocks = self.tiles;
        if let (true, Some(kernels)) = (possible, &plan.split) {
            let row_blocks = own.call.row_blocks as usize;
            blocks = choice.sequences * choice.heads * plan.choice.splits * row_blocks;
            let of_heads = 2 * choice.sequences * choice.kv_heads;
            let pieces = if blocks == 0 { 0 } else { of_heads * marshal::split_tiles(choice, sequences) };
            let parameter = list.store(&own)?;
            let shared = choice.kernel.resources.shared as u32;
            let grid = Grid { shared, ..Grid::new(blocks as u32, threads(kernels.attend)) };
            // SAFETY: *parameter*: both kernels take a `SplitArgs`.
            unsafe {
                list.push(planes, Grid::new(pieces as u32, threads(kernels.planes)), parameter)?;
                list.push(attend, grid, parameter)?;
            }
        }
        let parameter = list.store(&refused)?;
        // SAFETY: *parameter*: the kernel takes a `SplitArgs`.
        unsafe {
            list.push(
                &self.functions.attention,
                Grid::new(self.tiles as u32, threads(plan.attention)),
                parameter,
            )?;
        }
        Ok(blocks)
    }

    /// Adds the launches of method math to `list`. The score matrix is at address `scores`. Returns the number of
    /// thread blocks in the last launch.
    fn math(
        &self,
        list: &mut Launches,
        plan: &GpuPlan,
        scores: u64,
        most_keys: usize,
    ) -> Result<usize, DeviceError> {
        let Some([of_scores, of_weights]) = &self.functions.matrix else { return Ok(0) };
        let (stride, threads) = (plan.choice.scores as i64, plan.choice.kernel.resources.threads as u32);
        let grid = |blocks: usize| Grid::new(blocks as u32, threads);
        let of_columns = |columns: usize| {
            let by_columns = Divisor::new(columns as i32);
            MathArgs { call: self.call, scores, stride, by_columns, columns: columns as i32, unused: 0 }
        };
        let [keys, dims] = [most_keys, self.problem.value_dim()].map(|n| n.div_ceil(MATH_TILE));
        let (of_keys, of_values) = (list.store(&of_columns(keys))?, list.store(&of_columns(dims))?);
        // SAFETY: *parameter*: these kernels take a `MathArgs`.
        unsafe {
            list.push(of_scores, grid(self.tiles * keys), of_keys)?;
            list.push(of_weights, grid(self.problem.rows().div_ceil(MATH_ROWS)), of_keys)?;
            list.push(&self.functions.attention, grid(self.tiles * dims), of_values)?;
        }
        Ok(self.tiles * dims)
    }
}

/// Returns the addresses of the partial states. A run has partial states if the keys are divided, or if `partial` is
/// set (see [`GpuPlan::functions`]). Without partial states, the addresses are zero. The method math is an exception:
/// it always has memory for one reference and one sum per row.
fn partial_states(
    plan: &GpuPlan,
    partial: bool,
    workspace: &mut GpuWorkspace,
) -> Result<PartialStates, DeviceError> {
    let (base, layout) = if plan.choice.divided() {
        (workspace.scratch.address(), plan.layout)
    } else if let (true, Some(layout)) = (partial, GpuWorkspaceLayout::of(&plan.choice, true)) {
        (workspace.reserve_extra(plan.layout.bytes, layout.partial_bytes())?, layout)
    } else if plan.choice.scores > 0 {
        let ms = workspace.scratch.address() + plan.layout.partial_ms.start as u64;
        return Ok(PartialStates { ms, w: 0, d: 0 });
    } else {
        return Ok(PartialStates::default());
    };
    let [ms, w, d] =
        [layout.partial_ms, layout.partial_w, layout.partial_d].map(|span| base + span.start as u64);
    Ok(PartialStates { ms, w, d })
}

/// Fills the table of sequences on the host, if the plan has one.
fn fill_sequences(
    plan: &GpuPlan,
    problem: &Problem,
    lengths: &Lengths<'_>,
    workspace: &mut GpuWorkspace,
) -> Result<Sequences, DeviceError> {
    let count = plan.choice.sequences;
    if count == 0 {
        let sequence = problem.sequence(lengths, 0);
        return Ok(Sequences {
            table: 0,
            shared: marshal::sequence(&sequence),
            longest: sequence.queries,
            most_keys: sequence.reach(),
        });
    }
    let frozen = workspace.graph.table / size_of::<Sequence>();
    let entries = workspace.open_table(plan.layout.sequences.len)?.cast::<Sequence>();
    let (mut longest, mut most_keys) = (0, 0);
    for index in 0..count {
        let entry = problem.sequence(lengths, index);
        longest = longest.max(entry.queries);
        most_keys = most_keys.max(entry.reach());
        let entry = marshal::sequence(&entry);
        if index < frozen {
            // SAFETY: *room*: a captured run has filled the first `frozen` entries of the table.
            if unsafe { entries.add(index).read() } != entry {
                return Err(DeviceError::Captured);
            }
            continue;
        }
        // SAFETY: *room*: the table has `count` entries and is aligned. No pending copy or graph still reads this
        // entry.
        unsafe { entries.add(index).write(entry) };
    }
    let table = workspace.scratch.address() + plan.layout.sequences.start as u64;
    let shared = marshal::sequence(&elsa_core::attention::Sequence::default());
    Ok(Sequences { table, shared, longest, most_keys })
}
