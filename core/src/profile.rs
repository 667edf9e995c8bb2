//! Describes a device, as plain data for the choice of kernels.

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
        DeviceProfile { cores: 1, l1d: 32 << 10, l2: 256 << 10, l3: 0, cpu_mhz: 0, gpu: None }
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
