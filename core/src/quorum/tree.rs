//! Trees: sets of tasks that cover every pair of a query and a key exactly once.

use super::division::Division;
use super::path::TaskPath;
use crate::plan::ChooseError;

/// Tasks that together compute every pair of a query and a key exactly once. For each path of full depth, exactly one
/// of these tasks has a path that is a prefix of it. In a uniform tree all tasks have the same depth; a hybrid tree
/// divides some tasks further than others (section 2.4 of the paper).
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a> {
    paths: &'a [TaskPath],
}

impl<'a> Tree<'a> {
    /// Checks that `paths` form a tree of `division` and sorts them into the order in which the states of the tasks are
    /// merged.
    ///
    /// # Errors
    /// Returns an error if a path is not a task of the division ([`Division::check`]), if a task is given twice or
    /// together with a task above it, or if a task is missing.
    pub fn new(division: &Division, paths: &'a mut [TaskPath]) -> Result<Tree<'a>, ChooseError> {
        for path in &*paths {
            division.check(path)?;
        }
        paths.sort_unstable();
        let mut next = 0;
        for path in &*paths {
            let (first, end) = division.covered(path);
            if first < next {
                return Err(ChooseError::TaskTwice { path: *path });
            }
            if first > next {
                return Err(gap(division, next, first));
            }
            next = end;
        }
        if next < division.tasks() {
            return Err(gap(division, next, division.tasks()));
        }
        Ok(Tree { paths })
    }

    /// Returns the paths of the tasks, in the order in which their states are merged.
    #[must_use]
    pub const fn paths(&self) -> &'a [TaskPath] {
        self.paths
    }
}

/// Returns the error for a gap that extends from task `first` up to task `end`. The error names the largest task that
/// starts at `first` and ends within the gap.
fn gap(division: &Division, first: u64, end: u64) -> ChooseError {
    let fits = |depth: &usize| {
        let tasks = division.below(*depth);
        first.is_multiple_of(tasks) && tasks <= end - first
    };
    let depth = (0..division.levels()).find(fits).unwrap_or(division.levels());
    ChooseError::TaskMissing { path: division.prefix(first, depth) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heapless::Vec;

    fn check(levels: &[usize], texts: &[&str]) -> Result<(), ChooseError> {
        let division = Division::new(levels).unwrap();
        let mut paths: Vec<TaskPath, 32> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Tree::new(&division, &mut paths).map(|tree| {
            assert!(tree.paths().is_sorted());
        })
    }

    #[test]
    fn uniform_and_hybrid_trees_cover_everything() {
        assert_eq!(check(&[3], &["2", "0", "1"]), Ok(()));
        assert_eq!(check(&[3, 3], &["0", "1.2", "1.0", "1.1", "2"]), Ok(()));
        assert_eq!(check(&[3, 1, 3], &["0", "1.0.2", "1.0.0", "1.0.1", "2.0"]), Ok(()));
        let division = Division::new(&[7]).unwrap();
        assert!(Tree::new(&division, &mut [TaskPath::default()]).is_ok());
    }

    #[test]
    fn what_is_missing_doubled_or_foreign_is_named() {
        use ChooseError as E;
        let path = |text: &str| text.parse::<TaskPath>().unwrap();
        let missing = |text| Err(E::TaskMissing { path: path(text) });
        let doubled = |text| Err(E::TaskTwice { path: path(text) });
        assert_eq!(check(&[3], &["0", "2"]), missing("1"));
        assert_eq!(check(&[3], &["1", "2"]), missing("0"));
        assert_eq!(check(&[3], &["0", "1"]), missing("2"));
        assert_eq!(check(&[3], &["0", "1", "1", "2"]), doubled("1"));
        assert_eq!(check(&[3, 3], &["0", "1.0", "1.2", "2"]), missing("1.1"));
        assert_eq!(check(&[3, 3], &["0.0", "2"]), missing("0.1"));
        assert_eq!(check(&[3, 3], &["0", "2"]), missing("1"));
        assert_eq!(check(&[3, 3], &["0", "0.1", "1", "2"]), doubled("0.1"));
        assert_eq!(check(&[3, 3], &["0", "0.0", "1", "2"]), doubled("0.0"));
        assert_eq!(check(&[3], &["0", "1", "3"]), Err(E::Digit { path: path("3"), level: 1, chunks: 3 }));
        assert_eq!(check(&[3], &["0", "1", "2.0"]), Err(E::Deep { path: path("2.0"), levels: 1 }));
        assert_eq!(check(&[3], &[]), Err(E::TaskMissing { path: TaskPath::default() }));
    }
}
