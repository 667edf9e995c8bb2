//! Tests recurrences whose factors have logarithms beyond the range of f32.

use crate::linear_recurrence::of_one_channel;
use elsa_core::series::recurrence::Gate;
use elsa_oracle::SLOW;
use elsa_oracle::cpu_engines;
use elsa_oracle::random::seeded;
use elsa_runtime::Engine;

/// Checks factors whose logarithms are beyond the range of f32: zero stays zero, and small numbers grow to their exact
/// value, within a token and in parts.
pub(crate) fn large_logarithms(engines: &[Engine]) {
    for first in [89.0, 88.71, 150.0, 1000.0, f32::MAX] {
        of_one_channel(engines, &[first, 0.0, 0.0], &[1.0; 3], Gate::Log, 0.0, |what, out| {
            assert_eq!(out, [1.0, 2.0, 3.0], "{what}: {first}");
        });
    }
    let mut r = seeded(23);
    for case in 0..if SLOW { 4 } else { 40 } {
        let (mut logs, mut added) = ([0.0f32; 96], [0.0f32; 96]);
        let past = [0.0, 1e-30][case % 2];
        // `at` is the logarithm of the state. The product of the factors between two states is finite.
        let mut at = f64::from(past).ln();
        for (log, added) in logs.iter_mut().zip(&mut added) {
            if at == f64::NEG_INFINITY && r.below(4) > 0 {
                *log = 400.0 * r.unit() as f32;
                continue;
            }
            let next = 86.0 * r.unit() - 43.0;
            *log = if at.is_finite() { (next - at) as f32 } else { 300.0 };
            *added = next.exp() as f32;
            at = next;
            if r.below(16) == 0 {
                (*log, *added, at) = (f32::NEG_INFINITY, 0.0, f64::NEG_INFINITY);
            }
        }
        of_one_channel(engines, &logs, &added, Gate::Log, past, |what, out| {
            let mut h = f64::from(past);
            for (i, x) in out.iter().enumerate() {
                h = if h == 0.0 { 0.0 } else { h * f64::from(logs[i]).exp() } + f64::from(added[i]);
                let error = (f64::from(*x) - h).abs();
                assert!(
                    error <= 1e-4 * h.abs() + 1e-37 || h > 3e38,
                    "{what}: {case}, token {i}: {x:e} for {h:e}"
                );
            }
        });
    }
}

#[test]
fn logarithms_beyond_f32_follow_the_state() {
    large_logarithms(&cpu_engines(2));
}
