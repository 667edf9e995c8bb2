//! Errors about arguments, shared by all operators.

use core::fmt;

/// Error in a problem or in the data bound to it. Every message names the argument, the value found and the allowed
/// values. Arguments are named after the fields of the C interface.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ArgumentError {
    /// The rank of a tensor does not match its layout.
    Rank {
        /// Name of the tensor.
        argument: &'static str,
        /// Rank of the tensor.
        found: usize,
        /// The allowed ranks.
        allowed: &'static str,
    },
    /// The last axis of a tensor is not contiguous.
    DimStride {
        /// Name of the tensor.
        argument: &'static str,
        /// Stride of its last axis, in elements.
        found: usize,
    },
    /// A tensor is too large to index.
    TooLarge {
        /// Name of the tensor.
        argument: &'static str,
        /// Shape of the tensor, `[batch, heads, tokens, dim]`.
        shape: [usize; 4],
    },
    /// Layout `bnc` requires the number of heads, which is missing.
    HeadsMissing {
        /// Name of the tensor.
        argument: &'static str,
    },
    /// The number of heads does not divide the last axis.
    HeadsDoNotDivide {
        /// Name of the tensor.
        argument: &'static str,
        /// Size of its last axis.
        width: usize,
        /// The requested number of heads.
        heads: usize,
    },
    /// The number of key heads does not divide the number of query heads.
    Groups {
        /// Number of query heads.
        heads: usize,
        /// Number of key heads.
        kv_heads: usize,
    },
    /// An axis that must not be empty is empty.
    Zero {
        /// Name of the tensor.
        argument: &'static str,
        /// Name of the axis.
        axis: &'static str,
    },
    /// The size of an axis differs from the size that another argument determines.
    Mismatch {
        /// Name of the tensor.
        argument: &'static str,
        /// Name of the axis.
        axis: &'static str,
        /// Size of the axis.
        found: usize,
        /// The required size.
        allowed: usize,
        /// The argument that determines the required size.
        of: &'static str,
    },
    /// The value of an argument is NaN, infinite, or outside its allowed range.
    Number {
        /// Name of the argument.
        argument: &'static str,
        /// Value of the argument.
        found: f32,
        /// The allowed values, in words.
        allowed: &'static str,
    },
    /// A mask or bias does not broadcast to `[batch, heads, queries, keys]`.
    MaskShape {
        /// Name of the argument.
        argument: &'static str,
        /// Name of the mismatched axis: one of batch, heads, queries and keys.
        axis: &'static str,
        /// Size of the axis.
        found: usize,
        /// The allowed size, in addition to 1. On the batch axis, every divisor of this size is also allowed.
        allowed: usize,
        /// `true` if smaller sizes are allowed as well.
        smaller: bool,
    },
    /// The size of an axis is not a multiple of the size that another argument determines.
    Multiple {
        /// Name of the argument.
        argument: &'static str,
        /// Name of the axis.
        axis: &'static str,
        /// Size of the axis.
        found: usize,
        /// Required divisor of the size.
        allowed: usize,
        /// The argument that determines `allowed`.
        of: &'static str,
    },
    /// An entry of a list of lengths is outside its allowed range.
    Length {
        /// Name of the list.
        argument: &'static str,
        /// Index of the entry.
        index: usize,
        /// Value of the entry.
        found: i64,
        /// The smallest allowed value.
        min: i64,
        /// The largest allowed value.
        max: i64,
    },
    /// A row of an array of states contains a value that no run can produce.
    State {
        /// Name of the array.
        argument: &'static str,
        /// Index of the row, counted over all batches and heads.
        row: usize,
        /// The invalid number.
        found: f32,
        /// The allowed numbers, in words.
        allowed: &'static str,
    },
    /// A count is outside its allowed range.
    Count {
        /// Name of the argument.
        argument: &'static str,
        /// Value of the count.
        found: usize,
        /// The smallest allowed value.
        min: usize,
        /// The largest allowed value.
        max: usize,
    },
    /// A call would write nothing: neither the output nor log-sum-exp nor states.
    NoOutput {
        /// Name of the missing output.
        argument: &'static str,
    },
    /// Two arguments exclude each other.
    Conflict {
        /// Name of the argument.
        argument: &'static str,
        /// Name of the other argument.
        other: &'static str,
    },
    /// An argument was given without another argument that it requires.
    Needs {
        /// Name of the argument.
        argument: &'static str,
        /// The missing argument.
        other: &'static str,
    },
    /// The element type of a tensor's data differs from the type that the problem declares for the tensor.
    Type {
        /// Name of the tensor.
        argument: &'static str,
        /// Type of the tensor.
        found: &'static str,
        /// The type that the problem declares.
        allowed: &'static str,
    },
    /// A buffer is too short for its view.
    Short {
        /// Name of the tensor.
        argument: &'static str,
        /// Number of elements in the buffer.
        found: usize,
        /// Number of elements required.
        needed: usize,
    },
    /// Rows of an output tensor overlap.
    Overlap {
        /// Name of the tensor.
        argument: &'static str,
    },
    /// The requested form of a scan is not implemented.
    Form {
        /// Name of the scan.
        scan: &'static str,
        /// Name of the requested form.
        form: &'static str,
    },
}

impl ArgumentError {
    /// Returns this error with `name` applied to every argument name in it. Interfaces whose argument names differ from
    /// those of the C interface use this function.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(&'static str) -> &'static str) -> ArgumentError {
        use ArgumentError as E;
        match &mut self {
            E::Rank { argument, .. }
            | E::DimStride { argument, .. }
            | E::TooLarge { argument, .. }
            | E::HeadsMissing { argument }
            | E::HeadsDoNotDivide { argument, .. }
            | E::Zero { argument, .. }
            | E::Number { argument, .. }
            | E::Length { argument, .. }
            | E::State { argument, .. }
            | E::Count { argument, .. }
            | E::NoOutput { argument }
            | E::Type { argument, .. }
            | E::Short { argument, .. }
            | E::MaskShape { argument, .. }
            | E::Overlap { argument } => *argument = name(argument),
            E::Mismatch { argument, of: other, .. }
            | E::Multiple { argument, of: other, .. }
            | E::Conflict { argument, other }
            | E::Needs { argument, other } => (*argument, *other) = (name(argument), name(other)),
            E::Groups { .. } | E::Form { .. } => {}
        }
        self
    }
}

/// Returns an error if a size differs from the size that another argument determines.
pub(crate) fn same(
    argument: &'static str,
    axis: &'static str,
    found: usize,
    allowed: usize,
    of: &'static str,
) -> Result<(), ArgumentError> {
    if found == allowed {
        Ok(())
    } else {
        Err(ArgumentError::Mismatch { argument, axis, found, allowed, of })
    }
}

/// Returns an error if a buffer has fewer elements than its shape needs.
pub(crate) fn enough(argument: &'static str, found: usize, needed: usize) -> Result<(), ArgumentError> {
    if found < needed { Err(ArgumentError::Short { argument, found, needed }) } else { Ok(()) }
}

/// Last words of the error messages of [`paired`] about an input. The first text is used if the call lacks the input,
/// and the second if the problem lacks it.
pub(crate) const INPUT: [&str; 2] = ["its data", "its shape in the problem"];
/// Like [`INPUT`], for an output.
pub(crate) const OUTPUT: [&str; 2] = ["its buffer", "its shape in the problem"];
/// Like [`INPUT`], for a list of lengths or of table entries.
pub(crate) const LIST: [&str; 2] = ["its data", "its mention in the problem"];

/// Returns the declaration of an argument in a problem together with the data that a call supplies for the argument; `None`
/// if neither has the argument. If only one of the two has it, returns an error that ends with one of the texts in
/// `missing`.
pub(crate) fn paired<A, B>(
    argument: &'static str,
    declared: Option<A>,
    supplied: Option<B>,
    missing: [&'static str; 2],
) -> Result<Option<(A, B)>, ArgumentError> {
    match (declared, supplied) {
        (Some(declared), Some(supplied)) => Ok(Some((declared, supplied))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ArgumentError::Needs { argument, other: missing[0] }),
        (None, Some(_)) => Err(ArgumentError::Needs { argument, other: missing[1] }),
    }
}

/// Checks that the data of a tensor have the declared type and enough elements, or that neither the problem nor the
/// call has the tensor.
pub(crate) fn covers(
    argument: &'static str,
    declared: Option<(&'static str, usize)>,
    supplied: Option<(&'static str, usize)>,
    missing: [&'static str; 2],
) -> Result<(), ArgumentError> {
    match paired(argument, declared, supplied, missing)? {
        Some(((allowed, _), (found, _))) if found != allowed => {
            Err(ArgumentError::Type { argument, found, allowed })
        }
        Some(((_, needed), (_, found))) => enough(argument, found, needed),
        None => Ok(()),
    }
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ArgumentError as E;
        match *self {
            E::Rank { argument, found, allowed } => write!(f, "{argument}: rank {found}; allowed: {allowed}"),
            E::DimStride { argument, found } => {
                write!(
                    f,
                    "{argument}: stride {found} along the head size; allowed: 1; copy the tensor to make it dense"
                )
            }
            E::TooLarge { argument, shape: [b, h, n, d] } => {
                write!(
                    f,
                    "{argument}: shape [{b}, {h}, {n}, {d}] cannot be indexed; allowed: at most {} elements",
                    isize::MAX / 4
                )
            }
            E::HeadsMissing { argument } => {
                write!(
                    f,
                    "{argument}: layout bnc without a number of heads; allowed: a number that divides the last axis"
                )
            }
            E::HeadsDoNotDivide { argument, width, heads } => {
                write!(f, "{argument}: last axis {width} with {heads} heads; allowed: heads that divide it")
            }
            E::Groups { heads, kv_heads } => {
                let divisor = if heads == 0 { "" } else { "a divisor of " };
                write!(f, "k: {kv_heads} heads for {heads} query heads; allowed: {divisor}{heads}")
            }
            E::Zero { argument, axis } => write!(f, "{argument}: {axis} 0; allowed: at least 1"),
            E::Mismatch { argument, axis, found, allowed, of } => {
                write!(f, "{argument}: {axis} {found}; allowed: {allowed}, as {of} has")
            }
            // In decimal notation, a number this large or this small would consist mostly of zeros.
            E::Number { argument, found, allowed }
                if found.is_finite() && found != 0.0 && !(1e-4..1e16).contains(&found.abs()) =>
            {
                write!(f, "{argument}: {found:e}; allowed: {allowed}")
            }
            E::Number { argument, found, allowed } => write!(f, "{argument}: {found}; allowed: {allowed}"),
            E::MaskShape { argument, axis, found, allowed, smaller: true } => {
                write!(f, "{argument}: {axis} {found}; allowed: at most {allowed}")
            }
            E::MaskShape { argument, axis, found, allowed, .. } => match axis {
                "batch" => write!(f, "{argument}: {axis} {found}; allowed: a divisor of {allowed}"),
                _ => write!(f, "{argument}: {axis} {found}; allowed: 1 or {allowed}"),
            },
            E::Multiple { argument, axis, found, allowed, of } => {
                write!(f, "{argument}: {axis} {found}; allowed: a multiple of {allowed}, as {of} has")
            }
            E::Length { argument, index, found, min, max } => {
                write!(f, "{argument}: entry {index} is {found}; allowed: {min} to {max}")
            }
            E::State { argument, row, found, allowed } => {
                write!(f, "{argument}: row {row} holds {found}; allowed: {allowed}")
            }
            E::Count { argument, found, min, max } => {
                write!(f, "{argument}: {found}; allowed: {min} to {max}")
            }
            E::NoOutput { argument } => {
                write!(f, "{argument}: absent; allowed: an output, log-sum-exp, states, or several of them")
            }
            E::Conflict { argument, other } => {
                write!(f, "{argument}: given with {other}; allowed: one of the two")
            }
            E::Needs { argument, other } => {
                write!(f, "{argument}: given without {other}; allowed: both or neither")
            }
            E::Type { argument, found, allowed } => write!(f, "{argument}: type {found}; allowed: {allowed}"),
            E::Short { argument, found, needed } => {
                write!(f, "{argument}: {found} elements; allowed: at least {needed}")
            }
            E::Overlap { argument } => {
                write!(f, "{argument}: strides make rows overlap; allowed: rows that share no element")
            }
            E::Form { scan, form } => write!(f, "form: {form} of {scan}; allowed: those that it has"),
        }
    }
}

impl core::error::Error for ArgumentError {}
