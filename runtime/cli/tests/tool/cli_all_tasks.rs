//! Tests `elsa run --quorum` without `--task`, which computes all tasks in one process, and the merge within a budget. Both
//! must have the bits of separate processes and of a merge in memory.

use crate::cli_tasks::refused;
use crate::common::{Desk, Sizes, attention, distance, elsa_with, emulated, keep, said};
use std::fs;

const N: Sizes = Sizes { b: 2, h: 4, hk: 2, nq: 45, nk: 45, d: 16, dv: 8 };
/// Sizes with large states of each token, so that few tokens fit into a budget.
const WIDE: Sizes = Sizes { b: 1, h: 8, hk: 8, nq: 300, nk: 300, d: 8, dv: 64 };

const FILES: &str = "run --q @q.npy --k @k.npy --v @v.npy";

fn files(tasks: usize) -> String {
    (0..tasks).map(|task| format!("@{task}.npz ")).collect()
}

/// Computes `tasks` tasks in separate calls.
fn separately(desk: &Desk, flags: &str, tasks: usize) {
    for task in 0..tasks {
        desk.ok(&format!("{FILES} {flags} --task {task}/{tasks} --state-out @{task}.npz"));
    }
}

fn bytes(desk: &Desk, name: &str) -> Vec<u8> {
    fs::read(desk.path(name)).unwrap()
}

#[test]
fn one_process_has_the_bits_of_seven() {
    let desk = Desk::new();
    let data = desk.qkv(N, 4.0);
    separately(&desk, "--causal", 7);
    desk.ok(&format!("merge {} --out @want.npy --lse-out @l.npy --state-out @s.npz", files(7)));
    let line = format!("{FILES} --causal --quorum 7 --out @y.npy --lse-out @yl.npy --state-out @ys.npz");
    let account = desk.json(&format!("{line} --json"));
    for (one, many) in [("y.npy", "want.npy"), ("yl.npy", "l.npy"), ("ys.npz", "s.npz")] {
        assert!(bytes(&desk, one) == bytes(&desk, many), "{one}");
    }
    assert_eq!((&account["what"], &account["tasks"]), (&"tasks".into(), &7.into()));
    assert_eq!((&account["computed"], &account["tasks_of_level"]), (&7.into(), &[7].into_iter().collect()));
    assert_eq!(account["pairs"], 45.0 * 45.0);
    assert!(!desk.path("y.npy.tasks").exists(), "the folder is removed");
    let (_, y) = desk.read("y.npy");
    let answer =
        attention(N, N.scale(), [&data[0], &data[1], &data[2]], |_, _, i, j, s: f64| keep(j <= i, s));
    assert!(distance(&y, &answer.y) < 2e-6);
}

#[test]
fn complete_tasks_are_skipped_and_others_computed_again() {
    let desk = Desk::new();
    let mut data = desk.qkv(N, 4.0);
    desk.ok(&format!("{FILES} --quorum 7 --out @want.npy"));
    let line = format!("{FILES} --quorum 7 --task-dir @d --json --out @y.npy");
    let computed = |line: &str| desk.json(line)["computed"].as_u64().unwrap();
    assert_eq!((computed(&line), computed(&line)), (7, 0));
    // One file is missing, one is cut, one has a wrong byte in its states, and one is another task's.
    fs::remove_file(desk.path("d/task-3.npz")).unwrap();
    let whole = bytes(&desk, "d/task-5.npz");
    fs::write(desk.path("d/task-5.npz"), &whole[..whole.len() / 2]).unwrap();
    let mut bent = bytes(&desk, "d/task-6.npz");
    let at = bent.windows(4).position(|four| four == b"PK\x01\x02").unwrap() - 20;
    bent[at] ^= 1;
    fs::write(desk.path("d/task-6.npz"), bent).unwrap();
    fs::copy(desk.path("d/task-1.npz"), desk.path("d/task-2.npz")).unwrap();
    assert_eq!(computed(&line), 4);
    assert!(bytes(&desk, "y.npy") == bytes(&desk, "want.npy"));
    // Three of the seven tasks hold a token, and all tasks have the flags.
    let last = data[1].len() - 1;
    data[1][last] += 1.0;
    desk.f32("k.npy", &N.k(), &data[1]);
    assert_eq!(computed(&line), 3);
    desk.ok(&format!("{FILES} --quorum 7 --out @want.npy"));
    assert!(bytes(&desk, "y.npy") == bytes(&desk, "want.npy"));
    assert_eq!(computed(&format!("{line} --causal")), 7);
    assert_eq!((computed(&format!("{line} --causal --run-id a")), computed(&line)), (7, 7));
}

/// Returns the number of bytes in the refusal of a budget of one byte.
fn least(desk: &Desk, line: &str) -> usize {
    let text = desk.refuses(&format!("{line} --host-budget 1"), &["--host-budget: 1; allowed: at least "]);
    let number = text.split("at least ").nth(1).unwrap();
    number.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_merge_within_a_budget_has_the_bits_of_one_in_memory() {
    let desk = Desk::new();
    for (n, cases) in [(WIDE, 1), (N, 3)] {
        desk.qkv(n, 4.0);
        separately(&desk, "--causal", 3);
        let merge =
            |more: &str, to: &str| format!("merge {} --out @{to}.npy --lse-out @{to}l.npy {more}", files(3));
        for layout in ["--layout bhnd", "--layout bnhd", "--layout bnc"].into_iter().take(cases) {
            desk.ok(&merge(layout, "want"));
            // Some of the tokens fit. The resident memory of two processes differs by less than this.
            let budget = least(&desk, &merge(layout, "y")) + (1 << 20);
            desk.ok(&merge(&format!("{layout} --host-budget {budget}"), "y"));
            assert!(bytes(&desk, "y.npy") == bytes(&desk, "want.npy"), "{layout}");
            assert!(bytes(&desk, "yl.npy") == bytes(&desk, "wantl.npy"), "{layout}");
        }
    }
    let states = format!("merge {} --state-out @s.npz --host-budget 1GiB", files(3));
    refused(&desk, &states, "--state-out: given with --host-budget; allowed: without it");
}

#[test]
fn a_budget_chooses_the_levels() {
    if emulated() {
        return;
    }
    let desk = Desk::new();
    desk.qkv(Sizes { nq: 1200, nk: 1200, ..WIDE }, 4.0);
    let line = format!("{FILES} --quorum 3,3 --out @y.npy --threads 1");
    let account = desk.json(&format!("{line} --json --host-budget 4GiB"));
    assert_eq!(account["tasks_of_level"], [3, 0].into_iter().collect::<serde_json::Value>());
    separately(&desk, "--quorum 3", 3);
    desk.ok(&format!("merge {} --out @want.npy", files(3)));
    assert!(bytes(&desk, "y.npy") == bytes(&desk, "want.npy"));
    let budget = least(&desk, &line) + (1 << 20);
    let account = desk.json(&format!("{line} --json --host-budget {budget}"));
    assert_eq!(account["tasks_of_level"], [0, 9].into_iter().collect::<serde_json::Value>());
}

#[test]
fn what_all_tasks_do_not_take_is_refused() {
    let desk = Desk::new();
    desk.qkv(N, 1.0);
    for (flags, words) in [
        ("--quorum 8", "--quorum: "),
        ("--quorum 57,57,57", "--quorum: 185193 tasks; allowed: at most 100000"),
        ("--quorum 7 --certificate", "--certificate: given with quorum"),
        ("--quorum 7 --past-k @k.npy --past-v @v.npy", "--past-k: given with quorum"),
        ("--quorum 7 --error-budget 0.1", "--error-budget: given with --quorum"),
        ("--quorum 7 --host-budget 1GiB --resume", "--resume: given with quorum"),
        ("--quorum 7 --host-budget 1GiB --state-out @s.npz", "--state-out: given with --host-budget"),
        ("--task-dir @d", "--quorum"),
        ("--devices 0", "--quorum"),
        ("--quorum 7 --devices 0,0", "--devices: '0,0'; allowed: different numbers of GPUs"),
        ("--quorum 7 --devices=", "--devices: "),
        ("--quorum 7 --devices 0 --device 0", "--device|given with"),
        ("--quorum 7 --devices 0 --host-budget 1GiB", "--devices|given with"),
        ("--quorum 7 --devices 0 --task 0/7", "--devices|given with"),
        ("--quorum 7 --devices 0 --backend scalar", "--devices: given with --backend scalar; allowed: "),
        ("--quorum 7 --task 0/7 --task-dir @d", "--task-dir|given with"),
    ] {
        refused(&desk, &format!("{FILES} {flags} --out @y.npy"), words);
    }
    refused(&desk, &format!("{FILES} --quorum 7 --out @no/y.npy"), "--out: ");
}

#[test]
#[ignore = "needs a CUDA driver: cargo xtask test --only host"]
fn devices_share_the_tasks_and_have_the_bits_of_one() {
    let desk = Desk::new();
    desk.qkv(N, 4.0);
    let call = |line: &str, fault: &str| {
        let variables = [("ELSA_STANDIN_DEVICES", "2"), ("ELSA_STANDIN_FAIL", fault)];
        elsa_with(&desk.words(&format!("{FILES} --quorum 7 --fallback fail --json {line}")), &variables)
    };
    let json = |line: &str| -> serde_json::Value {
        let output = call(line, "");
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let one = json("--device 0 --out @want.npy --task-dir @a");
    assert_eq!((&one["computed"], &one["devices"]), (&7.into(), &serde_json::json!([])));
    let two = json("--devices 0,1 --out @y.npy --task-dir @b");
    let mut tasks = Vec::new();
    for (number, device) in two["devices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(device["device"], number);
        assert!(device["name"].as_str().unwrap().contains("NVIDIA") && device["ms"].is_number());
        tasks
            .extend(device["tasks"].as_array().unwrap().iter().map(|task| task.as_str().unwrap().to_owned()));
    }
    tasks.sort();
    assert_eq!(tasks, ["0", "1", "2", "3", "4", "5", "6"]);
    let same = |name: &str, other: &str| assert!(bytes(&desk, name) == bytes(&desk, other), "{name}");
    same("y.npy", "want.npy");
    (0..7).for_each(|task| same(&format!("b/task-{task}.npz"), &format!("a/task-{task}.npz")));

    // A GPU is lost on the way. Files of finished tasks stay, and the next call continues with the others.
    let output = call("--devices 0,1 --out @z.npy --task-dir @c", "cuLaunchKernel:40+:719");
    assert_eq!((output.status.code(), desk.path("z.npy").exists()), (Some(3), false), "{}", said(&output));
    assert!(
        ["--devices: 0: ", "--devices: 1: "].iter().any(|of| said(&output).contains(of)),
        "{}",
        said(&output)
    );
    let left = 7 - fs::read_dir(desk.path("c")).unwrap().count();
    assert!((1..7).contains(&left), "{left}");
    assert_eq!(json("--devices 1,0 --out @z.npy --task-dir @c")["computed"], left);
    same("z.npy", "want.npy");

    // The time of all tasks is that of the device that took longest.
    let times = two["devices"].as_array().unwrap().iter().map(|device| device["ms"].as_f64().unwrap());
    assert_eq!(two["ms"].as_f64(), times.reduce(f64::max));

    // Without a driver one engine of the CPU computes all tasks.
    let words = desk.words(&format!("{FILES} --quorum 7 --json --devices 0,1 --out @cpu.npy --task-dir @e"));
    let output = elsa_with(&words, &[("ELSA_STANDIN_DEVICES", "2"), ("ELSA_STANDIN_FAIL", "cuInit:1+:100")]);
    assert!(output.status.success(), "{}", said(&output));
    let cpu: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&cpu["computed"], &cpu["devices"]), (&7.into(), &serde_json::json!([])));
    assert_ne!(cpu["backend"], "cuda");
    assert!(!said(&output).contains("--device has no effect"), "{}", said(&output));
    // One GPU cannot be used.
    let half = |fallback: &str| {
        let line = format!("{FILES} --quorum 7 --json --devices 0,1 --out @half.npy {fallback}");
        let fault = ("ELSA_STANDIN_FAIL", "cuDevicePrimaryCtxRetain:2+:2");
        elsa_with(&desk.words(&line), &[("ELSA_STANDIN_DEVICES", "2"), fault])
    };
    let output = half("");
    let one: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = one["devices"].as_array().unwrap();
    assert!(devices.len() == 1 && devices[0]["device"] == 0, "{one}");
    same("half.npy", "want.npy");
    for output in [output, half("--fallback fail")] {
        assert!(said(&output).contains("--devices: 1: "), "{}", said(&output));
    }

    let output = call("--devices 0,2 --out @no.npy --task-dir @d", "");
    assert_eq!((output.status.code(), desk.path("d").exists()), (Some(2), false));
    assert!(said(&output).contains("--devices: 2; allowed: numbers below 2"), "{}", said(&output));
}
