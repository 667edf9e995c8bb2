//! Table of the functions that all operators need for an instruction set: they detect the set, and move and convert rows.

use elsa_core::dtype::DType;
use elsa_core::profile::InstructionSet;

/// Type of `memory::widen`; arguments: source, stride of the source, rows, dims, target, stride of the target.
pub type Widen = unsafe fn(*const u16, usize, usize, usize, *mut f32, usize);
/// Type of `memory::narrow`; arguments: source, rows, dims, target, stride of the target.
pub type Narrow = unsafe fn(*const f32, usize, usize, *mut u16, usize);

/// Functions of one instruction set that all operators need.
///
/// Each function has the safety clauses of the generic function that its comment names, and one more clause: the
/// processor has the instruction set.
#[derive(Debug)]
pub struct Primitives {
    /// The instruction set.
    pub set: InstructionSet,
    /// Function that returns `true` if this machine has the instruction set.
    pub present: fn() -> bool,
    /// Entry point of `memory::transpose_in`.
    pub transpose_in: unsafe fn(*const f32, usize, usize, usize, usize, usize, f32, *mut f32),
    /// Entry point of `memory::transpose_out`.
    pub transpose_out: unsafe fn(*const f32, usize, usize, usize, *mut f32, usize),
    /// Entry point of `memory::widen` for f16 sources.
    pub widen_f16: Widen,
    /// Entry point of `memory::widen` for bf16 sources.
    pub widen_bf16: Widen,
    /// Entry point of `memory::narrow` for f16 targets.
    pub narrow_f16: Narrow,
    /// Entry point of `memory::narrow` for bf16 targets.
    pub narrow_bf16: Narrow,
    /// Entry point of [`crate::exp2::exp2`], for measuring the error of the exponential.
    pub exp2: unsafe fn(*const f32, usize, *mut f32),
}

impl Primitives {
    /// Returns the conversion from a 16-bit type to f32; `None` for f32.
    #[must_use]
    pub fn widen(&self, dtype: DType) -> Option<Widen> {
        match dtype {
            DType::F32 => None,
            DType::F16 => Some(self.widen_f16),
            DType::Bf16 => Some(self.widen_bf16),
        }
    }

    /// Copies `count` rows of `dim` elements to rows of f32 values. Elements have the type `dtype`; source rows are
    /// `stride` elements apart, and target rows are `to_stride` values apart. The conversion is exact.
    ///
    /// # Safety
    /// - The processor has the instruction set.
    /// - `count` rows of `dim` elements, `stride` apart, are readable at `src`.
    /// - `count` rows of `dim` f32 values, `to_stride` apart, are writable at `dst`, and do not overlap the rows at
    ///   `src`.
    pub unsafe fn rows_to_f32(
        &self,
        dtype: DType,
        src: *const u8,
        stride: usize,
        count: usize,
        dim: usize,
        dst: *mut f32,
        to_stride: usize,
    ) {
        // SAFETY: both sides have `count` rows, and the instruction set is present (clauses).
        unsafe {
            match self.widen(dtype) {
                Some(widen) => widen(src.cast(), stride, count, dim, dst, to_stride),
                None => {
                    for i in 0..count {
                        let from = src.cast::<f32>().add(i * stride);
                        dst.add(i * to_stride).copy_from_nonoverlapping(from, dim);
                    }
                }
            }
        }
    }

    /// Returns the conversion from f32 to a 16-bit type; `None` for f32.
    #[must_use]
    pub fn narrow(&self, dtype: DType) -> Option<Narrow> {
        match dtype {
            DType::F32 => None,
            DType::F16 => Some(self.narrow_f16),
            DType::Bf16 => Some(self.narrow_bf16),
        }
    }
}
