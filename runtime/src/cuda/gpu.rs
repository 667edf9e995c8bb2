//! The GPU of an engine: its device, its context and its loaded modules.
//!
//! # What tests and users can control
//!
//! - The system's loader finds libcuda, so `LD_LIBRARY_PATH` can substitute another library. The library is opened
//!   once per process, and must export every symbol in the table of [`super::driver`].
//! - `ELSA_BACKEND=cuda` requests this back end. [`Fallback`](crate::Fallback) decides what happens if the GPU is
//!   missing or fails. [`CudaOptions`] select the device and the context.
//! - Every engine calls `cuInit`. In each context, the first plan that needs a kernel calls `cuModuleLoadDataEx`.
//!   `Plan::workspace`, `Plan::warm` and the first bind that needs more memory call `cuMemAlloc_v2` and
//!   `cuMemHostAlloc`. `cuCtxSynchronize` is called before a host buffer is freed. A run on host tensors calls
//!   `cuMemcpyHtoDAsync_v2`, `cuLaunchKernel`, `cuMemcpyDtoHAsync_v2` and `cuStreamSynchronize`, and allocates nothing.
//! - Error code 2 means that memory is not available. The codes of `code::STICKY` destroy a context. The next run then
//!   creates a new context with `cuCtxCreate_v2`. An engine replaces its context only once. After the second loss, the
//!   CPU computes.

use super::driver::{Context, Device, Driver, Function, Module};
use super::{ptx, with_kernels};
use crate::error::DeviceError;
use elsa_core::profile::GpuProfile;
use elsa_core::setters;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Options that select the GPU and its context.
///
/// ```
/// # use elsa_runtime::{CudaContext, CudaOptions, EngineOptions};
/// let options = EngineOptions::default().cuda(CudaOptions::default().context(CudaContext::Current));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Device number, in the driver's order. Ignored with [`CudaContext::Current`].
    pub device: usize,
    /// The context in which the GPU computes.
    pub context: CudaContext,
}

setters! {
    CudaOptions:
    device: usize, context: CudaContext;
    optional
}

/// The context in which a GPU computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaContext {
    /// The device's primary context, which the CUDA runtime and most libraries use.
    #[default]
    Primary,
    /// The context that is current on the thread that creates the engine. This context must outlive the engine, its
    /// plans and their workspaces.
    Current,
}

/// A GPU kernel that has been loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedKernel {
    /// Name of the kernel.
    pub name: &'static str,
    /// Format that was loaded: `cubin`, or `ptx` if the driver compiled the kernel.
    pub form: &'static str,
    /// Version of the PTX instruction set that the kernel is written in.
    pub isa: &'static str,
    /// Time in milliseconds that it took to load the kernel, including compilation.
    pub ms: f64,
    /// Number of registers of each thread.
    pub registers: u32,
    /// Number of bytes of local memory of each thread. Registers that the compiler spilled are kept there.
    pub local_bytes: u32,
}

/// The properties of a GPU, as the driver reports them.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Name of the device.
    pub name: String,
    /// CUDA version of the driver, `(major, minor)`.
    pub driver: (u32, u32),
    /// Size of the device's memory in bytes.
    pub memory: usize,
    /// The description of the device that the chooser uses.
    pub profile: GpuProfile,
}

/// The GPU of an engine: a device, its context, and the kernels loaded in the context.
#[derive(Debug)]
pub struct Gpu {
    device: Device,
    info: DeviceInfo,
    state: Mutex<LoadedContext>,
    warned: AtomicBool,
}

#[derive(Debug)]
struct LoadedContext {
    context: Arc<Context>,
    /// `true` if the current context has replaced a lost context.
    second: bool,
    functions: Vec<(Function, LoadedKernel)>,
}

impl Gpu {
    /// Opens the driver and the device, without creating a context. Returns the device and, with
    /// [`CudaContext::Current`], the caller's context.
    ///
    /// # Errors
    /// Returns an error if the GPU cannot be used.
    pub fn probe(options: &CudaOptions) -> Result<(Device, Option<Arc<Context>>), DeviceError> {
        let driver = Driver::open()?;
        let (device, current) = match options.context {
            CudaContext::Primary => (driver.device(options.device)?, None),
            CudaContext::Current => {
                let (device, context) = Device::of_current(driver)?;
                (device, Some(context))
            }
        };
        device.profile()?;
        Ok((device, current))
    }

    /// Opens the driver and the device, and enters the context once to check that it works.
    ///
    /// # Errors
    /// Returns an error if the GPU cannot be used.
    pub fn open(options: &CudaOptions) -> Result<Gpu, DeviceError> {
        let (device, current) = Gpu::probe(options)?;
        let info = DeviceInfo {
            profile: device.profile()?,
            name: device.name()?,
            driver: device.driver().version(),
            memory: device.memory()?,
        };
        let context = match current {
            Some(context) => context,
            None => device.primary()?,
        };
        drop(context.enter()?);
        let state = Mutex::new(LoadedContext { context, second: false, functions: Vec::new() });
        Ok(Gpu { device, info, state, warned: AtomicBool::new(false) })
    }

    /// Returns the properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        with_kernels();
        &self.info
    }

    /// Returns the chooser's description of the device.
    pub fn profile(&self) -> &GpuProfile {
        &self.info().profile
    }

    /// Locks the state. A holder of the lock must not log anything, neither directly nor by dropping a value, because a
    /// log sink may call this library.
    fn state(&self) -> MutexGuard<'_, LoadedContext> {
        // The state is consistent between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state. Returns an error if `context` is no longer the context in use.
    fn state_of(&self, context: &Arc<Context>) -> Result<MutexGuard<'_, LoadedContext>, DeviceError> {
        context.usable()?;
        let state = self.state();
        if Arc::ptr_eq(&state.context, context) { Ok(state) } else { Err(DeviceError::Lost) }
    }

    /// Returns the context in use. Replaces a lost context with a new one, but only once.
    ///
    /// Returns the error that the driver reports. Returns [`DeviceError::Lost`] if a second context is lost, and
    /// [`DeviceError::Forked`] in a child of the process that opened the device.
    pub fn context(&self) -> Result<Arc<Context>, DeviceError> {
        self.device.driver().usable()?;
        let mut state = self.state();
        if !state.context.is_lost() {
            return Ok(state.context.clone());
        }
        if state.second {
            return Err(DeviceError::Lost);
        }
        state.second = true;
        let context = self.device.fresh()?;
        let lost =
            (std::mem::take(&mut state.functions), std::mem::replace(&mut state.context, context.clone()));
        drop(state);
        drop(lost);
        log::info!("a new context takes the place of the one that was lost");
        Ok(context)
    }

    /// Returns a kernel that is loaded in `context`. Loads the kernel first if necessary.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a module, or if `context` is no longer in use.
    pub fn function(
        &self,
        context: &Arc<Context>,
        kernel: &'static GpuKernel,
    ) -> Result<Function, DeviceError> {
        if let Some(function) = find(&*self.state_of(context)?, kernel) {
            return Ok(function);
        }
        // Another thread may load the kernel at the same time. The module that is ready first is kept.
        let start = Instant::now();
        let isa = kernel.ptx.isa;
        let (module, form) = self.module(context, kernel)?;
        let function = Arc::new(module).function(kernel.name)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        log::debug!("kernel {} from {form}, PTX ISA {isa}, in {ms:.1} ms", kernel.name);
        if let Role::AttentionSplit(spec) = &kernel.role {
            function.allow_shared(spec.resources.shared as u32)?;
        }
        let (registers, local_bytes) = (function.registers()?, function.local_bytes()?);
        let loaded = LoadedKernel { name: kernel.name, form, isa, ms, registers, local_bytes };
        let mut state = self.state_of(context)?;
        if let Some(first) = find(&state, kernel) {
            return Ok(first);
        }
        state.functions.push((function.clone(), loaded));
        Ok(function)
    }

    /// Loads a kernel's cubin if the build has one and the driver accepts it. Otherwise loads the kernel's PTX. Returns
    /// the module and the name of the format.
    fn module(
        &self,
        context: &Arc<Context>,
        kernel: &'static GpuKernel,
    ) -> Result<(Module, &'static str), DeviceError> {
        if let Some(cubin) = kernel.cubin {
            match Module::load(context, cubin, None) {
                Ok(module) => return Ok((module, "cubin")),
                Err((e, _)) => log::debug!("cubin of {}: {e}; its PTX is compiled", kernel.name),
            }
        }
        let loaded = Module::load(context, &ptx::text(kernel)?, kernel.ptx.target.level);
        loaded.map(|module| (module, "ptx")).map_err(|(source, log)| DeviceError::Module {
            kernel: kernel.name,
            isa: kernel.ptx.isa,
            driver: self.info.driver,
            log,
            source: Box::new(source),
        })
    }

    /// Loads every kernel of the build that the device can run.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a module.
    pub fn load_all(&self) -> Result<(), DeviceError> {
        let context = self.context()?;
        let profile = self.profile();
        // A plan chooses no kernel on Tensor Cores whose shared memory an SM lacks.
        let fits = |role: &Role| match role {
            Role::AttentionSplit(spec) => spec.resources.shared <= profile.shared_per_sm,
            _ => true,
        };
        let runs =
            |kernel: &&GpuKernel| kernel.ptx.target.capability <= profile.capability && fits(&kernel.role);
        GPU_KERNELS.iter().filter(runs).try_for_each(|kernel| self.function(&context, kernel).map(drop))
    }

    /// Returns the kernels loaded so far.
    pub fn loaded(&self) -> Vec<LoadedKernel> {
        if self.device.driver().usable().is_err() {
            return Vec::new();
        }
        self.state().functions.iter().map(|(_, loaded)| loaded.clone()).collect()
    }

    /// Logs that the CPU computes instead of the GPU. The first message has the level warning; later messages have the
    /// level debug.
    pub fn warn(&self, reason: &dyn std::fmt::Display) {
        if self.warned.swap(true, Ordering::Relaxed) {
            log::debug!("the CPU computes: {reason}");
        } else {
            log::warn!("the CPU computes: {reason}");
        }
    }
}

/// Returns the loaded kernel; `None` if it has not been loaded.
fn find(state: &LoadedContext, kernel: &GpuKernel) -> Option<Function> {
    let mut functions = state.functions.iter();
    functions.find(|(_, loaded)| loaded.name == kernel.name).map(|(function, _)| function.clone())
}
