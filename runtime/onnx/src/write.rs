//! Writes a model: replaces the changed nodes, and keeps all other bytes unchanged.

use super::array::{Array, Kind};
use super::change::{Change, DOMAIN};
use super::model::Model;
use super::node::{Attribute, Node};
use super::wire::{self, Field, Payload, WireError, Writer};
use half::f16;
use std::collections::{HashMap, HashSet};

/// Returns the nodes that the changes remove: the nodes that produced the replaced outputs, and the nodes whose outputs
/// then have no reader.
fn gone(model: &Model<'_>, changes: &[Change]) -> HashSet<usize> {
    let graph = &model.graph;
    let mut readers: HashMap<&str, usize> = HashMap::new();
    let new = changes.iter().flat_map(|change| &change.nodes).flat_map(|node| &node.inputs);
    let outputs = graph.outputs.iter().map(|output| &output.name);
    let old = graph.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.captured));
    for name in old.chain(new).chain(outputs) {
        *readers.entry(name).or_default() += 1;
    }
    let mut gone: HashSet<usize> = HashSet::new();
    let mut work: Vec<usize> = changes.iter().map(|change| change.output.1).collect();
    while let Some(n) = work.pop() {
        if !gone.insert(n) {
            continue;
        }
        work.extend(graph.unread.get(&n));
        let node = &graph.nodes[n];
        for name in node.inputs.iter().chain(&node.captured).filter(|name| !name.is_empty()) {
            if let Some(count) = readers.get_mut(name.as_str()) {
                *count = count.saturating_sub(1);
            }
            let Some(&maker) = graph.producer.get(name) else { continue };
            let unread = |name: &String| readers.get(name.as_str()).copied().unwrap_or(0) == 0;
            if graph.nodes[maker].outputs.iter().all(unread) {
                work.push(maker);
            }
        }
    }
    gone
}

/// Returns the bytes of the model with `changes` applied.
///
/// # Errors
/// Returns no error for a model that [`Model::read`] has read.
pub fn write(model: &Model<'_>, changes: &[Change]) -> Result<Vec<u8>, WireError> {
    let file = model.file;
    if changes.is_empty() {
        return Ok(file.to_vec());
    }
    let graph = &model.graph;
    let gone = gone(model, changes);
    let here: HashMap<usize, &Change> = changes.iter().map(|change| (change.output.1, change)).collect();
    // Names that stay in use: those of remaining nodes, of new nodes, and of the graph's inputs and outputs.
    let mut stays: HashSet<&str> = HashSet::new();
    let kept = graph.nodes.iter().enumerate().filter(|(n, _)| !gone.contains(n)).map(|(_, node)| node);
    for node in kept.chain(changes.iter().flat_map(|change| &change.nodes)) {
        stays.extend(node.inputs.iter().chain(&node.outputs).chain(&node.captured).map(String::as_str));
    }
    stays.extend(graph.inputs.iter().chain(&graph.outputs).map(|declared| declared.name.as_str()));
    // Names that only removed nodes use. Names that no node uses are kept.
    let mut lost: HashSet<&str> = HashSet::new();
    for &n in &gone {
        let node = &graph.nodes[n];
        lost.extend(
            node.inputs.iter().chain(&node.outputs).map(String::as_str).filter(|name| !stays.contains(name)),
        );
    }
    let dropped: HashSet<usize> = (graph.initializers.iter())
        .filter(|(name, _)| lost.contains(name.as_str()))
        .map(|(_, (_, span))| span.start)
        .chain(
            graph.infos.iter().filter(|info| lost.contains(info.name.as_str())).map(|info| info.span.start),
        )
        .collect();
    let mut body = Writer(Vec::with_capacity(graph.range.len()));
    let mut nodes = graph.places.iter().enumerate().peekable();
    for (place, field) in places(wire::fields(file, graph.range.clone())?) {
        if let Some(place) = place {
            let parts: Vec<usize> =
                std::iter::from_fn(|| nodes.next_if(|(_, at)| **at == place).map(|(n, _)| n)).collect();
            if parts.iter().any(|n| gone.contains(n) || here.contains_key(n)) {
                for n in parts {
                    let new = here.get(&n).map_or(&[][..], |change| &change.nodes);
                    let kept = Some(&graph.nodes[n]).filter(|_| !gone.contains(&n));
                    new.iter().chain(kept).for_each(|node| body.bytes(1, &message(node)));
                }
                continue;
            }
        }
        if !dropped.contains(&field.span.start) {
            body.0.extend(&file[field.span]);
        }
    }
    for (name, array) in changes.iter().flat_map(|change| &change.constants) {
        body.bytes(5, &constant(name, array));
    }
    let mut out = Writer(Vec::with_capacity(file.len()));
    let imported = model.imports.iter().any(|(domain, _)| domain == DOMAIN);
    let last = model.fields.iter().rposition(|field| field.number == 8);
    for (at, field) in model.fields.iter().enumerate() {
        match (&field.payload, field.number) {
            (Payload::Bytes(_), 7) => out.bytes(7, &body.0),
            _ => out.0.extend(&file[field.span.clone()]),
        }
        if Some(at) == last && !imported {
            let mut import = Writer::default();
            import.bytes(1, DOMAIN.as_bytes());
            import.int(2, 1);
            out.bytes(8, &import.0);
        }
    }
    Ok(out.0)
}

/// Pairs each field of a graph with the index of its node among all nodes of the graph; the index of a field that is
/// not a node is `None`.
fn places(fields: Vec<Field>) -> impl Iterator<Item = (Option<usize>, Field)> {
    let mut place = 0;
    fields.into_iter().map(move |field| {
        let is_node = field.number == 1;
        place += usize::from(is_node);
        (is_node.then(|| place - 1), field)
    })
}

/// Encodes a node.
pub fn message(node: &Node) -> Vec<u8> {
    let mut w = Writer::default();
    for input in &node.inputs {
        w.bytes(1, input.as_bytes());
    }
    for output in &node.outputs {
        w.bytes(2, output.as_bytes());
    }
    w.bytes(3, node.name.as_bytes());
    w.bytes(4, node.op.as_bytes());
    let mut attributes: Vec<_> = node.attributes.iter().collect();
    attributes.sort_by_key(|(name, _)| *name);
    for (name, value) in attributes {
        let mut a = Writer::default();
        a.bytes(1, name.as_bytes());
        match value {
            Attribute::Float(x) => {
                a.float(2, *x);
                a.int(20, 1);
            }
            Attribute::Int(x) => {
                a.int(3, *x);
                a.int(20, 2);
            }
            Attribute::Ints(all) => {
                all.iter().for_each(|&x| a.int(8, x));
                a.int(20, 7);
            }
            Attribute::Text(text) => {
                a.bytes(4, text);
                a.int(20, 3);
            }
            // New nodes have no attributes of these types.
            Attribute::Tensor(_) | Attribute::Floats(_) | Attribute::Other => continue,
        }
        w.bytes(5, &a.0);
    }
    if !node.domain.is_empty() {
        w.bytes(7, node.domain.as_bytes());
    }
    w.0
}

/// Encodes a constant.
pub fn constant(name: &str, array: &Array) -> Vec<u8> {
    let mut w = Writer::default();
    for &n in &array.shape {
        w.int(1, i64::try_from(n).unwrap_or(i64::MAX));
    }
    w.int(2, array.kind.0);
    w.bytes(8, name.as_bytes());
    let mut raw = Vec::new();
    for &x in array.data.iter() {
        match array.kind {
            Kind::I64 => raw.extend((x as i64).to_le_bytes()),
            Kind::F16 => raw.extend(f16::from_f64(x).to_le_bytes()),
            _ => raw.extend((x as f32).to_le_bytes()),
        }
    }
    w.bytes(9, &raw);
    w.0
}
