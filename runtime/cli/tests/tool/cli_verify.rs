//! Tests `elsa verify`: every verdict with its exit status, outputs of other programs, audits, curves and pages.

use crate::common::{Desk, Sizes, attention, elsa, lines, noise};
use serde_json::Value;

const FILES: &str = "--q @q.npy --k @k.npy --v @v.npy";

/// Returns the case and the summary that a call prints, and its exit status.
fn judged(desk: &Desk, line: &str) -> (Value, Value, Option<i32>) {
    let output = desk.call(&format!("verify {line} --json"));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = lines(&text);
    assert_eq!(lines.len(), 2, "{line}: {text} {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&lines[0]["what"], &lines[1]["what"]), (&"verify".into(), &"summary".into()));
    assert_eq!(lines[0]["verdict"], lines[1]["verdict"]);
    (lines[0].clone(), lines[1].clone(), output.status.code())
}

const SIZES: Sizes = Sizes { b: 1, h: 2, hk: 2, nq: 12, nk: 40, d: 16, dv: 8 };

/// Writes files of random tensors; queries and keys are scaled by `size`.
fn tensors(size: f32) -> (Desk, [Vec<f32>; 3]) {
    let desk = Desk::new();
    let n = SIZES;
    let data: [Vec<f32>; 3] = [(1, n.q(), size), (2, n.k(), size), (3, n.v(), 1.0)]
        .map(|(seed, shape, size)| noise(seed, shape.iter().product()).iter().map(|x| x * size).collect());
    for ((name, shape), data) in [("q.npy", n.q()), ("k.npy", n.k()), ("v.npy", n.v())].iter().zip(&data) {
        desk.f32(name, shape, data);
    }
    (desk, data)
}

/// Computes the exact output, rounded to f32.
fn exact([q, k, v]: &[Vec<f32>; 3]) -> Vec<f32> {
    let scale = f64::from((SIZES.d as f32).sqrt().recip());
    let answer = attention(SIZES, scale, [q, k, v], |_, _, _, _, s| s);
    answer.y.into_iter().map(|y| y as f32).collect()
}

#[test]
fn answers_of_others_are_judged() {
    let (desk, data) = tensors(2.0);
    let y = exact(&data);
    let mut wrong = y.clone();
    wrong[77] *= 1.001;
    let mut poisoned = y.clone();
    poisoned[5] = f32::NAN;
    let swapped: Vec<f32> = y.chunks(8).rev().flatten().copied().collect();
    for (name, answer) in [("y", &y), ("wrong", &wrong), ("nan", &poisoned), ("swapped", &swapped)] {
        desk.f32(&format!("{name}.npy"), &SIZES.out(), answer);
    }
    let of = |name: &str| judged(&desk, &format!("{FILES} --y @{name}.npy"));
    let (case, summary, status) = of("y");
    assert_eq!(
        (status, case["verdict"].as_str(), case["passed"].as_bool()),
        (Some(0), Some("PASS"), Some(true))
    );
    assert_eq!((summary["cases"].as_u64(), summary["passed"].as_u64()), (Some(1), Some(1)));
    assert!(case["subject"].as_str().unwrap().ends_with("y.npy") && case["backend"].is_null());
    assert_eq!(case["assumed"], "FP32 in any order");
    // A file is not a run, so there are no probabilities and no certificate.
    assert!(case["p_max_abs"].is_null() && case["certificate"].is_null() && case["printed"].is_null());
    for (name, field, count) in [("wrong", "beyond", 1), ("nan", "not_finite", 1), ("swapped", "beyond", 100)]
    {
        let (case, summary, status) = of(name);
        assert_eq!((status, case["verdict"].as_str()), (Some(4), Some("FAIL")), "{case}");
        assert!(case[field].as_u64().unwrap() >= count, "{case}");
        assert_eq!(summary["failed"], serde_json::json!(["given"]));
    }
    // The wrong element has index 77. Rows have 8 elements, so this is component 5 of query 9.
    assert_eq!(of("wrong").0["worst_component"]["at"], serde_json::json!([0, 0, 9, 5]));
    let text = String::from_utf8(desk.call(&format!("verify {FILES} --y @wrong.npy")).stdout).unwrap();
    assert!(text.starts_with("FAIL given: ") && text.ends_with("wrong: given\n"), "{text}");
    assert!(text.contains("component 5 of sequence 0, head 0, query 9"), "{text}");
}

#[test]
fn reduced_precision_is_not_taken_for_fp32() {
    let (desk, data) = tensors(2.0);
    // The inputs are rounded to 10 bits, as tensor cores round them.
    let rounded = data.map(|x| {
        x.iter().map(|x| f32::from_bits(x.to_bits().wrapping_add(0x1000) & 0xffff_e000)).collect::<Vec<f32>>()
    });
    desk.f32("y.npy", &SIZES.out(), &exact(&rounded));
    let (case, _, status) = judged(&desk, &format!("{FILES} --y @y.npy"));
    assert_eq!((status, case["verdict"].as_str()), (Some(4), Some("FAIL")), "{case}");
    assert!(case["beyond"].as_u64().unwrap() > 20, "{case}");
}

#[test]
fn shapes_have_random_tensors_as_in_a_benchmark() {
    let desk = Desk::new();
    let line =
        "verify --shape 1,2,12,40,16,causal=bottom-right --shape 3,2,9,9,8,packed=4 --dtype f16 --json";
    let found = lines(desk.ok(line));
    let names: Vec<&str> = found.iter().filter_map(|case| case["case"].as_str()).collect();
    assert_eq!(names, ["1,2,12,40,16,causal=bottom-right", "3,2,9,9,8,packed=4"], "{found:?}");
    for case in &found[..2] {
        assert_eq!((&case["verdict"], &case["dtype"]), (&"PASS".into(), &"f16".into()), "{case}");
    }
    assert_eq!((found.len(), found[2]["passed"].as_u64()), (3, Some(2)), "{found:?}");
    desk.refuse_all([
        ("verify --dtype f16 --scenario sink", "--dtype: given without --shape; allowed: with --shape"),
        ("verify --shape 1,2,3", "--shape: '1,2,3': NK: missing"),
        ("verify --shape 1,1,4,4,4 --q @q.npy", "--shape: given with --q; allowed: one of the two"),
        ("verify --shape 1,1,4,4,4 --scenario sink", "--shape: given with --scenario"),
    ]);
}

#[test]
fn what_cannot_be_an_answer_is_refused() {
    let (desk, data) = tensors(1.0);
    let y = exact(&data);
    desk.f32("y.npy", &SIZES.out(), &y);
    desk.f32("flat.npy", &[12 * 2, 8], &y);
    desk.f32("bnhd.npy", &[1, 12, 2, 8], &y);
    desk.npy("half.npy", "<f2", &SIZES.out(), &[0; 2 * 192]);
    desk.i64("whole.npy", &[0; 4]);
    let cases = [
        (format!("{FILES} --y @flat.npy"), "--y: f32 [24, 8]; allowed: f32 [1, 2, 12, 8]"),
        (format!("{FILES} --y @bnhd.npy"), "--y: f32 [1, 12, 2, 8]; allowed: "),
        (format!("{FILES} --y @half.npy"), "--y: f16 [1, 2, 12, 8]; allowed: f32 [1, 2, 12, 8]"),
        (format!("{FILES} --y @whole.npy"), "--y: |allowed: "),
        (format!("{FILES} --y @none.npy"), "--y: |allowed: "),
        (format!("{FILES} --y @y.npy --backend scalar"), "--y: given with --backend|allowed: "),
        ("--scenario stress --y @y.npy".into(), "--scenario: given with --y|allowed: "),
        (format!("{FILES} --audit 0"), "--audit: '0'; allowed: "),
        (format!("{FILES} --seed 3"), "--seed: given without --audit|allowed: "),
        (format!("{FILES} --html @none/page.html"), "--html: |allowed: "),
    ];
    desk.refuse_all(cases.map(|(line, words)| (format!("verify {line}"), words)));
}

#[test]
#[cfg_attr(target_arch = "aarch64", ignore = "many calls of the tool take long in an emulator")]
fn an_audit_finds_a_fault_in_the_rows_that_it_draws() {
    let (desk, data) = tensors(1.0);
    let mut y = exact(&data);
    // Changes an element in row 9 of the second head.
    y[(12 + 9) * 8 + 2] += 0.01;
    desk.f32("y.npy", &SIZES.out(), &y);
    let of = |seed: u32| judged(&desk, &format!("{FILES} --y @y.npy --audit 6 --seed {seed}"));
    let (mut found, mut missed) = (0, 0);
    for seed in 0..24 {
        let (case, _, status) = of(seed);
        assert_eq!((case["rows"].as_u64(), case["rows_of"].as_u64()), (Some(6), Some(24)));
        assert_eq!(case["audit"]["seed"].as_u64(), Some(u64::from(seed)));
        let error = case["audit"]["oracle_error"].as_f64().unwrap();
        assert!(error > 0.0 && error < 1e-14, "{error:e}");
        match (status, case["verdict"].as_str().unwrap()) {
            (Some(4), "FAIL") => {
                found += 1;
                assert_eq!(case["worst_component"]["at"], serde_json::json!([0, 1, 9, 2]));
            }
            (Some(0), "PASS") => missed += 1,
            other => panic!("{other:?}: {case}"),
        }
    }
    // Each audit draws a quarter of the rows.
    assert!(found >= 1 && missed >= 6, "{found} {missed}");
    // If all rows are drawn, the fault is always found. The same seed draws the same rows; without the flag, each audit
    // gets a different seed from the system.
    assert_eq!(judged(&desk, &format!("{FILES} --y @y.npy --audit 99 --seed 1")).2, Some(4));
    assert_eq!(of(5).0["worst_component"], of(5).0["worst_component"]);
    let seeds =
        [0, 1].map(|_| judged(&desk, &format!("{FILES} --audit 3")).0["audit"]["seed"].as_u64().unwrap());
    assert_ne!(seeds[0], seeds[1]);
}

#[test]
fn poison_in_its_place_is_right() {
    let (desk, _) = tensors(1.0);
    let n = SIZES;
    let ok = |line: &str| {
        let (case, _, status) = judged(&desk, line);
        assert_eq!((status, case["verdict"].as_str()), (Some(0), Some("PASS")), "{case}");
        case
    };
    // One key has a NaN, and only the rows from the diagonal on attend it.
    let mut k = noise(2, n.k().iter().product());
    k[(30 * 16) + 3] = f32::NAN;
    desk.f32("nan.npy", &n.k(), &k);
    let causal = ok("--q @q.npy --k @nan.npy --v @v.npy --causal=bottom-right");
    assert!(causal["y_rel_l2"]["total"].is_null(), "{causal}");
    // One element of the values is NaN.
    let mut v = noise(3, n.v().iter().product());
    v[17] = f32::NAN;
    desk.f32("nan-v.npy", &n.v(), &v);
    ok("--q @q.npy --k @k.npy --v @nan-v.npy");
    // One element of the values is infinite, and its weight is zero in f32 or even in f64.
    let mut v = noise(3, n.v().iter().product());
    v[0] = f32::INFINITY;
    desk.f32("inf-v.npy", &n.v(), &v);
    for low in [-100.0f32, -300.0, -1e9] {
        let mut mask = vec![0.0f32; 12 * 40];
        mask.chunks_mut(40).for_each(|row| row[0] = low);
        desk.f32("mask.npy", &[12, 40], &mask);
        ok("--q @q.npy --k @k.npy --v @inf-v.npy --mask @mask.npy");
    }
    ok("--q @q.npy --k @k.npy --v @inf-v.npy");
}

#[test]
fn large_scores_are_judged_by_what_their_rounding_can_do() {
    // In each row, one key wins by far more than the error of its score, so even very large scores permit a claim.
    for size in [1e3, 1e4, 1e15] {
        let (desk, data) = tensors(size);
        let (case, _, status) = judged(&desk, FILES);
        assert_eq!((status, case["verdict"].as_str()), (Some(0), Some("PASS")), "{size:e}: {case}");
        let number = |field: &str| case[field].as_f64().unwrap();
        assert!(number("bound_over_terms") < 1e-4 && number("bound_used") < 0.5, "{size:e}: {case}");
        // A wrong output still fails.
        let mut y = exact(&data);
        y[3] *= 1.001;
        desk.f32("y.npy", &SIZES.out(), &y);
        assert_eq!(judged(&desk, &format!("{FILES} --y @y.npy")).2, Some(4), "{size:e}");
    }
    // The keys are nearly equal, so rounding decides which of them wins, and no claim is possible.
    let (desk, _) = tensors(1e3);
    let same = noise(4, 16);
    let k = noise(2, SIZES.k().iter().product());
    let k: Vec<f32> = k.iter().enumerate().map(|(i, x)| 1e4 * same[i % 16] + 1e-3 * x).collect();
    desk.f32("k.npy", &SIZES.k(), &k);
    let (case, _, status) = judged(&desk, FILES);
    assert_eq!((status, case["verdict"].as_str()), (Some(6), Some("NO CLAIM")), "{case}");
    assert!(case["rows_without_claim"].as_u64().unwrap() > 0 && case["beyond"] == 0, "{case}");
    assert!(case["why"].as_str().unwrap().contains("scores reach"), "{case}");
}

#[test]
fn a_verdict_beyond_the_range_is_no_claim() {
    let (desk, _) = tensors(1.0);
    // The weighted sums overflow: they have 40 terms, each up to 2^8 times 1e38.
    let v: Vec<f32> = noise(3, SIZES.v().iter().product()).iter().map(|x| x.abs() * 3e38).collect();
    desk.f32("v.npy", &SIZES.v(), &v);
    let (case, summary, status) = judged(&desk, FILES);
    assert_eq!((status, case["verdict"].as_str()), (Some(6), Some("NO CLAIM")), "{case}");
    assert!(case["beyond_range"].as_u64().unwrap() > 0, "{case}");
    assert_eq!(summary["no_claim"], serde_json::json!(["given"]));
    let output = desk.call(&format!("verify {FILES}"));
    let (text, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(text.starts_with("NO CLAIM given: nothing is said about"), "{text}");
    assert!(said.starts_with("elsa: no claim: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn both_theorems_stand_side_by_side() {
    // Values cancel. The printed theorem is relative to |Y|, so it is violated, while the rigorous bound holds.
    let desk = Desk::new();
    let keys = 64;
    // The second half of the keys repeats the first half, so that sums grow before they cancel.
    let k = noise(2, keys / 2 * 16).repeat(2);
    let v: Vec<f32> = (0..keys * 8).map(|i| if i / 8 < keys / 2 { 1000.0 } else { -999.999 }).collect();
    desk.f32("q.npy", &[4, 16], &noise(1, 4 * 16));
    desk.f32("k.npy", &[keys, 16], &k);
    desk.f32("v.npy", &[keys, 8], &v);
    let (case, _, status) = judged(&desk, FILES);
    assert_eq!((status, case["beyond"].as_u64()), (Some(0), Some(0)), "{case}");
    assert!(case["printed"]["rows_beyond"].as_u64().unwrap() > 0, "{case}");
    assert!(case["printed"]["used"].as_f64().unwrap() > 1.0 && case["bound_used"].as_f64().unwrap() < 1.0);
    assert!(case["rows_cancelling"].as_u64().unwrap() > 0, "{case}");
    let text = desk.ok(&format!("verify {FILES} --verbose"));
    assert!(text.contains("ELSA theorem 1 as printed") && text.contains("rigorous bound"), "{text}");
}

#[test]
fn the_help_explains_verdicts_and_metrics() {
    let output = elsa(&["verify", "--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in [
        "PASS",
        "FAIL",
        "NO CLAIM",
        "exit status 4",
        "exit status 6",
        "max |dP|",
        "|dP| / |P|",
        "Jensen-Shannon",
        "argmax differs",
        "max |dY|",
        "|dY| / |Y|",
        "--y",
        "--audit",
        "--seed",
        "--html",
    ] {
        assert!(text.contains(words), "{words}");
    }
    // The page explains the verdict too, and contains the pictures of the case.
    let (desk, _) = tensors(1.0);
    desk.ok(&format!("verify {FILES} --html @page.html"));
    let page = std::fs::read_to_string(desk.path("page.html")).unwrap();
    for words in
        ["PASS", "class=\"bar k0\"", "class=\"shade k0\"", "Jensen-Shannon", "ELSA theorem 1 as printed"]
    {
        assert!(page.contains(words), "{words}");
    }
}
