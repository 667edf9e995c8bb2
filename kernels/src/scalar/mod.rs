//! One lane, portable: the reference instance, and the fallback where no vector unit is known.

mod vector;

pub use vector::Single;

use crate::instance::instance;

instance!(
    isa: crate::isa::Scalar, lanes: Single, features: [],
    name: "attention_f32__scalar_exp2_nearest_p5__q2r4",
    row_name: "attention_f32__scalar_exp2_nearest_p5__q1",
    set: elsa_core::profile::InstructionSet::Scalar,
    rows: [4, 4, 4], vectors: 2, group: 4, keys: elsa_core::attention::plan::KeyLayout::Rows,
    exp2_relative: 1.9e-7, fused: false,
);
