//! The forms of a scan: reduction, inclusive and exclusive.

/// The result that a scan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanForm {
    /// The total only.
    Reduction,
    /// The prefix that ends with each element.
    Inclusive,
    /// The prefix that ends before each element.
    Exclusive,
}

impl ScanForm {
    /// All forms.
    pub const ALL: [ScanForm; 3] = [ScanForm::Reduction, ScanForm::Inclusive, ScanForm::Exclusive];

    /// Returns `reduction`, `inclusive` or `exclusive`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ScanForm::Reduction => "reduction",
            ScanForm::Inclusive => "inclusive",
            ScanForm::Exclusive => "exclusive",
        }
    }
}
