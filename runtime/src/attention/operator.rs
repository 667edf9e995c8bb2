//! Attention as an operator of the engine.

use super::certify::{Records, RunRecord};
use super::cpu::plan::CpuPlan;
use super::cuda::plan::GpuPlan;
use super::refusals::Refusals;
use super::traversed::Recorded;
use crate::operator::Operator;
use crate::problem;
use crate::tensors::TensorSpec;
use crate::{bound, plan, workspace};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::certificate::{Certificate, Executed};
use elsa_core::attention::{InputTensors, Inputs, Lengths, Operand, OutputTensors, Outputs, Problem};
use elsa_core::dtype::DType;

/// The operator that [`Engine::plan`](crate::Engine::plan) plans: exact softmax attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention;

/// A plan of attention: a problem and every decision that does not depend on the addresses of tensors.
/// [`Engine::plan`](crate::Engine::plan) creates it, and it can be bound to the tensors of any number of calls.
pub type Plan = plan::Plan<Attention>;
/// Working memory for runs of an attention plan. A workspace serves one run at a time.
pub type Workspace = workspace::Workspace<Attention>;
/// A plan of attention bound to the host tensors of a call by [`Plan::bind`]. The call may run any number of times.
pub type Bound<'a> = bound::Bound<'a, Attention>;
/// A plan of attention bound to tensors in device memory by [`Plan::bind_device`].
pub type DeviceBound<'a> = crate::cuda::bound::DeviceBound<'a, Attention>;

/// Device addresses of the first elements of a call's input tensors, and the sequence lengths in host memory. The
/// problem determines shapes and strides.
pub type DeviceInputs<'a> = InputTensors<'a, u64, u64, u64>;
/// Device addresses of the first elements of a call's output tensors. The problem determines shapes and strides. A
/// call writes at least one of output, log-sum-exp and states.
pub type DeviceOutputs = OutputTensors<u64, u64>;

impl problem::Problem for Problem {
    type Operand = Operand;
    type Lengths<'a> = Lengths<'a>;

    fn sequences(&self) -> usize {
        self.sequences()
    }

    fn tensor(&self, operand: Operand, _: DType) -> TensorSpec {
        let is_past = matches!(operand, Operand::PastKey | Operand::PastValue);
        TensorSpec {
            argument: operand.argument(),
            memory: self.memory(operand),
            read: !operand.is_written(),
            written: operand.is_written(),
            optional: matches!(operand, Operand::Output | Operand::LogSumExp) || operand.is_state(),
            kept_tokens: self.kept_tokens(operand),
            apart: operand.is_state(),
            forbidden: (is_past && self.spec().append).then_some("append"),
        }
    }
}

/// Creates the record that a workspace keeps of a run. `records` is the location of the run's measurements, and
/// `recorded` is the location of its counters. Runs that output states have the same certificate as other runs, because
/// writing states does not lengthen any chain of additions.
fn record(
    problem: &Problem,
    executed: Executed,
    records: Option<Records>,
    recorded: Option<Recorded>,
    stood_by: bool,
) -> RunRecord {
    let certificate = Certificate::new(problem.spec().dtype, problem.keys(), executed);
    RunRecord::new(problem, certificate, records, recorded, stood_by)
}

impl Operator for Attention {
    type Problem = Problem;
    type Inputs<'a> = Inputs<'a>;
    type Outputs<'a> = Outputs<'a>;
    type DeviceInputs<'a> = DeviceInputs<'a>;
    type DeviceOutputs = DeviceOutputs;
    type Cpu = CpuPlan;
    type Gpu = GpuPlan;
    type RunRecord = RunRecord;

    fn check(problem: &Problem, inputs: &Inputs<'_>, outputs: &Outputs<'_>) -> Result<(), ArgumentError> {
        inputs.check(problem)?;
        outputs.check(problem)
    }

    fn lengths<'a>(_: &'a Problem, inputs: &Inputs<'a>) -> Lengths<'a> {
        inputs.lengths
    }

    fn check_on_device(
        problem: &Problem,
        inputs: &DeviceInputs<'_>,
        outputs: &DeviceOutputs,
    ) -> Result<(), ArgumentError> {
        inputs.lengths.check(problem)?;
        if outputs.output.is_none() && outputs.lse.is_none() && outputs.state.is_none() {
            return Err(ArgumentError::NoOutput { argument: Operand::Output.argument() });
        }
        Ok(())
    }

    fn device_lengths<'a>(_: &'a Problem, inputs: &DeviceInputs<'a>) -> Lengths<'a> {
        inputs.lengths
    }

    fn record_of_cpu(plan: &CpuPlan, problem: &Problem, stood_by: bool) -> Option<RunRecord> {
        let records = plan.choice.certify.then_some(Records::Cpu(plan.layout.measured));
        let recorded = Recorded::of_cpu(plan);
        (records.is_some() || recorded.is_some())
            .then(|| record(problem, plan.executed(), records, recorded, stood_by))
    }

    fn record_of_gpu(plan: &GpuPlan, problem: &Problem) -> Option<RunRecord> {
        let (count, stride) = (plan.choice.records, plan.choice.record_stride());
        let records = (count > 0).then_some(Records::Gpu { at: plan.layout.records.start, count, stride });
        let (recorded, refusals) = (Recorded::of_gpu(plan), Refusals::of(plan));
        (records.is_some() || recorded.is_some() || refusals.is_some())
            .then(|| record(problem, plan.executed(), records, recorded, false).refusing(refusals))
    }
}
