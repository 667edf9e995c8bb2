//! Verdicts on outputs.

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::fmt;

/// Style of a good result on a terminal.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Style of a bad result on a terminal.
pub const BAD: Style = AnsiColor::Red.on_default();
/// Style of a result that says nothing, on a terminal.
pub const UNCLEAR: Style = AnsiColor::Yellow.on_default();

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

impl Verdict {
    /// Returns the style of the verdict on a terminal.
    #[must_use]
    pub const fn style(self) -> Style {
        match self {
            Verdict::Pass => GOOD.bold(),
            Verdict::Fail => BAD.bold(),
            Verdict::NoClaim => UNCLEAR.bold(),
        }
    }
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
