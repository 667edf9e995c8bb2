//! Writes a model: replaces the changed nodes, and keeps all other bytes unchanged.

use super::array::Array;
use super::change::{Change, DOMAIN};
use super::model::{Graph, Model};
use super::node::{Attribute, Node};
use super::wire::{self, Field, Payload, WireError, Writer};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A part of a model's file.
#[derive(Debug)]
enum Part {
    /// Bytes of the original file.
    Kept(Range<usize>),
    New(Vec<u8>),
}

/// Contents of a model's file. Weights are not copied from the original file.
#[derive(Debug)]
pub struct ModelBytes<'a> {
    file: &'a [u8],
    parts: Vec<Part>,
}

impl<'a> ModelBytes<'a> {
    /// Creates empty contents, to which bytes of `file` can be added.
    #[must_use]
    pub(super) fn new(file: &'a [u8]) -> ModelBytes<'a> {
        ModelBytes { file, parts: vec![] }
    }

    /// Adds bytes of the original file.
    pub(super) fn keep(&mut self, span: Range<usize>) {
        match self.parts.last_mut() {
            Some(Part::Kept(last)) if last.end == span.start => last.end = span.end,
            _ => self.parts.push(Part::Kept(span)),
        }
    }

    /// Adds new bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        match self.parts.last_mut() {
            Some(Part::New(last)) => last.extend(bytes),
            _ => self.parts.push(Part::New(bytes.to_vec())),
        }
    }

    /// Adds a field with a message.
    pub(super) fn bytes(&mut self, number: u32, message: &[u8]) {
        let mut field = Writer::default();
        field.bytes(number, message);
        self.add(&field.0);
    }

    /// Adds a field whose message is `message`.
    fn message(&mut self, number: u32, message: &ModelBytes<'a>) {
        let mut start = Writer::default();
        start.start(number, message.parts().iter().map(|part| part.len()).sum());
        self.add(&start.0);
        for part in &message.parts {
            match part {
                Part::Kept(span) => self.keep(span.clone()),
                Part::New(bytes) => self.add(bytes),
            }
        }
    }

    /// Returns the parts of the contents, in order.
    #[must_use]
    pub fn parts(&self) -> Vec<&[u8]> {
        let bytes = self.parts.iter().map(|part| match part {
            Part::Kept(span) => &self.file[span.clone()],
            Part::New(bytes) => &bytes[..],
        });
        bytes.collect()
    }

    /// Returns a copy of the contents.
    #[must_use]
    pub fn joined(&self) -> Vec<u8> {
        self.parts().concat()
    }
}

/// Returns the indices of the nodes that are not needed after the nodes `start` are replaced: these nodes, and the nodes
/// whose outputs then have no reader. `read` contains the outputs of the graph and the names that the new nodes read.
/// `unread` pairs a node with another node that goes together with it.
#[must_use]
pub fn gone<'a>(
    nodes: &'a [Node],
    read: impl Iterator<Item = &'a String>,
    unread: &HashMap<usize, usize>,
    start: Vec<usize>,
) -> HashSet<usize> {
    let mut producer: HashMap<&str, usize> = HashMap::new();
    for (n, node) in nodes.iter().enumerate() {
        producer.extend(node.outputs.iter().filter(|name| !name.is_empty()).map(|name| (name.as_str(), n)));
    }
    let mut readers: HashMap<&str, usize> = HashMap::new();
    let old = nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.captured));
    for name in old.chain(read) {
        *readers.entry(name).or_default() += 1;
    }
    let mut gone: HashSet<usize> = HashSet::new();
    let mut work = start;
    while let Some(n) = work.pop() {
        if !gone.insert(n) {
            continue;
        }
        work.extend(unread.get(&n));
        let node = &nodes[n];
        for name in node.inputs.iter().chain(&node.captured).filter(|name| !name.is_empty()) {
            if let Some(count) = readers.get_mut(name.as_str()) {
                *count = count.saturating_sub(1);
            }
            let Some(&maker) = producer.get(name.as_str()) else { continue };
            let unread = |name: &String| readers.get(name.as_str()).copied().unwrap_or(0) == 0;
            if nodes[maker].outputs.iter().all(unread) {
                work.push(maker);
            }
        }
    }
    gone
}

/// Returns the starts of the fields of constants and declarations whose names only the nodes `gone` use. Names that no
/// node uses are kept. `new` are the new nodes.
#[must_use]
pub fn dropped<'a>(
    graph: &'a Graph,
    nodes: &'a [Node],
    gone: &HashSet<usize>,
    new: impl Iterator<Item = &'a Node>,
) -> HashSet<usize> {
    // Names that stay in use: those of remaining nodes, of new nodes, and of the graph's inputs and outputs.
    let mut stays: HashSet<&str> = HashSet::new();
    let kept = nodes.iter().enumerate().filter(|(n, _)| !gone.contains(n)).map(|(_, node)| node);
    for node in kept.chain(new) {
        stays.extend(node.inputs.iter().chain(&node.outputs).chain(&node.captured).map(String::as_str));
    }
    stays.extend(graph.inputs.iter().chain(&graph.outputs).map(|declared| declared.name.as_str()));
    let mut lost: HashSet<&str> = HashSet::new();
    for &n in gone {
        let names = nodes[n].inputs.iter().chain(&nodes[n].outputs).map(String::as_str);
        lost.extend(names.filter(|name| !stays.contains(name)));
    }
    let constants = graph.initializers.iter().filter(|(name, _)| lost.contains(name.as_str()));
    let infos = graph.infos.iter().filter(|info| lost.contains(info.name.as_str()));
    constants.map(|(_, (_, span))| span.start).chain(infos.map(|info| info.span.start)).collect()
}

/// Returns the fields of the graph. The nodes at the places in `nodes` are replaced with the given messages, the fields
/// that start at `dropped` are left out, and the messages `constants` are added.
///
/// # Errors
/// Returns no error for a model that [`Model::read`] has read.
pub fn body<'a>(
    model: &Model<'a>,
    nodes: &HashMap<usize, Vec<Vec<u8>>>,
    dropped: &HashSet<usize>,
    constants: impl IntoIterator<Item = Vec<u8>>,
) -> Result<ModelBytes<'a>, WireError> {
    let mut body = ModelBytes::new(model.file);
    for (place, field) in places(wire::fields(model.file, model.graph.range.clone())?) {
        match place.and_then(|place| nodes.get(&place)) {
            Some(messages) => messages.iter().for_each(|message| body.bytes(1, message)),
            None if dropped.contains(&field.span.start) => {}
            None => body.keep(field.span),
        }
    }
    constants.into_iter().for_each(|constant| body.bytes(5, &constant));
    Ok(body)
}

/// Returns the bytes of the model with the graph `body`. A field for which `replaced` returns bytes is replaced by these.
#[must_use]
pub fn whole<'a>(
    model: &Model<'a>,
    body: &ModelBytes<'a>,
    replaced: &dyn Fn(&Field) -> Option<Vec<u8>>,
) -> ModelBytes<'a> {
    let mut out = ModelBytes::new(model.file);
    for field in &model.fields {
        match (&field.payload, field.number) {
            (Payload::Bytes(_), 7) => out.message(7, body),
            _ => match replaced(field) {
                Some(bytes) => out.add(&bytes),
                None => out.keep(field.span.clone()),
            },
        }
    }
    out
}

/// Encodes the import of version `version` of the operators of `domain`, as a field of a model.
#[must_use]
pub fn import(domain: &str, version: i64) -> Vec<u8> {
    let (mut import, mut field) = (Writer::default(), Writer::default());
    import.bytes(1, domain.as_bytes());
    import.int(2, version);
    field.bytes(8, &import.0);
    field.0
}

/// Returns the indices of the nodes that are not needed after `changes`.
#[must_use]
pub fn replaced(graph: &Graph, changes: &[Change]) -> HashSet<usize> {
    let new = changes.iter().flat_map(|change| &change.nodes);
    let read = graph.outputs.iter().map(|output| &output.name).chain(new.flat_map(|node| &node.inputs));
    let start = changes.iter().map(|change| change.output.1).collect();
    gone(&graph.nodes, read, &graph.unread, start)
}

/// Returns the model with `changes` applied.
///
/// # Errors
/// Returns no error for a model that [`Model::read`] has read.
pub fn write<'a>(model: &Model<'a>, changes: &[Change]) -> Result<ModelBytes<'a>, WireError> {
    let file = model.file;
    if changes.is_empty() {
        let mut same = ModelBytes::new(file);
        same.keep(0..file.len());
        return Ok(same);
    }
    let graph = &model.graph;
    let new = || changes.iter().flat_map(|change| &change.nodes);
    let gone = replaced(graph, changes);
    let here: HashMap<usize, &Change> = changes.iter().map(|change| (change.output.1, change)).collect();
    let dropped = dropped(graph, &graph.nodes, &gone, new());
    let is_touched = |n: usize| gone.contains(&n) || here.contains_key(&n);
    let nodes = || graph.places.iter().copied().enumerate();
    let touched: HashSet<usize> = nodes().filter(|(n, _)| is_touched(*n)).map(|(_, place)| place).collect();
    let mut replaced: HashMap<usize, Vec<Vec<u8>>> = HashMap::new();
    for (n, place) in nodes().filter(|(_, place)| touched.contains(place)) {
        let new = here.get(&n).map_or(&[][..], |change| &change.nodes);
        let kept = Some(&graph.nodes[n]).filter(|_| !gone.contains(&n));
        replaced.entry(place).or_default().extend(new.iter().chain(kept).map(message));
    }
    let constants = changes.iter().flat_map(|change| &change.constants);
    let body = body(model, &replaced, &dropped, constants.map(|(name, array)| constant(name, array)))?;
    let imported = model.imports.iter().any(|(domain, _)| domain == DOMAIN);
    let last = model.fields.iter().rfind(|field| field.number == 8).filter(|_| !imported);
    let with_import = |field: &Field| {
        (Some(field) == last).then(|| [&file[field.span.clone()], import(DOMAIN, 1).as_slice()].concat())
    };
    Ok(whole(model, &body, &with_import))
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
        array.kind.write(x, &mut raw);
    }
    w.bytes(9, &raw);
    w.0
}
