//! `cargo xtask gpu-bench`: creates a folder for measuring attention on a machine that has an NVIDIA driver but no
//! Rust. If PyTorch is installed there, attention is also compared with PyTorch. The folder contains the library and
//! the tool as shipped, the program of `runtime/lab`, a Python script and a shell script.

use crate::boards::build;
use crate::boards::target::HOST;
use crate::files;
use crate::shell::{Run, Tree};

/// Files that are copied from the built folder, each with its name in the new folder.
const BUILT: [(&str, &str); 4] = [
    ("lib/libelsa.so.1", "libelsa.so.1"),
    ("share/python/elsa.py", "elsa.py"),
    ("share/python/elsa_modules/distributed.py", "elsa_modules/distributed.py"),
    ("bin/elsa", "elsa"),
];
/// Names and texts of the scripts.
const SCRIPTS: [(&str, &str); 4] = [
    ("gpu_bench.py", include_str!("gpu_bench.py")),
    ("gpu_errors.py", include_str!("gpu_errors.py")),
    ("gpu_ring.py", include_str!("gpu_ring.py")),
    ("run.sh", include_str!("gpu_bench.sh")),
];

/// Creates the folder `target/gpu-bench`.
///
/// # Errors
/// Returns an error if the build fails or a file cannot be written.
pub fn make(tree: &Tree) -> Result<(), String> {
    build::run(tree, HOST, build::Additions::default())?;
    let done = Run::new(tree, "cargo build --release -p elsa-lab").run();
    if !done.ok {
        return Err(format!("the laboratory does not build: {}", done.how));
    }
    let (built, out) = (tree.target.join("dist").join(HOST), tree.target.join("gpu-bench"));
    files::empty(&out)?;
    files::empty(&out.join("elsa_modules"))?;
    let mut bytes = 0;
    let parts = BUILT.map(|(from, to)| (built.join(from), to));
    for (from, to) in parts.into_iter().chain([(tree.target.join("release/elsa-lab"), "elsa-lab")]) {
        bytes += std::fs::copy(&from, out.join(to)).map_err(files::at(&from))?;
    }
    for (name, content) in SCRIPTS {
        files::write(&out.join(name), content)?;
        bytes += content.len() as u64;
    }
    println!("{}: {} KiB; on a machine with an NVIDIA driver: sh run.sh", out.display(), bytes >> 10);
    Ok(())
}
