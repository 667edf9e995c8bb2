//! Places the host tensors of a call on the device: in place if the device can use their memory, otherwise as copies.

use super::copies::{Copies, Staging, rows_of};
use super::gpu::Gpu;
use super::workspace::GpuWorkspace;
use crate::error::DeviceError;
use crate::tensors::{HostTensors, TensorSpec};
use elsa_core::operands::{Operand, Operands};
use elsa_core::view::View;
use std::ops::Range;
use std::ptr;

/// A host tensor and its location on the device.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// Host address of the first byte.
    pub data: *mut u8,
    /// Number of bytes; zero for an absent tensor.
    pub bytes: usize,
    /// Size of an element in bytes.
    pub size: usize,
    /// Device address of the tensor or its copy; zero for an absent tensor.
    pub device: u64,
    /// `true` if the device uses the tensor in place.
    pub mapped: bool,
    /// `true` if a run reads the tensor's contents.
    pub read: bool,
    /// `true` if a run writes the tensor.
    pub written: bool,
    /// View of the tensor if it is copied back row by row, after all other work; otherwise `None`.
    pub rows: Option<View>,
    /// If the call appends to the tensor: the view of the tensor, and the number of leading tokens that are kept;
    /// otherwise `None`.
    pub append: Option<(View, usize)>,
}

impl Placed {
    /// An absent tensor.
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

    /// Returns `true` if the device uses a copy of the tensor.
    fn is_copied(&self) -> bool {
        self.bytes > 0 && !self.mapped
    }
}

/// Calls `each` once for each range of elements that the rows of `tokens` occupy. Each range is contiguous, and as long
/// as the view allows.
///
/// # Errors
/// Returns the first error of `each`.
pub fn for_runs<E>(
    view: &View,
    tokens: Range<usize>,
    mut each: impl FnMut(Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    let [batch, heads, _, dim] = view.shape();
    if tokens.is_empty() {
        // An empty view may have any number of sequences.
        return Ok(());
    }
    let [_, by_head, by_token, _] = view.strides();
    // There are two cases. Either the heads of a token are adjacent in memory, and the tokens of a batch index follow
    // one another. Or the tokens of each head follow one another.
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

/// Assigns every tensor a location on the device, and allocates the staging memory. In a `guarded` call, a tensor that
/// a run both reads and writes is copied. If the GPU fails, the CPU recomputes the call and needs the old contents of
/// such a tensor.
///
/// # Errors
/// Returns an error if memory is not available, or if the device fails.
pub fn place<O: Operand>(
    gpu: &Gpu,
    list: &Operands<O, TensorSpec>,
    tensors: &HostTensors<'_, O>,
    guarded: bool,
    workspace: &mut GpuWorkspace,
) -> Result<Operands<O, Placed>, DeviceError> {
    let staging = Staging::of(list).ok_or(DeviceError::HostMemory { bytes: usize::MAX })?;
    let mut placed = Operands::from_fn(|operand| {
        let (data, tensor) = (tensors.at(operand), &list[operand]);
        match tensor.memory {
            Some(memory) if !data.is_null() => Placed {
                data,
                bytes: memory.bytes(),
                size: memory.element_size,
                read: tensor.read,
                written: tensor.written,
                rows: rows_of(tensor),
                append: memory.view.zip(tensor.kept_tokens),
                ..Placed::NONE
            },
            _ => Placed::NONE,
        }
    });
    if gpu.profile().integrated {
        let entered = workspace.context.enter()?;
        for tensor in placed.values_mut().filter(|tensor| !(guarded && tensor.read && tensor.written)) {
            if let Some(device) = entered.mapped(tensor.data.expose_provenance() as u64, tensor.bytes) {
                (tensor.device, tensor.mapped) = (device, true);
            }
        }
    }
    let copies = Copies::of(list);
    let any = |apart: bool| {
        placed.values().zip(list.values()).any(|(x, tensor)| tensor.apart == apart && x.is_copied())
    };
    workspace.reserve_copies(&copies, any(false))?;
    if any(true) {
        workspace.reserve_apart(&copies)?;
    }
    let staged = workspace.staging.as_ref().map_or(0, |buffer| buffer.address());
    let mut apart = workspace.apart.as_ref().map_or(0, |buffer| buffer.address());
    for ((tensor, x), offset) in list.values().zip(placed.values_mut()).zip(staging.at.values()) {
        if x.is_copied() {
            x.device = if tensor.apart { apart } else { staged + *offset as u64 };
        }
        if tensor.apart {
            apart += tensor.bytes() as u64;
        }
    }
    Ok(placed)
}
