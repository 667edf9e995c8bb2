//! Sums and extremes over a span, updated with each sample, and the readings derived from them.

use super::load::{Busy, Others, Times};
use super::rails::Power;
use super::sources::Slow;
use elsa_core::telemetry::record::{Cell, Phase, RailEnergy, Throttling, text};
use std::time::{Duration, Instant};

/// Energy is reported only if there are at least this many fresh power readings.
pub const FEWEST_READINGS: u32 = 20;

/// Relative difference between two samples above which a clock counts as changed.
const CHANGE: f64 = 0.02;

/// Readings of the board over a span, such as a cell of the benchmark. Values that the machine does not report are
/// `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Readings {
    /// Start of the span, in seconds since the start of the monitor.
    pub begin_s: f64,
    /// Length of the span.
    pub seconds: f64,
    /// Mean total power. If several methods alternate in the span, this is one mean over all of them.
    pub power_mw: Option<f64>,
    /// Mean total power of the idle machine.
    pub idle_power_mw: Option<f64>,
    /// Energy per call; `None` if there are too few power readings.
    pub energy_mj: Option<f64>,
    /// Energy per call minus the energy that the idle machine uses in the same time.
    pub energy_net_mj: Option<f64>,
    /// Number of fresh power readings.
    pub power_readings: u32,
    /// Resolution of the power. If the system does not report the resistance of the shunt, this is the smallest change
    /// between two readings.
    pub power_quantum_mw: Option<f64>,
    /// Mean power of the GPU's rail, and mean power of the CPU's rail. Each is present only if the total power should
    /// include that rail.
    pub parts_mw: [Option<f64>; 2],
    /// Mean power of each rail in `Monitor::rails`.
    pub rails_mw: Vec<Option<f64>>,
    /// Mean power of the same rails of the idle machine; empty if it is unknown.
    pub idle_rails_mw: Vec<Option<f64>>,
    /// The highest temperature of the hottest zone.
    pub temp_c: Option<f64>,
    /// Temperature of the hottest zone in the first sample and in the last. The two zones may differ.
    pub temps_c: Option<(f64, f64)>,
    /// Name of the hottest zone.
    pub temp_zone: Option<String>,
    /// Temperature at which the hottest zone makes the system slow the board down.
    pub passive_c: Option<f64>,
    /// Mean clock of the slowest online core.
    pub cpu_mhz: Option<f64>,
    /// Lowest and highest clock of the fastest core.
    pub cpu_range_mhz: Option<(f64, f64)>,
    /// Highest clock allowed for any core, at the start and at the end of the span.
    pub cpu_limits_mhz: Option<(f64, f64)>,
    /// Smallest and largest number of online cores.
    pub cores_on: (usize, usize),
    /// Mean clock of the GPU.
    pub gpu_mhz: Option<f64>,
    /// Lowest and highest clock of the GPU.
    pub gpu_range_mhz: Option<(f64, f64)>,
    /// Mean load of the GPU, from 0 to 1.
    pub gpu_load: Option<f64>,
    /// Mean clock of the memory.
    pub emc_mhz: Option<f64>,
    /// Lowest and highest clock of the memory.
    pub emc_range_mhz: Option<(f64, f64)>,
    /// Number of times that a clock changed from one sample to the next.
    pub clock_changes: u32,
    /// Throttling of the board: seen, not seen, or unknown.
    pub throttled: Throttling,
    /// Number of throttling events.
    pub throttle_events: u64,
    /// Busy time of the measured process in seconds, in whole ticks of 10 ms.
    pub process_s: Option<f64>,
    /// Load of other processes.
    pub others: Option<Others>,
    /// The other process with the highest load. It is identified only if the load of all other processes exceeds a
    /// limit.
    pub busiest: Option<Busy>,
}

impl Readings {
    /// Writes the readings into a row of the results.
    pub fn fill(&self, cell: &mut Cell) {
        cell.power_mw = self.power_mw;
        cell.idle_power_mw = self.idle_power_mw;
        cell.energy_mj = self.energy_mj;
        cell.energy_net_mj = self.energy_net_mj;
        cell.power_readings = self.power_readings;
        cell.power_quantum_mw = self.power_quantum_mw;
        cell.temp_c = self.temp_c;
        cell.temp_zone = self.temp_zone.as_deref().map(text);
        cell.cpu_mhz = self.cpu_mhz;
        cell.gpu_mhz = self.gpu_mhz;
        cell.emc_mhz = self.emc_mhz;
        cell.throttled = self.throttled;
    }

    /// Writes the readings of a span of one call into a row of a program. `rails` contains the names of the rails. The
    /// row has no more rails than records allow.
    pub fn fill_phase(&self, phase: &mut Phase, rails: &[String]) {
        phase.begin_s = self.begin_s;
        phase.seconds = self.seconds;
        phase.cpu_s = self.process_s;
        phase.power_mw = self.power_mw;
        phase.idle_power_mw = self.idle_power_mw;
        phase.power_quantum_mw = self.power_quantum_mw;
        phase.power_readings = self.power_readings;
        phase.energy_mj = self.energy_mj;
        phase.energy_net_mj = self.energy_net_mj;
        let idle = self.idle_rails_mw.iter().copied().chain(std::iter::repeat(None));
        let means = rails.iter().zip(&self.rails_mw).zip(idle);
        let known = means.filter_map(|((name, mean), idle)| Some((name, (*mean)?, idle)));
        let rail = |(name, power_mw, idle): (&String, f64, Option<f64>)| RailEnergy {
            name: text(name),
            power_mw,
            energy_mj: power_mw * self.seconds,
            energy_net_mj: idle.map(|idle| (power_mw - idle) * self.seconds),
        };
        phase.rails = known.take(phase.rails.capacity()).map(rail).collect();
        phase.temp_first_c = self.temps_c.map(|(first, _)| first);
        phase.temp_last_c = self.temps_c.map(|(_, last)| last);
        phase.temp_c = self.temp_c;
        phase.temp_zone = self.temp_zone.as_deref().map(text);
        phase.cpu_mhz = self.cpu_mhz;
        phase.gpu_mhz = self.gpu_mhz;
        phase.emc_mhz = self.emc_mhz;
        phase.gpu_load = self.gpu_load;
        phase.throttled = self.throttled;
        phase.throttle_events = self.throttle_events;
        phase.load = self.others.map(|others| others.load);
    }
}

/// Mean, extremes and number of changes of a value that may be unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    sum: f64,
    count: u32,
    range: Option<(f64, f64)>,
    last: Option<f64>,
    changes: u32,
}

impl Spread {
    fn add(&mut self, x: Option<f64>) {
        let Some(x) = x else { return };
        self.sum += x;
        self.count += 1;
        self.range = Some(self.range.map_or((x, x), |(low, high)| (low.min(x), high.max(x))));
        if self.last.is_some_and(|last| (x - last).abs() > CHANGE * last.max(x)) {
            self.changes += 1;
        }
        self.last = Some(x);
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// Facts about the machine that the readings need in addition to the samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Mean total power when idle, in mW.
    pub idle_mw: Option<f64>,
    /// Resolution of the total power, in mW.
    pub step_mw: Option<f64>,
    /// Number of cores listed in `/proc/stat`.
    pub cores: usize,
}

/// Sums and extremes over a span.
#[derive(Clone, Debug)]
pub struct Tally {
    opened: Instant,
    /// Energy so far, in mJ.
    energy: f64,
    covered: Duration,
    /// Time up to which the energy is known.
    until: Instant,
    readings: u32,
    power: Option<f64>,
    smallest: Option<f64>,
    hottest: Option<(usize, f64)>,
    /// Temperature of the hottest zone in the first sample and in the last.
    temps: Option<(f64, f64)>,
    slowest: Spread,
    fastest: Spread,
    limits: Option<(f64, f64)>,
    on: Option<(usize, usize)>,
    gpu: Spread,
    gpu_load: Spread,
    emc: Spread,
    parts: [Spread; 2],
    rails: Vec<Spread>,
    events: u64,
    signs: bool,
    /// `true` if every sample could have shown throttling.
    counted: bool,
    /// `true` if, at every sample, the cooling devices were at rest and the clocks were at their highest.
    free: bool,
    times: Option<(Times, Times)>,
}

impl Tally {
    /// Begins a span at the time `now`.
    #[must_use]
    pub fn new(now: Instant) -> Tally {
        Tally {
            opened: now,
            energy: 0.0,
            covered: Duration::ZERO,
            until: now,
            readings: 0,
            power: None,
            smallest: None,
            hottest: None,
            temps: None,
            slowest: Spread::default(),
            fastest: Spread::default(),
            limits: None,
            on: None,
            gpu: Spread::default(),
            gpu_load: Spread::default(),
            emc: Spread::default(),
            parts: [Spread::default(); 2],
            rails: Vec::new(),
            events: 0,
            signs: false,
            counted: false,
            free: false,
            times: None,
        }
    }

    /// Adds a power reading. This power counts for the time since the previous reading.
    pub fn power(&mut self, now: Instant, power: Power) {
        let held = now.saturating_duration_since(self.until);
        self.until = now;
        self.covered += held;
        self.energy += power.milliwatts * held.as_secs_f64();
        self.readings += u32::from(power.fresh);
        let step = self.power.replace(power.milliwatts).map(|before| (power.milliwatts - before).abs());
        if let Some(step) = step.filter(|step| *step > 0.0) {
            self.smallest = Some(self.smallest.map_or(step, |x| x.min(step)));
        }
    }

    /// Adds a sample of everything except the power. If `first` is `true`, this is the first sample of a span, and its
    /// events are ignored because they happened before the span.
    pub fn slow(&mut self, slow: &Slow, first: bool) {
        if let Some((_, celsius)) = slow.hottest {
            self.temps = Some((self.temps.map_or(celsius, |(start, _)| start), celsius));
        }
        if let Some((place, celsius)) = slow.hottest
            && self.hottest.is_none_or(|(_, highest)| celsius > highest)
        {
            self.hottest = Some((place, celsius));
        }
        self.slowest.add(slow.slowest);
        self.fastest.add(slow.fastest);
        if let Some(limit) = slow.limit {
            self.limits = Some((self.limits.map_or(limit, |(start, _)| start), limit));
        }
        self.on =
            Some(self.on.map_or((slow.on, slow.on), |(few, many)| (few.min(slow.on), many.max(slow.on))));
        self.gpu.add(slow.gpu);
        self.gpu_load.add(slow.gpu_load);
        self.emc.add(slow.emc);
        for (part, power) in self.parts.iter_mut().zip(slow.parts) {
            part.add(power);
        }
        if !first {
            self.events += slow.sign.events;
            self.signs |= slow.sign.alarm;
        }
        self.signs |= slow.sign.held;
        let sign = slow.sign;
        self.counted = sign.counted && (first || self.counted);
        self.free = sign.rested && slow.at_highest && (first || self.free);
        if let Some(times) = slow.times {
            self.times = Some((self.times.map_or(times, |(start, _)| start), times));
        }
    }

    /// Adds a sample of the power of each rail in `Sources::rails`.
    pub fn rails(&mut self, powers: &[Option<f64>]) {
        self.rails.resize(powers.len(), Spread::default());
        for (rail, power) in self.rails.iter_mut().zip(powers) {
            rail.add(*power);
        }
    }

    /// Ends the span at the time `now`, after `calls` calls. Also returns the index of the hottest zone in `Sources::zones`.
    /// The caller uses the index to add the zone's name.
    #[must_use]
    pub fn readings(&self, now: Instant, calls: u64, facts: Facts) -> (Readings, Option<usize>) {
        let elapsed = now.saturating_duration_since(self.opened);
        let seconds = elapsed.as_secs_f64();
        let covered = self.covered.as_secs_f64();
        let power_mw = (covered > 0.0).then(|| self.energy / covered);
        let enough = self.readings >= FEWEST_READINGS && calls > 0;
        let energy = |mw: f64| mw * seconds / calls as f64;
        let throttled = if self.signs || self.events > 0 {
            Throttling::Seen
        } else if self.counted || self.free {
            Throttling::NotSeen
        } else {
            Throttling::Unknown
        };
        let readings = Readings {
            begin_s: 0.0,
            seconds,
            power_mw,
            idle_power_mw: facts.idle_mw,
            energy_mj: power_mw.filter(|_| enough).map(energy),
            energy_net_mj: power_mw.zip(facts.idle_mw).filter(|_| enough).map(|(mw, idle)| energy(mw - idle)),
            power_readings: self.readings,
            power_quantum_mw: facts.step_mw.or(self.smallest),
            parts_mw: self.parts.map(|part| part.mean()),
            rails_mw: self.rails.iter().map(Spread::mean).collect(),
            idle_rails_mw: Vec::new(),
            temp_c: self.hottest.map(|(_, celsius)| celsius),
            temps_c: self.temps,
            temp_zone: None,
            passive_c: None,
            cpu_mhz: self.slowest.mean(),
            cpu_range_mhz: self.fastest.range,
            cpu_limits_mhz: self.limits,
            cores_on: self.on.unwrap_or_default(),
            gpu_mhz: self.gpu.mean(),
            gpu_range_mhz: self.gpu.range,
            gpu_load: self.gpu_load.mean(),
            emc_mhz: self.emc.mean(),
            emc_range_mhz: self.emc.range,
            clock_changes: self.fastest.changes + self.gpu.changes + self.emc.changes,
            throttled,
            throttle_events: self.events,
            process_s: self.times.map(|(start, end)| end.process_since(start)),
            others: self.times.and_then(|(start, end)| end.since(start, elapsed, facts.cores)),
            busiest: None,
        };
        (readings, self.hottest.map(|(place, _)| place))
    }
}
