//! The program that is counted and modelled: `runtime/examples/count.rs`, in release mode as for a board.

use crate::setup;
use crate::shell::Tree;
use std::path::PathBuf;

/// Builds the program and returns its path.
pub fn build(tree: &Tree) -> Result<PathBuf, String> {
    let run = setup::zigbuild(tree, "build --release -p elsa-runtime --example count")?;
    let out = run.arg("--target-dir").arg(&tree.target).run();
    if !out.ok {
        return Err(format!("the counting program does not build: {}", out.how));
    }
    Ok(tree.target.join(setup::reference()?.build.triple).join("release/examples/count"))
}
