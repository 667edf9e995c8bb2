//! Tests schedules and error budgets on the command line: skipped blocks, their report, and refused requests.

use crate::common::{Desk, bench, cells, elsa};
use serde_json::Value;

const FILES: &str = "--q @q.npy --k @k.npy --v @v.npy --scale 0.693147180559945 --backend scalar --threads 2";

/// Creates inputs with two heads, each with three blocks of keys. Base-2 scores are 0 in the first block and −20 in the
/// other blocks. The value of key `j` is the number `j`.
fn desk() -> Desk {
    let desk = Desk::new();
    let k: Vec<f32> = (0..2 * 192).map(|j| if j % 192 < 64 { 0.0 } else { -20.0 }).collect();
    let v: Vec<f32> = (0..2 * 192).map(|j| (j % 192) as f32).collect();
    desk.f32("q.npy", &[2, 70, 1], &[1.0; 140]);
    desk.f32("k.npy", &[2, 192, 1], &k);
    desk.f32("v.npy", &[2, 192, 1], &v);
    desk
}

/// Returns the sum of the weights in the last two blocks, divided by the sum of all weights.
fn share() -> f64 {
    let block = (-20.0f64).exp2();
    2.0 * block / (1.0 + 2.0 * block)
}

fn near(found: &Value, wanted: f64) -> bool {
    found.as_f64().is_some_and(|found| (found / wanted - 1.0).abs() < 1e-3)
}

#[test]
fn a_run_says_what_it_left_out() {
    let desk = desk();
    let run = |flags: &str| -> (Value, Vec<f32>, Vec<f32>) {
        let said = desk.json(&format!("run {FILES} --out @y.npy --lse-out @lse.npy --json {flags}"));
        (said, desk.read("y.npy").1, desk.read("lse.npy").1)
    };
    let (exact, y, lse) = run("");
    assert!(exact["left_out"].is_null() && y.iter().all(|y| *y > 31.5), "{exact}");
    for (flags, name) in [
        ("--error-budget 1e-3", "exact"),
        ("--schedule vfa --error-budget 1e-3", "vfa"),
        ("--schedule vsa --lambda 0.1", "vsa"),
        ("--schedule vsa", "vsa"),
    ] {
        let (said, thinned, all) = run(flags);
        let left = &said["left_out"];
        assert_eq!((&left["schedule"], &left["rows"]), (&name.into(), &140.into()), "{flags}: {left}");
        // A kernel's exponential of zero may be off by an ulp. The skipped keys would change the output by 1.8e-4.
        assert!(thinned.iter().all(|y| (y - 31.5).abs() < 1e-5), "{flags}");
        // The log-sum-exp still includes all keys.
        assert!(all.iter().zip(&lse).all(|(a, b)| (a - b).abs() < 1e-5), "{flags}");
        for (number, wanted) in [("worst", share()), ("p99", share()), ("mean", share())] {
            assert!(near(&left[number], wanted), "{flags} {number}: {left}");
        }
        assert!(near(&left["lost_at_most"], share() * 191.0), "{flags}: {left}");
        assert!(near(&left["block_sparsity"], 2.0 / 3.0) && near(&left["row_sparsity"], 2.0 / 3.0), "{left}");
        assert_eq!(left["recomputed"], 0, "{flags}: {left}");
    }
    // Scores from -20 to 0 pass the norm gate, which skips nothing.
    let (said, near_zero, _) = run("--norm-gate");
    let left = &said["left_out"];
    assert_eq!(
        (&left["gated"], &left["worst"], &left["schedule"]),
        (&140.into(), &0.0.into(), &"exact".into())
    );
    assert!(near_zero.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-4), "{left}");
    // The budget is too small to skip anything, and the other schedule has no rule that skips.
    for flags in ["--error-budget 1e-7", "--schedule vfa"] {
        let (said, kept, _) = run(flags);
        assert_eq!(
            (&said["left_out"]["worst"], &said["left_out"]["block_sparsity"]),
            (&0.0.into(), &0.0.into())
        );
        assert!(kept.iter().zip(&y).all(|(a, b)| (a - b).abs() <= 4e-6), "{flags}");
    }
    let plain = desk.ok(&format!("run {FILES} --out @y.npy --error-budget 1e-3"));
    assert!(plain.starts_with("left out: ") && plain.contains("at most 1.9e-6 of the weights"), "{plain}");
    assert_eq!(plain.lines().count(), 1, "{plain}");
    let said = desk.ok(&format!("run {FILES} --out @y.npy --error-budget 1e-3 --verbose"));
    let details = "schedule exact, E 1e-3: D/(S+D) worst 1.91e-6, p99 1.91e-6, mean 1.91e-6; ";
    assert!(said.strip_prefix(&plain).is_some_and(|said| said.starts_with(details)), "{said}");
    // The certificate has the same numbers.
    let said = desk.ok(&format!("run {FILES} --out @y.npy --error-budget 1e-3 --certificate --json"));
    let certificate: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert!(near(&certificate["left_out"]["worst"], share()), "{certificate}");
}

/// Checks that the report lists separately the blocks that are skipped before any product, because of their mask and
/// norms.
#[test]
fn blocks_that_go_before_their_first_product_are_named() {
    let desk = desk();
    let mask: Vec<f32> = (0..70 * 192).map(|n| -30.0 * (n % 192 / 64) as f32).collect();
    desk.f32("mask.npy", &[70, 192], &mask);
    let words = "--mask @mask.npy --error-budget 1e-3";
    let left = &desk.json(&format!("run {FILES} --out @y.npy --json {words}"))["left_out"];
    assert!(near(&left["unseen"], 2.0 / 3.0) && near(&left["block_sparsity"], 2.0 / 3.0), "{left}");
    // The norms bound the scores of −20 only by 20, and the mask lowers all scores of the second block by 30 log2 e.
    let block = (20.0 - 30.0 * std::f64::consts::LOG2_E).exp2();
    assert!(near(&left["worst"], block), "{left}");
    for verb in ["run --verbose --out @y.npy", "verify --verbose"] {
        let said = desk.ok(&format!("{verb} {FILES} {words}"));
        let named = "left out 66.7 % of blocks of ";
        let before = "66.7 % of blocks before their first product, whose weights are bounded from above; ";
        assert!(said.contains(named) && said.contains(before), "{said}");
    }
    let said = desk.ok(&format!("run {FILES} --out @y.npy {words} --certificate --json"));
    let certificate: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert!(certificate["left_out"]["unseen_blocks"].as_u64().unwrap() > 0, "{certificate}");
    let said = desk.ok(&format!("run {FILES} --out @y.npy --error-budget 1e-3 --verbose"));
    assert!(!said.contains("first product"), "{said}");
}

#[test]
fn what_is_left_out_counts_in_the_bound() {
    let desk = desk();
    for flags in ["--error-budget 0.01", "--schedule vfa", "--schedule vsa --lambda 0.5"] {
        let said = desk.ok(&format!("verify {FILES} {flags} --json"));
        let case: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!((&case["verdict"], &case["beyond"]), (&"PASS".into(), &0.into()), "{flags}: {case}");
        assert_eq!((&case["p_rows"], &case["left_out"]["rows"]), (&0.into(), &140.into()), "{flags}: {case}");
        // The error is the rounding error plus the skipped share, and the bound is twice that share.
        if flags != "--schedule vfa" {
            let error = case["y_max_abs"]["total"].as_f64().unwrap();
            assert!((error - share() * (127.5 - 31.5)).abs() < 1e-5, "{flags}: {error}");
            assert!(case["bound_used"].as_f64().unwrap() > 0.2, "{flags}: {case}");
        }
    }
    let said = desk.ok(&format!("verify {FILES} --error-budget 0.01"));
    assert!(said.contains("\n  left out: ") && !said.contains("D/(S+D)"), "{said}");
    let said = desk.ok(&format!("verify {FILES} --error-budget 0.01 --verbose"));
    assert!(said.contains("\n  schedule exact, E 1e-2: D/(S+D) worst 1.91e-6"), "{said}");
}

#[test]
fn a_benchmark_within_a_budget_measures_one_method() {
    let words = "--shape 1,1,64,128,8 --seconds 0.01 --warmup 0 --error-budget 0.01 --backend scalar --threads 1 --json";
    let output = bench(&words.split(' ').collect::<Vec<_>>());
    let rows = cells(&output.stdout);
    assert_eq!((rows.len(), &rows[0]["method"]), (1, &"elsa".into()), "{rows:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    // No block of these values is light enough.
    assert!(said.contains("elsa: nothing was left out"), "{said}");
}

#[test]
fn numbers_out_of_their_bounds_are_refused() {
    let desk = desk();
    let commands = [
        format!("run {FILES} --out @y.npy"),
        format!("verify {FILES}"),
        "bench --shape 1,1,8,8,8 --seconds 0.01".to_owned(),
    ];
    for command in commands {
        let cases = [
            ("--error-budget 0", "--error-budget: 0; allowed: a number between 0 and 1"),
            ("--error-budget 1", "--error-budget: 1; allowed: "),
            ("--error-budget -0.5", "--error-budget: -0.5; allowed: "),
            ("--error-budget nan", "--error-budget: NaN; allowed: "),
            ("--error-budget x", "--error-budget: 'x'; allowed: "),
            ("--schedule vsa --lambda 1", "--lambda: 1; allowed: "),
            ("--schedule vsa --lambda nan", "--lambda: NaN; allowed: "),
            ("--lambda 0.1", "--lambda: given without --schedule vsa; allowed: "),
            ("--schedule vsa --error-budget 0.1", "--error-budget: given with --schedule vsa; allowed: "),
            ("--schedule vsa --norm-gate", "--norm-gate: given with --schedule vsa; allowed: "),
            ("--rescale-threshold 8.5", "--rescale-threshold: 8.5; allowed: 0 to 8"),
            ("--rescale-threshold nan", "--rescale-threshold: NaN; allowed: "),
            ("--schedule vfb", "--schedule: 'vfb'; allowed: exact, vfa, vsa"),
        ];
        desk.refuse_all(cases.map(|(flags, words)| (format!("{command} {flags}"), words)));
    }
    desk.refuse_all([
        (
            format!("run {FILES} --out @y.npy --error-budget 0.1 --host-budget 64MiB"),
            "--error-budget: given with",
        ),
        (
            format!("run {FILES} --state-out @s.npz --quorum 7 --task 0/7 --schedule vfa"),
            "--schedule: given with",
        ),
        (
            "verify --q @q.npy --k @k.npy --v @v.npy --y @v.npy --schedule vfa".into(),
            "--schedule: given with",
        ),
    ]);
    let words = "bench --shape 1,1,8,8,8 --seconds 0.01 --method math --error-budget 0.1";
    let output = elsa(&words.split(' ').collect::<Vec<_>>());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error-budget: given with method math"), "{said}");
    assert_eq!(desk.list(), ["k.npy", "q.npy", "v.npy"]);
}
