//! Tests messages about wrong command lines, about flags without an effect, and about an output that cannot be printed.
//! Also runs the examples in the help.

use crate::common::{self, Desk, elsa, elsa_with, emulated, noise, npy, said};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};

/// Requires exit status 2, nothing on standard output, and one line that contains every part of `words`. Bars separate
/// the parts.
fn wrong<S: AsRef<OsStr> + std::fmt::Debug>(args: &[S], words: &str) {
    let output = elsa(args);
    let text = said(&output);
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{args:?}: {text}");
    assert!(output.stdout.is_empty() && text.starts_with("elsa: "), "{args:?}: {text}");
    for word in words.split('|') {
        assert!(text.contains(word), "{args:?}: '{word}' is missing in: {text}");
    }
}

fn wrong_line(line: &str, words: &str) {
    wrong(&line.split_whitespace().collect::<Vec<_>>(), words);
}

#[test]
fn what_was_probably_meant_is_named() {
    for (line, words) in [
        ("run --causal top-left", "top-left: unexpected|did you mean --causal=top-left?"),
        ("run --causal --q a.npy top-left", "top-left: unexpected|allowed: what elsa run --help lists"),
        ("run causal", "causal: unexpected|did you mean --causal?"),
        ("run -causal", "-causal: unexpected|did you mean --causal?"),
        ("bench --jsn", "--jsn: unexpected|did you mean --json?"),
        ("bench --out y.npy", "--out: unexpected|a flag of elsa demo, run|tune; allowed: what elsa bench"),
        ("--json info", "--json: unexpected argument before the command|allowed: elsa COMMAND"),
        (
            "frob",
            "command: 'frob'|allowed: demo, run, merge, backward, linear, verify, bench, info, warmup, tune, listen, onnx, help",
        ),
        ("benhc", "command: 'benhc'|did you mean bench?"),
        ("version", "command: 'version'|did you mean --version?"),
        ("help frob", "command: 'frob'|allowed: demo, run, merge, backward, linear, verify"),
        ("run --layout bhn", "--layout: 'bhn'; allowed: bhnd, bnhd, bnc; did you mean bhnd?"),
        ("bench --block -64", "--block: '-64'; allowed: 64, 128, 256"),
        ("bench --json=yes", "--json: 'yes'; allowed: --json without a value"),
        ("run --scale", "--scale: no value; allowed: --scale <X>"),
        ("run --q a.npy --q b.npy", "--q: given twice; allowed: once"),
        ("verify --scenario short", "--scenario: |short|allowed: "),
        ("verify --scenario stress --scale 2", "--scenario: given with --scale; allowed: one of the two"),
    ] {
        wrong_line(line, words);
    }
}

#[test]
fn everything_that_is_missing_is_named_at_once() {
    wrong_line(
        "run",
        "--q|--k|--v|--out|: missing; allowed: elsa run --q <FILE>|FILE is path.npy, path.npz#name or",
    );
    wrong_line("run --k k.npy --out y.npy", "--q, --v: missing");
    wrong_line(
        "run --q q.npy --k k.npy --v v.npy --quorum 7 --state-out s.npz",
        "--task: missing; allowed: I/N",
    );
    wrong_line(
        "backward --q q.npy --k k.npy --v v.npy --d-out d.npy --quorum=7 --shares-out s.npz",
        "--task: missing; allowed: I/N",
    );
    wrong_line("verify", "--q|: missing");
    wrong_line("verify --q q.npy", "--k, --v: missing|or elsa verify --scenario");
    let text = said(&elsa(&["run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]));
    assert!(text.starts_with("elsa: --out: missing"), "{text}");
}

#[test]
fn text_that_is_not_utf8_is_named_by_its_flag() {
    let bad = OsStr::from_bytes(b"\xff.npy");
    let arg = OsStr::new;
    wrong(
        &[arg("run"), arg("--q"), arg("q.npy"), arg("--k"), bad],
        "--k: '|.npy' is not UTF-8; allowed: UTF-8",
    );
    wrong(&[arg("run"), OsStr::from_bytes(b"--v=\xff.npy")], "--v: '|is not UTF-8");
    // The path of the archive of states may contain any bytes, but the value of the next flag must be UTF-8.
    let archive = OsStr::from_bytes(b"\xff.npz");
    wrong(&[arg("run"), arg("--state-out"), archive, arg("--mask"), bad], "--mask: '|is not UTF-8");
    wrong(&[bad], "'|.npy'|allowed");
}

#[test]
fn help_is_a_command_too() {
    for (args, same) in [(&["help"][..], &["--help"][..]), (&["help", "run"], &["run", "--help"])] {
        let [output, same] = [args, same].map(elsa);
        assert!(output.status.success() && !output.stdout.is_empty(), "{args:?}");
        assert_eq!(output.stdout, same.stdout, "{args:?}");
    }
    let text = String::from_utf8(elsa(&["help"]).stdout).unwrap();
    for word in ["ELSA_LOG", "ELSA_BACKEND", "ELSA_TUNED", "141"] {
        assert!(text.contains(word), "{word} is missing in {text}");
    }
}

#[test]
fn a_variable_has_its_name_in_the_message() {
    let output = elsa_with(&["verify", "--scenario", "stress"], &[("ELSA_BACKEND", "foo")]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.starts_with("elsa: ELSA_BACKEND: 'foo'; allowed: auto, scalar, neon"), "{text}");
    let absent = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    let text = said(&elsa_with(&["verify", "--scenario", "stress"], &[("ELSA_BACKEND", absent)]));
    assert!(text.starts_with(&format!("elsa: ELSA_BACKEND: {absent} is absent; allowed here: ")), "{text}");
    let output = elsa_with(&["info"], &[("ELSA_LOG", "verbose")]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("ELSA_LOG: 'verbose'; allowed: off, error, warn"), "{}", said(&output));
}

/// Checks that the limits in the help are those of the library.
#[test]
fn limits_in_the_help_are_those_that_hold() {
    let help = String::from_utf8(elsa(&["bench", "--help"]).stdout).unwrap();
    let refused = said(&elsa(&["bench", "--threads", "100000000"]));
    let threads = refused.split_once("allowed: ").unwrap().1.trim();
    assert!(
        threads.starts_with("1 to ") && help.contains(&format!("of the CPU, {threads} ")),
        "{refused}{help}"
    );
    let block = elsa_runtime::PlanOptions::default().block;
    assert!(help.contains(&format!("Keys of a block on the CPU [default: {block}]")), "{help}");
}

#[test]
fn flags_that_nothing_heeds_are_refused() {
    let shape = "--shape 1,1,4,4,4 --seconds 0.01";
    for flag in ["--half-scores", "--tensor-cores allow", "--device 0", "--fallback fail"] {
        let name = flag.split(' ').next().unwrap();
        let words = format!("{name}: given with --backend scalar; allowed: with --backend cuda or auto");
        for verb in
            [format!("bench {shape}"), "verify --scenario stress".into(), "warmup --shape 1,1,4,4,4".into()]
        {
            wrong_line(&format!("{verb} --backend scalar {flag}"), &words);
        }
    }
    wrong_line(&format!("bench --heads 2 {shape}"), "--heads|--shape|allowed: one of the two");
    for flag in ["--dtype f16", "--budget 1MiB", "--block 64", "--half-scores", "--tensor-cores off"] {
        let name = flag.split(' ').next().unwrap();
        wrong_line(
            &format!("warmup {flag}"),
            &format!("{name}: given without --shape; allowed: with --shape"),
        );
    }
    // If the environment names the CPU, the call runs as requested, unless it needs a GPU.
    let cpu = |flag: &str| {
        let line = format!("bench {shape} {flag}");
        elsa_with(&line.split_whitespace().collect::<Vec<_>>(), &[("ELSA_BACKEND", "scalar")])
    };
    wrong_line(&format!("bench {shape} --tensor-cores yes"), "off|allow|always|f16");
    assert!(!said(&cpu("--tensor-cores off")).contains("has no effect"));
    for flag in ["--half-scores", "--tensor-cores always", "--device 0"] {
        let output = cpu(flag);
        let name = flag.split(' ').next().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 5)), "{}", said(&output));
        assert!(said(&output).contains(&format!("{name} has no effect: the back end is scalar")), "{flag}");
    }
    let output = cpu("--fallback fail");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("--fallback: fail, and the back end is scalar; allowed: cpu, or a GPU"));
    assert!(!said(&cpu("")).contains("has no effect"), "{}", said(&cpu("")));
}

#[test]
fn a_budget_counts_for_the_methods_that_are_measured() {
    // The budget is too small for the scores of 256 keys, but large enough for the scores of one block.
    let bench = |flags: &str| {
        let line = format!(
            "bench --backend scalar --json --seconds 0.01 --shape 1,1,256,256,16 --budget 96KiB {flags}"
        );
        elsa(&line.split_whitespace().collect::<Vec<_>>())
    };
    for (flags, warns) in [("--method elsa", false), ("", true)] {
        let output = bench(flags);
        let rows = common::cells(&output.stdout);
        assert!(matches!(output.status.code(), Some(0 | 5)), "{flags}: {}", said(&output));
        assert!(rows.len() == 1 && rows[0]["method"] == "elsa", "{flags}: {rows:?}");
        assert_eq!(said(&output).contains("--budget has no room for math"), warns, "{}", said(&output));
    }
    for flags in ["--method math", "--method both"] {
        let output = bench(flags);
        assert_eq!(output.status.code(), Some(2), "{flags}: {}", said(&output));
        let text = said(&output);
        assert!(
            text.contains("--budget: 98304 bytes; allowed: at least ") && text.contains("the method math"),
            "{text}"
        );
    }
}

#[test]
fn warmup_of_the_cpu_says_that_nothing_needs_loading() {
    let text = String::from_utf8(elsa(&["warmup", "--backend", "scalar"]).stdout).unwrap();
    assert!(text.contains("loaded    nothing: "), "{text}");
}

/// Command lines with short output: one per command, and the help.
const PRINTING: [&str; 8] = [
    "run --q @q.npy --k @q.npy --v @q.npy --out @y.npy --json",
    "verify --q @q.npy --k @q.npy --v @q.npy",
    "bench --shape 1,1,4,4,4 --seconds 0.01",
    "info",
    "warmup --backend scalar",
    "help",
    "help run",
    "--version",
];

/// Runs the shell script `script`, in which `$0` and `$@` are the tool and its arguments.
fn by_shell(desk: &Desk, script: &str, line: &str) -> Output {
    Command::new("sh").args(["-c", script]).args(common::tool()).args(desk.words(line)).output().unwrap()
}

#[test]
fn an_output_that_cannot_be_printed_to_is_told_alike_by_all_commands() {
    let desk = Desk::new();
    desk.f32("q.npy", &[4, 4], &noise(1, 16));
    let lines = if emulated() { &PRINTING[3..] } else { &PRINTING[..] };
    for line in lines {
        // Other programs may disturb a benchmark, which then ends with status 5.
        let done = |output: &Output| {
            output.status.success() || line.starts_with("bench") && output.status.code() == Some(5)
        };
        let full = by_shell(&desk, "\"$0\" \"$@\" > /dev/full", line);
        let text = said(&full);
        assert_eq!((full.status.code(), text.lines().count()), (Some(3), 1), "{line}: {text}");
        assert!(text.starts_with("elsa: standard output: "), "{line}: {text}");

        // An emulator's own files may take the place of a closed standard output.
        let nowhere = if emulated() { "\"$0\" \"$@\" > /dev/null" } else { "\"$0\" \"$@\" >&-" };
        let closed = by_shell(&desk, nowhere, line);
        assert!(done(&closed), "{line}: {}", said(&closed));

        let silent = by_shell(&desk, "\"$0\" \"$@\" > /dev/null 2> /dev/full", line);
        assert!(done(&silent), "{line}");

        // The reader of this pipe is gone before the tool starts.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let tool = common::tool();
        let mut command = Command::new(&tool[0]);
        command.args(&tool[1..]).args(desk.words(line)).stdout(writer).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(141), ""), "{line}");
    }
    // A wrong request has its exit status even if standard output or standard error fails.
    for script in ["\"$0\" \"$@\" > /dev/full", "\"$0\" \"$@\" 2> /dev/full", "\"$0\" \"$@\" 2>&-"] {
        assert_eq!(by_shell(&desk, script, "frob").status.code(), Some(2), "{script}");
    }
    assert!(File::open(desk.path("y.npy")).is_ok() || emulated());
}

#[test]
fn links_that_lead_to_themselves_are_wrong_requests() {
    let desk = Desk::new();
    desk.f32("q.npy", &[4, 4], &noise(1, 16));
    std::os::unix::fs::symlink(desk.path("loop.npy"), desk.path("loop.npy")).unwrap();
    for (line, flag) in [
        ("run --q @q.npy --k @loop.npy --v @q.npy --out @y.npy", "--k"),
        ("run --q @q.npy --k @q.npy --v @q.npy --out @y.npy --kv-lens @loop.npy", "--kv-lens"),
        ("run --q @q.npy --k @q.npy --v @loop.npy/v.npy --out @y.npy", "--v"),
        ("run --q @q.npy --k @q.npy --v @q.npy --out @loop.npy", "--out"),
        ("verify --q @loop.npy --k @q.npy --v @q.npy", "--q"),
    ] {
        desk.refuses(line, &[&format!("{flag}: "), "loop.npy"]);
    }
}

#[test]
fn examples_of_the_help_run() {
    let desk = Desk::new();
    let (b, h, n, d) = (2, 12, 40, 8);
    for name in ["q", "k", "v"] {
        desk.f32(&format!("{name}.npy"), &[b, h, n, d], &noise(1, b * h * n * d));
        desk.f32(&format!("new-{name}.npy"), &[b, h, 3, d], &noise(2, b * h * 3 * d));
        desk.f32(&format!("w{name}.npy"), &[8, h, 49, d], &noise(5, 8 * h * 49 * d));
    }
    desk.f32("table.npy", &[169, h], &noise(6, 169 * h));
    let padding: Vec<bool> = (0..b * n).map(|i| i % n < 30).collect();
    desk.bool("padding.npy", &[b, 1, 1, n], &padding);
    desk.f32("packed.npy", &[n, h, d], &noise(3, n * h * d));
    desk.i64("bounds.npy", &[0, 11, n as i64]);
    let data = noise(4, b * n * h * d);
    let (shape, bytes): (_, &[u8]) = ([b, n, h * d], bytemuck::cast_slice(&data));
    let tensors = ["q", "k", "v"].map(|name| (name, safetensors::Dtype::F32, &shape[..], bytes));
    desk.safetensors("in.safetensors", &tensors);

    let help = String::from_utf8(elsa(&["run", "--help"]).stdout).unwrap().replace("\\\n", "");
    let examples: Vec<&str> = help.lines().filter(|line| line.starts_with("  elsa run ")).collect();
    assert!(examples.len() >= 5, "{help}");
    let script = "cd \"$FOLDER\" && elsa() { \"$0\" \"$@\"; } && ";
    for example in examples {
        let before = desk.list();
        let tool = common::tool();
        let script = script.replace("\"$0\" \"$@\"", &format!("{} \"$@\"", tool.join(" "))) + example;
        let output = Command::new("sh").args(["-c", &script]).env("FOLDER", desk.0.path()).output().unwrap();
        assert!(output.status.success(), "{example}: {}", said(&output));
        // Every output of the example must exist.
        let after = desk.list();
        let words: Vec<&str> = example.split_whitespace().collect();
        for flag in ["--out", "--lse-out", "--present-k", "--present-v"] {
            if let Some(at) = words.iter().position(|word| *word == flag) {
                let name = words[at + 1].split('#').next().unwrap();
                assert!(after.iter().any(|file| file == name), "{example}: {name} is missing");
                assert!(!before.iter().any(|file| file == name), "{example}: {name} was there");
                std::fs::remove_file(desk.path(name)).unwrap();
            }
        }
    }
}

#[test]
fn types_are_those_of_the_argument() {
    let desk = Desk::new();
    for name in ["q", "k", "v"] {
        desk.f32(&format!("{name}.npy"), &[2, 4, 5, 8], &noise(1, 320));
    }
    let complex = npy("<c16", "False", &[2], &[0; 32]);
    std::fs::write(desk.path("c.npy"), &complex).unwrap();
    desk.npy("h.npy", "<f2", &[2, 4, 5, 8], &[0; 640]);
    desk.i64("lens.npy", &[5, 5]);
    let files = "--q @q.npy --k @k.npy --v @v.npy --out @y.npy";
    for (line, words, without) in [
        (
            "--q @c.npy --k @k.npy --v @v.npy --out @y.npy".to_owned(),
            "--q: |c16|allowed: f32, f16",
            "bool|i64|i32",
        ),
        (
            format!("{files} --mask @c.npy"),
            "--mask: |c16|allowed: bool, u8, i32, i64, f32, f16, f64",
            "c8|c16",
        ),
        (format!("{files} --kv-lens @c.npy"), "--kv-lens: |c16|allowed: i64, i32", "bool|f16"),
        (
            "--q @q.npy --k @h.npy --v @v.npy --out @y.npy".to_owned(),
            "--k: type f16; allowed: f32|h.npy: f16 [2, 4, 5, 8]|q.npy: f32 [2, 4, 5, 8]",
            "bool",
        ),
    ] {
        let text = desk.refuses(&format!("run {line}"), &words.split('|').collect::<Vec<_>>());
        let allowed = text.split_once("allowed: ").unwrap().1;
        assert!(without.split('|').all(|word| !allowed.contains(word)), "{without}: {text}");
    }
}

#[test]
fn shapes_are_told_whole_with_their_files() {
    let desk = Desk::new();
    for name in ["q", "k", "v"] {
        desk.f32(&format!("{name}.npy"), &[2, 4, 5, 8], &noise(1, 320));
    }
    desk.f32("k4.npy", &[2, 4, 10, 4], &noise(1, 320));
    desk.f32("h3.npy", &[2, 3, 5, 8], &noise(1, 240));
    desk.f32("r1.npy", &[320], &noise(1, 320));
    desk.f32("past.npy", &[2, 4, 3, 8], &noise(1, 192));
    desk.i64("lens.npy", &[5, 5, 5]);
    desk.npy("lens2.npy", "<i8", &[2, 1], &[0; 16]);
    for (name, shape) in [("pad", &[2, 5][..]), ("pad8", &[2, 8]), ("each", &[2, 5, 5]), ("odd", &[3, 5])] {
        desk.bool(&format!("{name}.npy"), shape, &vec![true; shape.iter().product()]);
    }
    let run = "run --out @y.npy --q @q.npy --v @v.npy";
    let advice = "has the shape [2, 1, ";
    for (line, words, without) in [
        (
            format!("{run} --k @k4.npy"),
            "--k: head size 4; allowed: 8, as q|k4.npy: f32 [2, 4, 10, 4]|q.npy: f32 [2, 4, 5, 8]",
            advice,
        ),
        (
            format!("{run} --k @h3.npy"),
            "--v: heads 4; allowed: 3|v.npy: f32 [2, 4, 5, 8]|h3.npy: f32 [2, 3, 5, 8]",
            advice,
        ),
        (format!("{run} --k @r1.npy"), "--k: rank 1|r1.npy: f32 [320]", advice),
        (
            format!("{run} --k @k.npy --heads 3"),
            "--heads: 3; allowed: 4, as q has|q.npy: f32 [2, 4, 5, 8]",
            advice,
        ),
        (
            format!("{run} --k @k.npy --kv-lens @lens.npy"),
            "--kv-lens: entries 3; allowed: 2|lens.npy: i64 [3]|q.npy: f32 [2, 4, 5, 8]",
            advice,
        ),
        (
            format!("{run} --k @k.npy --kv-lens @lens2.npy"),
            "--kv-lens: |lens2.npy|rank 2, shape [2, 1]; allowed: 1",
            advice,
        ),
        (
            format!("{run} --k @k.npy --mask @pad.npy"),
            "--mask: queries 2; allowed: 1 or 5|has the shape [2, 1, 1, 5]|pad.npy: bool [2, 5]|scores: [2, 4, 5, 5]",
            "|",
        ),
        (
            format!("{run} --k @k.npy --past-k @past.npy --past-v @past.npy --mask @pad8.npy"),
            "has the shape [2, 1, 1, 8]|scores: [2, 4, 5, 8]",
            "|",
        ),
        (
            format!("{run} --k @k.npy --mask @each.npy"),
            "--mask: heads 2|has the shape [2, 1, 5, 5]|each.npy: bool [2, 5, 5]",
            "|",
        ),
        (
            format!("{run} --k @k.npy --mask @odd.npy"),
            "--mask: queries 3|odd.npy: bool [3, 5]|scores: [2, 4, 5, 5]",
            advice,
        ),
    ] {
        let text = desk.refuses(&line, &words.split('|').collect::<Vec<_>>());
        assert!(!text.contains(without), "{line}: '{without}' in: {text}");
    }
    let packed = "run --q @past.npy --k @past.npy --v @past.npy --out @y.npy --layout bhnd";
    let text = said(&desk.call(&format!("{packed} --cu-seqlens-q @lens.npy --cu-seqlens-k @lens.npy")));
    assert!(text.contains("--layout: bhnd with --cu-seqlens-q; allowed: bnhd"), "{text}");
}
