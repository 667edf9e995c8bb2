//! Calls the C ABI with random descriptions, sizes and handles over valid memory. No call may crash or panic, every
//! status must be one that the header names, and a refusal must have a message.
//!
//! The input drives a sequence of calls on a few handles, some of them stale. Tensors point into two arenas. Most
//! tensors match their descriptions; some are misaligned, too short, overlapping or null. Structs that begin with their
//! size occasionally have the size of an older or a newer version, in memory of exactly that size. Callbacks of streams
//! fill and read all of the memory that they receive, and eventually end the run.
#![no_main]

use elsa::*;
use elsa_core::state::misfit;
use elsa_fuzz::arena::{ARENA, dense, input, output, pick};
use elsa_fuzz::linear::{linear_options, linear_problem};
use elsa_fuzz::problems::problem;
use elsa_fuzz::stream::{Left, drain, fill, note};
use elsa_fuzz::structs::{accepted, read, write};
use elsa_fuzz::{gradients, gradients_task, limit_memory, series, task};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

/// Number of calls per sequence.
const CALLS: usize = 24;

/// Handles that a sequence of calls has created, including destroyed ones.
#[derive(Default)]
struct Known {
    engines: Vec<elsa_engine>,
    plans: Vec<(elsa_plan, elsa_problem)>,
    linear: Vec<(elsa_plan, elsa_linear_problem)>,
    series: Vec<(elsa_plan, series::Problem)>,
    workspaces: Vec<elsa_workspace>,
    bounds: Vec<elsa_bound>,
    streams: Vec<elsa_stream>,
    /// Memory of the workspaces, kept until all workspaces are destroyed.
    memories: Vec<Vec<u64>>,
}

fuzz_target!(init: limit_memory(), |bytes: &[u8]| {
    let mut read = vec![0u64; ARENA / 8];
    let mut written = vec![0u64; ARENA / 8];
    for (i, word) in read.iter_mut().enumerate() {
        *word = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x3fff_ffff_3fff_ffff;
    }
    let mut known = Known::default();
    let arenas = [read.as_mut_ptr().cast::<u8>(), written.as_mut_ptr().cast::<u8>()];
    // Input that ends early is not an error, only a shorter sequence.
    let _ = calls(&mut Unstructured::new(bytes), &mut known, arenas);
    for bound in known.bounds {
        accepted(elsa_bound_destroy(bound));
    }
    for workspace in known.workspaces {
        accepted(elsa_workspace_destroy(workspace));
    }
    for stream in known.streams {
        accepted(elsa_stream_destroy(stream));
    }
    for (plan, _) in known.plans {
        accepted(elsa_plan_destroy(plan));
    }
    for engine in known.engines {
        accepted(elsa_engine_destroy(engine));
    }
});

/// Runs all workers on the calling thread, like a host that lends a single thread.
unsafe extern "C" fn lend(_: *mut c_void, workers: usize, task: elsa_parallel_task, context: *mut c_void) {
    let task = task.expect("a task");
    for worker in (0..workers).rev() {
        // SAFETY: the task and the context are the library's, and each worker runs once.
        unsafe { task(context, worker) };
    }
}

/// Picks options of an engine that starts no threads.
fn engine_options(u: &mut Unstructured<'_>, cores: &[u32; 3]) -> Result<elsa_engine_options> {
    let mut options =
        elsa_engine_options { backend: ELSA_BACKEND_SCALAR, threads: 1, ..elsa_engine_options::default() };
    if u.ratio(1, 4)? {
        options.backend = u.int_in_range(0..=6)?;
        options.fallback = u.int_in_range(0..=2)?;
        options.cuda_context = u.int_in_range(0..=2)?;
        options.priority = u.int_in_range(-1..=100)?;
        options.spin_us = u.arbitrary()?;
        options.core_count = u.int_in_range(0..=3)?;
        options.cores = if u.arbitrary()? { cores.as_ptr() } else { null() };
        options.thread_name = [null(), c"fuzz".as_ptr(), c"a b".as_ptr()][u.choose_index(3)?];
    }
    if u.ratio(1, 3)? {
        options.threads = u.int_in_range(1..=3)?;
        options.parallel_for = Some(lend);
    }
    Ok(options)
}

/// Picks the tensors of a problem, and the lists of integers that they refer to.
fn tensors(
    u: &mut Unstructured<'_>,
    p: &elsa_problem,
    [read, written]: [*mut u8; 2],
    (lists, index): (&mut [[i64; 4]; 3], &mut [i64; 81]),
) -> Result<(elsa_inputs, elsa_outputs)> {
    index.fill(u.int_in_range(0..=3)?);
    index[u.choose_index(81)?] = u.int_in_range(-1..=30)?;
    for list in lists.iter_mut() {
        for entry in list.iter_mut() {
            *entry = u.int_in_range(-1..=9)?;
        }
    }
    let [lengths, of_q, of_k] = lists;
    let list = |u: &mut Unstructured<'_>, data: &[i64], count: usize| -> Result<elsa_integers> {
        let count = if u.ratio(1, 16)? { u.int_in_range(0..=data.len())? } else { count.min(data.len()) };
        Ok(elsa_integers { data: if count == 0 { null() } else { data.as_ptr() }, count })
    };
    let rows = elsa_view { shape: [p.q.shape[0], p.q.shape[1], p.q.shape[2], 1], strides: [1, 1, 1, 1] };
    let (rows, wide) = (dense(rows.shape), dense(p.out.shape));
    let none = elsa_view::default();
    let axes = |mask: &elsa_mask| if mask.kind == 0 { none } else { dense(mask.dims) };
    let kind = |mask: &elsa_mask| if mask.kind == ELSA_MASK_F32 { ELSA_DTYPE_F32 } else { ELSA_DTYPE_F16 };
    let (bias, bias_type) = match p.bias_table {
        table if table.entries > 0 => (dense([1, 1, table.entries, table.heads]), table.dtype),
        _ => (axes(&p.bias), kind(&p.bias)),
    };
    let pairs = if p.bias_table.has_index != 0 { p.q.shape[2].wrapping_mul(p.k.shape[2]) } else { 0 };
    let past = |v: elsa_view| if p.has_past != 0 && p.append == 0 { v } else { none };
    let present = |v: elsa_view| if p.has_present != 0 { v } else { none };
    let inputs = elsa_inputs {
        q: input(u, read, &p.q, p.dtype)?,
        k: input(u, read, &p.k, p.dtype)?,
        v: input(u, read, &p.v, p.dtype)?,
        past_k: input(u, read, &past(p.past_k), p.dtype)?,
        past_v: input(u, read, &past(p.past_v), p.dtype)?,
        mask: input(u, read, &axes(&p.mask), kind(&p.mask))?,
        key_lengths: list(u, lengths, if p.has_key_lengths != 0 { p.q.shape[0] } else { 0 })?,
        cu_seqlens_q: list(u, of_q, if p.packed > 0 { p.packed + 1 } else { 0 })?,
        cu_seqlens_k: list(u, of_k, if p.packed > 0 { p.packed + 1 } else { 0 })?,
        bias: input(u, read, &bias, bias_type)?,
        bias_index: list(u, index, pairs)?,
        ..elsa_inputs::default()
    };
    // An output occasionally overlaps inputs. The call must be refused, or the overlap must do no harm.
    let to = if u.ratio(1, 16)? { read } else { written };
    let states = u.ratio(1, 3)?;
    let state = |v: elsa_view| if states { v } else { none };
    let lse = if u.arbitrary()? { rows } else { none };
    let outputs = elsa_outputs {
        out: output(u, to, &p.out, p.dtype)?,
        lse: output(u, to, &lse, ELSA_DTYPE_F32)?,
        state_m: output(u, to, &state(rows), ELSA_DTYPE_F32)?,
        state_s: output(u, to, &state(rows), ELSA_DTYPE_F32)?,
        state_w: output(u, to, &state(wide), ELSA_DTYPE_F32)?,
        present_k: output(u, to, &present(p.present_k), p.dtype)?,
        present_v: output(u, to, &present(p.present_v), p.dtype)?,
        ..elsa_outputs::default()
    };
    Ok((inputs, outputs))
}

fn calls(u: &mut Unstructured<'_>, known: &mut Known, arenas: [*mut u8; 2]) -> Result<()> {
    let (mut lists, mut index) = ([[0i64; 4]; 3], [0i64; 81]);
    let cores = [0, 1, u32::MAX];
    let options =
        elsa_engine_options { backend: ELSA_BACKEND_SCALAR, threads: 1, ..elsa_engine_options::default() };
    let mut made = elsa_engine::default();
    // SAFETY (all calls below): structs belong to this function and have as many bytes as their sizes state; tensors
    // are in the arenas, which outlive the handles, and which nothing else uses during a call.
    if accepted(unsafe { elsa_engine_create(&options, &mut made) }) {
        known.engines.push(made);
    }
    for _ in 0..CALLS {
        if u.is_empty() {
            break;
        }
        let none = (elsa_plan::default(), elsa_problem::default());
        match u.int_in_range(0..=24)? {
            0..=2 => {
                let p = problem(u)?;
                let options = elsa_plan_options {
                    method: u.int_in_range(0..=2)?,
                    block: *u.choose(&[64, 128, 256, 0, 65])?,
                    budget: if u.ratio(1, 4)? { u.int_in_range(0..=1 << 20)? } else { 0 },
                    half_scores: u.arbitrary::<bool>()?.into(),
                    certify: u.arbitrary::<bool>()?.into(),
                    error_budget: *u.choose(&[0.0, 0.0, 0.0, 1e-3, 0.5, 1.0, -1.0, f32::NAN])?,
                    schedule: if u.ratio(1, 4)? { u.int_in_range(0..=5)? } else { 0 },
                    norm_gate: u.ratio(1, 8)?.into(),
                    lambda: *u.choose(&[0.0, 0.0, 0.0, 1e-3, 0.5, 1.0, f32::NAN])?,
                    rescale_threshold: *u.choose(&[0.0, 0.0, 0.0, 4.0, 8.0, 9.0, f32::NAN])?,
                    tensor_cores: if u.ratio(1, 4)? { u.int_in_range(0..=4)? } else { 0 },
                    ..elsa_plan_options::default()
                };
                let engine = pick(u, &known.engines, elsa_engine::default())?;
                let (given, options) = (read(u, &p)?, read(u, &options)?);
                let options = if u.arbitrary()? { options.get() } else { null_mut() };
                let mut plan = elsa_plan::default();
                // SAFETY: as for all calls of this function (above).
                if accepted(unsafe { elsa_plan_create(engine, given.get(), options, &mut plan) }) {
                    known.plans.push((plan, p));
                }
            }
            3 => {
                let (plan, _) = pick(u, &known.plans, none)?;
                let mut workspace = elsa_workspace::default();
                // SAFETY: as for all calls of this function (above).
                if accepted(unsafe { elsa_workspace_create(plan, &mut workspace) }) {
                    known.workspaces.push(workspace);
                }
            }
            4..=6 => {
                let (plan, p) = pick(u, &known.plans, none)?;
                let mut workspace = pick(u, &known.workspaces, elsa_workspace::default())?;
                // SAFETY: as for all calls of this function (above).
                if u.ratio(3, 4)? && accepted(unsafe { elsa_workspace_create(plan, &mut workspace) }) {
                    known.workspaces.push(workspace);
                }
                let (inputs, outputs) = tensors(u, &p, arenas, (&mut lists, &mut index))?;
                let chunk = elsa_chunk {
                    key_offset: if u.ratio(1, 16)? { u.arbitrary()? } else { u.int_in_range(0..=9)? },
                    key_total: if u.ratio(1, 16)? { u.arbitrary()? } else { u.int_in_range(0..=19)? },
                    query_offset: if u.ratio(1, 16)? { u.arbitrary()? } else { u.int_in_range(0..=3)? },
                    query_total: if u.ratio(1, 16)? { u.arbitrary()? } else { u.int_in_range(0..=12)? },
                    ..elsa_chunk::default()
                };
                let (part, whole) = (u.ratio(1, 4)?, u.arbitrary()?);
                let (inputs, outputs, chunk) = (read(u, &inputs)?, read(u, &outputs)?, read(u, &chunk)?);
                let (inputs, outputs) = (inputs.get(), outputs.get());
                let chunk = if whole { null_mut() } else { chunk.get() };
                let run = |report| {
                    // SAFETY: as for all calls of this function (above).
                    unsafe {
                        match part {
                            true => elsa_partial(plan, workspace, chunk, inputs, outputs, report),
                            false => elsa_run(plan, workspace, inputs, outputs, report),
                        }
                    }
                };
                if u.arbitrary()? {
                    write(u, &elsa_report::default(), run)?;
                } else {
                    accepted(run(null_mut()));
                }
            }
            7 => {
                let (plan, p) = pick(u, &known.plans, none)?;
                let workspace = pick(u, &known.workspaces, elsa_workspace::default())?;
                let (inputs, outputs) = tensors(u, &p, arenas, (&mut lists, &mut index))?;
                let mut bound = elsa_bound::default();
                // SAFETY: as for all calls of this function (above). Nothing changes the lists during a run.
                if accepted(unsafe { elsa_bind(plan, workspace, &inputs, &outputs, &mut bound) }) {
                    // SAFETY: as for all calls of this function (above).
                    accepted(unsafe { elsa_bound_run(bound, null_mut()) });
                    // The lists of the bound call get other entries, even if its tensors are then not replaced.
                    let other = tensors(u, &p, arenas, (&mut lists, &mut index));
                    if let Ok((inputs, outputs)) = &other {
                        // SAFETY: as for all calls of this function (above).
                        accepted(unsafe { elsa_bound_set(bound, inputs, outputs) });
                    }
                    // SAFETY: as for all calls of this function (above).
                    accepted(unsafe { elsa_bound_run(bound, null_mut()) });
                    accepted(elsa_bound_destroy(bound));
                    known.bounds.push(bound);
                }
            }
            8 => {
                let (plan, _) = pick(u, &known.plans, none)?;
                accepted(elsa_plan_destroy(plan));
            }
            9 => {
                accepted(elsa_workspace_destroy(pick(u, &known.workspaces, elsa_workspace::default())?));
            }
            10 => {
                let stale = pick(u, &known.bounds, elsa_bound::default())?;
                // SAFETY: as for all calls of this function (above); every bound call was destroyed.
                accepted(unsafe { elsa_bound_run(stale, null_mut()) });
            }
            11 => {
                let engine = pick(u, &known.engines, elsa_engine::default())?;
                let (plan, _) = pick(u, &known.plans, none)?;
                // SAFETY: as for all calls of this function (above).
                write(u, &elsa_engine_info::default(), |info| unsafe { elsa_engine_describe(engine, info) })?;
                // SAFETY: as for all calls of this function (above).
                write(u, &elsa_plan_info::default(), |info| unsafe { elsa_plan_describe(plan, info) })?;
                let backend = u.int_in_range(0..=6)?;
                let bound = elsa_certificate::default();
                // SAFETY: as for all calls of this function (above).
                write(u, &bound, |bound| unsafe { elsa_plan_certificate(plan, backend, bound) })?;
                let workspace = pick(u, &known.workspaces, elsa_workspace::default())?;
                let mut absolute = vec![0f64; u.int_in_range(0..=40)?];
                let (to, count) = (absolute.as_mut_ptr(), absolute.len());
                let certified = elsa_certified::default();
                // SAFETY: as for all calls of this function (above); `absolute` has `count` numbers.
                write(u, &certified, |certified| unsafe {
                    elsa_workspace_certified(workspace, certified, to, count)
                })?;
                let mut share = vec![0f32; u.int_in_range(0..=40)?];
                let (to, count) = (share.as_mut_ptr(), share.len());
                let left = elsa_left_out::default();
                // SAFETY: as for all calls of this function (above); `share` has `count` numbers.
                write(u, &left, |left| unsafe { elsa_workspace_left_out(workspace, left, to, count) })?;
                let mut blocks = [0; 2];
                let [refused, all] = &mut blocks;
                // SAFETY: as for all calls of this function (above).
                accepted(unsafe { elsa_workspace_refused_blocks(workspace, refused, all) });
                accepted(elsa_engine_load_kernels(engine));
            }
            12 => {
                let (plan, _) = pick(u, &known.plans, none)?;
                let mut memory = vec![0u64; u.int_in_range(0..=1024)?];
                let off = u.int_in_range(0..=7)?;
                let bytes = (memory.len() * 8).saturating_sub(off);
                let start = if u.ratio(1, 16)? {
                    null_mut()
                } else {
                    memory.as_mut_ptr().cast::<u8>().wrapping_add(off)
                };
                let mut workspace = elsa_workspace::default();
                // SAFETY: as for all calls of this function (above); the memory outlives the workspace.
                if accepted(unsafe { elsa_workspace_create_in(plan, start.cast(), bytes, &mut workspace) }) {
                    known.workspaces.push(workspace);
                }
                known.memories.push(memory);
            }
            13 => {
                let options = engine_options(u, &cores)?;
                let options = read(u, &options)?;
                let mut engine = elsa_engine::default();
                // SAFETY: as for all calls of this function (above).
                if accepted(unsafe { elsa_engine_create(options.get(), &mut engine) }) {
                    known.engines.push(engine);
                }
            }
            14 | 15 => stream(u, known, &mut lists)?,
            17..=19 => linear(u, known, arenas, &mut lists[0])?,
            20..=22 => {
                let engine = pick(u, &known.engines, elsa_engine::default())?;
                let Known { series, workspaces, plans, .. } = known;
                series::calls(u, engine, series, workspaces, arenas)?;
                // Functions for other kinds of plans receive this plan, too.
                plans.extend(series.last().map(|(plan, _)| (*plan, elsa_problem::default())));
            }
            23 | 24 => {
                let (engine, p) = (pick(u, &known.engines, elsa_engine::default())?, problem(u)?);
                let (inputs, _) = tensors(u, &p, arenas, (&mut lists, &mut index))?;
                match u.int_in_range(0..=2)? {
                    0 => {
                        task::calls(u, engine, &p, &inputs, arenas[1])?;
                        continue;
                    }
                    1 => {
                        gradients_task::calls(u, engine, &p, &inputs, arenas)?;
                        continue;
                    }
                    _ => {}
                }
                let made = gradients::calls(u, engine, &p, &inputs, &mut known.workspaces, arenas)?;
                known.plans.extend(made.map(|plan| (plan, p)));
            }
            _ => merge(u, arenas)?,
        }
    }
    Ok(())
}

/// Creates, describes, and runs or binds a plan of linear attention.
fn linear(
    u: &mut Unstructured<'_>,
    known: &mut Known,
    [from, written]: [*mut u8; 2],
    bounds: &mut [i64; 4],
) -> Result<()> {
    let engine = pick(u, &known.engines, elsa_engine::default())?;
    let (p, options) = (linear_problem(u)?, linear_options(u)?);
    let (given, options) = (read(u, &p)?, read(u, &options)?);
    let mut plan = elsa_plan::default();
    // SAFETY (all calls below): structs have as many bytes as their sizes state; tensors are in the arenas, which
    // nothing else uses during a call.
    if accepted(unsafe { elsa_linear_plan_create(engine, given.get(), options.get(), &mut plan) }) {
        known.linear.push((plan, p));
        // Functions for the other kinds of plans receive this plan, too.
        known.plans.push((plan, elsa_problem::default()));
    }
    let (plan, p) = pick(u, &known.linear, (elsa_plan::default(), elsa_linear_problem::default()))?;
    // SAFETY: as for all calls of this function (above).
    write(u, &elsa_linear_info::default(), |info| unsafe { elsa_linear_plan_describe(plan, info) })?;
    let mut workspace = pick(u, &known.workspaces, elsa_workspace::default())?;
    // SAFETY: as for all calls of this function (above).
    if u.ratio(3, 4)? && accepted(unsafe { elsa_workspace_create(plan, &mut workspace) }) {
        known.workspaces.push(workspace);
    }
    for (at, entry) in bounds.iter_mut().enumerate() {
        *entry = if at == 0 { 0 } else { u.int_in_range(-1..=9)? };
    }
    let absent = elsa_view::default();
    let only = |has: u32, view: elsa_view| if has == 0 { absent } else { view };
    let to = if u.ratio(1, 16)? { from } else { written };
    let count = if p.packed > 0 { (p.packed + 1).min(4) } else { 0 };
    let mut inputs = elsa_linear_inputs {
        q: input(u, from, &p.q, p.dtype)?,
        k: input(u, from, &p.k, p.dtype)?,
        v: input(u, from, &p.v, p.dtype)?,
        decay: input(u, from, &only(p.has_decay, p.decay), p.gate_dtype)?,
        beta: input(u, from, &only(p.has_beta, p.beta), p.gate_dtype)?,
        past_state: input(u, from, &only(p.has_past_state, p.past_state), ELSA_DTYPE_F32)?,
        cu_seqlens: elsa_integers { data: if count == 0 { null() } else { bounds.as_ptr() }, count },
        ..elsa_linear_inputs::default()
    };
    let outputs = elsa_linear_outputs {
        out: output(u, to, &p.out, p.dtype)?,
        present_state: output(u, to, &only(p.has_present_state, p.present_state), ELSA_DTYPE_F32)?,
        ..elsa_linear_outputs::default()
    };
    if p.in_place != 0 {
        let absent = elsa_input { data: null(), bytes: 0 };
        let same = elsa_input { data: outputs.present_state.data, bytes: outputs.present_state.bytes };
        inputs.past_state = *u.choose(&[absent, same])?;
    }
    let (reads, writes) = (read(u, &inputs)?, read(u, &outputs)?);
    // SAFETY: as for all calls of this function (above).
    write(u, &elsa_report::default(), |report| unsafe {
        elsa_linear_run(plan, workspace, reads.get(), writes.get(), report)
    })?;
    let mut absolute = vec![0f64; u.int_in_range(0..=9)?];
    let (to, count) = (absolute.as_mut_ptr(), absolute.len());
    let backend = u.int_in_range(0..=6)?;
    // SAFETY: as for all calls of this function (above); `absolute` has `count` numbers.
    write(u, &elsa_linear_certified::default(), |found| unsafe {
        elsa_linear_certify(plan, backend, reads.get(), found, to, count)
    })?;
    let mut bound = elsa_bound::default();
    // SAFETY: as for all calls of this function (above). Bound calls run before the lists change.
    if u.ratio(1, 4)? && accepted(unsafe { elsa_linear_bind(plan, workspace, &inputs, &outputs, &mut bound) })
    {
        // SAFETY: as for all calls of this function (above).
        accepted(unsafe { elsa_bound_run(bound, null_mut()) });
        accepted(elsa_bound_destroy(bound));
        known.bounds.push(bound);
    }
    Ok(())
}

/// Creates, describes, runs and occasionally destroys a stream.
fn stream(u: &mut Unstructured<'_>, known: &mut Known, lists: &mut [[i64; 4]; 3]) -> Result<()> {
    let engine = pick(u, &known.engines, elsa_engine::default())?;
    let p = problem(u)?;
    let options = elsa_stream_options {
        host_budget: if u.ratio(1, 4)? { u.arbitrary()? } else { 1 << 29 },
        eta: if u.ratio(1, 4)? { u.arbitrary()? } else { 0.1 },
        block: *u.choose(&[64, 128, 256, 0, 65])?,
        outputs: u.int_in_range(0..=8)?,
        device_budget: if u.ratio(1, 8)? { u.arbitrary()? } else { 0 },
        sizes: if u.ratio(1, 8)? { u.arbitrary()? } else { [0; 5] },
        ..elsa_stream_options::default()
    };
    let (given, options) = (read(u, &p)?, read(u, &options)?);
    let mut made = elsa_stream::default();
    // SAFETY: structs have as many bytes as their sizes state.
    if accepted(unsafe { elsa_stream_create(engine, given.get(), options.get(), &mut made) }) {
        known.streams.push(made);
    }
    let stream = pick(u, &known.streams, elsa_stream::default())?;
    // SAFETY: as above.
    write(u, &elsa_stream_info::default(), |info| unsafe { elsa_stream_describe(stream, info) })?;
    for entry in lists.iter_mut().flatten() {
        *entry = u.int_in_range(-1..=9)?;
    }
    let list = |count: usize, of: &[i64; 4]| elsa_integers {
        data: if count == 0 { null() } else { of.as_ptr() },
        count,
    };
    let mut left = Left { reads: u.int_in_range(1..=200)?, writes: u.int_in_range(1..=200)? };
    let data = elsa_stream_data {
        read: if u.ratio(1, 32)? { None } else { Some(fill) },
        write: if u.ratio(1, 32)? { None } else { Some(drain) },
        user: (&raw mut left).cast(),
        key_lengths: list(u.int_in_range(0..=4)?, &lists[0]),
        cu_seqlens_q: list(u.int_in_range(0..=4)?, &lists[1]),
        cu_seqlens_k: list(u.int_in_range(0..=4)?, &lists[2]),
        first_unit: if u.ratio(1, 8)? { u.int_in_range(0..=9)? } else { 0 },
        unit_finished: if u.arbitrary()? { Some(note) } else { None },
        ..elsa_stream_data::default()
    };
    let data = read(u, &data)?;
    // A run that a callback has ended writes a report, like a successful one.
    let done = |status| if status == ELSA_STATUS_CALLBACK { ELSA_STATUS_OK } else { status };
    // SAFETY: as above; the callbacks stay within the memory that they receive.
    write(u, &elsa_stream_report::default(), |report| {
        done(unsafe { elsa_stream_run(stream, data.get(), report) })
    })?;
    if u.ratio(1, 4)? {
        accepted(elsa_stream_destroy(stream));
    }
    Ok(())
}

/// Picks the reference of a state: none, any 32-bit pattern, or a number at most a few units in the last place above
/// `centre`.
fn reference(u: &mut Unstructured<'_>, centre: f32) -> Result<f32> {
    Ok(match u.int_in_range(0..=7)? {
        0 => f32::NEG_INFINITY,
        1 => f32::from_bits(u.arbitrary()?),
        2 => centre,
        steps => (2..steps).fold(centre, |m, _| m.next_up()),
    })
}

/// Merges states with references of any magnitude, and compares the merged sums with the same sums in f64. The library
/// must refuse states that no run produces.
fn merge(u: &mut Unstructured<'_>, arenas: [*mut u8; 2]) -> Result<()> {
    let (rows, dim) = (u.int_in_range(0..=64)?, u.int_in_range(0..=16)?);
    let [read, written] = arenas.map(|arena| arena.cast::<f32>());
    let part = |arena: *mut f32, part: usize| arena.wrapping_add(part * 1100);
    let centre = f32::from_bits(u.arbitrary()?);
    for row in 0..rows {
        for side in [0, 3] {
            let (m, mut s) = (reference(u, centre)?, f32::from_bits(u.arbitrary()?));
            if u.ratio(15, 16)? {
                s = if m == f32::NEG_INFINITY { 0.0 } else { s.abs().clamp(f32::MIN_POSITIVE, f32::MAX) };
            }
            // SAFETY: a part has 1,100 values, enough for 64 rows, and the arena has six parts, which nothing else
            // uses.
            unsafe {
                part(read, side).add(row).write(m);
                part(read, side + 1).add(row).write(s);
            }
        }
    }
    let at = |n: usize| part(read, n).cast_const();
    let a = elsa_states_in { m: at(0), s: at(1), w: at(2) };
    let b = elsa_states_in { m: at(3), s: at(4), w: at(5) };
    let merged = elsa_states_out { m: part(written, 0), s: part(written, 1), w: part(written, 2) };
    // SAFETY: as above; 1,100 values are also enough for 64 rows of 16 f32 values.
    let done = accepted(unsafe { elsa_states_merge(rows, dim, &a, &b, &merged) });
    let fits = |of: &elsa_states_in, row: usize| {
        // SAFETY: as above.
        let (m, s, w) = unsafe {
            let w = std::slice::from_raw_parts(of.w.add(row * dim), dim);
            (of.m.add(row).read(), of.s.add(row).read(), w)
        };
        misfit(m, s, w).is_none()
    };
    assert_eq!(done, (0..rows).all(|row| fits(&a, row) && fits(&b, row)));
    if !done {
        return Ok(());
    }
    for row in 0..rows {
        // SAFETY: as above.
        let [ma, sa, mb, sb] = [a.m, a.s, b.m, b.s].map(|x| unsafe { x.add(row).read() });
        let present = [(ma, sa), (mb, sb)].map(|(m, s)| m != f32::NEG_INFINITY || s.is_nan());
        let largest = if ma > mb { f64::from(ma) } else { f64::from(mb) };
        let factors = match present {
            [true, true] => [ma, mb].map(|m| (f64::from(m) - largest).exp()),
            only => only.map(|present| if present { 1.0 } else { 0.0 }),
        };
        let agree = |x: f32, y: f32, found: f32| {
            let term = |x: f32, i: usize| if present[i] { f64::from(x) * factors[i] } else { 0.0 };
            let want = term(x, 0) + term(y, 1);
            let size = term(x, 0).abs() + term(y, 1).abs();
            let same = found == want as f32 || (found.is_nan() && want.is_nan());
            assert!(
                same || (f64::from(found) - want).abs() <= 2e-7 * size + 1e-44,
                "({ma}, {sa}) and ({mb}, {sb}): {x} and {y} merge to {found}, not {want}"
            );
        };
        // SAFETY: as above.
        unsafe {
            agree(sa, sb, merged.s.add(row).read());
            for i in row * dim..row * dim + dim {
                agree(a.w.add(i).read(), b.w.add(i).read(), merged.w.add(i).read());
            }
        }
    }
    Ok(())
}
