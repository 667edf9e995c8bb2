//! Compares the oracle with a naive implementation of the definition, over random problems with every feature, and
//! proves that every feature matters.

#![forbid(unsafe_code)]

use elsa_core::attention::reference;
use elsa_core::attention::{Alignment, Window};
use elsa_core::drift::larger;
use elsa_oracle::cases::{Case, MaskData, Params, any_case, hard_cases};
use proptest::prelude::*;

/// Output of the oracle in its layout, log-sum-exp, and the number of rows whose probabilities were checked.
struct Oracle {
    y: Vec<f64>,
    lse: Vec<f64>,
    rows: usize,
}

fn oracle(case: &Case) -> Oracle {
    let (problem, inputs) = (case.problem(), case.inputs());
    let spec = problem.spec();
    let mut out = Oracle { y: vec![0.0; spec.output.extent()], lse: vec![f64::NAN; problem.rows()], rows: 0 };
    let mut line = vec![0.0; problem.value_dim()];
    for n in 0..problem.sequences() {
        let s = problem.sequence(&inputs.lengths, n);
        for h in 0..problem.heads() {
            for i in 0..s.queries {
                let row = reference::row(&problem, &inputs, n, h, i, &mut line);
                let token = s.query0 + i;
                out.lse[(s.batch * problem.heads() + h) * spec.query.tokens() + token] = row.lse;
                let to = spec.output.row(s.batch, h, token);
                out.y[to..to + line.len()].copy_from_slice(&line);
                out.rows += 1;
                let mut total = 0.0;
                let mut next = 0;
                let (start, end) = s.range(i);
                reference::probabilities(&problem, &inputs, n, h, i, |j, p| {
                    assert_eq!(j, next, "keys are visited in order");
                    next += 1;
                    let attends = reference::attends(&problem, &inputs, n, h, i, j);
                    assert!(attends || p == 0.0);
                    // A row attends no key outside its interval.
                    assert!(!attends || (start..end).contains(&j), "{case:?}: row {i}, key {j}");
                    // If nothing is decided key by key, a row attends its entire interval.
                    assert!(
                        problem.modifies(s.batch) || attends == (start..end).contains(&j),
                        "{case:?}: row {i}, key {j}"
                    );
                    total += p;
                });
                assert_eq!(next, s.keys);
                if row.lse.is_finite() {
                    assert!((total - 1.0).abs() < 1e-12, "{case:?}: probabilities add up to {total}");
                }
            }
        }
    }
    out
}

/// Compares the oracle with the naive definition. The tolerance is relative to the sum of magnitudes, because the two
/// add in different orders. Returns the number of rows.
fn assert_agree(case: &Case) -> usize {
    let (got, want) = (oracle(case), case.naive());
    let same =
        |a: f64, b: f64, size: f64| (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= 1e-10 * size;
    for (at, (a, b)) in got.lse.iter().zip(&want.lse).enumerate() {
        // If a score is +∞, both log-sum-exps are NaN.
        assert!(same(*a, *b, 1.0 + want.size[at]), "{case:?}: log-sum-exp {at}: {a} and {b}");
    }
    let size = want.size.iter().fold(1.0f64, |a, b| a.max(if b.is_finite() { *b } else { 0.0 }));
    for (x, (a, b)) in got.y.iter().zip(&want.y).enumerate() {
        assert!(same(*a, *b, want.spread[x] * size), "{case:?}: output {x}: {a} and {b}");
    }
    got.rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_the_definition(case in any_case()) {
        assert_agree(&case);
    }
}

#[test]
fn agrees_on_hard_cases() {
    let cases = hard_cases();
    let mut names: Vec<&str> = cases.iter().map(|c| &c.name[..]).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases.len(), "two hard cases share a name");
    let rows: usize = cases.iter().map(assert_agree).sum();
    assert!(cases.len() > 100 && rows > 10_000, "{} cases, {rows} rows", cases.len());
}

fn largest_difference(a: &Case, b: &Case) -> f64 {
    let (a, b) = (oracle(a), oracle(b));
    a.y.iter().zip(&b.y).map(|(a, b)| (a - b).abs()).fold(0.0, larger)
}

/// Requires that a change of the parameters changes the output.
fn assert_matters(name: &str, base: &Params, change: impl Fn(&mut Params)) {
    let mut changed = base.clone();
    change(&mut changed);
    let (a, b) = (base.build("base"), changed.build(name));
    assert!(largest_difference(&a, &b) > 1e-3, "{name} does not matter");
    assert_agree(&b);
}

#[test]
fn every_feature_matters() {
    let base = Params { batch: 2, heads: 4, kv_heads: 2, ..Params::plain(20, 40, 8, 8) };
    let mask = |dims: &[usize]| {
        Some(elsa_oracle::cases::MaskParams {
            kind: elsa_core::attention::MaskKind::Bool,
            dims: dims.to_vec(),
            density: 0.5,
        })
    };
    assert_matters("scale", &base, |p| p.scale = Some(0.9));
    assert_matters("causal, top left", &base, |p| p.causal = Some(Alignment::TopLeft));
    assert_matters("causal, bottom right", &base, |p| p.causal = Some(Alignment::BottomRight));
    let top_left = Params { causal: Some(Alignment::TopLeft), ..base.clone() };
    assert_matters("alignment", &top_left, |p| p.causal = Some(Alignment::BottomRight));
    assert_matters("left of the window", &base, |p| p.window.left = Some(3));
    assert_matters("right of the window", &base, |p| p.window.right = Some(3));
    let window = Params { window: Window { left: Some(3), right: Some(3) }, ..base.clone() };
    assert_matters("one key more to the left", &window, |p| p.window.left = Some(4));
    assert_matters("one key more to the right", &window, |p| p.window.right = Some(4));
    assert_matters("window under causality", &top_left, |p| p.window.left = Some(3));
    assert_matters("soft cap", &base, |p| p.softcap = Some(1.0));
    assert_matters("mask", &base, |p| p.mask = mask(&[20, 40]));
    assert_matters("mask shorter than the keys", &base, |p| {
        p.mask = mask(&[20, 39]);
        if let Some(m) = &mut p.mask {
            m.density = 1.0;
        }
    });
    // With `lengths`, the same seed draws other data, so both cases have it, and only the lengths differ.
    let mut a = Params { lengths: true, ..base.clone() }.build("lengths");
    a.lengths = Some(vec![40, 40]);
    let mut b = a.clone();
    b.lengths = Some(vec![40, 39]);
    assert!(largest_difference(&a, &b) > 1e-3);
    let causal = Params { causal: Some(Alignment::BottomRight), lengths: true, ..base.clone() };
    let mut a = causal.build("lengths move the diagonal");
    a.lengths = Some(vec![40, 40]);
    let mut b = a.clone();
    b.lengths = Some(vec![20, 40]);
    assert!(largest_difference(&a, &b) > 1e-3);
    // A soft cap applied before the mask differs from a soft cap applied after it.
    let capped = Params {
        softcap: Some(1.0),
        mask: Some(elsa_oracle::cases::MaskParams {
            kind: elsa_core::attention::MaskKind::Additive(elsa_core::dtype::DType::F32),
            dims: vec![20, 40],
            density: 1.0,
        }),
        ..base.clone()
    };
    let c = capped.build("soft cap before the mask");
    let answer = c.naive();
    assert!(answer.lse.iter().any(|l| *l > 1.0 + 40f64.ln()), "the mask is not capped");
    assert_agree(&c);
}

/// Checks that every element of every mask is read: inverting an element changes exactly the rows that use it.
#[test]
fn every_mask_element_matters() {
    let mut turned = 0;
    for dims in [&[7usize][..], &[5, 7], &[5, 1], &[2, 1, 7], &[3, 1, 5, 7], &[3, 2, 1, 1], &[5, 6]] {
        for kind in [
            elsa_core::attention::MaskKind::Bool,
            elsa_core::attention::MaskKind::Additive(elsa_core::dtype::DType::F16),
        ] {
            let mask = Some(elsa_oracle::cases::MaskParams { kind, dims: dims.to_vec(), density: 0.6 });
            let p = Params { batch: 3, heads: 2, kv_heads: 1, mask, ..Params::plain(5, 7, 4, 3) };
            let case = p.build(format!("{dims:?}"));
            let before = oracle(&case).lse;
            let mut full = [1; 4];
            full[4 - dims.len()..].copy_from_slice(dims);
            for index in 0..dims.iter().product() {
                let mut other = case.clone();
                let Some(mask) = &mut other.mask else { unreachable!() };
                let attended = match &*mask {
                    MaskData::Bool(x) => x[index] != 0,
                    MaskData::Additive(x) => x.get(index) != f32::NEG_INFINITY,
                };
                mask.set_attended(index, !attended);
                let after = oracle(&other).lse;
                let [i, h, b] = {
                    let rest = index / full[3];
                    [rest % full[2], rest / full[2] % full[1], rest / full[2] / full[1]]
                };
                for (at, (x, y)) in before.iter().zip(&after).enumerate() {
                    let speaks = (full[2] == 1 || at % 5 == i)
                        && (full[1] == 1 || at / 5 % 2 == h)
                        && (full[0] == 1 || at / 10 == b);
                    assert_eq!(speaks, x != y, "{case:?}: element {index}, row {at}");
                }
                turned += 1;
            }
        }
    }
    assert!(turned > 300, "{turned} elements turned");
}

#[test]
fn keys_of_the_past_are_attended_and_grouped_heads_share() {
    let p = Params { past: Some(6), heads: 4, kv_heads: 2, ..Params::plain(3, 5, 4, 4) };
    let a = p.build("past");
    let mut b = a.clone();
    let view = b.spec.past_value.unwrap();
    if let Some((_, v)) = &mut b.past {
        let at = view.row(0, 1, 2);
        v.set(at, v.get(at) + 1.0);
    }
    let (x, y) = (oracle(&a), oracle(&b));
    for h in 0..4 {
        let at = a.spec.output.row(0, h, 0);
        // Query heads 2 and 3 use key head 1.
        assert_eq!(x.y[at] != y.y[at], h >= 2, "head {h}");
    }
}

#[test]
fn chunks_of_probabilities_are_the_whole() {
    let case = Params { causal: Some(Alignment::TopLeft), ..Params::plain(3, 130, 4, 4) }.build("chunks");
    let (problem, inputs) = (case.problem(), case.inputs());
    let row = reference::statistics(&problem, &inputs, 0, 0, 2);
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    reference::probabilities(&problem, &inputs, 0, 0, 2, |j, p| whole.push((j, p)));
    for start in (0..130).step_by(64) {
        let visit = |j, p| parts.push((j, p));
        reference::probabilities_in(&problem, &inputs, 0, 0, 2, &row, start..start + 64, visit);
    }
    assert_eq!(whole, parts);
    assert_eq!(whole.len(), 130);
}
