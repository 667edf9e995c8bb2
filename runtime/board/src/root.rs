//! Root folder of the system's files, and files that are read repeatedly.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Maximum number of bytes that are read from a file.
const LONGEST: u64 = 1 << 16;

/// Folder that contains `sys`, `proc` and `etc`: `/` for this machine, or a tree of files that simulates a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// Uses the tree of files in `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> Root {
        Root(folder.into())
    }

    /// Uses the files of this machine.
    #[must_use]
    pub fn machine() -> Root {
        Root::new("/")
    }

    /// Returns the path of a file in the tree; `file` may begin with a slash.
    #[must_use]
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file.trim_start_matches('/'))
    }

    /// Reads a file as text, dropping bytes that are not UTF-8.
    ///
    /// # Errors
    /// Returns errors of the operating system.
    pub(crate) fn read(&self, file: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(self.path(file))?.take(LONGEST).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads the first line of a file, without surrounding blanks and zero bytes. `None` if the line is empty or the
    /// file cannot be read.
    #[must_use]
    pub(crate) fn line(&self, file: &str) -> Option<String> {
        let text = self.read(file).ok()?;
        let line = text.lines().next()?.trim_matches(|c: char| c == '\0' || c.is_whitespace());
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Reads the whole number in a file.
    #[must_use]
    pub(crate) fn number(&self, file: &str) -> Option<i64> {
        number(self.line(file)?.as_bytes())
    }

    /// Reads a one-cell property of the device tree: four bytes, big-endian.
    #[must_use]
    pub(crate) fn cell(&self, file: &str) -> Option<u32> {
        let bytes = fs::read(self.path(file)).ok()?;
        Some(u32::from_be_bytes(bytes.as_slice().try_into().ok()?))
    }

    /// Lists the entries of a folder in numeric order, with `cpu2` before `cpu10`. Empty if the folder cannot be read.
    #[must_use]
    pub(crate) fn entries(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by(|a, b| natural(a).cmp(&natural(b)).then_with(|| a.cmp(b)));
        names
    }

    /// Returns the file name of the target of a symbolic link.
    #[must_use]
    pub(crate) fn target(&self, link: &str) -> Option<String> {
        let target = fs::read_link(self.path(link)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the reason why a file cannot be read; `None` if the file is readable or does not exist. The reason names
    /// the path of the file on a board, even if the tree simulates the board.
    #[must_use]
    pub(crate) fn refusal(&self, file: &str) -> Option<String> {
        let fault =
            File::open(self.path(file)).err().filter(|fault| fault.kind() != io::ErrorKind::NotFound)?;
        Some(format!("/{}: {fault}", file.trim_start_matches('/')))
    }
}

/// Splits a name into its sort key: the text before its last number, and the number.
fn natural(name: &str) -> (&str, u64) {
    let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (head, name[head.len()..].parse().unwrap_or(0))
}

/// Parses the whole number at the start of a text such as `32760 ma`.
fn number(bytes: &[u8]) -> Option<i64> {
    let mut words = bytes.split(|b| b.is_ascii_whitespace() || *b == 0).filter(|word| !word.is_empty());
    std::str::from_utf8(words.next()?).ok()?.parse().ok()
}

/// File that stays open and is read from its start each time. Sysfs and procfs generate the contents anew for each such
/// read.
#[derive(Debug)]
pub struct Probe(File);

impl Probe {
    /// Opens `file` in the tree; `None` if it does not exist or is not readable.
    #[must_use]
    pub fn open(root: &Root, file: &str) -> Option<Probe> {
        File::open(root.path(file)).ok().map(Probe)
    }

    /// Reads the current contents of the file, up to the length of `buffer`. Allocates nothing.
    pub fn read<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let length = self.0.read_at(buffer, 0).ok()?;
        buffer.get(..length)
    }

    /// Reads the current number in the file. Allocates nothing.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        number(self.read(&mut [0; 64])?)
    }

    /// Reads [`Probe::number`] and divides it by `unit`. Dividing is exact if the quotient is a short decimal number;
    /// multiplying by the reciprocal is not.
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
