//! Lists the launches of a run: those of the chosen form, for each pass over the tokens.
//!
//! | direction | passes |
//! |---|---|
//! | forward, reverse | one, from the past states to the present |
//! | bidirectional | one that writes f32 outputs, then one in reverse that adds to them |
//! | non-causal | one without outputs, then every token reads the last states |
//!
//! If several heads read a state, each head computes a separate copy of the state, unless the plan shares states. Each
//! part of a scan computes a separate copy, too. If the present states are in the memory of the past states, nothing
//! may write this memory until every head and every part has read the past states. So the last states are written to
//! the workspace first. Then a launch over no tokens copies them to the present states.
//!
//! Each packed sequence is computed as if it were alone. Short sequences are computed token by token. If a call has
//! both long and short sequences, a pass consists of the form's launches for the long sequences and a launch that
//! updates the states of the short sequences. If the form computes all chunks at once, sequences that are too short for
//! this have launches of their own, which pass over short chunks in order.

use super::choice::{LinearGpuChoice, has_marks, is_quadratic};
use super::layout::{gates, holds, padded, sums};
use super::marshal::{
    self, Sequences, common, copy, dense, long_states, past_and_present, with_answers, with_columns,
    with_one_reader, with_parts, with_scanned_parts, with_states, with_states_as_heads, with_step,
    with_steps,
};
use super::plan::{GpuPlan, Kernels, Loaded, Long};
use crate::cuda::gpu::Gpu;
use crate::cuda::launch::{Grid, Launches, Stored};
use crate::cuda::marshal::{dtype, tensor};
use crate::cuda::plan;
use crate::cuda::workspace::{GpuWorkspace, Needs};
use crate::error::DeviceError;
use crate::tensors::DeviceTensors;
use elsa_core::linear::{Direction, Form, Operand, Operands, Problem};
use elsa_core::scan::blelloch;
use elsa_kernels::cuda::linear::{
    CHUNK, CarryArgs, FOLD, LONG_CHUNK, LONG_ELEMENTS, LONG_FOLDED, LONG_TILE, LinearArgs, LinearSequence,
    LongArgs, PARALLEL_ROWS, QUADRATIC_ROWS, READ, RESUME, REVERSE, STEPS, States, SumsArgs, long_blocks,
    long_width, prepare_blocks, terms_blocks, walk_blocks,
};
use elsa_kernels::cuda::tensor::{DeviceTensor, TYPE_F32};
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
        DeviceTensors { at, .. }: &DeviceTensors<'_, Operand>,
        workspace: &mut GpuWorkspace,
    ) -> Result<Launches, DeviceError> {
        let kernels = self.load(&workspace.context)?;
        let scratch = workspace.scratch.address();
        let (sequences, table) = fill_sequences(self, problem, cu_seqlens, workspace)?;
        let args = common(self, problem, at, &sequences, scratch);
        let mut list = workspace.new_list();
        list.copy_table(sequences.table, table);
        let mut call = Call { plan: self, problem, kernels, scratch, sequences, list, blocks: 0 };
        call.fill(args, at)?;
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
    sequences: Sequences,
    list: Launches,
    /// Number of blocks in the last launch that writes outputs. If no launch writes outputs, the number of blocks in
    /// the last launch.
    blocks: usize,
}

impl Call<'_> {
    /// Lists the launches of all passes of a call. `args` are the arguments that all launches share.
    fn fill(&mut self, args: LinearArgs, at: &Operands<u64>) -> Result<(), DeviceError> {
        let spec = self.problem.spec();
        let [past, present] = past_and_present(self.problem, at);
        let (address, own) = (at[Operand::Output], dtype(spec.dtype));
        let output = if address == 0 { DeviceTensor::default() } else { tensor(&spec.output, address) };
        let (none, none_before) = (States::default(), DeviceTensor::default());
        let held = match holds(self.problem, &self.plan.choice) {
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
                self.pass(args, false, past, last)?;
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

    /// Returns a description of the f32 outputs in the workspace. Their rows are stored without gaps.
    fn dense_answers(&self) -> DeviceTensor {
        let [_, heads, tokens, dim] = self.problem.spec().output.shape().map(|n| n as i64);
        let (token, head) = (dim, tokens * dim);
        DeviceTensor { data: self.scratch + self.plan.layout.sums, batch: heads * head, head, token }
    }

    /// Lists the launches of one pass over the tokens. The pass writes the outputs that `args` describe, if any.
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
        if self.sequences.short {
            self.push(with_steps(with_states(args, initial, last, States::default())))?;
        }
        if self.sequences.short_chunks > 0 {
            let most = self.plan.choice.fused_below;
            self.fold(marshal::with_short_chunks(args, &self.sequences, most), initial, last)?;
        }
        if !self.sequences.long {
            return Ok(());
        }
        let args = marshal::from_tokens(args, self.plan.choice.fused_below);
        let silent = with_answers(args, DeviceTensor::default(), TYPE_F32, DeviceTensor::default());
        match (self.plan.choice.form, args.output.data != 0) {
            (Form::Chunk, _) if self.plan.choice.is_long() => self.long(args, initial, last),
            (Form::Chunk, true) => {
                let boundaries = self.states(self.plan.choice.parts, self.plan.layout.boundaries);
                self.fold(with_states(silent, initial, last, boundaries), initial, last)?;
                self.parts(with_states(args, boundaries, States::default(), States::default()))
            }
            (Form::Scan, _) if self.plan.choice.parts > 1 => self.scan(args, silent, initial, last),
            (form, _) if is_quadratic(self.problem, form) => self.quadratic(args, initial, last),
            (Form::Parallel, true) => {
                self.parallel(args, initial)?;
                if last.data == 0 { Ok(()) } else { self.fold(silent, initial, last) }
            }
            _ => self.fold(args, initial, last),
        }
    }

    /// Returns a description of the states of `parts` parts, which are at offset `at` in the workspace.
    fn states(&self, parts: usize, at: u64) -> States {
        dense(self.problem, parts, self.problem.value_dim(), self.scratch + at)
    }

    /// Lists a launch that processes the parts of each sequence concurrently. The plan determines the number of chunks
    /// per part (`boundary`).
    fn parts(&mut self, args: LinearArgs) -> Result<(), DeviceError> {
        let boundary = self.plan.choice.boundary;
        self.push(with_parts(args, self.sequences.longest.div_ceil(boundary).max(1), boundary))
    }

    /// Lists the launches that compute all chunks at once. The first launch computes the terms of all chunks, the second
    /// carries the states through the terms, and the third computes the outputs from the states before the chunks. If there are
    /// few chunks and no call continues them, the blocks of the third launch carry the states, which saves the second.
    fn long(&mut self, args: LinearArgs, initial: States, last: States) -> Result<(), DeviceError> {
        let Some(kernels) = self.kernels.long.clone() else { return Ok(()) };
        let (problem, sms) = (self.problem, self.plan.gpu.profile().sms);
        let before = long_states(problem, args.chunks, self.scratch + self.plan.layout.boundaries);
        let args = with_states(args, initial, last, before);
        let chunks = args.chunks as usize;
        let heads = if args.output.data == 0 { 0 } else { problem.output_heads() };
        if has_marks(problem) {
            return self.long_with_marks(args, heads, kernels);
        }

        let mut tiled = with_columns(args, LONG_TILE);
        let tiles = tiled.columns as usize;
        let answering = walk_blocks(tiles, chunks, heads, 1);
        let longest = (self.sequences.longest * CHUNK).div_ceil(LONG_CHUNK);
        let folds = last.data == 0 && longest <= LONG_FOLDED && LinearGpuChoice::is_few(answering, sms);
        if folds {
            tiled.flags |= FOLD;
        }
        let parameter = self.list.store(&tiled)?;
        let blocks = terms_blocks(heads, problem.state_heads(), chunks, problem.key_dim(), tiles);
        self.launch_blocks(parameter, kernels.terms.of(blocks, sms), blocks)?;
        if !folds {
            let elements = problem.key_dim() * before.row as usize;
            let carried =
                marshal::with_blocks(with_states_as_heads(problem, args), elements.div_ceil(LONG_ELEMENTS));
            self.store_and_launch(carried, kernels.states)?;
        }
        if heads == 0 {
            return Ok(());
        }
        self.launch_blocks(parameter, kernels.answers.of(answering, sms), answering)
    }

    /// Lists the launches that compute all chunks at once under a delta rule or with per-dim gates. The first launch computes the
    /// terms of all chunks, or solves every chunk for any state. The second carries the states, computes the writes of the
    /// tokens, and also computes the outputs of chunks that it must process token by token. The third computes the other
    /// outputs.
    fn long_with_marks(
        &mut self,
        args: LinearArgs,
        heads: usize,
        kernels: Long<Loaded>,
    ) -> Result<(), DeviceError> {
        let args = marshal::with_dim_gates(self.problem, args);
        let (problem, sms) = (self.problem, self.plan.gpu.profile().sms);
        let delta = problem.rule().is_delta();
        let written = match delta {
            true => marshal::written(problem, self.scratch + self.plan.layout.written),
            false => DeviceTensor::default(),
        };
        let (states, chunks) = (problem.state_heads(), args.chunks as usize);
        let (rows, columns) = (problem.key_dim(), problem.value_dim());

        let blocks = long_blocks(delta, [heads, states], chunks, rows, columns);
        self.launch_long(LongArgs { call: args, written }, kernels.terms.of(blocks, sms), blocks)?;
        let call = with_columns(with_states_as_heads(problem, args), long_width(delta));
        self.launch_long(LongArgs { call, written }, kernels.states, self::blocks(&call))?;
        if heads == 0 {
            return Ok(());
        }
        let answering = with_columns(args, LONG_TILE);
        let answering = if delta { marshal::with_written(answering, written) } else { answering };
        let blocks = walk_blocks(answering.columns as usize, chunks, heads, 1);
        let parameter = self.list.store(&answering)?;
        self.launch_blocks(parameter, kernels.answers.of(blocks, sms), blocks)
    }

    /// Lists a launch of `kernel` on `blocks` blocks with these arguments.
    fn launch_long(&mut self, args: LongArgs, kernel: Loaded, blocks: usize) -> Result<(), DeviceError> {
        self.blocks = blocks;
        let parameter = self.list.store(&args)?;
        let grid = Grid::new(blocks as u32, kernel.threads);
        // SAFETY: *parameter*: the kernel takes a `LongArgs`.
        unsafe { self.list.push(&kernel.function, grid, parameter) }
    }

    /// Lists the launches of the quadratic form for rules other than delta rules, with at most one gate per head.
    fn parallel(&mut self, args: LinearArgs, initial: States) -> Result<(), DeviceError> {
        let Some(kernel) = self.kernels.parallel.clone() else { return Ok(()) };
        let args = marshal::parallel(args, self.sequences.longest * CHUNK, PARALLEL_ROWS);
        self.store_and_launch(with_states(args, initial, States::default(), States::default()), kernel)
    }

    /// Lists the launches of the quadratic form for delta rules and for per-dim gates. For a delta rule, the first
    /// launch computes the values that tokens write; later launches read these instead of the call's values. Then the
    /// outputs are computed. Finally, the last state is computed, because it may be in the memory of the first state.
    fn quadratic(&mut self, args: LinearArgs, initial: States, last: States) -> Result<(), DeviceError> {
        let (problem, longest) = (self.problem, self.sequences.longest * CHUNK);
        let mut args =
            with_states(marshal::quadratic(problem, args), initial, States::default(), States::default());
        if let Some(write) = self.kernels.write.clone() {
            let written = marshal::written(problem, self.scratch + self.plan.layout.written);
            let writing = with_answers(args, written, TYPE_F32, DeviceTensor::default());
            self.store_and_launch(with_one_reader(problem, writing), write)?;
            args = marshal::with_written(args, written);
        }
        if let Some(answer) = self.kernels.parallel.clone().filter(|_| args.output.data != 0) {
            self.store_and_launch(marshal::parallel(args, longest, QUADRATIC_ROWS), answer)?;
        }
        let Some(leave) = self.kernels.last.clone().filter(|_| last.data != 0) else { return Ok(()) };
        let blocks = self.blocks;
        let leaving = marshal::parallel(with_one_reader(problem, args), problem.key_dim(), QUADRATIC_ROWS);
        self.store_and_launch(with_states(leaving, initial, last, States::default()), leave)?;
        self.blocks = if args.output.data != 0 { blocks } else { self.blocks };
        Ok(())
    }

    /// Lists the launches of a scan. All parts except the last are folded to their effect on a state. Then a scan over
    /// these parts computes the states after them, and every part continues from the state before it. `silent` is a
    /// copy of `args` without outputs.
    fn scan(
        &mut self,
        args: LinearArgs,
        silent: LinearArgs,
        initial: States,
        last: States,
    ) -> Result<(), DeviceError> {
        let (plan, problem, layout) = (self.plan, self.problem, self.plan.layout);
        let items = plan.choice.parts - 1;
        let rows = padded(problem.value_dim());
        let after = dense(problem, items, rows, self.scratch + layout.boundaries);
        let mut folding = with_scanned_parts(plan, problem, silent, items);
        folding.flags |= FOLD;
        self.fold(folding, initial, after)?;
        let mut transitions = 0;
        if problem.rule().is_delta() {
            let to = dense(problem, items, padded(problem.key_dim()), self.scratch + layout.transitions);
            let columns = problem.key_dim().div_ceil(plan.columns());
            transitions = to.data;
            if items > 1 {
                self.push(marshal::transitions(folding, columns, to))?;
            }
        }
        self.carry(&folding, [after.data, transitions, self.scratch + layout.gate_sums], items)?;
        let mut resuming = with_scanned_parts(plan, problem, args, plan.choice.parts);
        (resuming.flags, resuming.boundary_chunks) = (resuming.flags | RESUME, 0);
        // The last state is written to the same address, regardless of the index of the part that computes it.
        let last = States { part: 0, ..last };
        self.push(with_states(resuming, initial, last, after))
    }

    /// Lists the launches of the scan over the folded parts, in the order of Blelloch's algorithm. `at` contains the
    /// three addresses that [`marshal::carry`] requires.
    fn carry(&mut self, folding: &LinearArgs, at: [u64; 3], items: usize) -> Result<(), DeviceError> {
        let problem = self.problem;
        let gates = gates(problem);
        let Some((sums, carry)) = self.kernels.scan.clone().filter(|_| items > 1) else { return Ok(()) };
        let states = problem.state_heads() * problem.sequences();
        if let Some(sums) = sums {
            let grid = Grid::new((states * items) as u32, sums.threads);
            let [_, _, sums_at] = at;
            let parameter = SumsArgs { call: *folding, sums: sums_at, gates: gates as i32, unused: 0 };
            let parameter = self.list.store(&parameter)?;
            // SAFETY: *parameter*: the kernel takes a `SumsArgs`.
            unsafe { self.list.push(&sums.function, grid, parameter)? };
        }
        let filled = marshal::carry(problem, items, at, gates);
        let mut push = |args: CarryArgs| {
            let blocks = args.blocks as usize * args.nodes as usize * states;
            let grid = Grid::new(blocks as u32, carry.threads);
            let parameter = self.list.store(&args)?;
            // SAFETY: *parameter*: the kernel takes a `CarryArgs`.
            unsafe { self.list.push(&carry.function, grid, parameter) }
        };
        if !problem.rule().is_delta() {
            return push(filled);
        }
        let steps = blelloch::steps(items);
        let nodes = |step| (0..).map_while(|m| blelloch::node(items, step, m)).count();
        for step in 0..steps {
            push(with_step(filled, step, false, nodes(step)))?;
        }
        for step in (0..steps).rev() {
            // No part precedes the first node, so only the later nodes are launched.
            let later = nodes(step) - 1;
            if later > 0 {
                push(with_step(filled, step, true, later))?;
            }
        }
        Ok(())
    }

    /// Lists the launches of a pass in which all tokens update the states in order. The pass writes the outputs and the
    /// boundary states that `args` describe, if any.
    fn fold(&mut self, mut args: LinearArgs, initial: States, last: States) -> Result<(), DeviceError> {
        args = with_states(args, initial, last, args.boundaries);
        let Some(prepare) = self.kernels.prepare.clone() else {
            args.flags |= STEPS;
            return self.push(args);
        };
        let parameter = self.list.store(&args)?;
        let blocks = prepare_blocks(args.heads as usize, args.chunks as usize);
        let grid = Grid::new(blocks as u32, prepare.threads);
        // SAFETY: *parameter*: the kernel takes a `LinearArgs`.
        unsafe { self.list.push(&prepare.function, grid, parameter)? };
        match self.shared(&args).is_some() || self.in_pairs(&args).is_some() {
            true => self.push(args),
            false => self.launch(&args, parameter, self.kernels.walk.clone()),
        }
    }

    /// Returns the kernel whose blocks compute the outputs of all heads that read a state, if a launch with `args` uses
    /// it.
    fn shared(&self, args: &LinearArgs) -> Option<Loaded> {
        if self.plan.choice.steps {
            return Some(self.kernels.walk.clone());
        }
        self.kernels.share.clone().filter(|_| args.output.data != 0 && args.flags & READ == 0)
    }

    /// Returns the kernel with half the columns per block, and its number of columns, if a launch with `args` uses this
    /// kernel.
    fn in_pairs(&self, args: &LinearArgs) -> Option<(Loaded, usize)> {
        self.kernels.pairs.clone().filter(|_| blocks(args) <= self.plan.choice.pairs)
    }

    /// Lists a launch that computes the outputs of all tokens from the states at `last`.
    fn read(&mut self, mut args: LinearArgs, last: States) -> Result<(), DeviceError> {
        args.flags |= READ;
        args.least = 0;
        // All parts read the same states.
        let last = States { part: 0, ..last };
        self.parts(with_states(args, last, States::default(), States::default()))
    }

    /// Lists a launch that copies states.
    fn copy(&mut self, args: LinearArgs, from: States, to: States) -> Result<(), DeviceError> {
        let blocks = self.blocks;
        self.push(copy(self.problem, args, from, to))?;
        self.blocks = blocks;
        Ok(())
    }

    /// Lists a launch that updates states. If the launch can use the kernel that shares states, or the kernel with half
    /// the columns per block, it uses that kernel. Otherwise it uses the ordinary kernel.
    fn push(&mut self, args: LinearArgs) -> Result<(), DeviceError> {
        let (args, kernel) = match (self.shared(&args), self.in_pairs(&args)) {
            (Some(share), _) => (with_states_as_heads(self.problem, args), share),
            (None, Some((pairs, columns))) => (with_columns(args, columns), pairs),
            (None, None) => (args, self.kernels.walk.clone()),
        };
        self.store_and_launch(args, kernel)
    }

    /// Stores `args` in the list, and lists a launch of `kernel` with these arguments.
    fn store_and_launch(&mut self, args: LinearArgs, kernel: Loaded) -> Result<(), DeviceError> {
        let parameter = self.list.store(&args)?;
        self.launch(&args, parameter, kernel)
    }

    /// Lists a launch of `kernel` with a stored parameter, whose value is `args`.
    fn launch(&mut self, args: &LinearArgs, parameter: Stored, kernel: Loaded) -> Result<(), DeviceError> {
        self.launch_blocks(parameter, kernel, blocks(args))
    }

    /// Lists a launch of `kernel` on `blocks` blocks, with stored [`LinearArgs`].
    fn launch_blocks(&mut self, parameter: Stored, kernel: Loaded, blocks: usize) -> Result<(), DeviceError> {
        self.blocks = blocks;
        let grid = Grid::new(blocks as u32, kernel.threads);
        // SAFETY: *parameter*: the kernel takes a `LinearArgs`.
        unsafe { self.list.push(&kernel.function, grid, parameter) }
    }
}

/// Returns the number of blocks in a launch that updates states, or in a launch of the quadratic form.
fn blocks(args: &LinearArgs) -> usize {
    let [columns, parts, heads, sequences] =
        [args.columns, args.parts, args.heads, args.sequence_count].map(|n| n as usize);
    walk_blocks(columns, parts, heads, sequences)
}

/// Writes the table of sequences on the host, if the problem is packed. Returns the description of the sequences, and
/// the size of the table in bytes.
fn fill_sequences(
    plan: &GpuPlan,
    problem: &Problem,
    cu_seqlens: Option<&[i64]>,
    workspace: &mut GpuWorkspace,
) -> Result<(Sequences, usize), DeviceError> {
    let Some(count) = problem.spec().packed else {
        let longest = problem.tokens().div_ceil(CHUNK);
        let chunks = problem.tokens().div_ceil(plan.choice.prepared()) * problem.sequences();
        let all = Sequences { table: 0, chunks, longest, short: false, long: true, ..Sequences::default() };
        return Ok((all, 0));
    };
    let frozen = workspace.graph.table / size_of::<LinearSequence>();
    let entries = workspace.open_table(plan.layout.table)?.cast::<LinearSequence>();
    let address = workspace.scratch.address();
    let short_table = address + (count * size_of::<LinearSequence>()) as u64;
    let mut all = Sequences { table: address, short_table, ..Sequences::default() };
    let put = |index: usize, entry: LinearSequence| {
        if index < frozen {
            // SAFETY: *room*: a captured run has filled the first `frozen` entries of the table.
            return if unsafe { entries.add(index).read() } == entry {
                Ok(())
            } else {
                Err(DeviceError::Captured)
            };
        }
        // SAFETY: *room*: `index` is below the number of entries of the layout's table, which is aligned. No pending copy
        // and no graph reads this entry.
        unsafe { entries.add(index).write(entry) };
        Ok(())
    };
    let choice = &plan.choice;
    for index in 0..count {
        let sequence = problem.sequence(cu_seqlens, index);
        let tokens = sequence.tokens;
        put(index, marshal::sequence(&sequence, all.chunks, choice.part_chunks(tokens)))?;
        if choice.fused_below > 0 {
            put(count + index, marshal::sequence(&sequence, all.short_chunks, 1))?;
        }
        all.longest = all.longest.max(tokens.div_ceil(CHUNK));
        if tokens < choice.recurrent_below {
            all.short = true;
        } else if tokens < choice.fused_below {
            all.short_chunks += tokens.div_ceil(CHUNK);
        } else {
            all.long = true;
            all.chunks += tokens.div_ceil(choice.prepared());
        }
    }
    Ok((all, plan.layout.table))
}
