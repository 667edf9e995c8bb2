//! Strided four-dimensional views of tensors, as plain data.

use crate::argument::ArgumentError;

/// The order of the axes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[batch, heads, tokens, dim]`; also `[heads, tokens, dim]` and `[tokens, dim]`.
    Bhnd,
    /// `[batch, tokens, heads, dim]`; also `[tokens, heads, dim]` and `[tokens, dim]`.
    Bnhd,
    /// `[batch, tokens, heads · dim]`; also `[tokens, heads · dim]`. The number of heads is a separate argument.
    Bnc,
}

/// A strided view `[batch, heads, tokens, dim]`: shape and strides, both in elements. It holds no pointer, so that
/// a plan can store it.
///
/// It describes any layout whose last axis is contiguous: the three of [`Layout`], a slice of a packed QKV tensor,
/// and an input broadcast over the batch (stride zero).
///
/// The default is an empty view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    shape: [usize; 4],
    strides: [usize; 4],
}

impl View {
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

    /// The shape, `[batch, heads, tokens, dim]`.
    #[must_use]
    pub const fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The strides in elements, `[batch, heads, tokens, dim]`.
    #[must_use]
    pub const fn strides(&self) -> [usize; 4] {
        self.strides
    }

    /// Number of sequences in the batch.
    #[must_use]
    pub const fn batch(&self) -> usize {
        self.shape[0]
    }

    /// Number of heads.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.shape[1]
    }

    /// Number of tokens.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.shape[2]
    }

    /// The head size.
    #[must_use]
    pub const fn dim(&self) -> usize {
        self.shape[3]
    }

    /// Number of elements in the view.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.shape[0] * self.shape[1] * self.shape[2] * self.shape[3]
    }

    /// Number of elements that a buffer must have: one more than the largest index in the view, or zero if the
    /// view is empty.
    #[must_use]
    pub fn extent(&self) -> usize {
        if self.count() == 0 {
            return 0;
        }
        self.shape.iter().zip(&self.strides).map(|(n, s)| (n - 1) * s).sum::<usize>() + 1
    }

    /// Index of the first element of a row.
    #[inline]
    #[must_use]
    pub const fn row(&self, batch: usize, head: usize, token: usize) -> usize {
        batch * self.strides[0] + head * self.strides[1] + token * self.strides[2]
    }

    /// Whether two different rows may share an element. A tensor that is written must not have such rows.
    ///
    /// The test compares each stride with the extent of the axes that have smaller strides. It may reject a view
    /// whose rows interleave without sharing an element, but it never accepts one whose rows overlap.
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
