//! Display of records.

use crate::bench::{footer, header, headline, phases, row};
use crate::error::one_line;
use crate::report;
use elsa_core::telemetry::frame::Message;
use elsa_core::telemetry::record::{Cell, Phase, Record};
use serde::Serialize;
use std::io::{Result, Write};

/// Width of the column that describes a shape. It is fixed because later shapes are not yet known.
const FORM: usize = 24;

/// Format of the display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A row for each cell.
    Table,
    /// An object for each record.
    Json,
    /// A row for each cell, below a row of column names.
    Csv,
}

/// Printer of received records.
pub struct Printer {
    form: Format,
    /// Number of the run to which the last record belongs.
    run: Option<u32>,
    /// `true` if the column names have been printed.
    named: bool,
}

impl Printer {
    /// Creates a printer that has printed nothing yet.
    pub const fn new(form: Format) -> Printer {
        Printer { form, run: None, named: false }
    }

    /// Prints a record.
    ///
    /// # Errors
    /// Returns an error if the writer fails.
    pub fn print(&mut self, out: &mut impl Write, message: &Message) -> Result<()> {
        let Message { run, record, .. } = message;
        let other = self.run.replace(*run) != Some(*run);
        match self.form {
            Format::Json => report::record(out, record),
            Format::Csv => match record {
                Record::Cell(cell) => self.csv(out, cell),
                Record::Phase(phase) => self.csv(out, phase),
                _ => Ok(()),
            },
            Format::Table => {
                if other && !matches!(record, Record::Start(_)) {
                    writeln!(out, "a run whose start was lost")?;
                    self.named = false;
                }
                match record {
                    Record::Start(start) => {
                        self.named = false;
                        lines(out, &headline(start))
                    }
                    Record::Cell(cell) => self.row(out, cell),
                    Record::Phase(phase) => self.phase(out, phase),
                    Record::Trace(_) => Ok(()),
                    Record::End(end) => lines(out, &footer(end)),
                }
            }
        }
    }

    fn csv(&mut self, out: &mut impl Write, row: &impl Serialize) -> Result<()> {
        let columns = report::columns(row)?;
        let mut rows = csv::Writer::from_writer(out);
        if !self.named {
            rows.write_record(columns.iter().map(|(name, _)| name))?;
            self.named = true;
        }
        rows.write_record(columns.iter().map(|(_, value)| value))?;
        rows.flush()
    }

    fn row(&mut self, out: &mut impl Write, cell: &Cell) -> Result<()> {
        if !self.named {
            self.named = true;
            lines(out, &header(FORM))?;
        }
        lines(out, &row(FORM, cell))
    }

    fn phase(&mut self, out: &mut impl Write, phase: &Phase) -> Result<()> {
        if !self.named {
            self.named = true;
            lines(out, phases::HEADER)?;
        }
        lines(out, &phases::row(phase))
    }
}

/// Writes lines of received text, with hidden characters escaped.
fn lines(out: &mut impl Write, text: &str) -> Result<()> {
    text.lines().try_for_each(|line| writeln!(out, "{}", one_line(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::telemetry::record::{Start, Throttling, Trace, text};

    fn shown(form: Format, messages: &[(u32, Record)]) -> String {
        let (mut out, mut printer) = (Vec::new(), Printer::new(form));
        for (sequence, (run, record)) in (0..).zip(messages) {
            let message = Message { run: *run, sequence, record: record.clone() };
            printer.print(&mut out, &message).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    fn stream() -> [(u32, Record); 4] {
        let mut cell = Cell {
            shape: text("1,1,64,64,64"),
            p50_ms: 1.25,
            samples: 3,
            certified: true,
            ..Cell::default()
        };
        cell.marks.push(text("another load; wait")).unwrap();
        cell.throttled = Throttling::NotSeen;
        [
            (
                1,
                Record::Start(Start {
                    board: Some(text("Jetson\u{1b}[2J")),
                    emulated: true,
                    ..Start::default()
                }),
            ),
            (1, Record::Trace(Trace::default())),
            (1, Record::Cell(cell.clone())),
            (2, Record::Cell(Cell { certified: false, rel_l2: f64::NAN, ..cell })),
        ]
    }

    #[test]
    fn tables_have_a_heading_for_each_run_and_tell_what_is_wrong() {
        let text = shown(Format::Table, &stream());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("Jetson\\u001b[2J") && lines[0].contains("emulated"), "{text}");
        assert!(lines[2].trim_start().starts_with("batch") && lines[3].contains("1.2500"), "{text}");
        assert_eq!((lines[4].trim(), lines[5]), ("marked: another load; wait", "a run whose start was lost"));
        assert!(lines[7].trim_start().starts_with("batch") && lines[9].contains("not certified"), "{text}");
        assert_eq!(lines.len(), 11);
    }

    #[test]
    fn a_program_has_rows_of_its_own() {
        let phase = Phase { program: text("sh"), phase: Some(text("warm\u{1b}[2J")), ..Phase::default() };
        let whole = Phase { phase: None, exit_status: Some(3), ..phase.clone() };
        let start = Record::Start(Start::default());
        let messages = [(1, start), (1, Record::Phase(phase)), (1, Record::Phase(whole))];
        let text = shown(Format::Table, &messages);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1..3].join("\n"), phases::HEADER);
        assert!(lines[3].starts_with("warm\\u001b[2J ") && lines[4].starts_with(phases::WHOLE), "{text}");
        assert_eq!(lines.len(), 6, "{text}");
        let text = shown(Format::Csv, &messages);
        let names = text.lines().next().unwrap();
        assert!(names.starts_with("program,phase,") && text.lines().count() == 3, "{text}");
    }

    #[test]
    fn csv_names_its_columns_once() {
        let text = shown(Format::Csv, &stream());
        let rows: Vec<csv::StringRecord> =
            csv::Reader::from_reader(text.as_bytes()).records().map(|row| row.unwrap()).collect();
        assert!(text.starts_with("workload,backend,") && rows.len() == 2);
        let names = csv::Reader::from_reader(text.as_bytes()).headers().unwrap().clone();
        let at = |name: &str| names.iter().position(|found| found == name).unwrap();
        assert_eq!((&rows[0][at("shape")], &rows[0][at("p50_ms")]), ("1,1,64,64,64", "1.25"));
        assert_eq!((&rows[1][at("rel_l2")], &rows[1][at("throttled")]), ("", "not seen"));
    }

    #[test]
    fn json_has_a_line_for_each_record() {
        let text = shown(Format::Json, &stream());
        let mut expected = Vec::new();
        for (_, record) in &stream() {
            report::record(&mut expected, record).unwrap();
        }
        assert_eq!((text.lines().count(), text.as_bytes()), (4, &expected[..]));
    }
}
