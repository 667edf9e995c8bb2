//! Tests products of operands that are rounded to one f16 value each: errors and their bounds, the guard, and the requests that
//! select them.

use super::{DIMS, bits, is_slow, params, refused};
use elsa_core::attention::MaskKind;
use elsa_core::attention::plan::TensorCores;
use elsa_core::dtype::DType;
use elsa_oracle::bounds::{Drawn, Findings, Hunter, hunters};
use elsa_oracle::cases::{Case, MaskParams, Params};
use elsa_oracle::gpu_engine;
use elsa_runtime::{Engine, Fallback, PlanOptions, RefusedBlocks};

/// Smaller than the errors of products with 11 bits, and larger than those of f32 products.
const ROUNDED: f64 = 1e-5;

fn options() -> PlanOptions {
    PlanOptions::default().tensor_cores(TensorCores::F16)
}

/// Returns the kernel that `cores` select for a case, and whether it takes one product.
fn planned(engine: &Engine, case: &Case, cores: TensorCores) -> (&'static str, bool) {
    let plan = engine.plan(&case.problem(), &PlanOptions::default().tensor_cores(cores)).unwrap();
    (plan.kernel(), plan.certificate().executed.one_product)
}

/// Results are within the bound of their certificate, and visibly less accurate than those of f32 products.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn errors_are_those_of_eleven_bits() {
    let engine = gpu_engine(Fallback::Fail);
    for d in DIMS {
        for (queries, keys) in
            [(70, 130), (130, 65), (64, 300)].into_iter().take(if is_slow(&engine) { 2 } else { 3 })
        {
            let case = params(queries, keys, d).build("one product");
            let plan = engine.plan(&case.problem(), &options().certify(true)).unwrap();
            assert!(plan.kernel().contains("__sm80_f16"), "{}", plan.kernel());
            assert!(plan.certificate().executed.one_product);
            let mut workspace = plan.workspace().unwrap();
            let (found, _) = case.run(&plan, &mut workspace);
            assert_eq!(workspace.refused_blocks().unwrap().unwrap().refused, 0);
            let (exact, certificate) = (case.naive(), workspace.certificate().unwrap());
            let mut worst = 0.0f64;
            for (at, y) in exact.y.iter().enumerate() {
                let error = (f64::from(found.output.get(at)) - y).abs();
                let bound = certificate.absolute(at % d).unwrap();
                assert!(error <= bound, "{queries} x {keys} x {d}, {at}: {error:e}, {bound:e}");
                worst = worst.max(error);
            }
            for (lse, exact) in found.lse.iter().zip(&exact.lse) {
                assert!((f64::from(*lse) - exact).abs() < 5e-3, "{queries} x {keys} x {d}: {lse}, {exact}");
            }
            println!("{queries} x {keys} x {d}: {worst:.1e}");
            assert!((ROUNDED..5e-3).contains(&worst), "{queries} x {keys} x {d}: {worst:e}");
        }
    }
}

/// Hard problems keep every bound: that of verification, its likely case, and that of the certificate.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn hard_problems_keep_their_bounds() {
    let problems = if is_slow(&gpu_engine(Fallback::Fail)) { 150 } else { 2000 };
    let hunter = hunters().into_iter().find(|hunter| hunter.name.ends_with("Tensor Cores f16")).unwrap();
    let mut found = Findings::default();
    // In the last problem, another key is selected than in exact arithmetic, so the error is that of an average of values.
    (0..problems).chain([3294]).for_each(|seed| hunter.hunt(seed, 100, &mut found));
    let Findings { rows, violations, unlikely, worst, likely, prior, claimed, .. } = found;
    println!(
        "{rows} rows, {claimed} claimed: {worst:.2e} of worst, {likely:.2e} of likely, {prior:.2e} of prior"
    );
    assert!(found.which.is_empty(), "{:#?}", found.which);
    assert!(rows > 50 && (violations, unlikely) == (0, 0), "{rows} rows, {violations}, {unlikely}");
}

/// Rows of problems with outliers keep their bounds with one product and with three. Tensor Cores refuse some of these rows, and
/// compute others.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn problems_with_outliers_keep_their_bounds() {
    let problems = if is_slow(&gpu_engine(Fallback::Fail)) { 30 } else { 1000 };
    let mut found = Findings::default();
    for hunter in hunters().into_iter().filter(Hunter::on_tensor_cores) {
        (0..problems).for_each(|seed| {
            hunter.judge(&Drawn::for_tensor_cores(seed, 100), &format!("seed {seed}"), &mut found);
        });
    }
    assert!(found.which.is_empty(), "{:#?}", found.which);
    let Findings { rows, outliers, cancelling, with_refusals, .. } = found;
    let counts = format!("{rows}, {outliers}, {cancelling}, {with_refusals}");
    assert!(outliers > 0 && cancelling > 0 && (1..rows).contains(&with_refusals), "{counts}");
}

/// No other use of Tensor Cores takes one product. Problems without such a kernel have the bits of `Always`.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn only_f16_takes_one_product() {
    let engine = gpu_engine(Fallback::Fail);
    let plain = |dtype: DType| Params { dtype, ..params(70, 130, 64) };
    let mask = MaskParams { kind: MaskKind::Bool, dims: vec![70, 130], density: 0.6 };
    let cases = [
        (plain(DType::F32), true),
        (params(1100, 1100, 64), true),
        (plain(DType::F16), false),
        (plain(DType::Bf16), false),
        (Params { mask: Some(mask), ..plain(DType::F32) }, false),
    ];
    for (params, one) in cases {
        let (queries, what) = (params.queries, format!("{params:?}"));
        let case = params.build("one product");
        for cores in [TensorCores::Off, TensorCores::Allow, TensorCores::Always] {
            let (kernel, is) = planned(&engine, &case, cores);
            assert!(!is && !kernel.contains("_f16"), "{what}, {cores:?}: {kernel}");
        }
        let (kernel, is) = planned(&engine, &case, TensorCores::F16);
        assert_eq!([is, kernel.contains("__sm80_f16")], [one; 2], "{what}: {kernel}");
        if queries < 1000 {
            let both = [TensorCores::Always, TensorCores::F16]
                .map(|cores| bits(&case.run_on(&engine, &PlanOptions::default().tensor_cores(cores))));
            assert_eq!(both[0] == both[1], !one, "{what}");
        }
    }
}

/// The guard refuses heads and rows that one f16 value cannot hold, and f32 products then answer them as exactly as without
/// Tensor Cores. The other head of the call is computed by one product.
#[test]
#[ignore = "needs a GPU with Tensor Cores: cargo xtask test --only host"]
fn what_does_not_fit_is_refused() {
    type Plant<'a> = (&'a str, &'a dyn Fn(&mut Case, usize));
    let (engine, queries, keys, d) = (gpu_engine(Fallback::Fail), 70, 130, 64);
    let scale = |data: &mut elsa_oracle::cases::Data, at: usize, by: f32| data.set(at, data.get(at) * by);
    let plants: [Plant<'_>; 7] = [
        ("a tiny channel of values", &|case, head| {
            (0..keys).for_each(|j| scale(&mut case.v, (head * keys + j) * d + 5, 1e-9));
        }),
        ("a tiny channel of keys that outweighs the others", &|case, head| {
            (0..keys).for_each(|j| scale(&mut case.k, (head * keys + j) * d + 5, 2f32.powi(-24)));
            (0..queries).for_each(|i| scale(&mut case.q, (head * queries + i) * d + 5, 2f32.powi(24)));
        }),
        ("references that f32 does not hold", &|case, head| {
            (0..keys * d).for_each(|x| scale(&mut case.k, head * keys * d + x, 2048.0));
            (0..queries * d).for_each(|x| scale(&mut case.q, head * queries * d + x, 2048.0));
        }),
        ("a huge value", &|case, head| case.v.set((head * keys + 3) * d + 7, 1e12)),
        ("values of only tiny numbers", &|case, head| {
            (0..keys * d).for_each(|x| scale(&mut case.v, head * keys * d + x, 1e-20));
        }),
        ("an infinite key", &|case, head| case.k.set((head * keys + 9) * d + 1, f32::INFINITY)),
        ("NaN", &|case, head| case.v.set((head * keys + 9) * d + 1, f32::NAN)),
    ];
    for (what, plant) in plants {
        // The second of two heads is refused. A head alone is refused as a whole, and its answer is that of f32 products.
        for heads in [2, 1] {
            let mut case = Params { heads, kv_heads: heads, ..params(queries, keys, d) }.build("planted");
            plant(&mut case, heads - 1);
            let found = refused(&engine, &case, &options()).unwrap();
            assert_eq!(
                found,
                RefusedBlocks { refused: found.blocks / heads, blocks: found.blocks },
                "{what}"
            );
            let answer = case.run_on(&engine, &options());
            let checked = case.naive().check_all(&answer, 64);
            assert_eq!(checked.is_ok(), heads == 1, "{what}: {checked:?}");
        }
    }
}
