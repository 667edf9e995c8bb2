//! Runs the stage `fuzz`: checks the lints of `tests/fuzz`, and runs every target in `src/bin` for an equal share of the time.

use super::ask::Ask;
use super::cargo::{JSON, builds, together};
use super::{printed, seeds};
use crate::files;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{FUZZ, Run, Tree};
use std::path::PathBuf;
use std::time::Duration;

/// Compiler flags for libFuzzer's instrumentation, which the stable compiler supports. The profile enables overflow checks.
const COVERAGE: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Returns a cargo command for the fuzz targets.
fn fuzz_run(tree: &Tree, line: &str, host: &str) -> Run {
    let run = Run::new(tree, line).dir(tree.root.join(FUZZ)).env("RUSTFLAGS", COVERAGE);
    run.args("--release --target").arg(host).arg("--target-dir").arg(tree.target.join("fuzz"))
}

/// Runs the stage `fuzz`, for half of the requested minutes.
pub fn fuzz(tree: &Tree, ask: Ask) -> Ran {
    Ran::of("fuzz targets", |ran| {
        setup::program(tree, "c++", "g++")?;
        let host = setup::host(tree)?;
        let mut lints = Ran::none("targets");
        builds(&mut lints, fuzz_run(tree, "cargo clippy", &host).arg(JSON).args("-- -D warnings"));
        ran.faults.append(&mut lints.faults);
        let targets = files::below(&tree.root.join(FUZZ).join("src/bin"), &["rs"])?;
        let name = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let names: Vec<String> = targets.iter().map(name).collect();
        fuzz_run(tree, "cargo build --bins", &host).run().text("the fuzz targets do not build")?;
        // The number of targets that run at the same time is the number of cores.
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let seconds = (ask.minutes * 30 * cores / names.len().max(1) as u64).max(1);
        let mut runs = Vec::new();
        for name in &names {
            let folder = |what: &str| tree.target.join("fuzz").join(what).join(name);
            let (corpus, start) = (folder("corpus"), folder("seeds"));
            let artifacts = tree.root.join(FUZZ).join("artifacts").join(name);
            files::folder(&corpus)?;
            files::folder(&artifacts)?;
            for (i, seed) in seeds::of(name).into_iter().enumerate() {
                files::write(&start.join(format!("{i:03}")), seed)?;
            }
            let mut prefix = std::ffi::OsString::from("-artifact_prefix=");
            prefix.push(artifacts.join(""));
            let limits =
                format!("-max_total_time={seconds} -max_len=4096 -timeout=20 -rss_limit_mb=2048 -seed=1");
            let run = Run::new(tree, "")
                .arg(tree.target.join("fuzz").join(&host).join("release").join(name))
                .args(&limits)
                .args("-print_final_stats=1 -verbosity=0")
                .arg(prefix)
                .arg(&corpus)
                .arg(&start);
            runs.push(run.limit(Duration::from_secs(seconds + 120)));
        }
        let mut executions = 0;
        for (name, (_, out)) in names.iter().zip(together(runs)) {
            let done = printed::executions(&out.stderr);
            executions += done;
            ran.add(name, out.ok, u64::from(out.ok && done > 0), u64::from(!out.ok));
        }
        ran.note = format!("{executions} executions");
        Ok(())
    })
}
