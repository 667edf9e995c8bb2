//! The memory that an operand occupies.

use crate::view::View;

/// Size and layout of the memory that an operand occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Number of elements that a buffer must have.
    pub elements: usize,
    /// Size of an element in bytes.
    pub element_size: usize,
    /// View of the operand. `None` for operands that are always dense: the mask, the bias, the index of the bias,
    /// log-sum-exp, and softmax states.
    pub view: Option<View>,
}

impl Memory {
    /// Returns the number of bytes that a buffer must have, saturating at `usize::MAX`.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.elements.saturating_mul(self.element_size)
    }

    /// Returns the view if there are gaps between its rows. A call must not write to the gaps.
    #[must_use]
    pub fn gaps(&self) -> Option<View> {
        self.view.filter(|view| view.extent() != view.count())
    }
}
