//! Finds attention in ONNX models, and replaces it with this runtime's operator `ElsaAttention`. Each replacement is
//! proved to be correct.
//!
//! This crate is a part of [`elsa-edge`](https://docs.rs/elsa-edge), and users depend on that crate instead. The
//! interface of this crate may change in any version.
//!
//! ```text
//! file -> wire -> model -> symbols -> infer (worlds) -> find -> forms, masks -> change -> prove -> write
//! ```
//!
//! A model is read as spans of bytes in its file (`wire`, `model`), so that unchanged parts can be copied byte for
//! byte. The free axes of its inputs are symbols, from which shapes are derived (`symbols`, `size`); for proofs, the
//! free axes are given sizes (`infer`). From each Softmax, the search follows the nodes to both matrix products
//! (`find`). This yields the statements to prove: the layouts of elements (`forms`) and the kinds of masks (`masks`,
//! `positions`). The new nodes (`change`) are compared with the old nodes in f64 (`prove`) before anything is written
//! (`write`). [`Rewrite::check`] compares the complete model with the original in the user's ONNX Runtime.
//!
//! ```no_run
//! let file = elsa_onnx::ModelFile::open("model.onnx".as_ref())?;
//! let model = file.parse()?;
//! let rewrite = model.rewrite();
//! for attention in rewrite.attentions() {
//!     println!("{} {}: {}", attention.operator, attention.node, attention.words);
//! }
//! std::fs::write("model.elsa.onnx", rewrite.bytes()?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod array;
mod branch;
mod change;
mod check;
mod einsum;
mod extents;
mod file;
mod find;
mod forms;
mod fused;
mod infer;
mod key;
mod masks;
mod microsoft;
mod model;
mod node;
mod ops;
mod positions;
mod prove;
mod random;
mod shapes;
mod size;
mod symbols;
#[cfg(test)]
mod tests;
mod turned;
mod value;
mod wire;
mod write;
mod written;

use change::Change;
use find::{AttentionPattern, Reason, Site};
use model::{External, Model};
use serde::Serialize;
use std::collections::HashSet;
use symbols::Symbols;
use written::WrittenSoftmax;

pub use check::CheckError;
pub use file::{ModelFile, Parsed, Rewrite};
pub use model::ModelError;
pub use ops::Limits;

/// One attention of a model, or a Softmax that is not attention.
#[derive(Clone, Debug, Serialize)]
pub struct Attention {
    /// Name of the node, or of its output if the node has no name.
    pub node: String,
    /// Operator of the node.
    pub operator: String,
    /// `true` if the node is replaced.
    pub replaced: bool,
    /// Description of the replacement, or the reason why the node is not replaced.
    pub words: String,
}

/// Returns the attentions of a model, and the bytes of the model after the replacement. Weights in external files are
/// treated as unknown.
///
/// # Errors
/// Returns an error for bytes that are not a model.
pub fn rewritten(file: &[u8], limits: Limits) -> Result<(Vec<Attention>, Vec<u8>), ModelError> {
    let model = Model::read(file)?;
    model.locations()?;
    let (attentions, changes) = examine(&model, &|_, _| None, limits);
    Ok((attentions, write::write(&model, &changes)?))
}

/// Finds every attention of the model, and returns the changes that have been proved.
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

/// Finds the nodes that compute attention or its softmax.
fn sites(graph: &model::Graph) -> Vec<usize> {
    let is_site = |node: &node::Node| {
        node.is("Softmax")
            || node.is_fused()
            || fused::refusal(node).is_some()
            || WrittenSoftmax::of(graph, node).is_some()
    };
    (0..graph.nodes.len()).filter(|&n| is_site(&graph.nodes[n])).collect()
}

/// Returns a proved replacement of node `n`. `proved` contains the keys of earlier proofs.
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
    if !node.is_fused() {
        return changed(site, &site.around(node)?, prefix, proved);
    }
    // If the nodes behind the inputs cannot be read, the operator reads the node's own inputs.
    match fused::pattern(site, n).and_then(|found| changed(site, &found, prefix, proved)) {
        Ok(change) => Ok(change),
        Err(_) => proof(site, fused::same(site, n, prefix)?, proved),
    }
}

/// Returns a proved replacement of `found`. Masks that depend on positions become attributes of the operator. If this
/// replacement cannot be proved, these masks stay tensors.
fn changed(
    site: &Site<'_>,
    found: &AttentionPattern,
    prefix: &str,
    proved: &mut HashSet<Vec<u8>>,
) -> Result<Change, Reason> {
    let first = change::of(site, found, prefix, true)?;
    let by_position = first.by_position;
    match proof(site, first, proved) {
        Err(_) if by_position => proof(site, change::of(site, found, prefix, false)?, proved),
        result => result,
    }
}

/// Proves the change and returns it.
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

/// Returns a prefix for the names of new tensors; no name of the graph begins with it.
fn prefix(graph: &model::Graph) -> String {
    let mut prefix = "elsa".to_string();
    while graph.names.iter().any(|name| name.starts_with(&prefix)) {
        prefix.push('_');
    }
    prefix
}
