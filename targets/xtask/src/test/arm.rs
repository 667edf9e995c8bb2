//! Runs the stages `arm` and `aarch64`: the boards' code in an emulator. One cargo configuration builds the tests and a
//! folder that is laid out like a shipped one; the stage `boards` tests the folder that is shipped.

use super::capi::abi;
use super::cargo::{JSON, bare_metal_run, builds, tests};
use super::sanitizers::WIDE;
use super::{links, printed};
use crate::boards::day::programs::{KERNELS, executables};
use crate::boards::target::Target;
use crate::boards::{build, paths};
use crate::ran::Ran;
use crate::setup::{self, BARE};
use crate::shell::{Run, Tree};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments that select the same packages in every command. If commands selected different packages, cargo would
/// rebuild crates.
pub const PACKAGES: &str = "-p elsa-kernels -p elsa-runtime -p elsa-tests -p elsa-board -p elsa-capi -p elsa-cli \
                            -p elsa-files -p elsa-onnx -p elsa-ort";

/// Modules of the crossing tests that an emulator runs in addition to [`KERNELS`]. All other modules call only a GPU, or
/// only `core`, whose code is the same on every processor.
const AS_WELL: [&str; 17] = [
    "backward_tasks::",
    "bounds::",
    "certificate::",
    "conformance::random",
    "drift::",
    "error_growth::",
    "laws::",
    "linear_recurrence_range::",
    "linear_vim::",
    "refusals::",
    "schedules_diagonal::",
    "schedules_gate::",
    "schedules_kernels::",
    "schedules_shares::",
    "schedules_unseen::",
    "streamed::",
    "tasks::",
];

/// Modules of the tool's tests that perform computations. All other modules test files, flags, refusals, ports and
/// statistics.
const OF_THE_TOOL: [&str; 6] =
    ["cli_backward::", "cli_linear::", "cli_run::", "cli_types::", "cli_verify::", "cli_windows::"];

/// Returns the folder of the build outputs. This folder is separate from the folder of builds for the host, so that
/// neither build waits for the other.
fn folder(tree: &Tree) -> PathBuf {
    tree.target.join("arm")
}

/// Returns a cargo command whose programs run in the emulator. They are those of the reference board, whose GPU has no Tensor
/// Cores.
pub fn cargo(tree: &Tree, line: &str) -> Result<Run, String> {
    let triple = setup::reference()?.build.triple;
    let run = setup::zigbuild(tree, line)?.arg("--config").arg(paths::renamed(tree, &triple)?);
    let flags = json!([build::WITHOUT_TENSOR_CORES]);
    let run = run.arg("--config").arg(format!("target.{triple}.rustflags={flags}"));
    Ok(run.arg("--target-dir").arg(folder(tree)))
}

/// Returns the folder of the programs that cargo commands of this module build.
pub fn products(tree: &Tree) -> Result<PathBuf, String> {
    Ok(folder(tree).join(setup::reference()?.build.triple).join("debug"))
}

/// Runs the stage `arm`.
pub fn arm(tree: &Tree) -> Ran {
    Ran::of("tests and checks", |ran| {
        let line = format!("build {PACKAGES} {} --test crossing --test kernels", build::PRODUCTS);
        let out = builds(ran, cargo(tree, &line)?.arg(JSON));
        if !out.ok {
            return Ok(());
        }
        let programs = executables(&out.stdout);
        let program = |name: &str| {
            let found = programs.iter().find(|(test, _)| test == name);
            found.map(|(_, path)| path).ok_or_else(|| format!("{line}: made no program {name}"))
        };
        for (name, package, only) in [("kernels", "kernels", &[][..]), ("crossing", "tests", &KERNELS[..])] {
            let run = Run::new(tree, &setup::emulator()).arg(program(name)?).args(&only.join(" "));
            let run = run.dir(tree.root.join(package)).env("ELSA_REQUIRE", "neon").env("ELSA_ONLY", "neon");
            tests(ran, run.env_default("PROPTEST_CASES", "12"));
        }
        let board = setup::reference()?;
        let dist = build::quick(tree, ran, &Target::named(tree, &board.name)?, &products(tree)?)?;
        links::one_board(tree, ran, &board, &dist)?;
        abi::check(tree, ran, abi::Write::default())?;
        bare_metal(tree, ran)
    })
}

/// Runs the stage `aarch64`, without the robot's tests, which the stage `robot` runs. The kernels without vectors are the
/// same on every processor, so here they are only tested on random problems.
pub fn every_test(tree: &Tree) -> Ran {
    Ran::of("tests", |ran| {
        for (only, targets, modules) in [
            (
                "neon",
                "--test crossing --test no_allocation",
                [&KERNELS[..], &AS_WELL, &["run_and_bind"]].concat(),
            ),
            ("scalar", "--test crossing", vec!["conformance::random"]),
            ("neon", "--test tool", OF_THE_TOOL.to_vec()),
            ("neon", "--lib --test kernels", Vec::new()),
        ] {
            let run = cargo(tree, &format!("test {PACKAGES} --no-fail-fast {targets}"))?;
            let run = run.args("--").args(&modules.join(" "));
            let run = run.env("ELSA_REQUIRE", "neon").env("ELSA_ONLY", only);
            tests(ran, run.env_default("PROPTEST_CASES", "12"));
        }
        Ok(())
    })
}

/// Runs the program for machines without an operating system, on an emulated Cortex-M4F and on this machine. Compares the
/// results bit by bit.
fn bare_metal(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    setup::program(tree, "qemu-system-arm", "qemu-system-arm")?;
    setup::target(tree, BARE)?;
    // The target has no std, so its programs link without it.
    let out = builds(ran, bare_metal_run(tree, "cargo build").arg("--target").arg(BARE).arg(JSON));
    if !out.ok {
        return Err(format!("{BARE}: does not link"));
    }
    let program = tree.target.join("bare-metal").join(BARE).join("debug/elsa-bare-metal");
    let board = emulated(tree, &program).run().text("qemu-system-arm")?;
    // The program calls the kernels without vectors.
    let without = WIDE.map(|set| format!("--cfg=elsa_without=\"{set}\"")).join(" ");
    let host = bare_metal_run(tree, "cargo run --quiet").env("RUSTFLAGS", without).machine().run();
    let (agree, differ, first) = printed::agreement(&board, &host.text("the same on the host")?);
    ran.add("comparison of the board with the host", first.is_none(), agree, differ);
    ran.faults.extend(first);
    Ok(())
}

fn emulated(tree: &Tree, program: &Path) -> Run {
    Run::new(tree, "qemu-system-arm -M mps2-an386 -cpu cortex-m4 -nographic")
        .args("-semihosting-config enable=on,target=native -kernel")
        .arg(program)
        .limit(Duration::from_secs(60))
        .machine()
}
