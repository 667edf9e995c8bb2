//! Strided four-dimensional views of tensors, as plain data.

use crate::argument::ArgumentError;

/// The order of the axes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Axes `[batch, heads, tokens, dim]`. The axes may also be `[heads, tokens, dim]` or `[tokens, dim]`.
    Bhnd,
    /// Axes `[batch, tokens, heads, dim]`. The axes may also be `[tokens, heads, dim]` or `[tokens, dim]`.
    Bnhd,
    /// Axes `[batch, tokens, heads · dim]`. The axes may also be `[tokens, heads · dim]`. The number of heads is a
    /// separate argument.
    Bnc,
}

/// A strided view `[batch, heads, tokens, dim]`: shape and strides, both in elements. A view contains no pointer, so a
/// plan can store it.
///
/// A view describes any layout whose last axis is contiguous, such as the three layouts of [`Layout`], a slice of a
/// packed QKV tensor, or an input broadcast over the batch (stride zero).
///
/// The default is an empty view.
///
/// ```
/// # use elsa_core::view::{Layout, View};
/// // Batch 1, 12 heads, 197 tokens, head size 64.
/// let dense = View::bhnd("q", [1, 12, 197, 64])?;
/// // The same shape with tokens outside heads, as a projection writes it.
/// let projected = View::dense("q", Layout::Bnc, &[1, 197, 12 * 64], Some(12))?;
/// assert_eq!(dense.shape(), projected.shape());
/// assert_eq!(projected.strides(), [197 * 768, 64, 768, 1]);
/// # Ok::<(), elsa_core::argument::ArgumentError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    shape: [usize; 4],
    strides: [usize; 4],
}

impl View {
    /// An empty view.
    pub const EMPTY: View = View { shape: [0; 4], strides: [0; 4] };

    /// Creates a view of `shape` with `strides` in elements, both ordered `[batch, heads, tokens, dim]`.
    /// `argument` names the tensor in errors.
    ///
    /// # Errors
    /// Returns an error if the stride of the last axis is not 1, or if the view is too large to index.
    pub fn new(
        argument: &'static str,
        shape: [usize; 4],
        strides: [usize; 4],
    ) -> Result<View, ArgumentError> {
        if shape[3] > 1 && strides[3] != 1 {
            return Err(ArgumentError::DimStride { argument, found: strides[3] });
        }
        let mut last = 0usize;
        for (&n, &s) in shape.iter().zip(&strides) {
            let far = n.saturating_sub(1).checked_mul(s).and_then(|x| last.checked_add(x));
            last = far.ok_or(ArgumentError::TooLarge { argument, shape })?;
        }
        // Byte offsets must fit in `isize`, and element counts must not overflow.
        let count = shape.iter().try_fold(1usize, |a, &n| a.checked_mul(n));
        match count {
            Some(count) if count <= isize::MAX as usize / 4 && last < isize::MAX as usize / 4 => {
                Ok(View { shape, strides })
            }
            _ => Err(ArgumentError::TooLarge { argument, shape }),
        }
    }

    /// Creates a dense view of a tensor `[batch, heads, tokens, dim]`. `argument` names the tensor in errors.
    ///
    /// # Errors
    /// Returns an error if the view is too large to index.
    pub fn bhnd(argument: &'static str, shape: [usize; 4]) -> Result<View, ArgumentError> {
        View::dense(argument, Layout::Bhnd, &shape, None)
    }

    /// Creates a dense view of a tensor with the given `dims` and layout. `heads` splits the last axis of
    /// [`Layout::Bnc`] and is ignored for the other layouts. `argument` names the tensor in errors.
    ///
    /// # Errors
    /// Returns an error if the rank does not fit the layout, if `heads` is missing or does not divide the last
    /// axis, or if the view is too large to index.
    pub fn dense(
        argument: &'static str,
        layout: Layout,
        dims: &[usize],
        heads: Option<usize>,
    ) -> Result<View, ArgumentError> {
        let [b, h, n, d] = match (layout, dims) {
            (Layout::Bhnd, &[n, d]) | (Layout::Bnhd, &[n, d]) => [1, 1, n, d],
            (Layout::Bhnd, &[h, n, d]) | (Layout::Bnhd, &[n, h, d]) => [1, h, n, d],
            (Layout::Bhnd, &[b, h, n, d]) | (Layout::Bnhd, &[b, n, h, d]) => [b, h, n, d],
            (Layout::Bnc, &[n, c]) => View::split_heads(argument, 1, n, c, heads)?,
            (Layout::Bnc, &[b, n, c]) => View::split_heads(argument, b, n, c, heads)?,
            (Layout::Bnc, _) => {
                return Err(ArgumentError::Rank {
                    argument,
                    found: dims.len(),
                    allowed: "2 or 3 for layout bnc",
                });
            }
            _ => return Err(ArgumentError::Rank { argument, found: dims.len(), allowed: "2, 3 or 4" }),
        };
        let too_large = || ArgumentError::TooLarge { argument, shape: [b, h, n, d] };
        let nd = n.checked_mul(d).ok_or_else(too_large)?;
        let hd = h.checked_mul(d).ok_or_else(too_large)?;
        let hnd = h.checked_mul(nd).ok_or_else(too_large)?;
        match layout {
            Layout::Bhnd => View::new(argument, [b, h, n, d], [hnd, nd, d, 1]),
            Layout::Bnhd | Layout::Bnc => View::new(argument, [b, h, n, d], [hnd, d, hd, 1]),
        }
    }

    fn split_heads(
        argument: &'static str,
        b: usize,
        n: usize,
        c: usize,
        heads: Option<usize>,
    ) -> Result<[usize; 4], ArgumentError> {
        let h = heads.ok_or(ArgumentError::HeadsMissing { argument })?;
        if h == 0 || !c.is_multiple_of(h) {
            return Err(ArgumentError::HeadsDoNotDivide { argument, width: c, heads: h });
        }
        Ok([b, h, n, c / h])
    }

    /// Checks that the head size is not zero. Other axes may be empty.
    pub(crate) fn check_dim(&self, argument: &'static str) -> Result<(), ArgumentError> {
        match self.dim() {
            0 => Err(ArgumentError::Zero { argument, axis: "head size" }),
            _ => Ok(()),
        }
    }

    /// Returns `1 / sqrt(dim)`, computed in f64 and rounded once to f32.
    pub(crate) fn default_scale(&self) -> f32 {
        (1.0 / libm::sqrt(self.dim() as f64)) as f32
    }

    /// Returns the shape, `[batch, heads, tokens, dim]`.
    #[must_use]
    pub const fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Returns the strides in elements, `[batch, heads, tokens, dim]`, as [`View::new`] received them.
    #[must_use]
    pub const fn strides(&self) -> [usize; 4] {
        self.strides
    }

    /// Returns the distance in elements from each index of an axis to the next, `[batch, heads, tokens, dim]`. It is the
    /// stride, or zero along an axis with at most one element.
    ///
    /// The stride of an axis with at most one element may be any number. Its product with two, or with the size of an
    /// element, may overflow. Code that computes with distances between rows therefore takes them from this function.
    #[inline]
    #[must_use]
    pub fn steps(&self) -> [usize; 4] {
        core::array::from_fn(|axis| if self.shape[axis] > 1 { self.strides[axis] } else { 0 })
    }

    /// Returns the number of sequences in the batch.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.shape[0]
    }

    /// Returns the number of heads.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.shape[1]
    }

    /// Returns the number of tokens.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.shape[2]
    }

    /// Returns the head size.
    #[must_use]
    pub const fn dim(&self) -> usize {
        self.shape[3]
    }

    /// Returns the number of elements in the view.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.shape[0] * self.shape[1] * self.shape[2] * self.shape[3]
    }

    /// Returns the number of elements that a buffer must have: one more than the largest index in the view, or zero
    /// if the view is empty.
    #[must_use]
    pub fn extent(&self) -> usize {
        if self.count() == 0 {
            return 0;
        }
        self.shape.iter().zip(&self.strides).map(|(n, s)| (n - 1) * s).sum::<usize>() + 1
    }

    /// Returns the index of the first element of a row.
    #[inline]
    #[must_use]
    pub const fn row(&self, batch: usize, head: usize, token: usize) -> usize {
        batch * self.strides[0] + head * self.strides[1] + token * self.strides[2]
    }

    /// Returns `true` if two different rows may share an element. An output tensor must not have such rows.
    ///
    /// The test compares each stride with the extent of the axes that have smaller strides. It may return `true` for a
    /// view whose rows interleave without sharing an element, but it never returns `false` for overlapping rows.
    #[must_use]
    pub fn may_overlap(&self) -> bool {
        if self.count() == 0 {
            return false;
        }
        let mut axes = [
            (self.strides[0], self.shape[0]),
            (self.strides[1], self.shape[1]),
            (self.strides[2], self.shape[2]),
        ];
        axes.sort_unstable();
        let mut reach = self.shape[3];
        for (stride, n) in axes {
            if n > 1 {
                if stride < reach {
                    return true;
                }
                reach += (n - 1) * stride;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ArgumentError as E;
    use Layout::{Bhnd, Bnc, Bnhd};

    #[test]
    fn layouts_order_the_axes() {
        for (layout, dims, heads, shape, strides) in [
            (Bhnd, &[5, 7][..], None, [1, 1, 5, 7], [35, 35, 7, 1]),
            (Bnhd, &[5, 7], None, [1, 1, 5, 7], [35, 7, 7, 1]),
            (Bnc, &[5, 6], Some(3), [1, 3, 5, 2], [30, 2, 6, 1]),
            (Bhnd, &[3, 5, 7], None, [1, 3, 5, 7], [105, 35, 7, 1]),
            (Bnhd, &[5, 3, 7], None, [1, 3, 5, 7], [105, 7, 21, 1]),
            (Bnc, &[2, 5, 6], Some(3), [2, 3, 5, 2], [30, 2, 6, 1]),
            (Bhnd, &[2, 3, 5, 7], None, [2, 3, 5, 7], [105, 35, 7, 1]),
            (Bnhd, &[2, 5, 3, 7], None, [2, 3, 5, 7], [105, 7, 21, 1]),
        ] {
            let view = View::dense("x", layout, dims, heads).unwrap();
            assert_eq!((view.shape(), view.strides()), (shape, strides), "{layout:?} {dims:?}");
            assert_eq!([view.batch(), view.heads(), view.tokens(), view.dim()], shape);
            assert_eq!(view.count(), dims.iter().product());
            assert_eq!(view.extent(), view.count());
            assert!(!view.may_overlap());
        }
    }

    #[test]
    fn ranks_and_heads_that_do_not_fit_are_refused() {
        let of = |layout, dims: &[usize], heads| View::dense("x", layout, dims, heads).unwrap_err();
        for (layout, rank, allowed) in [
            (Bhnd, 1, "2, 3 or 4"),
            (Bnhd, 5, "2, 3 or 4"),
            (Bnc, 1, "2 or 3 for layout bnc"),
            (Bnc, 4, "2 or 3 for layout bnc"),
        ] {
            let error = E::Rank { argument: "x", found: rank, allowed };
            assert_eq!(of(layout, &[2; 5][..rank], Some(2)), error, "{layout:?}");
        }
        assert_eq!(of(Bnc, &[5, 6], None), E::HeadsMissing { argument: "x" });
        for heads in [0, 4, 12] {
            let error = E::HeadsDoNotDivide { argument: "x", width: 6, heads };
            assert_eq!(of(Bnc, &[2, 5, 6], Some(heads)), error);
        }
        let found = 2;
        assert_eq!(
            View::new("x", [1, 1, 3, 4], [0, 0, 8, found]),
            Err(E::DimStride { argument: "x", found })
        );
        assert!(View::new("x", [1, 1, 3, 1], [0, 0, 8, found]).is_ok());
    }

    #[test]
    fn views_that_cannot_be_indexed_are_refused() {
        let most = isize::MAX as usize / 4;
        for (shape, strides, fits) in [
            ([1, 1, most, 1], [0, 0, 1, 1], true),
            ([1, 1, most + 1, 1], [0, 0, 1, 1], false),
            // Two views of many elements in little memory, and then two views of few elements in much memory.
            ([most, 1, 1, 1], [0, 0, 0, 1], true),
            ([most, 2, 1, 1], [0, 0, 0, 1], false),
            ([1, 2, 1, 1], [0, most - 1, 0, 1], true),
            ([1, 2, 1, 1], [0, most, 0, 1], false),
            ([3, 1, 1, 1], [usize::MAX / 2 + 1, 0, 0, 1], false),
            ([usize::MAX, usize::MAX, 1, 1], [0, 0, 0, 1], false),
        ] {
            let error = E::TooLarge { argument: "x", shape };
            let want = if fits { Ok(View { shape, strides }) } else { Err(error) };
            assert_eq!(View::new("x", shape, strides), want);
        }
        for dims in [[1, 1, usize::MAX, 2], [1, usize::MAX, 1, 2], [1, usize::MAX / 2, 2, 2]] {
            let [b, n, h, d] = dims;
            for (layout, shape) in [(Bhnd, dims), (Bnhd, [b, h, n, d])] {
                let error = E::TooLarge { argument: "x", shape };
                assert_eq!(View::dense("x", layout, &dims, None), Err(error));
            }
        }
    }

    #[test]
    fn rows_lie_at_their_strides() {
        let view = View::new("x", [2, 3, 4, 5], [1000, 100, 7, 1]).unwrap();
        assert_eq!((view.row(0, 0, 0), view.row(1, 2, 3)), (0, 1221));
        assert_eq!((view.count(), view.extent()), (120, 1226));
        let shared = View::new("x", [2, 1, 4, 5], [0, 0, 5, 1]).unwrap();
        assert_eq!((shared.count(), shared.extent(), shared.may_overlap()), (40, 20, true));
        let empty = View::new("x", [2, 3, 0, 5], [1000, 100, 7, 1]).unwrap();
        assert_eq!((empty.count(), empty.extent(), empty.may_overlap()), (0, 0, false));
        // The stride of an axis with at most one element has no effect.
        assert!(!View::new("x", [1, 1, 4, 5], [0, 0, 5, 1]).unwrap().may_overlap());
        for (shape, steps) in [([1, 1, 4, 5], [0, 0, 7, 1]), ([1, 0, 4, 1], [0, 0, 7, 0])] {
            let far = View::new("x", shape, [usize::MAX, usize::MAX / 2 + 1, 7, 1]).unwrap();
            assert_eq!((far.steps(), far.may_overlap()), (steps, false));
            assert_eq!(far.extent(), if far.count() == 0 { 0 } else { 26 });
        }
    }
}
