//! The kernels of a run, with everything that they are told, in the order in which they are launched.

use super::marshal::{self, PartialStates, Sequences};
use super::plan::{Functions, GpuPlan, merging, presenting};
use super::workspace::GpuWorkspace;
use crate::cuda::driver::{Entered, Function, RawStream};
use crate::error::DeviceError;
use elsa_core::attention::plan::GpuWorkspaceLayout;
use elsa_core::attention::{Lengths, Operand, Operands, Problem};
use elsa_kernels::cuda::attention::{AttentionArgs, PresentArgs, Sequence, merge_blocks};

/// Threads of a warp. The kernel that writes the present takes one row a warp.
const WARP: u32 = 32;
/// Blocks of the kernel that writes the present, for each SM; they stride over the rows.
const PRESENT_BLOCKS: usize = 16;

/// Blocks of a launch, and threads of each.
#[derive(Clone, Copy, Debug)]
struct Grid {
    blocks: u32,
    threads: u32,
}

impl Grid {
    /// Enqueues a kernel; nothing without blocks.
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

/// What is launched.
#[derive(Clone, Debug)]
pub struct Launch {
    functions: Functions,
    call: AttentionArgs,
    presents: [Option<PresentArgs>; 2],
    attention: Grid,
    merge: Grid,
    present: Grid,
    /// Bytes of the table of sequences.
    table: usize,
}

impl Launch {
    /// Fills what the kernels are told. Waits for a table that an earlier run may still be reading. `at` holds the
    /// device address of every operand, zero where the frame does not have it.
    ///
    /// # Errors
    /// Memory that is not there, and a device that fails.
    pub fn prepare(
        plan: &GpuPlan,
        problem: &Problem,
        lengths: &Lengths<'_>,
        at: &Operands<u64>,
        workspace: &mut GpuWorkspace,
    ) -> Result<Launch, DeviceError> {
        let c = &plan.choice;
        let states = at[Operand::StateReference] != 0;
        let functions = plan.functions(&workspace.context, problem, states)?;
        let parts = partial_states(plan, states, workspace)?;
        let sequences = fill_sequences(plan, problem, lengths, workspace)?;
        let call = marshal::attention(plan, problem, at, parts, sequences);
        let presents = marshal::presents(problem, &call, at);
        // The chooser has found this product to fit, with the blocks of the longest sequence that there can be.
        let row_blocks = sequences.longest.div_ceil(c.kernel.rows.max(1));
        let blocks = problem.sequences() * problem.heads() * c.splits * row_blocks;
        let (merge, at_once) = merging(c.splits)?;
        let merge_blocks = match blocks {
            0 => 0,
            _ => merge_blocks(at_once, problem.rows(), c.splits, c.partial_dim),
        };
        let threads = (presenting()?.resources().threads as u32).max(WARP);
        let rows = problem.spec().key.batch() * problem.kv_heads() * problem.keys();
        let most = PRESENT_BLOCKS * plan.gpu.profile().sms.max(1);
        let present_blocks = rows.div_ceil((threads / WARP) as usize).min(most);
        Ok(Launch {
            functions,
            call,
            presents,
            attention: Grid { blocks: blocks as u32, threads: c.kernel.resources.threads as u32 },
            merge: Grid { blocks: merge_blocks as u32, threads: merge.resources().threads as u32 },
            present: Grid { blocks: present_blocks as u32, threads },
            table: c.sequences * size_of::<Sequence>(),
        })
    }

    /// Blocks of threads of the attention kernel.
    pub fn attention_blocks(&self) -> usize {
        self.attention.blocks as usize
    }

    /// Enqueues everything.
    ///
    /// # Safety
    /// *room* and *alive* for every address of the call, for the workspace's too.
    pub unsafe fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: RawStream,
        workspace: &GpuWorkspace,
    ) -> Result<(), DeviceError> {
        if self.table > 0 {
            let to = self.call.sequences;
            // SAFETY: *room*: `prepare` laid out and filled the table on both sides. *alive*: the workspace
            // waits for `uploaded` before it writes the table again, and for what is pending before it goes.
            unsafe { stream.copy_in(entered, to, workspace.table.data(), self.table)? };
            workspace.uploaded.record(entered, stream)?;
        }
        if let Some(function) = &self.functions.present {
            for present in self.presents.iter().flatten() {
                // SAFETY: the clauses of this function; the kernel takes a `PresentArgs`.
                unsafe { self.present.launch(entered, stream, function, present)? };
            }
        }
        // SAFETY: the clauses of this function; the kernel takes a `AttentionArgs`.
        unsafe { self.attention.launch(entered, stream, &self.functions.attention, &self.call)? };
        if let Some(merge) = &self.functions.merge {
            // SAFETY: as above.
            unsafe { self.merge.launch(entered, stream, merge, &self.call)? };
        }
        Ok(())
    }
}

/// Where the partial states lie, if there are any: where the keys are divided, and where states are requested, which go
/// through memory even when the keys are not divided.
fn partial_states(
    plan: &GpuPlan,
    states: bool,
    workspace: &mut GpuWorkspace,
) -> Result<PartialStates, DeviceError> {
    let (base, layout) = if plan.choice.divided() {
        (workspace.parts.address(), plan.layout)
    } else if let (true, Some(layout)) = (states, GpuWorkspaceLayout::of(&plan.choice, true)) {
        workspace.reserve_state_parts(layout.partial_w.start + layout.partial_w.len)?;
        (workspace.state_parts.as_ref().map_or(0, |parts| parts.address()), layout)
    } else {
        return Ok(PartialStates::default());
    };
    Ok(PartialStates { ms: base + layout.partial_ms.start as u64, w: base + layout.partial_w.start as u64 })
}

/// Writes the table of sequences on the host, where the plan has one.
fn fill_sequences(
    plan: &GpuPlan,
    problem: &Problem,
    lengths: &Lengths<'_>,
    workspace: &mut GpuWorkspace,
) -> Result<Sequences, DeviceError> {
    let count = plan.choice.sequences;
    if count == 0 {
        let one = problem.sequence(lengths, 0);
        return Ok(Sequences { table: 0, one: marshal::sequence(&one), longest: one.queries });
    }
    let entered = workspace.context.enter()?;
    workspace.uploaded.synchronize(&entered)?;
    let entries = workspace.table.data().cast::<Sequence>();
    let mut longest = 0;
    for index in 0..count {
        let entry = problem.sequence(lengths, index);
        longest = longest.max(entry.queries);
        // SAFETY: *room*: the table has `count` entries and is aligned; no copy reads it any more.
        unsafe { entries.add(index).write(marshal::sequence(&entry)) };
    }
    let table = workspace.parts.address() + plan.layout.sequences.start as u64;
    let one = marshal::sequence(&elsa_core::attention::Sequence::default());
    Ok(Sequences { table, one, longest })
}
