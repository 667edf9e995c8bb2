//! Reads the JSON lines that the tool `elsa` prints.

use elsa_targets::{Board, Required};
use serde_json::Value;
use std::collections::BTreeSet;

/// Exit status of `elsa bench` if something disturbed the measurement of a row.
pub const UNCLEAN: i32 = 5;

/// Returns the required kernels of the board that did not run, according to two reports of the tool: `info`, and the
/// `lines` of the measurements.
pub fn missing(board: &Board, info: &Value, lines: &[Value]) -> Vec<String> {
    let backends = info["backends"].as_array().cloned().unwrap_or_default();
    let mut seen: BTreeSet<&str> =
        backends.iter().filter(|x| x["present"] == true).filter_map(|x| x["kernel"].as_str()).collect();
    seen.extend(lines.iter().filter_map(|line| line["kernel"].as_str()));
    let cuda = backends.iter().any(|x| x["name"] == "cuda" && x["present"] == true);
    let gone = |required: &Required| match required {
        Required::Cpu(name) => (!seen.contains(name.as_str())).then(|| format!("cpu {name}")),
        Required::Gpu(name) => (!cuda).then(|| format!("gpu {name} (no back end cuda)")),
    };
    board.required.iter().filter_map(gone).collect()
}

/// Parses a report that contains one JSON value per line.
pub fn lines(text: &str) -> Result<Vec<Value>, String> {
    let parse = |line: &str| serde_json::from_str(line).map_err(|error| format!("not JSON: {line}: {error}"));
    text.lines().filter(|line| !line.trim().is_empty()).map(parse).collect()
}

/// Parses the output of `elsa bench --json` and returns its rows of measurements.
pub fn rows(text: &str) -> Result<Vec<Value>, String> {
    let mut rows = lines(text)?;
    rows.retain(|line| line["what"] == "bench");
    Ok(rows)
}
