//! Tests of the bounds against hand calculations and formulas.

use super::super::UNLIKELY;
use super::*;
use crate::attention::certificate::Order;
use crate::dtype::DType;

/// Arithmetic with scores of four terms in one chain, chains of eight keys, segments of sixteen keys, and an
/// exponential that is off by 2.5 u.
const PLAIN: Arithmetic = Arithmetic {
    head_dim: 4,
    softcap: 0.0,
    scale: LN_2,
    factor: 1.0,
    dtype: DType::F32,
    executed: Executed {
        kernel: "some",
        block: 8,
        segment_blocks: 2,
        merge_depth: 1,
        additions: 9,
        into_s: 9,
        into_w: 9,
        chain: 4,
        chain_depth: 0,
        fused: true,
        exp2_relative: 2.5 * U,
        half_chain: 0,
        split: false,
        one_product: false,
        order: Order { lanes: 1, values: 8, weights: 8, segment: 16, references: 8, normalizes: false },
    },
};

fn with(change: impl Fn(&mut Executed)) -> Arithmetic {
    let mut arithmetic = PLAIN;
    change(&mut arithmetic.executed);
    arithmetic
}

/// Returns the bounds for keys `(ln p, element 0 of the key, bias, v)` and the query `[1, 0, 0, 0]`.
fn bounds(arithmetic: Arithmetic, keys: &[(f64, f32, f64, f64)]) -> Bounds {
    let y = keys.iter().map(|(ln_p, .., v)| times(libm::exp(*ln_p), *v)).sum();
    let mut ln_p = [f64::NEG_INFINITY; 64];
    ln_p.iter_mut().zip(keys).for_each(|(to, key)| *to = key.0);
    let mut row = Row::new(arithmetic, &ln_p[..keys.len()]);
    let mut component = Component::new(&arithmetic, y);
    for (j, &(_, k, bias, v)) in keys.iter().enumerate() {
        let score = arithmetic.score(&[1.0, 0.0, 0.0, 0.0], |c| if c == 0 { k } else { 0.0 });
        component.absorb(&row.absorb(j, &score, bias), v);
    }
    row.bounds(&component)
}

#[test]
fn lambda_is_that_of_the_share() {
    let share = |lambda: f64| 2.0 * libm::exp(-0.5 * lambda * lambda);
    assert!(share(LAMBDA) <= UNLIKELY && share(LAMBDA - 0.01) > UNLIKELY);
}

#[test]
fn a_score_is_followed_through_its_partial_sums() {
    let near = |a: f64, b: f64| libm::fabs(a / b - 1.0) < 1e-5;
    let (q, k) = ([1.0f32, 2.0, -1.0, 4.0], [3.0f32, 1.0, 5.0, 0.25]);
    // The products are 3, 2, −5, 1. The partial sums 3, 5, 0, 1 (base-2 units) round relative to the powers of two 2,
    // 4, 0, 1.
    let score = PLAIN.score(&q, |c| k[c]);
    assert!(near(score.magnitude, 11.0 * LN_2), "{score:?}");
    assert!(near(score.worst, (2.0 + 4.0 + 1.0) * LN_2 * U), "{score:?}");
    assert!(near(score.squares, (4.0 + 16.0 + 1.0) * LN_2 * LN_2), "{score:?}");
    assert!(score.shift.abs() < 1e-14, "{score:?}");
    // If multiply-adds are not fused, products are rounded as well, but the first product of a chain is not rounded again
    // by an addition.
    let apart = with(|e| e.fused = false).score(&q, |c| k[c]);
    assert!(near(apart.worst, (2.0 + 2.0 + 4.0 + 1.0 + 4.0 + 1.0) * LN_2 * U), "{apart:?}");
    // Two chains have the partial sums 3, 5 and −5, −4; their total is 1.
    let cut = with(|e| (e.chain, e.chain_depth) = (2, 1)).score(&q, |c| k[c]);
    assert!(near(cut.worst, (2.0 + 4.0 + 4.0 + 4.0 + 1.0) * LN_2 * U), "{cut:?}");
    // Two lanes have the partial sums 3, −2 and 2, 3. A tree adds the lanes, and its rounding is bounded by a magnitude
    // of 5.
    let dealt = with(|e| (e.order.lanes, e.chain_depth) = (2, 1)).score(&q, |c| k[c]);
    assert!(near(dealt.worst, (2.0 + 2.0 + 2.0 + 2.0 + 5.0) * LN_2 * U), "{dealt:?}");
    // The bound for any order of additions.
    let any = with(|e| e.order.lanes = 0).score(&q, |c| k[c]);
    assert!(near(any.worst, 44.0 * LN_2 * U), "{any:?}");
    // A rounded factor shifts the score.
    let moved = Arithmetic { factor: 1.001, ..PLAIN }.score(&q, |c| k[c]);
    assert!(libm::fabs(moved.shift - 0.001 * LN_2) < 1e-6, "{moved:?}");
}

#[test]
fn a_single_key_is_off_by_its_sums_alone() {
    // The weight of a single key cancels, and y = v. Only the product and the division round.
    for k in [1.0, 1e6, 1e30] {
        let found = bounds(PLAIN, &[(0.0, k, 0.0, 5.0)]);
        let by_hand = 5.0 * U * (1.0 + 3.0);
        assert!((0.99..1.01).contains(&(found.worst / by_hand)) || k > 1.0, "{found:?}");
        assert!(found.worst < 5.0 * U * 40.0, "{k}: {found:?}");
    }
}

#[test]
fn two_keys_by_hand() {
    // y = 0. Each score 2 ln 2 has one rounding, and its distance from the reference is at most 0.35 + 1/64.
    let half = -LN_2;
    let delta = 4.0 * 2.0 * LN_2 + 0.35 + 1.0 / 64.0;
    let found = bounds(PLAIN, &[(half, 2.0, 0.0, 1.0), (half, 2.0, 0.0, -1.0)]);
    // The partial sums of W are 1/2 and 0.
    let by_hand = U * (delta + 2.5 + 0.5);
    assert!((found.worst / by_hand - 1.0).abs() < 1e-4, "{found:?} {by_hand:e}");
    let variance = 4.0 * 4.0 * LN_2 * LN_2 + (0.35f64 + 1.0 / 64.0).powi(2);
    let likely = LAMBDA * U * libm::sqrt(0.5 * variance + 0.25) + 2.5 * U;
    assert!((found.likely / likely.min(by_hand) - 1.0).abs() < 1e-4, "{found:?} {likely:e}");
}

#[test]
fn every_constant_widens_the_bound() {
    let keys: [_; 20] = core::array::from_fn(|j| (-3.0 - 0.1 * j as f64, 1.5, 0.25, j as f64 - 7.5));
    let plain = bounds(PLAIN, &keys);
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Executed));
    let wider: [Change<'_>; 8] = [
        ("the exponential", &|e| e.exp2_relative *= 2.0),
        ("products that round apart", &|e| e.fused = false),
        ("additions into S", &|e| (e.into_s, e.order.weights) = (20, 0)),
        ("additions into W", &|e| (e.into_w, e.order.values) = (20, 0)),
        ("chains in f16", &|e| e.half_chain = 16),
        ("longer chains of values", &|e| (e.order.values, e.order.weights) = (16, 16)),
        ("an unknown reference", &|e| e.order.references = 0),
        ("weights that are divided first", &|e| e.order.normalizes = true),
    ];
    for (what, change) in wider {
        let found = bounds(with(change), &keys);
        assert!(found.worst > 1.0001 * plain.worst, "{what}: {found:?} {plain:?}");
        assert!(found.likely >= plain.likely, "{what}: {found:?} {plain:?}");
    }
    let any = with(|e| e.order.lanes = 0);
    let longer = Arithmetic { head_dim: 32, ..with(|e| (e.order.lanes, e.chain) = (0, 32)) };
    assert!(bounds(longer, &keys).worst > bounds(any, &keys).worst);
    let deeper = Arithmetic { head_dim: 32, ..with(|e| (e.order.lanes, e.chain_depth) = (0, 9)) };
    assert!(bounds(deeper, &keys).worst > bounds(any, &keys).worst);
    let capped = Arithmetic { softcap: 2.0, factor: 0.5, ..PLAIN };
    assert!(bounds(capped, &keys).worst > plain.worst);
    let half = bounds(Arithmetic { dtype: DType::F16, ..PLAIN }, &keys);
    assert!(half.worst > plain.worst + 1e-4 && half.likely > plain.likely + 1e-4, "{half:?}");
}

#[test]
fn a_lost_weight_is_off_by_itself() {
    assert_eq!(LOST, libm::exp2(f64::from(WEIGHT_FLOOR + HEADROOM) + 1.0));
    assert!(libm::exp(LN_LOST) >= LOST);
    // The other key has the value zero, so only the change of the small probability matters.
    for (ln_p, may_be_lost) in [(-70.0, false), (-81.1, true), (-90.0, true), (-200.0, true), (-1e6, true)] {
        let (p, v) = (libm::exp(ln_p), 1e33);
        let found = bounds(PLAIN, &[(0.0, 0.0, 0.0, 0.0), (ln_p, 1.0, 0.0, v)]);
        assert!(if may_be_lost { found.worst >= p * v } else { found.worst < p * v / 1000.0 }, "{found:?}");
        assert!(found.worst <= 1.001 * (p + 4.0 * LOST) * v + 1e-36, "{ln_p}: {found:?}");
        assert!(!may_be_lost || found.likely >= p * v, "{ln_p}: {found:?}");
    }
    // A key with a huge negative mask does not widen the bound, although the error of its score is huge.
    let masked = bounds(PLAIN, &[(0.0, 1.0, 0.0, 2.0), (-3e38, 1.0, f64::from(f32::MIN), 3.0)]);
    assert!(masked.worst < 2.0 * 10.0 * U, "{masked:?}");
}

#[test]
fn huge_scores_leave_an_average() {
    // Scores of 1e8 and more may be off by more than one, so the output is only known to be an average.
    for k in [1e8, 1e20, 1e37, f32::MAX] {
        let found = bounds(PLAIN, &[(-LN_2, k, 0.0, 3.0), (-LN_2, k, 0.0, -1.0)]);
        assert!(found.worst >= 2.0 && found.worst < 2.01, "{k:e}: {found:?}");
        assert!(found.likely <= found.worst, "{k:e}: {found:?}");
        // An average of equal values is exact.
        let equal = bounds(PLAIN, &[(-LN_2, k, 0.0, 3.0), (-LN_2, k, 0.0, 3.0)]);
        assert!(equal.worst < 1e-5, "{k:e}: {equal:?}");
    }
    // The value of a certainly lost key does not enter the average.
    let far = bounds(PLAIN, &[(0.0, 1e8, 0.0, 3.0), (-1e6, 1e8, 0.0, 1e9)]);
    assert!(far.worst < 1e-5, "{far:?}");
    assert!(bounds(PLAIN, &[(f64::NAN, 1.0, 0.0, 1.0)]).worst.is_nan());
    // An empty row is exact except for underflow.
    assert!(bounds(PLAIN, &[]).worst <= 1.001 * f64::from(f32::MIN_POSITIVE));
}

#[test]
fn many_keys_cancel_in_likelihood_only() {
    let found = [8usize, 64].map(|n| {
        let keys: [_; 64] =
            core::array::from_fn(|j| (-libm::log(n as f64), 100.0, 0.0, if j % 2 == 0 { 1.0 } else { -1.0 }));
        bounds(PLAIN, &keys[..n])
    });
    assert!((found[1].worst / found[0].worst - 1.0).abs() < 0.05, "{found:?}");
    assert!(found[1].likely < 0.45 * found[0].worst, "{found:?}");
}

#[test]
fn infinities_of_vanishing_weight_may_become_nan() {
    let y = f64::INFINITY;
    let may = bounds(PLAIN, &[(0.0, 0.0, 0.0, 0.0), (-100.0, 1.0, 0.0, f64::INFINITY)]);
    assert!(may.poisoned && may.admit(y, f64::NAN) && may.admit(y, y) && !may.admit(y, 3.0));
    let must = bounds(PLAIN, &[(-LN_2, 0.0, 0.0, 0.0), (-LN_2, 0.0, 0.0, f64::INFINITY)]);
    assert!(!must.poisoned && !must.admit(y, f64::NAN) && must.admit(y, y));
    assert!(must.admit(f64::NAN, f64::NAN) && !must.admit(f64::NAN, 1.0));
    let plain = bounds(PLAIN, &[(0.0, 1.0, 0.0, 5.0)]);
    assert!(plain.admit(5.0, 5.0) && !plain.admit(5.0, 5.01) && !plain.admit(5.0, f64::NAN));
}

#[test]
fn subnormal_outputs_lose_half_of_their_least_number() {
    let tiny = |dtype| bounds(Arithmetic { dtype, ..PLAIN }, &[]).worst;
    let normal = f64::from(f32::MIN_POSITIVE);
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    assert!(near(tiny(DType::F16), normal + libm::exp2(-25.0)));
    assert!(near(tiny(DType::Bf16), normal + libm::exp2(-134.0)));
}

#[test]
fn the_tangent_of_the_fallback_is_within_what_is_counted() {
    let allowed = super::super::tangent(2.0 * U);
    for i in 1..20_000 {
        let x = i as f32 / 2000.0;
        let exact = libm::tanh(f64::from(x));
        let error = libm::fabs(f64::from(libm::tanhf(x)) - exact) / exact;
        assert!(error <= allowed, "{x}: {error:e}");
    }
}

/// Returns two bounds of a row with the keys `(ln p, v)`, a frozen reference and `ln S = ln_s`: the bounds without
/// skipped keys, and the bounds if the fraction `share` of the weights was skipped.
fn frozen(keys: &[(f64, f64)], ln_s: f64, share: f64) -> (Bounds, Bounds) {
    let y = keys.iter().map(|(ln_p, v)| times(libm::exp(*ln_p), *v)).sum();
    let mut ln_p = [f64::NEG_INFINITY; 64];
    ln_p.iter_mut().zip(keys).for_each(|(to, key)| *to = key.0);
    let mut row = Row::frozen(PLAIN, &ln_p[..keys.len()], ln_s);
    let mut component = Component::new(&PLAIN, y);
    for (j, &(_, v)) in keys.iter().enumerate() {
        component.absorb(&row.absorb(j, &PLAIN.score(&[0.0; 4], |_| 0.0), 0.0), v);
    }
    (row.bounds(&component), row.bounds_left_out(&component, share))
}

#[test]
fn a_frozen_score_is_as_far_from_its_reference_as_its_sum_says() {
    // Scores are exact: each weight is off by the subtraction and the exponential. A score may have exceeded an
    // earlier reference by the headroom.
    let half = -LN_2;
    for ln_s in [0.0, 3.0, -3.0, 16.0, -16.0] {
        let (found, _) = frozen(&[(half, 1.0), (half, -1.0)], ln_s, 0.0);
        let by_hand = U * ((LN_2 + libm::fabs(ln_s)).max(ABOVE) + 1.0 / 64.0 + 2.5 + 0.5);
        assert!((found.worst / by_hand - 1.0).abs() < 1e-3, "{ln_s}: {found:?} {by_hand:e}");
    }
    // A frozen reference loses weights at larger probabilities than a reference that follows the scores.
    assert_eq!(LOST_FROZEN, libm::exp2(f64::from(WEIGHT_FLOOR + FROZEN_RANGE) + 1.0));
    assert!(libm::exp(LN_LOST_FROZEN) >= LOST_FROZEN);
    for (ln_p, may_be_lost) in [(-60.0, false), (-70.1, true), (-75.0, true)] {
        let (p, v) = (libm::exp(ln_p), 1e30);
        let (found, _) = frozen(&[(0.0, 0.0), (ln_p, v)], 0.0, 0.0);
        assert!(if may_be_lost { found.worst >= p * v } else { found.worst < p * v / 1000.0 }, "{found:?}");
    }
}

#[test]
fn what_was_left_out_counts_by_the_spread_of_its_values() {
    let half = -LN_2;
    let (plain, none) = frozen(&[(half, 5.0), (half, 3.0)], 0.0, 0.0);
    assert!(none.worst >= plain.worst && none.worst < 4.0 * plain.worst, "{plain:?} {none:?}");
    for share in [1e-6, 1e-3, 0.3] {
        let (_, found) = frozen(&[(half, 5.0), (half, 3.0)], 0.0, share);
        let by_hand = (2.0 * share).min(1.0);
        assert!(found.worst >= by_hand && found.worst < by_hand * 1.001 + 1e-5, "{share}: {found:?}");
        assert_eq!(found.likely, found.worst);
    }
    // The output is still an average of the kept values, at most one away from four.
    let (_, all) = frozen(&[(half, 5.0), (half, 3.0)], 0.0, 1.0 - 1e-9);
    assert!(all.worst < 1.001, "{all:?}");
    // If values are equal, skipping keys adds no error. A NaN yields an infinite bound.
    let (_, equal) = frozen(&[(half, 5.0), (half, 5.0)], 0.0, 0.5);
    assert!(equal.worst < 1e-5, "{equal:?}");
    assert_eq!(frozen(&[(half, 5.0), (half, 3.0)], 0.0, f64::NAN).1.worst, f64::INFINITY);
    assert!((left_out(0.5, 2.0) - 1.0).abs() < 1e-9 && left_out(0.0, f64::INFINITY) == 0.0);
}
