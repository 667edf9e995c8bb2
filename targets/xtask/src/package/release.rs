//! Facts and steps that Debian packages and wheels share.

use crate::boards::target::Target;
use crate::files::{self, at};
use crate::shell::{Run, Tree};
use elsa_targets::Version;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Version of all packages.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// One sentence about the project.
pub const ABOUT: &str = "exact FP32 attention on edge boards";

/// Facts that all packages of one target share.
pub struct Release<'a> {
    /// The repository.
    pub tree: &'a Tree,
    /// Target of the files.
    pub target: &'a Target,
    /// The folder of `cargo xtask build`.
    pub dist: &'a Path,
    /// Folder for unpacked packages.
    pub work: PathBuf,
    /// Oldest version of the C library that the files run with.
    pub glibc: Version,
    /// Author of the packaged commit, who answers for the packages.
    pub maintainer: String,
    /// Time of the commit, in seconds since 1970.
    pub seconds: String,
    /// Time of the commit, in the format of e-mails.
    pub date: String,
}

impl<'a> Release<'a> {
    /// Reads the facts from the last commit, and empties the folder for unpacked packages.
    pub fn new(tree: &'a Tree, target: &'a Target, dist: &'a Path) -> Result<Release<'a>, String> {
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
        Ok(Release { tree, target, dist, work, glibc, maintainer, seconds, date })
    }

    /// Starts a command whose files have the time of the commit.
    pub fn run(&self, line: &str) -> Run {
        Run::new(self.tree, line).env("SOURCE_DATE_EPOCH", &self.seconds).quiet()
    }
}

/// Copies a file, or a folder with its links, to `to`.
pub fn copy(tree: &Tree, from: &Path, to: &Path) -> Result<(), String> {
    to.parent().map_or(Ok(()), files::folder)?;
    Run::new(tree, "cp -RPT").arg(from).arg(to).quiet().run().text("cp").map(|_| ())
}

/// Gives everything in a folder the permissions of installed files: everybody may read it, and execute it in a folder
/// called `bin` or `scripts`.
pub fn permit(dir: &Path) -> Result<(), String> {
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
