//! Four lanes: ARMv8.0 Advanced SIMD.

mod vector;

pub use vector::Four;

use crate::instance::instance;

instance!(
    isa: crate::isa::Neon, lanes: Four, features: ["neon"],
    name: "attention_f32__neon_exp2_monic_p5__q12r8",
    row_name: "attention_f32__neon_exp2_monic_p5__q1",
    set: elsa_core::profile::InstructionSet::Neon,
    rows: [8, 8, 8], vectors: 3, group: 8, keys: elsa_core::attention::plan::KeyLayout::Panels(8),
    exp2_relative: 2.1e-7, fused: true,
);
