//! Runs the stage `examples`: builds the C++ programs `examples/cpp-realtime` and `examples/cpp-snippets` with the folders
//! of `cargo xtask build`, and runs them here, on the stand-in driver, and on an emulated board.

use super::dist::dist;
use super::vision::{MODEL, count, for_board, make, program, refusals};
use crate::boards::check;
use crate::boards::target::HOST;
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Output, Run, Tree};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const REALTIME: &str = "examples/cpp-realtime";
const PROGRAMS: [&str; 2] = ["elsa-realtime", "realtime-tests"];
const SNIPPETS: &str = "examples/cpp-snippets";
/// Snippets that need no library except libelsa.
const PLAIN: [&str; 5] = ["growing-cache", "fixed-cache", "chunks", "own-threads", "real-time"];
/// Snippets that need one more library each.
const WITH_OTHERS: [&str; 2] = ["opencv", "eigen"];

/// CMake arguments that leave out [`WITH_OTHERS`].
const ALONE: [&str; 2] = ["-DSNIPPETS_OPENCV=OFF", "-DSNIPPETS_EIGEN=OFF"];

/// Arguments that `cpp-realtime` must reject, each with a text that the error message must contain.
const REFUSED: [(&str, &str); 10] = [
    ("--rate 50", "--model"),
    ("--model Cargo.toml", "model: Cargo.toml"),
    ("--model x --rate nan", "--rate"),
    ("--model x --rate", "--rate"),
    ("--model x --frames 0", "--frames"),
    ("--model x --priority 100", "--priority"),
    ("--model x --threads 99999", "--threads"),
    ("--model x --fallback gpu", "--fallback"),
    ("--model x --bogus", "--bogus"),
    ("--model x no-such.png", "no-such.png"),
];

/// Runs the stage `examples`.
pub fn examples(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::programs(tree, &["cmake", "make", "g++"])?;
    setup::file(tree, "/usr/include/stb/stb_image.h", "libstb-dev")?;
    setup::file(tree, "/usr/include/nlohmann/json.hpp", "nlohmann-json3-dev")?;
    setup::file(tree, "/usr/include/opencv4/opencv2/core.hpp", "libopencv-core-dev")?;
    setup::file(tree, "/usr/include/eigen3/Eigen/Core", "libeigen3-dev")?;
    let pictures = setup::digits(tree)?;
    let here = dist(tree, ran, HOST)?;
    let (realtime, snippets) = (tree.target.join("realtime"), tree.target.join("snippets"));
    let driver = standin::build(tree, Variant::Plain)?;

    let oldest = setup::oldest_cmake(tree)?;
    let native = realtime.join(HOST);
    make(tree, REALTIME, &PROGRAMS, oldest.as_deref(), &native, &here, &[])?;
    count(ran, program(tree, "", &native, "realtime-tests"));
    loops(tree, ran, &native, &pictures, &driver);
    refusals(ran, |rest| program(tree, "", &native, "elsa-realtime").args(rest), &REFUSED);

    let native = snippets.join(HOST);
    make(tree, SNIPPETS, &WITH_OTHERS, oldest.as_deref(), &native, &here, &[])?;
    run_snippets(tree, ran, &WITH_OTHERS, &native, &driver);

    setup::board(tree)?;
    let board = setup::reference()?;
    let there = dist(tree, ran, &board.name)?;
    let emulator = setup::emulator();
    let mut defines = for_board(tree, &board.name, &there)?.to_vec();
    let cross = realtime.join(&board.name);
    make(tree, REALTIME, &PROGRAMS, None, &cross, &there, &defines)?;
    let path = cross.join("elsa-realtime");
    let bytes = crate::files::bytes(&path)?;
    ran.note("symbol versions for the board", check::symbol_versions(&bytes, board.build.glibc));
    ran.note("libraries for the board", check::libraries(&bytes));
    count(ran, program(tree, &emulator, &cross, "realtime-tests"));
    let out = asked(tree, &emulator, &cross, "--rate 20 --frames 40 --backend neon").arg(&pictures).run();
    ran.note("emulated board", summary(&out).and_then(|all| expect(&all, 40, "frames", "neon", false)));
    let cross = snippets.join(&board.name);
    defines.extend(ALONE.map(str::to_owned));
    make(tree, SNIPPETS, &PLAIN, None, &cross, &there, &defines)?;
    for name in PLAIN {
        let out = program(tree, &emulator, &cross, name).quiet().run();
        ran.note(&format!("{name}, emulated board"), says_ok(&out));
    }
    Ok(())
}

/// Runs the snippets of [`PLAIN`], built with the folder `dist`, as a part of the stage `host`.
pub fn snippets(tree: &Tree, ran: &mut Ran, dist: &Path, driver: &Path) -> Result<(), String> {
    let dir = tree.target.join("snippets/quick");
    make(tree, SNIPPETS, &PLAIN, None, &dir, dist, &ALONE.map(str::to_owned))?;
    run_snippets(tree, ran, &PLAIN, &dir, driver);
    Ok(())
}

/// Runs snippets on this machine, first without and then with the stand-in GPU.
fn run_snippets(tree: &Tree, ran: &mut Ran, names: &[&str], dir: &Path, driver: &Path) {
    for name in names {
        ran.note(name, says_ok(&program(tree, "", dir, name).quiet().run()));
        let run = program(tree, "", dir, name).env("LD_LIBRARY_PATH", driver);
        let out = run.env("ELSA_STANDIN", driver).env("ELSA_BACKEND", "cuda").quiet().run();
        ran.note(&format!("{name}, stand-in driver"), says_ok(&out));
    }
}

/// Checks that a snippet succeeded: it prints `ok` and its largest error.
fn says_ok(out: &Output) -> Result<String, String> {
    let found = out.stdout.lines().last().unwrap_or_default();
    if out.ok && found.starts_with("ok: ") {
        Ok(found.to_owned())
    } else {
        Err(format!("{}: {found}{}", out.how, out.stderr))
    }
}

/// Returns the command that runs the loop of `cpp-realtime`, which prints a summary at the end.
fn asked(tree: &Tree, front: &str, dir: &Path, rest: &str) -> Run {
    program(tree, front, dir, "elsa-realtime").args(&format!("--json --model {MODEL} {rest}")).quiet()
}

fn summary(out: &Output) -> Result<Value, String> {
    serde_json::from_str(&out.text("the loop")?).map_err(|error| format!("no JSON: {error}"))
}

/// Checks a summary: the run has the number of frames `frames`, or at least this number if a signal ended the run. The run
/// takes at least the time that follows from the rate, and each frame is counted in exactly one class.
fn expect(all: &Value, frames: u64, ended: &str, backend: &str, fallback: bool) -> Result<String, String> {
    let number = |name: &str| all[name].as_u64().unwrap_or(u64::MAX);
    let float = |name: &str| all[name].as_f64().unwrap_or(f64::NAN);
    let found = number("frames");
    let periods = (found + number("skipped_periods")) as f64;
    let classes: u64 = all["classes"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
    let checks = [
        ("frames", found != u64::MAX && found >= frames && (ended == "signal" || found == frames)),
        ("ended", all["ended"] == ended),
        ("backend", all["backend"] == backend || (backend.is_empty() && all["backend"] != "")),
        ("fallbacks", (number("fallbacks") == found) == fallback && (fallback || number("fallbacks") == 0)),
        ("classes", classes == found),
        ("seconds", float("seconds") >= (periods - 1.0) / float("rate_hz")),
        ("latencies", number("p50_us") <= number("p99_us") && number("p99_us") <= number("max_us")),
        ("misses", number("deadline_misses") <= found && number("max_us") > 0),
        ("accuracy", number("right") * 10 >= number("labelled") * 9),
    ];
    match checks.into_iter().find(|(_, good)| !good) {
        None => Ok(format!("{found} frames, p99 {} us, by {}", all["p99_us"], all["backend"])),
        Some((what, _)) => Err(format!("{what}: {all}")),
    }
}

/// Runs the loop on this machine: with pictures, without pictures, until a signal ends it, with a GPU that works,
/// without a GPU, and with a GPU that is lost.
fn loops(tree: &Tree, ran: &mut Ran, dir: &Path, pictures: &Path, driver: &Path) {
    let here = |rest: &str| asked(tree, "", dir, rest);
    let out = here("--rate 200 --frames 360 --backend scalar").arg(pictures).run();
    let seen = summary(&out).and_then(|all| {
        let told = expect(&all, 360, "frames", "scalar", false)?;
        if all["labelled"] == 360 && all["synthetic"] == false { Ok(told) } else { Err(all.to_string()) }
    });
    ran.note("pictures", seen);
    let out = here("--rate 200 --frames 100 --priority 10 --lock-memory --threads 2").run();
    let seen = summary(&out).and_then(|all| {
        let told = expect(&all, 100, "frames", "", false)?;
        // Only missing permissions are reported.
        let refused =
            [("--priority", all["priority"] != 10), ("--lock-memory", all["memory_locked"] == false)];
        let told_so = refused.iter().all(|(name, refused)| out.stderr.contains(name) == *refused);
        if told_so && all["synthetic"] == true { Ok(told) } else { Err(format!("{all}{}", out.stderr)) }
    });
    ran.note("synthetic frames, priority, memory", seen);
    for signal in ["INT", "TERM"] {
        let run = Run::new(tree, &format!("timeout --preserve-status -s {signal} 2"));
        let run = run.arg(dir.join("elsa-realtime")).args(&format!("--json --model {MODEL} --rate 100"));
        let out = run.limit(Duration::from_secs(30)).quiet().run();
        ran.note(
            &format!("ended by SIG{signal}"),
            summary(&out).and_then(|all| expect(&all, 20, "signal", "", false)),
        );
    }
    let gpu = |rest: &str| {
        let run = here(&format!("--rate 100 --frames 60 --backend cuda {rest}"));
        run.env("LD_LIBRARY_PATH", driver).env("ELSA_STANDIN", driver).limit(Duration::from_secs(60))
    };
    let out = gpu("--fallback fail").run();
    ran.note("stand-in driver", summary(&out).and_then(|all| expect(&all, 60, "frames", "cuda", false)));
    let lost = "cuLaunchKernel:40+:719";
    for (what, run, names) in [
        ("a GPU that is absent", gpu("").env("ELSA_STANDIN_DEVICE", "none"), "CUDA_ERROR_NO_DEVICE"),
        ("a GPU that is lost", gpu("").env("ELSA_STANDIN_FAIL", lost), "CUDA_ERROR_LAUNCH_FAILED"),
    ] {
        let out = run.run();
        let seen = summary(&out).and_then(|all| {
            let (frames, fallbacks) = (all["frames"].as_u64(), all["fallbacks"].as_u64().unwrap_or(0));
            let shown = out.stderr.lines().count() == 1 && out.stderr.contains(names);
            if frames == Some(60) && fallbacks > 0 && all["backend"] != "cuda" && shown {
                Ok(format!("{fallbacks} of 60 frames by the CPU; {}", out.stderr.trim()))
            } else {
                Err(format!("{all}{}", out.stderr))
            }
        });
        ran.note(what, seen);
    }
    let out = gpu("--fallback fail").env("ELSA_STANDIN_FAIL", lost).run();
    let good = out.code == Some(3) && out.stderr.contains("CUDA_ERROR_LAUNCH_FAILED");
    let found = format!("{}: {}", out.how, out.stderr.trim());
    ran.note("a GPU that is lost, and no fallback", if good { Ok(found) } else { Err(found) });
}
