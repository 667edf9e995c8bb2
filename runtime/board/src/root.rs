//! The folder under which the system's files lie, and files that are read again and again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The most bytes of a file that are read.
const LONGEST: u64 = 1 << 16;

/// The folder that holds `sys`, `proc` and `etc`: `/` for this machine, another for a tree that stands for a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The tree in `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> Root {
        Root(folder.into())
    }

    /// This machine.
    #[must_use]
    pub fn machine() -> Root {
        Root::new("/")
    }

    /// The path of a file of the tree; `file` may begin with a slash.
    #[must_use]
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file.trim_start_matches('/'))
    }

    /// A file as text, without what is no UTF-8.
    ///
    /// # Errors
    /// What the system reports.
    pub(crate) fn read(&self, file: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(self.path(file))?.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The first line of a file without blanks and zero bytes around it; `None` where it is empty or cannot be read.
    #[must_use]
    pub(crate) fn line(&self, file: &str) -> Option<String> {
        let text = self.read(file).ok()?;
        let line = text.lines().next()?.trim_matches(|c: char| c == '\0' || c.is_whitespace());
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// The whole number in a file.
    #[must_use]
    pub(crate) fn number(&self, file: &str) -> Option<i64> {
        number(self.line(file)?.as_bytes())
    }

    /// A property of the device tree that is one cell: four bytes, the highest first.
    #[must_use]
    pub(crate) fn cell(&self, file: &str) -> Option<u32> {
        let bytes = fs::read(self.path(file)).ok()?;
        Some(u32::from_be_bytes(bytes.as_slice().try_into().ok()?))
    }

    /// What a folder holds, in the order of numbers: `cpu2` before `cpu10`. Nothing where it cannot be read.
    #[must_use]
    pub(crate) fn entries(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by(|a, b| natural(a).cmp(&natural(b)).then_with(|| a.cmp(b)));
        names
    }

    /// The file name that a link leads to.
    #[must_use]
    pub(crate) fn target(&self, link: &str) -> Option<String> {
        let target = fs::read_link(self.path(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Why a file cannot be read, with its path on a board; `None` where it can, or where there is none.
    #[must_use]
    pub(crate) fn refusal(&self, file: &str) -> Option<String> {
        let fault =
            File::open(self.path(file)).err().filter(|fault| fault.kind() != io::ErrorKind::NotFound)?;
        Some(format!("/{}: {fault}", file.trim_start_matches('/')))
    }
}

/// A name as it sorts: what stands before its last number, and the number.
fn natural(name: &str) -> (&str, u64) {
    let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (head, name[head.len()..].parse().unwrap_or(0))
}

/// The whole number that a text begins with, as in `32760 ma`.
fn number(bytes: &[u8]) -> Option<i64> {
    let mut words = bytes.split(|b| b.is_ascii_whitespace() || *b == 0).filter(|word| !word.is_empty());
    std::str::from_utf8(words.next()?).ok()?.parse().ok()
}

/// A file that stays open and is read from its start each time. The files of sysfs and procfs are made anew for each
/// such read.
#[derive(Debug)]
pub struct Probe(File);

impl Probe {
    /// Opens `file` of the tree; `None` where there is none or it may not be read.
    #[must_use]
    pub fn open(root: &Root, file: &str) -> Option<Probe> {
        File::open(root.path(file)).ok().map(Probe)
    }

    /// What the file holds now, as far as it fits into `buffer`. Allocates nothing.
    pub fn read<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let length = self.0.read_at(buffer, 0).ok()?;
        buffer.get(..length)
    }

    /// The number that the file holds now. Allocates nothing.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        number(self.read(&mut [0; 64])?)
    }

    /// [`Probe::number`] over `unit`: dividing is exact where the quotient is a short decimal, multiplying is not.
    #[must_use]
    pub fn over(&self, unit: f64) -> Option<f64> {
        Some(self.number()? as f64 / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cpu10", "cpu2", "cpufreq", "cpu0"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(Root::new(folder.path()).entries("/"), ["cpu0", "cpu2", "cpu10", "cpufreq"]);
        assert!(Root::new(folder.path()).entries("none").is_empty());
    }

    #[test]
    fn numbers_are_read_as_the_kernel_writes_them() {
        let cases: [(&[u8], Option<i64>); 7] = [
            (b"42\n", Some(42)),
            (b"-256000\n", Some(-256_000)),
            (b"32760 ma\n", Some(32760)),
            (b"7\0", Some(7)),
            (b"\n", None),
            (b"0x10", None),
            (b"99999999999999999999\n", None),
        ];
        for (text, expected) in cases {
            assert_eq!(number(text), expected, "{text:?}");
        }
    }

    #[test]
    fn an_open_file_tells_what_is_in_it_now() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        fs::write(root.path("x"), "1\n").unwrap();
        let probe = Probe::open(&root, "/x").unwrap();
        assert_eq!(probe.number(), Some(1));
        fs::write(root.path("x"), "23 mw\n").unwrap();
        assert_eq!((probe.number(), probe.over(2.0)), (Some(23), Some(11.5)));
        fs::write(root.path("x"), "").unwrap();
        assert_eq!(probe.number(), None);
        assert!(Probe::open(&root, "y").is_none());
        assert!(Probe::open(&root, "/").is_none_or(|folder| folder.number().is_none()));
    }
}
