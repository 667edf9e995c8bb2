//! Checks that a cancellation ends the calls that have already started, but no later call: the next call has the bits of an
//! undisturbed call. Covers calls of every operator, and streams. The calls themselves request the cancellation, so that no
//! test depends on time.

use super::linear_recurrence::Case as RecurrenceCase;
use elsa_core::attention::{Operand, StateOut};
use elsa_core::dtype::DType;
use elsa_core::linear::{Form, Rule};
use elsa_core::quorum::{Division, TaskPath};
use elsa_core::series::recurrence::Gate;
use elsa_oracle::cases::Params;
use elsa_oracle::gradients::{GradientBuffers, GradientCase};
use elsa_oracle::linear;
use elsa_oracle::series::Order;
use elsa_runtime::{
    Backend, BackwardPlanOptions, Engine, EngineOptions, HostTask, HostThreads, LinearPlanOptions, Method,
    ParallelFor, PlanOptions, RecurrenceOptions, RowStates, RunError, StreamError, StreamOptions, TaskPlan,
};
use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Index of a loop that no call reaches.
const NEVER: usize = usize::MAX;

/// Host threads that count the parallel loops of an engine, and cancel the engine at the loop with index `at`.
#[derive(Default)]
struct Canceller {
    engine: Mutex<Option<Engine>>,
    loops: AtomicUsize,
    at: AtomicUsize,
}

struct Lent(Arc<Canceller>);

/// Access to the canceller for a test. The canceller keeps the engine alive; dropping this value removes the engine
/// from the canceller.
struct Held(Arc<Canceller>);

impl Deref for Held {
    type Target = Canceller;

    fn deref(&self) -> &Canceller {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.engine.lock().unwrap().take();
    }
}

impl ParallelFor for Lent {
    fn parallel_for(&self, workers: usize, task: HostTask) {
        let Canceller { engine, loops, at } = &*self.0;
        if loops.fetch_add(1, Ordering::Relaxed) == at.load(Ordering::Relaxed) {
            engine.lock().unwrap().as_ref().unwrap().cancel();
        }
        (0..workers).for_each(|worker| task.call(worker));
    }
}

impl Canceller {
    /// Creates a CPU engine, and a canceller through which calls of the engine cancel themselves.
    fn engine() -> (Engine, Held) {
        let canceller = Arc::new(Canceller::default());
        canceller.at.store(NEVER, Ordering::Relaxed);
        let backend = elsa_oracle::present().into_iter().map(|p| p.backend).find(|b| *b != Backend::Cuda);
        let host = Some(HostThreads::new(Lent(Arc::clone(&canceller))));
        let engine = Engine::new(&EngineOptions::default().backend(backend).threads(3).host(host)).unwrap();
        *canceller.engine.lock().unwrap() = Some(engine.clone());
        (engine, Held(canceller))
    }

    /// Cancels a call at each of its loops. The call must end as cancelled, and the next call must have the bits of an
    /// undisturbed one, even after a cancellation between the two calls. Returns the number of loops.
    fn judge<T: PartialEq>(&self, what: &str, mut call: impl FnMut() -> Result<T, RunError>) -> usize {
        self.loops.store(0, Ordering::Relaxed);
        let want = call().unwrap();
        let loops = self.loops.load(Ordering::Relaxed);
        assert!(loops > 0, "{what}: one worker");
        for at in 0..loops {
            self.loops.store(0, Ordering::Relaxed);
            self.at.store(at, Ordering::Relaxed);
            assert!(call() == Err(RunError::Cancelled), "{what}: loop {at}");
            assert_eq!(self.loops.load(Ordering::Relaxed), at + 1, "{what}: it went on");
            self.at.store(NEVER, Ordering::Relaxed);
            self.engine.lock().unwrap().as_ref().unwrap().cancel();
            assert!(call().is_ok_and(|found| found == want), "{what}: other bits after loop {at}");
        }
        loops
    }
}

#[test]
fn attention() {
    let (engine, canceller) = Canceller::engine();
    let present =
        Params { present: true, past: Some(3), heads: 4, kv_heads: 4, ..Params::plain(40, 600, 16, 16) };
    let mut most = 0;
    for (params, method, certify) in [
        (Params { heads: 4, ..Params::plain(40, 600, 16, 16) }, Method::Elsa, true),
        (present, Method::Elsa, false),
        (Params { heads: 4, ..Params::plain(40, 70, 16, 16) }, Method::Math, false),
    ] {
        let case = params.build("cancelled");
        let options = PlanOptions::default().method(method).certify(certify).all_workers(true);
        let plan = engine.plan(&case.problem(), &options).unwrap();
        let mut workspace = plan.workspace().unwrap();
        let loops = canceller.judge(&format!("{case:?} {method:?}"), || {
            let mut buffers = case.buffers();
            plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run()?;
            let bits: Vec<u32> = buffers.lse.iter().map(|x| x.to_bits()).collect();
            Ok((format!("{:?}", buffers.output), bits))
        });
        most = most.max(loops);
    }
    assert!(most >= 3, "{most}");
}

#[test]
fn gradients() {
    let (engine, canceller) = Canceller::engine();
    let case = Params { heads: 4, kv_heads: 4, ..Params::plain(30, 600, 16, 16) }.build("cancelled");
    let given = GradientCase::of(&case).unwrap();
    let options = BackwardPlanOptions::default().all_workers(true);
    let plan = engine.backward_plan(&given.problem, &options).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let loops = canceller.judge("gradients", || {
        let mut found = GradientBuffers::room(&given.problem);
        plan.bind(given.inputs(), found.gradients(), &mut workspace).unwrap().run()?;
        Ok(found.bits())
    });
    assert_eq!(loops, 2);
}

#[test]
fn linear_attention() {
    let (engine, canceller) = Canceller::engine();
    for (form, parts) in
        [(Form::Recurrent, None), (Form::Chunk, None), (Form::Parallel, None), (Form::Scan, Some(3))]
    {
        let mut params = linear::Params::plain(Rule::GatedDelta, 83, [12, 20]);
        (params.heads, params.past, params.present) = ([2, 2, 2], true, true);
        let case = params.build();
        let plain = LinearPlanOptions::default().all_workers(true);
        let chunk = (form == Form::Scan).then_some(8);
        let options = plain.form(form).parts(parts).chunk(chunk);
        let plan = engine.linear_plan(&case.problem, &options).unwrap();
        let mut workspace = plan.workspace().unwrap();
        canceller.judge(form.name(), || {
            let mut found = case.room();
            plan.bind(case.inputs(), found.outputs(), &mut workspace).unwrap().run()?;
            Ok(found.bits())
        });
    }
}

#[test]
fn series() {
    let (engine, canceller) = Canceller::engine();
    let orders = [Order::TokensFirst; 3];
    let case = RecurrenceCase::new(2, [2, 300, 70], orders, DType::F32, Gate::Log, false);
    for (parts, loops) in [(None, 1), (Some(3), 3)] {
        let options = RecurrenceOptions::default().all_workers(true).parts(parts);
        let plan = engine.recurrence_plan(&case.problem, &options).unwrap();
        let found = canceller.judge("recurrence", || case.run(&plan).map(|(found, _)| found.present));
        assert_eq!(found, loops);
    }
}

#[test]
fn warming_up_wakes_every_worker() {
    let (engine, canceller) = Canceller::engine();
    let loops = || canceller.loops.swap(0, Ordering::Relaxed);
    // The calls are so small that one worker computes them.
    let case = Params { heads: 1, kv_heads: 1, ..Params::plain(1, 1, 8, 8) }.build("warm");
    let plan = engine.plan(&case.problem(), &PlanOptions::default()).unwrap();
    plan.warm(&mut plan.workspace().unwrap()).unwrap();
    assert_eq!(loops(), 1, "attention");
    let case = linear::Params::plain(Rule::Gated, 1, [4, 4]).build();
    let plan = engine.linear_plan(&case.problem, &LinearPlanOptions::default()).unwrap();
    plan.warm(&mut plan.workspace().unwrap()).unwrap();
    assert_eq!(loops(), 1, "linear attention");
    let case = RecurrenceCase::new(2, [1, 1, 1], [Order::TokensFirst; 3], DType::F32, Gate::Log, false);
    let plan = engine.recurrence_plan(&case.problem, &RecurrenceOptions::default()).unwrap();
    plan.warm(&mut plan.workspace().unwrap()).unwrap();
    assert_eq!(loops(), 1, "recurrence");
}

#[test]
fn tasks() {
    let (engine, canceller) = Canceller::engine();
    let case = Params { heads: 4, ..Params::plain(90, 90, 16, 16) }.build("task");
    let division = Division::new(&[3]).unwrap();
    let options = PlanOptions::default().all_workers(true);
    let path: TaskPath = division.path(0).unwrap();
    let mut plan =
        TaskPlan::new(&engine, &case.problem(), &division, &path, elsa_runtime::TaskTokens::Whole, &options)
            .unwrap();
    let rows = 4 * plan.task().query_tokens();
    let loops = canceller.judge("task", || {
        let mut states = RowStates::empty(rows, 16).unwrap();
        let out = StateOut { m: &mut states.m, s: &mut states.s, w: &mut states.w };
        plan.run(&case.inputs(), out).map(|_| (states.m, states.s, states.w))
    });
    assert!(loops > 1, "{loops}");
}

/// Cancels a stream from its source, from another thread, and from its sink.
#[test]
fn streams() {
    let backend = elsa_oracle::present().into_iter().map(|p| p.backend).find(|b| *b != Backend::Cuda);
    let engine = Engine::new(&EngineOptions::default().backend(backend).threads(2)).unwrap();
    let case = Params { heads: 2, ..Params::plain(70, 1700, 16, 16) }.build("streamed");
    let plans = (1..100).map(|n| engine.stream(&case.problem(), &StreamOptions::new(n << 25)));
    let plan = plans.filter_map(Result::ok).next().unwrap();
    let (reads, writes) = (AtomicUsize::new(0), Cell::new(0));
    let run = |read_at: usize, write_at: usize| {
        reads.store(0, Ordering::Relaxed);
        writes.set(0);
        let mut written = Vec::new();
        let mut read = |operand: Operand, offset: u64, to: &mut [u8]| -> io::Result<()> {
            if reads.fetch_add(1, Ordering::Relaxed) == read_at {
                engine.cancel();
            }
            to.copy_from_slice(&case.file(operand).unwrap()[offset as usize..][..to.len()]);
            Ok(())
        };
        let mut write = |_: Operand, offset: u64, from: &[u8]| -> io::Result<()> {
            writes.set(writes.get() + 1);
            if writes.get() == write_at {
                engine.cancel();
            }
            written.push((offset, from.to_vec()));
            Ok(())
        };
        plan.run(&case.inputs().lengths, &mut read, &mut write, 0).map(|_| written)
    };
    let want = run(NEVER, NEVER).unwrap();
    let (read, wrote) = (reads.load(Ordering::Relaxed), writes.get());
    assert!(read > 2 && wrote > 0, "{read} reads, {wrote} writes");
    for (read_at, write_at) in [(0, NEVER), (1, NEVER), (read / 2, NEVER), (read - 1, NEVER), (NEVER, 1)] {
        let cancelled = run(read_at, write_at);
        let is_cancelled = matches!(cancelled, Err(StreamError::Run(RunError::Cancelled)));
        assert!(is_cancelled, "{read_at} {write_at}: {:?}", cancelled.map(|written| written.len()));
        engine.cancel();
        assert!(run(NEVER, NEVER).unwrap() == want);
    }
}
