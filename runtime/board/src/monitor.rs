//! Runs a thread that watches the board during a benchmark.
//!
//! Power is sampled every 20 ms and everything else every 200 ms. All values are also sampled when a span begins and
//! when it ends, so even a short span has two samples. A sample reads a few files that stay open. The thread allocates
//! nothing, unless it measures descendants. It keeps sums per span, and it stores the history of the run in an array of
//! fixed size. Whenever the array is full, every second point is dropped. The thread measures its CPU time and samples
//! less often if it uses more than half a percent of a core.

use super::inclusion::{Inclusion, inclusions};
use super::load::{Load, Times};
use super::rails::Rail;
use super::root::Root;
use super::sources::{Slow, Sources};
use super::tally::{Facts, Readings, Tally};
use elsa_core::telemetry::record::{Trace, text};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between power samples.
const POWER: Duration = Duration::from_millis(20);
/// Interval between samples of everything else.
const SLOW: Duration = Duration::from_millis(200);
/// Longest sampling intervals that the thread may choose when it samples less often. The first is for the power, the
/// second for everything else.
const LONGEST: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Fraction of a core above which the thread samples less often.
const DEAREST: f64 = 0.005;
/// Interval at which the thread checks how much of a core it uses.
const REVIEW: Duration = Duration::from_secs(1);
/// Maximum number of points in the history of a run.
const POINTS: usize = 2048;
/// Load of other processes, in cores, above which the monitor identifies the busiest process among them.
pub const OTHERS: f64 = 0.1;

/// Sample of the machine in the history of a run.
#[derive(Clone, Copy, Debug)]
struct Point {
    seconds: f64,
    power: Option<f64>,
    slow: Slow,
    load: Option<f64>,
}

/// State shared by the watching thread and the [`Monitor`].
#[derive(Debug)]
struct WatchState {
    sources: Sources,
    start: Instant,
    tallies: Vec<(u64, Tally)>,
    next: u64,
    idle: Option<Readings>,
    /// Comparison of the total power with each rail that the total should include. For each rail, only the comparison
    /// at the rail's largest rise so far is kept.
    findings: Vec<Inclusion>,
    course: Vec<Point>,
    /// Number of slow samples per point of the history.
    stride: usize,
    skipped: usize,
    /// Time of the last slow sample, and the busy times at that time.
    times: Option<(Instant, Times)>,
    power: Option<f64>,
    stop: bool,
    /// CPU time that the thread has used.
    spent: Duration,
}

impl WatchState {
    /// Reads the power and adds it to the tallies of all open spans.
    fn sample_power(&mut self, now: Instant) {
        let power = self.sources.power(now);
        self.power = power.map(|power| power.milliwatts);
        if let Some(power) = power {
            for (_, tally) in &mut self.tallies {
                tally.power(now, power);
            }
        }
    }

    /// Reads everything except the total power, and adds it to the tallies of all open spans. Returns the sample, and
    /// the powers of the rails.
    fn sample_slow(&mut self) -> (Slow, Vec<Option<f64>>) {
        let slow = self.sources.slow();
        let rails: Vec<Option<f64>> = self.sources.rails.iter().map(Rail::milliwatts).collect();
        for (_, tally) in &mut self.tallies {
            tally.slow(&slow, false);
            tally.rails(&rails);
        }
        (slow, rails)
    }

    /// Stores a slow sample as a point of the history.
    fn keep(&mut self, now: Instant, slow: Slow) {
        let cores = self.sources.cores();
        let before = slow.times.and_then(|times| self.times.replace((now, times)).zip(Some(times)));
        let others = before.and_then(|((then, before), times)| {
            times.since(before, now.saturating_duration_since(then), cores)
        });
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        if self.course.len() == POINTS {
            let mut place = 0;
            self.course.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.stride *= 2;
        }
        let seconds = now.saturating_duration_since(self.start).as_secs_f64();
        self.course.push(Point { seconds, power: self.power, slow, load: others.map(|others| others.load) });
    }

    /// Compares the rise of the total power with that of each rail that the total should include. Both rises are
    /// relative to the idle machine.
    fn compare(&mut self, readings: &Readings) {
        let found = self.idle.as_ref().map(|idle| inclusions(idle, readings)).unwrap_or_default();
        for found in found {
            let known = self.findings.iter().position(|known| known.part == found.part);
            let before = known.map(|place| &self.findings[place]);
            if before.is_some_and(|before| before.part_mw >= found.part_mw) {
                continue;
            }
            if !found.holds() && before.is_none_or(Inclusion::holds) {
                log::warn!("{found}");
            }
            match known {
                Some(place) => self.findings[place] = found,
                None => self.findings.push(found),
            }
        }
    }

    /// Converts a point of the history to a record.
    fn trace(&self, point: &Point) -> Trace {
        let zone = point.slow.hottest.and_then(|(place, _)| self.sources.zones.get(place));
        Trace {
            t_s: point.seconds,
            power_mw: point.power,
            temp_c: point.slow.hottest.map(|(_, celsius)| celsius),
            temp_zone: zone.map(|zone| text(&zone.name)),
            cpu_mhz: point.slow.slowest,
            gpu_mhz: point.slow.gpu,
            emc_mhz: point.slow.emc,
            load: point.load,
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<WatchState>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WatchState> {
        // The sums are consistent after every sample, so a panic elsewhere leaves them usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples at the given intervals until the monitor is dropped.
    fn watch(&self, power: Duration, slow: Duration) {
        let (mut power, mut slow) = (power, slow);
        let mut state = self.lock();
        // Without a power source no fast interval is needed.
        if !state.sources.measures_power() {
            power = slow;
        }
        let begin = Instant::now();
        let (mut next_slow, mut review) = (begin, begin + REVIEW);
        let (mut reviewed, mut before) = (begin, processor_time());
        while !state.stop {
            let now = Instant::now();
            state.sample_power(now);
            if now >= next_slow {
                let (sample, _) = state.sample_slow();
                state.keep(now, sample);
                next_slow = now + slow;
            }
            if now >= review {
                let spent = processor_time();
                let share = spent.saturating_sub(before).as_secs_f64() / (now - reviewed).as_secs_f64();
                (power, slow) = (rarer(power, share, LONGEST.0), rarer(slow, share, LONGEST.1));
                state.spent = spent;
                (reviewed, before, review) = (now, spent, now + REVIEW);
            }
            let rest = power.saturating_sub(now.elapsed());
            state = self.wake.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Returns the sampling interval that follows the interval `period`. With `period`, sampling used the fraction `share`
/// of a core. If `share` exceeds [`DEAREST`], returns twice `period`, but at most `longest`; if not, returns `period`.
fn rarer(period: Duration, share: f64, longest: Duration) -> Duration {
    if share > DEAREST { (period * 2).min(longest).max(period) } else { period }
}

/// Returns the CPU time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Span begun by [`Monitor::open`].
#[derive(Debug)]
#[must_use = "a stretch of time is read by closing it"]
pub struct Span(u64);

/// Watches a machine until the monitor is dropped.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Source of the processes' busy times, to identify the busiest other process.
    load: Option<Load>,
    /// Time at which the processes were last listed, and their busy times at that time.
    processes: Mutex<(Instant, HashMap<u32, u64>)>,
}

impl Monitor {
    /// Starts to watch. `pid` is the measured process; its load does not count as load of other processes.
    #[must_use]
    pub fn start(root: &Root, pid: u32) -> Monitor {
        Monitor::with_periods(root, pid, POWER, SLOW)
    }

    /// Starts to watch, like [`Monitor::start`]. The measured processes are `pid` and its descendants, and every rail
    /// of the module is read.
    #[must_use]
    pub fn of_tree(root: &Root, pid: u32) -> Monitor {
        let load = Load::find(root, pid).map(Load::with_descendants);
        Monitor::begin(Sources::of_tree(root, pid), load, POWER, SLOW)
    }

    /// Starts to watch, with a sample of the power every `power` and a sample of everything else every `slow`.
    #[must_use]
    pub fn with_periods(root: &Root, pid: u32, power: Duration, slow: Duration) -> Monitor {
        Monitor::begin(Sources::find(root, pid), Load::find(root, pid), power, slow)
    }

    /// Starts the thread. It reads `sources`; `load` identifies the busiest other process.
    fn begin(sources: Sources, load: Option<Load>, power: Duration, slow: Duration) -> Monitor {
        let now = Instant::now();
        // All points are written once now, so that the memory of the process does not grow during the run.
        let nothing = Point { seconds: f64::NAN, power: None, slow: Slow::default(), load: None };
        let mut course = vec![nothing; POINTS];
        std::hint::black_box(&mut course).clear();
        let state = WatchState {
            sources,
            start: now,
            tallies: Vec::new(),
            next: 0,
            idle: None,
            findings: Vec::new(),
            course,
            stride: 1,
            skipped: 0,
            times: None,
            power: None,
            stop: false,
            spent: Duration::ZERO,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
        let watcher = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("elsa-board".into()).spawn(move || watcher.watch(power, slow));
        if let Err(fault) = &thread {
            log::warn!("the board is read only between cells: no thread for it: {fault}");
        }
        let processes = load.as_ref().map(Load::processes).unwrap_or_default();
        Monitor { shared, thread: thread.ok(), load, processes: Mutex::new((now, processes)) }
    }

    /// Begins a span. Spans may overlap.
    pub fn open(&self) -> Span {
        let mut state = self.shared.lock();
        let now = Instant::now();
        // Brings the other spans up to date.
        state.sample_power(now);
        let (slow, rails) = state.sample_slow();
        let mut tally = Tally::new(now);
        tally.slow(&slow, true);
        tally.rails(&rails);
        let id = state.next;
        state.next += 1;
        state.tallies.push((id, tally));
        Span(id)
    }

    /// Ends a span in which `calls` calls were made, and returns its readings.
    pub fn close(&self, span: Span, calls: u64) -> Readings {
        let (mut readings, elapsed) = {
            let mut state = self.shared.lock();
            let now = Instant::now();
            state.sample_power(now);
            state.sample_slow();
            let facts = Facts {
                idle_mw: state.idle.as_ref().and_then(|idle| idle.power_mw),
                step_mw: state.sources.power_step(),
                cores: state.sources.cores(),
            };
            let Some(place) = state.tallies.iter().position(|(id, _)| *id == span.0) else {
                // The span belongs to another monitor.
                return Readings::default();
            };
            let (_, tally) = state.tallies.swap_remove(place);
            let (mut readings, zone) = tally.readings(now, calls, facts);
            readings.idle_rails_mw =
                state.idle.as_ref().map(|idle| idle.rails_mw.clone()).unwrap_or_default();
            readings.begin_s = now.saturating_duration_since(state.start).as_secs_f64() - readings.seconds;
            if let Some(zone) = zone.and_then(|zone| state.sources.zones.get(zone)) {
                readings.temp_zone = Some(zone.name.clone());
                readings.passive_c = zone.passive_c;
            }
            state.compare(&readings);
            (readings, now)
        };
        if let (Some(load), Some(others)) = (&self.load, readings.others)
            && others.load > OTHERS + others.error
        {
            let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
            let (before, times) = &*processes;
            readings.busiest = load.busiest(times, elapsed.saturating_duration_since(*before));
            *processes = (elapsed, load.processes());
        }
        readings
    }

    /// Watches the machine for `time` while nothing is measured. The mean power of this span is the idle power from
    /// then on.
    pub fn idle(&self, time: Duration) -> Readings {
        let span = self.open();
        std::thread::sleep(time);
        let readings = self.close(span, 0);
        self.shared.lock().idle = Some(readings.clone());
        readings
    }

    /// Returns the comparison of the total power with each rail that the total should include. A rail is listed only if
    /// its power rose enough since [`Monitor::idle`].
    #[must_use]
    pub fn findings(&self) -> Vec<Inclusion> {
        self.shared.lock().findings.clone()
    }

    /// Returns the names of the rails in [`Readings::rails_mw`]; empty unless descendants are measured.
    #[must_use]
    pub fn rails(&self) -> Vec<String> {
        self.shared.lock().sources.rails.iter().map(|rail| rail.name.clone()).collect()
    }

    /// Returns points of the run's history, at most 2048. The first point is at least `spacing` seconds after the
    /// time `told`, which counts seconds since the start of the monitor.
    /// Each later point is at least `spacing` seconds after the point before it.
    #[must_use]
    pub fn trace(&self, mut told: f64, spacing: f64) -> Vec<Trace> {
        let state = self.shared.lock();
        let mut apart = |point: &&Point| {
            let tell = point.seconds >= told + spacing;
            if tell {
                told = point.seconds;
            }
            tell
        };
        state.course.iter().filter(|point| apart(point)).map(|point| state.trace(point)).collect()
    }

    /// Returns the last point of the history.
    #[must_use]
    pub fn latest(&self) -> Option<Trace> {
        let state = self.shared.lock();
        state.course.last().map(|point| state.trace(point))
    }

    /// Returns the fraction of a core that watching uses; `None` in the first second.
    #[must_use]
    pub fn cost(&self) -> Option<f64> {
        let state = self.shared.lock();
        let seconds = state.start.elapsed().as_secs_f64();
        (state.spent > Duration::ZERO && seconds > 0.0).then(|| state.spent.as_secs_f64() / seconds)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_thinned_and_keeps_its_whole_course() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        let monitor = Monitor::with_periods(&Root::new(folder.path()), 1, hour, hour);
        // Waits for the samples that the thread takes when it starts; the next ones are due in an hour.
        while monitor.latest().is_none() {
            std::thread::yield_now();
        }
        let mut state = monitor.shared.lock();
        state.course.clear();
        let start = state.start;
        for second in 0..5000u32 {
            let slow = Slow { slowest: Some(f64::from(second)), ..Slow::default() };
            state.keep(start + Duration::from_secs(second.into()), slow);
        }
        let room = state.course.capacity();
        drop(state);
        let trace = monitor.trace(f64::NEG_INFINITY, 0.0);
        assert!((POINTS / 2..=POINTS).contains(&trace.len()) && room == POINTS, "{}", trace.len());
        assert!(trace[0].t_s < 5.0 && trace[trace.len() - 1].t_s > 4990.0);
        assert!(trace.iter().all(|point| point.cpu_mhz == Some(point.t_s)));
        assert!(trace.windows(2).all(|pair| (1.0..=8.0).contains(&(pair[1].t_s - pair[0].t_s))));
        assert_eq!(monitor.latest(), trace.last().cloned());
    }

    #[test]
    fn a_thread_that_takes_too_much_reads_less_often() {
        let (short, longest) = (Duration::from_millis(20), Duration::from_millis(200));
        assert_eq!(rarer(short, DEAREST, longest), short);
        let mut period = short;
        for expected in [40, 80, 160, 200, 200] {
            period = rarer(period, 2.0 * DEAREST, longest);
            assert_eq!(period, Duration::from_millis(expected));
        }
        let hour = Duration::from_secs(3600);
        assert_eq!(rarer(hour, 1.0, longest), hour, "one that is longer already stays");
        // A share over zero time is NaN, and must not change the interval.
        assert_eq!(rarer(short, f64::NAN, longest), short);
    }
}
