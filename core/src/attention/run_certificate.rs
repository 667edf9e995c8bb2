//! The certificate of a run that measured its tensors: a rigorous bound of the error of its output, as plain data.
//!
//! ```text
//! |ŷ_c − y_c| ≤ relative · Σ_j p_j |v_jc| + (lost weights and underflow)        for every row and channel c
//! ```
//!
//! `ŷ` is the computed output, `y` the exact output for the same inputs, `p_j` the exact probabilities. The bound is
//! [`Arithmetic::prior`] for the arithmetic of the plan and the norms of this call. Since `Σ_j p_j |v_jc|` is at most the
//! largest magnitude of channel `c`, the bound is also known in absolute terms ([`RunCertificate::absolute`]).
//!
//! If a run skipped keys, `absolute` also includes the error of skipping them. It is at most `2 σ max_j |v_jc|`
//! ([`left_out`]), because two values differ by at most twice the largest magnitude. `σ` is the largest share of
//! weights that any row skipped.
//!
//! If a tensor contains a NaN or an infinity, or if the bound is infinite or at least one, [`RunCertificate::claim`]
//! returns a [`NoClaim`] instead of a bound.

use super::bound::{Arithmetic, Norms, Prior, left_out};
use super::certificate::Certificate;
use super::measured::{Flags, Measured};
use super::problem::Problem;
use super::scalar;
use super::traversal::{Schedule, Shares, Skip, TraversalReport};
use core::fmt;

/// Reason why a certificate claims nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoClaim {
    /// A tensor of the call contains a NaN or an infinity.
    NotFinite {
        /// The flag that reports the NaN or infinity.
        flag: Flags,
        /// Name of the flag.
        name: &'static str,
    },
    /// The bound is infinite or at least one: the scores may be too large for the arithmetic of the run.
    Unbounded,
    /// The values are so large that a sum may overflow.
    Values,
}

impl fmt::Display for NoClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoClaim::NotFinite { name, .. } => {
                write!(f, "{name}: found among the elements measured; allowed: finite numbers")
            }
            NoClaim::Unbounded => f.write_str(
                "bound: the scores of the call may be so large that rounding could change the answer entirely; allowed: \
                 smaller queries, keys, masks or biases",
            ),
            NoClaim::Values => f.write_str(
                "values: so large that a weighted sum may overflow; allowed: keys * 2^8 * max |v| below 3.4e38",
            ),
        }
    }
}

impl core::error::Error for NoClaim {}

/// The certificate of a run that measured its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunCertificate<'a> {
    /// The kernel, the structure that the run executed, and the published bound.
    pub certificate: Certificate,
    /// Measurements of the tensors.
    pub measured: Measured,
    /// The bound. [`RunCertificate::claim`] checks that it is meaningful.
    pub prior: Prior,
    /// The schedule of the run, and the shares of the weights that its rows skipped; `None` for the exact schedule.
    pub left_out: Option<(Schedule, Shares)>,
    /// Number of pairs of a query tile and a key block that were skipped before any of their products was computed. If this
    /// number is not zero, the log-sum-exp of a row is only an upper bound. It is too large by at most
    /// `−ln(1 − D / (S + D))`, where `D / (S + D)` is the share of the weights that the row skipped.
    pub unseen_blocks: u64,
    /// The largest magnitude of the attended values in each channel.
    channels: &'a [f32],
}

/// Largest share of the weights that a run may skip. If it skips more, the sum of the remaining weights may be below
/// `2^-24` relative to the reference, and the bound is meaningless.
const MOST_LEFT_OUT: f64 = 1.0 - 1.0 / 16_384.0;

impl<'a> RunCertificate<'a> {
    /// Creates the certificate of a run of `problem`. `certificate` has the structure that the run executed.
    #[must_use]
    pub fn new(
        problem: &Problem,
        certificate: Certificate,
        measured: Measured,
        channels: &'a [f32],
    ) -> RunCertificate<'a> {
        let norms = Norms { query: measured.query, key: measured.key, bias: measured.added };
        let prior = Arithmetic::of(problem, certificate.executed).prior(problem.keys(), &norms);
        RunCertificate { certificate, measured, prior, left_out: None, unseen_blocks: 0, channels }
    }

    /// Extends the certificate to a run with `schedule`. `report` has the counts of the run, and `shares` the shares of
    /// the weights that its rows skipped.
    #[must_use]
    pub fn traversed(
        self,
        problem: &Problem,
        schedule: &Schedule,
        report: &TraversalReport,
        shares: &Shares,
    ) -> RunCertificate<'a> {
        let norms = Norms { query: self.measured.query, key: self.measured.key, bias: self.measured.added };
        let of = |executed| Arithmetic::of(problem, executed);
        let mut prior = of(self.certificate.executed).prior_frozen(problem.keys(), &norms).wider(&self.prior);
        if report.gated > 0 {
            prior = prior.wider(&of(self.certificate.executed).prior_near_zero(problem.keys(), &norms));
        }
        if report.recomputed > 0 {
            prior = prior.wider(&of(scalar::executed(problem)).prior(problem.keys(), &norms));
        }
        let few = shares.worst <= MOST_LEFT_OUT;
        if !few {
            prior.relative = f64::INFINITY;
        }
        RunCertificate {
            prior,
            left_out: Some((*schedule, *shares)),
            unseen_blocks: report.unseen_blocks,
            ..self
        }
    }

    /// Returns the error bound of an output element. `value` is the largest magnitude of the values in the element's
    /// channel.
    fn bound_of(&self, prior: &Prior, value: f64) -> f64 {
        let share = self.left_out.map_or(0.0, |(_, shares)| shares.worst);
        prior.absolute(value) + left_out(share, 2.0 * value)
    }

    /// Returns the bound if it is meaningful.
    ///
    /// # Errors
    /// Returns the reason if the bound is not meaningful.
    pub fn claim(&self) -> Result<&Prior, NoClaim> {
        if let Some((flag, name)) = self.measured.flags.not_finite() {
            return Err(NoClaim::NotFinite { flag, name });
        }
        if !self.prior.claims() {
            return Err(NoClaim::Unbounded);
        }
        if self.prior.absolute(self.measured.value).is_finite() {
            Ok(&self.prior)
        } else {
            Err(NoClaim::Values)
        }
    }

    /// Returns the largest magnitude of the attended values in each channel.
    #[must_use]
    pub const fn channels(&self) -> &'a [f32] {
        self.channels
    }

    /// Returns an upper bound of the error of every element of channel `channel`, or `None` if there is no claim or no such
    /// channel.
    #[must_use]
    pub fn absolute(&self, channel: usize) -> Option<f64> {
        let value = self.channels.get(channel)?;
        Some(self.bound_of(self.claim().ok()?, f64::from(*value)))
    }

    /// Returns an upper bound of the error of every element of the output, or `None` if there is no claim.
    #[must_use]
    pub fn largest_absolute(&self) -> Option<f64> {
        Some(self.bound_of(self.claim().ok()?, self.measured.value))
    }

    /// Writes the certificate as one line of JSON, without a line break:
    ///
    /// - `claim`: `"rigorous"` or `"none"`; with `"none"`, `why` gives the reason and the bounds are missing,
    /// - `relative_to`: `"sum_j p_j |v_j|"`, for each element,
    /// - `bound`, and `likely` for roundings of random sign, both relative to that sum; `absolute`, in units of the
    ///   values, for every element,
    /// - `kernel`, `keys`, and the measured norms,
    /// - `left_out`, for a run with an error budget or a schedule other than the exact one. It has the `schedule`,
    ///   `error_budget` and `lambda`; `worst`, `p99` and `mean` of the shares `D / (S + D)` of the weights that rows
    ///   skipped; and `unseen_blocks`, the number of blocks that were skipped before any of their products was
    ///   computed. For these blocks `D` contains upper bounds. If the line has `left_out`, `bound` applies to the
    ///   average over the remaining keys, and `absolute` includes the skipped keys,
    /// - `flags`: the names of the flags that are set,
    /// - `published`: the object that [`Certificate::write_json`] writes.
    ///
    /// # Errors
    /// Returns the error of writing to `out`.
    pub fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        match self.claim() {
            Ok(prior) => {
                write!(out, r#"{{"claim":"rigorous","rigorous":true,"relative_to":"sum_j p_j |v_j|","#)?;
                write!(out, r#""bound":{:e},"likely":{:e},"#, prior.relative, prior.likely)?;
                write!(out, r#""absolute":{:e},"#, self.bound_of(prior, self.measured.value))?;
            }
            Err(why) => write!(out, r#"{{"claim":"none","rigorous":true,"why":"{why}","#)?,
        }
        write!(out, r#""kernel":"{}","keys":{},"#, self.certificate.executed.kernel, self.certificate.keys)?;
        let Measured { query, key, added, value, flags } = self.measured;
        for (name, x) in [("query_norm", query), ("key_norm", key), ("added", added), ("value", value)] {
            // JSON cannot represent NaN and infinities.
            match x.is_finite() {
                true => write!(out, r#""{name}":{x:e},"#)?,
                false => write!(out, r#""{name}":null,"#)?,
            }
        }
        if let Some((schedule, shares)) = &self.left_out {
            write!(out, r#""left_out":{{"schedule":"{}","#, schedule.name())?;
            match schedule.skip {
                Skip::Never => {}
                Skip::Budget(budget) => write!(out, r#""error_budget":{budget:e},"#)?,
                Skip::Blocks(lambda) | Skip::Rows(lambda) => write!(out, r#""lambda":{lambda:e},"#)?,
            }
            let Shares { worst, p99, mean } = *shares;
            write!(out, r#""worst":{worst:e},"p99":{p99:e},"mean":{mean:e},"#)?;
            write!(out, r#""unseen_blocks":{}}},"#, self.unseen_blocks)?;
        }
        out.write_str(r#""flags":["#)?;
        let set = Flags::ALL.iter().filter(|(flag, _)| flags.contains(*flag));
        for (i, (_, name)) in set.enumerate() {
            write!(out, r#"{}"{name}""#, if i == 0 { "" } else { "," })?;
        }
        out.write_str(r#"],"published":"#)?;
        self.certificate.write_json(out)?;
        out.write_str("}")
    }
}

impl fmt::Display for RunCertificate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_json(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::certificate::{Executed, Order};
    use crate::attention::measured::MEASURED;
    use crate::attention::problem::Spec;
    use crate::dtype::DType;
    use crate::view::{Layout, View};

    const EXECUTED: Executed = Executed {
        kernel: "some_kernel",
        block: 64,
        segment_blocks: 8,
        merge_depth: 1,
        additions: 70,
        into_s: 70,
        into_w: 70,
        chain: 64,
        chain_depth: 0,
        fused: true,
        exp2_relative: 1.7e-7,
        half_chain: 0,
        split: false,
        one_product: false,
        order: Order::ANY,
    };

    /// Returns the certificate of a record whose measurements are all 1, except that measurement `place` is `x`.
    fn with(place: usize, x: f32, channels: &[f32]) -> RunCertificate<'_> {
        let view = View::dense("x", Layout::Bhnd, &[900, 64], None).unwrap();
        let problem = Spec::new(DType::F32, view, view, view, view).check().unwrap();
        let mut record = [1.0; MEASURED];
        record[place] = x;
        let measured = Measured::of(&problem, &record, channels);
        RunCertificate::new(&problem, Certificate::new(DType::F32, 900, EXECUTED), measured, channels)
    }

    #[test]
    fn a_claim_has_numbers_for_every_channel() {
        let channels = [1.0, 0.0, 4.0];
        let certified = with(0, 1.0, &channels);
        let prior = *certified.claim().unwrap();
        assert!(prior.relative > 1e-7 && prior.relative < 1e-4 && prior.likely <= prior.relative);
        let [one, none, four] = [0, 1, 2].map(|channel| certified.absolute(channel).unwrap());
        assert!(one >= prior.relative && four >= 3.99 * one && none < 1e-30, "{one:e} {none:e} {four:e}");
        assert_eq!((certified.largest_absolute(), certified.absolute(3)), (Some(four), None));
        assert_eq!(certified.channels(), channels);
        // A larger norm requires a larger bound.
        let [longer, further] = [(0, 1e2), (4, 1e2)].map(|(place, x)| with(place, x, &channels).prior);
        assert!(longer.relative > prior.relative);
        assert!(further.relative > prior.relative);
    }

    #[test]
    fn nothing_is_claimed_where_nothing_is_known() {
        let channels = [1.0; 3];
        let not_finite = |certified: RunCertificate<'_>| match certified.claim() {
            Err(NoClaim::NotFinite { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(not_finite(with(1, f32::NAN, &channels)), "q_nan");
        assert_eq!(not_finite(with(3, f32::INFINITY, &channels)), "k_infinite");
        assert_eq!(not_finite(with(4, f32::INFINITY, &channels)), "mask_infinite");
        assert_eq!(not_finite(with(7, f32::NAN, &channels)), "out_nan");
        assert_eq!(not_finite(with(0, 1.0, &[1.0, f32::NAN])), "v_nan");
        assert_eq!(with(4, 1e30, &channels).claim(), Err(NoClaim::Unbounded));
        assert_eq!(with(0, 1.0, &[f32::MAX]).claim(), Err(NoClaim::Values));
        for certified in [with(1, f32::NAN, &channels), with(4, 1e30, &channels), with(0, 1.0, &[f32::MAX])] {
            assert_eq!((certified.absolute(0), certified.largest_absolute()), (None, None));
            let mut line: heapless::String<2048> = heapless::String::new();
            certified.write_json(&mut line).unwrap();
            assert!(line.starts_with(r#"{"claim":"none","#) && line.contains(r#""why":""#), "{line}");
            for number in ["\"bound\"", "\"likely\"", "\"absolute\"", "NaN", "inf,"] {
                assert!(!line.contains(number), "{line}");
            }
        }
    }
}
