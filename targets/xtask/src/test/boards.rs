//! Runs the stage `boards`: builds the files of the boards with link-time optimisation, and slices of the C library, examines the
//! files, links programs with them, and runs the programs in an emulator.

use super::capi;
use super::dist::dist;
use super::{links, readme, slices};
use crate::boards::library::Abi;
use crate::boards::{bad, outputs};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use elsa_targets::{Board, NAMES};
use std::path::Path;
use std::time::Duration;

/// Files in the folder of every board, in addition to [`OF_LIBRARY`] and [`OF_BOARD`].
const HANDED_OUT: [&str; 6] = [
    "bin/elsa",
    "lib/libelsa_ort.so",
    "share/aarch64.cmake",
    "share/licences/LICENSE-MIT",
    "share/licences/THIRD-PARTY.txt",
    "share/required.txt",
];
/// Files of the C library and of elsa.py in the folder of every board.
const OF_LIBRARY: [&str; 13] = [
    "lib/libelsa.a",
    "lib/libelsa.so",
    "lib/cmake/elsa/elsaConfig.cmake",
    "lib/cmake/elsa/elsaConfigVersion.cmake",
    "lib/pkgconfig/elsa.pc",
    "lib/pkgconfig/elsa-shared.pc",
    "include/elsa.h",
    "include/elsa.hpp",
    "include/elsa/common.h",
    "include/elsa/common.hpp",
    "share/python/elsa.py",
    "share/python/elsa_modules/distributed.py",
    "share/python/_elsa.c",
];
/// Files in the folder of a board that describe the board.
const OF_BOARD: [&str; 4] = ["board.md", "config.toml", "profile.toml", "toolchain.cmake"];

/// Command line of `elsa bench` for the emulator: a decoding call and the smallest shapes of the grid.
const SHORT_GRID: &str = "bench --json --seconds 0.1 --shape 1,1,1,256,64 --shape 1,1,64,64,64 \
    --shape 1,1,100,100,64 --shape 1,1,144,144,64 --shape 1,1,196,196,64";
/// Number of lines that [`SHORT_GRID`] prints: two methods for each shape.
const SHORT_GRID_LINES: usize = 10;

/// Runs the stage `boards`.
pub fn boards(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| {
        setup::board(tree)?;
        bad::trials(tree, ran)?;
        let abi = Abi::read(tree)?;
        for name in NAMES {
            let dist = dist(tree, ran, name)?;
            let of_board = OF_BOARD.map(|file| format!("share/{name}/{file}"));
            let files = HANDED_OUT.iter().chain(&OF_LIBRARY).map(|file| (*file).to_owned()).chain(of_board);
            let files = files.chain([format!("lib/{}", abi.soname()), format!("lib/{}", abi.file())]);
            let absent: Vec<String> = files.filter(|file| !dist.join(file).is_file()).collect();
            let found = if absent.is_empty() { Ok("complete".to_owned()) } else { Err(absent.join(", ")) };
            ran.note(&format!("{name}: files"), found);
        }
        let board = setup::reference()?;
        let dist = dist(tree, ran, &board.name)?;
        links::boards(tree, ran, &board, &dist)?;
        slices::slices(tree, ran, &board)?;
        readme::board(tree, ran, setup::oldest_cmake(tree)?.as_deref(), &setup::emulator())?;
        capi::board::emulated(tree, ran, &dist)?;
        emulate(tree, ran, &board, &dist);
        Ok(())
    })
}

/// Runs the boards' `elsa` binary on an emulated Cortex-A57.
fn emulate(tree: &Tree, ran: &mut Ran, board: &Board, dist: &Path) {
    let elsa = |rest: &str, seconds: u64| {
        let run = Run::new(tree, &setup::emulator()).arg(dist.join("bin/elsa")).args(rest);
        let out = run.limit(Duration::from_secs(seconds)).machine().run();
        // If other programs disturbed a measurement, its rows are still correct.
        let disturbed = rest.starts_with("bench") && out.code == Some(outputs::UNCLEAN);
        if disturbed { Ok(out.stdout) } else { out.text(&format!("elsa {rest}")) }
    };
    let info = elsa("info --json", 30).and_then(|text| outputs::lines(&text));
    ran.note("elsa info, emulated", info.as_ref().map(|_| "done".to_owned()).map_err(Clone::clone));
    let verified = elsa("verify --scenario stress --json", 240).and_then(|text| outputs::lines(&text));
    let cases =
        |lines: &Vec<serde_json::Value>| match lines.iter().filter(|line| line["what"] == "verify").count() {
            0 => Err("no case".to_owned()),
            n => Ok(format!("{n} cases")),
        };
    ran.note("elsa verify, emulated", verified.as_ref().map_err(Clone::clone).and_then(cases));
    let measured = elsa(SHORT_GRID, 240).and_then(|text| outputs::rows(&text));
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
    // Only the processor's kernels are checked here, because an emulator has no GPU driver. The GPU's kernels are searched for
    // in the file.
    let mut processor = board.clone();
    processor.required.retain(|required| matches!(required, elsa_targets::Required::Cpu(_)));
    let info = info.ok().and_then(|lines| lines.into_iter().next()).unwrap_or_default();
    let missing = outputs::missing(&processor, &info, &measured.unwrap_or_default());
    let found = match (missing.is_empty(), processor.required.len()) {
        (true, n) if n > 0 => Ok(format!("{n} ran")),
        (true, _) => Err("required.txt lists none".to_owned()),
        (false, _) => Err(missing.join(", ")),
    };
    ran.note("required kernels of the processor, emulated", found);
}
