//! Tests `elsa backward --task` and `elsa merge` through the binary. The gradient shares of tasks that run in separate
//! processes must add up to the gradients in f64, and files that do not form a complete problem must be refused.

use crate::cli_backward::{N, WRITTEN, close, desk, gradients, views};
use crate::cli_tasks::{exchanged, refused};
use crate::common::{self, Desk, count, swap_heads};

const FILES: &str = "--q @q.npy --k @k.npy --v @v.npy";
const GRADIENTS: &str = "--dq-out @dq.npy --dk-out @dk.npy --dv-out @dv.npy";

/// Runs the forward and the backward pass of the tasks `paths`, each in its own process, and merges the shares.
fn by_tasks(desk: &Desk, flags: &str, quorum: &str, paths: &[&str]) {
    let task = |path: &str| format!("{FILES} {flags} --quorum {quorum} --task-path {path}");
    desk.together(paths.iter().map(|path| format!("run {} --state-out @s{path}.npz", task(path))));
    let states: String = paths.iter().map(|path| format!("@s{path}.npz ")).collect();
    desk.ok(&format!("merge {states} --state-out @y.npz --out @y.npy --lse-out @lse.npy"));
    let backward = |path: &&str| {
        format!("backward {} --d-out @dy.npy --state @y.npz --shares-out @g{path}.npz", task(path))
    };
    desk.together(paths.iter().map(backward));
    let shares: String = paths.iter().rev().map(|path| format!("@g{path}.npz ")).collect();
    desk.ok(&format!("merge {shares} {GRADIENTS}"));
}

fn bits(desk: &Desk) -> [Vec<u8>; 3] {
    WRITTEN.map(|name| std::fs::read(desk.path(name)).unwrap())
}

#[test]
fn seven_processes_add_up_to_the_gradients() {
    let (desk, data) = desk();
    let keep = |i: usize, j: usize, s: f64| if j <= i { s } else { f64::NEG_INFINITY };
    let want = gradients(views(&data), keep, |_| 1.0);
    by_tasks(&desk, "--causal", "7", &["0", "1", "2", "3", "4", "5", "6"]);
    close(&desk, "seven tasks", &want);
    let merged = bits(&desk);
    // A single process that computes all tasks adds the same numbers in the same order.
    let said = desk.json(&format!(
        "backward {FILES} --d-out @dy.npy --causal --state @y.npz --quorum 7 {GRADIENTS} --json"
    ));
    assert_eq!((&said["tasks"], &said["forward"]), (&7.into(), &false.into()));
    assert_eq!(bits(&desk), merged);
    // Merges again in another layout, and writes one gradient only.
    let files = "@g0.npz @g1.npz @g2.npz @g3.npz @g4.npz @g5.npz @g6.npz";
    let said = desk.json(&format!("merge {files} --dk-out @other.npy --layout bnhd --json"));
    assert_eq!((&said["what"], &said["tasks"]), (&"merge of gradients".into(), &7.into()));
    let swapped = swap_heads(&desk.read("dk.npy").1, N.k());
    assert_eq!(desk.read("other.npy"), (vec![2, 45, 2, 16], swapped));
}

#[test]
fn two_levels_windows_and_a_log_sum_exp() {
    let (desk, data) = desk();
    // The 19 causal queries attend only the first 19 keys, so these lengths exclude no pair.
    desk.i64("lens.npy", &[31, 19]);
    let keep = |i: usize, j: usize, s: f64| if j <= i && i <= j + 9 { s } else { f64::NEG_INFINITY };
    let want = gradients(views(&data), keep, |_| 1.0);
    let flags = "--causal=top-left --window 9,0 --kv-lens @lens.npy";
    by_tasks(&desk, flags, "3,3", &["0", "1.0", "1.1", "1.2", "2"]);
    close(&desk, "two levels", &want);
    let by_state = bits(&desk);
    let task = format!("backward {FILES} --d-out @dy.npy {flags} --quorum 3,3 --task-path");
    desk.ok(&format!("{task} 0 --out @y.npy --lse @lse.npy --shares-out @g0.npz"));
    desk.ok(&format!("merge @g0.npz @g1.0.npz @g1.1.npz @g1.2.npz @g2.npz {GRADIENTS}"));
    close(&desk, "a log-sum-exp", &want);
    assert_ne!(bits(&desk), by_state, "the log-sum-exp is rounded");
}

/// Checks that a process with only the tokens of its task writes the same file as a process with all tokens.
#[test]
fn gathered_tokens_give_the_same_file() {
    let (desk, data) = desk();
    desk.ok(&format!("run {FILES} --causal --state-out @y.npz --out @y.npy --lse-out @lse.npy"));
    let flags = "--causal --task 5/7 --json --shares-out";
    let said =
        desk.json(&format!("backward {FILES} --d-out @dy.npy --out @y.npy --lse @lse.npy {flags} @a.npz"));
    assert_eq!((&said["what"], &said["task"]), (&"backward task".into(), &"5".into()));
    // Task 5 has chunks 5, 6 and 1, both of the 19 queries and of the 45 keys.
    let (rows, columns): (Vec<usize>, Vec<usize>) =
        ((15..19).chain(3..6).collect(), (33..45).chain(7..14).collect());
    assert_eq!(said["tokens"], serde_json::json!([rows.len(), columns.len()]));
    let read = 4 * (2 * 4 * rows.len() * (16 + 12 + 12 + 1) + 2 * 2 * columns.len() * (16 + 12));
    assert_eq!(said["bytes_read"], read);
    let lse = desk.read("lse.npy").1;
    let y = desk.read("y.npy").1;
    for (name, x, [b, h, n, d], tokens) in [
        ("q", &data[0], N.q(), &rows),
        ("k", &data[1], N.k(), &columns),
        ("v", &data[2], N.v(), &columns),
        ("dy", &data[3], N.out(), &rows),
        ("y", &y, N.out(), &rows),
    ] {
        let at = (0..b * h).flat_map(|head| tokens.iter().map(move |t| (head * n + t) * d));
        let part: Vec<f32> = at.flat_map(|at| x[at..at + d].to_vec()).collect();
        desk.f32(&format!("{name}5.npy"), &[b, h, tokens.len(), d], &part);
    }
    let part: Vec<f32> =
        (0..8).flat_map(|head| rows.iter().map(move |t| head * 19 + t)).map(|at| lse[at]).collect();
    desk.f32("lse5.npy", &[2, 4, rows.len()], &part);
    desk.ok(&format!(
        "backward --q @q5.npy --k @k5.npy --v @v5.npy --d-out @dy5.npy --out @y5.npy --lse @lse5.npy --gathered \
         --tokens 19,45 {flags} @b.npz"
    ));
    let file = |name: &str| std::fs::read(desk.path(name)).unwrap();
    assert_eq!(file("a.npz"), file("b.npz"));
}

#[test]
fn what_does_not_make_a_whole_is_refused() {
    let (desk, _) = desk();
    desk.ok(&format!("run {FILES} --state-out @y.npz --out @y.npy --lse-out @lse.npy"));
    let task = |flags: &str| format!("backward {FILES} --d-out @dy.npy {flags}");
    for i in 0..3 {
        desk.ok(&task(&format!("--state @y.npz --task {i}/3 --shares-out @g{i}.npz")));
    }
    let merge = |files: &str| format!("merge {files} {GRADIENTS}");
    refused(
        &desk,
        &merge("@g0.npz @g2.npz"),
        "task 1 is missing|Repeat it: elsa backward --q FILE --k FILE --v FILE --d-out FILE --state FILE.npz --quorum 3 \
         --task 1/3 --shares-out",
    );
    refused(
        &desk,
        &merge("@g0.npz @g1.npz @g2.npz @g1.npz"),
        "g1.npz|task 1 is there twice|allowed: each task once",
    );
    desk.ok(&task("--state @y.npz --causal --task 1/3 --shares-out @other.npz"));
    refused(&desk, &merge("@g0.npz @other.npz @g2.npz"), "other.npz: rules |; allowed: |as");
    desk.ok(&format!("run {FILES} --task 1/3 --state-out @s1.npz"));
    refused(&desk, &merge("@g0.npz @s1.npz @g2.npz"), "s1.npz: states; allowed: shares of gradients, as");
    refused(
        &desk,
        "merge @s1.npz @g0.npz @g2.npz --out @y.npy",
        "g0.npz: shares of gradients; allowed: states, as",
    );
    let all = "@g0.npz @g1.npz @g2.npz";
    refused(
        &desk,
        &format!("merge {all} --out @z.npy --dq-out @dq.npy"),
        "--out: given for files of shares of gradients; allowed: --dq-out",
    );
    for i in [0, 2] {
        desk.ok(&format!("run {FILES} --task {i}/3 --state-out @s{i}.npz"));
    }
    refused(
        &desk,
        "merge @s0.npz @s1.npz @s2.npz --dv-out @dv.npy",
        "--dv-out: given for files of states; allowed: --out",
    );

    let whole = std::fs::read(desk.path("g1.npz")).unwrap();
    std::fs::write(desk.path("other.npz"), &whole[..whole.len() / 2]).unwrap();
    refused(&desk, &merge("@g0.npz @other.npz @g2.npz"), "STATES: |other.npz: |allowed: ");
    let list = |shape: &[usize], data: &[i64]| common::npy("<i8", "False", shape, bytemuck::cast_slice(data));
    for (name, array, words) in [
        ("kind", list(&[1], &[2]), "kind [2]"),
        // Kind 0 means states, but this file has no arrays of states.
        ("kind", list(&[1], &[0]), "no tensor 'm'"),
        ("path", list(&[1], &[2]), "runs of another task"),
        ("key_runs", list(&[1, 2], &[0, 45]), "key_runs of another task"),
        ("dk", common::npy("<f4", "False", &[1], &[0; 4]), "dk of shape [1]"),
        ("dq", list(&[1], &[1]), "type i64"),
    ] {
        std::fs::write(desk.path("other.npz"), exchanged(&whole, name, &array)).unwrap();
        refused(&desk, &merge("@g0.npz @other.npz @g2.npz"), &format!("other.npz: |{words}|allowed: "));
    }

    let out = "--shares-out @t.npz";
    desk.f32("dy18.npy", &[2, 4, 18, 12], &vec![0.0; 2 * 4 * 18 * 12]);
    desk.f32("dy20.npy", &[2, 4, 20, 12], &vec![0.0; 2 * 4 * 20 * 12]);
    desk.f32("lse20.npy", &[2, 4, 20], &[0.0; 160]);
    for (flags, words) in [
        (format!("--task 1/3 {out}"), "--state: missing; allowed: path.npz of elsa merge --state-out"),
        (format!("--task 1/3 {out} --state @y.npz --dq-out @dq.npy"), "--dq-out: given with task"),
        ("--task 1/3 --state @y.npz".into(), "--shares-out: missing; allowed: path.npz"),
        (format!("--task 3/3 {out} --state @y.npz"), "--task: task 3; allowed: 0 to 2"),
        (format!("--task 1/3 {out} --state @s1.npz"), "--state: queries "),
        (
            format!("--task 1/3 {out} --out @y.npy --lse @lse20.npy"),
            "--lse: queries 20; allowed: 19, as q has",
        ),
        (format!("--task 1/3 {out} --state @y.npz --lse @lse.npy"), "--state: given with --"),
        (format!("{GRADIENTS} {out}"), "--shares-out: given without --task"),
        (format!("{GRADIENTS} --quorum 3 --gathered --tokens 19,45"), "--gathered: given without --task"),
        (format!("--task 1/3 {out} --state @y.npz --budget 1000"), "--budget: 1000 bytes"),
    ] {
        refused(&desk, &task(&flags), words);
    }
    for n in [18, 20] {
        let line = format!("backward {FILES} --d-out @dy{n}.npy --state @y.npz --task 1/3 {out}");
        refused(&desk, &line, &format!("--d-out: queries {n}; allowed: 19, as q has"));
    }
    desk.ok(&merge(all));
    assert_eq!(desk.read("dq.npy").1.len(), count(&N.q()));
}
