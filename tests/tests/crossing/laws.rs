//! Tests the laws of the softmax state.

use elsa_core::monoid::{Monoid, associativity_holds, identity_holds};
use elsa_core::random::Random;
use elsa_core::state::{HEADROOM, State, WEIGHT_FLOOR};
use elsa_oracle::random::seeded;
use proptest::prelude::*;

type S = State<[f32; 3]>;

/// Unit roundoff of f32.
const U: f64 = 5.960_464_477_539_063e-8;

fn bits(x: &S) -> [u32; 5] {
    [x.m.to_bits(), x.s.to_bits(), x.w[0].to_bits(), x.w[1].to_bits(), x.w[2].to_bits()]
}

#[derive(Clone, Debug)]
struct Key {
    score: f32,
    value: [f32; 3],
}

fn keys(n: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<Key>> {
    let spread = prop_oneof![Just(1.0f32), Just(20.0), Just(500.0), Just(1e5)];
    (any::<u64>(), n, spread).prop_map(|(seed, n, spread)| {
        let mut random = seeded(seed);
        (0..n)
            .map(|_| Key {
                score: spread * random.normal(),
                value: [random.normal(), random.normal(), random.normal()],
            })
            .collect()
    })
}

/// Exact results for some keys in f64: log-sum-exp in base-2 units, output, `Σ p|v|`, `Σ |v|`.
struct Exact {
    lse: f64,
    y: [f64; 3],
    spread: [f64; 3],
    mass: [f64; 3],
}

fn exact(keys: &[Key]) -> Exact {
    let max = keys.iter().map(|k| f64::from(k.score)).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = keys.iter().map(|k| (f64::from(k.score) - max).exp2()).collect();
    let sum: f64 = weights.iter().sum();
    let column = |f: &dyn Fn(f64, f64) -> f64| -> [f64; 3] {
        std::array::from_fn(|x| {
            weights.iter().zip(keys).map(|(w, k)| f(*w, f64::from(k.value[x]))).sum::<f64>()
        })
    };
    Exact {
        lse: max + sum.log2(),
        y: column(&|w, v| w * v / sum),
        spread: column(&|w, v| w * v.abs() / sum),
        mass: column(&|_, v| v.abs()),
    }
}

/// Compares a state with f64. A weight is `2^(score − m)`. The difference is rounded once; its magnitude is at most
/// `2^7` if the weight is not floored. The exponential has a few roundings. The product of the weight and a value is
/// rounded once, and each of at most `additions` additions is rounded once. Numerator and denominator have the same
/// bound. Floored weights are too large by up to `2^WEIGHT_FLOOR`, relative to a sum of at least `2^-HEADROOM / 2`;
/// dropped weights cause a smaller error.
fn assert_exact(state: &S, keys: &[Key], additions: usize) -> Result<(), TestCaseError> {
    let want = exact(keys);
    let weight = 100.0 * std::f64::consts::LN_2 * U + 4.0 * U;
    let error = (weight + (additions as f64 + 2.0) * U) * 1.01;
    let floor = f64::from(WEIGHT_FLOOR + HEADROOM + 1.0).exp2();
    let lse = want.lse * std::f64::consts::LN_2;
    let off = (f64::from(state.log_sum_exp()) - lse).abs();
    prop_assert!(off <= error + keys.len() as f64 * floor + U * lse.abs(), "log-sum-exp off by {off:e}");
    let mut y = *state;
    y.finish();
    for x in 0..3 {
        let off = (f64::from(y.w[x]) - want.y[x]).abs();
        let allowed = (2.0 * error + U) * want.spread[x] + floor * want.mass[x];
        prop_assert!(off <= allowed, "column {x} off by {off:e}, allowed {allowed:e}");
    }
    Ok(())
}

/// Merges the states of `keys` by a random bracketing.
fn bracketed(keys: &[Key], random: &mut Random) -> S {
    match keys {
        [] => S::identity(),
        [k] => S::of(k.score, &k.value),
        _ => {
            let cut = 1 + random.below(keys.len() - 1);
            let (a, b) = keys.split_at(cut);
            bracketed(a, random).combine(&bracketed(b, random))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn identity_is_neutral_bit_for_bit(keys in keys(0..=20), seed in any::<u64>()) {
        let x = bracketed(&keys, &mut seeded(seed));
        prop_assert!(identity_holds(&x, |a, b| bits(a) == bits(b)));
    }

    #[test]
    fn any_bracketing_is_exact(keys in keys(1..=200), seed in any::<u64>()) {
        let x = bracketed(&keys, &mut seeded(seed));
        assert_exact(&x, &keys, keys.len())?;
    }

    #[test]
    fn absorbing_one_by_one_is_exact(keys in keys(1..=200)) {
        let mut x = S::identity();
        for k in &keys {
            x.absorb(k.score, |i| k.value[i]);
        }
        assert_exact(&x, &keys, keys.len())?;
    }

    #[test]
    fn three_states_associate(a in keys(0..=30), b in keys(0..=30), c in keys(1..=30), seed in any::<u64>()) {
        let mut random = seeded(seed);
        let [x, y, z] = [&a, &b, &c].map(|keys| bracketed(keys, &mut random));
        // Both sides are compared with the exact result below; here they must have equal references.
        let all: Vec<Key> = a.iter().chain(&b).chain(&c).cloned().collect();
        let mut sides = Vec::new();
        let same = associativity_holds(&x, &y, &z, |l, r| {
            sides.push((*l, *r));
            l.m == r.m
        });
        prop_assert!(same);
        for (l, r) in sides {
            assert_exact(&l, &all, all.len() + 2)?;
            assert_exact(&r, &all, all.len() + 2)?;
        }
    }

    /// Checks associativity bit for bit, with small integers as values and scores, which make every operation exact.
    #[test]
    fn exact_states_associate_bit_for_bit(scores in proptest::collection::vec(-8i32..=8, 3), seed in any::<u64>()) {
        let mut random = seeded(seed);
        let state = |score: &i32, random: &mut Random| {
            let value = [0; 3].map(|_: u8| random.below(9) as f32 - 4.0);
            S::of(*score as f32, &value)
        };
        let x: Vec<S> = scores.iter().map(|s| state(s, &mut random)).collect();
        prop_assert!(associativity_holds(&x[0], &x[1], &x[2], |a, b| bits(a) == bits(b)));
    }

    /// Checks that a reference that is not the maximum leads to the same result: the test moves states to other
    /// references by powers of two, which is exact.
    #[test]
    fn any_near_reference_will_do(keys in keys(1..=60), shift in -6i32..=6, seed in any::<u64>()) {
        let mut random = seeded(seed);
        let cut = random.below(keys.len() + 1);
        let (a, b) = keys.split_at(cut);
        let mut moved = bracketed(a, &mut random);
        if !moved.is_empty() && moved.m.abs() < 1e6 {
            let factor = (-shift as f32).exp2();
            moved.m += shift as f32;
            moved.s *= factor;
            moved.w = moved.w.map(|w| w * factor);
        }
        let x = moved.combine(&bracketed(b, &mut random));
        assert_exact(&x, &keys, keys.len())?;
    }

    #[test]
    fn nan_poisons_wherever_it_stands(keys in keys(1..=40), at in any::<proptest::sample::Index>(), seed in any::<u64>()) {
        let mut poisoned = keys.clone();
        poisoned[at.index(keys.len())].score = f32::NAN;
        let mut x = bracketed(&poisoned, &mut seeded(seed));
        prop_assert!(x.log_sum_exp().is_nan() && !x.is_empty());
        x.finish();
        prop_assert!(x.w.iter().all(|w| w.is_nan()));
        let mut y = S::identity();
        for k in &poisoned {
            y.absorb(k.score, |i| k.value[i]);
        }
        prop_assert!(y.log_sum_exp().is_nan());
        y.finish();
        prop_assert!(y.w.iter().all(|w| w.is_nan()));
        // A NaN in one element of one value poisons only that column.
        let mut poisoned = keys.clone();
        poisoned[at.index(keys.len())].value[1] = f32::NAN;
        let mut z = bracketed(&poisoned, &mut seeded(seed));
        prop_assert!(!z.log_sum_exp().is_nan());
        z.finish();
        prop_assert!(z.w[1].is_nan() && !z.w[0].is_nan() && !z.w[2].is_nan());
    }

    #[test]
    fn absent_keys_leave_no_trace(keys in keys(1..=40), seed in any::<u64>()) {
        let mut random = seeded(seed);
        let (mut with, mut without) = (S::identity(), S::identity());
        for k in &keys {
            while random.below(2) == 0 {
                with.absorb(f32::NEG_INFINITY, |_| f32::NAN);
            }
            with.absorb(k.score, |i| k.value[i]);
            without.absorb(k.score, |i| k.value[i]);
            with = with.combine(&S::of(f32::NEG_INFINITY, &[f32::NAN; 3]));
        }
        prop_assert_eq!(bits(&with), bits(&without));
    }
}

#[test]
fn infinite_scores() {
    // The weight of a score of +∞ cannot be represented, so the sums become NaN.
    let mut x = S::of(f32::INFINITY, &[1.0; 3]);
    assert!(x.log_sum_exp().is_nan());
    x.finish();
    assert!(x.w.iter().all(|w| w.is_nan()));
    // A state with only absent keys is empty.
    let e = S::of(f32::NEG_INFINITY, &[f32::NAN; 3]);
    assert_eq!(bits(&e), bits(&S::identity()));
    assert!(e.is_empty());
}

#[test]
fn references_are_whole_and_near_the_maximum() {
    let mut random = seeded(2);
    for _ in 0..500 {
        let mut x = S::identity();
        let mut max = f32::NEG_INFINITY;
        for _ in 0..50 {
            let score = 30.0 * random.normal();
            max = max.max(score);
            x.absorb(score, |_| 1.0);
            assert_eq!(x.m, x.m.round());
            assert!(max <= x.m + HEADROOM && x.m <= max + HEADROOM, "{} {max}", x.m);
        }
    }
}

#[test]
fn far_states_do_not_meet_and_equal_ones_add() {
    let a = S::of(-3e38, &[1.0; 3]);
    let b = S::of(3e38, &[2.0; 3]);
    for mut x in [a.combine(&b), b.combine(&a)] {
        x.finish();
        assert_eq!(x.w, [2.0; 3]);
    }
    let c = S::of(5.0, &[3.0, -3.0, 0.0]);
    let mut x = c.combine(&S::of(5.0, &[1.0, 3.0, -0.0]));
    assert_eq!(x.s, 2.0);
    x.finish();
    assert_eq!(x.w, [2.0, 0.0, 0.0]);
}
