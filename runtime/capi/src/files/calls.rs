//! Files of the states of tasks, in the format of the tool `elsa`, and their merge.

use crate::attention::tensors::{lengths, state_buffers};
use crate::fault::{Fault, call};
use crate::growing::{Room, take};
use crate::pointer::{aligned, get};
use crate::task::calls::TASKS;
use crate::task::planned::on_large_stack;
use crate::types::*;
use elsa_core::attention::{Chunk, Lengths};
use elsa_core::dtype::DType;
use elsa_core::view::Layout;
use elsa_files::merge::{Answer, Budget, MergeError, Sought};
use elsa_files::task::{Description, Kind, MOST_NAME, Whole, is_name};
use elsa_files::{FileError, MemoryError, Output, Reads, Writer, reserved};
use elsa_runtime::{RowStates, fixed_memory};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::{ptr, slice};

/// Bytes of the stack on which files are read and written: several copies of the lists of a task's runs.
const STACK: usize = 4 << 20;

impl From<FileError> for Fault {
    fn from(e: FileError) -> Fault {
        let status = match &e {
            FileError::Memory(_) => ELSA_STATUS_MEMORY,
            e if e.is_request() => ELSA_STATUS_ARGUMENT,
            _ => ELSA_STATUS_DEVICE,
        };
        Fault::new(status, &e)
    }
}

impl From<MergeError> for Fault {
    fn from(e: MergeError) -> Fault {
        match e {
            MergeError::File(e) => e.into(),
            MergeError::Argument(e) => e.into(),
            MergeError::Plan(e) => e.into(),
            e @ MergeError::Budget { .. } => Fault::new(ELSA_STATUS_MEMORY, &e),
            e @ (MergeError::Run { .. } | MergeError::Content { .. }) => Fault::new(ELSA_STATUS_ARGUMENT, &e),
            MergeError::Missing { number: Some(number), tasks, .. } => Fault::argument(format_args!(
                "paths: {e}; run task number {number} of {tasks} and write its file"
            )),
            e => Fault::argument(format_args!("paths: {e}")),
        }
    }
}

/// Returns the bytes of a text; `None` if the pointer is null.
///
/// # Safety
/// For `'a`, the text is null, or readable up to its zero byte, and nothing writes to it.
unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller keeps the clause of this function.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Copies a path; `None` if the pointer is null.
///
/// # Safety
/// The caller keeps the clause of [`bytes`].
unsafe fn path(text: *const c_char) -> Option<PathBuf> {
    // SAFETY: the caller keeps the clause of this function.
    unsafe { bytes(text) }.map(|bytes| OsStr::from_bytes(bytes).into())
}

/// Copies the name of a run; `None` if the pointer is null.
///
/// # Safety
/// The caller keeps the clause of [`bytes`].
unsafe fn run_name(text: *const c_char) -> Result<Option<String>, Fault> {
    // SAFETY: the caller keeps the clause of this function.
    let Some(name) = (unsafe { bytes(text) }) else { return Ok(None) };
    match is_name(name) {
        true => Ok(Some(String::from_utf8_lossy(name).into_owned())),
        false => Err(Fault::argument(format_args!(
            "run: {:?}; allowed: 1 to {MOST_NAME} printable characters of ASCII",
            String::from_utf8_lossy(name)
        ))),
    }
}

/// Copies the array `argument` of states.
fn copied(argument: &'static str, from: &[f32]) -> Result<Vec<f32>, MergeError> {
    let mut to = reserved(from.len()).map_err(|bytes| MemoryError { argument, bytes })?;
    to.extend_from_slice(from);
    Ok(to)
}

/// Writes the states of a task's queries to a file, as elsa_task_run has computed them. The file describes the task, the
/// whole problem and the run, so that elsa_task_files_merge and the tool, elsa merge, can check what they merge. They may
/// run on another machine. The file appears once it is complete.
///
/// A thread of the library, named elsa-task, writes the file and ends before the call does. The call copies the states.
/// ELSA_STATUS_ARGUMENT reports a state that no run computes, and a path that cannot be written; ELSA_STATUS_DEVICE reports
/// a write that failed, for example on a full disk.
///
/// # Safety
/// The structs, the texts and the arrays of states are valid for reads, and nothing writes there during the call (*read*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_task_file_write(
    task: elsa_task,
    states: *const elsa_states_in,
    file: *const elsa_task_file,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clause *read*.
        let (states, file) = unsafe { (get("states", states)?, take("file", file)?) };
        // SAFETY: as above.
        let (target, run) = unsafe { (path(file.path), run_name(file.run)?) };
        let target = target.ok_or_else(|| Fault::null("path"))?;
        let run = run.ok_or_else(|| Fault::null("run"))?;
        let task = TASKS.get(task.id)?;
        let plan = task.lock()?;
        let (problem, totals) = (plan.problem(), plan.totals());
        let none = elsa_integers { data: ptr::null(), count: 0 };
        // SAFETY: the caller keeps the clause *read*.
        let lengths = unsafe { lengths(problem, [file.key_lengths, none, none]) }?;
        let [query_total, key_total] = totals;
        let chunk = Some(Chunk { query_total, key_total, ..Chunk::default() });
        Lengths { chunk, ..lengths }.check(problem)?;
        let given = [states.m, states.s, states.w].map(<*const f32>::cast_mut);
        let names = ["states.m", "states.s", "states.w"];
        let arrays = state_buffers(names, given, plan.rows(), problem.value_dim())?;
        // SAFETY: the arrays are readable (clause *read*), and `state_buffers` has sized them for f32.
        let [m, s, w]: [&[f32]; 3] = arrays.map(|array| unsafe { array.read() });
        let (division, name, of) = (&task.division, task.path, plan.task());
        on_large_stack(STACK, || -> Result<(), MergeError> {
            let mut writer = Writer::new(Reads::new(false));
            writer.add_archive("path", &target)?;
            let states =
                RowStates { m: copied(names[0], m)?, s: copied(names[1], s)?, w: copied(names[2], w)? };
            states.check()?;
            let whole = Whole::of(division, problem, totals, &lengths, Some(&run));
            let description = Description { kind: Kind::States, whole, path: name };
            let arrays = description.states_to_arrays(of, Default::default(), states);
            Ok(writer.commit(&[Output::Archive(arrays)])?)
        })
        .map(drop)
    })
}

/// Merges the files of all tasks of a division, and writes the answer to files. The answer has the bits that the tool, elsa
/// merge, writes, for any order of the files. The report may be null.
///
/// A thread of the library, named elsa-task, merges the files and ends before the call does. Outputs appear, or replace
/// files, once all of them are complete; an output cannot replace one of the files of tasks.
///
/// ELSA_STATUS_ARGUMENT reports a missing or repeated task, a file of another run, problem or division, a file that is
/// damaged or not that of a task's states, and a path that cannot be read or written. ELSA_STATUS_MEMORY reports a budget
/// that is too small, with the required bytes, and memory that the system refused. ELSA_STATUS_DEVICE reports a file that
/// changed during the call, and reads or writes that failed. The message names the file.
///
/// # Safety
/// The structs, the array of paths and the texts are valid for reads, and nothing writes there during the call (*read*).
/// merged is null or valid for writes, and nothing else uses it during the call (*write*).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_task_files_merge(
    files: *const elsa_task_files,
    merged: *mut elsa_task_merged,
) -> elsa_status {
    call(|| {
        // SAFETY: the caller keeps the clauses *read* and *write*.
        let (room, files) = unsafe { (Room::optional("merged", merged)?, take("files", files)?) };
        if files.reserved != 0 {
            return Err(Fault::argument(format_args!("reserved: {}; allowed: 0", files.reserved)));
        }
        let layout = match files.layout {
            ELSA_LAYOUT_BHND => Layout::Bhnd,
            ELSA_LAYOUT_BNHD => Layout::Bnhd,
            found => {
                return Err(Fault::argument(format_args!(
                    "layout: {found}; allowed: ELSA_LAYOUT_BHND or ELSA_LAYOUT_BNHD"
                )));
            }
        };
        // SAFETY: the caller keeps the clause *read*.
        let (run, out, lse) = unsafe { (run_name(files.run)?, path(files.out), path(files.lse)) };
        if out.is_none() && lse.is_none() {
            return Err(Fault::argument(format_args!("out, lse: both null; allowed: a path in one or both")));
        }
        // SAFETY: as above.
        let paths = unsafe { paths(&files) }?;
        let bytes = (files.host_budget != 0).then_some(files.host_budget);
        let budget = Budget { argument: "host_budget", bytes, fixed: fixed_memory(0) };
        let done = on_large_stack(STACK, || {
            let sought = Sought { layout, out: out.as_deref(), lse: lse.as_deref() };
            Answer::merge("paths", &paths, ("run", run.as_deref()), &sought, budget)
        })?;
        let [batch, heads, _, queries, _, _, dim] = done.whole.shape;
        let dtype = match done.whole.dtype() {
            DType::F32 => ELSA_DTYPE_F32,
            DType::F16 => ELSA_DTYPE_F16,
            DType::Bf16 => ELSA_DTYPE_BF16,
        };
        if let Some(room) = room {
            room.fill(elsa_task_merged {
                size: size_of::<elsa_task_merged>(),
                tasks: paths.len(),
                windows: done.windows,
                bytes_read: done.bytes,
                shape: [batch, heads, queries, dim],
                dtype,
                reserved: 0,
            });
        }
        Ok(())
    })
}

/// Copies the paths of the files.
///
/// # Safety
/// The caller keeps the clause *read* for the array of paths and its texts.
unsafe fn paths(files: &elsa_task_files) -> Result<Vec<PathBuf>, Fault> {
    if files.count == 0 {
        return Err(MergeError::Empty.into());
    }
    aligned("paths", files.paths)?;
    if files.count > isize::MAX as usize / size_of::<*const c_char>() {
        return Err(Fault::argument(format_args!("count: {}; allowed: the entries of paths", files.count)));
    }
    // SAFETY: the array is aligned, and readable for count texts (clause *read*).
    let texts = unsafe { slice::from_raw_parts(files.paths, files.count) };
    let mut paths =
        reserved(texts.len()).map_err(|bytes| MergeError::from(MemoryError { argument: "paths", bytes }))?;
    for (at, text) in texts.iter().enumerate() {
        // SAFETY: the caller keeps the clause of this function.
        paths.push(unsafe { path(*text) }.ok_or_else(|| Fault::null(&format!("paths[{at}]")))?);
    }
    Ok(paths)
}
