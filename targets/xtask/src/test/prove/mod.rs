//! `cargo xtask test --prove`: plants the faults of `tests/faults`, one after another, in a copy of the commit, and
//! requires that each turns its stage red.
//!
//! A patch that does not apply is a failure, so patches must follow the code. Three other cases are failures too: a
//! fault that does not compile, a fault that nothing detects, and a command that is red without the fault. The copy is
//! in `target/prove/tree` and keeps its build products, so that a fault costs only the rebuild of its change. Results
//! are kept by commit, and an interrupted run is resumed.

mod command;
mod fault;
mod kept;

use crate::shell::{Output, Run, Tree};
use command::Command;
use fault::Fault;
use kept::Kept;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Arguments of a proof.
#[derive(clap::Args, Default)]
pub struct Asked {
    /// Plant all faults of tests/faults, or the given ones, and require that each turns its stage red.
    #[arg(long, num_args = 0.., value_name = "FAULT", conflicts_with_all = ["fast", "all", "only", "list"])]
    prove: Option<Vec<String>>,
    /// Run every stage of the short run for each fault of --prove.
    #[arg(long, requires = "prove")]
    whole: bool,
}

impl Asked {
    /// Returns true if a proof is requested.
    pub fn is_some(&self) -> bool {
        self.prove.is_some()
    }
}

/// Folders of installed tools that the copy shares with the tree.
const SHARED: [&str; 9] = [
    "venv",
    "deny-venv",
    "digits-venv",
    "ort-venv",
    "ort36-venv",
    "onnxruntime",
    "cmake",
    "ptxas",
    "nvdisasm",
];

/// A row of the summary table. It contains the result for one fault.
struct Row {
    name: String,
    stage: String,
    run: String,
    seconds: f64,
    /// The stage that turned red, or the reason why the run proves nothing.
    found: Result<String, String>,
}

/// Plants the requested faults, and prints a table.
pub fn run(tree: &Tree, asked: &Asked) -> ExitCode {
    let named = asked.prove.as_deref().unwrap_or_default();
    let begin = || Ok::<_, String>((Fault::named(tree, named)?, Copy::of(tree)?));
    let (faults, copy) = match begin() {
        Ok(both) => both,
        Err(error) => {
            eprintln!("xtask: {error}");
            return ExitCode::from(2);
        }
    };
    println!("{} faults to plant in {} of {}", faults.len(), copy.commit, copy.tree.root.display());
    let mut kept = Kept::read(tree, &copy.commit);
    let rows: Vec<Row> = faults.iter().map(|fault| copy.prove(fault, asked.whole, &mut kept)).collect();
    println!("\n{:<20}{:<7}{:>8}  what turned red, and the command", "fault", "stage", "seconds");
    for row in &rows {
        let found = row.found.as_ref().map_or_else(|why| format!("NOT PROVED: {why}"), Clone::clone);
        println!("{:<20}{:<7}{:>8.1}  {found}\n{:<37}{}", row.name, row.stage, row.seconds, "", row.run);
    }
    let passed = rows.iter().filter(|row| row.found.is_ok()).count();
    println!("{passed} passed, {} failed", rows.len() - passed);
    if passed == rows.len() && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A copy of the commit, in which faults are planted.
struct Copy {
    tree: Tree,
    commit: String,
}

impl Copy {
    /// Creates the copy in the state of the commit, without leftovers of an interrupted run.
    fn of(tree: &Tree) -> Result<Copy, String> {
        let root = tree.target.join("prove/tree");
        let git = |dir: &Path, line: &str| Run::new(tree, "git").args(line).dir(dir).quiet();
        let done = |run: Run| {
            let line = run.line();
            run.run().text(&line)
        };
        let commit = done(git(&tree.root, "rev-parse --short=12 HEAD"))?.trim().to_owned();
        if !root.join(".git").exists() {
            done(git(&tree.root, "clone --quiet --shared --no-checkout .").arg(&root))?;
        }
        done(git(&root, "fetch --quiet origin HEAD"))?;
        done(git(&root, "checkout --quiet --force --detach").arg(&commit))?;
        // Ignored files, which include the build products, are kept.
        done(git(&root, "clean --quiet -d --force"))?;
        let copy = Copy { tree: Tree { target: root.join("target"), root }, commit };
        copy.share(tree)?;
        Ok(copy)
    }

    /// Links the folders [`SHARED`] of the tree into the copy.
    fn share(&self, tree: &Tree) -> Result<(), String> {
        std::fs::create_dir_all(&self.tree.target)
            .map_err(|error| format!("{}: {error}", self.tree.target.display()))?;
        for name in SHARED {
            let (from, to) = (tree.target.join(name), self.tree.target.join(name));
            if from.is_dir() && !to.exists() {
                std::os::unix::fs::symlink(&from, &to)
                    .map_err(|error| format!("{}: {error}", to.display()))?;
            }
        }
        Ok(())
    }

    /// Plants a fault, or returns the outcome of an earlier run.
    fn prove(&self, fault: &Fault, whole: bool, kept: &mut Kept) -> Row {
        let (run, key) = match whole {
            true => ("cargo xtask test".to_owned(), format!("whole {}", fault.digest)),
            false => (fault.run.clone(), fault.digest.clone()),
        };
        println!("\n[{}] {}", fault.name, fault.what);
        let row = |seconds, found| Row {
            name: fault.name.clone(),
            stage: fault.stage.clone(),
            run: run.clone(),
            seconds,
            found,
        };
        if let Some((seconds, red)) = kept.found(&key) {
            println!("found before: {red}");
            return row(seconds, Ok(red));
        }
        let sound = match whole {
            true => Ok(()),
            false => self.is_green(fault, kept),
        };
        let start = Instant::now();
        let found = sound.and_then(|()| self.planted(fault, whole));
        let seconds = start.elapsed().as_secs_f64();
        match &found {
            Ok(red) => kept.keep(&key, seconds, red),
            Err(why) => println!("not proved: {why}"),
        }
        row(seconds, found)
    }

    /// Requires that the command of a fault passes without the fault. If the command failed without the fault, a red
    /// result would prove nothing.
    fn is_green(&self, fault: &Fault, kept: &mut Kept) -> Result<(), String> {
        let key = format!("without {}", fault.run);
        if kept.found(&key).is_some() {
            return Ok(());
        }
        let start = Instant::now();
        let out = self.command(fault)?;
        if !out.ok {
            show(&out);
            return Err(format!("its command fails without the fault, too: {}", out.how));
        }
        kept.keep(&key, start.elapsed().as_secs_f64(), "green");
        Ok(())
    }

    /// Applies a fault, runs its command, and reverts the fault.
    fn planted(&self, fault: &Fault, whole: bool) -> Result<String, String> {
        let apply = |line: &str| {
            let run = Run::new(&self.tree, "git apply").args(line).arg(&fault.patch).quiet();
            run.run().text("the patch does not apply")
        };
        apply("")?;
        let done =
            if whole { self.whole(fault) } else { self.command(fault).and_then(|out| red(fault, &out)) };
        apply("--reverse")?;
        done
    }

    /// Runs the build steps of a fault's command and then the command.
    fn command(&self, fault: &Fault) -> Result<Output, String> {
        let Command { build, run } = Command::of(&self.tree, &fault.run)?;
        for build in build {
            let line = build.line();
            println!("$ {line}");
            let out = build.quiet().run();
            if !out.ok {
                show(&out);
                return Err(format!("does not compile: {line}"));
            }
        }
        println!("$ {}", run.line());
        Ok(run.limit(command::LIMIT).quiet().run())
    }

    /// Runs every stage of the short run. The fault's stage must fail with the text that the fault declares.
    fn whole(&self, fault: &Fault) -> Result<String, String> {
        let out = Run::new(&self.tree, "cargo xtask test").machine().run();
        let line = out.stdout.lines().rfind(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(&fault.stage) && words.next() == Some("FAILED")
        });
        let Some(line) = line.filter(|_| !out.ok) else {
            return Err(format!("the stage {} did not fail: {}", fault.stage, out.how));
        };
        match out.stdout.contains(&fault.red) {
            true => Ok(line.split_whitespace().collect::<Vec<_>>().join(" ")),
            false => Err(format!("the stage {} failed without '{}'", fault.stage, fault.red)),
        }
    }
}

fn show(out: &Output) {
    println!("{}{}", out.stderr, out.stdout);
}

/// Searches the output of a failed command for the expected text of the fault, [`Fault::red`]. Returns the line that
/// contains it.
///
/// # Errors
/// Returns the reason why the run proves nothing: the command passed, did not end, or failed for another reason than
/// the fault.
fn red(fault: &Fault, out: &Output) -> Result<String, String> {
    if out.ok {
        return Err("GREEN: nothing noticed it".to_owned());
    }
    let lines = || out.stdout.lines().chain(out.stderr.lines()).map(str::trim);
    let of_fault = |line: &&str| line.contains(&fault.red);
    let is_test = |line: &str| line.starts_with("test ");
    let failed = |line: &&str| {
        of_fault(line) && (is_test(line) && line.ends_with("FAILED") || line.starts_with("---- "))
    };
    // Lines of tests that pass or are ignored prove nothing.
    let other = || lines().filter(|line| !is_test(line)).find(of_fault);
    match lines().find(failed).or_else(other) {
        Some(line) => {
            let line = line.trim_start_matches("test ").trim_start_matches("---- ");
            Ok(line.trim_end_matches(" ... FAILED").chars().take(120).collect())
        }
        None => {
            show(out);
            Err(format!("{}, without '{}'", out.how, fault.red))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree::find().unwrap()
    }

    #[test]
    fn every_fault_can_be_planted() {
        let tree = tree();
        let faults = Fault::named(&tree, &[]).unwrap();
        assert!(!faults.is_empty());
        for fault in &faults {
            let check =
                |line: &str| Run::new(&tree, "git apply --check").args(line).arg(&fault.patch).quiet().run();
            let out = check("");
            // If this tree is a copy in which the fault is planted, the patch must be revertible instead.
            assert!(out.ok || check("--reverse").ok, "{}: {}", fault.name, out.stderr);
            Command::check(&fault.run).unwrap_or_else(|why| panic!("{}: {why}", fault.name));
        }
    }

    #[test]
    fn red_is_a_failure_by_what_the_fault_names() {
        let fault = Fault {
            name: "a".to_owned(),
            patch: "a.patch".into(),
            digest: String::new(),
            what: "b".to_owned(),
            stage: "host".to_owned(),
            run: "test".to_owned(),
            red: "x::y".to_owned(),
        };
        let out = |ok: bool, stdout: &str| Output {
            ok,
            code: Some(i32::from(!ok)),
            how: "exit status: 1".to_owned(),
            stdout: stdout.to_owned(),
            stderr: String::new(),
        };
        assert_eq!(red(&fault, &out(false, "see x::y\ntest x::y ... FAILED\n")).as_deref(), Ok("x::y"));
        assert_eq!(red(&fault, &out(false, "ERROR: in x::y\n")).as_deref(), Ok("ERROR: in x::y"));
        assert!(red(&fault, &out(true, "test x::y ... ok\n")).unwrap_err().contains("GREEN"));
        let another = "test x::y ... ok\ntest x::y_2 ... ignored, slow\ntest z ... FAILED\n";
        assert!(red(&fault, &out(false, another)).unwrap_err().contains("without 'x::y'"));
        assert!(red(&fault, &out(false, "test z ... FAILED\n")).unwrap_err().contains("without 'x::y'"));
    }

    /// Plants two faults in a repository with one file: a fault that the command detects, and a fault that the command
    /// does not detect.
    #[test]
    fn a_fault_is_planted_found_and_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree { root: dir.path().to_owned(), target: dir.path().join("target") };
        let git = |line: &str| {
            let who = "-c user.name=a -c user.email=a@example.org";
            assert!(Run::new(&tree, &format!("git {who}")).args(line).quiet().run().ok, "{line}");
        };
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        git("init --quiet");
        write("file", "good\n");
        write(".gitignore", "target\n");
        git("add file .gitignore");
        git("commit --quiet -m first");
        let patch = |from: &str, to: &str| format!("--- a/file\n+++ b/file\n@@ -1 +1 @@\n-{from}\n+{to}\n");
        let fault = |name: &str, diff: &str| {
            write(&format!("{name}.patch"), diff);
            Fault {
                name: name.to_owned(),
                patch: dir.path().join(format!("{name}.patch")),
                digest: name.to_owned(),
                what: String::new(),
                stage: "host".to_owned(),
                run: "check file".to_owned(),
                red: "not good".to_owned(),
            }
        };
        let copy = Copy::of(&tree).unwrap();
        let apply = |fault: &Fault| {
            copy.planted(fault, false).map_err(|why| why.lines().next().unwrap_or_default().to_owned())
        };
        assert_eq!(apply(&fault("seen", &patch("good", "bad"))).as_deref(), Ok("not good: bad"));
        assert!(apply(&fault("unseen", &patch("good", "good "))).unwrap_err().contains("GREEN"));
        assert!(apply(&fault("old", &patch("worse", "bad"))).unwrap_err().contains("does not apply"));
        let copied = copy.tree.root.join("file");
        assert_eq!(std::fs::read_to_string(&copied).unwrap(), "good\n");
        // Leftovers of an interrupted run are removed.
        std::fs::write(&copied, "bad\n").unwrap();
        Copy::of(&tree).unwrap();
        assert_eq!(std::fs::read_to_string(&copied).unwrap(), "good\n");
        let mut kept = Kept::read(&tree, &copy.commit);
        let seen = fault("seen", &patch("good", "bad"));
        assert!(copy.prove(&seen, false, &mut kept).found.is_ok());
        assert!(Kept::read(&tree, &copy.commit).found("seen").is_some());
        assert!(Kept::read(&tree, "another").found("seen").is_none());
    }
}
