//! Tokens: values that exist only where their instruction set is present.
//!
//! With the feature `std` instruction sets are detected at run time. Without it, only those that the whole program was
//! compiled for count.

/// No vector unit is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar(());

impl Scalar {
    /// The token.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Scalar {
        Scalar(())
    }

    /// Always present.
    #[must_use]
    pub fn detect() -> Option<Scalar> {
        Some(Scalar(()))
    }

    /// The token, in the form that the other instruction sets have.
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
            /// The token, if the processor has every instruction that the kernels of this name use.
            #[must_use]
            pub fn detect() -> Option<$name> {
                #[cfg(feature = "std")]
                let present = true $(&& std::arch::$detect!($feature))+;
                #[cfg(not(feature = "std"))]
                let present = true $(&& cfg!(target_feature = $feature))+;
                present.then_some($name(()))
            }

            /// The token without detection.
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
    /// ARMv8.0 Advanced SIMD.
    Neon, "aarch64", ["neon"], is_aarch64_feature_detected
);
token!(
    /// AVX2 with FMA and F16C.
    Avx2, "x86_64", ["avx2", "fma", "f16c"], is_x86_feature_detected
);
token!(
    /// AVX-512 F and DQ, with AVX2, FMA and F16C.
    Avx512, "x86_64", ["avx512f", "avx512dq", "avx2", "fma", "f16c"], is_x86_feature_detected
);
