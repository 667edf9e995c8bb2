//! `ElsaAttention`: softmax attention.

mod attributes;
mod geometry;
mod operands;
mod tensors;

use self::attributes::Attributes;
use self::geometry::{Geometry, Placement};
use self::operands::{Input, Output};
use crate::attributes::Node;
use crate::error::OperatorError;
use crate::operation::{DeviceOf, HostOf, Operation, Provider};
use crate::shapes::Shapes;
use crate::signature::{Declared, Parameter, Signature};
use crate::tensors::Addresses;
use elsa_core::attention::Problem;
use elsa_runtime::{Engine, Plan, PlanError, PlanOptions, Workspace};

/// Softmax attention.
pub(crate) struct Attention;

impl Operation for Attention {
    type Engine = elsa_runtime::Attention;
    type Attributes = Attributes;
    type Placement = Placement;

    const SIGNATURE: &'static Signature = &Signature {
        name: c"ElsaAttention",
        // With `packed`, the first input contains keys and values.
        inputs: &[
            Parameter::required(Input::Query.name(), Declared::Main),
            Parameter::optional(Input::Key.name(), Declared::Main),
            Parameter::optional(Input::Value.name(), Declared::Main),
            Parameter::optional(Input::Mask.name(), Declared::Any),
            Parameter::optional(Input::BiasTable.name(), Declared::Any),
            Parameter::optional(Input::PastKey.name(), Declared::Main),
            Parameter::optional(Input::PastValue.name(), Declared::Main),
            Parameter::optional(Input::KeyLengths.name(), Declared::OnHost),
            Parameter::optional(Input::QueryBounds.name(), Declared::OnHost),
            Parameter::optional(Input::KeyBounds.name(), Declared::OnHost),
        ],
        outputs: &[
            Parameter::required(Output::Y.name(), Declared::Main),
            Parameter::optional(Output::PresentKey.name(), Declared::Main),
            Parameter::optional(Output::PresentValue.name(), Declared::Main),
            Parameter::optional(Output::LogSumExp.name(), Declared::F32),
            Parameter::optional(Output::StateReference.name(), Declared::F32),
            Parameter::optional(Output::StateSum.name(), Declared::F32),
            Parameter::optional(Output::StateWeighted.name(), Declared::F32),
            Parameter::optional(Output::LeftOut.name(), Declared::F32),
        ],
    };

    fn attributes(node: &impl Node) -> Result<Attributes, OperatorError> {
        Attributes::of(node)
    }

    fn geometry(attributes: &Attributes, shapes: &Shapes) -> Result<Geometry, OperatorError> {
        geometry::geometry(attributes, shapes)
    }

    fn of_no_sequence(shapes: &Shapes) -> Option<Shapes> {
        geometry::of_no_sequence(shapes)
    }

    fn renamed(argument: &'static str) -> &'static str {
        match argument {
            "q" => "Q",
            "k" => "K",
            "v" => "V",
            "out" => Output::Y.name(),
            "past_k" => Input::PastKey.name(),
            "past_v" => Input::PastValue.name(),
            "present_k" => Output::PresentKey.name(),
            "present_v" => Output::PresentValue.name(),
            "bias" => "bias_table",
            "causal" => "is_causal",
            "window_left" | "window_right" => "window",
            "windows" | "windows.size" => "grid",
            "windows.picture" => "picture",
            "windows.shift" => "shift",
            "windows.picture in windows" => "picture in windows of grid",
            "key_lengths" => "kv_lengths",
            other => other,
        }
    }

    fn check_outputs(
        attributes: &Attributes,
        provider: Provider,
        shapes: &Shapes,
    ) -> Result<(), OperatorError> {
        let given = |output: &Output| shapes.outputs[*output as usize];
        if let Some(other) = geometry::without_present(shapes)
            && let Some(present) = Output::PRESENT.iter().find(|output| given(output))
        {
            return Err(OperatorError::Conflict { argument: present.name(), other });
        }
        if let Some(there) = Output::STATES.iter().find(|output| given(output))
            && let Some(missing) = Output::STATES.iter().find(|output| !given(output))
        {
            return Err(OperatorError::Missing { argument: missing.name(), other: there.name() });
        }
        if !given(&Output::LeftOut) {
            return Ok(());
        }
        let argument = Output::LeftOut.name();
        match (attributes.error_budget, provider) {
            (None, _) => Err(OperatorError::Missing { argument: "error_budget", other: argument }),
            (_, Provider::Cpu) => Ok(()),
            (_, Provider::Cuda) => Err(OperatorError::Value {
                argument,
                found: "an output of a node of the CUDA provider".to_owned(),
                allowed: "the CPU provider, or a node without this output",
            }),
        }
    }

    fn plan(engine: &Engine, attributes: &Attributes, problem: &Problem) -> Result<Plan, PlanError> {
        let Attributes { error_budget, half_scores, tensor_cores, .. } = *attributes;
        let options = PlanOptions::default().error_budget(error_budget).half_scores(half_scores);
        engine.plan(problem, &options.tensor_cores(tensor_cores))
    }

    fn workspace_bytes(plan: &Plan, shapes: &Shapes) -> usize {
        match Output::STATES.iter().any(|output| shapes.outputs[*output as usize]) {
            true => plan.state_workspace_bytes(),
            false => plan.workspace_bytes(),
        }
    }

    unsafe fn finish(workspace: &mut Workspace, given: &Addresses<'_>) -> Result<(), OperatorError> {
        // SAFETY: the clause of this function; the output is taken once.
        let Some(left_out) = (unsafe { given.numbers_mut(Output::LeftOut as usize) }) else { return Ok(()) };
        if !left_out.is_empty() {
            let found = workspace.traversed()?;
            left_out.iter_mut().zip(found.share).for_each(|(to, share)| *to = *share);
        }
        Ok(())
    }

    unsafe fn host<'a>(geometry: &'a Geometry, given: &Addresses<'a>) -> HostOf<'a, Self> {
        // SAFETY: the clause of this function.
        unsafe { (tensors::host_inputs(geometry, given), tensors::host_outputs(geometry, given)) }
    }

    unsafe fn device<'a>(geometry: &'a Geometry, given: &Addresses<'a>) -> DeviceOf<'a, Self> {
        // SAFETY: the clause of this function.
        let inputs = unsafe { tensors::device_inputs(geometry, given) };
        (inputs, tensors::device_outputs(geometry, given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::tests::shaped;

    #[test]
    fn outputs_that_do_not_fit_are_refused_by_name() {
        use Output::{LeftOut, PresentKey, PresentValue, StateReference, StateSum, StateWeighted};
        let (plain, budget) =
            (Attributes::default(), Attributes { error_budget: Some(0.5), ..Attributes::default() });
        let of = |attributes, provider, inputs: &[&[i64]], outputs: &[Output]| {
            let mut shapes = shaped(inputs);
            outputs.iter().for_each(|output| shapes.outputs[*output as usize] = true);
            Attention::check_outputs(attributes, provider, &shapes).map_err(|e| e.to_string())
        };
        let (cpu, cuda) = (Provider::Cpu, Provider::Cuda);
        let packed: &[&[i64]] = &[&[1, 2, 3, 4], &[], &[], &[], &[], &[], &[], &[], &[2]];
        let windows: &[&[i64]] = &[&[1, 2, 3, 4], &[], &[], &[], &[5, 2]];
        for (attributes, provider, inputs, outputs, says) in [
            (&plain, cpu, packed, &[PresentKey][..], "present_key: given with cu_seqlens_q"),
            (&plain, cuda, windows, &[PresentValue], "present_value: given with grid"),
            (
                &plain,
                cpu,
                &[],
                &[StateReference, StateSum],
                "state_w: absent; allowed: given, because state_m",
            ),
            (&plain, cpu, &[], &[StateWeighted], "state_m: absent; allowed: given, because state_w"),
            (&plain, cpu, &[], &[LeftOut], "error_budget: absent; allowed: given, because left_out"),
            (&budget, cuda, &[], &[LeftOut], "left_out: an output of a node of the CUDA provider; allowed: "),
        ] {
            let found = of(attributes, provider, inputs, outputs).unwrap_err();
            assert!(found.starts_with(says), "{found}\n{says}");
        }
        assert_eq!(of(&budget, cpu, packed, &[LeftOut]), Ok(()));
        assert_eq!(of(&budget, cuda, &[], &[PresentKey, StateReference, StateSum, StateWeighted]), Ok(()));
    }
}
