//! Runs one shape at a fixed rate for a long time, as a robot does. A call is due at every tick, and misses its
//! deadline if it is not done when the next tick is due. Ticks that pass during a late call are missed too. The next
//! call is made at the first tick after the late call, just as a late robot continues with the camera's next frame.
//!
//! The time is divided into stretches. Each has a histogram of latencies, the state of the board and the memory of the
//! process. At the end, the drift is the median latency of the last stretch, divided by the median latency of the first
//! stretch. The slope of the median latency against the temperature is fitted by least squares over all stretches.
//! Memory is flat if it grew by no more than a mebibyte from the first stretch to the last.

use super::args::BenchArgs;
use super::grid::Case;
use super::measure::described;
use super::method::Algorithm;
use super::output::Output;
use super::progress::{Part, Progress};
use super::subject::{self, Check, Subject};
use super::watch::Watch;
use crate::error::Error;
use crate::report;
use crate::shape::Data;
use crate::stats::{Latencies, slope};
use elsa_board::Readings;
use elsa_core::telemetry::record::{Record, text};
use elsa_runtime::Engine;
use serde::Serialize;
use stats_alloc::INSTRUMENTED_SYSTEM;
use std::io::Write;
use std::time::{Duration, Instant};

/// Number of stretches of a soak.
const STRETCHES: u32 = 20;
/// Maximum duration of a stretch.
const LONGEST: Duration = Duration::from_secs(60);
/// Minimum number of ticks in a stretch.
const TICKS: u32 = 5;
/// The slope of the latency is computed only if the temperatures span at least this range, in degrees.
const WARMER: f64 = 1.0;
/// Maximum growth of the memory, in bytes, that still counts as flat.
const FLAT: i64 = 1 << 20;
/// Time before the first tick, so that caches and clocks can settle.
const SETTLE: Duration = Duration::from_millis(200);

/// Measurements of one stretch, or of the complete soak.
#[derive(Debug, Default, Serialize)]
struct Stretch {
    /// Kind of the record: `soak` for a stretch, `soaked` for the complete soak.
    what: &'static str,
    /// Time at the end of the stretch, in seconds since the start.
    t_s: f64,
    /// Number of calls.
    calls: u64,
    /// Number of missed ticks. A tick is missed if its call was never made, or was not done when the next tick was due.
    missed: u64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// Histogram of latencies. Each bin has its upper bound in milliseconds and its number of calls. The upper bound is
    /// twice the upper bound of the previous bin.
    histogram: Vec<(f64, u64)>,
    temp_c: Option<f64>,
    power_mw: Option<f64>,
    cpu_mhz: Option<f64>,
    gpu_mhz: Option<f64>,
    /// Processor load of all other processes, as a number of cores.
    others: Option<f64>,
    /// Resident memory of the process.
    rss_bytes: Option<i64>,
}

/// Summary of the complete soak.
#[derive(Debug, Serialize)]
struct Soaked {
    #[serde(flatten)]
    whole: Stretch,
    shape: String,
    rate_hz: f64,
    /// Median latency of the last stretch, divided by the median latency of the first stretch.
    drift: Option<f64>,
    /// Slope of the median latency against the temperature, in milliseconds per degree; null if the temperature hardly
    /// changed.
    ms_per_degree: Option<f64>,
    /// Growth of the memory from the first stretch to the last, in bytes.
    growth_bytes: Option<i64>,
    /// Bytes that the calls allocated.
    alloc_bytes: u64,
}

/// Returns the resident memory of this process in bytes.
fn memory() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// The ticks of a run.
#[derive(Clone, Copy, Debug)]
struct Clock {
    begin: Instant,
    period: Duration,
}

impl Clock {
    /// Returns the time at which tick `n` is due.
    fn due(&self, n: u64) -> Instant {
        self.begin + Duration::from_secs_f64(self.period.as_secs_f64() * n as f64)
    }

    /// Returns the first tick that is due at `now` or later.
    fn after(&self, now: Instant) -> u64 {
        let periods = now.saturating_duration_since(self.begin).as_secs_f64() / self.period.as_secs_f64();
        periods.ceil() as u64
    }
}

/// Runs `case` at the rate that the flags request, and prints each stretch and a summary of the complete soak.
///
/// # Errors
/// Returns an error if the device fails, if answers changed, if memory grew, or if the machine was not quiet.
pub fn soak(
    args: &BenchArgs,
    time: Duration,
    engine: &Engine,
    case: &Case,
    method: Algorithm,
    watch: &mut Watch,
    mut output: Output,
) -> Result<(), Error> {
    let problem = case.shape.problem(case.dtype)?;
    let data = Data::random(&case.shape, &problem)?;
    let inputs = data.inputs();
    let options = args.traversal.options(args.engine.plan_options())?;
    let mut subjects = subject::prepare(engine, case, &problem, &[method], false, &options)?;
    subjects.truncate(1);
    let progress = Progress::new(1, time.as_secs_f64());
    progress.begin(&format!("{} {}", case.shape, case.dtype));
    Check::new(case, &problem, inputs).first_calls(&mut subjects, &progress)?;
    let Some(subject) = subjects.first_mut() else { return Ok(()) };
    let Subject { prepared, output: answer, .. } = subject;
    let mut backend = prepared.backend();
    let mut call = prepared.bind(inputs, answer.elements_mut())?;

    args.real_time.begin()?;
    let warm = Instant::now();
    while warm.elapsed() < SETTLE.min(time) {
        call.run_resident()?;
    }
    let period = Duration::from_secs_f64(1.0 / args.rate);
    let length = (time / STRETCHES).min(LONGEST).max(period * TICKS).min(time);
    if !args.json {
        progress.suspend(|| writeln!(output.out(), "{}", heading(args.rate)))?;
    }
    let began = Instant::now();
    let clock = Clock { begin: began, period };
    // Ticks after the end do not count as missed.
    let ticks = clock.after(began + time);
    let (mut whole, mut latencies) = (Latencies::new(), Latencies::new());
    whole.clear();
    let (mut missed_of_all, mut alloc) = (0, 0u64);
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut tick = 0;
    let over_all = watch.open();
    // Continues until every tick has its call or is missed, even if the machine was busy between two stretches.
    while tick < ticks {
        let span = watch.open();
        // If less than half a stretch would remain, it is added to this stretch, which becomes the last one.
        let end = Instant::now() + length;
        let last = end + length / 2 > began + time;
        let end = if last { began + time } else { end };
        latencies.clear();
        let mut missed = 0;
        // A tick at the very end belongs to the last stretch, so the last stretch leaves no tick.
        while tick < ticks && (last || clock.due(tick) < end) {
            std::thread::sleep(clock.due(tick).saturating_duration_since(Instant::now()));
            let before = INSTRUMENTED_SYSTEM.stats();
            let start = Instant::now();
            backend = call.run_resident()?;
            let done = Instant::now();
            let change = INSTRUMENTED_SYSTEM.stats() - before;
            alloc += (change.bytes_allocated + usize::try_from(change.bytes_reallocated).unwrap_or(0)) as u64;
            latencies.add(done - start);
            whole.add(done - start);
            // A late call misses its tick and all ticks that passed since.
            let next = clock.after(done).min(ticks).max(tick + 1);
            missed += next - (tick + 1);
            tick = next;
            progress.tell(Part::Time, began.elapsed().as_secs_f64() / time.as_secs_f64());
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        missed_of_all += missed;
        let readings = watch.close(span, latencies.count());
        let mut stretch = of("soak", began.elapsed(), missed, &latencies, &readings);
        progress.suspend(|| {
            if args.json {
                report::json(output.out(), &stretch)
            } else {
                writeln!(output.out(), "{}", line(&stretch))
            }
        })?;
        // The histogram has been printed and is not needed again.
        stretch.histogram = Vec::new();
        stretches.push(stretch);
        for trace in watch.traces() {
            progress.suspend(|| output.record(&Record::Trace(trace)))?;
        }
    }
    let readings = watch.close(over_all, whole.count());
    call.run()?;
    drop(call);
    drop(progress);
    let total = subject.judged(std::iter::once(&subject.output));

    let mut cell = described(case, engine, backend);
    cell.kernel = text(subject.prepared.kernel_of(backend));
    cell.method = text(method.name());
    cell.samples = whole.count();
    [cell.p50_ms, cell.p90_ms, cell.p99_ms, cell.max_ms] =
        [50.0, 90.0, 99.0, 100.0].map(|percent| whole.ms(percent));
    cell.cold_ms = subject.cold_ms;
    cell.gflops = case.shape.operations() / (cell.p50_ms * 1e6);
    cell.tokens_per_s = case.shape.tokens() * 1e3 / cell.p50_ms;
    (cell.workspace_bytes, cell.alloc_bytes) = (subject.prepared.workspace_bytes() as u64, alloc);
    (cell.rel_l2, cell.certified, cell.stable) = (total.relative(), subject.certified(&total, backend), true);
    let reasons = watch.judge(&readings, true);
    watch.fill(&mut cell, &readings, None, &reasons);

    let (first, last) = (stretches.first(), stretches.last());
    let both = |of: fn(&Stretch) -> Option<f64>| first.and_then(of).zip(last.and_then(of));
    let warmth: Vec<(f64, f64)> = stretches.iter().filter_map(|s| Some((s.temp_c?, s.p50_ms))).collect();
    let soaked = Soaked {
        whole: of("soaked", began.elapsed(), missed_of_all, &whole, &readings),
        shape: case.shape.to_string(),
        rate_hz: args.rate,
        drift: both(|s| Some(s.p50_ms).filter(|ms| ms.is_finite())).map(|(first, last)| last / first),
        ms_per_degree: slope(&warmth, WARMER),
        growth_bytes: first.and_then(|s| s.rss_bytes).zip(last.and_then(|s| s.rss_bytes)).map(|(a, b)| b - a),
        alloc_bytes: alloc,
    };
    if args.json {
        report::json(output.out(), &soaked)?;
    } else {
        writeln!(output.out(), "{}", summary(&soaked))?;
    }
    output.record(&Record::Cell(cell.clone()))?;
    watch.notes().iter().try_for_each(|note| output.note(note))?;
    output.end(began.elapsed().as_secs_f64())?;
    if !total.explained.holds() {
        return Err(Error::Verification(format!("{}: the last answer differs from the first", case.shape)));
    }
    // The memory of an emulated process contains the code that the emulator generates.
    if let Some(growth) = soaked.growth_bytes.filter(|growth| *growth > FLAT && !cell.emulated) {
        return Err(Error::Verification(format!("memory grew by {growth} bytes; allowed: {FLAT}")));
    }
    if cell.clean { Ok(()) } else { Err(Error::Unclean("the run was disturbed".into())) }
}

/// Summarizes a stretch that has ended.
fn of(what: &'static str, end: Duration, missed: u64, latencies: &Latencies, readings: &Readings) -> Stretch {
    let [p50_ms, p90_ms, p99_ms, max_ms] = [50.0, 90.0, 99.0, 100.0].map(|percent| latencies.ms(percent));
    Stretch {
        what,
        t_s: end.as_secs_f64(),
        calls: latencies.count(),
        missed,
        p50_ms,
        p90_ms,
        p99_ms,
        max_ms,
        histogram: latencies.doubling(),
        temp_c: readings.temp_c,
        power_mw: readings.power_mw,
        cpu_mhz: readings.cpu_mhz,
        gpu_mhz: readings.gpu_mhz,
        others: readings.others.map(|others| others.load),
        rss_bytes: memory(),
    }
}

fn heading(rate: f64) -> String {
    format!(
        "{rate} calls per second; times in ms\n{:>9} {:>8} {:>7} {:>10} {:>15} {:>15} {:>10} {:>7} {:>8} {:>8} {:>9}",
        "s",
        "calls",
        "missed",
        "median",
        "percentile(90%)",
        "percentile(99%)",
        "max",
        "°C",
        "mW",
        "CPU MHz",
        "memory MB"
    )
}

fn line(stretch: &Stretch) -> String {
    let shown = |x: Option<f64>, digits: usize| x.map_or("-".to_owned(), |x| format!("{x:.digits$}"));
    let Stretch { t_s, calls, missed, p50_ms, p90_ms, p99_ms, max_ms, .. } = stretch;
    format!(
        "{t_s:>9.1} {calls:>8} {missed:>7} {p50_ms:>10.4} {p90_ms:>15.4} {p99_ms:>15.4} {max_ms:>10.4} {:>7} {:>8} {:>8} {:>9}",
        shown(stretch.temp_c, 1),
        shown(stretch.power_mw, 0),
        shown(stretch.cpu_mhz, 0),
        shown(stretch.rss_bytes.map(|bytes| bytes as f64 / 1e6), 2)
    )
}

fn summary(soaked: &Soaked) -> String {
    let whole = &soaked.whole;
    let ticks = whole.calls + whole.missed;
    let mut text = format!("{}\n{} of {ticks} deadlines missed", line(whole), whole.missed);
    text += &soaked
        .drift
        .map_or_else(String::new, |x| format!("; the median drifted by {:+.1} %", (x - 1.0) * 100.0));
    text += &soaked.ms_per_degree.map_or_else(String::new, |x| format!(", {x:+.5} ms per degree"));
    text += &soaked.growth_bytes.map_or_else(String::new, |x| format!("; memory grew by {x} bytes"));
    text += &format!("; calls allocated {} bytes", soaked.alloc_bytes);
    for (ms, count) in &whole.histogram {
        let share = *count as f64 / whole.calls.max(1) as f64;
        text += &format!("\n  to {ms:>10.4} ms {count:>9} {}", "#".repeat((share * 50.0).round() as usize));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_that_pass_during_a_call_are_missed() {
        let begin = Instant::now();
        let clock = Clock { begin, period: Duration::from_millis(10) };
        assert_eq!(clock.due(3) - begin, Duration::from_millis(30));
        for (ms, tick) in [(0, 0), (9, 1), (10, 1), (11, 2), (35, 4)] {
            assert_eq!(clock.after(begin + Duration::from_millis(ms)), tick, "{ms}");
        }
    }

    #[test]
    fn the_memory_of_this_process_is_known() {
        assert!(memory().is_some_and(|bytes| bytes > 1 << 16));
    }
}
