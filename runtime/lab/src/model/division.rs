//! Tokens, tasks and work of attention that is divided by quorums (Stream-CQSA, sections 2 and 3.3).
//!
//! A division into c chunks makes c tasks of l chunks each, `c = l (l − 1) + 1`. After L levels of division, N tokens
//! have become `c^L` tasks of `N (l / c)^L` tokens. Three facts follow; the paper's `n_total ≈ N² / x²` hides the
//! second:
//!
//! - each token is in `l^L` tasks, so it is moved `l^L` times;
//! - a kernel that computes every pair of a task, and masks the pairs that belong to other tasks, does `(l² / c)^L`
//!   times the work of plain attention: 9 / 7 per level at c = 7. A kernel that skips those pairs does the work of
//!   plain attention;
//! - a task needs `(l / c)^L` of the memory of the undivided problem.

use libm::pow;

/// Division of N tokens by quorums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Division {
    /// Total number of tokens, N.
    pub tokens: f64,
    /// c, the number of chunks per division. One task is divided into the same number of tasks.
    pub chunks: f64,
    /// l, number of chunks in a task.
    pub members: f64,
}

impl Division {
    /// Divides `tokens` tokens into `chunks` chunks; each task contains `members` of them.
    #[must_use]
    pub fn new(tokens: f64, chunks: usize, members: usize) -> Division {
        Division { tokens, chunks: chunks as f64, members: members as f64 }
    }

    /// Returns the number of tokens per task after `level` levels.
    #[must_use]
    pub fn task_tokens(self, level: f64) -> f64 {
        self.tokens * pow(self.members / self.chunks, level)
    }

    /// Returns the number of tasks after `level` levels.
    #[must_use]
    pub fn tasks(self, level: f64) -> f64 {
        pow(self.chunks, level)
    }

    /// Returns the number of tasks that contain a given token after `level` levels. The token is moved once for each of
    /// these tasks.
    #[must_use]
    pub fn copies(self, level: f64) -> f64 {
        pow(self.members, level)
    }

    /// Returns the work of a kernel that also computes masked pairs, relative to that of plain attention.
    #[must_use]
    pub fn dense_work(self, level: f64) -> f64 {
        pow(self.members * self.members / self.chunks, level)
    }

    /// Returns the level at which tasks have `tokens` tokens; in general it is not an integer.
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
        // Tokens per task at five to nine levels, as table 1 prints them, each with the unit of its last digit.
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
        // All tasks together contain `copies` times all tokens, and compute `dense_work` times all pairs.
        let (tasks, tokens) = (whole.tasks(4.0), whole.task_tokens(4.0));
        assert!((tasks * tokens / (whole.copies(4.0) * 1e9) - 1.0).abs() < 1e-12);
        assert!((tasks * tokens * tokens / (whole.dense_work(4.0) * 1e18) - 1.0).abs() < 1e-12);
    }
}
