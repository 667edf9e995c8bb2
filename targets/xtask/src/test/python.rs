//! Tests `elsa.py` and the library of a folder against an oracle and the tool. The stage `host` uses this machine's
//! Python, and the stage `python` uses Python 3.6. Each stage runs the tests with and without the folder's compiled
//! module. A module that replaces torch provides tensors of a CUDA device on the stand-in driver. `cargo xtask models`
//! runs the tests that need torch.

use super::cargo::with_standin;
use super::dist::dist;
use crate::boards::build::MODULE;
use crate::boards::target::HOST;
use crate::gpu::standin::{self, Variant};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Output, Run, Tree};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TESTS: [&str; 7] = [
    "runtime/python/tests/test_elsa.py",
    "runtime/python/tests/test_attention.py",
    "runtime/python/tests/test_calls.py",
    "runtime/python/tests/test_gradients.py",
    "runtime/python/tests/test_interrupts.py",
    "runtime/python/tests/test_series.py",
    "runtime/python/tests/test_threads.py",
];
/// Tests on the stand-in driver.
const DEVICE: &str = "runtime/python/tests/test_device.py";
/// Tests on the stand-in driver, as a board's GPU and as a GPU with Tensor Cores.
const TENSOR_CORES: &str = "runtime/python/tests/test_tensor_cores.py";
/// A folder with a module that replaces the compiled module, so that the compiled module is not loaded.
const UNCOMPILED: &str = "runtime/python/tests/uncompiled";
/// The oldest Python that elsa.py supports, as in JetPack 4.
const OLDEST: &str = "3.6";

/// Runs a part of the stage `host` with this machine's Python.
pub fn newest(tree: &Tree, ran: &mut Ran, folder: &Path, driver: &Path) -> Result<(), String> {
    run(tree, ran, &setup::ort::newest(tree)?, folder, driver)
}

/// Runs the stage `python`.
pub fn oldest(tree: &Tree) -> Ran {
    Ran::of("tests", |ran| {
        let Some(python) = setup::old_python(tree, OLDEST, "python3.6", &["numpy"])? else {
            return Err(format!(
                "Python {OLDEST}: absent; install it, or with pyenv: pyenv install {OLDEST}"
            ));
        };
        let folder = dist(tree, ran, HOST)?;
        run(tree, ran, &python, &folder, &standin::build(tree, Variant::Plain)?)
    })
}

/// Runs the tests with the interpreter `python`, and counts the tests.
fn run(tree: &Tree, ran: &mut Ran, python: &PathBuf, folder: &Path, driver: &Path) -> Result<(), String> {
    let module = folder.join("share/python");
    let hidden = format!("{}:{}", tree.root.join(UNCOMPILED).display(), module.display());
    let mut paths = vec![(OsString::from(hidden), "")];
    if folder.join(MODULE).is_file() {
        paths.push((module.into_os_string(), ", compiled"));
    }
    let on_devices = [(DEVICE, ""), (TENSOR_CORES, ""), (TENSOR_CORES, "tensor")];
    let all = TESTS.map(|tests| (tests, "")).into_iter().chain(on_devices);
    for ((path, with), (tests, device)) in
        paths.iter().flat_map(|path| all.clone().map(move |tests| (path, tests)))
    {
        let run = Run::new(tree, "").env("ELSA_STANDIN_DEVICE", device);
        let run = if [DEVICE, TENSOR_CORES].contains(&tests) { with_standin(run, driver) } else { run };
        let out = run
            .arg(python)
            .arg("-B")
            .arg(tree.root.join(tests))
            .env("PYTHONPATH", path)
            .env("ELSA_TOOL", folder.join("bin/elsa"))
            // Empty values select the library next to `elsa.py`, and the machine's back end.
            .env("ELSA_LIBRARY", "")
            .env("ELSA_BACKEND", "")
            .limit(Duration::from_secs(120))
            .run();
        let (passed, failed) = counts(tests, &out)?;
        ran.add(&format!("{tests}{with}"), out.ok, passed, failed);
    }
    Ok(())
}

/// Counts passed and failed tests from the last lines of Python's unittest: `Ran N tests in T s`, then `OK`,
/// `OK (skipped=N)` or `FAILED (failures=N, errors=N, skipped=N)`.
fn counts(tests: &str, out: &Output) -> Result<(u64, u64), String> {
    let line = |start: &str| out.stderr.lines().rev().find_map(|line| line.strip_prefix(start));
    let all = line("Ran ").and_then(|line| line.split(' ').next()).and_then(|word| word.parse::<u64>().ok());
    let all = all.ok_or_else(|| format!("{tests}: {}: ran no test", out.how))?;
    let said = line("OK").or_else(|| line("FAILED")).unwrap_or_default();
    let of = |name: &str| {
        let words = said.split(['(', ',', ' ', ')']);
        let found = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok());
        found.sum::<u64>()
    };
    let failed = of("failures") + of("errors");
    Ok((all.saturating_sub(failed + of("skipped")), failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(stderr: &str) -> Result<(u64, u64), String> {
        let how = "exit status: 1".to_owned();
        counts(
            "tests",
            &Output { ok: false, code: Some(1), how, stdout: String::new(), stderr: stderr.to_owned() },
        )
    }

    #[test]
    fn what_unittest_says_is_counted() {
        assert_eq!(said("...\nRan 17 tests in 0.5s\n\nOK\n"), Ok((17, 0)));
        assert_eq!(said("Ran 17 tests in 0.5s\n\nOK (skipped=2)\n"), Ok((15, 0)));
        assert_eq!(said("Ran 17 tests in 0.5s\n\nFAILED (failures=1, errors=2, skipped=1)\n"), Ok((13, 3)));
        assert!(said("Traceback (most recent call last):\nImportError: numpy\n").is_err());
    }
}
