//! The loop. In each period the loop takes a frame from the source and sends an answer to the sink.

use crate::clock::{self, Schedule};
use crate::error::Error;
use crate::model::{Model, ModelError};
use crate::report::{Answer, End, Run, Statistics, Summary};
use crate::sink::{STDOUT, Sink, SinkError};
use crate::source::{Next, Source};
use elsa_runtime::RunError;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time to wait, after the last frame, for the remaining lines to be written.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Options of the loop.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Periods per second.
    pub rate: f64,
    /// Number of frames, including broken frames, after which the loop ends; `None` for no limit.
    pub frames: Option<u64>,
    /// `true` to write lines as JSON objects.
    pub json: bool,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The summary of the run, whether the run succeeded or failed.
    pub summary: Summary,
    /// The error of a failed run; `None` if the run succeeded.
    pub fault: Option<Error>,
}

/// Runs the loop, and then waits for the remaining lines to be written. The loop ends when the source ends, the
/// requested number of frames is reached, `stop` is set, or the source, the model or the sink fails permanently.
/// Between the first and the last frame only broken frames allocate memory.
///
/// # Errors
/// Returns an error if the histogram cannot be created.
pub fn run(
    options: Options,
    source: &mut dyn Source,
    model: &mut Model,
    sink: Sink,
    stop: &AtomicBool,
) -> Result<Outcome, Error> {
    let mut statistics = Statistics::new()
        .map_err(|error| Error::System { what: "statistics", source: std::io::Error::other(error) })?;
    let start = clock::now();
    let driven =
        drive(options, source, model, &sink, stop, Schedule::new(options.rate, start), &mut statistics);
    let seconds = clock::now().saturating_sub(start) as f64 * 1e-9;
    let (mut ended, mut fault) = match driven {
        Ok(ended) => (ended, None),
        Err(error) => (End::Failure, Some(error)),
    };
    let dropped_lines = match sink.close(LAST_LINES) {
        Ok(dropped) => dropped,
        Err(error) if error.is_closed() => 0,
        Err(error) => {
            ended = End::Failure;
            fault.get_or_insert(error.into());
            0
        }
    };
    let (replaced, copied, backend) = (source.replaced(), model.copied(), model.backend());
    let run = Run { replaced, dropped_lines, rate: options.rate, seconds, copied, backend, ended };
    Ok(Outcome { summary: statistics.summary(run), fault })
}

/// Executes the loop. Returns the reason why the loop ended, or the error with which it failed.
fn drive(
    options: Options,
    source: &mut dyn Source,
    model: &mut Model,
    sink: &Sink,
    stop: &AtomicBool,
    mut schedule: Schedule,
    statistics: &mut Statistics,
) -> Result<End, Error> {
    let mut number = 0;
    loop {
        if options.frames.is_some_and(|frames| number >= frames) {
            return Ok(End::Frames);
        }
        let tick = schedule.next(clock::now());
        statistics.skipped += tick.skipped;
        let mut awake = false;
        while !awake && !stop.load(Ordering::Relaxed) {
            awake = clock::sleep_until(tick.release).map_err(Error::system("clock"))?;
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(End::Signal);
        }
        match source.next()? {
            Next::Frame(frame) => {
                let class = match model.classify(&frame) {
                    // The code that sets `stop` may also cancel the call.
                    Err(ModelError::Run(RunError::Cancelled)) if stop.load(Ordering::Relaxed) => {
                        return Ok(End::Signal);
                    }
                    class => class?,
                };
                let done = clock::now();
                let answer = Answer {
                    frame: number,
                    class: class.class,
                    score: class.score,
                    latency_us: done.saturating_sub(tick.release) / 1000,
                    late: done > tick.deadline,
                    fallback: class.fallback,
                };
                statistics.answered(&answer);
                let sent = sink.send(|to| {
                    if options.json {
                        serde_json::to_writer(to, &answer).map_err(std::io::Error::from)
                    } else {
                        write!(to, "{answer}")
                    }
                });
                number += 1;
                match sent {
                    Err(error) if error.is_closed() => return Ok(End::Closed),
                    sent => sent?,
                }
            }
            Next::Broken(why) => {
                log::warn!("frame {number} is skipped: {why}");
                statistics.broken += 1;
                number += 1;
            }
            Next::Nothing => statistics.idle += 1,
            Next::End => return Ok(End::Source),
        }
    }
}

/// Prints the summary on standard output. With `json`, prints one JSON object under the name `summary`; without `json`,
/// prints lines of text.
///
/// # Errors
/// Returns an error if standard output fails. It is not an error if the reader has closed standard output.
pub fn print(summary: &Summary, json: bool) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let wrote = if json {
        serde_json::to_writer(&mut out, &serde_json::json!({ "summary": summary }))
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        writeln!(out, "{summary}")
    };
    match wrote.and_then(|()| out.flush()) {
        Err(source) => {
            let error = SinkError::Write { name: STDOUT, source };
            if error.is_closed() { Ok(()) } else { Err(error.into()) }
        }
        Ok(()) => Ok(()),
    }
}
