//! The log callback.

use crate::fault::{Fault, call};
use crate::text::Text;
use crate::types::*;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Destination of messages: the callback of elsa_log_set and its user pointer. While a call of the callback runs,
/// it holds a reference to this sink.
struct Sink {
    callback: unsafe extern "C" fn(*mut c_void, elsa_log_level, *const std::ffi::c_char),
    user: *mut c_void,
    /// Id of the process that set the callback; a forked child has a different id.
    process: u32,
}

// SAFETY: any thread may call the callback with its pointer (clause *callback* of elsa_log_set).
unsafe impl Send for Sink {}
// SAFETY: the same clause.
unsafe impl Sync for Sink {}

/// The logger of the process, which forwards to [`SINK`].
struct Forward;

/// The current destination; `None` if logging is disabled. The lock is held only to copy, drop or replace the
/// reference, never while the callback runs, so messages and callbacks never wait for each other.
static SINK: Mutex<Option<Arc<Sink>>> = Mutex::new(None);
/// Signalled when a call of the callback has returned.
static RETURNED: Condvar = Condvar::new();

fn sink() -> MutexGuard<'static, Option<Arc<Sink>>> {
    SINK.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// `true` while this thread runs the callback. Messages that the callback itself causes are dropped.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

fn level(level: Level) -> elsa_log_level {
    match level {
        Level::Error => ELSA_LOG_ERROR,
        Level::Warn => ELSA_LOG_WARN,
        Level::Info => ELSA_LOG_INFO,
        Level::Debug | Level::Trace => ELSA_LOG_DEBUG,
    }
}

impl Log for Forward {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) || WITHIN.try_with(Cell::get).unwrap_or(true) {
            return;
        }
        let text: Text<1024> = Text::of(record.args());
        let current = sink().clone();
        if let Some(current) = current {
            let _ = WITHIN.try_with(|within| within.set(true));
            // SAFETY: the callback may be called until it is replaced (clause *callback* of elsa_log_set), and
            // elsa_log_set waits until `current` is dropped. The text ends in a zero byte and outlives the call.
            unsafe { (current.callback)(current.user, level(record.level()), text.as_ptr()) };
            let _ = WITHIN.try_with(|within| within.set(false));
            let held = sink();
            drop(current);
            drop(held);
            RETURNED.notify_all();
        }
    }

    fn flush(&self) {}
}

/// # Safety
/// The caller keeps the clause *callback* of elsa_log_set.
unsafe fn set(most: elsa_log_level, callback: elsa_log_callback, user: *mut c_void) -> Result<(), Fault> {
    let filter = match most {
        ELSA_LOG_OFF => LevelFilter::Off,
        ELSA_LOG_ERROR => LevelFilter::Error,
        ELSA_LOG_WARN => LevelFilter::Warn,
        ELSA_LOG_INFO => LevelFilter::Info,
        ELSA_LOG_DEBUG => LevelFilter::Debug,
        found => return Err(Fault::argument(format_args!("level: {found}; allowed: one of ELSA_LOG_*"))),
    };
    if WITHIN.try_with(Cell::get).unwrap_or(true) {
        return Err(Fault::new(
            ELSA_STATUS_BUSY,
            &"elsa_log_set: called from a log callback; allowed: a call from elsewhere",
        ));
    }
    static OURS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if !*OURS.get_or_init(|| log::set_logger(&Forward).is_ok()) {
        return Err(Fault::new(
            ELSA_STATUS_UNSUPPORTED,
            &"elsa_log_set: the process has another logger of Rust; allowed: none",
        ));
    }
    let process = std::process::id();
    let new = callback.map(|callback| Arc::new(Sink { callback, user, process }));
    let mut held = sink();
    log::set_max_level(if new.is_some() { filter } else { LevelFilter::Off });
    // Calls of the callback that were running in the parent process at a fork never return in this process.
    if let Some(old) = std::mem::replace(&mut *held, new).filter(|old| old.process == process) {
        while Arc::strong_count(&old) > 1 {
            held = RETURNED.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
    Ok(())
}

/// Sends messages of the library, up to the given severity level, to callback, with user as its first argument. A
/// null callback disables logging. When this returns, the previous callback is not running and is not called again.
/// There is one callback per process.
///
/// # Safety
/// - *callback*: it can be called as elsa_log_callback describes, from any thread, until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elsa_log_set(
    level: elsa_log_level,
    callback: elsa_log_callback,
    user: *mut c_void,
) -> elsa_status {
    // SAFETY: the caller keeps the clauses of this function.
    call(|| unsafe { set(level, callback, user) })
}
