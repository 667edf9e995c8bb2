//! Replaces each `If` whose condition is constant with the nodes of the branch that it takes.

use super::raw::{self, Renames};
use super::report::LoweredNode;
use crate::model::{External, Model, ModelError};
use crate::node::Node;
use crate::ops::Limits;
use crate::symbols::Symbols;
use crate::{wire, write};
use std::collections::HashMap;
use std::ops::Range;

/// Nodes and constants of a branch, for the main graph.
struct Taken {
    messages: Vec<Vec<u8>>,
    constants: Vec<Vec<u8>>,
    /// Nodes that read the same tensors as the branch, and make the outputs of the `If`.
    nodes: Vec<Node>,
}

/// Bytes of a model and descriptions of the nodes that it no longer contains.
type Inlined = (Vec<u8>, Vec<LoweredNode>);

/// Returns the bytes of the model without the `If` nodes of the main graph whose conditions follow from constants and
/// fixed sizes; `None` if no such node exists. Also returns a description of each of them. The names of new tensors
/// begin with `prefix`.
///
/// # Errors
/// Returns no error for a model that [`Model::read`] has read.
pub fn inlined(
    model: &Model<'_>,
    external: External<'_>,
    prefix: &str,
) -> Result<Option<Inlined>, ModelError> {
    let (nodes, ranges): (Vec<Node>, Vec<Range<usize>>) = raw::nodes(model)?.into_iter().unzip();
    if nodes.iter().all(|node| !node.is("If")) {
        return Ok(None);
    }
    let symbols = Symbols::new(model, external, Limits::WHOLE);
    let (mut replaced, mut constants) = (HashMap::new(), Vec::new());
    let (mut new, mut said) = (Vec::new(), Vec::new());
    for (place, node) in nodes.iter().enumerate().filter(|(_, node)| node.is("If")) {
        let Some(&[condition]) = node.input(0).and_then(|name| symbols.numbers(name)) else { continue };
        let name = if condition == 0.0 { "else_branch" } else { "then_branch" };
        let names = format!("{prefix}_{place}");
        let Some(taken) = taken(model, node, ranges[place].clone(), name, &names)? else { continue };
        said.push(LoweredNode {
            node: if node.name.is_empty() { node.outputs.join(", ") } else { node.name.clone() },
            operator: node.op.clone(),
            lowered: true,
            words: format!("its {name}, by a constant condition"),
        });
        replaced.insert(place, taken.messages);
        constants.extend(taken.constants);
        new.extend(taken.nodes);
    }
    if replaced.is_empty() {
        return Ok(None);
    }
    let graph = &model.graph;
    let read =
        graph.outputs.iter().map(|output| &output.name).chain(new.iter().flat_map(|node| &node.inputs));
    let gone = write::gone(&nodes, read, &HashMap::new(), replaced.keys().copied().collect());
    let dropped = write::dropped(graph, &nodes, &gone, new.iter());
    for place in gone {
        replaced.entry(place).or_default();
    }
    let body = write::body(model, &replaced, &dropped, constants)?;
    Ok(Some((write::whole(model, &body, &|_| None).joined(), said)))
}

/// Returns the parts of the branch `name` of the node in `range`; `None` if the branch has parts that cannot be copied.
fn taken(
    model: &Model<'_>,
    node: &Node,
    range: Range<usize>,
    name: &str,
    prefix: &str,
) -> Result<Option<Taken>, ModelError> {
    let file = model.file;
    let Some(branch) = node.branches.iter().find(|branch| branch.name == name) else { return Ok(None) };
    let Some(graph) = raw::subgraph(file, range, name)? else { return Ok(None) };
    let made = branch.nodes.iter().flat_map(|node| &node.outputs).filter(|name| !name.is_empty());
    let made = made.chain(branch.constants.iter().map(|constant| &constant.name));
    let names: Renames = made.map(|name| (name.clone(), format!("{prefix}_{name}"))).collect();
    let mut taken = Taken { messages: Vec::new(), constants: Vec::new(), nodes: Vec::new() };
    for field in wire::fields(file, graph)? {
        match field.number {
            1 => taken.messages.push(raw::renamed_node(file, field.bytes()?, &names)?),
            5 => taken.constants.push(raw::renamed_constant(file, field.bytes()?, &names)?),
            // Sparse constants.
            15 => return Ok(None),
            _ => {}
        }
    }
    let inputs = branch.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.captured)).cloned();
    taken.nodes.push(Node { inputs: inputs.collect(), ..Node::default() });
    for (inner, outer) in branch.outputs.iter().zip(&node.outputs).filter(|(_, outer)| !outer.is_empty()) {
        let copy = Node {
            name: outer.clone(),
            op: "Identity".into(),
            inputs: vec![names.get(inner).unwrap_or(inner).clone()],
            outputs: vec![outer.clone()],
            ..Node::default()
        };
        taken.messages.push(write::message(&copy));
        taken.nodes.push(copy);
    }
    Ok(Some(taken))
}
