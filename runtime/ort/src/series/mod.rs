//! The operators on separate channels: recurrence, selective scan and convolution.

mod convolution;
mod recurrence;
mod selective;
#[cfg(test)]
mod tests;

pub(crate) use self::convolution::Conv;
pub(crate) use self::recurrence::Recurrence;
pub(crate) use self::selective::SelectiveScan;

use crate::attributes::{Node, flag};
use crate::error::OperatorError;
use crate::shapes::Given;
use elsa_core::series::Series;

/// Index of the output with the last states.
const PRESENT: usize = 1;

/// Attributes that all these operators have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Order {
    /// `true` if the axes of a series are batch, tokens and channels; otherwise batch, channels and tokens.
    tokens_first: bool,
    /// `true` if tokens are processed from last to first.
    reverse: bool,
}

impl Order {
    fn of(node: &impl Node) -> Result<Order, OperatorError> {
        Ok(Order { tokens_first: flag(node, c"tokens_first")?, reverse: flag(node, c"reverse")? })
    }

    /// Returns the series of an input with three axes, which must be f32 or f16.
    fn series(&self, given: &Given<'_>) -> Result<Series, OperatorError> {
        given.float()?;
        let axes =
            given.axes::<3>("3: batch, channels, tokens, or with tokens_first batch, tokens, channels")?;
        self.series_of(given.argument, axes)
    }

    /// Returns the series of a dense tensor with the sizes `axes`.
    fn series_of(&self, argument: &'static str, axes: [usize; 3]) -> Result<Series, OperatorError> {
        let of = if self.tokens_first { Series::tokens_first } else { Series::channels_first };
        Ok(of(argument, axes)?)
    }
}

/// Implements the parts of [`Operation`](crate::operation::Operation) that the operators in modules of
/// `elsa_core::series` share: the inputs are in the order of the engine's operands, and the outputs are the series and the
/// last states.
macro_rules! tensors {
    ($module:ident, $problem:ty) => {
        unsafe fn host<'a>(
            _: &'a crate::operation::Geometry<$problem>,
            given: &crate::tensors::Addresses<'a>,
        ) -> crate::operation::HostOf<'a, Self> {
            use elsa_core::series::$module::{Inputs, Operand, Outputs};
            // SAFETY: the clause of this function. Each output is taken once.
            unsafe {
                let inputs = Inputs::of(
                    |operand: Operand| given.elements(operand as usize),
                    |operand: Operand| given.numbers(operand as usize),
                );
                let present_state = given.numbers_mut(crate::series::PRESENT);
                (inputs, Outputs { out: given.elements_mut(0), present_state })
            }
        }

        unsafe fn device<'a>(
            _: &'a crate::operation::Geometry<$problem>,
            given: &crate::tensors::Addresses<'a>,
        ) -> crate::operation::DeviceOf<'a, Self> {
            use elsa_core::series::$module::{InputTensors, Operand};
            let inputs = InputTensors::of(
                |operand: Operand| given.device_elements(operand as usize),
                |operand: Operand| given.device(operand as usize),
            );
            let present_state = given.device_output(crate::series::PRESENT);
            let out = given.device_output_elements(0);
            (inputs, elsa_runtime::SeriesDeviceOutputs { out, present_state })
        }
    };
}
use tensors;
