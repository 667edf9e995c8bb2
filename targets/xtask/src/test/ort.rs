//! Runs the stages `onnx` and `ort`. They test the operator in several versions of ONNX Runtime: on this machine, on an
//! emulated Cortex-A57, and from Python. They also compare the tool's linear attention with the operators of ONNX and of ONNX
//! Runtime.

use super::{arm, workspace};
use crate::boards::build;
use crate::ran::Ran;
use crate::setup;
use crate::setup::ort::Runtime;
use crate::shell::{Run, Tree};
use std::path::Path;
use std::time::Duration;

/// Script that tests the tool's linear attention.
const LINEAR: &str = "runtime/cli/tests/linear_attention.py";
/// Script that tests `elsa onnx rewrite --check`.
const CHECK: &str = "runtime/cli/tests/onnx_check.py";
/// Script that tests `elsa onnx audit`.
const AUDIT: &str = "runtime/cli/tests/onnx_audit.py";
/// Script that compares random models with their rewritten versions.
const RANDOM: &str = "runtime/ort/tests/random_models.py";
/// Script that compares models of one attention node with their rewritten versions, and with f64.
const FUSED: &str = "runtime/ort/tests/fused_nodes.py";
/// Script that compares models in the operators of older runtimes with f64.
const LOWERED: &str = "runtime/ort/tests/lowered_models.py";
/// Script that compares models of one node with a state with their rewritten versions, and with f64.
const STATES: &str = "runtime/ort/tests/state_nodes.py";
/// Script that tests the tool's convolutions and selective scans.
const SERIES: &str = "runtime/cli/tests/linear_series.py";

/// Runs the stage `onnx`: the oldest and the newest runtime on this machine, and the test cases of ONNX.
pub fn ends(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| {
        let runtimes = setup::ort::runtimes(tree, &setup::ort::ENDS)?;
        let here = workspace::products(tree)?;
        let runs = runtimes.iter().flat_map(|runtime| on_this_machine(tree, runtime, &here));
        ran.each(runs.collect(), |ran, (what, run)| check(ran, &what, run));
        cases(tree, ran, &here)?;
        rewritten(tree, ran, &here, &runtimes, 120)
    })
}

/// Runs the stage `ort`: every supported runtime, on this machine and emulated, and Python 3.6.
pub fn every(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| {
        let runtimes = setup::ort::runtimes(tree, &setup::ort::VERSIONS)?;
        let here = workspace::products(tree)?;
        arm::cargo(tree, &format!("build {} {}", arm::PACKAGES, build::PRODUCTS))?
            .run()
            .text("the operator for boards")?;
        let board = arm::products(tree)?;
        let root = setup::ort::board_root(tree)?;
        let emulator = format!("qemu-aarch64 -cpu cortex-a57 -L {}", root.display());
        let runs = runtimes.iter().flat_map(|runtime| {
            let run = host(tree, &emulator, &runtime.board, &board, "f32");
            let emulated = (format!("{runtime}, f32, emulated"), run);
            // The stage `onnx` has run the oldest and the newest version.
            let middle = !setup::ort::ENDS.contains(&runtime.version);
            let here = if middle { on_this_machine(tree, runtime, &here) } else { Vec::new() };
            here.into_iter().chain([emulated])
        });
        ran.each(runs.collect(), |ran, (what, run)| check(ran, &what, run));
        if !cfg!(target_arch = "x86_64") {
            return Ok(());
        }
        let newest = setup::ort::newest(tree)?;
        let old = runtimes.iter().filter(|runtime| setup::ort::JETPACK.contains(&runtime.version));
        let old = old.map(|runtime| {
            let run = lowered(tree, &newest, &here, &emulator, &runtime.board, &board, 1);
            (format!("{runtime}, lowered models, emulated"), run)
        });
        ran.each(old.collect(), |ran, (what, run)| check(ran, &what, run));
        rewritten(tree, ran, &here, &runtimes, 2000)?;
        oldest(tree, ran, &here)
    })
}

/// Returns the command of the program that loads a runtime and the operator in `folder`. The program requests two
/// threads, and checks that the operator uses two.
fn host(tree: &Tree, front: &str, library: &Path, folder: &Path, what: &str) -> Run {
    let run = Run::new(tree, front).arg(folder.join("examples/host")).arg(library);
    let run = run.arg(folder.join("libelsa_ort.so")).arg(what).env("ELSA_THREADS", "2");
    run.limit(Duration::from_secs(120))
}

/// Returns the commands that test a runtime on this machine, with their descriptions. Returns no commands if this is not an
/// x86-64 machine.
fn on_this_machine(tree: &Tree, runtime: &Runtime, here: &Path) -> Vec<(String, Run)> {
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    let single = host(tree, "", &runtime.here, here, "f32");
    let half = host(tree, "", &runtime.here, here, "f16").env("ELSA_ORT_TYPE", "f16");
    vec![(format!("{runtime}, f32"), single), (format!("{runtime}, f16"), half)]
}

/// Runs a program whose lines start with `ok` or `FAILED`, and counts these lines.
fn check(ran: &mut Ran, what: &str, run: Run) {
    let out = run.whole().machine().run();
    let passed = out.stdout.lines().filter(|line| line.starts_with("ok")).count() as u64;
    let faults: Vec<&str> = out.stdout.lines().filter(|line| line.starts_with("FAILED")).collect();
    println!("{what}: {passed} passed, {} failed", faults.len());
    ran.passed += passed;
    ran.failed += faults.len() as u64;
    ran.faults.extend(faults.iter().map(|fault| format!("{what}: {fault}")));
    if passed == 0 || (!out.ok && faults.is_empty()) {
        let said = out.stderr.lines().last().unwrap_or_default();
        ran.faults.push(format!("{what}: {}: {said}", out.how));
    }
}

/// Runs the test cases of ONNX with the newest runtime for Python.
fn cases(tree: &Tree, ran: &mut Ran, here: &Path) -> Result<(), String> {
    let newest = setup::ort::newest(tree)?;
    let attention = tree.root.join("runtime/ort/tests/attention.py");
    let cases = Run::new(tree, "").arg(&newest).arg("-B").arg(attention).arg(here.join("libelsa_ort.so"));
    check(ran, "the node cases of Attention", cases);
    for (path, what) in [
        (LINEAR, "the node cases of LinearAttention"),
        (SERIES, "the node cases of CausalConvWithState, and selective scans"),
    ] {
        let cases = Run::new(tree, "").arg(&newest).arg("-B").arg(tree.root.join(path));
        check(ran, what, cases.arg(here.join("elsa")).limit(Duration::from_secs(120)));
    }
    Ok(())
}

/// Tests models that the tool rewrites or audits. Compares `count` random models before and after rewriting, and runs the
/// tool's own check and its audit in every runtime.
fn rewritten(
    tree: &Tree,
    ran: &mut Ran,
    here: &Path,
    runtimes: &[Runtime],
    count: u32,
) -> Result<(), String> {
    let newest = setup::ort::newest(tree)?;
    let (library, tool) = (here.join("libelsa_ort.so"), here.join("elsa"));
    let python = |script: &str| Run::new(tree, "").arg(&newest).arg("-B").arg(tree.root.join(script));
    let scripts = [(CHECK, "the check of rewritten models"), (AUDIT, "the audit of half precision")];
    let checks = runtimes.iter().flat_map(|runtime| {
        scripts.map(|(script, words)| {
            let run = python(script).arg(&tool).arg(&library).arg(&runtime.here);
            (format!("{runtime}, {words}"), run)
        })
    });
    ran.each(checks.collect(), |ran, (what, run)| check(ran, &what, run));
    let random = python(RANDOM).arg(&library).arg(&tool).args(&format!("--count {count}"));
    check(ran, "random models", random.limit(Duration::from_secs(1200)));
    for (script, what) in [(FUSED, "attention in a single node"), (STATES, "nodes with a state")] {
        let nodes = python(script).arg(&library).arg(&tool);
        check(ran, what, nodes.limit(Duration::from_secs(300)));
    }
    let old = runtimes.iter().map(|runtime| {
        let run = lowered(tree, &newest, here, "", &runtime.here, here, (count / 60).min(8));
        (format!("{runtime}, lowered models"), run)
    });
    ran.each(old.collect(), |ran, (what, run)| check(ran, &what, run));
    Ok(())
}

/// Returns the command that draws `count` models for each lowered operator, with the tool in `here`. The models run in the
/// newest runtime and in the library `older`, which the program in `folder` loads; `front` starts this program.
fn lowered(
    tree: &Tree,
    python: &Path,
    here: &Path,
    front: &str,
    older: &Path,
    folder: &Path,
    count: u32,
) -> Run {
    let (host, operator) = (folder.join("examples/host"), folder.join("libelsa_ort.so"));
    let command = format!("{front} '{}' '{}' '{}'", host.display(), older.display(), operator.display());
    let run = Run::new(tree, "").arg(python).arg("-B").arg(tree.root.join(LOWERED)).arg(here.join("elsa"));
    run.arg("--host").arg(command).args(&format!("--count {count}")).limit(Duration::from_secs(1200))
}

/// Runs the quick start with Python 3.6 and ONNX Runtime 1.10.
fn oldest(tree: &Tree, ran: &mut Ran, here: &Path) -> Result<(), String> {
    match setup::ort::oldest(tree)? {
        Some(oldest) => {
            Run::new(tree, "").arg(here.join("examples/host")).arg("models").arg(&tree.target).run();
            let start = tree.root.join("runtime/ort/tests/quick_start.py");
            let start = Run::new(tree, "").arg(oldest).arg("-B").arg(start);
            let start = start.arg(here.join("libelsa_ort.so")).arg(tree.target.join("rank4.onnx"));
            check(ran, "Python 3.6", start);
        }
        None => "not run: Python 3.6 (no python3.6 here)".clone_into(&mut ran.note),
    }
    Ok(())
}
