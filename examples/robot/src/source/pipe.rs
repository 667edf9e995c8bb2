//! Raw frames of a fixed size from standard input, a named pipe or a file.

use super::error::SourceError;
use super::next::{Next, Source};
use super::queue::{Feed, Keep, Queue};
use crate::frame::{BrokenFrame, Geometry};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

/// Raw frames that follow one another in a pipe or file without gaps.
pub struct Pipe(Queue);

impl Pipe {
    /// Opens the file or named pipe `path`, or standard input if it is `-`. Opening a named pipe waits until it has a
    /// writer.
    ///
    /// # Errors
    /// Returns an error if the path cannot be read, or the system refuses memory or a thread.
    pub fn open(
        path: &Path,
        geometry: Geometry,
        keep: Keep,
        patience: Option<Duration>,
    ) -> Result<Pipe, SourceError> {
        let fault = |source| SourceError::Pipe { path: path.to_owned(), source };
        if path.as_os_str() == "-" {
            return Pipe::start(geometry, keep, patience, |feed| copy(&feed, std::io::stdin().lock()));
        }
        let about = std::fs::metadata(path).map_err(fault)?;
        if about.is_dir() {
            return Err(fault(ErrorKind::IsADirectory.into()));
        }
        if about.is_file() {
            // Opening a regular file never waits, so its error is returned at once.
            let file = File::open(path).map_err(fault)?;
            return Pipe::start(geometry, keep, patience, move |feed| copy(&feed, file));
        }
        let path = path.to_owned();
        Pipe::start(geometry, keep, patience, move |feed| match File::open(&path) {
            Ok(file) => copy(&feed, file),
            Err(source) => feed.end(Err(SourceError::Pipe { path, source })),
        })
    }

    fn start(
        geometry: Geometry,
        keep: Keep,
        patience: Option<Duration>,
        read: impl FnOnce(Feed) + Send + 'static,
    ) -> Result<Pipe, SourceError> {
        Queue::start(geometry, keep, patience, read).map(Pipe)
    }
}

/// Copies frames from `from` to the queue until the end of the input. If the last bytes do not fill a frame, they count
/// as a broken frame.
fn copy(feed: &Feed, mut from: impl Read) {
    while let Some(mut buffer) = feed.take() {
        let mut filled = 0;
        while filled < buffer.len() {
            match from.read(&mut buffer[filled..]) {
                Ok(0) => {
                    if filled > 0 {
                        let needed = buffer.len();
                        feed.broken(buffer, BrokenFrame::Short { found: filled, needed });
                    }
                    return feed.end(Ok(()));
                }
                Ok(n) => filled += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return feed.end(Err(SourceError::Read(error))),
            }
        }
        feed.frame(buffer);
    }
}

impl Source for Pipe {
    fn next(&mut self) -> Result<Next<'_>, SourceError> {
        self.0.next()
    }

    fn replaced(&self) -> u64 {
        self.0.replaced()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{PixelFormat, Size};

    /// Returns the frames that the pipe delivers, and all other items as texts.
    fn drain(path: &Path, size: Size) -> (Vec<Vec<u8>>, Vec<String>) {
        let geometry = Geometry::dense(size, PixelFormat::Grey);
        let mut pipe = Pipe::open(path, geometry, Keep::All, None).unwrap();
        let (mut frames, mut rest) = (Vec::new(), Vec::new());
        loop {
            match pipe.next() {
                Ok(Next::Frame(frame)) => frames.push(frame.row(0).to_vec()),
                Ok(Next::Nothing) => std::thread::yield_now(),
                Ok(Next::Broken(why)) => rest.push(why.to_string()),
                Ok(Next::End) => return (frames, rest),
                Err(error) => {
                    rest.push(error.to_string());
                    return (frames, rest);
                }
            }
        }
    }

    #[test]
    fn frames_come_whole_and_a_torn_end_is_a_broken_frame() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("frames");
        std::fs::write(&path, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]).unwrap();
        let (frames, rest) = drain(&path, Size { width: 4, height: 1 });
        assert_eq!(frames, [[1, 2, 3, 4], [5, 6, 7, 8]]);
        assert_eq!(rest, ["frame: 3 bytes; allowed: 4"]);
        std::fs::write(&path, []).unwrap();
        assert_eq!(drain(&path, Size { width: 4, height: 1 }), (vec![], vec![]));
    }

    #[test]
    fn what_cannot_be_opened_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry::dense(Size { width: 4, height: 1 }, PixelFormat::Grey);
        for path in [dir.path().to_owned(), dir.path().join("none")] {
            let error = Pipe::open(&path, geometry, Keep::All, None).err().unwrap();
            assert!(error.is_request() && error.to_string().starts_with("pipe: "), "{error}");
        }
    }
}
