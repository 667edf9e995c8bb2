//! The macro that instantiates the backward kernel for one instruction set.

/// Declares a module `backward` with the static `KERNEL`. The parent module must contain the static `PRIMITIVES` of the
/// instruction set.
macro_rules! backward {
    (
        isa: $isa:ident, lanes: $lanes:ident, features: $features:tt, name: $name:literal,
        tile_keys: $r:literal, vectors: $v:literal, panels: $p:literal, strip: $d:literal,
        exp2_relative: $exp2:literal $(,)?
    ) => {
        /// The backward kernel of this instruction set.
        pub mod backward {
            use super::{PRIMITIVES, $isa, $lanes};
            use elsa_core::attention::backward::BackwardKernelSpec;
            use $crate::attention::backward::{
                BackwardBlock, BackwardKernel, BackwardTile, step as gradients,
            };
            use $crate::lanes::Lanes;
            use $crate::product;

            /// The backward kernel, with its entry points.
            pub static KERNEL: BackwardKernel = BackwardKernel {
                spec: BackwardKernelSpec {
                    name: $name,
                    set: PRIMITIVES.set,
                    lanes: $lanes::N,
                    rows: $p * $v * $lanes::N,
                    panel: $v * $lanes::N,
                    tile_keys: $r,
                    block: 64 / $r * $r,
                    weight_scale: $lanes::WEIGHT_SCALE,
                    chain: product::CHAIN,
                    exp2_relative: $exp2,
                },
                strip: $d,
                primitives: &PRIMITIVES,
                step,
                bias: super::attention::KERNEL.bias,
            };

            $crate::entry::entry_points! {
                $features, $isa,
                fn step(tile: &BackwardTile, block: &BackwardBlock) = gradients::<$lanes, $r, $v, $p, $d>;
            }
        }
    };
}

pub(crate) use backward;
