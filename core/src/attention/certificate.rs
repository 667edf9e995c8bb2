//! What a finished run may claim about its error. Plain data.
//!
//! The claim of this certificate is the published one, ELSA Theorem 1:
//!
//! ```text
//! ‖ŷ − y‖₂ / ‖y‖₂ ≤ u L(n, B) + O(u²)        u = 2^-24
//! ```
//!
//! It is printed as what it is and not as a bound that holds:
//!
//! 1. It is relative to `‖y‖`. Where values cancel, `‖y‖` is small and the error is not.
//! 2. It leaves out the rounding of the scores, which grows with the head size and with the size of the
//!    scores.
//! 3. It counts merges, one unit each. Additions inside a leaf of the merge tree are not among them, so the
//!    longest path that was executed is given beside it.
//! 4. It speaks of single precision. An output in half precision is rounded once more, by at most that
//!    type's own unit roundoff.
//!
//! The rigorous bound has its own room, [`super::bound`].

use crate::dtype::DType;
use crate::scan::elsa_depth;
use core::fmt;

/// The structure that a run executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Keys of a block, `B` of the published depth.
    pub block: usize,
    /// Blocks whose keys fold into one state before states merge.
    pub segment_blocks: usize,
    /// Merges of states on the longest path through the merge tree.
    pub merge_depth: usize,
    /// Additions on the longest path from a key to the output, those of the merges included.
    pub additions: usize,
    /// Longest chain of products in a score that is summed in halves; zero where all are summed in singles.
    pub half_chain: usize,
}

/// The published claim for a run, beside what was executed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Certificate {
    /// Type of the output. Accumulation is in f32 whatever it is.
    pub dtype: DType,
    /// The most keys that a row may attend, `n` of the published depth.
    pub keys: usize,
    /// What was executed.
    pub executed: Executed,
    /// `L(n, B)`, ELSA equation 6.
    pub published_depth: usize,
    /// `u L(n, B)` with the unit roundoff of f32, ELSA equation 7 without its second-order term. Relative to
    /// `‖y‖₂`.
    pub published_bound: f64,
    /// What rounding the output to half precision adds, relative to each element: the type's unit roundoff,
    /// zero for f32.
    pub output_rounding: f64,
}

impl Certificate {
    /// The certificate of a run over at most `keys` keys a row with an output of type `dtype`.
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

    /// Whether the published depth is at least the additions that were executed on the longest path. Where it
    /// is not, the published value counts fewer roundings than there were.
    #[must_use]
    pub const fn covers_additions(&self) -> bool {
        self.published_depth >= self.executed.additions
    }

    /// Writes the certificate as one line of JSON, without a line break. Numbers are numbers of JSON, and the
    /// fields are those of [`Certificate`] and [`Executed`], besides
    ///
    /// - `claim`: `"published"`, for ELSA Theorem 1,
    /// - `rigorous`: `false`,
    /// - `relative_to`: `"norm2(y)"`,
    /// - `leaves_out`: what the claim does not cover,
    /// - `unit_roundoff`: that of f32,
    /// - `covers_additions`: [`Certificate::covers_additions`].
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let Executed { block, segment_blocks, merge_depth, additions, half_chain } = self.executed;
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
        write!(out, r#""merge_depth":{merge_depth},"additions":{additions},"half_chain":{half_chain}}},"#)?;
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

    const EXECUTED: Executed =
        Executed { block: 128, segment_blocks: 4, merge_depth: 7, additions: 519, half_chain: 0 };

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
