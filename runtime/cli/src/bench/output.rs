//! Destinations of the results: standard output, and the requested files and serial port.

use super::args::BenchArgs;
use super::html::Records;
use super::measure::Measured;
use super::text::{self, ShortRow};
use super::{csv, export, html, phases, save};
use crate::error::{Error, one_line, say};
use crate::foreign::{self, Shown};
use crate::report::{self, written};
use crate::verdict::{BAD, GOOD};
use anstyle::Style;
use elsa_board::serial::{Sent, Sink};
use elsa_core::telemetry::record::{Cell, End, Record, Start};
use elsa_files::{Reads, Target};
use serde_json::Value;
use std::io::{Stdout, Write};
use std::path::{Path, PathBuf};

/// The rows that standard output shows without `--json`.
#[derive(Clone, Copy)]
pub enum Table {
    /// A row of 80 columns for each shape.
    Short,
    /// A row for each measurement, with all numbers. The value is the width of the column `form`.
    Wide(usize),
    /// A row for each phase of a program.
    Program,
}

/// The results of a run. Every record passes through [`Output::record`].
pub struct Output {
    out: Shown<Stdout>,
    json: bool,
    table: Table,
    /// The records so far.
    records: Records,
    /// Times of all calls, for `--export`.
    times: Vec<Value>,
    csv: Option<Target>,
    html: Option<Target>,
    export: Option<Target>,
    save: Option<PathBuf>,
    serial: Option<(String, Sink)>,
}

impl Output {
    /// Prepares the output files first, so that a file that cannot be written is reported before anything is measured.
    /// `board` is the name of the board; `None` if the project does not know it.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or if the port cannot be opened.
    pub fn new(args: &BenchArgs, board: Option<&str>, start: &Start, table: Table) -> Result<Output, Error> {
        let mut reads = Reads::default();
        args.engine.add_to(&mut reads);
        let target = |argument, path: &Option<PathBuf>| {
            path.as_deref().map(|path| Target::new(argument, path, &reads)).transpose()
        };
        let save = args.save.as_ref().map(|given| save::folder(given.as_deref(), board, start));
        if let Some(folder) = &save {
            if args.save == Some(None) {
                save::require_checkout(Path::new("."))?;
            }
            save::prepare(folder)?;
        }
        let serial = match &args.serial {
            Some(port) => {
                let sink = Sink::open(port).map_err(|source| Error::Port { argument: "--serial", source })?;
                Some((port.clone(), sink))
            }
            None => None,
        };
        Ok(Output {
            out: foreign::stdout(),
            json: args.json,
            table,
            records: Records::default(),
            times: Vec::new(),
            csv: target("csv", &args.csv)?,
            html: target("html", &args.html)?,
            export: target("export", &args.export)?,
            save,
            serial,
        })
    }

    /// Prints a note about the run for human readers; with `--json` the note goes only to the log.
    ///
    /// # Errors
    /// Returns an error if standard output fails.
    pub fn note(&mut self, note: &str) -> Result<(), Error> {
        log::info!("{note}");
        if !self.json {
            writeln!(self.out, "note: {}", one_line(note))?;
        }
        Ok(())
    }

    /// Returns `true` if the times of calls must be stored.
    #[must_use]
    pub fn keeps_times(&self) -> bool {
        self.export.is_some()
    }

    /// Returns standard output, for text other than records.
    pub fn out(&mut self) -> &mut Shown<Stdout> {
        &mut self.out
    }

    /// Prints a record and keeps it for the files.
    ///
    /// # Errors
    /// Returns an error if standard output fails.
    pub fn record(&mut self, record: &Record) -> Result<(), Error> {
        match (record, self.table) {
            _ if self.json => report::record(&mut self.out, record)?,
            (Record::Start(start), table) => {
                writeln!(self.out, "{}", text::headline(start))?;
                match table {
                    Table::Short => writeln!(self.out, "{}", text::short_header())?,
                    Table::Wide(width) => writeln!(self.out, "{}", text::header(width))?,
                    Table::Program => {}
                }
            }
            (Record::Cell(cell), Table::Wide(width)) => writeln!(self.out, "{}", text::row(width, cell))?,
            (Record::Cell(cell), _) => self.short(&[cell])?,
            // The rows of a program are printed when it has ended, because it may print too.
            (Record::Trace(_) | Record::Phase(_), _) => {}
            (Record::End(_), Table::Program) => {
                let rows: Vec<String> = self.records.phases.iter().map(phases::row).collect();
                writeln!(self.out, "{}\n{}", phases::HEADER, rows.join("\n"))?;
            }
            (Record::End(end), table) => {
                if matches!(table, Table::Short) {
                    for line in text::legend(&self.records.cells) {
                        writeln!(self.out, "{line}")?;
                    }
                }
                writeln!(self.out, "{}{}", text::grid(&self.records.cells), text::footer(end))?;
            }
        }
        self.keep(record)
    }

    /// Prints the row of a shape in the short table. `cells` are the measurements of its methods. On a terminal, a row
    /// that is not clean is grey, and a ratio beyond the noise has a colour.
    fn short(&mut self, cells: &[&Cell]) -> Result<(), Error> {
        let ShortRow { before, ratio, after, clean, faster } = text::short_row(cells);
        if clean {
            write!(self.out, "{before}")?;
            let style = faster.map_or(Style::new(), |faster| if faster { GOOD } else { BAD });
            self.out.paint(style, &ratio)?;
            writeln!(self.out, "{after}")?;
        } else {
            self.out.paint(Style::new().dimmed(), &format!("{before}{ratio}{after}"))?;
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// Sends a record that has been printed through the serial port, and keeps it for the files.
    fn keep(&mut self, record: &Record) -> Result<(), Error> {
        self.out.flush()?;
        if let Some((_, sink)) = &mut self.serial {
            sink.send(record);
        }
        self.records.keep(record);
        Ok(())
    }

    /// Prints the measurements of a shape, one for each method, and stores the times of their calls.
    ///
    /// # Errors
    /// Returns an error if standard output fails.
    pub fn measured(&mut self, measured: &[Measured]) -> Result<(), Error> {
        measured.iter().for_each(|measured| export::add(&mut self.times, measured));
        let cell = |measured: &Measured| Record::Cell(measured.cell.clone());
        if self.json || !matches!(self.table, Table::Short) {
            return measured.iter().try_for_each(|measured| self.record(&cell(measured)));
        }
        self.short(&measured.iter().map(|measured| &measured.cell).collect::<Vec<_>>())?;
        measured.iter().try_for_each(|measured| self.keep(&cell(measured)))
    }

    /// Prints the last record and writes the files.
    ///
    /// # Errors
    /// Returns an error if standard output or a file fails.
    pub fn end(mut self, seconds: f64) -> Result<End, Error> {
        let count = |cells: usize| u32::try_from(cells).unwrap_or(u32::MAX);
        let Records { cells, phases, .. } = &self.records;
        let clean: Vec<bool> =
            cells.iter().map(|cell| cell.clean).chain(phases.iter().map(|phase| phase.clean)).collect();
        let clean_cells = count(clean.iter().filter(|clean| **clean).count());
        let end = End { cells: count(clean.len()), clean_cells, seconds };
        self.record(&Record::End(end))?;
        if let Some((port, sink)) = self.serial.take() {
            tell(&port, sink.close());
        }
        if self.csv.is_some() || self.save.is_some() {
            let Records { cells, phases, .. } = &self.records;
            let rows =
                if matches!(self.table, Table::Program) { csv::table(phases) } else { csv::table(cells) }?;
            match &self.save {
                Some(_) if end.clean_cells == 0 => say("--save: nothing was saved, because no row is clean"),
                Some(folder) => {
                    let path = save::save(folder, &self.records.start, &rows)?;
                    say(&format!("wrote {} and {}", path.display(), path.with_extension("json").display()));
                }
                None => {}
            }
            self.csv.map_or(Ok(()), |target| written(target, &rows))?;
        }
        if let Some(target) = self.html {
            written(target, foreign::page(&html::page(&self.records)?).as_bytes())?;
        }
        if let Some(target) = self.export {
            written(target, Value::from(self.times).to_string().as_bytes())?;
        }
        Ok(end)
    }
}

/// Reports how many records the serial port did not accept.
fn tell(port: &str, sent: Sent) {
    let Sent { sent, dropped, reconnects } = sent;
    log::info!("--serial: {port}: {sent} records, {dropped} dropped, opened again {reconnects} times");
    if dropped > 0 {
        say(&format!(
            "--serial: {port}: {dropped} of {} records were dropped: the port was too slow or gone; a higher rate helps, \
             such as PORT:921600 at both ends",
            sent + dropped
        ));
    }
}
