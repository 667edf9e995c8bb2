//! The stage `cross`: what boards get is built, examined, linked against and run by emulation.

use super::{links, readme};
use crate::boards::library::Abi;
use crate::boards::target::Target;
use crate::boards::{bad, build, check, deploy};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::{Board, NAMES};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Files of every board's folder.
const HANDED_OUT: [&str; 5] = [
    "bin/elsa",
    "lib/libelsa_ort.so",
    "share/aarch64.cmake",
    "share/licences/LICENSE-MIT",
    "share/licences/THIRD-PARTY.txt",
];
/// Files of the C library among them.
const OF_LIBRARY: [&str; 9] = [
    "lib/libelsa.a",
    "lib/libelsa.so",
    "lib/cmake/elsa/elsaConfig.cmake",
    "lib/cmake/elsa/elsaConfigVersion.cmake",
    "lib/pkgconfig/elsa.pc",
    "lib/pkgconfig/elsa-shared.pc",
    "include/elsa.h",
    "include/elsa.hpp",
    "share/python/elsa.py",
];
/// Files of the board itself among them.
const OF_BOARD: [&str; 5] = ["board.md", "config.toml", "profile.toml", "required.txt", "toolchain.cmake"];

/// Arguments of the bench that the emulator runs: a decoding call and the short end of the grid.
const SHORT_GRID: &str = "bench --force --json --seconds 0.1 --shape 1,1,1,256,64 --shape 1,1,64,64,64 \
    --shape 1,1,100,100,64 --shape 1,1,144,144,64 --shape 1,1,196,196,64";
/// Lines that it prints: two methods for each shape.
const SHORT_GRID_LINES: usize = 10;

/// The stage `cross`.
pub fn cross(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::board(tree)?;
    for trial in bad::trials(tree)? {
        ran.note(trial.what, trial.fault.map_or_else(|| Ok("as it should be".to_owned()), Err));
    }
    let abi = Abi::read(tree)?;
    for name in NAMES {
        let target = Target::named(tree, name)?;
        ran.join(build::once(tree, &target)?);
        let of_board = OF_BOARD.map(|file| format!("share/{name}/{file}"));
        let files = HANDED_OUT.iter().chain(&OF_LIBRARY).map(|file| (*file).to_owned()).chain(of_board);
        let dist = target.dist(tree);
        let files = files.chain([format!("lib/{}", abi.soname()), format!("lib/{}", abi.file())]);
        let absent: Vec<String> = files.filter(|file| !dist.join(file).is_file()).collect();
        let found = if absent.is_empty() { Ok("complete".to_owned()) } else { Err(absent.join(", ")) };
        ran.note(&format!("{name}: files"), found);
    }
    let board = setup::reference()?;
    let dist = Target::named(tree, &board.name)?.dist(tree);
    consumer(tree, ran, &board, &dist)?;
    links::board(tree, ran, &board, &dist)?;
    readme::board(tree, ran, setup::oldest_cmake(tree)?.as_deref(), &setup::emulator())?;
    emulate(tree, ran, &board, &dist);
    Ok(())
}

/// Links a C program with the static library of the folder through its CMake package and toolchain file, checks what
/// that adds to its size, and runs it.
fn consumer(tree: &Tree, ran: &mut Ran, board: &Board, dist: &Path) -> Result<(), String> {
    setup::program(tree, "cmake", "cmake")?;
    setup::program(tree, "make", "make")?;
    let python = setup::zig(tree)?.join("python");
    let dir = tree.target.join("consumer");
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    let define = |name: &str, value: String| format!("-D{name}={value}");
    let out = Run::new(tree, "cmake -S targets/xtask/consumer -DCMAKE_BUILD_TYPE=Release -B")
        .arg(&dir)
        .arg(define(
            "CMAKE_TOOLCHAIN_FILE",
            dist.join(format!("share/{}/toolchain.cmake", board.name)).display().to_string(),
        ))
        .arg(define("ELSA_ZIG", format!("{};-m;ziglang", python.display())))
        .arg(define("elsa_DIR", dist.join("lib/cmake/elsa").display().to_string()))
        .machine()
        .run();
    out.text("the C consumer, configuring")?;
    let out = Run::new(tree, "cmake --build").arg(&dir).machine().run();
    out.text("the C consumer")?;
    let mut lengths = Vec::new();
    for name in ["with", "without"] {
        let stripped = dir.join(name).with_extension("stripped");
        build::strip(tree, &dir.join(name), &stripped, "--strip-all")?;
        lengths
            .push(fs::metadata(&stripped).map_err(|error| format!("{}: {error}", stripped.display()))?.len());
    }
    ran.note(
        "what libelsa.a adds to a stripped C program",
        check::size(lengths[0].saturating_sub(lengths[1]), check::ADDED),
    );
    let bytes = fs::read(dir.join("with")).map_err(|error| format!("{}: {error}", dir.display()))?;
    ran.note("symbol versions of the C program", check::symbol_versions(&bytes, board.build.glibc));
    ran.note("libraries of the C program", check::libraries(&bytes));
    let exceptions = check::Exceptions::read(tree)?;
    ran.note("instructions of the C program", check::instructions(tree, &dir.join("with"), &exceptions));
    let out = Run::new(tree, &setup::emulator()).arg(dir.join("with")).limit(Duration::from_secs(60)).run();
    let said = out.text("the C consumer, running");
    ran.note(
        "the C program",
        said.and_then(|said| if said.trim() == "ok" { Ok(said.trim().to_owned()) } else { Err(said) }),
    );
    Ok(())
}

/// Runs the binary that boards get on an emulated Cortex-A57.
fn emulate(tree: &Tree, ran: &mut Ran, board: &Board, dist: &Path) {
    let elsa = |rest: &str, seconds: u64| {
        let run = Run::new(tree, &setup::emulator()).arg(dist.join("bin/elsa")).args(rest);
        let out = run.limit(Duration::from_secs(seconds)).machine().run();
        // Rows that other programs disturbed are as correct as others.
        let disturbed = rest.starts_with("bench") && out.code == Some(deploy::UNCLEAN);
        if disturbed { Ok(out.stdout) } else { out.text(&format!("elsa {rest}")) }
    };
    let info = elsa("info --json", 30).and_then(|text| deploy::lines(&text));
    ran.note("elsa info, emulated", info.as_ref().map(|_| "done".to_owned()).map_err(Clone::clone));
    let verified = elsa("verify --scenario stress --json", 240).and_then(|text| deploy::lines(&text));
    let cases =
        |lines: &Vec<serde_json::Value>| match lines.iter().filter(|line| line["what"] == "verify").count() {
            0 => Err("no case".to_owned()),
            n => Ok(format!("{n} cases")),
        };
    ran.note("elsa verify, emulated", verified.as_ref().map_err(Clone::clone).and_then(cases));
    let measured = elsa(SHORT_GRID, 240).and_then(|text| deploy::rows(&text));
    let all = |lines: &Vec<serde_json::Value>| {
        let certified = lines.iter().filter(|line| line["certified"] == true).count();
        let found = format!("{certified} of {} answers certified", lines.len());
        if certified == SHORT_GRID_LINES {
            Ok(found)
        } else {
            Err(format!("{found}; allowed: {SHORT_GRID_LINES}"))
        }
    };
    ran.note("elsa bench, emulated", measured.as_ref().map_err(Clone::clone).and_then(all));
    // The GPU's kernels are looked for in the file: an emulator has no driver.
    let mut processor = board.clone();
    processor.required.retain(|required| matches!(required, elsa_targets::Required::Cpu(_)));
    let info = info.ok().and_then(|lines| lines.into_iter().next()).unwrap_or_default();
    let missing = deploy::missing(&processor, &info, &measured.unwrap_or_default());
    let found = match (missing.is_empty(), processor.required.len()) {
        (true, n) if n > 0 => Ok(format!("{n} ran")),
        (true, _) => Err("required.txt lists none".to_owned()),
        (false, _) => Err(missing.join(", ")),
    };
    ran.note("required kernels of the processor, emulated", found);
}
