//! Puts the project's test programs into a folder, for a machine that has no compiler and none of the sources.

use crate::boards::target::Target;
use crate::c_programs::{BESIDE, SOURCES, WARNINGS};
use crate::files::{self, at};
use crate::setup;
use crate::shell::{Run, Tree};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Modules of the crossing tests that check the kernels for every form of a call, and that take only seconds in an
/// emulator or under a sanitizer.
pub const KERNELS: [&str; 16] = [
    "append::",
    "backward::",
    "certified::",
    "chunks::",
    "conformance::every_",
    "determinism::",
    "extremes::",
    "hostile::",
    "linear::",
    "linear_convolution::",
    "linear_poison::",
    "linear_recurrence::",
    "linear_selective::",
    "masks::",
    "small_calls::",
    "windows::",
];

/// Cargo's commands, each with the programs that it builds.
const BUILT: [(&str, &[&str]); 5] = [
    ("test --no-run -p elsa-tests --test crossing --test no_allocation", &["crossing", "no_allocation"]),
    ("test --no-run -p elsa-runtime --lib", &["elsa_runtime"]),
    ("test --no-run -p elsa-kernels --test kernels", &["kernels"]),
    ("build -p elsa-tests --example fingerprint", &["fingerprint"]),
    ("build -p elsa-lab -p elsa-robot", &["elsa-lab", "elsa-robot"]),
];
/// Programs of `tests/capi` that work with a real driver.
const C_PROGRAMS: [&str; 7] =
    ["plain", "buffers", "device", "linear_device", "series_device", "copies", "graph"];
/// Linker flags for the libraries that zig needs in addition to the static library.
const BESIDE_ZIG: &str = "-lpthread -lm -ldl -lunwind";
/// Files of the tree, each with its place in the folder. The test of elsa.py finds `abi.txt` relative to itself.
const COPIED: [(&str, &str); 6] = [
    ("runtime/python/tests/test_elsa.py", "python/tests/test_elsa.py"),
    ("runtime/capi/abi.txt", "capi/abi.txt"),
    ("runtime/ort/tests/quick_start.py", "quick_start.py"),
    ("targets/xtask/src/boards/day/onnx_time.py", "onnx_time.py"),
    ("targets/xtask/src/gpu/gpu_bench.py", "gpu_bench.py"),
    ("examples/cpp-vision/model/digits.safetensors", "digits.safetensors"),
];
/// Source of the plugin for TensorRT, which the board compiles with its own headers.
const PLUGIN: &str = "examples/tensorrt/src";

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

/// Builds the programs for a target, and puts them and their data into the folder `out`. `dist` is the target's shipped
/// folder, whose library the C programs contain.
///
/// # Errors
/// Returns an error if a program does not build, or if a file cannot be written.
pub fn put(tree: &Tree, target: &Target, dist: &Path, out: &Path) -> Result<(), String> {
    files::folder(out)?;
    for (line, names) in BUILT {
        let made = executables(&cargo(tree, target, line)?.machine().run().text(line)?);
        for name in names {
            let found = made.iter().find(|(made, _)| made == name);
            let (_, path) = found.ok_or_else(|| format!("{line}: made no program {name}"))?;
            std::fs::copy(path, out.join(name)).map_err(at(path))?;
        }
    }
    c_programs(tree, target, dist, out)?;
    for (from, to) in COPIED {
        files::write(&out.join(to), files::bytes(&tree.root.join(from))?)?;
    }
    for from in files::below(&tree.root.join(PLUGIN), &["cpp", "hpp"])? {
        let name = from.file_name().unwrap_or_default();
        files::write(&out.join("tensorrt").join(name), files::bytes(&from)?)?;
    }
    let write = Run::new(tree, "cargo run --quiet -p elsa-ort --example host -- models").arg(out);
    write.run().text("the models of the operator").map(|_| ())
}

/// Returns a cargo command that builds optimised programs for a target.
fn cargo(tree: &Tree, target: &Target, line: &str) -> Result<Run, String> {
    let run = match target.build() {
        None => Run::new(tree, &format!("cargo {line}")),
        Some(build) => {
            setup::target(tree, target.triple())?;
            let run = Run::new(tree, &format!("cargo-zigbuild {line} --target")).arg(build.zig_target());
            run.front(setup::zig(tree)?)
        }
    };
    let run = run.args("--release --message-format=json-render-diagnostics");
    let run = run.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("CARGO_PROFILE_RELEASE_LTO", "off");
    Ok(run.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"))
}

/// Compiles the C programs into `out`.
fn c_programs(tree: &Tree, target: &Target, dist: &Path, out: &Path) -> Result<(), String> {
    let beside = if target.build().is_some() { BESIDE_ZIG } else { BESIDE };
    for name in C_PROGRAMS {
        let run = setup::compiler(tree, target.build())?.args(&format!("-std=c99 {WARNINGS} -O1 -s -I"));
        let run = run.arg(dist.join("include")).arg("-o").arg(out.join(name));
        let run = run.arg(tree.root.join(SOURCES).join(name).with_extension("c"));
        let run = run.arg(dist.join("lib/libelsa.a")).args(beside);
        run.run().text(&format!("{SOURCES}/{name}.c"))?;
    }
    Ok(())
}
