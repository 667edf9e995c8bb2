//! The macro that wraps generic functions for one instruction set.
//!
//! A target feature can only be set on a function that is not generic, and applies to everything inlined into it.
//! Every generic function that is called through a table is therefore wrapped once per instruction set.

/// Declares functions with target features. Each wraps a generic function whose first argument is the token of the
/// instruction set.
macro_rules! entry_points {
    ($features:tt, $isa:ty, $(fn $name:ident($($argument:ident: $type:ty),*) = $generic:expr;)+) => {
        $($crate::entry::entry_point!($features, $isa, $name($($argument: $type),*), $generic);)+
    };
}

/// Defines one function of [`entry_points`].
macro_rules! entry_point {
    ([$($features:literal)?], $isa:ty, $name:ident($($argument:ident: $type:ty),*), $generic:expr) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name($($argument: $type),*) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { $generic(<$isa>::assume(), $($argument),*) }
        }
    };
}

pub(crate) use {entry_point, entry_points};
