//! `elsa verify`, `elsa bench` and `elsa info` through the binary.
#![allow(clippy::unwrap_used)]

use crate::common::{self, Desk, elsa, emulated, noise};
use serde_json::Value;

fn lines(text: &[u8]) -> Vec<Value> {
    std::str::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

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
    assert_eq!(all.len(), 1);
    let v = &all[0];
    assert_eq!((v["what"].as_str(), v["passed"].as_bool()), (Some("verify"), Some(true)));
    assert_eq!((v["rows"].as_u64(), v["p_rows"].as_u64()), (Some(240), Some(240)));
    for metric in METRICS {
        for part in ["median", "p95", "p99", "total"] {
            assert!(v[metric][part].is_number(), "{metric} {part}");
        }
    }
    // f32 values: not exact, and not far.
    for metric in ["p_rel_l2", "y_rel_l2"] {
        let total = v[metric]["total"].as_f64().unwrap();
        assert!(total > 1e-9 && total < 1e-6, "{metric} {total:e}");
    }
    assert!(v["y_rel_l2"]["total"].as_f64().unwrap() < v["y_rel_l2_allowed"].as_f64().unwrap());
    let number = |field: &str| v[field].as_f64().unwrap();
    assert!(v["y_rel_l2"]["total"].as_f64().unwrap() < number("y_rel_l2_likely"));
    assert!(number("y_rel_l2_likely") < number("y_rel_l2_allowed"));
    assert_eq!((v["unlikely"].as_u64(), v["beyond"].as_u64()), (Some(0), Some(0)));
    // L(90, 64) = 6 + 2 + 3.
    assert_eq!(v["certificate"]["published_depth"], 11);
    assert_eq!(v["certificate"]["claim"], "published");
    // 64 keys in a chain, and the other block of the segment.
    assert_eq!(v["certificate"]["executed"]["merge_depth"], 0);
    assert_eq!(v["certificate"]["executed"]["additions"], 63 + 1);
    let text = desk.ok("verify --q @q.npy --k @k.npy --v @v.npy");
    for words in ["|dY| / |Y|", "Jensen-Shannon", "merge depth", "certificate", "verified"] {
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
    let names: Vec<&str> = all.iter().map(|v| v["case"].as_str().unwrap()).collect();
    assert_eq!(names, ["overflow", "dominant", "cancelling", "masked", "causal", "windowed"]);
    assert!(all.iter().all(|v| v["passed"] == true && v["argmax"]["total"] == 0.0));
}

#[test]
fn verify_refuses_what_run_refuses() {
    for (args, word) in [
        (&["verify"][..], "--q"),
        (&["verify", "--scenario", "short"], "--scenario"),
        (&["verify", "--scenario", "stress", "--scale", "2"], "--scenario"),
        (&["verify", "--scenario", "stress", "--backend", "gpu"], "--backend"),
    ] {
        let output = elsa(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.contains(word), "{text}");
    }
}

const FIELDS: [&str; 24] = [
    "what",
    "backend",
    "kernel",
    "method",
    "dtype",
    "batch",
    "heads",
    "kv_heads",
    "queries",
    "n",
    "d",
    "shape",
    "samples",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "max_ms",
    "cold_ms",
    "gflops",
    "workspace_bytes",
    "alloc_bytes",
    "speedup_vs_math",
    "rel_l2",
    "certified",
];
/// Null where the shape does not say them.
const SEMANTICS: [&str; 4] = ["causal", "window", "mask", "windows"];
/// Null where the board does not report them.
const BOARD: [&str; 7] = ["energy_mj", "power_mw", "temp_c", "gpu_mhz", "cpu_mhz", "emc_mhz", "throttled"];

#[test]
fn bench_prints_every_field_for_every_shape_and_method() {
    let output = elsa(&[
        "bench",
        "--json",
        "--seconds",
        "0.02",
        "--threads",
        "2",
        "--shape",
        "1,2,33,70,16",
        "--shape",
        "2,1,5,9,64",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = lines(&output.stdout);
    assert_eq!(all.len(), 4);
    for (record, (method, n, d)) in
        all.iter().zip([("elsa", 70, 16), ("math", 70, 16), ("elsa", 9, 64), ("math", 9, 64)])
    {
        assert_eq!((&record["method"], &record["n"], &record["d"]), (&method.into(), &n.into(), &d.into()));
        for field in FIELDS {
            assert!(!record[field].is_null(), "{field}: {record}");
        }
        for field in SEMANTICS.into_iter().chain(BOARD) {
            assert!(record.as_object().unwrap().contains_key(field), "{field}");
        }
        assert_eq!(record.as_object().unwrap().len(), FIELDS.len() + SEMANTICS.len() + BOARD.len());
        let number = |field: &str| record[field].as_f64().unwrap();
        assert!(number("samples") > 0.0 && number("p50_ms") > 0.0 && number("cold_ms") > 0.0);
        assert!(number("p50_ms") <= number("p90_ms") && number("p90_ms") <= number("p99_ms"));
        assert!(number("p99_ms") <= number("max_ms"));
        assert_eq!(number("alloc_bytes"), 0.0, "{record}");
        assert!(number("rel_l2") > 0.0 && number("rel_l2") < 1e-6, "{record}");
        let flops = 4.0 * number("batch") * number("heads") * number("n") * number("d");
        let queries = if n == 70 { 33.0 } else { 5.0 };
        let gflops = flops * queries / (number("p50_ms") * 1e6);
        assert!((number("gflops") / gflops - 1.0).abs() < 1e-9);
    }
}

#[test]
fn bench_prints_a_table_of_the_default_grid() {
    // The oracle is most of the work, and f64 is slow in an emulator: one method and one shape there.
    let one: &[&str] = &["--method", "elsa", "--shape", "1,1,64,64,64"];
    let less = if emulated() { one } else { &[] };
    let output = elsa(&[&["bench", "--seconds", "0.01", "--dtype", "f16"], less].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let shapes: Vec<&str> = text.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    let grid = [64, 100, 144, 196, 256, 324, 400, 484, 576, 676, 784, 900];
    let grid = if emulated() { &grid[..1] } else { &grid[..] };
    let wanted: Vec<String> = grid.iter().map(|n| format!("1,1,{n},{n},64")).collect();
    assert_eq!(shapes, wanted, "{text}");
    assert!(text.contains("threads") && text.contains("speedup") && text.contains("f16"), "{text}");
}

#[test]
fn bench_measures_every_form_of_a_shape() {
    let forms = [
        ("2,4,13,70,16,mask=bool", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=true", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=padding", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=float", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=bias", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=batch", [2, 4, 4, 13]),
        ("2,4,13,70,16,mask=row", [2, 4, 4, 13]),
        ("2,4,13,70,16,kv=2,causal,mask=bias", [2, 4, 2, 13]),
        ("1,4,70,70,16,kv=1,causal=top-left,window=9:-1", [1, 4, 1, 70]),
        ("6,2,16,16,8,swin=8x12:1", [6, 2, 2, 16]),
    ];
    let mut args = vec!["bench", "--json", "--seconds", "0.01"];
    args.extend(forms.iter().flat_map(|(shape, _)| ["--shape", *shape]));
    let output = elsa(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = lines(&output.stdout);
    assert_eq!(all.len(), 2 * forms.len());
    for (records, (shape, sizes)) in all.chunks(2).zip(forms) {
        for record in records {
            assert_eq!(record["shape"], shape);
            let found =
                ["batch", "heads", "kv_heads", "queries"].map(|field| record[field].as_u64().unwrap());
            assert_eq!(found, sizes, "{record}");
            assert_eq!(record["mask"].as_str(), shape.split_once("mask=").map(|(_, form)| form));
            assert_eq!((&record["certified"], &record["alloc_bytes"]), (&true.into(), &0.into()), "{record}");
        }
        // Both answers are that of the same data.
        let [elsa, math] = [0, 1].map(|i| records[i]["rel_l2"].as_f64().unwrap());
        assert!(elsa > 0.0 && elsa < 1e-6 && math > 0.0 && math < 1e-6, "{shape}: {elsa} {math}");
    }
    let causal = |i: usize| (all[i]["causal"].clone(), all[i]["window"].clone());
    assert_eq!(causal(0), (Value::Null, Value::Null));
    assert_eq!(causal(14), ("bottom-right".into(), Value::Null));
    assert_eq!(causal(16), ("top-left".into(), vec![9, -1].into()));
    assert_eq!(all[16]["windows"], Value::Null);
    let grid = serde_json::json!({ "picture": [8, 12], "size": [4, 4], "shift": [1, 1] });
    assert_eq!(all[18]["windows"], grid);

    let shape = "1,2,9,33,8,kv=1,causal,mask=padding";
    let output = elsa(&["bench", "--seconds", "0.01", "--shape", shape, "--shape", "1,1,4,4,4"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.lines().skip(2).map(|line| line.split(' ').next().unwrap()).eq([shape, "1,1,4,4,4"]),
        "{text}"
    );
}

#[test]
fn bench_measures_one_method_when_asked() {
    let output = elsa(&["bench", "--json", "--seconds", "0.01", "--method", "elsa", "--shape", "1,1,4,4,4"]);
    let all = lines(&output.stdout);
    assert_eq!((all.len(), &all[0]["method"], &all[0]["speedup_vs_math"]), (1, &"elsa".into(), &Value::Null));
}

#[test]
fn bench_refuses_nonsense() {
    for [flag, value, part] in [
        ["--shape", "1,2,3,4", "D: missing"],
        ["--shape", "1,0,3,4,5", "H: '0'"],
        ["--shape", "1,4,3,4,5,kv=3", "kv: '3'"],
        ["--shape", "1,2,3,4,5,mask=flot", "mask: 'flot'"],
        ["--shape", "3,2,16,16,8,swin=8x8", "swin: 3 sequences"],
        [
            "--shape",
            "1,1,4000000000,4000000000,64,mask=bool",
            "[1, 1, 4000000000, 4000000000] cannot be indexed",
        ],
        ["--seconds", "-1", "seconds"],
        ["--heads", "0", "from 1"],
        ["--dtype", "f64", "bf16"],
    ] {
        let output = elsa(&["bench", flag, value]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.contains(flag) && text.contains(part) && text.contains("allowed"), "{text}");
    }
}

#[test]
fn a_shape_beyond_all_memory_is_an_error() {
    // A thousand terabytes of keys: counted without overflow, and refused by the system.
    let output = elsa(&["bench", "--shape", "1,1,1,4000000000000,64"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(3), 1), "{text}");
    assert!(text.contains("memory") && text.contains("shape"), "{text}");
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
    let bench = ["bench", "--shape", "1,1,64,64,64", "--seconds", "0.01", "--json"];
    let text = |name: &str, args: &[&str]| {
        let output = common::elsa_with(args, &[("ELSA_BACKEND", name)]);
        let words = [output.stdout, output.stderr].map(|x| String::from_utf8(x).unwrap());
        (output.status.code(), words.concat())
    };
    let (status, said) = text("scalar", &bench);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.lines().all(|line| line.contains("\"backend\":\"scalar\"")), "{said}");
    let absent = if cfg!(target_arch = "aarch64") { "avx512" } else { "neon" };
    for name in [absent, "abacus"] {
        let (status, said) = text(name, &bench);
        assert_eq!(status, Some(2), "{name}: {said}");
        assert!(said.contains(name) && said.contains("allowed") && said.lines().count() == 1, "{said}");
    }
    // A device that no machine has: the CPU computes and reports it, or the call fails.
    let elsewhere = [&bench[..], &["--device", "4096"]].concat();
    let (status, said) = text("cuda", &elsewhere);
    assert!(status == Some(0) && said.contains("the CPU computes") && !said.contains("\"cuda\""), "{said}");
    let (status, said) = text("cuda", &[&elsewhere[..], &["--fallback", "fail"]].concat());
    assert!(matches!(status, Some(2 | 3)) && said.contains("--backend: cuda cannot be used"), "{said}");
    // A flag goes before the environment.
    let (status, said) = text(absent, &[&bench[..], &["--backend", "scalar"]].concat());
    assert_eq!(status, Some(0), "{said}");
}
