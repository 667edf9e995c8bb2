//! Files of tasks: their names, and the request and the report of a merge.

use super::data::elsa_integers;
use super::numbers::*;
use std::ffi::c_char;

/// File for the states of a task. path and run are required. Texts end with a zero byte.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_task_file {
    /// sizeof(elsa_task_file). elsa_task_file_init sets it.
    pub size: usize,
    /// Path of the file, which ends with .npz. An existing file is replaced once the new one is complete.
    pub path: *const c_char,
    /// Name of the run, 1 to 256 printable characters of ASCII, for example the number of a frame. Only files with the same
    /// name merge, so files of different runs cannot be mixed.
    pub run: *const c_char,
    /// The key_lengths of the run that computed the states; absent if the problem has none.
    pub key_lengths: elsa_integers,
}

/// Files of all tasks of a division, and the answer to write. paths, and out or lse, are required; all other zeros select
/// the defaults. Texts end with a zero byte.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct elsa_task_files {
    /// sizeof(elsa_task_files). elsa_task_files_init sets it.
    pub size: usize,
    /// Paths of the files, [count], in any order. elsa_task_file_write or the tool, elsa run --task, has written them.
    pub paths: *const *const c_char,
    /// Number of paths.
    pub count: usize,
    /// Name that the run of the files must have. Null accepts any name, and files of a run without a name, whose checksums
    /// must agree instead.
    pub run: *const c_char,
    /// Path of the file for the output, which ends with .npy. Its elements have the type of the problem; bf16 is written as
    /// f32. Null for no output.
    pub out: *const c_char,
    /// Path of the file for the log-sum-exp of each row, f32 [batch, heads, queries], which ends with .npy. Null for none.
    pub lse: *const c_char,
    /// Maximum memory of the process during the merge, in bytes, including the memory that it uses when the call begins; 0
    /// for no limit. With a smaller budget, the rows of fewer queries are merged at a time, and the files are read more
    /// often. The bits of the answer do not depend on it.
    pub host_budget: usize,
    /// Order of axes of the output: ELSA_LAYOUT_BHND or ELSA_LAYOUT_BNHD.
    pub layout: elsa_layout,
    /// Must be zero.
    pub reserved: u32,
}

/// Report of a merge of files.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct elsa_task_merged {
    /// sizeof(elsa_task_merged). elsa_task_merged_init sets it.
    pub size: usize,
    /// Number of merged tasks.
    pub tasks: usize,
    /// Number of parts of the queries that were merged one after another.
    pub windows: usize,
    /// Bytes of states that were read.
    pub bytes_read: usize,
    /// Sizes of the output: batch, heads, queries, size of values.
    pub shape: [usize; 4],
    /// Element type of the problem: one of ELSA_DTYPE_*.
    pub dtype: elsa_dtype,
    /// Zero.
    pub reserved: u32,
}
