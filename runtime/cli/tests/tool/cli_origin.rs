//! Tests the origin of task files through the binary. A file that is left over from another frame must be refused,
//! because its run name or its checksums of the tokens differ. Files with states that no run produces, or with sizes
//! that do not match the arrays, must be refused too.

use crate::cli_tasks::{exchanged, refused};
use crate::common::{self, Desk, noise};

const FILES: &str = "--q @q.npy --k @k.npy --v @v.npy";
const SHAPE: [usize; 4] = [2, 2, 17, 4];
const COUNT: usize = 2 * 2 * 17 * 4;

/// Creates a folder with queries, keys, values and the output's gradient, and a copy of each in which one token
/// differs.
fn desk() -> Desk {
    let desk = Desk::new();
    for (i, name) in ["q", "k", "v", "dy"].into_iter().enumerate() {
        let mut data = noise(1 + i as u64, COUNT);
        desk.f32(&format!("{name}.npy"), &SHAPE, &data);
        // Changes the fifth token of the last head.
        data[COUNT - 12 * 4 - 1] += 1.0;
        desk.f32(&format!("{name}2.npy"), &SHAPE, &data);
    }
    desk
}

fn run(files: &str, flags: &str, to: &str) -> String {
    format!("run {files} {flags} --state-out @{to}.npz")
}

/// Each entry names the files of two of the three tasks. These two files are merged with the file `other` instead of
/// the third task's file.
const OTHERS: [&str; 3] = ["@0.npz @1.npz", "@1.npz @2.npz", "@0.npz @2.npz"];

#[test]
fn tasks_of_other_tensors_are_refused() {
    let desk = desk();
    for task in 0..3 {
        desk.ok(&run(FILES, &format!("--task {task}/3"), &task.to_string()));
    }
    for (tensor, word) in [("q", "queries"), ("k", "keys and values"), ("v", "keys and values")] {
        let files = FILES.replace(&format!("@{tensor}.npy"), &format!("@{tensor}2.npy"));
        let mut seen = 0;
        for (task, others) in [2, 0, 1].into_iter().zip(OTHERS) {
            desk.ok(&run(&files, &format!("--task {task}/3"), "other"));
            let line = format!("merge @other.npz {others} --out @y.npy --state-out @y.npz");
            // A task that does not have the changed token writes the same file as before.
            let holds = std::fs::read(desk.path("other.npz")).unwrap()
                != std::fs::read(desk.path(&format!("{task}.npz"))).unwrap();
            match holds {
                true => refused(
                    &desk,
                    &line,
                    &format!(".npz: {word} of token 4 other than in |; allowed: |--run-id"),
                ),
                false => drop(desk.ok(&line.replace("@y.np", "@z.np"))),
            }
            seen += usize::from(holds);
        }
        assert_eq!(seen, 2, "two of three tasks hold a token");
    }
    // Keys beyond the lengths may differ between the tasks.
    desk.i64("lens.npy", &[17, 3]);
    for (task, files) in [FILES, "--q @q.npy --k @k2.npy --v @v2.npy", FILES].into_iter().enumerate() {
        desk.ok(&run(files, &format!("--kv-lens @lens.npy --task {task}/3"), &format!("l{task}")));
    }
    desk.ok("merge @l0.npz @l1.npz @l2.npz --out @l.npy");
    // Tasks of two levels have the same tokens, divided into different chunks.
    for path in ["0", "1", "2.0", "2.1", "2.2"] {
        desk.ok(&run(FILES, &format!("--quorum 3,3 --task-path {path}"), &format!("m{path}")));
    }
    let all = "@m0.npz @m1.npz @m2.0.npz @m2.1.npz";
    desk.ok(&format!("merge {all} @m2.2.npz --out @m.npy"));
    let other = FILES.replace("@v.npy", "@v2.npy");
    let mut refusals = 0;
    for path in ["2.0", "2.1", "2.2"] {
        desk.ok(&run(&other, &format!("--quorum 3,3 --task-path {path}"), "other"));
        let files = format!("{all} @m2.2.npz").replace(&format!("@m{path}.npz"), "@other.npz");
        let output = desk.call(&format!("merge {files} --out @x.npy"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        refusals +=
            usize::from(output.status.code() == Some(2) && text.contains("keys and values of token 4"));
    }
    assert!(refusals >= 1);
}

#[test]
fn runs_have_names() {
    let desk = desk();
    let named =
        |task: usize, name: &str| run(FILES, &format!("--task {task}/3 --run-id {name}"), &task.to_string());
    for task in 0..3 {
        desk.ok(&named(task, "frame-17"));
    }
    let all = "@0.npz @1.npz @2.npz";
    desk.ok(&format!("merge {all} --out @y.npy --state-out @y.npz"));
    desk.ok(&format!("merge {all} --out @y.npy --run-id frame-17"));
    refused(
        &desk,
        &format!("merge {all} --out @z.npy --run-id frame-18"),
        "--run-id: \"frame-18\"; allowed: \"frame-17\", as the files have",
    );
    // If the runs have the same name, the tensors are not compared, so other keys are accepted.
    desk.ok(&named(1, "frame-17").replace("@k.npy", "@k2.npy"));
    desk.ok(&format!("merge {all} --out @y.npy"));
    for flags in ["--run-id frame-16", ""] {
        desk.ok(&run(FILES, &format!("--task 1/3 {flags}"), "other"));
        refused(
            &desk,
            "merge @0.npz @other.npz @2.npz --out @z.npy",
            "other.npz: run_id |; allowed: \"frame-17\"",
        );
    }
    refused(&desk, "merge @0.npz @2.npz --out @z.npy", "task 1 is missing|--run-id 'frame-17'");
    for (flags, words) in [
        (
            "--task 1/3 --run-id é --state-out @x.npz",
            "--run-id|allowed: 1 to 256 printable characters of ASCII",
        ),
        ("--out @x.npy --run-id a", "--run-id: given where no file takes it; allowed: with --state-out"),
        (
            "--out @x.npy --state-out @x.npz --host-budget 64MiB --run-id a",
            "--run-id: given where no file takes it; allowed: with --state-out, and without --host-budget",
        ),
    ] {
        refused(&desk, &format!("run {FILES} {flags}"), words);
    }
    // The fingerprint covers the name.
    let bytes = std::fs::read(desk.path("1.npz")).unwrap();
    let name: Vec<i64> = b"frame-18".iter().map(|byte| i64::from(*byte)).collect();
    for (name, words) in [
        (name, "another fingerprint than the description has"),
        (vec![27, 91], "a run_id that is none"),
        (vec![300], "a run_id that is none"),
        (vec![65; 257], "'run_id' of shape [257]"),
    ] {
        let array = common::npy("<i8", "False", &[name.len()], bytemuck::cast_slice(&name));
        std::fs::write(desk.path("other.npz"), exchanged(&bytes, "run_id", &array)).unwrap();
        refused(&desk, "merge @0.npz @other.npz @2.npz --out @z.npy", &format!("other.npz: |{words}"));
    }
}

#[test]
fn gradients_take_the_states_of_their_own_tensors() {
    let desk = desk();
    let states = |name: &str, flags: &str| {
        for task in 0..3 {
            desk.ok(&run(FILES, &format!("--task {task}/3 {flags}"), &format!("{name}{task}")));
        }
        desk.ok(&format!(
            "merge @{name}0.npz @{name}1.npz @{name}2.npz --state-out @{name}.npz --out @{name}.npy"
        ));
    };
    states("s", "");
    states("n", "--run-id a");
    desk.ok(&format!("run {FILES} --out @w.npy --state-out @w.npz"));
    let whole = |files: &str, flags: &str| {
        format!("backward {files} --d-out @dy.npy --dq-out @dq.npy --dk-out @dk.npy --dv-out @dv.npy {flags}")
    };
    let task = |files: &str, task: usize, flags: &str| {
        format!("backward {files} --d-out @dy.npy --task {task}/3 --shares-out @g{task}.npz {flags}")
    };
    for state in ["s", "w"] {
        let flags = format!("--state @{state}.npz");
        desk.ok(&whole(FILES, &flags));
        for n in 0..3 {
            desk.ok(&task(FILES, n, &flags));
        }
        desk.ok("merge @g0.npz @g1.npz @g2.npz --dq-out @dq.npy");
        for (tensor, word) in [("q", "queries"), ("k", "keys and values"), ("v", "keys and values")] {
            let files = FILES.replace(&format!("@{tensor}.npy"), &format!("@{tensor}2.npy"));
            let words = format!("--state: states of other {word}, from token 4 on; allowed: ");
            refused(&desk, &whole(&files, &flags), &words);
            let text: String = (0..3)
                .map(|n| desk.call(&task(&files, n, &flags)))
                .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
                .collect();
            assert_eq!(text.matches(&words).count(), 2, "two of three tasks hold a token: {text}");
        }
    }
    // Shares that were computed from another gradient of the output are refused.
    (0..3).for_each(|n| drop(desk.ok(&task(FILES, n, "--state @s.npz"))));
    let refusals = (0..3).filter(|n| {
        let line = task(FILES, *n, "--state @s.npz")
            .replace("@dy.npy", "@dy2.npy")
            .replace(&format!("@g{n}.npz"), "@other.npz");
        desk.ok(&line);
        let files = "@g0.npz @g1.npz @g2.npz".replace(&format!("@g{n}.npz"), "@other.npz");
        let output = desk.call(&format!("merge {files} --dq-out @x.npy"));
        String::from_utf8_lossy(&output.stderr).contains("d-out of token 4 other than in")
    });
    assert_eq!(refusals.count(), 2);
    // The name of the states' run must equal that of the backward pass.
    for line in [whole(FILES, "--state @n.npz"), task(FILES, 0, "--state @n.npz")] {
        desk.ok(&format!("{line} --run-id a"));
        refused(&desk, &line, "--state: states of the run \"a\"; allowed: that of --run-id");
        refused(&desk, &format!("{line} --run-id b"), "--state: states of the run \"a\"; allowed: \"b\"");
        let line = line.replace("@n.npz", "@s.npz");
        refused(&desk, &format!("{line} --run-id a"), "--state: states of a run without a name; allowed: ");
    }
    refused(
        &desk,
        &whole(FILES, "--run-id a"),
        "--run-id: given where no file takes it; allowed: with --state or --task",
    );
}

/// Returns the archive with element `at` of the f32 array `name` replaced by `number`.
fn changed(archive: &[u8], name: &str, at: usize, number: f32) -> Vec<u8> {
    let (shape, mut data) = common::read_f32(&common::array_of(archive, name));
    data[at] = number;
    exchanged(archive, name, &common::npy("<f4", "False", &shape, bytemuck::cast_slice(&data)))
}

#[test]
fn states_that_no_run_leaves_are_refused() {
    let desk = desk();
    for task in 0..3 {
        desk.ok(&run(FILES, &format!("--task {task}/3"), &task.to_string()));
    }
    desk.ok("merge @0.npz @1.npz @2.npz --out @y.npy --state-out @y.npz");
    let (one, all) = (std::fs::read(desk.path("1.npz")).unwrap(), std::fs::read(desk.path("y.npz")).unwrap());
    let inf = f32::INFINITY;
    for (name, number, words) in [
        ("m", f32::NAN, "m of row [1, 1, 0] holds NaN; allowed: "),
        ("m", -inf, "S of row [1, 1, 0] holds "),
        ("m", inf, "S of row [1, 1, 0] holds "),
        ("S", f32::NAN, "W of row [1, 1, 0] holds "),
        ("S", inf, "S of row [1, 1, 0] holds inf; allowed: a positive number"),
        ("S", -1.0, "S of row [1, 1, 0] holds -1; allowed: a positive number"),
        ("S", 0.0, "S of row [1, 1, 0] holds 0; allowed: a positive number"),
    ] {
        let rows = [2 * 2 * 17, 17];
        let of_task = common::read_f32(&desk.array("1.npz", "m")).0[2];
        std::fs::write(desk.path("other.npz"), changed(&one, name, 3 * of_task, number)).unwrap();
        refused(&desk, "merge @0.npz @other.npz @2.npz --out @z.npy", &format!("other.npz: {words}"));
        std::fs::write(desk.path("other.npz"), changed(&all, name, 3 * rows[1], number)).unwrap();
        let to = "--dq-out @dq.npy --dk-out @dk.npy --dv-out @dv.npy";
        for to in [to, "--task 1/3 --shares-out @g.npz"] {
            let line = format!("backward {FILES} --d-out @dy.npy --state @other.npz {to}");
            let output = desk.call(&line);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // A task that does not have the row may succeed.
            if to.starts_with("--dq") || !output.status.success() {
                assert!(text.contains(&format!("--state: {words}")), "{text}");
            }
        }
    }
    // States of a run with non-finite values are merged: the values poison their columns of W.
    let mut v = noise(3, COUNT);
    v[9] = f32::NAN;
    v[18] = inf;
    desk.f32("v.npy", &SHAPE, &v);
    let mut q = noise(1, COUNT);
    q[5 * 4] = f32::NAN;
    desk.f32("q.npy", &SHAPE, &q);
    for task in 0..3 {
        desk.ok(&run(FILES, &format!("--causal --task {task}/3"), &task.to_string()));
    }
    desk.ok("merge @0.npz @1.npz @2.npz --out @y.npy --state-out @y.npz");
    desk.ok(&format!("run {FILES} --causal --out @m.npy"));
    let [merged, memory] = ["y.npy", "m.npy"].map(|name| desk.read(name).1);
    assert!(merged.iter().zip(&memory).all(|(a, b)| a.is_finite() == b.is_finite()));
    assert!(merged.iter().any(|x| x.is_nan()));
    desk.ok(&format!("backward {FILES} --causal --d-out @dy.npy --state @y.npz --dq-out @dq.npy --dk-out @dk.npy --dv-out @dv.npy"));
}

/// Checks that sizes larger than the arrays, and lists that are too long, are refused before memory is allocated for
/// them. To show this, the memory of the process is limited to 400 MB.
#[test]
fn sizes_are_those_of_arrays() {
    if common::emulated() {
        return;
    }
    let desk = desk();
    for task in 0..3 {
        desk.ok(&run(FILES, &format!("--task {task}/3"), &task.to_string()));
    }
    let limited = |words: &str| {
        let child = desk.start("ulimit -v 400000", "merge @0.npz @other.npz @2.npz --out @z.npy");
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.contains(words), "{text}");
    };
    let bytes = std::fs::read(desk.path("1.npz")).unwrap();
    let deflated = |name: &str| {
        let mut to = zip::ZipWriter::new(std::fs::File::create(desk.path("other.npz")).unwrap());
        let mut from = zip::ZipArchive::new(std::io::Cursor::new(&bytes)).unwrap();
        let options = zip::write::SimpleFileOptions::default();
        let options = options.compression_method(zip::CompressionMethod::Deflated).compression_level(Some(1));
        for i in 0..from.len() {
            let mut member = from.by_index(i).unwrap();
            let file = member.name().unwrap().to_string();
            to.start_file(&file[..], options).unwrap();
            match file == format!("{name}.npy") {
                true => {
                    let count = 1 << 26;
                    std::io::Write::write_all(&mut to, &common::npy("<i8", "False", &[count], &[])).unwrap();
                    let zeros = vec![0u8; 1 << 20];
                    (0..(count * 8) >> 20).for_each(|_| std::io::Write::write_all(&mut to, &zeros).unwrap());
                }
                false => drop(std::io::copy(&mut member, &mut to).unwrap()),
            }
        }
        to.finish().unwrap();
    };
    for name in ["version", "kv_lens"] {
        deflated(name);
        limited(name);
    }
    // The fingerprint is correct, but the head size of the values is 2^32.
    let shape = [2i64, 2, 2, 17, 17, 4, 1 << 32];
    let rules = [0i64, 0, -1, -1, 0, 0];
    let lists: [&[i64]; 5] = [&[3], &shape, &rules, &[i64::from(0.5f32.to_bits()), 0], &[]];
    let words =
        lists.into_iter().flat_map(|list| [list.len() as i64].into_iter().chain(list.iter().copied()));
    let fingerprint = words.flat_map(i64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    for task in 0..3 {
        let bytes = std::fs::read(desk.path(&format!("{task}.npz"))).unwrap();
        let list = |data: &[i64]| common::npy("<i8", "False", &[data.len()], bytemuck::cast_slice(data));
        let bytes = exchanged(
            &exchanged(&bytes, "shape", &list(&shape)),
            "fingerprint",
            &list(&[fingerprint as i64]),
        );
        std::fs::write(desk.path(&format!("{}.npz", ["0", "other", "2"][task])), bytes).unwrap();
    }
    limited("W of shape ");
}
