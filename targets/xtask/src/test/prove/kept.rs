//! Results of the proofs for one commit. The results are stored in a file, which is written after each proof.

use crate::shell::Tree;
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// Recorded outcomes of experiments with one commit. An experiment plants a fault, or runs its command without the
/// fault.
pub struct Kept {
    path: PathBuf,
    commit: String,
    all: Map<String, Value>,
}

impl Kept {
    /// Reads the results of earlier runs for this commit. Returns no results if the file contains those of another
    /// commit.
    pub fn read(tree: &Tree, commit: &str) -> Kept {
        let path = tree.target.join("prove/found.json");
        let text = std::fs::read(&path).unwrap_or_default();
        let mut file: Value = serde_json::from_slice(&text).unwrap_or_default();
        let same = file["commit"] == commit;
        let all = file["found"].as_object_mut().filter(|_| same).map(std::mem::take);
        Kept { path, commit: commit.to_owned(), all: all.unwrap_or_default() }
    }

    /// Returns the result of experiment `key`: its seconds, and the stage that turned red.
    pub fn found(&self, key: &str) -> Option<(f64, String)> {
        let found = self.all.get(key)?;
        Some((found["seconds"].as_f64()?, found["red"].as_str()?.to_owned()))
    }

    /// Records that stage `red` failed in experiment `key` after `seconds`. If writing fails, a later run repeats the proof.
    pub fn keep(&mut self, key: &str, seconds: f64, red: &str) {
        self.all.insert(key.to_owned(), json!({ "seconds": seconds, "red": red }));
        let text = json!({ "commit": self.commit, "found": self.all }).to_string();
        let part = self.path.with_extension("part");
        if let Err(error) = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &self.path)) {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}
