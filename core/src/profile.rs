//! Describes a device as plain data, from which kernels are chosen.

/// A device: its processor, its caches and its GPU. Sizes are in bytes and clocks in MHz; zero means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceProfile {
    /// Number of cores available to the process.
    pub cores: usize,
    /// Size of the level 1 data cache of a core.
    pub l1d: usize,
    /// Size of the level 2 cache available to a core.
    pub l2: usize,
    /// Size of the level 3 cache; zero if absent or unknown.
    pub l3: usize,
    /// Maximum clock of the cores.
    pub cpu_mhz: u32,
    /// The GPU; `None` on a device without one.
    pub gpu: Option<GpuProfile>,
}

/// A CUDA device. Sizes are in bytes and the clock in MHz; zero means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuProfile {
    /// Compute capability, `(major, minor)`.
    pub capability: (u32, u32),
    /// Number of streaming multiprocessors (SMs).
    pub sms: usize,
    /// Number of FP32 lanes per SM.
    pub lanes_per_sm: usize,
    /// Shared memory available to a thread block.
    pub shared_memory: usize,
    /// Shared memory per SM.
    pub shared_per_sm: usize,
    /// Size of the level 2 cache.
    pub l2: usize,
    /// Maximum clock of the GPU.
    pub mhz: u32,
    /// `true` if the GPU and the CPU share memory.
    pub integrated: bool,
}

impl DeviceProfile {
    /// Returns a conservative description of an unknown processor: one core, 32 KiB of level 1 and 256 KiB of level 2 cache.
    #[must_use]
    pub const fn modest() -> DeviceProfile {
        DeviceProfile { cores: 1, l1d: 32 << 10, l2: 256 << 10, l3: 0, cpu_mhz: 0, gpu: None }
    }
}

/// An instruction set for which there are micro-kernels.
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
