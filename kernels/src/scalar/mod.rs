//! Portable kernels with one lane per vector. They are the reference, and the fallback on machines without a known vector
//! unit.

mod vector;

pub use vector::One;

use crate::attention::backward::instance::backward;
use crate::attention::instance::attention;
use crate::instance::instance;
use crate::linear::instance::linear;
use crate::series::instance::series;

instance!(isa: Scalar, lanes: One, features: []);

attention!(
    isa: Scalar, lanes: One, features: [],
    name: "attention_f32_q2k4__scalar_exp2_nearest_p5",
    row_name: "attention_f32_q1k4__scalar_exp2_nearest_p5",
    tile_keys: [4, 4, 4], vectors: 2, group: 4, keys: KeyLayout::Rows,
    exp2_relative: 1.9e-7, fused: false,
);

backward!(
    isa: Scalar, lanes: One, features: [], name: "backward_f32_q16k4__scalar_exp2_nearest_p5",
    tile_keys: 4, vectors: 4, panels: 4, strip: 4, exp2_relative: 1.9e-7,
);

linear!(
    isa: Scalar, lanes: One, features: [], name: "linear_f32_t8c4__scalar",
    together: 2, rows: 4, pass: 8, most: 8, tall: 4, vectors: 4, delta: 4, fused: false,
);

series!(
    isa: Scalar, lanes: One, features: [], name: "series_f32_c2__scalar",
    exp: 1.8e-7, softplus: 3e-7, silu: 3e-7,
);
