//! The engine: a back end and its workers.

use crate::cpu::{detect, pool::Pool};
use crate::cuda::memory::{Element, HostBuffer};
use crate::cuda::plan::GpuPlan;
use crate::cuda::{CudaOptions, DeviceInfo, Gpu, LoadedKernel};
use crate::error::{DeviceError, EngineError, PlanError};
use crate::plan::{CpuPlan, Plan, PlanOptions};
use elsa_core::attention::Problem;
use elsa_core::attention::plan::{GpuOptions, Method, Options, WorkspaceLayout, choose};
use elsa_core::profile::DeviceProfile;
use elsa_core::profile::InstructionSet;
use elsa_kernels::attention::Kernel;
use elsa_kernels::registry;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Most threads of an engine.
pub(crate) const MAX_THREADS: usize = 1024;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The CPU without vector instructions.
    Scalar,
    /// The CPU with ARMv8.0 Advanced SIMD.
    Neon,
    /// The CPU with AVX2, FMA and F16C.
    Avx2,
    /// The CPU with AVX-512 F and DQ.
    Avx512,
    /// An NVIDIA GPU.
    Cuda,
}

impl Backend {
    /// All of them.
    pub const ALL: [Backend; 5] =
        [Backend::Cuda, Backend::Avx512, Backend::Avx2, Backend::Neon, Backend::Scalar];

    const fn set(self) -> Option<InstructionSet> {
        match self {
            Backend::Scalar => Some(InstructionSet::Scalar),
            Backend::Neon => Some(InstructionSet::Neon),
            Backend::Avx2 => Some(InstructionSet::Avx2),
            Backend::Avx512 => Some(InstructionSet::Avx512),
            Backend::Cuda => None,
        }
    }

    fn kernel(self) -> Option<&'static Kernel> {
        let kernel = registry::attention_for_any(self.set()?)?;
        kernel.is_present().then_some(kernel)
    }

    /// Whether this build has it and this machine can execute it.
    #[must_use]
    pub fn is_present(self) -> bool {
        match self {
            Backend::Cuda => Gpu::probe(&CudaOptions::default()).is_ok(),
            _ => self.kernel().is_some(),
        }
    }

    /// `scalar`, `neon`, `avx2`, `avx512` or `cuda`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.set() {
            Some(set) => set.name(),
            None => "cuda",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = EngineError;

    fn from_str(s: &str) -> Result<Backend, EngineError> {
        Backend::ALL
            .into_iter()
            .find(|b| b.name() == s)
            .ok_or_else(|| EngineError::BackendName { found: s.to_owned() })
    }
}

/// A back end and whether it can be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The back end.
    pub backend: Backend,
    /// Whether this build has it and this machine can execute it.
    pub present: bool,
    /// Its kernel for any number of queries, where it is present and has but one.
    pub kernel: Option<&'static str>,
    /// Why the GPU is not present.
    pub absence: Option<DeviceError>,
}

/// Every back end, in order of preference. The GPU is that of [`CudaOptions::default`].
#[must_use]
pub fn backends() -> Vec<Present> {
    Backend::ALL
        .into_iter()
        .map(|backend| match backend {
            Backend::Cuda => {
                let absence = Gpu::probe(&CudaOptions::default()).err();
                Present { backend, present: absence.is_none(), kernel: None, absence }
            }
            _ => {
                let kernel = backend.kernel();
                let name = kernel.map(|k| k.spec.name);
                Present { backend, present: kernel.is_some(), kernel: name, absence: None }
            }
        })
        .collect()
}

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
    /// The CPU's back end: what computes, or what takes over.
    cpu: Backend,
    kernel: &'static Kernel,
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
            Err(EngineError::BackendName { found: name.to_string_lossy().into_owned() })
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
        let (cpu, kernel) = match forced {
            Some(asked) if asked != Backend::Cuda => {
                let kernel = asked.kernel().ok_or_else(|| EngineError::BackendAbsent {
                    asked,
                    present: backends()
                        .iter()
                        .filter(|p| p.present)
                        .map(|p| p.backend.name())
                        .collect::<Vec<_>>()
                        .join(", "),
                })?;
                (asked, kernel)
            }
            // The scalar kernel is present everywhere.
            _ => Backend::ALL
                .into_iter()
                .find_map(|b| b.kernel().map(|k| (b, k)))
                .unwrap_or((Backend::Scalar, &elsa_kernels::scalar::attention::KERNEL)),
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
        log::debug!("CPU back end {cpu}, kernel {}, {threads} threads", kernel.spec.name);
        if let Some(gpu) = &gpu {
            log::debug!("GPU {}", gpu.info().name);
        }
        let fallback = options.fallback;
        let inner = Inner { cpu, kernel, profile, pool, gpu, fallback, absence };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// What computes.
    #[must_use]
    pub fn backend(&self) -> Backend {
        if self.inner.gpu.is_some() { Backend::Cuda } else { self.inner.cpu }
    }

    /// The CPU's back end: what computes, or what takes over from the GPU.
    pub(crate) fn cpu(&self) -> Backend {
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

    /// Name of the CPU's micro-kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.inner.kernel.spec.name
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// Decides everything that depends on the shape. With [`Fallback::Cpu`] a plan for the GPU has one for the
    /// CPU beside it, and what the GPU does not take, the CPU does.
    ///
    /// # Errors
    /// Options that are not offered, a budget that no form fits, and with [`Fallback::Fail`] what the GPU does
    /// not take, and its failures.
    pub fn plan(&self, problem: &Problem, options: &PlanOptions) -> Result<Plan, PlanError> {
        let (mut gpu, mut refusal) = (None, self.inner.absence.clone().map(PlanError::Device));
        if let Some(device) = &self.inner.gpu {
            let planned = match options.method {
                Method::Elsa => GpuPlan::new(
                    device,
                    problem,
                    GpuOptions { budget: options.budget, half_scores: options.half_scores },
                ),
                Method::Math => Err(elsa_core::attention::plan::ChooseError::Math.into()),
            };
            match (planned, self.inner.fallback) {
                (Ok(plan), _) => gpu = Some(plan),
                (Err(e), Fallback::Fail) => return Err(e),
                (Err(e), Fallback::Cpu) => {
                    device.warn(&e);
                    refusal = Some(e);
                }
            }
        }
        let cpu = match (&gpu, self.inner.fallback) {
            (Some(_), Fallback::Fail) => None,
            _ => Some(self.cpu_plan(problem, options)?),
        };
        Ok(Plan::new(self.clone(), *problem, cpu, gpu, refusal.map(Arc::new)))
    }

    fn cpu_plan(&self, problem: &Problem, options: &PlanOptions) -> Result<CpuPlan, PlanError> {
        let options = Options {
            method: options.method,
            block: options.block,
            budget: options.budget,
            workers: self.threads(),
            all_workers: options.all_workers,
        };
        let candidates = || registry::attention_of(self.inner.kernel.spec.set);
        let choice = choose(problem, self.profile(), candidates().map(|k| &k.spec), &options)?;
        let kernel = candidates()
            .find(|k| k.spec.name == choice.kernel.name)
            .ok_or(elsa_core::attention::plan::ChooseError::NoKernel)?;
        let layout = WorkspaceLayout::of(&choice)
            .ok_or(elsa_core::attention::plan::ChooseError::Memory { needed: usize::MAX })?;
        Ok(CpuPlan { kernel, choice, layout })
    }
}

/// Says once in a process that there is no GPU, which is no fault where none was asked for.
fn say_once(reason: &DeviceError) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| log::info!("no GPU: {reason}"));
}
