//! Tokens: values that exist only if the processor has their instruction set.
//!
//! The feature `std` detects instruction sets at run time. Without it, a token exists only for instruction sets that
//! the compilation target guarantees.

/// Token of the portable instruction set, which needs no vector unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar(());

impl Scalar {
    /// Returns the token.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Scalar {
        Scalar(())
    }

    /// Returns the token; always succeeds.
    #[must_use]
    pub fn detect() -> Option<Scalar> {
        Some(Scalar(()))
    }

    /// Returns the token without detection. This function exists so that all instruction sets have the same functions.
    ///
    /// # Safety
    /// - None.
    #[inline(always)]
    pub(crate) unsafe fn assume() -> Scalar {
        Scalar(())
    }
}

macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $arch:literal, [$($feature:tt),+], $detect:ident) => {
        $(#[$doc])*
        #[cfg(target_arch = $arch)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name(());

        #[cfg(target_arch = $arch)]
        impl $name {
            /// Returns the token if the processor has every instruction that the kernels for this instruction set use.
            #[must_use]
            pub fn detect() -> Option<$name> {
                #[cfg(feature = "std")]
                let present = true $(&& std::arch::$detect!($feature))+;
                #[cfg(not(feature = "std"))]
                let present = true $(&& cfg!(target_feature = $feature))+;
                present.then_some($name(()))
            }

            /// Returns the token without detection.
            ///
            /// # Safety
            /// - The processor has the instruction set.
            #[inline(always)]
            pub(crate) unsafe fn assume() -> $name {
                $name(())
            }
        }
    };
}

token!(
    /// Token of ARMv8.0 Advanced SIMD.
    Neon, "aarch64", ["neon"], is_aarch64_feature_detected
);
token!(
    /// Token of AVX2 with FMA and F16C.
    Avx2, "x86_64", ["avx2", "fma", "f16c"], is_x86_feature_detected
);
token!(
    /// Token of AVX-512 F and DQ, with AVX2, FMA and F16C.
    Avx512, "x86_64", ["avx512f", "avx512dq", "avx2", "fma", "f16c"], is_x86_feature_detected
);
