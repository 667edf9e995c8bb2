//! The forms of a scan: reduction, inclusive and exclusive.

/// The result that a scan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The total only.
    Reduction,
    /// The prefix that ends with each element.
    Inclusive,
    /// The prefix that ends before each element.
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
