//! Byte keys of replacements. Two replacements with the same key need only one proof.
//!
//! The layers of a model often differ only in names and weights. A proof does not depend on names, and it draws random
//! elements for the inputs of the new nodes. A key therefore consists only of operators, attributes, shapes, types, and
//! the elements of constants.

use super::array::Array;
use super::change::Change;
use super::find::Site;
use super::node::{Attribute, Node};
use std::collections::{BTreeMap, HashMap};

/// Builder of a key.
struct KeyWriter<'a> {
    site: &'a Site<'a>,
    change: &'a Change,
    /// Index of each tensor, in the order in which tensors first appear.
    met: HashMap<String, usize>,
    bytes: Vec<u8>,
}

/// Returns the key of a replacement; `None` if the replacement depends on a chain of nodes that is too long.
#[must_use]
pub fn key(site: &Site<'_>, change: &Change) -> Option<Vec<u8>> {
    let mut key = KeyWriter { site, change, met: HashMap::new(), bytes: Vec::new() };
    key.tensor(&change.output.0, 0)?;
    for (name, _) in &change.reads {
        key.tensor(name, 0)?;
    }
    for (name, array) in &change.constants {
        key.number(name);
        key.array(array);
    }
    for node in &change.nodes {
        key.node(node);
        for name in node.inputs.iter().chain(&node.outputs) {
            key.number(name);
        }
    }
    Some(key.bytes)
}

impl KeyWriter<'_> {
    /// Adds the index of a tensor to the key, and returns `true` if the tensor appears for the first time.
    fn number(&mut self, name: &str) -> bool {
        let next = self.met.len();
        let number = *self.met.entry(name.to_owned()).or_insert(next);
        self.bytes.extend(number.to_le_bytes());
        number == next
    }

    fn array(&mut self, array: &Array) {
        self.bytes.extend(format!("{:?}{:?}", array.kind, array.shape).as_bytes());
        self.bytes.extend(array.data.iter().flat_map(|x| x.to_bits().to_le_bytes()));
    }

    fn node(&mut self, node: &Node) {
        let attributes: BTreeMap<&String, &Attribute> = node.attributes.iter().collect();
        let (inputs, outputs) = (node.inputs.len(), node.outputs.len());
        self.bytes
            .extend(format!("{} {} {attributes:?} {inputs} {outputs};", node.domain, node.op).as_bytes());
    }

    fn tensor(&mut self, name: &str, depth: usize) -> Option<()> {
        if !self.number(name) || name.is_empty() {
            return Some(());
        }
        let (site, change) = (self.site, self.change);
        let read = change.reads.iter().find(|(other, _)| other == name);
        for world in site.worlds {
            if let Some((_, role)) = read {
                self.bytes
                    .extend(format!("{role:?}{:?}{:?}", world.kind(name), world.shape(name)).as_bytes());
            }
            if let Some(array) = world.array(name) {
                self.array(&array);
            }
        }
        let known = site.worlds.iter().all(|world| world.array(name).is_some());
        let Some(&n) = site.graph.producer.get(name).filter(|_| read.is_none() && !known) else {
            return Some(());
        };
        (depth < 200).then_some(())?;
        let node = &site.graph.nodes[n];
        self.node(node);
        for name in &node.inputs {
            self.tensor(name, depth + 1)?;
        }
        for name in &node.outputs {
            self.number(name);
        }
        Some(())
    }
}
