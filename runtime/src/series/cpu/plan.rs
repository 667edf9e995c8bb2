//! Plans for per-channel operators on the CPU, and the calls of these plans.

use super::operator::{OnCpu, Place};
use super::spectrum::Transforms;
use crate::cpu::memory::Memory;
use crate::cpu::plan;
use crate::cpu::pool::Crew;
use crate::engine::Engine;
use crate::error::{BindError, RunError};
use crate::tensors::HostTensors;
use elsa_core::plan::ChooseError;
use elsa_core::series::plan::{SeriesChoice, SeriesLayout};
use elsa_kernels::registry;
use elsa_kernels::series::SeriesKernel;
use std::fmt::Debug;
use std::marker::PhantomData;

/// A plan for the CPU.
#[derive(Clone, Debug)]
pub struct CpuPlan<O> {
    pub kernel: &'static SeriesKernel,
    pub choice: SeriesChoice,
    pub layout: SeriesLayout,
    /// The transforms of a convolution by FFT; `None` for other methods and other operators.
    pub transforms: Option<Transforms>,
    problem: PhantomData<O>,
}

/// Returns the kernels of the per-channel operators for the engine's CPU.
///
/// # Errors
/// Returns an error if this build has no such kernels.
pub fn kernel(engine: &Engine) -> Result<&'static SeriesKernel, ChooseError> {
    registry::series_of(engine.cpu()).ok_or(ChooseError::AbsentKernel)
}

impl<O> CpuPlan<O> {
    /// Creates a plan from the chooser's decisions and their layout. A plan for a convolution by FFT also needs the
    /// transforms.
    pub fn new(
        kernel: &'static SeriesKernel,
        (choice, layout): (SeriesChoice, SeriesLayout),
        transforms: Option<Transforms>,
    ) -> CpuPlan<O> {
        CpuPlan { kernel, choice, layout, transforms, problem: PhantomData }
    }
}

impl<O: OnCpu> plan::CpuPlan for CpuPlan<O> {
    type Problem = O;
    type Call<'a> = CpuCall<'a, O>;

    fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    fn kernel(&self) -> &'static str {
        self.kernel.spec.name
    }

    fn call<'a>(
        &'a self,
        problem: &'a O,
        (): (),
        tensors: &HostTensors<'a, O::Operand>,
        memory: &'a mut Memory,
    ) -> Result<CpuCall<'a, O>, BindError> {
        let base = memory.lines_for(self.layout.bytes())?;
        let call = problem.call(tensors, self.transforms.as_ref());
        Ok(CpuCall { plan: self, call, base })
    }
}

/// Checked call on the CPU, consisting of a plan, its tensors and a workspace.
///
/// Invariant: `base` is 64-byte aligned. From `base` on, the workspace has room for the plan's layout, its values are
/// initialised, and nothing else uses it. The engine's CPU has the instruction set of the plan's kernel.
#[derive(Debug)]
pub struct CpuCall<'a, O: OnCpu> {
    plan: &'a CpuPlan<O>,
    call: O::Call<'a>,
    base: *mut f32,
}

// SAFETY: a call is equivalent to a shared reference to the plan, the operator's call (which is `Send`), and an
// exclusive reference to the workspace.
unsafe impl<O: OnCpu> Send for CpuCall<'_, O> {}

impl<O: OnCpu> plan::CpuCall for CpuCall<'_, O> {
    fn run(&mut self, crew: &Crew<'_>) -> Result<(), RunError> {
        let CpuPlan { kernel, choice, layout, .. } = self.plan;
        let place = Place { kernel, choice, layout, base: self.base, crew: *crew };
        // SAFETY: the invariant covers the instruction set, and the alignment, size and exclusive use of the workspace.
        unsafe { O::run(&self.call, &place) }
    }

    fn workers(&self) -> usize {
        self.plan.choice.workers
    }
}
