//! `cargo xtask gpu-test`: creates a folder for testing the CUDA back end on a machine that has an NVIDIA driver but no
//! Rust. It contains release test programs with their PTX, C programs linked with the static library, the tool, the
//! program of `runtime/lab` and a script.

use crate::c_programs::{BESIDE, SOURCES, WARNINGS};
use crate::files::{self, at};
use crate::setup;
use crate::shell::{Run, Tree};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Test programs of `elsa-tests` that work with a real driver.
const TESTS: [&str; 2] = ["crossing", "no_allocation"];
/// Programs of `tests/capi` that work with a real driver.
const C_PROGRAMS: [&str; 7] =
    ["plain", "buffers", "device", "linear_device", "series_device", "copies", "graph"];

/// Lists the executables that a cargo command has built, from its JSON messages. Each executable is listed with the
/// name of its target and its path.
pub fn executables(messages: &str) -> Vec<(String, PathBuf)> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter_map(|message| {
            let path = message["executable"].as_str()?;
            Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(path)))
        })
        .collect()
}

/// Creates the folder `target/gpu-test`.
///
/// # Errors
/// Returns an error if a program does not build, or if a file cannot be written.
pub fn make(tree: &Tree) -> Result<(), String> {
    let out = tree.target.join("gpu-test");
    files::empty(&out)?;
    let build = |line: &str| {
        Run::new(tree, line)
            .args("--release --message-format=json-render-diagnostics")
            .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .machine()
            .run()
    };
    let tests: String = TESTS.iter().map(|name| format!(" --test {name}")).collect();
    let mut made = Vec::new();
    for line in [
        &format!("cargo test --no-run -p elsa-tests{tests}"),
        "cargo test --no-run -p elsa-runtime --lib",
        "cargo build -p elsa-cli -p elsa-lab",
        "cargo build -p elsa-capi",
    ] {
        made.extend(executables(&build(line).text(line)?));
    }
    for name in TESTS.into_iter().chain(["elsa_runtime", "elsa", "elsa-lab"]) {
        let found = made.iter().find(|(made, _)| made == name);
        let (_, path) = found.ok_or_else(|| format!("{name}: not among what was built"))?;
        std::fs::copy(path, out.join(name)).map_err(at(path))?;
    }
    c_programs(tree, &out)?;
    files::write(&out.join("run.sh"), include_str!("gpu_test.sh"))?;
    let mut bytes = 0;
    for entry in std::fs::read_dir(&out).map_err(at(&out))? {
        bytes += entry.and_then(|entry| entry.metadata()).map_err(at(&out))?.len();
    }
    println!("{}: {} KiB; on a machine with an NVIDIA driver: sh run.sh", out.display(), bytes >> 10);
    Ok(())
}

/// Compiles the C programs into `out`.
fn c_programs(tree: &Tree, out: &Path) -> Result<(), String> {
    setup::program(tree, "gcc", "gcc")?;
    for name in C_PROGRAMS {
        let run = Run::new(tree, &format!("gcc -std=c99 {WARNINGS} -O1 -s -I runtime/capi/include -o"))
            .arg(out.join(name))
            .arg(tree.root.join(SOURCES).join(name).with_extension("c"))
            .arg(tree.target.join("release/libelsa.a"))
            .args(BESIDE);
        run.run().text(&format!("{SOURCES}/{name}.c"))?;
    }
    Ok(())
}
