//! Folders with packages of this machine's Debian. Unpacking them requires the rights of root.

use super::{Installing, program};
use crate::files;
use crate::shell::{Run, Tree};
use std::path::{Path, PathBuf};

/// Returns a folder with a bare system for this machine: its Debian, with nothing but apt, a C++ compiler, CMake,
/// pkg-config, and the C library for packages of arm64.
pub fn bare_root(tree: &Tree) -> Result<PathBuf, String> {
    program(tree, "mmdebstrap", "mmdebstrap")?;
    let root = tree.target.join("bare-root");
    if root.join("usr/bin/g++").exists() && root.join("lib/aarch64-linux-gnu/libc.so.6").exists() {
        return Ok(root);
    }
    let suite = suite()?;
    let part = tree.target.join("bare-root-part");
    files::empty(&part)?;
    let line = format!(
        "mmdebstrap --variant=minbase --architectures=amd64,arm64 \
        --include=g++,cmake,make,pkg-config,libc6:arm64 {suite}"
    );
    let made = Run::new(tree, &line).arg(&part).run().text(&line);
    files::empty(&root)?;
    made.and_then(|_| std::fs::rename(&part, &root).map_err(files::at(&root))).map(|()| root)
}

/// Returns a folder with Debian's arm64 packages and those that they depend on, unpacked, and not installed. `packages`
/// are names with commas between them.
pub fn arm64(tree: &Tree, packages: &str) -> Result<PathBuf, String> {
    let root = tree.target.join("arm64-root");
    let stamp = root.join("complete");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == packages) {
        return Ok(root);
    }
    program(tree, "mmdebstrap", "mmdebstrap")?;
    let _installing = Installing::begin(tree);
    files::empty(&root)?;
    let line =
        format!("mmdebstrap --variant=extract --architectures=arm64 --include={packages} {}", suite()?);
    Run::new(tree, &line).arg(&root).run().text(&line)?;
    files::write(&stamp, packages)?;
    Ok(root)
}

/// Returns the name of this machine's release of Debian.
fn suite() -> Result<String, String> {
    let release = files::text(Path::new("/etc/os-release"))?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    suite.map(str::to_owned).ok_or_else(|| "/etc/os-release: no VERSION_CODENAME".to_owned())
}
