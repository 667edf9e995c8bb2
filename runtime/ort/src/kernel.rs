//! A node of a session: its attributes, its plans, and the execution of a call.

use crate::api::Api;
use crate::attributes::{Attributes, Node};
use crate::cache::{Cache, Prepared};
use crate::engines;
use crate::error::OperatorError;
use crate::geometry::{Geometry, Shapes};
use crate::lent;
use crate::operands::{INPUTS, Input, OUTPUTS};
use crate::tensors::{Addresses, device_inputs, device_outputs, host_inputs, host_outputs};
use elsa_runtime::{PlanOptions, RawStream};
use ort_sys::{OrtKernelContext, OrtKernelInfo, OrtValue};
use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Execution provider of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Cpu,
    Cuda,
}

/// A node of a session. Sessions may call it from several threads at once.
pub(crate) struct Kernel {
    api: Api,
    provider: Provider,
    attributes: Attributes,
    /// Flags for `present_key` and `present_value`: `true` once a call has found that the node omits the output.
    left_out: [AtomicBool; 2],
    cache: Cache,
}

/// Access to the attributes of a node while the node is being created.
struct Info<'a> {
    api: &'a Api,
    info: *const OrtKernelInfo,
}

impl Node for Info<'_> {
    fn integer(&self, name: &CStr) -> Option<i64> {
        // SAFETY: *handle*: an `Info` does not outlive the callback that created it.
        unsafe { self.api.integer(self.info, name) }
    }

    fn number(&self, name: &CStr) -> Option<f32> {
        // SAFETY: as above.
        unsafe { self.api.number(self.info, name) }
    }

    fn pair(&self, name: &CStr) -> Option<Result<[i64; 2], usize>> {
        // SAFETY: as above.
        unsafe { self.api.integers(self.info, name) }
    }

    fn has_other(&self, name: &CStr) -> bool {
        // SAFETY: as above.
        unsafe { self.api.has_other(self.info, name) }
    }
}

impl Kernel {
    /// Reads the attributes of a node. On the CPU, also starts the engine, so that an error appears when the session is
    /// created.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`], for `info`.
    pub unsafe fn new(
        api: Api,
        provider: Provider,
        info: *const OrtKernelInfo,
    ) -> Result<Kernel, OperatorError> {
        let attributes = Attributes::of(&Info { api: &api, info })?;
        if provider == Provider::Cpu {
            engines::cpu(api.lends())?;
        }
        Ok(Kernel { api, provider, attributes, left_out: Default::default(), cache: Cache::default() })
    }

    /// Returns the functions of the runtime that created this node.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Executes a call.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`], for `context`.
    pub unsafe fn compute(&self, context: *mut OrtKernelContext) -> Result<(), OperatorError> {
        // SAFETY: the clause of this function.
        let (values, mut shapes) = unsafe { self.shapes(context)? };
        if let Some(one) = shapes.of_no_sequence() {
            let mut geometry = Geometry::of(&self.attributes, &one)?;
            geometry.outputs.iter_mut().for_each(|output| output.dims[0] = 0);
            // SAFETY: the clause of this function.
            unsafe { self.outputs(context, &geometry, &mut shapes)? };
            return Ok(());
        }
        let mut prepared = self.prepared(&shapes)?;
        // SAFETY: the clause of this function.
        let outputs = match unsafe { self.outputs(context, &prepared.geometry, &mut shapes)? } {
            Some(outputs) => outputs,
            None => {
                prepared = self.prepared(&shapes)?;
                // SAFETY: the clause of this function.
                let again = unsafe { self.outputs(context, &prepared.geometry, &mut shapes)? };
                again.ok_or(OperatorError::Missing { argument: "Y", other: "the operator" })?
            }
        };
        let mut workspace = prepared.workspace()?;
        // SAFETY: the clause of this function.
        let given = unsafe { self.given(&prepared.geometry, &shapes, &values, &outputs)? };
        let plan = &prepared.plan;
        match self.provider {
            Provider::Cpu => {
                // SAFETY: *tensors*: the runtime keeps the tensors of a call until the call ends, and nothing else writes
                // them. Outputs belong to the call, because the operator declares no output that reuses an input.
                let (inputs, outputs) = unsafe { (host_inputs(&given), host_outputs(&given)) };
                let mut bound = plan.bind(inputs, outputs, workspace.get())?;
                if self.api.lends() {
                    // SAFETY: the clause of this function.
                    unsafe { lent::during(self.api, context, || bound.run()) }?;
                } else {
                    bound.run()?;
                }
            }
            Provider::Cuda => {
                // SAFETY: *handle*: the stream is that of the call, and outlives it.
                let stream = unsafe { RawStream::new(self.api.stream(context)?) };
                // SAFETY: *tensors*: the list of lengths is in memory of the host, as the operator declares.
                let inputs = unsafe { device_inputs(&given) };
                let outputs = device_outputs(&given);
                // SAFETY: *tensors*: the runtime frees or reuses the tensors of a call only after the work in the
                // call's stream. The outputs belong to this call.
                unsafe {
                    let mut bound = plan.bind_device(&inputs, &outputs, Some(stream), workspace.get())?;
                    bound.run()?;
                }
            }
        }
        Ok(())
    }

    /// Returns the inputs of a call, and the key under which its plan is cached.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    unsafe fn shapes(
        &self,
        context: *const OrtKernelContext,
    ) -> Result<([*const OrtValue; INPUTS], Shapes), OperatorError> {
        let mut values = [ptr::null(); INPUTS];
        let mut shapes = Shapes::default();
        // SAFETY: *handle*: the caller passes the context of a call.
        let (inputs, outputs) = unsafe { (self.api.inputs(context)?, self.api.outputs(context)?) };
        for i in 0..inputs.min(INPUTS) {
            // SAFETY: *handle*: as above, and the call has input `i`.
            values[i] = unsafe { self.api.input(context, i)? };
            if !values[i].is_null() {
                // SAFETY: *handle*: the input is present.
                shapes.inputs[i] = Some(unsafe { self.api.shape(values[i])? });
            }
        }
        let [key, value] = [0, 1].map(|i| outputs > i + 1 && !self.left_out[i].load(Relaxed));
        (shapes.present_key, shapes.present_value) = (key, value);
        Ok((values, shapes))
    }

    /// Returns the cached plan for the shapes of a call, or creates one.
    fn prepared(&self, shapes: &Shapes) -> Result<Arc<Prepared>, OperatorError> {
        if let Some(prepared) = self.cache.find(shapes) {
            return Ok(prepared);
        }
        let geometry = Geometry::of(&self.attributes, shapes)?;
        let engine = match self.provider {
            Provider::Cpu => engines::cpu(self.api.lends())?,
            Provider::Cuda => engines::cuda()?,
        };
        let plan = engine.plan(&geometry.problem, &PlanOptions::default())?;
        Ok(self.cache.insert(*shapes, geometry, plan))
    }

    /// Allocates the outputs of a call; `Y` is allocated last. If the runtime reports that the node omits an output,
    /// records this in `shapes` and returns `None`.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    unsafe fn outputs(
        &self,
        context: *mut OrtKernelContext,
        geometry: &Geometry,
        shapes: &mut Shapes,
    ) -> Result<Option<[*const OrtValue; OUTPUTS]>, OperatorError> {
        let mut outputs = [ptr::null(); OUTPUTS];
        let wanted = [true, shapes.present_key, shapes.present_value];
        for i in (0..OUTPUTS).rev().filter(|i| wanted[*i]) {
            // SAFETY: *handle*: the caller passes the context of a call.
            outputs[i] = unsafe { self.api.output(context, i, geometry.outputs[i].dims())? };
            if outputs[i].is_null() {
                match i {
                    1 => shapes.present_key = false,
                    _ => shapes.present_value = false,
                }
                if let Some(left_out) = i.checked_sub(1).and_then(|i| self.left_out.get(i)) {
                    left_out.store(true, Relaxed);
                }
            }
        }
        let now = [true, shapes.present_key, shapes.present_value];
        Ok((now == wanted && !outputs[0].is_null()).then_some(outputs))
    }

    /// Collects the addresses of a call's inputs and outputs.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    unsafe fn given<'a>(
        &self,
        geometry: &'a Geometry,
        shapes: &'a Shapes,
        inputs: &[*const OrtValue; INPUTS],
        outputs: &[*const OrtValue; OUTPUTS],
    ) -> Result<Addresses<'a>, OperatorError> {
        let mut given = Addresses::new(geometry, shapes);
        for input in Input::ALL {
            let value = inputs[input as usize];
            if !value.is_null() {
                // SAFETY: *handle*: the input is present.
                given.set_input(input, unsafe { self.api.data(value)? })?;
            }
        }
        for (i, value) in outputs.iter().enumerate() {
            if !value.is_null() {
                // SAFETY: *handle*: the output was allocated.
                given.set_output(i, unsafe { self.api.data(*value)? })?;
            }
        }
        Ok(given)
    }
}
