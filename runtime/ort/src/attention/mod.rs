//! `ElsaAttention`: softmax attention.

mod attributes;
mod geometry;
mod operands;
mod tensors;

use self::attributes::Attributes;
use self::geometry::{Geometry, Placement};
use self::operands::Input;
use crate::attributes::Node;
use crate::error::OperatorError;
use crate::operation::{DeviceOf, HostOf, Operation};
use crate::shapes::Shapes;
use crate::signature::{Declared, Parameter, Signature};
use crate::tensors::Addresses;
use elsa_core::attention::Problem;
use elsa_runtime::{Engine, Plan, PlanError, PlanOptions};

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
        ],
        outputs: &[
            Parameter::required("Y", Declared::Main),
            Parameter::optional("present_key", Declared::Main),
            Parameter::optional("present_value", Declared::Main),
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
            "out" => "Y",
            "past_k" => Input::PastKey.name(),
            "past_v" => Input::PastValue.name(),
            "present_k" => "present_key",
            "present_v" => "present_value",
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

    fn plan(engine: &Engine, problem: &Problem) -> Result<Plan, PlanError> {
        engine.plan(problem, &PlanOptions::default())
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
