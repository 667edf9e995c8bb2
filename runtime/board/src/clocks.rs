//! Clocks of the cores, the GPU and the memory, and whether they are fixed.
//!
//! `jetson_clocks` leaves no file that records its run, but its effect is visible: the lowest and highest allowed
//! clocks are equal, and the current clock equals them. `jetson_clocks` locks the memory at its highest rate but does
//! not change the limits of the memory. So for the memory, only the current rate is compared with the highest.

use super::root::{Probe, Root};
use serde::Serialize;

/// Folder of the cores.
const CORES: &str = "sys/devices/system/cpu";
/// Folder of the devices that have a clock of their own, such as the GPU.
const DEVICES: &str = "sys/class/devfreq";
/// Names of Jetson GPUs in the device tree. The first four belong to TX1 and Nano (not confirmed), TX2, Xavier and
/// Orin. The last one is a generic name that some kernels use for any GPU.
const GPUS: [&str; 5] = ["gm20b", "gp10b", "gv11b", "ga10b", "gpu"];
/// Folder of the memory clock on a TX2 and later boards, in debugfs.
const BPMP: &str = "sys/kernel/debug/bpmp/debug/clk/emc";
/// Folder of the memory clock's limits on a Nano and a TX1, in debugfs.
const BWMGR: &str = "sys/kernel/debug/tegra_bwmgr";
/// Folder of the current memory rate on boards that have [`BWMGR`].
const OVERRIDE: &str = "sys/kernel/debug/clk/override.emc";
/// Folder of the memory clock on kernels that list it among [`DEVICES`].
const DEVICE: &str = "sys/class/devfreq/bwmgr";
/// File with the highest memory clock that the power mode allows, in Hz; 0 if the mode sets no limit.
const CAP: &str = "sys/kernel/nvpmodel_emc_cap/emc_iso_cap";

/// Two clock rates count as equal if their relative difference is at most this fraction. Rates that should be equal may
/// differ slightly, because limits are rounded to steps of the clock.
const SAME: f64 = 0.01;

/// Returns `true` if two clocks are equal within [`SAME`].
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.abs().max(b.abs())
}

/// A clock and its limits, in MHz.
#[derive(Debug)]
pub struct Clock {
    /// Name of the core or device: `cpu3`, `gp10b`, `emc`.
    pub name: String,
    /// Governor that selects the rate; `None` if the clock has none.
    pub governor: Option<String>,
    now: Probe,
    low: Option<Probe>,
    high: Option<Probe>,
    /// Divisor that converts the numbers in the files to MHz.
    unit: f64,
    /// Upper bound that the power mode sets, in MHz. It is applied to the limit in the file `high`.
    cap: Option<f64>,
    /// `true` if the lower limit of the clock does not change when the clock is fixed. This holds for the memory.
    locked: bool,
}

/// Reading of a clock at one time, in MHz.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Name of the core or device.
    pub name: String,
    /// Current clock.
    pub mhz: Option<f64>,
    /// Lowest allowed clock.
    pub min_mhz: Option<f64>,
    /// Highest allowed clock.
    pub max_mhz: Option<f64>,
    /// Governor that selects the rate; `None` if the clock has none.
    pub governor: Option<String>,
}

impl Clock {
    /// Returns the current clock in MHz.
    #[must_use]
    pub fn mhz(&self) -> Option<f64> {
        // A GPU without power reports 0.
        self.now.over(self.unit).filter(|mhz| *mhz > 0.0)
    }

    /// Returns the lowest allowed clock.
    fn low(&self) -> Option<f64> {
        self.low.as_ref()?.over(self.unit)
    }

    /// Returns the highest allowed clock.
    #[must_use]
    pub fn high(&self) -> Option<f64> {
        let high = self.high.as_ref()?.over(self.unit)?;
        Some(self.cap.map_or(high, |cap| high.min(cap)))
    }

    /// Returns whether the clock runs at its highest allowed rate; `None` if a rate is unknown.
    #[must_use]
    pub fn at_highest(&self) -> Option<bool> {
        Some(same(self.mhz()?, self.high()?))
    }

    /// Returns whether the clock is fixed at its highest allowed rate; `None` if a rate is unknown.
    #[must_use]
    pub fn fixed(&self) -> Option<bool> {
        let held = self.locked || same(self.low()?, self.high()?);
        Some(held && self.at_highest()?)
    }

    /// Reads the clock and its limits now.
    #[must_use]
    pub fn reading(&self) -> Reading {
        Reading {
            name: self.name.clone(),
            mhz: self.mhz(),
            min_mhz: self.low(),
            max_mhz: self.high(),
            governor: self.governor.clone(),
        }
    }
}

/// Finds the clocks of the online cores, and the names of the offline ones.
#[must_use]
pub fn cores(root: &Root) -> (Vec<Clock>, Vec<String>) {
    let (mut clocks, mut off) = (Vec::new(), Vec::new());
    for name in root.entries(CORES) {
        let number = name.strip_prefix("cpu").unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let folder = format!("{CORES}/{name}");
        // On some systems the first core cannot be switched off and has no such file.
        if root.number(&format!("{folder}/online")) == Some(0) {
            off.push(name);
            continue;
        }
        let file = |file: &str| format!("{folder}/cpufreq/scaling_{file}");
        let Some(now) = Probe::open(root, &file("cur_freq")) else { continue };
        clocks.push(Clock {
            governor: root.line(&file("governor")),
            now,
            low: Probe::open(root, &file("min_freq")),
            high: Probe::open(root, &file("max_freq")),
            unit: 1e3,
            cap: None,
            locked: false,
            name,
        });
    }
    (clocks, off)
}

/// The GPU of a Jetson.
#[derive(Debug)]
pub struct Gpu {
    /// Clock of the GPU.
    pub clock: Clock,
    load: Option<Probe>,
}

impl Gpu {
    /// Returns how busy the GPU is, from 0 to 1.
    #[must_use]
    pub fn load(&self) -> Option<f64> {
        // The file gives the load in thousandths.
        self.load.as_ref()?.over(1e3).filter(|load| (0.0..=1.0).contains(load))
    }
}

/// Finds the GPU by its name in the device tree, because the folder's name differs between boards: `57000000.gpu`,
/// `17000000.gp10b`, `17000000.ga10b`.
#[must_use]
pub fn gpu(root: &Root) -> Option<Gpu> {
    root.entries(DEVICES).iter().find_map(|entry| {
        let folder = format!("{DEVICES}/{entry}");
        let name = root.line(&format!("{folder}/device/of_node/name"))?;
        if !GPUS.contains(&name.as_str()) {
            return None;
        }
        let clock = device(root, &folder, name)?;
        Some(Gpu { clock, load: Probe::open(root, &format!("{folder}/device/load")) })
    })
}

/// Finds the clock of a device among [`DEVICES`].
fn device(root: &Root, folder: &str, name: String) -> Option<Clock> {
    let file = |file: &str| format!("{folder}/{file}");
    Some(Clock {
        name,
        governor: root.line(&file("governor")),
        now: Probe::open(root, &file("cur_freq"))?,
        low: Probe::open(root, &file("min_freq")),
        high: Probe::open(root, &file("max_freq")),
        unit: 1e6,
        cap: None,
        locked: false,
    })
}

/// Finds the memory clock.
///
/// # Errors
/// If the board's file exists but cannot be read, returns a line that names the file. Returns `None` if the board has
/// no such file.
pub fn emc(root: &Root) -> Result<Clock, Option<String>> {
    let name = || "emc".to_owned();
    if let Some(clock) = device(root, DEVICE, name()) {
        return Ok(clock);
    }
    let cap = root.number(CAP).filter(|hz| *hz > 0).map(|hz| hz as f64 / 1e6);
    let places = [
        (format!("{BPMP}/rate"), format!("{BPMP}/min_rate"), format!("{BPMP}/max_rate")),
        (format!("{OVERRIDE}/clk_rate"), format!("{BWMGR}/emc_min_rate"), format!("{BWMGR}/emc_max_rate")),
    ];
    for (now, low, high) in &places {
        if let Some(now) = Probe::open(root, now) {
            let (low, high) = (Probe::open(root, low), Probe::open(root, high));
            return Ok(Clock { name: name(), governor: None, now, low, high, unit: 1e6, cap, locked: true });
        }
    }
    // If debugfs is closed, the files in it cannot even be found.
    let refused = places.iter().find_map(|(now, ..)| root.refusal(now));
    Err(refused.map(|refused| format!("memory clock: {refused}; readable as root")))
}

/// Returns whether `jetson_clocks` is in effect, that is, whether all of `clocks` are fixed at their highest rates.
/// Returns `None` if there are no clocks. Also returns `None` if some clocks are unknown and all others are fixed.
#[must_use]
pub fn fixed<'a>(clocks: impl IntoIterator<Item = &'a Clock>) -> Option<bool> {
    let all: Vec<Option<bool>> = clocks.into_iter().map(Clock::fixed).collect();
    match all.iter().all(|fixed| *fixed == Some(true)) {
        true => (!all.is_empty()).then_some(true),
        false if all.contains(&Some(false)) => Some(false),
        false => None,
    }
}
