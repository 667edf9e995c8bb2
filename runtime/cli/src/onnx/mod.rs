//! `elsa onnx`: lists attention in ONNX models, replaces it with this runtime's operators, or finds the nodes that half
//! precision breaks.

mod audit;
mod check;
mod library;
mod target;

use crate::args::ForceArgs;
use crate::error::Error;
use crate::report::{self, object};
use clap::{Args, Subcommand};
use elsa_files::temporary::folder;
use elsa_files::{FileError, Target};
use elsa_onnx::{Attention, LoweredModel, ModelError, ModelFile, Rewrite};
use elsa_onnxruntime::Model;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// `elsa onnx`.
#[derive(Args, Debug)]
pub struct OnnxArgs {
    /// Action.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The text below the flags of `elsa onnx rewrite`.
const HELP: &str = "\
The command recognises a product of queries and keys, a Softmax, and a product with values as attention, including
scales, soft caps, masks and changes of layout between them. It also replaces the operators Attention of ONNX and
MultiHeadAttention of ONNX Runtime, and LinearAttention and CausalConvWithState of both. Linear attention may be written
as products: queries times the sum of keys times values, or scores times a constant decay, times values. A selective scan
may be written as nodes for every token. Attention stays as it is if other nodes read its intermediate results or if the
replacement is not proved; its line gives the reason.

A replacement holds for every size of every dynamic axis. Values that depend on such a size are still computed at run
time: a mask is an input of the operator, a scale is multiplied into the queries, and heads are counted when the model
runs. Each replacement is also compared in f64 with the nodes that it replaces, on random tensors and masks and for at
least five sizes of the dynamic axes. If there are many queries, only some of them are compared, within 256 MB. Rows
that attend no key are not compared: the operator returns zeros if their mask is -inf. The mask of shifted windows, -100
or less, becomes an attribute. This changes an answer by less than the rounding of f32 unless a masked score exceeds the
largest attended score by 78 or more.

If ONNX Runtime is found, both models then run in it on inputs of three sizes of the dynamic axes, for at most a minute
(--check). If their answers differ, OUT is not written and the exit status is 4. If the check is not possible, the
report gives the reason. Nothing is compared where the original returns NaN.

With --target, nodes that the runtime does not have are replaced with older ones: LayerNormalization, RMSNormalization,
GroupNormalization, Gelu, Swish, HardSwish, Mish, RotaryEmbedding, CastLike, an If with a constant condition, an Einsum
that is a matrix product, and operators with a newer form, such as Resize, Cast, Split, Pad and reductions. The new nodes
compute the same function in f32. A node without an older form stays, and its line gives the reason. The file imports an
older opset only if every node has a form in it.

Everything else in the file stays the same, byte by byte, except that the domain ai.elsa is added to its imports. Files
with weights next to the model are not changed, so OUT must be in the same folder.";

/// The text below the flags of `elsa onnx list`.
const LIST_HELP: &str = "\
For each attention, the list gives the shape of its scores and the share of its two products in the multiply-adds of the
model. If rewrite would not replace the attention, the list gives the reason, and a change of the model that would help
if one is known. A softmax of other numbers is listed, too. If axes are dynamic, the shares hold for the sizes in the
last line. Nodes inside If, Loop, Scan and functions are not counted.

Weights in other files are not read, except small constants and those that a proof needs. These files must be in the
folder of the model, also after links are followed.";

/// Action on a model.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// List the attention of a model: what would be replaced, what stays and why
    #[command(after_help = LIST_HELP)]
    List(ListArgs),
    /// Replace attention by the operators of ai.elsa, each replacement proved, and write the model
    #[command(after_help = HELP)]
    Rewrite(RewriteArgs),
    /// Find the nodes that half precision breaks, in ONNX Runtime on your inputs
    #[command(after_help = audit::HELP)]
    Audit(audit::AuditArgs),
}

/// `elsa onnx list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// The model
    #[arg(value_name = "IN")]
    pub model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `elsa onnx rewrite`.
#[derive(Args, Debug)]
pub struct RewriteArgs {
    /// The model
    #[arg(value_name = "IN")]
    pub model: PathBuf,
    /// File for the rewritten model; in the folder of IN if IN keeps its weights in other files
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Permission for OUT to be IN.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write the model for an older runtime: newer operators become older ones that compute the same in f32
    #[arg(long, value_enum, value_name = "RUNTIME")]
    pub target: Option<target::TargetName>,
    /// Check of the rewritten model.
    #[command(flatten)]
    pub check: check::CheckArgs,
}

/// Opens the model at `path`.
fn open(path: &Path) -> Result<ModelFile, Error> {
    let failed = |source| FileError::Read { argument: "IN", path: path.to_path_buf(), source };
    Ok(ModelFile::open(path).map_err(failed)?)
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the file cannot be read or is not a model, if the output cannot be written, and if an audit finds
/// that half precision breaks the model.
pub fn onnx(args: &OnnxArgs) -> Result<(), Error> {
    match &args.verb {
        Verb::List(args) => {
            let file = open(&args.model)?;
            let model = file.parse().map_err(|e| refused(&args.model, e))?;
            list(&args.model, &model.rewrite(), args.json)
        }
        Verb::Rewrite(args) => rewrite(args),
        Verb::Audit(args) => {
            let file = open(&args.model)?;
            let model = file.parse().map_err(|e| refused(&args.model, e))?;
            audit::audit(args, &file, &model, &model.rewrite())
        }
    }
}

fn rewrite(args: &RewriteArgs) -> Result<(), Error> {
    let file = open(&args.model)?;
    let model = file.parse().map_err(|e| refused(&args.model, e))?;
    if let Some(location) = model.weights().first()
        && fs::canonicalize(folder(&args.out)).ok() != fs::canonicalize(file.folder()).ok()
    {
        let reason =
            format!("the weights of IN are in '{location}' next to it; OUT would not find them there");
        return Err(FileError::Target { argument: "OUT", path: args.out.clone(), reason }.into());
    }
    let mut reads = args.force.reads();
    reads.add("IN", &args.model, None);
    model.weights().iter().for_each(|location| reads.keep("IN", &file.folder().join(location)));
    let target = if args.dry_run { None } else { Some(Target::new("OUT", &args.out, &reads)?) };
    let rewrite = model.rewrite();
    let attentions = rewrite.attentions();
    let lowered = args.target.map(|target| rewrite.lowered(target.into())).transpose();
    let lowered = lowered.map_err(|e| refused(&args.model, e))?;
    let bytes = rewrite.bytes().map_err(|e| refused(&args.model, e))?;
    let parts = lowered.as_ref().map_or_else(|| bytes.parts(), |lowered| vec![&lowered.bytes[..]]);
    let written = target.is_some().then_some(args.out.as_path());
    let mut checked = None;
    if let Some(target) = target {
        target.write_after(&parts, |file| -> Result<(), Error> {
            let is_lowered =
                lowered.as_ref().is_some_and(|model| model.nodes.iter().any(|node| node.lowered));
            if is_lowered || attentions.iter().any(|attention| attention.replaced) {
                let joined = if file.is_none() { parts.concat() } else { vec![] };
                let rewritten = file.map_or(Model::Bytes(&joined), Model::File);
                checked = check::check(&args.check, &rewrite, rewritten)?;
            }
            Ok(())
        })?;
    }
    tell(&args.model, attentions, lowered.as_ref(), written, checked.as_deref(), args.json)
}

fn refused(path: &Path, source: ModelError) -> Error {
    Error::Model { argument: "IN", path: path.to_path_buf(), source }
}

/// Prints the attentions of a model with their shapes and shares.
fn list(model: &Path, rewrite: &Rewrite<'_>, json: bool) -> Result<(), Error> {
    let mut out = crate::foreign::stdout();
    let attentions = rewrite.attentions();
    let replaced = attentions.iter().filter(|attention| attention.replaced).count();
    if json {
        let told = object! {
            what: "onnx",
            model: model.display().to_string(),
            replaced: replaced,
            attentions: attentions,
            // Sizes of the dynamic axes at which the shares hold.
            sizes: rewrite.sizes(),
        };
        return Ok(report::json(&mut out, &told)?);
    }
    for attention in attentions {
        writeln!(out, "{}", crate::error::one_line(&line(attention, false)))?;
        let shape = attention.shape.as_ref().map(|shape| format!("scores {shape}"));
        let share = attention.share.map(|share| format!("{:.1} % of the multiply-adds", share * 100.0));
        let facts: Vec<String> =
            [Some(attention.what.to_owned()), shape, share].into_iter().flatten().collect();
        writeln!(out, "    {}", crate::error::one_line(&facts.join(", ")))?;
        if let Some(help) = attention.help {
            writeln!(out, "    this would help: {help}")?;
        }
    }
    let mut end = format!("{replaced} would be replaced, {} stay", attentions.len() - replaced);
    if !rewrite.sizes().is_empty() {
        end += &format!("; multiply-adds at {}", rewrite.sizes());
    }
    writeln!(out, "{}", crate::error::one_line(&end))?;
    Ok(())
}

/// Returns the line about an attention: whether it is or would be replaced, and the description or the reason.
fn line(attention: &Attention, written: bool) -> String {
    let state = match (attention.replaced, written) {
        (true, true) => "replaced",
        (true, false) => "replaced by rewrite",
        (false, _) => "stays",
    };
    let name = if attention.node.is_empty() { "(inner)" } else { &attention.node };
    format!("{state:<9} {} {name}: {}", attention.operator, attention.words)
}

fn tell(
    model: &Path,
    attentions: &[Attention],
    lowered: Option<&LoweredModel>,
    written: Option<&Path>,
    check: Option<&str>,
    json: bool,
) -> Result<(), Error> {
    let mut out = crate::foreign::stdout();
    let replaced = attentions.iter().filter(|attention| attention.replaced).count();
    let shown = |path: &Path| path.display().to_string();
    if json {
        let told = object! {
            what: "onnx",
            model: shown(model),
            replaced: replaced,
            attentions: attentions,
            // Nodes that the target does not have in their form, and the opset of the new file.
            lowered: lowered.map(|model| &model.nodes),
            opset: lowered.map(|model| model.opset),
            written: written.map(shown),
            // Result of the comparison of both models in ONNX Runtime, or the reason why they were not run.
            check: check,
        };
        return Ok(report::json(&mut out, &told)?);
    }
    for attention in attentions {
        writeln!(out, "{}", crate::error::one_line(&line(attention, written.is_some())))?;
    }
    if let Some(model) = lowered {
        for node in &model.nodes {
            writeln!(out, "{}", crate::error::one_line(&target::line(node)))?;
        }
        writeln!(out, "{}", target::summary(model))?;
    }
    let stay = attentions.len() - replaced;
    let end = match written {
        Some(path) => format!("{replaced} replaced, {stay} stay, written to {}", shown(path)),
        None => format!("{replaced} would be replaced, {stay} stay"),
    };
    writeln!(out, "{}", crate::error::one_line(&end))?;
    if let Some(words) = check {
        writeln!(out, "{}", crate::error::one_line(words))?;
    }
    Ok(())
}
