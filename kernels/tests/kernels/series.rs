//! Compares the functions of the per-channel kernels with computations in f64, for arguments of all exponents.

use elsa_core::series::functions::{LEAST_LOG, gate_f64, sigmoid_f64, softplus_f64};
use elsa_kernels::registry::SERIES;

/// Number of values per call.
const COUNT: usize = 4096;

#[test]
fn functions_are_as_accurate_as_declared() {
    let step: usize = if cfg!(miri) { 1 << 24 } else { 997 };
    for kernel in SERIES.iter().filter(|kernel| kernel.is_present()) {
        let mut worst = [0.0f64; 3];
        let (mut x, mut y) = (vec![0.0f32; COUNT], [vec![0.0f32; COUNT], vec![0.0; COUNT], vec![0.0; COUNT]]);
        // The bit patterns cover every exponent with thousands of mantissas, both signs, and NaN.
        let mut bits = (0..=u32::MAX).step_by(step);
        loop {
            let taken = x.iter_mut().zip(&mut bits).map(|(x, bits)| *x = f32::from_bits(bits)).count();
            if taken == 0 {
                break;
            }
            let to = y.each_mut().map(|y| y.as_mut_ptr());
            // SAFETY: each array has `COUNT` values, a whole number of vectors; the instruction set is present.
            unsafe { (kernel.functions)(x.as_ptr(), COUNT, to) };
            for i in 0..taken {
                let at = f64::from(x[i]);
                let silu = at * sigmoid_f64(at);
                for (n, exact) in [gate_f64(at), softplus_f64(at), silu].into_iter().enumerate() {
                    let found = f64::from(y[n][i]);
                    if exact.is_nan() {
                        assert!(found.is_nan(), "{}: {n} of {at}: {found}", kernel.spec.name);
                    } else if exact.abs() > f64::from(f32::MAX) {
                        assert!(found == exact.signum() * f64::INFINITY || found.abs() >= 3.4e38);
                    } else if exact.abs() >= 1.2e-38 {
                        let lost = if n == 2 { f64::from(f32::MIN_POSITIVE) * at.abs() } else { 0.0 };
                        // For arguments below LEAST_LOG, softplus may lose a result near the smallest exponential.
                        let lost = if n == 1 && x[i] < LEAST_LOG { 2e-38 } else { 1.8 * lost };
                        let error = ((found - exact).abs() - lost).max(0.0) / exact.abs();
                        assert!(!error.is_nan());
                        worst[n] = worst[n].max(error);
                    } else {
                        assert!(found.abs() <= 2e-38, "{}: {n} of {at}: {found:e}", kernel.spec.name);
                    }
                }
            }
        }
        let spec = kernel.spec.precision;
        println!("{}: {worst:?} of {spec:?}", kernel.spec.name);
        for (error, declared) in worst.iter().zip([spec.exp, spec.softplus, spec.silu]) {
            assert!(error <= &declared, "{}: {error:e} beyond {declared:e}", kernel.spec.name);
            assert!(
                cfg!(miri) || declared <= 2.5 * error,
                "{}: {declared:e} for {error:e}",
                kernel.spec.name
            );
        }
        let mut y = [vec![0.0f32; COUNT], vec![0.0; COUNT], vec![0.0; COUNT]];
        let to = y.each_mut().map(|y| y.as_mut_ptr());
        // SAFETY: as above.
        unsafe { (kernel.functions)(vec![0.0; COUNT].as_ptr(), COUNT, to) };
        assert_eq!((y[0][0], y[2][0]), (1.0, 0.0), "no decay multiplies by one");
    }
}
