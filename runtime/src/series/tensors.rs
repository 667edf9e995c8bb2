//! The tensors of a call of series in device memory.

use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::operands::Place;
use elsa_core::series::OutputTensors;

/// Elements in device memory: the address of the first one of a series, and their type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceElements {
    /// The address.
    pub address: u64,
    /// Type of the elements.
    pub dtype: DType,
}

/// The output tensors of a call of series in device memory: the output, the states after the last token, or both.
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
/// Returns an error if the call has no output, or lacks the present state, which a problem in place reads too.
pub fn check_outputs(outputs: &SeriesDeviceOutputs, in_place: bool) -> Result<(), ArgumentError> {
    match (outputs.out.is_some(), outputs.present_state.is_some()) {
        (_, false) if in_place => Err(ArgumentError::Needs { argument: "in_place", other: "present_state" }),
        (false, false) => Err(ArgumentError::NoOutput { argument: "out" }),
        _ => Ok(()),
    }
}
