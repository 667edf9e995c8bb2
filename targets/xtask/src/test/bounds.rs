//! Searches for violations of error bounds on the back ends of this machine, with `tests/examples/hunt.rs`.

use super::ask::Ask;
use crate::ran::Ran;
use crate::shell::{Run, Tree};
use std::time::Duration;

/// Runs `cargo xtask hunt`.
pub fn hunt(tree: &Tree, arguments: &[String]) -> Result<(), String> {
    let build = Run::new(tree, "cargo build --release -p elsa-tests --example hunt");
    build.arg("--target-dir").arg(&tree.target).run().text("the hunt does not build")?;
    let program = Run::new(tree, "").arg(tree.target.join("release/examples/hunt"));
    let run = arguments.iter().fold(program, |run, argument| run.arg(argument));
    run.run().text("the hunt").map(drop)
}

/// Runs the stage `hunt` for half of the requested minutes. The program is built like those of the stage `host`, with
/// optimised kernels, an optimised oracle and overflow checks.
pub fn bounds(tree: &Tree, ask: Ask) -> Ran {
    Ran::of("rows", |ran| {
        let build = Run::new(tree, "cargo build --workspace --example hunt");
        build.run().text("the hunt does not build")?;
        let seconds = ask.minutes * 30;
        let run = Run::new(tree, "").arg(tree.target.join("debug/examples/hunt"));
        let run = run.args(&format!("--seconds {seconds}")).limit(Duration::from_secs(seconds + 120));
        let out = run.run();
        // The last line of the table sums up: all, rows, components, violations.
        let all = out.stdout.lines().find(|line| line.starts_with("all "));
        let count =
            |at: usize| all.and_then(|line| line.split_whitespace().nth(at)?.parse().ok()).unwrap_or(0);
        ran.add("the hunt for a violation", out.ok, count(1), count(3));
        Ok(())
    })
}
