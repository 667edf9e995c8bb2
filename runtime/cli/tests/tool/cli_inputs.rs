//! Tests that no command overwrites its inputs, either by name or through a link, unless `--force` permits it.
#![cfg(unix)]

use crate::common::{Desk, noise};
use std::collections::BTreeMap;
use std::fs;

/// Creates a folder with the inputs of every command.
fn desk() -> Desk {
    let desk = Desk::new();
    for (seed, name) in [(1, "q"), (2, "k"), (3, "v"), (4, "dy"), (5, "y"), (6, "past-k"), (7, "past-v")] {
        desk.f32(&format!("{name}.npy"), &[1, 2, 6, 4], &noise(seed, 48));
    }
    desk.f32("lse.npy", &[1, 2, 6], &noise(8, 12));
    desk.f32("mask.npy", &[6, 6], &noise(9, 36));
    desk.f32("bias.npy", &[6, 6], &noise(10, 36));
    desk.i64("lens.npy", &[5]);
    for name in ["decay", "beta"] {
        desk.f32(
            &format!("{name}.npy"),
            &[1, 2, 6],
            &noise(11, 12).iter().map(|x| -x.abs()).collect::<Vec<_>>(),
        );
    }
    desk.f32("state.npy", &[1, 2, 4, 4], &noise(12, 32));
    for (seed, name) in [(13, "u"), (14, "log"), (15, "z")] {
        let x: Vec<f32> = noise(seed, 42).iter().map(|x| -x.abs()).collect();
        desk.f32(&format!("{name}.npy"), &[1, 7, 6], &x);
    }
    desk.f32("a.npy", &[6, 4], &noise(16, 24));
    desk.f32("b.npy", &[1, 7, 4], &noise(17, 28));
    desk.f32("c.npy", &[1, 7, 4], &noise(18, 28));
    desk.f32("d.npy", &[6], &noise(19, 6));
    desk.f32("filter.npy", &[6, 4], &noise(20, 24));
    desk.f32("h0.npy", &[1, 6], &noise(21, 6));
    for task in 0..3 {
        desk.ok(&format!(
            "run --q @q.npy --k @k.npy --v @v.npy --quorum 3 --task {task}/3 --state-out @t{task}.npz"
        ));
    }
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --state-out @s.npz");
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @in.safetensors#q");
    desk.ok("run --q @q.npy --k @k.npy --v @v.npy --out @in.safetensors#other");
    desk
}

/// Requires that `line` is refused because an output would replace an input, and that no file changes.
fn refused(desk: &Desk, line: &str) {
    desk.refuses(line, &[", which ", " reads; allowed: another file"]);
}

/// Command lines, each with its output flags. Each of these outputs could replace an input file of the command line.
/// Input files are written as `@name`.
const LINES: [(&str, &[&str]); 17] = [
    (
        "run --q @q.npy --k @k.npy --v @v.npy --mask @mask.npy --bias @bias.npy --kv-lens @lens.npy",
        &["--out"],
    ),
    (
        "run --q @q.npy --k @k.npy --v @v.npy --past-k @past-k.npy --past-v @past-v.npy --out /dev/null",
        &["--present-k", "--present-v", "--lse-out"],
    ),
    ("run --q @q.npy --k @k.npy --v @v.npy --host-budget 256MiB", &["--out"]),
    ("run --q @q.npy --k @k.npy --v @v.npy --host-budget 256MiB --out /dev/null", &["--lse-out"]),
    (
        "backward --q @q.npy --k @k.npy --v @v.npy --d-out @dy.npy --out @y.npy --lse @lse.npy --dk-out /dev/null --dv-out /dev/null",
        &["--dq-out"],
    ),
    (
        "backward --q @q.npy --k @k.npy --v @v.npy --d-out @dy.npy --dq-out /dev/null --dk-out /dev/null",
        &["--dv-out"],
    ),
    (
        "backward --q @q.npy --k @k.npy --v @v.npy --d-out @dy.npy --dq-out /dev/null --dv-out /dev/null",
        &["--dk-out"],
    ),
    (
        "linear run --rule gated-delta --q @q.npy --k @k.npy --v @v.npy --decay @decay.npy --beta @beta.npy --past-state @state.npy",
        &["--out", "--present-state"],
    ),
    ("linear recurrence --a @log.npy --log --b @u.npy --past-state @h0.npy", &["--out"]),
    (
        "linear recurrence --a @log.npy --log --b @u.npy --past-state @h0.npy --out /dev/null",
        &["--present-state"],
    ),
    (
        "linear selective --u @u.npy --delta @log.npy --a @a.npy --b @b.npy --c @c.npy --d @d.npy --z @z.npy --delta-bias @d.npy",
        &["--out"],
    ),
    ("linear conv --u @u.npy --filter @filter.npy --bias @d.npy", &["--out"]),
    ("verify --q @q.npy --k @k.npy --v @v.npy --mask @mask.npy", &["--html"]),
    ("verify --q @q.npy --k @k.npy --v @v.npy --y @y.npy", &["--html"]),
    ("merge @t0.npz @t1.npz @t2.npz --out /dev/null", &["--state-out"]),
    (
        "backward --q @q.npy --k @k.npy --v @v.npy --d-out @dy.npy --state @s.npz --quorum 3 --task 0/3",
        &["--shares-out"],
    ),
    ("linear run --rule linear --q @q.npy --k @k.npy --v @v.npy --out /dev/null", &["--present-state"]),
];

#[test]
fn no_verb_overwrites_what_it_reads() {
    let desk = desk();
    for (line, outputs) in LINES {
        let inputs: Vec<&str> = line.split_whitespace().filter(|word| word.starts_with('@')).collect();
        let archive = |name: &str| name.ends_with(".npz");
        let of_archives = ["--state-out", "--shares-out"];
        for output in outputs {
            let fits = |input: &&&str| archive(input) == of_archives.contains(output);
            let fitting: Vec<&&str> = inputs.iter().filter(fits).collect();
            assert!(!fitting.is_empty(), "{line} {output}");
            for input in fitting {
                refused(&desk, &format!("{line} {output} {input}"));
            }
        }
    }
    // An input is recognised under any path and through any link.
    std::os::unix::fs::symlink("q.npy", desk.path("link.npy")).unwrap();
    std::os::unix::fs::symlink("link.npy", desk.path("far.npy")).unwrap();
    fs::hard_link(desk.path("q.npy"), desk.path("hard.npy")).unwrap();
    fs::create_dir(desk.path("folder")).unwrap();
    for other in ["./q", "folder/../q", "link", "far", "hard"] {
        for line in [
            "--q @q.npy --out @NAME.npy",
            "--q @NAME.npy --out @q.npy",
            "--q @NAME.npy --out @q.npy --host-budget 256MiB",
        ] {
            let line = format!("run --k @k.npy --v @v.npy {}", line.replace("NAME", other));
            desk.refuses(&line, &["which --q reads; allowed: another file, or --force"]);
        }
    }
    assert!(desk.path("link.npy").symlink_metadata().unwrap().is_symlink());
    // The inputs are members of an archive, and tensors of one file.
    let q = fs::read(desk.path("q.npy")).unwrap();
    desk.npz("in.npz", &[("q", q)], zip::CompressionMethod::Deflated);
    refused(&desk, "run --q @in.npz#q --k @k.npy --v @v.npy --out @y.npy --state-out @in.npz");
    refused(&desk, "run --q @in.npz#q --k @k.npy --v @v.npy --quorum 3 --task 0/3 --state-out @in.npz");
    refused(&desk, "run --q @in.safetensors#q --k @k.npy --v @v.npy --out @in.safetensors#q");
}

#[test]
fn force_overwrites_and_a_file_takes_further_tensors_without_it() {
    let desk = desk();
    let plain = "run --k @k.npy --v @v.npy --q";
    desk.ok(&format!("{plain} @in.safetensors#q --out @want.npy"));
    let before = fs::read(desk.path("in.safetensors")).unwrap();
    let tensors = |bytes: &[u8]| -> BTreeMap<String, Vec<u8>> {
        let read = safetensors::SafeTensors::deserialize(bytes).unwrap();
        read.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()
    };
    let want: Vec<u8> = desk.read("want.npy").1.iter().flat_map(|x| x.to_le_bytes()).collect();
    for (more, name) in [("", "y"), (" --host-budget 256MiB", "z")] {
        desk.ok(&format!("{plain} @in.safetensors#q --out @in.safetensors#{name}{more}"));
        let mut all = tensors(&fs::read(desk.path("in.safetensors")).unwrap());
        assert_eq!(all.remove(name).unwrap(), want);
        all.retain(|name, _| name != "y");
        assert_eq!(all, tensors(&before));
    }
    // The inputs of a resumable run are read again, so not even an additional tensor may be written to their file.
    let line =
        format!("{plain} @in.safetensors#q --out @in.safetensors#a --host-budget 256MiB --resume --force");
    let output = desk.call(&line);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2)
            && text.contains("which --q reads; allowed: with --resume another file"),
        "{text}"
    );
    desk.ok(&format!("{plain} @in.safetensors#q --out @in.safetensors#q --force"));
    assert_eq!(tensors(&fs::read(desk.path("in.safetensors")).unwrap())["q"], want);
    for more in ["", " --host-budget 256MiB"] {
        desk.ok(&format!("{plain} @q.npy --out @want.npy"));
        desk.ok(&format!("{plain} @q.npy --out @q.npy --force{more}"));
        assert_eq!(desk.read("q.npy"), desk.read("want.npy"));
    }
    desk.ok("merge @t0.npz @t1.npz @t2.npz --state-out @t1.npz --force");
    desk.ok("linear recurrence --a @log.npy --log --b @u.npy --out @u.npy --force");
}
