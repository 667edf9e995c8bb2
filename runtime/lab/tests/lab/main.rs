//! Tests of the laboratory. They form a single program, so that their shared code is compiled and linked only once.
#![allow(clippy::unwrap_used)]

mod bench_series;
mod board_report;
mod depth_curve;
mod predict;
mod simulate;
mod study;

use std::path::PathBuf;
use std::process::{Command, Output};

/// A temporary folder in which the laboratory is called.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn call(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_elsa-lab"));
        command.args(line.split_whitespace()).current_dir(self.0.path()).output().unwrap()
    }

    /// Calls the laboratory, requires success, and returns the standard output.
    fn ok(&self, line: &str) -> String {
        let output = self.call(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Requires that a call is refused with a single line of output. The line must begin with the program's name and
    /// contain all `words`.
    fn refused(&self, line: &str, words: &[&str]) {
        let output = self.call(line);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{line}: {text}");
        assert!(output.stdout.is_empty() && text.starts_with("elsa-lab: "), "{line}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{line}: {text}");
    }

    /// Lists the names of the files in the folder, sorted.
    fn list(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Requires that every element of the page is closed in the correct order, and that the page loads no other file.
fn assert_alone(page: &str) {
    for fetch in ["<script", "http:", "https:", "src=", "@import", "url(", "<link"] {
        assert!(!page.contains(fetch), "{fetch}");
    }
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("an element ends");
        let tag = &rest[start + 1..end];
        let name = |tag: &str| tag.split([' ', '\n']).next().unwrap_or_default().len();
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "{closed}"),
            None if tag.ends_with('/') => {}
            None => open.push(&tag[..name(tag)]),
        }
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
}
