//! Verdicts on outputs.

use serde::Serialize;
use std::fmt;

/// Verdict on an output that was compared with exact attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Rounding explains every difference from the exact output, and the error bound is small enough to be meaningful.
    #[serde(rename = "PASS")]
    Pass,
    /// Rounding does not explain the differences: the output is wrong.
    #[serde(rename = "FAIL")]
    Fail,
    /// No claim is possible: rounding may change the output by as much as the magnitude of the output itself.
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
