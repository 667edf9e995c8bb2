//! Runs tests against the stand-in CUDA driver (`tests/standin`).
//!
//! A process opens the driver once, and the driver reads its environment variables at that time. A test that provokes a
//! failure therefore uses a child process: the test program itself, which runs one test with [`CHILD`] set.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Environment variable that is set in a child process.
pub const CHILD: &str = "ELSA_TEST_CHILD";

/// Returns the folder that `cargo xtask standin` has built, which contains `libcuda.so.1` and `states`.
///
/// # Panics
/// Panics if the variable `ELSA_STANDIN` does not name such a folder.
#[must_use]
pub fn folder() -> PathBuf {
    let folder = std::env::var_os("ELSA_STANDIN").map(PathBuf::from);
    let folder =
        folder.unwrap_or_else(|| panic!("ELSA_STANDIN names no folder; run cargo xtask test --only host"));
    assert!(folder.join("libcuda.so.1").is_file(), "{}: no libcuda.so.1", folder.display());
    folder
}

/// Returns `true` in a child process. There, it also ends the line that the test harness has begun to print.
#[must_use]
pub fn is_child() -> bool {
    let child = std::env::var_os(CHILD).is_some();
    if child {
        println!();
    }
    child
}

/// Runs one test of this program, named with its module, in a child process that loads libcuda from the folder
/// `library`.
///
/// # Panics
/// Panics if the program cannot be started.
#[must_use]
pub fn child<V: AsRef<OsStr>>(test: &str, library: &Path, variables: &[(&str, V)]) -> Output {
    let program = std::env::current_exe().unwrap_or_else(|e| panic!("this program: {e}"));
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"]);
    // A driver setting in this environment would change the results of the children.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ELSA_STANDIN_") {
            command.env_remove(name);
        }
    }
    command.env(CHILD, "1").env("LD_LIBRARY_PATH", library).env("RUST_BACKTRACE", "0");
    for (name, value) in variables {
        command.env(name, value);
    }
    command.output().unwrap_or_else(|e| panic!("child: {e}"))
}

/// Returns the lines of a child's output that start with `name: `, without this prefix.
#[must_use]
pub fn said(output: &Output, name: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let start = format!("{name}: ");
    text.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect()
}
