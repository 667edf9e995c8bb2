//! Lists where one form of linear attention becomes faster than another on a processor.

use crate::linear::{Gates, Rule};
use crate::profile::InstructionSet;

/// Least head size for which a processor uses chunks instead of the recurrence, and the number of tokens of a chunk in one
/// pass over the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunksFrom {
    /// Least head size of keys from which chunks are faster; `usize::MAX` if the recurrence always is.
    pub head_size: usize,
    /// Number of tokens in one pass over the state.
    pub pass: usize,
}

/// Head sizes at which the fastest form changes on a processor. On one core a crossover depends on neither
/// tokens nor heads: only the quadratic form has costs per token that depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossovers {
    /// Rules without rates.
    pub plain: ChunksFrom,
    /// Rules without rates, with a gate for each dim.
    pub plain_per_dim: ChunksFrom,
    /// Delta rules.
    pub delta: ChunksFrom,
    /// Delta rules with a gate for each dim.
    pub delta_per_dim: ChunksFrom,
    /// `true` if the crossovers are predicted, `false` if they were measured on a processor of this kind.
    pub predicted: bool,
}

impl Crossovers {
    /// Measured on a core with AVX-512, at head sizes of 64, 128 and 256.
    pub const MEASURED: Crossovers = Crossovers {
        plain: ChunksFrom { head_size: usize::MAX, pass: 16 },
        plain_per_dim: ChunksFrom { head_size: usize::MAX, pass: 16 },
        delta: ChunksFrom { head_size: 256, pass: 16 },
        delta_per_dim: ChunksFrom { head_size: 256, pass: 16 },
        predicted: false,
    };

    /// Predicted for a core with NEON. A token of the recurrence takes fewer multiply-adds than one of a chunk, but a chunk
    /// saves loads of the state, which find a strip of eight columns in a first cache of 32 KiB up to a head size of 512.
    pub const NEON: Crossovers = {
        let never = ChunksFrom { head_size: usize::MAX, pass: 16 };
        Crossovers { plain: never, plain_per_dim: never, delta: never, delta_per_dim: never, predicted: true }
    };

    /// Returns the crossovers of the kernels of an instruction set. Only those of AVX-512 were measured.
    #[must_use]
    pub const fn of(set: InstructionSet) -> Crossovers {
        match set {
            InstructionSet::Neon => Crossovers::NEON,
            InstructionSet::Avx512 => Crossovers::MEASURED,
            InstructionSet::Avx2 | InstructionSet::Scalar => {
                Crossovers { predicted: true, ..Crossovers::MEASURED }
            }
        }
    }

    /// Returns the crossover of a rule with such gates.
    #[must_use]
    pub const fn crossover(&self, rule: Rule, gates: Gates) -> ChunksFrom {
        match (rule.is_delta(), gates) {
            (false, Gates::PerDim) => self.plain_per_dim,
            (false, _) => self.plain,
            (true, Gates::PerDim) => self.delta_per_dim,
            (true, _) => self.delta,
        }
    }
}
