//! Shows the output of a failed stage: the last lines of the commands that the stage's faults name, or the end of the
//! stage's log.

use super::results::Outcome;
use std::path::Path;

/// Maximum number of lines that are shown per command.
const SHOWN: usize = 60;

/// Prints the relevant output of a failed stage, and the path of the full log.
pub fn show(path: &Path, name: &str, outcome: &Outcome) {
    if outcome.good() {
        return;
    }
    let text = std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    for part in ends(&text.unwrap_or_default(), &outcome.faults) {
        println!("{part}");
    }
    for fault in &outcome.faults {
        println!("[{name}] failed: {fault}");
    }
    println!("[{name}] the whole log: {}", path.display());
}

/// Returns the last lines of each command that a fault names, or of the log if there is no such command. A command starts
/// at its line `$ …` and ends before the next.
fn ends(log: &str, faults: &[String]) -> Vec<String> {
    let lines: Vec<&str> = log.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].starts_with("$ ")).collect();
    let mut shown = Vec::new();
    for (i, start) in starts.iter().enumerate() {
        let command = &lines[*start][2..];
        if command.len() > 3 && faults.iter().any(|fault| fault.contains(command)) {
            let end = starts.get(i + 1).copied().unwrap_or(lines.len());
            let from = (start + 1).max(end.saturating_sub(SHOWN));
            shown.push([&[lines[*start]], &lines[from..end]].concat().join("\n"));
        }
    }
    if shown.is_empty() && !lines.is_empty() {
        shown.push(lines[lines.len().saturating_sub(SHOWN)..].join("\n"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_a_fault_names_is_shown_from_its_end() {
        let many: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let log = format!("$ cargo build\nbuilt\n$ cargo test --lib\n{many}$ cargo doc\nlast\n");
        let shown = ends(&log, &["cargo test --lib: a::b: failed".to_owned()]);
        assert_eq!(shown.len(), 1);
        assert!(shown[0].starts_with("$ cargo test --lib\nline 40\n") && shown[0].ends_with("line 99"));
        // For a fault that names no command, the end of the log is shown.
        let shown = ends(&log, &["the folder: missing".to_owned()]);
        assert!(shown.len() == 1 && shown[0].ends_with("$ cargo doc\nlast"));
        assert!(ends("", &["x".to_owned()]).is_empty());
    }
}
