//! Lists the paths of the build machine. No shipped artefact may contain one of them. The compiler writes other names
//! in place of these paths, and `super::check` searches the artefacts for the paths.

use crate::setup;
use crate::shell::Tree;
use std::path::PathBuf;

/// A folder of this machine, and the name that the compiler writes in place of its path.
struct Folder {
    path: PathBuf,
    name: &'static str,
}

/// Returns the folders in which cargo unpacks the sources of packages, one for each registry.
pub fn unpacked_sources() -> Vec<PathBuf> {
    let sources = cargo_home().map(|cargo| std::fs::read_dir(cargo.join("registry/src")));
    sources.into_iter().flatten().flatten().flatten().map(|entry| entry.path()).collect()
}

fn cargo_home() -> Option<PathBuf> {
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    cargo.or_else(|| Some(std::env::home_dir().filter(|path| path.parent().is_some())?.join(".cargo")))
}

/// Returns the folders whose paths are replaced. A folder precedes the folders inside it.
fn folders(tree: &Tree) -> Result<Vec<Folder>, String> {
    let home = std::env::home_dir().filter(|path| path.parent().is_some());
    let mut folders = Vec::new();
    let mut add = |path: PathBuf, name| folders.push(Folder { path, name });
    home.into_iter().for_each(|path| add(path, "/home"));
    add(setup::toolchain_folder(tree)?, "/rust");
    cargo_home().into_iter().for_each(|path| add(path, "/cargo"));
    unpacked_sources().into_iter().for_each(|path| add(path, "/crates"));
    add(tree.root.clone(), "/elsa");
    add(tree.target.clone(), "/target");
    Ok(folders)
}

/// Returns the cargo option that makes the compiler write names in place of the folders' paths. Compiler flags for the
/// target in another configuration file still apply. The environment variable RUSTFLAGS would override both these flags
/// and this option.
pub fn renamed(tree: &Tree, triple: &str) -> Result<String, String> {
    let flag = |folder: Folder| format!("--remap-path-prefix={}={}", folder.path.display(), folder.name);
    let flags: Vec<String> = folders(tree)?.into_iter().map(flag).collect();
    // A JSON string is also a valid TOML string.
    Ok(format!("target.{triple}.rustflags={}", serde_json::json!(flags)))
}

/// Returns the paths that no artefact may contain.
pub fn private(tree: &Tree) -> Result<Vec<String>, String> {
    let paths = folders(tree)?.into_iter().map(|folder| folder.path.display().to_string());
    Ok(paths.collect())
}
