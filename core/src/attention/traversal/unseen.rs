//! Bounds the weights of a block before any of its products is computed.
//!
//! If the numbers added to scores decrease with the distance, as in a mask of linear biases (`ALiBi`), they alone may
//! show that a block is too light to matter. By the Cauchy–Schwarz inequality no product of a row and a key exceeds
//! `‖q‖ ‖k‖`, and a soft cap limits it to the cap. Let `a` be the largest number added to a score of the row in the
//! block, in base-2 units. Then
//!
//! ```text
//! u = a + min(‖q‖ max ‖k‖, cap)        b = count 2^(u − m)
//! ```
//!
//! bound the row's scores and its weights in the block. [`fits`](super::fits) uses this `b` instead of the sum of the
//! weights. If every row of a tile agrees, `b` is added to `D`, and neither scores nor weights are computed. Otherwise
//! the tile processes the block as usual.
//!
//! 1. *`D` is then an upper bound*, and so is the share `D / (S + D)`: the error of the output is still bounded.
//!    Log-sum-exp, the logarithm of `S + D`, may exceed the exact log-sum-exp of all keys by at most `−ln(1 − D / (S +
//!    D))`. It can be below the exact log-sum-exp only by roundings.
//! 2. *Everything is rounded outwards*: norms, their product, the roundings of a computed product, and the sums here.
//! 3. *Blocks that are not finite are never skipped*: a NaN or an infinity among the queries, keys and values of the
//!    block, or a NaN or `+∞` among the added numbers, either leaves the block without a finite `u` or makes the vote
//!    fail. A key excluded by `−∞` adds nothing.
//! 4. *A row without weights votes against skipping*: nothing fits into a share of `S = 0`. But keys are visited in
//!    order, and keys far before the diagonal come first. Therefore a row determines in advance a lower bound of the
//!    weight of its *own key*, the key on its diagonal: `p = 2^(s − m)` ([`own_score`], [`own_weight`]). Until a tile
//!    visits the first of its own blocks, which are those on its diagonal, its rows vote by
//!
//!    ```text
//!    D + b ≤ E / (1 − E) · max(S, p)
//!    ```
//!
//!    and after that by `S` alone. If the own block is kept, `S ≥ p` from then on; if it is skipped, `S` alone had room
//!    for all of `D`. The finished row keeps its budget in both cases. If the own key of a row is not among its keys, is
//!    masked, or has no finite score, the row has no such bound, and votes against skipping while it has no weights.
//! 5. *Blocks are bounded only if it saves time* ([`foresees`]), because the keys must be read once for their norms.

use super::setting::{Schedule, Skip};
use crate::attention::problem::Problem;
use crate::state::WEIGHT_FLOOR;

/// Smallest number of queries for which blocks may be skipped before their scores are computed. With this many queries,
/// reading the keys to compute their norms costs little compared with the products of queries and keys.
pub const LEAST_QUERIES: usize = 64;

/// Returns `true` if a run of `problem` with `schedule` may skip blocks before it computes their scores. This requires
/// an error budget, a mask or bias that adds numbers to scores, and at least [`LEAST_QUERIES`] queries.
#[must_use]
pub fn foresees(problem: &Problem, schedule: &Schedule) -> bool {
    matches!(schedule.skip, Skip::Budget(_))
        && problem.adds_numbers()
        && problem.spec().query.tokens() >= LEAST_QUERIES
}

/// Returns an upper bound of the magnitude of every score of a row, exact or computed, in base-2 units. The bound
/// applies to the score before anything is added to it. `query` is at least the norm of the row times the query factor
/// of [`Problem::score_factors`](crate::attention::Problem::score_factors), up to a few roundings. `key` is at least
/// the norm of every key. Rows and keys have `dim` elements. `cap` is the cap that `score_factors` returns, zero
/// without a cap. The result is infinite if a norm is infinite or NaN.
#[must_use]
pub fn reach(query: f64, key: f64, dim: usize, cap: f32) -> f32 {
    let product = query * key;
    if !product.is_finite() {
        return f32::INFINITY;
    }
    let capped = match cap > 0.0 {
        true => f64::from(cap) * if product < 1.0 { product } else { 1.0 },
        false => product,
    };
    // The factor covers the roundings of the loaded row, of a product in chains, and of tanh. Each product that
    // underflows loses less than the smallest normal number.
    let outward = 1.0 + (dim as f64 + 64.0) / 4_194_304.0;
    let lost = dim as f64 * f64::from(f32::MIN_POSITIVE);
    ((capped * outward + lost) as f32).next_up()
}

/// Returns an upper bound of the sum of `count` weights whose largest exponent is `exponent`. `exponent` must not be NaN.
pub(super) fn at_most(count: u32, exponent: f32) -> f32 {
    // The factor covers the errors of the exponential and of the product.
    const OUTWARD: f32 = 1.0 + 8.0 * f32::EPSILON;
    let largest = if exponent > WEIGHT_FLOOR { exponent } else { WEIGHT_FLOOR };
    count as f32 * (libm::exp2f(largest) * OUTWARD)
}

/// Returns an upper bound of the weights of a row in a block of `count` keys, relative to the row's reference `m`. `top` is
/// the largest number added to the row's scores in the block, or `−∞` if the row attends no key of the block. `reach`
/// bounds the scores before the addition ([`reach`]). If no bound is known, returns NaN, which [`fits`](super::fits)
/// rejects. If the row attends no key of the block, returns zero.
#[must_use]
pub fn unseen_weight(count: u32, top: f32, reach: f32, m: f32) -> f32 {
    if top == f32::NEG_INFINITY {
        return 0.0;
    }
    // The slack covers the roundings of the added numbers, of the sum that forms a score, and of the sums here.
    let slack = (top.abs() + reach + m.abs()) * (1.0 / 2_097_152.0);
    let exponent = top + reach + slack - m;
    if exponent.is_finite() { at_most(count, exponent) } else { f32::NAN }
}

/// Returns a lower bound of the score that any kernel computes for a row and a key, in base-2 units; `−∞` if no bound is
/// known or the row does not attend the key. `products` are the products of the key's elements with the row's elements; the
/// row is scaled by the query factor. `cap` is the cap that
/// [`Problem::score_factors`](crate::attention::Problem::score_factors) returns, zero without a cap. `added` is the number
/// added to the score.
#[must_use]
pub fn own_score(products: impl ExactSizeIterator<Item = f64>, cap: f32, added: f32) -> f32 {
    let dim = products.len() as f64;
    let (sum, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + libm::fabs(x)));
    // The allowance is that of `reach`, for the magnitudes of the terms. The slope of the tangent is at most one.
    let off = size * ((dim + 64.0) / 4_194_304.0) + dim * f64::from(f32::MIN_POSITIVE);
    let (capped, off) = match cap > 0.0 {
        true => (f64::from(cap) * libm::tanh(sum), f64::from(cap) * off),
        false => (sum, off),
    };
    let added = f64::from(added);
    // The last term covers the roundings of the tangent and of the sum that forms a score.
    let score = capped + added - off - (libm::fabs(capped) + libm::fabs(added)) / 524_288.0;
    if score.is_finite() { (score as f32).next_down() } else { f32::NEG_INFINITY }
}

/// Returns a lower bound of the weight, relative to the reference `m`, that any kernel computes for a key whose score
/// is at least `score` ([`own_score`]). The bound excludes any factor that the kernel applies to all weights. It also
/// holds for the sum of the weights of a row that keeps the key. It is zero if `score` is `−∞` or far below the
/// reference.
#[must_use]
pub fn own_weight(score: f32, m: f32) -> f32 {
    // The factor covers the roundings of the distance from any reference, and of the exponential.
    const INWARD: f32 = 1.0 - 1.0 / 65_536.0;
    let exponent = score - m - (score.abs() + m.abs()) * (1.0 / 2_097_152.0);
    // Far above the reference, a smaller bound is enough.
    if exponent > -100.0 { libm::exp2f(exponent.min(100.0)) * INWARD } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::fits;
    use super::*;
    use crate::attention::problem::Spec;
    use crate::attention::{BiasView, MaskKind, MaskView};
    use crate::dtype::DType;
    use crate::view::{Layout, View};

    #[test]
    fn reaches_bound_products_and_caps() {
        for (query, key) in [(3.0f64, 5.0f64), (1e-30, 1e-30), (1e18, 1e18), (0.0, 7.0)] {
            for dim in [1, 64, 1024] {
                let found = f64::from(reach(query, key, dim, 0.0));
                assert!(found > query * key && found <= query * key * 1.001 + 1e-34, "{query} {key} {dim}");
            }
        }
        let found = reach(3.0, 5.0, 64, 20.0);
        assert!(found > 20.0 && found < 20.01, "{found}");
        let found = reach(0.5, 0.5, 64, 20.0);
        assert!(found > 5.0 && found < 5.01, "{found}");
        for (query, key) in [(f64::NAN, 1.0), (1.0, f64::INFINITY), (0.0, f64::INFINITY), (1.0, f64::NAN)] {
            for cap in [0.0, 20.0] {
                assert!(!reach(query, key, 4, cap).is_finite(), "{query} {key} {cap}");
            }
        }
    }

    #[test]
    fn what_is_unseen_is_bounded_outwards() {
        for (count, top, reach, m) in [
            (64, -40.0f32, 12.5f32, 3.0f32),
            (1, 0.0, 0.0, 0.0),
            (7, -3000.0, 5.0, -2990.0),
            (256, 9.0, 1.0, 40.0),
        ] {
            let exact = f64::from(count) * libm::exp2(f64::from(top) + f64::from(reach) - f64::from(m));
            let found = f64::from(unseen_weight(count, top, reach, m));
            assert!(found >= exact && found <= exact * 1.02, "{top}: {found:e} {exact:e}");
        }
        // The largest added number decides the bound. The bound of a row that attends no key is zero.
        assert!(unseen_weight(64, -10.0, 1.0, 0.0) > 900.0 * unseen_weight(64, -20.0, 1.0, 0.0));
        assert_eq!(unseen_weight(64, f32::NEG_INFINITY, f32::NAN, f32::NEG_INFINITY), 0.0);
        // The bound is at least the smallest normal number for each key.
        assert!(unseen_weight(2, -1e30, 1.0, 0.0) >= 2.0 * f32::MIN_POSITIVE);
        for (top, reach, m) in [
            (f32::NAN, 1.0, 0.0),
            (f32::INFINITY, 1.0, 0.0),
            (-99.0, f32::INFINITY, 0.0),
            (-99.0, f32::NAN, 0.0),
            (-99.0, 1.0, f32::NEG_INFINITY),
            (-99.0, 1.0, f32::NAN),
        ] {
            let b = unseen_weight(64, top, reach, m);
            assert!(b.is_nan() && !fits(1.0, 0.0, b, 0.9), "{top} {reach} {m}: {b}");
        }
        // Nothing fits in a row that has no weights.
        assert!(!fits(0.0, 0.0, unseen_weight(1, -500.0, 1.0, 0.0), 0.9));
    }

    #[test]
    fn what_an_own_key_weighs_is_bounded_inwards() {
        let products = [3.0, -1.25, 0.5, 40.0];
        let score = |cap, added| f64::from(own_score(products.into_iter(), cap, added));
        for (cap, added, exact) in [
            (0.0, 0.0, 42.25),
            (0.0, -7.5, 34.75),
            (20.0, 0.0, 20.0 * libm::tanh(42.25)),
            (0.0, -4096.0, -4053.75),
        ] {
            let found = score(cap, added);
            assert!(
                found < exact && found > exact - 0.02 - libm::fabs(exact) * 1e-5,
                "{cap} {added}: {found}"
            );
        }
        // Even if large products cancel, their sum is uncertain in proportion to their magnitudes.
        let cancels = f64::from(own_score([1e6, -1e6].into_iter(), 0.0, 0.0));
        assert!(cancels < -10.0 && cancels > -100.0, "{cancels}");
        for bad in [f32::NEG_INFINITY, f32::NAN, f32::INFINITY] {
            assert_eq!(own_score(products.into_iter(), 0.0, bad), f32::NEG_INFINITY);
        }
        for bad in [f64::NAN, f64::INFINITY] {
            assert_eq!(own_score([1.0, bad].into_iter(), 0.0, 0.0), f32::NEG_INFINITY);
        }
        for (score, m) in [(0.0f32, 0.0f32), (-3000.25, -3000.0), (12.5, 40.0), (30.0, 0.0)] {
            let exact = libm::exp2(f64::from(score) - f64::from(m));
            let found = f64::from(own_weight(score, m));
            assert!(found < exact && found > exact * 0.99, "{score} {m}: {found:e} {exact:e}");
        }
        let none = f32::NEG_INFINITY;
        assert_eq!([own_weight(none, 0.0), own_weight(none, none), own_weight(-500.0, 0.0)], [0.0; 3]);
        assert_eq!([own_weight(f32::NAN, 0.0), own_weight(1.0, f32::NAN)], [0.0; 2]);
        assert!(own_weight(500.0, 0.0) <= libm::exp2f(100.0));
    }

    #[test]
    fn only_numbers_that_are_added_are_asked() {
        let view = |n: usize| View::dense("x", Layout::Bhnd, &[n, 4], None).unwrap();
        let with = |queries: usize, kind: Option<MaskKind>, bias: bool| {
            let spec = Spec::new(DType::F32, view(queries), view(70), view(70), view(queries));
            let mask = |kind| MaskView::dense(kind, &[70]).unwrap();
            let bias = bias.then(|| BiasView::Dense(mask(MaskKind::Additive(DType::F32))));
            Spec { mask: kind.map(mask), bias, ..spec }.check().unwrap()
        };
        let (numbers, within) = (Some(MaskKind::Additive(DType::F16)), Schedule::within(0.1));
        for (queries, kind, bias, asked) in [
            (64, numbers, false, true),
            (64, None, true, true),
            (64, Some(MaskKind::Bool), true, true),
            (64, Some(MaskKind::Bool), false, false),
            (64, None, false, false),
            (63, numbers, true, false),
        ] {
            let problem = with(queries, kind, bias);
            assert_eq!(foresees(&problem, &within), asked, "{queries} {kind:?} {bias}");
            assert!(!foresees(&problem, &Schedule::EXACT) && !foresees(&problem, &Schedule::vsa(0.1)));
        }
    }
}
