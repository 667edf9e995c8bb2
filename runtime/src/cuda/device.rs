//! Runs a plan on device tensors, which are used in place.

use super::driver::{Context, Entered, RawEvent, RawStream};
use super::kept::{Key, Movable, Moves};
use super::plan::{GpuPlan, OperandOf};
use super::workspace::GpuWorkspace;
use crate::error::{BindError, DeviceError};
use crate::problem::Problem;
use crate::tensors::{DeviceTensors, TensorSpec, types};
use elsa_core::argument::ArgumentError;
use elsa_core::operands::{Location, Operands};
use elsa_core::setters;
use std::marker::PhantomData;

/// The locations of a call's tensors in device memory; `None` for tensors that the call omits.
type Addresses<P> = Operands<<P as Problem>::Operand, Option<Location<u64>>>;

/// Facts about a call on device tensors that its caller guarantees, so that the driver is not asked about them. The
/// default guarantees nothing. Each fact is an obligation of an unsafe function that takes this value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trust {
    /// Every address is device memory of the plan's context, and all elements of the tensor's view are in one
    /// allocation.
    pub addresses: bool,
    /// The stream belongs to the plan's context. If an earlier run in the workspace was in a stream with the same
    /// handle, that stream has not been destroyed since.
    pub streams: bool,
}

setters! {
    Trust:
    addresses: bool, streams: bool;
    optional
}

/// A call on device tensors. A run enqueues its work and does not wait for it.
#[derive(Debug)]
pub struct DeviceCall<'a> {
    workspace: &'a mut GpuWorkspace,
    stream: RawStream,
    /// `true` if the stream belongs to the caller, who may capture it.
    lent: bool,
    trust: Trust,
    borrowed: PhantomData<&'a ()>,
}

/// Checks that the device can use `needed` bytes at an address. Returns the device address of these bytes. Without an
/// entered context, the address is trusted, and only its alignment is checked.
fn check_address(
    entered: Option<&Entered<'_>>,
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
    let Some(entered) = entered else { return Ok(address) };
    entered.usable_at(address, needed).map_err(|found| match found {
        Some(found) => BindError::DeviceShort { argument, found, needed },
        None => BindError::Address { argument, address },
    })
}

/// Checks that the caller's stream belongs to the context, unless the caller guarantees it.
fn check_stream(context: &Context, stream: Option<RawStream>, trust: Trust) -> Result<(), BindError> {
    match stream.filter(|stream| !trust.streams && !stream.is_default()) {
        Some(stream) if !stream.belongs(&context.enter()?)? => Err(BindError::Stream),
        _ => Ok(()),
    }
}

/// Checks the address of a tensor. Returns its device address, or zero if the call omits an optional tensor.
fn check(entered: Option<&Entered<'_>>, tensor: &TensorSpec, address: Option<u64>) -> Result<u64, BindError> {
    let argument = tensor.argument;
    let needs = |other| Err(ArgumentError::Needs { argument, other }.into());
    match (tensor.memory, address) {
        (Some(memory), Some(address)) => {
            check_address(entered, argument, address, memory.bytes(), memory.element_size)
        }
        (Some(_), None) if !tensor.optional => needs("its data"),
        (None, Some(_)) => match tensor.forbidden {
            Some(other) => Err(ArgumentError::Conflict { argument, other }.into()),
            None => needs("its shape in the problem"),
        },
        (_, None) => Ok(0),
    }
}

impl<'a> DeviceCall<'a> {
    /// Checks the addresses and the stream unless the caller guarantees them, and prepares the launches. The caller has checked the
    /// lengths. With a key, the workspace keeps the launches.
    ///
    /// # Errors
    /// Returns an error if a tensor or the stream does not fit the problem, or if the device fails.
    pub fn new<P: GpuPlan>(
        plan: &P,
        problem: &P::Problem,
        lengths: <P::Problem as Problem>::Lengths<'_>,
        given: &Addresses<P::Problem>,
        (stream, trust): (Option<RawStream>, Trust),
        key: Option<Key<'_>>,
        workspace: &'a mut GpuWorkspace,
    ) -> Result<DeviceCall<'a>, BindError> {
        // Guarantees of the caller are about the lost context. They do not hold for the one that would replace it.
        if (trust.addresses || trust.streams) && workspace.context.is_lost() {
            return Err(DeviceError::LostWorkspace.into());
        }
        workspace.revive()?;
        let context = workspace.context.clone();
        let for_addresses = if trust.addresses { None } else { Some(context.enter()?) };
        let types = types(given);
        let tensors = problem.tensors_of(&types);
        let at = Operands::try_from_fn(|operand| {
            let address = given[operand].map(|place| place.address);
            check(for_addresses.as_ref(), &tensors[operand], address)
        })?;
        check_stream(&context, stream, trust)?;
        let (lent, stream) = (stream.is_some(), stream.unwrap_or_else(|| workspace.stream.raw()));
        let at = DeviceTensors { at, types: &types };
        let list = plan.launches(problem, lengths, &at, workspace)?;
        if let Some(key) = key.filter(|_| list.is_plain()) {
            let given = || at.at.iter().filter(|(_, address)| **address != 0);
            let of = |(operand, address): (OperandOf<P>, &u64)| {
                let TensorSpec { written, .. } = tensors[operand];
                Movable { address: *address, bytes: tensors[operand].bytes(), written }
            };
            let moves = Moves::of(key, &given().map(of).collect::<Vec<_>>(), &list, |moved| {
                let mut moved = moved.iter().copied();
                let at = Operands::from_fn(|operand| match at.at[operand] {
                    0 => 0,
                    _ => moved.next().unwrap_or(0),
                });
                plan.launches(problem, lengths, &DeviceTensors { at, types: &types }, workspace).ok()
            });
            workspace.list = list;
            workspace.keep(key, moves);
        } else {
            workspace.list = list;
        }
        Ok(DeviceCall { workspace, stream, lent, trust, borrowed: PhantomData })
    }

    /// Prepares a call with the list that the workspace holds, which [`GpuWorkspace::again`] has found. The caller guarantees
    /// the facts about addresses.
    ///
    /// # Errors
    /// Returns an error if the stream does not fit the plan, if the context of the workspace is lost, or if the device
    /// fails.
    pub fn again(
        stream: Option<RawStream>,
        trust: Trust,
        workspace: &'a mut GpuWorkspace,
    ) -> Result<DeviceCall<'a>, BindError> {
        if workspace.context.is_lost() {
            return Err(DeviceError::LostWorkspace.into());
        }
        check_stream(&workspace.context, stream, trust)?;
        let (lent, stream) = (stream.is_some(), stream.unwrap_or_else(|| workspace.stream.raw()));
        Ok(DeviceCall { workspace, stream, lent, trust, borrowed: PhantomData })
    }

    /// Returns the workspace of the call.
    pub fn workspace(&mut self) -> &mut GpuWorkspace {
        self.workspace
    }

    /// Returns the number of thread blocks that share the work.
    pub fn blocks(&self) -> usize {
        self.workspace.list.blocks()
    }

    /// Makes the stream wait for `event` before it executes the work of later runs.
    ///
    /// # Errors
    /// Returns the error that the device reports.
    pub fn follow(&self, event: RawEvent) -> Result<(), DeviceError> {
        let entered = self.workspace.context.enter()?;
        event.precede(&entered, self.stream)
    }

    /// Records `event` after the work of earlier runs.
    ///
    /// # Errors
    /// Returns the error that the device reports.
    pub fn mark(&self, event: RawEvent) -> Result<(), DeviceError> {
        let entered = self.workspace.context.enter()?;
        event.record(&entered, self.stream)
    }

    /// Enqueues the computation. It starts after the work that earlier runs in the workspace have enqueued in any
    /// stream. If the stream is being captured, the computation becomes part of the graph of the capture. A captured
    /// stream cannot wait for work outside the capture, so this function waits for earlier runs. The caller must order
    /// launches of the graph with other runs in the workspace.
    ///
    /// # Safety
    /// The caller keeps the bound tensors allocated until the stream has been waited for.
    ///
    /// # Errors
    /// Returns the error that the device reports.
    pub unsafe fn run(&mut self) -> Result<(), DeviceError> {
        let context = self.workspace.context.clone();
        let entered = context.enter()?;
        let capture = if self.lent { self.stream.capture(&entered)? } else { None };
        if capture.is_some() {
            self.workspace.pending.wait()?;
        }
        self.workspace.pending.precede(&entered, self.stream, capture, self.trust.streams)?;
        // SAFETY: *room*: `new` has checked every address. *alive*: the caller guarantees it (clause), and pending work
        // is waited for before the workspace is freed.
        let enqueued = unsafe {
            self.workspace.list.enqueue(&entered, self.stream, self.workspace.means(), capture.is_some())
        };
        self.workspace.graph.took(self.workspace.list.table_bytes(), capture);
        let marked = self.workspace.pending.mark(&entered, self.stream, capture);
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
