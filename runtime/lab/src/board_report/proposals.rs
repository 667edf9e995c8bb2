//! Proposed changes of a board's files, and what remains unknown.

use super::archive::{Archive, word};
use super::section::Section;
use super::speed::{Cell, Fit};
use crate::predict::{assumed, milliseconds};
use elsa_cli::bench::{DIM, GRID};
use elsa_cli::shape::Shape;
use elsa_core::dtype::DType;
use elsa_targets::{Board, profile_text};
use std::fmt::Write;

/// Questions that only a board can answer, each with the step that answers it.
const QUESTIONS: [(&str, &str); 25] = [
    ("sensors", "the files of /sys that this system denies"),
    ("info", "whether the sensors are recognised, and the group of the GPU's device files is enough"),
    ("calls", "whether NEON on this processor gives certified answers"),
    ("bits-cpu", "whether the bits of NEON are those of the emulator"),
    ("load-cold", "the time in which the driver compiles the kernels"),
    ("conformance", "whether the GPU's answers are certified"),
    ("fallback", "whether the CPU computes if the driver fails"),
    ("grid-gpu", "latencies of the GPU"),
    ("grid-cpu", "latencies of the processor"),
    ("baseline-cpu", "the ratio to memory-efficient attention of one row at a time, on the processor"),
    ("tune-cpu", "the fastest blocks, tiles and workers of the processor"),
    ("masks-gpu", "latencies of masks on the GPU"),
    ("masks-cpu", "latencies of masks on the processor"),
    ("streams-gpu", "latencies of streams through the GPU's memory"),
    ("streams-cpu", "latencies of streams on the processor"),
    ("locked", "latencies with fixed clocks"),
    ("other-mode", "latencies in another power mode"),
    ("locked-grid-gpu", "the paper's grid with fixed clocks"),
    ("other-mode-grid-gpu", "the paper's grid in another power mode"),
    ("other-mode-locked-grid-gpu", "the paper's grid in another power mode with fixed clocks"),
    ("energy-gpu", "energy of a call, and whether the total power includes the GPU's rail"),
    ("soak", "drift, heat and throttling in ten minutes"),
    ("python", "elsa.py in the board's Python"),
    ("onnx-gpu", "the operator in the board's ONNX Runtime"),
    ("camera", "frames of a camera"),
];
/// Beginnings of the names of chips that the library reads.
const READ: [&str; 2] = ["ina3221", "soctherm_oc"];

/// Returns the proposals and the open questions.
pub fn sections(board: &Board, day: &Archive, cells: &[Cell], fit: Option<Fit>) -> [Section; 4] {
    let mut rows = Section::new("Rows for board.md");
    rows.block = table(board, cells);
    let mut patch = Section::new("Patch of profile.toml, for git apply --unidiff-zero");
    // The times of an emulator say nothing about the board.
    let fit = fit.filter(|_| !day.emulated);
    patch.block = fit.and_then(|fit| patched(board, fit)).unwrap_or_default();
    [rows, patch, unread(day), unknown(day)]
}

/// Formats the rows of the table of latencies: tokens, predicted and measured milliseconds, and the paper's.
fn table(board: &Board, cells: &[Cell]) -> String {
    let mut text = String::new();
    for tokens in GRID {
        let shape = Shape::plain(1, 1, tokens, tokens, DIM);
        let of = |backend: &str| {
            let same = |cell: &&Cell| {
                cell.step.starts_with("grid-")
                    && cell.backend == backend
                    && cell.method == "elsa"
                    && cell.dtype == DType::F32.name()
                    && cell.shape == shape.to_string()
            };
            cells.iter().find(same)
        };
        let (gpu, cpu) = (of("cuda"), of("neon"));
        if gpu.is_none() && cpu.is_none() {
            continue;
        }
        let shown = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.3}"));
        let predicted = milliseconds(board, assumed(board), &shape, DType::F32, false);
        let published = gpu.or(cpu).and_then(|cell| cell.published(board));
        let numbers = [predicted, gpu.map(|cell| cell.ms), cpu.map(|cell| cell.ms), published].map(shown);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {tokens} | {} |", numbers.join(" | "));
    }
    if text.is_empty() {
        return text;
    }
    format!("| tokens | predicted | GPU | NEON | paper: ELSA |\n|---|---|---|---|---|\n{text}")
}

/// Returns the patch that writes the fitted assumptions into the board's profile; `None` if the profile has none.
fn patched(board: &Board, fit: Fit) -> Option<String> {
    let path = format!("targets/{}/profile.toml", board.name);
    let [launch_us, efficiency] = fit.assumed;
    let new = [
        ("launch_us = ", format!("launch_us = {launch_us:.1}")),
        ("efficiency = ", format!("efficiency = {efficiency:.2}")),
    ];
    let mut hunks = String::new();
    for (number, line) in (1..).zip(profile_text(&board.name)?.lines()) {
        let Some((_, to)) = new.iter().find(|(key, to)| line.starts_with(key) && line != to) else {
            continue;
        };
        // Writing to a string cannot fail.
        let _ = write!(hunks, "@@ -{number} +{number} @@\n-{line}\n+{to}\n");
    }
    (!hunks.is_empty()).then(|| format!("--- a/{path}\n+++ b/{path}\n{hunks}"))
}

/// Lists the sensors that the system has and the library does not read.
fn unread(day: &Archive) -> Section {
    let mut section = Section::new("Sensors that are not read");
    section.head = vec!["file", "content"];
    let text = day.text("sensors.tsv");
    for (path, value) in text.lines().filter_map(|line| line.split_once('\t')) {
        let chip = path.starts_with("/sys/class/hwmon/") && path.ends_with("/name");
        let read = READ.iter().any(|name| value.starts_with(name));
        if value == "-" || (chip && !read) {
            section.rows.push(vec![path.to_owned(), value.to_owned()]);
        }
    }
    let info = day.first("info");
    let zones = info["machine"]["zones_left_out"].as_array().into_iter().flatten();
    section.rows.extend(
        zones.map(|zone| vec!["a thermal zone".to_owned(), zone.as_str().unwrap_or_default().to_owned()]),
    );
    section
}

/// Lists the questions that the day has not answered, with the reason.
fn unknown(day: &Archive) -> Section {
    let mut section = Section::new("What remains unknown");
    section.head = vec!["question", "step", "reason"];
    let open = QUESTIONS.iter().filter(|(step, _)| day.emulated || !day.done(step));
    section.rows = open
        .map(|(step, question)| {
            let found = day.steps.iter().find(|found| found.id == *step);
            let reason = match found {
                None => "did not run".to_owned(),
                Some(found) if found.result == "done" => "emulated".to_owned(),
                Some(found) => format!("{}: {}", found.result, day.said(step)),
            };
            vec![(*question).to_owned(), (*step).to_owned(), reason]
        })
        .collect();
    let notes = day.first("info");
    let notes = notes["machine"]["notes"].as_array().into_iter().flatten();
    section.words.extend(notes.filter_map(|note| Some(format!("elsa info: {}.", note.as_str()?))));
    if day.done("info") && word(&day.first("info")["machine"], "target") != day.target {
        section.words.push(format!("The machine is not recognised as {}.", day.target));
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_changes_two_lines_of_the_profile() {
        let board = Board::named("jetson-tx2").unwrap();
        let fit = Fit { assumed: [12.34, 0.777], error: 0.0, before: 0.0, rows: 9 };
        let patch = patched(&board, fit).unwrap();
        assert!(patch.starts_with(
            "--- a/targets/jetson-tx2/profile.toml\n+++ b/targets/jetson-tx2/profile.toml\n@@ -"
        ));
        for line in ["-launch_us = 10.0", "+launch_us = 12.3", "-efficiency = 0.9", "+efficiency = 0.78"] {
            assert!(patch.lines().any(|found| found == line), "{line}: {patch}");
        }
        assert_eq!(patch.lines().count(), 8);
        let [launch_us, efficiency] = assumed(&board);
        let same = Fit { assumed: [launch_us, efficiency], ..fit };
        // 0.9 is written as 0.90.
        assert_eq!(patched(&board, same).map_or(0, |patch| patch.lines().count()), 5);
    }
}
