//! The macros that instantiate the generic code for one instruction set.
//!
//! A target feature can only be set on a function that is not generic, and reaches what is inlined into it. So every
//! generic function that is called through a table is wrapped once for each instruction set.

/// Declares functions with target features, each around a generic function that takes the token first.
macro_rules! entry_points {
    ($features:tt, $isa:ty, $(fn $name:ident($($argument:ident: $type:ty),*) = $generic:expr;)+) => {
        $($crate::instance::entry_point!($features, $isa, $name($($argument: $type),*), $generic);)+
    };
}

/// One of [`entry_points`].
macro_rules! entry_point {
    ([$($features:literal)?], $isa:ty, $name:ident($($argument:ident: $type:ty),*), $generic:expr) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name($($argument: $type),*) {
            // SAFETY: the caller keeps the clauses of the generic function, and the instruction set is present.
            unsafe { $generic(<$isa>::assume(), $($argument),*) }
        }
    };
}

/// Declares `PRIMITIVES`, and in the module `attention` the kernels of that operator, for one instruction set.
macro_rules! instance {
    (isa: $isa:ident, lanes: $lanes:ident, features: $features:tt, attention: $attention:tt $(,)?) => {
        use $crate::isa::$isa;
        use $crate::{exp2, memory};

        /// The primitives of this instruction set.
        pub static PRIMITIVES: $crate::primitives::Primitives = $crate::primitives::Primitives {
            set: elsa_core::profile::InstructionSet::$isa,
            present: || $isa::detect().is_some(),
            transpose_in,
            transpose_out,
            widen_f16,
            widen_bf16,
            narrow_f16,
            narrow_bf16,
            exp2,
        };

        $crate::instance::entry_points! {
            $features, $isa,
            fn transpose_in(
                src: *const f32, stride: usize, rows: usize, dim: usize, padded: usize, w: usize, factor: f32,
                dst: *mut f32
            ) = memory::transpose_in::<$lanes>;
            fn transpose_out(src: *const f32, w: usize, rows: usize, dim: usize, dst: *mut f32, stride: usize)
                = memory::transpose_out::<$lanes>;
            fn widen_f16(src: *const u16, stride: usize, rows: usize, dim: usize, dst: *mut f32, to_stride: usize)
                = memory::widen::<$lanes, false>;
            fn widen_bf16(src: *const u16, stride: usize, rows: usize, dim: usize, dst: *mut f32, to_stride: usize)
                = memory::widen::<$lanes, true>;
            fn narrow_f16(src: *const f32, rows: usize, dim: usize, dst: *mut u16, to_stride: usize)
                = memory::narrow::<$lanes, false>;
            fn narrow_bf16(src: *const f32, rows: usize, dim: usize, dst: *mut u16, to_stride: usize)
                = memory::narrow::<$lanes, true>;
            fn exp2(x: *const f32, n: usize, y: *mut f32) = exp2::exp2::<$lanes>;
        }

        /// The attention kernels of this instruction set.
        pub mod attention {
            use super::{$isa, $lanes, PRIMITIVES};
            $crate::attention::instance::attention!($isa, $lanes, $features, $attention);
        }
    };
}

pub(crate) use {entry_point, entry_points, instance};
