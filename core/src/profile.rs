//! The description of a device, as plain data for the choice of kernels.

/// A device: its processor, its caches and its GPU, if it has one. Sizes are in bytes and clocks in MHz; zero means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceProfile {
    /// Number of cores available to the process.
    pub cores: usize,
    /// Level 1 data cache of a core.
    pub l1d: usize,
    /// Level 2 cache available to a core.
    pub l2: usize,
    /// Level 3 cache; zero if absent or unknown.
    pub l3: usize,
    /// Maximum clock.
    pub cpu_mhz: u32,
    /// The GPU, if there is one.
    pub gpu: Option<GpuProfile>,
    /// Crossovers between the forms of linear attention on the processor.
    pub linear: LinearCrossovers,
}

/// The crossover from the recurrence to chunks on a processor, and the number of tokens of a chunk that pass the state
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunksFrom {
    /// Smallest head size of keys for which chunks are used; `usize::MAX` if the recurrence is always faster.
    pub head_size: usize,
    /// Number of tokens that pass together.
    pub pass: usize,
}

/// Crossovers between the forms of linear attention on a processor. On one core neither the number of tokens nor that of
/// heads moves a crossover: the cost per token of every form except the quadratic one is independent of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearCrossovers {
    /// Crossover of the rules without rates.
    pub plain: ChunksFrom,
    /// Crossover of the rules without rates, with a gate for each dim.
    pub plain_per_dim: ChunksFrom,
    /// Crossover of the delta rules.
    pub delta: ChunksFrom,
    /// Crossover of the delta rules, with a gate for each dim.
    pub delta_per_dim: ChunksFrom,
    /// `true` if the crossovers are predicted, not measured on such a processor.
    pub predicted: bool,
}

impl LinearCrossovers {
    /// Measured on a core with AVX-512, at head sizes of 64, 128 and 256.
    pub const MEASURED: LinearCrossovers = LinearCrossovers {
        plain: ChunksFrom { head_size: usize::MAX, pass: 16 },
        plain_per_dim: ChunksFrom { head_size: usize::MAX, pass: 16 },
        delta: ChunksFrom { head_size: 256, pass: 16 },
        delta_per_dim: ChunksFrom { head_size: 256, pass: 16 },
        predicted: false,
    };

    /// Predicted for a core with NEON. The recurrence takes fewer multiply-adds per token than a chunk. A chunk only saves
    /// loads of the state, and a strip of eight columns stays in a 32 KiB level 1 cache up to a head size of 512.
    pub const NEON: LinearCrossovers = {
        let never = ChunksFrom { head_size: usize::MAX, pass: 16 };
        LinearCrossovers {
            plain: never,
            plain_per_dim: never,
            delta: never,
            delta_per_dim: never,
            predicted: true,
        }
    };

    /// Returns the crossovers of the kernels of an instruction set. Only those of AVX-512 were measured.
    #[must_use]
    pub const fn of(set: InstructionSet) -> LinearCrossovers {
        match set {
            InstructionSet::Neon => LinearCrossovers::NEON,
            InstructionSet::Avx512 => LinearCrossovers::MEASURED,
            InstructionSet::Avx2 | InstructionSet::Scalar => {
                LinearCrossovers { predicted: true, ..LinearCrossovers::MEASURED }
            }
        }
    }
}

impl Default for LinearCrossovers {
    fn default() -> LinearCrossovers {
        LinearCrossovers::MEASURED
    }
}

/// A CUDA device. Sizes are in bytes and the clock in MHz; zero means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuProfile {
    /// Compute capability, `(major, minor)`.
    pub capability: (u32, u32),
    /// Number of streaming multiprocessors (SMs).
    pub sms: usize,
    /// FP32 lanes of an SM.
    pub lanes_per_sm: usize,
    /// Shared memory available to a block.
    pub shared_memory: usize,
    /// Shared memory of an SM.
    pub shared_per_sm: usize,
    /// Level 2 cache.
    pub l2: usize,
    /// Maximum clock.
    pub mhz: u32,
    /// `true` if it shares memory with the CPU.
    pub integrated: bool,
}

impl DeviceProfile {
    /// Returns a conservative description of an unknown processor: one core, 32 KiB of level 1 and 256 KiB of level 2 cache.
    #[must_use]
    pub const fn modest() -> DeviceProfile {
        DeviceProfile {
            cores: 1,
            l1d: 32 << 10,
            l2: 256 << 10,
            l3: 0,
            cpu_mhz: 0,
            gpu: None,
            linear: LinearCrossovers::MEASURED,
        }
    }
}

/// An instruction set that has micro-kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// Portable Rust without vector intrinsics.
    Scalar,
    /// ARMv8.0 Advanced SIMD.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F and DQ.
    Avx512,
}

impl InstructionSet {
    /// Every instruction set, fastest first.
    pub const ALL: [InstructionSet; 4] =
        [InstructionSet::Avx512, InstructionSet::Avx2, InstructionSet::Neon, InstructionSet::Scalar];

    /// Returns the name: `scalar`, `neon`, `avx2` or `avx512`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            InstructionSet::Scalar => "scalar",
            InstructionSet::Neon => "neon",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
        }
    }
}
