//! Judges the validity of a measurement: disturbances and their remedies.

use super::describe::Description;
use super::monitor::{Monitor, OTHERS};
use super::tally::Readings;
use elsa_core::telemetry::record::Throttling;
use std::fmt;
use std::time::{Duration, Instant};

/// Largest disturbances at which a measurement still counts as valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Load of other processes, in cores.
    pub others: f64,
    /// Load of a hypervisor's other virtual machines, in cores.
    pub stolen: f64,
    /// Largest variation of a clock, relative to its highest value.
    pub clock: f64,
    /// Highest allowed temperature of a zone, in degrees Celsius, if the system reports no limit for the zone.
    pub celsius: f64,
    /// Margin in degrees. A zone must stay this far below the temperature at which the system slows down.
    pub margin: f64,
    /// Time for which the machine is observed before it counts as quiet.
    pub look: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            others: OTHERS,
            stolen: 0.1,
            clock: 0.05,
            celsius: 90.0,
            margin: 2.0,
            look: Duration::from_millis(500),
        }
    }
}

/// A reason why a measurement is invalid, and its remedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Disturbance, as a phrase for a message.
    pub reason: String,
    /// Number and name of the process that caused the disturbance, if known.
    pub process: Option<(u32, String)>,
    /// Remedy for the disturbance: a command or an action.
    pub cure: Option<String>,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if let Some((pid, name)) = &self.process {
            write!(f, ", most by {name} ({pid})")?;
        }
        self.cure.iter().try_for_each(|cure| write!(f, "; {cure}"))
    }
}

/// Judges a measurement by its readings `cell`; `gpu` is `true` if it ran on the GPU. Reads nothing from the machine.
/// Values that the machine does not report count as good.
#[must_use]
pub fn judge(machine: &Description, cell: &Readings, gpu: bool, limits: &Limits) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut mark = |reason: String, process: Option<(u32, String)>, cure: Option<String>| {
        marks.push(Mark { reason, process, cure });
    };
    if let Some(others) = cell.others {
        if others.load > limits.others + others.error {
            let process = cell.busiest.as_ref().map(|busy| (busy.pid, busy.name.clone()));
            let cure = match &process {
                Some((_, name)) => format!("close {name}"),
                None => "close other programs".to_owned(),
            };
            mark(format!("others take {:.2} cores", others.load), process, Some(cure));
        }
        if others.stolen > limits.stolen + others.error {
            let cure = Some("run while its host is idle".to_owned());
            mark(format!("the hypervisor takes {:.2} cores", others.stolen), None, cure);
        }
    }
    if cell.throttled == Throttling::Seen {
        let reason = match cell.throttle_events {
            0 => "the board slowed itself down".to_owned(),
            events => format!("the board slowed itself down {events} times"),
        };
        mark(reason, None, Some("let it cool, and check its supply".to_owned()));
    }
    if let Some(celsius) = cell.temp_c {
        let highest = cell.passive_c.map_or(limits.celsius, |passive| passive - limits.margin);
        if celsius > highest {
            let zone = cell.temp_zone.as_deref().unwrap_or("a zone");
            mark(
                format!("{zone} is at {celsius:.0} °C, above {highest:.0}"),
                None,
                Some("let it cool".to_owned()),
            );
        }
    }
    if let Some((start, end)) = cell.cpu_limits_mhz
        && moved(start, end) > limits.clock
    {
        let mode = machine.power_mode.as_ref().map(|mode| format!("sudo nvpmodel -m {}", mode.id));
        mark(format!("the CPU's highest clock went from {start:.0} to {end:.0} MHz"), None, mode);
    }
    if cell.cores_on.0 != cell.cores_on.1 {
        let mode = machine.power_mode.as_ref().map(|mode| format!("sudo nvpmodel -m {}", mode.id));
        mark(format!("of {} cores, {} stayed on", cell.cores_on.1, cell.cores_on.0), None, mode);
    }
    let clocks = [
        ("CPU", cell.cpu_range_mhz),
        ("GPU", cell.gpu_range_mhz.filter(|_| gpu)),
        ("memory", cell.emc_range_mhz),
    ];
    for (name, range) in clocks {
        if let Some((low, high)) = range
            && moved(low, high) > limits.clock
        {
            let cure =
                if machine.is_jetson() { "sudo jetson_clocks" } else { "set the governor performance" };
            let reason = format!("the {name}'s clock moved between {low:.0} and {high:.0} MHz");
            mark(reason, None, Some(cure.to_owned()));
        }
    }
    marks
}

/// Returns the difference between two clocks, relative to the higher one.
fn moved(a: f64, b: f64) -> f64 {
    let high = a.max(b);
    if high > 0.0 { (a - b).abs() / high } else { 0.0 }
}

/// Waits until the machine is quiet, but no longer than `limit`. A limit of zero means a single check. Clocks may
/// change during the wait, as they do on an idle machine.
///
/// # Errors
/// Returns the disturbances that remain when the time is over.
pub fn quiet(
    monitor: &Monitor,
    machine: &Description,
    limits: &Limits,
    limit: Duration,
) -> Result<(), Vec<Mark>> {
    let start = Instant::now();
    loop {
        let span = monitor.open();
        std::thread::sleep(limits.look);
        let readings = monitor.close(span, 0);
        let still = Readings { cpu_range_mhz: None, gpu_range_mhz: None, emc_range_mhz: None, ..readings };
        let marks = judge(machine, &still, false, limits);
        if marks.is_empty() {
            return Ok(());
        }
        if start.elapsed() + limits.look > limit {
            return Err(marks);
        }
    }
}
