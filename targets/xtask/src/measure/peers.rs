//! `cargo xtask peers`: compares the speed of this library with the speed of other libraries.

use crate::setup;
use crate::shell::{Run, Tree};
use std::path::Path;

/// Creates the Python environment and runs the benchmark with `arguments`; the benchmark draws its plot into `plot`.
pub fn run(tree: &Tree, plot: Option<&Path>, arguments: &[String]) -> Result<(), String> {
    let run = Run::new(tree, "cargo bench --quiet -p elsa-cli --bench peers --");
    let mut run = run.env("ELSA_PEERS_PYTHON", setup::peers(tree)?);
    for argument in arguments {
        run = run.arg(argument);
    }
    if let Some(plot) = plot {
        // A benchmark runs in the folder of its package, so the path must be absolute.
        let folder = std::path::absolute(plot).map_err(|error| format!("{}: {error}", plot.display()))?;
        run = run.arg("--plot").arg(folder);
    }
    let out = run.run();
    if out.ok { Ok(()) } else { Err(format!("the benchmark: {}", out.how)) }
}
