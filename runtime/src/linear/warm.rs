//! Warming up plans of linear attention: a run over tensors of zeros, so that everything that happens once has happened.

use super::operator::{LinearPlan, LinearWorkspace};
use crate::cuda::memory::HostBuffer;
use crate::error::{BindError, DeviceError, RunError};
use crate::report::Report;
use crate::workspace::Memory;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::linear::{Inputs, Operand, Outputs, Problem};
use half::{bf16, f16};

/// A tensor of zeros.
enum Zeros {
    F32(HostBuffer<f32>),
    F16(HostBuffer<f16>),
    Bf16(HostBuffer<bf16>),
}

impl Zeros {
    /// That of an operand; without elements if the problem does not have it.
    fn of(problem: &Problem, operand: Operand) -> Result<Zeros, DeviceError> {
        let len = problem.memory(operand).map_or(0, |memory| memory.elements);
        Ok(match problem.dtype_of(operand) {
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

impl LinearPlan {
    /// Runs over tensors of zeros in `workspace`. The first run in it then takes what later ones take, and allocates nothing:
    /// every worker has been woken, and a GPU has launched its kernels and has the device memory that copies of host tensors
    /// take; in memory of the caller's that is freed again.
    ///
    /// It takes as long as a run, and host memory for the tensors. Contents of the workspace do not matter, and no tensor of
    /// the caller's is used. If a GPU fails, the report names the reason, as that of a run does.
    ///
    /// # Errors
    /// Returns an error if host memory is not available, or the errors of [`Plan::bind`](crate::Plan::bind) and
    /// [`Bound::run`](crate::Bound::run).
    pub fn warm(&self, workspace: &mut LinearWorkspace) -> Result<Report, RunError> {
        let problem = &self.problem;
        let zeros = |operand| Zeros::of(problem, operand).map_err(RunError::Memory);
        let has = |operand| problem.memory(operand).is_some();
        let (query, key, value) = (zeros(Operand::Query)?, zeros(Operand::Key)?, zeros(Operand::Value)?);
        let (decay, beta) = (zeros(Operand::Decay)?, zeros(Operand::Beta)?);
        let states = |operand| {
            let len = problem.memory(operand).map_or(0, |memory| memory.elements);
            HostBuffer::<f32>::ordinary(len).map_err(RunError::Memory)
        };
        let (past, mut present) = (states(Operand::PastState)?, states(Operand::PresentState)?);
        let mut output = zeros(Operand::Output)?;
        // One sequence has every token, the others have none.
        let packed = problem.spec().packed;
        let mut bounds = HostBuffer::<i64>::ordinary(packed.map_or(0, |n| n.saturating_add(1)))
            .map_err(RunError::Memory)?;
        if let [_, rest @ ..] = &mut *bounds {
            rest.fill(problem.tokens() as i64);
        }
        let inputs = Inputs {
            decay: has(Operand::Decay).then(|| decay.read()),
            beta: has(Operand::Beta).then(|| beta.read()),
            past_state: has(Operand::PastState).then_some(&*past),
            cu_seqlens: packed.map(|_| &*bounds),
            ..Inputs::new(query.read(), key.read(), value.read())
        };
        let outputs = Outputs {
            output: Some(output.write()),
            present_state: has(Operand::PresentState).then_some(&mut *present),
        };
        let report = self.bind(inputs, outputs, workspace)?.run()?;
        if let Memory::Gpu { gpu: Ok(memory), .. } = &mut workspace.memory
            && memory.scratch.is_lent()
        {
            memory.free_copies().map_err(BindError::Device)?;
        }
        // A call may be too small for some of the workers, which then have not started.
        self.engine.pool().run(self.engine.threads(), &|_| ())?;
        Ok(report)
    }
}
