//! Outcomes of stages: the process of a stage reports its outcome to the process that started it. That process stores the
//! outcome under a hash of the tree, so that a long run resumes where it was interrupted.

use crate::shell::{Run, Tree};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// File with the hashes of the guarded files, which a long run writes into the tree.
pub const FILE: &str = "targets/guards.toml";

/// Outcome of a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Number of passed checks.
    pub passed: u64,
    /// Number of failed checks; at least one if the stage failed.
    pub failed: u64,
    /// The counts as text, with a remark.
    pub summary: String,
    /// Reasons why the stage failed; empty if it passed.
    pub faults: Vec<String>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Processor seconds that the stage used.
    pub processor_seconds: f64,
    /// Number of minutes that were requested for a search.
    pub minutes: u64,
}

impl Outcome {
    /// Creates the outcome of a stage that ended without reporting an outcome.
    pub fn untold(how: &str) -> Outcome {
        let faults = vec![format!("ended without a result: {how}")];
        Outcome { failed: 1, summary: "no result".to_owned(), faults, ..Outcome::default() }
    }

    /// Returns whether the stage passed.
    pub fn good(&self) -> bool {
        self.faults.is_empty() && self.failed == 0 && self.passed > 0
    }

    /// Formats the outcome of stage `name` as a row of the summary table, in the columns of [`heading`].
    pub fn line(&self, name: &str) -> String {
        let result = if self.good() { "ok" } else { "FAILED" };
        let (seconds, processor_seconds) = (self.seconds, self.processor_seconds);
        format!("{name:<10}{result:<8}{:<50}{seconds:>8.1}{processor_seconds:>12.0}", self.summary)
    }
}

/// Returns the heading of the summary table.
pub fn heading() -> String {
    format!("{:<10}{:<8}{:<50}{:>8}{:>12}", "stage", "result", "counted", "seconds", "processors")
}

/// Reads a file that [`keep`] wrote; `None` if it is missing or has a different version.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes a file atomically.
pub fn keep(path: &Path, value: &impl Serialize) -> Result<(), String> {
    let part = path.with_extension("part");
    let write = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        fs::write(&part, serde_json::to_vec(value)?)?;
        fs::rename(&part, path)
    };
    write().map_err(|error: std::io::Error| format!("{}: {error}", path.display()))
}

/// Returns git's hash of the working tree, including uncommitted changes. Ignored files, and files that a long run writes, do
/// not count. Returns `None` outside a checkout.
pub fn content(tree: &Tree) -> Option<String> {
    let git = |line: &str| Run::new(tree, line).quiet();
    let index = git("git rev-parse --git-path index").run();
    let copy = tree.target.join(format!("index-{}", std::process::id()));
    fs::create_dir_all(&tree.target).ok()?;
    fs::copy(tree.root.join(index.stdout.trim()), &copy).ok()?;
    let name = || {
        let git = |line: &str| git(line).env("GIT_INDEX_FILE", &copy).run();
        git("git add --all").ok.then_some(())?;
        git(&format!("git rm --quiet --cached --ignore-unmatch {}", FILE)).ok.then_some(())?;
        let out = git("git write-tree");
        out.ok.then(|| out.stdout.trim().to_owned())
    };
    let name = name();
    // An error is ignored: a copy that is not removed does no harm.
    let _ = fs::remove_file(&copy);
    name.filter(|name| !name.is_empty())
}

/// Results for the current content of the tree, and the latest duration of each stage.
pub struct Results {
    folder: PathBuf,
    content: Option<String>,
}

impl Results {
    /// Hashes the tree in its present state.
    pub fn of(tree: &Tree) -> Results {
        Results { folder: tree.target.join("test-results"), content: content(tree) }
    }

    fn path(&self, stage: &str) -> Option<PathBuf> {
        Some(self.folder.join(self.content.as_ref()?).join(format!("{stage}.json")))
    }

    /// Returns the recorded outcome of `stage` for this content of the tree. Returns `None` if the stage did not pass,
    /// or if fewer than `minutes` minutes were requested for it.
    pub fn green(&self, stage: &str, minutes: u64) -> Option<Outcome> {
        read(&self.path(stage)?).filter(|outcome: &Outcome| outcome.good() && outcome.minutes >= minutes)
    }

    /// Stores an outcome, unless the tree has changed since [`Results::of`].
    pub fn add(&self, tree: &Tree, stage: &str, outcome: &Outcome) -> Result<(), String> {
        match self.path(stage) {
            Some(path) if self.content == content(tree) => keep(&path, outcome),
            _ => Ok(()),
        }
    }

    /// Returns the seconds that each stage took when it last passed.
    pub fn seconds(&self) -> BTreeMap<String, f64> {
        read(&self.folder.join("seconds.json")).unwrap_or_default()
    }

    /// Stores the duration of a stage.
    pub fn took(&self, stage: &str, seconds: f64) -> Result<(), String> {
        let mut all = self.seconds();
        all.insert(stage.to_owned(), seconds);
        keep(&self.folder.join("seconds.json"), &all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(passed: u64, failed: u64, minutes: u64) -> Outcome {
        Outcome { passed, failed, minutes, ..Outcome::default() }
    }

    #[test]
    fn a_stage_that_counted_nothing_or_told_nothing_is_not_good() {
        assert!(outcome(1, 0, 0).good());
        assert!(!outcome(0, 0, 0).good() && !outcome(1, 1, 0).good() && !Outcome::untold("x").good());
        assert!(!Outcome { faults: vec![String::new()], ..outcome(1, 0, 0) }.good());
    }

    #[test]
    fn results_are_those_of_the_content_that_they_were_made_from() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree { root: dir.path().join("tree"), target: dir.path().join("target") };
        fs::create_dir(&tree.root).unwrap();
        let git = |line: &str| assert!(Run::new(&tree, line).quiet().run().ok, "{line}");
        let results = |wanted: bool| {
            let results = Results::of(&tree);
            assert_eq!(results.content.is_some(), wanted);
            results
        };
        // Outside a checkout, no result is stored.
        let none = results(false);
        none.add(&tree, "host", &outcome(1, 0, 0)).unwrap();
        assert_eq!(none.green("host", 0), None);

        git("git init --quiet");
        fs::write(tree.root.join("a"), "1").unwrap();
        git("git add a");
        let first = results(true);
        first.add(&tree, "fuzz", &outcome(1, 0, 3)).unwrap();
        first.add(&tree, "host", &outcome(1, 1, 0)).unwrap();
        assert_eq!(first.green("fuzz", 3), Some(outcome(1, 0, 3)));
        assert_eq!((first.green("fuzz", 4), first.green("host", 0)), (None, None));
        // Changed content has separate results. When the first content is restored below, its results are found again.
        fs::write(tree.root.join("b"), "2").unwrap();
        assert_eq!(results(true).green("fuzz", 3), None);
        // A result obtained while the tree changed belongs to neither version.
        first.add(&tree, "asan", &outcome(1, 0, 0)).unwrap();
        fs::remove_file(tree.root.join("b")).unwrap();
        // Files that a long run writes do not cause stages to run again.
        fs::create_dir(tree.root.join("targets")).unwrap();
        fs::write(tree.root.join(FILE), "").unwrap();
        assert!(results(true).green("fuzz", 3).is_some() && results(true).green("asan", 0).is_none());
    }
}
