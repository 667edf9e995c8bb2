//! `--check`: compares the model with the rewritten model in the user's ONNX Runtime before the output file is written.

use crate::error::Error;
use clap::{Args, ValueEnum};
use elsa_onnx::{CheckError, Rewrite};
use elsa_onnxruntime::{Model, Runtime};
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

/// Condition under which the rewritten model is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Check if ONNX Runtime and the operator are found.
    Auto,
    /// Check, or write nothing.
    Require,
    /// Do not check.
    Off,
}

/// The flags of the check.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Run both models in ONNX Runtime before OUT is written, and write nothing if they differ
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Auto)]
    pub check: When,
    /// ONNX Runtime library for the check [default: ELSA_ONNXRUNTIME, then the system's, then python3's]
    #[arg(long, value_name = "FILE")]
    pub runtime: Option<PathBuf>,
    /// Operator library for the check [default: libelsa_ort.so in ../lib or in the tool's folder]
    #[arg(long, value_name = "FILE")]
    pub operator: Option<PathBuf>,
}

/// Reason why the models could not be compared, or an error.
enum Stop {
    Unchecked(String),
    Wrong(Error),
}

impl From<String> for Stop {
    fn from(reason: String) -> Stop {
        Stop::Unchecked(reason)
    }
}

/// Compares a model with the rewritten model. Returns a description of the result; `None` with [`When::Off`].
///
/// # Errors
/// Returns an error if the models differ, or if a library that the user named cannot be loaded. With [`When::Require`],
/// also returns an error if the models could not be compared.
pub fn check(args: &CheckArgs, rewrite: &Rewrite<'_>, rewritten: Model<'_>) -> Result<Option<String>, Error> {
    if args.check == When::Off {
        return Ok(None);
    }
    match compared(args, rewrite, rewritten) {
        Ok(words) => Ok(Some(format!("checked: {words}"))),
        Err(Stop::Wrong(error)) => Err(error),
        Err(Stop::Unchecked(reason)) if args.check == When::Require => {
            Err(Error::NoClaim(format!("--check: {reason}; nothing is written")))
        }
        Err(Stop::Unchecked(reason)) => Ok(Some(format!("not checked: {reason}"))),
    }
}

fn compared(args: &CheckArgs, rewrite: &Rewrite<'_>, rewritten: Model<'_>) -> Result<String, Stop> {
    let operator = operator(args)?;
    let runtime = runtime(args)?;
    let memory = elsa_runtime::available_memory().map_or(u64::MAX, |available| available.bytes);
    rewrite.check(rewritten, &runtime, &operator, memory).map_err(|e| match e {
        CheckError::Unchecked(reason) => Stop::Unchecked(reason),
        CheckError::Differs(what) => Stop::Wrong(Error::Verification(format!("OUT: not written: {what}"))),
    })
}

/// Finds the library of the operator.
fn operator(args: &CheckArgs) -> Result<PathBuf, Stop> {
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
fn runtime(args: &CheckArgs) -> Result<Runtime, Stop> {
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
