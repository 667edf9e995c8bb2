//! The stage `ort`: the operator of ONNX Runtime in every version that it supports, on this machine and on an emulated
//! Cortex-A57, and from Python; and linear attention by the tool beside the operators of ONNX and of ONNX Runtime.

use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::Path;
use std::time::Duration;

/// Linear attention by the tool.
const LINEAR: &str = "runtime/cli/tests/linear_attention.py";
/// The check of rewritten models by the tool.
const CHECK: &str = "runtime/cli/tests/onnx_check.py";
/// Convolutions and selective scans by the tool.
const SERIES: &str = "runtime/cli/tests/linear_series.py";

/// The stage `ort`.
pub fn ort(tree: &Tree) -> Ran {
    Ran::of("checks", |ran| go(tree, ran))
}

fn go(tree: &Tree, ran: &mut Ran) -> Result<(), String> {
    let runtimes = setup::ort::runtimes(tree)?;
    // The packages and targets of the stages `host` and `aarch64`: nothing is built again.
    let products = "--lib --bin elsa --example host";
    Run::new(tree, "cargo build --workspace").args(products).run().text("the operator")?;
    let line = format!("build --workspace --exclude xtask --exclude elsa-capi {products}");
    setup::zigbuild(tree, &line)?.run().text("the operator for boards")?;
    let triple = setup::reference()?.build.triple;
    let (here, board) = (tree.target.join("debug"), tree.target.join(triple).join("debug"));
    let root = setup::ort::board_root(tree)?;
    let emulator = format!("qemu-aarch64 -cpu cortex-a57 -L {}", root.display());
    let mut runs = Vec::new();
    for runtime in &runtimes {
        // Two threads: a number that the host compares with its own.
        let host = |front: &str, library: &Path, folder: &Path, what: &str| {
            let run = Run::new(tree, front).arg(folder.join("examples/host")).arg(library);
            let run = run.arg(folder.join("libelsa_ort.so")).arg(what).env("ELSA_THREADS", "2");
            run.limit(Duration::from_secs(120))
        };
        let emulated = |what| host(&emulator, &runtime.board, &board, what);
        runs.push((format!("{runtime}, f32, emulated"), emulated("f32")));
        if cfg!(target_arch = "x86_64") {
            runs.push((format!("{runtime}, f32"), host("", &runtime.here, &here, "f32")));
            let half = host("", &runtime.here, &here, "f16").env("ELSA_ORT_TYPE", "f16");
            runs.push((format!("{runtime}, f16"), half));
        }
    }
    ran.each(runs, |ran, (what, run)| check(ran, &what, run));
    if cfg!(target_arch = "x86_64") {
        python(tree, ran, &here)?;
        rewritten(tree, ran, &here, &runtimes)?;
    }
    Ok(())
}

/// Counts the lines of a program, of which each says `ok` or `FAILED`.
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

/// Models that the tool rewrites: what it makes of random ones, and its own check in every version.
fn rewritten(
    tree: &Tree,
    ran: &mut Ran,
    here: &Path,
    runtimes: &[setup::ort::Runtime],
) -> Result<(), String> {
    let newest = setup::ort::newest(tree)?;
    let (library, tool) = (here.join("libelsa_ort.so"), here.join("elsa"));
    let python = |script: &str| Run::new(tree, "").arg(&newest).arg("-B").arg(tree.root.join(script));
    check(ran, "the check of rewritten models", python(CHECK).arg(&tool).arg(&library));
    let checks = runtimes.iter().map(|runtime| {
        let what = format!("{runtime}, the check of rewritten models");
        (what, python(CHECK).arg(&tool).arg(&library).arg(&runtime.here))
    });
    ran.each(checks.collect(), |ran, (what, run)| check(ran, &what, run));
    let random = python("runtime/ort/tests/random_models.py").arg(&library).arg(&tool);
    check(ran, "random models", random.limit(Duration::from_secs(300)));
    Ok(())
}

/// The programs in Python.
fn python(tree: &Tree, ran: &mut Ran, here: &Path) -> Result<(), String> {
    let library = here.join("libelsa_ort.so");
    let script = |name: &str| tree.root.join("runtime/ort/tests").join(name);
    let newest = setup::ort::newest(tree)?;
    let cases = Run::new(tree, "").arg(&newest).arg("-B").arg(script("attention.py")).arg(&library);
    check(ran, "the node cases of Attention", cases);
    for (path, what) in [
        (LINEAR, "the node cases of LinearAttention"),
        (SERIES, "the node cases of CausalConvWithState, and selective scans"),
    ] {
        let cases = Run::new(tree, "").arg(&newest).arg("-B").arg(tree.root.join(path));
        check(ran, what, cases.arg(here.join("elsa")).limit(Duration::from_secs(120)));
    }
    match setup::ort::oldest(tree)? {
        Some(oldest) => {
            Run::new(tree, "").arg(here.join("examples/host")).arg("models").arg(&tree.target).run();
            let start = Run::new(tree, "").arg(oldest).arg("-B").arg(script("quick_start.py"));
            let start = start.arg(&library).arg(tree.target.join("rank4.onnx"));
            check(ran, "Python 3.6", start);
        }
        None => "not run: Python 3.6 (no python3.6 here)".clone_into(&mut ran.note),
    }
    Ok(())
}
