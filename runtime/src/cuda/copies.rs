//! The memory of copies of host tensors.

use crate::tensors::{MOST_TENSORS, PerTensor, Tensor};
use elsa_core::view::View;

/// The layout of device memory that holds copies of host tensors. Tensors that few calls have are in a separate
/// buffer, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Offset of each tensor, a multiple of 256. Absent tensors take no bytes.
    pub at: PerTensor<usize>,
    /// Total number of bytes.
    pub bytes: usize,
}

impl Staging {
    /// Lays out the staging. Returns `None` if its size overflows.
    pub fn of(tensors: &PerTensor<Tensor>) -> Option<Staging> {
        let (mut at, mut bytes) = ([0; MOST_TENSORS], 0usize);
        for (at, tensor) in at.iter_mut().zip(tensors).filter(|(_, tensor)| !tensor.apart) {
            *at = bytes;
            bytes = bytes.checked_add(tensor.bytes())?.checked_next_multiple_of(256)?;
        }
        Some(Staging { at, bytes })
    }
}

/// Memory for copies of the host tensors of a problem, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Device memory for the tensors that calls usually have.
    pub staging: usize,
    /// Device memory for the tensors that few calls have.
    pub apart: usize,
    /// Host memory for an output that is copied back row by row.
    pub bounce: usize,
}

impl Copies {
    /// Computes the memory for the tensors; `usize::MAX` if a size overflows.
    pub fn of(tensors: &PerTensor<Tensor>) -> Copies {
        let apart = tensors.iter().filter(|tensor| tensor.apart).map(Tensor::bytes);
        let by_rows = tensors.iter().filter(|tensor| rows_of(tensor).is_some());
        Copies {
            staging: Staging::of(tensors).map_or(usize::MAX, |staging| staging.bytes),
            apart: apart.fold(0, usize::saturating_add),
            bounce: by_rows.map(Tensor::bytes).max().unwrap_or(0),
        }
    }
}

/// Returns the view of an output that is copied back row by row. Such an output has gaps, which a call must not
/// write, or a run also reads it, so it must keep its contents until the run has succeeded. `None` for other
/// outputs, and if the call appends to it.
pub fn rows_of(tensor: &Tensor) -> Option<View> {
    let memory = tensor.memory.filter(|_| tensor.written && tensor.kept.is_none())?;
    if tensor.read { memory.view } else { memory.gaps() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::per_tensor;
    use elsa_core::memory::Memory;

    #[test]
    fn staging_holds_every_tensor_apart() {
        let sizes = [160, 3, 0, 4096, 257, 44];
        let tensors = per_tensor(|at| Tensor {
            memory: sizes.get(at).map(|n| Memory { elements: *n, element_size: 2, view: None }),
            apart: at == 1 || at == 5,
            ..Tensor::default()
        });
        let staging = Staging::of(&tensors).unwrap();
        let starts = [0, 2, 3, 4].map(|at| staging.at[at]);
        assert_eq!((starts, staging.bytes), ([0, 512, 512, 8704], 9472));
        assert_eq!(Copies::of(&tensors), Copies { staging: 9472, apart: 94, bounce: 0 });
        let mut large = tensors;
        large[3].memory = Some(Memory { elements: usize::MAX / 2, element_size: 2, view: None });
        assert_eq!((Staging::of(&large), Copies::of(&large).staging), (None, usize::MAX));
    }
}
