//! `If` with a condition that follows from constants and shapes: its outputs are those of one branch.

use super::array::{Array, Stored};
use super::node::{Branch, Node};
use super::shapes;
use super::value::{Data, OutputTypes, Value, sized};
use std::collections::HashMap;

/// Function that computes the elements of a node's outputs, if they are few and follow from its inputs.
pub type Elements<'a> = &'a dyn Fn(&Node, &[Option<&Value>], &OutputTypes) -> Option<Vec<Data>>;

/// The tensors around a branch, and the rules by which the nodes of the branch are followed.
pub struct Surroundings<'a> {
    /// Version of the ONNX operator set.
    pub opset: i64,
    /// Returns the facts about a tensor of the surrounding graph.
    pub outer: &'a dyn Fn(&str) -> Option<Value>,
    /// Reads the elements of a small constant.
    pub read: &'a dyn Fn(&Stored) -> Option<Array>,
    /// Computes elements of tensors in the branch.
    pub elements: Elements<'a>,
}

/// Returns the outputs of `node`, if it is an `If` whose condition is known: the outputs of the branch that it takes.
#[must_use]
pub fn outputs(node: &Node, inputs: &[Option<&Value>], around: &Surroundings<'_>) -> Option<Vec<Value>> {
    node.is("If").then_some(())?;
    let Data::Numbers(condition) = &inputs.first().copied().flatten()?.data else { return None };
    let [condition] = condition[..] else { return None };
    let name = if condition == 0.0 { "else_branch" } else { "then_branch" };
    let branch = node.branches.iter().find(|branch| branch.name == name)?;
    followed(branch, around)
}

/// Follows the nodes of a branch.
fn followed(branch: &Branch, around: &Surroundings<'_>) -> Option<Vec<Value>> {
    let mut known: HashMap<String, Value> = HashMap::new();
    for constant in &branch.constants {
        let data = (around.read)(constant).map_or(Data::None, |array| Data::Numbers(array.data));
        let shape = sized(&constant.shape)?;
        known.insert(constant.name.clone(), Value { kind: constant.kind, shape, data });
    }
    for node in &branch.nodes {
        let found = |name: &str| known.get(name).cloned().or_else(|| (around.outer)(name));
        let inputs: Vec<Option<Value>> =
            node.inputs.iter().map(|name| if name.is_empty() { None } else { found(name) }).collect();
        let inputs: Vec<Option<&Value>> = inputs.iter().map(Option::as_ref).collect();
        let (read, elements) = (around.read, around.elements);
        let within = Surroundings { opset: around.opset, outer: &found, read, elements };
        let made = outputs(node, &inputs, &within).or_else(|| {
            let made = shapes::of(node, around.opset, &inputs)?;
            let data = (around.elements)(node, &inputs, &made).unwrap_or_default();
            let values = made.into_iter().enumerate().map(|(i, (kind, shape))| Value {
                kind,
                shape,
                data: data.get(i).cloned().unwrap_or(Data::None),
            });
            Some(values.collect())
        });
        let made = node.outputs.iter().cloned().zip(made.unwrap_or_default());
        known.extend(made.filter(|(name, _)| !name.is_empty()));
    }
    branch.outputs.iter().map(|name| known.get(name).cloned().or_else(|| (around.outer)(name))).collect()
}
