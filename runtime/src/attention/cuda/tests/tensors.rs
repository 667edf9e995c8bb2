//! Tests of device tensors: they lead to the same bits as host tensors, runs use the caller's streams, and every error
//! is returned before a launch.

use crate::cuda::driver::{Context, DeviceBuffer, Event, RawStream, Stream};
use crate::testing::{bits, gpu_engine, noise};
use crate::{
    BindError, CudaContext, CudaOptions, DeviceInputs, DeviceOutputs, Engine, EngineOptions, Fallback, Plan,
    PlanOptions, RunError, Trust, Workspace,
};
use elsa_core::attention::{Alignment, Inputs, Lengths, Outputs, Problem, Spec};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::view::{Layout, View};
use std::sync::Arc;

pub(super) const HEADS: usize = 2;
pub(super) const QUERIES: usize = 37;
pub(super) const KEYS: usize = 300;
pub(super) const D: usize = 16;

pub(super) fn problem(queries: usize) -> Problem {
    let view = |n| View::dense("x", Layout::Bhnd, &[HEADS, n, D], None).unwrap();
    Spec::new(DType::F32, view(queries), view(KEYS), view(KEYS), view(queries)).check().unwrap()
}

/// The tensors of a problem, on the host and on the device.
pub(super) struct Fixture {
    pub(super) stream: Stream,
    host: [Vec<f32>; 3],
    pub(super) q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    pub(super) y: DeviceBuffer,
    lse: DeviceBuffer,
}

impl Fixture {
    pub(super) fn new(context: &Arc<Context>) -> Fixture {
        let stream = Stream::new(context).unwrap();
        let sizes = [HEADS * QUERIES * D, HEADS * KEYS * D, HEADS * KEYS * D];
        let host = [noise(1, sizes[0]), noise(2, sizes[1]), noise(3, sizes[2])];
        let upload = |x: &[f32]| upload(context, &stream, x);
        let [q, k, v] = [upload(&host[0]), upload(&host[1]), upload(&host[2])];
        let empty = vec![f32::NAN; sizes[0]];
        let (y, lse) = (upload(&empty), upload(&empty[..HEADS * QUERIES]));
        stream.raw().synchronize(&context.enter().unwrap()).unwrap();
        Fixture { stream, host, q, k, v, y, lse }
    }

    pub(super) fn inputs(&self) -> DeviceInputs<'static> {
        DeviceInputs {
            query: self.q.address(),
            key: self.k.address(),
            value: self.v.address(),
            past_key: None,
            past_value: None,
            mask: None,
            bias: None,
            bias_index: None,
            lengths: Lengths::default(),
        }
    }

    pub(super) fn outputs(&self) -> DeviceOutputs {
        DeviceOutputs {
            output: Some(self.y.address()),
            lse: Some(self.lse.address()),
            state: None,
            present_key: None,
            present_value: None,
        }
    }

    /// Returns the output, read in another stream without waiting for the run's stream.
    fn read(&self, context: &Arc<Context>) -> Vec<f32> {
        download(context, &self.y, HEADS * QUERIES * D)
    }
}

/// Starts a copy to the device. The copy is complete after `stream` has been synchronised.
pub(super) fn upload(context: &Arc<Context>, stream: &Stream, x: &[f32]) -> DeviceBuffer {
    let buffer = DeviceBuffer::new(context, size_of_val(x)).unwrap();
    let entered = context.enter().unwrap();
    // SAFETY: *room*: source and destination have these bytes; *alive*: the tests wait before they drop either of them.
    unsafe { stream.raw().copy_in(&entered, buffer.address(), x.as_ptr().cast(), size_of_val(x)).unwrap() };
    buffer
}

/// Returns the first `n` values of a buffer, read in a separate stream.
pub(super) fn download(context: &Arc<Context>, buffer: &DeviceBuffer, n: usize) -> Vec<f32> {
    let mut y = vec![0.0f32; n];
    let entered = context.enter().unwrap();
    let stream = Stream::new(context).unwrap();
    // SAFETY: *room*: `y` has the bytes that are read; *alive*: the copy is waited for below.
    unsafe { stream.raw().copy_out(&entered, y.as_mut_ptr().cast(), buffer.address(), n * 4).unwrap() };
    stream.raw().synchronize(&entered).unwrap();
    y
}

pub(super) fn context(engine: &Engine) -> Arc<Context> {
    engine.gpu().unwrap().context().unwrap()
}

fn by_host(plan: &Plan, host: &[Vec<f32>; 3]) -> Vec<f32> {
    by_host_in(plan, host, Lengths::default(), &mut plan.workspace().unwrap())
}

fn by_host_in(
    plan: &Plan,
    host: &[Vec<f32>; 3],
    lengths: Lengths<'_>,
    workspace: &mut Workspace,
) -> Vec<f32> {
    let mut y = vec![f32::NAN; HEADS * QUERIES * D];
    let mut inputs = Inputs::new(Elements::F32(&host[0]), Elements::F32(&host[1]), Elements::F32(&host[2]));
    inputs.lengths = lengths;
    let outputs = Outputs::new(ElementsMut::F32(&mut y));
    plan.bind(inputs, outputs, workspace).unwrap().run().unwrap();
    y
}

/// Nothing, and everything that a caller may guarantee.
const TRUSTS: [Trust; 2] =
    [Trust { addresses: false, streams: false }, Trust { addresses: true, streams: true }];

/// Enqueues a run of the plan and does not wait for it.
fn enqueue(plan: &Plan, fixture: &Fixture, lengths: Lengths<'_>, trust: Trust, workspace: &mut Workspace) {
    let inputs = DeviceInputs { lengths, ..fixture.inputs() };
    let stream = Some(fixture.stream.raw());
    // SAFETY: the fixture outlives the waits of the tests, and nothing else uses its tensors, which are whole. Its stream
    // outlives the workspace.
    let bound = unsafe { plan.bind_device_trusted(&inputs, &fixture.outputs(), stream, trust, workspace) };
    // SAFETY: as for the binding above.
    unsafe { bound.unwrap().run() }.unwrap();
}

/// Enqueues runs that have different lengths and share the workspace's table of sequences.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn runs_that_share_a_workspace_take_place_one_after_the_other() {
    let engine = gpu_engine();
    let context = context(&engine);
    let problem = problem(QUERIES).spec().key_lengths(true).check().unwrap();
    let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
    let lengths = [[KEYS as i64], [17], [150]];
    let [a, b, c] = lengths.each_ref().map(|keys| Lengths { keys: Some(keys), ..Lengths::default() });
    let (first, second) = (Fixture::new(&context), Fixture::new(&context));
    let host = &first.host;
    let want = [a, b, c].map(|keys| bits(&by_host_in(&plan, host, keys, &mut plan.workspace().unwrap())));
    assert!(want[0] != want[1] && want[1] != want[2]);
    let wait = |fixture: &Fixture| fixture.stream.raw().synchronize(&context.enter().unwrap()).unwrap();

    for trust in TRUSTS {
        // Two runs use device tensors in two streams, and the test waits for the later run first. Then a run uses host
        // tensors.
        let mut workspace = plan.workspace().unwrap();
        enqueue(&plan, &first, a, trust, &mut workspace);
        enqueue(&plan, &second, b, trust, &mut workspace);
        wait(&second);
        assert_eq!(bits(&second.read(&context)), want[1]);
        assert_eq!(bits(&first.read(&context)), want[0]);
        enqueue(&plan, &first, b, trust, &mut workspace);
        assert_eq!(bits(&by_host_in(&plan, host, c, &mut workspace)), want[2]);
        assert_eq!(bits(&first.read(&context)), want[1]);
        // Closing a workspace waits for its run, as dropping it does.
        enqueue(&plan, &first, c, trust, &mut workspace);
        workspace.close().unwrap();
        assert_eq!(bits(&first.read(&context)), want[2]);
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn device_tensors_give_the_bits_of_host_tensors() {
    let engine = gpu_engine();
    let context = context(&engine);
    let fixture = Fixture::new(&context);
    let problem = problem(QUERIES);
    let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
    let want = by_host(&plan, &fixture.host);
    assert!(want.iter().all(|y| y.is_finite()));
    let other = Stream::new(&context).unwrap();
    // SAFETY: null is the default stream.
    let default = unsafe { RawStream::new(std::ptr::null_mut()) };
    let streams = [None, Some(other.raw()), Some(fixture.stream.raw()), Some(default)];
    for (trust, stream) in TRUSTS.into_iter().flat_map(|trust| streams.map(|stream| (trust, stream))) {
        let fixture = Fixture::new(&context);
        let mut workspace = plan.workspace().unwrap();
        let (inputs, outputs) = (fixture.inputs(), fixture.outputs());
        // SAFETY: the fixture outlives the wait below, and nothing else uses its tensors, which are whole. The streams
        // outlive the workspace.
        let bound = unsafe { plan.bind_device_trusted(&inputs, &outputs, stream, trust, &mut workspace) };
        let mut bound = bound.unwrap();
        for _ in 0..2 {
            // SAFETY: as for the binding above.
            unsafe { bound.run() }.unwrap();
        }
        if std::env::var_os("ELSA_STANDIN").is_some() {
            // The stand-in driver executes nothing before a wait, and a run does not wait.
            assert!(fixture.read(&context).iter().all(|y| y.is_nan()), "the run has waited");
        }
        bound.wait().unwrap();
        assert_eq!(bits(&fixture.read(&context)), bits(&want));
    }
}

/// Enqueues the copy of the queries in one stream and the run in another. A third stream waits for the run. The events
/// are the only order between the streams.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_run_waits_for_an_event_and_marks_another() {
    let engine = gpu_engine();
    let context = context(&engine);
    let fixture = Fixture::new(&context);
    let plan = engine.plan(&problem(QUERIES), &PlanOptions::default()).unwrap();
    let want = bits(&by_host(&plan, &fixture.host));
    let (camera, next) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let (taken, done) = (Event::new(&context).unwrap(), Event::new(&context).unwrap());
    let entered = context.enter().unwrap();
    let unknown = vec![f32::NAN; HEADS * QUERIES * D];
    let fill = |x: &[f32]| {
        let (to, bytes) = (fixture.q.address(), size_of_val(x));
        // SAFETY: *room*: source and destination have these bytes; *alive*: the test waits before it drops either.
        unsafe { camera.raw().copy_in(&entered, to, x.as_ptr().cast(), bytes) }.unwrap();
    };
    fill(&unknown);
    camera.raw().synchronize(&entered).unwrap();
    fill(&fixture.host[0]);
    taken.record(&entered, camera.raw()).unwrap();

    let mut workspace = plan.workspace().unwrap();
    let stream = Some(fixture.stream.raw());
    // SAFETY: the fixture outlives the waits, and nothing else uses its tensors after the event.
    let bound = unsafe { plan.bind_device(&fixture.inputs(), &fixture.outputs(), stream, &mut workspace) };
    let mut bound = bound.unwrap();
    bound.follow(taken.raw()).unwrap();
    // SAFETY: as for the binding above.
    unsafe { bound.run() }.unwrap();
    bound.mark(done.raw()).unwrap();
    done.precede(&entered, next.raw()).unwrap();
    next.raw().synchronize(&entered).unwrap();
    assert_eq!(bits(&fixture.read(&context)), want);
    bound.wait().unwrap();
}

/// Checks errors that a caller in C cannot reach, because the C interface rejects such tensors earlier: misaligned
/// addresses, tensors that the problem does not have, and missing tensors. Also checks that an allocation that is one
/// element too short is refused.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn tensors_that_do_not_fit_the_problem_are_refused() {
    let engine = gpu_engine();
    let context = context(&engine);
    let fixture = Fixture::new(&context);
    let bind = |problem: &Problem, inputs: &DeviceInputs<'_>, outputs: &DeviceOutputs, trust| {
        let plan = engine.plan(problem, &PlanOptions::default()).unwrap();
        let mut workspace = plan.workspace().unwrap();
        // SAFETY: the bound plan is never run.
        unsafe { plan.bind_device_trusted(inputs, outputs, None, trust, &mut workspace) }.map(|_| ())
    };
    let refused = |problem: &Problem, inputs: &DeviceInputs<'_>, outputs: &DeviceOutputs| {
        bind(problem, inputs, outputs, TRUSTS[0]).unwrap_err()
    };
    let plain = problem(QUERIES);
    let inputs = DeviceInputs { value: fixture.v.address() + 2, ..fixture.inputs() };
    let error = refused(&plain, &inputs, &fixture.outputs());
    assert!(matches!(error, BindError::Alignment { argument: "v", alignment: 4, .. }), "{error}");
    assert_eq!(bind(&plain, &inputs, &fixture.outputs(), TRUSTS[1]), Err(error));
    // The tensor has one element too few.
    let short = DeviceBuffer::new(&context, HEADS * KEYS * D * 4 - 4).unwrap();
    let inputs = DeviceInputs { value: short.address(), ..fixture.inputs() };
    let error = refused(&plain, &inputs, &fixture.outputs());
    assert!(
        matches!(error, BindError::DeviceShort { argument: "v", found, needed } if found + 4 == needed),
        "{error}"
    );
    // The driver is not asked about a trusted address.
    assert_eq!(bind(&plain, &inputs, &fixture.outputs(), TRUSTS[1]), Ok(()));
    let inputs = DeviceInputs { mask: Some(fixture.q.address()), ..fixture.inputs() };
    let error = refused(&plain, &inputs, &fixture.outputs()).to_string();
    assert!(error.starts_with("mask: "), "{error}");
    let outputs = DeviceOutputs { present_key: Some(fixture.y.address()), ..fixture.outputs() };
    let error = refused(&plain, &fixture.inputs(), &outputs).to_string();
    assert!(error.starts_with("present_k: "), "{error}");
    let spec = plain.spec();
    let keeping = spec.present_key(spec.key).present_value(spec.value).check().unwrap();
    let error = refused(&keeping, &fixture.inputs(), &fixture.outputs()).to_string();
    assert!(error.starts_with("present_k: "), "{error}");
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn the_current_context_of_the_caller_is_used_and_kept() {
    let theirs = {
        let (device, _) = crate::cuda::gpu::Gpu::probe(&CudaOptions::default()).unwrap();
        device.fresh().unwrap()
    };
    let current = |fallback| EngineOptions {
        backend: Some(crate::Backend::Cuda),
        threads: Some(1),
        fallback,
        cuda: CudaOptions { context: CudaContext::Current, ..CudaOptions::default() },
        ..EngineOptions::default()
    };
    // If no context is current, the engine fails, or computes on the CPU.
    let absent = Engine::new(&current(Fallback::Fail)).unwrap_err().to_string();
    assert!(absent.contains("context"), "{absent}");
    assert!(Engine::new(&current(Fallback::Cpu)).unwrap().gpu().is_none());

    let engine = {
        let _entered = theirs.enter().unwrap();
        Engine::new(&current(Fallback::Fail)).unwrap()
    };
    let problem = problem(QUERIES);
    let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
    // The tensors are in memory of the caller's context, and no context is current.
    let fixture = Fixture::new(&theirs);
    let mut workspace = plan.workspace().unwrap();
    // SAFETY: the fixture outlives the wait below, and nothing else uses its tensors.
    let mut bound = unsafe {
        plan.bind_device(&fixture.inputs(), &fixture.outputs(), Some(fixture.stream.raw()), &mut workspace)
    }
    .unwrap();
    // SAFETY: as for the binding above.
    unsafe { bound.run() }.unwrap();
    bound.wait().unwrap();
    let found = fixture.read(&theirs);
    let want = by_host(&gpu_engine().plan(&problem, &PlanOptions::default()).unwrap(), &fixture.host);
    assert_eq!(bits(&found), bits(&want));
    // The context still belongs to the caller after the engine is gone.
    drop((workspace, plan, engine));
    assert_eq!(bits(&fixture.read(&theirs)), bits(&want));
}

/// Checks that a cache with room for more tokens receives the new rows while its other rows stay unchanged. Also checks
/// that a call without an output computes the same log-sum-exp as a call with an output.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn caches_on_the_device_are_appended_to_in_place() {
    const NEW: usize = 7;
    const ROOM: usize = KEYS + 4;
    let engine = gpu_engine();
    let context = context(&engine);
    let fixture = Fixture::new(&context);
    let past = KEYS - NEW;
    let rows = |n, room| View::new("x", [1, HEADS, n, D], [HEADS * room * D, room * D, D, 1]).unwrap();
    let query = rows(QUERIES, QUERIES);
    let copying = Spec::new(DType::F32, query, rows(NEW, KEYS), rows(NEW, KEYS), query)
        .past_key(rows(past, KEYS))
        .past_value(rows(past, KEYS));
    let appending = copying
        .append(true)
        .past_key(rows(past, ROOM))
        .past_value(rows(past, ROOM))
        .present_key(rows(KEYS, ROOM))
        .present_value(rows(KEYS, ROOM));
    let mut want = vec![f32::NAN; HEADS * QUERIES * D];
    let [_, k, v] = fixture.host.each_ref().map(|x| &x[..]);
    let [_, new_k, new_v] = fixture.host.each_ref().map(|x| Elements::F32(&x[(past * D).min(x.len())..]));
    let inputs = Inputs {
        past_key: Some(Elements::F32(k)),
        past_value: Some(Elements::F32(v)),
        ..Inputs::new(Elements::F32(&fixture.host[0]), new_k, new_v)
    };
    let plan = engine.plan(&copying.check().unwrap(), &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let outputs = Outputs::new(ElementsMut::F32(&mut want));
    plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();

    // The cache has the first `tokens` rows of `x`, followed by NaN.
    let cache = |x: &[f32], tokens: usize| {
        let mut cache = vec![f32::NAN; HEADS * ROOM * D];
        for h in 0..HEADS {
            let row = |room: usize| h * room * D..h * room * D + tokens * D;
            cache[row(ROOM)].copy_from_slice(&x[row(KEYS)]);
        }
        cache
    };
    let host = [k, v].map(|x| cache(x, past));
    let caches = host.each_ref().map(|x| upload(&context, &fixture.stream, x));
    let plan = engine.plan(&appending.check().unwrap(), &PlanOptions::default()).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let inputs = DeviceInputs {
        key: fixture.k.address() + (past * D * 4) as u64,
        value: fixture.v.address() + (past * D * 4) as u64,
        ..fixture.inputs()
    };
    let [present_key, present_value] = caches.each_ref().map(|cache| Some(cache.address()));
    let outputs = DeviceOutputs { present_key, present_value, ..fixture.outputs() };
    let twice = DeviceInputs { past_key: present_key, ..inputs };
    // SAFETY: the bound plan is never run.
    let refused = unsafe { plan.bind_device(&twice, &outputs, None, &mut workspace) }.map(|_| ());
    assert!(matches!(refused, Err(BindError::Problem(_))), "{refused:?}");
    let mut lse = Vec::new();
    for output in [outputs.output, None] {
        let outputs = DeviceOutputs { output, ..outputs };
        let stream = Some(fixture.stream.raw());
        // SAFETY: fixture and caches outlive the wait below, and nothing else uses them.
        let mut bound = unsafe { plan.bind_device(&inputs, &outputs, stream, &mut workspace) }.unwrap();
        // SAFETY: as for the binding above.
        unsafe { bound.run() }.unwrap();
        bound.wait().unwrap();
        lse.push(download(&context, &fixture.lse, HEADS * QUERIES));
        assert_eq!(bits(&fixture.read(&context)), bits(&want));
    }
    assert!(lse[0].iter().zip(&lse[1]).all(|(a, b)| (a - b).abs() <= 1e-6), "{lse:?}");
    for (found, x) in caches.iter().zip([k, v]) {
        assert_eq!(bits(&download(&context, found, HEADS * ROOM * D)), bits(&cache(x, KEYS)));
    }
    // The call has neither an output nor any other result of its rows.
    let nothing = DeviceOutputs { present_key, present_value, ..DeviceOutputs::default() };
    // SAFETY: the bound plan is never run.
    let refused = unsafe { plan.bind_device(&inputs, &nothing, None, &mut workspace) }.map(|_| ());
    assert!(matches!(refused, Err(BindError::Problem(_))), "{refused:?}");
}

/// Returns the output of a plan over device tensors that begin `shift` elements into their allocations.
fn shifted(
    engine: &Engine,
    plan: &Plan,
    problem: &Problem,
    host: &[Vec<f32>; 3],
    shift: [usize; 4],
) -> Vec<u32> {
    let context = context(engine);
    let stream = Stream::new(&context).unwrap();
    let mut y = vec![f32::NAN; problem.spec().output.extent()];
    let sizes = [host[0].len(), host[1].len(), host[2].len(), y.len()];
    let buffers: [DeviceBuffer; 4] =
        std::array::from_fn(|i| DeviceBuffer::new(&context, (sizes[i] + shift[i]) * 4).unwrap());
    let [q, k, v, out] = std::array::from_fn(|i| buffers[i].address() + shift[i] as u64 * 4);
    {
        let entered = context.enter().unwrap();
        for (to, from) in [q, k, v].into_iter().zip(host) {
            // SAFETY: *room*: the buffer has room for the shift and the elements; *alive*: the copy is waited for
            // below.
            unsafe {
                stream.raw().copy_in(&entered, to, from.as_ptr().cast(), size_of_val(&from[..])).unwrap()
            };
        }
        stream.raw().synchronize(&entered).unwrap();
    }
    let inputs = DeviceInputs {
        query: q,
        key: k,
        value: v,
        past_key: None,
        past_value: None,
        mask: None,
        bias: None,
        bias_index: None,
        lengths: Lengths::default(),
    };
    let outputs = DeviceOutputs { output: Some(out), ..DeviceOutputs::default() };
    let mut workspace = plan.workspace().unwrap();
    // SAFETY: the buffers outlive the run, which is waited for, and nothing else uses them.
    unsafe {
        let mut bound = plan.bind_device(&inputs, &outputs, None, &mut workspace).unwrap();
        bound.run().unwrap();
        bound.wait().unwrap();
    }
    let entered = context.enter().unwrap();
    // SAFETY: *room*: `y` has the bytes of the output; *alive*: the copy is waited for below.
    unsafe { stream.raw().copy_out(&entered, y.as_mut_ptr().cast(), out, y.len() * 4).unwrap() };
    stream.raw().synchronize(&entered).unwrap();
    bits(&y)
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn the_alignment_of_addresses_changes_no_bit() {
    let engine = gpu_engine();
    for (queries, keys, d, causal) in [
        (3, 300, 64, false),
        (70, 300, 64, false),
        (70, 300, 64, true),
        (150, 200, 64, false),
        (70, 130, 32, true),
    ] {
        let view = |n| View::dense("x", Layout::Bhnd, &[HEADS, n, d], None).unwrap();
        let mut spec = Spec::new(DType::F32, view(queries), view(keys), view(keys), view(queries));
        spec.causal = causal.then_some(Alignment::TopLeft);
        let problem = spec.check().unwrap();
        // Every third query row has scores that move its reference; its neighbours do not.
        let mut host =
            [noise(4, HEADS * queries * d), noise(5, HEADS * keys * d), noise(6, HEADS * keys * d)];
        host[0].iter_mut().enumerate().for_each(|(i, x)| *x *= if i / d % 3 == 0 { 40.0 } else { 1.0 });
        let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
        let aligned = shifted(&engine, &plan, &problem, &host, [0; 4]);
        for shift in [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 2, 3, 1]] {
            let moved = shifted(&engine, &plan, &problem, &host, shift);
            assert!(moved == aligned, "{}: {queries} x {keys} x {d}, {shift:?}", plan.kernel());
        }
    }
}

/// Uses the caller's streams and the caller's memory for the runs, and checks that a certificate waits for its run.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn runs_on_device_tensors_are_certified_as_those_on_host_tensors() {
    let engine = gpu_engine();
    let context = context(&engine);
    let plan =
        engine.plan(&problem(QUERIES), &PlanOptions { certify: true, ..PlanOptions::default() }).unwrap();
    let fixture = Fixture::new(&context);
    let mut own = plan.workspace().unwrap();
    by_host_in(&plan, &fixture.host, Lengths::default(), &mut own);
    let certified = own.certificate().unwrap();
    let (want, channels) = ((certified.measured, certified.prior), certified.channels().to_vec());
    assert!(certified.claim().is_ok() && channels.iter().all(|x| *x > 0.5 && *x <= 1.0));
    let memory = DeviceBuffer::new(&context, plan.workspace_bytes()).unwrap();
    // SAFETY: the memory outlives the workspace, and nothing else uses it.
    let lent = unsafe { plan.workspace_on_device(memory.address(), memory.bytes()) }.unwrap();
    for mut workspace in [plan.workspace().unwrap(), lent] {
        assert_eq!(workspace.certificate().unwrap_err(), RunError::NoRun);
        for stream in [None, Some(fixture.stream.raw())] {
            // SAFETY: the tensors outlive the runs, which are waited for, and nothing else uses them.
            unsafe {
                let (inputs, outputs) = (fixture.inputs(), fixture.outputs());
                let mut bound = plan.bind_device(&inputs, &outputs, stream, &mut workspace).unwrap();
                bound.run().unwrap();
                let found = bound.certificate().unwrap();
                assert_eq!(((found.measured, found.prior), found.channels()), (want, &channels[..]));
                bound.run().unwrap();
                bound.wait().unwrap();
            }
            let found = workspace.certificate().unwrap();
            assert_eq!(((found.measured, found.prior), found.channels()), (want, &channels[..]));
        }
    }
}
