//! Tensors in device memory for calls of the per-channel operators.

use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::operands::Place;
use elsa_core::series::OutputTensors;

/// Elements of a series in device memory: the address of the first one, and their type.
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

/// Checks the set of outputs of a call on device tensors.
///
/// # Errors
/// Returns an error if the call has no output. With `in_place`, also returns an error if the call has no present state,
/// because a run then reads its past state there.
pub fn check_outputs(outputs: &SeriesDeviceOutputs, in_place: bool) -> Result<(), ArgumentError> {
    match (outputs.out.is_some(), outputs.present_state.is_some()) {
        (_, false) if in_place => Err(ArgumentError::Needs { argument: "in_place", other: "present_state" }),
        (false, false) => Err(ArgumentError::NoOutput { argument: "out" }),
        _ => Ok(()),
    }
}
