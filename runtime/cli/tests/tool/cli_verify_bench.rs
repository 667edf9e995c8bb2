//! Tests `elsa verify` and `elsa info` through the binary. Also tests which back end these commands and `elsa bench`
//! use.

use crate::common::{self, Desk, elsa, lines, noise};

const METRICS: [&str; 6] = ["p_max_abs", "p_rel_l2", "js", "argmax", "y_max_abs", "y_rel_l2"];

#[test]
fn given_tensors_are_verified() {
    let desk = Desk::new();
    desk.f32("q.npy", &[2, 3, 40, 16], &noise(1, 3840));
    desk.f32("k.npy", &[2, 3, 90, 16], &noise(2, 8640));
    desk.f32("v.npy", &[2, 3, 90, 24], &noise(3, 12960));
    desk.i64("lens.npy", &[90, 0]);
    let text = desk.ok("verify --q @q.npy --k @k.npy --v @v.npy --causal --kv-lens @lens.npy --json");
    let all = lines(text.as_bytes());
    assert_eq!((all.len(), &all[1]["verdict"]), (2, &"PASS".into()));
    let v = &all[0];
    assert_eq!((v["what"].as_str(), v["passed"].as_bool()), (Some("verify"), Some(true)));
    assert_eq!((v["rows"].as_u64(), v["p_rows"].as_u64()), (Some(240), Some(240)));
    for metric in METRICS {
        for part in ["median", "p95", "p99", "total"] {
            assert!(v[metric][part].is_number(), "{metric} {part}");
        }
    }
    // In f32, the probabilities and the output are close to the oracle's, but not exact.
    for metric in ["p_rel_l2", "y_rel_l2"] {
        let total = v[metric]["total"].as_f64().unwrap();
        assert!(total > 1e-9 && total < 1e-6, "{metric} {total:e}");
    }
    assert!(v["y_rel_l2"]["total"].as_f64().unwrap() < v["y_rel_l2_allowed"].as_f64().unwrap());
    let number = |field: &str| v[field].as_f64().unwrap();
    assert!(v["y_rel_l2"]["total"].as_f64().unwrap() < number("y_rel_l2_likely"));
    assert!(number("y_rel_l2_likely") < number("y_rel_l2_allowed"));
    assert_eq!((v["unlikely"].as_u64(), v["beyond"].as_u64()), (Some(0), Some(0)));
    // The published depth is L(90, 64) = 6 + 2 + 3.
    assert_eq!(v["certificate"]["published_depth"], 11);
    assert_eq!(v["certificate"]["claim"], "published");
    // There are 63 additions in the chain of 64 keys, and one for the other block of the segment.
    assert_eq!(v["certificate"]["executed"]["merge_depth"], 0);
    assert_eq!(v["certificate"]["executed"]["additions"], 63 + 1);
    let text = desk.ok("verify --q @q.npy --k @k.npy --v @v.npy");
    assert!(text.starts_with("PASS given: ") && text.ends_with("\nPASS: the case passes\n"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    let text = desk.ok("verify --q @q.npy --k @k.npy --v @v.npy --verbose");
    for words in ["|dY| / |Y|", "Jensen-Shannon", "merge depth", "rigorous bound", "PASS given: "] {
        assert!(text.contains(words), "{words} is missing in {text}");
    }
    assert_eq!(desk.list(), ["k.npy", "lens.npy", "q.npy", "v.npy"]);
}

#[test]
fn past_and_packed_and_f16_tensors_are_verified() {
    let desk = Desk::new();
    desk.f32("q.npy", &[4, 3, 8], &noise(1, 96));
    desk.f32("k.npy", &[4, 2, 8], &noise(2, 64));
    desk.f32("p.npy", &[4, 7, 8], &noise(3, 224));
    desk.ok("verify --q @q.npy --k @k.npy --v @k.npy --past-k @p.npy --past-v @p.npy --causal");
    desk.f32("t.npy", &[12, 4, 8], &noise(1, 384));
    desk.i64("c.npy", &[0, 5, 5, 12]);
    desk.ok("verify --q @t.npy --k @t.npy --v @t.npy --cu-seqlens-q @c.npy --cu-seqlens-k @c.npy --causal");
    let halves: Vec<half::f16> = noise(5, 384).into_iter().map(half::f16::from_f32).collect();
    desk.npy("h.npy", "<f2", &[12, 4, 8], bytemuck::cast_slice(&halves));
    let text = desk.ok("verify --q @h.npy --k @h.npy --v @h.npy --layout bnhd --json");
    assert_eq!(lines(text.as_bytes())[0]["dtype"], "f16");
}

#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "f64 is slow in an emulator; `cargo xtask deploy` verifies it on a board"
)]
fn the_stress_scenario_is_verified() {
    let output = elsa(&["verify", "--scenario", "stress", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = lines(&output.stdout);
    let (summary, all) = all.split_last().unwrap();
    assert_eq!((&summary["verdict"], &summary["cases"]), (&"PASS".into(), &6.into()));
    let names: Vec<&str> = all.iter().map(|v| v["case"].as_str().unwrap()).collect();
    assert_eq!(names, ["overflow", "dominant", "cancelling", "masked", "causal", "windowed"]);
    assert!(all.iter().all(|v| v["passed"] == true && v["argmax"]["total"] == 0.0));
}

#[test]
fn info_reports_what_would_be_chosen() {
    let info = lines(&elsa(&["info", "--json"]).stdout).remove(0);
    let backends = info["backends"].as_array().unwrap();
    assert_eq!(backends.len(), 5);
    assert!(backends.iter().any(|b| b["name"] == "scalar" && b["present"] == true));
    let chosen = backends.iter().find(|b| b["name"] == info["chosen"]).unwrap();
    assert_eq!(chosen["present"], true);
    assert!(info["threads"].as_u64().unwrap() >= 1 && info["version"].is_string());
    let machine = &info["machine"];
    assert_eq!(machine["emulated"], common::emulated());
    let lists = ["cores", "zones", "rails", "notes"];
    assert!(lists.iter().all(|list| machine[list].is_array()), "{machine}");
    let text = String::from_utf8(elsa(&["info"]).stdout).unwrap();
    assert!(text.contains("chosen") && text.contains("absent"), "{text}");
}

#[test]
fn no_command_prints_help() {
    let output = elsa::<&str>(&[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    for command in ["run", "verify", "bench", "info"] {
        assert!(text.contains(command), "{text}");
    }
    let version = elsa(&["--version"]);
    assert!(version.status.success() && version.stdout.starts_with(b"elsa "));
}

#[test]
fn the_environment_forces_a_back_end_too() {
    // Rows that other programs disturbed are also accepted.
    let bench = ["bench", "--shape", "1,1,64,64,64", "--seconds", "0.01", "--json"];
    let ended = |status: Option<i32>| matches!(status, Some(0 | 5));
    let text = |name: &str, args: &[&str]| {
        let output = common::elsa_with(args, &[("ELSA_BACKEND", name)]);
        let words = [output.stdout, output.stderr].map(|x| String::from_utf8(x).unwrap());
        (output.status.code(), words.concat())
    };
    let (status, said) = text("scalar", &bench);
    assert!(ended(status), "{said}");
    let rows = || said.lines().filter(|line| line.contains("\"what\":\"bench\""));
    assert!(rows().count() == 2 && rows().all(|line| line.contains("\"backend\":\"scalar\"")), "{said}");
    let absent = if cfg!(target_arch = "aarch64") { "avx512" } else { "neon" };
    for name in [absent, "abacus"] {
        let (status, said) = text(name, &bench);
        assert_eq!(status, Some(2), "{name}: {said}");
        assert!(said.contains(name) && said.contains("allowed") && said.lines().count() == 1, "{said}");
    }
    // No machine has this device. The CPU therefore computes instead, and the tool reports this. With `--fallback
    // fail`, the call fails.
    let elsewhere = [&bench[..], &["--device", "4096"]].concat();
    let (status, said) = text("cuda", &elsewhere);
    assert!(ended(status) && said.contains("the CPU computes") && !said.contains("\"cuda\""), "{said}");
    let (status, said) = text("cuda", &[&elsewhere[..], &["--fallback", "fail"]].concat());
    assert!(matches!(status, Some(2 | 3)) && said.contains("--backend: cuda cannot be used"), "{said}");
    // A flag takes precedence over the environment.
    let (status, said) = text(absent, &[&bench[..], &["--backend", "scalar"]].concat());
    assert!(ended(status), "{said}");
}
