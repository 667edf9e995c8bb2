//! Paths, which name tasks.

use core::fmt;
use core::str::FromStr;

/// Largest number of levels of a division.
pub const MAX_LEVELS: usize = 12;

/// The name of a task: its number at each level, starting with the first. The empty path names the whole sequence.
///
/// Paths are ordered lexicographically, which is the order of the tasks of a tree. They are written as `0.3.1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskPath {
    digits: [u16; MAX_LEVELS],
    depth: u8,
}

impl TaskPath {
    /// Creates the path of `digits`; `None` if there are more than [`MAX_LEVELS`]. This function does not check the range
    /// of the digits; [`Division::check`](super::Division::check) does.
    #[must_use]
    pub fn new(digits: &[u16]) -> Option<TaskPath> {
        digits.iter().try_fold(TaskPath::default(), |path, digit| path.below(*digit))
    }

    /// Returns the number of levels.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth as usize
    }

    /// Returns the digit of each level.
    #[must_use]
    pub fn digits(&self) -> &[u16] {
        self.digits.get(..self.depth()).unwrap_or_default()
    }

    /// Returns this path with `digit` appended, which names a task one level below the task of this path; `None` if this
    /// path already has [`MAX_LEVELS`] levels.
    #[must_use]
    pub fn below(mut self, digit: u16) -> Option<TaskPath> {
        let depth = self.depth();
        *self.digits.get_mut(depth)? = digit;
        self.depth += 1;
        Some(self)
    }
}

impl fmt::Display for TaskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.depth == 0 {
            return f.write_str("of the whole");
        }
        for (level, digit) in self.digits().iter().enumerate() {
            write!(f, "{}{digit}", if level == 0 { "" } else { "." })?;
        }
        Ok(())
    }
}

/// Error for a text that is not a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPath;

impl fmt::Display for NotAPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no path; allowed: 1 to {MAX_LEVELS} numbers with dots, such as 0.3.1")
    }
}

impl core::error::Error for NotAPath {}

impl FromStr for TaskPath {
    type Err = NotAPath;

    fn from_str(text: &str) -> Result<TaskPath, NotAPath> {
        let mut path = TaskPath::default();
        for digit in text.split('.') {
            let plain = !digit.is_empty() && digit.bytes().all(|byte| byte.is_ascii_digit());
            let digit = digit.parse().ok().filter(|_| plain).ok_or(NotAPath)?;
            path = path.below(digit).ok_or(NotAPath)?;
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    #[test]
    fn paths_are_numbers_with_dots() {
        for text in ["0", "6", "0.3.1", "12.0.1056", "1.2.3.4.5.6.7.8.9.10.11.12"] {
            let mut again = heapless::String::<64>::new();
            write!(again, "{}", text.parse::<TaskPath>().unwrap()).unwrap();
            assert_eq!(again, text);
        }
        for text in ["", ".", "1.", ".1", "a", "-1", "+1", "1,2", "65536", "0.0.0.0.0.0.0.0.0.0.0.0.0"] {
            assert_eq!(text.parse::<TaskPath>(), Err(NotAPath), "{text}");
        }
        assert_eq!(TaskPath::new(&[0; 13]), None);
    }

    #[test]
    fn paths_are_in_the_order_of_words() {
        let of = |text: &str| text.parse::<TaskPath>().unwrap();
        assert!(of("0.3") < of("0.3.0") && of("0.3.0") < of("0.3.1") && of("0.9.9") < of("1"));
        assert!(TaskPath::default() < of("0"));
    }
}
