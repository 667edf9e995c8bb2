//! The records and outputs of a board day.
//!
//! The results come from another machine, where a step may have been killed at any byte. So a line that is not JSON is
//! counted and left out, and a value of another type counts as absent.

use elsa_cli::error::Error;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum size of a file that is read.
const LONGEST: u64 = 64 << 20;

/// A recorded step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Name.
    pub id: String,
    /// `done`, `failed`, `late`, `absent`, `abandoned`, or `skipped` if no time was left.
    pub result: String,
    /// Duration.
    pub seconds: u64,
}

impl Step {
    /// Returns whether the step is neither done nor absent nor skipped.
    pub fn failed(&self) -> bool {
        !matches!(self.result.as_str(), "done" | "absent" | "skipped")
    }
}

/// The results of a board day.
#[derive(Debug, Default)]
pub struct Archive {
    folder: PathBuf,
    /// Name of the target for which the folder was built.
    pub target: String,
    /// Hash of the folder that ran.
    pub release: String,
    /// `true` if the processor is emulated.
    pub emulated: bool,
    /// `true` if the measurements are few and short.
    pub quick: bool,
    /// `true` if the day ran as root.
    pub root: bool,
    /// Steps of the last release, in the order of their records.
    pub steps: Vec<Step>,
    /// Faults of the records.
    pub damage: Vec<String>,
}

/// Returns the string `key` of an object; empty if it is missing.
pub fn word(line: &Value, key: &str) -> String {
    line[key].as_str().unwrap_or_default().to_owned()
}

/// Returns the text of a file; empty if it cannot be read or is too long. Bytes that are not UTF-8 are replaced.
fn text(path: &Path) -> String {
    let short = path.metadata().is_ok_and(|data| data.is_file() && data.len() <= LONGEST);
    let bytes = if short { fs::read(path).unwrap_or_default() } else { Vec::new() };
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses lines of JSON. Also returns the number of lines that are not JSON.
fn parsed(text: &str) -> (Vec<Value>, usize) {
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str).collect();
    let bad = lines.iter().filter(|line| line.is_err()).count();
    (lines.into_iter().flatten().collect(), bad)
}

impl Archive {
    /// Reads the folder of a day.
    ///
    /// # Errors
    /// Returns an error if the folder contains no record of a run.
    pub fn read(folder: &Path) -> Result<Archive, Error> {
        let (lines, bad) = parsed(&text(&folder.join("steps.jsonl")));
        let Some(last) = lines.iter().rfind(|line| line["what"] == "run") else {
            return Err(Error::Argument {
                argument: "DIR",
                found: format!("{}: no record of a run", folder.display()),
                allowed: "the folder day of an archive that board-day.sh has made".into(),
            });
        };
        let flag = |key: &str| last[key] == true;
        let mut day = Archive {
            folder: folder.to_owned(),
            target: word(last, "target"),
            release: word(last, "release"),
            emulated: flag("emulated"),
            quick: flag("quick"),
            root: flag("root"),
            ..Archive::default()
        };
        if bad > 0 {
            day.damage.push(format!("steps.jsonl: {bad} lines are not JSON"));
        }
        let mut begun = BTreeSet::new();
        for line in lines.iter().filter(|line| word(line, "release") == day.release) {
            let id = word(line, "id");
            match line["what"].as_str() {
                Some("begin") => _ = begun.insert(id),
                Some("step") => {
                    begun.remove(&id);
                    let seconds = line["seconds"].as_u64().unwrap_or_default();
                    day.steps.retain(|step| step.id != id);
                    day.steps.push(Step { id, result: word(line, "result"), seconds });
                }
                _ => {}
            }
        }
        day.damage.extend(begun.into_iter().map(|id| format!("{id}: began and has not ended")));
        let gone = |step: &&Step| step.result == "done" && !day.file(&step.id, "out").is_file();
        let gone = day.steps.iter().filter(gone).map(|step| format!("{}: its output is missing", step.id));
        let gone: Vec<String> = gone.collect();
        day.damage.extend(gone);
        Ok(day)
    }

    fn file(&self, step: &str, extension: &str) -> PathBuf {
        self.folder.join(format!("{step}.{extension}"))
    }

    /// Returns whether a step is done.
    pub fn done(&self, step: &str) -> bool {
        self.steps.iter().any(|found| found.id == step && found.result == "done")
    }

    /// Returns the text of a file in the folder; empty without such a file.
    pub fn text(&self, name: &str) -> String {
        text(&self.folder.join(name))
    }

    /// Returns the JSON lines that a step has printed.
    pub fn lines(&self, step: &str) -> Vec<Value> {
        parsed(&text(&self.file(step, "out"))).0
    }

    /// Returns the first JSON line that a step has printed; null without such a line.
    pub fn first(&self, step: &str) -> Value {
        self.lines(step).into_iter().next().unwrap_or_default()
    }

    /// Returns the last line that a step has written to standard error.
    pub fn said(&self, step: &str) -> String {
        text(&self.file(step, "err"))
            .lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or_default()
            .to_owned()
    }

    /// Returns the numbers of passed and failed tests that libtest has printed in a step.
    pub fn tests(&self, step: &str) -> (u64, u64) {
        let text = text(&self.file(step, "out"));
        let results = text.lines().filter_map(|line| line.strip_prefix("test result: "));
        results.fold((0, 0), |sum, line| {
            let of = |name: &str| -> u64 {
                let words: Vec<&str> = line.split([' ', ';', '.']).filter(|word| !word.is_empty()).collect();
                let found = words.windows(2).find(|pair| pair[1] == name);
                found.and_then(|pair| pair[0].parse().ok()).unwrap_or_default()
            };
            (sum.0 + of("passed"), sum.1 + of("failed"))
        })
    }
}
