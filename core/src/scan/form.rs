//! The forms of a scan, and why one is refused.

use core::fmt;

/// What a scan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The total alone.
    Reduction,
    /// Every prefix up to and with its own element.
    Inclusive,
    /// Every prefix before its own element.
    Exclusive,
}

impl Form {
    /// All forms.
    pub const ALL: [Form; 3] = [Form::Reduction, Form::Inclusive, Form::Exclusive];

    /// `reduction`, `inclusive` or `exclusive`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Form::Reduction => "reduction",
            Form::Inclusive => "inclusive",
            Form::Exclusive => "exclusive",
        }
    }
}

/// Why a scan is refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanError {
    /// A scratch that is too short.
    Scratch {
        /// Its elements.
        found: usize,
        /// Elements needed.
        needed: usize,
    },
    /// A form that the algorithm does not have.
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
