//! The certificate of a run that measured its tensors: a rigorous bound of the error of its answer, as plain data.
//!
//! ```text
//! |ŷ_c − y_c| ≤ relative · Σ_j p_j |v_jc| + (what lost weights and underflow can do)        for every row and channel c
//! ```
//!
//! `ŷ` is the output as it was computed, `y` the exact answer for the same inputs, `p_j` the exact probabilities. The bound
//! is [`Arithmetic::prior`] for the plan's own arithmetic and the norms of this call. Since `Σ_j p_j |v_jc|` is at most the
//! largest magnitude of channel `c`, the bound is also known in absolute terms ([`Certified::absolute`]).
//!
//! Where nothing can be said, nothing is: a tensor that is not finite, or a bound that is infinite or one or more, yields
//! [`NoClaim`] and no number.

use super::bound::{Arithmetic, Norms, Prior};
use super::certificate::Certificate;
use super::measured::{Flags, Measured};
use super::problem::Problem;
use core::fmt;

/// Why a certificate claims nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoClaim {
    /// A tensor of the call holds a NaN or an infinity.
    NotFinite {
        /// The flag that says which.
        flag: Flags,
        /// Its name.
        name: &'static str,
    },
    /// The bound is infinite, or at least one: the scores of the call may be too large for its arithmetic.
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
pub struct Certified<'a> {
    /// The plan's identity and structure, and the published bound.
    pub certificate: Certificate,
    /// What was measured.
    pub measured: Measured,
    /// The bound; see [`Certified::claim`] for whether it says anything.
    pub prior: Prior,
    /// The largest magnitude of each channel of the attended values.
    channels: &'a [f32],
}

impl<'a> Certified<'a> {
    /// The certificate of a run of `problem` that executed what `certificate` says.
    #[must_use]
    pub fn new(
        problem: &Problem,
        certificate: Certificate,
        measured: Measured,
        channels: &'a [f32],
    ) -> Certified<'a> {
        let norms = Norms { query: measured.query, key: measured.key, bias: measured.added };
        let prior = Arithmetic::of(problem, certificate.executed).prior(problem.keys(), &norms);
        Certified { certificate, measured, prior, channels }
    }

    /// The bound, if it says anything.
    ///
    /// # Errors
    /// Returns why there is no claim.
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

    /// The largest magnitude of each channel of the attended values.
    #[must_use]
    pub const fn channels(&self) -> &'a [f32] {
        self.channels
    }

    /// An upper bound of the error of every element of channel `channel`, or `None` if there is no claim or no such
    /// channel.
    #[must_use]
    pub fn absolute(&self, channel: usize) -> Option<f64> {
        let value = self.channels.get(channel)?;
        Some(self.claim().ok()?.absolute(f64::from(*value)))
    }

    /// An upper bound of the error of every element of the output, or `None` if there is no claim.
    #[must_use]
    pub fn largest_absolute(&self) -> Option<f64> {
        Some(self.claim().ok()?.absolute(self.measured.value))
    }

    /// Writes the certificate as one line of JSON, without a line break:
    ///
    /// - `claim`: `"rigorous"`, or `"none"`; then `why` says why, and there are no bounds,
    /// - `relative_to`: `"sum_j p_j |v_j|"`, of each element,
    /// - `bound`, and `likely` for roundings of random sign, relative to that; `absolute`, in units of the values, for every
    ///   element,
    /// - `kernel`, `keys`, and the measured norms,
    /// - `flags`: the names of those that are set,
    /// - `published`: the object that [`Certificate::write_json`] writes.
    ///
    /// # Errors
    /// Returns an error if `out` does.
    pub fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        match self.claim() {
            Ok(prior) => {
                write!(out, r#"{{"claim":"rigorous","rigorous":true,"relative_to":"sum_j p_j |v_j|","#)?;
                write!(out, r#""bound":{:e},"likely":{:e},"#, prior.relative, prior.likely)?;
                write!(out, r#""absolute":{:e},"#, prior.absolute(self.measured.value))?;
            }
            Err(why) => write!(out, r#"{{"claim":"none","rigorous":true,"why":"{why}","#)?,
        }
        write!(out, r#""kernel":"{}","keys":{},"#, self.certificate.executed.kernel, self.certificate.keys)?;
        let Measured { query, key, added, value, flags } = self.measured;
        for (name, x) in [("query_norm", query), ("key_norm", key), ("added", added), ("value", value)] {
            // JSON has no number that is not finite.
            match x.is_finite() {
                true => write!(out, r#""{name}":{x:e},"#)?,
                false => write!(out, r#""{name}":null,"#)?,
            }
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

impl fmt::Display for Certified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_json(f)
    }
}
