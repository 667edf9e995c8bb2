//! The macro that instantiates the per-channel kernels for one instruction set.

/// Declares a module `series` with `KERNEL`. Expects `PRIMITIVES` of the instruction set in the
/// parent module.
macro_rules! series {
    (
        isa: $isa:ident, lanes: $lanes:ident, features: $features:tt, name: $name:literal,
        exp: $exp:literal, softplus: $softplus:literal, silu: $silu:literal $(,)?
    ) => {
        /// The per-channel kernels of this instruction set.
        pub mod series {
            use super::{PRIMITIVES, $isa, $lanes};
            use elsa_core::series::bound::Precision;
            use elsa_core::series::plan::SeriesKernelSpec;
            use $crate::lanes::Lanes;
            use $crate::series::{
                ConvolutionTile, RecurrenceTile, SelectiveTile, SeriesKernel, VECTORS, convolution as direct,
                functions as elementary, recurrence as first_order, selective as scan,
            };

            /// Table of the per-channel kernels.
            pub static KERNEL: SeriesKernel = SeriesKernel {
                spec: SeriesKernelSpec {
                    name: $name,
                    set: PRIMITIVES.set,
                    lanes: $lanes::N,
                    width: VECTORS * $lanes::N,
                    precision: Precision { exp: $exp, exponent: 1.0, softplus: $softplus, silu: $silu },
                },
                primitives: &PRIMITIVES,
                recurrence,
                fold,
                carry,
                selective,
                convolution,
                silu,
                functions,
            };

            $crate::entry::entry_points! {
                $features, $isa,
                fn recurrence(tile: &RecurrenceTile) = first_order::run::<$lanes>;
                fn fold(tile: &RecurrenceTile, product: *mut f32) = first_order::fold::<$lanes>;
                fn carry(a: *const f32, b: *const f32, state: *mut f32) = first_order::carry::<$lanes>;
                fn selective(tile: &SelectiveTile) = scan::run::<$lanes>;
                fn convolution(tile: &ConvolutionTile) = direct::run::<$lanes>;
                fn silu(x: *mut f32, n: usize) = elementary::silu_in_place::<$lanes>;
                fn functions(x: *const f32, n: usize, y: [*mut f32; 3]) = elementary::table::<$lanes>;
            }
        }
    };
}

pub(crate) use series;
