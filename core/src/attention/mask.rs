//! Masks as data: boolean or additive, broadcast over `[batch, heads, q, k]` from the right.

use crate::argument::ArgumentError;
use crate::dtype::{DType, Elements};

/// What the elements of a mask mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskKind {
    /// Non-zero bytes are attended.
    Bool,
    /// Added to the score, in natural-log units; `−∞` is not attended.
    Additive(DType),
}

impl MaskKind {
    /// `bool`, `f32`, `f16` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MaskKind::Bool => "bool",
            MaskKind::Additive(dtype) => dtype.name(),
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            MaskKind::Bool => 1,
            MaskKind::Additive(dtype) => dtype.size(),
        }
    }
}

/// Borrowed elements of a mask.
#[derive(Clone, Copy, Debug)]
pub enum MaskElements<'a> {
    /// One byte an element; non-zero is attended.
    Bool(&'a [u8]),
    /// Added to the score.
    Additive(Elements<'a>),
}

impl MaskElements<'_> {
    /// What the elements mean.
    #[must_use]
    pub fn kind(&self) -> MaskKind {
        match self {
            MaskElements::Bool(_) => MaskKind::Bool,
            MaskElements::Additive(x) => MaskKind::Additive(x.dtype()),
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            MaskElements::Bool(x) => x.len(),
            MaskElements::Additive(x) => x.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        match self {
            MaskElements::Bool(x) => x.as_ptr(),
            MaskElements::Additive(x) => x.as_ptr(),
        }
    }

    /// What the element at `index` adds to a score: zero or `−∞` for a boolean, itself otherwise.
    ///
    /// # Panics
    /// When `index` is not below `len`.
    #[inline]
    #[must_use]
    pub fn bias(&self, index: usize) -> f32 {
        match self {
            MaskElements::Bool(x) => {
                if x[index] != 0 {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            }
            MaskElements::Additive(x) => x.get(index),
        }
    }
}

/// Shape and strides of a mask, `[batch, heads, q, k]`, in elements. An axis of size one is broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskView {
    kind: MaskKind,
    shape: [usize; 4],
    strides: [usize; 4],
}

impl MaskView {
    /// A dense mask with `dims` aligned to `[batch, heads, q, k]` from the right.
    ///
    /// # Errors
    /// A rank other than one to four, and a size that cannot be indexed.
    pub fn dense(kind: MaskKind, dims: &[usize]) -> Result<MaskView, ArgumentError> {
        if dims.is_empty() || dims.len() > 4 {
            return Err(ArgumentError::Rank { argument: "mask", found: dims.len(), allowed: "1 to 4" });
        }
        let mut shape = [1; 4];
        shape[4 - dims.len()..].copy_from_slice(dims);
        let mut strides = [0; 4];
        let mut count = 1usize;
        for axis in (0..4).rev() {
            strides[axis] = count;
            count = match count.checked_mul(shape[axis]) {
                Some(count) if count <= isize::MAX as usize / 4 => count,
                _ => return Err(ArgumentError::TooLarge { argument: "mask", shape }),
            };
        }
        Ok(MaskView { kind, shape, strides })
    }

    /// What the elements mean.
    #[must_use]
    pub const fn kind(&self) -> MaskKind {
        self.kind
    }

    /// `[batch, heads, q, k]`.
    #[must_use]
    pub const fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Strides in elements of `[batch, heads, q, k]`, zero along axes that are broadcast.
    #[must_use]
    pub fn strides(&self) -> [usize; 4] {
        core::array::from_fn(|axis| if self.shape[axis] == 1 { 0 } else { self.strides[axis] })
    }

    /// Elements that a buffer must have.
    #[must_use]
    pub fn extent(&self) -> usize {
        self.shape.iter().product()
    }

    /// Keys that the mask speaks of, out of `keys`: all when its last axis is one and broadcast.
    #[must_use]
    pub const fn reach(&self, keys: usize) -> usize {
        if self.shape[3] == 1 { keys } else { self.shape[3] }
    }

    pub(super) fn check(&self, full: [usize; 4]) -> Result<(), ArgumentError> {
        for (a, axis) in ["batch", "heads", "queries"].into_iter().enumerate() {
            if self.shape[a] != 1 && self.shape[a] != full[a] {
                return Err(ArgumentError::MaskShape { axis, found: self.shape[a], allowed: full[a] });
            }
        }
        if self.shape[3] != 1 && self.shape[3] > full[3] {
            return Err(ArgumentError::MaskShape { axis: "keys", found: self.shape[3], allowed: full[3] });
        }
        Ok(())
    }

    /// Where row `q` of a head starts and how far its keys lie apart (zero when broadcast).
    #[inline]
    #[must_use]
    pub fn row(&self, batch: usize, head: usize, q: usize) -> MaskRow {
        let at = |axis: usize, i: usize| if self.shape[axis] == 1 { 0 } else { i * self.strides[axis] };
        MaskRow { start: at(0, batch) + at(1, head) + at(2, q), step: usize::from(self.shape[3] != 1) }
    }

    /// Whether every query of a head has the same row.
    #[must_use]
    pub const fn same_for_all_queries(&self) -> bool {
        self.shape[2] == 1
    }
}

/// One row of a mask: element of key `j` at `start + j · step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskRow {
    /// Index of the element of key zero.
    pub start: usize,
    /// Elements from one key to the next: one, or zero when broadcast.
    pub step: usize,
}

impl MaskRow {
    /// Index of the element of key `j`.
    #[inline]
    #[must_use]
    pub const fn index(&self, j: usize) -> usize {
        self.start + j * self.step
    }
}
