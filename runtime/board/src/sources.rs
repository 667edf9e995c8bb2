//! All files that are read while a benchmark runs.

use super::clocks::{self, Clock, Gpu};
use super::load::{Load, Times};
use super::rails::{self, Meter, Power, Rail};
use super::root::Root;
use super::throttle::{Sign, Throttle};
use super::zones::{self, Zone};
use std::time::Instant;

/// A rail whose name contains one of these texts is compared with the total power.
pub const PARTS: [&str; 2] = ["GPU", "CPU"];

/// Open files of a machine. All samples are read from these files.
#[derive(Debug)]
pub struct Sources {
    /// Thermal zones that give a measurement.
    pub zones: Vec<Zone>,
    cores: Vec<Clock>,
    gpu: Option<Gpu>,
    emc: Option<Clock>,
    meter: Option<Meter>,
    /// Rails whose power should be part of the total power: one for each text in [`PARTS`], in that order.
    pub parts: [Option<Rail>; 2],
    /// Rails whose powers are parts of the total power. They are read only if descendants are measured.
    pub rails: Vec<Rail>,
    throttle: Throttle,
    load: Option<Load>,
}

/// Sample of the values that change slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slow {
    /// Hottest zone: its index in [`Sources::zones`] and its temperature in degrees Celsius.
    pub hottest: Option<(usize, f64)>,
    /// Clock of the slowest online core, in MHz.
    pub slowest: Option<f64>,
    /// Clock of the fastest core, in MHz.
    pub fastest: Option<f64>,
    /// Highest clock allowed for any core, in MHz.
    pub limit: Option<f64>,
    /// Number of cores that report their clock.
    pub on: usize,
    /// `true` if all cores that report their clock run at their highest clock.
    pub at_highest: bool,
    /// Clock of the GPU, in MHz.
    pub gpu: Option<f64>,
    /// Load of the GPU, from 0 to 1.
    pub gpu_load: Option<f64>,
    /// Clock of the memory, in MHz.
    pub emc: Option<f64>,
    /// Power in mW of each rail in [`Sources::parts`].
    pub parts: [Option<f64>; 2],
    /// Signs of throttling since the previous sample.
    pub sign: Sign,
    /// Busy times of the cores and the measured process.
    pub times: Option<Times>,
}

impl Sources {
    /// Opens the files of a machine. `pid` is the measured process. Its load does not count as load of other processes.
    #[must_use]
    pub fn find(root: &Root, pid: u32) -> Sources {
        let mut rails = rails::find(root);
        let mut take = |part: &str| rails::part(&rails, part).map(|place| rails.remove(place));
        let parts = PARTS.map(&mut take);
        Sources {
            zones: zones::find(root).0,
            cores: clocks::cores(root).0,
            gpu: clocks::gpu(root),
            emc: clocks::emc(root).ok(),
            meter: Meter::find(root),
            parts,
            rails: Vec::new(),
            throttle: Throttle::find(root),
            load: Load::find(root, pid),
        }
    }

    /// Opens the files of a machine like [`Sources::find`], to measure a program: the descendants of the process are
    /// measured with it, and every rail is read.
    #[must_use]
    pub fn of_tree(root: &Root, pid: u32) -> Sources {
        let sources = Sources::find(root, pid);
        let rails = rails::components(rails::find(root));
        Sources { load: sources.load.map(Load::with_descendants), rails, ..sources }
    }

    /// Returns `true` if the machine measures its power.
    #[must_use]
    pub fn measures_power(&self) -> bool {
        self.meter.is_some()
    }

    /// Returns the resolution of the total power, in mW.
    #[must_use]
    pub fn power_step(&self) -> Option<f64> {
        self.meter.as_ref()?.step()
    }

    /// Returns the number of cores listed in `/proc/stat`.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.load.as_ref().map_or(1, |load| load.cores)
    }

    /// Reads the total power at the time `now`. Allocates nothing.
    pub fn power(&mut self, now: Instant) -> Option<Power> {
        self.meter.as_mut()?.read(now)
    }

    /// Reads everything except the total power. Allocates nothing unless descendants are measured.
    pub fn slow(&mut self) -> Slow {
        let mut slow = Slow {
            hottest: zones::hottest(&self.zones),
            gpu: self.gpu.as_ref().and_then(|gpu| gpu.clock.mhz()),
            gpu_load: self.gpu.as_ref().and_then(Gpu::load),
            emc: self.emc.as_ref().and_then(Clock::mhz),
            sign: self.throttle.look(),
            times: self.load.as_ref().and_then(Load::times),
            at_highest: !self.cores.is_empty(),
            ..Slow::default()
        };
        for (power, rail) in slow.parts.iter_mut().zip(&self.parts) {
            *power = rail.as_ref().and_then(Rail::milliwatts);
        }
        for core in &self.cores {
            // A core that has been switched off reports no clock.
            let Some(mhz) = core.mhz() else { continue };
            slow.on += 1;
            slow.slowest = Some(slow.slowest.map_or(mhz, |x| x.min(mhz)));
            slow.fastest = Some(slow.fastest.map_or(mhz, |x| x.max(mhz)));
            if let Some(limit) = core.high() {
                slow.limit = Some(slow.limit.map_or(limit, |x| x.max(limit)));
            }
            slow.at_highest &= core.at_highest() == Some(true);
        }
        slow
    }
}
