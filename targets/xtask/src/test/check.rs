//! Runs the stage `check`, which runs no tests: formatting, structure, lints, dependencies, documentation.

use super::cargo::{JSON, bare_metal_run, builds};
use super::house::house;
use super::printed;
use super::release::deny;
use crate::ran::Ran;
use crate::setup::{self, BARE};
use crate::shell::{BARE_METAL, FUZZ, Run, Tree};

/// Runs the stage `check`; if `fast`, only formatting, structure and the lints of the workspace.
pub fn check(tree: &Tree, fast: bool) -> Ran {
    Ran::of("files, targets and rules", |ran| {
        ran.join(fmt(tree).close());
        ran.join(house(tree).close());
        let deny_warnings = |run: Run| run.arg(JSON).args("-- -D warnings");
        builds(ran, deny_warnings(Run::new(tree, "cargo clippy --workspace --all-targets")));
        if fast {
            return Ok(());
        }
        setup::target(tree, BARE)?;
        builds(ran, deny_warnings(bare_metal_run(tree, "cargo clippy").arg("--target").arg(BARE)));
        let docs = Run::new(tree, "cargo doc --no-deps --workspace").arg(JSON);
        builds(ran, docs.env("RUSTDOCFLAGS", "-D warnings"));
        ran.join(deny(tree).close());
        Ok(())
    })
}

fn fmt(tree: &Tree) -> Ran {
    let mut ran = Ran::none("files");
    for (dir, line) in [
        (".", "cargo fmt --all -- --check --verbose"),
        (BARE_METAL, "cargo fmt -- --check --verbose"),
        (FUZZ, "cargo fmt -- --check --verbose"),
    ] {
        let run = Run::new(tree, line).dir(tree.root.join(dir)).machine();
        let line = run.line();
        let out = run.run();
        if !out.ok {
            let chatter = ["Formatting ", "Spent ", "Using "];
            for line in out.stdout.lines().filter(|line| !chatter.iter().any(|start| line.starts_with(start)))
            {
                println!("{line}");
            }
        }
        ran.add(&line, out.ok, printed::formatted(&out.stdout), u64::from(!out.ok));
    }
    ran
}
