//! Tests calls on a GPU that request only the output, as most callers do. Without states and without splits of the
//! keys, the attention kernel writes the output itself, which `conformance` does not cover.

use elsa_core::attention::MaskKind;
use elsa_core::attention::plan::{GpuKernelSpec, Summation};
use elsa_core::attention::{Alignment, Window};
use elsa_core::dtype::DType;
use elsa_kernels::cuda::{GPU_KERNELS, GpuKernel, Role};
use elsa_oracle::cases::{BiasParams, Buffers, Case, Data, MaskParams, Params, any_case, hard_cases};
use elsa_oracle::gpu_engine;
use elsa_oracle::longest::{Probe, SLACK, multiples, powers};
use elsa_runtime::{Backend, Engine, Fallback, Method, PlanOptions};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Computes the output, and the log-sum-exp if `lse` is set. Returns the largest ratio of an error to its tolerance.
fn check(engine: &Engine, case: &Case, lse: bool) -> Result<f64, String> {
    let mut buffers = case.buffers();
    run(engine, case, lse, PlanOptions::default(), &mut buffers).map(|(share, _)| share)
}

/// Computes a case with plan options into `buffers`, like [`check`]. Also returns the kernel's name.
fn run(
    engine: &Engine,
    case: &Case,
    lse: bool,
    options: PlanOptions,
    buffers: &mut Buffers,
) -> Result<(f64, &'static str), String> {
    let problem = case.problem();
    let plan = engine.plan(&problem, &options).map_err(|e| format!("{case:?}: {e}"))?;
    let mut workspace = plan.workspace().unwrap();
    let mut outputs = buffers.outputs();
    outputs.state = None;
    if !lse {
        outputs.lse = None;
    }
    let report = plan.bind(case.inputs(), outputs, &mut workspace).unwrap().run().unwrap();
    assert_eq!(report.backend, Backend::Cuda);
    let additions = case.spec.key.tokens() + case.spec.past_key.map_or(0, |view| view.tokens());
    let lse = lse.then_some(&buffers.lse[..]);
    let mut naive = case.naive();
    naive.half_chain = plan.certificate().executed.half_chain;
    let share = naive.check(&buffers.output, lse, additions.max(64));
    share.map(|share| (share, plan.kernel())).map_err(|e| format!("{} {case:?}: {e}", plan.kernel()))
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn hard_cases_without_states() {
    let engine = gpu_engine(Fallback::Fail);
    let cases = hard_cases();
    for (i, case) in cases.iter().enumerate() {
        check(&engine, case, i % 2 == 0).unwrap_or_else(|e| panic!("{e}"));
    }
    let kernels: Vec<&str> = engine.loaded_kernels().iter().map(|k| k.name).collect();
    println!("{} cases, {}", cases.len(), kernels.join(" "));
}

/// Runs every attention kernel of the build, by choosing head sizes and types, for few and for many queries.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn every_kernel_runs() {
    let engine = gpu_engine(Fallback::Fail);
    let mut ran = 0;
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for (queries, keys) in [(1, 300), (5, 70), (70, 130), (1000, 70)] {
            let sizes = GPU_KERNELS.iter().filter_map(GpuKernel::attention).filter_map(|k| {
                (k.sixteen_bit == (dtype != DType::F32) && queries <= k.most_queries).then_some(k.head_dim)
            });
            let largest = sizes.max().unwrap();
            assert!(largest >= 128, "{dtype}: {largest}");
            let sizes = [8, 24, 32, 33, 64, 80, 96, 100, 128, 160, 192, 200, 256];
            for d in sizes.into_iter().filter(|d| *d <= largest) {
                for causal in [None, Some(Alignment::BottomRight)] {
                    let p = Params { dtype, causal, ..Params::plain(queries, keys, d, d.min(2 * d - 7)) };
                    check(&engine, &p.build("kernel"), true).unwrap_or_else(|e| panic!("{e}"));
                    ran += 1;
                }
            }
        }
    }
    // These problems need features that the kernel for many rows supports, or features that it leaves to another
    // kernel.
    let many = || Params::plain(1000, 130, 64, 64);
    let mask = |kind| MaskParams { kind, dims: vec![1000, 130], density: 0.6 };
    for p in [
        Params { mask: Some(mask(MaskKind::Bool)), ..many() },
        Params { mask: Some(mask(MaskKind::Additive(DType::F32))), ..many() },
        Params { softcap: Some(0.5), ..many() },
        Params { past: Some(37), ..many() },
        Params { lengths: true, batch: 3, ..many() },
        Params { window: Window { left: Some(30), right: None }, ..many() },
        Params { packed: Some(vec![(1000, 70), (3, 200), (130, 65)]), ..many() },
    ] {
        check(&engine, &p.build("many rows"), true).unwrap_or_else(|e| panic!("{e}"));
        ran += 1;
    }
    // These problems have so few rows that their blocks do not outnumber the SMs of a small device.
    let few = || Params::plain(40, 200, 64, 64);
    let mask = MaskParams { kind: MaskKind::Additive(DType::F32), dims: vec![40, 200], density: 0.6 };
    for p in [few(), Params { mask: Some(mask), ..few() }] {
        check(&engine, &p.build("few rows"), true).unwrap_or_else(|e| panic!("{e}"));
        ran += 1;
    }
    // These problems have narrow heads, and more rows than the kernels with short blocks are for.
    for (mask, packed) in [
        (Some(MaskParams { kind: MaskKind::Additive(DType::F32), dims: vec![2100, 70], density: 0.6 }), None),
        (None, Some(vec![(1000, 70), (3, 200), (130, 65)])),
    ] {
        let p = Params { mask, packed, ..Params::plain(2100, 70, 32, 32) };
        check(&engine, &p.build("many narrow rows"), true).unwrap_or_else(|e| panic!("{e}"));
        ran += 1;
    }
    // The first problems have so many rows that the largest blocks fill the device, with whole tiles of keys. In the
    // other problems, heads share keys.
    let rows = 256 * engine.device().unwrap().profile.sms;
    for d in [32, 64, 96] {
        check(&engine, &Params::plain(rows, 128, d, d).build("many rows"), true)
            .unwrap_or_else(|e| panic!("{e}"));
        ran += 1;
    }
    for (queries, heads, kv_heads) in [(1, 8, 2), (3, 6, 2), (2, 5, 1)] {
        for (causal, past) in [(None, None), (Some(Alignment::BottomRight), Some(37))] {
            let p = Params { heads, kv_heads, causal, past, ..Params::plain(queries, 300, 64, 64) };
            check(&engine, &p.build("shared keys"), true).unwrap_or_else(|e| panic!("{e}"));
            ran += 1;
        }
    }
    // These problems have few rows, and their keys are split into as many parts as fit on the device at once.
    for (queries, keys, d) in [(3, 600, 64), (1, 1024, 32), (2, 5000, 96), (1, 30_000, 128), (70, 1000, 200)]
    {
        for dtype in [DType::F32, DType::F16] {
            let p = Params { dtype, ..Params::plain(queries, keys, d, d) };
            check(&engine, &p.build("many parts"), true).unwrap_or_else(|e| panic!("{e}"));
            ran += 1;
        }
    }
    // Planning this call loads the kernel that measures tensors, whose results `certified` checks.
    let certify = PlanOptions::default().certify(true);
    engine.plan(&Params::plain(5, 7, 8, 8).build("certified").problem(), &certify).unwrap();
    let loaded = engine.loaded_kernels();
    // A small device never splits the keys into many parts.
    let small = engine.device().unwrap().profile.sms < 16;
    let idle: Vec<&str> = GPU_KERNELS
        .iter()
        .filter(|k| !k.attention().is_some_and(GpuKernelSpec::half_scores))
        .filter(|k| {
            // These kernels are run by `cuda_stream`, `conformance`, `cuda_schedules`, `cuda_linear`, `cuda_series` and
            // `cuda_tensor`.
            let elsewhere = matches!(
                k.role,
                Role::AttentionPresent { .. }
                    | Role::AttentionStream { .. }
                    | Role::AttentionWithin(_)
                    | Role::AttentionMergeWithin { .. }
                    | Role::MathScores { .. }
                    | Role::MathWeights { .. }
                    | Role::MathValues(_)
                    | Role::LinearPrepare { .. }
                    | Role::LinearLong { .. }
                    | Role::LinearWalk { .. }
                    | Role::LinearSums { .. }
                    | Role::LinearCarry { .. }
                    | Role::Recurrence { .. }
                    | Role::RecurrenceCarry { .. }
                    | Role::Selective { .. }
                    | Role::SelectiveCarry { .. }
                    | Role::SelectiveS16 { .. }
                    | Role::Convolution { .. }
                    | Role::LinearParallel { .. }
                    | Role::SplitPlanes { .. }
                    | Role::AttentionSplit(_)
                    | Role::AttentionRefused(_)
            );
            !elsewhere && !loaded.iter().any(|l| l.name == k.name)
        })
        .filter(|k| !(small && matches!(k.role, Role::AttentionMerge { states, most, .. } if most > states)))
        .map(|k| k.name)
        .collect();
    assert!(idle.is_empty(), "no problem had these run: {idle:?}");
    println!("{ran} problems, {} kernels", loaded.len());
}

/// Runs the kernels for plain tiles with a mask or a bias (`_added`): f32 elements and boolean masks, every broadcast,
/// ragged lengths, masked keys, and keys that no row attends.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn addends_in_plain_tiles() {
    let engine = gpu_engine(Fallback::Fail);
    let kind = |float: bool| if float { MaskKind::Additive(DType::F32) } else { MaskKind::Bool };
    let added =
        |float, dims: &[usize], density| MaskParams { kind: kind(float), dims: dims.to_vec(), density };
    let mut kernels = BTreeMap::new();
    // These sizes give each kernel whole tiles, a partial tile, and rows without keys.
    for (queries, keys, d) in [(40, 200, 32), (129, 128, 32), (70, 193, 64), (200, 256, 64), (1000, 130, 64)]
    {
        for (dims, shared) in [
            (vec![2, 2, queries, keys], false),
            (vec![2, queries, keys], false),
            (vec![2, 1, queries, keys], true),
            (vec![1, keys], false),
            (vec![queries, keys - 63], false),
        ] {
            if queries > 900 && dims.len() < 4 {
                continue; // slow on a stand-in GPU
            }
            for (density, of) in [(1.0, 1), (0.6, 1), (0.6, 2), (0.97, 3), (0.02, 3)] {
                let p = Params {
                    batch: 2,
                    heads: 2,
                    kv_heads: 1,
                    shared_keys: shared,
                    mask: Some(added(of == 1, &dims, density)),
                    bias: (of == 3)
                        .then(|| BiasParams::Dense(added(true, &[1, 1, queries, dims[dims.len() - 1]], 0.9))),
                    ..Params::plain(queries, keys, d, d)
                };
                let mut case = p.build("added");
                if dims.len() == 2 && dims[0] == 1 {
                    // No row attends these keys, so their values do not matter.
                    for key in [5, keys - 1] {
                        case.mask.as_mut().unwrap().set_attended(key, false);
                        for sequence in 0..2 {
                            case.fill_key(sequence, key, f32::NAN);
                            case.fill_value(sequence, key, f32::NAN);
                        }
                    }
                }
                let mut buffers = case.buffers();
                let (_, kernel) = run(&engine, &case, true, PlanOptions::default(), &mut buffers)
                    .unwrap_or_else(|e| panic!("{e}"));
                assert!(kernel.ends_with("_added"), "{kernel}: {case:?}");
                *kernels.entry(kernel).or_insert(0) += 1;
            }
        }
    }
    let all =
        GPU_KERNELS.iter().filter_map(GpuKernel::attention).filter(|k| k.name.ends_with("_added")).count();
    assert_eq!(kernels.len(), all, "{kernels:?}");
    println!("{} problems, {all} kernels", kernels.values().sum::<usize>());
}

/// Checks that a problem runs on another kernel if the kernels for plain tiles with a mask or a bias (`_added`) do not
/// support it.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn other_addends_have_other_kernels() {
    let engine = gpu_engine(Fallback::Fail);
    let mask = |dtype| MaskParams { kind: MaskKind::Additive(dtype), dims: vec![70, 130], density: 0.6 };
    let column = MaskParams { dims: vec![70, 1], ..mask(DType::F32) };
    let both =
        || Params { bias: Some(BiasParams::Dense(mask(DType::F32))), ..Params::plain(70, 130, 64, 64) };
    for p in [
        Params { mask: Some(mask(DType::F16)), ..Params::plain(70, 130, 64, 64) },
        Params { mask: Some(mask(DType::F32)), ..Params::plain(70, 130, 48, 48) },
        Params { mask: Some(mask(DType::F32)), softcap: Some(2.0), ..Params::plain(70, 130, 64, 64) },
        Params { mask: Some(mask(DType::F32)), past: Some(37), ..Params::plain(70, 93, 64, 64) },
        Params { mask: Some(mask(DType::F32)), causal: Some(Alignment::TopLeft), ..both() },
        Params { mask: Some(mask(DType::F32)), ..both() },
        Params { mask: Some(column), ..Params::plain(70, 130, 64, 64) },
    ] {
        let case = p.build("others");
        let mut buffers = case.buffers();
        let (_, kernel) =
            run(&engine, &case, true, PlanOptions::default(), &mut buffers).unwrap_or_else(|e| panic!("{e}"));
        assert!(!kernel.ends_with("_added"), "{kernel}: {case:?}");
    }
}

fn half_scores() -> PlanOptions {
    PlanOptions::default().half_scores(true)
}

/// Checks f16 inputs whose scores are summed in f16: the bits change, errors stay within the declared tolerance, and a
/// sum beyond the range of f16 gives NaN.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn half_scores_keep_their_declared_error() {
    let engine = gpu_engine(Fallback::Fail);
    let sizes = [(70, 130, 64), (33, 513, 64), (200, 200, 17), (1000, 70, 33), (130, 300, 64)];
    let causals = [None, Some(Alignment::BottomRight)];
    let mut differ = 0;
    let mut largest = 0.0f64;
    for ((queries, keys, d), causal) in sizes.into_iter().flat_map(|s| causals.map(|c| (s, c))) {
        let case =
            Params { dtype: DType::F16, causal, ..Params::plain(queries, keys, d, d) }.build("half scores");
        let [mut exact, mut rounded] = [case.buffers(), case.buffers()];
        let (_, kernel) = run(&engine, &case, true, PlanOptions::default(), &mut exact).unwrap();
        assert_eq!(kernel, "attention_b16_d64_q64k64__sm53_exp2_approx");
        let (share, kernel) =
            run(&engine, &case, true, half_scores(), &mut rounded).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(kernel, "attention_f16_d64_q64k64__sm53_exp2_approx_half2_c16");
        largest = largest.max(share);
        differ += usize::from(exact.lse != rounded.lse);
    }
    // Tiles at an edge are summed in f32, and short or causal problems may have no other tiles.
    assert!(differ >= 5, "{differ} of 10 problems have other bits");
    println!("10 problems, {differ} with other bits, {largest:.3} of the tolerance");

    // Other types never use this kernel.
    for dtype in [DType::F32, DType::Bf16] {
        let case = Params { dtype, ..Params::plain(70, 130, 64, 64) }.build("exact scores");
        let (_, kernel) = run(&engine, &case, true, half_scores(), &mut case.buffers()).unwrap();
        assert_ne!(kernel, "attention_f16_d64_q64k64__sm53_exp2_approx_half2_c16");
    }

    // Each score is a sum of 64 products of 40,000, which is finite in f32 and exceeds the range of f16.
    let mut case = Params { dtype: DType::F16, ..Params::plain(64, 128, 64, 64) }.build("large");
    case.q = Data::filled(DType::F16, case.q.len(), 200.0);
    case.k = Data::filled(DType::F16, case.k.len(), 200.0);
    let mut buffers = case.buffers();
    run(&engine, &case, true, PlanOptions::default(), &mut buffers).unwrap_or_else(|e| panic!("{e}"));
    let refused = run(&engine, &case, true, half_scores(), &mut buffers);
    assert!(refused.is_err() && buffers.lse.iter().all(|x| x.is_nan()), "{refused:?}");
    assert!((0..buffers.output.len()).all(|i| buffers.output.get(i).is_nan()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
    fn random_problems_without_states(case in any_case(), lse in any::<bool>()) {
        if let Err(e) = check(&gpu_engine(Fallback::Fail), &case, lse) {
            prop_assert!(false, "{}", e);
        }
    }
}

/// Checks that the certificate counts exactly the roundings on the longest path of a key. Covers tile kernels and
/// kernels for few rows, with the number of splits that the device suggests.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn the_longest_path_is_the_one_that_is_counted() {
    let engine = gpu_engine(Fallback::Fail);
    for (queries, keys) in [(1, 16_384), (20, 16_384), (20, 1000), (300, 16_384)] {
        let probe = Probe::new(&engine, queries, keys, Method::Elsa);
        let choice = *probe.plan().gpu_choice().unwrap();
        let (splits, chunk, tile) = (choice.splits, choice.chunk.min(keys), choice.kernel.keys);
        let tree = powers(chunk, splits);
        let (w, s) = match choice.kernel.summation {
            // Key 0 is the first key of its chain. A lane sums the weights of every `lanes`th key of a tile.
            Summation::Tiles { columns, flush } => {
                let lanes = tile / columns;
                let w = [multiples(1, flush.min(chunk)), multiples(flush, chunk), tree.clone()].concat();
                let s = [multiples(lanes, tile), multiples(tile, chunk), powers(1, lanes), tree].concat();
                (w, s)
            }
            // Group 0 processes every `groups`th key, starting with key 0.
            Summation::Groups { groups, flush } => {
                let (own, chain) = (groups * flush, multiples(groups, (groups * flush).min(chunk)));
                ([chain, multiples(own, chunk), powers(1, groups), tree].concat(), Vec::new())
            }
        };
        let found = [(probe.of_values(&w), w.len()), (probe.of_weights(&s), s.len())];
        println!("{}: {splits} splits, {found:?}", probe.plan().kernel());
        for (measured, by_hand) in found {
            let off = (measured - by_hand as f64).abs();
            assert!(off <= SLACK, "{}: {measured} for {by_hand}", probe.plan().kernel());
        }
        assert_eq!(probe.counted(), w.len().max(s.len()), "{}", probe.plan().kernel());
    }
}
