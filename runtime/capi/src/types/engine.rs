//! Handles, and the options of engines and plans.

use super::numbers::*;
use std::ffi::{c_char, c_void};

/// Handle of an engine. All zeros is the null handle. Copies refer to the same engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_engine {
    /// Opaque.
    pub id: u64,
}

/// Handle of a plan. All zeros is the null handle. Copies refer to the same plan.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_plan {
    /// Opaque.
    pub id: u64,
}

/// Handle of a workspace. All zeros is the null handle. Copies refer to the same workspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_workspace {
    /// Opaque.
    pub id: u64,
}

/// Handle of a bound call: tensors bound to a plan and a workspace. All zeros is the null handle. Copies refer to the
/// same bound call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_bound {
    /// Opaque.
    pub id: u64,
}

/// Task that computes one worker's share of the work. The host calls it once for each worker number below the count
/// passed to its hook. The task returns when the share is complete, and never unwinds.
pub type elsa_parallel_task = Option<unsafe extern "C" fn(context: *mut c_void, worker: usize)>;

/// Hook through which a host lends its own threads. It must call task(context, worker) once for each worker below
/// workers, on any threads and in any order, and return when all of these calls have returned. user is parallel_user of
/// the options. Several threads may call the hook at the same time, and it may be re-entered. context is a number and
/// is not dereferenced: a task that is called again, or after the hook has returned, does nothing.
pub type elsa_parallel_for = Option<
    unsafe extern "C" fn(user: *mut c_void, workers: usize, task: elsa_parallel_task, context: *mut c_void),
>;

/// Options of an engine. All zeros selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_engine_options {
    /// sizeof(elsa_engine_options). elsa_engine_options_init sets it.
    pub size: usize,
    /// One of ELSA_BACKEND_*.
    pub backend: elsa_backend,
    /// One of ELSA_FALLBACK_*.
    pub fallback: elsa_fallback,
    /// Number of computing threads, including the calling thread; 0 means one per core available to the process.
    pub threads: usize,
    /// Ordinal of the GPU, as numbered by the CUDA driver.
    pub cuda_device: usize,
    /// One of ELSA_CUDA_CONTEXT_*.
    pub cuda_context: elsa_cuda_context,
    /// Real-time priority of the worker threads (Linux only): 1 to 99 for SCHED_FIFO; 0 inherits the priority of the
    /// thread that creates the engine. A priority that the system does not permit (CAP_SYS_NICE, ulimit -r) returns
    /// ELSA_STATUS_UNSUPPORTED.
    pub priority: i32,
    /// Microseconds for which an idle worker thread, or a caller that waits for one, spins before it sleeps; 0 means
    /// the default of 200, a negative number means sleeping at once.
    pub spin_us: i64,
    /// Cores for the worker threads (Linux only): thread i, counted from one, is pinned to cores[(i - 1) %
    /// core_count]. The calling thread is thread zero and is not pinned. The list is read only during the call. A core
    /// on which the system does not let the process run returns ELSA_STATUS_ARGUMENT.
    pub cores: *const u32,
    /// Length of the list cores; 0 leaves placement to the system.
    pub core_count: usize,
    /// Hook that lends threads of the host, which replace the worker threads of the engine; null for no hook. With a
    /// hook, cores, priority and thread_name are rejected, and threads is the maximum number of workers of a call.
    pub parallel_for: elsa_parallel_for,
    /// First argument passed to parallel_for.
    pub parallel_user: *mut c_void,
    /// First part of the names of the worker threads, 1 to 10 printable ASCII characters other than spaces, with a
    /// terminating zero byte: thread i, counted from one, is called thread_name-i. Null means elsa. The text is read
    /// only during the call.
    pub thread_name: *const c_char,
}

/// Options of a plan. All zeros selects the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct elsa_plan_options {
    /// sizeof(elsa_plan_options). elsa_plan_options_init sets it.
    pub size: usize,
    /// One of ELSA_METHOD_*.
    pub method: elsa_method,
    /// Non-zero to let a GPU sum short chains of products of f16 inputs in f16: faster, less accurate, and NaN if such a
    /// sum leaves the range of f16. The bits of the results then also depend on whether keys and values are aligned to
    /// 16 bytes.
    pub half_scores: u32,
    /// Keys per block on the CPU: 64, 128 or 256; 0 means 64.
    pub block: usize,
    /// Maximum bytes of workspace; 0 means no limit. A plan that does not fit is rejected, and the message gives
    /// the required bytes.
    pub budget: usize,
    /// Non-zero to measure the tensors in each run, so that elsa_workspace_certified can bound the error of the last output.
    /// The output bits do not change.
    pub certify: u32,
    /// Largest share of a row's weights that a run may leave out, between 0 and 1; 0 means that every key counts. Blocks of
    /// keys are skipped while the sum of their weights stays within this share, and their values are not read. The output is
    /// the average of the values over the remaining keys, and the states are those of these keys; log-sum-exp covers all
    /// keys. elsa_workspace_left_out reports what was left out. Of elsa_certified, absolute includes the keys that were left
    /// out; bound and likely refer to the remaining keys. Not supported with ELSA_METHOD_MATH.
    pub error_budget: f32,
    /// One of ELSA_SCHEDULE_*. Other schedules than ELSA_SCHEDULE_EXACT are for research: a scalar implementation on the
    /// CPU computes them. elsa_workspace_left_out reports the keys left out. Not supported with ELSA_METHOD_MATH, and
    /// not for tasks.
    pub schedule: elsa_schedule,
    /// Non-zero to use zero as the reference of all rows of a tile if the norms of its queries and keys prove that every
    /// score stays near zero. Computed on the CPU. Not supported with a schedule that has a lambda.
    pub norm_gate: u32,
    /// Threshold of ELSA_SCHEDULE_VSA and ELSA_SCHEDULE_BLASST, between 0 and 1; 0 means 0.001. 0 for other schedules.
    pub lambda: f32,
    /// Excess of a score over the reference, in powers of two, above which the reference moves: 0 to 8. 0 means the
    /// default of the schedule: 8 for ELSA_SCHEDULE_EXACT, otherwise 0.
    pub rescale_threshold: f32,
    /// One of ELSA_TENSOR_CORES_*: use of a GPU's Tensor Cores. With ELSA_TENSOR_CORES_ALLOW a plan uses them where they are
    /// faster and as exact as f32 products; a guard decides for each block of rows of each head. The bits of the results then
    /// also depend on whether the rows of the tensors are aligned to four elements. Ignored on the CPU.
    pub tensor_cores: elsa_tensor_cores,
    /// Zero.
    pub reserved: u32,
}
