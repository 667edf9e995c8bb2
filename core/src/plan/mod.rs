//! The plan as data: candidates, the choice among them, and the layout of the workspace.

mod choose;
mod gpu;
mod layout;

pub use choose::{Choice, MOST_TILES, Method, Options, PlanError, choose};
pub use gpu::{GpuChoice, GpuDepth, GpuLayout, GpuOptions, GpuSpan, GpuSpec, SEQUENCE_BYTES, choose_gpu};
pub use layout::{Layout, Region, Span, TileSpans};

/// An instruction set that micro-kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// None in particular.
    Scalar,
    /// ARMv8.0 Advanced SIMD.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F and DQ.
    Avx512,
}

impl InstructionSet {
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

/// How a micro-kernel reads keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLayout {
    /// Row by row, where they lie.
    Rows,
    /// In panels of that many keys, `[panel][dim][key]`, packed for it.
    Panels(usize),
}

/// A micro-kernel as the chooser and the certificate see it.
///
/// Names read `operation_accumulator__set_exponential_qTrR`: the exponential's method with its polynomial
/// degree, rows of the widest query tile, keys of its register tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpec {
    /// Its name.
    pub name: &'static str,
    /// The instruction set that it needs.
    pub set: InstructionSet,
    /// Rows in a vector.
    pub lanes: usize,
    /// Vectors in its widest tile.
    pub vectors: usize,
    /// Most keys in a register tile; at most eight.
    pub rows: usize,
    /// Query tiles that share a key block while it is in cache.
    pub group: usize,
    /// How it reads keys.
    pub keys: KeyLayout,
    /// Most query rows of a sequence that it is meant for.
    pub most_queries: usize,
    /// A factor that all its weights carry, and with them `S` and `W`; it cancels in `W / S`.
    pub unit: f64,
    /// Longest chain of multiply-adds in a score.
    pub chain: usize,
    /// Largest relative error of a weight against `unit · 2^x`.
    pub exp2_relative: f64,
    /// Whether multiply-adds round once.
    pub fused: bool,
}
