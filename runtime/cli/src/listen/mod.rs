//! `elsa listen`: the receiving end of `elsa bench --serial`.
//!
//! Only complete and undamaged records are printed on standard output, as they arrive. Lost or damaged data are
//! reported on standard error when they occur, but at most once a second. The totals are reported at the end. A port
//! that disappears is opened again when it reappears.

mod print;

use crate::bench::{Records, page};
use crate::error::{Error, say};
use crate::report::written;
use crate::signals;
use clap::Args;
use elsa_board::serial::{self, Port, RETRY, waits};
use elsa_core::telemetry::frame::{Counts, Decoder, FRAME};
use elsa_core::telemetry::record::Record;
use elsa_files::{Reads, Target};
use print::{Format, Printer};
use serialport::TTYPort;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The text below the flags.
const HELP: &str = "\
PORT is a serial port, such as /dev/ttyUSB0; BAUD is the rate of the sender, 115200 without it. The sender is
elsa bench --serial PORT[:BAUD]. Above 115200 baud both use two stop bits. Only complete records are shown. Lost or
damaged records are reported on standard error, when it happens and at the end. A port that disappears is opened again. Without
--follow, the end of a run ends the command; Ctrl-C ends it at any time.

--json prints the objects that elsa bench --json prints, one a line; their field what is start, bench
(a row of the results), trace (power, temperature and clocks at a time) or end. --csv prints the rows of the results.
--html is written when the command ends, also by Ctrl-C.

Exit status 3: records were lost or damaged, including those sent before the command was started, or bytes arrived
that are no record.";

/// Minimum time between two reports of losses.
const REPORTS: Duration = Duration::from_secs(1);

/// If no frame has arrived intact, this number of damaged frames suggests a wrong baud rate.
const HOPELESS: u64 = 8;

/// `elsa listen`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct ListenArgs {
    /// Port that is wired to the sender's
    #[arg(value_name = serial::VALUE)]
    pub port: String,
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print the rows of the results as CSV
    #[arg(long)]
    pub csv: bool,
    /// Write a page with the curves, power, temperature and machine of the last run received
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Continue after the end of a run
    #[arg(long)]
    pub follow: bool,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the port cannot be opened, if standard output cannot be written, or if records did not arrive.
pub fn listen(args: &ListenArgs) -> Result<(), Error> {
    let fault = |source| Error::Port { argument: "PORT", source };
    let port = Port::parse(&args.port).map_err(fault)?;
    let mut reads = Reads::default();
    reads.keep("PORT", &port.path);
    let target = args.html.as_deref().map(|path| Target::new("html", path, &reads)).transpose()?;
    let mut tty = port.open().map_err(fault)?;
    signals::defer();
    let form = match (args.json, args.csv) {
        (true, _) => Format::Json,
        (_, true) => Format::Csv,
        _ => Format::Table,
    };
    let mut ear = Ear::new(&port, form, args, crate::foreign::stdout());
    let mut bytes = [0; 4096];
    // `true` if the port has delivered anything since it was opened.
    let mut heard = true;
    while !signals::ended() {
        match tty.read(&mut bytes) {
            Err(e) if waits(&e) => {}
            Ok(n) if n > 0 => {
                heard = true;
                if ear.take(&bytes[..n])? {
                    break;
                }
            }
            _ => {
                if heard {
                    say(&format!("{port}: gone; waiting until it is back"));
                }
                heard = false;
                ear.decoder.cut();
                match reopen(&port) {
                    Some(back) => tty = back,
                    None => break,
                }
            }
        }
        ear.report(false);
    }
    if let Some(target) = target {
        written(target, crate::foreign::page(&page(&ear.heard)?).as_bytes())?;
    }
    ear.end()
}

/// Waits until the port can be opened again; `None` if a signal comes first.
fn reopen(port: &Port) -> Option<TTYPort> {
    while !signals::ended() {
        std::thread::sleep(RETRY);
        if let Ok(tty) = port.open() {
            log::info!("{port}: back");
            return Some(tty);
        }
    }
    None
}

/// State of the receiver: the records of the last run, and the losses reported so far.
struct Ear<'a, W> {
    port: &'a Port,
    follow: bool,
    decoder: Decoder,
    printer: Printer,
    /// The records of the last run, as far as the page needs them. Empty without `--html`.
    heard: Records,
    /// Number of the run to which the records in `heard` belong.
    run: Option<u32>,
    keeps: bool,
    out: W,
    /// Counts at the time of the last report.
    told: Counts,
    at: Option<Instant>,
    doubted: bool,
}

impl<'a, W: Write> Ear<'a, W> {
    fn new(port: &'a Port, form: Format, args: &ListenArgs, out: W) -> Ear<'a, W> {
        Ear {
            port,
            follow: args.follow,
            decoder: Decoder::new(),
            printer: Printer::new(form),
            heard: Records::default(),
            run: None,
            keeps: args.html.is_some(),
            out,
            told: Counts::default(),
            at: None,
            doubted: false,
        }
    }

    /// Decodes `bytes` and shows the records in them. Returns `true` if the command must end because a run has ended.
    fn take(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        for &byte in bytes {
            if let Some(message) = self.decoder.push(byte) {
                self.printer.print(&mut self.out, &message)?;
                self.out.flush()?;
                if self.keeps {
                    if self.run.replace(message.run) != Some(message.run) {
                        self.heard = Records::default();
                    }
                    self.heard.keep(&message.record);
                }
                if matches!(message.record, Record::End(_)) && !self.follow {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reports the losses and the damage since the previous report. If `last` is `false` and less than [`REPORTS`] has
    /// passed since the previous report, does nothing.
    fn report(&mut self, last: bool) {
        let counts = self.decoder.counts();
        if !self.doubted && counts.records == 0 && hopeless(&counts) {
            self.doubted = true;
            say(&format!("{}: no frame is whole; is {} the rate of the sender?", self.port, self.port.baud));
        }
        if !last && self.at.is_some_and(|at| at.elapsed() < REPORTS) {
            return;
        }
        if let Some(what) = losses(&since(&counts, &self.told)) {
            say(&format!("{}: {what}", self.port));
            self.told = counts;
            self.at = Some(Instant::now());
        }
    }

    /// Reports the totals, and returns an error if anything was lost or damaged.
    fn end(mut self) -> Result<(), Error> {
        self.report(true);
        let counts = self.decoder.end();
        let records = plural(counts.records, "record");
        match losses(&counts) {
            None => {
                say(&format!("{}: {records}, none lost", self.port));
                Ok(())
            }
            Some(what) => {
                Err(Error::Line { port: self.port.to_string(), what: format!("{records}; in all {what}") })
            }
        }
    }
}

/// Returns the increase of each count from `before` to `now`.
fn since(now: &Counts, before: &Counts) -> Counts {
    Counts {
        records: now.records - before.records,
        lost: now.lost - before.lost,
        broken: now.broken - before.broken,
        overlong: now.overlong - before.overlong,
        foreign: now.foreign - before.foreign,
        repeated: now.repeated - before.repeated,
        noise: now.noise - before.noise,
    }
}

/// Returns `true` if enough frames were damaged to suggest a wrong baud rate. The caller has checked that no frame
/// arrived intact.
fn hopeless(counts: &Counts) -> bool {
    counts.broken + counts.overlong + counts.noise / FRAME as u64 >= HOPELESS
}

fn plural(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Describes losses and damage; `None` if nothing was lost or damaged.
fn losses(counts: &Counts) -> Option<String> {
    let parts: Vec<String> = [
        (counts.lost, "record", " lost"),
        (counts.broken, "frame", " broken"),
        (counts.overlong, "frame", " too long"),
        (counts.foreign, "frame", " of another version of elsa"),
        (counts.repeated, "record", " repeated"),
        (counts.noise, "byte", " of noise"),
    ]
    .into_iter()
    .filter(|(n, ..)| *n > 0)
    .map(|(n, what, how)| plural(n, what) + how)
    .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_in_words() {
        let counts =
            Counts { records: 9, lost: 2, broken: 1, overlong: 1, foreign: 3, repeated: 1, noise: 1 };
        let text = "2 records lost, 1 frame broken, 1 frame too long, 3 frames of another version of elsa, 1 record repeated, 1 byte of noise";
        assert_eq!(losses(&counts).as_deref(), Some(text));
        assert_eq!(losses(&Counts { records: 9, ..Counts::default() }), None);
        let before = Counts { lost: 2, broken: 1, overlong: 1, foreign: 2, ..counts };
        assert_eq!(losses(&since(&counts, &before)).as_deref(), Some("1 frame of another version of elsa"));
    }
}
