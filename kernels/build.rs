//! Finds GPU code that is already assembled.
//!
//! `ELSA_CUBIN_DIR` names a folder of `NAME.cubin`, assembled for the GPU of the target board. They stand in the table
//! of GPU kernels beside the PTX; without the variable, or where it is empty, the table has PTX alone.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

const VARIABLE: &str = "ELSA_CUBIN_DIR";

fn main() -> ExitCode {
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    println!("cargo::rerun-if-changed=build.rs");
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            println!("cargo::error={fault}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the names and contents of the folder as a Rust expression.
fn write() -> Result<(), String> {
    let mut table = "&[\n".to_owned();
    if let Some(folder) = env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        let folder = Path::new(&folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        let fault = |error| format!("{VARIABLE}: {}: {error}", folder.display());
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(fault)? {
            paths.push(entry.map_err(fault)?.path());
        }
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "cubin"));
        if paths.is_empty() {
            return Err(format!(
                "{VARIABLE}: no .cubin in {}; allowed: a folder of NAME.cubin",
                folder.display()
            ));
        }
        paths.sort();
        for path in paths {
            let path = path.canonicalize().map_err(fault)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            writeln!(table, "({name:?}, include_bytes!({path:?})),").map_err(|error| error.to_string())?;
        }
    }
    table += "]\n";
    let out = env::var_os("OUT_DIR").ok_or("OUT_DIR: not set; allowed: as cargo sets it")?;
    let path = Path::new(&out).join("cubins.rs");
    fs::write(&path, table).map_err(|error| format!("{}: {error}", path.display()))
}
