//! Latencies: measured, predicted and published.

use super::archive::{Archive, word};
use super::section::Section;
use crate::predict::{Assumed, assumed, milliseconds, paper};
use elsa_cli::picture::{Axis, Picture, Point, Raw, chart};
use elsa_cli::shape::Shape;
use elsa_core::dtype::DType;
use elsa_targets::Board;
use serde_json::Value;
use std::collections::BTreeMap;

/// Steps whose rows are latencies, and that are repeated in every state of [`STATES`].
const STEPS: [&str; 9] = [
    "grid-gpu",
    "grid-cpu",
    "half-gpu",
    "workloads-gpu",
    "workloads-cpu",
    "masks-gpu",
    "masks-cpu",
    "streams-gpu",
    "streams-cpu",
];
/// Other steps whose rows are latencies. Those with the name of a state measure a few shapes.
const ALONE: [&str; 4] = ["single-cpu", "locked", "other-mode", "other-mode-locked"];
/// States of the board. The name of a repeated step begins with that of its state.
const STATES: [&str; 3] = ["other-mode", "locked", "other-mode-locked"];
/// Beginning of the steps in another power mode.
const OTHER_MODE: &str = "other-mode";
/// Beginning of the steps that measure masks.
const MASKS: &str = "masks-";
/// The step whose rows the assumptions are fitted to: plain calls, in the state of the board that the user has chosen.
const FITTED: &str = "grid-gpu";
/// The step whose calls sum short chains of products in f16.
const HALF: &str = "half-gpu";
/// First steps of the search for the assumptions: microseconds, and a fraction of the issue slots.
const FIRST: Assumed = [16.0, 0.2];
/// Number of times that the steps of the search are halved.
const HALVINGS: u32 = 7;
/// Range of the assumptions.
const RANGE: [Assumed; 2] = [[0.0, 0.05], [200.0, 1.0]];
/// Minimum number of rows for a fit of two numbers.
const FEWEST: usize = 6;

/// A measured row.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Name of the step.
    pub step: String,
    /// Shape, in the notation of the tool.
    pub shape: String,
    /// Element type.
    pub dtype: String,
    /// `elsa` or `math`.
    pub method: String,
    /// Name of the back end.
    pub backend: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Median time in milliseconds: of the device on a GPU, else of the call.
    pub ms: f64,
    /// `true` if nothing disturbed the measurement.
    pub clean: bool,
}

impl Cell {
    /// Parses a row of `elsa bench --json`; `None` for a row without a latency, and for other lines.
    fn of(step: &str, line: &Value) -> Option<Cell> {
        let ms = line["device_p50_ms"].as_f64().or_else(|| line["p50_ms"].as_f64()).filter(|ms| *ms > 0.0)?;
        (line["what"] == "bench").then(|| Cell {
            step: step.to_owned(),
            shape: word(line, "shape"),
            dtype: word(line, "dtype"),
            method: word(line, "method"),
            backend: word(line, "backend"),
            kernel: word(line, "kernel"),
            ms,
            clean: line["clean"] == true,
        })
    }

    /// Returns what must be equal in two rows that are compared.
    pub fn key(&self) -> [&str; 5] {
        [&self.step, &self.shape, &self.dtype, &self.method, &self.backend].map(String::as_str)
    }

    /// Returns the shape and the element type; `None` if they are unknown to this version.
    fn case(&self) -> Option<(Shape, DType)> {
        let types = [DType::F32, DType::F16, DType::Bf16];
        Some((self.shape.parse().ok()?, types.into_iter().find(|dtype| dtype.name() == self.dtype)?))
    }

    /// Returns the predicted milliseconds; `None` without a prediction. The profile has the clocks of one power mode,
    /// so calls in another mode have none.
    fn predicted(&self, board: &Board, assumed: Assumed) -> Option<f64> {
        let ours = self.backend == "cuda" && self.method == "elsa" && !self.step.starts_with(OTHER_MODE);
        let (shape, dtype) = self.case().filter(|_| ours)?;
        milliseconds(board, assumed, &shape, dtype, self.step.ends_with(HALF))
    }

    /// Returns the paper's milliseconds; `None` if the paper has no such call.
    pub fn published(&self, board: &Board) -> Option<f64> {
        let (shape, dtype) = self.case()?;
        let [elsa, math] = paper(&board.name, &shape, dtype)?;
        Some(if self.method == "elsa" { elsa } else { math })
    }
}

/// Returns the names of all steps whose rows are latencies, with their repetitions.
pub fn steps() -> impl Iterator<Item = String> {
    let repeated = STATES.into_iter().flat_map(|state| STEPS.map(|step| format!("{state}-{step}")));
    STEPS.into_iter().chain(ALONE).map(str::to_owned).chain(repeated)
}

/// Returns all measured rows.
pub fn cells(day: &Archive) -> Vec<Cell> {
    let rows = |step: String| -> Vec<Cell> {
        day.lines(&step).iter().filter_map(|line| Cell::of(&step, line)).collect()
    };
    steps().flat_map(rows).collect()
}

/// Assumptions that fit the measured rows best, and the quality of the fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The assumptions.
    pub assumed: Assumed,
    /// Root mean square of the logarithms of measured over predicted, with these assumptions.
    pub error: f64,
    /// The same with the assumptions of the profile.
    pub before: f64,
    /// Number of rows.
    pub rows: usize,
}

/// Searches for the assumptions with which the predictions fit the measured rows best. Returns `None` if there are too
/// few rows.
pub fn fit(board: &Board, cells: &[Cell]) -> Option<Fit> {
    let start = assumed(board);
    let rows: Vec<&Cell> =
        cells.iter().filter(|cell| cell.step == FITTED && cell.predicted(board, start).is_some()).collect();
    let error = |assumed: Assumed| {
        let log =
            |cell: &&Cell| cell.predicted(board, assumed).map_or(f64::INFINITY, |ms| (cell.ms / ms).ln());
        (rows.iter().map(|cell| log(cell).powi(2)).sum::<f64>() / rows.len() as f64).sqrt()
    };
    if rows.len() < FEWEST {
        return None;
    }
    let before = error(start);
    let (mut best, mut least, mut step, mut halved) = (start, before, FIRST, 0);
    while halved < HALVINGS {
        let around = [-1.0, 0.0, 1.0].into_iter().flat_map(|a| [-1.0, 0.0, 1.0].map(|b| [a, b]));
        let moved = around.map(|by: [f64; 2]| {
            let at = |i: usize| (best[i] + by[i] * step[i]).clamp(RANGE[0][i], RANGE[1][i]);
            [at(0), at(1)]
        });
        let moved: Vec<(Assumed, f64)> = moved.map(|assumed| (assumed, error(assumed))).collect();
        let found = moved.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, error)| *error < least);
        match found {
            Some((assumed, error)) => (best, least) = (assumed, error),
            None => (step, halved) = (step.map(|x| x / 2.0), halved + 1),
        }
    }
    Some(Fit { assumed: best, error: least, before, rows: rows.len() })
}

/// Formats a number that may be absent.
pub fn shown(x: Option<f64>, digits: usize) -> String {
    x.map_or_else(String::new, |x| format!("{x:.digits$}"))
}

/// Returns the median; `None` of no numbers.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

/// Lists the calls that were measured in several states of the board.
fn states(cells: &[Cell]) -> Section {
    let mut section = Section::new("Power modes and clocks");
    section.head = vec![
        "step",
        "shape",
        "type",
        "method",
        "back end",
        "as found",
        "other mode",
        "locked",
        "other mode, locked",
    ];
    for cell in cells {
        let again = |state: &str| {
            let step = format!("{state}-{}", cell.step);
            let same = |other: &&Cell| other.step == step && other.key()[1..] == cell.key()[1..];
            cells.iter().find(same).map(|other| other.ms)
        };
        let times = STATES.map(again);
        if times.iter().any(Option::is_some) {
            let [found, other, locked, both] =
                [Some(cell.ms), times[0], times[1], times[2]].map(|ms| shown(ms, 4));
            let key = cell.key().map(str::to_owned);
            section.rows.push(key.into_iter().chain([found, other, locked, both]).collect());
        }
    }
    section
}

/// Lists the masks, each with its time relative to the same call without a mask.
fn masks(cells: &[Cell]) -> Section {
    let mut section = Section::new("Masks");
    section.head = vec!["step", "mask", "type", "back end", "ms", "ms / without mask"];
    for cell in cells.iter().filter(|cell| cell.step.contains(MASKS)) {
        let Ok(shape) = cell.shape.parse::<Shape>() else { continue };
        let Shape { batch, heads, queries, keys, dim, .. } = shape;
        let plain = Shape::plain(batch, heads, queries, keys, dim).to_string();
        let mut key = cell.key();
        key[1] = &plain;
        let ratio = cells.iter().find(|other| other.key() == key).map(|other| cell.ms / other.ms);
        let mask = if shape.parts().is_empty() { "none".to_owned() } else { shape.parts().join(",") };
        let (step, dtype, backend) = (cell.step.clone(), cell.dtype.clone(), cell.backend.clone());
        section.rows.push(vec![step, mask, dtype, backend, shown(Some(cell.ms), 4), shown(ratio, 3)]);
    }
    section
}

/// Lists all rows, the kernels with their corrections, the states of the board, and the masks.
pub fn sections(board: Option<&Board>, cells: &[Cell], fit: Option<Fit>) -> [Section; 4] {
    let mut all = Section::new("Latencies");
    all.words.extend(
        (!cells.is_empty())
            .then(|| "Medians in milliseconds: of the device on a GPU, else of the call.".to_owned()),
    );
    all.head = vec![
        "step",
        "shape",
        "type",
        "method",
        "back end",
        "kernel",
        "measured",
        "predicted",
        "ratio",
        "paper",
        "clean",
    ];
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for cell in cells {
        let predicted = board.and_then(|board| cell.predicted(board, assumed(board)));
        let ratio = predicted.map(|ms| cell.ms / ms);
        ratios.entry(&cell.kernel).or_default().extend(ratio);
        let [step, shape, dtype, method, backend] = cell.key().map(str::to_owned);
        let clean = if cell.clean { "yes" } else { "no" }.to_owned();
        let published = board.and_then(|board| cell.published(board));
        let kernel = cell.kernel.clone();
        all.rows.push(vec![
            step,
            shape,
            dtype,
            method,
            backend,
            kernel,
            shown(Some(cell.ms), 4),
            shown(predicted, 4),
            shown(ratio, 2),
            shown(published, 2),
            clean,
        ]);
    }
    all.charts = board.map(|board| charts(board, cells, fit)).unwrap_or_default();

    let mut kernels = Section::new("Measured over predicted");
    kernels.head = vec!["kernel", "rows", "median ratio"];
    for (kernel, ratios) in ratios.into_iter().filter(|(_, ratios)| !ratios.is_empty()) {
        kernels.rows.push(vec![kernel.to_owned(), ratios.len().to_string(), shown(median(ratios), 3)]);
    }
    if let (Some(fit), Some(board)) = (fit, board) {
        let ([launch, slots], [launch_now, slots_now]) = (fit.assumed, assumed(board));
        kernels.words.push(format!(
            "{} rows of {FITTED} fit best with {launch:.1} us from kernel to kernel and {slots:.2} of the issue slots \
             (profile: {launch_now:.1}, {slots_now:.2}). The error of a prediction is then a factor of \
             {:.2} (profile: {:.2}).",
            fit.rows,
            fit.error.exp(),
            fit.before.exp()
        ));
    }
    [all, kernels, states(cells), masks(cells)]
}

/// Draws the latencies of the paper's grid: measured, predicted and published.
fn charts(board: &Board, cells: &[Cell], fit: Option<Fit>) -> Vec<Picture> {
    let start = assumed(board);
    let draw = |dtype: &str| {
        let rows: Vec<(f64, &Cell)> = cells
            .iter()
            .filter(|cell| cell.step.starts_with("grid-") && cell.dtype == dtype && cell.method == "elsa")
            .filter_map(|cell| {
                let shape = cell.case()?.0;
                let tokens = shape.keys;
                (shape == Shape::plain(1, 1, tokens, tokens, shape.dim)).then_some((tokens as f64, cell))
            })
            .collect();
        let curve = |name: &str, of: &dyn Fn(&Cell) -> Option<f64>| {
            let point = |(tokens, cell): &(f64, &Cell)| {
                let ms = of(cell)?;
                Some(Point::new(*tokens, ms, format!("{}: {ms:.4} ms", cell.shape)))
            };
            Raw::new(name, rows.iter().filter_map(point))
        };
        let on = |backend: &'static str, cell: &Cell| (cell.backend == backend).then_some(cell.ms);
        let curves = vec![
            curve("GPU", &|cell| on("cuda", cell)),
            curve("GPU, predicted", &|cell| cell.predicted(board, start)),
            curve("GPU, fitted", &|cell| cell.predicted(board, fit?.assumed)),
            curve("NEON", &|cell| on("neon", cell)),
            curve("paper", &|cell| cell.published(board)),
        ];
        chart(format!("One head, {dtype}"), [Axis::log("tokens"), Axis::log("ms")], curves, true)
    };
    ["f32", "f16"].into_iter().filter_map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurement_is_read_in_every_state() {
        let names: Vec<String> = steps().collect();
        assert_eq!(names.len(), STEPS.len() * (1 + STATES.len()) + ALONE.len());
        for name in ["half-gpu", "locked", "single-cpu", "other-mode-locked-streams-cpu", "locked-masks-gpu"]
        {
            assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
        }
    }

    #[test]
    fn the_search_finds_the_assumptions_that_made_the_rows() {
        let board = Board::named("jetson-tx2").unwrap();
        let made = [25.0, 0.6];
        let row = |tokens: usize| {
            let shape = Shape::plain(1, 1, tokens, tokens, 64);
            let ms = milliseconds(&board, made, &shape, DType::F32, false).unwrap();
            let line = serde_json::json!({ "what": "bench", "shape": shape.to_string(), "dtype": "f32",
                "method": "elsa", "backend": "cuda", "kernel": "k", "device_p50_ms": ms, "clean": true });
            Cell::of(FITTED, &line).unwrap()
        };
        let cells: Vec<Cell> = [64, 144, 256, 400, 576, 784, 900].map(row).into();
        let found = fit(&board, &cells).unwrap();
        assert!(found.error < 0.01 && found.before > 0.1, "{found:?}");
        assert!(
            (found.assumed[0] - made[0]).abs() < 2.0 && (found.assumed[1] - made[1]).abs() < 0.02,
            "{found:?}"
        );
        assert_eq!(fit(&board, &cells[..FEWEST - 1]), None);
        let other = Cell { step: format!("{OTHER_MODE}-{FITTED}"), ..cells[0].clone() };
        assert!(cells[0].predicted(&board, made).is_some() && other.predicted(&board, made).is_none());
        assert!(Cell::of(FITTED, &serde_json::json!({ "what": "bench", "p50_ms": null })).is_none());
    }
}
