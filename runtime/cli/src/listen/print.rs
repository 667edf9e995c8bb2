//! Records as they are shown.

use crate::error::one_line;
use crate::report;
use elsa_core::telemetry::frame::Message;
use elsa_core::telemetry::record::{Cell, End, Record, Start};
use std::fmt::Write as _;
use std::io::{Result, Write};

/// How records are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A row for each cell.
    Table,
    /// An object for each record.
    Json,
    /// A row for each cell, below one of names.
    Csv,
}

/// Shows records.
pub struct Printer {
    form: Form,
    /// The run of the last record.
    run: Option<u32>,
    /// Whether the names of the columns stand above what follows.
    named: bool,
}

impl Printer {
    /// A printer that has shown nothing.
    pub const fn new(form: Form) -> Printer {
        Printer { form, run: None, named: false }
    }

    /// Shows a record.
    ///
    /// # Errors
    /// A failing writer.
    pub fn print(&mut self, out: &mut impl Write, message: &Message) -> Result<()> {
        let Message { run, record, .. } = message;
        let other = self.run.replace(*run) != Some(*run);
        match self.form {
            Form::Json => report::record(out, record),
            Form::Csv => match record {
                Record::Cell(cell) => self.csv(out, cell),
                _ => Ok(()),
            },
            Form::Table => {
                if other && !matches!(record, Record::Start(_)) {
                    writeln!(out, "a run whose start was lost")?;
                    self.named = false;
                }
                match record {
                    Record::Start(start) => {
                        self.named = false;
                        writeln!(out, "{}", one_line(&machine(start)))
                    }
                    Record::Cell(cell) => self.row(out, cell),
                    Record::Trace(_) => Ok(()),
                    Record::End(End { cells, clean_cells, seconds }) => {
                        writeln!(out, "{cells} cells, {clean_cells} of them clean, in {seconds:.1} s")
                    }
                }
            }
        }
    }

    fn csv(&mut self, out: &mut impl Write, cell: &Cell) -> Result<()> {
        let columns = report::columns(cell)?;
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
            writeln!(
                out,
                "{:<28} {:>4} {:>4} {:>7} {:>3} {:>10} {:>10} {:>10} {:>8} {:>7} {:>8}  throttling",
                "shape", "type", "", "", "thr", "p50 ms", "p99 ms", "max ms", "GFLOP/s", "°C", "mW"
            )?;
        }
        let Cell { shape, dtype, method, backend, threads, p50_ms, p99_ms, max_ms, gflops, .. } = cell;
        let shown = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.1}"));
        let line = format!(
            "{shape:<28} {dtype:>4} {method:>4} {backend:>7} {threads:>3} {p50_ms:>10.4} {p99_ms:>10.4} {max_ms:>10.4} \
             {gflops:>8.2} {:>7} {:>8}  {}",
            shown(cell.temp_c),
            shown(cell.power_mw),
            cell.throttled
        );
        writeln!(out, "{}", one_line(&line))?;
        if !cell.certified {
            writeln!(out, "    not certified: rel L2 {:.3e}", cell.rel_l2)?;
        }
        for mark in &cell.marks {
            writeln!(out, "    {}", one_line(mark))?;
        }
        Ok(())
    }
}

/// A line about the machine of a run.
fn machine(start: &Start) -> String {
    let mut line = format!("elsa {} ({} {})", start.version, start.os, start.arch);
    let cores = format!("{} cores", start.cores);
    let [l4t, jetpack, mode, driver] = [
        ("L4T", &start.l4t),
        ("JetPack", &start.jetpack),
        ("nvpmodel", &start.nvpmodel),
        ("driver", &start.driver),
    ]
    .map(|(name, value)| value.as_ref().map(|value| format!("{name} {value}")));
    let clocks = match start.jetson_clocks {
        Some(true) => Some("clocks fixed"),
        Some(false) => Some("clocks not fixed"),
        None => None,
    };
    let parts = [
        start.board.as_deref(),
        l4t.as_deref(),
        jetpack.as_deref(),
        start.cpu.as_deref(),
        Some(cores.as_str()),
        start.gpu.as_deref(),
        driver.as_deref(),
        mode.as_deref(),
        start.governor.as_deref(),
        clocks,
        start.emulated.then_some("emulated"),
        Some(start.date.as_str()),
    ];
    for part in parts.into_iter().flatten() {
        // A text takes what is written to it.
        let _ = write!(line, ", {part}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use elsa_core::telemetry::record::{Throttling, Trace, text};

    fn shown(form: Form, messages: &[(u32, Record)]) -> String {
        let (mut out, mut printer) = (Vec::new(), Printer::new(form));
        for (sequence, (run, record)) in (0..).zip(messages) {
            let message = Message { run: *run, sequence, record: record.clone() };
            printer.print(&mut out, &message).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    fn stream() -> [(u32, Record); 4] {
        let mut cell = Cell { shape: text("1,1,64,64,64"), p50_ms: 1.25, certified: true, ..Cell::default() };
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
        let text = shown(Form::Table, &stream());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("Jetson\\u{1b}[2J") && lines[0].contains("emulated"), "{text}");
        assert!(
            lines[1].starts_with("shape") && lines[2].contains("1.2500") && lines[2].ends_with("not seen")
        );
        assert_eq!((lines[3], lines[4]), ("    another load; wait", "a run whose start was lost"));
        assert!(lines[5].starts_with("shape") && lines[7].contains("not certified: rel L2 NaN"), "{text}");
        assert_eq!(lines.len(), 9);
    }

    #[test]
    fn csv_names_its_columns_once() {
        let text = shown(Form::Csv, &stream());
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
        let text = shown(Form::Json, &stream());
        let mut expected = Vec::new();
        for (_, record) in &stream() {
            report::record(&mut expected, record).unwrap();
        }
        assert_eq!((text.lines().count(), text.as_bytes()), (4, &expected[..]));
    }
}
