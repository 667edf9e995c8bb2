//! Handles, and the options of engines and plans.

use super::numbers::*;
use std::ffi::c_void;

/// A handle of an engine. All zeros names no engine. Copies name the same engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_engine {
    /// Opaque.
    pub id: u64,
}

/// A handle of a plan. All zeros names no plan. Copies name the same plan.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_plan {
    /// Opaque.
    pub id: u64,
}

/// A handle of a workspace. All zeros names no workspace. Copies name the same workspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_workspace {
    /// Opaque.
    pub id: u64,
}

/// A handle of a bound frame: a plan with the tensors of a frame. All zeros names no frame. Copies name the same frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_bound {
    /// Opaque.
    pub id: u64,
}

/// A share of the work: called once for every worker below the number that a host was asked for. It returns when that
/// share is done, and nothing unwinds out of it.
pub type elsa_parallel_task = Option<unsafe extern "C" fn(context: *mut c_void, worker: usize)>;

/// A hook through which a host lends its own threads: calls task(context, worker) once for every worker below workers,
/// on any threads and in any order, and returns when all of these calls have returned. user is parallel_user of the
/// options. Several threads may call it at once, also from within itself. context is a number and is not followed: a
/// task that is called again, or after the hook has returned, does nothing.
pub type elsa_parallel_for = Option<
    unsafe extern "C" fn(user: *mut c_void, workers: usize, task: elsa_parallel_task, context: *mut c_void),
>;

/// Options of an engine. All zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_engine_options {
    /// sizeof(elsa_engine_options). elsa_engine_options_init sets it.
    pub size: usize,
    /// One of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// One of ELSA_FALLBACK_*.
    pub fallback: elsa_fallback,
    /// Threads that compute, the caller's included; 0 is one for every core that the process may use.
    pub threads: usize,
    /// Ordinal of the GPU, as the driver counts.
    pub cuda_device: usize,
    /// One of ELSA_CUDA_CONTEXT_*.
    pub cuda_context: elsa_cuda_context,
    /// Real-time priority of the standing threads, on Linux: 1 to 99 of SCHED_FIFO; 0 is the priority of the thread that
    /// creates the engine. One that the system does not permit (CAP_SYS_NICE, ulimit -r) is ELSA_STATUS_UNSUPPORTED.
    pub priority: i32,
    /// Microseconds for which a standing thread, and a caller that waits for one, spins before it sleeps; 0 is the default
    /// of 200, and a negative number has it sleep at once.
    pub spin_us: i64,
    /// Cores for the standing threads, on Linux: thread i, counted from one, stays on cores[(i - 1) % core_count]. The
    /// caller is thread zero and stays where it is. The list is read during the call only. A core on which the system
    /// does not let the process run is ELSA_STATUS_ARGUMENT.
    pub cores: *const u32,
    /// Number of cores; 0 leaves the choice to the system.
    pub core_count: usize,
    /// Lends threads of the host's in place of standing ones; null for standing ones. cores and priority are then
    /// refused, and threads is the largest number of workers of a call.
    pub parallel_for: elsa_parallel_for,
    /// First argument of parallel_for.
    pub parallel_user: *mut c_void,
}

/// Options of a plan. All zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_plan_options {
    /// sizeof(elsa_plan_options). elsa_plan_options_init sets it.
    pub size: usize,
    /// One of ELSA_METHOD_*.
    pub method: elsa_method,
    /// Non-zero where a GPU may sum short chains of products of f16 inputs in f16: faster, less exact, and NaN where
    /// such a sum leaves the range of f16. Bits then also depend on whether keys and values lie at multiples of 16 bytes.
    pub half_scores: u32,
    /// Keys in a block of the CPU: 64, 128 or 256; 0 is 64.
    pub block: usize,
    /// Most bytes of workspace; 0 is no limit. A plan that does not fit is refused with the bytes that it needs.
    pub budget: usize,
    /// Non-zero where runs measure their tensors, so that elsa_workspace_certified says how wrong the answer of the last one
    /// may be. It changes no bit of the answer.
    pub certify: u32,
    /// Zero.
    pub reserved: u32,
}
