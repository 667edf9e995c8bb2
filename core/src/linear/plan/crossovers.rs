//! Head sizes at which one form of linear attention becomes faster than another on a processor.

use crate::linear::{Gates, Rule};
use crate::profile::InstructionSet;

/// Number of tokens up to which pairs of tokens are not faster than single tokens.
const FEW: usize = 4;

/// Smallest head size for which a processor uses chunks instead of the recurrence, and the number of tokens per pass
/// over the state when it uses chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunksFrom {
    /// Smallest head size of keys for which chunks are faster; `usize::MAX` if the recurrence is always faster.
    pub head_size: usize,
    /// Number of tokens in one pass over the state.
    pub pass: usize,
}

/// Head sizes at which the fastest form changes on a processor. On one core they depend neither on the number of heads
/// nor, except for calls of one pass without a present state, on the number of tokens: the cost per token grows with the
/// number of tokens only in the parallel form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossovers {
    /// Crossover for rules without rates and with at most one gate per head.
    pub plain: ChunksFrom,
    /// Crossover for rules without rates and with a gate for each dim.
    pub plain_per_dim: ChunksFrom,
    /// Crossover for delta rules with at most one gate per head.
    pub delta: ChunksFrom,
    /// Crossover for delta rules with a gate for each dim.
    pub delta_per_dim: ChunksFrom,
    /// Largest number of tokens per 128 dims for which a whole sequence is fastest as pairs of tokens
    /// ([`Form::Parallel`](crate::linear::Form::Parallel)), for rules without rates and for delta rules, with at most one
    /// gate per head. Zero if pairs are never faster.
    pub pairs: [usize; 2],
    /// `true` if the crossovers are predicted, `false` if they were measured on a processor with this instruction set.
    pub predicted: bool,
}

impl Crossovers {
    /// Crossovers measured on a core with AVX-512, for head sizes of 64, 128 and 256.
    pub const MEASURED: Crossovers = Crossovers {
        plain: ChunksFrom { head_size: usize::MAX, pass: 16 },
        plain_per_dim: ChunksFrom { head_size: usize::MAX, pass: 16 },
        delta: ChunksFrom { head_size: 256, pass: 16 },
        delta_per_dim: ChunksFrom { head_size: 256, pass: 16 },
        pairs: [96, 32],
        predicted: false,
    };

    /// Crossovers predicted for a core with NEON: chunks are never faster. A chunk needs more multiply-adds per token
    /// than the recurrence. It saves only loads of the state, which are cheap: up to a head size of 512, a strip of
    /// eight columns fits a level 1 cache of 32 KiB. Whether pairs are faster has not been predicted.
    pub const NEON: Crossovers = {
        let never = ChunksFrom { head_size: usize::MAX, pass: 16 };
        Crossovers {
            plain: never,
            plain_per_dim: never,
            delta: never,
            delta_per_dim: never,
            pairs: [0; 2],
            predicted: true,
        }
    };

    /// Returns the crossovers for the kernels of an instruction set. Only the crossovers for AVX-512 were measured.
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

    /// Returns `true` if a whole sequence is faster as pairs of tokens than token by token. A few tokens are equally fast
    /// in both forms.
    #[must_use]
    pub const fn is_faster_in_pairs(&self, rule: Rule, gates: Gates, dim: usize, tokens: usize) -> bool {
        let most = self.pairs[rule.is_delta() as usize].saturating_mul(dim) / 128;
        !matches!(gates, Gates::PerDim) && FEW < tokens && tokens <= most
    }

    /// Returns the crossover for a rule and a granularity of gates.
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
