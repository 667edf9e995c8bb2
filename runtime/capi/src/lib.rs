//! The C ABI: `elsa.h` is generated from this crate, `elsa.hpp` wraps it.
//!
//! Every function takes what it reads first and what it writes last, writes only when it succeeds (a run that fails on
//! a device may leave outputs incomplete), and returns a status. No panic leaves it. Pointers are checked for null,
//! alignment, size and overlap; that the memory is there is the caller's word.
//!
//! The clauses that unsafe blocks cite:
//! - *read*: a pointer to a struct or an array that is read is null or valid for reads, and nobody writes there
//!   during the call.
//! - *write*: a pointer to what is written is null or valid for writes, and nobody else uses it during the call.
//! - *tensors*: memory named in `elsa_inputs` and `elsa_outputs` is as those structs say, and keeps to *read* and
//!   *write*, until the run is done.

// Comments are those of elsa.h, plain text: [rows] is a shape and no link.
#![allow(rustdoc::broken_intra_doc_links)]

mod convert;
mod fault;
mod handles;
mod log;
mod state;
mod types;

pub use types::*;

use elsa_core::attention::Problem;
use elsa_core::view::View;
use elsa_runtime::{Backend, Engine, Fallback, Plan, RawStream, Report, Workspace};
use fault::{Fault, Text, call};
use handles::Table;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

static ENGINES: Table<Engine> = Table::new("engine");
static PLANS: Table<Plan> = Table::new("plan");
static WORKSPACES: Table<Mutex<Workspace>> = Table::new("workspace");
static BOUNDS: Table<Frame> = Table::new("bound");

/// A plan with the tensors of a frame.
#[derive(Debug)]
struct Frame {
    plan: Arc<Plan>,
    workspace: Arc<Mutex<Workspace>>,
    inputs: elsa_inputs,
    outputs: elsa_outputs,
}

// SAFETY: *tensors* of elsa_bind: whichever thread runs it, the memory is there and nobody else uses it.
unsafe impl Send for Frame {}
// SAFETY: as above; a run holds the lock of the workspace.
unsafe impl Sync for Frame {}

/// # Safety
/// *read*.
unsafe fn get<'a, T>(argument: &str, pointer: *const T) -> Result<&'a T, Fault> {
    aligned(argument, pointer)?;
    // SAFETY: not null and aligned; *read*.
    Ok(unsafe { &*pointer })
}

fn aligned<T>(argument: &str, pointer: *const T) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::null(argument));
    }
    if !pointer.is_aligned() {
        let (found, size) = (pointer as usize, align_of::<T>());
        return Err(Fault::argument(format_args!(
            "{argument}: address {found:#x}; allowed: a multiple of {size}"
        )));
    }
    Ok(())
}

/// # Safety
/// *write*, and `pointer` has passed [`aligned`].
unsafe fn put<T>(pointer: *mut T, value: T) {
    // SAFETY: the clause of this function.
    unsafe { pointer.write(value) }
}

fn lock(workspace: &Mutex<Workspace>) -> Result<MutexGuard<'_, Workspace>, Fault> {
    match workspace.try_lock() {
        Ok(guard) => Ok(guard),
        // What a run leaves behind is overwritten by the next.
        Err(TryLockError::Poisoned(guard)) => Ok(PoisonError::into_inner(guard)),
        Err(TryLockError::WouldBlock) => Err(Fault::new(
            ELSA_STATUS_BUSY,
            &"workspace: at work in another call; allowed: one call at a time",
        )),
    }
}

/// A name with an end, in memory that is never freed.
fn name(kernel: &'static str) -> *const c_char {
    static NAMES: Mutex<Vec<(&'static str, &'static std::ffi::CStr)>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, text)) = names.iter().find(|(name, _)| *name == kernel) {
        return text.as_ptr();
    }
    match std::ffi::CString::new(kernel) {
        Ok(text) => {
            let text: &'static std::ffi::CStr = Box::leak(text.into_boxed_c_str());
            names.push((kernel, text));
            text.as_ptr()
        }
        Err(_) => c"".as_ptr(),
    }
}

fn report_of(plan: &Plan, report: &Report) -> elsa_report {
    let reason = report.fallback.as_ref().map_or_else(Text::new, |reason| Text::of(reason));
    elsa_report {
        backend: convert::backend_number(report.backend),
        fallback: u32::from(report.fallback.is_some()),
        workers: report.workers,
        kernel: name(plan.kernel_of(report.backend)),
        reason: reason.chars(),
    }
}

/// # Safety
/// *tensors*.
unsafe fn run(
    plan: &Plan,
    workspace: &Mutex<Workspace>,
    inputs: &elsa_inputs,
    outputs: &elsa_outputs,
) -> Result<elsa_report, Fault> {
    let mut workspace = lock(workspace)?;
    // SAFETY: *tensors*.
    let (inputs, outputs) = unsafe { convert::host(plan.problem(), inputs, outputs) }?;
    let report = plan.bind(inputs, outputs, &mut workspace)?.run()?;
    Ok(report_of(plan, &report))
}

/// # Safety
/// *write*; null is allowed.
unsafe fn tell(report: *mut elsa_report, value: elsa_report) {
    if !report.is_null() {
        // SAFETY: *write*, and aligned as `optional` has found.
        unsafe { put(report, value) };
    }
}

fn optional<T>(argument: &str, pointer: *const T) -> Result<(), Fault> {
    if pointer.is_null() { Ok(()) } else { aligned(argument, pointer) }
}

/// The version of the library, "major.minor.patch", in memory that is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The message of the last call of this thread that did not return ELSA_STATUS_OK; empty where there was none. It is
/// valid until the next such call of this thread, or the thread's end. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_last_error() -> *const c_char {
    fault::last()
}

/// Whether this build has a back end and this machine can execute it: writes 1 or 0 to present.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_backend_present(backend: elsa_backend, present: *mut u32) -> elsa_status {
    call(|| {
        aligned("present", present)?;
        let yes = convert::backend(backend)?.is_none_or(Backend::is_present);
        // SAFETY: *write*.
        unsafe { put(present, u32::from(yes)) };
        Ok(())
    })
}

/// Has messages of the library, up to the importance level, sent to callback, with user as its first argument. A null
/// callback ends that; once this has returned, the old callback is not at work. One for the process.
///
/// # Safety
/// - *callback*: it can be called as elsa_log_callback says, from any thread, until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_log_set(
    level: elsa_log_level,
    callback: elsa_log_callback,
    user: *mut c_void,
) -> elsa_status {
    // SAFETY: the clauses of this function.
    call(|| unsafe { log::set(level, callback, user) })
}

/// Writes the defaults: what ELSA_BACKEND names or the first back end, fallback to the CPU, every core.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_options_init(options: *mut elsa_engine_options) -> elsa_status {
    call(|| {
        aligned("options", options)?;
        // SAFETY: *write*.
        unsafe { put(options, elsa_engine_options::default()) };
        Ok(())
    })
}

/// Writes the defaults: method elsa, blocks of 64 keys, no limit of workspace.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_options_init(options: *mut elsa_plan_options) -> elsa_status {
    call(|| {
        aligned("options", options)?;
        // SAFETY: *write*.
        unsafe { put(options, default_plan_options()) };
        Ok(())
    })
}

fn default_plan_options() -> elsa_plan_options {
    elsa_plan_options { block: elsa_runtime::PlanOptions::default().block, ..elsa_plan_options::default() }
}

/// Writes plain attention over f32: no past, no masks, the default scale. Its views are empty.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_problem_init(problem: *mut elsa_problem) -> elsa_status {
    call(|| {
        aligned("problem", problem)?;
        // SAFETY: *write*.
        unsafe {
            put(problem, elsa_problem { window_left: -1, window_right: -1, ..elsa_problem::default() })
        };
        Ok(())
    })
}

/// Writes the view of a tensor in one of the layouts ELSA_LAYOUT_*.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_view_init(
    layout: elsa_layout,
    batch: usize,
    heads: usize,
    tokens: usize,
    dim: usize,
    view: *mut elsa_view,
) -> elsa_status {
    use elsa_core::view::Layout;
    call(|| {
        aligned("view", view)?;
        let v = match layout {
            ELSA_LAYOUT_BHND => View::dense("view", Layout::Bhnd, &[batch, heads, tokens, dim], None)?,
            ELSA_LAYOUT_BNHD => View::dense("view", Layout::Bnhd, &[batch, tokens, heads, dim], None)?,
            ELSA_LAYOUT_QKV => {
                let dense = View::dense("view", Layout::Bnhd, &[batch, tokens, heads, dim], None)?;
                let [b, h, n, d] = dense.strides().map(|s| s.saturating_mul(3));
                View::new("view", dense.shape(), [b, h / 3, n, d / 3])?
            }
            found => {
                return Err(Fault::argument(format_args!("layout: {found}; allowed: one of ELSA_LAYOUT_*")));
            }
        };
        // SAFETY: *write*.
        unsafe { put(view, elsa_view { shape: v.shape(), strides: v.strides() }) };
        Ok(())
    })
}

/// Makes an engine: a back end with its workers. Null options are the defaults.
///
/// Any number of threads may use it. On the CPU they take turns.
///
/// # Safety
/// *read*, *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_create(
    options: *const elsa_engine_options,
    engine: *mut elsa_engine,
) -> elsa_status {
    call(|| {
        aligned("engine", engine)?;
        let default = elsa_engine_options::default();
        // SAFETY: *read*.
        let options = if options.is_null() { &default } else { unsafe { get("options", options) }? };
        let id = ENGINES.insert(Engine::new(&convert::engine_options(options)?)?)?;
        // SAFETY: *write*.
        unsafe { put(engine, elsa_engine { id }) };
        Ok(())
    })
}

/// Writes what computes, one of ELSA_BACKEND_*, and the threads of the CPU.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_info(
    engine: elsa_engine,
    backend: *mut elsa_backend,
    threads: *mut usize,
) -> elsa_status {
    call(|| {
        aligned("backend", backend)?;
        aligned("threads", threads)?;
        let engine = ENGINES.get(engine.id)?;
        // SAFETY: *write*.
        unsafe {
            put(backend, convert::backend_number(engine.backend()));
            put(threads, engine.threads());
        }
        Ok(())
    })
}

/// Ends an engine's handle. What was made with it goes on working.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_engine_destroy(engine: elsa_engine) -> elsa_status {
    call(|| ENGINES.remove(engine.id).map(drop))
}

/// Decides everything that depends on the shape. Null options are the defaults.
///
/// Any number of threads may use a plan, each with a workspace of its own.
///
/// # Safety
/// *read*, *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_create(
    engine: elsa_engine,
    problem: *const elsa_problem,
    options: *const elsa_plan_options,
    plan: *mut elsa_plan,
) -> elsa_status {
    call(|| {
        aligned("plan", plan)?;
        let engine = ENGINES.get(engine.id)?;
        // SAFETY: *read*.
        let problem: Problem = convert::problem(unsafe { get("problem", problem) }?)?;
        let default = default_plan_options();
        // SAFETY: *read*.
        let options = if options.is_null() { &default } else { unsafe { get("options", options) }? };
        let id = PLANS.insert(engine.plan(&problem, &convert::plan_options(options)?)?)?;
        // SAFETY: *write*.
        unsafe { put(plan, elsa_plan { id }) };
        Ok(())
    })
}

/// Writes what was decided.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_describe(plan: elsa_plan, info: *mut elsa_plan_info) -> elsa_status {
    call(|| {
        aligned("info", info)?;
        let plan = PLANS.get(plan.id)?;
        let value = elsa_plan_info {
            backend: convert::backend_number(plan.backend()),
            workspace_bytes: plan.workspace_bytes(),
            staging_bytes: plan.staging_bytes(),
            kernel: name(plan.kernel()),
        };
        // SAFETY: *write*.
        unsafe { put(info, value) };
        Ok(())
    })
}

/// Writes what may be said of the error of a run on a back end: that of the report, or ELSA_BACKEND_AUTO for the
/// plan's own.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_plan_certificate(
    plan: elsa_plan,
    backend: elsa_backend,
    certificate: *mut elsa_certificate,
) -> elsa_status {
    call(|| {
        aligned("certificate", certificate)?;
        let plan = PLANS.get(plan.id)?;
        let c = plan.certificate_of(convert::backend(backend)?.unwrap_or(plan.backend()));
        let value = elsa_certificate {
            dtype: convert::dtype_number(c.dtype),
            covers_additions: u32::from(c.covers_additions()),
            keys: c.keys,
            block: c.executed.block,
            segment_blocks: c.executed.segment_blocks,
            merge_depth: c.executed.merge_depth,
            half_chain: c.executed.half_chain,
            additions: c.executed.additions,
            published_depth: c.published_depth,
            published_bound: c.published_bound,
            output_rounding: c.output_rounding,
        };
        // SAFETY: *write*.
        unsafe { put(certificate, value) };
        Ok(())
    })
}

/// Ends a plan's handle. What was made with it goes on working.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_plan_destroy(plan: elsa_plan) -> elsa_status {
    call(|| PLANS.remove(plan.id).map(drop))
}

/// Allocates the memory that runs of a plan work in. One call at a time may use it; another one that tries gets
/// ELSA_STATUS_BUSY.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_create(
    plan: elsa_plan,
    workspace: *mut elsa_workspace,
) -> elsa_status {
    call(|| {
        aligned("workspace", workspace)?;
        let id = WORKSPACES.insert(Mutex::new(PLANS.get(plan.id)?.workspace()?))?;
        // SAFETY: *write*.
        unsafe { put(workspace, elsa_workspace { id }) };
        Ok(())
    })
}

/// A workspace in memory of the caller's: at least workspace_bytes of the plan's elsa_plan_info, of any alignment. It is
/// cleared. The memory must stay as it is, and be used by nobody else, until the handle is destroyed and the calls and
/// bound frames that use it have ended. Plans on a GPU give ELSA_STATUS_UNSUPPORTED.
///
/// # Safety
/// *write*; memory is writable for bytes bytes, for as long as said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_workspace_create_in(
    plan: elsa_plan,
    memory: *mut c_void,
    bytes: usize,
    workspace: *mut elsa_workspace,
) -> elsa_status {
    call(|| {
        aligned("workspace", workspace)?;
        // SAFETY: the memory is the caller's promise (# Safety).
        let made = unsafe { PLANS.get(plan.id)?.workspace_in(memory.cast(), bytes) }?;
        let id = WORKSPACES.insert(Mutex::new(made))?;
        // SAFETY: *write*.
        unsafe { put(workspace, elsa_workspace { id }) };
        Ok(())
    })
}

/// Ends a workspace's handle. Its memory is given back once no call and no bound frame uses it.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_workspace_destroy(workspace: elsa_workspace) -> elsa_status {
    call(|| WORKSPACES.remove(workspace.id).map(drop))
}

/// Runs a plan over tensors in memory of the host. Nothing is allocated once a plan has run. The report may be null.
///
/// # Safety
/// *read*, *write*, *tensors*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_run(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    call(|| {
        optional("report", report)?;
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        // SAFETY: *read*, *write*, *tensors*.
        unsafe {
            let done = run(&plan, &workspace, get("inputs", inputs)?, get("outputs", outputs)?)?;
            tell(report, done);
        }
        Ok(())
    })
}

/// As elsa_run, over a part of the keys: q against the keys that k names gives the states (m, S, W) of that part,
/// which must be among the outputs. elsa_states_merge joins them, elsa_states_finish makes them the output.
///
/// # Safety
/// As for elsa_run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_partial(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    report: *mut elsa_report,
) -> elsa_status {
    call(|| {
        optional("report", report)?;
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        // SAFETY: *read*, *write*, *tensors*.
        unsafe {
            let outputs = get("outputs", outputs)?;
            if outputs.state_m.data.is_null() {
                return Err(Fault::null("state_m"));
            }
            tell(report, run(&plan, &workspace, get("inputs", inputs)?, outputs)?);
        }
        Ok(())
    })
}

/// Runs a plan that computes on a GPU over tensors in its memory; the lists of lengths lie in memory of the host. Work
/// is enqueued in stream, a CUstream or cudaStream_t, and the call does not wait. With a null stream it uses one of its
/// own and waits; the default stream of the device is (void *)1. There is no fallback.
///
/// # Safety
/// *read*, *write*; *tensors* until the stream was waited for; stream is a stream that was not destroyed, and the
/// workspace is used by no other call until it was waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_run_device(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    stream: *mut c_void,
    report: *mut elsa_report,
) -> elsa_status {
    call(|| {
        optional("report", report)?;
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        let mut workspace = lock(&workspace)?;
        // SAFETY: *read*, *write*, *tensors*, and the clause on streams. Overlap is refused by `device`.
        unsafe {
            let (inputs, outputs) =
                convert::device(plan.problem(), get("inputs", inputs)?, get("outputs", outputs)?)?;
            let own = stream.is_null();
            let stream = (!own).then(|| RawStream::new(stream));
            let mut bound = plan.bind_device(&inputs, &outputs, stream, &mut workspace)?;
            let done = bound.run()?;
            if own {
                bound.wait()?;
            }
            tell(report, report_of(&plan, &done));
        }
        Ok(())
    })
}

/// Binds the tensors of a frame in memory of the host to a plan and a workspace, and checks them. Both structs are
/// copied; what they point to must stay as long as the frame is run.
///
/// Runs of frames that share a workspace exclude each other as elsa_run says.
///
/// # Safety
/// *read*, *write*; *tensors* for every run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_bind(
    plan: elsa_plan,
    workspace: elsa_workspace,
    inputs: *const elsa_inputs,
    outputs: *const elsa_outputs,
    bound: *mut elsa_bound,
) -> elsa_status {
    call(|| {
        aligned("bound", bound)?;
        let (plan, workspace) = (PLANS.get(plan.id)?, WORKSPACES.get(workspace.id)?);
        // SAFETY: *read*.
        let (inputs, outputs) = unsafe { (*get("inputs", inputs)?, *get("outputs", outputs)?) };
        {
            let mut workspace = lock(&workspace)?;
            // SAFETY: *tensors*.
            let (inputs, outputs) = unsafe { convert::host(plan.problem(), &inputs, &outputs) }?;
            plan.bind(inputs, outputs, &mut workspace)?;
        }
        let id = BOUNDS.insert(Frame { plan, workspace, inputs, outputs })?;
        // SAFETY: *write*.
        unsafe { put(bound, elsa_bound { id }) };
        Ok(())
    })
}

/// Runs a frame. Nothing is allocated once its plan has run. The report may be null.
///
/// # Safety
/// *write*; *tensors* of elsa_bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_bound_run(bound: elsa_bound, report: *mut elsa_report) -> elsa_status {
    call(|| {
        optional("report", report)?;
        let frame = BOUNDS.get(bound.id)?;
        // SAFETY: *tensors* of elsa_bind, *write*.
        unsafe { tell(report, run(&frame.plan, &frame.workspace, &frame.inputs, &frame.outputs)?) };
        Ok(())
    })
}

/// Ends a frame's handle.
#[unsafe(no_mangle)]
pub extern "C" fn elsa_bound_destroy(bound: elsa_bound) -> elsa_status {
    call(|| BOUNDS.remove(bound.id).map(drop))
}

/// Merges the states of two parts of the keys, row by row: earlier ones with later ones. An output may be one of the
/// inputs, whole; otherwise nothing overlaps.
///
/// A state with no key gives the other one back bit for bit. Otherwise references become whole numbers in units of
/// log 2, S and W are rounded once by each change of units (there and back), and once by the addition.
///
/// # Safety
/// *read*, *write*: m and s for rows singles, w for rows * dim.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_states_merge(
    rows: usize,
    dim: usize,
    earlier: *const elsa_states_in,
    later: *const elsa_states_in,
    merged: *const elsa_states_out,
) -> elsa_status {
    call(|| {
        // SAFETY: *read*, *write*.
        unsafe {
            state::merge(rows, dim, get("earlier", earlier)?, get("later", later)?, get("merged", merged)?)
        }
    })
}

/// Makes states the output, out = W / S as singles [rows, dim], and the log-sum-exp, one single a row, which may be null.
/// A row with no key gives zeros and minus infinity.
///
/// # Safety
/// *read*, *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_states_finish(
    rows: usize,
    dim: usize,
    states: *const elsa_states_in,
    out: *mut f32,
    lse: *mut f32,
) -> elsa_status {
    // SAFETY: *read*, *write*.
    call(|| unsafe { state::finish(rows, dim, get("states", states)?, out, lse) })
}

/// The policy of an engine, one of ELSA_FALLBACK_*.
///
/// # Safety
/// *write*.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_engine_fallback(
    engine: elsa_engine,
    fallback: *mut elsa_fallback,
) -> elsa_status {
    call(|| {
        aligned("fallback", fallback)?;
        let value = match ENGINES.get(engine.id)?.fallback() {
            Fallback::Cpu => ELSA_FALLBACK_CPU,
            Fallback::Fail => ELSA_FALLBACK_FAIL,
        };
        // SAFETY: *write*.
        unsafe { put(fallback, value) };
        Ok(())
    })
}

/// Makes the next call of this thread panic inside. For tests.
#[cfg(feature = "inject")]
#[unsafe(no_mangle)]
pub extern "C" fn elsa_test_panic_next() {
    let _ = fault::PANIC_NEXT.try_with(|next| next.set(true));
}
