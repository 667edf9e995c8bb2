//! The device memory and host memory that copies of host tensors need.

use crate::tensors::TensorSpec;
use elsa_core::operands::{Operand, Operands};
use elsa_core::view::View;

/// The layout of device memory for copies of host tensors. Copies of rarely used tensors ([`TensorSpec::apart`]) are in a
/// separate buffer, back to back, and have no offset here.
#[derive(Debug, PartialEq, Eq)]
pub struct Staging<O: Operand> {
    /// Offset of each tensor, a multiple of 256. Absent tensors occupy no bytes.
    pub at: Operands<O, usize>,
    /// Total number of bytes.
    pub bytes: usize,
}

impl<O: Operand> Staging<O> {
    /// Computes the layout for these tensors. Returns `None` if its size overflows.
    pub fn of(tensors: &Operands<O, TensorSpec>) -> Option<Staging<O>> {
        let (mut at, mut bytes) = (Operands::default(), 0usize);
        for (at, tensor) in at.values_mut().zip(tensors.values()).filter(|(_, tensor)| !tensor.apart) {
            *at = bytes;
            bytes = bytes.checked_add(tensor.bytes())?.checked_next_multiple_of(256)?;
        }
        Some(Staging { at, bytes })
    }
}

/// Sizes in bytes of the memory that copies of a problem's host tensors need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Device memory for the tensors that most calls have.
    pub staging: usize,
    /// Device memory for the rarely used tensors ([`TensorSpec::apart`]).
    pub apart: usize,
    /// Host memory for the largest output that is copied back row by row.
    pub bounce: usize,
}

impl Copies {
    /// Computes the sizes of the memory for copies of `tensors`. A size that overflows is `usize::MAX`.
    pub fn of<O: Operand>(tensors: &Operands<O, TensorSpec>) -> Copies {
        let apart = tensors.values().filter(|tensor| tensor.apart).map(TensorSpec::bytes);
        let by_rows = tensors.values().filter(|tensor| rows_of(tensor).is_some());
        Copies {
            staging: Staging::of(tensors).map_or(usize::MAX, |staging| staging.bytes),
            apart: apart.fold(0, usize::saturating_add),
            bounce: by_rows.map(TensorSpec::bytes).max().unwrap_or(0),
        }
    }
}

/// Returns the view of an output that is copied back row by row; `None` for other tensors. An output is copied row by
/// row in two cases. In the first case, the output has gaps, which a call must not write. In the second case, a run
/// also reads the output, so its old contents must survive a failed run. Outputs that a call appends to are never
/// copied row by row.
pub fn rows_of(tensor: &TensorSpec) -> Option<View> {
    let memory = tensor.memory.filter(|_| tensor.written && tensor.kept_tokens.is_none())?;
    if tensor.read { memory.view } else { memory.gaps() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::attention::{Operand, Operands};
    use elsa_core::memory::Memory;

    #[test]
    fn staging_holds_every_tensor_apart() {
        let sizes = [160, 3, 0, 4096, 257, 44];
        let tensors = Operands::from_fn(|operand| TensorSpec {
            memory: sizes.get(operand as usize).map(|n| Memory { elements: *n, element_size: 2, view: None }),
            apart: matches!(operand, Operand::Key | Operand::Mask),
            ..TensorSpec::default()
        });
        let staging = Staging::of(&tensors).unwrap();
        let starts = [0, 2, 3, 4].map(|at| staging.at[Operand::ALL[at]]);
        assert_eq!((starts, staging.bytes), ([0, 512, 512, 8704], 9472));
        assert_eq!(Copies::of(&tensors), Copies { staging: 9472, apart: 94, bounce: 0 });
        let mut large = tensors;
        large[Operand::PastKey].memory =
            Some(Memory { elements: usize::MAX / 2, element_size: 2, view: None });
        assert_eq!((Staging::of(&large), Copies::of(&large).staging), (None, usize::MAX));
    }
}
