//! Power: the rails that a board measures, the rails that the total consists of, and the resolution of a reading.
//!
//! A Jetson measures its rails with INA3221 chips, which have three channels each and are found by their name on the
//! I2C bus. The sum of all channels is not the total power, for two reasons:
//!
//! 1. The module's input, `VDD_IN` or `POM_5V_IN`, feeds its other rails. If it exists, it alone is the total.
//! 2. The carrier board of the developer kit has chips of its own, at the addresses 0x42 and 0x43, behind the same
//!    supply. They say nothing about the module.
//!
//! Without an input rail the total is the sum of the module's rails. Channels named `NC` are not connected, and the
//! seventh channel of hwmon is the sum of the others. Linux up to 4.9 exposes a chip under IIO, in a folder
//! `iio:device0` or `iio_device`, with the power in mW; later versions expose it under hwmon, with voltage and current.
//!
//! The chip measures in steps of 40 µV across a shunt and of 8 mV on the bus, so power is quantised too. It averages up
//! to 1024 samples, so a reading taken too early repeats the previous one.
//!
//! A PC counts energy instead (RAPL). The system reports the value at which a counter wraps to zero.

use super::root::{Probe, Root};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Folder of the chips.
const BUS: &str = "sys/bus/i2c/devices";
/// Folder of a PC's energy counters.
const COUNTERS: &str = "sys/class/powercap";
/// Rails that feed the whole module.
const INPUTS: [&str; 2] = ["VDD_IN", "POM_5V_IN"];
/// The last two digits of the addresses of the carrier's chips.
const CARRIER: [&str; 2] = ["42", "43"];
/// Resolution of the chip's shunt voltage, in mV.
const SHUNT_STEP: f64 = 0.040;
/// Resolution of the chip's bus voltage, in V.
const BUS_STEP: f64 = 0.008;
/// Number of the hwmon channel that is the sum of the others.
const SUM: &str = "7";

/// Location of a measuring chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// On the module.
    Module,
    /// On the carrier board.
    Carrier,
}

/// Files from which the power of a channel is read.
#[derive(Debug)]
enum Channel {
    /// IIO: power in mW and, if available, voltage and current.
    Power { power: Probe, volt: Option<Probe>, current: Option<Probe> },
    /// hwmon: voltage in mV and current in mA. Their product is the power.
    Product { volt: Probe, current: Probe },
}

/// A rail that is measured.
#[derive(Debug)]
pub struct Rail {
    /// Name, such as `VDD_SYS_GPU`.
    pub name: String,
    /// Address of the chip on the bus, such as `0-0041`.
    pub chip: String,
    /// Location of the chip.
    pub place: Place,
    channel: Channel,
    /// Resistance of the shunt in milliohm.
    shunt: Option<f64>,
    /// Time between two conversions of the chip.
    interval: Option<Duration>,
}

impl Rail {
    /// Returns the power of the rail in mW.
    #[must_use]
    pub fn milliwatts(&self) -> Option<f64> {
        match &self.channel {
            Channel::Power { power, .. } => power.over(1.0),
            Channel::Product { volt, current } => Some(volt.over(1e3)? * current.over(1.0)?),
        }
    }

    /// Returns the resolution of the power in mW at the present voltage and current: the effect of one step of the
    /// shunt voltage plus the effect of one step of the bus voltage. `None` if the system does not report the resistance of the
    /// shunt.
    #[must_use]
    pub fn step(&self) -> Option<f64> {
        let (volt, current) = match &self.channel {
            Channel::Power { volt, current, .. } => (volt.as_ref()?, current.as_ref()?),
            Channel::Product { volt, current } => (volt, current),
        };
        // mV divided by milliohm gives A.
        let shunt_ma = SHUNT_STEP / self.shunt? * 1e3;
        Some(volt.over(1e3)? * shunt_ma + current.over(1.0)?.abs() * BUS_STEP)
    }
}

/// Finds all rails that the system reports, ordered by chip.
#[must_use]
pub fn find(root: &Root) -> Vec<Rail> {
    let mut rails = Vec::new();
    for chip in root.entries(BUS) {
        let folder = format!("{BUS}/{chip}");
        if root.line(&format!("{folder}/name")).is_some_and(|name| name.contains("ina3221")) {
            // Only one IIO folder is read, because the same folder may appear under both spellings.
            let found = iio(root, &folder, &chip);
            rails.extend(if found.is_empty() { hwmon(root, &folder, &chip) } else { found });
        }
    }
    rails
}

/// Returns the location of a chip, given its address.
fn place(chip: &str) -> Place {
    if CARRIER.iter().any(|address| chip.ends_with(address)) { Place::Carrier } else { Place::Module }
}

/// Returns `true` if the channel named `name` measures a rail.
fn connected(name: &str) -> bool {
    name != "NC"
}

/// Finds the rails of a chip's first IIO folder.
fn iio(root: &Root, folder: &str, chip: &str) -> Vec<Rail> {
    let devices = root.entries(folder).into_iter().filter(|entry| entry.starts_with("iio"));
    let of = |device: String| -> Vec<Rail> {
        let names = root.entries(&format!("{folder}/{device}"));
        let numbers = names.iter().filter_map(|name| name.strip_prefix("rail_name_"));
        numbers
            .filter_map(|number| {
                let file = |name: &str| format!("{folder}/{device}/{name}");
                let open = |name: String| Probe::open(root, &file(&name));
                let name = root.line(&file(&format!("rail_name_{number}"))).filter(|name| connected(name))?;
                let channel = Channel::Power {
                    power: open(format!("in_power{number}_input"))?,
                    volt: open(format!("in_voltage{number}_input")),
                    current: open(format!("in_current{number}_input")),
                };
                let shunt = root.cell(&format!("{folder}/of_node/channel@{number}/ti,shunt-resistor-mohm"));
                let shunt = shunt.filter(|milliohm| *milliohm > 0).map(f64::from);
                Some(Rail { name, chip: chip.to_owned(), place: place(chip), channel, shunt, interval: None })
            })
            .collect()
    };
    devices.map(of).find(|rails| !rails.is_empty()).unwrap_or_default()
}

/// Finds the rails of a chip's hwmon folder.
fn hwmon(root: &Root, folder: &str, chip: &str) -> Vec<Rail> {
    let folder = format!("{folder}/hwmon");
    let of = |device: String| -> Vec<Rail> {
        let file = |name: &str| format!("{folder}/{device}/{name}");
        let interval = root.number(&file("update_interval")).and_then(|ms| u64::try_from(ms).ok());
        let names = root.entries(&format!("{folder}/{device}"));
        let numbers = names.iter().filter_map(|name| name.strip_prefix("in")?.strip_suffix("_label"));
        numbers
            .filter(|number| *number != SUM)
            .filter_map(|number| {
                let open = |name: String| Probe::open(root, &file(&name));
                let name = root.line(&file(&format!("in{number}_label"))).filter(|name| connected(name))?;
                let channel = Channel::Product {
                    volt: open(format!("in{number}_input"))?,
                    current: open(format!("curr{number}_input"))?,
                };
                let shunt = root.number(&file(&format!("shunt{number}_resistor"))).filter(|x| *x > 0);
                Some(Rail {
                    name,
                    chip: chip.to_owned(),
                    place: place(chip),
                    channel,
                    // The file gives microohm.
                    shunt: shunt.map(|x| x as f64 / 1e3),
                    interval: interval.filter(|ms| *ms > 0).map(Duration::from_millis),
                })
            })
            .collect()
    };
    root.entries(&folder).into_iter().map(of).find(|rails| !rails.is_empty()).unwrap_or_default()
}

/// Returns the indices in `rails` of the rails whose powers add up to the total: the module's input, or all rails of
/// the module if it has no input rail.
#[must_use]
pub fn total(rails: &[Rail]) -> Vec<usize> {
    let on_module = || (0..rails.len()).filter(|i| rails[*i].place == Place::Module);
    match on_module().find(|i| INPUTS.contains(&rails[*i].name.as_str())) {
        Some(input) => vec![input],
        None => on_module().collect(),
    }
}

/// Finds the first rail of the module whose name contains `part` and that does not measure the total itself. The total
/// should include the power of this rail.
#[must_use]
pub fn part(rails: &[Rail], part: &str) -> Option<usize> {
    let whole = total(rails);
    let one = whole.len() == 1;
    (0..rails.len()).find(|i| {
        let rail = &rails[*i];
        one && rail.place == Place::Module && !whole.contains(i) && rail.name.contains(part)
    })
}

/// Returns the rails of the module whose powers are parts of the total: all rails except the module's input.
#[must_use]
pub fn components(rails: Vec<Rail>) -> Vec<Rail> {
    let whole = total(&rails);
    let input = (whole.len() == 1).then(|| whole[0]);
    let of_module = |(i, rail): &(usize, Rail)| rail.place == Place::Module && Some(*i) != input;
    rails.into_iter().enumerate().filter(of_module).map(|(_, rail)| rail).collect()
}

/// Energy counter.
#[derive(Debug)]
struct Counter {
    energy: Probe,
    /// Value in µJ at which the counter wraps to 0.
    range: u64,
    last: Option<u64>,
}

impl Counter {
    /// Returns the energy since the last call, in µJ.
    fn advance(&mut self) -> Option<u64> {
        let now = self.energy.number().and_then(|uj| u64::try_from(uj).ok());
        // After a failed read, energy and time both start again at the next read.
        let (before, now) = (std::mem::replace(&mut self.last, now)?, now?);
        Some(if now >= before {
            now - before
        } else {
            (self.range.saturating_sub(before)).saturating_add(now)
        })
    }
}

/// A reading of the total power.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Power {
    /// Power in mW; for an energy counter, the mean since the last reading.
    pub milliwatts: f64,
    /// `true` if this is a new reading, not a repetition of the last one.
    pub fresh: bool,
}

/// Meter of the machine's total power.
#[derive(Debug)]
pub struct Meter {
    source: PowerSource,
    last: Option<(Instant, f64)>,
    /// Time of the last fresh reading.
    fresh: Option<Instant>,
}

#[derive(Debug)]
enum PowerSource {
    /// Rails whose powers add up to the total.
    Rails(Vec<Rail>),
    /// Counters whose energies add up to the total.
    Counters { names: Vec<String>, counters: Vec<Counter> },
}

impl Meter {
    /// Finds the meter of a machine; `None` if no meter is readable.
    #[must_use]
    pub fn find(root: &Root) -> Option<Meter> {
        let rails = find(root);
        let whole = total(&rails);
        let rails: Vec<Rail> =
            rails.into_iter().enumerate().filter(|(i, _)| whole.contains(i)).map(|(_, rail)| rail).collect();
        let source = if rails.is_empty() { counters(root)? } else { PowerSource::Rails(rails) };
        Some(Meter { source, last: None, fresh: None })
    }

    /// Returns the names of the rails or counters whose sum is the total.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match &self.source {
            PowerSource::Rails(rails) => rails.iter().map(|rail| rail.name.clone()).collect(),
            PowerSource::Counters { names, .. } => names.clone(),
        }
    }

    /// Returns the resolution of the total in mW. This is the sum of the resolutions of its rails. `None` for energy
    /// counters.
    #[must_use]
    pub fn step(&self) -> Option<f64> {
        match &self.source {
            PowerSource::Rails(rails) => rails.iter().map(Rail::step).sum(),
            PowerSource::Counters { .. } => None,
        }
    }

    /// Reads the power at the time `now`. Allocates nothing.
    pub fn read(&mut self, now: Instant) -> Option<Power> {
        let elapsed = self.last.map(|(before, _)| now.saturating_duration_since(before));
        let (milliwatts, fresh) = match &mut self.source {
            PowerSource::Rails(rails) => {
                let sum: Option<f64> = rails.iter().map(Rail::milliwatts).sum();
                let milliwatts = sum?;
                let changed = self.last.is_none_or(|(_, before)| before != milliwatts);
                let interval = rails.iter().filter_map(|rail| rail.interval).max();
                let since = self.fresh.map(|fresh| now.saturating_duration_since(fresh));
                let due = interval.is_some_and(|interval| since.is_none_or(|since| since >= interval));
                (milliwatts, changed || due)
            }
            PowerSource::Counters { counters, .. } => {
                let mut sum = Some(0u64);
                // Every counter is read, so that the next call starts from this reading for all of them.
                for counter in counters {
                    let energy = counter.advance();
                    sum = sum.and_then(|sum| sum.checked_add(energy?));
                }
                let seconds = elapsed.map_or(0.0, |elapsed| elapsed.as_secs_f64());
                let Some(energy) = sum.filter(|_| seconds > 0.0) else {
                    self.last = Some((now, 0.0));
                    return None;
                };
                // The counters are in µJ.
                (energy as f64 / 1e3 / seconds, energy > 0)
            }
        };
        self.last = Some((now, milliwatts));
        if fresh {
            self.fresh = Some(now);
        }
        Some(Power { milliwatts, fresh })
    }
}

/// Opens the energy counters of a PC: the counters of the processor packages, and the counters of the memory. The
/// counter of a package does not include the memory.
fn counters(root: &Root) -> Option<PowerSource> {
    let (mut names, mut found) = (Vec::new(), Vec::new());
    for entry in root.entries(COUNTERS) {
        let file = |file: &str| format!("{COUNTERS}/{entry}/{file}");
        let Some(name) = root.line(&file("name")) else { continue };
        if !entry.starts_with("intel-rapl:") || !(name.starts_with("package") || name == "dram") {
            continue;
        }
        let range = root.number(&file("max_energy_range_uj")).and_then(|range| u64::try_from(range).ok());
        if let (Some(energy), Some(range)) = (Probe::open(root, &file("energy_uj")), range) {
            names.push(name);
            found.push(Counter { energy, range, last: None });
        }
    }
    (!found.is_empty()).then_some(PowerSource::Counters { names, counters: found })
}

/// Returns the reason why a PC's energy counters cannot be read.
#[must_use]
pub fn refusal(root: &Root) -> Option<String> {
    let counters = root.entries(COUNTERS);
    let counters = counters.iter().filter(|entry| entry.starts_with("intel-rapl:"));
    let refused =
        counters.into_iter().find_map(|entry| root.refusal(&format!("{COUNTERS}/{entry}/energy_uj")))?;
    Some(format!("power: {refused}; readable as root"))
}
