//! The launch of a run: its kernels, their parameters and their grids.
//!
//! A run enqueues up to five steps, all but the last in one stream, in this order:
//!
//! 1. *The table of sequences* is copied to the device, if the plan has one. [`Launch::prepare`] writes it on the host,
//!    after waiting for the copy of an earlier run that may still read it.
//! 2. *The present kernel* copies past and new rows, once for keys and once for values, if the problem has present
//!    tensors; new rows alone if they hold the past. The attention kernel then reads those.
//! 3. *The attention kernel* has one block of threads per sequence, head (or group of heads that share keys), split and
//!    block of rows. Method math has three kernels instead, of which the last takes that place: the scores, their softmax,
//!    the product with the values.
//! 4. *The merge kernel* follows if there are partial states: if the keys are divided, or if the call outputs states
//!    or no output.
//! 5. *The measuring kernel* reads the inputs for the certificate of the run, if the plan certifies. It has a stream of its
//!    own, which begins where the attention kernel may and which the run's stream waits for at the end, so that it
//!    takes what the attention leaves idle.
//!
//! [`Launch::prepare`] computes everything when tensors are bound. [`Launch::enqueue`] only passes it to the driver, so
//! a run makes no decision and allocates nothing.

use super::marshal::{self, PartialStates, Sequences};
use super::plan::{Functions, GpuPlan, measuring, merging, presenting};
use super::workspace::GpuWorkspace;
use crate::cuda::driver::{Entered, Function, RawStream};
use crate::error::DeviceError;
use elsa_core::attention::plan::GpuWorkspaceLayout;
use elsa_core::attention::{Lengths, Operand, Operands, Problem};
use elsa_kernels::cuda::attention::{
    AttentionArgs, MATH_ROWS, MATH_TILE, MathArgs, MeasureArgs, Measuring, PresentArgs, Sequence,
    merge_blocks,
};
use elsa_kernels::cuda::tensor::Divisor;

/// Threads of a warp. The kernel that writes the present copies one row per warp.
const WARP: u32 = 32;
/// Largest number of blocks per SM of the kernel that writes the present. The blocks stride over the rows.
const PRESENT_BLOCKS: usize = 16;

/// The number of blocks of a launch, and of threads per block.
#[derive(Clone, Copy, Debug)]
struct Grid {
    blocks: u32,
    threads: u32,
}

impl Grid {
    /// Enqueues a kernel; does nothing if there are no blocks.
    ///
    /// # Safety
    /// The clauses of [`RawStream::launch`].
    unsafe fn launch<P>(
        self,
        entered: &Entered<'_>,
        stream: RawStream,
        function: &Function,
        parameter: &P,
    ) -> Result<(), DeviceError> {
        if self.blocks == 0 {
            return Ok(());
        }
        // SAFETY: the clauses of this function.
        unsafe { stream.launch(entered, function, self.blocks, self.threads, parameter) }
    }
}

/// What method math launches besides the call's grid: the blocks of its steps, and where its matrix lies.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    /// Scores and weights.
    grids: [Grid; 2],
    /// Address of the matrix, and f32 values from one row to the next.
    scores: u64,
    stride: i64,
    /// Blocks of columns of scores and of the output.
    columns: [usize; 2],
}

impl Matrix {
    /// The parameter of a step whose product has so many blocks of columns.
    fn parameter(&self, call: &AttentionArgs, columns: usize) -> MathArgs {
        let columns = columns as i32;
        let by_columns = Divisor::new(columns);
        MathArgs { call: *call, scores: self.scores, stride: self.stride, by_columns, columns, unused: 0 }
    }
}

/// Everything that a run launches: kernels, their parameters and their grids.
#[derive(Clone, Debug)]
pub struct Launch {
    functions: Functions,
    call: AttentionArgs,
    matrix: Option<Matrix>,
    presents: [Option<PresentArgs>; 2],
    measure: Option<Measuring>,
    attention: Grid,
    merge: Grid,
    present: Grid,
    measuring: Grid,
    /// Size of the table of sequences in bytes.
    table: usize,
}

impl Launch {
    /// Fills the kernel parameters and the table of sequences. If an earlier run may still be reading the table,
    /// waits for it. `at` holds the device address of every operand, zero if the call does not have it.
    ///
    /// # Errors
    /// Returns an error if memory is not available, or if the device fails.
    pub fn prepare(
        plan: &GpuPlan,
        problem: &Problem,
        lengths: &Lengths<'_>,
        at: &Operands<u64>,
        workspace: &mut GpuWorkspace,
    ) -> Result<Launch, DeviceError> {
        let c = &plan.choice;
        let partial = at[Operand::StateReference] != 0 || at[Operand::Output] == 0;
        let functions = plan.functions(&workspace.context, problem, partial)?;
        let partials = partial_states(plan, partial, workspace)?;
        let sequences = fill_sequences(plan, problem, lengths, workspace)?;
        let call = marshal::attention(plan, problem, at, partials, sequences);
        let presents = marshal::presents(problem, at);
        let records = workspace.scratch.address() + plan.layout.records.start as u64;
        let measure = functions.measure.is_some();
        let measure = measure.then(|| marshal::measure(plan, problem, at, &sequences, records));
        let measuring = Grid { blocks: c.records as u32, threads: measuring()?.resources().threads as u32 };
        // The chooser has checked that this product fits for the longest possible sequence.
        let row_blocks = marshal::row_blocks(plan, &sequences);
        let blocks = problem.sequences() * (problem.heads() / c.heads_at_once.max(1)) * c.splits * row_blocks;
        let matrix = (c.scores > 0).then(|| {
            let columns = [sequences.most_keys, problem.value_dim()].map(|n| n.div_ceil(MATH_TILE));
            let threads = c.kernel.resources.threads as u32;
            // The chooser has checked that these products fit, too.
            let grids = [blocks * columns[0], problem.rows().div_ceil(MATH_ROWS)];
            Matrix {
                grids: grids.map(|blocks| Grid { blocks: blocks as u32, threads }),
                scores: workspace.scratch.address() + plan.layout.scores.start as u64,
                stride: c.scores as i64,
                columns,
            }
        });
        let (merge, states_at_once) = merging(c.splits)?;
        let merge_blocks = match blocks {
            0 => 0,
            _ => merge_blocks(states_at_once, problem.rows(), c.splits, c.partial_dim),
        };
        let blocks = matrix.map_or(blocks, |matrix| blocks * matrix.columns[1]);
        let threads = (presenting()?.resources().threads as u32).max(WARP);
        let written = problem.keys() - problem.kept(Operand::PresentKey).unwrap_or(0);
        let rows = problem.spec().key.batch() * problem.kv_heads() * written;
        let most = PRESENT_BLOCKS * plan.gpu.profile().sms.max(1);
        let present_blocks = rows.div_ceil((threads / WARP) as usize).min(most);
        Ok(Launch {
            functions,
            call,
            matrix,
            presents,
            measure,
            measuring,
            attention: Grid { blocks: blocks as u32, threads: c.kernel.resources.threads as u32 },
            merge: Grid { blocks: merge_blocks as u32, threads: merge.resources().threads as u32 },
            present: Grid { blocks: present_blocks as u32, threads },
            table: c.sequences * size_of::<Sequence>(),
        })
    }

    /// Number of blocks of threads of the attention kernel.
    pub fn attention_blocks(&self) -> usize {
        self.attention.blocks as usize
    }

    /// Number of entries of the table of sequences.
    pub fn entries(&self) -> usize {
        self.table / size_of::<Sequence>()
    }

    /// Enqueues the whole run. `captured` says whether the stream is.
    ///
    /// # Safety
    /// *room* and *alive* for every address of the call, including those of the workspace.
    pub unsafe fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: RawStream,
        workspace: &GpuWorkspace,
        captured: bool,
    ) -> Result<(), DeviceError> {
        if self.table > 0 {
            let to = self.call.sequences;
            // SAFETY: *room*: `prepare` laid out and filled the table on both sides. *alive*: the workspace waits
            // for `uploaded` before it writes the table again, and for pending work before it is freed.
            unsafe { stream.copy_in(entered, to, workspace.table.data(), self.table)? };
            workspace.uploaded.record(entered, stream)?;
        }
        if let Some(function) = &self.functions.present {
            for present in self.presents.iter().flatten() {
                // SAFETY: the clauses of this function; the kernel takes a `PresentArgs`.
                unsafe { self.present.launch(entered, stream, function, present)? };
            }
        }
        let Some((function, measure)) = self.functions.measure.as_ref().zip(self.measure.as_ref()) else {
            // SAFETY: the clauses of this function.
            return unsafe { self.attend(entered, stream) };
        };
        let beside = workspace.beside.as_ref().ok_or(DeviceError::NoKernel { role: "measuring" })?;
        beside.inputs.record(entered, stream)?;
        // SAFETY: the clauses of this function.
        unsafe { self.attend(entered, stream)? };
        let own = beside.stream.raw();
        beside.inputs.precede(entered, own)?;
        let parameter = MeasureArgs { call: self.call, measuring: *measure };
        // SAFETY: the clauses of this function; the kernel takes a `MeasureArgs`.
        unsafe { self.measuring.launch(entered, own, function, &parameter)? };
        let joined = beside.done.record(entered, own).and_then(|()| beside.done.precede(entered, stream));
        if joined.is_err() && !captured {
            // The run's stream does not wait for the kernel, so this call does.
            own.synchronize(entered)?;
        }
        joined
    }

    /// Enqueues the attention kernel, and the merge if there is one.
    ///
    /// # Safety
    /// The clauses of [`Launch::enqueue`].
    unsafe fn attend(&self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        match self.functions.matrix.as_ref().zip(self.matrix.as_ref()) {
            Some(([scores, weights], matrix)) => {
                let [of_keys, of_values] = matrix.columns.map(|n| matrix.parameter(&self.call, n));
                let [tiles, rows] = matrix.grids;
                // SAFETY: the clauses of this function; these kernels take a `MathArgs`.
                unsafe {
                    tiles.launch(entered, stream, scores, &of_keys)?;
                    rows.launch(entered, stream, weights, &of_keys)?;
                    self.attention.launch(entered, stream, &self.functions.attention, &of_values)?;
                }
            }
            // SAFETY: the clauses of this function; the kernel takes an `AttentionArgs`.
            None => unsafe {
                self.attention.launch(entered, stream, &self.functions.attention, &self.call)?;
            },
        }
        if let Some(merge) = &self.functions.merge {
            // SAFETY: as above.
            unsafe { self.merge.launch(entered, stream, merge, &self.call)? };
        }
        Ok(())
    }
}

/// The addresses of the partial states, if the run has any. It has if the keys are divided, and if it is `partial`, as
/// in [`GpuPlan::functions`]. Method math has a reference and a sum of each row in any case.
fn partial_states(
    plan: &GpuPlan,
    partial: bool,
    workspace: &mut GpuWorkspace,
) -> Result<PartialStates, DeviceError> {
    let (base, layout) = if plan.choice.divided() {
        (workspace.scratch.address(), plan.layout)
    } else if let (true, Some(layout)) = (partial, GpuWorkspaceLayout::of(&plan.choice, true)) {
        (workspace.reserve_state_partials(plan.layout.bytes, layout.partial_bytes())?, layout)
    } else if plan.choice.scores > 0 {
        let ms = workspace.scratch.address() + plan.layout.partial_ms.start as u64;
        return Ok(PartialStates { ms, w: 0 });
    } else {
        return Ok(PartialStates::default());
    };
    Ok(PartialStates { ms: base + layout.partial_ms.start as u64, w: base + layout.partial_w.start as u64 })
}

/// Writes the table of sequences on the host, if the plan has one.
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
    let frozen = workspace.graph.entries;
    if !workspace.graph.uploads {
        let entered = workspace.context.enter()?;
        workspace.uploaded.synchronize(&entered)?;
    }
    let entries = workspace.table.data().cast::<Sequence>();
    let (mut longest, mut most_keys) = (0, 0);
    for index in 0..count {
        let entry = problem.sequence(lengths, index);
        longest = longest.max(entry.queries);
        most_keys = most_keys.max(entry.reach());
        let entry = marshal::sequence(&entry);
        if index < frozen {
            // SAFETY: *room*: a captured run has filled as many entries of the table.
            if unsafe { entries.add(index).read() } != entry {
                return Err(DeviceError::Captured);
            }
            continue;
        }
        // SAFETY: *room*: the table has `count` entries and is aligned. No copy reads this one any longer, and no graph
        // does.
        unsafe { entries.add(index).write(entry) };
    }
    let table = workspace.scratch.address() + plan.layout.sequences.start as u64;
    let shared = marshal::sequence(&elsa_core::attention::Sequence::default());
    Ok(Sequences { table, shared, longest, most_keys })
}
