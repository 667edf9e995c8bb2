//! Removes temporary files before a signal or a panic ends the tool.

use crate::error::say;
use elsa_files::temporary;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
