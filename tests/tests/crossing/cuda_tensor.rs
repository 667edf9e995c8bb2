//! Tests attention on Tensor Cores: results against f64, the guard, and what decides bits. Needs a GPU of compute capability 8.0 or
//! later, or the stand-in driver with `ELSA_STANDIN_DEVICE=tensor`.

use elsa_core::attention::plan::TensorCores;
use elsa_core::attention::{Alignment, MaskKind, Window};
use elsa_core::dtype::DType;
use elsa_core::random::Random;
use elsa_core::view::View;
use elsa_oracle::cases::{
    BiasParams, Buffers, Case, Data, MaskData, MaskParams, Params, any_case, hard_cases,
};
use elsa_oracle::gpu_engine;
use elsa_runtime::{Engine, Fallback, Plan, PlanOptions, RefusedBlocks};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

mod one_product;

/// Head sizes of the kernels.
const KERNELS: [usize; 5] = [32, 64, 96, 128, 256];
/// Those head sizes, and smaller ones.
const DIMS: [usize; 9] = [64, 40, 32, 20, 96, 80, 128, 100, 256];

fn options() -> PlanOptions {
    PlanOptions::default().tensor_cores(TensorCores::Always)
}

/// Plans a case on Tensor Cores.
fn plan(engine: &Engine, case: &Case, options: &PlanOptions) -> Plan {
    let plan = engine.plan(&case.problem(), options).unwrap();
    let kernel = plan.kernel();
    assert!(kernel.contains("__sm80_split"), "{kernel}");
    // The smallest kernel for the head size computes, and plain scores have a kernel of their own.
    let (spec, d) = (&case.spec, case.spec.key.dim().max(case.spec.value.dim()));
    let size = KERNELS.into_iter().find(|size| *size >= d).unwrap();
    assert!(kernel.contains(&format!("_d{size}_")), "{kernel} for {d}");
    let shifted = spec.windows.is_some_and(|windows| windows.is_shifted());
    let changed = spec.mask.is_some() || spec.bias.is_some() || spec.softcap.is_some() || shifted;
    assert_eq!(kernel.ends_with("_added"), changed, "{kernel}");
    plan
}

/// Runs a case on Tensor Cores.
fn run(engine: &Engine, case: &Case) -> Buffers {
    let plan = plan(engine, case, &options());
    case.run(&plan, &mut plan.workspace().unwrap()).0
}

/// Runs a case, checks its answers against f64, and its errors against the bounds of its certificate. Returns the answers.
fn check(engine: &Engine, case: &Case) -> Buffers {
    let plan = plan(engine, case, &options().certify(true));
    let (mut workspace, mut buffers) = (plan.workspace().unwrap(), case.buffers());
    let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
    bound.run().unwrap();
    let certificate = bound.certificate().unwrap();
    let (channels, claim) = (certificate.channels().to_vec(), certificate.claim().copied());
    let (answer, additions) = (case.naive(), case.spec.key.tokens().max(64));
    answer.check_all(&buffers, additions).unwrap_or_else(|e| panic!("{case:?}: {e}"));
    let view = &case.spec.output;
    let [batch, heads, tokens, dim] = view.shape();
    let rows =
        (0..batch * heads * tokens).map(|i| view.row(i / tokens / heads, i / tokens % heads, i % tokens));
    for (at, x) in rows.flat_map(|row| (0..dim).map(move |x| (row + x, x))) {
        let Ok(claim) = &claim else { break };
        let (error, value) =
            ((f64::from(buffers.output.get(at)) - answer.y[at]).abs(), f64::from(channels[x]));
        let most = claim.relative * answer.spread[at] + claim.lost * value + claim.tiny;
        assert!(
            error <= most.min(claim.absolute(value)),
            "{case:?}: element {at} is off by {error:e}, beyond {most:e}"
        );
    }
    buffers
}

/// Runs a case whose past and present tensors are the same memory, and returns the bits of the output.
fn append(engine: &Engine, case: &Case) -> Vec<u32> {
    let mut spec = case.spec.append(true);
    let (k, v) = case.past.as_ref().unwrap();
    let cache = |present: View, from: View, data: &Data| {
        let [b, h, _, d] = present.shape();
        let past = View::new("past", [b, h, from.tokens(), d], present.strides()).unwrap();
        let mut memory = Data::filled(case.spec.dtype, present.extent(), f32::NAN);
        for (head, token, x) in
            (0..h).flat_map(|head| (0..from.tokens() * d).map(move |i| (head, i / d, i % d)))
        {
            memory.set(past.row(0, head, token) + x, data.get(from.row(0, head, token) + x));
        }
        (past, memory)
    };
    let (past_key, mut key) = cache(spec.present_key.unwrap(), spec.past_key.unwrap(), k);
    let (past_value, mut value) = cache(spec.present_value.unwrap(), spec.past_value.unwrap(), v);
    (spec.past_key, spec.past_value) = (Some(past_key), Some(past_value));
    let plan = engine.plan(&spec.check().unwrap(), &options()).unwrap();
    assert!(plan.kernel().contains("__sm80_split"), "{}", plan.kernel());
    let (mut workspace, mut buffers, mut inputs) = (plan.workspace().unwrap(), case.buffers(), case.inputs());
    (inputs.past_key, inputs.past_value) = (None, None);
    let mut outputs = buffers.outputs();
    (outputs.present_key, outputs.present_value) = (Some(key.elements_mut()), Some(value.elements_mut()));
    plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
    bits(&buffers)
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
            (true, false) => 1,
            _ => 4,
        };
        for (queries, keys) in shapes.into_iter().take(some) {
            let scale = (dtype != DType::F32).then_some(-0.2);
            check(&engine, &Params { dtype, scale, ..params(queries, keys, d) }.build("tensor"));
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
            check(&engine, &case);
        }
        // Masked scores count as such even if the factor of all scores is zero.
        let causal = Some(Alignment::BottomRight);
        let flat = Params { dtype: DType::F16, scale: Some(0.0), causal, ..params(queries, keys, 64) };
        check(&engine, &flat.build("flat"));
        let mut case = params(queries, keys, 64).build("tensor");
        case.spec.window = Window { left: Some(33), right: Some(20) };
        check(&engine, &case);
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
    let shapes = [(70, 132, 64), (65, 96, 128), (33, 97, 256), (40, 129, 32), (40, 66, 96)];
    let dtypes = [DType::F32, DType::F16];
    for (i, ((queries, keys, d), dtype)) in
        shapes.into_iter().flat_map(|shape| dtypes.map(|dtype| (shape, dtype))).enumerate()
    {
        let base = || Params { batch: 2, dtype, ..params(queries, keys, d) };
        let some = if whole || d == 64 { &kinds[..] } else { &kinds[i % 4..][..1] };
        for &kind in some {
            let dims = [
                vec![2, 2, queries, keys],
                vec![2, 1, queries, keys],
                vec![1, keys],
                vec![queries, keys - 31],
            ];
            for dims in dims.into_iter().take(if whole {
                4
            } else if d == 64 {
                2
            } else {
                1
            }) {
                let mask = Some(MaskParams { kind, dims, density: 0.6 });
                check(&engine, &Params { mask, ..base() }.build("mask"));
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
        check(&engine, &case);
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
    plant(&mut planted.v, [1, keys, d], 0..keys);
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

/// Makes channel 5 of rows of values so small that the guard refuses their head: those of `tokens` of head `head` in a tensor with the
/// axes `[heads, all, dim]`.
fn plant(values: &mut Data, [head, all, dim]: [usize; 3], tokens: std::ops::Range<usize>) {
    for token in tokens {
        let at = (head * all + token) * dim + 5;
        values.set(at, values.get(at) * 1e-9);
    }
}

#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn past_and_present() {
    let engine = gpu_engine(Fallback::Fail);
    let causal = Some(Alignment::BottomRight);
    let dtypes = [DType::F32, DType::Bf16];
    for (past, queries, keys, d) in [(70, 65, 66, 64), (64, 3, 1, 32), (33, 40, 0, 96), (0, 5, 70, 128)] {
        for (dtype, present) in dtypes.into_iter().flat_map(|dtype| [true, false].map(|x| (dtype, x))) {
            let cached = Params { dtype, causal, past: Some(past), present, ..params(queries, keys, d) };
            let mut case = cached.build("past");
            let buffers = check(&engine, &case);
            if let Some((k, v)) = case.naive_present() {
                let present = buffers.present.as_ref().map(|(k, v)| (k.bits(), v.bits()));
                assert_eq!(present, Some((k.bits(), v.bits())), "{case:?}");
                assert_eq!(append(&engine, &case), bits(&buffers), "{case:?}");
            }
            // A past that the guard refuses refuses all blocks of its head.
            if past > 40 {
                assert_eq!(refused(&engine, &case, &options()).unwrap().refused, 0, "{case:?}");
                plant(&mut case.past.as_mut().unwrap().1, [0, past, d], 0..past.min(64));
                check(&engine, &case);
                let found = refused(&engine, &case, &options()).unwrap();
                assert_eq!(found.refused, found.blocks, "{case:?}");
            }
        }
    }
}

/// Each packed sequence has the bits that it has alone, and only its own rows are refused.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn packed_sequences_are_alone() {
    let engine = gpu_engine(Fallback::Fail);
    let lens = vec![(70, 130), (0, 3), (5, 0), (1, 64), (140, 65), (33, 97), (0, 0), (3, 1)];
    let causal = Some(Alignment::BottomRight);
    for (d, dtype, causal, softcap) in
        [(64, DType::F32, None, None), (32, DType::F32, causal, None), (96, DType::F16, causal, Some(3.0))]
    {
        let base = Params { dtype, causal, softcap, heads: 4, kv_heads: 2, ..Params::plain(0, 0, d, d) };
        let of =
            |lens: &[(usize, usize)]| Params { packed: Some(lens.to_vec()), ..base.clone() }.build("packed");
        let mut whole = of(&lens);
        let (queries, keys) = (whole.spec.query.tokens(), whole.spec.key.tokens());
        let before = check(&engine, &whole);
        let (mut q0, mut k0) = (0, 0);
        for &(n, m) in &lens {
            let mut alone = of(&[(n, m)]);
            for (to, from, [heads, all, first, len]) in [
                (&mut alone.q, &whole.q, [4, queries, q0, n]),
                (&mut alone.k, &whole.k, [2, keys, k0, m]),
                (&mut alone.v, &whole.v, [2, keys, k0, m]),
            ] {
                for (head, i) in (0..heads).flat_map(|head| (0..len * d).map(move |i| (head, i))) {
                    to.set(head * len * d + i, from.get((head * all + first) * d + i));
                }
            }
            let got = bits(&run(&engine, &alone));
            let of_whole = bits(&before);
            for head in 0..4 {
                let at = (head * queries + q0) * d;
                assert_eq!(
                    got[head * n * d..][..n * d],
                    of_whole[at..][..n * d],
                    "{n} x {m} x {d}, {dtype}, {head}"
                );
            }
            (q0, k0) = (q0 + n, k0 + m);
        }
        if dtype != DType::F32 {
            continue;
        }
        // Two of four heads of one sequence are refused.
        let plan = engine.plan(&whole.problem(), &options()).unwrap();
        let rows = plan.gpu_choice().unwrap().split.unwrap().kernel.rows;
        let blocks = 4 * lens.iter().map(|(n, _)| n.div_ceil(rows)).sum::<usize>();
        assert_eq!(refused(&engine, &whole, &options()), Some(RefusedBlocks { refused: 0, blocks }));
        plant(&mut whole.v, [1, keys, d], 198..262);
        let after = check(&engine, &whole);
        let own = 2 * 140usize.div_ceil(rows);
        assert_eq!(refused(&engine, &whole, &options()), Some(RefusedBlocks { refused: own, blocks }));
        let changed = bits(&before).into_iter().zip(bits(&after)).enumerate().filter(|(_, (a, b))| a != b);
        for (i, _) in changed {
            let (head, row) = (i / d / queries, i / d % queries);
            assert!(head >= 2 && (76..216).contains(&row), "head {head}, row {row}");
        }
        // Rows that are not aligned to four elements are all refused.
        let odd = Params { pad: 1, packed: Some(lens.clone()), ..base.clone() }.build("rows with gaps");
        check(&engine, &odd);
        assert_eq!(refused(&engine, &odd, &options()), Some(RefusedBlocks { refused: blocks, blocks }));
    }
    // The lengths decide nothing, so a short sequence is on Tensor Cores too.
    let short = Params { packed: Some(vec![(1, 1)]), ..Params::plain(0, 0, 64, 64) }.build("short");
    let plan =
        engine.plan(&short.problem(), &PlanOptions::default().tensor_cores(TensorCores::Allow)).unwrap();
    assert!(plan.kernel().contains("__sm80_split"), "{}", plan.kernel());
}

/// Soft caps, alone and with masks and biases, on both sides of the guard.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn soft_caps() {
    let engine = gpu_engine(Fallback::Fail);
    let kind = MaskKind::Additive(DType::F32);
    let causal = Some(Alignment::TopLeft);
    let dtypes = [DType::F32, DType::Bf16];
    let (queries, keys) = (66, 131);
    for (d, dtype) in [64, 32, 96, 128, 256].into_iter().flat_map(|d| dtypes.map(|dtype| (d, dtype))) {
        // Some arguments of the tangent are in its linear part, and most scores are at the cap.
        for (softcap, scale) in [(0.5, Some(-0.7)), (30.0, None)] {
            let base = Params { dtype, scale, softcap: Some(softcap), gain: 8.0, ..params(queries, keys, d) };
            if d == 64 {
                let mask = Some(MaskParams { kind: MaskKind::Bool, dims: vec![queries, keys], density: 0.7 });
                let bias =
                    Some(BiasParams::Dense(MaskParams { kind, dims: vec![queries, keys], density: 1.0 }));
                check(&engine, &Params { mask, causal, bias, ..base.clone() }.build("soft cap and mask"));
            } else if is_slow(&engine) && scale.is_none() {
                continue;
            }
            let mut capped = base.build("soft cap");
            check(&engine, &capped);
            assert_eq!(refused(&engine, &capped, &options()).unwrap().refused, 0, "{capped:?}");
            plant(&mut capped.v, [0, keys, d], 0..keys);
            check(&engine, &capped);
            let found = refused(&engine, &capped, &options()).unwrap();
            assert_eq!(found.refused, found.blocks, "{capped:?}");
        }
    }
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
