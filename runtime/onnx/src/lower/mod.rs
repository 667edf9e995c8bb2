//! Writes a model in older operators, for runtimes that do not have the newer ones.
//!
//! ```text
//! inline (constant If) -> facts -> normal, activation, rotary, newer (older form of a node) -> write
//! ```
//!
//! Each node that the target does not have is replaced by older nodes that compute the same function in exact
//! arithmetic; they compute it in f32, or in f64 if the node has f64. A node without an older form stays, with a reason.
//! The version of ONNX's operators in the file is lowered only if every node has a form in the target's version. If a node
//! has none, the others are lowered as far as the version of the original permits.

mod activation;
mod facts;
mod inline;
mod integers;
mod newer;
mod normal;
mod older;
mod raw;
mod report;
mod rotary;
mod target;

use crate::array::Array;
use crate::find::Reason;
use crate::model::{External, Model, ModelError};
use crate::node::{MICROSOFT, Node};
use crate::ops::Limits;
use crate::symbols::Symbols;
use crate::wire::{Field, Writer};
use crate::{einsum, prefix, write};
use facts::{Facts, input, output};
use newer::OlderForm;
use older::{OlderNodes, working};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

pub use report::{LoweredModel, LoweredNode};
pub use target::Target;

/// Maximum nesting depth of constant `If` nodes.
const DEPTH: usize = 64;

/// Reason why a node stays.
struct Stays {
    words: Reason,
    /// `true` if the node needs a newer opset than the target's.
    needs_opset: bool,
}

impl From<Reason> for Stays {
    fn from(words: Reason) -> Stays {
        Stays { words, needs_opset: true }
    }
}

/// A graph in the target's operators.
#[derive(Default)]
struct LoweredGraph {
    /// Messages in place of the nodes at some places.
    messages: HashMap<usize, Vec<Vec<u8>>>,
    /// The new nodes. A node that only changes its form is an entry with its new inputs.
    nodes: Vec<Node>,
    constants: Vec<(String, Array)>,
    said: Vec<LoweredNode>,
    needs_opset: bool,
}

/// Returns the model in `bytes` in the operators of `target`. `external` reads constants from other files.
///
/// # Errors
/// Returns an error for bytes that are not a model.
pub fn lowered(
    mut bytes: Vec<u8>,
    external: External<'_>,
    target: Target,
) -> Result<LoweredModel, ModelError> {
    let mut said = Vec::new();
    for _ in 0..DEPTH {
        let inlined = {
            let model = Model::read(&bytes)?;
            let prefix = prefix(&model.graph);
            inline::inlined(&model, external, &prefix)?
        };
        let Some((next, more)) = inlined else { break };
        bytes = next;
        said.extend(more);
    }
    let model = Model::read(&bytes)?;
    let symbols = Symbols::new(&model, external, Limits::WHOLE);
    let facts = Facts { model: &model, symbols };
    let nodes = raw::nodes(&model)?;
    let wanted = model.opset.min(target.opset());
    let mut opset = wanted;
    let mut graph = lowered_graph(&facts, &nodes, target, wanted)?;
    if graph.needs_opset {
        // The nodes that stay need the original opset, so the other nodes keep its forms.
        let reasons = std::mem::take(&mut graph.said);
        opset = model.opset;
        graph = lowered_graph(&facts, &nodes, target, opset)?;
        graph.needs_opset = true;
        let stays =
            |name: &LoweredNode| !name.lowered && graph.said.iter().all(|other| other.node != name.node);
        let more: Vec<LoweredNode> = reasons.into_iter().filter(stays).collect();
        graph.said.extend(more);
    }
    said.append(&mut graph.said);
    let (nodes, _): (Vec<Node>, Vec<Range<usize>>) = nodes.into_iter().unzip();
    let bytes = written(&model, &nodes, graph, target, opset)?;
    Ok(LoweredModel { bytes, nodes: said, opset })
}

/// Lowers the nodes of the main graph to the opset `to`. `nodes` are the nodes of the file with their ranges.
fn lowered_graph(
    facts: &Facts<'_>,
    nodes: &[(Node, Range<usize>)],
    target: Target,
    to: i64,
) -> Result<LoweredGraph, ModelError> {
    let prefix = prefix(&facts.model.graph);
    let mut all = LoweredGraph::default();
    for (place, (node, range)) in nodes.iter().enumerate() {
        let names = format!("{prefix}_{place}");
        let mut o = OlderNodes::new(&names, to);
        let found = form(node, facts, target, to, &mut o);
        let told = |lowered: bool, words: String| LoweredNode {
            node: if node.name.is_empty() { node.outputs.join(", ") } else { node.name.clone() },
            operator: node.op.clone(),
            lowered,
            words,
        };
        all.said.extend(integers::changed(node, facts, target).map(|words| told(false, words)));
        let words = match &found {
            Ok(OlderForm::Same) => continue,
            Ok(OlderForm::Edited(_)) => "its older form".to_owned(),
            Ok(OlderForm::Replaced) => operators(&o.builder.nodes),
            Err(stays) => stays.words.clone(),
        };
        all.said.push(told(found.is_ok(), words));
        let mut messages: Vec<Vec<u8>> = o.builder.nodes.iter().map(write::message).collect();
        match found {
            Ok(OlderForm::Edited(edit)) => {
                messages.push(edit.apply(facts.model.file, range.clone())?);
                let inputs = edit.inputs.unwrap_or_else(|| node.inputs.clone());
                all.nodes.push(Node { inputs, ..node.clone() });
            }
            Ok(_) => {}
            Err(stays) => {
                all.needs_opset |= stays.needs_opset;
                continue;
            }
        }
        all.messages.insert(place, messages);
        all.nodes.append(&mut o.builder.nodes);
        all.constants.append(&mut o.builder.constants);
    }
    if facts.model.fields.iter().any(|field| field.number == FUNCTION) && target.format() < WITH_FUNCTIONS {
        all.needs_opset = true;
        all.said.push(LoweredNode {
            node: String::new(),
            operator: "functions".to_owned(),
            lowered: false,
            words: format!("{} has no functions of a model; inline them with onnx.inliner", target.words()),
        });
    }
    Ok(all)
}

/// Number of the field of a model that contains a function.
const FUNCTION: u32 = 25;
/// First version of the file format with functions.
const WITH_FUNCTIONS: i64 = 8;

/// Returns the names of the operators of `nodes`, each once, in their order.
fn operators(nodes: &[Node]) -> String {
    let mut met: HashSet<&str> = HashSet::new();
    let all: Vec<&str> = nodes.iter().map(|node| node.op.as_str()).filter(|op| met.insert(*op)).collect();
    all.join(", ")
}

/// Returns the form of a node for the target in the opset `to`, and adds new nodes and constants to `o`.
fn form(
    node: &Node,
    facts: &Facts<'_>,
    target: Target,
    to: i64,
    o: &mut OlderNodes<'_>,
) -> Result<OlderForm, Stays> {
    let from = facts.model.opset;
    let found = match (node.domain.as_str(), node.op.as_str()) {
        ("", "LayerNormalization") => normal::layer(node, facts, o).map(|()| OlderForm::Replaced)?,
        ("", "RMSNormalization" | "SimplifiedLayerNormalization") => {
            normal::rms(node, facts, o).map(|()| OlderForm::Replaced)?
        }
        ("", "GroupNormalization") => normal::group(node, facts, from, o).map(|()| OlderForm::Replaced)?,
        ("", "RotaryEmbedding") => rotary::rotary(node, facts, o).map(|()| OlderForm::Replaced)?,
        ("", "Gelu" | "Mish" | "Swish") => {
            activation::activation(node, facts, o).map(|()| OlderForm::Replaced)?
        }
        ("", "HardSwish") if !target.includes("HardSwish") => {
            activation::activation(node, facts, o).map(|()| OlderForm::Replaced)?
        }
        (MICROSOFT, "Gelu") if !target.has_microsoft() => {
            activation::activation(node, facts, o).map(|()| OlderForm::Replaced)?
        }
        ("", "CastLike") if !target.includes("CastLike") => cast_like(node, facts, o)?,
        ("", "Reciprocal") if target.lacks("Reciprocal") => reciprocal(node, facts, o)?,
        ("", "Einsum") => product(node, facts, target, to, o)?,
        ("", op) if !target.includes(op) => {
            return Err(Stays::from(format!(
                "{} has no {op}, and no older nodes for it are known",
                target.words()
            )));
        }
        ("", op) if target.lacks(op) => {
            let words = format!("{} does not execute {op}", target.words());
            return Err(Stays { words, needs_opset: false });
        }
        ("", _) => newer::form(node, facts, from, to, o)?,
        (MICROSOFT, op) if !target.has_microsoft() => {
            let words = format!("{} has no {MICROSOFT}.{op}", target.words());
            return Err(Stays { words, needs_opset: false });
        }
        _ => OlderForm::Same,
    };
    inner(node, facts, target, to)?;
    Ok(found)
}

/// Checks that the nodes of the graphs in a node's attributes keep their forms, because only the main graph is lowered.
fn inner(node: &Node, facts: &Facts<'_>, target: Target, to: i64) -> Result<(), Stays> {
    for node in node.branches.iter().flat_map(|branch| &branch.nodes) {
        let words = match form(node, facts, target, to, &mut OlderNodes::new("", to)) {
            Ok(OlderForm::Same) => continue,
            Ok(_) => "only the main graph is lowered".to_owned(),
            Err(stays) if !stays.needs_opset => return Err(stays),
            Err(stays) => stays.words,
        };
        return Err(Stays::from(format!("its subgraph has {}: {words}", node.op)));
    }
    Ok(())
}

/// Replaces `CastLike` with a `Cast` to the type of its second input.
fn cast_like(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<OlderForm, Reason> {
    let name = input(node, 1)?;
    let kind = facts.kind(name);
    let kind =
        kind.ok_or_else(|| format!("the type of its input '{name}' does not follow from the model"))?;
    o.cast(input(node, 0)?, kind);
    o.builder.rename_last(output(node)?);
    Ok(OlderForm::Replaced)
}

/// Replaces `Reciprocal` with a quotient.
fn reciprocal(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<OlderForm, Reason> {
    let kind = facts.float(input(node, 0)?)?;
    let x = o.wide(facts, node, 0)?;
    let one = o.number(working(kind), 1.0);
    let y = o.node("Div", &[&one, &x]);
    o.finish(&y, kind, output(node)?);
    Ok(OlderForm::Replaced)
}

/// Replaces an `Einsum` with a matrix product. An `Einsum` of another kind stays if TensorRT does not execute it.
fn product(
    node: &Node,
    facts: &Facts<'_>,
    target: Target,
    to: i64,
    o: &mut OlderNodes<'_>,
) -> Result<OlderForm, Stays> {
    let mut mark = format!("_{}", o.builder.prefix());
    while facts.model.graph.names.iter().any(|name| name.contains(&mark)) {
        mark.push('_');
    }
    if let Some(nodes) = einsum::product(node, &mark, to) {
        o.builder.nodes = nodes;
        return Ok(OlderForm::Replaced);
    }
    let equation = node.text("equation").unwrap_or_default();
    if target == Target::TensorRt82 && (equation.contains("...") || node.inputs.len() > 2) {
        let words = format!("{} does not execute the Einsum '{equation}'", target.words());
        return Err(Stays { words, needs_opset: false });
    }
    Ok(OlderForm::Same)
}

/// Returns the bytes of the model with the graph `graph`, which belongs to the opset `opset`.
fn written(
    model: &Model<'_>,
    nodes: &[Node],
    mut graph: LoweredGraph,
    target: Target,
    opset: i64,
) -> Result<Vec<u8>, ModelError> {
    let outputs = model.graph.outputs.iter().map(|output| &output.name);
    let read = outputs.chain(graph.nodes.iter().flat_map(|node| &node.inputs));
    let gone = write::gone(nodes, read, &HashMap::new(), graph.messages.keys().copied().collect());
    let dropped = write::dropped(&model.graph, nodes, &gone, graph.nodes.iter());
    for place in gone {
        graph.messages.entry(place).or_default();
    }
    let constants = graph.constants.iter().map(|(name, array)| write::constant(name, array));
    let body = write::body(model, &graph.messages, &dropped, constants)?;
    let replaced = |field: &Field| {
        match field.number {
            // The version of the file format.
            1 if !graph.needs_opset => {
                let mut w = Writer::default();
                w.int(1, field.int().ok()?.min(target.format()));
                Some(w.0)
            }
            8 if opset != model.opset && imports_onnx(model, field) => Some(write::import("", opset)),
            _ => None,
        }
    };
    Ok(write::whole(model, &body, &replaced).joined())
}

/// Returns `true` if a field of the model imports ONNX's own operators.
fn imports_onnx(model: &Model<'_>, field: &Field) -> bool {
    let mut imports = model.fields.iter().filter(|field| field.number == 8).zip(&model.imports);
    imports.any(|(other, (domain, _))| other.span == field.span && domain.is_empty())
}
