//! Tests linear attention on the GPU back end in long chunks that are all computed at once: the form `chunk` without a
//! delta rule and with at most one gate per head. `cuda_linear_marks` tests other rules.

use crate::cuda_linear::{awkward, check_long_chunks, repeated};
use elsa_core::dtype::DType;
use elsa_core::linear::{Direction, Form, Rule};
use elsa_oracle::gpu_engine;
use elsa_oracle::linear::{Case, GateKind, Params};
use elsa_runtime::{Fallback, LinearPlanOptions};

fn chunk() -> LinearPlanOptions {
    LinearPlanOptions::default().form(Form::Chunk)
}

/// Compares outputs and last states with the recurrence in f64, for numbers of tokens around a chunk, for sizes with
/// several tiles and blocks, and for every layout, type and direction.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn chunks_at_once_are_within_their_bounds() {
    let engine = gpu_engine(Fallback::Fail);
    for n in 0..72 {
        let tokens = [1, 31, 32, 33, 63, 64, 65, 128, 150][n % 9];
        let dims = [[64, 64], [5, 130], [65, 7], [33, 66], [129, 36]][n % 5];
        let rule = [Rule::Gated, Rule::Linear, Rule::Gated][n % 3];
        let params = awkward(n, Params { seed: n as u64, ..Params::plain(rule, tokens, dims) });
        check_long_chunks(&engine, &params.build());
    }
}

/// Checks that the kernels for few blocks have the bits of those for many, which a batch has.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn few_blocks_have_the_bits_of_many() {
    const BATCH: usize = 300;
    let engine = gpu_engine(Fallback::Fail);
    for n in 0..12 {
        let (tokens, dims) = ([64, 50, 33, 64][n % 4], [[64, 64], [40, 64], [64, 20]][n % 3]);
        let rule = if n % 5 == 0 { Rule::Linear } else { Rule::Gated };
        let mut params = Params { seed: n as u64, past: true, ..Params::plain(rule, tokens, dims) };
        params.gates = [GateKind::Mild, GateKind::Hard, GateKind::Clearing][n / 2 % 3];
        params.dtype = [DType::F32, DType::F16, DType::F32, DType::Bf16][n / 3];
        params.normalize = (n % 4 == 1).then_some(1e-6);
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

/// Checks that outputs have the same bits whether the blocks of the last launch compute the states before their chunks, or a launch
/// of its own does, as in calls that return states or have many chunks.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn states_of_few_chunks_change_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    for n in 0..24 {
        let tokens = [65, 130, 257, 320, 511, 512, 513, 192][n % 8];
        let dims = [[64, 64], [40, 65], [65, 20], [130, 7], [16, 64]][n % 5];
        let rule = if n % 6 == 0 { Rule::Linear } else { Rule::Gated };
        let mut params = Params { seed: n as u64, past: n % 4 != 1, ..Params::plain(rule, tokens, dims) };
        params.gates = [GateKind::Mild, GateKind::Hard, GateKind::Clearing][n / 2 % 3];
        params.direction = [Direction::Forward, Direction::Reverse][n / 3 % 2];
        params.heads = [[1, 1, 1], [4, 2, 2], [2, 1, 1]][n % 3];
        params.dtype = [DType::F32, DType::F16][n / 7 % 2];
        params.normalize = (n % 5 == 1).then_some(1e-6);
        if n % 4 == 3 {
            params.packed = Some(vec![0, 100, 100, tokens as i64]);
        }
        let [kept, silent] = [true, false].map(|present| Params { present, ..params.clone() }.build());
        let bits = |case: &Case| {
            let output = case.run_on(&engine, &chunk()).rows(case);
            output.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert!(bits(&kept) == bits(&silent), "{}", silent.name);
        silent.check_on(&engine, &chunk());
    }
}

/// Checks that a stream that is cut after whole chunks has the bits of the whole sequence.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn cuts_between_chunks_change_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    for rule in [Rule::Linear, Rule::Gated] {
        let case = Params { past: true, ..Params::plain(rule, 200, [36, 20]) }.build();
        let whole = case.run_on(&engine, &chunk());
        for cut in [64, 128] {
            let (first, second) = case.cut(cut);
            let start = first.run_on(&engine, &chunk());
            let second = Case { past: start.present.clone(), ..second };
            let end = second.run_on(&engine, &chunk());
            assert_eq!(whole.rows(&case), [start.rows(&first), end.rows(&second)].concat(), "{rule:?} {cut}");
            assert_eq!(whole.present, end.present, "{rule:?} {cut}");
        }
    }
}

/// Checks that an infinite value affects no earlier token, and no token after a gate that clears it. A NaN gate poisons
/// all later tokens, even if the state is zero.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn infinities_stay_between_their_token_and_the_next_clear() {
    let engine = gpu_engine(Fallback::Fail);
    // The token and the gates are in one half of a chunk, in both halves, or in two chunks.
    for at in [10, 30, 61, 100] {
        let mut case = Params { past: true, ..Params::plain(Rule::Gated, 150, [8, 4]) }.build();
        case.value.set(4 * at, f32::INFINITY);
        if let Some(decay) = &mut case.decay {
            decay.set(at + 2, f32::NEG_INFINITY);
            decay.set(at + 5, f32::NAN);
        }
        let rows = case.run_on(&engine, &chunk()).rows(&case);
        let finite = |t: usize| rows[4 * t..4 * t + 4].iter().all(|x| x.is_finite());
        let poisoned = |t: usize| t == at || t == at + 1 || t >= at + 5;
        assert!((0..150).all(|t| finite(t) != poisoned(t)), "{at}");
    }
    let mut case = Params::plain(Rule::Gated, 150, [8, 4]).build();
    if let Some(decay) = &mut case.decay {
        decay.set(0, f32::NAN);
    }
    let rows = case.run_on(&engine, &chunk()).rows(&case);
    assert!(rows.iter().all(|x| x.is_nan()), "a gate before all values poisons them, too");
}

/// Checks gates whose product over half a chunk is beyond the range of the factors of a weight, and gates whose product
/// is beyond f32 while the state is small.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn gates_beyond_their_factors() {
    let engine = gpu_engine(Fallback::Fail);
    for (gate, size) in [(-3.0, 1.0), (1.0, 1e-30), (2.0, 1e-38), (-20.0, 1e30)] {
        let mut case = Params { past: true, ..Params::plain(Rule::Gated, 70, [8, 4]) }.build();
        if let Some(decay) = &mut case.decay {
            (0..60).for_each(|t| decay.set(t, gate));
        }
        (0..4 * 70).for_each(|i| case.value.set(i, size * case.value.get(i)));
        if let Some(past) = &mut case.past {
            past.iter_mut().for_each(|s| *s *= size);
        }
        case.check_on(&engine, &chunk());
    }
}
