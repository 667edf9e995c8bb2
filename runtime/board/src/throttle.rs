//! Detects throttling.
//!
//! | source | content | proves |
//! |---|---|---|
//! | `soctherm_oc` (Orin `ocN_event_cnt`, Xavier `ocN_irq_cnt`) | over-current events since the start of the system | seen or not seen, by the change of the counter |
//! | `thermal_throttle` of x86 | thermal events of cores and packages since the start of the system | seen or not seen, by the change of the counter |
//! | `currN_max_alarm`, `currN_crit_alarm` of an INA3221 | a current above its limit | seen |
//! | `cur_state` of cooling devices | how far a clock is held down now | seen |
//!
//! Counters have 32 bits and wrap, so a value below the previous one also means new events. Fans are cooling devices
//! too, but do not slow anything down. On a board without counters, such as a TX2, only one observation rules out
//! throttling: at every sample, the cooling devices were at rest and the clocks were at their highest.

use super::root::{Probe, Root};

/// Folder of the sensors.
const SENSORS: &str = "sys/class/hwmon";
/// Folder of the cooling devices.
const COOLING: &str = "sys/class/thermal";
/// Folder of the cores.
const CORES: &str = "sys/devices/system/cpu";

/// A cooling device whose name contains one of these texts holds a clock down. The names on a TX2 are not confirmed. If the
/// name of no cooling device is recognised, it stays unknown whether the board throttled.
const SLOWING: [&str; 7] = ["cpu", "gpu", "emc", "freq", "balanced", "throttle", "processor"];

/// Signs of throttling in one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sign {
    /// Number of throttling events since the previous sample.
    pub events: u64,
    /// `true` if an alarm is on.
    pub alarm: bool,
    /// `true` if a cooling device holds a clock down.
    pub held: bool,
    /// `true` if counters exist and all of them were read. If the number of events is then zero, no event occurred.
    pub counted: bool,
    /// `true` if cooling devices exist and all of them are known to be at rest.
    pub rested: bool,
}

#[derive(Debug)]
struct Counter {
    probe: Probe,
    last: Option<u32>,
}

/// Files of a machine that show throttling.
#[derive(Debug)]
pub struct Throttle {
    counters: Vec<Counter>,
    alarms: Vec<Probe>,
    cooling: Vec<Probe>,
}

impl Throttle {
    /// Finds and opens the files.
    #[must_use]
    pub fn find(root: &Root) -> Throttle {
        let (mut counters, mut alarms, mut cooling) = (Vec::new(), Vec::new(), Vec::new());
        for sensor in root.entries(SENSORS) {
            let folder = format!("{SENSORS}/{sensor}");
            let name = root.line(&format!("{folder}/name")).unwrap_or_default();
            for file in root.entries(&folder) {
                let probe = || Probe::open(root, &format!("{folder}/{file}"));
                let counts =
                    file.starts_with("oc") && (file.ends_with("_event_cnt") || file.ends_with("_irq_cnt"));
                if name == "soctherm_oc" && counts {
                    counters.extend(probe());
                } else if name.starts_with("ina3221") && file.starts_with("curr") && file.ends_with("_alarm")
                {
                    alarms.extend(probe());
                }
            }
        }
        for core in root.entries(CORES).iter().filter(|name| name.starts_with("cpu")) {
            for file in ["core_throttle_count", "package_throttle_count"] {
                counters.extend(Probe::open(root, &format!("{CORES}/{core}/thermal_throttle/{file}")));
            }
        }
        for device in root.entries(COOLING).iter().filter(|name| name.starts_with("cooling_device")) {
            let file = |file: &str| format!("{COOLING}/{device}/{file}");
            let kind = root.line(&file("type")).unwrap_or_default().to_lowercase();
            if !kind.contains("fan") && SLOWING.iter().any(|part| kind.contains(part)) {
                cooling.extend(Probe::open(root, &file("cur_state")));
            }
        }
        let counters = counters.into_iter().map(|probe| Counter { probe, last: None }).collect();
        Throttle { counters, alarms, cooling }
    }

    /// Returns `true` if the machine counts throttling events.
    #[must_use]
    pub fn counts(&self) -> bool {
        !self.counters.is_empty()
    }

    /// Returns `true` if the machine has cooling devices that can hold clocks down.
    #[must_use]
    pub fn cools(&self) -> bool {
        !self.cooling.is_empty()
    }

    /// Reads all files. The first call reports zero events. Allocates nothing.
    pub fn look(&mut self) -> Sign {
        let mut events = 0;
        let mut counted = self.counts();
        for counter in &mut self.counters {
            // The kernel prints some drivers' counters as signed, so only the bits count.
            let Some(now) = counter.probe.number().map(|x| x as u32) else {
                counted = false;
                continue;
            };
            if let Some(before) = counter.last.replace(now) {
                events += u64::from(now.wrapping_sub(before));
            }
        }
        // Every alarm is read, even after one that is on, because reading clears an alarm.
        let on = |probe: &Probe| probe.number().is_some_and(|x| x > 0);
        let alarm = self.alarms.iter().fold(false, |any, probe| any | on(probe));
        let mut rested = self.cools();
        let mut held = false;
        for device in &self.cooling {
            let state = device.number();
            held |= state.is_some_and(|state| state > 0);
            rested &= state == Some(0);
        }
        Sign { events, alarm, held, counted, rested }
    }
}
