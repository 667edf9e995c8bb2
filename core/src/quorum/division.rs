//! Divisions: the interest set of each level, and the numbering of the tasks.

use super::path::{MAX_LEVELS, TaskPath};
use super::set::InterestSet;
use crate::plan::ChooseError;
use heapless::Vec;

/// The division of a sequence into tasks: an interest set for each level. The tasks with all levels (full depth) are
/// numbered in the order of their paths; the last digit varies fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    sets: Vec<InterestSet, MAX_LEVELS>,
    /// Number of tasks of full depth that a task covers, indexed by the depth of the task. Depth zero is the whole
    /// sequence.
    below: [u64; MAX_LEVELS + 1],
}

impl Division {
    /// Creates a division with one level per entry `c` of `chunks`. The set of a level is [`InterestSet::of`]`(c)`.
    ///
    /// # Errors
    /// Returns an error if there is no level, if there are more than [`MAX_LEVELS`], if no set exists for a number of
    /// chunks, or if the number of tasks exceeds 64 bits.
    pub fn new(chunks: &[usize]) -> Result<Division, ChooseError> {
        let levels = ChooseError::Levels { found: chunks.len() };
        let mut sets = Vec::new();
        for chunks in chunks {
            sets.push(InterestSet::of(*chunks)?).map_err(|_| levels)?;
        }
        Division::of_sets(sets)
    }

    /// Creates a division from the given sets.
    ///
    /// # Errors
    /// Returns an error if there is no level or if the number of tasks exceeds 64 bits.
    pub(crate) fn of_sets(sets: Vec<InterestSet, MAX_LEVELS>) -> Result<Division, ChooseError> {
        if sets.is_empty() {
            return Err(ChooseError::Levels { found: 0 });
        }
        let mut below = [1u64; MAX_LEVELS + 1];
        for (level, set) in sets.iter().enumerate().rev() {
            let tasks = below[level + 1].checked_mul(set.chunks() as u64);
            below[level] = tasks.ok_or(ChooseError::TooManyTasks)?;
        }
        Ok(Division { sets, below })
    }

    /// Returns the interest sets, one per level.
    #[must_use]
    pub fn sets(&self) -> &[InterestSet] {
        &self.sets
    }

    /// Returns the number of levels.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.sets.len()
    }

    /// Returns the number of tasks of full depth.
    #[must_use]
    pub const fn tasks(&self) -> u64 {
        self.below[0]
    }

    /// Returns the path of the task of full depth with number `number`.
    ///
    /// # Errors
    /// Returns an error if the number is not below [`Division::tasks`].
    pub fn path(&self, number: u64) -> Result<TaskPath, ChooseError> {
        if number >= self.tasks() {
            return Err(ChooseError::TaskNumber { found: number, tasks: self.tasks() });
        }
        Ok(self.prefix(number, self.levels()))
    }

    /// Returns the number of the task that `path` names; `None` if the path is not of full depth or names no task of
    /// this division.
    #[must_use]
    pub fn number(&self, path: &TaskPath) -> Option<u64> {
        let full = self.check(path).is_ok() && path.depth() == self.levels();
        full.then(|| self.covered(path).0)
    }

    /// Returns the first `depth` levels of the path of task `number`, which must exist.
    pub(super) fn prefix(&self, number: u64, depth: usize) -> TaskPath {
        let mut path = TaskPath::default();
        for (level, set) in self.sets.iter().enumerate().take(depth) {
            let digit = number / self.below[level + 1] % set.chunks() as u64;
            path = path.below(digit as u16).unwrap_or(path);
        }
        path
    }

    /// Checks that `path` names a task of the division; the task may have any depth.
    ///
    /// # Errors
    /// Returns an error if the path has more levels than the division or if a digit is out of range.
    pub fn check(&self, path: &TaskPath) -> Result<(), ChooseError> {
        if path.depth() > self.levels() {
            return Err(ChooseError::Deep { path: *path, levels: self.levels() });
        }
        for (level, (digit, set)) in path.digits().iter().zip(&self.sets).enumerate() {
            if usize::from(*digit) >= set.chunks() {
                return Err(ChooseError::Digit { path: *path, level: level + 1, chunks: set.chunks() });
            }
        }
        Ok(())
    }

    /// Returns the range `(first, end)` of the tasks of full depth that `path` covers. The path must have passed
    /// [`Division::check`].
    pub(super) fn covered(&self, path: &TaskPath) -> (u64, u64) {
        let digits = path.digits().iter().zip(&self.below[1..]);
        let first = digits.map(|(digit, below)| u64::from(*digit) * below).sum();
        (first, first + self.below[path.depth()])
    }

    /// Returns the number of tasks of full depth that a task of depth `depth` covers.
    pub(super) fn below(&self, depth: usize) -> u64 {
        self.below[depth.min(MAX_LEVELS)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_paths_in_mixed_bases() {
        let division = Division::new(&[7, 3, 13]).unwrap();
        assert_eq!((division.tasks(), division.levels()), (273, 3));
        let mut last = TaskPath::default();
        for number in 0..273 {
            let path = division.path(number).unwrap();
            assert!(path > last || number == 0);
            assert_eq!(
                (division.covered(&path), division.number(&path)),
                ((number, number + 1), Some(number))
            );
            division.check(&path).unwrap();
            last = path;
        }
        assert_eq!(last, "6.2.12".parse().unwrap());
        assert_eq!(division.covered(&"6.1".parse().unwrap()), (247, 260));
        assert_eq!(division.covered(&TaskPath::default()), (0, 273));
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        use ChooseError as E;
        let division = Division::new(&[7, 3]).unwrap();
        let path = |text: &str| text.parse::<TaskPath>().unwrap();
        assert_eq!(division.path(21), Err(E::TaskNumber { found: 21, tasks: 21 }));
        let (deep, wide) = (path("0.0.0"), path("1.3"));
        assert_eq!([deep, wide, path("1")].map(|path| division.number(&path)), [None; 3]);
        assert_eq!(division.check(&deep), Err(E::Deep { path: deep, levels: 2 }));
        assert_eq!(division.check(&wide), Err(E::Digit { path: wide, level: 2, chunks: 3 }));
        assert_eq!(Division::new(&[]), Err(E::Levels { found: 0 }));
        assert_eq!(Division::new(&[1; 13]), Err(E::Levels { found: 13 }));
        assert_eq!(Division::new(&[1057; 7]), Err(E::TooManyTasks));
        assert_eq!(Division::new(&[7, 43]), Err(E::NoSet { found: 43, below: Some(31), above: Some(57) }));
        assert!(Division::new(&[7; 12]).is_ok() && Division::new(&[1057; 6]).is_ok());
    }
}
