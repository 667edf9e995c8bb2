//! Builds a bidirectional block of Vim (Zhu et al., *Vision Mamba*, algorithm 1) from the operators of the engine, and
//! compares it with its PyTorch definition in f64.
//!
//! The definition flips the tokens for the second direction, which has separate parameters; the engine processes them
//! backwards instead. Projections are matrix products, which the test computes for both.

use elsa_core::dtype::{Elements, ElementsMut};
use elsa_core::random::Random;
use elsa_core::series::Series;
use elsa_core::series::convolution::{self, Taps};
use elsa_core::series::selective::{self, Coefficient};
use elsa_core::view::View;
use elsa_oracle::SLOW;
use elsa_oracle::cpu_engines;
use elsa_oracle::random::seeded;
use elsa_oracle::series::normals;
use elsa_runtime::{ConvolutionOptions, Engine, SelectiveOptions};

/// Sizes of the block.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    model: usize,
    inner: usize,
    states: usize,
    rank: usize,
}

/// Number of filter taps in the convolution.
const TAPS: usize = 4;

/// Parameters of one direction; a weight matrix has one row per output, as in PyTorch.
struct Direction {
    conv_weight: Vec<f32>,
    conv_bias: Vec<f32>,
    x_proj: Vec<f32>,
    dt_proj: Vec<f32>,
    dt_bias: Vec<f32>,
    a: Vec<f32>,
    d: Vec<f32>,
}

/// Parameters of the block.
struct Block {
    in_proj: Vec<f32>,
    directions: [Direction; 2],
    out_proj: Vec<f32>,
}

impl Block {
    fn new(s: Sizes, r: &mut Random) -> Block {
        let mut matrix =
            |rows: usize, columns: usize| normals(r, rows * columns, (columns as f32).powf(-0.5));
        let in_proj = matrix(2 * s.inner, s.model);
        let mut direction = || Direction {
            conv_weight: matrix(s.inner, TAPS),
            conv_bias: matrix(s.inner, 1),
            x_proj: matrix(s.rank + 2 * s.states, s.inner),
            dt_proj: matrix(s.inner, s.rank),
            dt_bias: matrix(s.inner, 1),
            a: (0..s.inner * s.states).map(|i| -((i % s.states) as f32 + 1.0)).collect(),
            d: matrix(s.inner, 1),
        };
        let directions = [direction(), direction()];
        Block { in_proj, directions, out_proj: matrix(s.model, s.inner) }
    }
}

/// Computes `x Wᵀ`. The rows of `x` have `inputs` values, and the weights `W` are `[outputs][inputs]`.
fn linear<T: Copy + std::ops::Mul<Output = T> + std::iter::Sum>(
    x: &[T],
    weights: &[f32],
    inputs: usize,
    of: impl Fn(f32) -> T,
) -> Vec<T> {
    let row = |x: &[T]| -> Vec<T> {
        weights.chunks_exact(inputs).map(|w| w.iter().zip(x).map(|(w, x)| of(*w) * *x).sum()).collect()
    };
    x.chunks_exact(inputs).flat_map(row).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Computes one direction as PyTorch does, from `x` and `z`, `[tokens][inner]`: `conv1d`, `silu`, `x_proj`, `dt_proj`,
/// `selective_scan_ref`.
fn defined(s: Sizes, p: &Direction, x: &[f64], z: &[f64]) -> Vec<f64> {
    let at = |t: usize, c: usize| t * s.inner + c;
    let mut u = vec![0.0; x.len()];
    for t in 0..s.tokens {
        for c in 0..s.inner {
            // The convolution is padded by its width minus one, and its last outputs are dropped.
            let product = |k: usize| match (t + k).checked_sub(TAPS - 1) {
                Some(from) => f64::from(p.conv_weight[c * TAPS + k]) * x[at(from, c)],
                None => 0.0,
            };
            u[at(t, c)] = silu((0..TAPS).map(product).sum::<f64>() + f64::from(p.conv_bias[c]));
        }
    }
    let projected = linear(&u, &p.x_proj, s.inner, f64::from);
    let width = s.rank + 2 * s.states;
    let time: Vec<f64> = projected.chunks_exact(width).flat_map(|row| row[..s.rank].to_vec()).collect();
    let delta = linear(&time, &p.dt_proj, s.rank, f64::from);
    let mut y = vec![0.0; x.len()];
    for c in 0..s.inner {
        let mut state = vec![0.0; s.states];
        for t in 0..s.tokens {
            let dt = (delta[at(t, c)] + f64::from(p.dt_bias[c])).exp().ln_1p();
            let (b, rest) = projected[t * width + s.rank..(t + 1) * width].split_at(s.states);
            let mut sum = f64::from(p.d[c]) * u[at(t, c)];
            for (n, x) in state.iter_mut().enumerate() {
                *x = (dt * f64::from(p.a[c * s.states + n])).exp() * *x + dt * b[n] * u[at(t, c)];
                sum += rest[n] * *x;
            }
            y[at(t, c)] = sum * silu(z[at(t, c)]);
        }
    }
    y
}

fn flipped(x: &[f64], width: usize) -> Vec<f64> {
    x.chunks_exact(width).rev().flatten().copied().collect()
}

/// Computes the block as PyTorch does.
fn definition(s: Sizes, block: &Block, input: &[f32]) -> Vec<f64> {
    let input: Vec<f64> = input.iter().map(|x| f64::from(*x)).collect();
    let both = linear(&input, &block.in_proj, s.model, f64::from);
    let half = |first: usize| -> Vec<f64> {
        both.chunks_exact(2 * s.inner).flat_map(|row| row[first..first + s.inner].to_vec()).collect()
    };
    let (x, z) = (half(0), half(s.inner));
    let forward = defined(s, &block.directions[0], &x, &z);
    let backward = defined(s, &block.directions[1], &flipped(&x, s.inner), &flipped(&z, s.inner));
    let sum: Vec<f64> = forward.iter().zip(flipped(&backward, s.inner)).map(|(a, b)| a + b).collect();
    linear(&sum, &block.out_proj, s.inner, f64::from)
}

/// Returns a series of `width` channels whose tokens are `row` values apart.
fn columns(s: Sizes, row: usize, width: usize) -> Series {
    Series::of(View::new("x", [1, 1, s.tokens, width], [0, 0, row, 1]).unwrap())
}

/// Computes one direction on the engine. `x` and `z` are the halves of each row of `both`, which the engine reads in
/// place.
fn computed(engine: &Engine, s: Sizes, p: &Direction, both: &[f32], reverse: bool) -> Vec<f32> {
    let half = columns(s, 2 * s.inner, s.inner);
    let dense = columns(s, s.inner, s.inner);
    let mut spec = convolution::Spec::new(half, TAPS, dense);
    (spec.order, spec.silu, spec.reverse) = (Taps::NewestLast, true, reverse);
    let plan = engine.convolution_plan(&spec.check().unwrap(), &ConvolutionOptions::default()).unwrap();
    let mut u = vec![0.0; s.tokens * s.inner];
    let inputs = convolution::Inputs {
        u: Elements::F32(both),
        filter: &p.conv_weight,
        bias: Some(&p.conv_bias),
        past_state: None,
    };
    let outputs = convolution::Outputs { out: Some(ElementsMut::F32(&mut u)), present_state: None };
    plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();

    let width = s.rank + 2 * s.states;
    let projected = linear(&u, &p.x_proj, s.inner, |w| w);
    let time: Vec<f32> = projected.chunks_exact(width).flat_map(|row| row[..s.rank].to_vec()).collect();
    let delta = linear(&time, &p.dt_proj, s.rank, |w| w);
    let coefficients = Coefficient::Token(columns(s, width, s.states));
    let mut spec = selective::Spec::new(dense, dense, s.states, coefficients, coefficients, dense);
    (spec.z, spec.softplus, spec.reverse) = (Some(half), true, reverse);
    let plan = engine.selective_plan(&spec.check().unwrap(), &SelectiveOptions::default()).unwrap();
    let mut y = vec![0.0; u.len()];
    let inputs = selective::Inputs {
        u: Elements::F32(&u),
        delta: Elements::F32(&delta),
        a: &p.a,
        b: Elements::F32(&projected[s.rank..]),
        c: Elements::F32(&projected[s.rank + s.states..]),
        d: Some(&p.d),
        z: Some(Elements::F32(&both[s.inner..])),
        delta_bias: Some(&p.dt_bias),
        past_state: None,
    };
    let outputs = selective::Outputs { out: Some(ElementsMut::F32(&mut y)), present_state: None };
    plan.bind(inputs, outputs, &mut plan.workspace().unwrap()).unwrap().run().unwrap();
    y
}

#[test]
fn a_bidirectional_block_equals_its_definition() {
    // Vim-Tiny has 192 dims and 197 tokens.
    let s = if SLOW {
        Sizes { tokens: 7, model: 6, inner: 12, states: 4, rank: 2 }
    } else {
        Sizes { tokens: 197, model: 48, inner: 96, states: 16, rank: 3 }
    };
    let mut r = seeded(21);
    let block = Block::new(s, &mut r);
    let input = normals(&mut r, s.tokens * s.model, 1.0);
    let want = definition(s, &block, &input);
    for engine in cpu_engines(2) {
        let both = linear(&input, &block.in_proj, s.model, |w| w);
        let [forward, backward] = [false, true].map(|reverse| {
            let direction = &block.directions[usize::from(reverse)];
            computed(&engine, s, direction, &both, reverse)
        });
        let sum: Vec<f32> = forward.iter().zip(&backward).map(|(a, b)| a + b).collect();
        let found = linear(&sum, &block.out_proj, s.inner, |w| w);
        assert_eq!(found.len(), want.len());
        let square = |sum: f64, x: f64| sum + x * x;
        let error = found.iter().zip(&want).map(|(x, want)| f64::from(*x) - want).fold(0.0, square).sqrt();
        let relative = error / want.iter().copied().fold(0.0, square).sqrt();
        println!("{}: {relative:e} relative L2", engine.backend());
        assert!(relative <= 1e-6, "{}: {relative:e}", engine.backend());
    }
}
