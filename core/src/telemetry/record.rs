//! The records of a benchmark.
//!
//! The names of the fields are also the keys in JSON and the column names in CSV. A value that a machine does not
//! report is `None`, which is null in JSON. Each text field has a capacity in bytes; [`text`] truncates a longer text
//! and marks the cut with `…`. Any change to a type in this module requires a new [`VERSION`](super::frame::VERSION) of
//! the frames.

use core::fmt::{self, Display, Formatter};
use serde::{Deserialize, Serialize};

pub use heapless::{String, Vec};

/// Mark at the end of a truncated text.
const CUT: &str = "…";

/// Returns `text` for a field with a capacity of `N` bytes. A longer text is truncated and ends with `…`.
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
        // The text fits. The mark fits too, unless the field is shorter than the mark. The field then stays empty.
        let _ = kept.push(c);
    }
    let _ = kept.push_str(CUT);
    kept
}

/// One record that a benchmark reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// Records do not allocate, so their large variants are stored inline.
#[allow(clippy::large_enum_variant)]
pub enum Record {
    /// First record of a run.
    Start(Start),
    /// A row of the results.
    Cell(Cell),
    /// State of the board at one time during the run.
    Trace(Trace),
    /// Last record of a run.
    End(End),
    /// A row of the results of `elsa bench --exec`.
    Phase(Phase),
}

/// Description of the machine, and the date of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Version of the program that runs the benchmark.
    pub version: String<24>,
    /// Model of the board.
    pub board: Option<String<64>>,
    /// Release of L4T, such as `32.7.1`.
    pub l4t: Option<String<32>>,
    /// Release of JetPack, such as `4.6.1`.
    pub jetpack: Option<String<32>>,
    /// Operating system.
    pub os: String<16>,
    /// Architecture of the processor.
    pub arch: String<16>,
    /// Model of the processor.
    pub cpu: Option<String<64>>,
    /// Number of cores that the process may use.
    pub cores: u32,
    /// Version of the GPU driver.
    pub driver: Option<String<32>>,
    /// Power mode of `nvpmodel`.
    pub nvpmodel: Option<String<32>>,
    /// `true` if the clocks are fixed, for instance by `jetson_clocks`.
    pub jetson_clocks: Option<bool>,
    /// Name of the governor that sets the processor's clock frequency.
    pub governor: Option<String<24>>,
    /// Name of the GPU.
    pub gpu: Option<String<64>>,
    /// `true` if the processor is emulated.
    pub emulated: bool,
    /// Start of the run, as a date in the format of RFC 3339.
    pub date: String<32>,
}

/// Results for one method on one shape: latency, error, power and the state of the board.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Workload that the shape belongs to, such as `vit-b16-224`.
    pub workload: Option<String<24>>,
    /// Name of the back end that computed attention.
    pub backend: String<16>,
    /// Name of the kernel that computed attention.
    pub kernel: String<64>,
    /// The method: `elsa`, `math` or `rows`.
    pub method: String<8>,
    /// Element type of the tensors.
    pub dtype: String<8>,
    /// Number of threads that computed attention.
    pub threads: u32,
    /// Number of sequences in the batch.
    pub batch: u64,
    /// Number of query heads.
    pub heads: u64,
    /// Number of key and value heads.
    pub kv_heads: u64,
    /// Number of query tokens.
    pub queries: u64,
    /// Number of key tokens.
    pub n: u64,
    /// Head size.
    pub d: u64,
    /// Corner to which the causal mask is aligned; `None` without a causal mask.
    pub causal: Option<String<16>>,
    /// Extent of the sliding window before and after the diagonal, −1 if unlimited; `None` without a window.
    pub window: Option<[i64; 2]>,
    /// Kind of the mask; `None` without a mask.
    pub mask: Option<String<16>>,
    /// Windows into which a picture is divided; `None` without windows.
    pub windows: Option<Grid>,
    /// All sizes of the shape in one text.
    pub shape: String<96>,
    /// Number of timed calls. The first call, which is cold, is not counted.
    pub samples: u64,
    /// Median latency.
    pub p50_ms: f64,
    /// 90th percentile of the latency.
    pub p90_ms: f64,
    /// 99th percentile of the latency.
    pub p99_ms: f64,
    /// Largest latency.
    pub max_ms: f64,
    /// Latency of the first call. On a GPU, it includes the time to load kernels.
    pub cold_ms: f64,
    /// Median time that the host takes to enqueue a call on the device; `None` on a CPU.
    pub enqueue_p50_ms: Option<f64>,
    /// Median time that the host waits for the device; `None` on a CPU.
    pub wait_p50_ms: Option<f64>,
    /// Median time of a call on the device, measured between two events; `None` on a CPU.
    pub device_p50_ms: Option<f64>,
    /// Operations per second at the median latency, in units of 10⁹.
    pub gflops: f64,
    /// Query tokens per second at the median latency, over all sequences.
    pub tokens_per_s: f64,
    /// Median time for packing padded sequences and unpacking their output, which a call for packed sequences does not
    /// include; `None` if the sequences are not packed, and on a GPU.
    pub packing_ms: Option<f64>,
    /// Size of the plan's workspace.
    pub workspace_bytes: u64,
    /// Number of bytes allocated during all timed calls together.
    pub alloc_bytes: u64,
    /// Speed relative to math. Each round of the measurement gives a ratio: math's latency divided by this method's
    /// latency. This is the median of these ratios. `None` if math was not measured.
    pub speedup_vs_math: Option<f64>,
    /// Speed relative to the baseline `rows`: the median of the ratios of the latency of `rows` to this method's
    /// latency. `None` if `rows` was not measured.
    pub speedup_vs_rows: Option<f64>,
    /// Lower quartile, over the rounds, of the ratio of math's latency to elsa's.
    pub ratio_low: Option<f64>,
    /// Upper quartile, over the rounds, of the ratio of math's latency to elsa's.
    pub ratio_high: Option<f64>,
    /// Noise of the run: half of the spread of the latency ratio between two copies of the same method. A ratio within
    /// 1 ± noise shows no difference.
    pub noise: Option<f64>,
    /// `true` if the ratio of math's latency to elsa's differs from 1 by more than the noise.
    pub differs: Option<bool>,
    /// Relative L2 error of the output, compared with the oracle.
    pub rel_l2: f64,
    /// `true` if the error is within the bound that the certificate states.
    pub certified: bool,
    /// `true` if the latency had settled before it was measured.
    pub stable: bool,
    /// `true` if nothing disturbed the measurement.
    pub clean: bool,
    /// Disturbances of the measurement, each with its remedy.
    pub marks: Vec<String<96>, 4>,
    /// `true` if the processor is emulated.
    pub emulated: bool,
    /// Power during the run.
    pub power_mw: Option<f64>,
    /// Power before the run.
    pub idle_power_mw: Option<f64>,
    /// Resolution of the board's power readings.
    pub power_quantum_mw: Option<f64>,
    /// Number of power readings that differ from the previous reading. This number is smaller than the number of
    /// readings, because the board averages and repeats readings.
    pub power_readings: u32,
    /// Energy per call; `None` if there are too few readings.
    pub energy_mj: Option<f64>,
    /// Energy per call, minus the energy that the idle board uses in the same time.
    pub energy_net_mj: Option<f64>,
    /// Temperature of the hottest thermal zone.
    pub temp_c: Option<f64>,
    /// Name of the hottest thermal zone.
    pub temp_zone: Option<String<24>>,
    /// Clock of the slowest core that is online.
    pub cpu_mhz: Option<f64>,
    /// Clock of the GPU.
    pub gpu_mhz: Option<f64>,
    /// Clock of the memory.
    pub emc_mhz: Option<f64>,
    /// Whether the board reported throttling.
    pub throttled: Throttling,
}

/// Readings of the board while a program ran: during one phase of the program, or during its whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name of the program.
    pub program: String<64>,
    /// Name of the phase; `None` for the whole run.
    pub phase: Option<String<32>>,
    /// Start of the phase, in seconds since the start of the program.
    pub begin_s: f64,
    /// Duration.
    pub seconds: f64,
    /// Exit status of the program; `None` for a phase, and for a program that a signal ended.
    pub exit_status: Option<i32>,
    /// Number of the signal that ended the program.
    pub signal: Option<i32>,
    /// CPU time of the program, its descendants and the tool, in ticks of 10 ms.
    pub cpu_s: Option<f64>,
    /// CPU time of the program and its descendants in user mode; `None` for a phase.
    pub user_s: Option<f64>,
    /// CPU time of the program and its descendants in kernel mode; `None` for a phase.
    pub system_s: Option<f64>,
    /// Peak of the resident memory of the program's largest process; `None` for a phase. The system counts the memory
    /// of the tool until the program replaces it, so a smaller program has the peak of the tool.
    pub peak_bytes: Option<u64>,
    /// Mean total power.
    pub power_mw: Option<f64>,
    /// Mean total power of the idle machine.
    pub idle_power_mw: Option<f64>,
    /// Resolution of the board's power readings.
    pub power_quantum_mw: Option<f64>,
    /// Number of power readings that differ from the previous reading, or that come from a later conversion.
    pub power_readings: u32,
    /// Energy; `None` if there are too few readings.
    pub energy_mj: Option<f64>,
    /// Energy, minus the energy that the idle machine uses in the same time.
    pub energy_net_mj: Option<f64>,
    /// Rails of the module, without the rail of the total power.
    pub rails: Vec<RailEnergy, 6>,
    /// Temperature of the hottest thermal zone at the start.
    pub temp_first_c: Option<f64>,
    /// Temperature of the hottest thermal zone at the end.
    pub temp_last_c: Option<f64>,
    /// Highest temperature of any thermal zone.
    pub temp_c: Option<f64>,
    /// Name of the zone with the highest temperature.
    pub temp_zone: Option<String<24>>,
    /// Mean clock of the slowest core that is online.
    pub cpu_mhz: Option<f64>,
    /// Mean clock of the GPU.
    pub gpu_mhz: Option<f64>,
    /// Mean clock of the memory.
    pub emc_mhz: Option<f64>,
    /// Mean load of the GPU, from 0 to 1.
    pub gpu_load: Option<f64>,
    /// Whether the board reported throttling.
    pub throttled: Throttling,
    /// Number of throttling events.
    pub throttle_events: u64,
    /// Load by other processes, as a number of busy cores.
    pub load: Option<f64>,
    /// `true` if nothing disturbed the measurement.
    pub clean: bool,
    /// Disturbances of the measurement, each with its remedy.
    pub marks: Vec<String<96>, 4>,
    /// `true` if the processor is emulated.
    pub emulated: bool,
}

/// Power and energy of one rail of the board.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RailEnergy {
    /// Name of the rail, such as `VDD_SYS_GPU`.
    pub name: String<24>,
    /// Mean power.
    pub power_mw: f64,
    /// Energy.
    pub energy_mj: f64,
    /// Energy, minus the energy that the rail of the idle machine uses in the same time.
    pub energy_net_mj: Option<f64>,
}

/// Windows into which a picture is divided. Each field contains a number of rows and a number of columns, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// Size of the picture.
    pub picture: [u64; 2],
    /// Size of a window.
    pub size: [u64; 2],
    /// Offset by which the picture was rolled.
    pub shift: [u64; 2],
}

/// Evidence of throttling. Few boards can report that they did not throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Throttling {
    /// A counter or an alarm of the board reports throttling.
    #[serde(rename = "seen")]
    Seen,
    /// The board counts throttling events and counted none.
    #[serde(rename = "not seen")]
    NotSeen,
    /// The board does not report throttling.
    #[default]
    #[serde(rename = "cannot be told")]
    Unknown,
}

impl Throttling {
    /// Returns the text that represents this value in JSON and in tables.
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

/// State of the board at one time during the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Seconds since the start of the run.
    pub t_s: f64,
    /// Power of the board.
    pub power_mw: Option<f64>,
    /// Temperature of the hottest thermal zone.
    pub temp_c: Option<f64>,
    /// Name of the hottest thermal zone.
    pub temp_zone: Option<String<24>>,
    /// Clock of the slowest core that is online.
    pub cpu_mhz: Option<f64>,
    /// Clock of the GPU.
    pub gpu_mhz: Option<f64>,
    /// Clock of the memory.
    pub emc_mhz: Option<f64>,
    /// Load by other processes, as a number of busy cores.
    pub load: Option<f64>,
}

/// Summary at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Number of [`Cell`] and [`Phase`] records in the run.
    pub cells: u32,
    /// Number of these records whose field `clean` is `true`.
    pub clean_cells: u32,
    /// Duration of the run in seconds.
    pub seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_too_long_is_cut_between_letters_and_says_so() {
        assert_eq!(text::<8>("12345678"), "12345678");
        assert_eq!(text::<8>("123456789"), "12345…");
        // The letter ü has two bytes.
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
