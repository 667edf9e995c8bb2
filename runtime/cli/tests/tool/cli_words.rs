//! Tests the sentences that `elsa run` and `elsa merge` print for people.

use crate::common::{Desk, noise, said};
use serde_json::Value;

const FILES: &str = "run --q @q.npy --k @k.npy --v @v.npy --out @y.npy";

/// Creates queries of the shape `q`, and keys and values of the shape `k`.
fn desk(q: [usize; 4], k: [usize; 4]) -> Desk {
    let desk = Desk::new();
    for (name, shape) in [("q", q), ("k", k), ("v", k)] {
        desk.f32(&format!("{name}.npy"), &shape, &noise(3, shape.iter().product()));
    }
    desk
}

/// Runs the tool, requires success, and returns its standard error.
fn told(desk: &Desk, line: &str) -> String {
    let output = desk.call(line);
    assert!(output.status.success(), "{line}: {}", said(&output));
    said(&output)
}

#[test]
fn a_run_names_its_axes_and_every_file() {
    let desk = desk([1, 4, 9, 8], [1, 2, 11, 8]);
    let more = "--lse-out @lse.npy --state-out @s.npz --present-k @pk.npy --present-v @pv.npy --threads 1";
    let text = told(&desk, &format!("{FILES} {more}"));
    let axes =
        "elsa: read q: batch 1, heads 4, tokens 9, dim 8; k and v: batch 1, heads 2, tokens 11, dim 8\n";
    assert!(text.starts_with(axes) && text.contains(", 1 thread, "), "{text}");
    for name in ["y.npy", "lse.npy", "s.npz", "pk.npy", "pv.npy"] {
        let wrote = format!("elsa: wrote {}", desk.path(name).display());
        assert_eq!(text.matches(&wrote).count(), 1, "{name}: {text}");
    }
    assert_eq!((text.lines().count(), text.contains("warning")), (6, false), "{text}");
    // A streamed run says the same.
    let streamed = told(&desk, &format!("{FILES} {more} --host-budget 64MiB"));
    assert!(streamed.starts_with(axes) && streamed.lines().count() == 6, "{streamed}");
    // A report for programs contains these facts, so nothing is printed for people.
    assert_eq!(told(&desk, &format!("{FILES} --json")), "");
}

#[test]
fn heads_that_do_not_divide_lead_to_the_layout() {
    let desk = desk([1, 9, 4, 8], [1, 11, 4, 8]);
    desk.refuses(
        FILES,
        &["--k: 11 heads for 9 query heads", "allowed: ", "--layout", "bnhd", "bnc with --heads"],
    );
    let text = told(&desk, &format!("{FILES} --layout bnhd"));
    assert!(text.starts_with("elsa: read q: batch 1, heads 4, tokens 9, dim 8; k and v: "), "{text}");
}

#[test]
fn exchanged_axes_and_nan_are_noticed() {
    let desk = desk([1, 65, 4, 8], [1, 65, 4, 8]);
    let warning = "warning: q has 65 heads and 4 tokens, which may be exchanged; ";
    assert!(told(&desk, FILES).contains(warning));
    assert!(!told(&desk, &format!("{FILES} --layout bnhd")).contains("warning"));
    let mut v = noise(3, 65 * 4 * 8);
    (v[3], v[700]) = (f32::NAN, f32::NAN);
    desk.f32("v.npy", &[1, 65, 4, 8], &v);
    let text = told(&desk, &format!("{FILES} --layout bnhd --json"));
    assert_eq!(text, "elsa: warning: v: NaN in 2 of 2080 elements; the rows that use them are NaN too\n");
}

#[test]
fn a_certificate_is_a_sentence_and_on_request_a_line_of_json() {
    let desk = desk([1, 4, 9, 8], [1, 4, 11, 8]);
    let line = format!("{FILES} --certificate");
    let plain = desk.ok(&line);
    let json = desk.ok(&format!("{line} --json"));
    let json = json.lines().next().unwrap();
    let most = serde_json::from_str::<Value>(json).unwrap()["absolute"].as_f64().unwrap();
    let sentence = format!(
        "certificate: every number of the output is proven to be within {most:.1e} of exact attention\n"
    );
    assert_eq!(plain, sentence);
    assert_eq!(desk.ok(&format!("{line} --verbose")), format!("{sentence}{json}\n"));
    assert_eq!(desk.ok(&format!("{line} --host-budget 64MiB")), sentence);
    // Infinite keys allow no claim.
    desk.f32("k.npy", &[1, 4, 11, 8], &[f32::INFINITY; 352]);
    let text = desk.ok(&line);
    assert!(
        text.starts_with("certificate: nothing is proven about the output; ") && text.lines().count() == 1
    );
    desk.refuses(&format!("{line} --json --verbose"), &["--json", "--verbose"]);
}

#[test]
fn a_merge_names_every_file() {
    let desk = desk([1, 2, 9, 8], [1, 2, 9, 8]);
    for task in 0..3 {
        let line = format!(
            "run --q @q.npy --k @k.npy --v @v.npy --quorum 3 --task {task}/3 --state-out @{task}.npz"
        );
        told(&desk, &line);
    }
    let text = told(&desk, "merge @0.npz @1.npz @2.npz --out @y.npy --lse-out @lse.npy --state-out @s.npz");
    for name in ["y.npy [1, 2, 9, 8] of 3 tasks in ", "lse.npy\n", "s.npz\n"] {
        assert!(text.contains(&format!("elsa: wrote {}", desk.path(name).display())), "{name}: {text}");
    }
    assert_eq!(text.lines().count(), 3, "{text}");
}
