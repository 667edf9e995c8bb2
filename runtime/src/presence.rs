//! Lists the available back ends. A back end is available if this build contains it and this machine can execute it.

use crate::backend::Backend;
use crate::cuda::gpu::{CudaOptions, Gpu};
use crate::error::DeviceError;
use elsa_kernels::attention::Kernel;
use elsa_kernels::registry;

impl Backend {
    /// Returns the back end's CPU kernel for any number of queries. Returns `None` if the back end is the GPU, if this
    /// build lacks the kernel, or if this machine cannot execute it.
    pub(crate) fn kernel(self) -> Option<&'static Kernel> {
        let Backend::Cpu(set) = self else { return None };
        registry::attention_for_any(set).filter(|kernel| kernel.is_present())
    }

    /// Returns whether this build contains the back end and this machine can execute it.
    #[must_use]
    pub fn is_present(self) -> bool {
        match self {
            Backend::Cuda => Gpu::probe(&CudaOptions::default()).is_ok(),
            Backend::Cpu(_) => self.kernel().is_some(),
        }
    }
}

/// A back end, and whether it is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// The back end.
    pub backend: Backend,
    /// `true` if this build contains the back end and this machine can execute it.
    pub present: bool,
    /// Name of the back end's kernel for any number of queries; `None` for the GPU, and for a back end that is not
    /// available.
    pub kernel: Option<&'static str>,
    /// Reason why the GPU is not available; `None` for an available GPU and for the CPU.
    pub absence: Option<DeviceError>,
}

/// Returns every back end, in order of preference. The GPU is the one that [`CudaOptions::default`] selects.
#[must_use]
pub fn backends() -> Vec<Present> {
    Backend::ALL
        .into_iter()
        .map(|backend| match backend {
            Backend::Cuda => {
                let absence = Gpu::probe(&CudaOptions::default()).err();
                Present { backend, present: absence.is_none(), kernel: None, absence }
            }
            Backend::Cpu(_) => {
                let kernel = backend.kernel();
                let name = kernel.map(|k| k.spec.name);
                Present { backend, present: kernel.is_some(), kernel: name, absence: None }
            }
        })
        .collect()
}
