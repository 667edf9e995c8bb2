//! The certificate of a run: a claim about the error of the run, as plain data.
//!
//! The certificate states the published bound, ELSA Theorem 1:
//!
//! ```text
//! ‖ŷ − y‖₂ / ‖y‖₂ ≤ u L(n, B) + O(u²)        u = 2^-24
//! ```
//!
//! This is a quotation, not a rigorous bound of the run:
//!
//! 1. It is relative to `‖y‖`. Where values cancel, `‖y‖` is small and the error is not.
//! 2. It omits the rounding of the scores, which grows with the head size and with the magnitude of the scores.
//! 3. It counts one rounding per merge, and omits the additions inside a leaf of the merge tree. Therefore the
//!    certificate also states the longest path that was executed.
//! 4. It covers f32 arithmetic. A 16-bit output is rounded once more, by at most the unit roundoff of its type.
//!
//! [`super::bound`] computes rigorous bounds.

use crate::dtype::DType;
use crate::scan::elsa_depth;
use core::fmt;

/// The structure and the arithmetic of a computation, on which its error bounds depend.
///
/// It is a function of the plan and of the kernel's entry in the table of kernels, so the bound of one kernel is never
/// used for another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Executed {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Number of keys per block. This is `B` in the published depth `L(n, B)`.
    pub block: usize,
    /// Number of blocks that are folded into one state before states merge.
    pub segment_blocks: usize,
    /// Number of merges on the longest path through the merge tree.
    pub merge_depth: usize,
    /// Largest number of additions that the weight of a key passes through on its way into `S` or `W`, including those of
    /// the merges.
    pub additions: usize,
    /// Largest number of additions that the weight of a key passes through on its way into the sum `S`.
    pub into_s: usize,
    /// Largest number of additions that a weighted value passes through on its way into the sum `W`. The product of
    /// weight and value is rounded separately, or together with the first of these additions.
    pub into_w: usize,
    /// Longest chain of multiply-adds in a score.
    pub chain: usize,
    /// Number of additions on the longest path from the result of a chain to the score, which is the sum of all chains.
    pub chain_depth: usize,
    /// `true` if a multiply-add rounds once (fused).
    pub fused: bool,
    /// Largest relative error of a weight, compared with the exact `2^x`.
    pub exp2_relative: f64,
    /// Longest chain of products that a score sums in f16; zero if scores are summed in f32.
    pub half_chain: usize,
    /// Order in which sums are accumulated.
    pub order: Order,
    /// `true` if products are those of operands that are split into two f16 values each. A guard limits the error of the splits.
    pub split: bool,
    /// `true` if each of those operands is one f16 value instead, to which it is rounded. Only with `split`.
    pub one_product: bool,
}

/// The known order in which a run accumulates its sums. Bounds for a finished run track the partial sums in this order. A
/// field with the value zero means that the order is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Number of sums over which the dims of a score are distributed cyclically. With a single sum, the products of the
    /// dims are added one chain after another.
    pub lanes: usize,
    /// Number of consecutive keys whose weighted values form one chain.
    pub values: usize,
    /// Number of consecutive keys whose weights form one chain.
    pub weights: usize,
    /// Number of consecutive keys whose chains are added one after another. A balanced tree merges the sums of segments.
    pub segment: usize,
    /// Number of consecutive keys that update the reference of their segment in one step, by their largest score.
    pub references: usize,
    /// `true` if weights are divided by their sum before they multiply the values.
    pub normalizes: bool,
}

impl Order {
    /// Unknown order.
    pub const ANY: Order =
        Order { lanes: 0, values: 0, weights: 0, segment: 0, references: 0, normalizes: false };
}

/// The published bound for a run, and the structure that the run executed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// Element type of the output. Accumulation is in f32 for every type.
    pub dtype: DType,
    /// Largest number of keys that a row may attend. This is `n` in the published depth `L(n, B)`.
    pub keys: usize,
    /// The structure that the run executed.
    pub executed: Executed,
    /// `L(n, B)`, ELSA equation 6.
    pub published_depth: usize,
    /// `u L(n, B)` with the unit roundoff of f32, relative to `‖y‖₂`: ELSA equation 7 without its second-order term.
    pub published_bound: f64,
    /// Error that rounding to a 16-bit output adds, relative to each element: the unit roundoff of the output type; zero
    /// for f32.
    pub output_rounding: f64,
}

impl Certificate {
    /// Creates the certificate of a run in which a row attends at most `keys` keys and the output has type `dtype`.
    #[must_use]
    pub fn new(dtype: DType, keys: usize, executed: Executed) -> Certificate {
        let published_depth = elsa_depth(keys, executed.block);
        Certificate {
            dtype,
            keys,
            executed,
            published_depth,
            published_bound: DType::F32.unit_roundoff() * published_depth as f64,
            output_rounding: match dtype {
                DType::F32 => 0.0,
                DType::F16 | DType::Bf16 => dtype.unit_roundoff(),
            },
        }
    }

    /// Returns `true` if the published depth is at least the number of additions on the longest path. If it is smaller,
    /// the published bound counts fewer roundings than were executed.
    #[must_use]
    pub const fn covers_additions(&self) -> bool {
        self.published_depth >= self.executed.additions
    }

    /// Writes the certificate as one line of JSON, without a line break. The fields are those of [`Certificate`]
    /// and [`Executed`], and additionally
    ///
    /// - `claim`: `"published"`, meaning ELSA Theorem 1,
    /// - `rigorous`: `false`,
    /// - `relative_to`: `"norm2(y)"`,
    /// - `leaves_out`: errors that the claim does not cover,
    /// - `unit_roundoff`: the unit roundoff of f32,
    /// - `covers_additions`: [`Certificate::covers_additions`].
    ///
    /// # Errors
    /// Returns the error of writing to `out`.
    pub fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let e = &self.executed;
        let Executed { block, segment_blocks, merge_depth, additions, half_chain, .. } = *e;
        write!(out, r#"{{"claim":"published","source":"ELSA Theorem 1","rigorous":false,"#)?;
        write!(
            out,
            r#""relative_to":"norm2(y)","leaves_out":["rounding of scores","cancellation of values","#
        )?;
        write!(out, r#""additions within a leaf"],"dtype":"{}","keys":{},"#, self.dtype, self.keys)?;
        write!(out, r#""unit_roundoff":{:e},"#, DType::F32.unit_roundoff())?;
        write!(out, r#""published_depth":{},"#, self.published_depth)?;
        write!(out, r#""published_bound":{:e},"#, self.published_bound)?;
        write!(out, r#""output_rounding":{:e},"#, self.output_rounding)?;
        write!(out, r#""executed":{{"block":{block},"segment_blocks":{segment_blocks},"#)?;
        write!(out, r#""merge_depth":{merge_depth},"additions":{additions},"half_chain":{half_chain},"#)?;
        write!(out, r#""split":{},"one_product":{},"#, e.split, e.one_product)?;
        write!(out, r#""kernel":"{}","into_s":{},"into_w":{},"#, e.kernel, e.into_s, e.into_w)?;
        write!(out, r#""chain":{},"chain_depth":{},"fused":{},"#, e.chain, e.chain_depth, e.fused)?;
        write!(out, r#""exp2_relative":{:e}}},"#, e.exp2_relative)?;
        write!(out, r#""covers_additions":{}}}"#, self.covers_additions())
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_json(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXECUTED: Executed = Executed {
        kernel: "some",
        block: 128,
        segment_blocks: 4,
        merge_depth: 7,
        additions: 519,
        into_s: 519,
        into_w: 519,
        chain: 64,
        chain_depth: 0,
        fused: true,
        exp2_relative: 1.7e-7,
        half_chain: 0,
        order: Order::ANY,
        split: false,
        one_product: false,
    };

    #[test]
    fn published_values_by_hand() {
        let c = Certificate::new(DType::F32, 65_536, EXECUTED);
        assert_eq!(c.published_depth, 7 + 2 * 9 + 3);
        assert_eq!(c.published_bound, 28.0 / 16_777_216.0);
        assert_eq!(c.output_rounding, 0.0);
        assert!(!c.covers_additions());
        assert!(
            Certificate::new(DType::F32, 65_536, Executed { additions: 28, ..EXECUTED }).covers_additions()
        );
        let h = Certificate::new(DType::F16, 65_536, EXECUTED);
        assert_eq!((h.published_bound, h.output_rounding), (c.published_bound, 1.0 / 2048.0));
        assert_eq!(Certificate::new(DType::Bf16, 1, EXECUTED).output_rounding, 1.0 / 256.0);
    }

    #[test]
    fn one_line_and_a_full_buffer_is_an_error() {
        let c = Certificate::new(DType::Bf16, 900, EXECUTED);
        let mut line: heapless::String<1024> = heapless::String::new();
        c.write_json(&mut line).unwrap();
        assert!(!line.contains('\n') && line.starts_with('{') && line.ends_with('}'));
        let mut short: heapless::String<64> = heapless::String::new();
        assert!(c.write_json(&mut short).is_err());
    }
}
