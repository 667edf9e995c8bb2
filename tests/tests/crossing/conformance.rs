//! Compares the outputs of every available back end with the definition in f64, on all hard cases and on random
//! problems. Also proves that every mask and flag matters.

use elsa_core::attention::traversal::Schedule;
use elsa_core::attention::{Alignment, MaskKind, scalar};
use elsa_core::dtype::DType;
use elsa_core::state::NaturalMerge;
use elsa_core::view::Layout;
use elsa_oracle::cases::{
    BiasParams, Buffers, Case, Data, MaskParams, Params, any_case, hard_cases, some_hard_cases,
};
use elsa_oracle::naive::Answer;
use elsa_oracle::random::seeded;
use elsa_oracle::strides::{TURNS, far_case};
use elsa_runtime::{Backend, Engine, Method, PlanOptions, backends};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Returns an engine with `threads` threads on every back end that is present. Panics if a back end that `ELSA_REQUIRE`
/// names is absent.
fn engines(threads: usize) -> Vec<Engine> {
    let present: Vec<Backend> = backends().iter().filter(|b| b.present).map(|b| b.backend).collect();
    if let Ok(required) = std::env::var("ELSA_REQUIRE") {
        for name in required.split(',').filter(|n| !n.is_empty()) {
            assert!(present.iter().any(|b| b.name() == name), "{name} is required and absent");
        }
    }
    assert!(present.contains(&Backend::SCALAR));
    elsa_oracle::engines(threads)
}

/// Returns the number of additions between a key and the result: in its block, over the blocks of its segment, and in
/// the merge tree.
fn additions(options: &PlanOptions) -> usize {
    match options.method {
        Method::Elsa => options.block + 8 + 12,
        // Method math sums the weights of a row in a single chain over all keys; no case has more than 4096.
        Method::Math => 4096,
    }
}

/// Output and present tensors of a case according to the definition.
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
    let got = case.run_on(engine, options);
    let answer = &expected.answer;
    let share = answer
        .check_all(&got, additions(options))
        .map_err(|e| format!("{} {options:?}: {case:?}: {e}", engine.kernel()))?;
    if let (Some((k, v)), Some((want_k, want_v))) = (&got.present, &expected.present) {
        for (data, want) in [(k, want_k), (v, want_v)] {
            for i in 0..want.len() {
                let (a, b) = (data.get(i), want.get(i));
                // Zero marks a gap between rows, which is not written.
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
                // Method math does not support packed sequences.
                if method == Method::Math && case.spec.packed.is_some() {
                    continue;
                }
                let options = PlanOptions::default().method(method).all_workers(true);
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
    for case in some_hard_cases().iter().filter(|c| c.spec.key.tokens() > 64) {
        let expected = Expected::of(case);
        for engine in &engines {
            for block in [64, 128, 256] {
                let options = PlanOptions::default().block(block);
                check(engine, case, &expected, &options).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

/// Returns `true` if the outputs of two runs differ anywhere.
fn differs(a: &Buffers, b: &Buffers) -> bool {
    (0..a.output.len()).any(|i| a.output.get(i).to_bits() != b.output.get(i).to_bits())
}

#[test]
fn every_flag_and_every_mask_element_matters() {
    use elsa_core::attention::MaskKind;
    use elsa_core::attention::{Alignment, Window};
    use elsa_oracle::cases::MaskParams;
    for engine in engines(1) {
        let o = PlanOptions::default();
        let plain = Params { heads: 2, kv_heads: 2, ..Params::plain(70, 90, 32, 32) };
        let base = plain.build("plain").run_on(&engine, &o);
        let variants: Vec<(&str, Params)> = vec![
            ("causal", Params { causal: Some(Alignment::BottomRight), ..plain.clone() }),
            ("top-left", Params { causal: Some(Alignment::TopLeft), ..plain.clone() }),
            ("left", Params { window: Window { left: Some(9), right: None }, ..plain.clone() }),
            ("right", Params { window: Window { left: None, right: Some(9) }, ..plain.clone() }),
            (
                "one key more to the left",
                Params { window: Window { left: Some(10), right: None }, ..plain.clone() },
            ),
            (
                "one key more to the right",
                Params { window: Window { left: None, right: Some(10) }, ..plain.clone() },
            ),
            (
                "left of the causal diagonal",
                Params {
                    causal: Some(Alignment::TopLeft),
                    window: Window { left: Some(9), right: None },
                    ..plain.clone()
                },
            ),
            (
                "mask shorter than the keys",
                Params {
                    mask: Some(MaskParams { kind: MaskKind::Bool, dims: vec![70, 89], density: 1.0 }),
                    ..plain.clone()
                },
            ),
            ("softcap", Params { softcap: Some(0.7), ..plain.clone() }),
            ("scale", Params { scale: Some(0.2), ..plain.clone() }),
        ];
        let mut outputs = vec![base];
        for (name, params) in variants {
            let out = params.build(name).run_on(&engine, &o);
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
            let before = case.run_on(&engine, &o);
            for index in [0, 89, 90 * 69, 90 * 70 - 1, 90 * 70, 2 * 90 * 70 - 1, 1234] {
                let mut changed = case.clone();
                let attended = match changed.mask.as_ref().unwrap() {
                    elsa_oracle::cases::MaskData::Bool(x) => x[index] != 0,
                    elsa_oracle::cases::MaskData::Additive(x) => x.get(index) != f32::NEG_INFINITY,
                };
                changed.mask.as_mut().unwrap().set_attended(index, !attended);
                let after = changed.run_on(&engine, &o);
                let row = index / 90;
                for r in 0..140 {
                    let at = case.spec.output.row(0, r / 70, r % 70);
                    let same = (0..32)
                        .all(|x| before.output.get(at + x).to_bits() == after.output.get(at + x).to_bits());
                    assert_eq!(same, r != row, "mask element {index}, row {r} on {}", engine.kernel());
                }
            }
        }
        // The soft cap applies to the scores, not to the mask that is added to them.
        let added = MaskKind::Additive(elsa_core::dtype::DType::F32);
        let mask = Some(MaskParams { kind: added, dims: vec![70, 90], density: 1.0 });
        let capped = Params { softcap: Some(1.0), mask, ..plain.clone() }.build("capped").run_on(&engine, &o);
        assert!(capped.lse.iter().any(|lse| *lse > 1.0 + 90f32.ln()), "{}", engine.kernel());
        // The length of a sequence must matter. It also moves the diagonal: the shorter length alone removes no key of
        // the first row.
        let mut case = Params { batch: 2, lengths: true, ..plain.clone() }.build("lengths");
        case.lengths = Some(vec![80, 40]);
        let before = case.run_on(&engine, &o);
        case.lengths = Some(vec![80, 41]);
        assert!(differs(&before, &case.run_on(&engine, &o)));
        let causal = Some(Alignment::BottomRight);
        let mut case = Params { lengths: true, causal, ..plain.clone() }.build("diagonal");
        let mut first = |keys| {
            case.lengths = Some(vec![keys]);
            let found = case.run_on(&engine, &o);
            let at = case.spec.output.row(0, 0, 0);
            (0..32).map(|x| found.output.get(at + x).to_bits()).collect::<Vec<_>>()
        };
        assert_ne!(first(90), first(80), "{}", engine.kernel());
        // The key head of a query head must matter, for a key of the call and for a value of the past.
        for past in [None, Some(6)] {
            let mut grouped = Params { heads: 4, kv_heads: 2, past, ..plain.clone() }.build("groups");
            let before = grouped.run_on(&engine, &o);
            match (&mut grouped.past, grouped.spec.past_value) {
                (Some((_, values)), Some(view)) => values.set(view.row(0, 1, 2), 3.0),
                _ => grouped.k.set(grouped.spec.key.row(0, 1, 5), 3.0),
            }
            let after = grouped.run_on(&engine, &o);
            for h in 0..4 {
                let at = grouped.spec.output.row(0, h, 0);
                let same = (0..70 * 32)
                    .all(|x| before.output.get(at + x).to_bits() == after.output.get(at + x).to_bits());
                assert_eq!(same, h < 2, "head {h}, past {past:?} on {}", engine.kernel());
            }
        }
    }
}

/// Computes a row from scores in base-2 units, in f64: returns output, `Σ p|v|` and log-sum-exp.
fn of_scores(scores: &[f32], values: &[f32], dv: usize) -> (Vec<f64>, Vec<f64>, f64) {
    let max = scores.iter().map(|s| f64::from(*s)).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (f64::from(*s) - max).exp2()).collect();
    let sum: f64 = weights.iter().sum();
    let column = |x: usize, f: &dyn Fn(f64) -> f64| {
        let terms = weights.iter().enumerate().map(|(j, w)| w * f(f64::from(values[j * dv + x])) / sum);
        terms.sum::<f64>()
    };
    let y = (0..dv).map(|x| column(x, &|v| v)).collect();
    let spread = (0..dv).map(|x| column(x, &f64::abs)).collect();
    (y, spread, (max + sum.log2()) * std::f64::consts::LN_2)
}

/// Checks scores of any magnitude that are exact in f32. The output of one call must be the softmax of these scores. The
/// same holds for the output that is computed from the states of several parts of the keys, which are merged outside the
/// library. A part may be empty.
#[test]
fn scores_of_any_magnitude_whole_and_in_parts() {
    let (rows, dv) = (5, 6);
    // This scale makes a score in base-2 units the product of a query and a key, each one element with few bits.
    let scale = Some(std::f32::consts::LN_2);
    let factors = [1.0f32, -1.0, 0.5, 2.0, -4.0];
    let sizes = [0.0f32, 40.0, 1e4, 1.3e7, 1.5e8, 6e8, 1.1e9, 1.6e9, 3e9, 5e11, 3e30];
    let case = |k: &[f32], v: &[f32]| {
        let mut case = Params { scale, ..Params::plain(rows, k.len(), 1, dv) }.build("parts");
        (0..rows).for_each(|i| case.q.set(i, factors[i]));
        k.iter().enumerate().for_each(|(j, k)| case.k.set(j, *k));
        v.iter().enumerate().for_each(|(j, v)| case.v.set(j, *v));
        case
    };
    let mut random = seeded(5);
    for (size, seed) in sizes.into_iter().flat_map(|size| [(size, 1), (-size, 2), (size, 3)]) {
        let unit = (size.abs().next_up() - size.abs()).max(1.0);
        let keys = [40, 150, 700][seed - 1];
        let k: Vec<f32> = (0..keys).map(|_| size + unit * random.below(12) as f32).collect();
        let v: Vec<f32> = (0..keys * dv).map(|_| random.normal()).collect();
        // The bounds of the parts are in order; a repeated bound makes a part without keys.
        let mut cuts: Vec<usize> = (0..1 + random.below(4)).map(|_| random.below(keys + 1)).collect();
        cuts.extend([0, keys, cuts[0]]);
        cuts.sort_unstable();
        let wanted =
            factors.map(|factor| of_scores(&k.iter().map(|k| k * factor).collect::<Vec<_>>(), &v, dv));
        for engine in engines(2) {
            let options = PlanOptions::default().all_workers(true);
            let whole = case(&k, &v).run_on(&engine, &options);
            let parts = cuts.windows(2).map(|cut| {
                let (from, to) = (cut[0], cut[1]);
                case(&k[from..to], &v[from * dv..to * dv]).run_on(&engine, &options)
            });
            let merged = parts.reduce(|mut sum, part| {
                for row in 0..rows {
                    let merge = NaturalMerge::of((sum.m[row], sum.s[row]), (part.m[row], part.s[row]));
                    (sum.m[row], sum.s[row]) = (merge.m, merge.s);
                    for x in row * dv..(row + 1) * dv {
                        sum.w[x] = merge.w(sum.w[x], part.w[x]);
                    }
                }
                sum
            });
            let merged = merged.unwrap();
            for (row, (y, spread, lse)) in wanted.iter().enumerate() {
                let what = format!("{} at {size:e}, {cuts:?}, row {row}", engine.backend().name());
                for x in 0..dv {
                    let quotient = |b: &Buffers| f64::from(b.w[row * dv + x]) / f64::from(b.s[row]);
                    let found =
                        [f64::from(whole.output.get(row * dv + x)), quotient(&whole), quotient(&merged)];
                    for (found, name) in found.into_iter().zip(["output", "state", "merged states"]) {
                        let (y, allowed) = (y[x], 2e-5 * spread[x]);
                        assert!((found - y).abs() <= allowed, "{what}: {name} {found}, not {y}");
                    }
                }
                let of_state = |b: &Buffers| f64::from(b.m[row]) + f64::from(b.s[row]).ln();
                for found in [f64::from(whole.lse[row]), of_state(&whole), of_state(&merged)] {
                    assert!((found - lse).abs() <= 2e-6 + 2e-7 * lse.abs(), "{what}: {found}, not {lse}");
                }
            }
        }
    }
}

/// Returns cases in which some axis of every tensor has fewer than two elements.
fn cases_of_single_elements() -> Vec<Case> {
    let plain = |queries, keys| Params { heads: 4, kv_heads: 1, ..Params::plain(queries, keys, 32, 32) };
    let mask = |kind, dims: &[usize]| MaskParams { kind, dims: dims.to_vec(), density: 0.7 };
    let (bool, added) = (MaskKind::Bool, MaskKind::Additive(DType::F32));
    let causal = Some(Alignment::BottomRight);
    let cases = [
        Params::plain(1, 1, 1, 1),
        Params { heads: 1, layout: Layout::Bnhd, ..plain(1, 70) },
        plain(1, 1),
        Params { dtype: DType::F16, ..plain(1, 1) },
        Params { batch: 2, kv_heads: 4, ..plain(1, 70) },
        plain(70, 1),
        Params { past: Some(1), present: true, causal, ..plain(1, 1) },
        Params { past: Some(70), present: true, layout: Layout::Bnhd, ..plain(1, 1) },
        Params { past: Some(1), present: true, ..plain(2, 0) },
        Params { packed: Some(vec![(1, 0), (0, 0), (0, 1), (1, 0)]), ..plain(0, 0) },
        Params { packed: Some(vec![(1, 1), (0, 0)]), ..plain(0, 0) },
        Params { mask: Some(mask(bool, &[1, 1, 1, 70])), ..plain(1, 70) },
        Params { mask: Some(mask(added, &[1, 4, 70, 1])), ..plain(70, 1) },
        Params { bias: Some(BiasParams::Dense(mask(added, &[1, 1, 70, 1]))), ..plain(70, 1) },
        Params { mask: Some(mask(added, &[1, 1, 1, 1])), ..plain(1, 1) },
    ];
    cases.into_iter().map(|params| params.build("single elements")).collect()
}

/// Returns the bits of all results and the back end of a run, or the reason why there is no plan.
fn outcome(
    engine: &Engine,
    case: &Case,
    options: &PlanOptions,
) -> Result<(Vec<u32>, Vec<u32>, Backend), String> {
    let plan = engine.plan(&case.problem(), options).map_err(|e| e.to_string())?;
    let (found, report) = case.run(&plan, &mut plan.workspace().unwrap());
    let present = found.present.iter().flat_map(|(k, v)| [k.bits(), v.bits()]).flatten().collect();
    Ok((found.bits(), present, report.backend))
}

/// The stride of an axis with fewer than two elements may be any number, so it must not change a bit, and no arithmetic
/// with it may overflow.
#[test]
fn strides_of_single_elements_do_not_matter() {
    let all = PlanOptions::default().all_workers(true);
    let options = [
        all,
        all.certify(true),
        all.method(Method::Math),
        all.schedule(Schedule::within(0.1)),
        all.schedule(Schedule { gate: true, ..Schedule::EXACT }),
    ];
    let (engines, mut runs) = (engines(2), 0);
    for (i, case) in cases_of_single_elements().iter().enumerate() {
        for (j, options) in options.iter().enumerate() {
            let far = far_case(case, (i + j) % TURNS);
            for engine in &engines {
                let want = outcome(engine, case, options);
                runs += usize::from(want.is_ok());
                assert_eq!(outcome(engine, &far, options), want, "{} {options:?}: {case:?}", engine.kernel());
            }
        }
        let by_core = |case: &Case| {
            let (problem, mut buffers) = (case.problem(), case.buffers());
            let mut scratch = vec![f32::NAN; scalar::scratch_len(&problem).unwrap()];
            scalar::run(&problem, &case.inputs(), &mut buffers.outputs(), &mut scratch).unwrap();
            buffers.bits()
        };
        assert_eq!(by_core(&far_case(case, i % TURNS)), by_core(case), "{case:?}");
    }
    assert!(runs >= 30 * engines.iter().filter(|engine| engine.backend() != Backend::Cuda).count(), "{runs}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_problems_on_every_back_end(case in any_case(), block in 0usize..3, threads in 1usize..4) {
        let expected = Expected::of(&case);
        for engine in engines(threads) {
            let options = PlanOptions::default().block(64 << block).all_workers(true);
            if let Err(e) = check(&engine, &case, &expected, &options) {
                prop_assert!(false, "{}", e);
            }
        }
    }
}
