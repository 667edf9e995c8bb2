//! Tests of memory that the device uses in place: page-locked buffers, and workspaces in the caller's memory.

use crate::cuda::driver::{DeviceBuffer, Stream};
use crate::testing::{bits, gpu_engine, noise};
use crate::{
    BindError, DeviceError, DeviceInputs, DeviceOutputs, Engine, EngineOptions, HostBuffer, Plan, PlanError,
    PlanOptions, Workspace,
};
use elsa_core::attention::{Inputs, Lengths, Outputs, Problem, Spec, StateOut, StateTensors};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};

const HEADS: usize = 2;
const D: usize = 16;

fn problem(queries: usize, keys: usize) -> Problem {
    let view = |n| View::dense("x", Layout::Bhnd, &[HEADS, n, D], None).unwrap();
    Spec::new(DType::F32, view(queries), view(keys), view(keys), view(queries)).check().unwrap()
}

/// Positions of the parts of one buffer: queries, keys, values, output, and the references, sums and weighted sums of
/// the states. There are gaps between these parts.
struct Parts {
    at: [usize; 7],
    len: [usize; 7],
    total: usize,
}

fn parts(queries: usize, keys: usize, gap: usize) -> Parts {
    let rows = HEADS * queries;
    let len = [rows * D, HEADS * keys * D, HEADS * keys * D, rows * D, rows, rows, rows * D];
    let mut total = gap;
    let at = len.map(|len| {
        let at = total;
        total += len + gap;
        at
    });
    Parts { at, len, total }
}

fn filled(engine: &Engine, parts: &Parts) -> HostBuffer<f32> {
    let mut buffer = engine.host_buffer::<f32>(parts.total).unwrap();
    assert!(buffer.iter().all(|x| x.to_bits() == 0), "a buffer is zero at first");
    buffer.fill(f32::NAN);
    for i in 0..3 {
        buffer[parts.at[i]..][..parts.len[i]].copy_from_slice(&noise(i as u64 + 1, parts.len[i]));
    }
    buffer
}

/// Runs the plan over tensors in one slice. Returns the bits of output and states, and the number of bytes copied.
fn run(plan: &Plan, slice: &mut [f32], parts: &Parts, workspace: &mut Workspace) -> (Vec<u32>, usize) {
    let mut rest = &mut *slice;
    let mut done = 0;
    let mut pieces = Vec::new();
    for i in 0..7 {
        let (piece, after) = rest[parts.at[i] - done..].split_at_mut(parts.len[i]);
        done = parts.at[i] + parts.len[i];
        pieces.push(piece);
        rest = after;
    }
    let Ok([q, k, v, y, m, s, w]) = <[&mut [f32]; 7]>::try_from(pieces) else { panic!("seven pieces") };
    let inputs = Inputs::new(Elements::F32(q), Elements::F32(k), Elements::F32(v));
    let mut outputs = Outputs::new(ElementsMut::F32(y));
    outputs.state = Some(StateOut { m, s, w });
    let report = plan.bind(inputs, outputs, workspace).unwrap().run().unwrap();
    let answer = (3..7).flat_map(|i| bits(&slice[parts.at[i]..][..parts.len[i]])).collect();
    (answer, report.copied)
}

fn integrated(engine: &Engine) -> bool {
    engine.device().unwrap().profile.integrated
}

/// Returns the device addresses of the parts of a buffer that begins at `base`.
fn on_device(base: u64, parts: &Parts) -> (DeviceInputs<'static>, DeviceOutputs) {
    let at = |i: usize| base + parts.at[i] as u64 * 4;
    let inputs = DeviceInputs {
        query: at(0),
        key: at(1),
        value: at(2),
        past_key: None,
        past_value: None,
        mask: None,
        bias: None,
        bias_index: None,
        lengths: Lengths::default(),
    };
    let outputs = DeviceOutputs {
        output: Some(at(3)),
        lse: None,
        state: Some(StateTensors { m: at(4), s: at(5), w: at(6) }),
        present_key: None,
        present_value: None,
    };
    (inputs, outputs)
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn any_part_of_a_buffer_is_used_in_place() {
    let engine = gpu_engine();
    for (queries, keys) in [(37, 300), (1, 2000)] {
        let plan = engine.plan(&problem(queries, keys), &PlanOptions::default()).unwrap();
        let mut workspace = plan.workspace().unwrap();
        let dense = parts(queries, keys, 0);
        let mut ordinary = filled(&engine, &dense).to_vec();
        let (want, copied) = run(&plan, &mut ordinary, &dense, &mut workspace);
        assert_eq!(copied, dense.total * 4);
        assert!(want.iter().all(|y| f32::from_bits(*y).is_finite()));
        // The gaps 0, 4 and 1024 keep the parts aligned to a float4; the gap 7 does not.
        for gap in [0, 4, 7, 1024] {
            let parts = parts(queries, keys, gap);
            let mut buffer = filled(&engine, &parts);
            assert!(buffer.is_pinned() && buffer.data().addr().is_multiple_of(64));
            let (found, copied) = run(&plan, &mut buffer, &parts, &mut workspace);
            assert!(found == want, "{queries} x {keys}, gaps of {gap}");
            assert_eq!(copied, if integrated(&engine) { 0 } else { dense.total * 4 });
            let gaps = buffer.iter().filter(|x| x.is_nan()).count();
            assert_eq!(gaps, parts.total - dense.total, "a gap was written");
            // The same parts are used again, now by their device addresses.
            for i in 3..7 {
                buffer[parts.at[i]..][..parts.len[i]].fill(f32::NAN);
            }
            let (inputs, outputs) = on_device(buffer.device_address().unwrap(), &parts);
            // SAFETY: the buffer outlives the run, which is waited for, and nothing else uses it.
            unsafe {
                let mut bound = plan.bind_device(&inputs, &outputs, None, &mut workspace).unwrap();
                assert_eq!(bound.run().unwrap().copied, 0);
                bound.wait().unwrap();
            }
            let found: Vec<u32> = (3..7).flat_map(|i| bits(&buffer[parts.at[i]..][..parts.len[i]])).collect();
            assert!(found == want, "{queries} x {keys}, gaps of {gap}, by device address");
            // A tensor ends one element after the buffer. A driver that allocates whole pages may accept this.
            let (mut inputs, _) = on_device(buffer.device_address().unwrap(), &parts);
            inputs.value = buffer.device_address().unwrap() + (parts.total - parts.len[2] + 1) as u64 * 4;
            // SAFETY: the bound plan is never run.
            let bound = unsafe { plan.bind_device(&inputs, &outputs, None, &mut workspace) };
            if std::env::var_os("ELSA_STANDIN").is_some() {
                assert!(matches!(bound.map(drop), Err(BindError::Address { argument: "v", .. })));
            }
        }
    }
    assert_eq!(engine.host_buffer::<u8>(0).unwrap().device_address(), None);
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_buffer_that_is_dropped_waits_for_what_uses_it() {
    let engine = gpu_engine();
    let plan = engine.plan(&problem(37, 300), &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let parts = parts(37, 300, 0);
    let mut memory = filled(&engine, &parts);
    let (want, _) = run(&plan, &mut memory, &parts, &mut workspace);
    // Keys and values are not in the buffer of the output.
    let inputs_in = filled(&engine, &parts);
    memory.fill(f32::NAN);
    let (inputs, _) = on_device(inputs_in.device_address().unwrap(), &parts);
    let (_, outputs) = on_device(memory.device_address().unwrap(), &parts);
    // SAFETY: dropping a buffer waits for the run, and nothing else uses the buffers.
    unsafe { plan.bind_device(&inputs, &outputs, None, &mut workspace).unwrap().run().unwrap() };
    drop(inputs_in);
    let found: Vec<u32> = (3..7).flat_map(|i| bits(&memory[parts.at[i]..][..parts.len[i]])).collect();
    assert!(found == want);
}

/// Checks problems with divided keys and with undivided keys, with states and without.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_workspace_in_memory_of_the_callers_gives_the_same_bits() {
    let engine = gpu_engine();
    let context = engine.gpu().unwrap().context().unwrap();
    let mut divided = [false; 2];
    for (queries, keys) in [(37, 20), (1, 900)] {
        let plan = engine.plan(&problem(queries, keys), &PlanOptions::default()).unwrap();
        divided[usize::from(plan.gpu_choice().unwrap().divided())] = true;
        let parts = parts(queries, keys, 0);
        let mut host = filled(&engine, &parts);
        let (want, _) = run(&plan, &mut host, &parts, &mut plan.workspace().unwrap());
        let (least, most) = (plan.workspace_bytes(), plan.state_workspace_bytes());
        assert!(least <= most && most > 0);
        // The memory has additional bytes after the workspace, which must not change.
        let guard = 512;
        let memory = DeviceBuffer::new(&context, most + guard).unwrap();
        let stream = Stream::new(&context).unwrap();
        let before = vec![0x5au8; most + guard];
        let entered = context.enter().unwrap();
        // SAFETY: *room*: source and destination have those bytes; *alive*: the copy is waited for below.
        unsafe { stream.raw().copy_in(&entered, memory.address(), before.as_ptr(), before.len()).unwrap() };
        stream.raw().synchronize(&entered).unwrap();
        {
            // SAFETY: the memory outlives the workspace, and nothing else uses it.
            let mut workspace = unsafe { plan.workspace_on_device(memory.address(), most) }.unwrap();
            for _ in 0..2 {
                host[parts.at[3]..].fill(f32::NAN);
                let (inputs, outputs) = on_device(host.device_address().unwrap(), &parts);
                // SAFETY: the buffer outlives the run, which is waited for, and nothing else uses it.
                unsafe {
                    let mut bound = plan.bind_device(&inputs, &outputs, None, &mut workspace).unwrap();
                    bound.run().unwrap();
                    bound.wait().unwrap();
                }
                let found: Vec<u32> =
                    (3..7).flat_map(|i| bits(&host[parts.at[i]..][..parts.len[i]])).collect();
                assert!(found == want, "{queries} x {keys}");
                plan.warm(&mut workspace).unwrap();
            }
            // A run on host tensors gives the same bits.
            let mut ordinary = filled(&engine, &parts).to_vec();
            assert!(run(&plan, &mut ordinary, &parts, &mut workspace).0 == want, "{queries} x {keys}");
            workspace.close().unwrap();
        }
        let mut after = vec![0u8; most + guard];
        // SAFETY: *room*: `after` and the memory have those bytes; *alive*: the copy is waited for below.
        unsafe {
            stream.raw().copy_out(&entered, after.as_mut_ptr(), memory.address(), after.len()).unwrap();
        }
        stream.raw().synchronize(&entered).unwrap();
        assert!(after[most..] == before[most..], "bytes beyond the workspace were written");
        // The smaller workspace has room only for calls without states.
        if least < most {
            // SAFETY: the memory outlives the workspace, and nothing else uses it.
            let mut workspace = unsafe { plan.workspace_on_device(memory.address(), least) }.unwrap();
            let (inputs, mut outputs) = on_device(host.device_address().unwrap(), &parts);
            // SAFETY: the bound plan is never run.
            let refused = unsafe { plan.bind_device(&inputs, &outputs, None, &mut workspace) };
            let room = BindError::StateRoom { found: least, needed: most };
            assert_eq!(refused.map(drop), Err(room));
            plan.warm(&mut workspace).unwrap();
            outputs.state = None;
            // SAFETY: the buffer outlives the run, which is waited for, and nothing else uses it.
            unsafe {
                let mut bound = plan.bind_device(&inputs, &outputs, None, &mut workspace).unwrap();
                bound.run().unwrap();
                bound.wait().unwrap();
            }
            assert!(bits(&host[parts.at[3]..][..parts.len[3]])[..] == want[..parts.len[3]]);
        }
    }
    assert_eq!(divided, [true; 2], "both kinds of plan");
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn memory_that_cannot_hold_a_workspace_is_refused() {
    let engine = gpu_engine();
    let context = engine.gpu().unwrap().context().unwrap();
    let plan = engine.plan(&problem(1, 9000), &PlanOptions::default()).unwrap();
    let needed = plan.workspace_bytes();
    assert!(needed > 256);
    let memory = DeviceBuffer::new(&context, needed).unwrap();
    let at = memory.address();
    // SAFETY: rejected memory is not used, and an accepted workspace is dropped before its memory.
    let made = |address, bytes| unsafe { plan.workspace_on_device(address, bytes) }.map(drop);
    assert_eq!(made(at, needed), Ok(()));
    assert_eq!(made(0, needed), Err(PlanError::Null { found: needed, needed }));
    assert_eq!(made(0, 0), Err(PlanError::Null { found: 0, needed }));
    assert_eq!(made(at, needed - 1), Err(PlanError::Room { found: needed - 1, needed }));
    for bytes in [usize::MAX, isize::MAX as usize + 1] {
        assert_eq!(made(at, bytes), Err(PlanError::Extent { found: bytes, address: at, needed }));
    }
    let huge = isize::MAX as usize;
    assert_eq!(made(at, huge), Err(PlanError::DeviceShort { found: needed, given: huge }));
    assert_eq!(made(at, needed + 1), Err(PlanError::DeviceShort { found: needed, given: needed + 1 }));
    for shift in [1, 4, 128] {
        let refused = PlanError::Alignment { address: at + shift, alignment: 256 };
        assert_eq!(made(at + shift, needed), Err(refused));
    }
    let mut host = vec![0u8; needed + 256];
    let ordinary = host.as_mut_ptr() as u64 / 256 * 256 + 256;
    assert_eq!(made(ordinary, needed), Err(PlanError::Address { address: ordinary }));
    let driver = crate::cuda::driver::Driver::open().unwrap();
    let foreign = driver.device(0).unwrap().fresh().unwrap();
    let theirs = DeviceBuffer::new(&foreign, needed).unwrap();
    assert_eq!(made(theirs.address(), needed), Err(PlanError::Address { address: theirs.address() }));

    // A plan that needs no bytes accepts a workspace without memory.
    let small = engine.plan(&problem(37, 20), &PlanOptions::default()).unwrap();
    assert_eq!(small.workspace_bytes(), 0);
    // SAFETY: the workspace has no memory.
    assert!(unsafe { small.workspace_on_device(0, 0) }.is_ok());
    // A plan that needs bytes rejects a workspace without memory.
    // SAFETY: the workspace has no memory.
    let mut room = unsafe { small.workspace_on_device(at, 0) }.unwrap();
    let buffer = filled(&engine, &parts(1, 9000, 0));
    let (inputs, outputs) = on_device(buffer.device_address().unwrap(), &parts(1, 9000, 0));
    // SAFETY: the bound plan is never run.
    let bound = unsafe { plan.bind_device(&inputs, &outputs, None, &mut room) };
    assert!(matches!(bound.map(drop), Err(BindError::Room { found: 0, .. })));

    let options = EngineOptions { backend: Some(crate::Backend::SCALAR), ..EngineOptions::default() };
    let cpu = Engine::new(&options).unwrap().plan(&problem(1, 9000), &PlanOptions::default()).unwrap();
    // SAFETY: rejected memory is not used.
    let refused = unsafe { cpu.workspace_on_device(at, needed) }.map(drop);
    assert_eq!(refused, Err(PlanError::OnHost { found: crate::Backend::SCALAR }));
    // This is the message of a workspace that was lost with its context.
    assert!(DeviceError::LostWorkspace.to_string().contains("; allowed: "));
}
