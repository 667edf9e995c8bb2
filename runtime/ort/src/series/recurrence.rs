//! `ElsaRecurrence`: `h_t = a_t h_{t−1} + b_t` in each channel.

use super::Order;
use crate::attributes::{Node, flag};
use crate::error::OperatorError;
use crate::operation::{Geometry, Operation};
use crate::shapes::{FLOAT, Shapes, output, outputs};
use crate::signature::{Declared, Parameter, Signature};
use elsa_core::series::recurrence::{Gate, Operand, Problem, Spec};
use elsa_runtime::{Engine, PlanError, RecurrenceOptions, RecurrencePlan};

/// The recurrence of first order.
pub(crate) struct Recurrence;

/// The attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Attributes {
    pub(super) order: Order,
    /// `true` if the gates are natural logarithms of factors.
    pub(super) log_gates: bool,
}

impl Operation for Recurrence {
    type Engine = elsa_runtime::Recurrence;
    type Attributes = Attributes;
    type Placement = ();

    const SIGNATURE: &'static Signature = &Signature {
        name: c"ElsaRecurrence",
        inputs: &[
            Parameter::required(Operand::Gates.argument(), Declared::Any),
            Parameter::required(Operand::Addends.argument(), Declared::Main),
            Parameter::optional(Operand::PastState.argument(), Declared::Any),
        ],
        outputs: &[
            Parameter::required(Operand::Output.argument(), Declared::Main),
            Parameter::optional(Operand::PresentState.argument(), Declared::F32),
        ],
    };

    fn attributes(node: &impl Node) -> Result<Attributes, OperatorError> {
        Ok(Attributes { order: Order::of(node)?, log_gates: flag(node, c"log_gates")? })
    }

    fn geometry(attributes: &Attributes, shapes: &Shapes) -> Result<Geometry<Problem>, OperatorError> {
        let required = |operand: Operand| shapes.required(operand as usize, operand.argument());
        let order = attributes.order;
        let (a, b) = (required(Operand::Gates)?, required(Operand::Addends)?);
        let series = order.series(&b)?;
        let out = order.series_of(Operand::Output.argument(), b.axes::<3>("3")?)?;
        let mut spec = Spec::new(order.series(&a)?, series, out);
        spec.gate = if attributes.log_gates { Gate::Log } else { Gate::Factor };
        spec.reverse = order.reverse;
        let problem = spec.check()?;
        let states = [series.batch(), series.channels()];
        if let Some(past) = shapes.given(Operand::PastState as usize, Operand::PastState.argument()) {
            past.check_f32("2: batch, channels", [("batch", states[0], "b"), ("channels", states[1], "b")])?;
        }
        let present = output(Operand::PresentState.argument(), FLOAT, &states)?;
        Ok(Geometry { problem, placement: (), outputs: outputs([*b.shape, present]) })
    }

    fn plan(engine: &Engine, _: &Self::Attributes, problem: &Problem) -> Result<RecurrencePlan, PlanError> {
        engine.recurrence_plan(problem, &RecurrenceOptions::default())
    }

    super::tensors!(recurrence, Problem);
}
