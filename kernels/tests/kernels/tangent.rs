//! Tests the hyperbolic tangent of the soft cap against the error that the bounds assume for it.

use elsa_core::attention::bound::tangent;
use elsa_core::attention::plan::KeyLayout;
use elsa_kernels::attention::{Ahead, Block, Kernel, Tile};
use elsa_kernels::registry::ATTENTION;

/// Computes the hyperbolic tangents of the numbers `x`. They are the scores of one key under a soft cap of one, in a
/// tile of one vector; each row has one of the numbers.
fn tangents(kernel: &Kernel, x: &[f32]) -> Vec<f32> {
    let (w, d) = (kernel.spec.lanes, 4);
    assert_eq!(x.len(), w);
    let mut query = vec![0.0; d * w];
    query[..w].copy_from_slice(x);
    let rows = match kernel.spec.keys {
        KeyLayout::Rows => 1,
        KeyLayout::Panels(r) => r,
    };
    // Only the first dim of the only key is not zero; its position is the same in rows and in panels.
    let mut keys = vec![0.0; d * rows];
    keys[0] = 1.0;
    let (mut weights, mut pad) = (vec![0.0; 32 * w], vec![0.0; 8 * d]);
    let tile = Tile {
        query: query.as_ptr(),
        weights: weights.as_mut_ptr(),
        pad: pad.as_mut_ptr(),
        head_dim: d,
        value_dim: d,
    };
    let block = Block {
        keys: keys.as_ptr(),
        key_stride: d,
        values: keys.as_ptr(),
        value_stride: d,
        count: 1,
        bias: core::ptr::null(),
        shares_bias: false,
        masks: true,
        ahead: Ahead::NOTHING,
        largest: 0.0,
        cap: 1.0,
    };
    let mut scores = vec![0.0; 32 * w];
    // SAFETY: the kernel is present; tile and block cover what their contracts require, and the scores have room.
    unsafe { (kernel.entries[0].scores)(&tile, &block, scores.as_mut_ptr(), core::ptr::null_mut()) };
    scores.truncate(w);
    scores
}

#[test]
fn its_error_is_what_the_bounds_count() {
    let steps = if cfg!(miri) { 50 } else { 100_000 };
    for kernel in ATTENTION.iter().filter(|kernel| kernel.is_present()) {
        let w = kernel.spec.lanes;
        let allowed = tangent(kernel.spec.exp2_relative);
        let mut largest = 0.0f64;
        for start in (0..steps).step_by(w) {
            // The arguments reach from 2^-10 to 2^5 with either sign, and are densest where the formula changes.
            let x: Vec<f32> = (start..start + w)
                .map(|i| {
                    let t = i as f32 / steps as f32;
                    let x = if i % 3 == 0 { 0.55 + 0.2 * t } else { (15.0 * t - 10.0).exp2() };
                    if i % 2 == 0 { x } else { -x }
                })
                .collect();
            for (x, y) in x.iter().zip(tangents(kernel, &x)) {
                let exact = f64::from(*x).tanh();
                let error = ((f64::from(y) - exact) / exact).abs();
                assert!(error <= allowed, "{}: {error:e} at {x}; allowed: {allowed:e}", kernel.spec.name);
                largest = largest.max(error);
            }
        }
        println!("{}: at most {largest:.2e}, counted {allowed:.2e}", kernel.spec.name);
        assert!(largest > allowed / 8.0, "{}: only {largest:e}", kernel.spec.name);
    }
}
