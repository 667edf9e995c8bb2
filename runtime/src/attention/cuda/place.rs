//! Places the host tensors of a call on the device: in place if the device can use them, else in the staging.

use super::plan::GpuPlan;
use super::workspace::{GpuWorkspace, Staging};
use crate::attention::tensors::HostTensors;
use crate::error::DeviceError;
use elsa_core::attention::{Operand, Operands, Problem};
use elsa_core::view::View;
use std::ops::Range;
use std::ptr;

/// A host tensor and its place on the device.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// Address of its first byte on the host.
    pub data: *mut u8,
    /// Its number of bytes; zero if the call does not have it.
    pub bytes: usize,
    /// Its address on the device; zero if the call does not have it.
    pub device: u64,
    /// Whether the device uses it in place.
    pub mapped: bool,
    /// Its view, if that has gaps between rows, which a call must not write. `None` if the call appends to it.
    pub gaps: Option<View>,
    /// If the call appends to it: its view, and the number of tokens that it keeps.
    pub append: Option<(View, usize)>,
}

impl Default for Placed {
    fn default() -> Placed {
        Placed { data: ptr::null_mut(), bytes: 0, device: 0, mapped: false, gaps: None, append: None }
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

/// Places every tensor and allocates the staging that they need.
///
/// # Errors
/// Returns an error if memory is not available, or if the device fails.
pub fn place(
    plan: &GpuPlan,
    problem: &Problem,
    tensors: &HostTensors<'_>,
    workspace: &mut GpuWorkspace,
) -> Result<Operands<Placed>, DeviceError> {
    let staging = Staging::of(problem).ok_or(DeviceError::HostMemory { bytes: usize::MAX })?;
    let mut placed = Operands::from_fn(|operand| match (tensors[operand], problem.memory(operand)) {
        (data, Some(memory)) if !data.is_null() => {
            let append = memory.view.zip(problem.kept(operand));
            let gaps = if append.is_some() { None } else { memory.gaps() };
            Placed { data, bytes: memory.bytes(), gaps, append, ..Placed::default() }
        }
        _ => Placed::default(),
    });
    if plan.gpu.profile().integrated {
        let entered = workspace.context.enter()?;
        for operand in Operand::ALL {
            let tensor = &mut placed[operand];
            if let Some(device) = entered.mapped(tensor.data.expose_provenance() as u64, tensor.bytes) {
                (tensor.device, tensor.mapped) = (device, true);
            }
        }
    }
    let copied = |tensor: &Placed| tensor.bytes > 0 && !tensor.mapped;
    if placed.iter().any(|(operand, tensor)| !operand.is_state() && copied(tensor)) {
        workspace.reserve_staging(problem)?;
    }
    workspace.reserve_bounce(problem)?;
    let state_is_copied = |operand: Operand| operand.is_state() && !placed[operand].mapped;
    if tensors.has_states() && Operand::ALL.into_iter().any(state_is_copied) {
        workspace.reserve_states(problem)?;
    }
    let staged = workspace.staging.as_ref().map_or(0, |buffer| buffer.address());
    let mut state = workspace.states.as_ref().map_or(0, |buffer| buffer.address());
    for operand in Operand::ALL {
        let tensor = &mut placed[operand];
        if copied(tensor) {
            tensor.device = if operand.is_state() { state } else { staged + staging.at[operand] as u64 };
        }
        // The arrays of states lie one after the other.
        if operand.is_state() {
            state += problem.memory(operand).map_or(0, |memory| memory.bytes()) as u64;
        }
    }
    Ok(placed)
}
