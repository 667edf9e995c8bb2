//! Attention as an operator of the engine.

use super::certify::{Ran, Records};
use super::cpu::plan::CpuPlan;
use super::cuda::device::{DeviceInputs, DeviceOutputs, addresses};
use super::cuda::plan::GpuPlan;
use super::tensors;
use super::traversed::Recorded;
use crate::cuda::device::Addresses;
use crate::operator::Operator;
use crate::problem;
use crate::tensors::{HostTensors, PerTensor, Tensor, per_tensor};
use crate::{bound, plan, workspace};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::certificate::{Certificate, Executed};
use elsa_core::attention::{Inputs, Lengths, Operand, Outputs, Problem};

/// Exact softmax attention, the operator of [`Engine::plan`](crate::Engine::plan).
#[derive(Clone, Copy, Debug)]
pub struct Attention;

/// A plan of attention: a problem with every decision that does not depend on pointers.
/// [`Engine::plan`](crate::Engine::plan) creates it, and it can be bound to the tensors of any number of calls.
pub type Plan = plan::Plan<Attention>;
/// The working memory of the runs of a plan of attention. A workspace serves one run at a time.
pub type Workspace = workspace::Workspace<Attention>;
/// A plan of attention with the host tensors of a call, created by [`Plan::bind`]. It may run any number of times.
pub type Bound<'a> = bound::Bound<'a, Attention>;
/// A plan of attention with tensors in device memory, created by [`Plan::bind_device`].
pub type DeviceBound<'a> = crate::cuda::bound::DeviceBound<'a, Attention>;

impl problem::Problem for Problem {
    type Lengths<'a> = Lengths<'a>;

    fn sequences(&self) -> usize {
        self.sequences()
    }

    fn tensors(&self) -> PerTensor<Tensor> {
        per_tensor(|at| {
            let Some(operand) = Operand::ALL.get(at).copied() else { return Tensor::default() };
            let is_past = matches!(operand, Operand::PastKey | Operand::PastValue);
            Tensor {
                argument: operand.argument(),
                memory: self.memory(operand),
                read: !operand.is_written(),
                written: operand.is_written(),
                optional: matches!(operand, Operand::Output | Operand::LogSumExp) || operand.is_state(),
                kept: self.kept(operand),
                apart: operand.is_state(),
                forbidden: (is_past && self.spec().append).then_some("append"),
            }
        })
    }
}

/// Returns the workspace's record of a run, whose records are in `records` and `recorded`. States pass through
/// memory, which makes no path of additions longer, so one certificate serves runs with and without them.
fn ran(
    problem: &Problem,
    executed: Executed,
    records: Option<Records>,
    recorded: Option<Recorded>,
    stood_by: bool,
) -> Ran {
    let certificate = Certificate::new(problem.spec().dtype, problem.keys(), executed);
    Ran::new(problem, certificate, records, recorded, stood_by)
}

impl Operator for Attention {
    type Problem = Problem;
    type Inputs<'a> = Inputs<'a>;
    type Outputs<'a> = Outputs<'a>;
    type DeviceInputs<'a> = DeviceInputs<'a>;
    type DeviceOutputs = DeviceOutputs;
    type Cpu = CpuPlan;
    type Gpu = GpuPlan;
    type Ran = Ran;

    fn host_tensors<'a>(
        problem: &'a Problem,
        inputs: &Inputs<'a>,
        outputs: Outputs<'a>,
    ) -> Result<HostTensors<'a>, ArgumentError> {
        inputs.check(problem)?;
        outputs.check(problem)?;
        Ok(tensors::host(inputs, outputs))
    }

    fn lengths<'a>(_: &'a Problem, inputs: &Inputs<'a>, _: &Outputs<'a>) -> Lengths<'a> {
        inputs.lengths
    }

    fn device_tensors(
        problem: &Problem,
        inputs: &DeviceInputs<'_>,
        outputs: &DeviceOutputs,
    ) -> Result<Addresses, ArgumentError> {
        inputs.lengths.check(problem)?;
        if outputs.output.is_none() && outputs.lse.is_none() && outputs.state.is_none() {
            return Err(ArgumentError::NoOutput { argument: Operand::Output.argument() });
        }
        Ok(addresses(inputs, outputs))
    }

    fn device_lengths<'a>(_: &'a Problem, inputs: &DeviceInputs<'a>, _: &DeviceOutputs) -> Lengths<'a> {
        inputs.lengths
    }

    fn ran_on_cpu(plan: &CpuPlan, problem: &Problem, stood_by: bool) -> Option<Ran> {
        let records = plan.choice.certify.then_some(Records::Cpu(plan.layout.measured));
        let recorded = Recorded::of_cpu(plan);
        (records.is_some() || recorded.is_some())
            .then(|| ran(problem, plan.executed(), records, recorded, stood_by))
    }

    fn ran_on_gpu(plan: &GpuPlan, problem: &Problem) -> Option<Ran> {
        let (count, stride) = (plan.choice.records, plan.choice.record_stride());
        let records = (count > 0).then_some(Records::Gpu { at: plan.layout.records.start, count, stride });
        let recorded = Recorded::of_gpu(plan);
        (records.is_some() || recorded.is_some())
            .then(|| ran(problem, plan.executed(), records, recorded, false))
    }
}
