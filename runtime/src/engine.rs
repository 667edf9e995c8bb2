//! The engine: a back end and its workers.

use crate::cpu::{detect, pool::Pool};
use crate::error::EngineError;
use crate::plan::{Plan, PlanOptions};
use elsa_core::plan::{InstructionSet, Options, PlanError, choose};
use elsa_core::problem::Problem;
use elsa_core::profile::DeviceProfile;
use elsa_kernels::kernel::Kernel;
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
        let kernel = registry::find(self.set()?)?;
        (kernel.present)().then_some(kernel)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// The back end.
    pub backend: Backend,
    /// Whether this build has it and this machine can execute it.
    pub present: bool,
    /// Its kernel, where it is present.
    pub kernel: Option<&'static str>,
}

/// Every back end, in order of preference.
#[must_use]
pub fn backends() -> Vec<Present> {
    Backend::ALL
        .into_iter()
        .map(|backend| {
            let kernel = backend.kernel();
            Present { backend, present: kernel.is_some(), kernel: kernel.map(|k| k.spec.name) }
        })
        .collect()
}

/// What is wished of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// The back end. `None` takes what the environment variable `ELSA_BACKEND` names (`auto` and nothing are
    /// the same), else the first that is present.
    pub backend: Option<Backend>,
    /// Threads that compute, the caller's included. `None` takes every core that the process may use.
    pub threads: Option<usize>,
}

/// A back end with its workers. Clones share them; calls from several threads take turns.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    backend: Backend,
    kernel: &'static Kernel,
    profile: DeviceProfile,
    pool: Pool,
}

impl Engine {
    /// Chooses the back end and starts the workers.
    ///
    /// # Errors
    /// A back end that is forced and absent, a name that is none, a number of threads out of bounds, a
    /// system that starts no thread.
    pub fn new(options: &EngineOptions) -> Result<Engine, EngineError> {
        let forced = match options.backend {
            Some(backend) => Some(backend),
            None => match std::env::var("ELSA_BACKEND") {
                Ok(name) if !name.is_empty() && name != "auto" => Some(name.parse()?),
                Err(std::env::VarError::NotUnicode(name)) => {
                    return Err(EngineError::BackendName { found: name.to_string_lossy().into_owned() });
                }
                _ => None,
            },
        };
        let found = match forced {
            Some(asked) => {
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
            None => Backend::ALL
                .into_iter()
                .find_map(|b| b.kernel().map(|k| (b, k)))
                .unwrap_or((Backend::Scalar, &elsa_kernels::scalar::KERNEL)),
        };
        let threads = match options.threads {
            Some(n) if n == 0 || n > MAX_THREADS => {
                return Err(EngineError::Threads { found: n, max: MAX_THREADS });
            }
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS)),
        };
        let (backend, kernel) = found;
        let pool = Pool::new(threads)?;
        log::debug!("backend {backend}, kernel {}, {threads} threads", kernel.spec.name);
        Ok(Engine { inner: Arc::new(Inner { backend, kernel, profile: detect::profile(threads), pool }) })
    }

    /// What computes.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.inner.backend
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

    /// Name of the micro-kernel.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.inner.kernel.spec.name
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// Decides everything that depends on the shape.
    ///
    /// # Errors
    /// Options that are not offered, and a budget that no form fits.
    pub fn plan(&self, problem: &Problem, options: &PlanOptions) -> Result<Plan, PlanError> {
        let options = Options {
            method: options.method,
            block: options.block,
            budget: options.budget,
            workers: self.threads(),
            all_workers: options.all_workers,
        };
        let candidates = || registry::of(self.inner.kernel.spec.set);
        let choice = choose(problem, self.profile(), candidates().map(|k| &k.spec), &options)?;
        let kernel = candidates().find(|k| k.spec.name == choice.kernel.name).ok_or(PlanError::NoKernel)?;
        Plan::new(self.clone(), kernel, *problem, choice)
    }
}
