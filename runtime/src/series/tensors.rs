//! Tensors in device memory for calls of the per-channel operators.

use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::operands::Place;
use elsa_core::series::OutputTensors;

/// Elements of a series in device memory: the address of the first element, and the type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceElements {
    /// Device address of the first element.
    pub address: u64,
    /// Type of the elements.
    pub dtype: DType,
}

/// The output tensors of a per-channel operator in device memory: the output, the states after the last token, or both.
pub type SeriesDeviceOutputs = OutputTensors<DeviceElements, u64>;

impl Default for DeviceElements {
    fn default() -> DeviceElements {
        DeviceElements { address: 0, dtype: DType::F32 }
    }
}

impl Place for DeviceElements {
    type Address = u64;

    fn address(&mut self) -> u64 {
        self.address
    }

    fn dtype(&self) -> Option<DType> {
        Some(self.dtype)
    }
}

/// Checks which outputs a call on device tensors has.
///
/// # Errors
/// Returns an error if the call has no output. With `in_place`, a run reads its past state from the memory of the
/// present state. So with `in_place`, also returns an error if the call has no present state.
pub fn check_outputs(outputs: &SeriesDeviceOutputs, in_place: bool) -> Result<(), ArgumentError> {
    match (outputs.out.is_some(), outputs.present_state.is_some()) {
        (_, false) if in_place => Err(ArgumentError::Needs { argument: "in_place", other: "present_state" }),
        (false, false) => Err(ArgumentError::NoOutput { argument: "out" }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SelectiveDeviceInputs;
    use crate::problem::Problem as _;
    use crate::tensors::{places, types};
    use elsa_core::series::Series;
    use elsa_core::series::selective::{Coefficient, Operand, Spec};

    #[test]
    fn calls_without_the_outputs_that_they_need_are_refused() {
        let none = SeriesDeviceOutputs::default();
        let out = SeriesDeviceOutputs { out: Some(DeviceElements::default()), ..none };
        let state = SeriesDeviceOutputs { present_state: Some(64), ..none };
        let absent = ArgumentError::NoOutput { argument: "out" };
        let no_state = ArgumentError::Needs { argument: "in_place", other: "present_state" };
        for (outputs, apart, in_place) in
            [(none, Err(absent), Err(no_state)), (out, Ok(()), Err(no_state)), (state, Ok(()), Ok(()))]
        {
            assert_eq!(check_outputs(&outputs, false), apart, "{outputs:?}");
            assert_eq!(check_outputs(&outputs, true), in_place, "{outputs:?}");
        }
    }

    /// Checks that the sizes of a call's tensors are computed from the call's element types, not from the size of f32.
    #[test]
    fn the_types_of_a_call_size_its_tensors() {
        let u = Series::channels_first("u", [1, 6, 70]).unwrap();
        let b = Coefficient::Token(Series::channels_first("b", [1, 5, 70]).unwrap());
        let problem = Spec::new(u, u, 5, b, Coefficient::Channel, u).check().unwrap();
        for dtype in [DType::F32, DType::F16] {
            let of = DeviceElements { address: 64, dtype };
            let mut inputs = SelectiveDeviceInputs {
                u: of,
                delta: of,
                a: 64,
                b: of,
                c: of,
                d: None,
                z: None,
                delta_bias: None,
                past_state: None,
            };
            let mut outputs = SeriesDeviceOutputs { out: Some(of), present_state: None };
            let tensors = problem.tensors_of(&types(&places(&mut inputs, &mut outputs)));
            assert_eq!(tensors[Operand::IntoState].bytes(), 5 * 70 * dtype.size());
        }
    }
}
