//! The libraries with which models are run: the user's ONNX Runtime, and the operator.

use crate::error::Error;
use clap::Args;
use elsa_onnxruntime::Runtime;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable with the path of the ONNX Runtime library.
const VARIABLE: &str = "ELSA_ONNXRUNTIME";
/// File name of the operator's library.
const OPERATOR: &str = "libelsa_ort.so";
/// File names by which the system may find the ONNX Runtime library.
const NAMES: [&str; 2] = ["libonnxruntime.so.1", "libonnxruntime.so"];
/// Python code that prints the folder of the ONNX Runtime package without importing it.
const PACKAGE: &str =
    "import importlib.util as u; print(u.find_spec('onnxruntime').submodule_search_locations[0])";

/// The flags that name libraries.
#[derive(Args, Debug)]
pub struct LibraryArgs {
    /// ONNX Runtime library [default: ELSA_ONNXRUNTIME, then the system's, then python3's]
    #[arg(long, value_name = "FILE")]
    pub runtime: Option<PathBuf>,
    /// Operator library [default: libelsa_ort.so in ../lib or in the tool's folder]
    #[arg(long, value_name = "FILE")]
    pub operator: Option<PathBuf>,
}

/// Reason why ONNX Runtime cannot be used.
pub enum Stop {
    /// Something is missing. The text is the reason, for a message.
    Unable(String),
    /// The user's request is wrong.
    Wrong(Error),
}

impl From<String> for Stop {
    fn from(reason: String) -> Stop {
        Stop::Unable(reason)
    }
}

/// Finds the library of the operator.
///
/// # Errors
/// Returns an error if the flag names no file, or if the library is not in its usual places.
pub fn operator(args: &LibraryArgs) -> Result<PathBuf, Stop> {
    if let Some(path) = &args.operator {
        if path.is_file() {
            return Ok(path.clone());
        }
        let found = format!("{}, which is no file", path.display());
        return Err(Stop::Wrong(Error::Argument { argument: "operator", found, allowed: OPERATOR.into() }));
    }
    let tool = env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let folder = tool.parent().unwrap_or(Path::new("."));
    let places = [folder.join("../lib").join(OPERATOR), folder.join(OPERATOR)];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        format!("{OPERATOR} is not in ../lib of the tool's folder; name it by --operator FILE").into()
    })
}

/// Loads the ONNX Runtime library that the flag or [`VARIABLE`] names; if neither is set, the first library found.
///
/// # Errors
/// Returns an error if the named library cannot be loaded, or if none is found.
pub fn runtime(args: &LibraryArgs) -> Result<Runtime, Stop> {
    let named = args.runtime.clone().map(|path| (path, ""));
    let variable = || env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some((path, from)) = named.or_else(|| Some((variable()?, VARIABLE))) {
        return Runtime::open(&path).map_err(|e| {
            let found = if from.is_empty() { e.to_string() } else { format!("{from}: {e}") };
            let allowed = "a library of ONNX Runtime 1.10 or newer, such as libonnxruntime.so.1".into();
            Stop::Wrong(Error::Argument { argument: "runtime", found, allowed })
        });
    }
    let system = NAMES.into_iter().find_map(|name| Runtime::open(Path::new(name)).ok());
    if let Some(runtime) = system {
        return Ok(runtime);
    }
    let Some(library) = package() else {
        return Err(
            format!("no ONNX Runtime is found; name its library by --runtime FILE or {VARIABLE}").into()
        );
    };
    Runtime::open(&library).map_err(|e| e.to_string().into())
}

/// Finds the ONNX Runtime library inside the Python package of `python3`.
fn package() -> Option<PathBuf> {
    let mut python = Command::new("python3");
    let said = python.args(["-c", PACKAGE]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let folder = String::from_utf8(said.stdout).ok().filter(|_| said.status.success())?;
    let files = std::fs::read_dir(Path::new(folder.trim_end_matches('\n')).join("capi")).ok()?;
    let mut files = files.filter_map(|file| Some(file.ok()?.path()));
    files.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAMES[1])))
}
