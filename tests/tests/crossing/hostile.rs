//! Compares the outputs of every back end with the definition in f64, for hostile inputs. These are values that leak
//! through a mask in naive code, masks at the end of the f32 range, zeros of both signs, and addresses of any
//! alignment.

use elsa_core::attention::{Alignment, Inputs, MASK_LIMIT, MaskKind, MaskView, Outputs, Spec, scalar};
use elsa_core::dtype::{DType, Elements, ElementsMut};
use elsa_core::random::Random;
use elsa_core::view::{Layout, View};
use elsa_oracle::cases::{Buffers, Case, Data, MaskData, MaskParams, Params};
use elsa_oracle::engines;
use elsa_oracle::random::seeded;
use elsa_runtime::{Engine, Method, PlanOptions};

fn run(engine: &Engine, case: &Case, method: Method, states: bool) -> Buffers {
    let options = PlanOptions::default().method(method).all_workers(true);
    let plan = engine.plan(&case.problem(), &options).unwrap();
    let (buffers, report) = case.run_with(&plan, &mut plan.workspace().unwrap(), |outputs| {
        outputs.state = outputs.state.take().filter(|_| states);
    });
    assert_eq!((report.backend, report.fallback), (engine.backend(), None));
    buffers
}

/// Runs core's scalar fallback, which needs no engine.
fn run_scalar(case: &Case) -> Buffers {
    let problem = case.problem();
    let mut scratch = vec![f32::NAN; scalar::scratch_len(&problem).unwrap()];
    let mut buffers = case.buffers();
    scalar::run(&problem, &case.inputs(), &mut buffers.outputs(), &mut scratch).unwrap();
    buffers
}

/// Computes a case on core and on every engine and method, and calls `see` with the name and the outputs of each run.
fn all(case: &Case, mut see: impl FnMut(String, Buffers)) {
    see("core".into(), run_scalar(case));
    for engine in engines(2) {
        for method in [Method::Elsa, Method::Math] {
            for states in [true, false] {
                let name = format!("{} {method:?}, states {states}", engine.kernel());
                see(name, run(&engine, case, method, states));
            }
        }
    }
}

/// Returns the view `[tokens, 1]` of a few numbers, and the numbers.
fn column(x: &[f32]) -> (View, &[f32]) {
    (View::dense("x", Layout::Bhnd, &[x.len(), 1], None).unwrap(), x)
}

/// Computes a case as [`all`] does. Its queries are 1, so that its keys are the scores; a mask is optional. Runs the
/// case with one query and with twenty queries, for which different kernels are used. Returns names and outputs.
fn one_row(scores: &[f32], values: &[f32], mask: Option<&[f32]>) -> Vec<(String, f32)> {
    let ((view, keys), (_, values)) = (column(scores), column(values));
    let mut out = Vec::new();
    for queries in [1, 20] {
        let mut case = Params::plain(queries, scores.len(), 1, 1).build("one row");
        let ones = vec![1.0; queries];
        let query = column(&ones).0;
        case.spec = Spec::new(DType::F32, query, view, view, query).scale(1.0);
        case.spec.mask = mask.map(|m| MaskView::dense(MaskKind::Additive(DType::F32), &[m.len()]).unwrap());
        case.mask = mask.map(|m| MaskData::Additive(Data::F32(m.to_vec())));
        (case.k, case.v) = (Data::F32(keys.to_vec()), Data::F32(values.to_vec()));
        case.q = Data::F32(ones);
        all(&case, |name, buffers| {
            let rows = [0, queries - 1]
                .map(|row| (format!("{name}, row {row} of {queries}"), buffers.output.get(row)));
            out.extend(rows);
        });
    }
    assert!(out.len() >= 12);
    out
}

#[test]
fn large_values_do_not_leak_through_small_weights() {
    // exp(-200) · 1e33 = 1.4e-54 is zero in f32.
    for (name, y) in one_row(&[200.0, 0.0], &[0.0, 1e33], None) {
        assert_eq!(y.to_bits(), 0, "{name}: {y}");
    }
    // exp(-75) · 1e33 = 2.68, although the weight exp(-75) is far below 2^-100.
    let exact = (-75.0f64).exp() * 1e33;
    for (name, y) in one_row(&[75.0, 0.0], &[0.0, 1e33], None) {
        assert!((f64::from(y) / exact - 1.0).abs() < 1e-4, "{name}: {y}, not {exact}");
    }
    for padding in [-10_000.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
        for value in [1e32, 1e33, 1e35] {
            for (name, y) in one_row(&[0.3, 0.3, 0.3], &[0.69, 0.69, value], Some(&[0.0, 0.0, padding])) {
                assert!((y - 0.69).abs() <= 1e-7, "{name}: {y} with {padding} over {value}");
            }
        }
    }
}

#[test]
fn a_row_of_the_least_finite_mask_is_the_mean() {
    for mask in [f32::MIN, -MASK_LIMIT, -1e38, -1e9] {
        for keys in [1usize, 2, 5, 64, 70, 577] {
            let values: Vec<f32> = (0..keys).map(|j| j as f32).collect();
            let mean = (keys - 1) as f32 / 2.0;
            // In the worst case, each of the two sums is one chain, in which each addition rounds once.
            let allowed = (2.0 * keys as f32 + 8.0) * 2f32.powi(-24) * mean;
            for (name, y) in one_row(&vec![0.25; keys], &values, Some(&vec![mask; keys])) {
                assert!((y - mean).abs() <= allowed, "{name}: {y}, not {mean}, with {mask}");
            }
        }
    }
    // Next to an unmasked key, keys that are masked by finite numbers weigh nothing; keys masked by −∞ are not
    // attended.
    for (name, y) in one_row(&[0.0, 0.0, 0.0], &[1.0, 2.0, 4.0], Some(&[f32::MIN, 0.0, f32::MIN])) {
        assert_eq!(y, 2.0, "{name}");
    }
    for (name, y) in
        one_row(&[0.0, 0.0, 0.0], &[1.0, 2.0, 4.0], Some(&[f32::MIN, f32::NEG_INFINITY, f32::MIN]))
    {
        assert!((y - 2.5).abs() < 1e-6, "{name}: {y}");
    }
}

#[test]
fn attended_values_that_are_not_finite_poison_even_with_no_weight() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for mask in [None, Some([0.0, 0.0, f32::NEG_INFINITY])] {
            let mask = mask.as_ref().map(|m| &m[..]);
            for (name, y) in one_row(&[200.0, -200.0, 0.0], &[1.0, value, 3.0], mask) {
                assert!(!y.is_finite(), "{name}: {y} with {value} attended");
            }
        }
        for (name, y) in one_row(&[0.0, 0.0, 0.0], &[1.0, value, 3.0], Some(&[0.0, f32::NEG_INFINITY, 0.0])) {
            assert!((y - 2.0).abs() < 1e-6, "{name}: {y} with {value} masked");
        }
    }
}

/// Draws a problem in which some keys are masked by large finite numbers or by `−∞` and have huge values.
fn padded(random: &mut Random, number: u64) -> Case {
    let pick = |random: &mut Random, from: &[usize]| from[random.below(from.len())];
    let (batch, queries) = (1 + random.below(2), pick(random, &[1, 2, 5, 17, 33, 64, 70]));
    let keys = pick(random, &[1, 3, 16, 63, 65, 130, 300]);
    let heads = 1 + random.below(3);
    let dims = match random.below(4) {
        0 => vec![keys],
        1 => vec![queries, keys],
        2 => vec![batch, 1, 1, keys],
        _ => vec![batch, heads, queries, keys],
    };
    let dtype = [DType::F32, DType::F32, DType::Bf16][random.below(3)];
    let mut case = Params {
        seed: number,
        dtype,
        batch,
        heads,
        kv_heads: heads,
        causal: (random.below(3) == 0).then_some(Alignment::BottomRight),
        lengths: random.below(4) == 0,
        mask: Some(MaskParams { kind: MaskKind::Additive(dtype), dims, density: 1.0 }),
        gain: [1.0, 30.0][random.below(2)],
        ..Params::plain(queries, keys, pick(random, &[1, 8, 16, 33]), pick(random, &[1, 4, 16, 40]))
    }
    .build("padded");
    // The same keys are masked in every row, but by different numbers.
    let absent: Vec<bool> = (0..keys).map(|_| random.below(3) == 0).collect();
    let numbers = [-10_000.0, -1e9, f32::MIN, f32::NEG_INFINITY];
    let Some(MaskData::Additive(mask)) = &mut case.mask else { unreachable!() };
    for i in 0..mask.len() {
        let own = if random.below(2) == 0 { 0.0 } else { random.normal() };
        mask.set(i, if absent[i % keys] { numbers[random.below(4)] } else { own });
    }
    for (j, absent) in absent.iter().enumerate() {
        for b in 0..batch {
            if *absent {
                let value = [1e32, -1e33, 1e20, 9e32][random.below(4)];
                case.fill_value(b, j, value);
            } else if random.below(4) == 0 {
                case.fill_value(b, j, [0.0, -0.0][random.below(2)]);
            }
        }
    }
    case
}

#[test]
fn padding_never_leaks() {
    let mut random = seeded(11);
    let (mut meaningful, mut share) = (0, 0.0f64);
    // A stand-in GPU takes a tenth of a second for a problem.
    let count = if std::env::var_os("ELSA_STANDIN").is_some() { 60 } else { 200 };
    for number in 0..count {
        let case = padded(&mut random, number);
        let answer = case.naive();
        let rows = answer.lse.len();
        meaningful += (0..rows).filter(|&at| answer.tolerance(at, 0, 400) < 1e-2).count();
        all(&case, |name, buffers| match answer.check(&buffers.output, Some(&buffers.lse), 400) {
            Ok(x) => share = share.max(x),
            // If a row attends only masked keys, their masks determine its output, and its log-sum-exp is beyond f32.
            Err(e) => panic!("{name}: {case:?}, number {number}: {e}"),
        });
    }
    println!("{meaningful} rows with a tolerance below 0.01; {share:.2} of the tolerance used");
    assert!(meaningful as u64 > 25 * count, "{meaningful}");
}

/// Checks values around and below the smallest normal number, alone and in blocks with larger values. Rounding to a
/// multiple of the smallest positive number changes a value by at most half of this number. Such a rounding occurs once
/// per merge, and once per product or, in a kernel that scales the weights up, once per block of keys.
#[test]
fn subnormal_values_keep_their_bits() {
    let least = 2f64.powi(-149);
    let keys = if cfg!(miri) { 70 } else { 300 };
    for size in [1e-8, 1e-20, 2e-22, 1e-30, 1e-37, 1e-38, 1e-40, 1e-42, 1e-44] {
        for (queries, dv, masked, gain) in [(20, 16, false, 1.0), (70, 10, true, 12.0), (1, 16, false, 12.0)]
        {
            for mixed in [false, true] {
                let mask = masked.then(|| MaskParams {
                    kind: MaskKind::Bool,
                    dims: vec![queries, keys],
                    density: 0.7,
                });
                let mut case =
                    Params { mask, gain, ..Params::plain(queries, keys, 8, dv) }.build("subnormal values");
                for x in 0..case.v.len() {
                    let of = if mixed && x / dv < 128 { 1e-6 } else { size };
                    case.v.set(x, (f64::from(case.v.get(x)) * of) as f32);
                }
                let answer = case.naive();
                all(&case, |name, buffers| {
                    let raises = queries > 5 && name.contains("Elsa") && name.contains("avx");
                    let steps = if raises { 8.0 } else { keys as f64 };
                    for (x, (y, spread)) in answer.y.iter().zip(&answer.spread).enumerate() {
                        let (found, allowed) =
                            (f64::from(buffers.output.get(x)), 1e-4 * spread + steps * least);
                        assert!(
                            (found - y).abs() <= allowed,
                            "{name}, {size:e}, mixed {mixed}, element {x}: {found:e}, not {y:e} ±{allowed:e}"
                        );
                    }
                });
            }
        }
    }
}

#[test]
fn zeros_are_positive_for_every_division_of_the_work() {
    for causal in [None, Some(Alignment::TopLeft), Some(Alignment::BottomRight)] {
        for density in [None, Some(0.3)] {
            let mask =
                density.map(|density| MaskParams { kind: MaskKind::Bool, dims: vec![480, 480], density });
            let mut case =
                Params { batch: 2, heads: 2, kv_heads: 1, causal, mask, ..Params::plain(480, 480, 8, 4) }
                    .build("zeros");
            for x in 0..case.v.len() {
                // The columns contain negative zeros, zeros of both signs, tiny negative numbers, and ordinary numbers.
                let (token, dim) = (x / 4, x % 4);
                let value = match dim {
                    0 => -0.0,
                    1 => [0.0, -0.0][token % 2],
                    2 => -1e-44,
                    _ => case.v.get(x),
                };
                case.v.set(x, value);
            }
            let mut first: Option<Vec<u32>> = None;
            for threads in [1, 2, 3] {
                for engine in engines(threads) {
                    for method in [Method::Elsa, Method::Math] {
                        let buffers = run(&engine, &case, method, true);
                        let name = format!("{} {method:?}, {threads} threads, {case:?}", engine.kernel());
                        let mut zeros = Vec::new();
                        for row in 0..2 * 2 * 480 {
                            for dim in 0..2 {
                                zeros.push(buffers.output.get(row * 4 + dim).to_bits());
                                assert_eq!(
                                    buffers.w[row * 4 + dim].to_bits(),
                                    0,
                                    "{name}: state of row {row}"
                                );
                            }
                        }
                        assert!(zeros.iter().all(|bits| *bits == 0), "{name}: negative zeros");
                        assert_eq!(first.get_or_insert_with(|| zeros.clone()), &zeros, "{name}");
                    }
                }
            }
            let core = run_scalar(&case);
            assert!(
                (0..2 * 2 * 480)
                    .all(|row| core.output.get(row * 4).to_bits() == 0 && core.w[row * 4].to_bits() == 0)
            );
        }
    }
}

#[test]
fn the_alignment_of_host_memory_changes_no_bit() {
    let case = Params {
        heads: 2,
        kv_heads: 2,
        causal: Some(Alignment::TopLeft),
        gain: 20.0,
        ..Params::plain(70, 330, 24, 24)
    }
    .build("shifted");
    let problem = case.problem();
    let elements = |data: &Data| (0..data.len()).map(|i| data.get(i)).collect::<Vec<f32>>();
    let tensors = [&case.q, &case.k, &case.v].map(elements);
    for engine in engines(2) {
        for method in [Method::Elsa, Method::Math] {
            let plan = engine.plan(&problem, &PlanOptions::default().method(method)).unwrap();
            let mut workspace = plan.workspace().unwrap();
            let mut answers = Vec::new();
            for shift in [[0usize; 4], [1, 0, 0, 0], [0, 1, 0, 3], [0, 0, 1, 0], [1, 2, 3, 1]] {
                let [q, k, v] = std::array::from_fn(|i| {
                    let mut moved = vec![f32::NAN; shift[i]];
                    moved.extend(&tensors[i]);
                    moved
                });
                let mut y = vec![f32::NAN; shift[3] + case.spec.output.extent()];
                let inputs = Inputs::new(
                    Elements::F32(&q[shift[0]..]),
                    Elements::F32(&k[shift[1]..]),
                    Elements::F32(&v[shift[2]..]),
                );
                let outputs = Outputs::new(ElementsMut::F32(&mut y[shift[3]..]));
                plan.bind(inputs, outputs, &mut workspace).unwrap().run().unwrap();
                answers.push(y[shift[3]..].iter().map(|y| y.to_bits()).collect::<Vec<u32>>());
            }
            assert!(answers.iter().all(|a| *a == answers[0]), "{} {method:?}", engine.kernel());
        }
    }
}
