//! What a device is, as plain data that the chooser reads.

/// A device: its processor, caches and, where it has one, its GPU. Sizes in bytes, clocks in MHz; zero means
/// unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceProfile {
    /// Cores that may be used.
    pub cores: usize,
    /// First-level data cache of a core.
    pub l1d: usize,
    /// Second-level cache that a core can use.
    pub l2: usize,
    /// Last-level cache, if there is one beyond the second.
    pub l3: usize,
    /// Highest clock.
    pub cpu_mhz: u32,
    /// The GPU.
    pub gpu: Option<GpuProfile>,
}

/// A CUDA device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuProfile {
    /// Compute capability, `(major, minor)`.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: usize,
    /// FP32 lanes of one of them.
    pub lanes_per_sm: usize,
    /// Shared memory that a block may use.
    pub shared_memory: usize,
    /// Shared memory of a streaming multiprocessor.
    pub shared_per_sm: usize,
    /// Second-level cache.
    pub l2: usize,
    /// Highest clock.
    pub mhz: u32,
    /// Whether it shares the processor's memory.
    pub integrated: bool,
}

impl DeviceProfile {
    /// A processor of which nothing is known but what every one has: one core and small caches.
    #[must_use]
    pub const fn modest() -> DeviceProfile {
        DeviceProfile { cores: 1, l1d: 32 << 10, l2: 256 << 10, l3: 0, cpu_mhz: 0, gpu: None }
    }
}

/// An instruction set that micro-kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// Portable code.
    Scalar,
    /// ARMv8.0 Advanced SIMD.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F and DQ.
    Avx512,
}

impl InstructionSet {
    /// Every instruction set, the fastest first.
    pub const ALL: [InstructionSet; 4] =
        [InstructionSet::Avx512, InstructionSet::Avx2, InstructionSet::Neon, InstructionSet::Scalar];

    /// `scalar`, `neon`, `avx2` or `avx512`.
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
