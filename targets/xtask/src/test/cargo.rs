//! Runs cargo commands and counts their tests or targets.

use super::printed;
use crate::ran::Ran;
use crate::shell::{BARE_METAL, Output, Run, Tree, side_by_side};
use std::path::Path;

/// The flag that makes cargo print its messages in JSON.
pub const JSON: &str = "--message-format=json-render-diagnostics";

/// Returns the widest instruction set of this machine for which there are kernels.
pub fn widest() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512dq") {
            return "avx512";
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return "avx2";
        }
    }
    if cfg!(target_arch = "aarch64") { "neon" } else { "scalar" }
}

/// Runs a libtest command, and adds the numbers of its tests to `ran`.
pub fn tests(ran: &mut Ran, run: Run) -> Output {
    let line = run.line();
    let out = run.run();
    add_tests(ran, &line, &out);
    out
}

/// Adds to `ran` the numbers of tests that a libtest command reports.
pub fn add_tests(ran: &mut Ran, line: &str, out: &Output) {
    let (passed, failed, ignored) = printed::libtest(&out.stdout);
    ran.ignored += ignored;
    let names = printed::failures(&out.stdout);
    let line = if names.is_empty() { line.to_owned() } else { format!("{line}: {}", names.join(" ")) };
    ran.add(&line, out.ok, passed, failed);
}

/// Runs commands concurrently, and shows the output of each when it ends.
pub fn together(runs: Vec<Run>) -> Vec<(String, Output)> {
    side_by_side(runs, |run| {
        let line = run.line();
        (line, run.whole().run())
    })
}

/// Runs a cargo command that reports in JSON, and adds the number of local targets that it built or checked.
pub fn builds(ran: &mut Ran, run: Run) -> Output {
    let line = run.line();
    let out = run.machine().run();
    // A target that fails has no message.
    ran.add(&line, out.ok, printed::built(&out.stdout).len() as u64, u64::from(!out.ok));
    out
}

/// Returns `run` with an environment in which programs find the stand-in driver of `folder` and no other driver.
pub fn with_standin(run: Run, folder: &Path) -> Run {
    run.env("LD_LIBRARY_PATH", folder).env("ELSA_STANDIN", folder).env("ELSA_REQUIRE", "cuda")
}

/// Returns a cargo command for the bare-metal program.
pub fn bare_metal_run(tree: &Tree, line: &str) -> Run {
    let run = Run::new(tree, line).dir(tree.root.join(BARE_METAL));
    run.arg("--target-dir").arg(tree.target.join("bare-metal"))
}
