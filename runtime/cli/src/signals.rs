//! Removes temporary files before a signal or a panic ends the tool, and passes signals on to a measured program.

use crate::error::say;
use elsa_files::temporary;
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Signals that end the tool.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// `true` after a call of [`defer`]. The command itself then polls for signals.
static POLITE: AtomicBool = AtomicBool::new(false);

/// `true` if a signal has arrived after a call of [`defer`].
static ASKED: AtomicBool = AtomicBool::new(false);

/// Signals that arrive within this time after the first signal count as repetitions of it. For example, timeout(1)
/// sends two signals.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Defers the end of the tool: the first ending signal only makes [`ended`] return `true`. A signal that comes at least
/// a second later ends the tool.
pub fn defer() {
    POLITE.store(true, Ordering::Relaxed);
}

/// Returns `true` if a signal after [`defer`] has requested the end of the command.
#[must_use]
pub fn ended() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// The running program of [`pass_to`].
static PROGRAM: Mutex<Option<Pid>> = Mutex::new(None);

/// Locks the running program. While it is locked, no signal is passed on.
fn program() -> MutexGuard<'static, Option<Pid>> {
    PROGRAM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a program by `start`. From then on, ending signals do not end the tool, but are passed on to the program,
/// until [`pass_to_none`]. After that, they have the effect that [`defer`] describes.
///
/// # Errors
/// Returns the error of `start`.
pub fn pass_to(start: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    let mut program = program();
    let child = start()?;
    defer();
    *program = Some(Pid::from_child(&child));
    Ok(child)
}

/// Passes no more signals on. Call this before the system may give the number of the ended program to another process,
/// that is, before waiting for the program.
pub fn pass_to_none() {
    *program() = None;
}

/// Passes a signal on to the running program. Returns `false` if no program runs. The terminal sends SIGINT and SIGQUIT
/// to all processes in its foreground, so the program already has them if the tool is there.
fn passed(signal: i32) -> bool {
    let program = program();
    let Some(pid) = *program else { return false };
    if matches!(signal, SIGINT | SIGQUIT) && in_foreground() {
        return true;
    }
    if let Some(signal) = Signal::from_named_raw(signal)
        && let Err(e) = kill_process(pid, signal)
    {
        log::warn!("a signal cannot be passed on: {e}");
    }
    true
}

/// Returns `true` if this process is in the foreground of a terminal.
fn in_foreground() -> bool {
    let Ok(terminal) = File::open("/dev/tty") else { return false };
    tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp())
}

/// Starts a thread that waits for signals. On a fatal signal, the thread removes the temporary files and lets the
/// signal have its default effect, so that the parent process sees which signal ended the tool. If the parent process
/// made the tool ignore a signal, the tool still ignores it. A write that would exceed the process's limit on file
/// sizes returns an error and raises no fatal signal.
///
/// # Errors
/// Returns an error if the system refuses a thread or a handler.
pub fn watch() -> io::Result<()> {
    // This handler does nothing, but keeps the signal from being fatal, so that the write fails.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
    let mut signals = Signals::new(ENDING.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0))?;
    let wait = move || {
        let mut first = None;
        for signal in signals.forever() {
            if passed(signal) {
                continue;
            }
            if POLITE.load(Ordering::Relaxed) {
                ASKED.store(true, Ordering::Relaxed);
                if first.get_or_insert_with(Instant::now).elapsed() < SAME_REQUEST {
                    continue;
                }
            }
            temporary::remove_all(unremoved, || {
                if let Err(e) = low_level::emulate_default_handler(signal) {
                    log::warn!("signal {signal}: {e}");
                }
            });
        }
    };
    std::thread::Builder::new().name("signals".into()).stack_size(1 << 17).spawn(wait)?;
    Ok(())
}

/// Status of a program whose main thread panics.
const PANICKED: i32 = 101;

/// Installs a panic hook if the program is built to abort on panics. The hook removes the temporary files, and ends the
/// process with the status of a panic in the main thread. In other builds, destructors remove the files.
pub fn watch_panics() {
    if cfg!(not(panic = "abort")) {
        return;
    }
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        temporary::remove_all_in_panic(unremoved);
        std::process::exit(PANICKED);
    }));
}

fn unremoved(path: &Path, why: &io::Error) {
    say(&format!("{}: cannot be removed: {why}", path.display()));
}

/// Parses the set of ignored signals from the text of a Linux status file. Bit 0 is signal 1. Returns an empty set if
/// the text does not contain the set.
fn ignored(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!(ignored(status), 1 << (SIGHUP - 1) | 1 << (signal_hook::consts::SIGPIPE - 1));
        assert_eq!(ignored(""), 0);
    }
}
