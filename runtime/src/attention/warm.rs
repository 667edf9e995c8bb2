//! Runs a plan over tensors of zeros, so that all one-time work is done.

use super::operator::{Plan, Workspace};
use crate::cuda::memory::HostBuffer;
use crate::error::{BindError, DeviceError, RunError};
use crate::plan::Execution;
use crate::report::Report;
use crate::workspace::Memory;
use elsa_core::attention::{
    Inputs, Lengths, MaskElements, MaskKind, Operand, Operands, Outputs, Problem, StateOut,
};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use half::{bf16, f16};

/// A tensor of zeros, of any element type.
enum Zeros {
    F32(HostBuffer<f32>),
    F16(HostBuffer<f16>),
    Bf16(HostBuffer<bf16>),
}

impl Zeros {
    fn new(dtype: DType, len: usize) -> Result<Zeros, DeviceError> {
        Ok(match dtype {
            DType::F32 => Zeros::F32(HostBuffer::ordinary(len)?),
            DType::F16 => Zeros::F16(HostBuffer::ordinary(len)?),
            DType::Bf16 => Zeros::Bf16(HostBuffer::ordinary(len)?),
        })
    }

    fn read(&self) -> Elements<'_> {
        match self {
            Zeros::F32(x) => Elements::F32(x),
            Zeros::F16(x) => Elements::F16(x),
            Zeros::Bf16(x) => Elements::Bf16(x),
        }
    }

    fn write(&mut self) -> ElementsMut<'_> {
        match self {
            Zeros::F32(x) => ElementsMut::F32(x),
            Zeros::F16(x) => ElementsMut::F16(x),
            Zeros::Bf16(x) => ElementsMut::Bf16(x),
        }
    }
}

/// A mask that allows every key.
enum Open {
    Bool(HostBuffer<u8>),
    Additive(Zeros),
}

impl Open {
    fn new(kind: MaskKind, len: usize) -> Result<Open, DeviceError> {
        Ok(match kind {
            MaskKind::Bool => {
                let mut mask = HostBuffer::ordinary(len)?;
                mask.fill(1);
                Open::Bool(mask)
            }
            MaskKind::Additive(dtype) => Open::Additive(Zeros::new(dtype, len)?),
        })
    }

    fn read(&self) -> MaskElements<'_> {
        match self {
            Open::Bool(mask) => MaskElements::Bool(mask),
            Open::Additive(mask) => MaskElements::Additive(mask.read()),
        }
    }
}

/// The tensors of a call that has every output, and states of every row.
struct Tensors {
    /// Zeros for every input that the problem has, except the mask and the bias index.
    read: Operands<Option<Zeros>>,
    mask: Option<Open>,
    /// Indices into a bias table, all zero: they refer to its first entry.
    bias_index: Option<HostBuffer<i64>>,
    /// Memory for the output, the present keys and the present values.
    written: [Option<Zeros>; 3],
    /// Log-sum-exp of the rows, and the three arrays of their states.
    rows: [HostBuffer<f32>; 4],
    /// Numbers of valid keys, bounds of packed queries, and bounds of packed keys.
    lists: [Option<HostBuffer<i64>>; 3],
}

impl Tensors {
    fn new(problem: &Problem) -> Result<Tensors, DeviceError> {
        let spec = problem.spec();
        let zeros = |operand| {
            let memory = problem.memory(operand);
            memory.map(|memory| Zeros::new(spec.dtype, memory.elements)).transpose()
        };
        let rows =
            |operand| HostBuffer::ordinary(problem.memory(operand).map_or(0, |memory| memory.elements));
        // One sequence has every token, and the others have none.
        let bounds = |sequences: usize, tokens: usize| {
            let mut list = HostBuffer::ordinary(sequences.saturating_add(1))?;
            if let [_, rest @ ..] = &mut *list {
                rest.fill(tokens as i64);
            }
            Ok::<_, DeviceError>(list)
        };
        let keys = || {
            let mut list = HostBuffer::ordinary(spec.query.batch())?;
            list.fill(problem.keys() as i64);
            Ok::<_, DeviceError>(list)
        };
        Ok(Tensors {
            read: Operands::try_from_fn(|operand| match operand {
                Operand::Bias => spec.bias.map(|bias| Zeros::new(bias.dtype(), bias.extent())).transpose(),
                Operand::Mask | Operand::BiasIndex => Ok(None),
                _ if operand.is_written() => Ok(None),
                _ => zeros(operand),
            })?,
            mask: spec.mask.map(|mask| Open::new(mask.kind(), mask.extent())).transpose()?,
            bias_index: problem
                .memory(Operand::BiasIndex)
                .map(|memory| HostBuffer::ordinary(memory.elements))
                .transpose()?,
            written: [zeros(Operand::Output)?, zeros(Operand::PresentKey)?, zeros(Operand::PresentValue)?],
            rows: [
                rows(Operand::LogSumExp)?,
                rows(Operand::StateReference)?,
                rows(Operand::StateSum)?,
                rows(Operand::StateWeighted)?,
            ],
            lists: [
                spec.key_lengths.then(keys).transpose()?,
                spec.packed.map(|n| bounds(n, spec.query.tokens())).transpose()?,
                spec.packed.map(|n| bounds(n, spec.key.tokens())).transpose()?,
            ],
        })
    }

    /// Returns the tensors as inputs and outputs. The outputs include states only if `states` is `true`.
    fn bound(&mut self, states: bool) -> (Inputs<'_>, Outputs<'_>) {
        let [keys, cu_seqlens_q, cu_seqlens_k] = self.lists.each_ref().map(|list| list.as_deref());
        let inputs = Inputs {
            mask: self.mask.as_ref().map(Open::read),
            bias_index: self.bias_index.as_deref(),
            lengths: Lengths { keys, cu_seqlens_q, cu_seqlens_k, ..Lengths::default() },
            ..Inputs::of(|operand| self.read[operand].as_ref().map(Zeros::read))
        };
        let [output, present_key, present_value] =
            self.written.each_mut().map(|zeros| zeros.as_mut().map(Zeros::write));
        let [lse, m, s, w] = self.rows.each_mut().map(|rows| &mut **rows);
        let outputs = Outputs {
            output,
            lse: Some(lse),
            state: states.then_some(StateOut { m, s, w }),
            present_key,
            present_value,
        };
        (inputs, outputs)
    }
}

impl Plan {
    /// Runs the plan over tensors of zeros that it allocates. The next run in this workspace then takes no longer than
    /// later runs, and allocates nothing:
    ///
    /// - A GPU has loaded and launched the kernels of every kind of run, with states and without. The workspace has
    ///   allocated the device memory for copies of host tensors and for states ([`Plan::staging_bytes`],
    ///   [`Plan::state_workspace_bytes`]), even if later tensors are used in place. If the workspace is in the caller's
    ///   memory ([`Plan::workspace_on_device`]), the memory for copies is freed again: runs on device tensors then
    ///   allocate nothing, but a run on copied host tensors allocates.
    /// - On the CPU every worker has been woken.
    ///
    /// This takes the time of one or two runs, and host memory for their tensors. Creating a plan has already loaded
    /// the GPU kernels of runs without states. Creating a workspace has allocated the memory that such runs on device
    /// tensors need and, unless the GPU is integrated, the staging. The contents of the workspace are irrelevant, and
    /// no tensor of the caller is used. If a GPU fails, the report states the reason, as after any run.
    ///
    /// # Errors
    /// Returns an error if host memory is not available, or the errors of [`Plan::bind`] and
    /// [`Bound::run`](crate::Bound::run).
    pub fn warm(&self, workspace: &mut Workspace) -> Result<Report, RunError> {
        let mut tensors = Tensors::new(&self.problem).map_err(RunError::Memory)?;
        let states = self.takes_states(workspace);
        let (inputs, outputs) = tensors.bound(states);
        let mut report = self.bind(inputs, outputs, workspace)?.run()?;
        if let Execution::Gpu { .. } = self.execution
            && states
            && report.fallback.is_none()
        {
            let (inputs, outputs) = tensors.bound(false);
            report = self.bind(inputs, outputs, workspace)?.run()?;
        }
        if let Memory::Gpu { gpu: Ok(memory), .. } = &mut workspace.memory
            && memory.scratch.is_lent()
        {
            memory.free_copies().map_err(BindError::Device)?;
        }
        // A run over zeros does not describe the caller's tensors.
        workspace.ran = None;
        // The run above may be too small for all workers, so the remaining ones are woken here.
        self.engine.pool().run(self.engine.threads(), &|_| ())?;
        Ok(report)
    }

    /// Returns `true` if runs in the workspace may output states. A budget, or the size of a workspace in the caller's
    /// memory, can rule that out.
    fn takes_states(&self, workspace: &Workspace) -> bool {
        match (&self.execution, &workspace.memory) {
            (Execution::Gpu { gpu: plan, .. }, Memory::Gpu { gpu: Ok(memory), .. }) => {
                let states = Operands::from_fn(|operand| operand == Operand::StateReference);
                plan.check_partials(true).is_ok() && self.check_memory(plan, &states, memory).is_ok()
            }
            _ => true,
        }
    }
}
