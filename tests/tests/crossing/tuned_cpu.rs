//! Tests tuning on a CPU: every decision that a measurement may choose computes the same function, only the block
//! changes bits, and a tuned file affects exactly the calls that it lists.

use elsa_core::attention::plan::{CpuDivision, ShapeClass};
use elsa_oracle::cases::{Case, Params};
use elsa_runtime::{Backend, Engine, EngineOptions, PlanOptions, Tuned, TunedShape, Tuning};
use std::collections::BTreeMap;

fn engine(tuned: Tuning) -> Engine {
    let present = Backend::ALL.into_iter().find(|backend| *backend != Backend::Cuda && backend.is_present());
    Engine::new(&EngineOptions::default().backend(present).threads(2).tuned(tuned)).unwrap()
}

/// Runs a case and checks its output. Returns the decisions of the plan, and the bits of the output.
fn run(engine: &Engine, case: &Case, options: &PlanOptions) -> (CpuDivision, Vec<u32>) {
    let plan = engine.plan(&case.problem(), options).unwrap();
    let (buffers, _) = case.run(&plan, &mut plan.workspace().unwrap());
    case.naive().check_all(&buffers, 5000).unwrap_or_else(|e| panic!("{case:?}: {e}"));
    let bits = (0..buffers.output.len()).map(|i| buffers.output.get(i).to_bits()).collect();
    (plan.choice().unwrap().division(), bits)
}

fn case(queries: usize, batch: usize) -> Case {
    Params { batch, heads: 2, kv_heads: 2, ..Params::plain(queries, 900, 64, 64) }.build("tuned")
}

#[test]
#[cfg_attr(miri, ignore = "Miri is slow, and other tests run each block there")]
fn only_the_block_of_a_decision_changes_bits() {
    let (engine, case, options) = (engine(Tuning::Off), case(200, 1), PlanOptions::default());
    let all = engine.cpu_divisions(&case.problem(), &options).unwrap();
    let mut of_block: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    let (own, bits) = run(&engine, &case, &options);
    of_block.insert(own.block, bits);
    for wanted in all.iter().map(|choice| choice.division()) {
        let (found, bits) = run(&engine, &case, &options.cpu_division(wanted));
        assert!(found == wanted && found != own);
        assert_eq!(of_block.entry(found.block).or_insert_with(|| bits.clone()), &bits, "{found:?}");
    }
    let kinds: Vec<&usize> = of_block.keys().collect();
    assert_eq!(kinds, [&64, &128, &256]);
    assert!(of_block[&64] != of_block[&128] && of_block[&128] != of_block[&256] && all.len() > 6);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no files")]
fn a_tuned_file_decides_and_nothing_else_does() {
    let (off, options) = (engine(Tuning::Off), PlanOptions::default());
    let (alone, batch, other) = (case(70, 1), case(70, 3), case(71, 1));
    let division = CpuDivision { block: 128, group: 1, workers: 2 };
    let class = ShapeClass::of(&alone.problem(), false).unwrap();
    let kernel = off.plan(&alone.problem(), &options).unwrap().kernel().to_owned();
    let shape = TunedShape { class, kernel, splits: 1, cpu: Some(division) };
    let text = Tuned::on_cpu(off.cpu(), off.profile(), vec![shape]).unwrap().text();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned.toml");
    std::fs::write(&path, &text).unwrap();
    let tuned = engine(Tuning::File(path.clone()));
    assert!(off.tuned().is_none() && tuned.tuned().unwrap().contents.is_ok());
    let asked = options.cpu_division(division);
    for case in [&alone, &batch] {
        let (found, bits) = run(&tuned, case, &options);
        assert_eq!((found, &bits), (division, &run(&off, case, &asked).1));
        assert_ne!(bits, run(&off, case, &options).1);
    }
    // Other shapes, and calls that name their block or their decisions, are as without the file.
    assert_eq!(run(&tuned, &other, &options), run(&off, &other, &options));
    let wide = options.block(256);
    assert_eq!(run(&tuned, &alone, &wide), run(&off, &alone, &wide));
    let named = options.cpu_division(CpuDivision { block: 64, ..division });
    assert_eq!(run(&tuned, &alone, &named), run(&off, &alone, &named));
    for wrong in [text.replace("block = 128", "block = 96"), text.replace("l2 = ", "l2 = 7")] {
        std::fs::write(&path, wrong).unwrap();
        let ignored = engine(Tuning::File(path.clone()));
        assert!(ignored.tuned().unwrap().contents.is_err());
        assert_eq!(run(&ignored, &alone, &options), run(&off, &alone, &options));
    }
}
