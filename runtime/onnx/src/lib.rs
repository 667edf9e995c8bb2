//! Finds attention in ONNX models, and replaces it with this runtime's operators: `ElsaAttention`, and for nodes with a
//! state `ElsaLinearAttention`, `ElsaSelectiveScan` and `ElsaConv`. Each replacement is proved to be correct.
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
//! `positions`). Attention in a single node is read by the definition of its operator (`single`, `meaning`, `fused`).
//! Nodes with a state, linear attention and convolutions, are replaced one by one (`stateful`, `stepwise`,
//! `unrolled`), and so are linear attention that is written as matrix products (`products`), and selective scans that are
//! written as nodes for every token (`scan`), and the gated delta rule by chunks (`chunks`).
//! The new nodes (`change`) are compared with the old nodes in f64 (`prove`) before anything is written (`write`).
//! [`Rewrite::lowered`] then writes the model in the operators of an older runtime (`lower`).
//! [`Rewrite::check`] compares the complete model with the original in the user's ONNX Runtime. [`Rewrite::audit`] finds
//! the nodes that half precision breaks.
//!
//! ```no_run
//! let file = elsa_onnx::ModelFile::open("model.onnx".as_ref())?;
//! let model = file.parse()?;
//! let rewrite = model.rewrite();
//! for attention in rewrite.attentions() {
//!     println!("{} {}: {}", attention.operator, attention.node, attention.words);
//! }
//! std::fs::write("model.elsa.onnx", rewrite.bytes()?.joined())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod advice;
mod array;
mod audit;
mod bound;
mod branch;
mod change;
mod check;
mod chunks;
mod cost;
mod einsum;
mod extents;
mod file;
mod find;
mod forms;
mod fused;
mod infer;
mod key;
mod lower;
mod masks;
mod meaning;
mod microsoft;
mod model;
mod node;
mod ops;
mod origin;
mod positions;
mod products;
mod projected;
mod prove;
mod random;
mod sample;
mod scan;
mod shapes;
mod single;
mod size;
mod stateful;
mod stepwise;
mod symbols;
#[cfg(test)]
mod tests;
mod turned;
mod unrolled;
mod value;
mod wire;
mod write;
mod written;

use change::Change;
use chunks::ChunkedDelta;
use find::{AttentionPattern, Reason, Site};
use infer::World;
use model::{External, Model};
use products::ProductAttention;
use scan::UnrolledScan;
use serde::Serialize;
use stateful::StatefulNode;
use std::collections::HashSet;
use symbols::Symbols;
use written::WrittenSoftmax;

pub use audit::{
    Audit, AuditError, AuditOptions, AuditedSite, LEAST, Loss, MOST, ModelInput, OpenSession, SiteKind,
};
pub use check::CheckError;
pub use file::{ModelFile, Parsed, Rewrite};
pub use lower::{LoweredModel, LoweredNode, Target};
pub use model::ModelError;
pub use ops::Limits;
pub use write::ModelBytes;

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
    /// `attention`, `linear attention`, `selective scan`, `convolution` for one with a state, or `softmax` for a softmax of
    /// other numbers.
    pub what: &'static str,
    /// Shape of the scores, if it is known.
    pub shape: Option<String>,
    /// Share of the attention's two products in the multiply-adds of the model, from 0 to 1, if it is known. Nodes in
    /// subgraphs are not counted. Dynamic axes have the sizes in [`Rewrite::sizes`].
    pub share: Option<f64>,
    /// Change of the model that would help if the node is not replaced, if one is known.
    pub help: Option<&'static str>,
}

/// Attentions of a model.
struct Examined {
    attentions: Vec<Attention>,
    changes: Vec<Change>,
    /// Sizes of the free axes at which shares are computed.
    sizes: String,
}

/// Returns the attentions of a model, and the bytes of the model after the replacement. Weights in external files are
/// treated as unknown.
///
/// # Errors
/// Returns an error for bytes that are not a model.
pub fn rewritten(file: &[u8], limits: Limits) -> Result<(Vec<Attention>, Vec<u8>), ModelError> {
    let model = Model::read(file)?;
    model.locations()?;
    let found = examine(&model, &|_, _| None, limits);
    Ok((found.attentions, write::write(&model, &found.changes)?.joined()))
}

/// Finds every attention of the model, and returns the changes that have been proved.
fn examine(model: &Model<'_>, external: External<'_>, limits: Limits) -> Examined {
    let graph = &model.graph;
    let mut all = Examined { attentions: Vec::new(), changes: Vec::new(), sizes: String::new() };
    let mut inner: Vec<&String> = model.functions.iter().collect();
    inner.extend(graph.nodes.iter().flat_map(|node| &node.inner));
    let sites = sites(graph);
    if !sites.is_empty() {
        let symbols = Symbols::new(model, external, limits);
        let worlds = infer::worlds(model, external, limits, &symbols);
        let site = Site { graph, opset: model.opset, symbols: &symbols, worlds: &worlds };
        let typical = symbols.is_free().then(|| infer::typical(model, external, limits, &symbols));
        let counted = typical.as_ref().or(worlds.first());
        let total = counted.and_then(|world| cost::of_graph(world, graph));
        all.sizes = counted.map(World::words).unwrap_or_default();
        let prefix = prefix(graph);
        let mut proved = HashSet::new();
        for n in sites {
            let node = &graph.nodes[n];
            let made = node.outputs.first().cloned().unwrap_or_default();
            let name = if node.name.is_empty() { made } else { node.name.clone() };
            let change = replacement(&site, n, &format!("{prefix}_{}", all.changes.len()), &mut proved);
            let (replaced, words) = match change {
                Ok(change) => {
                    let words = change.words.clone();
                    all.changes.push(change);
                    (true, words)
                }
                Err(reason) => (false, reason),
            };
            let (what, shape, own) = described(&site, node, counted);
            let share = own.zip(total).map(|(own, total)| own / total).filter(|share| share.is_finite());
            let help = if replaced { None } else { advice::help(&words) };
            let operator = node.op.clone();
            all.attentions.push(Attention {
                node: name,
                operator,
                replaced,
                words,
                what,
                shape,
                share,
                help,
            });
        }
    }
    keep_shared(graph, &mut all);
    for operator in inner {
        let words = "it is in a subgraph or a function".to_owned();
        all.attentions.push(Attention {
            node: String::new(),
            operator: operator.clone(),
            replaced: false,
            help: advice::help(&words),
            words,
            what: match operator.as_str() {
                "Softmax" => SOFTMAX,
                "LinearAttention" => stateful::LINEAR_WHAT,
                "CausalConvWithState" => stateful::CONV_WHAT,
                _ => ATTENTION,
            },
            shape: None,
            share: None,
        });
    }
    all
}

/// Removes the changes that would leave their scores in the model, because not all readers of the scores go. Attentions
/// of several changes may share their scores.
fn keep_shared(graph: &model::Graph, all: &mut Examined) {
    while all.changes.iter().any(|change| !change.shared.is_empty()) {
        let gone = write::replaced(graph, &all.changes);
        let stays = |name: &String| graph.producer.get(name).is_none_or(|n| !gone.contains(n));
        let reason =
            |change: &Change| change.shared.iter().find(|(name, _)| stays(name)).map(|each| each.1.clone());
        let found = all.changes.iter().enumerate().find_map(|(i, change)| Some((i, reason(change)?)));
        let Some((i, words)) = found else { return };
        all.changes.remove(i);
        // The changes are in the order of their attentions.
        if let Some(attention) = all.attentions.iter_mut().filter(|attention| attention.replaced).nth(i) {
            attention.replaced = false;
            attention.help = advice::help(&words);
            attention.words = words;
        }
    }
}

/// Description of a node that computes attention.
const ATTENTION: &str = "attention";
/// Description of a softmax without products of queries, keys and values around it.
const SOFTMAX: &str = "softmax";

/// Describes a node: its kind, the shape of its scores, and the number of multiply-adds of its products in `world`.
fn described(
    site: &Site<'_>,
    node: &node::Node,
    world: Option<&World<'_>>,
) -> (&'static str, Option<String>, Option<f64>) {
    if let Some(found) = StatefulNode::of(node) {
        return (found.what(), None, world.and_then(|world| cost::of_stateful(world, node)));
    }
    if let Some(found) = ProductAttention::of(site.graph, node) {
        let own = world.and_then(|world| cost::of_pair(world, found.inner, node));
        return (stateful::LINEAR_WHAT, None, own);
    }
    if ChunkedDelta::of(site.graph, node).is_some() {
        return (stateful::LINEAR_WHAT, None, None);
    }
    if UnrolledScan::of(site.graph, node).is_some() {
        return (scan::SCAN_WHAT, None, None);
    }
    if node.is_fused() || single::refusal(node).is_some() {
        let sizes = single::FusedSizes::of(node, &|i| site.symbols.shape(node.input(i)?));
        let shape = sizes.ok().and_then(|sizes| sizes.scores());
        let own = world.filter(|_| node.is_fused()).and_then(|world| cost::of_fused(world, node));
        return (ATTENTION, shape.as_deref().map(size::shown), own);
    }
    let scores = node.outputs.first().and_then(|name| site.symbols.shape(name)).map(size::shown);
    let found = site.around(node).ok();
    let own = found.as_ref().zip(world).and_then(|(found, world)| cost::of_products(world, site, found));
    let is_attention = found.is_some() || node.inputs.iter().any(|name| site.is_product(name));
    (if is_attention { ATTENTION } else { SOFTMAX }, scores, own)
}

/// Finds the nodes that compute attention or its softmax.
fn sites(graph: &model::Graph) -> Vec<usize> {
    let is_site = |node: &node::Node| {
        node.is("Softmax")
            || node.is_fused()
            || StatefulNode::of(node).is_some()
            || single::refusal(node).is_some()
            || WrittenSoftmax::of(graph, node).is_some()
            || ProductAttention::of(graph, node).is_some()
            || UnrolledScan::of(graph, node).is_some()
            || ChunkedDelta::of(graph, node).is_some()
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
    if let Some(found) = StatefulNode::of(node) {
        return stepwise::replacement(site, n, &found, prefix);
    }
    if let Some(found) = ProductAttention::of(site.graph, node) {
        return products::replacement(site, n, &found, prefix);
    }
    if let Some(found) = UnrolledScan::of(site.graph, node) {
        return scan::replacement(site, n, &found, prefix);
    }
    if let Some(found) = ChunkedDelta::of(site.graph, node) {
        return chunks::replacement(site, n, &found, prefix);
    }
    if let Some(reason) = single::refusal(node) {
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
