//! `cargo xtask package`: makes Debian packages and Python wheels from the folders of `cargo xtask build`.
//!
//! ```text
//! target/packages/
//!     elsa-edge_*.deb             the tool, its completions and man pages
//!     libelsa1_*.deb              the shared library
//!     libelsa-dev_*.deb           headers, static library, CMake and pkg-config packages
//!     libelsa-onnxruntime_*.deb   the operator of ONNX Runtime
//!     elsa_edge-*.whl             Python package with both libraries and the tool
//! ```
//!
//! The packages contain the files of the folder unchanged, apart from the paths in the CMake and pkg-config packages.
//! Two packages of one commit, made by the same programs, have the same bytes.

mod deb;
mod release;
mod wheel;

use crate::boards::build;
use crate::boards::target::Target;
use crate::files;
use crate::shell::Tree;
use release::Release;
use std::path::{Path, PathBuf};

/// Runs `cargo xtask package`: builds the targets called `names`, and makes their packages.
pub fn run(tree: &Tree, names: &[String]) -> Result<(), String> {
    let to = tree.target.join("packages");
    files::empty(&to)?;
    for name in names {
        let target = Target::named(tree, name)?;
        let ran = build::build(tree, &target, build::Additions::default())?;
        if !ran.faults.is_empty() {
            return Err(ran.faults.join("\n       "));
        }
        for path in make(tree, &target, &target.dist(tree), &to)? {
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// Makes the packages of the folder `dist` for `target` in the folder `to`. Returns their paths.
pub fn make(tree: &Tree, target: &Target, dist: &Path, to: &Path) -> Result<Vec<PathBuf>, String> {
    files::folder(to)?;
    let release = Release::new(tree, target, dist)?;
    let mut made = deb::make(&release, to)?;
    made.extend(wheel::make(&release, to)?);
    Ok(made)
}
