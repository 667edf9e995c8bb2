//! Checks that streamed runs have the bits of runs in memory, for every budget, chunk and number of threads, and with
//! all features.

use elsa_core::attention::run_certificate::RunCertificate;
use elsa_core::attention::{Alignment, MaskKind, Operand, Window};
use elsa_core::dtype::DType;
use elsa_core::plan::ChooseError as Refused;
use elsa_core::view::Layout;
use elsa_oracle::SLOW;
use elsa_oracle::cases::{BiasParams, Buffers, Case, Data, MaskParams, Params, some_hard_cases};
use elsa_oracle::engine;
use elsa_oracle::present;
use elsa_oracle::strides::{TURNS, far_case};
use elsa_runtime::{Backend, Engine, PlanError, PlanOptions};
use elsa_runtime::{Sink, StreamError, StreamOptions, StreamPlan, StreamReport, Written};
use std::collections::HashMap;
use std::io;

fn processors() -> Vec<Backend> {
    present().into_iter().map(|p| p.backend).filter(|backend| *backend != Backend::Cuda).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

/// The tensors of a case as files, with a record of the reads.
struct Files {
    tensors: HashMap<Operand, Vec<u8>>,
    read: HashMap<Operand, u64>,
    /// Index of the read that fails, and its error; `None` if no read fails.
    fails: Option<(usize, io::ErrorKind)>,
    reads: usize,
}

impl Files {
    fn of(case: &Case) -> Files {
        let file = |operand| case.file(operand).map(|bytes| (operand, bytes));
        let tensors = Operand::ALL.into_iter().filter_map(file).collect();
        Files { tensors, read: HashMap::new(), fails: None, reads: 0 }
    }

    fn read(&mut self, operand: Operand, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.reads += 1;
        if let Some((at, kind)) = self.fails
            && at == self.reads - 1
        {
            return Err(kind.into());
        }
        let tensor = self.tensors.get(&operand).ok_or(io::ErrorKind::NotFound)?;
        let from = usize::try_from(offset).unwrap();
        let from = tensor.get(from..from + to.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        to.copy_from_slice(from);
        *self.read.entry(operand).or_default() += to.len() as u64;
        Ok(())
    }
}

/// A sink that records the writes and the finished units.
#[derive(Clone, Debug, Default, PartialEq)]
struct Taken {
    tensors: HashMap<Operand, Vec<u8>>,
    /// Number of times that each byte was written.
    times: HashMap<Operand, Vec<u8>>,
    finished: Vec<usize>,
    parts: usize,
    /// Number of processed parts after which the sink fails at the next end of a unit; `None` if the sink never fails.
    stops: Option<usize>,
}

impl Taken {
    fn new(case: &Case) -> Taken {
        let problem = case.problem();
        let mut taken = Taken::default();
        for operand in Operand::ALL.into_iter().filter(|operand| operand.is_written()) {
            if let Some(memory) = problem.memory(operand) {
                taken.tensors.insert(operand, vec![0xff; memory.bytes()]);
                taken.times.insert(operand, vec![0; memory.bytes()]);
            }
        }
        taken
    }
}

impl Sink<Operand> for Taken {
    fn write(&mut self, operand: Operand, offset: u64, from: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let to = self.tensors.get_mut(&operand).unwrap();
        to[at..at + from.len()].copy_from_slice(from);
        for n in &mut self.times.get_mut(&operand).unwrap()[at..at + from.len()] {
            *n += 1;
        }
        Ok(())
    }

    fn finished(&mut self, unit: usize) -> io::Result<()> {
        self.finished.push(unit);
        if self.stops.is_some_and(|stops| self.parts >= stops) {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }

    fn advanced(&mut self) {
        self.parts += 1;
    }
}

const ALL: Written = Written { output: true, lse: true, states: true };

fn options(budget: usize, eta: f64) -> StreamOptions {
    let plan = PlanOptions::default().all_workers(true);
    StreamOptions::new(budget).plan(plan).written(ALL).eta(eta)
}

/// Returns a plan whose memory budget exceeds the smallest possible one by `more` bytes.
fn plan(engine: &Engine, case: &Case, more: usize, eta: f64) -> StreamPlan {
    plan_that(engine, case, more, eta, false)
}

/// Returns a plan as [`plan`] does, with a certificate if `certify` is `true`.
fn plan_that(engine: &Engine, case: &Case, more: usize, eta: f64, certify: bool) -> StreamPlan {
    let mut budget = 0;
    // The process's own memory changes while other tests run, and grows if an allocator keeps freed memory.
    for attempt in 0..100 {
        let mut options = options(budget, eta);
        options.plan.certify = certify;
        match engine.stream(&case.problem(), &options) {
            Ok(plan) => return plan,
            Err(PlanError::Refused(Refused::HostBudget { needed, budget: found })) if found == budget => {
                assert!(needed > budget);
                budget = needed + more + (attempt << 14);
            }
            Err(other) => panic!("{case:?}: {other}"),
        }
    }
    panic!("{case:?}: no budget is enough");
}

/// Returns a plan with at least `least` units, under the smallest possible budget. Tries repeatedly, because the memory
/// that the process itself uses may shrink between two plans.
fn divided(engine: &Engine, case: &Case, least: usize) -> StreamPlan {
    let plans = (0..200).map(|_| plan(engine, case, 0, 0.01));
    let mut enough = plans.filter(|plan| plan.count(&case.inputs().lengths, 0).unwrap().0 >= least);
    enough.next().unwrap_or_else(|| panic!("{case:?}: no plan of {least} units"))
}

fn run(
    plan: &StreamPlan,
    case: &Case,
    from: usize,
    taken: &mut Taken,
) -> Result<(StreamReport, Files), StreamError> {
    let mut files = Files::of(case);
    let mut read = |operand, offset, to: &mut [u8]| files.read(operand, offset, to);
    let report = plan.run(&case.inputs().lengths, &mut read, taken, from)?;
    Ok((report, files))
}

/// Returns a certificate as text, followed by the bits of the channels of the values.
fn text(certified: &RunCertificate<'_>) -> String {
    format!("{certified} {:x?}", certified.channels().iter().map(|x| x.to_bits()).collect::<Vec<_>>())
}

/// Returns the outputs of a run in memory, and its certificate.
fn in_memory(engine: &Engine, case: &Case) -> (Buffers, String) {
    let options = PlanOptions::default().certify(true);
    let plan = engine.plan(&case.problem(), &options).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let (buffers, _) = case.run(&plan, &mut workspace);
    let certificate = text(&workspace.certificate().unwrap());
    (buffers, certificate)
}

fn same_bits(found: &[u8], want: &[u8], dtype: DType) -> bool {
    // All NaNs count as equal.
    let of = |x: &[u8]| -> Vec<u32> {
        let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        match dtype {
            DType::F32 => floats(x).into_iter().map(bits).collect(),
            DType::F16 => {
                x.chunks_exact(2).map(|x| bits(half::f16::from_le_bytes([x[0], x[1]]).to_f32())).collect()
            }
            DType::Bf16 => {
                x.chunks_exact(2).map(|x| bits(half::bf16::from_le_bytes([x[0], x[1]]).to_f32())).collect()
            }
        }
    };
    of(found) == of(want)
}

/// Requires that the written tensors have the bits of the run in memory, and that every element of a row was written
/// once.
fn check(case: &Case, want: &Buffers, taken: &Taken, what: &str) {
    let rows = |x: &[f32]| Data::F32(x.to_vec());
    let mut all = vec![
        (Operand::Output, want.output.clone(), case.spec.dtype),
        (Operand::LogSumExp, rows(&want.lse), DType::F32),
        (Operand::StateReference, rows(&want.m), DType::F32),
        (Operand::StateSum, rows(&want.s), DType::F32),
        (Operand::StateWeighted, rows(&want.w), DType::F32),
    ];
    if let Some((k, v)) = &want.present {
        all.push((Operand::PresentKey, k.clone(), case.spec.dtype));
        all.push((Operand::PresentValue, v.clone(), case.spec.dtype));
    }
    for (operand, want, dtype) in all {
        let found = &taken.tensors[&operand];
        assert!(same_bits(found, &want.bytes(), dtype), "{case:?}: {operand:?}, {what}");
        let count = case.problem().memory(operand).map_or(0, |memory| match memory.view {
            Some(view) => view.count() * memory.element_size,
            None => memory.bytes(),
        });
        let times = &taken.times[&operand];
        assert!(times.iter().all(|n| *n <= 1), "{case:?}: {operand:?} is written twice, {what}");
        assert_eq!(times.iter().filter(|n| **n == 1).count(), count, "{case:?}: {operand:?}, {what}");
    }
    assert!(taken.finished.iter().copied().eq(0..taken.finished.len()));
}

fn mask(kind: MaskKind, dims: &[usize], density: f64) -> Option<MaskParams> {
    Some(MaskParams { kind, dims: dims.to_vec(), density })
}

/// Returns cases of several segments, one per feature.
fn long_cases() -> Vec<Case> {
    let (n, m) = if SLOW { (37, 530) } else { (70, 1700) };
    let plain = || Params { batch: 2, heads: 4, kv_heads: 2, ..Params::plain(n, m, 16, 20) };
    let mut cases = vec![plain().build("plain")];
    let mut add = |name: &str, params: Params| cases.push(params.build(name));
    for causal in [Alignment::TopLeft, Alignment::BottomRight] {
        add("causal", Params { causal: Some(causal), ..plain() });
        let window = Window { left: Some(300), right: Some(5) };
        add("window", Params { causal: Some(causal), window, past: Some(41), ..plain() });
    }
    add("window", Params { window: Window { left: Some(3), right: Some(600) }, ..plain() });
    add("softcap", Params { softcap: Some(2.0), scale: Some(0.7), ..plain() });
    add("scores of 1000", Params { gain: 1e3, ..plain() });
    for layout in [Layout::Bnhd, Layout::Bnc] {
        add("layout", Params { layout, pad: 3, ..plain() });
        add("layout and past", Params { layout, past: Some(600), present: true, ..plain() });
    }
    for dtype in [DType::F16, DType::Bf16] {
        add("type", Params { dtype, past: Some(530), present: true, ..plain() });
    }
    add("present", Params { present: true, ..plain() });
    add("lengths", Params { lengths: true, batch: 3, causal: Some(Alignment::BottomRight), ..plain() });
    add("shared keys", Params { shared_keys: true, ..plain() });
    let f32s = MaskKind::Additive(DType::F32);
    for dims in
        [&[2, 4, n, m][..], &[2, 1, n, m - 7], &[1, 4, n, m], &[2, 1, 1, m], &[n, 1], &[4, 1, m - 200]]
    {
        add("bool", Params { mask: mask(MaskKind::Bool, dims, 0.5), ..plain() });
        add("additive", Params { mask: mask(MaskKind::Additive(DType::F16), dims, 0.9), ..plain() });
    }
    add("no key", Params { mask: mask(MaskKind::Bool, &[n, m], 0.0), ..plain() });
    // A batch of four repeats two masks.
    add("masks repeat", Params { batch: 4, mask: mask(f32s, &[2, 1, n, m], 0.9), ..plain() });
    let dense = MaskParams { kind: f32s, dims: vec![1, 4, n, m], density: 0.95 };
    add("bias", Params { bias: Some(BiasParams::Dense(dense.clone())), ..plain() });
    let both = mask(MaskKind::Bool, &[2, 1, 1, m], 0.8);
    add("bias and mask", Params { bias: Some(BiasParams::Dense(dense)), mask: both, ..plain() });
    let table = BiasParams::Table { dtype: DType::F32, entries: Some(9), density: 0.9 };
    add("table", Params { bias: Some(table), ..plain() });
    let lengths = vec![(5, 600), (0, 3), (40, 1100), (1, 0), (3, 3)];
    add("packed", Params { packed: Some(lengths), layout: Layout::Bnhd, batch: 1, ..plain() });
    add("one query", Params { queries: 1, ..plain() });
    add("two queries", Params { queries: 2, ..plain() });
    add("many heads", Params { heads: 6, kv_heads: 1, queries: 1, ..plain() });
    cases
}

#[test]
fn bits_are_those_in_memory() {
    let mut cases = long_cases();
    cases.extend(some_hard_cases().into_iter().step_by(if SLOW { 9 } else { 2 }));
    cases.retain(|case| !case.spec.append);
    let (mut several_units, mut several_chunks) = (0, 0);
    for (i, backend) in processors().into_iter().enumerate() {
        let (one, many) = (engine(backend, 1), engine(backend, 3));
        for (j, case) in cases.iter().enumerate() {
            // The first back end runs all cases. Each other back end runs a quarter of the cases.
            if i > 0 && (i + j) % 4 != 0 {
                continue;
            }
            let (want, certificate) = in_memory(&one, case);
            let forms = [(&one, 0, 0.01), (&many, 20_000, 0.2), (&many, 100 << 20, 3.0)];
            for (k, (engine, more, eta)) in forms.into_iter().enumerate() {
                let certify = (j + k) % 3 != 0;
                let plan = plan_that(engine, case, more, eta, certify);
                let mut taken = Taken::new(case);
                let mut files = Files::of(case);
                let mut read = |operand, offset, to: &mut [u8]| files.read(operand, offset, to);
                let lengths = case.inputs().lengths;
                let report = plan.run(&lengths, &mut read, &mut taken, 0).unwrap();
                assert_eq!(report.times.bytes, files.read.values().sum::<u64>());
                let certified = report.certificate.as_ref().map(|run| text(&run.certificate().unwrap()));
                assert_eq!(certified, certify.then(|| certificate.clone()), "{case:?}, {:?}", plan.choice());
                let (units, parts) = plan.count(&case.inputs().lengths, 0).unwrap();
                let what = format!("{more} more, eta {eta}, {:?}", plan.choice());
                check(case, &want, &taken, &what);
                assert_eq!(
                    (taken.finished.len(), taken.parts, report.units),
                    (units, parts, units),
                    "{what}"
                );
                several_units += usize::from(units > 1);
                several_chunks += usize::from(parts > units);
            }
        }
    }
    let few = if cfg!(elsa_sanitized) { 4 } else { 1 };
    assert!(several_units > 100 / few && several_chunks > 40 / few, "{several_units}, {several_chunks}");
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    let plain = |queries, keys| Params { heads: 2, kv_heads: 1, ..Params::plain(queries, keys, 8, 8) };
    let bool = MaskKind::Bool;
    let cases = [
        plain(1, 1),
        Params { layout: Layout::Bnhd, ..plain(1, 70) },
        plain(70, 1),
        Params { past: Some(1), present: true, ..plain(1, 1) },
        Params { past: Some(70), present: true, ..plain(1, 1) },
        Params { mask: mask(bool, &[1, 1, 1, 70], 0.7), ..plain(1, 70) },
        Params { packed: Some(vec![(1, 0), (0, 1), (1, 0)]), ..plain(0, 0) },
    ];
    for backend in processors() {
        let engine = engine(backend, 2);
        for (i, params) in cases.iter().enumerate() {
            let case = params.build("single elements");
            let (want, _) = in_memory(&engine, &case);
            let far = far_case(&case, i % TURNS);
            let plan = plan(&engine, &far, 1 << 20, 0.01);
            let mut taken = Taken::new(&far);
            run(&plan, &far, 0, &mut taken).unwrap();
            check(&far, &want, &taken, "with large strides");
        }
    }
}

/// Checks that chunks are not read if causality, windows or lengths exclude them, and that all others are read once
/// per unit.
#[test]
fn only_what_is_attended_is_read() {
    let engine = engine(processors()[0], 2);
    let (n, m, d) = (64, 4096, 8);
    let row = (d * 4) as u64;
    let of = |params: Params, more: usize| {
        let case = params.build("part");
        let plan = if more == 0 { divided(&engine, &case, 2) } else { plan(&engine, &case, more, 0.01) };
        let (report, files) = run(&plan, &case, 0, &mut Taken::new(&case)).unwrap();
        let read = files.read.values().sum::<u64>();
        assert_eq!(report.times.bytes, read);
        (files.read[&Operand::Key] / row, files.read[&Operand::Query] / row, report.units)
    };
    let all = 100 << 20;
    assert_eq!(of(Params::plain(n, m, d, d), all), (m as u64, n as u64, 1));
    let top = Params { causal: Some(Alignment::TopLeft), ..Params::plain(n, m, d, d) };
    assert_eq!(of(top, all), (n as u64, n as u64, 1));
    let window = Window { left: Some(600), right: None };
    let last = Params { causal: Some(Alignment::BottomRight), window, ..Params::plain(n, m, d, d) };
    // The first attended key is 4032 - 600, in the segment that starts at 3072.
    assert_eq!(of(last, all), (m as u64 - 3072, n as u64, 1));
    let (keys, queries, units) = of(Params::plain(n, m, d, d), 0);
    assert!(units > 1);
    assert_eq!((keys, queries), ((m * units) as u64, n as u64));
    // Two query heads that share a key head read its keys once.
    let shared = Params { heads: 4, kv_heads: 2, ..Params::plain(n, m, d, d) };
    assert_eq!(of(shared, all).0, 2 * m as u64);
}

/// Checks that the error of any read, and the error of the sink at the end of any unit, ends the run. A run that starts
/// after the finished units must complete the outputs.
#[test]
fn failures_are_typed_and_leave_no_thread() {
    let engine = engine(processors()[0], 2);
    let params = Params { batch: 1, heads: 2, kv_heads: 1, present: true, ..Params::plain(40, 1100, 8, 8) };
    let case = params.build("failing");
    let (want, _) = in_memory(&engine, &case);
    let plan = divided(&engine, &case, 4);
    let lengths = case.inputs().lengths;
    let (units, parts) = plan.count(&lengths, 0).unwrap();
    let (_, whole) = run(&plan, &case, 0, &mut Taken::new(&case)).unwrap();
    assert!(units > 3 && parts > units);
    for at in 0..whole.reads {
        let kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::TimedOut];
        let mut files = Files { fails: Some((at, kinds[at % 2])), ..Files::of(&case) };
        let mut read = |operand, offset, to: &mut [u8]| files.read(operand, offset, to);
        let mut taken = Taken::new(&case);
        match plan.run(&lengths, &mut read, &mut taken, 0) {
            Err(StreamError::Read { source, bytes, .. }) => {
                assert!(source.kind() == kinds[at % 2] && bytes > 0);
            }
            other => panic!("{at}: {other:?}"),
        }
        // The units finished before the failure are correct, and a run that starts after them completes the output.
        let from = taken.finished.len();
        if at % 7 == 0 {
            let mut rest = Taken { times: Taken::new(&case).times, ..taken.clone() };
            run(&plan, &case, from, &mut rest).unwrap();
            rest.times = Taken::new(&case)
                .times
                .into_iter()
                .map(|(operand, times)| {
                    let full = taken.times[&operand].iter().map(|_| 1).collect::<Vec<u8>>();
                    (operand, if times.is_empty() { times } else { full })
                })
                .collect();
            check(&case, &want, &rest, "in two runs");
        }
    }
    for stops in 0..parts {
        let mut taken = Taken { stops: Some(stops), ..Taken::new(&case) };
        match run(&plan, &case, 0, &mut taken) {
            Err(StreamError::Note { number, source }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
                assert_eq!(taken.finished.last(), Some(&number));
            }
            other => panic!("{stops}: {:?}", other.map(|(report, _)| report)),
        }
    }
    let none = |_: Operand, _: u64, _: &mut [u8]| -> io::Result<()> { panic!("of a source") };
    let panicked = plan.run(&lengths, &mut { none }, &mut Taken::new(&case), 0);
    assert!(matches!(panicked, Err(StreamError::Reader(_))), "{panicked:?}");
    // A certified run cannot start at a later unit, because the earlier units would not be measured.
    let certifies = plan_that(&engine, &case, 100 << 20, 1.0, true);
    let unmeasured = run(&certifies, &case, 1, &mut Taken::new(&case)).map(|(report, _)| report);
    assert!(matches!(unmeasured, Err(StreamError::Unmeasured { found: 1 })), "{unmeasured:?}");
    let beyond = run(&plan, &case, units + 1, &mut Taken::new(&case)).map(|(report, _)| report);
    assert!(matches!(beyond, Err(StreamError::Unit { .. })), "{beyond:?}");
}

#[test]
fn what_cannot_be_streamed_is_refused() {
    let engine = engine(processors()[0], 1);
    let case = Params::plain(40, 100, 8, 8).build("plain");
    let problem = case.problem();
    let refused = |options: StreamOptions| engine.stream(&problem, &options).unwrap_err().to_string();
    let most = options(1 << 30, 1.0);
    for (eta, word) in [(0.0, "eta"), (-1.0, "eta"), (f64::NAN, "eta"), (f64::INFINITY, "eta")] {
        assert!(refused(most.eta(eta)).contains(word));
    }
    let plan = PlanOptions::default().method(elsa_runtime::Method::Math);
    assert!(refused(most.plan(plan)).contains("math"));
    assert!(refused(options(usize::MAX, 1.0)).contains("which the system leaves"));
    // An index entry beyond the table is detected before it is used.
    let table = BiasParams::Table { dtype: DType::F32, entries: Some(3), density: 1.0 };
    let mut case = Params { bias: Some(table), ..Params::plain(40, 1100, 8, 8) }.build("index");
    let plan = self::plan(&engine, &case, 0, 0.01);
    for bad in [-1, 3, i64::MAX] {
        case.bias_index.as_mut().unwrap()[39 * 1100 + 1050] = bad;
        let error = run(&plan, &case, 0, &mut Taken::new(&case)).map(|(report, _)| report).unwrap_err();
        assert!(matches!(error, StreamError::Argument(_)) && error.to_string().contains("43950"), "{error}");
    }
}
