//! `--check`: the model and its rewritten form, compared in the user's ONNX Runtime before the file takes its place.

use crate::error::Error;
use clap::{Args, ValueEnum};
use elsa_onnx::{CheckError, Rewrite};
use elsa_onnxruntime::{Model, Runtime};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names the library of ONNX Runtime.
const VARIABLE: &str = "ELSA_ONNXRUNTIME";
/// The library of the operator.
const OPERATOR: &str = "libelsa_ort.so";
/// How the system knows the library of ONNX Runtime.
const NAMES: [&str; 2] = ["libonnxruntime.so.1", "libonnxruntime.so"];
/// Prints the folder of the package of ONNX Runtime, which it does not import.
const PACKAGE: &str =
    "import importlib.util as u; print(u.find_spec('onnxruntime').submodule_search_locations[0])";

/// Whether the rewritten model is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// If ONNX Runtime and the operator are found.
    Auto,
    /// Or nothing is written.
    Require,
    /// Not at all.
    Off,
}

/// The flags of the check.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Run both models in ONNX Runtime before OUT is written, and write nothing if they differ
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Auto)]
    pub check: When,
    /// The library of ONNX Runtime for the check [default: ELSA_ONNXRUNTIME, then the system's, then python3's]
    #[arg(long, value_name = "FILE")]
    pub runtime: Option<PathBuf>,
    /// The library of the operator for the check [default: libelsa_ort.so in ../lib, or beside the tool]
    #[arg(long, value_name = "FILE")]
    pub operator: Option<PathBuf>,
}

/// Why both models were not run, or what is wrong.
enum Stop {
    Unchecked(String),
    Wrong(Error),
}

impl From<String> for Stop {
    fn from(reason: String) -> Stop {
        Stop::Unchecked(reason)
    }
}

/// Compares a model with its form `rewritten`; returns in words what was done.
///
/// # Errors
/// Models that differ, a library that was named and is none; with [`When::Require`] a check that could not be made.
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

/// The library of the operator.
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

/// The runtime that is named, or else the first that is found.
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

/// The library within the package of the Python in the path.
fn package() -> Option<PathBuf> {
    let mut python = Command::new("python3");
    let said = python.args(["-c", PACKAGE]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let folder = String::from_utf8(said.stdout).ok().filter(|_| said.status.success())?;
    let files = std::fs::read_dir(Path::new(folder.trim_end_matches('\n')).join("capi")).ok()?;
    let mut files = files.filter_map(|file| Some(file.ok()?.path()));
    files.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAMES[1])))
}
