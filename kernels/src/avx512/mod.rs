//! Sixteen lanes: AVX-512 F and DQ.

mod vector;

pub use vector::Sixteen;

use crate::instance::instance;

instance!(
    isa: crate::isa::Avx512, lanes: Sixteen, features: ["avx512f,avx512dq,avx2,fma,f16c"],
    name: "attention_f32__avx512_exp2_floor_p5__q48r8",
    row_name: "attention_f32__avx512_exp2_floor_p5__q1",
    set: elsa_core::profile::InstructionSet::Avx512,
    rows: [8, 8, 8], vectors: 3, group: 2, keys: elsa_core::attention::plan::KeyLayout::Rows,
    exp2_relative: 1.6e-7, fused: true,
);
