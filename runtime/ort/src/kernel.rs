//! A node of a session: its attributes, its plans, and the execution of a call.

use crate::api::Api;
use crate::attributes::Node;
use crate::cache::{Cache, Prepared};
use crate::engines;
use crate::error::OperatorError;
use crate::lent;
use crate::memory::Allocator;
use crate::operation::{GeometryOf, Operation, Provider};
use crate::shapes::{INPUTS, OUTPUTS, Shapes, type_name};
use crate::signature::Declared;
use crate::tensors::Addresses;
use elsa_runtime::{RawStream, Trust};
use ort_sys::{OrtKernelContext, OrtKernelInfo, OrtValue};
use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A node of a session, of any operator. Sessions may call it from several threads at once.
pub(crate) trait Computes {
    /// Returns the functions of the runtime that created this node.
    fn api(&self) -> &Api;

    /// Executes a call.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`], for `context`.
    unsafe fn compute(&self, context: *mut OrtKernelContext) -> Result<(), OperatorError>;
}

/// A node of the operator `O`.
pub(crate) struct Kernel<O: Operation> {
    api: Api,
    provider: Provider,
    attributes: O::Attributes,
    /// Declared element type of outputs that are [`Declared::Main`].
    output: i32,
    /// For each output, `true` once a call has found that the node omits it.
    left_out: [AtomicBool; OUTPUTS],
    cache: Cache<O>,
    /// Allocates the workspaces on a GPU, if the runtime lends its allocator. Dropped after the workspaces.
    allocator: Option<Arc<Allocator>>,
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

impl<O: Operation> Computes for Kernel<O> {
    fn api(&self) -> &Api {
        &self.api
    }

    unsafe fn compute(&self, context: *mut OrtKernelContext) -> Result<(), OperatorError> {
        // SAFETY: the clause of this function.
        unsafe { self.execute(context) }.map_err(|e| e.renamed(O::renamed))
    }
}

impl<O: Operation> Kernel<O> {
    /// Reads the attributes of a node, whose outputs are declared with the element type `output`. On the CPU, also starts
    /// the engine, so that an error appears when the session is created.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`], for `info`.
    pub unsafe fn create(
        api: Api,
        provider: Provider,
        output: i32,
        info: *const OrtKernelInfo,
    ) -> Result<Box<dyn Computes>, OperatorError> {
        let attributes = O::attributes(&Info { api: &api, info })?;
        if provider == Provider::Cpu {
            engines::cpu(api.lends())?;
        }
        let mut allocator = None;
        if provider == Provider::Cuda {
            // SAFETY: the clause of this function. *own*: the allocator is released with the node.
            allocator = unsafe { api.allocator(info).map(|raw| Arc::new(Allocator::new(api, raw))) };
        }
        let (left_out, cache) = Default::default();
        Ok(Box::new(Kernel::<O> { api, provider, attributes, output, left_out, cache, allocator }))
    }

    /// Executes a call. Errors have the engine's names of arguments.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`], for `context`.
    unsafe fn execute(&self, context: *mut OrtKernelContext) -> Result<(), OperatorError> {
        // SAFETY: the clause of this function.
        let (values, mut shapes) = unsafe { self.shapes(context)? };
        if let Some(one) = O::of_no_sequence(&shapes) {
            let mut geometry = O::geometry(&self.attributes, &one)?;
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
                let argument = O::SIGNATURE.outputs[0].name;
                again.ok_or(OperatorError::Missing { argument, other: "the operator" })?
            }
        };
        O::check_outputs(&self.attributes, self.provider, &shapes)?;
        let mut workspace = prepared.workspace(self.allocator.as_ref())?;
        // SAFETY: the clause of this function.
        let given = unsafe { self.given(&prepared.geometry, &shapes, &values, &outputs)? };
        let plan = &prepared.plan;
        match self.provider {
            Provider::Cpu => {
                // SAFETY: *tensors*: the runtime keeps the tensors of a call until the call ends, and nothing else writes
                // them. Outputs belong to the call, because the operator declares no output that reuses an input.
                let (inputs, outputs) = unsafe { O::host(&prepared.geometry, &given) };
                if self.api.lends() {
                    // SAFETY: the clause of this function.
                    unsafe {
                        lent::during(self.api, context, || plan.run(inputs, outputs, workspace.get()))
                    }?;
                } else {
                    plan.run(inputs, outputs, workspace.get())?;
                }
                // SAFETY: *tensors*: as above; the outputs that the run has written are not used here.
                unsafe { O::finish(workspace.get(), &given)? };
            }
            Provider::Cuda => {
                // SAFETY: *handle*: the stream is that of the call, and outlives it.
                let stream = unsafe { RawStream::new(self.api.stream(context)?) };
                // SAFETY: *tensors*: inputs that are declared to be in memory of the host are there.
                let (inputs, outputs) = unsafe { O::device(&prepared.geometry, &given) };
                // SAFETY: *tensors*: the runtime frees or reuses the tensors of a call only after the work in the
                // call's stream. The outputs belong to this call. The runtime has allocated each tensor for its shape in the
                // provider's context, or the caller's binding of tensors to the session states that. Streams live as
                // long as the session, which owns the workspaces.
                unsafe {
                    let trust = Trust::default().addresses(true).streams(true);
                    let stream = Some(stream);
                    let mut bound =
                        plan.bind_device_trusted(&inputs, &outputs, stream, trust, workspace.get())?;
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
        for i in 0..inputs.min(O::SIGNATURE.inputs.len()) {
            // SAFETY: *handle*: as above, and the call has input `i`.
            values[i] = unsafe { self.api.input(context, i)? };
            if !values[i].is_null() {
                // SAFETY: *handle*: the input is present.
                shapes.inputs[i] = Some(unsafe { self.api.shape(values[i])? });
            }
        }
        for i in 0..O::SIGNATURE.outputs.len() {
            shapes.outputs[i] = i == 0 || outputs > i && !self.left_out[i].load(Relaxed);
        }
        Ok((values, shapes))
    }

    /// Returns the cached plan for the shapes of a call, or creates one.
    fn prepared(&self, shapes: &Shapes) -> Result<Arc<Prepared<O>>, OperatorError> {
        if let Some(prepared) = self.cache.find(shapes) {
            return Ok(prepared);
        }
        let geometry = O::geometry(&self.attributes, shapes)?;
        // The runtime allocates outputs of the declared type. Before version 1.18, inputs may have another type.
        for (parameter, output) in O::SIGNATURE.outputs.iter().zip(&geometry.outputs) {
            if parameter.declared == Declared::Main && output.element != self.output {
                let found = type_name(output.element);
                let allowed = "that of ELSA_ORT_TYPE, which is f32 by default";
                return Err(OperatorError::Type { argument: parameter.name, found, allowed });
            }
        }
        let engine = match self.provider {
            Provider::Cpu => engines::cpu(self.api.lends())?,
            Provider::Cuda => engines::cuda()?,
        };
        let plan = O::plan(&engine, &self.attributes, &geometry.problem)?;
        Ok(self.cache.insert(*shapes, geometry, plan))
    }

    /// Allocates the outputs of a call; the first output is allocated last. If the runtime reports that the node omits an
    /// output, records this in `shapes` and returns `None`.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    unsafe fn outputs(
        &self,
        context: *mut OrtKernelContext,
        geometry: &GeometryOf<O>,
        shapes: &mut Shapes,
    ) -> Result<Option<[*const OrtValue; OUTPUTS]>, OperatorError> {
        let mut outputs = [ptr::null(); OUTPUTS];
        let wanted = shapes.outputs;
        for i in (0..OUTPUTS).rev().filter(|i| wanted[*i]) {
            // SAFETY: *handle*: the caller passes the context of a call.
            outputs[i] = unsafe { self.api.output(context, i, geometry.outputs[i].dims())? };
            if outputs[i].is_null() && i > 0 {
                shapes.outputs[i] = false;
                self.left_out[i].store(true, Relaxed);
            }
        }
        Ok((shapes.outputs == wanted && !outputs[0].is_null()).then_some(outputs))
    }

    /// Collects the addresses of a call's inputs and outputs.
    ///
    /// # Safety
    /// - The caller keeps the clause *handle* of [`Api`].
    unsafe fn given<'a>(
        &self,
        geometry: &'a GeometryOf<O>,
        shapes: &'a Shapes,
        inputs: &[*const OrtValue; INPUTS],
        outputs: &[*const OrtValue; OUTPUTS],
    ) -> Result<Addresses<'a>, OperatorError> {
        let mut given = Addresses::new(O::SIGNATURE, shapes, &geometry.outputs);
        for (i, value) in inputs.iter().enumerate().filter(|(_, value)| !value.is_null()) {
            // SAFETY: *handle*: the input is present.
            given.set_input(i, unsafe { self.api.data(*value)? })?;
        }
        for (i, value) in outputs.iter().enumerate().filter(|(_, value)| !value.is_null()) {
            // SAFETY: *handle*: the output was allocated.
            given.set_output(i, unsafe { self.api.data(*value)? })?;
        }
        Ok(given)
    }
}
