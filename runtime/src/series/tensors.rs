//! The tensors of a call of series: what each occupies by its type.

use crate::tensors::Tensor;
use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::memory::Memory;
use elsa_core::operands::Place;
use elsa_core::series::{OutputTensors, Series};
use elsa_core::view::{Layout, View};

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

impl Place for DeviceElements {
    type Address = u64;

    fn address(&mut self) -> u64 {
        self.address
    }

    fn dtype(&self) -> Option<DType> {
        Some(self.dtype)
    }
}

/// A series that a run reads.
pub fn read(argument: &'static str, series: &Series, dtype: DType) -> Tensor {
    let memory = Memory { elements: series.extent(), element_size: dtype.size(), view: Some(*series.view()) };
    Tensor { argument, memory: Some(memory), read: true, ..Tensor::default() }
}

/// A series that a run writes, if it is wanted.
pub fn written(argument: &'static str, series: &Series, dtype: DType) -> Tensor {
    Tensor { read: false, written: true, optional: true, ..read(argument, series, dtype) }
}

/// A dense tensor of `elements` elements that a run reads.
pub fn dense(argument: &'static str, elements: usize, dtype: DType) -> Tensor {
    let memory = Memory { elements, element_size: dtype.size(), view: None };
    Tensor { argument, memory: Some(memory), read: true, ..Tensor::default() }
}

/// Number of values of states.
fn values(shape: [usize; 3]) -> usize {
    shape.iter().fold(1, |n: usize, size| n.saturating_mul(*size))
}

/// The past states, of `shape`. In place there are none.
pub fn past_states(argument: &'static str, shape: [usize; 3], in_place: bool) -> Tensor {
    let past = Tensor { optional: true, ..dense(argument, values(shape), DType::F32) };
    match in_place {
        true => Tensor { memory: None, forbidden: Some("in_place"), ..past },
        false => past,
    }
}

/// The present states, of `shape`.
pub fn present_states(argument: &'static str, shape: [usize; 3], in_place: bool) -> Tensor {
    let [batch, channels, numbers] = shape;
    // In place it goes back by its view, once a run has succeeded. The problem has checked that it can be counted.
    let view = View::dense(argument, Layout::Bhnd, &[1, batch, channels, numbers], None).ok();
    let memory = Some(Memory { elements: values(shape), element_size: size_of::<f32>(), view });
    Tensor { argument, memory, read: in_place, written: true, optional: true, ..Tensor::default() }
}

/// Checks which outputs a call on device tensors has.
///
/// # Errors
/// Returns an error if there is none, or none that a problem in place reads.
pub fn check_outputs(outputs: &SeriesDeviceOutputs, in_place: bool) -> Result<(), ArgumentError> {
    match (outputs.out.is_some(), outputs.present_state.is_some()) {
        (_, false) if in_place => Err(ArgumentError::Needs { argument: "in_place", other: "present_state" }),
        (false, false) => Err(ArgumentError::NoOutput { argument: "out" }),
        _ => Ok(()),
    }
}
