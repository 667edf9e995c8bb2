//! Tasks: their options, descriptions and reports.

use super::info::ELSA_REASON_BYTES;
use super::numbers::*;
use std::ffi::c_char;

/// Handle of a task. All zeros is the null handle. Copies refer to the same task.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct elsa_task {
    /// Opaque.
    pub id: u64,
}

/// Options of a task. chunks and number are required; all other zeros select the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_task_options {
    /// sizeof(elsa_task_options). elsa_task_options_init sets it.
    pub size: usize,
    /// Number of chunks at each level of the division, up to the first zero: 1, 3, or q * q + q + 1 for a prime power q of at
    /// most 32. {7} divides the tokens into 7 chunks and their pairs among 7 tasks, and {7, 3} each of these into 3.
    pub chunks: [usize; 12],
    /// Number of the task, less than the number of tasks, which is the product of chunks.
    pub number: u64,
    /// Number of queries of the complete problem; read only if gathered is set.
    pub queries: usize,
    /// Number of keys of the complete problem; read only if gathered is set.
    pub keys: usize,
    /// Non-zero if the tensors contain only the tokens of the task, in the order of elsa_task_tokens, as does each axis of a
    /// mask that is not shared. Otherwise they contain all tokens. key_lengths always refers to all tokens.
    pub gathered: u32,
    /// Must be zero.
    pub reserved: u32,
}

/// Description of a task.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_task_info {
    /// sizeof(elsa_task_info). elsa_task_info_init sets it.
    pub size: usize,
    /// Number of tasks of the division.
    pub tasks: u64,
    /// Number of queries of the task.
    pub queries: usize,
    /// Number of keys of the task.
    pub keys: usize,
    /// Number of queries of the complete problem.
    pub query_total: usize,
    /// Number of keys of the complete problem.
    pub key_total: usize,
    /// Number of pairs of a query and a key, in each head, that the task computes unless causality, a window or a length
    /// excludes them. The pairs of all tasks are those of the complete problem.
    pub pairs: u64,
    /// Bytes of the workspace, which belongs to the task.
    pub workspace_bytes: usize,
}

/// Report of the run of a task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_task_report {
    /// sizeof(elsa_task_report). elsa_task_report_init sets it.
    pub size: usize,
    /// Back end of the last call: one of ELSA_BACKEND_*; ELSA_BACKEND_AUTO if the task has no tokens.
    pub backend: elsa_backend,
    /// Non-zero if the CPU computed a call because a GPU could not.
    pub fallback: u32,
    /// Number of calls of kernels, each over a run of queries and a range of keys.
    pub calls: usize,
    /// Number of calls that were not made, because no row attends their keys.
    pub skipped: usize,
    /// Bytes of tensors copied between host and GPU.
    pub copied_bytes: usize,
    /// Name of the kernel; static, never freed. Empty if the task has no tokens.
    pub kernel: *const c_char,
    /// Reason of the first fallback, truncated if too long; empty without a fallback.
    pub reason: [c_char; ELSA_REASON_BYTES],
}
