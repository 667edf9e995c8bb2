//! Results: lines on standard output or through a serial port.
//!
//! A port or a reader may be slower than the loop, or stall. The loop therefore only puts lines into a bounded queue,
//! from which a thread writes them. If the queue is full, the new line is dropped and counted. Adding a line to the
//! queue allocates nothing.

use std::io::{self, Cursor, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Largest number of bytes in a line, including its line feed.
pub const LINE: usize = 256;
/// Capacity of the queue, in lines.
pub const LINES: usize = 256;
/// Name of standard output in errors.
pub(crate) const STDOUT: &str = "standard output";
/// Timeout of one attempt to write to a serial port.
const ATTEMPT: Duration = Duration::from_millis(100);

/// Reason why results cannot be delivered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The serial port could not be opened.
    #[error("serial: {}: {source}; allowed: a serial port that the user may open (group dialout) and nobody else uses", path.display())]
    Open {
        /// Path of the port.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// Writing to the destination failed.
    #[error("{name}: writing failed: {source}")]
    Write {
        /// Name of the destination: `standard output` or `serial`.
        name: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The writing thread could not be started.
    #[error("results: the system started no thread: {0}")]
    Thread(io::Error),
}

impl SinkError {
    /// Returns `true` if the request caused the error, `false` if the device or the system did.
    #[must_use]
    pub fn is_request(&self) -> bool {
        matches!(self, SinkError::Open { source, .. } if source.kind() != ErrorKind::ResourceBusy)
    }

    /// Returns `true` if the reader of standard output has closed it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self, SinkError::Write { name: STDOUT, source } if source.kind() == ErrorKind::BrokenPipe)
    }
}

#[derive(Clone, Copy)]
struct Line {
    bytes: [u8; LINE],
    len: usize,
}

struct State {
    lines: Box<[Line]>,
    first: usize,
    waiting: usize,
    /// `true` once the loop will send no more lines.
    closing: bool,
    /// `true` once the writer has written every line or cannot write any more.
    done: bool,
    failed: Option<io::Error>,
    dropped: u64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bounded queue of lines and the thread that writes them.
pub struct Sink {
    shared: Arc<Shared>,
    name: &'static str,
}

impl Sink {
    /// Creates a sink that writes lines to standard output.
    ///
    /// # Errors
    /// Returns an error if the system does not start a thread.
    pub fn stdout() -> Result<Sink, SinkError> {
        Sink::start(STDOUT, io::stdout())
    }

    /// Creates a sink that writes lines to the serial port `path`: eight bits, no parity, one stop bit, no flow
    /// control.
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened, or the system does not start a thread.
    pub fn serial(path: &Path, baud: u32) -> Result<Sink, SinkError> {
        let name = path.to_string_lossy();
        let port = serialport::new(name, baud)
            .data_bits(serialport::DataBits::Eight)
            .parity(serialport::Parity::None)
            .stop_bits(serialport::StopBits::One)
            .flow_control(serialport::FlowControl::None)
            .timeout(ATTEMPT)
            .open_native()
            .map_err(|error| SinkError::Open { path: path.to_owned(), source: reason(path, error) })?;
        Sink::start("serial", port)
    }

    /// Creates a sink that writes lines to `to`; `name` is the name of `to` in errors.
    ///
    /// # Errors
    /// Returns an error if the system does not start a thread.
    pub fn start(name: &'static str, to: impl Write + Send + 'static) -> Result<Sink, SinkError> {
        let lines = vec![Line { bytes: [0; LINE], len: 0 }; LINES].into_boxed_slice();
        let state =
            State { lines, first: 0, waiting: 0, closing: false, done: false, failed: None, dropped: 0 };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        // The thread is not joined: it may block in a write that never returns.
        std::thread::Builder::new()
            .name("results".to_owned())
            .spawn(move || write(&theirs, to))
            .map_err(SinkError::Thread)?;
        Ok(Sink { shared, name })
    }

    /// Adds a line to the queue: the text that `fill` writes, and a line feed. If the line is longer than [`LINE`] bytes
    /// or the queue is full, the line is dropped and counted.
    ///
    /// # Errors
    /// Returns an error that the writer has encountered since the last call.
    pub fn send(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), SinkError> {
        let mut state = self.shared.lock();
        if let Some(source) = state.failed.take() {
            return Err(SinkError::Write { name: self.name, source });
        }
        let at = (state.first + state.waiting) % LINES;
        let mut wrote = None;
        if state.waiting < LINES {
            let line = &mut state.lines[at];
            let mut cursor = Cursor::new(&mut line.bytes[..]);
            if fill(&mut cursor).is_ok() && cursor.write_all(b"\n").is_ok() {
                wrote = usize::try_from(cursor.position()).ok();
            }
        }
        match wrote {
            Some(len) => {
                state.lines[at].len = len;
                state.waiting += 1;
                drop(state);
                self.shared.changed.notify_all();
            }
            None => state.dropped += 1,
        }
        Ok(())
    }

    /// Waits at most `patience` for all lines to be written, and then drops the remaining lines. Returns the total
    /// number of dropped lines.
    ///
    /// # Errors
    /// Returns an error that the writer has encountered.
    pub fn close(self, patience: Duration) -> Result<u64, SinkError> {
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.changed.notify_all();
        let end = Instant::now() + patience;
        while !state.done {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(source) = state.failed.take() {
            return Err(SinkError::Write { name: self.name, source });
        }
        Ok(state.dropped + state.waiting as u64)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
    }
}

/// Converts an error of the serial port library to an error of the system.
fn reason(path: &Path, error: serialport::Error) -> io::Error {
    match error.kind {
        serialport::ErrorKind::Io(kind) => io::Error::new(kind, error.description),
        // The library reports the same error for a port that is absent and for one that is in use.
        serialport::ErrorKind::NoDevice if !path.exists() => ErrorKind::NotFound.into(),
        serialport::ErrorKind::NoDevice => io::Error::new(ErrorKind::ResourceBusy, error.description),
        serialport::ErrorKind::InvalidInput => io::Error::new(ErrorKind::InvalidInput, error.description),
        serialport::ErrorKind::Unknown => io::Error::other(error.description),
    }
}

/// Writes lines as they arrive in the queue, until the last line is written or writing fails.
fn write(shared: &Shared, mut to: impl Write) {
    let mut state = shared.lock();
    loop {
        if state.waiting > 0 {
            // A line stays in the queue until it is written, so that a line that is never written is counted.
            let line = state.lines[state.first];
            drop(state);
            let wrote = whole(&mut to, &line.bytes[..line.len]);
            state = shared.lock();
            match wrote {
                Ok(()) => {
                    state.first = (state.first + 1) % LINES;
                    state.waiting -= 1;
                }
                Err(error) => {
                    state.failed = Some(error);
                    break;
                }
            }
        } else if state.closing {
            break;
        } else {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    state.done = true;
    drop(state);
    shared.changed.notify_all();
}

/// Writes all of `bytes` to `to`, and then flushes `to`. Tries again after every timeout, however long the device
/// stalls.
fn whole(to: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if waits(&error) => {}
            Err(error) => return Err(error),
        }
    }
    match to.flush() {
        Err(error) if !waits(&error) => Err(error),
        _ => Ok(()),
    }
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Writer whose odd-numbered writes time out. Each even-numbered write accepts one byte, once the test permits it.
    struct Slow {
        to: mpsc::Sender<u8>,
        may: mpsc::Receiver<()>,
        odd: bool,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.odd = !self.odd;
            if self.odd {
                return Err(ErrorKind::TimedOut.into());
            }
            // Once the test has dropped its sender, every write is permitted.
            let _ = self.may.recv();
            self.to.send(bytes[0]).map_err(|_| ErrorKind::BrokenPipe)?;
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Sink, mpsc::Receiver<u8>, mpsc::Sender<()>) {
        let ((to, out), (let_go, may)) = (mpsc::channel(), mpsc::channel());
        (Sink::start("test", Slow { to, may, odd: false }).unwrap(), out, let_go)
    }

    #[test]
    fn lines_come_whole_and_in_order_and_what_finds_no_room_is_counted() {
        let (sink, out, let_go) = slow();
        // No line can be written yet, so the queue fills.
        for n in 0..LINES + 10 {
            sink.send(|to| write!(to, "line {n}")).unwrap();
        }
        sink.send(|to| to.write_all(&[b'x'; LINE])).unwrap();
        drop(let_go);
        assert_eq!(sink.close(Duration::from_secs(60)).unwrap(), 11);
        let text = String::from_utf8(out.try_iter().collect()).unwrap();
        let expected: String = (0..LINES).map(|n| format!("line {n}\n")).collect();
        assert_eq!(text, expected);
    }

    #[test]
    fn a_line_that_is_too_long_is_dropped_and_the_longest_is_not() {
        let (sink, out, let_go) = slow();
        drop(let_go);
        sink.send(|to| to.write_all(&[b'x'; LINE])).unwrap();
        sink.send(|to| to.write_all(&[b'y'; LINE - 1])).unwrap();
        assert_eq!(sink.close(Duration::from_secs(60)).unwrap(), 1);
        assert_eq!(out.try_iter().filter(|&b| b == b'y').count(), LINE - 1);
    }

    #[test]
    fn a_device_that_stands_still_holds_nobody_up() {
        let (sink, _out, let_go) = slow();
        for n in 0..5 {
            sink.send(|to| write!(to, "{n}")).unwrap();
        }
        assert_eq!(sink.close(Duration::from_millis(30)).unwrap(), 5);
        drop(let_go);
    }

    #[test]
    fn a_device_that_fails_is_told() {
        let (sink, out, let_go) = slow();
        drop((out, let_go));
        sink.send(|to| write!(to, "a")).unwrap();
        let error = loop {
            match sink.send(|to| write!(to, "b")) {
                Ok(()) => std::thread::yield_now(),
                Err(error) => break error,
            }
        };
        // Only standard output has a reader that may have closed it.
        assert!(!error.is_closed() && !error.is_request(), "{error}");
    }

    #[test]
    fn ports_that_are_none_are_refused() {
        for path in ["/dev/no-such-port", "/dev/null", "/"] {
            let error = Sink::serial(Path::new(path), 115_200).err().unwrap();
            assert!(error.is_request() && error.to_string().contains(path), "{error}");
        }
    }
}
