//! Runs `tests/examples/fingerprint.rs` on this machine, on an emulated Cortex-A57 and on the stand-in GPU, and
//! collects the lines that it prints.

use crate::gpu::standin::{self, Variant};
use crate::setup;
use crate::shell::{Run, Tree, side_by_side};
use std::path::Path;

/// Arguments for the emulated program. They reduce the number of random problems, because the emulator is slow.
const FEW: &str = "--random 100";

/// Runs `cargo xtask fingerprint`, which writes the lines to `file`. Each line is prefixed with the name of the place
/// where it was computed, such as `host`.
pub fn run(tree: &Tree, file: &Path) -> Result<(), String> {
    const EXAMPLE: &str = "build --release -p elsa-tests --example fingerprint";
    let driver = standin::build(tree, Variant::Plain)?;
    for cargo in [Run::new(tree, &format!("cargo {EXAMPLE}")), setup::zigbuild(tree, EXAMPLE)?] {
        cargo.arg("--target-dir").arg(&tree.target).run().text("the fingerprint does not build")?;
    }
    let triple = setup::reference()?.build.triple;

    let host = || Run::new(tree, "").arg(tree.target.join("release/examples/fingerprint"));
    let board = |backend: &str| {
        let program = tree.target.join(&triple).join("release/examples/fingerprint");
        Run::new(tree, &setup::emulator()).arg(program).args(FEW).arg(backend)
    };
    let gpu =
        |device: &str| host().arg("cuda").env("LD_LIBRARY_PATH", &driver).env("ELSA_STANDIN_DEVICE", device);
    // The run that takes longest comes first.
    let places = vec![
        ("board", board("neon")),
        ("board", board("scalar")),
        ("board", board("core")),
        ("host", host().env("ELSA_BACKEND", "auto")),
        ("standin", gpu("")),
        ("large", gpu("large")),
    ];
    let done = side_by_side(places, |(place, run)| {
        let line = run.line();
        println!("$ {line}");
        let out = run.quiet().run();
        if !out.ok || out.stdout.is_empty() {
            return Err(format!("{line}: {}\n{}", out.how, out.stderr));
        }
        Ok(out.stdout.lines().map(|line| format!("{place:<8}{line}\n")).collect::<String>())
    });
    let lines: String = done.into_iter().collect::<Result<_, _>>()?;
    crate::files::write(file, &lines)?;
    print!("{lines}");
    println!("{}: {} lines", file.display(), lines.lines().count());
    Ok(())
}
