//! Eight lanes: AVX2 with FMA and F16C.

mod vector;

pub use vector::Eight;

use crate::attention::backward::instance::backward;
use crate::attention::instance::attention;
use crate::instance::instance;
use crate::linear::instance::linear;
use crate::series::instance::series;

instance!(isa: Avx2, lanes: Eight, features: ["avx2,fma,f16c"]);

attention!(
    isa: Avx2, lanes: Eight, features: ["avx2,fma,f16c"],
    name: "attention_f32_q16k6__avx2_exp2_nearest_p5",
    row_name: "attention_f32_q1k4__avx2_exp2_nearest_p5",
    tile_keys: [8, 6, 4], vectors: 2, group: 4, keys: KeyLayout::Rows,
    exp2_relative: 1.7e-7, fused: true,
);

backward!(
    isa: Avx2, lanes: Eight, features: ["avx2,fma,f16c"], name: "backward_f32_q48k6__avx2_exp2_nearest_p5",
    tile_keys: 6, vectors: 2, panels: 3, strip: 2, exp2_relative: 1.7e-7,
);

linear!(
    isa: Avx2, lanes: Eight, features: ["avx2,fma,f16c"], name: "linear_f32_t5c16__avx2",
    together: 2, rows: 4, pass: 5, most: 5, tall: 5, vectors: 2, delta: 2, fused: true,
);

series!(
    isa: Avx2, lanes: Eight, features: ["avx2,fma,f16c"], name: "series_f32_c16__avx2",
    exp: 1.8e-7, softplus: 3e-7, silu: 3e-7,
);
