//! Element types, and borrowed slices of them.

use half::{bf16, f16};

/// The type of a tensor's elements. Arithmetic is in f32 for every type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper 16 bits of an f32, with 8 exponent and 7 fraction bits.
    Bf16,
}

impl DType {
    /// Returns the size of an element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
        }
    }

    /// Returns the name of the type: `f32`, `f16` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
        }
    }

    /// Returns the unit roundoff: half the distance from 1 to the next larger number.
    #[must_use]
    pub const fn unit_roundoff(self) -> f64 {
        match self {
            DType::F32 => 5.960_464_477_539_063e-8,
            DType::F16 => 4.882_812_5e-4,
            DType::Bf16 => 3.906_25e-3,
        }
    }

    /// Returns half of the smallest positive number: the largest rounding error in the subnormal range.
    #[must_use]
    pub const fn subnormal_roundoff(self) -> f64 {
        match self {
            DType::F32 => 7.006_492_321_624_085e-46,
            DType::F16 => 2.980_232_238_769_531_3e-8,
            DType::Bf16 => 4.591_774_807_899_561e-41,
        }
    }
}

impl core::fmt::Display for DType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Borrowed elements of an input tensor, created from a slice.
///
/// ```
/// # use elsa_core::dtype::{DType, Elements};
/// let q = vec![0.5f32; 8];
/// let elements = Elements::from(&q[..]);
/// assert_eq!((elements.dtype(), elements.len()), (DType::F32, 8));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// f32 elements.
    F32(&'a [f32]),
    /// f16 elements.
    F16(&'a [f16]),
    /// bf16 elements.
    Bf16(&'a [bf16]),
}

/// Empty f32 elements.
impl Default for Elements<'_> {
    fn default() -> Self {
        Elements::F32(&[])
    }
}

impl Elements<'_> {
    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Elements::F32(_) => DType::F32,
            Elements::F16(_) => DType::F16,
            Elements::Bf16(_) => DType::Bf16,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(x) => x.len(),
            Elements::F16(x) => x.len(),
            Elements::Bf16(x) => x.len(),
        }
    }

    /// Returns `true` if the slice is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the first element.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            Elements::F32(x) => x.as_ptr().cast(),
            Elements::F16(x) => x.as_ptr().cast(),
            Elements::Bf16(x) => x.as_ptr().cast(),
        }
    }

    /// Returns the element at `index`, widened to f32. The conversion is exact for all three types.
    ///
    /// # Panics
    /// Panics if `index` is not below `len`.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Elements::F32(x) => x[index],
            Elements::F16(x) => x[index].to_f32(),
            Elements::Bf16(x) => x[index].to_f32(),
        }
    }
}

/// Mutably borrowed elements of an output tensor, created from a slice.
///
/// ```
/// # use elsa_core::dtype::ElementsMut;
/// let mut y = vec![0.0f32; 8];
/// let mut elements = ElementsMut::from(&mut y[..]);
/// elements.set(0, 0.5);
/// assert_eq!(y[0], 0.5);
/// ```
#[derive(Debug)]
pub enum ElementsMut<'a> {
    /// f32 elements.
    F32(&'a mut [f32]),
    /// f16 elements.
    F16(&'a mut [f16]),
    /// bf16 elements.
    Bf16(&'a mut [bf16]),
}

impl ElementsMut<'_> {
    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            ElementsMut::F32(_) => DType::F32,
            ElementsMut::F16(_) => DType::F16,
            ElementsMut::Bf16(_) => DType::Bf16,
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            ElementsMut::F32(x) => x.len(),
            ElementsMut::F16(x) => x.len(),
            ElementsMut::Bf16(x) => x.len(),
        }
    }

    /// Returns `true` if the slice is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reborrows the elements for reading.
    #[must_use]
    pub fn elements(&self) -> Elements<'_> {
        match self {
            ElementsMut::F32(x) => Elements::F32(x),
            ElementsMut::F16(x) => Elements::F16(x),
            ElementsMut::Bf16(x) => Elements::Bf16(x),
        }
    }

    /// Returns the address of the first element.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            ElementsMut::F32(x) => x.as_mut_ptr().cast(),
            ElementsMut::F16(x) => x.as_mut_ptr().cast(),
            ElementsMut::Bf16(x) => x.as_mut_ptr().cast(),
        }
    }

    /// Writes `value` at `index`, rounded to the nearest value of the element type.
    ///
    /// # Panics
    /// Panics if `index` is not below `len`.
    #[inline]
    pub fn set(&mut self, index: usize, value: f32) {
        match self {
            ElementsMut::F32(x) => x[index] = value,
            ElementsMut::F16(x) => x[index] = f16::from_f32(value),
            ElementsMut::Bf16(x) => x[index] = bf16::from_f32(value),
        }
    }
}

/// Implements the conversions from slices of each element type.
macro_rules! slices {
    ($($element:ty => $variant:ident,)*) => {$(
        impl<'a> From<&'a [$element]> for Elements<'a> {
            fn from(slice: &'a [$element]) -> Elements<'a> {
                Elements::$variant(slice)
            }
        }

        impl<'a> From<&'a mut [$element]> for ElementsMut<'a> {
            fn from(slice: &'a mut [$element]) -> ElementsMut<'a> {
                ElementsMut::$variant(slice)
            }
        }
    )*};
}

slices! {
    f32 => F32,
    f16 => F16,
    bf16 => Bf16,
}
