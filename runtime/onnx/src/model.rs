//! A model as stored in its file: nodes, tensors and names, each with its span of bytes.

use super::array::{Array, Kind, Stored, count, text};
use super::einsum;
use super::node::{Attribute, Branch, Node};
use super::projected;
use super::turned;
use super::wire::{self, Field, Payload, WireError};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Component, Path};

/// Maximum number of elements of a constant that is read to derive shapes, such as the target of a Reshape.
pub const SMALL: usize = 1 << 12;

/// Function that reads the elements of a constant from an external file.
pub type External<'a> = &'a dyn Fn(&Stored, usize) -> Option<Array>;

/// Maximum nesting depth of graphs.
const DEPTH: usize = 64;

/// The size of an axis as the model declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axis {
    /// A fixed size.
    Size(usize),
    /// Any size, under a name that may be empty.
    Any(String),
}

/// The declared type and shape of a tensor.
#[derive(Clone, Debug)]
pub struct Declared {
    /// Name of the tensor.
    pub name: String,
    /// Type of the elements.
    pub kind: Kind,
    /// The axes, if the model declares them.
    pub shape: Option<Vec<Axis>>,
    /// Range of the declaration's field in the file.
    pub span: Range<usize>,
}

/// The main graph.
#[derive(Debug, Default)]
pub struct Graph {
    /// Range of bytes in the file that contains the fields of the graph.
    pub range: Range<usize>,
    /// Nodes, in the order of the file. An Einsum that is a matrix product is replaced with equivalent nodes, and so is
    /// an Attention of ONNX Runtime.
    pub nodes: Vec<Node>,
    /// Index of the original node in the file for each entry of `nodes`. One node of the file may become several entries.
    pub places: Vec<usize>,
    /// Transposes of weights that `nodes` no longer reads, although the file does. The key is the index of the product
    /// of the weights, and the value is the index of the Transpose.
    pub unread: HashMap<usize, usize>,
    /// Constants by name, each with the range of its field in the file.
    pub initializers: HashMap<String, (Stored, Range<usize>)>,
    /// Declarations of the inputs.
    pub inputs: Vec<Declared>,
    /// Names of the graph's inputs.
    pub input_names: HashSet<String>,
    /// Declarations of the outputs.
    pub outputs: Vec<Declared>,
    /// Declarations of tensors that are neither inputs nor outputs.
    pub infos: Vec<Declared>,
    /// Index of the node that produces each tensor, by the name of the tensor.
    pub producer: HashMap<String, usize>,
    /// Indices of the nodes that read each tensor, by the name of the tensor. A node that reads the same tensor twice
    /// is listed twice.
    pub readers: HashMap<String, Vec<usize>>,
    /// All names in the graph.
    pub names: HashSet<String>,
}

/// A model, with references to the bytes of its file.
#[derive(Debug)]
pub struct Model<'a> {
    /// The bytes of the file.
    pub file: &'a [u8],
    /// The fields of the model.
    pub fields: Vec<Field>,
    /// Version of the operator set in ONNX's default domain.
    pub opset: i64,
    /// Domains of the imported operator sets, with their versions.
    pub imports: Vec<(String, i64)>,
    /// The main graph.
    pub graph: Graph,
    /// Operators of the attention nodes in functions of the model.
    pub functions: Vec<String>,
}

/// Error for a file that cannot be rewritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The bytes are not a protocol buffer.
    #[error("not an ONNX model: {0}; allowed: a whole file as an exporter writes it")]
    Wire(#[from] WireError),
    /// The model breaks a rule of ONNX.
    #[error("{found}; allowed: {allowed}")]
    Rule {
        /// Content that breaks the rule, for the message.
        found: String,
        /// Allowed content, for the message.
        allowed: &'static str,
    },
}

fn rule(found: String, allowed: &'static str) -> ModelError {
    ModelError::Rule { found, allowed }
}

/// Normalizes the name of ONNX's default domain, which has two spellings.
fn plain(domain: String) -> String {
    if domain == "ai.onnx" { String::new() } else { domain }
}

/// Operators that compute attention or its softmax, and convolutions with a state.
const ATTENTION: [&str; 8] = [
    "Softmax",
    "Attention",
    "MultiHeadAttention",
    "GroupQueryAttention",
    "PackedMultiHeadAttention",
    "DecoderMaskedMultiHeadAttention",
    "LinearAttention",
    "CausalConvWithState",
];

impl<'a> Model<'a> {
    /// Reads a model. Checks that each name is produced once, that every name that is read is produced, and that no
    /// node depends on itself.
    ///
    /// # Errors
    /// Returns an error for the first violation.
    pub fn read(file: &'a [u8]) -> Result<Model<'a>, ModelError> {
        let fields = wire::fields(file, 0..file.len())?;
        let (mut graph, mut imports, mut functions) = (None, Vec::new(), Vec::new());
        for field in &fields {
            match field.number {
                7 if graph.is_some() => return Err(rule("two graphs".into(), "one")),
                7 => graph = Some(field.bytes()?),
                8 => {
                    let (mut domain, mut version) = (String::new(), 0);
                    for field in wire::fields(file, field.bytes()?)? {
                        match field.number {
                            1 => domain = text(file, field.bytes()?)?,
                            2 => version = field.int()?,
                            _ => {}
                        }
                    }
                    imports.push((plain(domain), version));
                }
                25 => {
                    for field in wire::fields(file, field.bytes()?)? {
                        if field.number == 7 {
                            let node = node(file, field.bytes()?, 1)?;
                            functions.extend(node.inner);
                            functions.extend(ATTENTION.contains(&node.op.as_str()).then_some(node.op));
                        }
                    }
                }
                _ => {}
            }
        }
        let Some(graph) = graph else {
            return Err(rule("no graph".into(), "a model with a graph"));
        };
        let Some(opset) = imports.iter().find(|(domain, _)| domain.is_empty()).map(|(_, version)| *version)
        else {
            return Err(rule("no opset_import of ONNX's operators".into(), "one"));
        };
        let graph = Graph::read(file, graph, opset)?;
        graph.check()?;
        Ok(Model { file, fields, opset, imports, graph, functions })
    }

    /// Returns the nodes of the main graph as the file contains them, each with the range of its message. No node is
    /// replaced with equivalent nodes.
    ///
    /// # Errors
    /// Returns no error for a model that [`Model::read`] has read.
    pub fn file_nodes(&self) -> Result<Vec<(Node, Range<usize>)>, ModelError> {
        let fields = wire::fields(self.file, self.graph.range.clone())?;
        let nodes = fields.iter().filter(|field| field.number == 1);
        nodes
            .map(|field| {
                let range = field.bytes()?;
                Ok((node(self.file, range.clone(), 0)?, range))
            })
            .collect()
    }

    /// Lists the external files that contain elements of the model's constants.
    ///
    /// # Errors
    /// Returns an error for a location outside the model's folder.
    pub fn locations(&self) -> Result<Vec<String>, ModelError> {
        let mut all = HashSet::new();
        let mut stored: Vec<&Stored> = self.graph.initializers.values().map(|(stored, _)| stored).collect();
        for node in &self.graph.nodes {
            stored.extend(node.attributes.values().filter_map(|attribute| match attribute {
                Attribute::Tensor(stored) => Some(&**stored),
                _ => None,
            }));
            let mut branches: Vec<&Branch> = node.branches.iter().collect();
            while let Some(branch) = branches.pop() {
                stored.extend(&branch.constants);
                branches.extend(branch.nodes.iter().flat_map(|node| &node.branches));
            }
        }
        for entries in stored.into_iter().filter_map(Stored::external) {
            let location = entries.iter().find(|(key, _)| key == "location").map_or("", |(_, value)| value);
            let inside = Path::new(location)
                .components()
                .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
            if location.is_empty() || !inside {
                let found = format!("external data at '{location}'");
                return Err(rule(
                    found,
                    "a file in the folder of the model, by a relative path without '..'",
                ));
            }
            all.insert(location.to_owned());
        }
        let mut all: Vec<String> = all.into_iter().collect();
        all.sort();
        Ok(all)
    }
}

impl Graph {
    fn read(file: &[u8], range: Range<usize>, opset: i64) -> Result<Graph, ModelError> {
        let mut graph = Graph { range: range.clone(), ..Graph::default() };
        for field in wire::fields(file, range)? {
            match field.number {
                1 => graph.nodes.push(node(file, field.bytes()?, 0)?),
                5 => {
                    let stored = Stored::read(file, field.bytes()?)?;
                    let name = stored.name.clone();
                    if graph.initializers.insert(name.clone(), (stored, field.span)).is_some() {
                        return Err(rule(
                            format!("two constants named '{name}'"),
                            "names that are made once",
                        ));
                    }
                }
                11 => graph.inputs.push(declared(file, field)?),
                12 => graph.outputs.push(declared(file, field)?),
                13 => graph.infos.push(declared(file, field)?),
                _ => {}
            }
        }
        graph.input_names = graph.inputs.iter().map(|input| input.name.clone()).collect();
        graph.read_products(opset);
        let unread: HashSet<usize> = graph.unread.values().copied().collect();
        for (n, node) in graph.nodes.iter().enumerate() {
            for name in node.outputs.iter().filter(|name| !name.is_empty()) {
                let twice = graph.producer.insert(name.clone(), n).is_some();
                if twice || graph.initializers.contains_key(name) || graph.input_names.contains(name) {
                    return Err(rule(format!("the name '{name}' is made twice"), "names that are made once"));
                }
                graph.names.insert(name.clone());
            }
            for name in node.inputs.iter().chain(&node.captured).filter(|name| !name.is_empty()) {
                if !unread.contains(&n) {
                    graph.readers.entry(name.clone()).or_default().push(n);
                }
                graph.names.insert(name.clone());
            }
            graph.names.insert(node.name.clone());
        }
        let more =
            graph.inputs.iter().chain(&graph.outputs).chain(&graph.infos).map(|declared| &declared.name);
        graph.names.extend(more.chain(graph.initializers.keys()).cloned());
        Ok(graph)
    }

    /// Replaces each Einsum that is a matrix product, each product with transposed weights, and each Attention of ONNX
    /// Runtime with equivalent nodes.
    fn read_products(&mut self, opset: i64) {
        let mut mark = "_product".to_owned();
        let outputs = self.nodes.iter().flat_map(|node| &node.outputs);
        let names: Vec<&String> = outputs.chain(&self.input_names).chain(self.initializers.keys()).collect();
        while names.iter().any(|name| name.contains(&mark)) {
            mark.push('_');
        }
        for (place, node) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            let parts = einsum::product(&node, &mark, opset).or_else(|| projected::parts(&node, &mark));
            let parts = parts.unwrap_or_else(|| vec![node]);
            self.places.extend(parts.iter().map(|_| place));
            self.nodes.extend(parts);
        }
        self.turn_weights(&mark);
    }

    /// Replaces each product with transposed weights with equivalent nodes.
    fn turn_weights(&mut self, mark: &str) {
        let products = turned::products(&self.nodes, self.outputs.iter().map(|output| &output.name));
        if products.is_empty() {
            return;
        }
        let (nodes, places) = (std::mem::take(&mut self.nodes), std::mem::take(&mut self.places));
        // The new index of each node.
        let mut moved = Vec::with_capacity(nodes.len());
        for (n, node) in nodes.iter().enumerate() {
            moved.push(self.nodes.len());
            let parts = products.get(&n).and_then(|&at| {
                let parts = turned::parts(node, &nodes[at], mark)?;
                // The product is the second of the parts.
                self.unread.insert(self.nodes.len() + 1, moved[at]);
                Some(parts.to_vec())
            });
            let parts = parts.unwrap_or_else(|| vec![node.clone()]);
            self.places.extend(parts.iter().map(|_| places[n]));
            self.nodes.extend(parts);
        }
    }

    /// Checks that no two inputs have the same name, that every name read by a node or an output is produced, and that
    /// each node comes after the nodes that it reads.
    fn check(&self) -> Result<(), ModelError> {
        let mut known: HashSet<&str> = self.initializers.keys().map(String::as_str).collect();
        let mut inputs = HashSet::new();
        for input in &self.inputs {
            if !inputs.insert(input.name.as_str()) {
                return Err(rule(format!("two inputs named '{}'", input.name), "names that are made once"));
            }
        }
        known.extend(inputs);
        for (n, node) in self.nodes.iter().enumerate() {
            for name in node.inputs.iter().filter(|name| !name.is_empty()) {
                if known.contains(name.as_str()) {
                    continue;
                }
                let what = format!("node {n} ('{}', {}) reads '{name}'", node.name, node.op);
                return Err(match self.producer.get(name) {
                    None => {
                        rule(format!("{what}, which nothing makes"), "names of inputs, constants and nodes")
                    }
                    Some(_) => rule(
                        format!("{what}, which a later node makes"),
                        "nodes after those that they read, without a cycle",
                    ),
                });
            }
            known.extend(node.outputs.iter().map(String::as_str));
        }
        match self.outputs.iter().find(|output| !known.contains(output.name.as_str())) {
            Some(output) => {
                Err(rule(format!("the output '{}', which nothing makes", output.name), "names that are made"))
            }
            None => Ok(()),
        }
    }

    /// Returns `true` if a name is an output of the graph.
    #[must_use]
    pub fn is_output(&self, name: &str) -> bool {
        self.outputs.iter().any(|output| output.name == name)
    }
}

/// Reads the node in `range` of `file`, which is in a graph of nesting depth `depth`.
///
/// # Errors
/// Returns an error for bytes that are not a node, and for graphs that are nested too deeply.
pub fn node(file: &[u8], range: Range<usize>, depth: usize) -> Result<Node, ModelError> {
    let mut node = Node::default();
    for field in wire::fields(file, range)? {
        match field.number {
            1 => node.inputs.push(text(file, field.bytes()?)?),
            2 => node.outputs.push(text(file, field.bytes()?)?),
            3 => node.name = text(file, field.bytes()?)?,
            4 => node.op = text(file, field.bytes()?)?,
            7 => node.domain = plain(text(file, field.bytes()?)?),
            5 => {
                let (name, value) = attribute(file, field.bytes()?, &mut node, depth)?;
                if node.attributes.insert(name.clone(), value).is_some() {
                    let found = format!("node '{}' with two attributes '{name}'", node.name);
                    return Err(rule(found, "attributes that are given once"));
                }
            }
            _ => {}
        }
    }
    Ok(node)
}

fn attribute(
    file: &[u8],
    range: Range<usize>,
    node: &mut Node,
    depth: usize,
) -> Result<(String, Attribute), ModelError> {
    let (mut name, mut value, mut kind) = (String::new(), None, None);
    let (mut ints, mut floats, mut graphs) = (Vec::new(), Vec::new(), Vec::new());
    for field in wire::fields(file, range)? {
        match (field.number, &field.payload) {
            (1, _) => name = text(file, field.bytes()?)?,
            (2, Payload::Fixed32(bits)) => value = Some(Attribute::Float(f32::from_bits(*bits))),
            (3, _) => value = Some(Attribute::Int(field.int()?)),
            (4, _) => value = Some(Attribute::Text(file[field.bytes()?].to_vec())),
            (5, _) => value = Some(Attribute::Tensor(Box::new(Stored::read(file, field.bytes()?)?))),
            (6 | 11, _) => graphs.push(within(file, field.bytes()?, node, depth + 1)?),
            (7, Payload::Fixed32(bits)) => floats.push(f32::from_bits(*bits)),
            (7, Payload::Bytes(range)) => {
                floats.extend(
                    file[range.clone()].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)),
                );
            }
            (8, _) => wire::ints(file, &field, &mut ints)?,
            (20, _) => kind = Some(field.int()?),
            _ => {}
        }
    }
    node.branches.extend(graphs.into_iter().map(|branch| Branch { name: name.clone(), ..branch }));
    // Some exporters omit a value that is zero or empty, but they state its type.
    let value = match (kind, value) {
        (Some(6), _) => Attribute::Floats(floats),
        (Some(7), _) => Attribute::Ints(ints),
        (Some(1), None) => Attribute::Float(0.0),
        (Some(2), None) => Attribute::Int(0),
        (_, Some(value)) => value,
        (_, None) if !ints.is_empty() => Attribute::Ints(ints),
        (_, None) => Attribute::Other,
    };
    Ok((name, value))
}

/// Reads a graph in an attribute of the node `outer`. Adds to `outer` the names that this graph reads, and the
/// attention nodes that it contains.
fn within(file: &[u8], range: Range<usize>, outer: &mut Node, depth: usize) -> Result<Branch, ModelError> {
    if depth > DEPTH {
        return Err(rule(format!("graphs within graphs, more than {DEPTH} deep"), "64 levels"));
    }
    let mut branch = Branch::default();
    for field in wire::fields(file, range)? {
        match field.number {
            1 => {
                let inner = node(file, field.bytes()?, depth)?;
                outer.captured.extend(inner.inputs.iter().chain(&inner.captured).cloned());
                outer.inner.extend(inner.inner.iter().cloned());
                outer.inner.extend(ATTENTION.contains(&inner.op.as_str()).then(|| inner.op.clone()));
                branch.nodes.push(inner);
            }
            5 => branch.constants.push(Stored::read(file, field.bytes()?)?),
            // An output of a branch may name a tensor of the enclosing graph.
            12 => {
                let output = declared(file, field)?.name;
                outer.captured.push(output.clone());
                branch.outputs.push(output);
            }
            _ => {}
        }
    }
    Ok(branch)
}

fn declared(file: &[u8], field: Field) -> Result<Declared, ModelError> {
    let mut found = Declared { name: String::new(), kind: Kind(0), shape: None, span: field.span.clone() };
    for field in wire::fields(file, field.bytes()?)? {
        match field.number {
            1 => found.name = text(file, field.bytes()?)?,
            2 => {
                for field in wire::fields(file, field.bytes()?)?.into_iter().filter(|field| field.number == 1)
                {
                    for field in wire::fields(file, field.bytes()?)? {
                        match field.number {
                            1 => found.kind = Kind(field.int()?),
                            2 => found.shape = Some(axes(file, field.bytes()?)?),
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

fn axes(file: &[u8], range: Range<usize>) -> Result<Vec<Axis>, ModelError> {
    let mut all = Vec::new();
    for field in wire::fields(file, range)?.into_iter().filter(|field| field.number == 1) {
        let mut axis = Axis::Any(String::new());
        for field in wire::fields(file, field.bytes()?)? {
            match field.number {
                1 => {
                    if let Ok(n) = usize::try_from(field.int()?) {
                        axis = Axis::Size(n);
                    }
                }
                2 => axis = Axis::Any(text(file, field.bytes()?)?),
                _ => {}
            }
        }
        all.push(axis);
    }
    Ok(all)
}

/// Reads the elements of a constant from the model or from an external file. Returns `None` if the constant has more
/// than `most` elements, or if the elements cannot be read.
pub fn stored(model: &Model<'_>, external: External<'_>, stored: &Stored, most: usize) -> Option<Array> {
    count(&stored.shape, most)?;
    match stored.external() {
        Some(_) => external(stored, most),
        None => stored.array(model.file, most),
    }
}
