//! Every back end that this machine can execute against the definition in f64, over every hard case and random
//! problems; and every mask and flag shown to matter.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use elsa_runtime::{Backend, Engine, EngineOptions, Method, PlanOptions, backends};
use elsa_tests::cases::{Buffers, Case, Data, Params, any_case, hard_cases};
use elsa_tests::naive::Answer;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Engines of `threads` threads for every back end that is present. All that `ELSA_REQUIRE` names must be present.
fn engines(threads: usize) -> Vec<Engine> {
    let present: Vec<Backend> = backends().iter().filter(|b| b.present).map(|b| b.backend).collect();
    if let Ok(required) = std::env::var("ELSA_REQUIRE") {
        for name in required.split(',').filter(|n| !n.is_empty()) {
            assert!(present.iter().any(|b| b.name() == name), "{name} is required and absent");
        }
    }
    assert!(present.contains(&Backend::SCALAR));
    let options = |b| EngineOptions { backend: Some(b), threads: Some(threads), ..EngineOptions::default() };
    present.into_iter().map(|b| Engine::new(&options(b)).unwrap()).collect()
}

fn run(engine: &Engine, case: &Case, options: &PlanOptions) -> Buffers {
    let problem = case.problem();
    let plan = engine.plan(&problem, options).unwrap();
    let mut workspace = plan.workspace().unwrap();
    let mut buffers = case.buffers();
    let report = plan.bind(case.inputs(), buffers.outputs(), &mut workspace).unwrap().run().unwrap();
    assert_eq!(report.backend, engine.backend());
    buffers
}

/// Additions between a key and the result: within a block, blocks of a segment, and the merge tree.
fn additions(options: &PlanOptions) -> usize {
    match options.method {
        Method::Elsa => options.block + 8 + 12,
        // One chain of row sums over all keys; no case has more than 4096.
        Method::Math => 4096,
    }
}

/// The answer of the definition to a case.
struct Expected {
    answer: Answer,
    present: Option<(Data, Data)>,
}

impl Expected {
    fn of(case: &Case) -> Expected {
        Expected { answer: case.naive(), present: case.naive_present() }
    }
}

fn check(engine: &Engine, case: &Case, expected: &Expected, options: &PlanOptions) -> Result<f64, String> {
    let got = run(engine, case, options);
    let answer = &expected.answer;
    let share = answer
        .check_all(&got, additions(options))
        .map_err(|e| format!("{} {options:?}: {case:?}: {e}", engine.kernel()))?;
    if let (Some((k, v)), Some((want_k, want_v))) = (&got.present, &expected.present) {
        for (data, want) in [(k, want_k), (v, want_v)] {
            for i in 0..want.len() {
                let (a, b) = (data.get(i), want.get(i));
                // Gaps between rows are not written.
                if b != 0.0 && a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()) {
                    return Err(format!("{case:?}: present element {i} is {a}, not {b}"));
                }
            }
        }
    }
    Ok(share)
}

#[test]
fn hard_cases_on_every_back_end() {
    let cases = hard_cases();
    assert!(cases.len() > 150);
    let expected: Vec<Expected> = cases.iter().map(Expected::of).collect();
    for engine in engines(2) {
        let mut ran = BTreeMap::new();
        let mut failures = Vec::new();
        for (case, expected) in cases.iter().zip(&expected) {
            for method in [Method::Elsa, Method::Math] {
                // Method math supports neither.
                let gpu = engine.backend() == Backend::Cuda;
                if method == Method::Math && (case.spec.packed.is_some() || gpu) {
                    continue;
                }
                let options = PlanOptions { method, all_workers: true, ..PlanOptions::default() };
                match check(&engine, case, expected, &options) {
                    Ok(_) => *ran.entry(format!("{method:?}")).or_insert(0) += 1,
                    Err(e) => failures.push(e),
                }
            }
        }
        println!("{}: {ran:?} of {} cases", engine.kernel(), cases.len());
        assert!(
            failures.is_empty(),
            "{} failures, such as\n{}",
            failures.len(),
            failures[..failures.len().min(12)].join("\n")
        );
        assert_eq!(ran["Elsa"], cases.len());
    }
}

#[test]
fn every_block_size() {
    let engines = engines(1);
    for case in hard_cases().iter().filter(|c| c.spec.key.tokens() > 64) {
        let expected = Expected::of(case);
        for engine in &engines {
            for block in [64, 128, 256] {
                let options = PlanOptions { block, ..PlanOptions::default() };
                check(engine, case, &expected, &options).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

/// Whether two outputs differ somewhere.
fn differs(a: &Buffers, b: &Buffers) -> bool {
    (0..a.output.len()).any(|i| a.output.get(i).to_bits() != b.output.get(i).to_bits())
}

#[test]
fn every_flag_and_every_mask_element_matters() {
    use elsa_core::attention::MaskKind;
    use elsa_core::attention::{Alignment, Window};
    use elsa_tests::cases::MaskParams;
    for engine in engines(1) {
        let o = PlanOptions::default();
        let plain = Params { heads: 2, kv_heads: 2, ..Params::plain(70, 90, 32, 32) };
        let base = run(&engine, &plain.build("plain"), &o);
        let variants: Vec<(&str, Params)> = vec![
            ("causal", Params { causal: Some(Alignment::BottomRight), ..plain.clone() }),
            ("top-left", Params { causal: Some(Alignment::TopLeft), ..plain.clone() }),
            ("left", Params { window: Window { left: Some(9), right: None }, ..plain.clone() }),
            ("right", Params { window: Window { left: None, right: Some(9) }, ..plain.clone() }),
            ("softcap", Params { softcap: Some(0.7), ..plain.clone() }),
            ("scale", Params { scale: Some(0.2), ..plain.clone() }),
        ];
        let mut outputs = vec![base];
        for (name, params) in variants {
            let out = run(&engine, &params.build(name), &o);
            assert!(
                outputs.iter().all(|x| differs(x, &out)),
                "{name} changes nothing on {}",
                engine.kernel()
            );
            outputs.push(out);
        }
        for kind in [MaskKind::Bool, MaskKind::Additive(elsa_core::dtype::DType::F32)] {
            let dims = vec![2, 70, 90];
            let params = Params { mask: Some(MaskParams { kind, dims, density: 0.7 }), ..plain.clone() };
            let case = params.build("mask");
            let before = run(&engine, &case, &o);
            for index in [0, 89, 90 * 69, 90 * 70 - 1, 90 * 70, 2 * 90 * 70 - 1, 1234] {
                let mut changed = case.clone();
                let attended = match changed.mask.as_ref().unwrap() {
                    elsa_tests::cases::MaskData::Bool(x) => x[index] != 0,
                    elsa_tests::cases::MaskData::Additive(x) => x.get(index) != f32::NEG_INFINITY,
                };
                changed.mask.as_mut().unwrap().set_attended(index, !attended);
                let after = run(&engine, &changed, &o);
                let row = index / 90;
                for r in 0..140 {
                    let at = case.spec.output.row(0, r / 70, r % 70);
                    let same = (0..32)
                        .all(|x| before.output.get(at + x).to_bits() == after.output.get(at + x).to_bits());
                    assert_eq!(same, r != row, "mask element {index}, row {r} on {}", engine.kernel());
                }
            }
        }
        // Lengths of a sequence, and the head that a query head uses.
        let mut case = Params { batch: 2, lengths: true, ..plain.clone() }.build("lengths");
        case.lengths = Some(vec![80, 40]);
        let before = run(&engine, &case, &o);
        case.lengths = Some(vec![80, 41]);
        assert!(differs(&before, &run(&engine, &case, &o)));
        let mut grouped = Params { heads: 4, kv_heads: 2, ..plain.clone() }.build("groups");
        let before = run(&engine, &grouped, &o);
        let at = grouped.spec.key.row(0, 1, 5);
        grouped.k.set(at, 3.0);
        let after = run(&engine, &grouped, &o);
        for h in 0..4 {
            let at = grouped.spec.output.row(0, h, 0);
            let same = (0..70 * 32)
                .all(|x| before.output.get(at + x).to_bits() == after.output.get(at + x).to_bits());
            assert_eq!(same, h < 2, "head {h} on {}", engine.kernel());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_problems_on_every_back_end(case in any_case(), block in 0usize..3, threads in 1usize..4) {
        let expected = Expected::of(&case);
        for engine in engines(threads) {
            let options = PlanOptions { block: 64 << block, all_workers: true, ..PlanOptions::default() };
            if let Err(e) = check(&engine, &case, &expected, &options) {
                prop_assert!(false, "{}", e);
            }
        }
    }
}
