//! Tests delta rules and gates per dim on the GPU back end in long chunks that are all computed at once: the form `chunk` with at
//! most 128 dims.

use crate::cuda_linear::{awkward, check_long_chunks, repeated};
use elsa_core::linear::{Form, Rule};
use elsa_oracle::gpu_engine;
use elsa_oracle::linear::{Case, GateKind, Params};
use elsa_runtime::{Fallback, LinearPlanOptions};

/// Rules, and whether each dim has a gate.
const RULES: [(Rule, bool); 4] =
    [(Rule::GatedDelta, false), (Rule::Gated, true), (Rule::Delta, false), (Rule::GatedDelta, true)];

fn params(n: usize, tokens: usize, dims: [usize; 2]) -> Params {
    let (rule, per_dim) = RULES[n % 4];
    Params { per_dim, seed: n as u64, ..Params::plain(rule, tokens, dims) }
}

fn chunk() -> LinearPlanOptions {
    LinearPlanOptions::default().form(Form::Chunk)
}

/// Compares outputs and last states with the recurrence in f64, for numbers of tokens around a chunk, for sizes with several
/// tiles and blocks, and for every layout, type and direction.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn chunks_at_once_are_within_their_bounds() {
    let engine = gpu_engine(Fallback::Fail);
    for n in 0..72 {
        let tokens = [1, 15, 16, 17, 63, 64, 65, 128, 150][n % 9];
        let dims = [[64, 64], [5, 130], [65, 7], [33, 66], [128, 36]][n % 5];
        let mut params = awkward(n, params(n, tokens, dims));
        params.gates = [GateKind::Mild, GateKind::Hard, GateKind::Clearing][[0, 0, 1, 0, 2][n / 4 % 5]];
        params.equal_keys = n % 6 == 2;
        params.shared_beta = n % 8 == 3;
        check_long_chunks(&engine, &params.build());
    }
}

/// Checks that a sequence has the same bits in a batch, whether its chunks are processed by products or token by token.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_batch_changes_no_bit() {
    const BATCH: usize = 300;
    let engine = gpu_engine(Fallback::Fail);
    for n in 0..8 {
        let (tokens, dims) = ([70, 50][n / 4], [[64, 12], [80, 8], [24, 20]][n % 3]);
        let mut params = Params { past: true, ..params(n, tokens, dims) };
        params.gates = [GateKind::Mild, GateKind::Clearing][n / 4];
        let case = params.build();
        let one = case.run_on(&engine, &chunk());
        let many = repeated(&params, &case, BATCH).run_on(&engine, &chunk());
        let len = one.output.len();
        let same = |i: usize| many.output.get(i).to_bits() == one.output.get(i % len).to_bits();
        assert!((0..BATCH * len).all(same), "{}", case.name);
        let (all, one) = (many.present.unwrap(), one.present.unwrap());
        assert!(
            all.iter().enumerate().all(|(i, x)| x.to_bits() == one[i % one.len()].to_bits()),
            "{}",
            case.name
        );
    }
}

/// Checks that a stream that is cut after whole chunks has the bits of the whole sequence.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn cuts_between_chunks_change_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    for n in 0..RULES.len() {
        let case = Params { past: true, ..params(n, 200, [36, 20]) }.build();
        let whole = case.run_on(&engine, &chunk());
        for cut in [64, 128] {
            let (first, second) = case.cut(cut);
            let start = first.run_on(&engine, &chunk());
            let second = Case { past: start.present.clone(), ..second };
            let end = second.run_on(&engine, &chunk());
            assert_eq!(whole.rows(&case), [start.rows(&first), end.rows(&second)].concat(), "{n} {cut}");
            assert_eq!(whole.present, end.present, "{n} {cut}");
        }
    }
}

/// Checks that an infinite value affects no earlier token, no other column, and no token after a gate that clears it. A NaN gate
/// poisons all later tokens.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn infinities_stay_between_their_token_and_the_next_clear() {
    let engine = gpu_engine(Fallback::Fail);
    for at in [0, 10, 30, 63, 100] {
        let mut case = Params { past: true, ..Params::plain(Rule::GatedDelta, 150, [8, 4]) }.build();
        case.value.set(4 * at + 1, f32::INFINITY);
        if let Some(decay) = &mut case.decay {
            decay.set(at + 2, f32::NEG_INFINITY);
            decay.set(at + 5, f32::NAN);
        }
        let rows = case.run_on(&engine, &chunk()).rows(&case);
        for t in 0..150 {
            let finite = [0, 1, 2, 3].map(|c| rows[4 * t + c].is_finite());
            let wanted = match t {
                _ if t >= at + 5 => [false; 4],
                _ if t == at || t == at + 1 => [true, false, true, true],
                _ => [true; 4],
            };
            assert_eq!(finite, wanted, "{at} {t}");
        }
    }
}

/// Checks gates whose product over a chunk is beyond the range of the factors of a weight, rates that leave a chunk as it was, and
/// keys whose products are beyond f32.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn numbers_that_products_would_lose() {
    let engine = gpu_engine(Fallback::Fail);
    for (gate, size, rate) in
        [(-3.0, 1.0, 0.5), (1.0, 1e-30, 0.0), (2.0, 1e-38, 0.1), (-20.0, 1e30, 1.0), (0.0, 1.0, 0.0)]
    {
        let mut case = Params { past: true, ..Params::plain(Rule::GatedDelta, 70, [8, 4]) }.build();
        for t in 0..60 {
            case.decay.as_mut().unwrap().set(t, gate);
            case.beta.as_mut().unwrap().set(t, rate);
        }
        (0..4 * 70).for_each(|i| case.value.set(i, size * case.value.get(i)));
        if let Some(past) = &mut case.past {
            past.iter_mut().for_each(|s| *s *= size);
        }
        case.check_on(&engine, &chunk());
    }
}
