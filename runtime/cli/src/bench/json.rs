//! Records as lines of JSON.

use elsa_core::telemetry::record::Record;
use serde::Serialize;
use std::io::{Error, Result, Write};

/// A record with its kind in front.
#[derive(Serialize)]
struct Line<'a, T> {
    what: &'static str,
    #[serde(flatten)]
    fields: &'a T,
}

/// Writes `record` as one line: its kind in `what`, then its fields.
///
/// # Errors
/// A failing serializer or writer.
pub fn line(out: &mut impl Write, record: &Record) -> Result<()> {
    fn of<T: Serialize>(what: &'static str, fields: &T) -> serde_json::Result<String> {
        serde_json::to_string(&Line { what, fields })
    }
    let text = match record {
        Record::Start(start) => of("start", start),
        Record::Cell(cell) => of("bench", cell),
        Record::Trace(trace) => of("trace", trace),
        Record::End(end) => of("end", end),
    };
    writeln!(out, "{}", text.map_err(Error::other)?)
}
