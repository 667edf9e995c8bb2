//! Finds the thermal zones that really measure a temperature, and the hottest of these zones.
//!
//! Not every zone measures a temperature. `PMIC-Die` of a TX2 and a Nano always reports 100 °C. On an Orin, a sensor
//! that is switched off reports −256 °C or cannot be read. So zones whose type begins with `PMIC` are skipped, and
//! implausible readings are discarded.

use super::root::{Probe, Root};
use std::ops::RangeInclusive;

/// Folder of the zones.
const FOLDER: &str = "sys/class/thermal";

/// Plausible temperatures of a running board, in degrees Celsius.
const PLAUSIBLE: RangeInclusive<f64> = -40.0..=125.0;

/// Lowest plausible trip point, in degrees Celsius. Trip points below it do not protect against heat.
const LOWEST_TRIP: f64 = 40.0;

/// Thermal zone that measures a temperature.
#[derive(Debug)]
pub struct Zone {
    /// Type, such as `GPU-therm`.
    pub name: String,
    /// Lowest temperature at which the system slows the board down, in degrees Celsius; `None` if unknown.
    pub passive_c: Option<f64>,
    probe: Probe,
}

impl Zone {
    /// Returns the temperature of the zone in degrees Celsius; `None` if the sensor is off.
    #[must_use]
    pub fn celsius(&self) -> Option<f64> {
        self.probe.over(1e3).filter(|x| PLAUSIBLE.contains(x))
    }
}

/// Finds the zones that measure a temperature. Also returns the types of the other zones.
#[must_use]
pub fn find(root: &Root) -> (Vec<Zone>, Vec<String>) {
    let (mut zones, mut left_out) = (Vec::new(), Vec::new());
    for entry in root.entries(FOLDER).iter().filter(|entry| entry.starts_with("thermal_zone")) {
        let folder = format!("{FOLDER}/{entry}");
        let Some(name) = root.line(&format!("{folder}/type")) else { continue };
        if name.starts_with("PMIC") {
            left_out.push(name);
        } else if let Some(probe) = Probe::open(root, &format!("{folder}/temp")) {
            zones.push(Zone { passive_c: passive(root, &folder), name, probe });
        }
    }
    (zones, left_out)
}

/// Returns the lowest passive trip point of a zone, in degrees Celsius.
fn passive(root: &Root, folder: &str) -> Option<f64> {
    let points = root.entries(folder).into_iter().filter_map(|entry| {
        let point = entry.strip_suffix("_type")?.to_owned();
        (point.starts_with("trip_point_") && root.line(&format!("{folder}/{entry}"))? == "passive")
            .then_some(point)
    });
    let degrees =
        points.filter_map(|point| root.number(&format!("{folder}/{point}_temp"))).map(|x| x as f64 / 1e3);
    degrees.filter(|x| (LOWEST_TRIP..=*PLAUSIBLE.end()).contains(x)).reduce(f64::min)
}

/// Returns the hottest zone: its index in `zones` and its temperature in degrees Celsius.
#[must_use]
pub fn hottest(zones: &[Zone]) -> Option<(usize, f64)> {
    let readings = zones.iter().enumerate().filter_map(|(place, zone)| Some((place, zone.celsius()?)));
    readings.reduce(|a, b| if b.1 > a.1 { b } else { a })
}
