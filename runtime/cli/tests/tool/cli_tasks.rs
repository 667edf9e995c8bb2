//! Tests `elsa run --task` and `elsa merge` through the binary. Tasks in separate processes must merge to the result of
//! attention in f64, and files that do not form a complete problem must be refused.

use crate::common::{self, Desk, Sizes, attention, count, distance, keep, noise, swap_heads};
use half::{bf16, f16};
use serde_json::Value;
use std::io::{Read, Write};

/// Maximum relative distance of a correct output from the reference. It allows for the error of a few hundred f32
/// additions without much cancellation.
const CLOSE: f64 = 2e-6;

const N: Sizes = Sizes { b: 2, h: 4, hk: 2, nq: 45, nk: 45, d: 16, dv: 8 };

fn desk(n: Sizes, gain: f32) -> (Desk, [Vec<f32>; 3]) {
    let desk = Desk::new();
    let data = desk.qkv(n, gain);
    (desk, data)
}

const FILES: &str = "run --q @q.npy --k @k.npy --v @v.npy";

/// Runs the tasks `paths`, each in its own process, all concurrently. Returns the names of their files as arguments.
fn tasks(desk: &Desk, flags: &str, quorum: &str, paths: &[String]) -> String {
    let line = |path| format!("{FILES} {flags} --quorum {quorum} --task-path {path} --state-out @{path}.npz");
    desk.together(paths.iter().map(line));
    // The files are listed in the reverse order of the tasks.
    paths.iter().rev().map(|path| format!("@{path}.npz ")).collect()
}

fn numbers(n: usize) -> Vec<String> {
    (0..n).map(|i| i.to_string()).collect()
}

/// Checks that tasks with `flags` merge to the result of attention with the scores `score`.
fn agrees(
    n: Sizes,
    desk: &Desk,
    data: &[Vec<f32>; 3],
    flags: &str,
    (quorum, paths): (&str, &[String]),
    score: impl Fn(usize, usize, usize, usize, f64) -> f64,
) {
    let files = tasks(desk, flags, quorum, paths);
    desk.ok(&format!("merge {files} --out @y.npy --lse-out @lse.npy"));
    let (shape, y) = desk.read("y.npy");
    assert_eq!(shape, n.out());
    let answer = attention(n, n.scale(), [&data[0], &data[1], &data[2]], score);
    let near = distance(&y, &answer.y);
    assert!(near < CLOSE || y.is_empty(), "{flags}: {near:e}");
    let (shape, lse) = desk.read("lse.npy");
    assert_eq!(shape, n.out()[..3]);
    for (lse, want) in lse.iter().zip(&answer.lse) {
        let same = f64::from(*lse) == *want || (f64::from(*lse) - want).abs() <= 2e-6 * want.abs().max(1.0);
        assert!(same, "{flags}: {lse} {want}");
    }
}

fn plain(_: usize, _: usize, _: usize, _: usize, s: f64) -> f64 {
    s
}

#[test]
fn seven_processes_merge_to_the_answer_in_memory() {
    let (desk, data) = desk(N, 4.0);
    agrees(N, &desk, &data, "", ("7", &numbers(7)), plain);
    let merged = desk.read("y.npy").1;
    let line: Value = serde_json::from_str(
        desk.ok(&format!("{FILES} --out @m.npy --certificate --json")).lines().next().unwrap(),
    )
    .unwrap();
    let absolute = line["absolute"].as_f64().unwrap();
    let memory = desk.read("m.npy").1;
    let apart = merged.iter().zip(&memory).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    assert!(apart > 0.0 && apart <= absolute, "{apart:e} {absolute:e}");
    // The order of the files does not change any bit.
    desk.ok("merge @0.npz @3.npz @1.npz @6.npz @2.npz @5.npz @4.npz --out @again.npy --state-out @whole.npz");
    assert_eq!(desk.read("again.npy").1, merged);
    assert_eq!(common::read_f32(&desk.array("whole.npz", "S")).0, [2, 4, 45]);
    desk.ok("merge @0.npz @3.npz @1.npz @6.npz @2.npz @5.npz @4.npz --out @n.npy --layout bnhd");
    assert_eq!(desk.read("n.npy"), (vec![2, 45, 4, 8], swap_heads(&merged, N.out())));
}

#[test]
fn every_rule_holds_by_original_positions() {
    let (desk, data) = desk(N, 4.0);
    let three = ("3,3", &(0..9).map(|i| format!("{}.{}", i / 3, i % 3)).collect::<Vec<_>>()[..]);
    let seven = ("7", &numbers(7)[..]);
    agrees(N, &desk, &data, "--causal", three, |_, _, i, j, s| keep(j <= i, s));
    agrees(N, &desk, &data, "--causal=top-left --window 9,0 --softcap 0.7", seven, |_, _, i, j, s: f64| {
        keep(j <= i && i <= j + 9, 0.7 * (s / 0.7).tanh())
    });
    desk.i64("lens.npy", &[31, 0]);
    agrees(N, &desk, &data, "--window 20,3 --kv-lens @lens.npy", seven, |b, _, i, j, s| {
        keep(b == 0 && j < 31 && i <= j + 20 && j <= i + 3, s)
    });
    let mask: Vec<bool> = (0..N.nq * N.nk).map(|x| (x * x) % 7 < 5).collect();
    desk.bool("mask.npy", &[N.nq, N.nk], &mask);
    agrees(N, &desk, &data, "--causal --mask @mask.npy", seven, |_, _, i, j, s| {
        keep(j <= i && mask[i * N.nk + j], s)
    });
    let added = noise(9, N.b * N.h * N.nk);
    desk.f32("added.npy", &[N.b, N.h, 1, N.nk], &added);
    agrees(N, &desk, &data, "--mask @added.npy", three, |b, h, _, j, s| {
        s + f64::from(added[(b * N.h + h) * N.nk + j])
    });
}

#[test]
fn queries_and_keys_may_differ_and_trees_may_be_hybrid() {
    let n = Sizes { nq: 23, nk: 60, hk: 4, ..N };
    let (desk, data) = desk(n, 4.0);
    let paths = ["0", "1.2", "1.0", "1.1", "2", "3", "4", "5.0", "5.1", "5.2", "6"].map(str::to_owned);
    agrees(n, &desk, &data, "--causal=bottom-right", ("7,3", &paths), |_, _, i, j, s| {
        keep(j + n.nq <= i + n.nk, s)
    });
}

#[test]
fn ragged_lengths_down_to_none() {
    for nq in [0, 1, 5, 8] {
        let n = Sizes { nq, nk: nq, b: 1, h: 2, hk: 1, d: 8, dv: 8 };
        let (desk, data) = desk(n, 1.0);
        agrees(n, &desk, &data, "--causal", ("7", &numbers(7)), |_, _, i, j, s| keep(j <= i, s));
    }
}

/// Checks very large scores. Unless a maximum is subtracted, the exponentials of these scores overflow, and so do the
/// paper's sums.
#[test]
fn scores_of_a_thousand_and_values_that_are_not_attended() {
    let n = Sizes { b: 1, ..N };
    let (desk, mut data) = desk(n, 1000.0);
    let scores = attention(n, n.scale(), [&data[0], &data[1], &data[2]], plain);
    assert!(scores.lse.iter().any(|lse| *lse > 900.0) && scores.lse.iter().any(|lse| *lse < 600.0));
    // The rounding of f32 scores near 1000 limits the accuracy of their exponentials.
    let files = tasks(&desk, "", "7", &numbers(7));
    desk.ok(&format!("merge {files} --out @y.npy"));
    let near = distance(&desk.read("y.npy").1, &scores.y);
    assert!(near < 1e-3, "{near:e}");
    for (name, shape, x) in [("k", n.k(), 1), ("v", n.v(), 2)] {
        for head in 0..n.hk {
            let start = (head * n.nk + 30) * shape[3];
            data[x][start..(head + 1) * n.nk * shape[3]].fill(f32::NAN);
        }
        desk.f32(&format!("{name}.npy"), &shape, &data[x]);
    }
    desk.i64("lens.npy", &[30]);
    let q: Vec<f32> = data[0].iter().map(|x| x / 1000.0).collect();
    desk.f32("q.npy", &n.q(), &q);
    data[0] = q;
    agrees(n, &desk, &data, "--kv-lens @lens.npy", ("7", &numbers(7)), |_, _, _, j, s| keep(j < 30, s));
}

#[test]
fn every_layout_and_type_is_gathered_from_its_file() {
    let (desk, data) = desk(N, 4.0);
    for (name, x, s) in [("q", &data[0], N.q()), ("k", &data[1], N.k()), ("v", &data[2], N.v())] {
        let swapped = swap_heads(x, s);
        desk.f32(&format!("{name}n.npy"), &[s[0], s[2], s[1], s[3]], &swapped);
        desk.f32(&format!("{name}c.npy"), &[s[0], s[2], s[1] * s[3]], &swapped);
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        desk.npy(&format!("{name}d.npy"), "<f8", &s, bytemuck::cast_slice(&wide));
        let half: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
        desk.npy(&format!("{name}h.npy"), "<f2", &s, bytemuck::cast_slice(&half));
    }
    let brain: Vec<Vec<bf16>> = data.iter().map(|x| x.iter().map(|x| bf16::from_f32(*x)).collect()).collect();
    let bytes = |i: usize| bytemuck::cast_slice(&brain[i]);
    let dtype = safetensors::Dtype::BF16;
    desk.safetensors(
        "in.safetensors",
        &[("q", dtype, &N.q(), bytes(0)), ("k", dtype, &N.k(), bytes(1)), ("v", dtype, &N.v(), bytes(2))],
    );
    let task = "--task 5/7 --causal --state-out";
    desk.ok(&format!("{FILES} {task} @plain.npz"));
    let plain = std::fs::read(desk.path("plain.npz")).unwrap();
    for (suffix, flags) in [("n", "--layout bnhd"), ("c", "--layout bnc --heads 4 --kv-heads 2"), ("d", "")] {
        desk.ok(&format!(
            "run --q @q{suffix}.npy --k @k{suffix}.npy --v @v{suffix}.npy {flags} {task} @t.npz"
        ));
        assert_eq!(std::fs::read(desk.path("t.npz")).unwrap(), plain, "{suffix}");
    }
    for files in [
        "--q @qh.npy --k @kh.npy --v @vh.npy",
        "--q @in.safetensors#q --k @in.safetensors#k --v @in.safetensors#v",
    ] {
        let flags = "--causal --quorum 3";
        let paths = numbers(3);
        for path in &paths {
            desk.ok(&format!("run {files} {flags} --task-path {path} --state-out @{path}.npz"));
        }
        desk.ok("merge @0.npz @1.npz @2.npz --out @y.safetensors#y");
        desk.ok(&format!("run {files} --causal --out @m.safetensors#y"));
        let read = |name: &str| {
            let bytes = std::fs::read(desk.path(name)).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let y = file.tensor("y").unwrap();
            let number = |b: &[u8]| match y.dtype() {
                safetensors::Dtype::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
                safetensors::Dtype::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
                other => panic!("{other:?}"),
            };
            y.data().chunks_exact(2).map(number).collect::<Vec<_>>()
        };
        let (merged, memory) = (read("y.safetensors"), read("m.safetensors"));
        let merged: Vec<f32> = merged.iter().map(|x| *x as f32).collect();
        // Both outputs are rounded to the type; near a rounding boundary, they may differ by one unit in the last
        // place.
        assert!(merged.len() == count(&N.out()) && distance(&merged, &memory) < 1e-3);
        std::fs::remove_file(desk.path("y.safetensors")).unwrap();
        std::fs::remove_file(desk.path("m.safetensors")).unwrap();
    }
}

/// Checks that a process with only the tokens of its task writes the same file as a process with all tokens.
#[test]
fn gathered_tokens_give_the_same_file() {
    let (desk, data) = desk(N, 4.0);
    let mask: Vec<bool> = (0..N.nq * N.nk).map(|x| (x * x) % 5 < 4).collect();
    desk.bool("mask.npy", &[N.nq, N.nk], &mask);
    let flags = "--causal --mask @mask.npy --json";
    let said = desk.json(&format!("{FILES} {flags} --task 5/7 --state-out @a.npz"));
    // Task 5 has chunks 5, 6 and 1 of the 45 tokens. These chunks have 6, 6 and 7 tokens.
    let held: Vec<usize> = (33..45).chain(7..14).collect();
    assert_eq!(
        (&said["tokens"], &said["tasks"], &said["task"]),
        (&[19, 19].into_iter().collect(), &7.into(), &"5".into())
    );
    let read = 4 * 19 * 2 * (4 * 16 + 2 * 16 + 2 * 8) + 19 * 19;
    assert_eq!(said["bytes_read"], read);
    for (name, x, [b, h, n, d]) in [("q", &data[0], N.q()), ("k", &data[1], N.k()), ("v", &data[2], N.v())] {
        let rows = (0..b * h).flat_map(|head| held.iter().map(move |t| (head * n + t) * d));
        let part: Vec<f32> = rows.flat_map(|at| x[at..at + d].to_vec()).collect();
        desk.f32(&format!("{name}5.npy"), &[b, h, 19, d], &part);
    }
    let pairs = held.iter().flat_map(|i| held.iter().map(move |j| i * N.nk + j));
    let part: Vec<bool> = pairs.map(|x| mask[x]).collect();
    desk.bool("mask5.npy", &[19, 19], &part);
    let line = "run --q @q5.npy --k @k5.npy --v @v5.npy --mask @mask5.npy --causal --gathered";
    desk.ok(&format!("{line} --tokens 45 --task 5/7 --state-out @b.npz"));
    let file = |name: &str| std::fs::read(desk.path(name)).unwrap();
    assert_eq!(file("a.npz"), file("b.npz"));
    let line = format!("{line} --tokens 45 --task 0/7 --state-out @c.npz");
    refused(&desk, &line, "--q: tokens 19; allowed: 20, as the task has");
}

pub fn refused(desk: &Desk, line: &str, words: &str) {
    desk.refuses(line, &words.split('|').collect::<Vec<_>>());
}

#[test]
fn what_does_not_make_a_whole_is_refused() {
    let n = Sizes { b: 1, h: 1, hk: 1, nq: 9, nk: 9, d: 4, dv: 4 };
    let (desk, _) = desk(n, 1.0);
    tasks(&desk, "--causal=top-left --window 3,0", "3", &numbers(3));
    let merge = |files: &str| format!("merge {files} --out @y.npy");
    refused(
        &desk,
        &merge("@0.npz @2.npz"),
        "task 1 is missing|Repeat it: elsa run --q FILE --k FILE --v FILE --causal=top-left --window 3,0 --quorum 3 --task 1/3 \
         --state-out",
    );
    refused(
        &desk,
        &merge("@0.npz @1.npz @2.npz @1.npz"),
        "1.npz|task 1 is there twice|allowed: each task once",
    );
    desk.ok(&format!(
        "{FILES} --quorum 3,3 --task-path 1.2 --causal=top-left --window 3,0 --state-out @deep.npz"
    ));
    refused(&desk, &merge("@0.npz @1.npz @deep.npz"), "deep.npz: quorum [3, 3]; allowed: [3], as");
    for (flags, word) in [
        ("--causal=top-left --window 4,0", "rules"),
        ("--causal=bottom-right --window 3,0", "rules"),
        ("--causal=top-left --window 3,0 --scale 0.25", "factors"),
        ("--causal=top-left --window 3,0 --softcap 2", "factors"),
    ] {
        desk.ok(&format!("{FILES} {flags} --task 1/3 --state-out @other.npz"));
        refused(&desk, &merge("@0.npz @other.npz @2.npz"), &format!("other.npz: {word} |; allowed: |as"));
    }
    desk.f32("q8.npy", &[1, 1, 8, 4], &noise(1, 32));
    desk.ok("run --q @q8.npy --k @k.npy --v @v.npy --causal=top-left --window 3,0 --task 1/3 --state-out @other.npz");
    refused(&desk, &merge("@0.npz @other.npz @2.npz"), "other.npz: shape [1, 1, 1, 8, 9, 4, 4]; allowed: ");
    desk.ok(&format!("{FILES} --out @m.npy --state-out @whole.npz"));
    refused(&desk, &merge("@0.npz @whole.npz"), "STATES: |whole.npz: no tensor 'version'; allowed: ");
    refused(&desk, &merge("@0.npz @missing.npz"), "STATES: |missing.npz");
    refused(&desk, "merge @0.npz @1.npz @2.npz", "--out: missing");
    refused(&desk, "merge --out @y.npy", "<STATES>...: missing");
    let whole = std::fs::read(desk.path("1.npz")).unwrap();
    for cut in [0, 3, whole.len() / 2, whole.len() - 1] {
        std::fs::write(desk.path("cut.npz"), &whole[..cut]).unwrap();
        refused(&desk, &merge("@0.npz @cut.npz @2.npz"), "STATES: |cut.npz: |allowed: ");
    }
    // Flips a bit of the last element of W.
    let mut bent = whole.clone();
    let at = bent.windows(4).position(|four| four == b"PK\x01\x02").unwrap() - 20;
    bent[at] ^= 1;
    std::fs::write(desk.path("bent.npz"), &bent).unwrap();
    refused(&desk, &merge("@0.npz @bent.npz @2.npz"), "STATES: |bent.npz: |allowed: ");
    // The archives are complete and have correct checksums, but one array is wrong.
    let list = |shape: &[usize], data: &[i64]| common::npy("<i8", "False", shape, bytemuck::cast_slice(data));
    for (name, array, words) in [
        ("version", list(&[1], &[1]), "version [1]; allowed: version 2"),
        ("rules", list(&[6], &[0, 1, 9, 0, 0, 0]), "another fingerprint"),
        ("rules", list(&[6], &[7, 1, 3, 0, 0, 0]), "rules [7, 1, 3, 0, 0, 0]"),
        ("path", list(&[1], &[2]), "runs of another task"),
        ("path", list(&[1], &[3]), "path 3: level 1"),
        ("quorum", list(&[1], &[43]), "quorum [43]|another fingerprint"),
        ("shape", list(&[7], &[1, 1, 1, i64::MAX, 9, 4, 4]), "shape [1, 1, 1, 9223372036854775807, 9, 4, 4]"),
        ("shape", list(&[7], &[1, 1, 1, -9, 9, 4, 4]), "shape [1, 1, 1, -9, 9, 4, 4]"),
        ("m", common::npy("<f4", "False", &[1, 1, 1], &[0; 4]), "m of shape [1, 1, 1]"),
        ("W", list(&[1], &[1]), "type i64"),
    ] {
        std::fs::write(desk.path("other.npz"), exchanged(&whole, name, &array)).unwrap();
        let words = words.split('|').next_back().unwrap();
        refused(
            &desk,
            &merge("@0.npz @other.npz @2.npz"),
            &format!("STATES: |other.npz: |{words}|allowed: "),
        );
    }
    desk.ok(&merge("@0.npz @1.npz @2.npz"));
}

/// Returns the archive with the array `name` replaced.
pub fn exchanged(archive: &[u8], name: &str, array: &[u8]) -> Vec<u8> {
    let mut from = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    let mut to = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for i in 0..from.len() {
        let mut member = from.by_index(i).unwrap();
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).unwrap();
        let options = zip::write::SimpleFileOptions::default();
        let file = member.name().unwrap().to_string();
        to.start_file(&file[..], options).unwrap();
        let bytes = if file == format!("{name}.npy") { array } else { &bytes };
        to.write_all(bytes).unwrap();
    }
    to.finish().unwrap().into_inner()
}

#[test]
fn tasks_that_do_not_exist_are_refused() {
    let n = Sizes { b: 1, h: 1, hk: 1, nq: 9, nk: 9, d: 4, dv: 4 };
    let (desk, _) = desk(n, 1.0);
    let state = "--state-out @t.npz";
    for (flags, words) in [
        ("--task 7/7", "--task: task 7; allowed: 0 to 6"),
        ("--task 0/43", "--task: 43 chunks|allowed: 31 or 57"),
        ("--quorum 111 --task 0/111", "--quorum: 111 chunks|allowed: 91 or 133"),
        ("--quorum 7,7 --task 0/7", "--task: 0/7; allowed: N of 49"),
        ("--quorum 7 --task-path 0.1", "--task-path: path 0.1; allowed: at most 1 levels"),
        ("--quorum 7 --task-path 9", "--task-path: path 9: level 1; allowed: 0 to 6"),
        ("--quorum 7 --task-path x", "--task-path: 'x'; allowed: 1 to 12 numbers"),
        ("--task x", "--task: 'x'; allowed: I/N"),
        ("--quorum 7, --task 0/7", "--quorum: '7,'; allowed: the chunks"),
        ("--task 0/7 --out @y.npy", "--out: given with task"),
        ("--task 0/7 --lse-out @y.npy", "--lse-out: given with task"),
        ("--task 0/7 --past-k @k.npy --past-v @v.npy", "--past-k: given with task"),
        ("--task 0/7 --tokens 9", "--gathered: missing"),
        ("--task 0/7 --mask @short.npy", "--mask: keys 8; allowed: 9, as k has"),
    ] {
        desk.bool("short.npy", &[8], &[true; 8]);
        refused(&desk, &format!("{FILES} {flags} {state}"), words);
    }
    refused(&desk, &format!("{FILES} --task 0/7"), "--state-out: missing; allowed: path.npz");
    let gathered = format!("{FILES} --quorum 7 --gathered --tokens 9 --out @y.npy");
    refused(&desk, &gathered, "--gathered: given without --task");
    desk.f32("v8.npy", &[1, 1, 8, 4], &noise(1, 32));
    refused(
        &desk,
        &format!("run --q @q.npy --k @k.npy --v @v8.npy --task 0/7 {state}"),
        "--v: tokens 8; allowed: 9",
    );
}

/// Checks the description in a task file with an independent reader of NumPy's format.
#[test]
fn the_file_says_what_it_is() {
    let (desk, _) = desk(N, 1.0);
    desk.ok(&format!("{FILES} --causal --quorum 7,3 --task 17/21 --state-out @t.npz"));
    let list =
        |name: &str| npyz::NpyFile::new(&desk.array("t.npz", name)[..]).unwrap().into_vec::<i64>().unwrap();
    assert_eq!((list("version"), list("quorum"), list("path")), (vec![2], vec![7, 3], vec![5, 2]));
    assert_eq!((list("shape"), list("rules")), (vec![2, 4, 2, 45, 45, 16, 8], vec![0, 1, -1, -1, 0, 0]));
    let rows: i64 = list("runs").chunks(2).map(|run| run[1]).sum();
    let (shape, _) = common::read_f32(&desk.array("t.npz", "m"));
    assert_eq!(shape, [2, 4, rows as usize]);
}
