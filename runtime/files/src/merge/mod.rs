//! Merges the files of all tasks of a division by quorums ([`crate::task`]) into the answer of the complete problem.
//!
//! [`Member::open`] reads the headers of the files, [`tree`] checks that they are all tasks of one problem, and
//! [`windows`] merges their states within a budget of memory. [`Answer`] writes the merged rows to files.

mod answer;
mod error;
mod members;
#[cfg(test)]
mod tests;
mod windows;

pub use answer::{Answer, Merged, Sought};
pub use error::MergeError;
pub use members::{Member, Totals, check_run, misfit, reserved, sums, tree};
pub use windows::{Budget, Rows, Window, shape, windows};
