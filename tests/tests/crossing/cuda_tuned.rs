//! Tests tuning on a GPU: every division that a measurement may choose computes the same function, and a tuned file affects
//! exactly the calls that it lists.

use elsa_core::attention::plan::{Division, ShapeClass};
use elsa_core::attention::{Alignment, MaskKind, Outputs};
use elsa_core::dtype::DType;
use elsa_oracle::cases::{Buffers, Case, MaskParams, Params};
use elsa_runtime::{
    Backend, Engine, EngineOptions, Fallback, PlanError, PlanOptions, Tuned, TunedShape, Tuning,
};
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::time::Duration;

fn engine(tuned: Tuning) -> Engine {
    let options =
        EngineOptions::default().backend(Backend::Cuda).threads(1).fallback(Fallback::Fail).tuned(tuned);
    Engine::new(&options).unwrap()
}

/// Runs a case and checks its output. Returns the division of the plan, and a hash of the output's bits.
fn run(engine: &Engine, case: &Case, division: Option<Division>) -> (Division, u64) {
    let problem = case.problem();
    let plan = engine.plan(&problem, &PlanOptions::default().division(division)).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let (buffers, _) = case.run(&plan, &mut workspace);
    case.naive().check_all(&buffers, 5000).unwrap_or_else(|e| panic!("{division:?} {case:?}: {e}"));
    (plan.gpu_choice().unwrap().division(), bits(&buffers))
}

/// Returns a hash of all bits of output and log-sum-exp.
fn bits(b: &Buffers) -> u64 {
    let mut hasher = DefaultHasher::new();
    b.lse.iter().for_each(|x| hasher.write_u32(x.to_bits()));
    (0..b.output.len()).for_each(|i| hasher.write_u32(b.output.get(i).to_bits()));
    hasher.finish()
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn every_division_computes_the_same() {
    let engine = engine(Tuning::Off);
    let mask = |kind| Some(MaskParams { kind, dims: vec![70, 260], density: 0.7 });
    let plain = Params::plain(70, 260, 64, 64);
    let cases = [
        plain.clone(),
        Params { causal: Some(Alignment::BottomRight), ..plain.clone() },
        Params { mask: mask(MaskKind::Bool), ..plain.clone() },
        Params { mask: mask(MaskKind::Additive(DType::F32)), ..plain.clone() },
        Params { dtype: DType::F16, heads: 2, ..Params::plain(3, 400, 64, 40) },
    ];
    for case in cases.map(|p| p.build("division")) {
        let problem = case.problem();
        let options = PlanOptions::default();
        let choices = engine.divisions(&problem, &options).unwrap();
        let (own, want) = run(&engine, &case, None);
        assert_eq!(choices[0].division(), own);
        let (mut kernels, mut divided, mut others) = (Vec::new(), 0, 0);
        for choice in &choices {
            let plan = engine.plan(&problem, &options.division(choice.division())).unwrap();
            assert_eq!(plan.gpu_choice(), Some(choice));
            assert_eq!(plan.certificate().executed, choice.executed());
            let (ran, bits) = run(&engine, &case, Some(choice.division()));
            assert_eq!(ran, choice.division());
            others += usize::from(bits != want);
            divided += usize::from(choice.splits > 1);
            kernels.push(choice.kernel.name);
        }
        kernels.sort_unstable();
        kernels.dedup();
        // The rounding of an f16 output may hide that the computation differed.
        let hidden = case.spec.dtype != DType::F32;
        assert!(divided >= 2 && (others >= 1 || hidden), "{divided} {others}");
        assert!(kernels.len() >= 2, "{kernels:?}");
    }
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn a_tuned_file_decides_and_nothing_else_does() {
    let off = engine(Tuning::Off);
    let case = Params { heads: 2, kv_heads: 2, ..Params::plain(70, 260, 64, 64) };
    let (alone, batch) = (case.build("alone"), Params { batch: 3, ..case.clone() }.build("batch"));
    let other = Params { queries: 71, ..case }.build("other");
    let problem = alone.problem();
    let choices = off.divisions(&problem, &PlanOptions::default()).unwrap();
    let (own, chosen) = run(&off, &alone, None);
    let differs = |division: &Division| division.splits > 1 && run(&off, &alone, Some(*division)).1 != chosen;
    let division = choices[1..].iter().map(|choice| choice.division()).find(differs).unwrap();
    let wanted = run(&off, &alone, Some(division)).1;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned.toml");
    let kernel = choices.iter().find(|choice| choice.division() == division).unwrap().kernel.name;
    let class = ShapeClass::of(&problem, false).unwrap();
    let shape = TunedShape { class, kernel: kernel.to_owned(), splits: division.splits, cpu: None };
    let text = Tuned::new(off.device().unwrap(), vec![shape]).unwrap().text();
    std::fs::write(&path, &text).unwrap();
    let tuned = engine(Tuning::File(path.clone()));
    assert_eq!(tuned.tuned().unwrap().contents.as_ref().unwrap().shapes().len(), 1);
    assert_eq!(run(&tuned, &alone, None), (division, wanted));
    assert_eq!(run(&tuned, &batch, None).0, division);
    assert_eq!(run(&tuned, &batch, None).1, run(&off, &batch, Some(division)).1);
    // A tuned file changes neither calls that were not measured nor divisions that the caller chooses.
    assert_eq!(run(&tuned, &other, None), run(&off, &other, None));
    assert_eq!(run(&tuned, &alone, Some(own)), (own, chosen));

    // An invalid file is ignored.
    let cut = &text[..text.len() - 12];
    let moved = text.replace("[device]\nname = \"", "[device]\nname = \"not ");
    for wrong in [cut, &moved, "", &text.replace("splits = ", "splits = 7")] {
        std::fs::write(&path, wrong).unwrap();
        let ignored = engine(Tuning::File(path.clone()));
        assert!(ignored.tuned().unwrap().contents.is_err());
        assert_eq!(run(&ignored, &alone, None), (own, chosen));
    }
    let none = engine(Tuning::File(folder.path().join("none")));
    assert!(matches!(none.tuned().unwrap().contents, Err(PlanError::TunedRead(_))));
    assert_eq!(none.tuned().unwrap().path.parent(), Some(Path::new(folder.path())));
    assert!(off.tuned().is_none() && run(&none, &alone, None) == (own, chosen));
}

/// Checks that the measured time of consecutive calls is positive, and that a run afterwards has the correct output. Some
/// calls are recorded in a CUDA graph. The other calls copy a table of sequences and have no graph.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn time_on_the_device_is_measured() {
    let engine = engine(Tuning::Off);
    for lengths in [false, true] {
        let case = Params { lengths, ..Params::plain(40, 200, 32, 32) }.build("time");
        let problem = case.problem();
        let plan = engine.plan(&problem, &PlanOptions::default()).unwrap();
        let mut workspace = plan.workspace().unwrap();
        let mut buffers = case.buffers();
        let mut bound = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap();
        for calls in [1, 3, 3, 2] {
            let (report, time) = bound.time_on_device(calls).unwrap();
            assert_eq!(report.backend, Backend::Cuda);
            assert!(time.unwrap() > Duration::ZERO, "{calls} calls, lengths {lengths}");
        }
        bound.run().unwrap();
        case.naive().check_all(&buffers, 5000).unwrap();
    }
}

/// Compares two ways to compute splits, which must give the same bits of output and log-sum-exp. In a batch that fills
/// the device, a block computes all splits of its rows and merges them in place. A run that outputs states has a block
/// per split, and a second kernel merges them.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host, or gpu-test"]
fn blocks_that_take_all_splits_change_no_bit() {
    let engine = engine(Tuning::Off);
    let mut ran = Vec::new();
    for (queries, keys, d) in [(70, 330, 64), (67, 1100, 40)] {
        let params = Params::plain(queries, keys, d, d);
        let alone = params.build("alone");
        let choices = engine.divisions(&alone.problem(), &PlanOptions::default()).unwrap();
        for choice in choices.iter().filter(|c| c.kernel.serial && c.splits > 1) {
            let options = PlanOptions::default().division(choice.division());
            let serial = |batch: &usize| {
                let case = Params { batch: *batch, ..params.clone() }.build("batch");
                engine.plan(&case.problem(), &options).unwrap().gpu_choice().unwrap().serial
            };
            assert!(!serial(&1) || engine.device().unwrap().profile.sms <= 2);
            let batch = [1, 2, 3, 4, 33, 66, 99, 132, 198].into_iter().find(serial).unwrap();
            let mut case = Params { batch, ..params.clone() }.build("batch");
            // Scores grow along the keys, so that references move in every split. Some rows are not finite.
            for i in 0..case.k.len() {
                case.k.set(i, case.k.get(i) * (0.5 + 2.5 * (i / d % keys) as f32 / keys as f32));
            }
            case.q.set(5 * d, f32::NAN);
            case.v.set(7 * d, f32::INFINITY);
            let problem = case.problem();
            let plan = engine.plan(&problem, &options).unwrap();
            let mut workspace = plan.workspace().unwrap();
            let (mut apart, mut together) = (case.buffers(), case.buffers());
            plan.bind(case.inputs(), apart.outputs(), &mut workspace).unwrap().run().unwrap();
            let mut outputs = Outputs::new(together.output.elements_mut());
            outputs.lse = Some(&mut together.lse);
            let mut bound = plan.bind(case.inputs(), outputs, &mut workspace).unwrap();
            bound.run().unwrap();
            bound.run().unwrap();
            let of = |b: &Buffers| {
                let output = (0..b.output.len()).map(|i| b.output.get(i));
                let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
                output.chain(b.lse.iter().copied()).map(bits).collect::<Vec<_>>()
            };
            case.naive().check_all(&apart, 5000).unwrap_or_else(|e| panic!("{choice:?}: {e}"));
            assert!(together.output.get(1).is_finite() && together.output.get(5 * d + 1).is_nan());
            assert_eq!(of(&apart), of(&together), "{} splits, {queries} x {keys} x {d}", choice.splits);
            ran.push(choice.splits);
        }
    }
    assert!(ran.contains(&2) && ran.iter().any(|splits| *splits >= 4), "{ran:?}");
}
