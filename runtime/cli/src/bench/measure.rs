//! The measurement of one case.
//!
//! 1. Each method is prepared and bound once, and the first once more as a duplicate.
//! 2. The first call of each method is the cold one. Every component of its output is compared with the f64 oracle, and
//!    must be within the worst-case bound of [`elsa_core::attention::bound::rounding`].
//! 3. All methods alternate in slices of a few milliseconds until no latency shows a trend.
//! 4. Then the slices are timed. The first method changes from round to round, so that no method always follows the same
//!    neighbour. Only calls are timed, and recording the time of a call allocates nothing.
//! 5. Power cannot be divided between methods that alternate every few milliseconds. If the board reports power and
//!    there are several methods, half of the time is reserved for running each method alone to measure its power.
//! 6. The last answer of each method, and of the duplicate, must equal the first answer bit for bit.

use super::grid::Case;
use super::method::{Algorithm, Call};
use super::packing;
use super::progress::{Part, Progress};
use super::subject::{self, Check, Subject};
use super::watch::Watch;
use crate::error::Error;
use crate::oracle::Total;
use crate::shape::{Data, MaskForm};
use crate::stats::{HALF, Latencies, PAIRS, Ratio, middle, settled};
use elsa_board::Readings;
use elsa_core::attention::Inputs;
use elsa_core::telemetry::record::{self, Cell, text};
use elsa_runtime::{Backend, Engine, PlanOptions};
use stats_alloc::INSTRUMENTED_SYSTEM;
use std::time::{Duration, Instant};

/// Maximum time for which one method runs before the next takes its turn.
const SLICE: Duration = Duration::from_millis(4);
/// Minimum number of slices in a measurement.
const SLICES: f64 = 16.0;
/// Maximum duration of a warm-up whose duration the user did not request.
const WARM: Duration = Duration::from_secs(30);
/// Duration above which a round counts as long. During warm-up, the trend over long rounds is judged from only the last
/// four rounds: the later two are compared with the earlier two.
const LONG: Duration = Duration::from_millis(500);
/// Fraction of the measuring time that is reserved for measuring the parts of GPU calls separately: enqueue, wait and
/// device.
const DIVIDED: f64 = 0.2;
/// Maximum number of calls per method whose times are kept for `--export`.
const KEPT: usize = 1 << 17;

/// Settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The methods.
    pub methods: &'a [Algorithm],
    /// `true` to skip a method that cannot run, if it is not the first method.
    pub lenient: bool,
    /// Options of the plans.
    pub options: PlanOptions,
    /// Seconds to spend on a case.
    pub seconds: f64,
    /// Minimum warm-up time; `None` warms up until the latency has settled.
    pub warmup: Option<Duration>,
    /// Minimum number of timed calls of each method.
    pub iterations: u64,
    /// `true` if the start and duration of each call are stored.
    pub keep: bool,
}

/// Measurements of one method.
pub struct Measured {
    /// The row of this method in the results.
    pub cell: Cell,
    /// The oracle's judgement of the method's outputs.
    pub total: Total,
    /// Start and duration of each timed call in milliseconds; empty unless [`Settings::keep`] is set.
    pub times: Vec<(f64, f64)>,
}

/// A method, bound to its tensors, and its measurements.
struct Contender<'a> {
    call: Call<'a>,
    backend: Backend,
    latencies: Latencies,
    /// Start and duration of calls, in milliseconds. Calls beyond the reserved capacity are left out.
    times: Vec<(f64, f64)>,
    /// Bytes allocated by timed calls so far.
    alloc: usize,
    /// Latencies of the parts of GPU calls: enqueuing on the host, waiting on the host, and computing on the device.
    parts: Option<[Latencies; 3]>,
}

impl Contender<'_> {
    /// Makes calls until `length` has passed, and at least one call. Returns the milliseconds per call. If `begin` is
    /// given, the time of each call is recorded, and starts of calls are relative to `begin`.
    fn slice(&mut self, length: Duration, begin: Option<Instant>) -> Result<f64, Error> {
        let before = INSTRUMENTED_SYSTEM.stats();
        let start = Instant::now();
        let (mut last, mut calls) = (start, 0u32);
        loop {
            self.backend = self.call.run_resident()?;
            let now = Instant::now();
            calls += 1;
            if let Some(begin) = begin {
                self.latencies.add(now - last);
                // The capacity is reserved, so storing a time allocates nothing.
                if self.times.len() < self.times.capacity() {
                    self.times.push(((last - begin).as_secs_f64() * 1e3, (now - last).as_secs_f64() * 1e3));
                }
            }
            last = now;
            if now - start >= length {
                break;
            }
        }
        if begin.is_some() {
            let change = INSTRUMENTED_SYSTEM.stats() - before;
            self.alloc += change.bytes_allocated + usize::try_from(change.bytes_reallocated).unwrap_or(0);
        }
        Ok((last - start).as_secs_f64() * 1e3 / f64::from(calls))
    }
}

/// Gives every contender one slice. The first is contender number `round`, modulo the number of contenders. Returns the
/// milliseconds per call of each contender.
fn round(
    contenders: &mut [Contender<'_>],
    round: usize,
    length: Duration,
    begin: Option<Instant>,
) -> Result<Vec<f64>, Error> {
    let mut times = vec![f64::NAN; contenders.len()];
    for turn in 0..contenders.len() {
        let at = (turn + round) % contenders.len();
        times[at] = contenders[at].slice(length, begin)?;
    }
    Ok(times)
}

/// Alternates between all contenders for the time `asked`. If `asked` is `None`, alternates until no latency shows a
/// trend, or until [`WARM`] has passed. Returns `true` if the latencies have settled.
fn warm(
    contenders: &mut [Contender<'_>],
    length: Duration,
    asked: Option<Duration>,
    progress: &Progress,
) -> Result<bool, Error> {
    let start = Instant::now();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    for turn in 0.. {
        let began = Instant::now();
        for (all, time) in times.iter_mut().zip(round(contenders, turn, length, None)?) {
            all.push(time);
        }
        let half = if began.elapsed() > LONG { 2 } else { HALF };
        let stable = times.iter().all(|times| settled(times, half));
        let spent = start.elapsed();
        let done = match asked {
            Some(asked) => spent >= asked,
            None => stable || spent >= WARM,
        };
        progress.tell(Part::Warm, ((turn + 1) as f64 / (2 * half) as f64).min(0.99));
        if done {
            // If the requested time ended after too few slices to show a trend, the latencies count as settled too.
            return Ok(stable || (asked.is_some() && turn + 1 < 2 * half));
        }
    }
    Ok(false)
}

/// Measures `case`. Returns a row for each method.
///
/// # Errors
/// Returns an error if the engine refuses the options, if the device fails, or if memory is not available.
pub fn measure(
    engine: &Engine,
    settings: &Settings<'_>,
    case: &Case,
    watch: &Watch,
    progress: &Progress,
) -> Result<Vec<Measured>, Error> {
    let problem = case.shape.problem(case.dtype)?;
    let data = Data::random(&case.shape, &problem)?;
    let inputs = data.inputs();
    let on_gpu = engine.backend() == Backend::Cuda;
    let mut subjects =
        subject::prepare(engine, case, &problem, settings.methods, settings.lenient, &settings.options)?;
    Check::new(case, &problem, inputs).first_calls(&mut subjects, progress)?;

    let mut contenders = bind(&mut subjects, inputs, settings.keep)?;
    // The last contender is the duplicate of the first method.
    let kinds = contenders.len() - 1;
    let alone = watch.has_power() && kinds > 1;
    let seconds = if alone { settings.seconds / 2.0 } else { settings.seconds };
    let length = SLICE.min(Duration::from_secs_f64(seconds / SLICES));
    let stable = warm(&mut contenders, length, settings.warmup, progress)?;

    let span = watch.open();
    let (mut rounds, begin) = (Vec::new(), Instant::now());
    loop {
        rounds.push(round(&mut contenders, rounds.len(), length, Some(begin))?);
        let spent = begin.elapsed().as_secs_f64() / seconds;
        let fewest = contenders.iter().map(|contender| contender.latencies.count()).min().unwrap_or(0);
        let counted = fewest as f64 / settings.iterations as f64;
        progress.tell(Part::Time, spent.min(counted) * if alone { 0.5 } else { 1.0 });
        let enough = rounds.len() >= PAIRS || begin.elapsed() > LONG * rounds.len() as u32;
        if spent >= 1.0 && fewest >= settings.iterations && enough {
            break;
        }
    }
    let calls = contenders.iter().map(|contender| contender.latencies.count()).sum();
    let together = watch.close(span, calls);
    let mut powers = Vec::new();
    for contender in contenders.iter_mut().take(if alone { kinds } else { 0 }) {
        powers.push(by_itself(contender, seconds / kinds as f64, watch)?);
    }
    if on_gpu {
        contenders.iter_mut().take(kinds).try_for_each(|contender| divide(contender, seconds))?;
    }
    // Timed calls leave their answers in the GPU's memory; these runs copy the answers back.
    for contender in &mut contenders {
        contender.call.run()?;
    }

    let taken: Vec<_> =
        contenders.into_iter().map(|c| (c.backend, c.latencies, c.times, c.alloc, c.parts)).collect();
    // Pairs the times of two contenders, round by round.
    let pairs =
        |of: usize, other: usize| rounds.iter().map(|times| (times[of], times[other])).collect::<Vec<_>>();
    let noise = Ratio::of(&pairs(0, kinds)).map(Ratio::spread);
    // Place of a method that others are compared with.
    let place = |method| (1..kinds).find(|&at| subjects[at].method == method);
    let (math, row_by_row) = (place(Algorithm::Math), place(Algorithm::Rows));
    let relative = |of: usize, other| if of == other { Some(1.0) } else { middle(&pairs(of, other)) };
    let packing_ms = if on_gpu { None } else { packing::cost(&case.shape, case.dtype)? };
    let marks = watch.judge(&together, stable);
    let mut measured = Vec::new();
    for (at, (backend, latencies, times, alloc, parts)) in taken.into_iter().enumerate() {
        let subject = &subjects[at];
        if subject.copy {
            continue;
        }
        let same = subjects.iter().filter(|other| other.method == subject.method);
        let total = subject.judged(same.map(|other| &other.output));
        let mut cell = described(case, engine, backend);
        cell.kernel = text(subject.prepared.kernel_of(backend));
        cell.method = text(subject.method.name());
        cell.samples = latencies.count();
        [cell.p50_ms, cell.p90_ms, cell.p99_ms, cell.max_ms] =
            [50.0, 90.0, 99.0, 100.0].map(|percent| latencies.ms(percent));
        cell.cold_ms = subject.cold_ms;
        [cell.enqueue_p50_ms, cell.wait_p50_ms, cell.device_p50_ms] = match &parts {
            Some(parts) => parts.each_ref().map(|part| Some(part.ms(50.0))),
            None => [None; 3],
        };
        cell.gflops = case.shape.operations() / (cell.p50_ms * 1e6);
        cell.tokens_per_s = case.shape.tokens() * 1e3 / cell.p50_ms;
        cell.packing_ms = packing_ms;
        cell.workspace_bytes = subject.prepared.workspace_bytes() as u64;
        cell.alloc_bytes = alloc as u64;
        cell.noise = noise;
        cell.speedup_vs_math = math.and_then(|math| relative(at, math));
        cell.speedup_vs_rows = row_by_row.and_then(|other| relative(at, other));
        if let Some(math) = math.filter(|_| subject.method != Algorithm::Rows) {
            let ratio = Ratio::of(&pairs(0, math));
            (cell.ratio_low, cell.ratio_high) = (ratio.map(|ratio| ratio.low), ratio.map(|ratio| ratio.high));
            cell.differs = ratio.zip(noise).map(|(ratio, noise)| ratio.differs(noise));
        }
        cell.rel_l2 = total.relative();
        cell.certified = subject.certified(&total, backend);
        cell.stable = stable;
        watch.fill(&mut cell, &together, powers.get(at), &marks);
        measured.push(Measured { cell, total, times });
    }
    Ok(measured)
}

/// Binds the tensors to every subject.
fn bind<'a>(
    subjects: &'a mut [Subject],
    inputs: Inputs<'a>,
    keep: bool,
) -> Result<Vec<Contender<'a>>, Error> {
    let mut contenders = Vec::new();
    for Subject { prepared, output, copy, .. } in subjects {
        let backend = prepared.backend();
        let call = prepared.bind(inputs, output.elements_mut())?;
        let times = Vec::with_capacity(if keep && !*copy { KEPT } else { 0 });
        contenders.push(Contender {
            call,
            backend,
            latencies: Latencies::new(),
            times,
            alloc: 0,
            parts: None,
        });
    }
    Ok(contenders)
}

/// Measures how the time of a GPU call is divided among its parts. This measurement takes about `seconds` times
/// [`DIVIDED`]. These calls record events, so they are separate from the calls whose latency is measured.
fn divide(contender: &mut Contender<'_>, seconds: f64) -> Result<(), Error> {
    let start = Instant::now();
    while let Some(times) = contender.call.run_timed()? {
        let parts = contender.parts.get_or_insert_with(|| std::array::from_fn(|_| Latencies::new()));
        for (part, time) in parts.iter_mut().zip([times.enqueue, times.wait, times.device]) {
            part.add(time);
        }
        if start.elapsed().as_secs_f64() >= seconds * DIVIDED {
            break;
        }
    }
    Ok(())
}

/// Runs one method alone for `seconds`. Returns the readings of the machine during this time, among them the power.
fn by_itself(contender: &mut Contender<'_>, seconds: f64, watch: &Watch) -> Result<Readings, Error> {
    let span = watch.open();
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < seconds {
        contender.call.run_resident()?;
        calls += 1;
    }
    Ok(watch.close(span, calls))
}

/// Creates a row of the results for `case`. The row describes the request and has no measurements yet.
#[must_use]
pub fn described(case: &Case, engine: &Engine, backend: Backend) -> Cell {
    let shape = case.shape;
    let threads = if backend == Backend::Cuda { 0 } else { engine.threads() };
    Cell {
        workload: case.workload.map(text),
        backend: text(backend.name()),
        dtype: text(case.dtype.name()),
        threads: u32::try_from(threads).unwrap_or(u32::MAX),
        batch: shape.batch as u64,
        heads: shape.heads as u64,
        kv_heads: shape.kv_heads as u64,
        queries: shape.queries as u64,
        n: shape.keys as u64,
        d: shape.dim as u64,
        causal: shape.corner().map(text),
        window: shape.sides(),
        mask: shape.mask.map(MaskForm::name).map(text),
        windows: shape.windows.map(|windows| record::Grid {
            picture: windows.picture.map(|n| n as u64),
            size: windows.size.map(|n| n as u64),
            shift: windows.shift.map(|n| n as u64),
        }),
        shape: text(&shape.to_string()),
        ..Cell::default()
    }
}
