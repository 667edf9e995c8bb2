//! The queue between the thread that reads frames and the loop: a few circulating buffers.
//!
//! The system may block the reading thread for any length of time; the loop takes only frames that are ready. All
//! buffers are allocated at the start, so nothing is allocated while frames flow.

use super::error::SourceError;
use super::next::{Next, Source};
use crate::frame::{BrokenFrame, Frame, Geometry};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Treatment of frames that arrive faster than the loop takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The reading thread waits for a free buffer, so that the writer of a pipe waits too. No frame is lost.
    All,
    /// A newer frame replaces the frame that waits for the loop, so that the loop always gets a recent frame.
    Newest,
}

/// Number of circulating buffers. With [`Keep::Newest`] up to three buffers are in use: the first is read by the loop,
/// the second waits for the loop, and the third is being filled.
const BUFFERS: usize = 4;

enum Item {
    Frame(Vec<u8>),
    Broken(BrokenFrame),
}

struct State {
    free: Vec<Vec<u8>>,
    ready: VecDeque<Item>,
    /// Result of the reading thread; `None` as long as more frames may come.
    ended: Option<Result<(), SourceError>>,
    /// `true` once the loop has stopped.
    closed: bool,
    replaced: u64,
}

struct Shared {
    state: Mutex<State>,
    room: Condvar,
    keep: Keep,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of the queue that the reading thread uses.
pub(super) struct Feed(Arc<Shared>);

impl Feed {
    /// Waits until a buffer is free, and returns it to be filled. Returns `None` if the loop has stopped.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut state = self.0.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(buffer) = state.free.pop() {
                return Some(buffer);
            }
            if self.0.keep == Keep::Newest
                && let Some(buffer) = replace(&mut state)
            {
                return Some(buffer);
            }
            state = self.0.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Passes a filled buffer on to the loop.
    pub fn frame(&self, buffer: Vec<u8>) {
        let mut state = self.0.lock();
        if self.0.keep == Keep::Newest
            && let Some(old) = replace(&mut state)
        {
            state.free.push(old);
        }
        state.ready.push_back(Item::Frame(buffer));
    }

    /// Reports a broken frame to the loop, and returns the frame's buffer to the queue.
    pub fn broken(&self, buffer: Vec<u8>, why: BrokenFrame) {
        let mut state = self.0.lock();
        state.free.push(buffer);
        // The number of buffers limits the waiting frames; this condition limits the waiting reports.
        if state.ready.len() < 2 * BUFFERS {
            state.ready.push_back(Item::Broken(why));
        }
    }

    /// Reports to the loop that no more frames will come. `how` is the result of the reading thread.
    pub fn end(&self, how: Result<(), SourceError>) {
        self.0.lock().ended.get_or_insert(how);
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.end(Ok(()));
    }
}

/// Removes the oldest waiting frame and counts it as replaced.
fn replace(state: &mut State) -> Option<Vec<u8>> {
    let at = state.ready.iter().position(|item| matches!(item, Item::Frame(_)))?;
    match state.ready.remove(at) {
        Some(Item::Frame(buffer)) => {
            state.replaced += 1;
            Some(buffer)
        }
        _ => None,
    }
}

/// The end of the queue that the loop uses.
pub(super) struct Queue {
    shared: Arc<Shared>,
    geometry: Geometry,
    current: Option<Vec<u8>>,
    /// Longest time for which the queue may be empty, counted from `last`; `None` for no limit.
    patience: Option<Duration>,
    last: Instant,
}

impl Queue {
    /// Creates a queue for frames of one shape. `read` fills the queue in a separate thread. Each buffer has exactly
    /// the size of a frame.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory or a thread.
    pub fn start(
        geometry: Geometry,
        keep: Keep,
        patience: Option<Duration>,
        read: impl FnOnce(Feed) + Send + 'static,
    ) -> Result<Queue, SourceError> {
        let free = (0..BUFFERS).map(|_| buffer(geometry.bytes())).collect::<Result<Vec<_>, _>>()?;
        let ready = VecDeque::with_capacity(3 * BUFFERS);
        let state = State { free, ready, ended: None, closed: false, replaced: 0 };
        let shared = Arc::new(Shared { state: Mutex::new(state), room: Condvar::new(), keep });
        let feed = Feed(Arc::clone(&shared));
        // The thread is not joined: it may block in a read that never returns.
        std::thread::Builder::new()
            .name("frames".to_owned())
            .spawn(move || read(feed))
            .map_err(SourceError::Thread)?;
        Ok(Queue { shared, geometry, current: None, patience, last: Instant::now() })
    }
}

impl Source for Queue {
    fn next(&mut self) -> Result<Next<'_>, SourceError> {
        let mut state = self.shared.lock();
        if let Some(buffer) = self.current.take() {
            state.free.push(buffer);
            self.shared.room.notify_one();
        }
        match state.ready.pop_front() {
            Some(Item::Frame(buffer)) => {
                drop(state);
                self.last = Instant::now();
                let data: &[u8] = self.current.insert(buffer);
                Ok(match Frame::new(self.geometry, data) {
                    Ok(frame) => Next::Frame(frame),
                    Err(why) => Next::Broken(why),
                })
            }
            Some(Item::Broken(why)) => {
                self.last = Instant::now();
                Ok(Next::Broken(why))
            }
            None => match state.ended.take() {
                Some(Ok(())) => {
                    state.ended = Some(Ok(()));
                    Ok(Next::End)
                }
                Some(Err(error)) => Err(error),
                None => match self.patience {
                    Some(patience) if self.last.elapsed() > patience => Err(SourceError::Silent { patience }),
                    _ => Ok(Next::Nothing),
                },
            },
        }
    }

    fn replaced(&self) -> u64 {
        self.shared.lock().replaced
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.room.notify_all();
    }
}

/// Allocates a buffer of `bytes` zeros.
fn buffer(bytes: usize) -> Result<Vec<u8>, SourceError> {
    let mut data = Vec::new();
    data.try_reserve_exact(bytes).map_err(|_| SourceError::Memory { bytes })?;
    data.resize(bytes, 0);
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{PixelFormat, Size};
    use std::sync::mpsc;

    fn geometry() -> Geometry {
        Geometry::dense(Size { width: 2, height: 1 }, PixelFormat::Grey)
    }

    /// Waits for an item other than `Nothing` and returns it as text.
    fn next(queue: &mut Queue) -> String {
        loop {
            match queue.next() {
                Ok(Next::Nothing) => std::thread::yield_now(),
                Ok(Next::Frame(frame)) => return format!("{:?}", frame.row(0)),
                other => return format!("{other:?}"),
            }
        }
    }

    /// Creates a queue whose reader fills one frame with each number that it receives.
    fn counter(keep: Keep) -> (Queue, mpsc::SyncSender<u8>) {
        let (send, receive) = mpsc::sync_channel(0);
        let queue = Queue::start(geometry(), keep, None, move |feed| {
            while let Ok(n) = receive.recv() {
                let Some(mut buffer) = feed.take() else { return };
                buffer.fill(n);
                feed.frame(buffer);
            }
        })
        .unwrap();
        (queue, send)
    }

    #[test]
    fn all_are_kept_in_order_and_the_reader_waits() {
        let (mut queue, send) = counter(Keep::All);
        let writer = std::thread::spawn(move || (0..100).for_each(|n| send.send(n).unwrap()));
        for n in 0..100u8 {
            assert_eq!(next(&mut queue), format!("[{n}, {n}]"));
        }
        assert_eq!(next(&mut queue), "Ok(End)");
        assert_eq!(next(&mut queue), "Ok(End)");
        writer.join().unwrap();
        assert_eq!(queue.replaced(), 0);
    }

    #[test]
    fn the_newest_replaces_the_waiting_one_and_never_the_one_in_use() {
        let (mut queue, send) = counter(Keep::Newest);
        send.send(0).unwrap();
        assert_eq!(next(&mut queue), "[0, 0]");
        let held = queue.current.clone();
        for n in 1..=50 {
            send.send(n).unwrap();
        }
        drop(send);
        while queue.shared.lock().ended.is_none() {
            std::thread::yield_now();
        }
        assert_eq!(queue.current, held);
        assert_eq!(next(&mut queue), "[50, 50]");
        assert_eq!(next(&mut queue), "Ok(End)");
        assert_eq!(queue.replaced(), 49);
    }

    #[test]
    fn broken_frames_and_errors_are_told_after_the_frames_before_them() {
        let mut queue = Queue::start(geometry(), Keep::All, None, |feed| {
            let buffer = feed.take().unwrap();
            feed.frame(buffer);
            let buffer = feed.take().unwrap();
            feed.broken(buffer, BrokenFrame::Damaged);
            feed.end(Err(SourceError::Lost(std::io::ErrorKind::NotFound.into())));
        })
        .unwrap();
        assert_eq!(next(&mut queue), "[0, 0]");
        assert_eq!(next(&mut queue), "Ok(Broken(Damaged))");
        assert!(next(&mut queue).contains("Lost"));
    }

    #[test]
    fn a_silent_reader_is_an_error_after_a_while() {
        let (send, receive) = mpsc::channel::<()>();
        let patience = Duration::from_millis(20);
        let mut queue = Queue::start(geometry(), Keep::Newest, Some(patience), move |_feed| {
            let _ = receive.recv();
        })
        .unwrap();
        assert!(matches!(queue.next(), Ok(Next::Nothing)));
        assert!(next(&mut queue).contains("Silent"));
        drop(send);
    }
}
