//! `ElsaConv`: the causal convolution of each channel, as `CausalConvWithState` of ONNX opset 27.

use super::Order;
use crate::attributes::{Node, flag};
use crate::error::OperatorError;
use crate::operation::{Geometry, Operation};
use crate::shapes::{FLOAT, Given, Shapes, output, outputs, same};
use crate::signature::{Declared, Parameter, Signature};
use elsa_core::argument::ArgumentError;
use elsa_core::series::convolution::{Operand, Problem, Spec, Taps};
use elsa_runtime::{Convolution, ConvolutionOptions, ConvolutionPlan, Engine, PlanError};

/// The causal convolution.
pub(crate) struct Conv;

/// The attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Attributes {
    pub(super) order: Order,
    /// `true` if `silu` is applied to each output.
    pub(super) silu: bool,
    /// `true` if the first weight of a filter multiplies the newest input, otherwise the last weight does.
    pub(super) newest_first: bool,
}

/// Returns the number of weights of a filter, and whether all channels share it.
fn filter(given: &Given<'_>, channels: usize) -> Result<(usize, bool), OperatorError> {
    const AXES: &str = "1 to 3: channels, 1, weights; channels, weights; or weights";
    if given.shape.element != FLOAT {
        return Err(given.wrong_type("f32"));
    }
    let (found, taps) = match given.shape.rank {
        1 => {
            let [taps] = given.axes::<1>(AXES)?;
            (None, taps)
        }
        2 => {
            let [found, taps] = given.axes::<2>(AXES)?;
            (Some(found), taps)
        }
        _ => {
            let [found, one, taps] = given.axes::<3>(AXES)?;
            same(given.argument, "second axis", one, 1, "a filter for each channel")?;
            (Some(found), taps)
        }
    };
    if let Some(found) = found {
        same(given.argument, "channels", found, channels, "u")?;
    }
    if taps == 0 {
        return Err(ArgumentError::Zero { argument: given.argument, axis: "weights" }.into());
    }
    Ok((taps, found.is_none()))
}

impl Operation for Conv {
    type Engine = Convolution;
    type Attributes = Attributes;
    type Placement = ();

    const SIGNATURE: &'static Signature = &Signature {
        name: c"ElsaConv",
        inputs: &[
            Parameter::required(Operand::Signal.argument(), Declared::Main),
            Parameter::required(Operand::Filter.argument(), Declared::Any),
            Parameter::optional(Operand::Bias.argument(), Declared::Any),
            Parameter::optional(Operand::PastState.argument(), Declared::Any),
        ],
        outputs: &[
            Parameter::required(Operand::Output.argument(), Declared::Main),
            Parameter::optional(Operand::PresentState.argument(), Declared::F32),
        ],
    };

    fn attributes(node: &impl Node) -> Result<Attributes, OperatorError> {
        Ok(Attributes {
            order: Order::of(node)?,
            silu: flag(node, c"silu")?,
            newest_first: flag(node, c"newest_first")?,
        })
    }

    fn geometry(attributes: &Attributes, shapes: &Shapes) -> Result<Geometry<Problem>, OperatorError> {
        let required = |operand: Operand| shapes.required(operand as usize, operand.argument());
        let optional = |operand: Operand| shapes.given(operand as usize, operand.argument());
        let order = attributes.order;
        let u = required(Operand::Signal)?;
        let series = order.series(&u)?;
        let (batch, channels) = (series.batch(), series.channels());
        let (taps, shared) = filter(&required(Operand::Filter)?, channels)?;
        let out = order.series_of(Operand::Output.argument(), u.axes::<3>("3")?)?;
        let mut spec = Spec::new(series, taps, out);
        spec.shared = shared;
        spec.order = if attributes.newest_first { Taps::NewestFirst } else { Taps::NewestLast };
        spec.silu = attributes.silu;
        spec.reverse = order.reverse;
        let problem = spec.check()?;
        if let Some(bias) = optional(Operand::Bias) {
            bias.check_f32("1: channels", [("channels", channels, "u")])?;
        }
        let states = [batch, channels, problem.history()];
        if let Some(past) = optional(Operand::PastState) {
            let [batch, channels, history] = states;
            past.check_f32(
                "3: batch, channels, weights − 1",
                [("batch", batch, "u"), ("channels", channels, "u"), ("inputs", history, "filter")],
            )?;
        }
        let present = output(Operand::PresentState.argument(), FLOAT, &states)?;
        Ok(Geometry { problem, placement: (), outputs: outputs([*u.shape, present]) })
    }

    fn plan(engine: &Engine, _: &Self::Attributes, problem: &Problem) -> Result<ConvolutionPlan, PlanError> {
        engine.convolution_plan(problem, &ConvolutionOptions::default())
    }

    super::tensors!(convolution, Problem);
}
