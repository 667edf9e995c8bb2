//! `elsa bench --exec`: runs a program, and measures the machine around it.
//!
//! The program has the tool's standard input, output and error, with two exceptions. With `--json` its output goes to
//! standard error, so that standard output contains only records. If the marks come from standard input, the program's
//! input is empty.
//!
//! A thread waits for the program without taking its exit status. So the readings end when the program ends, and the
//! number of the program remains its own until the signals are no longer passed on. The CPU times and the peak memory
//! are those that the system counts for ended children; the tool has no other children.

mod marks;
#[cfg(test)]
mod tests;

use super::args::BenchArgs;
use super::output::{Output, Table};
use super::watch::Watch;
use crate::error::{Error, SYSTEM, one_line, say};
use crate::signals;
use elsa_board::{Root, Span};
use elsa_core::telemetry::record::{Phase, Record, text};
use marks::{Marks, STDIN, ready};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::ffi::OsString;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

/// Name of the flag.
const ARGUMENT: &str = "exec";
/// Name of the phase before the first mark.
const FIRST: &str = "start";
/// Maximum time between two records of the machine's state, in milliseconds.
const TURN: i64 = 200;

/// Runs the program and the arguments in `words`, on the machine with the files in `root`. Prints a row for each phase
/// and a row for the whole run.
///
/// # Errors
/// Returns an error if the program cannot be started or fails, if the system or a file fails, or if something disturbed
/// the program.
pub fn exec(args: &BenchArgs, words: &[OsString], root: &Root) -> Result<(), Error> {
    let (program, arguments) = match words {
        [program, arguments @ ..] => (program, arguments),
        [] => return Err(refused("no program".to_owned())),
    };
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let name = one_line(&name);
    let mut watch = Watch::around_programs(args.gate, root);
    // The program runs in any case; on a busy machine its rows are marked.
    let _ = watch.refusal(say);
    let start = watch.describe(None);
    let mut output = Output::new(args, watch.board(), &start, Table::Program)?;
    let mut marks = args.marks.as_deref().map(Marks::open).transpose()?;
    let mut command = Command::new(program);
    command.args(arguments);
    if args.marks.as_deref() == Some(Path::new(STDIN)) {
        command.stdin(Stdio::null());
    }
    if args.json {
        command.stdout(io::stderr());
    }

    let began = Instant::now();
    let whole = watch.open();
    let phase = marks.is_some().then(|| (FIRST.to_owned(), watch.open()));
    let started = signals::pass_to(|| command.spawn());
    let mut child = started.map_err(|e| refused(format!("{}: {e}", Path::new(program).display())))?;
    let waiting = end_of(Pid::from_child(&child)).map_err(|e| system(&name, &e));
    let followed = waiting.and_then(|(ended, waiter)| {
        let mut run = Run { watch: &mut watch, output: &mut output, name: &name, phase, marked: false };
        let followed = run.record(Record::Start(start)).and_then(|()| run.follow(&ended, &mut marks));
        // The program continues even if its phases can no longer be followed.
        let _ = waiter.join();
        followed
    });
    let mut row = row(&watch, &name, None, whole);
    signals::pass_to_none();
    let status = child.wait().map_err(|e| system(&name, &e))?;
    followed?;
    drop(marks);

    row.exit_status = status.code();
    row.signal = status.signal();
    match getrusage(UsageWho::RUSAGE_CHILDREN) {
        Ok(usage) => add(&mut row, &usage),
        Err(e) => log::warn!("--{ARGUMENT}: the system reports no usage: {e}"),
    }
    output.record(&Record::Phase(row))?;
    watch.notes().iter().try_for_each(|note| output.note(note))?;
    let end = output.end(began.elapsed().as_secs_f64())?;
    judge(&name, status)?;
    if end.clean_cells == end.cells {
        Ok(())
    } else {
        Err(Error::Unclean("the program was disturbed".into()))
    }
}

/// Returns the error for a program that cannot be started.
fn refused(found: String) -> Error {
    let allowed = "a program in PATH, or the path of a program".to_owned();
    Error::Argument { argument: ARGUMENT, found, allowed }
}

/// Returns the error for a failure of the system while `program` runs.
fn system(program: &str, e: &io::Error) -> Error {
    Error::Program { program: program.into(), how: e.to_string(), status: SYSTEM }
}

/// Starts a thread that waits until the child `pid` has ended, without taking its exit status. When it has ended, the
/// returned pipe has no more writer.
fn end_of(pid: Pid) -> io::Result<(PipeReader, JoinHandle<()>)> {
    let (ended, end) = io::pipe()?;
    let wait = move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        if let Err(e) = retry_on_intr(|| waitid(WaitId::Pid(pid), options)) {
            log::warn!("--{ARGUMENT}: {e}");
        }
        drop(end);
    };
    let waiter = std::thread::Builder::new().name("elsa-exec".into()).stack_size(1 << 17).spawn(wait)?;
    Ok((ended, waiter))
}

/// A program that runs.
struct Run<'a> {
    watch: &'a mut Watch,
    output: &'a mut Output,
    name: &'a str,
    /// The phase that has begun; `None` without marks.
    phase: Option<(String, Span)>,
    /// `true` after the first mark.
    marked: bool,
}

impl Run<'_> {
    /// Records the phases and the states of the machine until the program has ended.
    fn follow(&mut self, ended: &PipeReader, marks: &mut Option<Marks>) -> Result<(), Error> {
        let mut over = false;
        while !over {
            over = {
                let mark = marks.as_ref().and_then(Marks::fd);
                let files: Vec<BorrowedFd<'_>> = [ended.as_fd()].into_iter().chain(mark).collect();
                ready(&files, TURN).map_err(|e| system(self.name, &e))?[0]
            };
            // Marks that the program made just before its end are read too.
            for name in marks.as_mut().map_or_else(|| Ok(Vec::new()), Marks::read)? {
                self.marked = true;
                let next = (name, self.watch.open());
                let before = self.phase.replace(next);
                self.end_phase(before)?;
            }
            for trace in self.watch.traces() {
                self.record(Record::Trace(trace))?;
            }
        }
        // A run without a mark has no phases.
        let last = self.phase.take().filter(|_| self.marked);
        self.end_phase(last)
    }

    /// Records the row of a phase that ends now.
    fn end_phase(&mut self, phase: Option<(String, Span)>) -> Result<(), Error> {
        let Some((phase, span)) = phase else { return Ok(()) };
        self.record(Record::Phase(row(self.watch, self.name, Some(&phase), span)))
    }

    fn record(&mut self, record: Record) -> Result<(), Error> {
        self.output.record(&record)
    }
}

/// Returns the row of the program `name` for the time since `span` was opened. Without a `phase`, it is the row of the
/// whole run.
fn row(watch: &Watch, name: &str, phase: Option<&str>, span: Span) -> Phase {
    let readings = watch.close(span, 1);
    let mut row = Phase { program: text(name), phase: phase.map(text), ..Phase::default() };
    watch.fill_phase(&mut row, &readings);
    row
}

/// Adds the CPU times and the peak memory of the program, as the system counts them.
fn add(row: &mut Phase, usage: &Usage) {
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    row.user_s = Some(seconds(usage.user_time()));
    row.system_s = Some(seconds(usage.system_time()));
    row.peak_bytes = u64::try_from(usage.max_rss()).ok().map(|kib| kib * 1024);
}

/// Returns an error if the program failed. The status of the error is the program's exit status. For a program that a
/// signal ended, it is 128 plus the number of the signal, as in a shell.
fn judge(program: &str, status: ExitStatus) -> Result<(), Error> {
    let (how, code) = match (status.code(), status.signal()) {
        (Some(0), _) => return Ok(()),
        (Some(code), _) => (format!("exit status {code}"), code),
        (None, Some(signal)) => (format!("ended by signal {signal}"), 128 + signal),
        (None, None) => (status.to_string(), SYSTEM.into()),
    };
    Err(Error::Program { program: program.into(), how, status: u8::try_from(code).unwrap_or(SYSTEM) })
}
