//! The profile of a known board, for comparison with the values that the operating system reports.

use super::linear::Crossover;
use elsa_core::linear::plan::Crossovers;
use elsa_core::profile::{DeviceProfile, GpuProfile, InstructionSet};
use elsa_targets::Board;
use serde::Serialize;
use std::fmt;

/// Data about a board: its processor and its GPU. Unknown numbers are `None`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// Name of the cores that the plans for this board assume; `cores` is the number of these cores.
    core: Option<String>,
    cores: Option<usize>,
    l1d_bytes: Option<usize>,
    l2_bytes: Option<usize>,
    cpu_mhz: Option<u32>,
    gpu: Option<GpuFacts>,
    /// Crossovers from the recurrence to chunks in linear attention, on the processor of the board.
    linear: Vec<Crossover>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct GpuFacts {
    capability: String,
    sms: Option<usize>,
    lanes_per_sm: Option<usize>,
    shared_memory_bytes: Option<usize>,
    l2_bytes: Option<usize>,
    mhz: Option<u32>,
}

/// Returns `x`, or `None` if `x` is zero. In a [`DeviceProfile`], zero means that the number is not known.
fn known<T: Default + PartialEq>(x: T) -> Option<T> {
    (x != T::default()).then_some(x)
}

impl Profile {
    /// Returns the profile of the board `name`; `None` if there is no such board.
    #[must_use]
    pub fn of(name: &str) -> Option<Profile> {
        let board = Board::named(name).inspect_err(|e| log::warn!("{e}")).ok()?;
        let DeviceProfile { l1d, l2, cpu_mhz, gpu, .. } = board.device_profile();
        // The number of cores comes from the board: a device profile contains one core if the number is unknown.
        let cluster = board.cpus.first();
        let (core, cores) = (cluster.map(|x| x.core.clone()), cluster.and_then(|x| x.count));
        let gpu = gpu.map(|gpu| {
            let GpuProfile { capability: (major, minor), sms, lanes_per_sm, shared_memory, l2, mhz, .. } =
                gpu;
            GpuFacts {
                capability: format!("{major}.{minor}"),
                sms: known(sms),
                lanes_per_sm: known(lanes_per_sm),
                shared_memory_bytes: known(shared_memory),
                l2_bytes: known(l2),
                mhz: known(mhz),
            }
        });
        Some(Profile {
            cores,
            core,
            l1d_bytes: known(l1d),
            l2_bytes: known(l2),
            cpu_mhz: known(cpu_mhz),
            gpu,
            linear: Crossover::all(&Crossovers::of(InstructionSet::Neon)),
        })
    }

    /// Returns the crossovers from the recurrence to chunks in linear attention, on the processor of the board.
    #[must_use]
    pub fn linear(&self) -> &[Crossover] {
        &self.linear
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mhz = |mhz: Option<u32>| mhz.map(|x| format!("{x} MHz"));
        let kib = |name, bytes: Option<usize>| bytes.map(|x| format!("{name} {}K", x >> 10));
        let cpu = [
            self.cores.map(|cores| format!("{cores} {} cores", self.core.as_deref().unwrap_or_default())),
            kib("L1 data", self.l1d_bytes),
            kib("L2", self.l2_bytes),
            mhz(self.cpu_mhz),
        ];
        let gpu = self.gpu.iter().flat_map(|gpu| {
            [
                Some(format!("GPU of compute capability {}", gpu.capability)),
                gpu.sms.map(|sms| format!("{sms} SMs")),
                kib("L2", gpu.l2_bytes),
                mhz(gpu.mhz),
            ]
        });
        let facts: Vec<String> = cpu.into_iter().chain(gpu).flatten().collect();
        f.write_str(&facts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_shows_what_is_known() {
        let tx2 = Profile::of("jetson-tx2").unwrap();
        assert_eq!(
            tx2.to_string(),
            "4 Cortex-A57 cores, L1 data 32K, L2 2048K, 2000 MHz, GPU of compute capability 6.2, 2 SMs, L2 512K, 1300 MHz"
        );
        let json = serde_json::to_value(&tx2).unwrap();
        assert_eq!((&json["l1d_bytes"], &json["gpu"]["mhz"]), (&32768.into(), &1300.into()));
        assert_eq!(
            (&json["linear"][3]["rule"], &json["linear"][3]["predicted"]),
            (&"delta".into(), &true.into())
        );
        let orin = serde_json::to_value(Profile::of("jetson-orin").unwrap()).unwrap();
        assert_eq!((&orin["cores"], &orin["gpu"]["capability"]), (&().into(), &"8.7".into()));
        assert_eq!(Profile::of("jetson-tx3"), None);
    }
}
