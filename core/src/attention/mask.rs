//! Masks: boolean or additive, broadcast to `[batch, heads, queries, keys]` with axes aligned from the right. The size of the
//! batch axis may divide the batch: with `n` masks, sequence `b` uses mask `b mod n`.

use crate::argument::ArgumentError;
use crate::dtype::{DType, Elements};

/// Largest magnitude of a finite element of an additive mask, in natural-log units: `2^127 ln 2`, rounded down. Larger
/// finite elements, such as `f32::MIN`, are clamped to it. In base-2 units the clamped element is finite, and so is its
/// sum with any score below `2^127`.
pub const MASK_LIMIT: f32 = 1.179_328_7e38;

/// The meaning of a mask's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskKind {
    /// One byte per element; non-zero means attended.
    Bool,
    /// The element is added to the score, in natural-log units; `−∞` means not attended. The magnitude of finite elements is
    /// clamped to [`MASK_LIMIT`].
    Additive(DType),
}

impl MaskKind {
    /// Returns the name of the element type: `bool`, `f32`, `f16` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MaskKind::Bool => "bool",
            MaskKind::Additive(dtype) => dtype.name(),
        }
    }

    /// Returns the size of an element in bytes.
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
    /// One byte per element; non-zero means attended.
    Bool(&'a [u8]),
    /// Elements added to the scores, in natural-log units; `−∞` means not attended.
    Additive(Elements<'a>),
}

impl MaskElements<'_> {
    /// Returns the meaning of the elements.
    #[must_use]
    pub fn kind(&self) -> MaskKind {
        match self {
            MaskElements::Bool(_) => MaskKind::Bool,
            MaskElements::Additive(x) => MaskKind::Additive(x.dtype()),
        }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            MaskElements::Bool(x) => x.len(),
            MaskElements::Additive(x) => x.len(),
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
            MaskElements::Bool(x) => x.as_ptr(),
            MaskElements::Additive(x) => x.as_ptr(),
        }
    }

    /// Returns the value that the element at `index` adds to a score, in natural-log units. For a boolean mask, the value
    /// is 0 or `−∞`. For an additive mask, it is the element, clamped to [`MASK_LIMIT`] if it is finite.
    ///
    /// # Panics
    /// Panics if `index` is not below `len`.
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
            MaskElements::Additive(x) => limited(x.get(index)),
        }
    }
}

/// Clamps a mask element to [`MASK_LIMIT`] if it is finite.
#[inline]
pub(super) fn limited(x: f32) -> f32 {
    if x.is_finite() { x.clamp(-MASK_LIMIT, MASK_LIMIT) } else { x }
}

/// Converts an f64 element of an additive mask to f32, rounded to nearest. Finite elements stay finite: `f64::MIN` becomes
/// `f32::MIN`, not `−∞`, and is later clamped to [`MASK_LIMIT`].
#[inline]
#[must_use]
pub fn rounded(x: f64) -> f32 {
    if x.is_finite() { x.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32 } else { x as f32 }
}

/// Converts an integer element of a mask to an element of a boolean mask: zero means not attended, and any other number
/// means attended.
#[inline]
#[must_use]
pub fn attended(x: i64) -> u8 {
    u8::from(x != 0)
}

/// Shape and strides of a mask, `[batch, heads, queries, keys]`, in elements. Axes of size 1 are broadcast, and a batch axis
/// whose size divides the batch repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskView {
    kind: MaskKind,
    shape: [usize; 4],
    strides: [usize; 4],
}

impl MaskView {
    /// Creates a dense mask whose `dims` align with `[batch, heads, queries, keys]` from the right. Missing axes are
    /// broadcast.
    ///
    /// # Errors
    /// Returns an error if the rank is not 1 to 4, or if the mask is too large to index.
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

    /// Returns this mask with other `strides` along `[batch, heads, queries, keys]`, for example the strides of a packed
    /// copy of a part of the mask. Strides of broadcast axes are ignored.
    #[must_use]
    pub const fn with_strides(self, strides: [usize; 4]) -> MaskView {
        MaskView { strides, ..self }
    }

    /// Returns the meaning of the elements.
    #[must_use]
    pub const fn kind(&self) -> MaskKind {
        self.kind
    }

    /// Returns the shape, `[batch, heads, queries, keys]`.
    #[must_use]
    pub const fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Returns the strides in elements, `[batch, heads, queries, keys]`; zero along broadcast axes.
    #[must_use]
    pub fn strides(&self) -> [usize; 4] {
        core::array::from_fn(|axis| if self.shape[axis] == 1 { 0 } else { self.strides[axis] })
    }

    /// Returns the number of elements that the mask's buffer must have: one more than the largest index in the mask, or
    /// zero if the mask is empty.
    #[must_use]
    pub fn extent(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let last = self.shape.iter().zip(&self.strides).map(|(n, stride)| (n - 1).saturating_mul(*stride));
        last.fold(1, usize::saturating_add)
    }

    /// Returns how many of `keys` keys the mask covers: all of them if the last axis is broadcast, otherwise the size
    /// of that axis.
    #[must_use]
    pub const fn reach(&self, keys: usize) -> usize {
        if self.shape[3] == 1 { keys } else { self.shape[3] }
    }

    /// Checks the mask against scores of shape `full`. If `short` is `true`, the last axis of the mask may have fewer
    /// keys than the scores.
    pub(super) fn check(
        &self,
        argument: &'static str,
        full: [usize; 4],
        short: bool,
    ) -> Result<(), ArgumentError> {
        for (a, axis) in ["batch", "heads", "queries", "keys"].into_iter().enumerate() {
            let (found, allowed) = (self.shape[a], full[a]);
            let fits = match a {
                0 => allowed.is_multiple_of(found),
                3 if short => found <= allowed,
                _ => found == allowed,
            };
            if found != 1 && !fits {
                let smaller = a == 3 && short;
                return Err(ArgumentError::MaskShape { argument, axis, found, allowed, smaller });
            }
        }
        Ok(())
    }

    /// Returns the row of query `q`: its start, and the distance between its elements (zero if broadcast).
    #[inline]
    #[must_use]
    pub fn row(&self, batch: usize, head: usize, q: usize) -> MaskRow {
        let at = |axis: usize, i: usize| if self.shape[axis] == 1 { 0 } else { i * self.strides[axis] };
        // A mask without sequences has no rows.
        let batch = batch.checked_rem(self.shape[0]).unwrap_or(0);
        MaskRow { start: at(0, batch) + at(1, head) + at(2, q), step: usize::from(self.shape[3] != 1) }
    }

    /// Returns `true` if all queries of a head share one row of the mask.
    #[must_use]
    pub const fn same_for_all_queries(&self) -> bool {
        self.shape[2] == 1
    }
}

/// One row of a mask. The element of key `j` has index `start + j · step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskRow {
    /// Index of the element of key zero.
    pub start: usize,
    /// Distance in elements from one key to the next: 1, or 0 if broadcast.
    pub step: usize,
}

impl MaskRow {
    /// Returns the index of the element of key `j`.
    #[inline]
    #[must_use]
    pub const fn index(&self, j: usize) -> usize {
        self.start + j * self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn elements_are_described_as_they_are() {
        let (bytes, floats, halves, brains) = ([1u8; 3], [0f32; 0], [f16::ONE; 2], [bf16::ONE; 1]);
        let all = [
            (MaskElements::Bool(&bytes), "bool", 1, 3, bytes.as_ptr()),
            (MaskElements::Additive(Elements::F32(&floats)), "f32", 4, 0, floats.as_ptr().cast()),
            (MaskElements::Additive(Elements::F16(&halves)), "f16", 2, 2, halves.as_ptr().cast()),
            (MaskElements::Additive(Elements::Bf16(&brains)), "bf16", 2, 1, brains.as_ptr().cast()),
        ];
        for (elements, name, size, len, address) in all {
            let kind = elements.kind();
            assert_eq!(
                (kind.name(), kind.size(), elements.len(), elements.as_ptr()),
                (name, size, len, address)
            );
            assert_eq!(elements.is_empty(), len == 0, "{name}");
        }
    }

    #[test]
    fn elements_beyond_the_limit_count_as_the_limit() {
        let x = [f32::MIN, -1.5, f32::MAX, f32::INFINITY, f32::NEG_INFINITY];
        let elements = MaskElements::Additive(Elements::F32(&x));
        let want = [-MASK_LIMIT, -1.5, MASK_LIMIT, f32::INFINITY, f32::NEG_INFINITY];
        assert_eq!([0, 1, 2, 3, 4].map(|i| elements.bias(i)), want);
        assert!(MaskElements::Additive(Elements::F32(&[f32::NAN])).bias(0).is_nan());
        let elements = MaskElements::Bool(&[0, 1, 255]);
        assert_eq!([0, 1, 2].map(|i| elements.bias(i)), [f32::NEG_INFINITY, 0.0, 0.0]);
    }

    #[test]
    fn what_is_finite_stays_finite_and_what_is_not_zero_attends() {
        let x = [f64::MIN, -1e308, -3.5e38, 0.1, f64::MAX, f64::INFINITY, f64::NEG_INFINITY];
        let want = [f32::MIN, f32::MIN, f32::MIN, 0.1, f32::MAX, f32::INFINITY, f32::NEG_INFINITY];
        assert_eq!(x.map(rounded), want);
        assert!(rounded(f64::NAN).is_nan());
        assert_eq!([0, 1, -1, 256, 1 << 32, i64::MIN].map(attended), [0, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn axes_align_from_the_right_and_broadcast() {
        let of = |dims: &[usize]| {
            MaskView::dense(MaskKind::Bool, dims).map(|m| (m.shape(), m.strides(), m.extent()))
        };
        assert_eq!(of(&[5]), Ok(([1, 1, 1, 5], [0, 0, 0, 1], 5)));
        assert_eq!(of(&[3, 1, 5]), Ok(([1, 3, 1, 5], [0, 5, 0, 1], 15)));
        assert_eq!(of(&[2, 3, 4, 5]), Ok(([2, 3, 4, 5], [60, 20, 5, 1], 120)));
        assert_eq!(of(&[2, 3, 4, 1]), Ok(([2, 3, 4, 1], [12, 4, 1, 0], 24)));
        // Strides of broadcast axes have no effect, and other strides determine the size of the buffer.
        let of_strides = |strides| {
            let view = MaskView::dense(MaskKind::Bool, &[2, 1, 3, 5]).unwrap().with_strides(strides);
            (view.strides(), view.row(1, 9, 2), view.extent())
        };
        let row = MaskRow { start: 120, step: 1 };
        assert_eq!(of_strides([100, usize::MAX, 10, 1]), ([100, 0, 10, 1], row, 125));
        assert_eq!(of_strides([15, usize::MAX / 2 + 1, 5, 1]).2, 30);
        for rank in [0, 5] {
            let error = ArgumentError::Rank { argument: "mask", found: rank, allowed: "1 to 4" };
            assert_eq!(of(&[2; 5][..rank]), Err(error));
        }
    }

    #[test]
    fn masks_that_cannot_be_indexed_are_refused() {
        let most = isize::MAX as usize / 4;
        let of = |dims: &[usize]| MaskView::dense(MaskKind::Bool, dims).map(|m| m.extent());
        assert_eq!(of(&[most]), Ok(most));
        for dims in [[1, most + 1], [2, most], [usize::MAX, usize::MAX]] {
            let shape = [1, 1, dims[0], dims[1]];
            assert_eq!(of(&dims), Err(ArgumentError::TooLarge { argument: "mask", shape }));
        }
    }
}
