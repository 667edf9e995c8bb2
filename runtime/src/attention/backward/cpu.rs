//! The CPU's backward plan, and calls that execute it.

use super::context::Context;
use super::walk;
use crate::cpu::memory::{Memory, write_list};
use crate::cpu::plan;
use crate::cpu::pool::Crew;
use crate::cpu::slices::{elements, slice};
use crate::error::{BindError, RunError};
use crate::tensors::HostTensors;
use elsa_core::attention::backward::{
    BackwardChoice, BackwardInputs, BackwardLayout, BackwardProblem, Operand, Statistics,
};
use elsa_core::attention::{self, Inputs, Lengths, MaskElements, MaskKind, Sequence};
use elsa_kernels::attention::backward::BackwardKernel;

/// A backward plan for the CPU.
#[derive(Clone, Debug)]
pub struct CpuPlan {
    pub kernel: &'static BackwardKernel,
    pub choice: BackwardChoice,
    pub layout: BackwardLayout,
}

/// Returns the inputs of a call.
///
/// # Safety
/// - The tensors have been checked against the problem.
unsafe fn inputs<'a>(
    problem: &BackwardProblem,
    lengths: Lengths<'a>,
    tensors: &HostTensors<'a, Operand>,
) -> BackwardInputs<'a> {
    let spec = problem.forward().spec();
    // SAFETY: the tensors have as many elements as the problem states (clause). The elements have the types of the
    // call, and mask elements have the mask's kind. An index has i64 elements, and the statistics of rows have f32
    // elements. A run only reads them.
    unsafe {
        let of = |operand| elements(problem, tensors, operand);
        let rows = |operand| slice(problem, tensors, operand).unwrap_or_default();
        let mask = |kind| match kind {
            MaskKind::Bool => slice(problem, tensors, Operand::Mask).map(MaskElements::Bool),
            MaskKind::Additive(_) => of(Operand::Mask).map(MaskElements::Additive),
        };
        let forward = Inputs {
            mask: spec.mask.and_then(|view| mask(view.kind())),
            bias_index: slice(problem, tensors, Operand::BiasIndex),
            lengths,
            ..Inputs::of(|operand| match operand {
                attention::Operand::Query => of(Operand::Query),
                attention::Operand::Key => of(Operand::Key),
                attention::Operand::Value => of(Operand::Value),
                attention::Operand::Bias => of(Operand::Bias),
                _ => None,
            })
        };
        let statistics = match tensors.at(Operand::StateReference).is_null() {
            true => Statistics::LogSumExp(rows(Operand::LogSumExp)),
            false => Statistics::State { m: rows(Operand::StateReference), s: rows(Operand::StateSum) },
        };
        let (output, upstream) = (of(Operand::Output), of(Operand::Upstream));
        BackwardInputs {
            forward,
            output: output.unwrap_or_default(),
            upstream: upstream.unwrap_or_default(),
            statistics,
        }
    }
}

impl plan::CpuPlan for CpuPlan {
    type Problem = BackwardProblem;
    type Call<'a> = CpuCall<'a>;

    fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    fn kernel(&self) -> &'static str {
        self.kernel.spec.name
    }

    fn call<'a>(
        &'a self,
        problem: &'a BackwardProblem,
        lengths: Lengths<'a>,
        tensors: &HostTensors<'a, Operand>,
        memory: &'a mut Memory,
    ) -> Result<CpuCall<'a>, BindError> {
        let CpuPlan { kernel, choice, layout } = self;
        let base = memory.lines_for(layout.bytes())?;
        let (forward, count) = (problem.forward(), problem.forward().sequences());
        // SAFETY: *room*: the memory has the layout, and is borrowed exclusively. The layout reserves a place for each
        // sequence.
        let sequences =
            unsafe { write_list(base, layout.sequences, count, |index| forward.sequence(&lengths, index)) };
        // SAFETY: the tensors have been checked against the problem.
        let inputs = unsafe { inputs(problem, lengths, tensors) };
        let gradients = [Operand::QueryGradient, Operand::KeyGradient, Operand::ValueGradient];
        let gradients = gradients.map(|operand| tensors.at(operand).cast());
        let context = Context::new(problem, kernel, choice, layout, inputs, gradients, base);
        Ok(CpuCall { context, sequences })
    }
}

/// A checked backward call on the CPU.
#[derive(Debug)]
pub struct CpuCall<'a> {
    context: Context<'a>,
    sequences: &'a [Sequence],
}

impl plan::CpuCall for CpuCall<'_> {
    fn run(&mut self, crew: &Crew<'_>) -> Result<(), RunError> {
        let (c, sequences) = (&self.context, self.sequences);
        let (choice, problem) = (c.choice, c.problem);
        let (heads, kv_heads) = (problem.forward().heads(), problem.forward().kv_heads());
        // The part is the slowest index of the tasks: in a causal problem, later parts have less and less work.
        let tasks = choice.parts * sequences.len() * kv_heads;
        crew.divide(choice.workers, tasks, &|worker, number| {
            let (part, rest) = (number / (sequences.len() * kv_heads), number % (sequences.len() * kv_heads));
            let task =
                walk::KeyPart { sequence: &sequences[rest / kv_heads], kv_head: rest % kv_heads, part };
            // SAFETY: `Context::new` established the invariants. The pool gives each task to one worker, and each
            // worker has its own number. A task writes the gradients of its keys, and the query gradients of its part.
            unsafe { walk::part(c, &task, worker, crew) }
        })?;
        crew.divide(choice.workers, sequences.len() * heads, &|_, number| {
            // SAFETY: as above; all parts are done, and each pair of sequence and head is one item.
            unsafe { walk::join(c, &sequences[number / heads], number % heads) }
        })?;
        Ok(())
    }

    fn workers(&self) -> usize {
        self.context.choice.workers
    }
}
