//! `cargo xtask board-day`: makes a folder that answers on a board every question that only a board can answer, runs it
//! there over ssh, and fetches one archive. `cargo xtask deploy` and `gpu-test` make the same folder with fewer parts.
//!
//! ```text
//! target/board-day/NAME/
//!     board-day.sh, steps.sh      the program: runs the steps, each under a time limit, and records them
//!     release                     a hash of all other files: results of another folder do not count
//!     target                      the name of the target
//!     test/                       the project's test programs; deploy leaves them out
//!     bin lib include share       the shipped folder (`super::build`)
//!     day/                        made on the board: records, outputs, tables and pages of the steps
//! ```
//!
//! | file | content |
//! |---|---|
//! | `programs` | the test programs |
//! | `report` | `cargo xtask board-report`: unpacks archives for `elsa-lab board-report`, which judges them |
//!
//! The program on the board is started detached from ssh. If the connection breaks, the program continues, and this
//! command connects again. A board that lost its power continues with the same command.

pub mod programs;
pub mod report;

use super::build;
use super::link::{Address, Link};
use super::target::{HOST, Target};
use crate::files::{self, at};
use crate::shell::{Run, Tree};
use programs::KERNELS;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `cargo xtask board-day` and `deploy`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Board to build for.
    #[arg(long, value_parser = Target::names())]
    target: String,
    #[command(flatten)]
    address: Address,
    /// Only make this folder, for a board without a network: copy it, and run sh board-day.sh there.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Folder on the board, relative to the user's home.
    #[arg(long, value_name = "DIR", default_value = "elsa")]
    dir: String,
    /// Folder for the archive [default: targets/NAME/bench]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    #[command(flatten)]
    additions: build::Additions,
    /// Options of board-day.sh, after `--`, such as --minutes 60 or --only what,gpu.
    #[arg(last = true, value_name = "ARGUMENTS")]
    options: Vec<String>,
}

/// The program on the board, and the steps that it reads.
const SCRIPTS: [(&str, &str); 2] =
    [("board-day.sh", include_str!("board_day.sh")), ("steps.sh", include_str!("steps.sh"))];
/// Name of the archive in the folder.
const ARCHIVE: &str = "board-day.tar.gz";
/// Options of board-day.sh for `cargo xtask deploy`.
const DEPLOY: [&str; 2] = ["--only", "what,verify,verify-gpu,grid"];
/// Options of board-day.sh for the folder of `cargo xtask gpu-test`.
const GPU: &str = "--only gpu,grid-gpu,series-gpu --minutes 240";

/// Time between two looks at the program on the board.
const LOOK: Duration = Duration::from_secs(3);

/// A script that prints the facts that must be known before anything is copied, as `key=value` lines. `$1` is the
/// folder on the board.
const PROBE: &str = r#"
echo "machine=$(uname -m)"
echo "host=$(uname -n)"
dir=$1
while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
echo "free_kib=$(df -Pk "$dir" 2>/dev/null | awk 'NR == 2 { print $4 }')"
"#;

/// Returns the fact `key` in lines of the format `key=value`; empty if it is missing.
fn fact<'a>(facts: &'a str, key: &str) -> &'a str {
    let pairs = facts.lines().filter_map(|line| line.split_once('='));
    pairs.filter(|(found, _)| *found == key).map(|(_, value)| value.trim()).next().unwrap_or_default()
}

/// Checks that the board has the target's processor and enough free space for the folder.
fn fits(facts: &str, target: &Target, needed_kib: u64) -> Result<(), String> {
    let machine = fact(facts, "machine");
    if machine != target.machine() {
        let wanted = target.machine();
        return Err(format!("machine: {machine}; allowed: {wanted}, the machine of {}", target.name()));
    }
    match fact(facts, "free_kib").parse::<u64>() {
        Ok(free) if free < needed_kib => Err(format!("space: {free} KiB free; needed: {needed_kib} KiB")),
        Ok(_) => Ok(()),
        Err(_) => Err("space: df reports nothing about the folder".to_owned()),
    }
}

/// Lists the files and links in a folder and its subfolders, sorted by path.
fn members(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let path = entry.map_err(at(dir))?.path();
        if path.is_dir() && !path.is_symlink() { found.extend(members(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

/// Returns the size of a folder's files in KiB, each rounded up to a multiple of 4 KiB.
fn kib(dir: &Path) -> Result<u64, String> {
    let size = |path: &PathBuf| fs::symlink_metadata(path).map(|data| data.len().div_ceil(4096) * 4);
    members(dir)?.iter().map(|path| size(path).map_err(at(path))).sum()
}

/// Returns a hash of the paths and contents of a folder's files, as 16 hexadecimal digits.
fn digest(dir: &Path) -> Result<String, String> {
    let mut hash = Sha256::new();
    for path in members(dir)?.iter().filter(|path| !path.is_symlink()) {
        let (name, content) =
            (path.strip_prefix(dir).unwrap_or(path).display().to_string(), files::bytes(path)?);
        hash.update(format!("{name}\0{}\0", content.len()));
        hash.update(content);
    }
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// Builds the folder `out` for a target. With `tests`, it contains the test programs.
///
/// # Errors
/// Returns an error if something does not build, if a check of the build fails, or if `out` contains results or other
/// files.
pub fn make(
    tree: &Tree,
    target: &Target,
    additions: build::Additions,
    tests: bool,
    out: &Path,
) -> Result<(), String> {
    let used = fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
    let results = out.join("day").exists();
    if used && (results || !out.join(SCRIPTS[0].0).is_file()) {
        let what = if results { "contains results, in the folder day" } else { "not empty" };
        return Err(format!(
            "{}: {what}; allowed: a new folder, or one that this command made",
            out.display()
        ));
    }
    let checked = build::build(tree, target, additions)?;
    if !checked.faults.is_empty() {
        return Err(checked.faults.join("\n       "));
    }
    lay(tree, target, &target.dist(tree), tests, out)
}

/// Lays out the folder `out` from the target's shipped folder `dist`.
///
/// # Errors
/// Returns an error if a test program does not build, or if a file cannot be written.
pub fn lay(tree: &Tree, target: &Target, dist: &Path, tests: bool, out: &Path) -> Result<(), String> {
    files::empty(out)?;
    Run::new(tree, "cp -a").arg(dist.join(".")).arg(out).quiet().run().text("copying the shipped folder")?;
    for (name, script) in SCRIPTS {
        files::write(&out.join(name), script.replace("@KERNELS@", &KERNELS.join(" ")))?;
    }
    files::write(&out.join("target"), format!("{}\n", target.name()))?;
    if tests {
        programs::put(tree, target, dist, &out.join("test"))?;
    }
    files::write(&out.join("release"), format!("{}\n", digest(out)?))?;
    println!("{}: {} KiB", out.display(), kib(out)?);
    Ok(())
}

/// Runs `cargo xtask gpu-test`: creates the folder `target/gpu-test` for a machine with an NVIDIA driver.
pub fn gpu_test(tree: &Tree) -> Result<(), String> {
    let out = tree.target.join("gpu-test");
    make(tree, &Target::named(tree, HOST)?, build::Additions::default(), true, &out)?;
    println!("on a machine with an NVIDIA driver: sh board-day.sh {GPU}");
    Ok(())
}

/// Runs `cargo xtask deploy`: a day without the test programs that only verifies and measures.
pub fn deploy(tree: &Tree, mut arguments: Arguments) -> Result<(), String> {
    if !arguments.options.iter().any(|option| option == DEPLOY[0]) {
        arguments.options.extend(DEPLOY.map(str::to_owned));
    }
    whole(tree, &arguments, false)
}

/// Runs `cargo xtask board-day`.
pub fn run(tree: &Tree, arguments: &Arguments) -> Result<(), String> {
    whole(tree, arguments, true)
}

/// Makes the folder, and without `--folder` also copies it, runs it and fetches its archive.
fn whole(tree: &Tree, arguments: &Arguments, tests: bool) -> Result<(), String> {
    if let Some(folder) = &arguments.folder {
        let target = Target::named(tree, &arguments.target)?;
        make(tree, &target, arguments.additions, tests, folder)?;
        println!(
            "copy it to the board, and there: sh board-day.sh; then here: cargo xtask board-report {ARCHIVE}"
        );
        return Ok(());
    }
    let dir = &arguments.dir;
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if dir.is_empty() || dir.starts_with('-') || !dir.chars().all(plain) {
        return Err(format!("--dir: {dir}; allowed: letters, digits, /, ., _ and -"));
    }
    let safe = |word: &String| word.chars().all(|c| c.is_ascii_alphanumeric() || "-=,._/:".contains(c));
    if let Some(word) = arguments.options.iter().find(|word| !safe(word)) {
        return Err(format!("{word}; allowed: options of board-day.sh"));
    }
    let link = Link::new(tree, &arguments.address)?;
    let target = Target::named(tree, &arguments.target)?;
    let facts = link.ask(&format!("set -- {dir}; {PROBE}"))?;
    let here = |fault: String| format!("{}: {fault}", link.destination);
    fits(&facts, &target, 0).map_err(here)?;

    let out = tree.target.join("board-day").join(target.name());
    make(tree, &target, arguments.additions, tests, &out)?;
    fits(&facts, &target, kib(&out)?).map_err(here)?;
    link.ask(&format!("mkdir -p {dir}"))?;
    link.copy(&out, dir)?;
    let status = started(&link, dir, &arguments.options)?;

    let folder = arguments.results.clone().unwrap_or_else(|| target.folder(tree).join("bench"));
    let date = Run::new(tree, "date -u +%Y-%m-%d").quiet().run();
    let path = archive(&folder, date.stdout.trim(), fact(&facts, "host"));
    link.fetch(&format!("{dir}/{ARCHIVE}"), &path)?;
    println!("{}", path.display());
    report::report(tree, &[path], None)?;
    if status == 0 { Ok(()) } else { Err(here(format!("board-day.sh ended with status {status}"))) }
}

/// Starts the program on the board and follows it to its end. Returns its exit status. A program that is running
/// already is followed.
fn started(link: &Link, dir: &str, options: &[String]) -> Result<i32, String> {
    let options = options.join(" ");
    // If the program is running already, its lock stops the second one.
    link.ask(&format!(
        "cd {dir} && rm -f day/status && (setsid nohup sh board-day.sh {options} >day.log 2>&1 </dev/null &) && \
         for i in 1 2 3 4 5 6 7 8 9 10; do [ -e day/lock/pid ] || [ -e day/status ] && break; sleep 0.3; done"
    ))?;
    let mut shown = 0;
    loop {
        let text = link.ask(&format!("cd {dir} && sh board-day.sh --status"))?;
        let mut lines = text.lines();
        let state = lines.next().unwrap_or_default();
        let steps: Vec<&str> = lines.collect();
        steps.iter().skip(shown).for_each(|line| println!("{line}"));
        shown = steps.len();
        if let Some(status) = state.strip_prefix("ended") {
            return match status.trim().parse() {
                Ok(status) => Ok(status),
                Err(_) => Err(link.ask(&format!("tail -n 3 {dir}/day.log"))?),
            };
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns a path for a new archive. Its name consists of the date and the host. If a file with that name exists, a
/// number is added.
fn archive(dir: &Path, date: &str, host: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let host: String = host.chars().map(plain).collect();
    let path = |tail: &str| dir.join(format!("{date}-{host}{tail}.tar.gz"));
    let numbered = (2..).map(|n: u32| path(&format!("-{n}")));
    std::iter::once(path("")).chain(numbered).find(|path| !path.exists()).unwrap_or_else(|| path(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_hash_depends_on_names_and_contents() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| files::write(&folder.path().join(name), text).unwrap();
        put("a", "1");
        put("b/c", "2");
        let first = digest(folder.path()).unwrap();
        assert!(first.len() == 16 && digest(folder.path()).unwrap() == first);
        put("b/c", "3");
        assert_ne!(digest(folder.path()).unwrap(), first);
        assert_eq!(kib(folder.path()).unwrap(), 8);
    }

    #[test]
    fn archives_are_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let next = || archive(folder.path(), "2026-01-02", "a b");
        assert!(next().ends_with("2026-01-02-a_b.tar.gz"));
        files::write(&next(), "").unwrap();
        assert!(next().ends_with("2026-01-02-a_b-2.tar.gz"));
    }

    #[test]
    fn every_step_has_a_group_a_limit_needs_and_a_command() {
        let (_, script) = SCRIPTS[1];
        let output = Command::new("sh").arg("-c").arg(format!("{script}\nsteps")).output().unwrap();
        let table = String::from_utf8(output.stdout).unwrap();
        let mut names = Vec::new();
        for line in table.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(words.len() >= 5 && words[2].parse::<u32>().is_ok(), "{line}");
            // Names are put into JSON and into patterns of grep as they are.
            let plain =
                |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            assert!(plain(words[0]) && plain(words[1]) && !names.contains(&words[0]), "{line}");
            names.push(words[0]);
            // The group modes is last. Its steps change the state and run the command of another step.
            let (repeated, again) = (words[1] == "modes", words[4..].join(" "));
            assert!(repeated || !names.iter().any(|name| name.starts_with("other-mode-grid")), "{line}");
            let state =
                words[0].strip_suffix(words[words.len() - 1]).and_then(|state| state.strip_suffix('-'));
            let command = state.map(|state| format!("state {state} perform {}", words[words.len() - 1]));
            assert!(!repeated || (command == Some(again) && words[3].starts_with("root,/usr/")), "{line}");
        }
        assert!(names.len() > 50 && script.contains("@KERNELS@"));
        for name in ["grid-cpu", "half-gpu", "workloads-gpu", "masks-cpu", "streams-gpu"] {
            for state in ["", "locked-", "other-mode-", "other-mode-locked-"] {
                let name = format!("{state}{name}");
                assert!(names.contains(&name.as_str()), "{name}");
            }
        }
    }
}
