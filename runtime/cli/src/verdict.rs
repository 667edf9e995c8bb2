//! Verdicts on answers.

use serde::Serialize;
use std::fmt;

/// Verdict on an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Rounding explains every difference from the exact answer, and its bound says something.
    #[serde(rename = "PASS")]
    Pass,
    /// Rounding does not explain the answer: it is wrong.
    #[serde(rename = "FAIL")]
    Fail,
    /// No claim: rounding may change the answer by as much as its own size.
    #[default]
    #[serde(rename = "NO CLAIM")]
    NoClaim,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Pass => "PASS",
            Verdict::Fail => "FAIL",
            Verdict::NoClaim => "NO CLAIM",
        })
    }
}
