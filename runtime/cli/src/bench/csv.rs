//! Results as CSV, in the format of [`report::columns`]: one column for each field, under the field's JSON name.

use crate::error::{Error, one_line};
use crate::report;
use elsa_files::{FileError, InputFile};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Returns the table of `rows` as CSV: a line of column names, and a line for each row.
///
/// # Errors
/// Returns an error if formatting fails, which cannot happen in memory.
pub fn table<T: Serialize + Default>(rows: &[T]) -> std::io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(report::columns(&T::default())?.iter().map(|(name, _)| name))?;
    for row in rows {
        writer.write_record(report::columns(row)?.iter().map(|(_, value)| value))?;
    }
    writer.into_inner().map_err(csv::IntoInnerError::into_error)
}

/// Fields of a row that `elsa bench --compare` and `--spot` read.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Row {
    /// Name of the workload; empty if the shape belongs to none.
    pub workload: String,
    /// The complete shape, in the notation of `--shape`.
    pub shape: String,
    /// Element type.
    pub dtype: String,
    /// `elsa` or `math`.
    pub method: String,
    /// Name of the back end.
    pub backend: String,
    /// Name of the kernel that ran.
    pub kernel: String,
    /// Number of computing threads.
    pub threads: u32,
    /// Number of timed calls; zero for a refused cell.
    pub samples: u64,
    /// Median latency in milliseconds.
    pub p50_ms: Option<f64>,
    /// Noise of the machine during the measurement, relative to the latency.
    pub noise: Option<f64>,
    /// `true` if the measurement was undisturbed.
    pub clean: bool,
}

/// Maximum size in bytes of a table that is read. A row has about 300 bytes.
const LONGEST: u64 = 64 << 20;

/// Reads the rows of the table at `path`. `argument` is the flag that names the table.
///
/// # Errors
/// Returns an error if the file is not regular, is too long, cannot be read, or is not a table of `elsa bench`.
pub fn read(argument: &'static str, path: &Path) -> Result<Vec<Row>, Error> {
    let bytes = InputFile::contents(path, LONGEST);
    let bytes = bytes.map_err(|source| FileError::Read { argument, path: path.into(), source })?;
    rows(&bytes).map_err(|found| Error::Table { argument, path: path.into(), found })
}

/// Parses the rows of a table.
///
/// # Errors
/// Returns a description of the invalid content if the bytes are not a table of `elsa bench`.
pub fn rows(bytes: &[u8]) -> Result<Vec<Row>, String> {
    let rows: Result<Vec<Row>, csv::Error> = csv::Reader::from_reader(bytes).deserialize().collect();
    let mut rows = rows.map_err(|e| e.to_string())?;
    for Row { workload, shape, dtype, method, backend, kernel, .. } in &mut rows {
        for text in [workload, shape, dtype, method, backend, kernel] {
            *text = one_line(text);
        }
    }
    // A latency that is not a positive finite number cannot be compared.
    let sound = |row: &Row| row.samples == 0 || row.p50_ms.is_some_and(|ms| ms > 0.0 && ms.is_finite());
    match rows.iter().position(|row| !sound(row)) {
        Some(at) => Err(format!("row {}: p50_ms {:?}", at + 1, rows[at].p50_ms)),
        None if rows.is_empty() => Err("no rows".into()),
        None => Ok(rows),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use elsa_core::telemetry::record::{Cell, Grid, Throttling, text};

    /// Returns a row with a value in every field.
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
    fn a_table_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let refused = Cell { samples: 0, p50_ms: f64::NAN, ..full() };
        let bytes = table(&[full(), refused]).unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        for part in ["[9,-1]", "first; mark", "not seen", "\"a,\"\"kernel\"\"\\nwith everything\""] {
            assert!(text.contains(part), "{part}: {text}");
        }
        std::fs::write(&path, bytes).unwrap();
        let rows = read("compare", &path).unwrap();
        assert_eq!((rows.len(), rows[1].samples, rows[1].p50_ms), (2, 0, None));
        let row = &rows[0];
        assert_eq!(
            (row.shape.as_str(), row.kernel.as_str()),
            (&*full().shape, "a,\"kernel\"\\nwith everything")
        );
        assert_eq!((row.p50_ms, row.noise, row.clean, row.threads), (Some(0.125), Some(0.015), false, 2));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let names = "workload,shape,dtype,method,backend,kernel,threads,samples,p50_ms,noise,clean";
        let row = |ms: &str| format!("{names}\n,s,f32,elsa,avx2,k,3,3,{ms},,true\n");
        for text in [
            "",
            "a,b\n1,2\n",
            names,
            "\u{0}\u{1}",
            &row("NaN"),
            &row("-1"),
            &row("0"),
            &row("inf"),
            &row("x"),
            &row(""),
        ] {
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
