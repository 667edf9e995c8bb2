//! The stage `fuzz`: the lints of `tests/fuzz`, and every target of its `src/bin` in its share of the time.

use super::ask::Ask;
use super::cargo::{JSON, builds, together};
use super::{printed, seeds};
use crate::ran::Ran;
use crate::setup;
use crate::shell::{FUZZ, Run, Tree};
use std::path::Path;
use std::time::Duration;

/// Instrumentation for libFuzzer, which the stable compiler has too. Overflow is checked by the profile.
const COVERAGE: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// A command of cargo's for the fuzz targets.
fn fuzz_run(tree: &Tree, line: &str, host: &str) -> Run {
    let run = Run::new(tree, line).dir(tree.root.join(FUZZ)).env("RUSTFLAGS", COVERAGE);
    run.args("--release --target").arg(host).arg("--target-dir").arg(tree.target.join("fuzz"))
}

/// The names of the files in `dir`, without their extension, in order.
fn names(dir: &Path) -> Result<Vec<String>, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// The stage `fuzz`, for half of the minutes.
pub fn fuzz(tree: &Tree, ask: Ask) -> Ran {
    let mut ran = Ran::none("fuzz targets");
    let mut lints = Ran::none("targets");
    let mut set_up = || {
        setup::program(tree, "c++", "g++")?;
        let host = setup::host(tree)?;
        builds(&mut lints, fuzz_run(tree, "cargo clippy", &host).arg(JSON).args("-- -D warnings"));
        let names = names(&tree.root.join(FUZZ).join("src/bin"))?;
        let out = fuzz_run(tree, "cargo build --bins", &host).run();
        if out.ok { Ok((host, names)) } else { Err(format!("the fuzz targets do not build: {}", out.how)) }
    };
    let (host, names) = match set_up() {
        Ok(both) => both,
        Err(fault) => return Ran::fault(ran.counted, fault),
    };
    ran.faults.append(&mut lints.faults);
    // As many run at a time as there are cores.
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let seconds = (ask.minutes * 30 * cores / names.len().max(1) as u64).max(1);
    let (mut ready, mut runs) = (Vec::new(), Vec::new());
    for name in names {
        let folder = |what: &str| tree.target.join("fuzz").join(what).join(&name);
        let (corpus, start) = (folder("corpus"), folder("seeds"));
        let artifacts = tree.root.join(FUZZ).join("artifacts").join(&name);
        let make = || {
            for dir in [&corpus, &start, &artifacts] {
                std::fs::create_dir_all(dir)?;
            }
            for (i, seed) in seeds::of(&name).into_iter().enumerate() {
                std::fs::write(start.join(format!("{i:03}")), seed)?;
            }
            Ok(())
        };
        if let Err(error) = make() {
            let error: std::io::Error = error;
            ran.faults.push(format!("{name}: folders for its inputs: {error}"));
            continue;
        }
        let mut prefix = std::ffi::OsString::from("-artifact_prefix=");
        prefix.push(artifacts.join(""));
        let run = Run::new(tree, "")
            .arg(tree.target.join("fuzz").join(&host).join("release").join(&name))
            .args(&format!("-max_total_time={seconds} -max_len=4096 -timeout=20 -rss_limit_mb=2048 -seed=1"))
            .args("-print_final_stats=1 -verbosity=0")
            .arg(prefix)
            .arg(&corpus)
            .arg(&start)
            .limit(Duration::from_secs(seconds + 120));
        ready.push(name);
        runs.push(run);
    }
    let mut executions = 0;
    for (name, (_, out)) in ready.iter().zip(together(runs)) {
        let done = printed::executions(&out.stderr);
        executions += done;
        ran.add(name, out.ok, u64::from(out.ok && done > 0), u64::from(!out.ok));
    }
    ran.note = format!("{executions} executions");
    ran
}
