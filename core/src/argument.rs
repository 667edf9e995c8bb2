//! Errors about arguments, shared by all operators.

use core::fmt;

/// Why a problem, or the data bound to it, is refused. Each names the argument, what was found and what is
/// allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ArgumentError {
    /// A tensor of a rank that its layout does not have.
    Rank {
        /** The tensor. */
        argument: &'static str,
        /** Its rank. */
        found: usize,
        /** Ranks that are allowed. */
        allowed: &'static str,
    },
    /// A tensor whose rows are not contiguous.
    DimStride {
        /** The tensor. */
        argument: &'static str,
        /** The stride of its last axis in elements. */
        found: usize,
    },
    /// A tensor whose elements cannot be indexed.
    TooLarge {
        /** The tensor. */
        argument: &'static str,
        /** `[batch, heads, tokens, dim]`. */
        shape: [usize; 4],
    },
    /// Layout `bnc` without a number of heads.
    HeadsMissing {
        /** The tensor. */
        argument: &'static str,
    },
    /// A last axis that the heads do not divide.
    HeadsDoNotDivide {
        /** The tensor. */
        argument: &'static str,
        /** Its last axis. */
        width: usize,
        /** Heads given. */
        heads: usize,
    },
    /// Query heads that the key heads do not divide.
    Groups {
        /** Query heads. */
        heads: usize,
        /** Key heads. */
        kv_heads: usize,
    },
    /// An axis that must have at least one element.
    Zero {
        /** The tensor. */
        argument: &'static str,
        /** The axis. */
        axis: &'static str,
    },
    /// An axis that must equal another tensor's.
    Mismatch {
        /** The tensor. */
        argument: &'static str,
        /** The axis. */
        axis: &'static str,
        /** Its size. */
        found: usize,
        /** The size that is allowed. */
        allowed: usize,
        /** Where that size comes from. */
        of: &'static str,
    },
    /// A number that must be finite, or within bounds.
    Number {
        /** The argument. */
        argument: &'static str,
        /** Its value. */
        found: f32,
        /** What is allowed. */
        allowed: &'static str,
    },
    /// A mask that does not broadcast.
    MaskShape {
        /** The axis from the left of `[batch, heads, q, k]`. */
        axis: &'static str,
        /** Its size. */
        found: usize,
        /** The size besides one. */
        allowed: usize,
    },
    /// An entry of a list of lengths that is out of bounds.
    Length {
        /** The list. */
        argument: &'static str,
        /** The entry. */
        index: usize,
        /** Its value. */
        found: i64,
        /** Least. */
        min: i64,
        /** Greatest. */
        max: i64,
    },
    /// Two arguments that exclude each other.
    Conflict {
        /** The argument. */
        argument: &'static str,
        /** The other. */
        other: &'static str,
    },
    /// An argument that another one needs.
    Needs {
        /** The argument. */
        argument: &'static str,
        /** What it needs. */
        other: &'static str,
    },
    /// Data of another type than the problem's.
    Type {
        /** The tensor. */
        argument: &'static str,
        /** Its type. */
        found: &'static str,
        /** The problem's. */
        allowed: &'static str,
    },
    /// A buffer that is too short for its view.
    Short {
        /** The tensor. */
        argument: &'static str,
        /** Its elements. */
        found: usize,
        /** Elements needed. */
        needed: usize,
    },
    /// A tensor that is written whose rows overlap.
    Overlap {
        /** The tensor. */
        argument: &'static str,
    },
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ArgumentError as E;
        match *self {
            E::Rank { argument, found, allowed } => write!(f, "{argument}: rank {found}; allowed: {allowed}"),
            E::DimStride { argument, found } => {
                write!(f, "{argument}: stride {found} along the head size; allowed: 1")
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
                write!(f, "k: {kv_heads} heads for {heads} query heads; allowed: a divisor of {heads}")
            }
            E::Zero { argument, axis } => write!(f, "{argument}: {axis} 0; allowed: at least 1"),
            E::Mismatch { argument, axis, found, allowed, of } => {
                write!(f, "{argument}: {axis} {found}; allowed: {allowed}, as {of} has")
            }
            E::Number { argument, found, allowed } => write!(f, "{argument}: {found}; allowed: {allowed}"),
            E::MaskShape { axis, found, allowed } if axis == "keys" => {
                write!(f, "mask: {found} {axis}; allowed: at most {allowed}")
            }
            E::MaskShape { axis, found, allowed } => {
                write!(f, "mask: {axis} {found}; allowed: 1 or {allowed}")
            }
            E::Length { argument, index, found, min, max } => {
                write!(f, "{argument}: entry {index} is {found}; allowed: {min} to {max}")
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
        }
    }
}

impl core::error::Error for ArgumentError {}
