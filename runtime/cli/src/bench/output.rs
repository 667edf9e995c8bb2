//! Destinations of the results: standard output, and the requested files and serial port.

use super::args::BenchArgs;
use super::html::Records;
use super::measure::Measured;
use super::{csv, export, html, phases, save, text};
use crate::error::{Error, one_line, say};
use crate::foreign::{self, Shown};
use crate::report;
use elsa_board::serial::{Sent, Sink};
use elsa_core::telemetry::record::{End, Record, Start};
use elsa_files::{Reads, Target};
use serde_json::Value;
use std::io::{Stdout, Write};
use std::path::PathBuf;

/// The results of a run. Every record passes through [`Output::record`].
pub struct Output {
    out: Shown<Stdout>,
    json: bool,
    /// Width of the column `form` of the text table; `None` if the rows are those of a program.
    width: Option<usize>,
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
    /// `board` is the name of the board; `None` if the project does not know it. `width` is the width of the column
    /// `form`; `None` if the rows are those of a program.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or if the port cannot be opened.
    pub fn new(
        args: &BenchArgs,
        board: Option<&str>,
        start: &Start,
        width: Option<usize>,
    ) -> Result<Output, Error> {
        let mut reads = Reads::default();
        args.engine.add_to(&mut reads);
        let target = |argument, path: &Option<PathBuf>| {
            path.as_deref().map(|path| Target::new(argument, path, &reads)).transpose()
        };
        let save = args.save.as_ref().map(|given| save::folder(given.as_deref(), board, start));
        if let Some(folder) = &save {
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
            width,
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
        if self.json {
            report::record(&mut self.out, record)?;
        } else {
            match record {
                Record::Start(start) => {
                    writeln!(self.out, "{}", text::headline(start))?;
                    self.width.map_or(Ok(()), |width| writeln!(self.out, "{}", text::header(width)))?;
                }
                Record::Cell(cell) => {
                    writeln!(self.out, "{}", text::row(self.width.unwrap_or_default(), cell))?;
                }
                // The rows of a program are printed when it has ended, because it may print too.
                Record::Trace(_) | Record::Phase(_) => {}
                Record::End(_) if self.width.is_none() => {
                    let rows: Vec<String> = self.records.phases.iter().map(phases::row).collect();
                    writeln!(self.out, "{}\n{}", phases::HEADER, rows.join("\n"))?;
                }
                Record::End(end) => {
                    writeln!(self.out, "{}{}", text::grid(&self.records.cells), text::footer(end))?;
                }
            }
        }
        self.out.flush()?;
        if let Some((_, sink)) = &mut self.serial {
            sink.send(record);
        }
        self.records.keep(record);
        Ok(())
    }

    /// Prints the row of a measured method and stores the times of its calls.
    ///
    /// # Errors
    /// Returns an error if standard output fails.
    pub fn measured(&mut self, measured: &Measured) -> Result<(), Error> {
        export::add(&mut self.times, measured);
        self.record(&Record::Cell(measured.cell.clone()))
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
            let table = if self.width.is_some() { csv::table(cells) } else { csv::table(phases) }?;
            if let Some(folder) = &self.save {
                let path = save::save(folder, &self.records.start, &table)?;
                log::info!("--save: {}", path.display());
                if !self.json {
                    writeln!(self.out, "saved as {}", one_line(&path.display().to_string()))?;
                }
            }
            self.csv.map_or(Ok(()), |target| target.write(&table))?;
        }
        if let Some(target) = self.html {
            target.write(foreign::page(&html::page(&self.records)?).as_bytes())?;
        }
        if let Some(target) = self.export {
            target.write(Value::from(self.times).to_string().as_bytes())?;
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
