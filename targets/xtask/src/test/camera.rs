//! Runs the stage `camera`: `examples/cpp-camera`, built with the folders of `cargo xtask build`, must give PyTorch's
//! answer for every held-out picture, in each format, on the CPU, on the stand-in driver and on an emulated board. A
//! picture must take no copy between host and device and no allocation: the program counts them, and so does the log of
//! the stand-in driver.

use super::cargo::with_standin;
use super::dist::dist;
use super::vision::{MODEL, RECORD, Record, compare, count, for_board, make, program, record, refusals};
use crate::boards::check;
use crate::boards::target::HOST;
use crate::files;
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Output, Run, Tree};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const EXAMPLE: &str = "examples/cpp-camera";
const PROGRAM: &str = "elsa-camera";
const TESTS: &str = "camera-tests";
/// Stand-in for cuBLAS, which takes the stand-in driver's memory.
const CUBLAS: &str = "camera-cublas";
/// Products of a picture: four linear maps in each of three blocks, and the scores.
const PRODUCTS: u64 = 13;
/// Folder with declarations in place of NVIDIA's headers for surfaces.
const HEADERS: &str = "tests/capi/foreign";
/// CMake arguments for both sanitizers, unoptimised to compile quickly.
const SANITIZED: [&str; 2] = [
    "-DCMAKE_CXX_FLAGS=-Werror -g -fsanitize=address,undefined -fno-sanitize-recover=all",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O0",
];
/// Calls of the driver that a picture takes.
const OF_A_PICTURE: [&str; 2] = ["cuGraphLaunch", "cuStreamSynchronize"];
/// Prefixes of calls that a recording must not contain.
const COPIES: [&str; 3] = ["cuMemcpy", "cuMemAlloc", "cuMemHostAlloc"];

/// Requests that the program must reject, each with a text that the error message must contain.
const REFUSED: [(&str, &str); 11] = [
    ("--frames 3", "--model"),
    ("--model Cargo.toml", "model: Cargo.toml"),
    ("--model x --frames 0", "--frames"),
    ("--model x --format yuv", "--format"),
    ("--model x --size 640", "--size"),
    ("--model x --size 640x8193", "--size"),
    ("--model x --fallback gpu", "--fallback"),
    ("--model x --products blas", "--products"),
    ("--model x --bogus", "--bogus"),
    ("--model x --video /dev/video0 a.png", "--video"),
    ("--model MODEL no-such.png", "no-such.png"),
];

/// Runs the stage `camera`.
pub fn camera(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

/// Returns the command that classifies pictures; it prints a JSON line for each file, and a summary.
fn ask(tree: &Tree, front: &str, dir: &Path, rest: &str) -> Run {
    program(tree, front, dir, PROGRAM).args(&format!("--json --model {MODEL} {rest}")).machine()
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::programs(tree, &["cmake", "make", "g++"])?;
    setup::file(tree, "/usr/include/stb/stb_image.h", "libstb-dev")?;
    setup::file(tree, "/usr/include/nlohmann/json.hpp", "nlohmann-json3-dev")?;
    let pictures = setup::digits(tree)?;
    let record = record(&tree.root.join(RECORD))?;
    let driver = standin::build(tree, Variant::Plain)?;
    let here = dist(tree, ran, HOST)?;
    let home = tree.target.join("camera");
    let oldest = setup::oldest_cmake(tree)?;
    let headers = format!("-DCAMERA_HEADERS={}", tree.root.join(HEADERS).display());

    let native = home.join(HOST);
    make(
        tree,
        EXAMPLE,
        &[PROGRAM, TESTS, CUBLAS],
        oldest.as_deref(),
        &native,
        &here,
        std::slice::from_ref(&headers),
    )?;
    count(ran, with_standin(program(tree, "", &native, TESTS).arg("cuda"), &driver));
    let sanitized = home.join("sanitized");
    let mut more: Vec<String> = SANITIZED.iter().map(|flag| (*flag).to_owned()).collect();
    more.push(headers);
    make(tree, EXAMPLE, &[TESTS], oldest.as_deref(), &sanitized, &here, &more)?;
    count(ran, with_standin(program(tree, "", &sanitized, TESTS).arg("cuda"), &driver));

    for format in ["rgb", "rgba", "nv12"] {
        let out = ask(tree, "", &native, &format!("--backend scalar --format {format}")).arg(&pictures).run();
        ran.note(&format!("{format}, the CPU"), as_wanted(&record, &out, "scalar", 0));
        let run = ask(tree, "", &native, &format!("--backend cuda --fallback fail --format {format}"))
            .arg(&pictures);
        let out = with_standin(run, &driver).run();
        ran.note(&format!("{format}, stand-in driver"), as_wanted(&record, &out, "cuda", 0));
    }
    let libraries = format!("{}:{}", driver.display(), native.display());
    let run = ask(tree, "", &native, "--backend cuda --fallback fail --products cublas").arg(&pictures);
    let out = run.env("LD_LIBRARY_PATH", libraries).env("ELSA_STANDIN", &driver).run();
    ran.note("products by a stand-in for cuBLAS", as_wanted(&record, &out, "cuda", PRODUCTS));
    let out = ask(tree, "", &native, "--backend scalar --frames 100 --size 1921x1081").run();
    ran.note("a synthetic camera", summary(&out).and_then(|all| without_copies(&all, 0)));
    ran.note("calls of the driver", calls_of_pictures(tree, &native, &driver, &home));
    failures(tree, ran, &native, &driver);
    let requests = |rest: &str| program(tree, "", &native, PROGRAM).args(&rest.replace("MODEL", MODEL));
    refusals(ran, requests, &REFUSED);

    setup::board(tree)?;
    let board = setup::reference()?;
    let there = dist(tree, ran, &board.name)?;
    let cross = home.join(&board.name);
    make(tree, EXAMPLE, &[PROGRAM, TESTS], None, &cross, &there, &for_board(tree, &board.name, &there)?)?;
    let bytes = files::bytes(&cross.join(PROGRAM))?;
    ran.note("symbol versions for the board", check::symbol_versions(&bytes, board.build.glibc));
    ran.note("libraries for the board", check::libraries(&bytes));
    let emulator = setup::emulator();
    count(ran, program(tree, &emulator, &cross, TESTS));
    let out = ask(tree, &emulator, &cross, "--backend neon").arg(&pictures).run();
    ran.note("emulated board", as_wanted(&record, &out, "neon", 0));
    Ok(())
}

/// Parses the summary, the last line of the program's output.
fn summary(out: &Output) -> Result<Value, String> {
    let text = out.text("the program")?;
    let last = text.lines().last().ok_or("printed nothing")?;
    serde_json::from_str(last).map_err(|error| format!("no JSON: {error}"))
}

/// Checks the answers of all held-out pictures, and what they took. `others` is the number of nodes of the graph that
/// are no kernels.
fn as_wanted(record: &Record, out: &Output, backend: &str, others: u64) -> Result<String, String> {
    let told = compare(record, out, Some(backend))?;
    let taken = without_copies(&summary(out)?, others)?;
    Ok(format!("{told}; {taken}"))
}

/// Checks that a picture took no copy and no allocation. On a GPU, a picture is a graph of kernels and `others` other
/// nodes.
fn without_copies(all: &Value, others: u64) -> Result<String, String> {
    let float = |name: &str| all[name].as_f64().unwrap_or(f64::NAN);
    let number = |name: &str| all[name].as_u64().unwrap_or(u64::MAX);
    let kernels = number("graph_kernels");
    let alone = number("graph_copies") == 0 && number("graph_others") == others;
    let on_gpu = all["backend"] == "cuda";
    let good = float("copies_per_frame") == 0.0
        && float("allocations_per_frame") == 0.0
        && alone
        && number("pictures") > 0
        && number("fallbacks") == 0
        && on_gpu == (kernels > 0)
        && on_gpu == (all["device"] != "");
    if good {
        Ok(format!("{} pictures, a graph of {kernels} kernels, 0 copies, 0 allocations", all["pictures"]))
    } else {
        Err(all.to_string())
    }
}

/// Checks the calls of the driver. Further pictures must add only the calls of [`OF_A_PICTURE`], and the recording of
/// the graph must contain kernels, and none of [`COPIES`].
fn calls_of_pictures(tree: &Tree, dir: &Path, driver: &Path, home: &Path) -> Result<String, String> {
    let calls = |frames: u64| -> Result<Vec<String>, String> {
        let log = home.join(format!("calls-{frames}"));
        files::write(&log, "")?;
        let run = ask(tree, "", dir, &format!("--backend cuda --fallback fail --frames {frames}"));
        with_standin(run, driver).env("ELSA_STANDIN_LOG", &log).run().text("the program")?;
        Ok(files::text(&log)?
            .lines()
            .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
            .collect())
    };
    let (few, many) = (calls(10)?, calls(30)?);
    let mut added = BTreeMap::<&str, i64>::new();
    for (names, step) in [(&many, 1), (&few, -1)] {
        names.iter().for_each(|name| *added.entry(name).or_default() += step);
    }
    added.retain(|_, count| *count != 0);
    let wanted: BTreeMap<&str, i64> = OF_A_PICTURE.iter().map(|name| (*name, 20)).collect();
    if added != wanted {
        return Err(format!("20 pictures add {added:?}; allowed: {wanted:?}"));
    }
    let at =
        |name: &str| few.iter().position(|call| call == name).ok_or_else(|| format!("no call of {name}"));
    let recorded = &few[at("cuStreamBeginCapture_v2")?..at("cuStreamEndCapture")?];
    if let Some(call) = recorded.iter().find(|call| COPIES.iter().any(|begin| call.starts_with(begin))) {
        return Err(format!("the recording has a call of {call}"));
    }
    let kernels = recorded.iter().filter(|call| *call == "cuLaunchKernel").count();
    if kernels == 0 {
        return Err("the recording has no kernel".to_owned());
    }
    Ok(format!("{kernels} kernels are recorded; a picture takes {}", OF_A_PICTURE.join(" and ")))
}

/// Runs with a GPU that is absent, that refuses memory or that is lost, with and without a fallback.
fn failures(tree: &Tree, ran: &mut Ran, dir: &Path, driver: &Path) {
    for (what, variable, value, names) in [
        ("a GPU that is absent", "ELSA_STANDIN_DEVICE", "none", "CUDA_ERROR_NO_DEVICE"),
        ("no page-locked memory", "ELSA_STANDIN_FAIL", "cuMemHostAlloc:1+:2", "CUDA_ERROR_OUT_OF_MEMORY"),
        ("a GPU that is lost", "ELSA_STANDIN_FAIL", "cuGraphLaunch:20+:719", "CUDA_ERROR_LAUNCH_FAILED"),
    ] {
        let gpu = |rest: &str| {
            let run = ask(tree, "", dir, &format!("--frames 60 --backend cuda {rest}")).quiet();
            run.env("LD_LIBRARY_PATH", driver).env("ELSA_STANDIN", driver).env(variable, value)
        };
        let out = gpu("").run();
        let seen = summary(&out).and_then(|all| {
            let instead = all["fallbacks"].as_u64().unwrap_or(0) > 0 && all["backend"] != "cuda";
            let once = out.stderr.lines().count() == 1 && out.stderr.contains(names);
            if instead && once && all["pictures"] == 60 {
                Ok(format!("{} of 60 pictures by the CPU; {}", all["fallbacks"], out.stderr.trim()))
            } else {
                Err(format!("{all}{}", out.stderr))
            }
        });
        ran.note(what, seen);
        let out = gpu("--fallback fail").run();
        let found = format!("{}: {}", out.how, out.stderr.trim());
        let good = out.code == Some(3) && out.stderr.contains(names);
        ran.note(&format!("{what}, and no fallback"), if good { Ok(found) } else { Err(found) });
    }
}
