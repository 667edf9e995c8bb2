//! Profiles and files of the supported boards.
//!
//! Each folder next to this crate's manifest belongs to one board. It contains `profile.toml` (the board's properties),
//! `toolchain.cmake` and `config.toml` (build settings for CMake and cargo) and `board.md` (instructions for running on
//! the board). `required.txt` lists the kernels that must run on every board. This crate parses the profiles and the
//! list of kernels. It also recognises a board from the board's device tree, and converts a profile into the
//! [`DeviceProfile`] that the chooser reads. `cargo xtask build`, `check` and `deploy` use the same data.
//!
//! A profile omits unknown properties and lists them under `unknown`. Unknown properties are `None` in this crate, and
//! zero in a [`DeviceProfile`].
#![forbid(unsafe_code)]

use elsa_core::profile::{DeviceProfile, GpuProfile};
use serde::Deserialize;
use std::str::FromStr;

/// The embedded files of one board, and the names by which the board is recognised.
struct Files {
    name: &'static str,
    soc: &'static str,
    /// Module number that distinguishes the board from another board with the same chip; empty if the board is
    /// recognised by its chip.
    module: &'static str,
    profile: &'static str,
}

/// Includes the files of the folder `$name`.
macro_rules! files {
    ($name:literal, $soc:literal, $module:literal) => {
        Files {
            name: $name,
            soc: $soc,
            module: $module,
            profile: include_str!(concat!("../", $name, "/profile.toml")),
        }
    };
}

/// Text of `required.txt`, the list of kernels that must run on every board.
const REQUIRED: &str = include_str!("../required.txt");

const FILES: [Files; 5] = [
    files!("jetson-tx2", "tegra186", ""),
    files!("jetson-nano", "tegra210", ""),
    files!("jetson-tx1", "tegra210", "2180"),
    files!("jetson-xavier", "tegra194", ""),
    files!("jetson-orin", "tegra234", ""),
];

/// Names of all boards, which are also the names of their folders.
pub const NAMES: [&str; FILES.len()] = {
    let mut names = [""; FILES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = FILES[i].name;
        i += 1;
    }
    names
};

/// Name of the board whose platform, C library and instruction set determine the build that all boards share.
pub const REFERENCE: &str = FILES[0].name;

/// Returns the name of the board whose device tree has this `compatible` property. The property consists of
/// zero-terminated strings, as in `/proc/device-tree/compatible`. Returns `None` for an unknown board. Does not parse
/// any profile.
#[must_use]
pub fn recognised(compatible: &str) -> Option<&'static str> {
    let socs: Vec<&str> = compatible.split('\0').filter_map(|x| x.strip_prefix("nvidia,")).collect();
    let of_chip = FILES.iter().filter(|files| socs.contains(&files.soc));
    let of_module = of_chip.clone().find(|files| {
        let mut numbers = socs.iter().flat_map(|name| name.split(|c: char| !c.is_ascii_digit()));
        !files.module.is_empty() && numbers.any(|number| number == files.module)
    });
    of_module.or_else(|| of_chip.clone().find(|files| files.module.is_empty())).map(|files| files.name)
}

/// Error from reading a board.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No board has this name.
    #[error("target: {name}; allowed: {}", NAMES.join(", "))]
    Unknown {
        /// Name that was not found.
        name: String,
    },
    /// A profile does not parse.
    #[error("{board}/profile.toml: {fault}")]
    Profile {
        /// Name of the folder.
        board: &'static str,
        /// The error that the parser reports.
        fault: Box<toml::de::Error>,
    },
    /// A line of the list of required kernels does not parse.
    #[error("required.txt: {fault}")]
    Required {
        /// The line that does not parse, and the allowed format.
        fault: String,
    },
}

/// A board. Sizes are in bytes, clocks in MHz; unknown facts are `None`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// Name of the board, which is also the name of its folder.
    pub name: String,
    /// Name of the family of modules.
    pub title: String,
    /// Name of the system on chip: the part after `nvidia,` of the name in the device tree.
    pub soc: String,
    /// Last JetPack release that supports the board, if known.
    pub jetpack: Option<String>,
    /// Keys of the profile whose values are unknown, as paths such as `gpu.mhz`.
    pub unknown: Vec<String>,
    /// Settings for building programs that run on the board.
    pub build: Build,
    /// Modules of the family.
    #[serde(default, rename = "module")]
    pub modules: Vec<Module>,
    /// Clusters of cores; empty if unknown. NEON kernels are tuned for the first cluster.
    #[serde(default, rename = "cpu")]
    pub cpus: Vec<Cluster>,
    /// The GPU.
    pub gpu: Gpu,
    /// The memory that processor and GPU share.
    #[serde(default)]
    pub memory: Memory,
    /// Modes of nvpmodel; empty if unknown.
    #[serde(default, rename = "power")]
    pub power: Vec<PowerMode>,
    /// Kernels that must run on the board, from `required.txt`.
    #[serde(skip)]
    pub required: Vec<Required>,
}

/// Settings for building programs that run on a board.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Rust's target triple for the board.
    pub triple: String,
    /// Output of `uname -m` on the board.
    pub machine: String,
    /// Newest version of the C library (glibc) whose symbols programs may use.
    pub glibc: Version,
    /// Instruction set that programs may use without checking at run time that the processor has it.
    pub isa: String,
    /// Architecture for which GPU kernels are precompiled for the board, such as `sm_53`.
    pub cubin: String,
    /// Newest PTX ISA that the oldest supported driver loads, if known.
    pub ptx: Option<Version>,
}

impl Build {
    /// Returns the platform in the format of cargo-zigbuild: the triple, a dot, and the version of the C library.
    #[must_use]
    pub fn zig_target(&self) -> String {
        format!("{}.{}", self.triple, self.glibc)
    }

    /// Returns the platform in the format of zig's own drivers, such as `aarch64-linux-gnu.2.27`.
    #[must_use]
    pub fn zig_platform(&self) -> String {
        format!("{}-linux-gnu.{}", self.machine, self.glibc)
    }
}

/// A module of a board's family.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Part number.
    pub part: String,
    /// Name of the module.
    pub name: String,
}

/// A cluster of identical cores.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Name of the core design, such as `Cortex-A57`.
    pub core: String,
    /// Number of cores.
    pub count: Option<usize>,
    /// Size of a core's level 1 instruction cache.
    pub l1i: Option<usize>,
    /// Size of a core's level 1 data cache.
    pub l1d: Option<usize>,
    /// Size of the level 2 cache, which the cluster shares.
    pub l2: Option<usize>,
    /// Highest clock of the cores.
    pub mhz: Option<u32>,
}

/// The GPU of a board.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Name of the chip.
    pub name: Option<String>,
    /// Compute capability.
    pub capability: Version,
    /// Number of streaming multiprocessors.
    pub sms: Option<usize>,
    /// Number of FP32 lanes per streaming multiprocessor.
    pub lanes_per_sm: Option<usize>,
    /// Shared memory available to a thread block.
    pub shared_memory: Option<usize>,
    /// Shared memory per streaming multiprocessor.
    pub shared_per_sm: Option<usize>,
    /// Size of the level 2 cache.
    pub l2: Option<usize>,
    /// Highest clock of the GPU.
    pub mhz: Option<u32>,
    /// Assumed time from the end of one kernel to the start of the next, in microseconds; `None` if latencies are not
    /// predicted.
    pub launch_us: Option<f64>,
    /// Assumed fraction of issue slots that are filled; `None` if latencies are not predicted.
    pub efficiency: Option<f64>,
}

/// Memory shared by processor and GPU.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Capacity in bytes.
    pub bytes: Option<u64>,
    /// Type of memory, such as `LPDDR4`.
    pub kind: Option<String>,
    /// Width of the memory bus in bits.
    pub bus_bits: Option<u32>,
    /// Bandwidth in 10⁹ bytes per second.
    pub bandwidth_gbs: Option<f64>,
}

/// A power mode of nvpmodel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerMode {
    /// Number for `nvpmodel -m`.
    pub id: u32,
    /// Name of the mode.
    pub name: String,
    /// Description of the cores that are online, and of the clocks of these cores.
    pub cpu: String,
    /// Highest clock of the GPU.
    pub gpu_mhz: u32,
}

/// A version `major.minor`; the major number is compared first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Version {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let parse = || {
            let (major, minor) = text.split_once('.')?;
            Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
        };
        parse().ok_or_else(|| format!("version: {text}; allowed: MAJOR.MINOR"))
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Version, String> {
        text.parse()
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A kernel that must run on a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Required {
    /// A CPU micro-kernel, by its name in the registry.
    Cpu(String),
    /// A GPU kernel, by the name of its entry point in PTX.
    Gpu(String),
}

/// Parses a list of required kernels: one `cpu NAME` or `gpu NAME` per line, with remarks after `#`.
fn required(text: &str) -> Result<Vec<Required>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["cpu", name] => Ok(Required::Cpu(name.to_owned())),
            ["gpu", name] => Ok(Required::Gpu(name.to_owned())),
            _ => Err(format!("line: {line}; allowed: cpu NAME, gpu NAME")),
        })
        .collect()
}

/// Returns the text of `profile.toml` of the board with this name; `None` if no board has the name.
#[must_use]
pub fn profile_text(name: &str) -> Option<&'static str> {
    FILES.iter().find(|files| files.name == name).map(|files| files.profile)
}

impl Board {
    /// Returns the board with this name.
    ///
    /// # Errors
    /// Returns an error if no board has the name, or if its files do not parse.
    pub fn named(name: &str) -> Result<Board, Error> {
        let files = FILES.iter().find(|files| files.name == name);
        let files = files.ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        let mut board: Board = toml::from_str(files.profile)
            .map_err(|fault| Error::Profile { board: files.name, fault: Box::new(fault) })?;
        board.required = required(REQUIRED).map_err(|fault| Error::Required { fault })?;
        Ok(board)
    }

    /// Returns the profile that the chooser reads, with all cores of the first cluster. Unknown properties are zero,
    /// but the number of cores is at least one.
    #[must_use]
    pub fn device_profile(&self) -> DeviceProfile {
        let cluster = self.cpus.first();
        let of = |fact: fn(&Cluster) -> Option<usize>| cluster.and_then(fact).unwrap_or(0);
        DeviceProfile {
            cores: of(|x| x.count).max(1),
            l1d: of(|x| x.l1d),
            l2: of(|x| x.l2),
            l3: 0,
            cpu_mhz: cluster.and_then(|x| x.mhz).unwrap_or(0),
            gpu: Some(GpuProfile {
                capability: (self.gpu.capability.major, self.gpu.capability.minor),
                sms: self.gpu.sms.unwrap_or(0),
                lanes_per_sm: self.gpu.lanes_per_sm.unwrap_or(0),
                shared_memory: self.gpu.shared_memory.unwrap_or(0),
                shared_per_sm: self.gpu.shared_per_sm.unwrap_or(0),
                l2: self.gpu.l2.unwrap_or(0),
                mhz: self.gpu.mhz.unwrap_or(0),
                integrated: true,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_complete_or_names_what_is_unknown() {
        for name in NAMES {
            let board = Board::named(name).unwrap();
            assert_eq!(board.name, name);
            assert!(!board.modules.is_empty() && !board.required.is_empty(), "{name}");
            // The architecture of precompiled kernels must equal the compute capability.
            let Version { major, minor } = board.gpu.capability;
            assert_eq!(board.build.cubin, format!("sm_{major}{minor}"), "{name}");

            let absent = |key: &str, known: bool| (!known).then(|| key.to_owned());
            let (gpu, memory) = (&board.gpu, &board.memory);
            let mut unknown: Vec<String> = [
                absent("jetpack", board.jetpack.is_some()),
                absent("build.ptx", board.build.ptx.is_some()),
                absent("cpu", !board.cpus.is_empty()),
                absent("gpu.name", gpu.name.is_some()),
                absent("gpu.sms", gpu.sms.is_some()),
                absent("gpu.lanes_per_sm", gpu.lanes_per_sm.is_some()),
                absent("gpu.shared_memory", gpu.shared_memory.is_some()),
                absent("gpu.shared_per_sm", gpu.shared_per_sm.is_some()),
                absent("gpu.l2", gpu.l2.is_some()),
                absent("gpu.mhz", gpu.mhz.is_some()),
                absent("memory.bytes", memory.bytes.is_some()),
                absent("memory.kind", memory.kind.is_some()),
                absent("memory.bus_bits", memory.bus_bits.is_some()),
                absent("memory.bandwidth_gbs", memory.bandwidth_gbs.is_some()),
                absent("power", !board.power.is_empty()),
            ]
            .into_iter()
            .flatten()
            .collect();
            for cpu in &board.cpus {
                let of = |key: &str, known: bool| absent(&format!("cpu.{}.{key}", cpu.core), known);
                unknown.extend(
                    [
                        of("count", cpu.count.is_some()),
                        of("l1i", cpu.l1i.is_some()),
                        of("l1d", cpu.l1d.is_some()),
                        of("l2", cpu.l2.is_some()),
                        of("mhz", cpu.mhz.is_some()),
                    ]
                    .into_iter()
                    .flatten(),
                );
            }
            let mut named = board.unknown.clone();
            named.sort();
            unknown.sort();
            assert_eq!(named, unknown, "{name}");
        }
    }

    #[test]
    fn all_boards_share_one_build() {
        let shared = Board::named(REFERENCE).unwrap().build;
        assert_eq!(shared.zig_target(), "aarch64-unknown-linux-gnu.2.27");
        assert_eq!(shared.zig_platform(), "aarch64-linux-gnu.2.27");
        for name in NAMES {
            let build = Board::named(name).unwrap().build;
            assert_eq!(
                (build.triple, build.machine, build.glibc, build.isa),
                (shared.triple.clone(), shared.machine.clone(), shared.glibc, shared.isa.clone()),
                "{name}"
            );
        }
    }

    #[test]
    fn boards_are_recognised_by_their_device_tree() {
        for name in NAMES {
            let board = Board::named(name).unwrap();
            let files = FILES.iter().find(|files| files.name == name).unwrap();
            let module = if files.module.is_empty() { "p1" } else { files.module };
            let tree = format!("a\0nvidia,p2597-{module}\0nvidia,{}\0", board.soc);
            assert_eq!(recognised(&tree), Some(name));
            let known = |known: &Module| known.part.contains(files.module);
            assert!(board.modules.iter().any(known), "{name}");
        }
        // These boards have the same chip.
        assert_eq!(recognised("nvidia,jetson-cv\0nvidia,p2371-2180\0nvidia,tegra210\0"), Some("jetson-tx1"));
        assert_eq!(recognised("nvidia,p2597-0000+p2180-1000\0nvidia,tegra210\0"), Some("jetson-tx1"));
        let nano = "nvidia,p3449-0000-b00+p3448-0000-b00\0nvidia,jetson-nano\0nvidia,tegra210\0";
        assert_eq!(recognised(nano), Some("jetson-nano"));
        assert_eq!(recognised("nvidia,p2371-21800\0nvidia,tegra210\0"), Some("jetson-nano"));
        assert_eq!(recognised("nvidia,p2371-2180\0nvidia,tegra186\0"), Some("jetson-tx2"));
        assert_eq!(recognised("nvidia,p2597-0000+p3310-1000\0nvidia,tegra186\0"), Some("jetson-tx2"));
        assert_eq!(recognised("nvidia,tegra1860\0"), None);
        assert_eq!(recognised("raspberrypi,4-model-b\0brcm,bcm2711\0"), None);
        assert_eq!(recognised(""), None);
    }

    #[test]
    fn the_chooser_reads_the_profile_of_the_tx2() {
        let profile = Board::named("jetson-tx2").unwrap().device_profile();
        assert_eq!((profile.cores, profile.l1d, profile.l2, profile.cpu_mhz), (4, 32 << 10, 2 << 20, 2000));
        let gpu = profile.gpu.unwrap();
        assert_eq!((gpu.capability, gpu.sms, gpu.lanes_per_sm, gpu.mhz), ((6, 2), 2, 128, 1300));
        let unknown = Board::named("jetson-orin").unwrap().device_profile();
        assert_eq!((unknown.cores, unknown.l1d), (1, 0));
    }

    #[test]
    fn bad_data_is_refused() {
        assert!(matches!(Board::named("jetson-tx3"), Err(Error::Unknown { .. })));
        let fault = Board::named("jetson-tx3").unwrap_err().to_string();
        assert!(fault.contains("jetson-tx3") && fault.contains("jetson-tx2"), "{fault}");
        assert_eq!(
            required("# a\ncpu x # why\n\ngpu y\n"),
            Ok(vec![Required::Cpu("x".into()), Required::Gpu("y".into())])
        );
        for bad in ["cpu", "x", "npu x", "cpu a b"] {
            assert!(required(bad).is_err(), "{bad}");
        }
        let (old, new): (Version, Version) = ("2.9".parse().unwrap(), "2.27".parse().unwrap());
        assert!(old < new && "2".parse::<Version>().is_err() && "2.x".parse::<Version>().is_err());
    }
}
