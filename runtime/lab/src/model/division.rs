//! Tokens, tasks and work of attention that is divided by quorums (Stream-CQSA, sections 2 and 3.3).
//!
//! A division into c chunks makes c tasks of l chunks each, `c = l (l − 1) + 1`. Divided again, level by level, N tokens
//! become `c^L` tasks of `N (l / c)^L` tokens. Three things follow, and the paper's `n_total ≈ N² / x²` hides the second:
//!
//! - each token is in `l^L` tasks, so it moves as many times;
//! - a kernel that computes every pair of a task and masks the pairs of other tasks does `(l² / c)^L` times the work of
//!   plain attention: 9 / 7 per level at c = 7. One that skips those pairs does the work of plain attention;
//! - a task needs `(l / c)^L` of the memory.

use libm::pow;

/// A division of a number of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Division {
    /// Total number of tokens, N.
    pub tokens: f64,
    /// c, chunks of a level and tasks that it makes of one.
    pub chunks: f64,
    /// l, chunks of a task.
    pub members: f64,
}

impl Division {
    /// Divides `tokens` tokens into `chunks` chunks; a task has `members` of them.
    #[must_use]
    pub fn new(tokens: f64, chunks: usize, members: usize) -> Division {
        Division { tokens, chunks: chunks as f64, members: members as f64 }
    }

    /// Returns the number of tokens of a task after `level` levels.
    #[must_use]
    pub fn task_tokens(self, level: f64) -> f64 {
        self.tokens * pow(self.members / self.chunks, level)
    }

    /// Returns the number of tasks.
    #[must_use]
    pub fn tasks(self, level: f64) -> f64 {
        pow(self.chunks, level)
    }

    /// Returns the number of times that each token moves: the number of tasks that contain it.
    #[must_use]
    pub fn copies(self, level: f64) -> f64 {
        pow(self.members, level)
    }

    /// Returns the work of a kernel that also computes masked pairs, relative to plain attention.
    #[must_use]
    pub fn dense_work(self, level: f64) -> f64 {
        pow(self.members * self.members / self.chunks, level)
    }

    /// Returns the level whose tasks have `tokens` tokens, which is not a whole number as a rule.
    #[must_use]
    pub fn level_of(self, tokens: f64) -> f64 {
        libm::log(self.tokens / tokens) / libm::log(self.chunks / self.members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_the_paper() {
        let whole = Division::new(1e9, 7, 3);
        // Table 1: tokens of a task at five to nine levels, in the digits printed.
        for (level, tokens, digit) in [
            (5.0, 14.5e6, 1e5),
            (6.0, 6.20e6, 1e4),
            (7.0, 2.66e6, 1e4),
            (8.0, 1.14e6, 1e4),
            (9.0, 488e3, 1e3),
        ] {
            let found = whole.task_tokens(level);
            assert!((found - tokens).abs() <= digit / 2.0, "{level}: {found}");
            assert!((whole.level_of(found) - level).abs() < 1e-9);
        }
        assert_eq!((whole.tasks(5.0), whole.copies(5.0)), (16_807.0, 243.0));
        assert!((whole.dense_work(1.0) - 9.0 / 7.0).abs() < 1e-15);
        // Tasks times tokens is copies times the whole; tasks times squares is the dense work.
        let (tasks, tokens) = (whole.tasks(4.0), whole.task_tokens(4.0));
        assert!((tasks * tokens / (whole.copies(4.0) * 1e9) - 1.0).abs() < 1e-12);
        assert!((tasks * tokens * tokens / (whole.dense_work(4.0) * 1e18) - 1.0).abs() < 1e-12);
    }
}
