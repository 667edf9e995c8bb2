//! Tests `elsa tune`, `--tuned`, and the report of `elsa info` on a tuned file.

use crate::common::{self, Desk, elsa_with};
use std::process::Output;

const SHAPES: [&str; 4] = ["--shape", "1,1,40,200,32", "--shape", "2,1,40,200,32"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn tune(out: &str, more: &[&str]) -> Output {
    let args = [&["tune", "--seconds", "0.01", "--out", out][..], more].concat();
    elsa_with(&args, &[])
}

fn info(variables: &[(&str, &str)]) -> serde_json::Value {
    common::lines(&elsa_with(&["info", "--json"], variables).stdout).remove(0)
}

/// Returns `true` if the tool finds a GPU on this machine.
fn has_gpu() -> bool {
    let info = info(&[]);
    let backends = info["backends"].as_array().unwrap();
    backends.iter().any(|backend| backend["name"] == "cuda" && backend["present"] == true)
}

#[test]
fn without_a_gpu_there_is_none_to_tune() {
    let desk = Desk::new();
    let path = desk.path("tuned.toml");
    let output = tune(path.to_str().unwrap(), &[&SHAPES[..], &["--backend", "cuda"]].concat());
    let said = text(&output.stderr);
    if has_gpu() {
        assert_eq!((output.status.code(), path.exists()), (Some(0), true), "{said}");
    } else {
        assert_eq!((output.status.code(), path.exists()), (Some(3), false), "{said}");
        assert!(said.lines().count() == 1 && said.contains("cuda"), "{said}");
    }
}

#[test]
fn wrong_requests_are_refused_before_anything_is_measured() {
    for (args, flag) in [
        (&["--shape", "1,1,0"][..], "--shape"),
        (&["--seconds", "-1"], "--seconds"),
        (&["--heads", "0"], "--heads"),
        (&["--heads", "2", "--shape", "1,1,4,4,4"], "--heads"),
        (&["--backend", "gpu"], "--backend"),
    ] {
        let output = tune("/dev/null/tuned.toml", args);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(flag), "{said}");
    }
}

/// Tunes the CPU, with a file in `desk`, and checks that a run uses it. No decision may win by more than noise, so the
/// test then writes a file in which one has won.
#[test]
fn decisions_about_a_cpu_are_measured_and_used() {
    let desk = Desk::new();
    let path = desk.path("tuned.toml");
    let name = path.to_str().unwrap();
    let info = info(&[]);
    let cpu = |backend: &&serde_json::Value| backend["name"] != "cuda" && backend["present"] == true;
    let set = info["backends"].as_array().unwrap().iter().find(cpu).unwrap()["name"].as_str().unwrap();
    let of_cpu = ["--backend", set, "--threads", "2", "--json"];
    let output = tune(name, &[&SHAPES[..], &of_cpu].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = common::lines(&output.stdout);
    assert_eq!(lines.len(), 3, "{lines:?}");
    for row in &lines[..2] {
        let number = |field: &str| row[field].as_f64().unwrap();
        assert!(number("candidates") >= 3.0 && number("ms") > 0.0 && number("chooser_ms") > 0.0, "{row}");
        assert!([64.0, 128.0, 256.0].contains(&number("block")) && number("chooser_block") == 64.0, "{row}");
        assert!(number("group") >= 1.0 && number("workers") <= 2.0 && row["splits"].is_null(), "{row}");
    }
    assert_eq!((&lines[2]["what"], &lines[2]["device"]), (&"tuned".into(), &set.into()));
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written.contains(&format!("[cpu]\nset = \"{set}\"\n")), "{written}");

    let (head, _) = written.split_once("library").unwrap();
    let library = format!("library = \"{}\"\n", env!("CARGO_PKG_VERSION"));
    let class = "dtype = \"f32\"\nheads = 1\nkv_heads = 1\nqueries = 40\nkeys = 200\nhead_dim = 32\nvalue_dim = 32\n\
        windows = 1\nchanges = []\nhalf_scores = false\n";
    let kernel = &lines[0]["kernel"];
    let won = format!(
        "{head}{library}[[shape]]\n{class}kernel = {kernel}\nblock = 256\ngroup = 1\nworkers = 1\n[end]\nshapes = 1\n"
    );
    std::fs::write(&path, &won).unwrap();
    for (file, shape) in [("q", [1, 1, 40, 32]), ("k", [1, 1, 200, 32]), ("v", [1, 1, 200, 32])] {
        desk.f32(&format!("{file}.npy"), &shape, &common::noise(7, shape.iter().product()));
    }
    let line = format!("run --q @q.npy --k @k.npy --v @v.npy --out @y.npy --backend {set} --threads 2");
    let bits = |flags: &str| {
        let said = common::said(&desk.call(&format!("{line} {flags}")));
        assert!(!said.contains("warning"), "{said}");
        std::fs::read(desk.path("y.npy")).unwrap()
    };
    let tuned = format!("--tuned={name}");
    assert!(bits(&tuned) == bits("--block 256") && bits("") != bits("--block 256"));
    assert_eq!(bits(&format!("{tuned} --block 128")), bits("--block 128"));

    // A file of another processor is ignored with a line.
    std::fs::write(&path, won.replace("\ncores = ", "\ncores = 9")).unwrap();
    let output = desk.call(&format!("{line} {tuned}"));
    let said = common::said(&output);
    assert!(output.status.success() && said.contains("a number of cores of"), "{said}");
    assert_eq!(std::fs::read(desk.path("y.npy")).unwrap(), bits(""));
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn winners_are_kept_and_used() {
    let desk = Desk::new();
    let path = desk.path("tuned.toml");
    let name = path.to_str().unwrap();
    let output = tune(name, &[&SHAPES[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = common::lines(&output.stdout);
    assert_eq!(lines.len(), 3);
    for row in &lines[..2] {
        assert_eq!(row["what"], "tune");
        let number = |field: &str| row[field].as_f64().unwrap();
        assert!(number("candidates") > 3.0 && number("ms") > 0.0 && number("chooser_ms") > 0.0, "{row}");
        assert!((number("ratio") - number("chooser_ms") / number("ms")).abs() < 1e-9, "{row}");
        // Both batch sizes have the same winner.
        assert_eq!((&row["kernel"], &row["splits"]), (&lines[0]["kernel"], &lines[0]["splits"]));
    }
    assert_eq!((&lines[2]["what"], &lines[2]["shapes"]), (&"tuned".into(), &1.into()));
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written.contains(&format!("kernel = {}", lines[0]["kernel"])), "{written}");

    let used = &info(&[("ELSA_TUNED", name)])["tuned"];
    assert_eq!((&used["used"], &used["shapes"], &used["file"]), (&true.into(), &1.into(), &name.into()));
    assert_eq!(info(&[("ELSA_TUNED", "")])["tuned"], serde_json::Value::Null);
    let shown = text(&elsa_with(&["info"], &[("ELSA_TUNED", name)]).stdout);
    assert!(shown.contains(&format!("tuned     1 shape of {name}")), "{shown}");

    // The test replaces the kernel in the file by one that the chooser would not choose. If the tool loads that kernel,
    // it has used the file.
    let warmup = |tuned: &[&str]| {
        let args = [&["warmup", "--shape", "1,1,40,200,32", "--json"][..], tuned].concat();
        let output = elsa_with(&args, &[]);
        assert_eq!(output.status.code(), Some(0));
        let loaded = common::lines(&output.stdout).remove(0)["loaded"].to_string();
        (loaded, text(&output.stderr))
    };
    let kernel = lines[0]["kernel"].as_str().unwrap();
    let wide = "attention_f32_d128_q64k64__sm53_exp2_approx";
    let splits = format!("splits = {}", lines[0]["splits"]);
    std::fs::write(&path, written.replace(kernel, wide).replace(&splits, "splits = 1")).unwrap();
    let (loaded, said) = warmup(&[&format!("--tuned={name}")]);
    assert!(loaded.contains(wide) && !loaded.contains("merge") && said.is_empty(), "{loaded} {said}");
    let (chosen, _) = warmup(&[]);
    assert!(!chosen.contains(wide), "{chosen}");

    // For a file that was cut short, the tool prints one line, and the chooser decides.
    std::fs::write(&path, &written[..written.len() / 2]).unwrap();
    let (loaded, said) = warmup(&[&format!("--tuned={name}")]);
    assert_eq!(loaded.contains(wide), chosen.contains(wide));
    assert!(said.lines().count() == 1 && said.contains("not a tuned file"), "{said}");
    let unused = &info(&[("ELSA_TUNED", name)])["tuned"];
    assert!(unused["used"] == false && unused["reason"].is_string(), "{unused}");
}

#[test]
#[ignore = "needs the stand-in driver: cargo xtask test --only host"]
fn the_file_lies_where_it_is_documented() {
    let desk = Desk::new();
    let folder = desk.path("config");
    let config = folder.to_str().unwrap();
    let args = ["tune", "--seconds", "0.01", "--shape", "1,1,40,70,32", "--dtype", "f16"];
    let variables = [("XDG_CONFIG_HOME", config), ("ELSA_TUNED", "")];
    let output = elsa_with(&args, &variables);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let (header, file) = ("chooser -> winner", format!("1 shape in {config}/elsa/tuned.toml"));
    assert!(shown.contains(header) && shown.contains("1,1,40,70,32") && shown.contains(&file), "{shown}");
    assert!(folder.join("elsa/tuned.toml").is_file());
    let run = |variables: &[(&str, &str)]| {
        let output = elsa_with(&["warmup", "--shape", "1,1,40,70,32", "--tuned"], variables);
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(run(&variables), (Some(0), String::new()));
    let elsewhere = desk.path("none");
    let (code, said) = run(&[("XDG_CONFIG_HOME", elsewhere.to_str().unwrap()), ("ELSA_TUNED", "")]);
    assert!(code == Some(0) && said.lines().count() == 1 && said.contains("cannot be read"), "{said}");
    // Keys of packed sequences are not divided, so there is nothing to tune.
    let packed = tune(desk.path("x").to_str().unwrap(), &["--shape", "2,1,64,64,32,packed=8"]);
    assert!(packed.status.code() == Some(2) && !desk.path("x").exists(), "{}", text(&packed.stderr));
}
