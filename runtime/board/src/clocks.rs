//! Clocks of the cores, the GPU and the memory, and whether they are fixed.
//!
//! `jetson_clocks` leaves no file behind that says that it ran. What it does can be seen: the lowest and the highest
//! clock that are allowed are the same, and the present clock is that one. For the memory it locks the rate at its
//! highest and moves no limit, so there the present rate is compared with the highest alone.

use super::root::{Probe, Root};
use serde::Serialize;

/// Where the cores lie.
const CORES: &str = "sys/devices/system/cpu";
/// Where devices with a clock of their own lie.
const DEVICES: &str = "sys/class/devfreq";
/// Names of Jetson GPUs in the device tree: TX1 and Nano (not confirmed), TX2, Xavier, Orin, and what kernels call any of
/// them.
const GPUS: [&str; 5] = ["gm20b", "gp10b", "gv11b", "ga10b", "gpu"];
/// The memory clock of a TX2 and later, in debugfs.
const BPMP: &str = "sys/kernel/debug/bpmp/debug/clk/emc";
/// The memory clock of a Nano and a TX1, in debugfs.
const BWMGR: &str = "sys/kernel/debug/tegra_bwmgr";
/// The present rate that belongs to [`BWMGR`].
const OVERRIDE: &str = "sys/kernel/debug/clk/override.emc";
/// The memory clock of kernels that have it among [`DEVICES`].
const DEVICE: &str = "sys/class/devfreq/bwmgr";
/// The highest memory clock of the power mode, in Hz; 0 where the mode sets none.
const CAP: &str = "sys/kernel/nvpmodel_emc_cap/emc_iso_cap";

/// Clocks that differ by less than this share are the same: limits are rounded to steps of the clock.
const SAME: f64 = 0.01;

/// Whether two clocks are the same.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.abs().max(b.abs())
}

/// A clock and its limits, in MHz.
#[derive(Debug)]
pub struct Clock {
    /// Name of the core or device: `cpu3`, `gp10b`, `emc`.
    pub name: String,
    /// Its governor.
    pub governor: Option<String>,
    now: Probe,
    low: Option<Probe>,
    high: Option<Probe>,
    /// What a MHz is in the unit of the files.
    unit: f64,
    /// A limit above the one in the file `high` does not count.
    cap: Option<f64>,
    /// Whether the lower limit stays where it is when the clock is fixed.
    locked: bool,
}

/// What a clock says at one time, in MHz.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Name of the core or device.
    pub name: String,
    /// The present clock.
    pub mhz: Option<f64>,
    /// The lowest that is allowed.
    pub min_mhz: Option<f64>,
    /// The highest that is allowed.
    pub max_mhz: Option<f64>,
    /// The governor.
    pub governor: Option<String>,
}

impl Clock {
    /// The present clock in MHz.
    #[must_use]
    pub fn mhz(&self) -> Option<f64> {
        // A GPU without power says 0.
        self.now.over(self.unit).filter(|mhz| *mhz > 0.0)
    }

    /// The lowest clock that is allowed.
    fn low(&self) -> Option<f64> {
        self.low.as_ref()?.over(self.unit)
    }

    /// The highest clock that is allowed.
    #[must_use]
    pub fn high(&self) -> Option<f64> {
        let high = self.high.as_ref()?.over(self.unit)?;
        Some(self.cap.map_or(high, |cap| high.min(cap)))
    }

    /// Whether it stands at its highest.
    #[must_use]
    pub fn at_highest(&self) -> Option<bool> {
        Some(same(self.mhz()?, self.high()?))
    }

    /// Whether it is fixed at its highest.
    #[must_use]
    pub fn fixed(&self) -> Option<bool> {
        let held = self.locked || same(self.low()?, self.high()?);
        Some(held && self.at_highest()?)
    }

    /// What it says now.
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

/// The clocks of the cores that are on, and the names of those that are off.
#[must_use]
pub fn cores(root: &Root) -> (Vec<Clock>, Vec<String>) {
    let (mut clocks, mut off) = (Vec::new(), Vec::new());
    for name in root.entries(CORES) {
        let number = name.strip_prefix("cpu").unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let folder = format!("{CORES}/{name}");
        // The first core of some systems cannot be switched off, and has no such file.
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
    /// Its clock.
    pub clock: Clock,
    load: Option<Probe>,
}

impl Gpu {
    /// How busy it is, from 0 to 1.
    #[must_use]
    pub fn load(&self) -> Option<f64> {
        // Thousandths.
        self.load.as_ref()?.over(1e3).filter(|load| (0.0..=1.0).contains(load))
    }
}

/// The GPU, by its name in the device tree. The folder's own name differs from board to board: `57000000.gpu`,
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

/// The clock of a device among [`DEVICES`].
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

/// The memory clock, or why the system does not tell.
///
/// # Errors
/// A line that says which file may not be read; `None` where the board has no such file.
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
    // Where debugfs is closed, the files in it cannot even be found.
    let refused = places.iter().find_map(|(now, ..)| root.refusal(now));
    Err(refused.map(|refused| format!("memory clock: {refused}; readable as root")))
}

/// Whether `jetson_clocks` holds: all of `clocks` are fixed at their highest. `None` where one of them cannot be told
/// and none of the others says no, or where there is none.
#[must_use]
pub fn fixed<'a>(clocks: impl IntoIterator<Item = &'a Clock>) -> Option<bool> {
    let all: Vec<Option<bool>> = clocks.into_iter().map(Clock::fixed).collect();
    match all.iter().all(|fixed| *fixed == Some(true)) {
        true => (!all.is_empty()).then_some(true),
        false if all.contains(&Some(false)) => Some(false),
        false => None,
    }
}
