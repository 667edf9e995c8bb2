//! Requirements for the tests of the ONNX Runtime operator: libraries of ONNX Runtime, and Python environments.

use super::{BOARD_ROOT, file, old_python, program, python};
use crate::files::{self, at};
use crate::shell::{Run, Tree, side_by_side};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Tested versions of ONNX Runtime: two for JetPack 4.6 (the first also has a package for JetPack's Python), the last
/// version in which execution providers have no streams, the first version whose kernels return a status in every
/// build, and the newest version.
pub const VERSIONS: [&str; 5] = ["1.10.0", "1.11.0", "1.14.0", "1.17.0", "latest"];
/// The versions of [`VERSIONS`] for JetPack 4.6.
pub const JETPACK: [&str; 2] = [VERSIONS[0], VERSIONS[1]];
/// The oldest and the newest of [`VERSIONS`].
pub const ENDS: [&str; 2] = [VERSIONS[0], VERSIONS[4]];
const NEWEST_PACKAGES: [&str; 3] = ["numpy", "onnx", "onnxruntime"];
const OLDEST_PACKAGES: [&str; 2] = ["numpy", "onnxruntime==1.10.0"];

/// Contents of `/proc/cpuinfo` for an emulated program, because the file of this machine describes a different
/// processor.
const PROCESSOR: &str = "BogoMIPS\t: 62.50\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32\n\
    CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd07\nCPU revision\t: 3\n\n";

/// Libraries of one version of ONNX Runtime.
pub struct Runtime {
    /// Version, such as `1.17.0`, or `latest`.
    pub version: &'static str,
    /// Library for x86-64.
    pub here: PathBuf,
    /// Library for arm64.
    pub board: PathBuf,
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ONNX Runtime {}", self.version)
    }
}

/// Returns the libraries of `versions`. They come from the packages for Node.js, which support x86-64 and arm64.
pub fn runtimes(tree: &Tree, versions: &[&'static str]) -> Result<Vec<Runtime>, String> {
    side_by_side(versions.to_vec(), |version| runtime(tree, version)).into_iter().collect()
}

fn runtime(tree: &Tree, version: &'static str) -> Result<Runtime, String> {
    let folder = tree.target.join("onnxruntime").join(version);
    let [here, board] = ["x64", "arm64"].map(|machine| folder.join(machine).join("libonnxruntime.so.1"));
    if here.is_file() && board.is_file() {
        return Ok(Runtime { version, here, board });
    }
    program(tree, "npm", "npm")?;
    // The package is unpacked in another folder, so that a failure leaves no incomplete library.
    let part = folder.join("part");
    files::empty(&part)?;
    let pack = Run::new(tree, "npm pack --silent").arg(format!("onnxruntime-node@{version}")).dir(&part);
    let packed = pack.whole().run().text("npm pack onnxruntime-node")?;
    let name = packed.lines().last().unwrap_or_default().trim();
    let unpack = Run::new(tree, "tar --wildcards -xzf").arg(part.join(name)).arg("*/libonnxruntime.so*");
    unpack.dir(&part).whole().run().text("tar")?;
    for (machine, to) in [("x64", &here), ("arm64", &board)] {
        let found =
            library(&part, machine).ok_or(format!("onnxruntime-node@{version}: none for {machine}"))?;
        let folder = folder.join(machine);
        files::folder(&folder)?;
        fs::rename(&found, to).map_err(at(to))?;
    }
    fs::remove_dir_all(&part).map_err(at(&part))?;
    Ok(Runtime { version, here, board })
}

/// Returns the library for a machine in an unpacked package. The path of the library contains a folder whose name is
/// the version of Node.js's binary interface.
fn library(part: &Path, machine: &str) -> Option<PathBuf> {
    let bin = fs::read_dir(part.join("package/bin")).ok()?;
    let folders = bin.filter_map(|entry| Some(entry.ok()?.path().join("linux").join(machine)));
    let mut files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().filter_map(Result::ok);
    files.find(|file| file.file_name().to_string_lossy().starts_with("libonnxruntime.so")).map(|f| f.path())
}

/// Returns a folder that the emulator can use as the root of its files: arm64 libraries, and a description of the
/// emulated processor.
pub fn board_root(tree: &Tree) -> Result<PathBuf, String> {
    file(tree, &format!("{BOARD_ROOT}/lib/libstdc++.so.6"), "libstdc++6-arm64-cross")?;
    let root = tree.target.join("onnxruntime/board");
    let proc = root.join("proc");
    let text: String = (0..2).map(|i| format!("processor\t: {i}\n{PROCESSOR}")).collect();
    files::write(&proc.join("cpuinfo"), text)?;
    let lib = root.join("lib");
    if !lib.exists() {
        std::os::unix::fs::symlink(format!("{BOARD_ROOT}/lib"), &lib).map_err(at(&lib))?;
    }
    Ok(root)
}

/// Returns the Python of a private environment with the newest ONNX and ONNX Runtime.
pub fn newest(tree: &Tree) -> Result<PathBuf, String> {
    python(tree, "ort-venv", &NEWEST_PACKAGES, &NEWEST_PACKAGES.join(", "))
}

/// Returns a Python 3.6 with ONNX Runtime 1.10, as in JetPack 4.6; `None` if this machine has no Python 3.6.
pub fn oldest(tree: &Tree) -> Result<Option<PathBuf>, String> {
    old_python(tree, "3.6", "ort36-venv", &OLDEST_PACKAGES)
}
