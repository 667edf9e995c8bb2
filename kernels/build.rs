//! Embeds GPU kernels that were assembled for one device.
//!
//! `ELSA_CUBIN_DIR` names a folder with files `NAME.cubin`, as `cargo xtask build --cubins` makes it. Without the
//! variable the list is empty.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, error, fs, io};

const VARIABLE: &str = "ELSA_CUBIN_DIR";

/// Files with the extension `cubin`, in order.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "cubin") {
            files.push(fs::canonicalize(path)?);
        }
    }
    files.sort();
    Ok(files)
}

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let mut text = String::from("[\n");
    if let Some(dir) = env::var_os(VARIABLE).map(PathBuf::from) {
        println!("cargo::rerun-if-changed={}", dir.display());
        let files = files(&dir).map_err(|error| format!("{VARIABLE}: {}: {error}", dir.display()))?;
        if files.is_empty() {
            return Err(
                format!("{VARIABLE}: {}: no file; allowed: a folder with NAME.cubin", dir.display()).into()
            );
        }
        for file in files {
            let name = file.file_stem().unwrap_or_default();
            writeln!(
                text,
                "    ({:?}, include_bytes!({:?})),",
                name.to_string_lossy(),
                file.to_string_lossy()
            )?;
        }
    }
    text += "]\n";
    let out = env::var_os("OUT_DIR").ok_or("OUT_DIR: not set; allowed: what cargo sets")?;
    fs::write(Path::new(&out).join("cubins.rs"), text)?;
    Ok(())
}
