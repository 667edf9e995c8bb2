//! Runs on device tensors, which are used in place.

use super::launch::Launch;
use super::plan::GpuPlan;
use super::workspace::GpuWorkspace;
use crate::cuda::driver::{Entered, RawStream};
use crate::error::{BindError, DeviceError};
use elsa_core::argument::ArgumentError;
use elsa_core::attention::{Lengths, Operand, Operands, Problem};
use std::marker::PhantomData;

/// The input tensors of a call as device addresses of the first element of each view, and the lengths in host
/// memory. Shapes and strides are those of the problem.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceInputs<'a> {
    /// Address of the queries.
    pub query: u64,
    /// Address of the keys.
    pub key: u64,
    /// Address of the values.
    pub value: u64,
    /// Address of the past keys; `None` if they lie in the present.
    pub past_key: Option<u64>,
    /// Address of the past values; `None` if they lie in the present.
    pub past_value: Option<u64>,
    /// Address of the mask.
    pub mask: Option<u64>,
    /// Address of the bias, or of its table.
    pub bias: Option<u64>,
    /// Address of the entries of the table, i64 `[queries, keys]`. They are not checked: one outside the table counts as its
    /// first or last.
    pub bias_index: Option<u64>,
    /// Lengths of the sequences, in host memory.
    pub lengths: Lengths<'a>,
}

/// The output tensors of a call as device addresses of the first element. Shapes and strides are those of the
/// problem. A call writes the output, log-sum-exp, states, or several of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOutputs {
    /// Address of the output.
    pub output: Option<u64>,
    /// Address of the log-sum-exp of each row, f32 `[batch, heads, queries]`.
    pub lse: Option<u64>,
    /// Addresses of the state of each row: `m` and `S`, f32 `[batch, heads, queries]`, and `W`, f32
    /// `[batch, heads, queries, d_v]`.
    pub state: Option<[u64; 3]>,
    /// Address of the present keys.
    pub present_key: Option<u64>,
    /// Address of the present values.
    pub present_value: Option<u64>,
}

/// The addresses of a call's operands; `None` if the call does not have the operand.
fn addresses(inputs: &DeviceInputs<'_>, outputs: &DeviceOutputs) -> Operands<Option<u64>> {
    let state = |i: usize| outputs.state.map(|state| state[i]);
    Operands::from_fn(|operand| match operand {
        Operand::Query => Some(inputs.query),
        Operand::Key => Some(inputs.key),
        Operand::Value => Some(inputs.value),
        Operand::PastKey => inputs.past_key,
        Operand::PastValue => inputs.past_value,
        Operand::Mask => inputs.mask,
        Operand::Bias => inputs.bias,
        Operand::BiasIndex => inputs.bias_index,
        Operand::Output => outputs.output,
        Operand::PresentKey => outputs.present_key,
        Operand::PresentValue => outputs.present_value,
        Operand::LogSumExp => outputs.lse,
        Operand::StateReference => state(0),
        Operand::StateSum => state(1),
        Operand::StateWeighted => state(2),
    })
}

const fn is_past(operand: Operand) -> bool {
    matches!(operand, Operand::PastKey | Operand::PastValue)
}

/// A call on device tensors. Runs enqueue work and do not wait for it.
#[derive(Debug)]
pub struct DeviceCall<'a> {
    workspace: &'a mut GpuWorkspace,
    launch: Launch,
    stream: RawStream,
    /// Whether the stream is the caller's, who may capture it.
    lent: bool,
    borrowed: PhantomData<&'a ()>,
}

/// Checks that the device can use `needed` bytes at an address. Returns their device address.
fn check_address(
    entered: &Entered<'_>,
    argument: &'static str,
    address: u64,
    needed: usize,
    alignment: usize,
) -> Result<u64, BindError> {
    if needed == 0 {
        return Ok(address);
    }
    if !address.is_multiple_of(alignment as u64) {
        return Err(BindError::Alignment { argument, address, alignment });
    }
    entered.usable_at(address, needed).map_err(|found| match found {
        Some(found) => BindError::DeviceShort { argument, found, needed },
        None => BindError::Address { argument, address },
    })
}

impl<'a> DeviceCall<'a> {
    /// Checks addresses, lengths and stream, and prepares the launch.
    ///
    /// # Errors
    /// Returns an error if something does not match the problem, or if the device fails.
    pub fn new(
        plan: &'a GpuPlan,
        problem: &'a Problem,
        inputs: &DeviceInputs<'a>,
        outputs: &DeviceOutputs,
        stream: Option<RawStream>,
        workspace: &'a mut GpuWorkspace,
    ) -> Result<DeviceCall<'a>, BindError> {
        inputs.lengths.check(problem)?;
        if outputs.output.is_none() && outputs.lse.is_none() && outputs.state.is_none() {
            return Err(ArgumentError::NoOutput { argument: Operand::Output.argument() }.into());
        }
        workspace.revive()?;
        let context = workspace.context.clone();
        let entered = context.enter()?;
        let given = addresses(inputs, outputs);
        let at = Operands::try_from_fn(|operand| {
            let argument = operand.argument();
            let needs = |other| Err(ArgumentError::Needs { argument, other }.into());
            // A call may omit these.
            let optional = matches!(operand, Operand::Output | Operand::LogSumExp) || operand.is_state();
            match (problem.memory(operand), given[operand]) {
                (Some(memory), Some(address)) => {
                    check_address(&entered, argument, address, memory.bytes(), memory.element_size)
                }
                (Some(_), None) if !optional => needs("its data"),
                (None, Some(_)) if problem.spec().append && is_past(operand) => {
                    Err(ArgumentError::Conflict { argument, other: "append" }.into())
                }
                (None, Some(_)) => needs("its shape in the problem"),
                (_, None) => Ok(0),
            }
        })?;
        let (lent, capture, stream) = match stream {
            Some(stream) => {
                // First: of the default stream the other question would invalidate captures of other streams.
                let capture = stream.capture(&entered)?;
                if !stream.belongs(&entered)? {
                    return Err(BindError::Stream);
                }
                (true, capture, stream)
            }
            None => (false, None, workspace.stream.raw()),
        };
        let relaxed = capture.map(|_| entered.relax()).transpose()?;
        let launch = Launch::prepare(plan, problem, &inputs.lengths, &at, workspace)?;
        drop(relaxed);
        Ok(DeviceCall { workspace, launch, stream, lent, borrowed: PhantomData })
    }

    /// The memory in which the call works.
    pub fn workspace(&mut self) -> &mut GpuWorkspace {
        self.workspace
    }

    /// Number of blocks of threads of the attention kernel.
    pub fn blocks(&self) -> usize {
        self.launch.attention_blocks()
    }

    /// Enqueues the computation, after what earlier runs in the workspace have left pending in any stream. A stream that
    /// is captured takes the computation into its graph. It cannot wait for what is not captured, so this call does;
    /// launches of the graph are the caller's to order.
    ///
    /// # Safety
    /// The bound tensors stay allocated until the stream has been waited for.
    ///
    /// # Errors
    /// Returns the error that the device reports.
    pub unsafe fn run(&mut self) -> Result<(), DeviceError> {
        let context = self.workspace.context.clone();
        let entered = context.enter()?;
        let capture = if self.lent { self.stream.capture(&entered)? } else { None };
        let relaxed = capture.map(|_| entered.relax()).transpose()?;
        if capture.is_some() {
            self.workspace.pending.wait()?;
        }
        self.workspace.pending.precede(&entered, self.stream, capture)?;
        // SAFETY: *room*: `new` has checked every address. *alive*: the clause of this function; pending work is
        // waited for before the workspace is freed.
        let enqueued =
            unsafe { self.launch.enqueue(&entered, self.stream, self.workspace, capture.is_some()) };
        self.workspace.graph.took(self.launch.entries(), capture);
        let marked = self.workspace.pending.mark(&entered, self.stream, capture);
        drop(relaxed);
        enqueued?;
        marked
    }

    /// Waits until all work in the stream is done.
    ///
    /// # Errors
    /// Returns the error that the device reports, including errors of earlier work.
    pub fn wait(&self) -> Result<(), DeviceError> {
        let entered = self.workspace.context.enter()?;
        self.stream.synchronize(&entered)
    }
}
