//! Kernels with four lanes per vector: ARMv8.0 Advanced SIMD.

mod vector;

pub use vector::Four;

use crate::attention::backward::instance::backward;
use crate::attention::instance::attention;
use crate::instance::instance;
use crate::linear::instance::linear;
use crate::series::instance::series;

instance!(isa: Neon, lanes: Four, features: ["neon"]);

attention!(
    isa: Neon, lanes: Four, features: ["neon"],
    name: "attention_f32_q12k8__neon_exp2_monic_p5",
    row_name: "attention_f32_q1k4__neon_exp2_monic_p5",
    tile_keys: [8, 8, 8], vectors: 3, group: 8, keys: KeyLayout::Panels(8),
    exp2_relative: 2.1e-7, fused: true,
);

backward!(
    isa: Neon, lanes: Four, features: ["neon"], name: "backward_f32_q48k4__neon_exp2_monic_p5",
    tile_keys: 4, vectors: 4, panels: 3, strip: 4, exp2_relative: 2.1e-7,
);

linear!(
    isa: Neon, lanes: Four, features: ["neon"], name: "linear_f32_t8c8__neon",
    together: 4, rows: 4, pass: 8, most: 8, tall: 8, vectors: 2, delta: 4, fused: true,
);

series!(
    isa: Neon, lanes: Four, features: ["neon"], name: "series_f32_c8__neon",
    exp: 1.8e-7, softplus: 3e-7, silu: 3e-7,
);
