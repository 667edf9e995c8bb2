//! Tests `elsa run --host-budget`. A streamed run must yield the same bits as a run in memory and must stay within the
//! budget, even if it resumes a killed run.
#![cfg(target_os = "linux")]

use crate::common::{Desk, emulated, noise, said, wait_for};
use std::os::unix::process::ExitStatusExt;

/// Creates a folder with `n` queries in four heads, and `m` keys and values in two heads.
pub fn desk(n: usize, m: usize) -> Desk {
    let desk = Desk::new();
    desk.f32("q.npy", &[1, 4, n, 16], &noise(1, 4 * n * 16));
    desk.f32("k.npy", &[1, 2, m, 16], &noise(2, 2 * m * 16));
    desk.f32("v.npy", &[1, 2, m, 8], &noise(3, 2 * m * 8));
    desk
}

pub const INPUTS: &str = "--q @q.npy --k @k.npy --v @v.npy --threads 2";

/// Bytes that a refusal adds to the smallest budget, because the next process may need more.
const MARGIN: usize = 3 << 20;

/// Returns the sum of `more` and the smallest sufficient budget for `line`, in bytes. The smallest budget is the budget
/// that a refusal names, less the [`MARGIN`].
pub fn smallest(desk: &Desk, line: &str, more: usize) -> usize {
    let output = desk.call(&format!("{line} --host-budget 1"));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    needed(&said(&output)).unwrap() - MARGIN + more
}

/// Parses the budget that the text of a refusal names.
pub fn needed(text: &str) -> Option<usize> {
    text.split("at least ").nth(1)?.split(' ').next()?.parse().ok()
}

/// Runs `line` with the smallest budget plus `more` bytes. Returns the standard output and the budget.
pub fn within(desk: &Desk, line: &str, more: usize) -> (String, usize) {
    let mut budget = smallest(desk, line, more);
    for _ in 0..8 {
        let output = desk.call(&format!("{line} --host-budget {budget}"));
        if output.status.success() {
            return (String::from_utf8(output.stdout).unwrap(), budget);
        }
        let text = said(&output);
        budget = needed(&text).unwrap_or_else(|| panic!("{line}: {text}")) - MARGIN + more;
    }
    panic!("{line}: the smallest budget grows");
}

pub fn same(desk: &Desk, one: &str, other: &str) {
    assert_eq!(
        std::fs::read(desk.path(one)).unwrap(),
        std::fs::read(desk.path(other)).unwrap(),
        "{one} {other}"
    );
}

/// Requires that two files contain the same states. Checksums are not compared, because only a run in memory writes
/// them.
pub fn same_states(desk: &Desk, one: &str, other: &str) {
    let arrays = |name: &str| ["m", "S", "W"].map(|array| desk.array(name, array));
    assert!(arrays(one) == arrays(other), "{one} {other}");
}

#[test]
fn the_answer_is_that_in_memory() {
    let desk = desk(1500, 1700);
    desk.f32("mask.npy", &[1, 1, 1500, 1700], &noise(4, 1500 * 1700));
    desk.npy("pk.npy", "<f4", &[1, 2, 600, 16], bytemuck::cast_slice(&noise(5, 2 * 600 * 16)));
    desk.npy("pv.npy", "<f4", &[1, 2, 600, 8], bytemuck::cast_slice(&noise(6, 2 * 600 * 8)));
    let k: Vec<f64> = noise(2, 2 * 1700 * 16).iter().map(|x| f64::from(*x) / 3.0).collect();
    desk.npy("k64.npy", "<f8", &[1, 2, 1700, 16], bytemuck::cast_slice(&k));
    for (extra, presents) in [
        ("--causal", false),
        ("--mask @mask.npy --window 400,5", false),
        ("--past-k @pk.npy --past-v @pv.npy", true),
        ("--k @k64.npy", false),
    ] {
        let inputs = if extra.contains("--k ") { INPUTS.replace("--k @k.npy ", "") } else { INPUTS.into() };
        let line = |number: usize| {
            let mut line = format!(
                "run {inputs} {extra} --out @y{number}.npy --lse-out @l{number}.npy --state-out @s{number}.npz"
            );
            if presents {
                line += &format!(" --present-k @pk{number}.npy --present-v @pv{number}.npy");
            }
            line
        };
        desk.ok(&line(0));
        let (json, budget) = within(&desk, &format!("{} --eta 0.1 --json", line(1)), 800_000);
        for name in ["y", "l"] {
            same(&desk, &format!("{name}0.npy"), &format!("{name}1.npy"));
        }
        same_states(&desk, "s0.npz", "s1.npz");
        if presents {
            same(&desk, "pk0.npy", "pk1.npy");
            same(&desk, "pv0.npy", "pv1.npy");
        }
        let report: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&report["what"], &report["chunk_keys"]), (&"run".into(), &512.into()), "{json}");
        let window = extra.contains("--window");
        let (parts, units) = (report["parts"].as_u64().unwrap(), report["units"].as_u64().unwrap());
        assert!(units > 1 && if window { parts >= units } else { parts > units }, "{json}");
        for key in
            ["read_ms", "compute_ms", "wait_ms", "total_ms", "overlap_eff", "bytes_read", "resident_rows"]
        {
            assert!(report[key].as_f64().unwrap() > 0.0, "{key}: {json}");
        }
        let account = report["account"].as_object().unwrap();
        let sum: u64 =
            account.iter().filter(|(part, _)| *part != "total").map(|(_, n)| n.as_u64().unwrap()).sum();
        assert_eq!(account["total"].as_u64(), Some(sum));
        assert!(sum <= budget as u64);
    }
    let parts = desk.list().into_iter().filter(|name| name.contains("elsa")).count();
    assert_eq!(parts, 0, "{:?}", desk.list());
}

#[test]
fn types_of_files_are_those_of_runs_in_memory() {
    let desk = desk(5, 700);
    let bf16 = |seed, n: usize| -> Vec<u8> {
        noise(seed, n).iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
    };
    let dtype = safetensors::Dtype::BF16;
    desk.safetensors(
        "in.safetensors",
        &[
            ("q", dtype, &[1, 4, 5, 16], &bf16(1, 320)),
            ("k", dtype, &[1, 2, 700, 16], &bf16(2, 2 * 700 * 16)),
            ("v", dtype, &[1, 2, 700, 8], &bf16(3, 2 * 700 * 8)),
        ],
    );
    let line = "run --q @in.safetensors#q --k @in.safetensors#k --v @in.safetensors#v";
    desk.ok(&format!("{line} --out @y0.npy"));
    desk.ok(&format!("{line} --out @y1.npy --host-budget 64MiB"));
    same(&desk, "y0.npy", "y1.npy");
    // The outputs go into the file of the inputs: q is replaced, and the other tensors are kept.
    for (name, extra) in [("a", ""), ("b", "--host-budget 64MiB")] {
        std::fs::copy(desk.path("in.safetensors"), desk.path(&format!("{name}.safetensors"))).unwrap();
        let line = line.replace("@in.", &format!("@{name}."));
        desk.ok(&format!(
            "{line} --out @{name}.safetensors#q --lse-out @{name}.safetensors#lse --force {extra}"
        ));
    }
    same(&desk, "a.safetensors", "b.safetensors");
    assert_eq!(
        desk.list(),
        ["a.safetensors", "b.safetensors", "in.safetensors", "k.npy", "q.npy", "v.npy", "y0.npy", "y1.npy"]
    );
}

#[test]
fn members_of_archives_are_read_by_range_or_unpacked() {
    let desk = desk(300, 1700);
    let arrays =
        ["q", "k", "v"].map(|name| (name, std::fs::read(desk.path(&format!("{name}.npy"))).unwrap()));
    desk.npz("stored.npz", &arrays, zip::CompressionMethod::Stored);
    desk.npz("deflated.npz", &arrays, zip::CompressionMethod::Deflated);
    desk.ok(&format!("run {INPUTS} --out @y0.npy"));
    let line = |name: &str| {
        format!(
            "run --q @{name}.npz#q --k @{name}.npz#k --v @{name}.npz#v --threads 2 --out @y1.npy --eta 0.1"
        )
    };
    let budget = smallest(&desk, &line("stored"), 3_000_000);
    for (name, unpacked) in [("stored", 0), ("deflated", 4 * (4 * 300 * 16 + 2 * 1700 * 24))] {
        let output = desk.call(&format!("{} --host-budget {budget} --json", line(name)));
        let text = said(&output);
        assert!(output.status.success() && text.contains("--k: ") == (unpacked > 0), "{text}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["unpacked_bytes"].as_u64(), Some(unpacked), "{report}");
        assert!(report["peak_rss_bytes"].as_u64().unwrap() <= budget as u64, "{report}");
        same(&desk, "y0.npy", "y1.npy");
        std::fs::remove_file(desk.path("y1.npy")).unwrap();
    }
    // The unpacked files have been removed.
    assert_eq!(desk.list(), ["deflated.npz", "k.npy", "q.npy", "stored.npz", "v.npy", "y0.npy"]);
    // A budget that is too small is reported before anything is unpacked, and damage before anything is computed.
    let output = desk.call(&format!("{} --host-budget 1MiB", line("deflated")));
    assert!(output.status.code() == Some(2) && !said(&output).contains("unpacked"), "{}", said(&output));
    for name in ["stored", "deflated"] {
        let path = desk.path(&format!("{name}.npz"));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[5000] ^= 0x55;
        std::fs::write(&path, bytes).unwrap();
        let output = desk.call(&format!("{} --host-budget {budget}", line(name)));
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.contains("damaged"), "{name}: {text}");
        assert!(!desk.path("y1.npy").exists());
    }
}

#[test]
fn the_certificate_is_that_in_memory() {
    let desk = desk(900, 1700);
    // Elements that no row attends are not read for the output. They count for the certificate, as in a run in memory.
    let mut mask = noise(4, 900 * 1700);
    mask[1650] = 7.5;
    desk.f32("mask.npy", &[900, 1700], &mask);
    for extra in ["", "--causal=top-left --mask @mask.npy", "--causal --window 200,0 --bias @mask.npy"] {
        let line = format!("run {INPUTS} {extra} --certificate --out");
        let want = desk.ok(&format!("{line} @y0.npy --json"));
        let want = want.lines().next().unwrap();
        assert!(want.contains(r#""claim":"rigorous""#), "{want}");
        let (found, _) = within(&desk, &format!("{line} @y1.npy --eta 0.1 --json"), 500_000);
        let (certificate, report) = found.split_once('\n').unwrap();
        assert_eq!(certificate, want, "{extra}");
        let report: serde_json::Value = serde_json::from_str(report).unwrap();
        assert!(report["units"].as_u64().unwrap() > 1, "{report}");
        same(&desk, "y0.npy", "y1.npy");
    }
}

#[test]
fn what_cannot_be_streamed_is_refused() {
    let desk = desk(5, 40);
    let line = format!("run {INPUTS} --out @y.npy");
    for (extra, word) in [
        ("--host-budget 1MiB", "--host-budget: 1048576 bytes; allowed: at least "),
        ("--host-budget 900000GiB", "--host-budget"),
        ("--host-budget 64MiB --certificate --resume", "--certificate: given with --resume"),
        ("--host-budget 64MiB --eta 0", "--eta"),
        ("--host-budget 64MiB --eta -1", "--eta"),
        ("--host-budget 64MiB --budget 1MiB", "--budget"),
        ("--eta 2", "--host-budget"),
        ("--resume", "--host-budget"),
        ("--device-budget 1GiB", "--host-budget"),
        ("--host-budget 64MiB --q @in.npz#q", "--q"),
    ] {
        let line = if extra.contains("--q") { line.replace("--q @q.npy ", "") } else { line.clone() };
        desk.npy("in.npz", "<f4", &[1], &[0; 4]);
        desk.refuses(&format!("{line} {extra}"), &[word]);
    }
}

#[test]
fn full_disks_and_changing_files_leave_no_output() {
    let desk = desk(150, 1200);
    let output = desk.call(&format!("run {INPUTS} --out /dev/full --host-budget 64MiB"));
    let text = said(&output);
    assert!(
        output.status.code() == Some(3) && text.contains("--out") && text.contains("/dev/full"),
        "{text}"
    );
    if emulated() {
        return;
    }
    // A limit on the size of files has the effect of a full disk.
    let line = format!("run {INPUTS} --out @y.npy --host-budget 64MiB");
    let child = desk.start("trap '' XFSZ\nulimit -f 8", &line);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(3) && said(&output).contains("--out"), "{}", said(&output));
    assert_eq!(desk.list(), ["k.npy", "q.npy", "v.npy"]);
    // The file of the keys is cut short during the run.
    desk.f32("q.npy", &[1, 4, 9000, 16], &noise(1, 4 * 9000 * 16));
    desk.f32("k.npy", &[1, 2, 60000, 16], &noise(2, 2 * 60000 * 16));
    desk.f32("v.npy", &[1, 2, 60000, 8], &noise(3, 2 * 60000 * 8));
    let line = line.replace("--host-budget 64MiB", "--resume");
    let budget = smallest(&desk, &line, 2_000_000);
    let line = format!("{line} --host-budget {budget}");
    let child = desk.start("", &line);
    wait_for("the journal", || desk.path("y.npy.elsa-journal").exists());
    std::fs::File::options().write(true).open(desk.path("k.npy")).unwrap().set_len(5000).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = said(&output);
    assert!(output.status.code() == Some(3) && text.contains("--k") && text.contains("changed"), "{text}");
    assert!(!desk.path("y.npy").exists());
}

/// Checks that the peak memory is within the budget. If more resident rows reduce the work, the peak must also use most
/// of the budget.
#[test]
fn the_peak_is_within_the_budget() {
    if emulated() {
        return;
    }
    let desk = Desk::new();
    let rows = 70_000;
    desk.f32("q.npy", &[1, 1, rows, 64], &noise(1, rows * 64));
    desk.f32("k.npy", &[1, 1, 600, 64], &noise(2, 600 * 64));
    for (threads, mebibytes) in [(1, 32), (2, 64)] {
        let line = format!(
            "run --q @q.npy --k @k.npy --v @k.npy --out @y.npy --threads {threads} --host-budget {mebibytes}MiB --json"
        );
        let report = desk.json(&line);
        let (peak, budget) = (report["peak_rss_bytes"].as_u64().unwrap(), mebibytes << 20);
        assert!(report["units"].as_u64().unwrap() > 1, "{report}");
        assert!(peak <= budget && peak * 100 >= budget * 90, "{peak} of {budget}: {report}");
        assert!(report["account"]["total"].as_u64().unwrap() * 100 >= budget * 95, "{report}");
    }
}

#[test]
fn the_account_is_printed() {
    let desk = Desk::new();
    let text = desk.ok("info --budget 64MiB --shape 1,8,100000,100000,64");
    assert!(text.contains("resident") && text.contains("rows") && text.contains("total"), "{text}");
    let account = desk.json("info --budget 64MiB --shape 1,8,100000,100000,64 --dtype f16 --json");
    let total = account["account"]["total"].as_u64().unwrap();
    assert!((60 << 20..=64 << 20).contains(&total), "{account}");
    let output = desk.call("info --budget 1KiB --shape 1,8,100000,100000,64");
    assert!(output.status.code() == Some(2) && said(&output).contains("at least"), "{}", said(&output));
    let output = desk.call("info --budget 64MiB");
    assert!(output.status.code() == Some(2) && said(&output).contains("--shape"), "{}", said(&output));
}

/// Starts streamed runs, tasks, merges and backward passes under many memory limits. Checks that each ends either with
/// one line and no output, or with the complete output, and that none is ended by a signal. Limits below the smallest
/// one tried are too small for the program to start.
#[test]
fn refused_memory_leaves_no_output() {
    if emulated() {
        return;
    }
    let desk = desk(900, 1200);
    desk.f32("dy.npy", &[1, 4, 900, 8], &noise(4, 4 * 900 * 8));
    let mut tasks = String::new();
    for task in 0..7 {
        desk.ok(&format!("run {INPUTS} --quorum 7 --task {task}/7 --state-out @t{task}.npz"));
        tasks += &format!("@t{task}.npz ");
    }
    let files = || -> Vec<(String, Vec<u8>)> {
        let read = |name: String| (name.clone(), std::fs::read(desk.path(&name)).unwrap());
        desk.list().into_iter().map(read).collect()
    };
    let before = files();
    let starts = |kilobytes: &u32| {
        let child = desk.start(&format!("ulimit -v {kilobytes}"), "--version");
        child.wait_with_output().unwrap().status.success()
    };
    // The search begins at the smallest limit under which the program starts. This limit depends on the program's
    // optimisation.
    let first = 2_000 + (10_000..80_000).step_by(1_000).find(starts).unwrap();
    let (inputs, mut statuses) = (INPUTS, [0; 4]);
    for line in [
        format!("run {inputs} --out @y.npy --host-budget 40MiB"),
        format!("run {inputs} --quorum 7 --task 3/7 --state-out @y.npz"),
        format!("merge {tasks} --out @y.npy --state-out @y.npz"),
        format!("backward {inputs} --d-out @dy.npy --dq-out @ya.npy --dk-out @yb.npy --dv-out @yc.npy"),
    ] {
        desk.ok(&line);
        let want = files();
        let clear = || {
            for name in desk.list().iter().filter(|name| name.starts_with('y')) {
                std::fs::remove_file(desk.path(name)).unwrap();
            }
        };
        for kilobytes in (first..=first + 16_000).step_by(2_000).chain([80_000, 180_000]) {
            clear();
            let child = desk.start(&format!("ulimit -v {kilobytes}"), &line);
            let output = child.wait_with_output().unwrap();
            let text = said(&output);
            match output.status.code() {
                Some(0) => assert!(files() == want, "{line}: {kilobytes}"),
                Some(2 | 3) => {
                    assert!(text.starts_with("elsa: ") && text.lines().count() == 1, "{kilobytes}: {text}");
                    assert!(files() == before, "{line}: {kilobytes}: {text}");
                }
                other => panic!("{line}: {kilobytes}: {other:?} {:?}: {text}", output.status.signal()),
            }
            statuses[output.status.code().map_or(3, |code| code as usize)] += 1;
        }
        clear();
    }
    assert!(statuses[0] > 20 && statuses[2] + statuses[3] > 0, "{statuses:?}");
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host"]
fn a_gpu_streams_within_its_budget() {
    let desk = desk(300, 2100);
    let run = |extra: &str, number: usize| {
        format!(
            "run {INPUTS} --backend cuda --causal {extra} --out @y{number}.npy --lse-out @l{number}.npy \
             --state-out @s{number}.npz --json"
        )
    };
    desk.ok(&run("", 0));
    let wide = desk.json(&run("--host-budget 8GiB --fallback fail", 1));
    // The stand-in's device shares the host's memory, so one budget limits device and page-locked memory together.
    let taken = |report: &serde_json::Value| {
        ["device", "pinned"].iter().map(|name| report["account"][name].as_u64().unwrap()).sum::<u64>()
    };
    let budget = taken(&wide) * 7 / 10;
    let tight = run(&format!("--host-budget 8GiB --device-budget {budget} --fallback fail"), 2);
    let tight = desk.json(&tight);
    assert_eq!((&tight["backend"], &tight["fallback"]), (&"cuda".into(), &serde_json::Value::Null));
    assert!(taken(&tight) <= budget, "{tight}");
    assert!(tight["resident_rows"].as_u64() < wide["resident_rows"].as_u64(), "{tight} {wide}");
    assert!(tight["parts"].as_u64() > wide["parts"].as_u64(), "{tight} {wide}");
    for name in ["y", "l"] {
        let [memory, wide, tight] = [0, 1, 2].map(|number| desk.read(&format!("{name}{number}.npy")).1);
        let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a == b || (a - b).abs() <= 1e-5);
        assert!(memory.len() == wide.len() && near(&memory, &wide) && near(&memory, &tight), "{name}");
    }
    // No division fits into 1,000 bytes.
    let output = desk.call(&run("--host-budget 8GiB --device-budget 1000 --fallback fail", 3));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("--device-budget: 1000 bytes; allowed: at least "), "{}", said(&output));
    assert!(!desk.path("y3.npy").exists());
    // Host and device share one memory, and the smaller budget limits it. Falling back to the CPU therefore does not
    // help.
    let output = desk.call(&run("--host-budget 8GiB --device-budget 1000", 3));
    assert!(output.status.code() == Some(2) && said(&output).contains("1000 bytes"), "{}", said(&output));
    let output = desk.call(&format!("{} --certificate", run("--host-budget 64MiB", 3)));
    assert!(output.status.success() && said(&output).contains("the CPU computes"), "{}", said(&output));
}

/// Checks streams on a GPU with past keys and with every feature that changes scores. The bits of an output must not
/// depend on the chunks, and the output must equal the output of a run in memory.
#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host"]
fn a_gpu_streams_every_semantics() {
    let desk = desk(60, 2300);
    desk.f32("mask.npy", &[60, 2300], &noise(4, 60 * 2300));
    desk.f32("long.npy", &[1, 1, 60, 2400], &noise(4, 60 * 2400));
    desk.f32("bias.npy", &[4, 1, 2300], &noise(7, 4 * 2300));
    desk.f32("pk.npy", &[1, 2, 100, 16], &noise(5, 2 * 100 * 16));
    desk.f32("pv.npy", &[1, 2, 100, 8], &noise(6, 2 * 100 * 8));
    let past = "--past-k @pk.npy --past-v @pv.npy --mask @long.npy";
    for (extra, presents) in [("--mask @mask.npy --causal", false), ("--bias @bias.npy", false), (past, true)]
    {
        let run = |more: &str, number: usize| {
            let mut line = format!("run {INPUTS} {extra} {more} --backend cuda --fallback fail --json");
            line += &format!(" --out @y{number}.npy --lse-out @l{number}.npy");
            if presents {
                line += &format!(" --present-k @pk{number}.npy --present-v @pv{number}.npy");
            }
            desk.ok(&line)
        };
        run("", 0);
        run("--host-budget 8GiB", 1);
        let done = run("--host-budget 8GiB --eta 4", 2);
        let done: serde_json::Value = serde_json::from_str(done.trim()).unwrap();
        assert!(done["backend"] == "cuda" && done["fallback"] == serde_json::Value::Null, "{done}");
        for name in ["y", "l"] {
            let [memory, one, other] = [0, 1, 2].map(|number| desk.read(&format!("{name}{number}.npy")).1);
            assert_eq!(one, other, "{extra}: {name}");
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5;
            assert!(memory.len() == one.len() && memory.iter().zip(&one).all(near), "{extra}: {name}");
        }
        if presents {
            same(&desk, "pk0.npy", "pk1.npy");
            same(&desk, "pv0.npy", "pv1.npy");
        }
    }
}
