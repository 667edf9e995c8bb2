//! The engine: a back end and its workers. The engine does not depend on any operator. Operators use the engine to
//! create their plans.

use crate::attention::tuned::{Measured, TunedFile, Tuning};
use crate::backend::{Backend, UnknownBackend};
use crate::cpu::host::{HostThreads, MAX_WORKERS};
use crate::cpu::place::Placement;
use crate::cpu::spin::Spin;
use crate::cpu::{detect, pool::Pool};
use crate::cuda::gpu::{CudaOptions, DeviceInfo, Gpu, LoadedKernel};
use crate::cuda::memory::{Element, HostBuffer};
use crate::error::{DeviceError, PlanError, RunError};
use crate::presence::backends;
use elsa_core::argument::ArgumentError;
use elsa_core::profile::{DeviceProfile, InstructionSet};
use elsa_core::setters;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Largest number of threads of an engine.
pub(crate) const MAX_THREADS: usize = MAX_WORKERS;

/// Behaviour if a GPU was requested but cannot compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// The CPU computes instead, and the report of the run states why.
    #[default]
    Cpu,
    /// The caller receives the error.
    Fail,
}

/// Options of an engine.
///
/// ```
/// # use elsa_runtime::{Backend, EngineOptions, Fallback};
/// let options = EngineOptions::default().backend(Backend::Cuda).threads(4).fallback(Fallback::Fail);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The back end. `None` uses the back end that the environment variable `ELSA_BACKEND` names. If the variable is
    /// unset, empty or `auto`, `None` uses the first available back end.
    pub backend: Option<Backend>,
    /// Number of compute threads, including the caller's. `None` uses every core available to the process. If the host
    /// lends threads, this is the maximum number of workers per call.
    pub threads: Option<usize>,
    /// Time for which idle workers, and callers that wait for workers, spin before they sleep.
    pub spin: Spin,
    /// The first part of the names of the worker threads, 1 to 10 printable ASCII characters other than spaces: thread
    /// `i`, counted from one, is called `name-i`. `None` uses `elsa`. The names appear in `ps`, `top` and debuggers.
    pub thread_name: Option<String>,
    /// The cores of the worker threads, on Linux: thread `i`, counted from one, runs on core `(i − 1) mod n` of the
    /// list. If the list is empty, the system chooses the cores. The caller's thread is never pinned.
    pub cores: Vec<usize>,
    /// The real-time priority (`SCHED_FIFO`) of the worker threads, on Linux. `None` inherits the policy of the
    /// thread that creates the engine. The caller's thread keeps its priority.
    pub priority: Option<u8>,
    /// Threads that the host lends. If they are given, the engine has no worker threads.
    pub host: Option<HostThreads>,
    /// Behaviour if the GPU is missing or fails.
    pub fallback: Fallback,
    /// Options that select the GPU and its context.
    pub cuda: CudaOptions,
    /// The tuned file, which contains the decisions that were the fastest in measurements on this GPU or this CPU. If
    /// the file is not valid for the device that computes, a warning is logged and the file is ignored. The CPU does
    /// not use a tuned file when it stands by for a GPU.
    pub tuned: Tuning,
}

setters! {
    EngineOptions:
    spin: Spin, cores: Vec<usize>, fallback: Fallback, cuda: CudaOptions, tuned: Tuning;
    optional backend: Backend, threads: usize, thread_name: String, priority: u8, host: HostThreads,
}

/// A back end with its workers. Clones share the back end and the workers. Calls from several threads run concurrently,
/// with one exception: calls that need several worker threads of the CPU take turns.
/// [`Report::workers`](crate::Report::workers) is the number of workers that a call needs.
///
/// In a child of `fork`, an engine of the parent computes on the CPU, and only on the calling thread. The results have
/// the same bits as on the parent's CPU. With [`Fallback::Fail`], calls of a plan for a GPU return
/// [`DeviceError::Forked`]. An engine that the child creates has its own threads, but no GPU if the parent has used
/// one. The child must not use page-locked memory of the parent ([`Engine::host_buffer`]). While one thread of the
/// parent forks, no other thread may create or drop engines, plans or workspaces.
///
/// Messages of the `log` crate are written while no lock is held, so a log sink may use the engine.
///
/// ```
/// # use elsa_runtime::{Engine, EngineOptions};
/// let engine = Engine::new(&EngineOptions::default())?;
/// println!("{} on {} threads", engine.backend(), engine.threads());
/// # Ok::<(), elsa_runtime::PlanError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Instruction set that the CPU uses, both when the CPU computes and when it stands by for the GPU.
    cpu: InstructionSet,
    profile: DeviceProfile,
    pool: Pool,
    gpu: Option<Arc<Gpu>>,
    /// The tuned file that the options select.
    tuned: Option<TunedFile>,
    fallback: Fallback,
    /// Reason why a GPU that was requested does not compute; `None` if it computes or if no GPU was requested.
    absence: Option<Arc<DeviceError>>,
}

/// Environment variable that requests a back end.
const VARIABLE: &str = "ELSA_BACKEND";

/// Returns the back end that the options or the environment request.
fn requested(options: &EngineOptions) -> Result<Option<Backend>, PlanError> {
    if options.backend.is_some() {
        return Ok(options.backend);
    }
    match std::env::var(VARIABLE) {
        Ok(name) if !name.is_empty() && name != "auto" => Ok(Some(name.parse()?)),
        Err(std::env::VarError::NotUnicode(name)) => {
            Err(UnknownBackend { found: name.to_string_lossy().into_owned() }.into())
        }
        _ => Ok(None),
    }
}

impl Engine {
    /// Selects the back end and starts the workers.
    ///
    /// If a GPU is requested by name and cannot be used, the result is an error with [`Fallback::Fail`]. With
    /// [`Fallback::Cpu`] the CPU computes instead; a warning is logged once, and every report states the reason.
    ///
    /// # Errors
    /// Returns an error if a requested back end is unknown or absent, or if the number of threads is out of bounds.
    /// Also returns an error if the name of threads, the cores or the priority are out of range, not permitted, or given
    /// although the host lends its threads. Also returns an error if the system cannot start a thread; threads that were already started
    /// have then ended.
    pub fn new(options: &EngineOptions) -> Result<Engine, PlanError> {
        let requested = requested(options)?;
        let (gpu, absence) = match requested {
            Some(Backend::Cuda) | None => match Gpu::open(&options.cuda) {
                Ok(gpu) => (Some(Arc::new(gpu)), None),
                Err(reason) => match (requested, options.fallback) {
                    (None, _) => {
                        log_absence_once(&reason);
                        (None, None)
                    }
                    (Some(_), Fallback::Fail) => return Err(PlanError::Unusable { reason }),
                    (Some(_), Fallback::Cpu) => {
                        log::warn!("the CPU computes: {reason}");
                        (None, Some(Arc::new(reason)))
                    }
                },
            },
            Some(_) => (None, None),
        };
        let cpu = match requested {
            Some(Backend::Cpu(set)) => {
                let asked = Backend::Cpu(set);
                if !asked.is_present() {
                    let present = backends().into_iter().filter(|p| p.present);
                    let names: Vec<&str> = present.map(|p| p.backend.name()).collect();
                    let argument = if options.backend.is_some() { "backend" } else { VARIABLE };
                    return Err(PlanError::BackendAbsent { argument, asked, present: names.join(", ") });
                }
                set
            }
            // Scalar kernels are available everywhere.
            Some(Backend::Cuda) | None => InstructionSet::ALL
                .into_iter()
                .find(|set| Backend::Cpu(*set).is_present())
                .unwrap_or(InstructionSet::Scalar),
        };
        let threads = match options.threads {
            Some(n) if n == 0 || n > MAX_THREADS => {
                let (argument, found, max) = ("threads", n, MAX_THREADS);
                return Err(ArgumentError::Count { argument, found, min: 1, max }.into());
            }
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS)),
        };
        let placement = Placement::new(options.thread_name.as_deref(), &options.cores, options.priority)?;
        let pool = match (&options.host, placement.option()) {
            (Some(_), Some(option)) => return Err(PlanError::Lent { option }),
            (Some(host), None) => Pool::lent(threads, options.spin, host.clone()),
            (None, _) => Pool::standing(threads, options.spin, &placement)?,
        };
        let mut profile = detect::profile(threads);
        profile.gpu = gpu.as_ref().map(|gpu| *gpu.profile());
        log::debug!("CPU back end {}, {threads} threads", cpu.name());
        if let Some(gpu) = &gpu {
            log::debug!("GPU {}", gpu.info().name);
        }
        let fallback = options.fallback;
        let measured =
            gpu.as_ref().map_or_else(|| Measured::cpu(cpu, &profile), |gpu| Measured::gpu(gpu.info()));
        let tuned = if cfg!(feature = "tuned") { options.tuned.open(&measured) } else { None };
        let inner = Inner { cpu, profile, pool, gpu, tuned, fallback, absence };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// Returns the back end that computes.
    #[must_use]
    pub fn backend(&self) -> Backend {
        if self.inner.gpu.is_some() { Backend::Cuda } else { Backend::Cpu(self.inner.cpu) }
    }

    /// Returns the instruction set that the CPU uses, both when the CPU computes and when it stands by for the GPU.
    #[must_use]
    pub fn cpu(&self) -> InstructionSet {
        self.inner.cpu
    }

    /// Returns why a GPU that was requested by name does not compute. Returns `None` if the GPU computes, or if no GPU
    /// was requested.
    #[must_use]
    pub fn absence(&self) -> Option<&Arc<DeviceError>> {
        self.inner.absence.as_ref()
    }

    /// Returns the behaviour if the GPU fails.
    #[must_use]
    pub fn fallback(&self) -> Fallback {
        self.inner.fallback
    }

    /// Returns the properties of the GPU; `None` if no GPU computes.
    #[must_use]
    pub fn device(&self) -> Option<&DeviceInfo> {
        self.inner.gpu.as_ref().map(|gpu| gpu.info())
    }

    /// Returns the number of free bytes in the GPU's memory; `None` if no GPU computes. All processes share this
    /// memory. For an integrated GPU, the result is the free memory of the system.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn free_device_memory(&self) -> Result<Option<usize>, DeviceError> {
        let free = |gpu: &Arc<Gpu>| gpu.context()?.enter()?.free_memory();
        self.inner.gpu.as_ref().map(free).transpose()
    }

    /// Returns the tuned file that the options select. The result contains either the contents of the file, or the
    /// reason why they are not used. Returns `None` if no file was requested.
    #[must_use]
    pub fn tuned(&self) -> Option<&TunedFile> {
        self.inner.tuned.as_ref()
    }

    /// Lists the GPU kernels loaded so far. The list is empty if no GPU computes.
    #[must_use]
    pub fn loaded_kernels(&self) -> Vec<LoadedKernel> {
        self.inner.gpu.as_ref().map(|gpu| gpu.loaded()).unwrap_or_default()
    }

    /// Loads every GPU kernel of this build now, so that plans need not load them later. Does nothing if no GPU
    /// computes.
    ///
    /// # Errors
    /// Returns an error if the driver refuses a kernel.
    pub fn load_kernels(&self) -> Result<(), DeviceError> {
        match &self.inner.gpu {
            Some(gpu) => gpu.load_all(),
            None => Ok(()),
        }
    }

    /// Allocates `len` zeros in page-locked host memory that the GPU can use, on a 64-byte boundary. Uses ordinary
    /// memory if there is no GPU, or if page-locked memory is not available and the policy is [`Fallback::Cpu`].
    ///
    /// # Errors
    /// Returns an error if the memory is not available.
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

    /// Returns the number of compute threads, including the caller's.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.inner.pool.threads()
    }

    /// Returns the description of the device that the chooser uses.
    #[must_use]
    pub fn profile(&self) -> &DeviceProfile {
        &self.inner.profile
    }

    /// Cancels every call in progress on this engine and its clones. Each of these calls returns
    /// [`RunError::Cancelled`](crate::RunError::Cancelled). The CPU does not compute in place of a cancelled call,
    /// whichever [`Fallback`] the engine has. Later calls are not affected: a cancel between two calls does nothing.
    /// Any thread may call this function. It does not wait.
    ///
    /// On the CPU, a cancelled call returns when its workers have finished their current block of keys or chunk of
    /// tokens. The workers start no further task. On a GPU, the call returns when the kernels and copies that it has
    /// enqueued are finished; a streamed run enqueues no further part. Runs on device tensors are not cancelled,
    /// because they return without waiting. If a source or a sink of a streamed run is being called, the source or sink
    /// returns before the run does.
    ///
    /// The outputs of a cancelled call may contain any mixture of old and new elements; nothing else was written. The
    /// plan, its bound calls and the workspace remain usable.
    pub fn cancel(&self) {
        self.inner.pool.cancel();
    }

    /// Calls `task(worker, item)` once for every item below `items`, on the workers of the CPU, and waits for all
    /// calls. A worker takes one item at a time. Workers are numbered from zero, below [`Engine::threads`]. The calls
    /// compute in the default floating-point environment.
    ///
    /// ```
    /// # use elsa_runtime::{Engine, EngineOptions};
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// let (engine, sum) = (Engine::new(&EngineOptions::default())?, AtomicUsize::new(0));
    /// engine.divide(10, &|_worker, item| {
    ///     sum.fetch_add(item, Ordering::Relaxed);
    /// })?;
    /// assert_eq!(sum.into_inner(), 45);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a call of `task` panicked, or if [`Engine::cancel`] was called.
    pub fn divide(&self, items: usize, task: &(dyn Fn(usize, usize) + Sync)) -> Result<(), RunError> {
        let pool = self.pool();
        pool.begin().divide(pool.threads(), items, task)
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }
}

/// Logs once per process why no GPU is used. The log level is info, because no GPU was requested. The function holds no
/// lock while it logs, because a log sink may create an engine.
fn log_absence_once(reason: &DeviceError) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        log::info!("no GPU: {reason}");
    }
}
