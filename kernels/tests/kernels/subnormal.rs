//! Tests the multiplications that do not stall at subnormal numbers: compares their bits with those of exact products.

#![cfg(all(target_arch = "x86_64", not(any(elsa_without = "avx2", elsa_without = "avx512"))))]

use elsa_core::random::Random;
use elsa_kernels::avx2::Eight;
use elsa_kernels::avx512::Sixteen;
use elsa_kernels::isa::{Avx2, Avx512};
use elsa_kernels::lanes::{Lanes, MAX_LANES, MORE, RAISED};

/// Returns numbers of every exponent, zeros, subnormal numbers, and neighbours of powers of two. Each occurs with both
/// signs.
fn numbers() -> Vec<f32> {
    let mut random = Random::new(9);
    let step = if cfg!(miri) { 17 } else { 1 };
    let mut bits = vec![0, 1, 2, 3, 5, 0x007f_ffff, 0x0080_0000, 0x7f7f_ffff];
    for exponent in (0..255u32).step_by(step) {
        let low = exponent << 23;
        bits.extend([low, low + 1, low | 0x0040_0000, low | 0x0040_0001, low | 0x007f_ffff]);
        bits.extend((0..11).map(|_| low | (random.bits() >> 41) as u32));
    }
    bits.extend((0..23).map(|shift| 1 << shift));
    bits.iter().flat_map(|b| [f32::from_bits(*b), -f32::from_bits(*b)]).collect()
}

/// Applies an operation on vectors to the numbers `x`.
fn apply<L: Lanes>(isa: L::Isa, x: &[f32], of: impl Fn(L) -> L) -> Vec<f32> {
    let mut y = Vec::new();
    for x in x.chunks(L::N) {
        let mut lanes = [0.0; MAX_LANES];
        lanes[..x.len()].copy_from_slice(x);
        // SAFETY: the buffer holds a vector.
        unsafe { of(L::load(isa, lanes.as_ptr())).store(lanes.as_mut_ptr()) };
        y.extend_from_slice(&lanes[..x.len()]);
    }
    y
}

/// Compares `y` with the products of `x` and the power of two `factor`, rounded once. Products that overflow are not
/// checked.
fn compare(name: &str, x: &[f32], y: &[f32], factor: f64) {
    let mut subnormal = 0;
    for (x, y) in x.iter().zip(y) {
        let exact = (f64::from(*x) * factor) as f32;
        assert!(
            exact.to_bits() == y.to_bits() || (factor == 0.0 && *y == 0.0),
            "{name}: {x:e} times {factor:e} is {exact:e}, not {y:e}"
        );
        subnormal += usize::from(exact.is_subnormal());
    }
    println!("{name}: {} products by {factor:e}, {subnormal} of them subnormal", x.len());
}

fn check<L: Lanes>(isa: L::Isa, name: &str) {
    let x = numbers();
    for exponent in (0..=126).step_by(if cfg!(miri) { 21 } else { 1 }) {
        let factor = 2f32.powi(-exponent);
        compare(name, &x, &apply::<L>(isa, &x, |v| v.shrunk(L::splat(isa, factor))), factor.into());
    }
    compare(name, &x, &apply::<L>(isa, &x, |v| v.shrunk(L::splat(isa, 0.0))), 0.0);
    let more = f64::from(MORE);
    let all = f64::from(RAISED) * more;
    compare(name, &x, &apply::<L>(isa, &x, L::lowered::<1>), 1.0 / all);
    compare(name, &x, &apply::<L>(isa, &x, L::lowered::<2>), 1.0 / (all * more));
    let small: Vec<f32> = x.iter().copied().filter(|x| x.abs() < 2f32.powi(-72)).collect();
    compare(name, &small, &apply::<L>(isa, &small, L::lifted), more);
    let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0, 0.0];
    for y in [
        apply::<L>(isa, &special, |v| v.shrunk(L::splat(isa, 0.25))),
        apply::<L>(isa, &special, L::lowered::<1>),
        apply::<L>(isa, &special, L::lowered::<2>),
    ] {
        assert!(y[0].is_nan() && y[1].is_nan(), "{name}: {y:?}");
        assert_eq!(y[2..4], special[2..4], "{name}");
    }
}

#[test]
fn products_by_powers_of_two_are_rounded_once() {
    if let Some(isa) = Avx2::detect() {
        check::<Eight>(isa, "avx2");
    }
    if let Some(isa) = Avx512::detect() {
        check::<Sixteen>(isa, "avx512");
    }
}
