//! Records the results of stages: the numbers of passed and failed checks, and the faults.

use crate::shell::side_by_side;

/// The account of a stage or of one of its commands: counts of its checks, and its faults.
#[derive(Debug, Default)]
pub struct Ran {
    /// Number of passed checks.
    pub passed: u64,
    /// Number of failed checks.
    pub failed: u64,
    /// Number of tests that the source marks as ignored.
    pub ignored: u64,
    /// Plural name of the counted items, such as `tests`.
    pub counted: &'static str,
    /// A remark for the summary.
    pub note: String,
    /// Reasons why the stage failed; empty if it passed.
    pub faults: Vec<String>,
}

impl Ran {
    /// Creates an empty account.
    pub fn none(counted: &'static str) -> Ran {
        Ran { counted, ..Ran::default() }
    }

    /// Creates the account of a stage that could not run, with the fault `fault`.
    pub fn fault(counted: &'static str, fault: String) -> Ran {
        Ran { counted, faults: vec![fault], ..Ran::default() }
    }

    /// Runs a stage and returns its account. If the stage returns an error, this error is the last fault of the
    /// account.
    pub fn of(counted: &'static str, stage: impl FnOnce(&mut Ran) -> Result<(), String>) -> Ran {
        let mut ran = Ran::none(counted);
        if let Err(fault) = stage(&mut ran) {
            ran.faults.push(fault);
        }
        ran
    }

    /// Counts one check, named `what`, as passed or failed. Prints the finding of a passed check, and keeps the error
    /// of a failed check as a fault.
    pub fn note(&mut self, what: &str, found: Result<String, String>) {
        match found {
            Ok(found) => {
                println!("{what}: {found}");
                self.passed += 1;
            }
            Err(fault) => {
                self.failed += 1;
                self.faults.push(format!("{what}: {fault}"));
            }
        }
    }

    /// Calls `work` for every item, on all cores, with a separate account per item. Adds these accounts in the order of
    /// the items.
    pub fn each<T: Send>(&mut self, items: Vec<T>, work: impl Fn(&mut Ran, T) + Sync) {
        let counted = self.counted;
        let done = side_by_side(items, |item| {
            let mut ran = Ran::none(counted);
            work(&mut ran, item);
            ran
        });
        done.into_iter().for_each(|ran| self.join(ran));
    }

    /// Adds another account to this one.
    pub fn join(&mut self, other: Ran) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.faults.extend(other.faults);
        if !self.note.is_empty() && !other.note.is_empty() {
            self.note += "; ";
        }
        self.note += &other.note;
    }

    /// Adds the counts of one command. A command that succeeds without running anything is a fault.
    pub fn add(&mut self, command: &str, ok: bool, passed: u64, failed: u64) {
        self.passed += passed;
        self.failed += failed;
        if !ok {
            self.faults.push(format!("{command}: failed"));
        } else if failed > 0 {
            self.faults.push(format!("{command}: {failed} {} failed, with status zero", self.counted));
        } else if passed == 0 {
            self.faults.push(format!("{command}: ran no {}", self.counted));
        }
    }

    /// Returns the final account; a stage that ran nothing gets a fault.
    pub fn close(mut self) -> Ran {
        if self.passed + self.failed == 0 && self.faults.is_empty() {
            self.faults.push(format!("ran no {}", self.counted));
        }
        self
    }

    /// Formats the account as `12 tests, 1 failed, 2 ignored; note`.
    pub fn summary(&self) -> String {
        let mut text = format!("{} {}", self.passed + self.failed, self.counted);
        for (n, what) in [(self.failed, "failed"), (self.ignored, "ignored")] {
            if n > 0 {
                text += &format!(", {n} {what}");
            }
        }
        if !self.note.is_empty() {
            text += &format!("; {}", self.note);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_run_is_a_fault() {
        let mut ran = Ran::none("tests");
        ran.add("cargo test", true, 0, 0);
        assert_eq!(ran.faults, ["cargo test: ran no tests"]);
        let mut ran = Ran::none("tests");
        ran.add("cargo test", true, 3, 0);
        assert!(ran.close().faults.is_empty());
        let mut ran = Ran::none("tests");
        ran.add("cargo test", false, 3, 0);
        ran.add("cargo test", true, 3, 1);
        assert_eq!(ran.faults.len(), 2);
        assert_eq!(Ran::none("files").close().faults, ["ran no files"]);
    }
}
