//! The tensors of a call of series: what each occupies by its type, and the slices of those on the host.

use crate::tensors::{MOST_TENSORS, PerTensor, Tensor};
use elsa_core::argument::ArgumentError;
use elsa_core::dtype::DType;
use elsa_core::memory::Memory;
use elsa_core::series::Series;
use elsa_core::view::{Layout, View};

/// The types of the elements of a call's tensors, by number.
pub type Types = PerTensor<DType>;

/// Types of a call all of whose tensors are f32, which are the largest.
pub const LARGEST: Types = [DType::F32; MOST_TENSORS];

/// Elements in device memory: the address of the first one of a series, and their type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceElements {
    /// The address.
    pub address: u64,
    /// Type of the elements.
    pub dtype: DType,
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

/// The past and the present states, of `shape`. In place there is no past.
pub fn states(shape: [usize; 3], in_place: bool) -> [Tensor; 2] {
    let [batch, channels, numbers] = shape;
    let elements = shape.iter().fold(1, |n: usize, size| n.saturating_mul(*size));
    let past = Tensor { optional: true, ..dense("past_state", elements, DType::F32) };
    let past = match in_place {
        true => Tensor { memory: None, forbidden: Some("in_place"), ..past },
        false => past,
    };
    // In place it goes back by its view, once a run has succeeded. The problem has checked that it can be counted.
    let view = View::dense("present_state", Layout::Bhnd, &[1, batch, channels, numbers], None).ok();
    let memory = Memory { elements, element_size: size_of::<f32>(), view };
    let (argument, memory) = ("present_state", Some(memory));
    let present =
        Tensor { argument, memory, read: in_place, written: true, optional: true, ..Tensor::default() };
    [past, present]
}

/// Checks which outputs a call on device tensors has.
///
/// # Errors
/// Returns an error if there is none, or none that a problem in place reads.
pub fn check_outputs(out: bool, present: bool, in_place: bool) -> Result<(), ArgumentError> {
    match (out, present) {
        (_, false) if in_place => Err(ArgumentError::Needs { argument: "in_place", other: "present_state" }),
        (false, false) => Err(ArgumentError::NoOutput { argument: "out" }),
        _ => Ok(()),
    }
}

/// The address of a slice, to be kept among host tensors.
pub fn address(x: Option<&[f32]>) -> *mut u8 {
    x.map_or(std::ptr::null_mut(), |x| x.as_ptr().cast_mut().cast())
}

/// The same of a slice that is written.
pub fn address_mut(x: Option<&mut [f32]>) -> *mut u8 {
    x.map_or(std::ptr::null_mut(), |x| x.as_mut_ptr().cast())
}

/// Numbers of the tensors of a recurrence.
pub mod of_recurrence {
    /// Factors.
    pub const A: usize = 0;
    /// Addends.
    pub const B: usize = 1;
    /// States before the first token.
    pub const PAST: usize = 2;
    /// The output.
    pub const OUT: usize = 3;
    /// States after the last token.
    pub const PRESENT: usize = 4;
}

/// Numbers of the tensors of a selective scan.
pub mod of_selective {
    /// Inputs.
    pub const U: usize = 0;
    /// Time steps.
    pub const DELTA: usize = 1;
    /// Rates.
    pub const A: usize = 2;
    /// Input coefficients.
    pub const B: usize = 3;
    /// Output coefficients.
    pub const C: usize = 4;
    /// Factors of the input in the output.
    pub const D: usize = 5;
    /// Gates of the output.
    pub const Z: usize = 6;
    /// Added to the time steps.
    pub const BIAS: usize = 7;
    /// States before the first token.
    pub const PAST: usize = 8;
    /// The output.
    pub const OUT: usize = 9;
    /// States after the last token.
    pub const PRESENT: usize = 10;
}

/// Numbers of the tensors of a convolution.
pub mod of_convolution {
    /// Inputs.
    pub const U: usize = 0;
    /// Filters.
    pub const FILTER: usize = 1;
    /// Added to the sums.
    pub const BIAS: usize = 2;
    /// Inputs before the first token.
    pub const PAST: usize = 3;
    /// The output.
    pub const OUT: usize = 4;
    /// The last inputs.
    pub const PRESENT: usize = 5;
}
