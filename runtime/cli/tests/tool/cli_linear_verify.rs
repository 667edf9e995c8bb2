//! Tests `elsa linear verify` through the binary.

use crate::cli_linear::{N, RULES, asked, desk, flags, recurrence};
use crate::common::{emulated, lines};
use serde_json::Value;

/// Parses the objects that `--json` prints: one per form, then the summary.
fn objects(text: &str) -> (Vec<Value>, Value) {
    let mut all = lines(text);
    let summary = all.pop().unwrap();
    assert_eq!(summary["what"], "summary");
    assert!(all.iter().all(|case| case["what"] == "linear verify"));
    (all, summary)
}

#[test]
fn every_form_passes_and_uses_a_part_of_its_bound() {
    let (desk, _) = desk(N);
    for rule in RULES {
        for direction in ["", "--reverse", "--bidirectional", "--non-causal"] {
            let past = if direction == "--bidirectional" { "" } else { "--past-state @s.npy" };
            let lines = desk.ok(&format!("linear verify {} {direction} {past} --json", flags(rule)));
            let (forms, summary) = objects(&lines);
            assert_eq!((&summary["verdict"], &summary["failed"]), (&"PASS".into(), &0.into()), "{lines}");
            assert!(forms.iter().any(|form| form["form"] == "recurrent") && forms.len() > 1, "{lines}");
            for form in &forms {
                let number = |name: &str| form[name].as_f64().unwrap();
                assert_eq!(form["verdict"], "PASS");
                assert!(number("used") > 0.0 && number("used") <= 1.0 && number("rel_l2") < 1e-6, "{form}");
                let states = if direction == "--bidirectional" { 0 } else { 2 * 2 * 8 * 6 };
                assert_eq!(form["elements"], 2 * 2 * 37 * 6 + states, "{form}");
            }
        }
    }
}

#[test]
fn a_damaged_answer_fails_with_status_4() {
    let (desk, data) = desk(N);
    let line = format!("linear verify {}", flags("gated-delta"));
    let [exact, _] = recurrence(N, &data, asked("gated-delta"));
    let mut y: Vec<f32> = exact.iter().map(|x| *x as f32).collect();
    desk.f32("y.npy", &N.out(), &y);
    let text = desk.ok(&format!("{line} --y @y.npy"));
    assert!(
        text.starts_with("PASS gated-delta forward, recurrent: ")
            && text.contains("y.npy: every error is at most ")
            && text.ends_with("PASS: 1 form, 0 failed\n"),
        "{text}"
    );
    // Changes the element of sequence 1, head 0, token 3 and column 2.
    y[((2 * 37) + 3) * 6 + 2] += 1e-4;
    desk.f32("y.npy", &N.out(), &y);
    for form in ["", "--form chunk", "--form recurrent"] {
        let output = desk.call(&format!("{line} --y @y.npy {form}"));
        assert_eq!(output.status.code(), Some(4), "{form}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("FAIL ") && text.contains(" the errors of 1 of "), "{text}");
        assert!(text.contains("worst: out of sequence 1, head 0, token 3, column 2: "), "{text}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, "elsa: verification failed: 1 of 1 form\n");
    }
    // An output with a NaN fails, and so does an output of a problem with other flags.
    y[0] = f32::NAN;
    desk.f32("y.npy", &N.out(), &y);
    assert_eq!(desk.call(&format!("{line} --y @y.npy")).status.code(), Some(4));
    let y: Vec<f32> = exact.iter().map(|x| *x as f32).collect();
    desk.f32("y.npy", &N.out(), &y);
    for other in ["--reverse", "--scale 0.3", "--normalize", "--past-state @s.npy"] {
        assert_eq!(desk.call(&format!("{line} --y @y.npy {other}")).status.code(), Some(4), "{other}");
    }
}

#[test]
fn random_shapes_long_ones_and_gates_that_poison() {
    let (desk, _) = desk(N);
    let tokens = if emulated() { 300 } else { 3000 };
    let lines =
        desk.ok(&format!("linear verify --rule gated --per-dim --shape 1,4,{tokens},8,12,v=2 --json"));
    let (forms, _) = objects(&lines);
    assert!(
        forms
            .iter()
            .all(|form| form["verdict"] == "PASS" && form["elements"] == 4 * tokens * 12 + 2 * 8 * 12),
        "{lines}"
    );
    let one =
        desk.ok("linear verify --rule delta --shape 2,2,65,8 --form chunk --chunk 16 --dtype f16 --json");
    let (forms, _) = objects(&one);
    assert_eq!((forms.len(), &forms[0]["form"], &forms[0]["chunk"]), (1, &"chunk".into(), &16.into()));
    // A gate of minus infinity clears the effect of a NaN; a gate of NaN poisons all later tokens.
    let mut gates = vec![-0.1f32; 2 * 2 * 37];
    gates[5] = f32::NAN;
    gates[9] = f32::NEG_INFINITY;
    desk.f32("g.npy", &[2, 2, 37], &gates);
    let (forms, _) = objects(&desk.ok(&format!("linear verify {} --json", flags("gated-delta"))));
    assert!(forms.iter().all(|form| form["verdict"] == "PASS" && form["not_finite"] == 4 * 6), "{forms:?}");
}

#[test]
fn wrong_requests_are_refused() {
    let (desk, _) = desk(N);
    let files = format!("linear verify {}", flags("linear"));
    desk.f32("y.npy", &[2, 2, 37, 5], &vec![0.0; 740]);
    desk.refuse_all([
        ("linear verify --rule linear".to_owned(), "--q: missing"),
        ("linear verify --shape 1,1,4,4".to_owned(), "--rule: missing"),
        ("linear verify --rule linear --shape 1,1,4".to_owned(), "--shape: '1,1,4'; allowed: B,H,T,DK"),
        ("linear verify --rule linear --shape 1,3,4,4,v=2".to_owned(), "--shape: "),
        (
            "linear verify --rule linear --shape 1,1,4,4 --per-dim".to_owned(),
            "--per-dim: given with --rule linear",
        ),
        (format!("{files} --shape 1,1,4,4"), "--q: given with --shape"),
        (format!("{files} --y @y.npy"), "--y: f32 [2, 2, 37, 5]; allowed: f32 [2, 2, 37, 6]"),
        (format!("{files} --y @none.npy"), "--y: "),
        (format!("{files} --per-dim"), "--per-dim: given without --shape"),
        (format!("{files} --dtype f16"), "--dtype: given without --shape"),
    ]);
}
