//! `cargo xtask test`: the stages, run one after the other, and in the end in two rows side by side, and counted.

mod absent;
pub mod bounds;
mod capi;
mod cargo;
mod cross;
mod deploy;
mod examples;
mod fuzz;
mod groups;
mod house;
mod links;
mod ort;
mod printed;
pub mod prove;
mod python;
mod readme;
mod release;
mod sanitizers;
mod seeds;
mod stages;
mod tensorrt;
mod vision;
mod workspace;

pub use stages::STAGES;

use crate::shell::{Run, Tree, processor_seconds, side_by_side};
use stages::Stage;
use std::process::ExitCode;
use std::time::Instant;

/// Stages that take turns with one another and not with those of the other list: what these make and run lies in folders
/// of their own. On a machine with two cores or more, a run of all stages goes through both lists at once.
const BESIDE: [&[&str]; 2] = [
    &["cross", "deploy", "capi", "capi-board", "python", "ort", "vision", "examples", "tensorrt", "bounds"],
    &["asan", "capi-asan", "capi-tsan", "tsan", "cuda", "cuda-asan", "cuda-tsan"],
];

/// What the stages of a run came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    /// A line for each stage.
    lines: Vec<String>,
    /// Why stages failed.
    faults: Vec<String>,
    passed: u64,
    failed: u64,
}

/// Runs the stages of these names, or all, or the fast ones; prints a line for each.
pub fn run(tree: &Tree, fast: bool, only: &[String]) -> ExitCode {
    let wanted = |stage: &Stage| {
        if only.is_empty() { !fast || stage.fast } else { only.iter().any(|x| x == stage.name) }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let beside = |name: &str| BESIDE.iter().any(|lane| lane.contains(&name));
    let split = only.is_empty() && !fast && cores > 1;
    let mut account = Account::default();
    let mut good = Vec::new();
    for stage in STAGES.iter().filter(|stage| wanted(stage) && !(split && beside(stage.name))) {
        good.extend(account.add(stage, tree).then_some(stage.name));
    }
    if split {
        for (lane, done) in BESIDE.iter().zip(side_by_side(BESIDE.to_vec(), |lane| in_turn(tree, lane))) {
            good.extend(lane.iter().filter(|name| done.passed(name)));
            account.join(done);
        }
    }
    println!();
    for line in account.faults.iter().chain(&account.lines) {
        println!("{line}");
    }
    // The stage host has built the tool.
    if STAGES.iter().any(|stage| stage.name == "host" && wanted(stage)) {
        let info = Run::new(tree, "").arg(tree.target.join("debug/elsa")).args("info --json").machine().run();
        match info.text("elsa info --json").and_then(|text| absent::not_run(&text, &good)) {
            Ok(absent) => absent.iter().for_each(|line| println!("{line}")),
            Err(fault) => println!("not known what was not run: {fault}"),
        }
    }
    println!("{} passed, {} failed", account.passed, account.failed);
    if account.failed == 0 && account.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs stages one after the other in a process of their own, and shows what it wrote when it has ended.
fn in_turn(tree: &Tree, lane: &[&str]) -> Account {
    let names = lane.join(",");
    println!("\n[{names}] begin, beside the other stages");
    let program = std::env::current_exe().unwrap_or_else(|_| "cargo-xtask".into());
    let out = Run::new(tree, "").arg(program).args("test --only").arg(&names).whole().run();
    match Account::read(&out.stdout, lane) {
        Some(account) if out.ok == (account.failed == 0) => account,
        _ => Account {
            lines: vec![format!("{names}: {}, without an account of every stage", out.how)],
            faults: faults(&out.stdout, lane),
            failed: 1,
            ..Account::default()
        },
    }
}

/// The faults of these stages in what a process printed, each once.
fn faults(printed: &str, stages: &[&str]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in printed.lines() {
        let of = |name: &&str| line.strip_prefix('[')?.strip_prefix(*name)?.strip_prefix("] failed: ");
        if stages.iter().find_map(of).is_some() && !found.iter().any(|known| known == line) {
            found.push(line.to_owned());
        }
    }
    found
}

impl Account {
    /// Runs a stage, prints its faults, and keeps its line. Returns whether it passed.
    fn add(&mut self, stage: &Stage, tree: &Tree) -> bool {
        println!("\n[{}] {}", stage.name, stage.about);
        let (start, worked) = (Instant::now(), processor_seconds());
        let ran = (stage.run)(tree).close();
        for fault in &ran.faults {
            let line = format!("[{}] failed: {fault}", stage.name);
            println!("{line}");
            self.faults.push(line);
        }
        let ok = ran.faults.is_empty();
        self.passed += ran.passed;
        // A stage that failed before any of its tests could counts as one.
        self.failed += ran.failed.max(u64::from(!ok));
        let result = if ok { "ok" } else { "FAILED" };
        let seconds = start.elapsed().as_secs_f64();
        let worked = processor_seconds() - worked;
        let line = format!("{:<12}{result:<8}{:<44}{seconds:>8.1} s", stage.name, ran.summary());
        self.lines.push(format!("{line}{worked:>8.0} s of processors"));
        ok
    }

    /// The account that a process printed of these stages; `None` if it has not every one.
    fn read(printed: &str, stages: &[&str]) -> Option<Account> {
        let (passed, failed) = printed.trim_end().lines().last()?.split_once(" passed, ")?;
        let of = |name: &&str| {
            let line = printed.lines().rfind(|line| line.split_whitespace().next() == Some(*name))?;
            matches!(line.split_whitespace().nth(1), Some("ok" | "FAILED")).then(|| line.to_owned())
        };
        Some(Account {
            lines: stages.iter().map(of).collect::<Option<_>>()?,
            faults: faults(printed, stages),
            passed: passed.parse().ok()?,
            failed: failed.strip_suffix(" failed")?.parse().ok()?,
        })
    }

    /// Whether the stage of this name passed.
    fn passed(&self, name: &str) -> bool {
        self.lines.iter().any(|line| line.split_whitespace().take(2).eq([name, "ok"]))
    }

    /// Adds another account to this one.
    fn join(&mut self, other: Account) {
        self.lines.extend(other.lines);
        self.faults.extend(other.faults);
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_beside_others_are_stages_and_stand_in_one_list() {
        let mut names: Vec<&str> = BESIDE.concat();
        assert!(names.iter().all(|name| STAGES.iter().any(|stage| stage.name == *name)));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn an_account_is_read_as_it_was_printed() {
        let printed = "cross is a word\n[deploy] failed: a\n[other] failed: b\n\n[deploy] failed: a\ncross       ok      3 checks      1.0 s       2 s of processors\n\
                       deploy      FAILED  4 checks, 1 failed   1.0 s       2 s of processors\n6 passed, 1 failed\n";
        let account = Account::read(printed, &["cross", "deploy"]).unwrap();
        assert_eq!((account.passed, account.failed, account.lines.len()), (6, 1, 2));
        assert!(account.passed("cross") && !account.passed("deploy"));
        assert_eq!(account.faults, ["[deploy] failed: a"]);
        for (text, stages) in [
            ("", &["cross"][..]),
            (printed, &["cross", "capi"]),
            ("cross       ok      3 checks\n", &["cross"]),
            ("cross is a word\n6 passed, 0 failed\n", &["cross"]),
        ] {
            assert_eq!(Account::read(text, stages), None, "{text}");
        }
    }
}
