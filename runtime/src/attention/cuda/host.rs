//! Runs on tensors of the host: copied to the device and back, or used in place.

use super::launch::Launch;
use super::place::{Placed, place};
use super::plan::GpuPlan;
use super::workspace::GpuWorkspace;
use crate::attention::tensors::HostTensors;
use crate::cuda::driver::{Entered, RawStream};
use crate::error::DeviceError;
use elsa_core::attention::{Lengths, Operands, Problem};

/// A call on tensors of the host.
///
/// Invariant *placed*: data and bytes of every placed tensor are those of a slice that lives for `'a`; nobody else uses
/// those that are written meanwhile.
pub struct HostCall<'a> {
    plan: &'a GpuPlan,
    problem: &'a Problem,
    lengths: Lengths<'a>,
    tensors: HostTensors<'a>,
    workspace: &'a mut GpuWorkspace,
    placed: Operands<Placed>,
    launch: Launch,
}

// SAFETY: a call holds what references would hold: inputs shared, outputs and workspace exclusively.
unsafe impl Send for HostCall<'_> {}

impl std::fmt::Debug for HostCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostCall").field("launch", &self.launch).finish_non_exhaustive()
    }
}

impl<'a> HostCall<'a> {
    /// Places the tensors, which were checked against the problem, and fills what is launched.
    ///
    /// # Errors
    /// Memory that is not there, and a device that fails.
    pub fn new(
        plan: &'a GpuPlan,
        problem: &'a Problem,
        lengths: Lengths<'a>,
        tensors: HostTensors<'a>,
        workspace: &'a mut GpuWorkspace,
    ) -> Result<HostCall<'a>, DeviceError> {
        workspace.revive(plan, problem)?;
        let (placed, launch) = prepare(plan, problem, &lengths, &tensors, workspace)?;
        Ok(HostCall { plan, problem, lengths, tensors, workspace, placed, launch })
    }

    /// Blocks of threads of the attention kernel.
    pub fn blocks(&self) -> usize {
        self.launch.attention_blocks()
    }

    /// Computes, and waits. With `resident` the inputs are those of the run before, and the outputs stay on the
    /// device.
    ///
    /// # Errors
    /// What the device reports. The outputs are then incomplete, and no work is left on them.
    pub fn run(&mut self, resident: bool) -> Result<(), DeviceError> {
        if self.workspace.context.is_lost() {
            self.workspace.revive(self.plan, self.problem)?;
            (self.placed, self.launch) =
                prepare(self.plan, self.problem, &self.lengths, &self.tensors, self.workspace)?;
        }
        let context = self.workspace.context.clone();
        let entered = context.enter()?;
        let stream = self.workspace.stream.raw();
        let done = self.enqueue(&entered, stream, resident);
        // Whatever was enqueued must not touch the caller's memory after this call.
        let waited = stream.synchronize(&entered);
        done?;
        waited?;
        if resident { Ok(()) } else { self.fill_gaps(&entered, stream) }
    }

    fn enqueue(&self, entered: &Entered<'_>, stream: RawStream, resident: bool) -> Result<(), DeviceError> {
        let copied = || self.placed.iter().filter(|(_, tensor)| !resident && !tensor.mapped);
        for (_, tensor) in copied().filter(|(operand, _)| !operand.is_written()) {
            // SAFETY: *room*: the slice has that many bytes, and so has its place in the staging. *alive*:
            // slices and staging outlive `run`, which waits.
            unsafe { stream.copy_in(entered, tensor.device, tensor.data, tensor.bytes)? };
        }
        // SAFETY: *room*: every address is that of a tensor with the bytes of its view, in the staging or mapped,
        // or of the workspace. *alive*: as above.
        unsafe { self.launch.enqueue(entered, stream, self.workspace)? };
        let written = copied().filter(|(operand, _)| operand.is_written());
        for (_, tensor) in written.filter(|(_, tensor)| tensor.gaps.is_none()) {
            // SAFETY: as for the inputs; nobody else uses the outputs.
            unsafe { stream.copy_out(entered, tensor.data, tensor.device, tensor.bytes)? };
        }
        Ok(())
    }

    /// Brings back outputs that have gaps, row by row, so that the gaps stay as they are.
    fn fill_gaps(&mut self, entered: &Entered<'_>, stream: RawStream) -> Result<(), DeviceError> {
        let size = self.problem.spec().dtype.size();
        let written = self.placed.iter().filter(|(operand, _)| operand.is_written());
        for (_, tensor) in written.filter(|(_, tensor)| !tensor.mapped && tensor.bytes > 0) {
            let Some(view) = tensor.gaps else { continue };
            let bounce = &mut self.workspace.bounce;
            let bytes = tensor.bytes.min(bounce.len());
            // SAFETY: *room*: `bytes` on both sides, and `place` has made room for the whole tensor. *alive*: the
            // stream is waited for, whatever came of it.
            let copied = unsafe { stream.copy_out(entered, bounce.as_mut_ptr(), tensor.device, bytes) };
            let waited = stream.synchronize(entered);
            copied?;
            waited?;
            let [batch, heads, tokens, dim] = view.shape();
            for b in 0..batch {
                for h in 0..heads {
                    for t in 0..tokens {
                        let at = view.row(b, h, t) * size;
                        let Some(row) = bounce.get(at..at + dim * size) else { continue };
                        // SAFETY: *placed*: the row lies in the tensor's view.
                        unsafe { tensor.data.add(at).copy_from_nonoverlapping(row.as_ptr(), row.len()) };
                    }
                }
            }
        }
        Ok(())
    }
}

/// Places the tensors and fills what is launched.
fn prepare(
    plan: &GpuPlan,
    problem: &Problem,
    lengths: &Lengths<'_>,
    tensors: &HostTensors<'_>,
    workspace: &mut GpuWorkspace,
) -> Result<(Operands<Placed>, Launch), DeviceError> {
    let placed = place(plan, problem, tensors, workspace)?;
    let at = Operands::from_fn(|operand| placed[operand].device);
    let launch = Launch::prepare(plan, problem, lengths, &at, workspace)?;
    Ok((placed, launch))
}
