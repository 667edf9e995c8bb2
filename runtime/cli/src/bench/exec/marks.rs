//! Marks: lines that name the phases of a program. They come from a named pipe or from standard input.
//!
//! Each writer of a pipe may open it, write a line and close it. The pipe is read without waiting, and after its last
//! writer has closed it, it is opened again, so that the next writer finds a reader. The new file is opened before the
//! old one is closed: a pipe without a reader would end its next writer, and would lose its contents.

use crate::error::{Error, one_line};
use elsa_files::FileError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of standard input, as the value of `--marks`.
pub const STDIN: &str = "-";
/// Name of the flag.
const ARGUMENT: &str = "marks";
/// Maximum number of bytes of a line. The rest of a longer line is another line.
const LONGEST: usize = 256;

/// A named pipe. It is removed when this value is dropped, if this value made it.
#[derive(Debug)]
struct Fifo {
    path: PathBuf,
    made: bool,
}

impl Fifo {
    /// Makes the pipe, unless it exists.
    fn new(path: &Path) -> Result<Fifo, Error> {
        let refuse = |reason: String| FileError::Target { argument: ARGUMENT, path: path.into(), reason };
        let made = match mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(e) => return Err(refuse(e.to_string()).into()),
        };
        let fifo = Fifo { path: path.into(), made };
        let kind = fs::metadata(path).map_err(|e| refuse(e.to_string()))?.file_type();
        if !kind.is_fifo() {
            let found = format!("{}: not a named pipe", path.display());
            let allowed = "a named pipe, a name that no file has, or - for standard input".to_owned();
            return Err(Error::Argument { argument: ARGUMENT, found, allowed });
        }
        Ok(fifo)
    }

    /// Opens the reading end, without waiting for a writer.
    fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&self.path)
    }

    /// Opens the reading end again; `None` if the pipe has been removed.
    fn again(&self) -> Option<File> {
        let warn = |e: &io::Error| log::warn!("--{ARGUMENT}: {}: {e}", self.path.display());
        self.open().inspect_err(warn).ok()
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        if self.made
            && let Err(e) = fs::remove_file(&self.path)
        {
            log::warn!("--{ARGUMENT}: {}: cannot be removed: {e}", self.path.display());
        }
    }
}

/// Reader of marks.
#[derive(Debug)]
pub struct Marks {
    /// `None` if no more marks can come.
    file: Option<File>,
    /// `None` for standard input.
    fifo: Option<Fifo>,
    /// Bytes of a line that has not ended.
    rest: Vec<u8>,
}

impl Marks {
    /// Opens the pipe `path`, or standard input if the path is `-`. Makes the pipe if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the file exists but is not a pipe, or if the system fails.
    pub fn open(path: &Path) -> Result<Marks, Error> {
        let read = |source| FileError::Read { argument: ARGUMENT, path: path.into(), source };
        if path == Path::new(STDIN) {
            let file = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(read)?);
            return Ok(Marks { file: Some(file), fifo: None, rest: Vec::new() });
        }
        let fifo = Fifo::new(path)?;
        let file = fifo.open().map_err(read)?;
        Ok(Marks { file: Some(file), fifo: Some(fifo), rest: Vec::new() })
    }

    /// Returns the file to wait for; `None` if no more marks can come.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Reads the bytes that have arrived, without waiting, and returns the names in them. The last line of a writer may
    /// end without a line feed. Blanks around a name are dropped, and so are empty lines.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn read(&mut self) -> Result<Vec<String>, Error> {
        let path = self.fifo.as_ref().map_or_else(|| STDIN.into(), |fifo| fifo.path.clone());
        self.arrived().map_err(|source| FileError::Read { argument: ARGUMENT, path, source }.into())
    }

    /// Reads the bytes that have arrived, as [`Marks::read`] does.
    fn arrived(&mut self) -> io::Result<Vec<String>> {
        let (mut names, mut bytes) = (Vec::new(), [0; 4096]);
        while let Some(file) = &mut self.file
            && ready(&[file.as_fd()], 0)?[0]
        {
            match file.read(&mut bytes) {
                Ok(0) => {
                    names.extend(self.line());
                    self.file = self.fifo.as_ref().and_then(Fifo::again);
                }
                Ok(count) => {
                    for byte in &bytes[..count] {
                        if *byte == b'\n' || self.rest.len() == LONGEST {
                            names.extend(self.line());
                        }
                        if *byte != b'\n' {
                            self.rest.push(*byte);
                        }
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(names)
    }

    /// Ends the line and returns its name; `None` if the line is empty.
    fn line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.rest);
        let name = one_line(String::from_utf8_lossy(&line).trim());
        (!name.is_empty()).then_some(name)
    }
}

/// Waits up to `milliseconds`, which are less than 1000, until one of `files` can be read or has no more writer.
/// Returns whether each of them is in this state.
///
/// # Errors
/// Returns errors of the operating system.
pub fn ready(files: &[BorrowedFd<'_>], milliseconds: i64) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
    match poll(&mut polled, Some(&time)) {
        Ok(_) => Ok(polled.iter().map(|file| !file.revents().is_empty()).collect()),
        // A signal has arrived.
        Err(Errno::INTR) => Ok(vec![false; files.len()]),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn writer(path: &Path) -> File {
        OpenOptions::new().write(true).open(path).unwrap()
    }

    #[test]
    fn writers_of_a_pipe_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        let mut marks = Marks::open(&path).unwrap();
        let none: [&str; 0] = [];
        assert_eq!(marks.read().unwrap(), none);
        // This writer vanishes within a line.
        let mut first = writer(&path);
        first.write_all(b"warm up \n\n  \ninf").unwrap();
        assert_eq!(marks.read().unwrap(), ["warm up"]);
        first.write_all(b"er").unwrap();
        assert_eq!(marks.read().unwrap(), none);
        drop(first);
        assert_eq!(marks.read().unwrap(), ["infer"]);
        assert!(!ready(&[marks.fd().unwrap()], 0).unwrap()[0], "a pipe without a writer must not be busy");
        assert_eq!(marks.read().unwrap(), none);
        // Both writers have gone before the reader looks.
        writer(&path).write_all(b"one\n").unwrap();
        writer(&path).write_all(b"two\x1b[2J\n").unwrap();
        assert_eq!(marks.read().unwrap(), ["one", "two\\u001b[2J"]);
        writer(&path).write_all(&[b'x'; LONGEST + 3]).unwrap();
        let long: Vec<usize> = marks.read().unwrap().iter().map(String::len).collect();
        assert_eq!(long, [LONGEST, 3]);
        drop(marks);
        assert!(!path.exists());
    }

    #[test]
    fn a_pipe_that_exists_is_used_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let mut marks = Marks::open(&path).unwrap();
        writer(&path).write_all(b"one").unwrap();
        assert_eq!(marks.read().unwrap(), ["one"]);
        drop(marks);
        assert!(path.exists());
        for (name, part) in
            [("file", "not a named pipe"), ("", "not a named pipe"), ("none/marks", "No such file")]
        {
            let path = folder.path().join(name);
            if name == "file" {
                fs::write(&path, "kept").unwrap();
            }
            let error = Marks::open(&path).expect_err(name);
            assert_eq!(error.status(), 2, "{name}");
            assert!(error.line().starts_with("--marks: ") && error.line().contains(part), "{}", error.line());
        }
        assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"kept");
    }
}
