//! Tests of calls that a workspace keeps by their keys.

use super::tensors::{D, Fixture, HEADS, KEYS, QUERIES, context, download, problem, upload};
use crate::cuda::driver::{Context, DeviceBuffer};
use crate::testing::{bits, gpu_engine};
use crate::{BindError, DeviceOutputs, Plan, PlanOptions, Trust, Workspace};
use elsa_core::attention::{Spec, StateTensors};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};
use std::sync::Arc;

const NONE: Trust = Trust { addresses: false, streams: false };
const ADDRESSES: Trust = Trust { addresses: true, streams: false };
const ALL: Trust = Trust { addresses: true, streams: true };

/// Runs a plan with a key, and waits. Returns whether the tensors were requested.
fn run(
    plan: &Plan,
    fixture: &Fixture,
    outputs: &DeviceOutputs,
    key: Option<&[u8]>,
    trust: Trust,
    workspace: &mut Workspace,
) -> bool {
    let mut asked = false;
    let tensors = || {
        asked = true;
        Ok::<_, BindError>((fixture.inputs(), *outputs))
    };
    let parts = key.map(|key| [key]);
    let (key, stream) = (parts.as_ref().map(|parts| parts.as_slice()), Some(fixture.stream.raw()));
    // SAFETY: the fixture outlives the wait, and nothing else uses its tensors, which are whole. Its stream outlives the
    // workspace. The tests choose keys for the plan and the tensors.
    let mut bound = unsafe { plan.bind_device_keyed(key, tensors, stream, trust, workspace) }.unwrap();
    // SAFETY: as for the binding above.
    unsafe { bound.run() }.unwrap();
    bound.wait().unwrap();
    asked
}

/// Returns the first `n` bits of the output, and overwrites them.
fn taken(fixture: &Fixture, context: &Arc<Context>, n: usize) -> Vec<u32> {
    let found = bits(&download(context, &fixture.y, n));
    write(context, fixture, fixture.y.address(), &vec![f32::NAN; n]);
    found
}

/// Copies numbers to the device, and waits.
fn write(context: &Arc<Context>, fixture: &Fixture, to: u64, x: &[f32]) {
    let (entered, stream) = (context.enter().unwrap(), fixture.stream.raw());
    // SAFETY: *room*: the callers pass the address of a buffer with room; *alive*: the copy is waited for.
    unsafe { stream.copy_in(&entered, to, x.as_ptr().cast(), size_of_val(x)) }.unwrap();
    stream.synchronize(&entered).unwrap();
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_known_call_computes_without_its_tensors() {
    let engine = gpu_engine();
    let context = context(&engine);
    let queries = [QUERIES, QUERIES - 5];
    let plans = queries.map(|n| engine.plan(&problem(n), &PlanOptions::default()).unwrap());
    let sets = [Fixture::new(&context), Fixture::new(&context)];
    write(&context, &sets[1], sets[1].q.address(), &[0.0; HEADS * QUERIES * D]);
    let calls = [(0, 0), (1, 0), (0, 1), (1, 1)];
    let call = |(plan, set): (usize, usize), key: Option<&[u8]>, trust, workspace: &mut Workspace| {
        let asked = run(&plans[plan], &sets[set], &sets[set].outputs(), key, trust, workspace);
        (asked, taken(&sets[set], &context, HEADS * queries[plan] * D))
    };
    let want = calls.map(|at| call(at, None, NONE, &mut plans[at.0].workspace().unwrap()).1);
    assert!(want[0] != want[2] && want[1] != want[3] && want[0][..D] == want[1][..D]);
    for trust in [ADDRESSES, ALL] {
        let mut workspace = Workspace::shared(&[&plans[0], &plans[1]]).unwrap();
        for round in 0..3 {
            for ((number, at), want) in (0_u64..).zip(calls).zip(&want) {
                let found = call(at, Some(&number.to_ne_bytes()), trust, &mut workspace);
                assert!(found == (round == 0, want.clone()), "round {round}, {at:?}");
            }
        }
    }
    // Without the facts about addresses and without a key, nothing is kept.
    let mut workspace = plans[0].workspace().unwrap();
    for (key, trust) in [(Some([7_u8; 8].as_slice()), NONE), (Some(&[7; 8]), NONE), (None, ALL), (None, ALL)]
    {
        assert!(call(calls[0], key, trust, &mut workspace) == (true, want[0].clone()));
    }
}

/// A call that outputs states uses additional memory, which a call with more rows replaces.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn kept_calls_end_with_the_memory_that_they_use() {
    let engine = gpu_engine();
    let context = context(&engine);
    let fixture = Fixture::new(&context);
    let rows = [HEADS * 8, HEADS * QUERIES];
    let [small, large] = rows.map(|rows| {
        let view = |n| View::dense("x", Layout::Bhnd, &[HEADS, n, D], None).unwrap();
        let spec = Spec::new(DType::F32, view(rows / HEADS), view(16), view(16), view(rows / HEADS));
        engine.plan(&spec.check().unwrap(), &PlanOptions::default()).unwrap()
    });
    let stream = &fixture.stream;
    let states = [1, 1, D].map(|each| upload(&context, stream, &vec![f32::NAN; each * rows[1]]));
    let [m, s, w] = states.each_ref().map(DeviceBuffer::address);
    let outputs =
        DeviceOutputs { state: Some(StateTensors { m, s, w }), output: None, lse: None, ..fixture.outputs() };
    let call = |plan: &Plan, number: u64, workspace: &mut Workspace| {
        let asked = run(plan, &fixture, &outputs, Some(&number.to_ne_bytes()), ALL, workspace);
        let found = bits(&download(&context, &states[2], rows[0] * D));
        write(&context, &fixture, w, &vec![f32::NAN; rows[0] * D]);
        (asked, found)
    };
    let want = call(&small, 0, &mut small.workspace().unwrap()).1;
    assert!(want.iter().all(|w| f32::from_bits(*w).is_finite()) && KEYS > 16);
    let mut workspace = Workspace::shared(&[&small, &large]).unwrap();
    for (number, asked) in [(0, true), (0, false), (1, true), (0, true), (0, false)] {
        let plan = if number == 0 { &small } else { &large };
        let found = call(plan, number, &mut workspace);
        assert_eq!(found.0, asked, "{number}");
        assert!(number == 1 || found.1 == want);
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_known_call_may_have_other_addresses() {
    let engine = gpu_engine();
    let context = context(&engine);
    let plan = engine.plan(&problem(QUERIES), &PlanOptions::default()).unwrap();
    let sets = [Fixture::new(&context), Fixture::new(&context), Fixture::new(&context)];
    write(&context, &sets[1], sets[1].q.address(), &[0.0; HEADS * QUERIES * D]);
    let addresses = |set: &Fixture| {
        let (inputs, outputs) = (set.inputs(), set.outputs());
        [inputs.query, inputs.key, inputs.value, outputs.output.unwrap(), outputs.lse.unwrap()]
    };
    let call = |set: &Fixture, key: Option<&[u8]>, workspace: &mut Workspace| {
        let asked = run(&plan, set, &set.outputs(), key, ALL, workspace);
        (asked, taken(set, &context, HEADS * QUERIES * D))
    };
    let want = sets.each_ref().map(|set| call(set, None, &mut plan.workspace().unwrap()).1);
    assert!(want[0] != want[1] && want[0] == want[2]);
    let mut workspace = plan.workspace().unwrap();
    // Sanitizers align memory less than a device does. Each alignment needs a list of its own.
    let mut alignments: Vec<[u64; 5]> = Vec::new();
    for round in 0..3 {
        for (set, want) in sets.iter().zip(&want) {
            let at = addresses(set);
            let alignment = at.map(|address| address % 256);
            let is_new = !alignments.contains(&alignment);
            if is_new {
                alignments.push(alignment);
            }
            // The first word of a key names the plan.
            let key: Vec<u8> = [&[7], &at[..]].concat().iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert!(
                call(set, Some(&key), &mut workspace) == (is_new, want.clone()),
                "round {round}, {at:x?}"
            );
        }
    }
}
