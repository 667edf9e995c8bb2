//! Rows of the results as CSV: a column for each field, with its name in JSON.
//!
//! A list is one field, its elements parted by a semicolon and a blank. The windows of a picture are
//! `picture/size/shift`, each `HxW`. What is unknown is an empty field, and so is what is no number.

use crate::error::Error;
use elsa_core::telemetry::record::Cell;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

/// The columns in their order.
pub const COLUMNS: [&str; 53] = [
    "workload", "batch", "heads", "kv_heads", "queries", "n", "d", "causal", "window", "mask", "windows", "shape",
    "dtype", "method", "backend", "kernel", "threads", "samples", "p50_ms", "p90_ms", "p99_ms", "max_ms", "cold_ms",
    "enqueue_p50_ms", "wait_p50_ms", "device_p50_ms", "gflops", "workspace_bytes", "alloc_bytes", "speedup_vs_math",
    "ratio_low", "ratio_high", "noise", "differs", "rel_l2", "certified", "stable", "clean", "marks", "emulated",
    "power_mw", "idle_power_mw", "power_quantum_mw", "power_readings", "energy_mj", "energy_net_mj", "temp_c",
    "temp_zone", "cpu_mhz", "gpu_mhz", "emc_mhz", "throttled", "what",
];

/// A field of JSON as one of CSV.
fn field(name: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let separator = if name == "marks" { "; " } else { ":" };
            list.iter().map(|value| field("", value)).collect::<Vec<_>>().join(separator)
        }
        Value::Object(map) => {
            let side = |value: &Value| value.as_array().map_or_else(String::new, |sides| {
                sides.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")
            });
            ["picture", "size", "shift"].map(|name| map.get(name).map_or_else(String::new, side)).join("/")
        }
        other => other.to_string(),
    }
}

/// The table of `cells`.
///
/// # Errors
/// None: memory takes every table.
pub fn table(cells: &[Cell]) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    for cell in cells {
        let fields = match serde_json::to_value(cell) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let of = |name: &str| match name {
            "what" => "bench".to_owned(),
            name => fields.get(name).map_or_else(String::new, |value| field(name, value)),
        };
        writer.write_record(COLUMNS.map(of))?;
    }
    writer.into_inner().map_err(|e| csv::Error::from(e.into_error()))
}

/// What `elsa bench --compare` and `--spot` read of a row.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Row {
    /// The workload; empty without one.
    pub workload: String,
    /// The shape whole.
    pub shape: String,
    /// Element type.
    pub dtype: String,
    /// `elsa` or `math`.
    pub method: String,
    /// The back end.
    pub backend: String,
    /// Its kernel.
    pub kernel: String,
    /// Threads that computed.
    pub threads: u32,
    /// Timed calls; zero of a refused cell.
    pub samples: u64,
    /// Median latency.
    pub p50_ms: Option<f64>,
    /// The noise of the run.
    pub noise: Option<f64>,
    /// Whether nothing disturbed the measurement.
    pub clean: bool,
}

/// Reads the rows of a table. `argument` is the flag that names it.
///
/// # Errors
/// A file that cannot be read, and one that is no table of `elsa bench`.
pub fn read(argument: &'static str, path: &Path) -> Result<Vec<Row>, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::Read { argument, path: path.into(), source })?;
    let wrong = |found: String| Error::Table { argument, path: path.into(), found };
    let rows: Result<Vec<Row>, csv::Error> = csv::Reader::from_reader(bytes.as_slice()).deserialize().collect();
    let rows = rows.map_err(|e| wrong(e.to_string()))?;
    // A latency that is no positive number compares with nothing.
    let sound = |row: &Row| row.samples == 0 || row.p50_ms.is_some_and(|ms| ms > 0.0 && ms.is_finite());
    match rows.iter().position(|row| !sound(row)) {
        Some(at) => Err(wrong(format!("row {}: p50_ms {:?}", at + 1, rows[at].p50_ms))),
        None if rows.is_empty() => Err(wrong("no rows".into())),
        None => Ok(rows),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use elsa_core::telemetry::record::{Grid, Throttling, text};
    use std::collections::BTreeSet;

    /// A row with a value in every field.
    pub fn full() -> Cell {
        let mut cell = Cell {
            workload: Some(text("swin-t")),
            shape: text("64,3,49,49,32,swin=56x56:3"),
            dtype: text("f16"),
            method: text("elsa"),
            backend: text("avx2"),
            kernel: text("a,\"kernel\"\nwith everything"),
            threads: 2,
            window: Some([9, -1]),
            windows: Some(Grid { picture: [56, 56], size: [7, 7], shift: [3, 3] }),
            samples: 41,
            p50_ms: 0.125,
            noise: Some(0.015),
            differs: Some(true),
            throttled: Throttling::NotSeen,
            ..Cell::default()
        };
        let _ = cell.marks.push(text("first; mark"));
        let _ = cell.marks.push(text("second"));
        cell
    }

    #[test]
    fn every_field_has_a_column() {
        let Ok(Value::Object(fields)) = serde_json::to_value(full()) else { panic!("no object") };
        let names: BTreeSet<&str> = fields.keys().map(String::as_str).chain(["what"]).collect();
        assert_eq!(COLUMNS.into_iter().collect::<BTreeSet<_>>(), names);
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let refused = Cell { samples: 0, p50_ms: f64::NAN, ..full() };
        let bytes = table(&[full(), refused]).unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        for part in ["9:-1", "56x56/7x7/3x3", "first; mark; second", "not seen", "\"a,\"\"kernel\"\"\nwith everything\""] {
            assert!(text.contains(part), "{part}: {text}");
        }
        std::fs::write(&path, bytes).unwrap();
        let rows = read("compare", &path).unwrap();
        assert_eq!((rows.len(), rows[1].samples, rows[1].p50_ms), (2, 0, None));
        let row = &rows[0];
        assert_eq!((row.shape.as_str(), row.kernel.as_str()), (&*full().shape, &*full().kernel));
        assert_eq!((row.p50_ms, row.noise, row.clean, row.threads), (Some(0.125), Some(0.015), false, 2));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let header = COLUMNS.join(",");
        let row = |ms: &str| {
            let value = |name: &str| match name {
                "p50_ms" => ms.to_owned(),
                "samples" | "threads" => "3".to_owned(),
                "clean" => "true".to_owned(),
                _ => String::new(),
            };
            format!("{header}\n{}\n", COLUMNS.map(value).join(","))
        };
        for text in ["", "a,b\n1,2\n", &header, "\u{0}\u{1}", &row("NaN"), &row("-1"), &row("0"), &row("inf"), &row("x"), &row("")] {
            std::fs::write(&path, text).unwrap();
            let error = read("compare", &path).expect_err(text);
            assert!(error.status() == 2 && error.line().starts_with("--compare: "), "{text}: {error}");
        }
        std::fs::write(&path, row("1.5")).unwrap();
        assert_eq!(read("compare", &path).unwrap()[0].p50_ms, Some(1.5));
        std::fs::write(&path, b"\xff\xfe,\x00").unwrap();
        assert_eq!(read("compare", &path).expect_err("binary").status(), 2);
        assert_eq!(read("compare", &folder.path().join("none")).expect_err("none").status(), 2);
    }
}
