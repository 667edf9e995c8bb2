//! `cargo xtask peers`: compares the speed of this library with the speed of other libraries.

use crate::boards::build;
use crate::boards::target::{HOST, Target};
use crate::setup;
use crate::shell::{Run, Tree};
use std::path::Path;

/// Creates the Python environment and runs the benchmark with `arguments`; the benchmark draws its plot into `plot`. If
/// the first argument is `layers`, also builds this machine's folder, whose libraries this part of the benchmark calls.
pub fn run(tree: &Tree, plot: Option<&Path>, arguments: &[String]) -> Result<(), String> {
    let run = Run::new(tree, "cargo bench --quiet -p elsa-cli --bench peers --");
    let mut run = run.env("ELSA_PEERS_PYTHON", setup::peers(tree)?);
    if arguments.first().is_some_and(|name| name == "layers") {
        run = layers(tree, run)?;
    }
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

/// Builds this machine's folder and the library of calls through C. Returns `run` with the variables that name them.
fn layers(tree: &Tree, run: Run) -> Result<Run, String> {
    build::run(tree, HOST, build::Additions::default())?;
    let dist = Target::named(tree, HOST)?.dist(tree);
    let library = tree.target.join("layers.so");
    let compile = setup::compiler(tree, None)?.args("-O2 -Wall -Wextra -Werror -shared -fPIC");
    let compile = compile.arg("-I").arg(dist.join("include")).arg("-o").arg(&library);
    let compile = compile.arg(tree.root.join("runtime/cli/benches/peers/layers.c"));
    let compile = compile.arg("-L").arg(dist.join("lib")).args("-lelsa");
    compile.run().text("the library of calls through C does not build")?;
    let run = run.env("LD_LIBRARY_PATH", dist.join("lib")).env("PYTHONPATH", dist.join("share/python"));
    Ok(run.env("ELSA_LIBRARY", "").env("ELSA_LAYERS", &dist).env("ELSA_LAYERS_C", &library))
}
