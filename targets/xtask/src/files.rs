//! Reads and writes files and folders. Every error names the path.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns a function that converts an I/O error to a message that contains `path`.
pub fn at(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Returns the text of a file.
pub fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(at(path))
}

/// Returns the bytes of a file.
pub fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(at(path))
}

/// Creates a folder and its missing parents.
pub fn folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(at(path))
}

/// Creates an empty folder, deleting any existing content.
pub fn empty(path: &Path) -> Result<(), String> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(at(path))?;
    }
    folder(path)
}

/// Writes a file, after creating its folder if necessary.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), String> {
    path.parent().map_or(Ok(()), folder)?;
    fs::write(path, bytes).map_err(at(path))
}

/// Lists the files with one of these extensions in a folder and its subfolders, sorted by path.
pub fn below(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let path = entry.map_err(at(dir))?.path();
        if path.is_dir() {
            files.extend(below(&path, extensions)?);
        } else if path.extension().is_some_and(|x| extensions.iter().any(|wanted| x == *wanted)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
