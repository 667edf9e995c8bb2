//! The forms of a scan, and the error of a scan.

use core::fmt;

/// The result that a scan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The total only.
    Reduction,
    /// Every prefix that includes its own element.
    Inclusive,
    /// Every prefix that excludes its own element.
    Exclusive,
}

impl Form {
    /// All forms.
    pub const ALL: [Form; 3] = [Form::Reduction, Form::Inclusive, Form::Exclusive];

    /// Returns `reduction`, `inclusive` or `exclusive`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Form::Reduction => "reduction",
            Form::Inclusive => "inclusive",
            Form::Exclusive => "exclusive",
        }
    }
}

/// Error of a scan that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanError {
    /// The scratch is too short.
    Scratch {
        /// Number of elements of the scratch.
        found: usize,
        /// The required number of elements.
        needed: usize,
    },
    /// The algorithm does not have this form.
    Form {
        /// Name of the algorithm.
        scan: &'static str,
        /// The requested form.
        form: Form,
    },
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ScanError::Scratch { found, needed } => {
                write!(f, "scratch: {found} elements; allowed: at least {needed}")
            }
            ScanError::Form { scan, form } => {
                write!(f, "form: {} of {scan}; allowed: those that it has", form.name())
            }
        }
    }
}

impl core::error::Error for ScanError {}
