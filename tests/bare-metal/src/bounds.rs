//! Computes the error bound from norms of the inputs, for several element types, options and norms.

use elsa_core::attention::bound::{Arithmetic, Norms};
use elsa_core::attention::{Problem, Spec, scalar};
use elsa_core::dtype::DType;
use elsa_core::view::{Layout, View};

/// Head size.
const D: usize = 64;

/// The cases. Each contains the number of keys, the largest norm of a query, the largest norm of a key, and the largest
/// number that is added to a score.
const CASES: [(usize, [f64; 3]); 5] = [
    (1, [1.0, 1.0, 0.0]),
    (900, [8.5, 9.25, 0.0]),
    (65_536, [8.0, 8.0, 3.5]),
    (1024, [1e4, 1e3, 0.0]),
    (64, [f64::NAN, 1.0, 0.0]),
];

/// Creates the problem of a case.
fn problem(keys: usize, dtype: DType, softcap: Option<f32>) -> Option<Problem> {
    let of = |rows: usize| View::dense("x", Layout::Bhnd, &[1, 1, rows, D], None).ok();
    let mut spec = Spec::new(dtype, of(1)?, of(keys)?, of(keys)?, of(1)?);
    spec.softcap = softcap;
    spec.check().ok()
}

/// Evaluates every case and calls `row` with the bits of each bound, as two words.
pub fn run(mut row: impl FnMut(&str, &str, &[u32])) {
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for softcap in [None, Some(20.0)] {
            for (keys, [query, key, bias]) in CASES {
                let Some(problem) = problem(keys, dtype, softcap) else {
                    return row("bounds", "refused", &[]);
                };
                let arithmetic = Arithmetic::of(&problem, scalar::executed(&problem));
                let found = arithmetic.prior(keys, &Norms { query, key, bias });
                let numbers = [
                    found.relative,
                    found.likely,
                    found.lost,
                    found.tiny,
                    found.average,
                    found.absolute(3.0),
                ];
                for x in numbers {
                    let bits = x.to_bits();
                    row("bounds", dtype.name(), &[(bits >> 32) as u32, bits as u32]);
                }
            }
        }
    }
}
