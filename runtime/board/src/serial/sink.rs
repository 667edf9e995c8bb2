//! The sending end of a serial line.
//!
//! A port may be slower than the benchmark, stall, or disappear. None of this may disturb a measurement. So
//! [`Sink::send`] only builds a frame and puts it into a queue of fixed size. A separate thread writes the frames to
//! the port. If the queue is full, the record is dropped, and the gap in the record numbers shows the loss to the
//! reader. A port that has failed is opened again when there is something to write. Sending allocates nothing, so the
//! allocations that the benchmark counts are only those of the measured code.

use super::{Port, PortError, RETRY, waits};
use elsa_core::telemetry::frame::{Encoder, FRAME};
use elsa_core::telemetry::record::Record;
use serialport::TTYPort;
use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of frames in the queue.
const WAITING: usize = 128;

/// Longest time that [`Sink::close`] waits. After this time it returns, even if the port still accepts bytes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of bytes that the system may buffer at once for a slow port.
const BURST: u32 = 4096;

/// Numbers of records that were sent and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Complete records that the port accepted. A stalled port may keep them forever.
    pub sent: u64,
    /// Records that the port did not accept.
    pub dropped: u64,
    /// Number of times that the port was opened again.
    pub reconnects: u64,
}

/// Encoded record on its way to the writing thread.
struct Frame {
    bytes: [u8; FRAME],
    len: usize,
}

/// State that the writing thread reports to the sink.
#[derive(Default)]
struct Progress {
    sent: u64,
    reconnects: u64,
    /// Number of bytes written so far.
    bytes: u64,
    /// Set by the sink when it no longer waits. The writing thread then stops.
    abandoned: bool,
    /// Set by the writing thread when it ends.
    done: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn abandoned(&self) -> bool {
        self.lock().abandoned
    }

    /// Waits until the state changes, at most for `time`.
    fn wait<'a>(&self, state: MutexGuard<'a, Progress>, time: Duration) -> MutexGuard<'a, Progress> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Sends records through a serial port.
pub struct Sink {
    encoder: Encoder,
    /// Queue to the writing thread; `None` while closing.
    queue: Option<SyncSender<Frame>>,
    made: u64,
    /// Longest time without a written byte before the port counts as stalled.
    pause: Duration,
    shared: Arc<Shared>,
}

impl Sink {
    /// Opens a sink for the port that `text` names: a path with an optional rate, `PORT[:BAUD]`.
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened, or if the system does not start the thread.
    pub fn open(text: &str) -> Result<Sink, PortError> {
        let port = Port::parse(text)?;
        let mut line = Line { tty: Some(port.open()?), fresh: true, port };
        let path = line.port.path.clone();
        let pause = Duration::from_millis(500) + Duration::from_secs(10) * BURST / line.port.baud;
        let (queue, frames) = sync_channel(WAITING);
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        // The thread is not joined: a driver may hold it for ever.
        std::thread::Builder::new()
            .name("serial".to_owned())
            .spawn(move || line.serve(&frames, &theirs))
            .map_err(|e| PortError::Thread { path, reason: e.to_string() })?;
        Ok(Sink { encoder: Encoder::new(run()), queue: Some(queue), made: 0, pause, shared })
    }

    /// Puts a record into the queue, or drops it if the queue is full. Never waits.
    pub fn send(&mut self, record: &Record) {
        let mut bytes = [0; FRAME];
        self.made += 1;
        if let (Some(queue), Ok(frame)) = (&self.queue, self.encoder.encode(record, &mut bytes)) {
            let len = frame.len();
            // A full queue drops the record; close() counts it.
            let _ = queue.try_send(Frame { bytes, len });
        }
    }

    /// Waits until the port has accepted all queued records. Stops waiting if the port accepts no bytes for a while, or
    /// after ten seconds. Records that are still in the queue at that time are dropped.
    #[must_use]
    pub fn close(mut self) -> Sent {
        self.queue = None;
        let start = Instant::now();
        let mut state = self.shared.lock();
        let mut last = (state.bytes, start);
        while !state.done {
            let now = Instant::now();
            if state.bytes != last.0 {
                last = (state.bytes, now);
            }
            let end = (last.1 + self.pause).min(start + PATIENCE);
            if now >= end {
                break;
            }
            state = self.shared.wait(state, end - now);
        }
        // From now on, the thread does not begin another frame.
        state.abandoned = true;
        let Progress { sent, reconnects, .. } = *state;
        Sent { sent, dropped: self.made.saturating_sub(sent), reconnects }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.note(|state| state.abandoned = true);
    }
}

/// Returns a number for this run that another run is unlikely to have.
fn run() -> u32 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    // The lower bits change fastest.
    (since.as_nanos() as u32) ^ std::process::id().rotate_left(16)
}

/// Port that may disappear and come back.
struct Line {
    port: Port,
    tty: Option<TTYPort>,
    /// `true` if nothing has been written since the port was opened.
    fresh: bool,
}

impl Line {
    /// Writes frames until the queue is closed and empty, or until the sink no longer waits.
    fn serve(&mut self, frames: &Receiver<Frame>, shared: &Shared) {
        for frame in frames {
            if self.deliver(&frame.bytes[..frame.len], shared) {
                shared.note(|state| state.sent += 1);
            }
            if shared.abandoned() {
                break;
            }
        }
        // Waits for the port, because bytes that it has not transmitted are lost when the process ends.
        if let Some(tty) = &mut self.tty
            && let Err(e) = tty.flush()
        {
            log::warn!("--serial: {}: the last records may be lost: {e}", self.port);
        }
        shared.note(|state| state.done = true);
    }

    /// Writes one complete frame, and reopens the port as often as necessary. Returns `true` if the frame was written.
    fn deliver(&mut self, frame: &[u8], shared: &Shared) -> bool {
        loop {
            let Some(tty) = &mut self.tty else {
                if !self.reopen(shared) {
                    return false;
                }
                continue;
            };
            // The zero byte ends an incomplete frame that the reader may have received before the port was reopened.
            if (!self.fresh || write(tty, &[0], shared)) && write(tty, frame, shared) {
                self.fresh = false;
                return true;
            }
            if shared.abandoned() {
                return false;
            }
            // Repeated failures of a port right after opening are reported only once.
            let level = if self.fresh { log::Level::Debug } else { log::Level::Warn };
            log::log!(level, "--serial: {}: gone; what finds no room is dropped until it is back", self.port);
            self.tty = None;
        }
    }

    /// Waits for the port to come back and opens it. Returns `false` if the sink no longer waits.
    fn reopen(&mut self, shared: &Shared) -> bool {
        loop {
            let state = shared.lock();
            if state.abandoned {
                return false;
            }
            drop(shared.wait(state, RETRY));
            if !self.port.exists() {
                continue;
            }
            match self.port.open() {
                Ok(tty) => {
                    self.tty = Some(tty);
                    self.fresh = true;
                    shared.note(|state| state.reconnects += 1);
                    log::info!("--serial: {}: back", self.port);
                    return true;
                }
                Err(e) => log::debug!("--serial: {e}"),
            }
        }
    }
}

/// Writes all of `bytes`, waiting for the port as long as necessary. Returns `false` if the port fails or the sink no
/// longer waits.
fn write(to: &mut impl Write, mut bytes: &[u8], shared: &Shared) -> bool {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return false,
            Ok(n) => {
                bytes = bytes.get(n..).unwrap_or_default();
                shared.note(|state| state.bytes += n as u64);
            }
            Err(e) if waits(&e) => {
                if shared.abandoned() {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    true
}
