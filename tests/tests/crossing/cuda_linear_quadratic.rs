//! Tests the quadratic form on the GPU back end for rules that need a factor for each pair of tokens: delta rules, and
//! rules with a gate per dim.

use elsa_core::dtype::DType;
use elsa_core::linear::bound::Solve;
use elsa_core::linear::{Direction, Form, Rule};
use elsa_oracle::gpu_engine;
use elsa_oracle::linear::{Case, GateKind, Packing, Params};
use elsa_runtime::{Backend, Fallback, LinearPlanOptions};

/// Rules that need a factor for each pair of tokens; `true` means that each dim has a separate gate.
const RULES: [(Rule, bool); 4] =
    [(Rule::Delta, false), (Rule::GatedDelta, false), (Rule::Gated, true), (Rule::GatedDelta, true)];

/// Number of tokens per block.
const TILE: usize = 32;

fn parallel() -> LinearPlanOptions {
    LinearPlanOptions::default().form(Form::Parallel)
}

fn params((rule, per_dim): (Rule, bool), tokens: usize, dims: [usize; 2]) -> Params {
    Params { per_dim, past: true, ..Params::plain(rule, tokens, dims) }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn every_rule_around_the_ends_of_tiles() {
    let engine = gpu_engine(Fallback::Fail);
    for (n, rule) in RULES.into_iter().enumerate() {
        for (m, tokens) in [0, 1, TILE - 1, TILE, TILE + 1, 3 * TILE + 5].into_iter().enumerate() {
            let dims = [[12, 70], [7, 3], [33, 64], [36, 20]][(n + m) % 4];
            let mut params = params(rule, tokens, dims);
            params.direction = Direction::ALL[(n + m) % 4];
            params.past = params.direction != Direction::Bidirectional;
            params.in_place = params.past && m % 2 == 0;
            params.build().check_on(&engine, &parallel());
        }
    }
}

/// Runs shared query and key heads, layouts with gaps, 16-bit elements whose writes are f32, and packed sequences.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn heads_types_and_packed_sequences() {
    let engine = gpu_engine(Fallback::Fail);
    for (n, rule) in RULES.into_iter().cycle().take(12).enumerate() {
        let mut params = params(rule, 70, [[20, 12], [9, 5]][n % 2]);
        params.heads = [[4, 1, 2], [1, 1, 2], [2, 2, 4]][n % 3];
        params.packing = [Packing::Heads, Packing::Tokens, Packing::Gaps][(n + n / 3) % 3];
        params.dtype = [DType::F32, DType::F16, DType::Bf16][(n + n / 4) % 3];
        params.gate_dtype = params.dtype;
        params.direction = [Direction::Forward, Direction::Reverse][n / 2 % 2];
        params.normalize = (n % 3 > 0).then_some(1e-6);
        params.shared_beta = n % 5 == 1;
        (params.batch, params.seed, params.in_place) = (1 + n / 2 % 2, n as u64, n % 3 == 2);
        if n / 4 == 1 {
            (params.batch, params.packed) = (1, Some(vec![0, 0, 33, 34, 70]));
        }
        params.build().check_on(&engine, &parallel());
    }
}

/// Runs gates whose logarithms are −1000, +1 and −∞, nearly equal keys, and rates near two.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn gates_and_keys_that_break_naive_code() {
    let engine = gpu_engine(Fallback::Fail);
    for rule in RULES {
        for gates in [GateKind::Hard, GateKind::Clearing].into_iter().take(2 * usize::from(rule.0.is_gated()))
        {
            // The case with hard gates also normalises queries and keys.
            let normalize = (gates == GateKind::Hard).then_some(1e-6);
            Params { gates, normalize, ..params(rule, 100, [8, 8]) }.build().check_on(&engine, &parallel());
        }
        if rule.0.is_delta() {
            let plain = params(rule, 100, [8, 8]);
            let alike = Params { equal_keys: true, most_beta: 1.9, normalize: Some(0.0), ..plain };
            alike.build().check_on(&engine, &parallel());
        }
    }
}

/// Runs gates whose logarithms have such large positive or negative sums within a few tiles that a factor per row or per
/// key would overflow or vanish. The factor of a pair is in range.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn sums_of_gates_beyond_the_range_of_factors() {
    let engine = gpu_engine(Fallback::Fail);
    for rule in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        let dims = if rule.1 { 4 } else { 1 };
        // In the second and the third tile, gates grow and then shrink the state (so that late rows undo earlier
        // growth), or shrink and then grow it, or shrink it twice.
        for (second, third) in [(2.5, -4.0), (-4.0, 2.5), (-3.0, -3.0), (1.5, -3.5), (-3.5, 1.5)] {
            let mut case = Params { past: false, ..params(rule, 3 * TILE, [4, 4]) }.build();
            for t in 0..3 * TILE {
                let gate = [-0.01, second, third][t / TILE];
                (0..dims).for_each(|x| case.decay.as_mut().unwrap().set(t * dims + x, gate));
            }
            for silent in [false, true] {
                // If `silent`, later tokens write nothing that could hide the remains of the earlier ones.
                for t in if silent { TILE } else { 3 * TILE }..3 * TILE {
                    (0..4).for_each(|c| case.value.set(4 * t + c, 0.0));
                    if let Some(beta) = &mut case.beta {
                        beta.set(t, 0.0);
                    }
                }
                let (found, answer) = case.check_on(&engine, &parallel());
                let rows = found.rows(&case);
                for t in 0..3 * TILE {
                    let (mut off, mut norm) = (0.0, 0.0);
                    for c in 0..4 {
                        off += (rows[4 * t + c] - answer.output[4 * t + c]).powi(2);
                        norm += answer.output[4 * t + c].powi(2);
                    }
                    // The bound of the plan also allows for factors that underflow f32. Here the factors of pairs are
                    // in range, so that digits remain, and the limit is tighter. Gates above one magnify roundings.
                    let most = 1e-3 * norm.sqrt() + 1e-34;
                    assert!(off.sqrt() <= most, "{rule:?} {second} {silent} token {t}: {off} of {norm}");
                }
            }
        }
    }
}

/// Checks that a gate of −∞ clears everything before it, including NaN, that a gate per dim clears only its dim, and
/// that nothing else removes a NaN.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn what_is_cleared_may_be_nan() {
    let engine = gpu_engine(Fallback::Fail);
    let tokens = 80;
    for rule in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        let dims = if rule.1 { 7 } else { 1 };
        for (nan_at, clear_at) in [(5, 6), (5, 70), (40, 70), (66, 70)] {
            let mut case = params(rule, tokens, [7, 16]).build();
            case.past.as_mut().unwrap()[..16].fill(f32::NAN);
            case.value.set(16 * nan_at + 3, f32::NAN);
            case.key.set(7 * nan_at + 2, f32::INFINITY);
            let poisoned = case.run_on(&engine, &parallel()).rows(&case);
            assert!(poisoned.iter().all(|x| x.is_nan()), "{rule:?}");
            // If each dim has a gate, all dims except the first are cleared, and the contents of the first remain.
            let decay = case.decay.as_mut().unwrap();
            if clear_at == 70 {
                (0..dims).for_each(|x| decay.set(nan_at * dims + x, f32::NAN));
            }
            (1..dims).for_each(|x| decay.set(clear_at * dims + x, f32::NEG_INFINITY));
            if dims > 1 {
                let poisoned = case.run_on(&engine, &parallel()).rows(&case);
                assert!(poisoned.iter().all(|x| x.is_nan()), "{rule:?}: the past of dim 0");
            }
            case.decay.as_mut().unwrap().set(clear_at * dims, f32::NEG_INFINITY);
            let (found, answer) = case.check_on(&engine, &parallel());
            let (rows, states) = (found.rows(&case), found.states(&case));
            assert!(answer.output[16 * clear_at..].iter().all(|x| x.is_finite()));
            assert!(
                rows[16 * clear_at..].iter().chain(&states).all(|x| x.is_finite()),
                "{rule:?} {clear_at}"
            );
            assert!(rows[16 * (clear_at - 1)..16 * clear_at].iter().all(|x| !x.is_finite()), "{rule:?}");
        }
    }
    // One gate is NaN, with or without tokens before it.
    for rule in RULES.into_iter().filter(|(rule, _)| rule.is_gated()) {
        let dims = if rule.1 { 7 } else { 1 };
        for at in [0, 40] {
            let mut case = Params { past: false, ..params(rule, tokens, [7, 16]) }.build();
            case.decay.as_mut().unwrap().set(at * dims, f32::NAN);
            let found = case.run_on(&engine, &parallel());
            let rows = found.rows(&case);
            assert!(rows[..16 * at].iter().all(|x| x.is_finite()), "{rule:?}");
            assert!(rows[16 * at..].iter().all(|x| x.is_nan()), "{rule:?} {at}");
            assert!(found.states(&case)[..16].iter().all(|x| x.is_nan()), "{rule:?} {at}");
        }
    }
}

/// Measures the error on random unit keys, where the writes of thousands of tokens cancel, so that rounding errors in
/// sums of many terms would show. With plain additions of sums of four products, the error is 5.4e-7.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn long_sums_keep_their_digits() {
    let engine = gpu_engine(Fallback::Fail);
    for (rule, per_dim) in [(Rule::Delta, false), (Rule::GatedDelta, true)] {
        let tokens = 1024;
        let mut case = Params { per_dim, ..Params::plain(rule, tokens, [64, 16]) }.build();
        if let Some(decay) = &mut case.decay {
            // All gates are one, so only the rule itself removes contents of the state.
            (0..decay.len()).for_each(|i| decay.set(i, 0.0));
        }
        normalized(&mut case, 64);
        let plan = engine.linear_plan(&case.problem, &parallel()).unwrap();
        let executed = plan.executed_of(Backend::Cuda, tokens);
        assert_eq!((executed.form, executed.chunk, executed.solve), (Form::Parallel, tokens, Solve::Rows));
        let (found, answer) = case.check_on(&engine, &parallel());
        let rows = found.rows(&case);
        let (mut off, mut norm) = (0.0, 0.0);
        for (x, exact) in rows.iter().zip(&answer.output) {
            off += (x - exact).powi(2);
            norm += exact.powi(2);
        }
        let error = (off / norm).sqrt();
        assert!(error <= 3.2e-7, "{rule:?}: {error:e}");
    }
}

/// Normalises the keys to unit vectors.
fn normalized(case: &mut Case, dims: usize) {
    for row in 0..case.key.len() / dims {
        let norm = (0..dims).map(|x| case.key.get(row * dims + x).powi(2)).sum::<f32>().sqrt();
        (0..dims).for_each(|x| case.key.set(row * dims + x, case.key.get(row * dims + x) / norm));
    }
}
