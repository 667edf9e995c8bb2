//! What can be refused, and what can fail.

use crate::engine::Backend;
use elsa_core::problem::ProblemError;
use std::sync::Arc;

/// Why a GPU cannot be used, or what it failed at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no driver.
    #[error("libcuda: not found; allowed: the library of an NVIDIA driver, where the system's loader looks")]
    NoLibrary,
    /// A driver that lacks a function.
    #[error("libcuda: no symbol {name}; allowed: a driver of CUDA 10.2 or newer")]
    Symbol {
        /// The function.
        name: &'static str,
    },
    /// A call of the driver that failed.
    #[error("{call}: CUDA error {code} ({name})")]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's code.
        code: u32,
        /// The driver's name for it.
        name: &'static str,
    },
    /// Memory that the driver does not give.
    #[error("{call}: CUDA error 2 (CUDA_ERROR_OUT_OF_MEMORY) for {bytes} bytes")]
    Memory {
        /// The function.
        call: &'static str,
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// Host memory that the system does not give.
    #[error("{bytes} bytes of memory were refused by the system")]
    HostMemory {
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// A device that is not there.
    #[error("device: {found}; allowed: less than {count}, which the driver finds")]
    Ordinal {
        /// Its number.
        found: usize,
        /// How many there are.
        count: usize,
    },
    /// A device that is too old.
    #[error("device: {device} of compute capability {major}.{minor}; allowed: 6.2 or newer")]
    TooOld {
        /// Its name.
        device: String,
        /// Its capability.
        major: u32,
        /// The minor part of it.
        minor: u32,
    },
    /// The caller's context was asked for, and the thread has none.
    #[error("context: none is current; allowed: a thread with a current context, or the primary context")]
    NoContext,
    /// A build without the kernel.
    #[error("kernel: this build has none for {role} on a GPU")]
    NoKernel {
        /// What for.
        role: &'static str,
    },
    /// A kernel that the driver refuses to load.
    #[error(
        "module {kernel}: {source} (PTX ISA {isa}, driver of CUDA {}.{}){}{log}",
        driver.0, driver.1, if log.is_empty() { "" } else { ": " }
    )]
    Module {
        /// Its name.
        kernel: &'static str,
        /// The version of the PTX instruction set that it is written in.
        isa: String,
        /// The CUDA version of the driver.
        driver: (u32, u32),
        /// What the driver's compiler says.
        log: String,
        /// The call that failed.
        source: Box<DeviceError>,
    },
    /// An error from which the driver does not recover has ended the context, and another one its successor.
    #[error("the device's context was lost to an earlier error")]
    Lost,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The problem or the options are not what a plan can be made for, or memory is short.
    #[error(transparent)]
    Refused(#[from] elsa_core::plan::PlanError),
    /// The GPU failed, and the policy is [`Fallback::Fail`](crate::Fallback::Fail).
    #[error("backend: cuda: {0}")]
    Device(Arc<DeviceError>),
    /// Memory of the caller's that is too short for a workspace.
    #[error("workspace: {found} bytes; allowed: at least {needed}, not null")]
    Room {
        /// Its bytes.
        found: usize,
        /// Bytes that the plan needs.
        needed: usize,
    },
    /// Memory of the caller's for a plan whose workspace lies on a device.
    #[error("workspace: memory of the host for a plan on a GPU; allowed: one that the plan allocates")]
    OnDevice,
}

impl From<DeviceError> for PlanError {
    fn from(e: DeviceError) -> PlanError {
        PlanError::Device(Arc::new(e))
    }
}

/// Why there is no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A back end that was asked for by name and is not on this machine or not in this build.
    #[error("backend: {asked} is absent; allowed here: {present}")]
    BackendAbsent {
        /// What was asked for.
        asked: Backend,
        /// Names of those that are present.
        present: String,
    },
    /// The GPU was asked for and cannot be used, and the policy is [`Fallback::Fail`](crate::Fallback::Fail).
    #[error("backend: cuda cannot be used: {reason}")]
    Device {
        /// Why.
        #[source]
        reason: DeviceError,
    },
    /// A name that is no back end's.
    #[error("backend: '{found}'; allowed: auto, scalar, neon, avx2, avx512, cuda")]
    BackendName {
        /// The name.
        found: String,
    },
    /// A number of threads that is not offered.
    #[error("threads: {found}; allowed: 1 to {max}")]
    Threads {
        /// The number.
        found: usize,
        /// The greatest.
        max: usize,
    },
    /// The system gave no thread.
    #[error("threads: the system started {started} of {wanted}: {reason}")]
    Spawn {
        /// Threads that run.
        started: usize,
        /// Threads that were asked for.
        wanted: usize,
        /// What the system said.
        reason: String,
    },
}

/// Why a plan does not take these tensors.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The data are not those of the problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The workspace is another plan's.
    #[error(
        "workspace: {found} bytes for {found_sequences} sequences; allowed: at least {needed} bytes and {sequences} sequences, as this plan's own has"
    )]
    Workspace {
        /// Its bytes.
        found: usize,
        /// Bytes that the plan needs.
        needed: usize,
        /// Sequences that it has room for.
        found_sequences: usize,
        /// Sequences of the plan.
        sequences: usize,
    },
    /// The workspace was made by a plan of another engine, or by one without a GPU.
    #[error("workspace: it has no room on this plan's device; allowed: one that this plan has made")]
    Foreign,
    /// States were asked for, and the room for them exceeds the budget.
    #[error("budget: {budget} bytes; allowed: at least {needed} where states are given")]
    Budget {
        /// Bytes that are needed.
        needed: usize,
        /// Bytes that are allowed.
        budget: usize,
    },
    /// Device tensors for a plan that computes on the CPU.
    #[error("backend: {found}; allowed: cuda, for tensors in device memory")]
    NotOnDevice {
        /// What computes.
        found: Backend,
    },
    /// An address that is not memory of the device.
    #[error(
        "{argument}: address {address:#x} is no memory of the plan's device and context; allowed: such memory"
    )]
    Address {
        /// The tensor.
        argument: &'static str,
        /// Its address.
        address: u64,
    },
    /// An address that is not aligned to an element.
    #[error("{argument}: address {address:#x}; allowed: a multiple of {alignment}")]
    Alignment {
        /// The tensor.
        argument: &'static str,
        /// Its address.
        address: u64,
        /// Bytes of an element.
        alignment: usize,
    },
    /// Device memory that is too short for its view.
    #[error("{argument}: {found} bytes to the end of its allocation; allowed: at least {needed}")]
    DeviceShort {
        /// The tensor.
        argument: &'static str,
        /// Bytes from its address to the end of the allocation.
        found: usize,
        /// Bytes of the view.
        needed: usize,
    },
    /// A stream of another context.
    #[error("stream: it belongs to another context; allowed: a stream of the plan's context")]
    Stream,
    /// The GPU failed, and nothing else may take its place.
    #[error("backend: cuda: {0}")]
    Device(#[from] DeviceError),
}

/// Why a run did not end well. The outputs are then not to be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A worker panicked, which is a defect of this library.
    #[error("a worker panicked; the outputs are incomplete")]
    Panicked,
    /// The GPU failed, and nothing else may take its place.
    #[error("backend: cuda: {0}")]
    Device(Arc<DeviceError>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_what_was_found_and_what_is_allowed() {
        let call =
            DeviceError::Call { call: "cuModuleLoadDataEx", code: 222, name: "CUDA_ERROR_UNSUPPORTED_PTX" };
        let module = DeviceError::Module {
            kernel: "merge_f32_s8__sm62",
            isa: "6.5".into(),
            driver: (10, 1),
            log: "line 1; unsupported version".into(),
            source: Box::new(call.clone()),
        };
        let text = module.to_string();
        for part in ["module merge", "cuModuleLoadDataEx", "222", "PTX ISA 6.5", "CUDA 10.1)", ": line 1"] {
            assert!(text.contains(part), "{text}");
        }
        let engine = EngineError::Device { reason: call.clone() }.to_string();
        assert!(
            engine.starts_with("backend: cuda cannot be used: cuModuleLoadDataEx: CUDA error 222"),
            "{engine}"
        );
        for e in [
            DeviceError::NoLibrary,
            DeviceError::Symbol { name: "cuInit" },
            DeviceError::Ordinal { found: 3, count: 1 },
            DeviceError::TooOld { device: "Nano".into(), major: 5, minor: 3 },
            DeviceError::NoContext,
        ] {
            assert!(e.to_string().contains("; allowed: "), "{e}");
        }
        let short = BindError::DeviceShort { argument: "k", found: 12, needed: 16 };
        assert_eq!(short.to_string(), "k: 12 bytes to the end of its allocation; allowed: at least 16");
        let address = BindError::Address { argument: "q", address: 0x1000 };
        assert!(address.to_string().starts_with("q: address 0x1000 is no memory"), "{address}");
        assert_eq!(RunError::Device(Arc::new(call.clone())).to_string(), format!("backend: cuda: {call}"));
    }
}
