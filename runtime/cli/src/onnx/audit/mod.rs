//! `elsa onnx audit`: finds the nodes of a model that half precision breaks, in the user's ONNX Runtime.

mod inputs;
mod page;
mod print;

use super::library::{self, LibraryArgs, Stop};
use crate::args::values;
use crate::error::{Error, say};
use crate::report;
use clap::Args;
use elsa_files::temporary::Temporary;
use elsa_files::{Reads, Target};
use elsa_onnx::{AuditError, AuditOptions, ModelFile, Parsed, Rewrite};
use elsa_onnxruntime::{Model, Options, Runtime, RuntimeError, Session};
use inputs::GivenInput;
use print::AuditReport;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The text below the flags.
pub const HELP: &str = "\
The command runs the model in f32 in ONNX Runtime on your inputs, with its intermediate tensors as outputs. It groups
the nodes into sites: attentions, normalisations, softmaxes, products, and other single nodes. For each site it
measures:
  scores, sum, output   the largest magnitudes; f16 ends at 65504
  least                 the smallest magnitude above zero; f16 ends at 6.0e-8
  stored                the relative error of the site's tensors if they are rounded to f16
  summed                the relative error of its sums if one f16 accumulator adds their terms
  harm                  the relative error of the model's outputs if only this site is in f16
  and summed            an estimate of this error if the site's sums are in f16, too

It then searches for few sites to keep in f32, so that the outputs of the model with all other sites in f16 stay within
the tolerance. A site whose sums overflow is kept in any case. The list is printed as flags of trtexec, as the
node_block_list of the float16 converter of ONNX Runtime, and as attentions that elsa onnx rewrite replaces by an
operator that computes in f32.

Scores of at most -1e9 are masks and are not measured. Nodes inside If, Loop and Scan are not measured, and neither are
the scores inside a single attention node with a cache or a bias of its queries. If the outputs break, or if a sum or a
score overflows, the exit status is 4.";

/// `elsa onnx audit`.
#[derive(Args, Debug)]
pub struct AuditArgs {
    /// The model, in f32
    #[arg(value_name = "IN")]
    pub model: PathBuf,
    /// Tensor for an input: NAME=FILE.npy or NAME=FILE.npz#MEMBER, or FILE.npz with all inputs by their names. Inputs
    /// without a tensor are random
    #[arg(long, value_name = "NAME=FILE")]
    pub input: Vec<GivenInput>,
    /// Largest relative error of the outputs that does not count as broken
    #[arg(long, value_name = "ERROR", default_value_t = 0.01, value_parser = tolerance)]
    pub tolerance: f64,
    /// Memory for the intermediate tensors of one run [default: a quarter of the available memory]
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    pub budget: Option<usize>,
    /// Time for the runs in f16
    #[arg(long, default_value_t = 60.0, value_parser = values::seconds)]
    pub seconds: f64,
    /// Libraries that run the model.
    #[command(flatten)]
    pub libraries: LibraryArgs,
    /// Write a page with bars and a table
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Parses a relative error.
fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x <= 1.0 => Ok(x),
        _ => Err("allowed: a number above 0, at most 1".into()),
    }
}

/// Audits the model in `file`.
///
/// # Errors
/// Returns an error if an input is wrong, if ONNX Runtime is missing or does not run the model, and if half precision
/// breaks the model.
pub fn audit(
    args: &AuditArgs,
    file: &ModelFile,
    model: &Parsed<'_>,
    rewrite: &Rewrite<'_>,
) -> Result<(), Error> {
    let mut reads = Reads::default();
    reads.keep("IN", &args.model);
    model.weights().iter().for_each(|location| reads.keep("IN", &file.folder().join(location)));
    args.input.iter().for_each(|input| reads.keep("input", input.path()));
    let page = args.html.as_deref().map(|path| Target::new("html", path, &reads)).transpose()?;
    let given = inputs::load(&model.inputs(), &args.input)?;
    let stopped = |stop| match stop {
        Stop::Unable(reason) => Error::NoClaim(reason),
        Stop::Wrong(error) => error,
    };
    let runtime = library::runtime(&args.libraries).map_err(stopped)?;
    let operator = match library::operator(&args.libraries) {
        Ok(path) => Some(path),
        // Only a model with the operator needs it.
        Err(Stop::Unable(_)) => None,
        Err(Stop::Wrong(error)) => return Err(error),
    };
    let available = elsa_runtime::available_memory().map_or(u64::MAX, |available| available.bytes);
    let options = AuditOptions {
        given,
        budget: args.budget.map_or(available / 4, |bytes| bytes as u64),
        time: Duration::from_secs_f64(args.seconds),
        tolerance: args.tolerance,
    };
    let inside = model.weights().is_empty();
    let open = |bytes: &[u8]| {
        session(&runtime, bytes, operator.as_deref(), (!inside).then_some(args.model.as_path()))
    };
    let found = rewrite.audit(&open, &options).map_err(|e| match e {
        AuditError::Input { found, allowed } => Error::Argument { argument: "input", found, allowed },
        e => Error::NoClaim(e.to_string()),
    })?;
    if !found.random.is_empty() {
        say(&format!(
            "warning: random numbers for {}, whose magnitudes may be far from yours; --input gives your tensors",
            found.random.join(", ")
        ));
    }
    let report = AuditReport::new(args.model.display().to_string(), &runtime.version, args.tolerance, &found);
    let mut out = crate::foreign::stdout();
    if args.json {
        report::json(&mut out, &report)?;
    } else {
        print::print(&mut out, &report)?;
    }
    if let Some(target) = page {
        report::written(target, crate::foreign::page(&page::page(&report)?).as_bytes())?;
    }
    match report.verdict() {
        Some(what) => Err(Error::Verification(what)),
        None if found.all.is_none() => {
            Err(Error::NoClaim("the time did not suffice for a run in f16; --seconds allows more".into()))
        }
        None => Ok(()),
    }
}

/// Opens a session for the bytes of a model. If the model at `beside` has its weights in other files, the bytes are
/// written to a temporary file next to it.
fn session<'a>(
    runtime: &'a Runtime,
    bytes: &[u8],
    operators: Option<&Path>,
    beside: Option<&Path>,
) -> Result<Session<'a>, RuntimeError> {
    let options = Options { operators, ..Options::default() };
    let Some(path) = beside else { return runtime.session(Model::Bytes(bytes), &options) };
    let failed = |e: io::Error| RuntimeError::Load {
        path: path.to_path_buf(),
        reason: format!("a copy with more outputs cannot be written next to it: {e}"),
    };
    let copy = Temporary::new(path, None).map_err(failed)?;
    copy.fill(|mut file| file.write_all(bytes)).map_err(failed)?;
    runtime.session(Model::File(copy.path().unwrap_or(path)), &options)
}
