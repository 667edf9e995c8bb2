//! The records of a benchmark.
//!
//! The names of the fields are those of JSON and of the columns of CSV. A value that a machine does not report is
//! `None`, null in JSON. Texts have a capacity in bytes; [`text`] truncates longer ones visibly. A change of any
//! type here requires a new version of the frames that carry it.

use core::fmt::{self, Display, Formatter};
use serde::{Deserialize, Serialize};

pub use heapless::{String, Vec};

/// Mark at the end of a truncated text.
const CUT: &str = "…";

/// Returns `text` for a field that holds `N` bytes. A longer text is truncated and ends with `…`.
#[must_use]
pub fn text<const N: usize>(text: &str) -> String<N> {
    let mut kept = String::new();
    if kept.push_str(text).is_ok() {
        return kept;
    }
    for c in text.chars() {
        if kept.len() + c.len_utf8() + CUT.len() > N {
            break;
        }
        // Both fit, unless the field is shorter than the mark itself and stays empty.
        let _ = kept.push(c);
    }
    let _ = kept.push_str(CUT);
    kept
}

/// A message of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// Records do not allocate, so their large variants are stored inline.
#[allow(clippy::large_enum_variant)]
pub enum Record {
    /// First record of a run.
    Start(Start),
    /// A row of the results.
    Cell(Cell),
    /// State of the board at some time.
    Trace(Trace),
    /// Last record of a run.
    End(End),
}

/// The machine and the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Version of the tool.
    pub version: String<24>,
    /// Model of the board.
    pub board: Option<String<64>>,
    /// Release of L4T: `32.7.1`.
    pub l4t: Option<String<32>>,
    /// Release of JetPack: `4.6.1`.
    pub jetpack: Option<String<32>>,
    /// Operating system.
    pub os: String<16>,
    /// Architecture of the processor.
    pub arch: String<16>,
    /// Model of the processor.
    pub cpu: Option<String<64>>,
    /// Number of cores that the process may use.
    pub cores: u32,
    /// Version of the GPU's driver.
    pub driver: Option<String<32>>,
    /// Power mode of `nvpmodel`.
    pub nvpmodel: Option<String<32>>,
    /// `true` if the clocks are fixed, as by `jetson_clocks`.
    pub jetson_clocks: Option<bool>,
    /// Governor of the processor's clock.
    pub governor: Option<String<24>>,
    /// Name of the GPU.
    pub gpu: Option<String<64>>,
    /// `true` if the processor is emulated.
    pub emulated: bool,
    /// Start of the run, as an RFC 3339 date.
    pub date: String<32>,
}

/// The latency of one method on one shape.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The workload that the shape belongs to, such as `vit-b16-224`.
    pub workload: Option<String<24>>,
    /// The back end of the computation.
    pub backend: String<16>,
    /// Kernel of the back end.
    pub kernel: String<64>,
    /// `elsa` or `math`.
    pub method: String<8>,
    /// Element type.
    pub dtype: String<8>,
    /// Number of threads of the computation.
    pub threads: u32,
    /// Number of sequences.
    pub batch: u64,
    /// Number of query heads.
    pub heads: u64,
    /// Number of heads of keys and values.
    pub kv_heads: u64,
    /// Number of query tokens.
    pub queries: u64,
    /// Number of key tokens.
    pub n: u64,
    /// Head size.
    pub d: u64,
    /// Corner of the causal mask; `None` without one.
    pub causal: Option<String<16>>,
    /// Sides of the sliding window, −1 if unlimited; `None` without one.
    pub window: Option<[i64; 2]>,
    /// Form of the mask; `None` without one.
    pub mask: Option<String<16>>,
    /// Windows of a picture; `None` without.
    pub windows: Option<Grid>,
    /// The whole shape, as text.
    pub shape: String<96>,
    /// Number of timed calls, without the cold one.
    pub samples: u64,
    /// Median latency.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Greatest latency.
    pub max_ms: f64,
    /// Latency of the first call, which on a GPU includes loading its kernels.
    pub cold_ms: f64,
    /// Median time that the host takes to enqueue a call on the device; `None` on a CPU.
    pub enqueue_p50_ms: Option<f64>,
    /// Median time that the host waits for the device; `None` on a CPU.
    pub wait_p50_ms: Option<f64>,
    /// Median time of a call on the device, between its events; `None` on a CPU.
    pub device_p50_ms: Option<f64>,
    /// Operations per second at the median latency, in 10⁹.
    pub gflops: f64,
    /// Workspace of the plan.
    pub workspace_bytes: u64,
    /// Bytes allocated during all timed calls together.
    pub alloc_bytes: u64,
    /// Median of the pairwise latency ratio of math to this method; `None` if math was not measured.
    pub speedup_vs_math: Option<f64>,
    /// Lower quartile of the pairwise ratio of math to elsa.
    pub ratio_low: Option<f64>,
    /// Upper quartile of that ratio.
    pub ratio_high: Option<f64>,
    /// Half of the spread of that ratio between two copies of the same method: the noise of the run. A ratio within
    /// 1 ± noise is no difference.
    pub noise: Option<f64>,
    /// `true` if the ratio differs from 1 by more than the noise.
    pub differs: Option<bool>,
    /// Relative L2 distance from the oracle.
    pub rel_l2: f64,
    /// `true` if that distance is within the certificate.
    pub certified: bool,
    /// `true` if the latency had settled before it was measured.
    pub stable: bool,
    /// `true` if nothing disturbed the measurement.
    pub clean: bool,
    /// Disturbances, each with its cure.
    pub marks: Vec<String<96>, 4>,
    /// `true` if the processor is emulated.
    pub emulated: bool,
    /// Power while running.
    pub power_mw: Option<f64>,
    /// Power before the run.
    pub idle_power_mw: Option<f64>,
    /// Resolution of the board's power readings.
    pub power_quantum_mw: Option<f64>,
    /// Number of power readings that differ from the previous one: the board averages and repeats its readings.
    pub power_readings: u32,
    /// Energy of a call; `None` if there are too few readings.
    pub energy_mj: Option<f64>,
    /// Energy of a call without the board's idle power.
    pub energy_net_mj: Option<f64>,
    /// Temperature of the hottest thermal zone.
    pub temp_c: Option<f64>,
    /// Name of that zone.
    pub temp_zone: Option<String<24>>,
    /// Clock of the slowest core that is online.
    pub cpu_mhz: Option<f64>,
    /// GPU clock.
    pub gpu_mhz: Option<f64>,
    /// Memory clock.
    pub emc_mhz: Option<f64>,
    /// Evidence that the board throttled.
    pub throttled: Throttling,
}

/// The windows of a picture: rows and columns, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// The picture.
    pub picture: [u64; 2],
    /// A window.
    pub size: [u64; 2],
    /// Offset by which the picture was rolled.
    pub shift: [u64; 2],
}

/// Evidence of throttling. Few boards can rule it out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Throttling {
    /// A counter or an alarm of the board reports throttling.
    #[serde(rename = "seen")]
    Seen,
    /// The board counts such events and counted none.
    #[serde(rename = "not seen")]
    NotSeen,
    /// The board does not report throttling.
    #[default]
    #[serde(rename = "cannot be told")]
    Unknown,
}

impl Throttling {
    /// Returns its text in JSON and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Throttling::Seen => "seen",
            Throttling::NotSeen => "not seen",
            Throttling::Unknown => "cannot be told",
        }
    }
}

impl Display for Throttling {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The state of the board at some time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Seconds since the start of the run.
    pub t_s: f64,
    /// Power of the board.
    pub power_mw: Option<f64>,
    /// Temperature of the hottest thermal zone.
    pub temp_c: Option<f64>,
    /// Name of that zone.
    pub temp_zone: Option<String<24>>,
    /// Clock of the slowest core that is online.
    pub cpu_mhz: Option<f64>,
    /// GPU clock.
    pub gpu_mhz: Option<f64>,
    /// Memory clock.
    pub emc_mhz: Option<f64>,
    /// Load of other processes, in cores.
    pub load: Option<f64>,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Number of measured cells.
    pub cells: u32,
    /// Number of cells that nothing disturbed.
    pub clean_cells: u32,
    /// Duration of the run.
    pub seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_too_long_is_cut_between_letters_and_says_so() {
        assert_eq!(text::<8>("12345678"), "12345678");
        assert_eq!(text::<8>("123456789"), "12345…");
        // ü is two bytes.
        assert_eq!(text::<8>("1234üüü"), "1234…");
        assert_eq!(text::<9>("1234üüüü"), "1234ü…");
        assert_eq!((text::<2>("123").as_str(), text::<0>("").as_str()), ("", ""));
        assert_eq!(text::<3>("1234"), "…");
    }

    #[test]
    fn throttling_is_told_in_words() {
        let names = [Throttling::Seen, Throttling::NotSeen, Throttling::Unknown].map(Throttling::name);
        assert_eq!(names, ["seen", "not seen", "cannot be told"]);
        assert_eq!(Throttling::default(), Throttling::Unknown);
    }
}
