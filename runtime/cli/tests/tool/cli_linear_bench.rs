//! Tests `elsa linear` through the binary: refused requests, and `elsa linear bench`.

use crate::cli_linear::{N, desk, flags};
use crate::common::{self, Busy, Desk, elsa, noise};
use elsa_cli::picture::faults;

/// Runs `elsa linear bench` with `flags` and requires exit status 0 or 5. Status 5 means that other programs disturbed
/// some cells; concurrent tests may do so. Returns the standard output.
fn measured(desk: &Desk, flags: &str) -> String {
    let output = desk.call(&format!("linear bench {flags}"));
    let said = common::said(&output);
    assert!(matches!(output.status.code(), Some(0 | 5)), "{flags}: {said}");
    assert_eq!(output.status.code() == Some(5), said.contains("--wait waits for a quiet machine"), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bad_requests_name_the_argument_and_write_nothing() {
    let (desk, data) = desk(N);
    std::fs::write(desk.path("y.npy"), b"an earlier answer").unwrap();
    desk.f32("s3.npy", &[2, 2, 8, 5], &noise(1, 160));
    desk.f32("s4.npy", &[1, 2, 8, 6], &noise(1, 96));
    desk.f32("g3.npy", &[2, 2, 37, 3], &noise(1, 444));
    desk.f32("g4.npy", &[2, 37], &noise(1, 74));
    desk.f32("b3.npy", &[2, 2, 36], &noise(1, 144));
    desk.f32("k3.npy", &[2, 3, 37, 8], &noise(1, 1776));
    desk.f32("q3.npy", &[2, 3, 37, 8], &noise(1, 1776));
    desk.f32("k36.npy", &[2, 2, 36, 8], &noise(1, 1152));
    desk.f32("d4.npy", &[2, 2, 37, 4], &data.k[..592]);
    desk.i64("ends.npy", &[0, 40, 37, 74]);
    let out = "--out @y.npy";
    let gated = format!("linear run {} {out}", flags("gated"));
    let delta = format!("linear run {} {out}", flags("gated-delta"));
    desk.refuse_all([
        (delta.replace("--decay @g.npy", ""), "--decay: missing, and --rule is gated-delta|path.npy"),
        (delta.replace("--beta @b.npy", ""), "--beta: missing, and --rule is gated-delta|path.npy"),
        (
            format!("linear run {} --decay @g.npy {out}", flags("delta")),
            "--decay: given with --rule delta|gated and gated-delta",
        ),
        (
            format!("linear run {} --beta @b.npy {out}", flags("gated")),
            "--beta: given with --rule gated|delta and gated-delta",
        ),
        (format!("{gated} --past-state @s3.npy"), "--past-state: d_v 5; allowed: 6|s3.npy|v.npy"),
        (format!("{gated} --past-state @s4.npy"), "--past-state: batch 1; allowed: 2"),
        (gated.replace("@g.npy", "@g3.npy"), "--decay: head size 3; allowed: 8|g3.npy"),
        (gated.replace("@g.npy", "@g4.npy"), "--decay: rank 2; allowed: that of q, or one less|g4.npy"),
        (delta.replace("@b.npy", "@b3.npy"), "--beta: tokens 36; allowed: 37|b3.npy|q.npy"),
        (gated.replace("@k.npy", "@k3.npy"), "--v: heads 2; allowed: a multiple of 3|k3.npy|v.npy"),
        (gated.replace("@q.npy", "@q3.npy"), "--q: heads 3; allowed: a multiple of 2, as v has|q3.npy|v.npy"),
        (gated.replace("@k.npy", "@k36.npy"), "--k: tokens 36; allowed: 37|k36.npy|q.npy"),
        (gated.replace("@k.npy", "@d4.npy"), "--k: head size 4; allowed: 8|d4.npy"),
        (format!("{gated} --heads 3"), "--heads: 3; allowed: 2, as q has"),
        (format!("{gated} --kv-heads 3"), "--kv-heads: 3; allowed: 2, as v has"),
        (format!("{gated} --layout bnc"), "--heads: missing"),
        (format!("{gated} --scale nan"), "--scale: NaN; allowed: a finite number"),
        (format!("{gated} --normalize=-1"), "--normalize: -1; allowed: a finite number of at least 0"),
        (format!("{gated} --reverse --bidirectional"), "--reverse: given with --bidirectional"),
        (format!("{gated} --bidirectional --non-causal"), "--bidirectional: given with --non-causal"),
        (format!("{gated} --bidirectional --past-state @s.npy"), "--past-state: given with bidirectional"),
        (
            format!("{gated} --bidirectional --present-state @last.npy"),
            "--present-state: given with bidirectional",
        ),
        (
            format!("{gated} --cu-seqlens @ends.npy"),
            "--q: rank 4; allowed: 3 (tokens, heads, dim), with --cu-seqlens",
        ),
        (format!("{gated} --layout bhnd --cu-seqlens @ends.npy"), "--layout: bhnd with --cu-seqlens"),
        (format!("{gated} --cu-seqlens @q.npy"), "--cu-seqlens: |type f32; allowed: i64"),
        (format!("{gated} --form chunk --chunk 12"), "--chunk: 12; allowed: "),
        (format!("{gated} --form recurrent --chunk 16"), "--chunk: |recurrent"),
        (format!("{gated} --form scan --parts 1"), "--parts: 1; allowed: "),
        (format!("{gated} --form chunk --parts 4"), "--parts: |chunk"),
        (format!("{delta} --form scan --budget 100"), "--budget: 100 bytes; allowed: at least "),
        (format!("{gated} --present-state @y.npy"), "--present-state: |--out writes the same"),
        (format!("{gated} --present-state @missing/s.npy"), "--present-state: |cannot be written"),
        (gated.replace("@v.npy", "@none.npy"), "--v: |cannot be read"),
        (gated.replace("@y.npy", "@y.npz#y"), "--out: |allowed: path.npy"),
        (
            gated.replace("--rule gated", "--rule mamba"),
            "--rule: 'mamba'; allowed: linear, gated, delta, gated-delta",
        ),
        (gated.replace("--rule gated ", ""), "--rule: missing"),
        (gated.replace(out, ""), "--out: missing"),
        (
            format!("{gated} --block 64"),
            "--block: unexpected argument, which is a flag of elsa demo, run|elsa linear run --help",
        ),
    ]);
    // The bounds of the packed sequences are wrong.
    for (name, [b, h, t, d]) in [("q", N.q()), ("k", N.k()), ("v", N.v()), ("g", [2, 2, 37, 1])] {
        desk.f32(&format!("{name}.npy"), &[b * t, h, d], &noise(1, b * h * t * d));
    }
    let line = format!("{gated} --cu-seqlens @ends.npy");
    desk.refuse_all([(line, "--cu-seqlens: entry 2 is 37; allowed: 40 to 74|ends.npy")]);
}

#[test]
fn commands_are_named_where_they_are_missed() {
    let line = |words: &str| {
        let output = elsa(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{words}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = line("linear rub");
    assert!(
        text.starts_with("elsa: command: 'rub'; allowed: run, ") && text.ends_with("did you mean run?\n"),
        "{text}"
    );
    let text = line("linear run --causal");
    assert!(
        text.contains("--causal: unexpected argument, which is a flag of elsa run, ")
            && text.contains("elsa linear run --help"),
        "{text}"
    );
    assert!(line("linear").contains("Usage: elsa linear"));
    assert_eq!(elsa(&["help", "linear", "run"]).stdout, elsa(&["linear", "run", "--help"]).stdout);
}

#[test]
fn a_benchmark_has_a_line_for_each_form_and_a_picture() {
    let desk = Desk::new();
    let lines = measured(
        &desk,
        "--rule gated-delta --lengths 5,40,1 --dims 8 --heads 2 --seconds 0.001 --json --svg @p.svg",
    );
    let rows = common::lines(&lines);
    let of = |tokens: u64| rows.iter().filter(move |row| row["tokens"] == tokens);
    for tokens in [1, 5, 40] {
        assert_eq!(of(tokens).filter(|row| row["chosen"] == true).count(), 1, "{lines}");
        let forms: Vec<&str> = of(tokens).map(|row| row["form"].as_str().unwrap()).collect();
        assert!(forms.contains(&"recurrent") && forms.contains(&"chunk"), "{forms:?}");
    }
    for row in &rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        assert_eq!((&row["what"], &row["rule"]), (&"linear bench".into(), &"gated-delta".into()));
        assert!(number("p25_ms") <= number("p50_ms") && number("p50_ms") <= number("p75_ms"), "{row}");
        assert!(number("p25_ms") > 0.0 && number("rel_l2") < 1e-5, "{row}");
        assert_eq!(row["clean"] == true, row["marks"].as_array().unwrap().is_empty(), "{row}");
        let each = number("p50_ms") * 1e6 / (2.0 * number("tokens"));
        assert!((number("ns_per_token") / each - 1.0).abs() < 1e-9, "{row}");
        let tokens = number("tokens") / (number("p50_ms") * 1e-3);
        assert!((number("tokens_per_s") / tokens - 1.0).abs() < 1e-9, "{row}");
    }
    let picture = std::fs::read_to_string(desk.path("p.svg")).unwrap();
    assert!(picture.starts_with("<svg xmlns=") && picture.trim_end().ends_with("</svg>"), "{picture}");
    assert!(
        picture.contains(">recurrent</text>") && picture.contains("gated-delta per head, forward"),
        "{picture}"
    );
    assert_eq!(faults(&picture), [""; 0], "{picture}");

    let flags = "--rule gated --per-dim --reverse --lengths 3,20 --dims 8 --seconds 0.001";
    let table = measured(&desk, flags);
    assert!(table.starts_with("gated per dim, reverse, f32, batch 1, heads 8, d 8, "), "{table}");
    let cells = table.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    assert!(cells.clone().count() == 2 && cells.clone().all(|line| line.contains('*')), "{table}");
    let one = measured(&desk, "--rule linear --form recurrent --lengths 9 --dims 8 --seconds 0.001 --json");
    assert_eq!(one.lines().count(), 1, "{one}");
    let flags = "--rule gated --form recurrent --shape 2,1,9,8,4,v=3 --bidirectional --seconds 0.001";
    let one = common::lines(measured(&desk, &format!("{flags} --json")));
    let [row] = &one[..] else { panic!("{one:?}") };
    let found = ["batch", "heads", "states", "tokens", "dim", "value_dim"].map(|name| row[name].as_u64());
    assert_eq!((found, &row["direction"]), ([2, 1, 3, 9, 8, 4].map(Some), &"bidirectional".into()));
    let each = row["p50_ms"].as_f64().unwrap() * 1e6 / f64::from(2 * 3 * 9);
    assert!((row["ns_per_token"].as_f64().unwrap() / each - 1.0).abs() < 1e-9, "{row}");
    let title = "gated per head, bidirectional, f32, batch 2, heads 1, heads of v 3, d 8, d of v 4, ";
    let table = measured(&desk, flags);
    assert!(table.starts_with(title), "{table}");
    desk.refuse_all([
        ("linear bench --rule delta --per-dim", "--per-dim: given with --rule delta|gated"),
        ("linear bench --lengths 1,x", "--lengths: 'x'; allowed: a whole number from 1"),
        ("linear bench --svg @missing/p.svg", "--svg: |cannot be written"),
        ("linear bench --shape 1,2,3", "--shape: '1,2,3'; allowed: B,H,T,DK"),
        ("linear bench --shape 1,2,3,4 --heads 2", "--shape: given with --heads; allowed: one of the two"),
        ("linear bench --reverse --non-causal", "--reverse: given with --non-causal"),
    ]);
}

#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "the load that disturbs is that of the host, not of the emulator"
)]
fn a_busy_machine_marks_the_rows_of_both_outputs() {
    let _busy = Busy::with(2);
    let desk = Desk::new();
    let line = "linear bench --rule gated --lengths 3,20 --dims 8 --seconds 0.5";
    let output = desk.call(&format!("{line} --json"));
    let said = common::said(&output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("2 of 2 cells are not clean; ") && said.contains("--wait"), "{said}");
    for row in common::lines(&output.stdout) {
        assert!(row["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0) && row["clean"] == false, "{row}");
        let mark = row["marks"][0].as_str().unwrap();
        assert!(mark.starts_with("others take ") && mark.contains("; close "), "{mark}");
    }
    let output = desk.call(line);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert_eq!(text.lines().filter(|line| line.ends_with(" !")).count(), 2, "{text}");
    assert!(text.contains("\n! ") && text.contains(" not clean: others take "), "{text}");
}
