//! What a block weighs at most, before a product of it is computed.
//!
//! Where numbers are added to scores that fall with the distance, as a mask of linear biases (`ALiBi`) does, they alone may tell
//! that a block is too light to count. By Cauchy and Schwarz no product of a row with a key exceeds `‖q‖ ‖k‖`, and a soft cap
//! leaves at most the cap; with `a` the largest number that is added to a score of the row in the block, in base-2 units,
//!
//! ```text
//! u = a + min(‖q‖ max ‖k‖, cap)        b = count 2^(u − m)
//! ```
//!
//! bound the row's scores and its part of the block. [`fits`](super::fits) decides by this `b` as it does by weights. If every row
//! of a tile agrees, `D` takes `b`, and neither scores nor weights exist. A tile that objects meets the block as ever.
//!
//! 1. *`D` is an upper bound then*, and so is the share `D / (S + D)`: what an answer lost is bounded all the same. Log-sum-exp,
//!    of `S + D`, may exceed that of all keys by at most `−ln(1 − D / (S + D))`, and is never below it but by roundings.
//! 2. *Everything is rounded outwards*: norms, their product, its roundings when it is computed, the sums here.
//! 3. *What is not finite stays*: a NaN or an infinity among the queries, keys and values of the block, or a NaN or `+∞` among
//!    what is added, makes `u` or the vote fail. A key that `−∞` takes out adds nothing.
//! 4. *A row without weights objects*: nothing fits beside `S = 0`. But keys are met in their order, and those far before the
//!    diagonal come first. So a row knows beforehand what its *own key*, the one on its diagonal, weighs at least
//!    ([`own_score`], [`own_weight`]): `p = 2^(s − m)`. Until a tile visits the first of its own blocks, those on its diagonal, its
//!    rows vote by
//!
//!    ```text
//!    D + b ≤ E / (1 − E) · max(S, p)
//!    ```
//!
//!    and from there on by `S` alone. If the own block is kept, `S ≥ p` from then on, and if it goes, `S` alone had room for all
//!    of `D`: the finished row keeps its budget either way. A row whose own key is not among its keys, is masked or has no finite
//!    score knows nothing, and objects while it has no weights.
//! 5. *Only where it can pay* ([`foresees`]): keys are read once for their norms.

use super::setting::{Schedule, Skip};
use crate::attention::problem::Problem;
use crate::state::WEIGHT_FLOOR;

/// The least number of queries for which blocks are left out unseen: reading the keys for their norms is little beside their
/// products with so many rows.
pub const LEAST_QUERIES: usize = 64;

/// Whether a run of `problem` by `schedule` asks for blocks that may go before they are seen: inside a budget, where a mask or a
/// bias adds numbers to scores, and of at least [`LEAST_QUERIES`] queries.
#[must_use]
pub fn foresees(problem: &Problem, schedule: &Schedule) -> bool {
    matches!(schedule.skip, Skip::Budget(_))
        && problem.adds_numbers()
        && problem.spec().query.tokens() >= LEAST_QUERIES
}

/// At least the magnitude of every score of a row, before something is added to it, in base-2 units, exact or computed. `query`
/// is at least the norm of the row times the query factor of
/// [`Problem::score_factors`](crate::attention::Problem::score_factors), up to a few roundings, `key` that of every key, both of
/// `dim` elements, and `cap` is the cap from there, zero for none. Not finite if a norm is not.
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
    // More than the roundings of the loaded row, of a product in chains, and of tanh; products that underflow lose less than
    // the least normal number each.
    let outward = 1.0 + (dim as f64 + 64.0) / 4_194_304.0;
    let lost = dim as f64 * f64::from(f32::MIN_POSITIVE);
    ((capped * outward + lost) as f32).next_up()
}

/// At least the sum of `count` weights of which the largest has this exponent, which is not NaN.
pub(super) fn at_most(count: u32, exponent: f32) -> f32 {
    // The exponential and the product are off by less than this.
    const OUTWARD: f32 = 1.0 + 8.0 * f32::EPSILON;
    let largest = if exponent > WEIGHT_FLOOR { exponent } else { WEIGHT_FLOOR };
    count as f32 * (libm::exp2f(largest) * OUTWARD)
}

/// At least the weights of a row, beside its reference `m`, in a block of `count` keys: `top` is the largest number that is added
/// to its scores there, `−∞` if it attends no key, and `reach` bounds what it is added to ([`reach`]). NaN, which never
/// fits, where it is not known; zero of no key.
#[must_use]
pub fn unseen(count: u32, top: f32, reach: f32, m: f32) -> f32 {
    if top == f32::NEG_INFINITY {
        return 0.0;
    }
    // More than the roundings of what is added, of the sum that a score is, and of the sums here.
    let slack = (top.abs() + reach + m.abs()) * (1.0 / 2_097_152.0);
    let exponent = top + reach + slack - m;
    if exponent.is_finite() { at_most(count, exponent) } else { f32::NAN }
}

/// At most the score of a row with a key, in base-2 units, as any kernel computes it: `−∞` where it is not known or the row does
/// not attend the key. `products` are those of the elements of the row, times its query factor, and of the key; `cap` is the
/// cap of [`Problem::score_factors`](crate::attention::Problem::score_factors), zero for none, and `added` what is added.
#[must_use]
pub fn own_score(products: impl ExactSizeIterator<Item = f64>, cap: f32, added: f32) -> f32 {
    let dim = products.len() as f64;
    let (sum, size) = products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + libm::fabs(x)));
    // As `reach` allows for, of the magnitudes of the terms. The slope of the tangent is at most one.
    let off = size * ((dim + 64.0) / 4_194_304.0) + dim * f64::from(f32::MIN_POSITIVE);
    let (capped, off) = match cap > 0.0 {
        true => (f64::from(cap) * libm::tanh(sum), f64::from(cap) * off),
        false => (sum, off),
    };
    let added = f64::from(added);
    // More than the roundings of the tangent and of the sum that a score is.
    let score = capped + added - off - (libm::fabs(capped) + libm::fabs(added)) / 524_288.0;
    if score.is_finite() { (score as f32).next_down() } else { f32::NEG_INFINITY }
}

/// At most what a key with at least this score ([`own_score`]) weighs beside the reference `m`, as any kernel computes it, but for
/// a scale that its weights carry; and so at most the sum of the weights of a row that keeps it. Zero where the score is `−∞`, or
/// far below the reference.
#[must_use]
pub fn own_weight(score: f32, m: f32) -> f32 {
    // More than the roundings of the distance from any reference, and of the exponential.
    const INWARD: f32 = 1.0 - 1.0 / 65_536.0;
    let exponent = score - m - (score.abs() + m.abs()) * (1.0 / 2_097_152.0);
    // Far above the reference a part of it suffices.
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
            let found = f64::from(unseen(count, top, reach, m));
            assert!(found >= exact && found <= exact * 1.02, "{top}: {found:e} {exact:e}");
        }
        // The largest number that is added decides, and a row that attends no key leaves nothing out.
        assert!(unseen(64, -10.0, 1.0, 0.0) > 900.0 * unseen(64, -20.0, 1.0, 0.0));
        assert_eq!(unseen(64, f32::NEG_INFINITY, f32::NAN, f32::NEG_INFINITY), 0.0);
        // The floor is the least.
        assert!(unseen(2, -1e30, 1.0, 0.0) >= 2.0 * f32::MIN_POSITIVE);
        for (top, reach, m) in [
            (f32::NAN, 1.0, 0.0),
            (f32::INFINITY, 1.0, 0.0),
            (-99.0, f32::INFINITY, 0.0),
            (-99.0, f32::NAN, 0.0),
            (-99.0, 1.0, f32::NEG_INFINITY),
            (-99.0, 1.0, f32::NAN),
        ] {
            let b = unseen(64, top, reach, m);
            assert!(b.is_nan() && !fits(1.0, 0.0, b, 0.9), "{top} {reach} {m}: {b}");
        }
        // Nothing fits beside no weights.
        assert!(!fits(0.0, 0.0, unseen(1, -500.0, 1.0, 0.0), 0.9));
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
        // Terms that cancel are as uncertain as they are large.
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
