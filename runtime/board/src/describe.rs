//! Describes a machine: model, releases, power mode, clocks, zones and rails.

use super::clocks::{self, Clock, Reading};
use super::rails::{self, Meter, Place, Rail};
use super::release::{self, PowerMode};
use super::root::Root;
use super::throttle::Throttle;
use super::zones;
use elsa_core::telemetry::record::{Start, text};
use serde::Serialize;

/// A thermal zone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZoneReading {
    /// Type of the zone, such as `GPU-therm`.
    pub name: String,
    /// Temperature; `None` if its sensor is off.
    pub temp_c: Option<f64>,
}

/// A rail whose power is measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RailReading {
    /// Name of the rail, such as `VDD_IN`.
    pub name: String,
    /// Address of the measuring chip on the I2C bus.
    pub chip: String,
    /// Location of the chip: module or carrier board.
    pub place: Place,
    /// Power in mW.
    pub power_mw: Option<f64>,
    /// `true` if the rail counts towards the total power.
    pub total: bool,
}

/// Description of a machine. A field that the machine does not report is `None`, and `notes` says why.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Description {
    /// The model, from the device tree.
    pub board: Option<String>,
    /// The name of the board in `elsa-targets`.
    pub target: Option<&'static str>,
    /// The release of L4T.
    pub l4t: Option<String>,
    /// The JetPack of this L4T release.
    pub jetpack: Option<&'static str>,
    /// The release of the kernel.
    pub kernel: Option<String>,
    /// Release of the GPU's driver, if it is a separate kernel module.
    pub driver: Option<String>,
    /// The power mode of `nvpmodel`.
    pub power_mode: Option<PowerMode>,
    /// `true` if the clocks are fixed at their highest rates.
    pub jetson_clocks: Option<bool>,
    /// Governors of the cores, each listed once.
    pub governor: Option<String>,
    /// Clocks of the cores that are online.
    pub cores: Vec<Reading>,
    /// Names of the cores that are offline.
    pub cores_off: Vec<String>,
    /// The clock of the GPU.
    pub gpu: Option<Reading>,
    /// Load of the GPU, from 0 to 1.
    pub gpu_load: Option<f64>,
    /// The clock of the memory.
    pub emc: Option<Reading>,
    /// The thermal zones.
    pub zones: Vec<ZoneReading>,
    /// Types of the zones that give no usable measurement.
    pub zones_left_out: Vec<String>,
    /// Rails whose power is measured.
    pub rails: Vec<RailReading>,
    /// Names of the rails or counters whose sum is the total power.
    pub total: Vec<String>,
    /// `true` if the processor is emulated.
    pub emulated: bool,
    /// Reasons for missing values, and remedies.
    pub notes: Vec<String>,
}

impl Description {
    /// Returns `true` if the machine is a Jetson.
    #[must_use]
    pub(crate) fn is_jetson(&self) -> bool {
        self.l4t.is_some() || self.target.is_some()
    }

    /// Writes the description into the first record of a run.
    pub fn fill(&self, start: &mut Start) {
        start.board = self.board.as_deref().map(text);
        start.l4t = self.l4t.as_deref().map(text);
        start.jetpack = self.jetpack.map(text);
        start.driver = self.driver.as_deref().map(text);
        start.nvpmodel = self.power_mode.as_ref().map(|mode| text(&mode.to_string()));
        start.jetson_clocks = self.jetson_clocks;
        start.governor = self.governor.as_deref().map(text);
        start.emulated = self.emulated;
    }
}

/// Describes the machine whose files are in the tree `root`.
#[must_use]
pub fn describe(root: &Root) -> Description {
    let compatible = root.read("proc/device-tree/compatible").unwrap_or_default();
    let target = elsa_targets::recognised(&compatible);
    let l4t = release::l4t(root);
    let jetson = target.is_some() || l4t.is_some();

    let (cores, cores_off) = clocks::cores(root);
    let gpu = clocks::gpu(root);
    let emc = clocks::emc(root);
    let (zones, zones_left_out) = zones::find(root);
    let rails = rails::find(root);
    let whole = rails::total(&rails);
    let total = Meter::find(root).map(|meter| meter.names()).unwrap_or_default();

    let mut notes = Vec::new();
    if jetson {
        if let Err(refused) = &emc {
            let unknown = || "memory clock: in none of the places that are known".to_owned();
            notes.push(refused.clone().unwrap_or_else(unknown));
        }
        if rails.is_empty() {
            notes.push("power: no INA3221 on the I2C bus".to_owned());
        }
    } else {
        notes.extend(rails::refusal(root));
        if root.line("proc/driver/nvidia/version").is_some() {
            notes.push("the GPU's own power and clocks are not read".to_owned());
        }
    }
    let throttle = Throttle::find(root);
    if !throttle.counts() {
        let why = if throttle.cools() { "only seen while a cooling device is at work" } else { "unknown" };
        notes.push(format!("throttling: {why}; the system counts no events"));
    }
    let all = || cores.iter().chain(gpu.as_ref().map(|gpu| &gpu.clock)).chain(emc.as_ref().ok());
    let jetson_clocks = if jetson { clocks::fixed(all()) } else { None };
    if jetson_clocks == Some(true) && emc.is_err() {
        notes.push("jetson_clocks: determined from CPU and GPU only".to_owned());
    }
    Description {
        board: root.line("proc/device-tree/model"),
        target,
        jetpack: l4t.as_deref().and_then(release::jetpack),
        l4t,
        kernel: root.line("proc/sys/kernel/osrelease"),
        driver: root.line("sys/module/nvidia/version"),
        power_mode: release::power_mode(root),
        jetson_clocks,
        governor: governors(&cores),
        cores: cores.iter().map(Clock::reading).collect(),
        cores_off,
        gpu_load: gpu.as_ref().and_then(clocks::Gpu::load),
        gpu: gpu.map(|gpu| gpu.clock.reading()),
        emc: emc.ok().map(|clock| clock.reading()),
        zones: zones
            .iter()
            .map(|zone| ZoneReading { name: zone.name.clone(), temp_c: zone.celsius() })
            .collect(),
        zones_left_out,
        rails: rails.iter().enumerate().map(|(place, rail)| reading(rail, whole.contains(&place))).collect(),
        total,
        // An emulator of user programs intercepts /proc/self but not /proc/thread-self, whose `exe` is the emulator.
        emulated: root.target("proc/thread-self/exe").is_some_and(|exe| exe.starts_with("qemu-")),
        notes,
    }
}

/// Lists the governors of the cores, without repetitions.
fn governors(cores: &[Clock]) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for name in cores.iter().filter_map(|core| core.governor.as_deref()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    (!names.is_empty()).then(|| names.join(" + "))
}

/// Reads a rail now. If `total` is set, the rail counts towards the total power.
fn reading(rail: &Rail, total: bool) -> RailReading {
    RailReading {
        name: rail.name.clone(),
        chip: rail.chip.clone(),
        place: rail.place,
        power_mw: rail.milliwatts(),
        total,
    }
}
