//! Sixteen lanes: AVX-512 F and DQ.

mod vector;

pub use vector::Sixteen;

use crate::attention::backward::instance::backward;
use crate::attention::instance::attention;
use crate::instance::instance;
use crate::linear::instance::linear;
use crate::series::instance::series;

instance!(isa: Avx512, lanes: Sixteen, features: ["avx512f,avx512dq,avx2,fma,f16c"]);

attention!(
    isa: Avx512, lanes: Sixteen, features: ["avx512f,avx512dq,avx2,fma,f16c"],
    name: "attention_f32_q48k8__avx512_exp2_floor_p5",
    row_name: "attention_f32_q1k4__avx512_exp2_floor_p5",
    tile_keys: [8, 8, 8], vectors: 3, group: 2, keys: KeyLayout::Rows,
    exp2_relative: 1.6e-7, fused: true,
);

backward!(
    isa: Avx512, lanes: Sixteen, features: ["avx512f,avx512dq,avx2,fma,f16c"], name: "backward_f32_q48k8__avx512_exp2_floor_p5",
    tile_keys: 8, vectors: 3, panels: 1, strip: 2, exp2_relative: 1.6e-7,
);

linear!(
    isa: Avx512, lanes: Sixteen, features: ["avx512f,avx512dq,avx2,fma,f16c"], name: "linear_f32_t4c32__avx512",
    together: 4, rows: 4, pass: 4, most: 5, tall: 5, vectors: 2, delta: 4, fused: true,
);

series!(
    isa: Avx512, lanes: Sixteen, features: ["avx512f,avx512dq,avx2,fma,f16c"], name: "series_f32_c32__avx512",
    exp: 1.8e-7, softplus: 3e-7, silu: 3e-7,
);
