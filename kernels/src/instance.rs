//! The macro that instantiates the code shared by the operators for one instruction set. Each operator has its own
//! macro of this kind next to its kernels, for example in [`crate::attention`].

/// Declares `PRIMITIVES` for one instruction set.
macro_rules! instance {
    (isa: $isa:ident, lanes: $lanes:ident, features: $features:tt $(,)?) => {
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

        $crate::entry::entry_points! {
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
    };
}

pub(crate) use instance;
