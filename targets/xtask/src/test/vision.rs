//! Runs the stage `vision`: `examples/cpp-vision`, built with the folders of `cargo xtask build`, must give PyTorch's answer
//! for every held-out picture: here, on the stand-in driver, and on an emulated board.
//!
//! Classes must be equal. Scores may differ by rounding: PyTorch and the example each make at most [`ROUNDINGS`] roundings
//! on the longest path from a pixel to a score. Roundings of random sign add up like the steps of a random walk, so K
//! roundings exceed `lambda sqrt(K) u` times the largest score with a probability of at most `2 exp(-lambda^2 / 2)` (Higham
//! and Mary 2019, "A new approach to probabilistic rounding error analysis", theorem 2.4). The normalisation after a layer
//! counters its amplification of errors.

use super::dist::dist;
use crate::boards::check;
use crate::boards::target::HOST;
use crate::files;
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Output, Run, Tree};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;

const EXAMPLE: &str = "examples/cpp-vision";
const PROGRAMS: [&str; 2] = ["elsa-vision", "vision-tests"];
pub(super) const MODEL: &str = "examples/cpp-vision/model/digits.safetensors";
/// PyTorch's answers for the held-out pictures.
pub(super) const RECORD: &str = "examples/cpp-vision/model/heldout.json";
/// Roundings on the longest path: in each of three blocks two normalisations (2 x 2 x 48), the linear maps (3 x 48 + 96),
/// attention (12 + 2 x 17), and some for GELU and the sums of the residual stream. The remaining terms are for the patches and
/// the head.
const ROUNDINGS: f64 = 3.0 * (192.0 + 240.0 + 46.0 + 10.0) + 4.0 + 96.0 + 48.0;
/// Allowed deviation of a score, as a number of standard deviations.
const LAMBDA: f64 = 4.0;
/// Rounding error of the recorded scores: half a unit in their last place.
const RECORDED: f64 = 5e-6;
/// Minimum accuracy of the network.
const LEAST: f64 = 0.97;
/// Maximum size of the weights in bytes.
const MOST_BYTES: u64 = 400_000;

/// Runs the stage `vision`.
pub fn vision(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

/// Answer of PyTorch for one picture.
struct Wanted {
    index: u64,
    class: u64,
    scores: Vec<f64>,
}

/// Content of [`RECORD`].
pub(super) struct Record {
    pictures: Vec<Wanted>,
    accuracy: f64,
    tolerance: f64,
}

fn json(path: &Path) -> Result<Value, String> {
    serde_json::from_str(&files::text(path)?).map_err(|error| format!("{}: {error}", path.display()))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn numbers(value: &Value) -> Vec<f64> {
    list(value).iter().filter_map(Value::as_f64).collect()
}

/// Reads a record.
pub(super) fn record(path: &Path) -> Result<Record, String> {
    let value = json(path)?;
    let (indices, classes) = (list(&value["indices"]), list(&value["classes"]));
    let scores = list(&value["scores"]);
    if indices.is_empty() || indices.len() != classes.len() || indices.len() != scores.len() {
        return Err(format!("{}: lists of different lengths", path.display()));
    }
    let mut pictures = Vec::new();
    for ((index, class), scores) in indices.iter().zip(classes).zip(scores) {
        let (Some(index), Some(class)) = (index.as_u64(), class.as_u64()) else {
            return Err(format!("{}: an index or a class that is no number", path.display()));
        };
        pictures.push(Wanted { index, class, scores: numbers(scores) });
    }
    let largest = pictures.iter().flat_map(|p| &p.scores).fold(0.0, |m, s| larger(m, s.abs()));
    let unit = f64::from(f32::EPSILON) / 2.0;
    let tolerance = 2.0 * LAMBDA * ROUNDINGS.sqrt() * unit * largest + RECORDED;
    Ok(Record { pictures, accuracy: value["accuracy"].as_f64().unwrap_or_default(), tolerance })
}

/// Parses the program's report: a line for each picture, and a summary.
fn lines(out: &Output) -> Result<(Vec<Value>, Value), String> {
    let lines: Result<Vec<Value>, _> = out.text("the program")?.lines().map(serde_json::from_str).collect();
    let mut lines: Vec<Value> = lines.map_err(|error| format!("no JSON: {error}"))?;
    let all = lines.pop().ok_or("printed nothing")?;
    Ok((lines, all))
}

/// Returns the line of the picture whose file name, LABEL-INDEX.png or LABEL-INDEX.jpg, has this index.
fn line_of(lines: &[Value], index: u64) -> Option<&Value> {
    let ends = [format!("-{index:04}.png"), format!("-{index:04}.jpg")];
    let named = |file: &str| ends.iter().any(|end| file.ends_with(end));
    lines.iter().find(|line| line["file"].as_str().is_some_and(named))
}

/// Counts the pictures whose reported class equals the recorded class.
fn same_classes(record: &Record, lines: &[Value]) -> usize {
    let same = |wanted: &&Wanted| {
        line_of(lines, wanted.index).is_some_and(|line| line["class"].as_u64() == Some(wanted.class))
    };
    record.pictures.iter().filter(same).count()
}

/// Returns the larger of two numbers; NaN if either is NaN.
fn larger(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// Returns whether `error` is at most `allowed`; `false` if either is NaN.
fn within(error: f64, allowed: f64) -> bool {
    error <= allowed
}

/// Compares the program's report with the record. If `backend` is given, the report must name this back end.
pub(super) fn compare(record: &Record, out: &Output, backend: Option<&str>) -> Result<String, String> {
    let (lines, all) = lines(out)?;
    if lines.len() != record.pictures.len() {
        return Err(format!("{} pictures; allowed: {}", lines.len(), record.pictures.len()));
    }
    let mut worst = 0.0f64;
    for wanted in &record.pictures {
        let line =
            line_of(&lines, wanted.index).ok_or_else(|| format!("picture {}: no line", wanted.index))?;
        if line["class"].as_u64() != Some(wanted.class) {
            return Err(format!(
                "picture {}: class {}; PyTorch: {}",
                wanted.index, line["class"], wanted.class
            ));
        }
        if backend.is_some_and(|name| line["backend"] != name) || line["fallback"] != false {
            let (by, fallback) = (&line["backend"], &line["fallback"]);
            return Err(format!("picture {}: computed by {by}, fallback {fallback}", wanted.index));
        }
        let scores = numbers(&line["scores"]);
        if scores.len() != wanted.scores.len() {
            return Err(format!("picture {}: {} scores", wanted.index, scores.len()));
        }
        for (score, wanted) in scores.iter().zip(&wanted.scores) {
            worst = larger(worst, (score - wanted).abs());
        }
    }
    if !within(worst, record.tolerance) {
        return Err(format!("scores differ by {worst:.1e}; allowed: {:.1e}", record.tolerance));
    }
    let accuracy = all["accuracy"].as_f64().unwrap_or_default();
    // PyTorch's accuracy is a quotient of the same whole numbers, computed in f32.
    if !within((accuracy - record.accuracy).abs(), f64::from(f32::EPSILON)) {
        return Err(format!("accuracy {accuracy}; PyTorch: {}", record.accuracy));
    }
    Ok(format!(
        "{} pictures as PyTorch, accuracy {accuracy:.4}, scores within {worst:.1e} of {:.1e}, by {}",
        lines.len(),
        record.tolerance,
        all["backend"].as_str().unwrap_or_default()
    ))
}

/// Writes a changed copy of the weights. With these weights, the network ignores the output of attention.
fn without_attention(from: &Path, to: &Path) -> Result<(), String> {
    let bad = || format!("{}: no safetensors file", from.display());
    let mut bytes = files::bytes(from)?;
    let length: [u8; 8] = bytes.get(..8).and_then(|b| b.try_into().ok()).ok_or_else(bad)?;
    let start = 8 + usize::try_from(u64::from_le_bytes(length)).map_err(|_| bad())?;
    let header: Value = serde_json::from_slice(bytes.get(8..start).ok_or_else(bad)?).map_err(|_| bad())?;
    let mut cleared = 0;
    for (_, tensor) in header.as_object().ok_or_else(bad)?.iter().filter(|(n, _)| n.ends_with("proj.weight"))
    {
        let offset = |i: usize| tensor["data_offsets"][i].as_u64().and_then(|n| usize::try_from(n).ok());
        let (begin, end) = offset(0).zip(offset(1)).ok_or_else(bad)?;
        bytes.get_mut(start + begin..start + end).ok_or_else(bad)?.fill(0);
        cleared += 1;
    }
    if cleared == 0 {
        return Err(format!("{}: no proj.weight", from.display()));
    }
    files::write(to, bytes)
}

/// Configures `example` in `dir` with the folder `dist`, and builds its `targets`. Uses the CMake in a given folder, or the
/// system's CMake.
pub(super) fn make(
    tree: &Tree,
    example: &str,
    targets: &[&str],
    cmake: Option<&Path>,
    dir: &Path,
    dist: &Path,
    more: &[String],
) -> Result<(), String> {
    files::folder(dir)?;
    let cmake = cmake.map_or_else(|| "cmake".into(), |folder| folder.join("cmake"));
    let mut run = Run::new(tree, "")
        .arg(&cmake)
        .arg(tree.root.join(example))
        .args("-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=-Werror")
        .arg(format!("-Delsa_DIR={}", dist.join("lib/cmake/elsa").display()))
        .dir(dir);
    for define in more {
        run = run.arg(define);
    }
    run.machine().run().text("configuring")?;
    // CMake before 3.15 builds one target at a time.
    for target in targets {
        let run = Run::new(tree, "").arg(&cmake).arg("--build").arg(dir).arg("--target").arg(target);
        run.args("-- -j2").run().text("building")?;
    }
    Ok(())
}

/// Returns the CMake arguments that build for a board with the folder `dist`.
pub(super) fn for_board(tree: &Tree, name: &str, dist: &Path) -> Result<[String; 2], String> {
    let zig = setup::zig(tree)?.join("python");
    let toolchain = dist.join(format!("share/{name}/toolchain.cmake"));
    Ok([
        format!("-DCMAKE_TOOLCHAIN_FILE={}", toolchain.display()),
        format!("-DELSA_ZIG={};-m;ziglang", zig.display()),
    ])
}

/// Returns the command that runs the program `name` in `dir`. `front` is an emulator with its arguments, or empty.
pub(super) fn program(tree: &Tree, front: &str, dir: &Path, name: &str) -> Run {
    Run::new(tree, front).arg(dir.join(name)).limit(Duration::from_secs(60))
}

/// Runs the unit tests of the example, and counts their checks.
fn parts(tree: &Tree, ran: &mut Ran, front: &str, dir: &Path) {
    count(ran, program(tree, front, dir, "vision-tests").arg(MODEL).arg(dir));
}

/// Runs a program whose last line is `N passed, M failed`.
pub(super) fn count(ran: &mut Ran, run: Run) {
    let line = run.line();
    let out = run.run();
    let count = |word: &str| {
        let last = out.stdout.lines().last().unwrap_or_default();
        let before = last.split(", ").find_map(|part| part.strip_suffix(word))?;
        before.trim().parse::<u64>().ok()
    };
    ran.add(&line, out.ok, count("passed").unwrap_or(0), count("failed").unwrap_or(0));
}

/// Returns the command that classifies all pictures.
fn classify(tree: &Tree, front: &str, dir: &Path, model: &Path, pictures: &Path, rest: &str) -> Run {
    let run = program(tree, front, dir, "elsa-vision").args("--json --model").arg(model).args(rest);
    run.arg(pictures).machine()
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::programs(tree, &["cmake", "make", "g++"])?;
    setup::file(tree, "/usr/include/stb/stb_image.h", "libstb-dev")?;
    setup::file(tree, "/usr/include/nlohmann/json.hpp", "nlohmann-json3-dev")?;
    let pictures = setup::digits(tree)?;
    let home = tree.target.join("vision");
    let record = record(&tree.root.join(RECORD))?;
    let model = tree.root.join(MODEL);
    let bytes = fs::metadata(&model).map_err(|error| format!("{}: {error}", model.display()))?.len();
    let found = format!("{bytes} bytes, accuracy {:.4} by PyTorch", record.accuracy);
    let good = bytes <= MOST_BYTES && record.accuracy >= LEAST;
    ran.note("the model", if good { Ok(found) } else { Err(found) });

    let native = home.join(HOST);
    let here = dist(tree, ran, HOST)?;
    make(tree, EXAMPLE, &PROGRAMS, setup::oldest_cmake(tree)?.as_deref(), &native, &here, &[])?;
    parts(tree, ran, "", &native);
    for backend in ["auto", "scalar"] {
        let out = classify(tree, "", &native, &model, &pictures, &format!("--backend {backend}")).run();
        let by = (backend != "auto").then_some(backend);
        ran.note(&format!("backend {backend}"), compare(&record, &out, by));
    }
    let folder = standin::build(tree, Variant::Plain)?;
    let out = classify(tree, "", &native, &model, &pictures, "--backend cuda --fallback fail")
        .env("LD_LIBRARY_PATH", &folder)
        .env("ELSA_STANDIN", &folder)
        .run();
    ran.note("backend cuda, stand-in driver", compare(&record, &out, Some("cuda")));
    let broken = home.join("without-attention.safetensors");
    without_attention(&model, &broken)?;
    let out = classify(tree, "", &native, &broken, &pictures, "").run();
    ran.note("without attention", differs(&record, &out));
    let there = pictures.display().to_string();
    let ask = |rest: &str| {
        program(tree, "", &native, "elsa-vision")
            .args(&rest.replace("MODEL", MODEL).replace("FOLDER", &there))
    };
    refusals(ran, ask, &REFUSED);
    failures(tree, ran, &native, &pictures, &folder);
    let photographs = setup::digits_as(tree, "jpg")?;
    let out = classify(tree, "", &native, &model, &photographs, "").run();
    ran.note("JPEG", as_png(&record, &out));
    ran.note("JPEG, truncated", truncated(tree, &native, &photographs, &home.join("truncated")));

    let blas = home.join("blas");
    let header = format!("/usr/include/{}-linux-gnu/cblas.h", std::env::consts::ARCH);
    setup::file(tree, &header, "libopenblas-dev")?;
    make(tree, EXAMPLE, &PROGRAMS, None, &blas, &here, &["-DVISION_BLAS=ON".to_owned()])?;
    let needs = Run::new(tree, "ldd").arg(blas.join("elsa-vision")).quiet().run();
    let linked = needs.stdout.contains("blas");
    ran.note("a BLAS is linked", if linked { Ok("yes".to_owned()) } else { Err(needs.stdout) });
    parts(tree, ran, "", &blas);
    let out = classify(tree, "", &blas, &model, &pictures, "").run();
    ran.note("linear maps by a BLAS", compare(&record, &out, None));

    setup::board(tree)?;
    let board = setup::reference()?;
    let cross = home.join(&board.name);
    let there = dist(tree, ran, &board.name)?;
    make(tree, EXAMPLE, &PROGRAMS, None, &cross, &there, &for_board(tree, &board.name, &there)?)?;
    let path = cross.join("elsa-vision");
    let program = files::bytes(&path)?;
    ran.note("symbol versions for the board", check::symbol_versions(&program, board.build.glibc));
    ran.note("libraries for the board", check::libraries(&program));
    let emulator = setup::emulator();
    parts(tree, ran, &emulator, &cross);
    let out = classify(tree, &emulator, &cross, &model, &pictures, "--backend neon").run();
    ran.note("emulated board, backend neon", compare(&record, &out, Some("neon")));
    Ok(())
}

/// Requires that some classes differ from the record; otherwise attention would not affect the comparison.
fn differs(record: &Record, out: &Output) -> Result<String, String> {
    let (lines, _) = lines(out)?;
    let same = same_classes(record, &lines);
    if lines.len() == record.pictures.len() && same < record.pictures.len() {
        Ok(format!("{same} of {} classes are the same", record.pictures.len()))
    } else {
        Err(format!("{same} classes of {} pictures are the same; allowed: fewer", lines.len()))
    }
}

/// Checks that every picture has the same class as its PNG version.
fn as_png(record: &Record, out: &Output) -> Result<String, String> {
    let (lines, _) = lines(out)?;
    let (same, all) = (same_classes(record, &lines), record.pictures.len());
    let found = format!("{same} of {all} classes as PNG");
    if same == all && lines.len() == all { Ok(found) } else { Err(found) }
}

/// Checks that every proper prefix of a JPEG file is rejected with the file's name, and that the complete file is not.
fn truncated(tree: &Tree, dir: &Path, pictures: &Path, folder: &Path) -> Result<String, String> {
    let first = fs::read_dir(pictures).map_err(files::at(pictures))?.flatten().next();
    let path = first.ok_or_else(|| format!("{}: empty", pictures.display()))?.path();
    let bytes = files::bytes(&path)?;
    for length in 0..=bytes.len() {
        files::write(&folder.join(format!("{length:05}.jpg")), &bytes[..length])?;
    }
    let run = program(tree, "", dir, "elsa-vision").args("--json --model").arg(MODEL).arg(folder);
    let out = run.quiet().run();
    let last = out.stdout.lines().last().unwrap_or_default();
    let all: Value = serde_json::from_str(last).map_err(|error| format!("no JSON: {error}: {}", out.how))?;
    let told = (0..bytes.len()).filter(|length| out.stderr.contains(&format!("{length:05}.jpg: "))).count();
    let found = format!("{}, {told} of {} beginnings reported, {last}", out.how, bytes.len());
    let good = out.code == Some(2) && told == bytes.len() && all["broken"] == told && all["pictures"] == 1;
    if good { Ok(found) } else { Err(found) }
}

/// Provokes failures that the request does not cause: failures of the device and of the system. Also provokes a GPU failure
/// after which the CPU is allowed to continue.
fn failures(tree: &Tree, ran: &mut Ran, dir: &Path, pictures: &Path, standin: &Path) {
    let ask = |rest: &str| {
        let run =
            Run::new(tree, "").arg(dir.join("elsa-vision")).args(&format!("--model {MODEL}")).args(rest);
        run.env("LD_LIBRARY_PATH", standin)
            .env("ELSA_STANDIN", standin)
            .limit(Duration::from_secs(60))
            .quiet()
    };
    let fail = "--backend cuda --fallback fail";
    let lost = "cuLaunchKernel:5+:719";
    let full = Run::new(tree, "sh -c").arg("exec \"$@\" > /dev/full").arg("sh").arg(dir.join("elsa-vision"));
    let cases = [
        ("no GPU", 3, "cuda", ask(fail).arg(pictures).env("ELSA_STANDIN_DEVICE", "none")),
        (
            "a GPU that is lost",
            3,
            "CUDA_ERROR_LAUNCH_FAILED",
            ask(fail).arg(pictures).env("ELSA_STANDIN_FAIL", lost),
        ),
        (
            "the CPU instead",
            0,
            "CUDA_ERROR_LAUNCH_FAILED",
            ask("--backend cuda").arg(pictures).env("ELSA_STANDIN_FAIL", lost),
        ),
        (
            "the CPU instead of no GPU",
            0,
            "CUDA_ERROR_NO_DEVICE",
            ask("--backend cuda").arg(pictures).env("ELSA_STANDIN_DEVICE", "none"),
        ),
        ("a full disk", 3, "standard output", full.args(&format!("--model {MODEL}")).arg(pictures).quiet()),
        // This file can be opened, but reading from it fails.
        ("a disk that fails", 3, "/proc/self/mem", ask("/proc/self/mem")),
    ];
    for (what, status, names, run) in cases {
        let out = run.run();
        let found = format!("{}: {}", out.how, out.stderr.lines().next().unwrap_or_default());
        let instead = out.stdout.lines().last().is_some_and(|line| line.contains("in place of the GPU"));
        // The reason of a fallback is reported once, regardless of the number of pictures.
        let once = status != 0 || out.stderr.lines().count() == 1;
        let good = out.code == Some(status) && out.stderr.contains(names) && instead == (status == 0) && once;
        ran.note(what, if good { Ok(found) } else { Err(found) });
    }
}

/// Runs requests that a program must reject, each with a text that the message must contain.
pub(super) fn refusals(ran: &mut Ran, ask: impl Fn(&str) -> Run, requests: &[(&str, &str)]) {
    for (rest, names) in requests {
        let out = ask(rest).quiet().run();
        let found = format!("{}: {}", out.how, out.stderr.lines().next().unwrap_or_default());
        let good = out.code == Some(2) && out.stderr.contains(names);
        ran.note(&format!("refused, {names}"), if good { Ok(found) } else { Err(found) });
    }
}

/// Requests that the program must reject; `MODEL` stands for the model, `FOLDER` for the pictures.
const REFUSED: [(&str, &str); 10] = [
    ("FOLDER", "--model"),
    ("--model MODEL", "PICTURE"),
    ("--model MODEL no-such.png", "no-such.png"),
    ("--model MODEL --backend abacus FOLDER", "--backend"),
    ("--model MODEL --threads 0 FOLDER", "--threads"),
    ("--model MODEL --fallback gpu FOLDER", "--fallback"),
    ("--model MODEL --map m.png FOLDER", "--map"),
    ("--model Cargo.toml FOLDER", "model: Cargo.toml"),
    ("--model MODEL Cargo.toml", "Cargo.toml"),
    ("--model MODEL --json --bogus FOLDER", "--bogus"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_no_agreement() {
        assert!(
            [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NAN, f64::NAN)].iter().all(|(a, b)| !within(*a, *b))
        );
        assert!(within(1.0, 1.0) && !within(1.1, 1.0));
        assert!([1.0, f64::NAN, 2.0].into_iter().fold(0.0, larger).is_nan());
        assert_eq!([1.0, 3.0, 2.0].into_iter().fold(0.0, larger), 3.0);
    }
}
