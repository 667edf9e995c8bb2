//! One device for an engine: its context and its modules.
//!
//! # What tests and users can steer
//!
//! - libcuda is found by the system's loader, so `LD_LIBRARY_PATH` can put another one in its place. It is opened
//!   once in a process, and every symbol in the table of [`super::driver`] must be there.
//! - `ELSA_BACKEND=cuda` forces this back end; [`Fallback`](crate::Fallback) says what happens where it is
//!   missing or fails. [`CudaOptions`] take the device and the context.
//! - `cuInit` is called for every engine, `cuModuleLoadDataEx` when the first plan of a context needs a kernel,
//!   `cuMemAlloc_v2` and `cuMemHostAlloc` by `Plan::workspace` and by the first bind that needs more room. A run
//!   of host tensors calls `cuMemcpyHtoDAsync_v2`, `cuLaunchKernel`, `cuMemcpyDtoHAsync_v2` and
//!   `cuStreamSynchronize`, and allocates nothing.
//! - Code 2 is memory that is not there. The codes of `code::STICKY` end a context: the next run makes one of its
//!   own with `cuCtxCreate_v2`, once in the life of an engine; after that the CPU computes.

use super::driver::{Context, Device, Driver, Function, Module};
use crate::error::DeviceError;
use elsa_core::profile::GpuProfile;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Which device, and in which context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Number of the device, as the driver counts. Not looked at with [`CudaContext::Current`].
    pub device: usize,
    /// The context.
    pub context: CudaContext,
}

/// The context in which a GPU computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaContext {
    /// The device's primary context, which the CUDA runtime and most libraries use.
    #[default]
    Primary,
    /// The one that is current for the thread that makes the engine. It must outlive the engine, its plans and
    /// their workspaces.
    Current,
}

/// A kernel that was loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedKernel {
    /// Its name.
    pub name: &'static str,
    /// `cubin`, or `ptx` when the driver has compiled it.
    pub form: &'static str,
    /// Version of the PTX instruction set that it is written in.
    pub isa: String,
    /// Milliseconds that loading took, compilation included.
    pub ms: f64,
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// CUDA version of the driver, `(major, minor)`.
    pub driver: (u32, u32),
    /// Bytes of its memory.
    pub memory: usize,
    /// What the chooser knows of it.
    pub profile: GpuProfile,
}

/// A device with its context.
#[derive(Debug)]
pub struct Gpu {
    device: Device,
    info: DeviceInfo,
    state: Mutex<State>,
    warned: AtomicBool,
}

#[derive(Debug)]
struct State {
    context: Arc<Context>,
    /// Whether `context` has taken the place of one that was lost.
    second: bool,
    functions: Vec<(Function, LoadedKernel)>,
}

impl Gpu {
    /// Whether the driver and the device can be used, short of making a context.
    ///
    /// # Errors
    /// Whatever keeps the GPU from being used.
    pub fn probe(options: &CudaOptions) -> Result<(Device, Option<Arc<Context>>), DeviceError> {
        if !GPU_KERNELS.iter().any(|k| k.attention().is_some()) {
            return Err(DeviceError::NoKernel { role: "attention" });
        }
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

    /// Opens the driver and the device.
    ///
    /// # Errors
    /// Whatever keeps the GPU from being used.
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
        let state = Mutex::new(State { context, second: false, functions: Vec::new() });
        Ok(Gpu { device, info, state, warned: AtomicBool::new(false) })
    }

    /// What the device says of itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What the chooser knows of it.
    pub fn profile(&self) -> &GpuProfile {
        &self.info.profile
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A state is whole between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The context. One that was lost is replaced once.
    ///
    /// # Errors
    /// What the driver reports, and a second loss.
    pub fn context(&self) -> Result<Arc<Context>, DeviceError> {
        let mut state = self.state();
        if state.context.is_lost() {
            if state.second {
                return Err(DeviceError::Lost);
            }
            state.second = true;
            state.functions.clear();
            state.context = self.device.fresh()?;
            log::info!("a new context takes the place of the one that was lost");
        }
        Ok(state.context.clone())
    }

    /// Whether `context` is the one in use.
    pub fn owns(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.state().context, context)
    }

    /// A kernel, loaded into `context` if it is not yet.
    ///
    /// # Errors
    /// A module that the driver refuses.
    pub fn function(
        &self,
        context: &Arc<Context>,
        kernel: &'static GpuKernel,
    ) -> Result<Function, DeviceError> {
        let mut state = self.state();
        let ours = Arc::ptr_eq(&state.context, context);
        if !ours {
            return Err(DeviceError::Lost);
        }
        if let Some((function, _)) = state.functions.iter().find(|(_, loaded)| loaded.name == kernel.name) {
            return Ok(function.clone());
        }
        let start = Instant::now();
        let isa = isa(kernel.ptx);
        let (module, form) = self.module(context, kernel, &isa)?;
        let function = Arc::new(module).function(kernel.name)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        log::debug!("kernel {} from {form}, PTX ISA {isa}, in {ms:.1} ms", kernel.name);
        state.functions.push((function.clone(), LoadedKernel { name: kernel.name, form, isa, ms }));
        Ok(function)
    }

    /// The cubin where the build has one and the driver takes it, else the PTX.
    fn module(
        &self,
        context: &Arc<Context>,
        kernel: &'static GpuKernel,
        isa: &str,
    ) -> Result<(Module, &'static str), DeviceError> {
        if let Some(cubin) = kernel.cubin {
            match Module::load(context, cubin) {
                Ok(module) => return Ok((module, "cubin")),
                Err((e, _)) => log::debug!("cubin of {}: {e}; its PTX is compiled", kernel.name),
            }
        }
        let loaded = Module::load(context, kernel.ptx.as_bytes());
        loaded.map(|module| (module, "ptx")).map_err(|(source, log)| DeviceError::Module {
            kernel: kernel.name,
            isa: isa.to_owned(),
            driver: self.info.driver,
            log,
            source: Box::new(source),
        })
    }

    /// Loads every kernel of the build.
    ///
    /// # Errors
    /// A module that the driver refuses.
    pub fn load_all(&self) -> Result<(), DeviceError> {
        let context = self.context()?;
        GPU_KERNELS.iter().try_for_each(|kernel| self.function(&context, kernel).map(drop))
    }

    /// The kernels that were loaded so far.
    pub fn loaded(&self) -> Vec<LoadedKernel> {
        self.state().functions.iter().map(|(_, loaded)| loaded.clone()).collect()
    }

    /// Says once that the CPU takes over.
    pub fn warn(&self, reason: &dyn std::fmt::Display) {
        if self.warned.swap(true, Ordering::Relaxed) {
            log::debug!("the CPU computes: {reason}");
        } else {
            log::warn!("the CPU computes: {reason}");
        }
    }
}

/// The version that a PTX text declares.
fn isa(ptx: &str) -> String {
    let line = ptx.lines().find_map(|line| line.trim().strip_prefix(".version"));
    line.map_or("unknown", str::trim).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_text() {
        assert_eq!(isa("//\n// made\n\n.version 6.5\n.target sm_62\n"), "6.5");
        assert_eq!(isa(".target sm_62"), "unknown");
    }
}
