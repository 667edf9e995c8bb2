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
mod wheel;

use crate::boards::build;
use crate::boards::target::Target;
use crate::files::{self, at};
use crate::shell::{Run, Tree};
use elsa_targets::Version;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Version of all packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// One sentence about the project.
const ABOUT: &str = "exact FP32 attention on edge boards";

/// Facts that all packages of one target share.
struct Release<'a> {
    tree: &'a Tree,
    target: &'a Target,
    /// The folder of `cargo xtask build`.
    dist: &'a Path,
    /// Folder for unpacked packages.
    work: PathBuf,
    /// Oldest version of the C library that the files run with.
    glibc: Version,
    /// Author of the packaged commit, who answers for the packages.
    maintainer: String,
    /// Time of the commit, in seconds since 1970.
    seconds: String,
    /// Time of the commit, in the format of e-mails.
    date: String,
}

impl Release<'_> {
    /// Starts a command whose files have the time of the commit.
    fn run(&self, line: &str) -> Run {
        Run::new(self.tree, line).env("SOURCE_DATE_EPOCH", &self.seconds).quiet()
    }
}

/// Runs `cargo xtask package`: builds the targets called `names`, and makes their packages.
pub fn run(tree: &Tree, names: &[String]) -> Result<(), String> {
    let to = tree.target.join("packages");
    files::empty(&to)?;
    for name in names {
        let target = Target::named(tree, name)?;
        let ran = build::build(tree, &target, false)?;
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
    let line = "git log -1 --format=%ct%n%cD%n%an%x20<%ae>";
    let commit = Run::new(tree, line).quiet().run().text(line)?;
    let mut lines = commit.lines().map(str::to_owned);
    let (Some(seconds), Some(date), Some(maintainer)) = (lines.next(), lines.next(), lines.next()) else {
        return Err(format!("{line}: {commit}; allowed: three lines"));
    };
    let glibc = match target.build() {
        Some(build) => build.glibc,
        None => {
            let line = "getconf GNU_LIBC_VERSION";
            let found = Run::new(tree, line).quiet().run().text(line)?;
            found.trim().rsplit(' ').next().unwrap_or_default().parse()?
        }
    };
    let work = tree.target.join("package-work").join(target.name());
    files::empty(&work)?;
    files::folder(to)?;
    let release = Release { tree, target, dist, work, glibc, maintainer, seconds, date };
    let mut made = deb::make(&release, to)?;
    made.extend(wheel::make(&release, to)?);
    Ok(made)
}

/// Copies a file, or a folder with its links, to `to`.
fn copy(tree: &Tree, from: &Path, to: &Path) -> Result<(), String> {
    to.parent().map_or(Ok(()), files::folder)?;
    Run::new(tree, "cp -RPT").arg(from).arg(to).quiet().run().text("cp").map(|_| ())
}

/// Gives everything in a folder the permissions of installed files: everybody may read it, and execute it in a folder
/// called `bin` or `scripts`.
fn permit(dir: &Path) -> Result<(), String> {
    let mode =
        |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode)).map_err(at(path));
    mode(dir, 0o755)?;
    let programs = dir.ends_with("bin") || dir.ends_with("scripts");
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let entry = entry.map_err(at(dir))?;
        let kind = entry.file_type().map_err(at(dir))?;
        if kind.is_dir() {
            permit(&entry.path())?;
        } else if kind.is_file() {
            mode(&entry.path(), if programs { 0o755 } else { 0o644 })?;
        }
    }
    Ok(())
}
