//! Tests the exponential of every kernel. One test computes, step by step, the largest error that the arithmetic of the
//! exponential can have. Another test measures the actual error. `kernels/src/exp2.rs` derives the formulas.

use elsa_core::drift::larger;
use elsa_core::profile::InstructionSet;
use elsa_core::state::WEIGHT_FLOOR;
use elsa_kernels::attention::Kernel;
use elsa_kernels::exp2::{EXP2_FLOOR, EXP2_MONIC, EXP2_NEAREST};
use elsa_kernels::registry::ATTENTION;

/// Number of values of the reduced argument for which the largest error is computed. Between adjacent points the error
/// changes by less than a millionth of the bound.
const POINTS: u32 = 1 << 18;

/// Number known up to an error of `off`.
#[derive(Clone, Copy)]
struct Near {
    x: f64,
    off: f64,
}

impl Near {
    fn exactly(x: f32) -> Near {
        Near { x: x.into(), off: 0.0 }
    }

    /// Adds the error of rounding to f32: half a unit in the last place of the largest possible value.
    fn rounded(self) -> Near {
        let largest = self.x.abs() + self.off;
        let half = if largest == 0.0 { 0.0 } else { (largest.log2().floor() - 24.0).exp2() };
        Near { off: self.off + half, ..self }
    }

    fn times(self, b: Near) -> Near {
        let off = self.x.abs() * b.off + b.x.abs() * self.off + self.off * b.off;
        Near { x: self.x * b.x, off }
    }

    fn plus(self, b: Near) -> Near {
        Near { x: self.x + b.x, off: self.off + b.off }
    }

    fn fma(self, b: Near, c: Near) -> Near {
        self.times(b).plus(c).rounded()
    }
}

/// Evaluates a polynomial in Horner's form. A multiply-add rounds once if `fused`, twice if not.
fn horner(c: [f32; 6], r: Near, fused: bool) -> Near {
    let step = |p: Near, c: f32| match fused {
        true => p.fma(r, Near::exactly(c)),
        false => p.times(r).rounded().plus(Near::exactly(c)).rounded(),
    };
    c[..5].iter().rev().fold(Near::exactly(c[5]), |p, c| step(p, *c))
}

/// Evaluates a polynomial whose linear coefficient is one, with its terms in pairs.
fn pairs(c: [f32; 6], r: Near) -> Near {
    let c = c.map(Near::exactly);
    let r2 = r.times(r).rounded();
    let low = r.plus(c[0]).rounded();
    let high = r.fma(c[5], c[4]);
    r2.fma(r2.fma(high, r.fma(c[3], c[2])), low)
}

/// Returns the largest possible relative error of a kernel's exponential.
fn possible(kernel: &Kernel) -> f64 {
    let s = &kernel.spec;
    let floor = s.set == InstructionSet::Avx512;
    let first = if floor { 0.0 } else { -0.5 };
    let error = |i: u32| {
        let r = Near { x: first + f64::from(i) / f64::from(POINTS), off: 0.0 };
        let p = match s.set {
            InstructionSet::Neon => pairs(EXP2_MONIC, r),
            InstructionSet::Avx512 => horner(EXP2_FLOOR, r, s.fused),
            InstructionSet::Avx2 | InstructionSet::Scalar => horner(EXP2_NEAREST, r, s.fused),
        };
        let exact = r.x.exp2() * s.weight_scale;
        ((p.x - exact).abs() + p.off) / exact
    };
    let worst = (0..=POINTS).map(error).fold(0.0, larger);
    // Rounding the fraction above the floor adds at most this error.
    worst + if floor { std::f64::consts::LN_2 * (-25.0f64).exp2() } else { 0.0 }
}

#[test]
#[cfg_attr(miri, ignore = "millions of logarithms, and nothing unsafe")]
fn declared_errors_follow_from_the_arithmetic() {
    for kernel in ATTENTION {
        let (s, possible) = (&kernel.spec, possible(kernel));
        println!("{}: at most {possible:.3e}, declared {:.2e}", s.name, s.exp2_relative);
        assert!(possible <= s.exp2_relative, "{}: {possible:.3e}", s.name);
        assert!(possible >= 0.9 * s.exp2_relative, "{}: only {possible:.3e}", s.name);
    }
}

/// Returns the difference between `got` and `exact`, in units in the last place of the f32 value nearest to `exact`.
fn ulps(got: f32, exact: f64) -> f64 {
    let exponent = exact.abs().log2().floor().max(-126.0);
    (f64::from(got) - exact).abs() / (exponent - 23.0).exp2()
}

#[test]
#[cfg_attr(miri, ignore = "millions of exponentials")]
fn exponentials_keep_their_declared_errors() {
    let mut ran = 0;
    for kernel in ATTENTION.iter().filter(|kernel| kernel.is_present()) {
        let s = &kernel.spec;
        // The arguments are dense in [-1.5, 1.5], where every fraction occurs. In the remaining range, steps are
        // larger. An emulator tests fewer arguments.
        let step = if cfg!(target_arch = "aarch64") { 5 } else { 1 };
        let dense = (0..3_000_000).step_by(step).map(|i| -1.5 + i as f32 * 1e-6);
        let wide = (0..1_000_000).step_by(step).map(|i| WEIGHT_FLOOR + i as f32 * 2.2e-4);
        let x: Vec<f32> = dense.chain(wide).filter(|x| *x <= 119.0).collect();
        let mut y = vec![0.0f32; x.len()];
        // SAFETY: the kernel is present, and both slices have `x.len()` values.
        unsafe { (kernel.primitives.exp2)(x.as_ptr(), x.len(), y.as_mut_ptr()) }
        let (mut relative, mut at, mut units) = (0.0f64, 0.0f32, 0.0f64);
        for (x, y) in x.iter().zip(y) {
            let exact = f64::from(*x).exp2() * s.weight_scale;
            let error = (f64::from(y) / exact - 1.0).abs();
            if error > relative || error.is_nan() {
                (relative, at) = (error, *x);
            }
            units = larger(units, ulps(y, exact));
        }
        println!("{}: {relative:.3e} at {at}, {units:.2} ULP", s.name);
        assert!(relative <= s.exp2_relative, "{}: {relative:.3e} at {at}", s.name);
        // The declared error must be within a factor of two of the measured one, or it means nothing.
        assert!(relative >= s.exp2_relative / 2.0, "{}: only {relative:.3e}", s.name);
        ran += 1;
    }
    assert!(ran > 0);
}
