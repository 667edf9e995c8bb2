//! The engine: a back end and its workers. It plans nothing; operators plan with it.

use crate::backend::{Backend, UnknownBackend};
use crate::cpu::{detect, pool::Pool};
use crate::cuda::gpu::{CudaOptions, DeviceInfo, Gpu, LoadedKernel};
use crate::cuda::memory::{Element, HostBuffer};
use crate::error::{DeviceError, EngineError};
use crate::presence::backends;
use elsa_core::profile::{DeviceProfile, InstructionSet};
use elsa_kernels::registry;
use std::sync::Arc;

/// Most threads of an engine.
pub(crate) const MAX_THREADS: usize = 1024;

/// What happens where a GPU was to compute and cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// The CPU finishes the call, and its report says why.
    #[default]
    Cpu,
    /// The caller gets the error.
    Fail,
}

/// What is wished of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// The back end. `None` takes what the environment variable `ELSA_BACKEND` names (`auto` and nothing are
    /// the same), else the first that is present.
    pub backend: Option<Backend>,
    /// Threads that compute, the caller's included. `None` takes every core that the process may use.
    pub threads: Option<usize>,
    /// What happens where the GPU is missing or fails.
    pub fallback: Fallback,
    /// Which GPU, and in which context.
    pub cuda: CudaOptions,
}

/// A back end with its workers. Clones share them; calls from several threads take turns on the CPU, and run side
/// by side on a GPU.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Instruction set of the CPU, which computes or stands by.
    cpu: InstructionSet,
    profile: DeviceProfile,
    pool: Pool,
    gpu: Option<Arc<Gpu>>,
    fallback: Fallback,
    /// Why a GPU that was asked for does not compute.
    absence: Option<Arc<DeviceError>>,
}

/// What the options or the environment force.
fn forced(options: &EngineOptions) -> Result<Option<Backend>, EngineError> {
    if options.backend.is_some() {
        return Ok(options.backend);
    }
    match std::env::var("ELSA_BACKEND") {
        Ok(name) if !name.is_empty() && name != "auto" => Ok(Some(name.parse()?)),
        Err(std::env::VarError::NotUnicode(name)) => {
            Err(UnknownBackend { found: name.to_string_lossy().into_owned() }.into())
        }
        _ => Ok(None),
    }
}

impl Engine {
    /// Chooses the back end and starts the workers.
    ///
    /// A GPU that is asked for by name and cannot be used is an error with [`Fallback::Fail`]; else the CPU takes
    /// its place, a warning says so once, and every report too.
    ///
    /// # Errors
    /// A back end that is forced and absent, a name that is none, a number of threads out of bounds, a
    /// system that starts no thread.
    pub fn new(options: &EngineOptions) -> Result<Engine, EngineError> {
        let forced = forced(options)?;
        let (gpu, absence) = match forced {
            Some(Backend::Cuda) | None => match Gpu::open(&options.cuda) {
                Ok(gpu) => (Some(Arc::new(gpu)), None),
                Err(reason) => match (forced, options.fallback) {
                    (None, _) => {
                        say_once(&reason);
                        (None, None)
                    }
                    (Some(_), Fallback::Fail) => return Err(EngineError::Device { reason }),
                    (Some(_), Fallback::Cpu) => {
                        log::warn!("the CPU computes: {reason}");
                        (None, Some(Arc::new(reason)))
                    }
                },
            },
            Some(_) => (None, None),
        };
        let cpu = match forced {
            Some(Backend::Cpu(set)) => {
                let asked = Backend::Cpu(set);
                if !asked.is_present() {
                    let present = backends().into_iter().filter(|p| p.present);
                    let names: Vec<&str> = present.map(|p| p.backend.name()).collect();
                    return Err(EngineError::BackendAbsent { asked, present: names.join(", ") });
                }
                set
            }
            // Scalar kernels are present everywhere.
            Some(Backend::Cuda) | None => InstructionSet::ALL
                .into_iter()
                .find(|set| Backend::Cpu(*set).is_present())
                .unwrap_or(InstructionSet::Scalar),
        };
        let threads = match options.threads {
            Some(n) if n == 0 || n > MAX_THREADS => {
                return Err(EngineError::Threads { found: n, max: MAX_THREADS });
            }
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS)),
        };
        let pool = Pool::new(threads)?;
        let mut profile = detect::profile(threads);
        profile.gpu = gpu.as_ref().map(|gpu| *gpu.profile());
        log::debug!("CPU back end {}, {threads} threads", cpu.name());
        if let Some(gpu) = &gpu {
            log::debug!("GPU {}", gpu.info().name);
        }
        let fallback = options.fallback;
        let inner = Inner { cpu, profile, pool, gpu, fallback, absence };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// What computes.
    #[must_use]
    pub fn backend(&self) -> Backend {
        if self.inner.gpu.is_some() { Backend::Cuda } else { Backend::Cpu(self.inner.cpu) }
    }

    /// Instruction set of the CPU, which computes or stands by for the GPU.
    pub(crate) fn cpu(&self) -> InstructionSet {
        self.inner.cpu
    }

    /// Why a GPU that was asked for by name does not compute.
    #[must_use]
    pub fn absence(&self) -> Option<&Arc<DeviceError>> {
        self.inner.absence.as_ref()
    }

    /// What happens where the GPU fails.
    #[must_use]
    pub fn fallback(&self) -> Fallback {
        self.inner.fallback
    }

    /// What the GPU says of itself, if it computes.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceInfo> {
        self.inner.gpu.as_ref().map(|gpu| gpu.info())
    }

    /// The GPU kernels that plans have loaded so far.
    #[must_use]
    pub fn loaded_kernels(&self) -> Vec<LoadedKernel> {
        self.inner.gpu.as_ref().map(|gpu| gpu.loaded()).unwrap_or_default()
    }

    /// Loads every GPU kernel of this build, ahead of plans that need them. On the CPU there is nothing to load.
    ///
    /// # Errors
    /// A kernel that the driver refuses.
    pub fn load_kernels(&self) -> Result<(), DeviceError> {
        match &self.inner.gpu {
            Some(gpu) => gpu.load_all(),
            None => Ok(()),
        }
    }

    /// `len` zeros in memory that the GPU can use; with [`Fallback::Cpu`] in ordinary memory where there is no GPU,
    /// or none to be had.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn host_buffer<T: Element>(&self, len: usize) -> Result<HostBuffer<T>, DeviceError> {
        let pinned = match &self.inner.gpu {
            Some(gpu) => gpu.context().and_then(|context| HostBuffer::new(Some(&context), len)),
            None => HostBuffer::new(None, len),
        };
        match pinned {
            Err(e) if self.inner.gpu.is_some() && self.inner.fallback == Fallback::Cpu => {
                log::debug!("host memory is not page-locked: {e}");
                HostBuffer::new(None, len)
            }
            done => done,
        }
    }

    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.inner.gpu.as_ref()
    }

    /// Threads that compute, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.inner.pool.threads()
    }

    /// What the chooser knows of the device.
    #[must_use]
    pub fn profile(&self) -> &DeviceProfile {
        &self.inner.profile
    }

    /// Name of the CPU's attention kernel for any number of queries.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        registry::attention_for_any(self.inner.cpu)
            .unwrap_or(&elsa_kernels::scalar::attention::KERNEL)
            .spec
            .name
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }
}

/// Says once in a process that there is no GPU, which is no fault where none was asked for.
fn say_once(reason: &DeviceError) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| log::info!("no GPU: {reason}"));
}
