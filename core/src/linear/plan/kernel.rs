//! Describes a CPU micro-kernel to the chooser and the error bound.

use crate::linear::Rule;
use crate::profile::InstructionSet;

/// A CPU micro-kernel of linear attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpec {
    /// Name of the kernel: the tile of tokens and columns, the instruction set.
    pub name: &'static str,
    /// The instruction set that it requires.
    pub set: InstructionSet,
    /// Number of values of a vector, which is the number of columns of its narrowest strip.
    pub lanes: usize,
    /// Number of columns of its widest strip that is valid for every rule.
    pub columns: usize,
    /// Number of columns of its widest strip for the delta rules, at least `columns`.
    pub delta_columns: usize,
    /// Number of tokens in one pass of the recurrence over the state.
    pub tokens: usize,
    /// Number of tokens in one pass of the recurrence over the state under the delta rules.
    pub delta_tokens: usize,
    /// Number of tokens in one pass of the recurrence over the state if nothing decays and keys have more than 64 dims. The
    /// roundings of the state then add up to the most.
    pub steady_tokens: usize,
    /// Largest relative error of the exponentials of sums of gates.
    pub exp_relative: f64,
    /// `true` if a multiply-add rounds once (fused).
    pub fused: bool,
}

/// Longest pass of the delta rule without gates whose sums are f32. In a longer one kernels round the products of
/// queries and keys once, from f64, and sum in f64 the writes of a few tokens at a time.
pub const LONG_PASS: usize = 1024;

/// Number of terms of a sum over tokens that kernels add up one after another in f32. The results are then added up.
const SEGMENT: usize = 16;

/// Returns the largest number of roundings of a product in a sum over a whole pass of `tokens` tokens, in addition
/// to those of every pass. They occur in its segment, among segments, and among the tokens of a register tile,
/// which are fewer than a segment's.
pub(super) const fn roundings(delta: bool, tokens: usize) -> usize {
    let among = if delta && tokens > LONG_PASS { 1 } else { tokens.div_ceil(SEGMENT) };
    let most = 2 * SEGMENT + 1 + among;
    if most < tokens { most } else { tokens }
}

/// Largest number of dims of keys for which a state without decay may be rounded as often as one with decay.
const FEW_DIMS: usize = 64;

impl KernelSpec {
    /// Returns the number of tokens in one pass of the recurrence over the state, for a rule and keys of `dims` dims.
    #[must_use]
    pub const fn together(&self, rule: Rule, dims: usize) -> usize {
        match rule {
            Rule::Delta | Rule::GatedDelta => self.delta_tokens,
            Rule::Linear if dims > FEW_DIMS => self.steady_tokens,
            _ => self.tokens,
        }
    }
}
