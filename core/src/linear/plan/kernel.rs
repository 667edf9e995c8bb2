//! Describes a CPU micro-kernel to the chooser and the error bound.

use crate::linear::Rule;
use crate::profile::InstructionSet;

/// Properties of a CPU micro-kernel of linear attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelSpec {
    /// Name of the kernel, composed of its tile of tokens and columns and its instruction set.
    pub name: &'static str,
    /// Instruction set that the kernel requires.
    pub set: InstructionSet,
    /// Number of values per vector, which is also the number of columns of the narrowest strip.
    pub lanes: usize,
    /// Number of columns of the widest strip that every rule supports.
    pub columns: usize,
    /// Number of columns of the widest strip that the delta rules support, at least `columns`.
    pub delta_columns: usize,
    /// Number of tokens in one pass of the recurrence over the state, unless `delta_tokens` or `steady_tokens` applies.
    pub tokens: usize,
    /// Number of tokens in one pass of the recurrence over the state for the delta rules.
    pub delta_tokens: usize,
    /// Number of tokens in one pass of the recurrence over the state for [`Rule::Linear`] and keys of more than 64
    /// dims. Under this rule the state never decays, so the roundings of all its updates add up. Longer passes round
    /// the state less often.
    pub steady_tokens: usize,
    /// Largest relative error of the exponential of a sum of gate logarithms.
    pub exp_relative: f64,
    /// `true` if a multiply-add rounds once (fused).
    pub fused: bool,
}

/// For the delta rule without gates: the largest number of tokens per pass for which kernels sum in f32. In longer
/// passes, kernels compute each product of a query and a key in f64 and round it once. They also sum the writes of a
/// few tokens at a time in f64.
pub const LONG_PASS: usize = 1024;

/// Number of terms per segment of a sum over tokens. Kernels add the terms of a segment one after another in f32, and
/// then add the segments.
const SEGMENT: usize = 16;

/// Returns the largest number of roundings that a product undergoes in a sum over one pass of `tokens` tokens. Roundings
/// that occur regardless of the length of the pass are not counted. A product is rounded within its segment, in the sum of
/// the segments, and within the sum over the tokens of a register tile, which has fewer terms than a segment.
pub(super) const fn roundings(delta: bool, tokens: usize) -> usize {
    let among = if delta && tokens > LONG_PASS { 1 } else { tokens.div_ceil(SEGMENT) };
    let most = 2 * SEGMENT + 1 + among;
    if most < tokens { most } else { tokens }
}

/// Largest head size of keys for which a pass of [`Rule::Linear`] has [`KernelSpec::tokens`] tokens. With larger head
/// sizes, a pass has [`KernelSpec::steady_tokens`] tokens.
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
