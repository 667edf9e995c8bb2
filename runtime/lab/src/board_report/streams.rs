//! Streams: runs whose tensors stay in files while the keys pass in chunks, with the time of the same call in memory.

use super::archive::{Archive, word};
use super::section::Section;
use super::speed::{Cell, shown, steps};
use serde_json::Value;

/// Part of the names of the steps that measure streams.
const STREAMS: &str = "streams-";

/// Lists the streams. Of the runs of a step, the one with the median time is shown.
pub fn section(day: &Archive, cells: &[Cell]) -> Section {
    let mut section = Section::new("Streams");
    section.head = vec![
        "step",
        "shape",
        "back end",
        "keys of a chunk",
        "parts",
        "ms",
        "read ms",
        "computed ms",
        "waited ms",
        "overlap",
        "in memory ms",
        "in memory / stream",
    ];
    let total = |run: &Value| run["total_ms"].as_f64().filter(|ms| *ms > 0.0);
    for step in steps().filter(|step| step.contains(STREAMS)) {
        let mut runs = day.lines(&step);
        runs.retain(|line| line["what"] == "run" && total(line).is_some());
        runs.sort_by(|a, b| total(a).unwrap_or_default().total_cmp(&total(b).unwrap_or_default()));
        let Some(run) = runs.get(runs.len() / 2) else { continue };
        let shape = ["batch", "heads", "queries", "keys", "dim"].map(|key| run["shape"][key].to_string());
        let number = |key: &str, digits: usize| shown(run[key].as_f64(), digits);
        let memory = cells.iter().find(|cell| cell.step == step).map(|cell| cell.ms);
        let ratio = memory.and_then(|ms| Some(ms / total(run)?));
        section.rows.push(vec![
            step,
            shape.join(","),
            word(run, "backend"),
            number("chunk_keys", 0),
            number("parts", 0),
            number("total_ms", 3),
            number("read_ms", 3),
            number("compute_ms", 3),
            number("wait_ms", 3),
            number("overlap_eff", 3),
            shown(memory, 3),
            shown(ratio, 3),
        ]);
    }
    section
}
