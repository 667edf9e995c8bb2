//! Runs the stage `robot`: the tests of `examples/robot` that take long or need pictures. The stage `host` runs the other
//! tests, also on the stand-in GPU.

use super::arm;
use super::cargo::tests;
use super::printed;
use crate::ran::Ran;
use crate::setup;
use crate::shell::{Run, Tree};

/// Number of frames of a long run, which takes ten seconds.
const FRAMES: &str = "1000";

/// Runs the stage `robot`.
pub fn robot(tree: &Tree) -> Ran {
    Ran::of("tests", |ran| {
        let digits = setup::digits(tree)?;
        let run = Run::new(tree, "cargo test --workspace --test robot --no-fail-fast --");
        let run = run.args("--include-ignored --nocapture program:: heldout::");
        let misses = tests(ran, run.env("ELSA_DIGITS", &digits).env("ELSA_ROBOT_FRAMES", FRAMES));
        ran.note = printed::value(&misses.stdout, "deadline_misses")
            .map_or_else(|| "no deadline misses reported".to_owned(), |n| format!("{n} deadlines missed"));
        let run = arm::cargo(tree, "test -p elsa-robot --test robot")?;
        let run = run.args("-- --include-ignored program::every_ heldout::");
        tests(ran, run.env("ELSA_DIGITS", &digits));
        Ok(())
    })
}
