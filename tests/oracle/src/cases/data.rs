//! Owned elements of tensors and masks.

use elsa_core::attention::MaskElements;
use elsa_core::dtype::{DType, Elements, ElementsMut};
use half::{bf16, f16};

/// Owned elements of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// f32 values.
    F32(Vec<f32>),
    /// f16 values.
    F16(Vec<f16>),
    /// bf16 values.
    Bf16(Vec<bf16>),
}

impl Data {
    /// Creates `len` elements, rounded to `dtype`. Each element is `of(index)`.
    pub fn of(dtype: DType, len: usize, of: impl FnMut(usize) -> f32) -> Data {
        let elements = (0..len).map(of);
        match dtype {
            DType::F32 => Data::F32(elements.collect()),
            DType::F16 => Data::F16(elements.map(f16::from_f32).collect()),
            DType::Bf16 => Data::Bf16(elements.map(bf16::from_f32).collect()),
        }
    }

    /// Creates `len` elements equal to `value`.
    #[must_use]
    pub fn filled(dtype: DType, len: usize, value: f32) -> Data {
        Data::of(dtype, len, |_| value)
    }

    /// Converts all elements to f32 and returns their bits.
    #[must_use]
    pub fn bits(&self) -> Vec<u32> {
        (0..self.len()).map(|i| self.get(i).to_bits()).collect()
    }

    /// Returns the bytes of all elements as a file stores them.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Data::F32(x) => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::F16(x) => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::Bf16(x) => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Borrows the elements.
    #[must_use]
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Data::F32(x) => Elements::F32(x),
            Data::F16(x) => Elements::F16(x),
            Data::Bf16(x) => Elements::Bf16(x),
        }
    }

    /// Borrows the elements for writing.
    pub fn elements_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Data::F32(x) => ElementsMut::F32(x),
            Data::F16(x) => ElementsMut::F16(x),
            Data::Bf16(x) => ElementsMut::Bf16(x),
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements().len()
    }

    /// Returns `true` if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element at `index` as f32.
    #[must_use]
    pub fn get(&self, index: usize) -> f32 {
        self.elements().get(index)
    }

    /// Writes `value` at `index`, rounded to the type of the elements.
    pub fn set(&mut self, index: usize, value: f32) {
        self.elements_mut().set(index, value);
    }
}

/// Owned elements of a mask.
#[derive(Clone, Debug, PartialEq)]
pub enum MaskData {
    /// One byte per element; non-zero means attended.
    Bool(Vec<u8>),
    /// Numbers added to the scores.
    Additive(Data),
}

impl MaskData {
    /// Borrows the elements.
    #[must_use]
    pub fn elements(&self) -> MaskElements<'_> {
        match self {
            MaskData::Bool(x) => MaskElements::Bool(x),
            MaskData::Additive(x) => MaskElements::Additive(x.elements()),
        }
    }

    /// Sets the element at `index` to attended, with zero added to the score, or to masked.
    pub fn set_attended(&mut self, index: usize, attended: bool) {
        match self {
            MaskData::Bool(x) => x[index] = u8::from(attended),
            MaskData::Additive(x) => x.set(index, if attended { 0.0 } else { f32::NEG_INFINITY }),
        }
    }
}
