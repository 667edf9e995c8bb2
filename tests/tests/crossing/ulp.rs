//! Tests the distance in units in the last place (ulp), by which other tests measure errors.

#![forbid(unsafe_code)]

use elsa_core::dtype::DType;
use elsa_core::ulp::{Tolerance, distance, ulp};
use elsa_oracle::random::seeded;
use half::{bf16, f16};

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Returns the number of the type `dtype` that follows `x` in the direction away from zero.
fn next(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::F32 => f32::from_bits(x.to_bits() + 1),
        DType::F16 => f16::from_bits(f16::from_f32(x).to_bits() + 1).to_f32(),
        DType::Bf16 => bf16::from_bits(bf16::from_f32(x).to_bits() + 1).to_f32(),
    }
}

/// Returns the largest number, the smallest normal number and the smallest subnormal number.
fn landmarks(dtype: DType) -> (f32, f32, f32) {
    match dtype {
        DType::F32 => (f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)),
        DType::F16 => (f16::MAX.to_f32(), f16::MIN_POSITIVE.to_f32(), f16::from_bits(1).to_f32()),
        DType::Bf16 => (bf16::MAX.to_f32(), bf16::MIN_POSITIVE.to_f32(), bf16::from_bits(1).to_f32()),
    }
}

#[test]
fn neighbours_are_one_unit_apart() {
    let mut pairs = 0;
    for dtype in TYPES {
        let (max, normal, tiny) = landmarks(dtype);
        let mut starts = vec![0.0, tiny, normal, 1.0, 2.0, 0.5, 1.5, max / 2.0];
        let mut x = tiny;
        // The loop visits every power of two of the type.
        while x < max / 2.0 {
            starts.push(x);
            x *= 2.0;
        }
        let mut random = seeded(3);
        for _ in 0..2000 {
            let x = match dtype {
                DType::F32 => f32::from_bits(random.bits() as u32 & 0x7f7f_fffe),
                DType::F16 => f16::from_bits(random.bits() as u16 & 0x7bfe).to_f32(),
                DType::Bf16 => bf16::from_bits(random.bits() as u16 & 0x7f7e).to_f32(),
            };
            starts.push(x);
        }
        for a in starts {
            let b = next(dtype, a);
            if b.is_infinite() {
                continue;
            }
            assert!(b > a);
            for (x, y) in [(a, b), (b, a), (-a, -b), (-b, -a)] {
                assert_eq!(distance(dtype, x, f64::from(y)), 1.0, "{dtype}: {x:e} from {y:e}");
                pairs += 1;
            }
        }
    }
    assert!(pairs > 20_000, "{pairs}");
}

#[test]
fn every_half_is_the_sum_of_its_steps() {
    // The loop visits all positive f16 and bf16 numbers in order: each is one ulp from the previous one, and none is
    // skipped.
    let mut steps = 0;
    for bits in 0..0x7bffu16 {
        let (a, b) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
        assert_eq!(distance(DType::F16, a, f64::from(b)), 1.0);
        assert_eq!(distance(DType::F16, b, f64::from(a)), 1.0);
        steps += 1;
    }
    for bits in 0..0x7f7fu16 {
        let (a, b) = (bf16::from_bits(bits).to_f32(), bf16::from_bits(bits + 1).to_f32());
        assert_eq!(distance(DType::Bf16, a, f64::from(b)), 1.0);
        assert_eq!(distance(DType::Bf16, b, f64::from(a)), 1.0);
        steps += 1;
    }
    assert_eq!(steps, 0x7bff + 0x7f7f);
}

#[test]
fn zero_has_the_least_unit() {
    for dtype in TYPES {
        let (_, normal, tiny) = landmarks(dtype);
        assert_eq!(ulp(dtype, 0.0), f64::from(tiny));
        assert_eq!(ulp(dtype, -0.0), f64::from(tiny));
        assert_eq!(ulp(dtype, f64::from(tiny)), f64::from(tiny));
        assert_eq!(ulp(dtype, f64::from_bits(1)), f64::from(tiny), "a subnormal f64");
        assert_eq!(distance(dtype, 0.0, 0.0), 0.0);
        assert_eq!(distance(dtype, -0.0, 0.0), 0.0);
        assert_eq!(distance(dtype, 0.0, -0.0), 0.0);
        assert_eq!(distance(dtype, tiny, 0.0), 1.0);
        assert_eq!(distance(dtype, -tiny, 0.0), 1.0);
        assert_eq!(distance(dtype, tiny, f64::from(-tiny)), 2.0);
        // If the reference is zero, a wrong result has a large distance.
        assert_eq!(distance(dtype, normal, 0.0), f64::from(normal) / f64::from(tiny));
        assert!(distance(dtype, 1.0, 0.0) > 1e4);
        assert!(Tolerance::ulps(4.0).check(dtype, [(1.0, 0.0)]).is_err());
        assert!(Tolerance::relative(0.5).check(dtype, [(tiny, 0.0)]).is_err());
        assert!(Tolerance::ulps(4.0).check(dtype, [(0.0, 0.0), (tiny, 0.0)]).is_ok());
    }
}

#[test]
fn units_by_hand() {
    assert_eq!(ulp(DType::F32, 1.0), 2f64.powi(-23));
    assert_eq!(ulp(DType::F32, 1.999), 2f64.powi(-23));
    assert_eq!(ulp(DType::F32, -2.0), 2f64.powi(-22));
    assert_eq!(ulp(DType::F32, 0.75), 2f64.powi(-24));
    assert_eq!(ulp(DType::F16, 1.0), 2f64.powi(-10));
    assert_eq!(ulp(DType::Bf16, 1.0), 2f64.powi(-7));
    assert_eq!(ulp(DType::F16, 65504.0), 32.0);
    assert_eq!(ulp(DType::F16, 1e9), 32.0);
    // A reference midway between two numbers is half an ulp from both.
    let between = 1.0 + 2f64.powi(-24);
    assert_eq!(distance(DType::F32, 1.0, between), 0.5);
    assert_eq!(distance(DType::F32, 1.0 + f32::EPSILON, between), 0.5);
    // The neighbours on both sides of a power of two are one ulp from it.
    assert_eq!(distance(DType::F32, 1.0 + f32::EPSILON, 1.0), 1.0);
    assert_eq!(distance(DType::F32, 1.0 - f32::EPSILON / 2.0, 1.0), 1.0);
    assert_eq!(distance(DType::F32, -1.0 - f32::EPSILON, -1.0), 1.0);
    assert_eq!(distance(DType::F32, -1.0 + f32::EPSILON / 2.0, -1.0), 1.0);
    // The smallest normal number has the same ulp on both sides.
    let normal = f32::MIN_POSITIVE;
    assert_eq!(distance(DType::F32, f32::from_bits(normal.to_bits() - 1), f64::from(normal)), 1.0);
    // Numbers of opposite sign are far apart.
    assert_eq!(distance(DType::F32, -1.0, 1.0), 2f64.powi(25));
    assert_eq!(distance(DType::F32, 1.0, 1.5), 2f64.powi(22));
}

#[test]
fn infinity_and_nan() {
    const INF: f64 = f64::INFINITY;
    for dtype in TYPES {
        let (max, _, _) = landmarks(dtype);
        let (top, unit) = (f64::from(max), ulp(dtype, f64::from(max)));
        assert_eq!(distance(dtype, f32::INFINITY, INF), 0.0);
        assert_eq!(distance(dtype, f32::NEG_INFINITY, -INF), 0.0);
        assert_eq!(distance(dtype, f32::NEG_INFINITY, INF), INF);
        assert_eq!(distance(dtype, f32::INFINITY, -INF), INF);
        assert_eq!(distance(dtype, max, INF), INF);
        assert_eq!(distance(dtype, f32::INFINITY, 1.0), INF);
        assert_eq!(distance(dtype, f32::INFINITY, top), INF);
        // References round to infinity from half an ulp above the largest number on.
        assert_eq!(distance(dtype, f32::INFINITY, top + unit / 2.0), 0.0);
        assert_eq!(distance(dtype, f32::NEG_INFINITY, -top - unit / 2.0), 0.0);
        assert_eq!(distance(dtype, f32::NEG_INFINITY, top + unit), INF);
        assert_eq!(distance(dtype, f32::INFINITY, top + unit * 0.499), INF);
        assert_eq!(distance(dtype, max, top + unit / 4.0), 0.25);
        assert_eq!(distance(dtype, max, top + unit * 3.0), 3.0);
        assert_eq!(distance(dtype, f32::NAN, f64::NAN), 0.0);
        for x in [0.0, 1.0, INF, -INF] {
            assert_eq!(distance(dtype, f32::NAN, x), INF);
            assert_eq!(distance(dtype, x as f32, f64::NAN), INF);
        }
        let generous = Tolerance { ulps: INF, absolute: INF, relative: INF };
        assert!(generous.check(dtype, [(f32::NAN, 1.0)]).is_err(), "nothing allows NaN for a number");
        assert!(generous.check(dtype, [(1.0, f64::NAN)]).is_err());
        assert!(generous.check(dtype, [(f32::INFINITY, 1.0)]).is_err());
    }
}

#[test]
fn conversions_are_within_half_a_unit() {
    let mut random = seeded(9);
    for _ in 0..20_000 {
        // `x` is in the range from subnormal f16 numbers to overflow.
        let x = random.unit() * 2f64.powi(random.below(50) as i32 - 30);
        let rounded = x as f32;
        let wide = f64::from(rounded);
        assert!(distance(DType::F16, f16::from_f32(rounded).to_f32(), wide) <= 0.5, "{x:e}");
        assert!(distance(DType::Bf16, bf16::from_f32(rounded).to_f32(), wide) <= 0.5, "{x:e}");
        assert!(distance(DType::F32, x as f32, x) <= 0.5, "{x:e}");
    }
}

#[test]
fn check_gives_the_worst_pair() {
    let step = f32::EPSILON;
    let pairs = [(1.0, 1.0), (1.0 + 3.0 * step, 1.0), (1.0 + step, 1.0), (-1.0 - 2.0 * step, -1.0)];
    let worst = Tolerance::ulps(2.0).check(DType::F32, pairs).unwrap_err();
    assert_eq!((worst.index, worst.ulps, worst.share), (1, 3.0, 1.5));
    let text = worst.to_string();
    assert!(text.contains("element 1") && text.contains("3 ulp"), "{text}");
    let fine = Tolerance::ulps(3.0).check(DType::F32, pairs).unwrap();
    assert_eq!((fine.count, fine.worst.unwrap().index), (4, 1));
    // The more generous term decides.
    let mixed = Tolerance { ulps: 1.0, absolute: 1e-3, relative: 0.0 };
    assert!(mixed.check(DType::F32, [(1.0005, 1.0), (1e-4, 0.0)]).is_ok());
    assert!(mixed.check(DType::F32, [(1.002, 1.0)]).is_err());
    assert!(Tolerance::absolute(1e-3).check(DType::F32, [(1001.0, 1000.0)]).is_err());
    assert!(Tolerance::absolute(1.5).check(DType::F32, [(1001.0, 1000.0)]).is_ok());
    assert!(Tolerance::relative(1e-2).check(DType::F32, [(1001.0, 1000.0)]).is_ok());
    assert!(Tolerance::relative(1e-4).check(DType::F32, [(-1001.0, -1000.0)]).is_err());
    assert!(Tolerance::NONE.check(DType::F32, [(1.0 + step, 1.0)]).is_err());
    assert!(Tolerance::NONE.check(DType::F32, [(1.0, 1.0)]).is_ok());
    // A tolerance of NaN allows nothing.
    assert!(Tolerance::ulps(f64::NAN).check(DType::F32, [(1.0 + step, 1.0)]).is_err());
    // A NaN after a finite offender is the worst, regardless of later offenders.
    let worst =
        Tolerance::ulps(1.0).check(DType::F32, [(2.0, 1.0), (f32::NAN, 1.0), (3.0, 1.0)]).unwrap_err();
    assert_eq!(worst.index, 1);
    // The first of equal offenders is reported.
    let worst = Tolerance::NONE.check(DType::F32, [(1.0, 1.0), (2.0, 1.0), (2.0, 1.0)]).unwrap_err();
    assert_eq!(worst.index, 1);
    let none = Tolerance::ulps(1.0).check(DType::F32, []).unwrap();
    assert_eq!((none.count, none.worst), (0, None));
}
