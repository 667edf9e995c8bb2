//! `ElsaSelectiveScan`: the selective scan of Mamba.

use super::Order;
use crate::attributes::{Node, flag};
use crate::error::OperatorError;
use crate::operation::{Geometry, Operation};
use crate::shapes::{FLOAT, Given, Shapes, output, outputs};
use crate::signature::{Declared, Parameter, Signature};
use elsa_core::series::selective::{Coefficient, Operand, Problem, Spec};
use elsa_runtime::{Engine, PlanError, Selective, SelectiveOptions, SelectivePlan};

/// The selective scan.
pub(crate) struct SelectiveScan;

/// The attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Attributes {
    pub(super) order: Order,
    /// `true` if the time steps are the softplus of `delta` and its bias.
    pub(super) softplus: bool,
}

/// Returns the shape of the coefficients `b` or `c`: one for each token, in groups of channels if the tensor has four
/// axes, or one for each of `channels` channels with `states` numbers.
fn coefficient(
    order: Order,
    given: &Given<'_>,
    channels: usize,
    states: usize,
) -> Result<Coefficient, OperatorError> {
    match given.shape.rank {
        2 => {
            given.check_f32("2", [("channels", channels, "u"), ("states", states, "a")])?;
            Ok(Coefficient::Channel)
        }
        4 => {
            given.float()?;
            let [batch, x, y, z] = given.sizes()?;
            let axes = if order.tokens_first {
                [batch, x, y.saturating_mul(z)]
            } else {
                [batch, x.saturating_mul(y), z]
            };
            Ok(Coefficient::Token(order.series_of(given.argument, axes)?))
        }
        3 => Ok(Coefficient::Token(order.series(given)?)),
        _ => Err(given.wrong_rank("2 to 4: for each channel, for each token, or for each token and group")),
    }
}

impl Operation for SelectiveScan {
    type Engine = Selective;
    type Attributes = Attributes;
    type Placement = ();

    const SIGNATURE: &'static Signature = &Signature {
        name: c"ElsaSelectiveScan",
        inputs: &[
            Parameter::required(Operand::Signal.argument(), Declared::Main),
            Parameter::required(Operand::Steps.argument(), Declared::Any),
            Parameter::required(Operand::Rates.argument(), Declared::Any),
            Parameter::required(Operand::IntoState.argument(), Declared::Any),
            Parameter::required(Operand::OutOfState.argument(), Declared::Any),
            Parameter::optional(Operand::Skip.argument(), Declared::Any),
            Parameter::optional(Operand::Gate.argument(), Declared::Any),
            Parameter::optional(Operand::StepBias.argument(), Declared::Any),
            Parameter::optional(Operand::PastState.argument(), Declared::Any),
        ],
        outputs: &[
            Parameter::required(Operand::Output.argument(), Declared::Main),
            Parameter::optional(Operand::PresentState.argument(), Declared::F32),
        ],
    };

    fn attributes(node: &impl Node) -> Result<Attributes, OperatorError> {
        Ok(Attributes { order: Order::of(node)?, softplus: flag(node, c"softplus")? })
    }

    fn geometry(attributes: &Attributes, shapes: &Shapes) -> Result<Geometry<Problem>, OperatorError> {
        let required = |operand: Operand| shapes.required(operand as usize, operand.argument());
        let optional = |operand: Operand| shapes.given(operand as usize, operand.argument());
        let order = attributes.order;
        let u = required(Operand::Signal)?;
        let series = order.series(&u)?;
        let (batch, channels) = (series.batch(), series.channels());
        let rates = required(Operand::Rates)?;
        let [_, states] = rates.axes::<2>("2: channels, states")?;
        rates.check_f32("2", [("channels", channels, "u"), ("states", states, "a")])?;
        let of = |operand| coefficient(order, &required(operand)?, channels, states);
        let (b, c) = (of(Operand::IntoState)?, of(Operand::OutOfState)?);
        let delta = order.series(&required(Operand::Steps)?)?;
        let out = order.series_of(Operand::Output.argument(), u.axes::<3>("3")?)?;
        let mut spec = Spec::new(series, delta, states, b, c, out);
        spec.z = optional(Operand::Gate).map(|z| order.series(&z)).transpose()?;
        spec.softplus = attributes.softplus;
        spec.reverse = order.reverse;
        let problem = spec.check()?;
        for vector in [Operand::Skip, Operand::StepBias].into_iter().filter_map(optional) {
            vector.check_f32("1: channels", [("channels", channels, "u")])?;
        }
        let kept = [batch, channels, states];
        if let Some(past) = optional(Operand::PastState) {
            past.check_f32(
                "3: batch, channels, states",
                [("batch", batch, "u"), ("channels", channels, "u"), ("states", states, "a")],
            )?;
        }
        let present = output(Operand::PresentState.argument(), FLOAT, &kept)?;
        Ok(Geometry { problem, placement: (), outputs: outputs([*u.shape, present]) })
    }

    fn plan(engine: &Engine, _: &Self::Attributes, problem: &Problem) -> Result<SelectivePlan, PlanError> {
        engine.selective_plan(problem, &SelectiveOptions::default())
    }

    super::tensors!(selective, Problem);
}
