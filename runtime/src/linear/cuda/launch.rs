//! The launches of a run: those of a form, for each pass over the tokens.
//!
//! | direction | passes |
//! |---|---|
//! | forward, reverse | one, from the past states to the present |
//! | bidirectional | one to f32 answers, then one in reverse that adds them |
//! | non-causal | one without answers, then every token reads the last states |
//!
//! Where several heads read a state, each carries it for itself. A present that is the past must then not change before all
//! have read it: the last states go to a place in the workspace first, and a launch over no tokens copies them.

use super::layout::{gates, holds, sums, transition_row};
use super::marshal::{
    self, Sequences, common, copy, dense, past_and_present, with_answers, with_parts, with_states,
};
use super::plan::{GpuPlan, Kernels};
use crate::cuda::gpu::Gpu;
use crate::cuda::launch::{Grid, Launches, Stored};
use crate::cuda::marshal::{dtype, tensor};
use crate::cuda::plan;
use crate::cuda::workspace::{GpuWorkspace, Needs};
use crate::error::DeviceError;
use crate::tensors::PerTensor;
use elsa_core::linear::{Direction, Form, Operand, Operands, Problem};
use elsa_kernels::cuda::linear::{
    CHUNK, LinearArgs, LinearSequence, READ, REVERSE, STEPS, States, SumsArgs, prepare_blocks, walk_blocks,
};
use elsa_kernels::cuda::tensor::{TYPE_F32, Tensor};
use std::sync::Arc;

impl plan::GpuPlan for GpuPlan {
    type Problem = Problem;

    fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    fn kernel(&self) -> &'static str {
        self.choice.kernel
    }

    fn needs(&self) -> Needs {
        Needs { scratch: self.layout.bytes, table: self.layout.table, records: 0 }
    }

    fn launches(
        &self,
        problem: &Problem,
        cu_seqlens: Option<&[i64]>,
        at: &PerTensor<u64>,
        workspace: &mut GpuWorkspace,
    ) -> Result<Launches, DeviceError> {
        let at = Operands::from_fn(|operand| at[operand as usize]);
        let kernels = self.load(&workspace.context)?;
        let scratch = workspace.scratch.address();
        let (sequences, table) = fill_sequences(self, problem, cu_seqlens, workspace)?;
        let args = common(self, problem, &at, &sequences, scratch);
        let mut list = Launches::default();
        list.copy_table(sequences.table, table);
        let longest = sequences.longest;
        let mut call = Call { plan: self, problem, kernels, scratch, longest, list, blocks: 0 };
        call.fill(args, &at)?;
        let Call { mut list, blocks, .. } = call;
        list.shared_by(blocks);
        Ok(list)
    }
}

/// A list of launches that is being filled.
struct Call<'a> {
    plan: &'a GpuPlan,
    problem: &'a Problem,
    kernels: Kernels,
    scratch: u64,
    /// Chunks of the longest sequence.
    longest: usize,
    list: Launches,
    /// Blocks of the last launch that writes answers, or of the last one.
    blocks: usize,
}

impl Call<'_> {
    /// Lists the passes of a call. `args` are what they have in common.
    fn fill(&mut self, args: LinearArgs, at: &Operands<u64>) -> Result<(), DeviceError> {
        let spec = self.problem.spec();
        let [past, present] = past_and_present(self.problem, at);
        let (address, own) = (at[Operand::Output], dtype(spec.dtype));
        let output = if address == 0 { Tensor::default() } else { tensor(&spec.output, address) };
        let (none, none_before) = (States::default(), Tensor::default());
        let held = match holds(self.problem, self.plan.choice.form) {
            true => self.states(1, self.plan.layout.held),
            false => none,
        };
        match spec.direction {
            Direction::Forward | Direction::Reverse => {
                let reverse = spec.direction == Direction::Reverse;
                let last = if held.data == 0 { present } else { held };
                let args = with_answers(args, output, own, none_before);
                self.pass(args, reverse, past, last)?;
                if held.data != 0 {
                    self.copy(args, held, present)?;
                }
            }
            Direction::Bidirectional => {
                let first = match sums(self.problem) {
                    true => self.dense_answers(),
                    false => output,
                };
                self.pass(with_answers(args, first, TYPE_F32, none_before), false, none, none)?;
                self.pass(with_answers(args, output, own, first), true, none, none)?;
            }
            Direction::NonCausal => {
                let last = if held.data == 0 { present } else { held };
                match self.plan.choice.form {
                    Form::Scan => self.scan(args, past, last).map(drop)?,
                    _ => self.fold(args, past, last)?,
                }
                if address != 0 {
                    self.read(with_answers(args, output, own, none_before), last)?;
                }
                if held.data != 0 && present.data != 0 {
                    self.copy(args, held, present)?;
                }
            }
        }
        Ok(())
    }

    /// f32 answers in the workspace.
    fn dense_answers(&self) -> Tensor {
        let [_, heads, tokens, dim] = self.problem.spec().output.shape().map(|n| n as i64);
        let (token, head) = (dim, tokens * dim);
        Tensor { data: self.scratch + self.plan.layout.sums, batch: heads * head, head, token }
    }

    /// Lists one pass over the tokens, with the answers of `args`.
    fn pass(
        &mut self,
        mut args: LinearArgs,
        reverse: bool,
        initial: States,
        last: States,
    ) -> Result<(), DeviceError> {
        if reverse {
            args.flags |= REVERSE;
        }
        let silent = with_answers(args, Tensor::default(), TYPE_F32, Tensor::default());
        let before = match (self.plan.choice.form, args.output.data != 0) {
            (Form::Chunk, true) => {
                let boundaries = self.states(self.plan.choice.parts, self.plan.layout.boundaries);
                self.fold(with_states(silent, initial, last, boundaries), initial, last)?;
                boundaries
            }
            (Form::Scan, answers) => {
                let before = self.scan(silent, initial, last)?;
                if !answers {
                    return Ok(());
                }
                before
            }
            _ => return self.fold(args, initial, last),
        };
        self.parts(with_states(args, before, States::default(), States::default()))
    }

    /// States of `parts` parts at a place of the workspace.
    fn states(&self, parts: usize, at: u64) -> States {
        dense(self.problem, parts, self.problem.value_dim(), self.scratch + at)
    }

    /// Lists a walk over the parts, side by side.
    fn parts(&mut self, args: LinearArgs) -> Result<(), DeviceError> {
        let (parts, boundary) = (self.plan.choice.parts, self.plan.choice.boundary);
        self.push(with_parts(args, self.longest.div_ceil(boundary).clamp(1, parts), boundary))
    }

    /// Lists what leads to the states before the parts, which it returns, and to the last states: parts fold to what they do
    /// to a state, and a state is carried over them.
    fn scan(&mut self, args: LinearArgs, initial: States, last: States) -> Result<States, DeviceError> {
        let (problem, choice, layout) = (self.problem, self.plan.choice, self.plan.layout);
        let (parts, none) = (choice.parts, States::default());
        let args = with_parts(args, parts, choice.boundary);
        let before = self.states(parts, layout.boundaries);
        self.fold(args, none, before)?;
        let Some((sums, carry)) = self.kernels.scan.clone() else { return Ok(before) };
        let (gates, at) = (gates(problem), self.scratch + layout.gate_sums);
        let transitions = match problem.rule().is_delta() {
            true => {
                let row = transition_row(problem);
                let to = dense(problem, parts, row, self.scratch + layout.transitions);
                let columns = problem.key_dim().div_ceil(self.plan.columns());
                self.push(marshal::transitions(args, columns, to))?;
                to
            }
            false => none,
        };
        let states = problem.state_heads() * problem.sequences();
        if let Some(sums) = sums {
            let grid = Grid { blocks: (states * parts) as u32, threads: sums.threads };
            let parameter =
                self.list.store(&SumsArgs { call: args, sums: at, gates: gates as i32, unused: 0 })?;
            // SAFETY: *parameter*: the kernel takes a `SumsArgs`.
            unsafe { self.list.push(&sums.function, grid, parameter)? };
        }
        let filled = marshal::carry(problem, parts, [initial, before, transitions, last], at, gates);
        let grid = Grid { blocks: (filled.columns as usize * states) as u32, threads: carry.threads };
        let parameter = self.list.store(&filled)?;
        // SAFETY: *parameter*: the kernel takes a `CarryArgs`.
        unsafe { self.list.push(&carry.function, grid, parameter)? };
        Ok(before)
    }

    /// Lists one pass over the tokens in which a state passes all of them, with the answers and boundaries of `args`.
    fn fold(&mut self, mut args: LinearArgs, initial: States, last: States) -> Result<(), DeviceError> {
        args = with_states(args, initial, last, args.boundaries);
        if self.kernels.prepare.is_none() {
            args.flags |= STEPS;
        }
        let parameter = self.list.store(&args)?;
        if let Some(prepare) = &self.kernels.prepare {
            let blocks = prepare_blocks(args.heads as usize, args.chunks as usize);
            let grid = Grid { blocks: blocks as u32, threads: prepare.threads };
            // SAFETY: *parameter*: the kernel takes a `LinearArgs`.
            unsafe { self.list.push(&prepare.function, grid, parameter)? };
        }
        self.launch(&args, parameter)
    }

    /// Lists the answers of all tokens from the states at `last`.
    fn read(&mut self, mut args: LinearArgs, last: States) -> Result<(), DeviceError> {
        args.flags |= READ;
        // All parts read the same states.
        let last = States { part: 0, ..last };
        self.parts(with_states(args, last, States::default(), States::default()))
    }

    /// Lists a copy of states.
    fn copy(&mut self, args: LinearArgs, from: States, to: States) -> Result<(), DeviceError> {
        let blocks = self.blocks;
        self.push(copy(self.problem, args, from, to))?;
        self.blocks = blocks;
        Ok(())
    }

    /// Lists a walk.
    fn push(&mut self, args: LinearArgs) -> Result<(), DeviceError> {
        let parameter = self.list.store(&args)?;
        self.launch(&args, parameter)
    }

    /// Lists a walk whose parameter lies in the list.
    fn launch(&mut self, args: &LinearArgs, parameter: Stored) -> Result<(), DeviceError> {
        let [columns, parts, heads, sequences] =
            [args.columns, args.parts, args.heads, args.sequence_count].map(|n| n as usize);
        self.blocks = walk_blocks(columns, parts, heads, sequences);
        let grid = Grid { blocks: self.blocks as u32, threads: self.kernels.walk.threads };
        // SAFETY: *parameter*: the kernel takes a `LinearArgs`.
        unsafe { self.list.push(&self.kernels.walk.function, grid, parameter) }
    }
}

/// Writes the table of sequences on the host, if the problem is packed. Returns the sequences, and the size of the table in
/// bytes.
fn fill_sequences(
    plan: &GpuPlan,
    problem: &Problem,
    cu_seqlens: Option<&[i64]>,
    workspace: &mut GpuWorkspace,
) -> Result<(Sequences, usize), DeviceError> {
    let Some(count) = problem.spec().packed else {
        let longest = problem.tokens().div_ceil(CHUNK);
        let chunks = longest * problem.sequences();
        return Ok((Sequences { table: 0, chunks, longest }, 0));
    };
    let frozen = workspace.graph.table / size_of::<LinearSequence>();
    let entries = workspace.open_table()?.cast::<LinearSequence>();
    let (mut chunks, mut longest) = (0, 0);
    for index in 0..count {
        let sequence = problem.sequence(cu_seqlens, index);
        let entry = marshal::sequence(&sequence, chunks);
        let own = sequence.tokens.div_ceil(CHUNK);
        (chunks, longest) = (chunks + own, longest.max(own));
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
    let table = workspace.scratch.address();
    Ok((Sequences { table, chunks, longest }, plan.layout.table))
}
