//! The errors of the runtime.

use crate::backend::{Backend, UnknownBackend};
use elsa_core::argument::ArgumentError;
use elsa_core::plan::ChooseError;
use std::sync::Arc;

/// Error of a GPU that cannot be used or that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The driver library was not found.
    #[error("libcuda: not found; allowed: the library of an NVIDIA driver, where the system's loader looks")]
    NoLibrary,
    /// The driver is too old and lacks a function.
    #[error("libcuda: no symbol {name}; allowed: a driver of CUDA 10.2 or newer")]
    Symbol {
        /// Name of the driver function.
        name: &'static str,
    },
    /// A call to the driver failed.
    #[error("{call}: CUDA error {code} ({name})")]
    Call {
        /// Name of the driver function.
        call: &'static str,
        /// The driver's error code.
        code: u32,
        /// Name of the error code, as the driver reports it.
        name: &'static str,
    },
    /// The driver could not allocate memory.
    #[error("{call}: CUDA error 2 (CUDA_ERROR_OUT_OF_MEMORY) for {bytes} bytes")]
    Memory {
        /// Name of the driver function.
        call: &'static str,
        /// The requested number of bytes.
        bytes: usize,
    },
    /// The system could not allocate host memory.
    #[error("{bytes} bytes of memory were refused by the system")]
    HostMemory {
        /// The requested number of bytes.
        bytes: usize,
    },
    /// The requested device does not exist.
    #[error("device: {found}; allowed: less than {count}, which the driver finds")]
    Ordinal {
        /// The requested device number.
        found: usize,
        /// Number of devices that the driver finds.
        count: usize,
    },
    /// The compute capability of the device is too low.
    #[error("device: {device} of compute capability {major}.{minor}; allowed: 5.3 or newer")]
    TooOld {
        /// Name of the device.
        device: String,
        /// Major number of the device's compute capability.
        major: u32,
        /// Minor number of the device's compute capability.
        minor: u32,
    },
    /// The options request the CUDA context that is current on the calling thread, but this thread has no current
    /// context.
    #[error("context: none is current; allowed: a thread with a current context, or the primary context")]
    NoContext,
    /// This build lacks a GPU kernel.
    #[error("kernel: this build has none for {role} on a GPU")]
    NoKernel {
        /// The purpose of the missing kernel.
        role: &'static str,
    },
    /// The driver refused to load a kernel.
    #[error(
        "module {kernel}: {source} (PTX ISA {isa}, driver of CUDA {}.{}){}{log}",
        driver.0, driver.1, if log.is_empty() { "" } else { ": " }
    )]
    Module {
        /// Name of the kernel.
        kernel: &'static str,
        /// Version of the PTX instruction set that the kernel requires.
        isa: &'static str,
        /// CUDA version of the driver, `(major, minor)`.
        driver: (u32, u32),
        /// Log of the driver's compiler for PTX. The log may be empty.
        log: String,
        /// Error of the failed driver call.
        source: Box<DeviceError>,
    },
    /// The embedded PTX of a kernel differs from the PTX that was built.
    #[error("module {kernel}: its compressed PTX is damaged; allowed: the program as it was built")]
    Damaged {
        /// Name of the kernel.
        kernel: &'static str,
    },
    /// The process was forked from the process that initialised the driver. The driver does not work in a forked child.
    #[error(
        "process: a child, by fork, of the one that uses the GPU; allowed: that one, or a program that exec has started"
    )]
    Forked,
    /// The context was lost, and the workspace with it: the workspace was in the caller's device memory, or the caller
    /// has stated facts about tensors of the lost context.
    #[error(
        "workspace: its device memory was lost with the context; allowed: a new workspace in memory of a context that is not lost"
    )]
    LostWorkspace,
    /// A run in the workspace was captured in a CUDA graph, and this call would change lengths or replace memory that
    /// the graph uses.
    #[error(
        "workspace: a captured run reads its lengths and uses its memory; allowed: the lengths and outputs of that run, or another workspace"
    )]
    Captured,
    /// An unrecoverable error destroyed the context, and a second error destroyed the replacement context.
    #[error("the device's context was lost to an earlier error")]
    Lost,
}

/// Error from creating an engine, a plan or a workspace.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The value of an option is outside its allowed range, or the option cannot be combined with another option.
    #[error(transparent)]
    Option(#[from] ArgumentError),
    /// The problem or the options are not supported, or memory is not available.
    #[error(transparent)]
    Refused(#[from] ChooseError),
    /// The GPU failed, and the fallback policy is [`Fallback::Fail`](crate::Fallback::Fail).
    #[error("backend: cuda: {0}")]
    Device(Arc<DeviceError>),
    /// A streamed run does not support an option, or a feature of the problem.
    #[error("{option}: not in a streamed run; allowed: {allowed}")]
    NotStreamed {
        /// Name of the option or feature.
        option: &'static str,
        /// The values that a streamed run allows.
        allowed: &'static str,
    },
    /// The budget of a streamed run exceeds the memory that is available to the process. The machine, a control group
    /// or a limit of the process determines how much is available.
    #[error(
        "host_budget: {budget} bytes; allowed: at most {available}, which the system leaves this process"
    )]
    Beyond {
        /// The budget in bytes.
        budget: usize,
        /// Largest allowed budget in bytes. This is the sum of two amounts: the memory that the process needs in
        /// addition to the run's buffers, and the memory that is still available.
        available: u64,
    },
    /// The caller passed a null pointer as the memory for a workspace.
    #[error("memory: null, for {found} bytes; allowed: an address, and at least {needed} bytes")]
    Null {
        /// Size of the given memory in bytes.
        found: usize,
        /// Number of bytes that the plan needs.
        needed: usize,
    },
    /// The caller's memory for a workspace does not end within the address space.
    #[error(
        "memory: {found} bytes from {address:#x}; allowed: bytes that end within the address space, of which {needed} are used"
    )]
    Extent {
        /// Size of the given memory in bytes.
        found: usize,
        /// The given address.
        address: u64,
        /// Number of bytes that the plan needs.
        needed: usize,
    },
    /// The caller's memory is too short for a workspace.
    #[error("memory: {found} bytes; allowed: at least {needed}")]
    Room {
        /// Size of the memory in bytes.
        found: usize,
        /// Number of bytes that the plan needs.
        needed: usize,
    },
    /// The engine computes on a GPU, but the operator has no implementation for GPUs.
    #[error("backend: cuda has no {operator}; allowed: a back end of the CPU, or the fallback cpu")]
    NotOnGpu {
        /// Name of the operator.
        operator: &'static str,
    },
    /// A workspace was requested for an empty list of plans.
    #[error("plans: none; allowed: at least one")]
    NoPlan,
    /// A workspace was requested for plans that compute on different GPUs, or on GPUs of different engines.
    #[error("plans: on GPUs of different engines; allowed: plans of one engine")]
    OtherGpu,
    /// The caller supplied host memory for the workspace of a plan that computes on a GPU.
    #[error("workspace: memory of the host for a plan on a GPU; allowed: one that the plan allocates")]
    OnDevice,
    /// The caller supplied device memory for the workspace of a plan that computes on the CPU.
    #[error("workspace: memory of a device for a plan on {found}; allowed: a plan on cuda")]
    OnHost {
        /// The back end that computes.
        found: Backend,
    },
    /// The address of the caller's device memory is not a multiple of the required alignment.
    #[error("memory: address {address:#x}; allowed: a multiple of {alignment}")]
    Alignment {
        /// The given address.
        address: u64,
        /// The required alignment in bytes.
        alignment: usize,
    },
    /// The plan's device cannot use the memory at the address that the caller passed.
    #[error(
        "memory: address {address:#x} is no memory of the plan's device and context; allowed: such memory"
    )]
    Address {
        /// The given address.
        address: u64,
    },
    /// The caller's device memory extends beyond the allocation that contains its first byte.
    #[error(
        "memory: {found} bytes to the end of its allocation; allowed: at least the {given} that are given"
    )]
    DeviceShort {
        /// Number of bytes from the given address to the end of the allocation.
        found: usize,
        /// Size of the given memory in bytes.
        given: usize,
    },
    /// The requested back end is not available on this machine or in this build.
    #[error("{argument}: {asked} is absent; allowed here: {present}")]
    BackendAbsent {
        /// Name of the option `backend`, or of the environment variable that requested the back end.
        argument: &'static str,
        /// The requested back end.
        asked: Backend,
        /// Names of the available back ends.
        present: String,
    },
    /// A GPU was requested but cannot be used, and the fallback policy is [`Fallback::Fail`](crate::Fallback::Fail).
    #[error("backend: cuda cannot be used: {reason}")]
    Unusable {
        /// Reason why the GPU cannot be used.
        #[source]
        reason: DeviceError,
    },
    /// The value of the environment variable `ELSA_BACKEND` is not the name of a back end.
    #[error("ELSA_BACKEND: {}", .0.choice())]
    BackendName(#[from] UnknownBackend),
    /// The system could not start a thread.
    #[error("threads: the system started {started} of {wanted}: {reason}")]
    Spawn {
        /// Number of threads that were running when the system refused a thread, including the calling thread.
        started: usize,
        /// The requested number of threads.
        wanted: usize,
        /// The system's error message.
        reason: String,
    },
    /// The first part of the names of the worker threads has a forbidden length or character.
    #[error("thread_name: {found:?}; allowed: 1 to {max} printable ASCII characters other than spaces")]
    ThreadName {
        /// The requested first part.
        found: String,
        /// The largest number of characters.
        max: usize,
    },
    /// A core number exceeds the largest number that the system supports.
    #[error("cores: {found}; allowed: numbers below {max}")]
    CoreRange {
        /// The requested core.
        found: usize,
        /// The smallest core number that is not supported.
        max: usize,
    },
    /// The system does not allow a thread to run on the requested core.
    #[error("cores: {found}: {reason}; allowed: cores on which the system lets this process run")]
    Core {
        /// The requested core.
        found: usize,
        /// The system's error message.
        reason: String,
    },
    /// The system does not allow the requested priority for a thread.
    #[error(
        "priority: {found}: {reason}; allowed: at most the process's limit RLIMIT_RTPRIO (ulimit -r), or any with the capability CAP_SYS_NICE"
    )]
    Priority {
        /// The requested priority.
        found: u8,
        /// The system's error message.
        reason: String,
    },
    /// Cores or a priority were requested on a system where they cannot be set.
    #[error("{option}: given on a system other than Linux; allowed there: none")]
    Placement {
        /// Name of the option.
        option: &'static str,
    },
    /// A name, cores or a priority were requested for threads that the host program lends to the engine.
    #[error("{option}: given for threads that the host lends; allowed for them: none")]
    Lent {
        /// Name of the option.
        option: &'static str,
    },
    /// A tuned file cannot be read.
    #[error("cannot be read: {0}; allowed: a file that elsa tune has written")]
    TunedRead(String),
    /// The folder of the standard tuned file is unknown, because neither `XDG_CONFIG_HOME` nor `HOME` is set.
    #[error("no folder: neither XDG_CONFIG_HOME nor HOME is set; allowed: a file by name")]
    TunedNoFolder,
    /// A tuned file is invalid or truncated.
    #[error("not a tuned file: {0}; allowed: a file that elsa tune has written")]
    TunedFormat(String),
    /// A tuned file was measured on another device, or with another driver or library.
    #[error("measured with {what} {found:?}; allowed: {allowed:?}; elsa tune measures again")]
    TunedOther {
        /// The property that differs: the kind of device or a property of it, the driver or the library.
        what: &'static str,
        /// Value of the property in the file.
        found: String,
        /// Value of the property on this machine.
        allowed: String,
    },
    /// An entry of a tuned file is invalid, or has the same shape as an earlier entry.
    #[error("shape {number}: {kernel:?} in {splits} splits: {reason}; allowed: what elsa tune has written")]
    TunedEntry {
        /// Number of the entry in the file, counted from one.
        number: usize,
        /// Name of the kernel in the entry.
        kernel: String,
        /// Number of splits in the entry.
        splits: usize,
        /// Reason why the entry is invalid.
        reason: String,
    },
    /// The division into quorum tasks is invalid, or has no task with the requested number.
    #[error("task: {0}")]
    Task(#[source] ChooseError),
    /// The system could not allocate host memory for a quorum task or its results.
    #[error("task: {bytes} bytes of memory were refused by the system")]
    TaskMemory {
        /// The requested number of bytes.
        bytes: usize,
    },
}

impl From<DeviceError> for PlanError {
    fn from(e: DeviceError) -> PlanError {
        PlanError::Device(Arc::new(e))
    }
}

/// Error from binding the tensors of a call to a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The data do not match the problem.
    #[error(transparent)]
    Problem(#[from] ArgumentError),
    /// The workspace is smaller than the plan needs, because it was allocated for another plan.
    #[error("workspace: {found} bytes; allowed: at least {needed}, as this plan's own has")]
    Room {
        /// Size of the workspace in bytes.
        found: usize,
        /// Number of bytes that the plan needs.
        needed: usize,
    },
    /// The caller's device memory is too small for the partial states of a call that outputs states or has no output
    /// tensor.
    #[error("workspace: {found} bytes; allowed: at least {needed} where states are given, or no output")]
    StateRoom {
        /// Size of the caller's memory in bytes.
        found: usize,
        /// Size in bytes that the call needs.
        needed: usize,
    },
    /// The workspace belongs to a plan of another engine, or to a plan without a GPU.
    #[error("workspace: it has no room on this plan's device; allowed: one that this plan has made")]
    Foreign,
    /// The budget is too small for the partial states of a call that outputs states or has no output tensor.
    #[error("budget: {budget} bytes; allowed: at least {needed} where states are given, or no out")]
    Budget {
        /// Number of bytes that the call needs.
        needed: usize,
        /// The budget in bytes.
        budget: usize,
    },
    /// The tensors are in device memory, but the plan computes on the CPU.
    #[error("backend: {found}; allowed: cuda, for tensors in device memory")]
    NotOnDevice {
        /// The back end that computes.
        found: Backend,
    },
    /// The plan's device cannot use the memory at a tensor's address.
    #[error(
        "{argument}: address {address:#x} is no memory of the plan's device and context; allowed: such memory"
    )]
    Address {
        /// Name of the tensor.
        argument: &'static str,
        /// Address of the tensor.
        address: u64,
    },
    /// The address of a tensor is not a multiple of its element size.
    #[error("{argument}: address {address:#x}; allowed: a multiple of {alignment}")]
    Alignment {
        /// Name of the tensor.
        argument: &'static str,
        /// Address of the tensor.
        address: u64,
        /// The required alignment: the size of an element in bytes.
        alignment: usize,
    },
    /// The allocation that contains a tensor ends before the last byte of the tensor's view.
    #[error("{argument}: {found} bytes to the end of its allocation; allowed: at least {needed}")]
    DeviceShort {
        /// Name of the tensor.
        argument: &'static str,
        /// Number of bytes from the tensor's address to the end of the allocation.
        found: usize,
        /// Size of the view in bytes.
        needed: usize,
    },
    /// The CUDA stream belongs to a context that differs from the plan's context.
    #[error("stream: it belongs to another context; allowed: a stream of the plan's context")]
    Stream,
    /// The GPU failed, and there is no fallback.
    #[error("backend: cuda: {0}")]
    Device(#[from] DeviceError),
}

/// Error from a run, or from reading the certificate or the statistics of the last run. The outputs of a failed run are
/// incomplete and must not be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A worker panicked. This is a bug in this library.
    #[error("a worker panicked; the outputs are incomplete")]
    Panicked,
    /// [`Engine::cancel`](crate::Engine::cancel) ended the call.
    #[error("cancelled; the outputs are incomplete; the next call computes again")]
    Cancelled,
    /// The GPU failed, and there is no fallback.
    #[error("backend: cuda: {0}")]
    Device(Arc<DeviceError>),
    /// The system could not allocate host memory for the tensors of a warm-up.
    #[error(transparent)]
    Memory(DeviceError),
    /// The data do not match the problem of a quorum task, the workspace of a warm-up belongs to another plan, or the
    /// GPU failed and there is no fallback.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A function that plans, binds and runs in one call could not create the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The workspace contains no certificate. There are three possible reasons: there was no run, the last run failed,
    /// or the plan of the last run does not compute certificates.
    #[error(
        "certificate: no run of a plan that certifies; allowed: after a run of a plan with the option certify"
    )]
    NoRun,
    /// The workspace contains no statistics of a schedule. There are three possible reasons: there was no run, the last
    /// run failed, or the last run had the exact schedule.
    #[error(
        "schedule: no run with an error budget or a schedule other than exact; allowed: after a run of a plan with one"
    )]
    Exact,
}

impl From<ArgumentError> for RunError {
    fn from(e: ArgumentError) -> RunError {
        RunError::Bind(e.into())
    }
}

impl From<DeviceError> for RunError {
    fn from(e: DeviceError) -> RunError {
        RunError::Device(Arc::new(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_what_was_found_and_what_is_allowed() {
        let call =
            DeviceError::Call { call: "cuModuleLoadDataEx", code: 222, name: "CUDA_ERROR_UNSUPPORTED_PTX" };
        let module = DeviceError::Module {
            kernel: "merge_f32_s8__sm53",
            isa: "6.5",
            driver: (10, 1),
            log: "line 1; unsupported version".into(),
            source: Box::new(call.clone()),
        };
        let text = module.to_string();
        for part in ["module merge", "cuModuleLoadDataEx", "222", "PTX ISA 6.5", "CUDA 10.1)", ": line 1"] {
            assert!(text.contains(part), "{text}");
        }
        let engine = PlanError::Unusable { reason: call.clone() }.to_string();
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
            DeviceError::Damaged { kernel: "merge_f32_s8__sm53" },
            DeviceError::Forked,
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
