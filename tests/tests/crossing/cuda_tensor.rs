//! Tests attention on Tensor Cores: results against f64, the guard, and what decides bits. Needs a GPU of compute capability 8.0 or
//! later, or the stand-in driver with `ELSA_STANDIN_DEVICE=tensor`.

use elsa_core::attention::plan::TensorCores;
use elsa_core::attention::{Alignment, MaskKind, Window};
use elsa_core::dtype::DType;
use elsa_core::random::Random;
use elsa_oracle::cases::{Buffers, Case, MaskData, MaskParams, Params, any_case, hard_cases};
use elsa_oracle::gpu_engine;
use elsa_runtime::{Engine, Fallback, PlanOptions, RefusedBlocks};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Head sizes: of each kernel, and smaller ones.
const DIMS: [usize; 5] = [64, 40, 128, 72, 256];

fn options() -> PlanOptions {
    PlanOptions::default().tensor_cores(TensorCores::Always)
}

/// Runs a case on Tensor Cores.
fn run(engine: &Engine, case: &Case) -> Buffers {
    let kernel = engine.plan(&case.problem(), &options()).unwrap().kernel();
    assert!(kernel.contains("__sm80_split"), "{kernel}");
    case.run_on(engine, &options())
}

/// Runs a case with `options` and returns the blocks of rows that Tensor Cores refused.
fn refused(engine: &Engine, case: &Case, options: &PlanOptions) -> Option<RefusedBlocks> {
    let plan = engine.plan(&case.problem(), options).unwrap();
    let mut workspace = plan.workspace().unwrap();
    assert_eq!(workspace.refused_blocks().unwrap(), None, "there was no run");
    let (_, report) = case.run(&plan, &mut workspace);
    let found = workspace.refused_blocks().unwrap();
    assert_eq!(plan.on_tensor_cores(report.backend), found.is_some());
    found
}

/// Returns `true` for the stand-in, which is a thousand times slower than a GPU.
fn is_slow(engine: &Engine) -> bool {
    engine.device().is_some_and(|device| device.profile.sms < 16)
}

fn params(queries: usize, keys: usize, d: usize) -> Params {
    Params { dtype: DType::F32, heads: 2, kv_heads: 1, ..Params::plain(queries, keys, d, d) }
}

fn bits(buffers: &Buffers) -> Vec<u32> {
    (0..buffers.output.len()).map(|i| buffers.output.get(i).to_bits()).collect()
}

#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn results_are_those_of_f64() {
    let engine = gpu_engine(Fallback::Fail);
    let shapes = [(70, 130), (1, 1), (130, 65), (64, 64)];
    for (d, dtype) in DIMS.into_iter().flat_map(|d| [DType::F32, DType::F16, DType::Bf16].map(|x| (d, x))) {
        let some = match (is_slow(&engine), dtype == DType::F32) {
            (true, true) => 2,
            (true, false) => usize::from(d >= 64),
            _ => 4,
        };
        for (queries, keys) in shapes.into_iter().take(some) {
            let scale = (dtype != DType::F32).then_some(-0.2);
            let case = Params { dtype, scale, ..params(queries, keys, d) }.build("tensor");
            let what = format!("{dtype}, {queries} x {keys} x {d}");
            case.naive().check_all(&run(&engine, &case), 64).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn rows_attend_their_own_keys() {
    let engine = gpu_engine(Fallback::Fail);
    for (queries, keys) in [(150, 150), (70, 200), (200, 70)] {
        for alignment in [Alignment::TopLeft, Alignment::BottomRight] {
            let mut case = params(queries, keys, 64).build("tensor");
            case.spec.causal = Some(alignment);
            let what = format!("causal {alignment:?} {queries} x {keys}");
            case.naive().check_all(&run(&engine, &case), 64).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        // Masked scores count as such even if the factor of all scores is zero.
        let causal = Some(Alignment::BottomRight);
        let flat =
            Params { dtype: DType::F16, scale: Some(0.0), causal, ..params(queries, keys, 64) }.build("flat");
        flat.naive()
            .check_all(&run(&engine, &flat), 64)
            .unwrap_or_else(|e| panic!("{queries} x {keys}, flat: {e}"));
        let mut case = params(queries, keys, 64).build("tensor");
        case.spec.window = Window { left: Some(33), right: Some(20) };
        let what = format!("window {queries} x {keys}");
        case.naive().check_all(&run(&engine, &case), 64).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// Masks and biases of every kind, each broadcast and each path by which the kernel reads them.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn masks_and_biases() {
    let engine = gpu_engine(Fallback::Fail);
    let f32 = MaskKind::Additive(DType::F32);
    let kinds = [MaskKind::Bool, f32, MaskKind::Additive(DType::F16), MaskKind::Additive(DType::Bf16)];
    let whole = !is_slow(&engine);
    for (queries, keys, d) in [(70, 132, 64), (65, 96, 128), (33, 97, 256)] {
        let base = || Params { batch: 2, ..params(queries, keys, d) };
        for kind in kinds.into_iter().take(if whole || d == 64 { 4 } else { 1 }) {
            let dims = [
                vec![2, 2, queries, keys],
                vec![2, 1, queries, keys],
                vec![1, keys],
                vec![queries, keys - 31],
            ];
            for dims in dims.into_iter().take(if whole { 4 } else { 64 / d + 1 }) {
                let mask = Some(MaskParams { kind, dims, density: 0.6 });
                let case = Params { mask: mask.clone(), ..base() }.build("mask");
                case.naive()
                    .check_all(&run(&engine, &case), keys)
                    .unwrap_or_else(|e| panic!("{mask:?}: {e}"));
            }
        }
        // -f32::MAX is not a mask: rows that attend nothing else average all values.
        let mut case = Params {
            mask: Some(MaskParams { kind: f32, dims: vec![queries, keys], density: 1.0 }),
            ..base()
        };
        case.causal = Some(Alignment::TopLeft);
        let mut case = case.build("lowest");
        let Some(MaskData::Additive(mask)) = case.mask.as_mut() else { unreachable!() };
        let lowest = |i: usize| (i / keys).is_multiple_of(3) || i.is_multiple_of(2);
        (0..queries * keys).for_each(|i| mask.set(i, if lowest(i) { f32::MIN } else { 0.25 }));
        case.naive().check_all(&run(&engine, &case), keys).unwrap_or_else(|e| panic!("lowest: {e}"));
    }
}

/// Measures the property of an instruction that the bound assumes (BOUNDS.md, "Split operands"): a sum of 16 products is
/// off by at most 17 times
/// 2^-24 of the largest product and 2^-23 of the sum. Each row attends one key, so its log-sum-exp is one such sum, and the
/// products cancel. The reported number would double for each bit that a GPU does not keep.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn accumulators_keep_their_bits() {
    let engine = gpu_engine(Fallback::Fail);
    let (heads, n, d) = if is_slow(&engine) { (1, 64, 16) } else { (32, 4096, 16) };
    let plain =
        Params { heads, kv_heads: heads, dtype: DType::F16, scale: Some(1.0), ..Params::plain(n, n, d, d) };
    let mut case = Params { window: Window { left: Some(0), right: Some(0) }, ..plain }.build("accumulators");
    let mut random = Random::new(7);
    for row in 0..heads * n {
        // Pairs of products differ in their last bits and have opposite signs, and pairs differ in size by up to 2^12.
        for pair in 0..d / 2 {
            let size = (random.below(13) as f32 - 9.0).exp2();
            let [a, b] = [0, 1].map(|_| 1.0 + random.below(1024) as f32 / 1024.0);
            let near = b + [-1.0, 0.0, 1.0][random.below(3)] / 1024.0;
            for (c, key) in [(2 * pair, b), (2 * pair + 1, -near)] {
                case.q.set(row * d + c, a * size);
                case.k.set(row * d + c, key * size);
            }
        }
    }
    let buffers = run(&engine, &case);
    let (mut worst, unit) = (0.0f64, 0.5f64.powi(24));
    for row in 0..heads * n {
        let product = |c: usize| f64::from(case.q.get(row * d + c)) * f64::from(case.k.get(row * d + c));
        let exact: f64 = (0..d).map(product).sum();
        let largest = (0..d).map(|c| product(c).abs()).fold(0.0, f64::max);
        let error = (f64::from(buffers.lse[row]) - exact).abs();
        // Factor, conversion of units, weight and logarithm round once each, relative to the sum or to one.
        assert!(
            error <= unit * (17.0 * largest + 8.0 * exact.abs() + 8.0),
            "row {row}: {error:e} of {exact}"
        );
        worst = worst.max((error / unit - 8.0 * exact.abs() - 8.0) / largest);
    }
    println!(
        "{} sums: at most {worst:.2} times 2^-24 of the largest product, beyond other roundings",
        heads * n
    );
}

/// A head whose values have a channel that is tiny compared with the others is refused. f32 products keep that channel
/// exact, and the other heads keep their bits.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn a_refused_head_changes_no_other() {
    let engine = gpu_engine(Fallback::Fail);
    let (queries, keys, d) = (70, 130, 64);
    let plain = Params { heads: 3, kv_heads: 3, ..params(queries, keys, d) }.build("tensor");
    let mut planted = Params { heads: 3, kv_heads: 3, ..params(queries, keys, d) }.build("tensor");
    for j in 0..keys {
        let at = (keys + j) * d + 5;
        planted.v.set(at, planted.v.get(at) * 1e-9);
    }
    let [of_plain, of_planted] = [&plain, &planted].map(|case| refused(&engine, case, &options()).unwrap());
    assert_eq!(of_plain.refused, 0);
    assert_eq!(of_planted, RefusedBlocks { refused: of_plain.blocks / 3, blocks: of_plain.blocks });
    assert_eq!(refused(&engine, &planted, &PlanOptions::default()), None);
    let [before, after] = [&plain, &planted].map(|case| run(&engine, case));
    planted.naive().check_all(&after, 64).unwrap();
    let [before, after] = [before, after].map(|buffers| bits(&buffers));
    let head = queries * d;
    assert_eq!(before[..head], after[..head]);
    assert_eq!(before[2 * head..], after[2 * head..]);
}

/// Checks every case that Tensor Cores compute. Returns the number of such cases.
fn check_supported(engine: &Engine, cases: impl IntoIterator<Item = Case>) -> usize {
    let mut ran = 0;
    for case in cases {
        let plan = engine.plan(&case.problem(), &options()).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        if !plan.kernel().contains("__sm80_split") {
            continue;
        }
        let (buffers, _) = case.run(&plan, &mut plan.workspace().unwrap());
        let additions = case.spec.key.tokens().max(64);
        case.naive().check_all(&buffers, additions).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        ran += 1;
    }
    ran
}

#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn hard_cases_are_answered() {
    let engine = gpu_engine(Fallback::Fail);
    let every = if is_slow(&engine) { 23 } else { 1 };
    let ran = check_supported(&engine, hard_cases().into_iter().step_by(every));
    assert!(ran >= 400 / every, "{ran}");
    println!("{ran} cases");
}

#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn random_problems_are_answered() {
    let engine = gpu_engine(Fallback::Fail);
    let mut runner = TestRunner::deterministic();
    let cases = (0..if is_slow(&engine) { 600 } else { 50_000 })
        .map(|_| any_case().new_tree(&mut runner).unwrap().current());
    let ran = check_supported(&engine, cases);
    assert!(ran >= 10, "{ran}");
    println!("{ran} cases");
}

/// A sequence has the same bits alone and in a batch, and in every repeat.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn a_batch_changes_no_bit() {
    let engine = gpu_engine(Fallback::Fail);
    for (queries, keys, d) in [(70, 300, 64), (65, 97, 128)] {
        let one = params(queries, keys, d).build("tensor");
        let mut three = Params { batch: 3, ..params(queries, keys, d) }.build("tensor");
        for (all, alone) in [(&mut three.q, &one.q), (&mut three.k, &one.k), (&mut three.v, &one.v)] {
            (0..alone.len()).for_each(|i| all.set(all.len() - alone.len() + i, alone.get(i)));
        }
        let expected = bits(&run(&engine, &one));
        for repeat in 0..2 {
            let got = bits(&run(&engine, &three));
            assert_eq!(got[got.len() - expected.len()..], expected, "{queries} x {keys} x {d}, {repeat}");
        }
    }
}
