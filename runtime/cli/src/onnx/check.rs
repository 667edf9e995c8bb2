//! `--check`: compares the model with the rewritten model in the user's ONNX Runtime before the output file is written.

use super::library::{LibraryArgs, Stop, operator, runtime};
use crate::error::Error;
use clap::{Args, ValueEnum};
use elsa_onnx::{CheckError, Rewrite};
use elsa_onnxruntime::Model;

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
    /// Libraries for the check.
    #[command(flatten)]
    pub libraries: LibraryArgs,
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
        Err(Stop::Unable(reason)) if args.check == When::Require => {
            Err(Error::NoClaim(format!("--check: {reason}; nothing is written")))
        }
        Err(Stop::Unable(reason)) => Ok(Some(format!("not checked: {reason}"))),
    }
}

fn compared(args: &CheckArgs, rewrite: &Rewrite<'_>, rewritten: Model<'_>) -> Result<String, Stop> {
    let operator = operator(&args.libraries)?;
    let runtime = runtime(&args.libraries)?;
    let memory = elsa_runtime::available_memory().map_or(u64::MAX, |available| available.bytes);
    rewrite.check(rewritten, &runtime, &operator, memory).map_err(|e| match e {
        CheckError::Unchecked(reason) => Stop::Unable(reason),
        CheckError::Differs(what) => Stop::Wrong(Error::Verification(format!("OUT: not written: {what}"))),
    })
}
