//! Places the host tensors of a call on the device: in place if the device can use them, else as copies in the staging.

use super::gpu::Gpu;
use super::workspace::GpuWorkspace;
use crate::error::DeviceError;
use crate::tensors::{HostTensors, MOST_TENSORS, PerTensor, Tensor, per_tensor};
use elsa_core::view::View;
use std::ops::Range;
use std::ptr;

/// The layout of device memory that holds copies of host tensors. Those that few calls have lie in a buffer of their own,
/// one after the other.
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

/// What copies of the host tensors of a problem need, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Device memory for the tensors that calls have.
    pub staging: usize,
    /// Device memory for those that few calls have.
    pub apart: usize,
    /// Host memory for an output that goes back row by row.
    pub bounce: usize,
}

impl Copies {
    /// Those of the tensors; `usize::MAX` where a size overflows.
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

/// The view of an output that goes back row by row: one with gaps, which a call must not write, and one that a run reads,
/// which must keep what it holds until the run has succeeded. `None` if the call appends to it.
fn rows_of(tensor: &Tensor) -> Option<View> {
    let memory = tensor.memory.filter(|_| tensor.written && tensor.kept.is_none())?;
    if tensor.read { memory.view } else { memory.gaps() }
}

/// A host tensor and its place on the device.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// Address of its first byte on the host.
    pub data: *mut u8,
    /// Its number of bytes; zero if the call does not have it.
    pub bytes: usize,
    /// Size of an element in bytes.
    pub size: usize,
    /// Its address on the device; zero if the call does not have it.
    pub device: u64,
    /// Whether the device uses it in place.
    pub mapped: bool,
    /// Whether a run reads what it holds.
    pub read: bool,
    /// Whether a run writes it.
    pub written: bool,
    /// Its view, if it goes back row by row, after everything else is done.
    pub rows: Option<View>,
    /// If the call appends to it: its view, and the number of tokens that it keeps.
    pub append: Option<(View, usize)>,
}

impl Placed {
    /// A tensor that the call does not have.
    const NONE: Placed = Placed {
        data: ptr::null_mut(),
        bytes: 0,
        size: 1,
        device: 0,
        mapped: false,
        read: false,
        written: false,
        rows: None,
        append: None,
    };

    /// Whether it is copied.
    fn is_copied(&self) -> bool {
        self.bytes > 0 && !self.mapped
    }
}

/// Calls `each` with the elements of the rows of `tokens`, in runs without gaps: as long as the view has them, else row
/// by row.
///
/// # Errors
/// Returns the first error of `each`.
pub fn for_runs<E>(
    view: &View,
    tokens: Range<usize>,
    mut each: impl FnMut(Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    let [batch, heads, _, dim] = view.shape();
    let [_, by_head, by_token, _] = view.strides();
    // The heads of a token side by side, and then the tokens of a batch index; or the tokens of a head.
    let heads_first = heads == 1 || by_head == dim;
    let token = if heads_first { heads * dim } else { dim };
    let whole = tokens.len() == 1 || by_token == token;
    let (outer, run) = (if heads_first { 1 } else { heads }, if whole { tokens.len() } else { 1 });
    for b in 0..batch {
        for h in 0..outer {
            for t in tokens.clone().step_by(run.max(1)) {
                let at = view.row(b, h, t);
                each(at..at + run * token)?;
            }
        }
    }
    Ok(())
}

/// Places every tensor and allocates the staging that they need. If a call is `guarded`, the CPU computes it again where
/// the GPU fails, so that tensors which a run both reads and writes are copies.
///
/// # Errors
/// Returns an error if memory is not available, or if the device fails.
pub fn place(
    gpu: &Gpu,
    list: &PerTensor<Tensor>,
    tensors: &HostTensors<'_>,
    guarded: bool,
    workspace: &mut GpuWorkspace,
) -> Result<PerTensor<Placed>, DeviceError> {
    let staging = Staging::of(list).ok_or(DeviceError::HostMemory { bytes: usize::MAX })?;
    let mut placed = per_tensor(|at| {
        let (data, tensor) = (tensors.at(at), &list[at]);
        match tensor.memory {
            Some(memory) if !data.is_null() => Placed {
                data,
                bytes: memory.bytes(),
                size: memory.element_size,
                read: tensor.read,
                written: tensor.written,
                rows: rows_of(tensor),
                append: memory.view.zip(tensor.kept),
                ..Placed::NONE
            },
            _ => Placed::NONE,
        }
    });
    if gpu.profile().integrated {
        let entered = workspace.context.enter()?;
        for tensor in placed.iter_mut().filter(|tensor| !(guarded && tensor.read && tensor.written)) {
            if let Some(device) = entered.mapped(tensor.data.expose_provenance() as u64, tensor.bytes) {
                (tensor.device, tensor.mapped) = (device, true);
            }
        }
    }
    let copies = Copies::of(list);
    let any = |apart: bool| placed.iter().zip(list).any(|(x, tensor)| tensor.apart == apart && x.is_copied());
    workspace.reserve_copies(&copies, any(false))?;
    if any(true) {
        workspace.reserve_apart(&copies)?;
    }
    let staged = workspace.staging.as_ref().map_or(0, |buffer| buffer.address());
    let mut apart = workspace.apart.as_ref().map_or(0, |buffer| buffer.address());
    for ((tensor, x), offset) in list.iter().zip(&mut placed).zip(staging.at) {
        if x.is_copied() {
            x.device = if tensor.apart { apart } else { staged + offset as u64 };
        }
        if tensor.apart {
            apart += tensor.bytes() as u64;
        }
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;
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
