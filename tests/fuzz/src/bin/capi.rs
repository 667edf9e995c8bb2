//! The C ABI under hostile calls: random descriptions, sizes and handles over memory that is valid. Nothing may
//! crash or panic, every status is one of those that the header names, and a refusal has a message.
//!
//! The input drives a sequence of calls on a few handles, some of them stale. Tensors point into two arenas, mostly as
//! described, now and then misaligned, short, overlapping or null.
#![no_main]

use elsa::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

/// Bytes of an arena.
const ARENA: usize = 1 << 15;
/// Calls of a sequence.
const CALLS: usize = 24;

/// The handles of a sequence of calls. Destroyed ones stay.
#[derive(Default)]
struct Known {
    engines: Vec<elsa_engine>,
    plans: Vec<(elsa_plan, elsa_problem)>,
    workspaces: Vec<elsa_workspace>,
    bounds: Vec<elsa_bound>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut read = vec![0u64; ARENA / 8];
    let mut written = vec![0u64; ARENA / 8];
    for (i, word) in read.iter_mut().enumerate() {
        *word = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0x3fff_ffff_3fff_ffff;
    }
    let mut known = Known::default();
    let arenas = [read.as_mut_ptr().cast::<u8>(), written.as_mut_ptr().cast::<u8>()];
    // Input that ends early is no error, only a shorter sequence.
    let _ = calls(&mut Unstructured::new(bytes), &mut known, arenas);
    for bound in known.bounds {
        accepted(elsa_bound_destroy(bound));
    }
    for workspace in known.workspaces {
        accepted(elsa_workspace_destroy(workspace));
    }
    for (plan, _) in known.plans {
        accepted(elsa_plan_destroy(plan));
    }
    for engine in known.engines {
        accepted(elsa_engine_destroy(engine));
    }
});

/// A status is one of those of the header, and a refusal has a message.
fn accepted(status: elsa_status) -> bool {
    assert!((ELSA_STATUS_OK..ELSA_STATUS_PANIC).contains(&status), "status {status}");
    if status != ELSA_STATUS_OK {
        // SAFETY: the message ends in a zero byte and lives until the next call of this thread.
        assert!(unsafe { !CStr::from_ptr(elsa_last_error()).is_empty() });
    }
    status == ELSA_STATUS_OK
}

/// One of the handles, or a number that never was one.
fn pick<T: Copy>(u: &mut Unstructured<'_>, from: &[T], none: T) -> Result<T> {
    if from.is_empty() || u.ratio(1, 16)? { Ok(none) } else { u.choose(from).copied() }
}

fn view(u: &mut Unstructured<'_>, shape: [usize; 4]) -> Result<elsa_view> {
    let mut shape = shape;
    if u.ratio(1, 24)? {
        shape[u.choose_index(4)?] = u.arbitrary()?;
    }
    let [_, h, n, d] = shape;
    let m = |a: usize, b: usize| a.wrapping_mul(b);
    let mut strides =
        if u.arbitrary()? { [m(h, m(n, d)), m(n, d), d, 1] } else { [m(n, m(h, d)), d, m(h, d), 1] };
    if u.ratio(1, 16)? {
        strides[u.choose_index(4)?] = if u.arbitrary()? { u.arbitrary()? } else { u.int_in_range(0..=9)? };
    }
    Ok(elsa_view { shape, strides })
}

fn problem(u: &mut Unstructured<'_>) -> Result<elsa_problem> {
    let mut p = elsa_problem::default();
    let (b, kv, group) = (u.int_in_range(1..=2)?, u.int_in_range(1..=2)?, u.int_in_range(1..=2)?);
    let (n, k, past) = (u.int_in_range(0..=9)?, u.int_in_range(0..=9)?, u.int_in_range(0..=4)?);
    let (d, dv) = (u.int_in_range(1..=9)?, u.int_in_range(1..=9)?);
    p.dtype = u.int_in_range(0..=3)?;
    p.q = view(u, [b, kv * group, n, d])?;
    p.k = view(u, [b, kv, k, d])?;
    p.v = view(u, [b, kv, k, dv])?;
    p.out = view(u, [b, kv * group, n, dv])?;
    if u.ratio(1, 3)? {
        p.has_past = 1;
        p.past_k = view(u, [b, kv, past, d])?;
        p.past_v = view(u, [b, kv, past, dv])?;
        p.has_present = u.int_in_range(0..=1)?;
        p.present_k = view(u, [b, kv, past + k, d])?;
        p.present_v = view(u, [b, kv, past + k, dv])?;
        if u.ratio(1, 3)? {
            p.append = 1;
            (p.past_k.strides, p.past_v.strides) = (p.present_k.strides, p.present_v.strides);
        }
    }
    if u.ratio(1, 4)? {
        p.has_scale = 1;
        p.scale = u.arbitrary()?;
    }
    if u.ratio(1, 4)? {
        p.softcap = u.arbitrary()?;
    }
    p.causal = u.int_in_range(0..=3)?;
    if u.ratio(1, 4)? {
        (p.has_window_left, p.window_left) = (u.int_in_range(0..=1)?, u.int_in_range(-2..=5)?);
        (p.has_window_right, p.window_right) = (u.int_in_range(0..=1)?, u.arbitrary()?);
    }
    if u.ratio(1, 3)? {
        p.mask.kind = u.int_in_range(0..=5)?;
        p.mask.rank = u.int_in_range(0..=5)?;
        p.mask.dims = [b, kv * group, n, k];
        p.mask.dims.rotate_left(4usize.saturating_sub(p.mask.rank as usize) % 4);
    }
    p.has_key_lengths = u32::from(u.ratio(1, 4)?);
    if u.ratio(1, 6)? {
        p.packed = u.int_in_range(1..=3)?;
    }
    Ok(p)
}

/// Memory for a view in an arena: mostly as much as it needs.
fn memory(
    u: &mut Unstructured<'_>,
    arena: *mut u8,
    view: &elsa_view,
    dtype: u32,
) -> Result<(*mut u8, usize)> {
    if view.shape[0] == 0 || u.ratio(1, 24)? {
        return Ok((null_mut(), if u.ratio(1, 8)? { 4 } else { 0 }));
    }
    let size = if dtype == ELSA_DTYPE_F32 { 4 } else { 2 };
    let reach = view.shape.iter().zip(&view.strides).map(|(n, s)| n.saturating_sub(1).wrapping_mul(*s));
    let needed = reach.fold(1usize, usize::wrapping_add).wrapping_mul(size);
    let mut at = u.int_in_range(0..=ARENA / 64)? * 32;
    if u.ratio(1, 24)? {
        at += u.int_in_range(0..=3)?;
    }
    let room = ARENA - at;
    let bytes = if u.ratio(1, 24)? { u.int_in_range(0..=room)? } else { needed.min(room) };
    Ok((arena.wrapping_add(at), bytes))
}

fn input(u: &mut Unstructured<'_>, arena: *mut u8, view: &elsa_view, dtype: u32) -> Result<elsa_input> {
    let (data, bytes) = memory(u, arena, view, dtype)?;
    Ok(elsa_input { data: data.cast_const().cast(), bytes })
}

fn output(u: &mut Unstructured<'_>, arena: *mut u8, view: &elsa_view, dtype: u32) -> Result<elsa_output> {
    let (data, bytes) = memory(u, arena, view, dtype)?;
    Ok(elsa_output { data: data.cast(), bytes })
}

/// The data of a problem, and integers that they point to.
fn frame(
    u: &mut Unstructured<'_>,
    p: &elsa_problem,
    [read, written]: [*mut u8; 2],
    lists: &mut [[i64; 4]; 3],
) -> Result<(elsa_inputs, elsa_outputs)> {
    for list in lists.iter_mut() {
        for entry in list.iter_mut() {
            *entry = u.int_in_range(-1..=9)?;
        }
    }
    let [lengths, of_q, of_k] = lists;
    let list = |u: &mut Unstructured<'_>, data: &[i64; 4], count: usize| -> Result<elsa_integers> {
        let count = if u.ratio(1, 16)? { u.int_in_range(0..=4)? } else { count.min(4) };
        Ok(elsa_integers { data: if count == 0 { null() } else { data.as_ptr() }, count })
    };
    let rows = elsa_view { shape: [p.q.shape[0], p.q.shape[1], p.q.shape[2], 1], strides: [1, 1, 1, 1] };
    let dense = |shape: [usize; 4]| {
        let m = |a: usize, b: usize| a.wrapping_mul(b);
        let [_, h, n, d] = shape;
        elsa_view { shape, strides: [m(h, m(n, d)), m(n, d), d, 1] }
    };
    let (rows, wide) = (dense(rows.shape), dense(p.out.shape));
    let mask = dense(p.mask.dims);
    let mask_type = if p.mask.kind == ELSA_MASK_F32 { ELSA_DTYPE_F32 } else { ELSA_DTYPE_F16 };
    let none = elsa_view::default();
    let past = |v: elsa_view| if p.has_past != 0 && p.append == 0 { v } else { none };
    let present = |v: elsa_view| if p.has_present != 0 { v } else { none };
    let inputs = elsa_inputs {
        q: input(u, read, &p.q, p.dtype)?,
        k: input(u, read, &p.k, p.dtype)?,
        v: input(u, read, &p.v, p.dtype)?,
        past_k: input(u, read, &past(p.past_k), p.dtype)?,
        past_v: input(u, read, &past(p.past_v), p.dtype)?,
        mask: input(u, read, &if p.mask.kind == 0 { none } else { mask }, mask_type)?,
        key_lengths: list(u, lengths, if p.has_key_lengths != 0 { p.q.shape[0] } else { 0 })?,
        cu_seqlens_q: list(u, of_q, if p.packed > 0 { p.packed + 1 } else { 0 })?,
        cu_seqlens_k: list(u, of_k, if p.packed > 0 { p.packed + 1 } else { 0 })?,
        ..elsa_inputs::default()
    };
    // Now and then an output lies where inputs are. It must be refused or do no harm.
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
    let mut lists = [[0i64; 4]; 3];
    let engine =
        elsa_engine_options { backend: ELSA_BACKEND_SCALAR, threads: 1, ..elsa_engine_options::default() };
    let mut made = elsa_engine::default();
    // SAFETY (all calls below): structs are those of this function; tensors lie in the arenas, which outlive the
    // handles, and which nothing else uses during a call.
    if accepted(unsafe { elsa_engine_create(&engine, &mut made) }) {
        known.engines.push(made);
    }
    for _ in 0..CALLS {
        if u.is_empty() {
            break;
        }
        let none = (elsa_plan::default(), elsa_problem::default());
        match u.int_in_range(0..=11)? {
            0..=2 => {
                let p = problem(u)?;
                let options = elsa_plan_options {
                    method: u.int_in_range(0..=2)?,
                    block: *u.choose(&[64, 128, 256, 0, 65])?,
                    budget: if u.ratio(1, 4)? { u.int_in_range(0..=1 << 20)? } else { 0 },
                    half_scores: u.arbitrary::<bool>()?.into(),
                    ..elsa_plan_options::default()
                };
                let engine = pick(u, &known.engines, elsa_engine::default())?;
                let options: *const _ = if u.arbitrary()? { &options } else { null() };
                let mut plan = elsa_plan::default();
                // SAFETY: above.
                if accepted(unsafe { elsa_plan_create(engine, &p, options, &mut plan) }) {
                    known.plans.push((plan, p));
                }
            }
            3 => {
                let (plan, _) = pick(u, &known.plans, none)?;
                let mut workspace = elsa_workspace::default();
                // SAFETY: above.
                if accepted(unsafe { elsa_workspace_create(plan, &mut workspace) }) {
                    known.workspaces.push(workspace);
                }
            }
            4..=6 => {
                let (plan, p) = pick(u, &known.plans, none)?;
                let mut workspace = pick(u, &known.workspaces, elsa_workspace::default())?;
                // SAFETY: above.
                if u.ratio(3, 4)? && accepted(unsafe { elsa_workspace_create(plan, &mut workspace) }) {
                    known.workspaces.push(workspace);
                }
                let (inputs, outputs) = frame(u, &p, arenas, &mut lists)?;
                let chunk = elsa_chunk {
                    key_offset: if u.ratio(1, 16)? { u.arbitrary()? } else { u.int_in_range(0..=9)? },
                    key_total: if u.ratio(1, 16)? { u.arbitrary()? } else { u.int_in_range(0..=19)? },
                    ..elsa_chunk::default()
                };
                let (part, chunk) = (u.ratio(1, 4)?, if u.arbitrary()? { &raw const chunk } else { null() });
                // SAFETY: above.
                accepted(unsafe {
                    match part {
                        true => elsa_partial(plan, workspace, chunk, &inputs, &outputs, null_mut()),
                        false => elsa_run(plan, workspace, &inputs, &outputs, null_mut()),
                    }
                });
            }
            7 => {
                let (plan, p) = pick(u, &known.plans, none)?;
                let workspace = pick(u, &known.workspaces, elsa_workspace::default())?;
                let (inputs, outputs) = frame(u, &p, arenas, &mut lists)?;
                let mut bound = elsa_bound::default();
                // SAFETY: above. What is bound is run before the lists change.
                if accepted(unsafe { elsa_bind(plan, workspace, &inputs, &outputs, &mut bound) }) {
                    // SAFETY: above.
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
                // SAFETY: above; every bound frame was destroyed.
                accepted(unsafe { elsa_bound_run(stale, null_mut()) });
            }
            _ => merge(u, arenas)?,
        }
    }
    Ok(())
}

/// A reference: none, any number of 32 bits, or one at most a few values of f32 from `centre`.
fn reference(u: &mut Unstructured<'_>, centre: f32) -> Result<f32> {
    Ok(match u.int_in_range(0..=7)? {
        0 => f32::NEG_INFINITY,
        1 => f32::from_bits(u.arbitrary()?),
        2 => centre,
        steps => (2..steps).fold(centre, |m, _| m.next_up()),
    })
}

/// Merges states with references of any magnitude, and compares with f64.
fn merge(u: &mut Unstructured<'_>, arenas: [*mut u8; 2]) -> Result<()> {
    let (rows, dim) = (u.int_in_range(0..=64)?, u.int_in_range(0..=16)?);
    let [read, written] = arenas.map(|arena| arena.cast::<f32>());
    let part = |arena: *mut f32, part: usize| arena.wrapping_add(part * 1100);
    let centre = f32::from_bits(u.arbitrary()?);
    for row in 0..rows {
        for side in [0, 3] {
            let (m, s) = (reference(u, centre)?, f32::from_bits(u.arbitrary()?));
            // SAFETY: 64 rows fit the 1,100 values of a part, and six parts the arena, which nothing else uses.
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
    // SAFETY: as above; 64 rows of 16 f32 values fit 1,100.
    assert!(accepted(unsafe { elsa_states_merge(rows, dim, &a, &b, &merged) }));
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
