//! `elsa onnx`: attention in ONNX models, listed or replaced by the operator of this runtime.
//!
//! ```text
//! file -> wire -> model -> symbols -> infer (worlds) -> find -> forms, masks -> change -> prove -> write
//! ```
//!
//! A model is read as spans of its bytes (`wire`, `model`), so that what is not changed stays as it is, byte by
//! byte. The free axes of its inputs are symbols, from which shapes follow (`symbols`, `size`), and get sizes for proofs
//! (`infer`). From each Softmax the walk goes to both products (`find`), which tells what to prove: how elements lie (`forms`) and what masks are
//! (`masks`). The new nodes (`change`) are compared with the old ones in f64 (`prove`) before anything is written
//! (`write`), and the whole model with the original in the user's ONNX Runtime (`check`) before it takes its place.

mod array;
mod change;
mod check;
mod extents;
mod find;
mod forms;
mod fused;
mod infer;
mod key;
mod masks;
mod model;
mod ops;
mod prove;
mod shapes;
mod size;
mod symbols;
#[cfg(test)]
mod tests;
mod value;
mod wire;
mod write;

use crate::args::ForceArgs;
use crate::error::Error;
use crate::report;
use crate::target::Target;
use array::{Array, Stored};
use change::Change;
use clap::{Args, Subcommand};
use find::{Reason, Site};
use model::External;
use model::Model;
pub use model::ModelError;
pub use ops::Limits;
use serde::Serialize;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use symbols::Symbols;

/// `elsa onnx`.
#[derive(Args, Debug)]
pub struct OnnxArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// The text below the flags of `elsa onnx rewrite`.
const HELP: &str = "\
Attention is what leads from a product of queries and keys through a Softmax to a product with values: scales, soft caps,
masks and changes of layout on the way are taken in. Attention of ONNX and MultiHeadAttention of ONNX Runtime are
replaced, too. What is read elsewhere, or is not proved, stays, with the reason in its line.

A replacement holds for every size of every free axis. What a free axis decides stays computed: a mask is an input of the
operator, a scale is multiplied into the queries, and heads are counted when the model runs. Each replacement is also
computed in f64 beside the nodes that it replaces, on random tensors and masks, with at least five sizes of the free axes,
over some of the queries where there are many, within 256 MB. Rows that attend no key are not compared: the operator answers zeros where a mask is -inf. The mask of shifted
windows, -100 or less, becomes an attribute; an answer changes by less than f32 rounds while no masked score lies 78
above the largest attended one.

Then both models run in ONNX Runtime, if one is found (--check), on inputs of three sizes of the free axes, for at most a
minute. A file whose answers differ is not written, and the exit status is 4; one that was not checked is named, with the
reason. Nothing is compared where the original answers NaN.

All else in the file stays as it is, byte by byte; the domain ai.elsa is added to its imports. Files with weights beside
the model are not touched, and OUT must lie in the same folder.";

/// What to do with a model.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// List the attention of a model: what would be replaced, what stays and why
    List(ListArgs),
    /// Replace attention by the operator ElsaAttention, each replacement proved, and write the model
    #[command(after_help = HELP)]
    Rewrite(RewriteArgs),
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
    /// Where the rewritten model goes; beside IN if IN keeps its weights in other files
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Whether OUT may be IN.
    #[command(flatten)]
    pub force: ForceArgs,
    /// Write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// How the rewritten model is checked.
    #[command(flatten)]
    pub check: check::CheckArgs,
}

/// One attention of a model, or a Softmax that is none.
#[derive(Clone, Debug, Serialize)]
pub struct Attention {
    /// The name of its node, or of what the node makes.
    pub node: String,
    /// The node's operator.
    pub operator: String,
    /// Whether it is replaced.
    pub replaced: bool,
    /// What it becomes, or why it stays.
    pub words: String,
}

/// The attention of a model, and the bytes of the model with it replaced.
///
/// # Errors
/// Bytes that are not a model.
pub fn rewritten(
    file: &[u8],
    external: External<'_>,
    limits: Limits,
) -> Result<(Vec<Attention>, Vec<u8>), ModelError> {
    let model = Model::read(file)?;
    model.locations()?;
    let (attentions, changes) = examine(&model, external, limits);
    Ok((attentions, write::write(&model, &changes)?))
}

/// Every attention of the model, and the changes that are proved.
fn examine(model: &Model<'_>, external: External<'_>, limits: Limits) -> (Vec<Attention>, Vec<Change>) {
    let graph = &model.graph;
    let mut attentions: Vec<Attention> = Vec::new();
    let mut changes = Vec::new();
    let mut inner: Vec<&String> = model.functions.iter().collect();
    inner.extend(graph.nodes.iter().flat_map(|node| &node.inner));
    let sites = sites(graph);
    if !sites.is_empty() {
        let symbols = Symbols::new(model, external, limits);
        let worlds = infer::worlds(model, external, limits, &symbols);
        let site = Site { graph, opset: model.opset, symbols: &symbols, worlds: &worlds };
        let prefix = prefix(graph);
        let mut proved = HashSet::new();
        for n in sites {
            let node = &graph.nodes[n];
            let made = node.outputs.first().cloned().unwrap_or_default();
            let name = if node.name.is_empty() { made } else { node.name.clone() };
            let change = replacement(&site, n, &format!("{prefix}_{}", changes.len()), &mut proved);
            let (replaced, words) = match change {
                Ok(change) => {
                    let words = change.words.clone();
                    changes.push(change);
                    (true, words)
                }
                Err(reason) => (false, reason),
            };
            attentions.push(Attention { node: name, operator: node.op.clone(), replaced, words });
        }
    }
    for operator in inner {
        let words = "it stands in a subgraph or a function".into();
        attentions.push(Attention {
            node: String::new(),
            operator: operator.clone(),
            replaced: false,
            words,
        });
    }
    (attentions, changes)
}

/// The nodes that are attention, or the softmax of one.
fn sites(graph: &model::Graph) -> Vec<usize> {
    let is_site = |node: &model::Node| {
        node.is("Softmax")
            || node.is_fused()
            || fused::refusal(node).is_some()
            || find::written_out(graph, node)
    };
    (0..graph.nodes.len()).filter(|&n| is_site(&graph.nodes[n])).collect()
}

/// The proved replacement of node `n`. `proved` holds the keys of proofs that have been made.
fn replacement(
    site: &Site<'_>,
    n: usize,
    prefix: &str,
    proved: &mut HashSet<Vec<u8>>,
) -> Result<Change, Reason> {
    let node = &site.graph.nodes[n];
    if let Some(reason) = fused::refusal(node) {
        return Err(reason);
    }
    if find::written_out(site.graph, node) {
        return Err(
            "its softmax is written out as Exp, ReduceSum and a quotient; a Softmax is replaced".into()
        );
    }
    if node.is("Softmax") {
        return proof(site, change::of(site, &site.around(node)?, prefix)?, proved);
    }
    // The node's own tensors, where what they are made from cannot be read.
    let found = fused::found(site, n).and_then(|found| change::of(site, &found, prefix));
    match found.and_then(|change| proof(site, change, proved)) {
        Ok(change) => Ok(change),
        Err(_) => proof(site, fused::same(site, n, prefix)?, proved),
    }
}

/// The change, if it is proved.
fn proof(site: &Site<'_>, change: Change, proved: &mut HashSet<Vec<u8>>) -> Result<Change, Reason> {
    match key::key(site, &change) {
        Some(key) if proved.contains(&key) => {}
        key => {
            prove::prove(site, &change)?;
            proved.extend(key);
        }
    }
    Ok(change)
}

/// How the names of new tensors begin: as no name of the graph does.
fn prefix(graph: &model::Graph) -> String {
    let mut prefix = "elsa".to_string();
    while graph.names.iter().any(|name| name.starts_with(&prefix)) {
        prefix.push('_');
    }
    prefix
}

/// A model's bytes, and what they say of other files.
struct Source<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Source<'a>, Error> {
        let failed = |source| Error::Read { argument: "IN", path: path.to_path_buf(), source };
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(std::io::ErrorKind::InvalidInput.into()));
        }
        Ok(Source { path, bytes: fs::read(path).map_err(failed)? })
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn refuse(&self, source: ModelError) -> Error {
        Error::Model { argument: "IN", path: self.path.to_path_buf(), source }
    }

    /// Reads the model, and requires the files that it names.
    fn model(&self) -> Result<(Model<'_>, Vec<String>), Error> {
        let model = Model::read(&self.bytes).map_err(|e| self.refuse(e))?;
        let locations = model.locations().map_err(|e| self.refuse(e))?;
        for location in &locations {
            if !self.folder().join(location).is_file() {
                return Err(self.refuse(ModelError::Rule {
                    found: format!("external data at '{location}', which is no file there"),
                    allowed: "a model with its data beside it",
                }));
            }
        }
        Ok((model, locations))
    }

    /// The elements of a constant that lies in another file.
    fn external(&self, stored: &Stored, most: usize) -> Option<Array> {
        let get = |key: &str| {
            stored.external()?.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
        };
        let length = array::count(&stored.shape, most)?.checked_mul(stored.kind.size()?)?;
        if get("length").is_some_and(|given| given.parse() != Ok(length)) {
            return None;
        }
        let offset = get("offset").map_or(Ok(0), str::parse::<u64>).ok()?;
        let mut file = File::open(self.folder().join(get("location")?)).ok()?;
        file.seek(SeekFrom::Start(offset)).ok()?;
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes).ok()?;
        stored.decode(&bytes, most)
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Told<'a> {
    what: &'static str,
    model: String,
    replaced: usize,
    attentions: &'a [Attention],
    /// The file that was written.
    written: Option<String>,
    /// What ONNX Runtime made of both models, or why they were not run.
    check: Option<&'a str>,
}

/// Runs the command.
///
/// # Errors
/// A model that cannot be read or is none, an output that cannot be written.
pub fn onnx(args: &OnnxArgs) -> Result<(), Error> {
    match &args.verb {
        Verb::List(args) => {
            let source = Source::open(&args.model)?;
            let (model, _) = source.model()?;
            let (attentions, _) =
                examine(&model, &|stored, most| source.external(stored, most), Limits::WHOLE);
            tell(&args.model, &attentions, None, None, args.json)
        }
        Verb::Rewrite(args) => {
            let source = Source::open(&args.model)?;
            let (model, locations) = source.model()?;
            if let Some(location) = locations.first() {
                let folder = args
                    .out
                    .parent()
                    .filter(|folder| !folder.as_os_str().is_empty())
                    .unwrap_or(Path::new("."));
                let same = fs::canonicalize(folder).ok() == fs::canonicalize(source.folder()).ok();
                if !same {
                    let reason = format!(
                        "the weights of IN lie beside it in '{location}', where OUT would not find them"
                    );
                    return Err(Error::Target { argument: "OUT", path: args.out.clone(), reason });
                }
            }
            let mut reads = args.force.reads();
            reads.add("IN", &args.model, None);
            locations.iter().for_each(|location| reads.keep("IN", &source.folder().join(location)));
            let target = if args.dry_run { None } else { Some(Target::new("OUT", &args.out, &reads)?) };
            let (attentions, changes) =
                examine(&model, &|stored, most| source.external(stored, most), Limits::WHOLE);
            let bytes = write::write(&model, &changes).map_err(|e| source.refuse(e.into()))?;
            let written = target.is_some().then_some(args.out.as_path());
            let mut checked = None;
            if let Some(target) = target {
                target.write_after(&bytes, |file| {
                    let pair = check::Pair {
                        model: &model,
                        original: &args.model,
                        weights: locations.iter().map(|location| source.folder().join(location)).collect(),
                        rewritten: file.map_or(check::Place::Bytes(&bytes), check::Place::File),
                    };
                    if !changes.is_empty() {
                        checked = check::check(&args.check, &pair)?;
                    }
                    Ok(())
                })?;
            }
            tell(&args.model, &attentions, written, checked.as_deref(), args.json)
        }
    }
}

fn tell(
    model: &Path,
    attentions: &[Attention],
    written: Option<&Path>,
    check: Option<&str>,
    json: bool,
) -> Result<(), Error> {
    let mut out = crate::foreign::stdout();
    let replaced = attentions.iter().filter(|attention| attention.replaced).count();
    let shown = |path: &Path| path.display().to_string();
    if json {
        let written = written.map(shown);
        return Ok(report::json(
            &mut out,
            &Told { what: "onnx", model: shown(model), replaced, attentions, written, check },
        )?);
    }
    for attention in attentions {
        let state = if attention.replaced { "replaced" } else { "stays" };
        let name = if attention.node.is_empty() { "(inner)" } else { &attention.node };
        let line = format!("{state:<9} {} {name}: {}", attention.operator, attention.words);
        writeln!(out, "{}", crate::error::one_line(&line))?;
    }
    let stay = attentions.len() - replaced;
    let end = written.map_or_else(String::new, |path| format!(", written to {}", shown(path)));
    writeln!(out, "{}", crate::error::one_line(&format!("{replaced} replaced, {stay} stay{end}")))?;
    if let Some(words) = check {
        writeln!(out, "{}", crate::error::one_line(words))?;
    }
    Ok(())
}
