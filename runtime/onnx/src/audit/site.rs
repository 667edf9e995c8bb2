//! Sites of an audit: groups of nodes that compute one function together.
//!
//! An attention is a softmax with the products before and after it. A normalisation that is written out is the square,
//! the mean, the sum with a small constant, and the square root. Every other node is a site of its own. The grouping
//! decides which nodes are measured and kept in f32 together; nothing is proved about them.

use super::super::model::Model;
use super::super::node::Node;
use super::super::written::WrittenSoftmax;
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// Maximum number of nodes on a path between a softmax and a product.
const LONGEST: usize = 40;

/// Operators between the product of queries and keys and the softmax.
const BEFORE: [&str; 13] = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Where",
    "Cast",
    "Reshape",
    "Transpose",
    "Tanh",
    "Max",
    "Min",
    "Clip",
    "Identity",
];
/// Operators between the softmax and the product with values.
const AFTER: [&str; 7] = ["Cast", "Dropout", "Identity", "Reshape", "Transpose", "Where", "Mul"];
/// Operators that compute attention in one node.
const FUSED: [&str; 7] = [
    "Attention",
    "MultiHeadAttention",
    "GroupQueryAttention",
    "PackedMultiHeadAttention",
    "DecoderMaskedMultiHeadAttention",
    "PackedAttention",
    "ElsaAttention",
];
/// Operators that normalise rows.
const NORMALISATIONS: [&str; 9] = [
    "LayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "LpNormalization",
    "ReduceL2",
];
/// Operators that multiply matrices.
const PRODUCTS: [&str; 6] = ["MatMul", "Gemm", "Einsum", "FusedMatMul", "Conv", "ConvTranspose"];
/// Operators that converters leave in f32, or that have no meaning in f16.
const UNCONVERTED: [&str; 5] = ["Resize", "Upsample", "Range", "Constant", "ConstantOfShape"];
/// Operators that only move elements, so that they round nothing that is already in f16.
const MOVES: [&str; 17] = [
    "Reshape",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Identity",
    "Slice",
    "Split",
    "Concat",
    "Gather",
    "Expand",
    "Tile",
    "Pad",
    "Dropout",
    "Cast",
    "Shape",
    "Size",
];

/// Computation of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SiteKind {
    /// A softmax between two products, or one node that computes attention.
    Attention,
    /// A layer, group, instance or RMS normalisation.
    Normalisation,
    /// A softmax outside attention.
    Softmax,
    /// A matrix product or a convolution.
    Product,
    /// Any other node.
    Other,
}

impl SiteKind {
    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SiteKind::Attention => "attention",
            SiteKind::Normalisation => "normalisation",
            SiteKind::Softmax => "softmax",
            SiteKind::Product => "product",
            SiteKind::Other => "other",
        }
    }
}

/// Nodes that are measured and kept in f32 together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGroup {
    /// The computation.
    pub kind: SiteKind,
    /// Index of the node that gives the site its name.
    pub main: usize,
    /// Indices of all nodes, in the order of the file.
    pub members: Vec<usize>,
}

/// Nodes of a file, with the connections between them.
pub struct Connections<'a> {
    /// The nodes, in the order of the file.
    pub nodes: &'a [Node],
    /// Index of the node that makes each tensor.
    pub maker: HashMap<&'a str, usize>,
    /// Indices of the nodes that read each tensor, without those that read it in a graph within a node.
    pub readers: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Connections<'a> {
    /// Finds the connections between `nodes`.
    #[must_use]
    pub fn new(nodes: &'a [Node]) -> Connections<'a> {
        let (mut maker, mut readers) = (HashMap::new(), HashMap::<&str, Vec<usize>>::new());
        for (n, node) in nodes.iter().enumerate() {
            for name in node.outputs.iter().filter(|name| !name.is_empty()) {
                maker.insert(name.as_str(), n);
            }
            for name in node.inputs.iter().filter(|name| !name.is_empty()) {
                let of = readers.entry(name.as_str()).or_default();
                if of.last() != Some(&n) {
                    of.push(n);
                }
            }
        }
        Connections { nodes, maker, readers }
    }

    fn made_by(&self, name: &str, op: &[&str]) -> Option<usize> {
        self.maker.get(name).copied().filter(|&n| op.iter().any(|op| self.nodes[n].op == *op))
    }

    /// Returns `true` if the node multiplies two tensors and neither of them is a constant.
    fn multiplies(&self, model: &Model<'_>, n: usize) -> bool {
        let node = &self.nodes[n];
        let constant = |name: &String| {
            model.graph.initializers.contains_key(name) || self.made_by(name, &["Constant"]).is_some()
        };
        ["MatMul", "Einsum", "FusedMatMul"].iter().any(|op| node.op == *op)
            && !node.inputs.iter().any(constant)
    }

    /// Returns the nodes from a product to the tensor `name`, or `None` if no product is found. `failed` contains the
    /// tensors that are known to lead to no product.
    fn back(
        &self,
        model: &Model<'_>,
        name: &'a str,
        failed: &mut HashSet<&'a str>,
        depth: usize,
    ) -> Option<Vec<usize>> {
        let n = *self.maker.get(name)?;
        if self.multiplies(model, n) {
            return Some(vec![n]);
        }
        let node = &self.nodes[n];
        let through = BEFORE.iter().any(|op| node.is(op)) && depth < LONGEST;
        if through && !failed.contains(name) {
            for input in &node.inputs {
                if let Some(mut path) = self.back(model, input, failed, depth + 1) {
                    path.push(n);
                    return Some(path);
                }
            }
        }
        failed.insert(name);
        None
    }

    /// Returns the nodes from the tensor `name` to the product that reads it, or `None` if no product does.
    fn ahead(&self, model: &Model<'_>, name: &str) -> Option<Vec<usize>> {
        let (mut name, mut path) = (name, Vec::new());
        for _ in 0..LONGEST {
            let readers = self.readers.get(name)?;
            if let Some(&product) = readers.iter().find(|&&n| self.multiplies(model, n)) {
                path.push(product);
                return Some(path);
            }
            let next = *readers.iter().find(|&&n| AFTER.iter().any(|op| self.nodes[n].is(op)))?;
            path.push(next);
            name = self.nodes[next].outputs.first()?.as_str();
        }
        None
    }

    /// Returns the nodes of a normalisation that is written out, if `root` is its square root. The second of them sums
    /// the squares.
    fn written_normalisation(&self, root: usize) -> Option<Vec<usize>> {
        let node = &self.nodes[root];
        node.is("Sqrt").then_some(())?;
        let sums = ["ReduceMean", "ReduceSum"];
        let input = node.input(0)?;
        let added = self.made_by(input, &["Add"]);
        let sum = match added {
            Some(add) => self.nodes[add].inputs.iter().find_map(|name| self.made_by(name, &sums)),
            None => self.made_by(input, &sums),
        }?;
        let square = self.made_by(self.nodes[sum].input(0)?, &["Pow", "Mul"])?;
        let squared = &self.nodes[square];
        (squared.is("Pow") || squared.input(0) == squared.input(1)).then_some(())?;
        let mut members = vec![square, sum];
        members.extend(added);
        members.push(root);
        let divides = |&&n: &&usize| ["Div", "Reciprocal"].iter().any(|op| self.nodes[n].is(op));
        members.extend(self.readers.get(node.outputs.first()?.as_str())?.iter().filter(divides));
        Some(members)
    }

    /// Returns the last node of a softmax, and the nodes that compute it.
    fn softmax(&self, model: &Model<'_>, n: usize) -> Option<Vec<usize>> {
        let node = &self.nodes[n];
        if node.is("Softmax") || node.is("LogSoftmax") {
            return Some(vec![n]);
        }
        let parts = WrittenSoftmax::of(&model.graph, node)?;
        let sum = parts.sum.outputs.first().map(String::as_str);
        let names = [Some(parts.exponentials), sum, parts.inverse];
        let found = names.into_iter().flatten().filter_map(|name| self.maker.get(name).copied());
        Some(found.chain([n]).collect())
    }

    /// Groups the nodes. No node is in two groups, and nodes that converters leave in f32 are in no group.
    #[must_use]
    pub fn groups(&self, model: &Model<'_>) -> Vec<NodeGroup> {
        let mut taken: HashSet<usize> = HashSet::new();
        let mut all: Vec<NodeGroup> = Vec::new();
        let mut add = |kind, main: usize, mut members: Vec<usize>| {
            if taken.contains(&main) {
                return;
            }
            members.sort_unstable();
            members.retain(|&n| taken.insert(n));
            all.push(NodeGroup { kind, main, members });
        };
        for n in 0..self.nodes.len() {
            let Some(mut members) = self.softmax(model, n) else { continue };
            let first = &self.nodes[members[0]];
            let (Some(from), Some(to)) = (first.input(0), self.nodes[n].outputs.first()) else { continue };
            let kind = match (self.back(model, from, &mut HashSet::new(), 0), self.ahead(model, to)) {
                (Some(before), Some(after)) => {
                    members.extend(before.into_iter().chain(after));
                    SiteKind::Attention
                }
                _ => SiteKind::Softmax,
            };
            add(kind, n, members);
        }
        for n in 0..self.nodes.len() {
            if let Some(members) = self.written_normalisation(n) {
                add(SiteKind::Normalisation, members[1], members);
            }
        }
        for (n, node) in self.nodes.iter().enumerate().filter(|(_, node)| is_converted(node)) {
            let is = |ops: &[&str]| ops.iter().any(|op| node.op == *op);
            let kind = if is(&FUSED) {
                SiteKind::Attention
            } else if is(&NORMALISATIONS) {
                SiteKind::Normalisation
            } else if is(&PRODUCTS) {
                SiteKind::Product
            } else {
                SiteKind::Other
            };
            add(kind, n, vec![n]);
        }
        all.sort_by_key(|group| group.main);
        all
    }
}

/// Returns `true` if a converter to f16 changes the node.
#[must_use]
pub fn is_converted(node: &Node) -> bool {
    let quantized = node.op.starts_with("QLinear")
        || ["Quantize", "Integer", "NBits"].iter().any(|x| node.op.contains(x));
    !quantized && !UNCONVERTED.iter().any(|op| node.op == *op)
}

/// Returns `true` if the node only moves elements.
#[must_use]
pub fn is_move(node: &Node) -> bool {
    MOVES.iter().any(|op| node.is(op))
}

#[cfg(test)]
mod tests {
    use super::super::super::wire::Writer;
    use super::super::super::write;
    use super::*;

    /// Encodes a model with the inputs `inputs` and a node for each operator with its inputs and its output.
    fn model(inputs: &[&str], nodes: &[(&str, &[&str], &str)]) -> Vec<u8> {
        let (mut graph, mut file, mut import) = (Writer::default(), Writer::default(), Writer::default());
        for (op, reads, makes) in nodes {
            let inputs = reads.iter().map(|&name| name.to_owned()).collect();
            let outputs = vec![(*makes).to_owned()];
            graph.bytes(1, &write::message(&Node { op: (*op).into(), inputs, outputs, ..Node::default() }));
        }
        for name in inputs {
            let mut input = Writer::default();
            input.bytes(1, name.as_bytes());
            graph.bytes(11, &input.0);
        }
        import.bytes(1, b"");
        import.int(2, 13);
        file.bytes(8, &import.0);
        file.bytes(7, &graph.0);
        file.0
    }

    /// Returns the kind, the main output and all outputs of each group.
    fn groups(inputs: &[&str], nodes: &[(&str, &[&str], &str)]) -> Vec<(SiteKind, String, String)> {
        let file = model(inputs, nodes);
        let model = Model::read(&file).unwrap();
        let nodes: Vec<Node> = model.file_nodes().unwrap().into_iter().map(|(node, _)| node).collect();
        let made = |n: usize| nodes[n].outputs[0].clone();
        let told = |group: &NodeGroup| {
            let all: Vec<String> = group.members.iter().map(|&n| made(n)).collect();
            (group.kind, made(group.main), all.join(" "))
        };
        Connections::new(&nodes).groups(&model).iter().map(told).collect()
    }

    fn group(kind: SiteKind, main: &str, all: &str) -> (SiteKind, String, String) {
        (kind, main.to_owned(), all.to_owned())
    }

    #[test]
    fn attention_is_one_group_with_and_without_the_node_softmax() {
        let before: [(&str, &[&str], &str); 3] =
            [("Relu", &["x"], "q"), ("MatMul", &["q", "k"], "s"), ("Add", &["mask", "s"], "m")];
        let single: [(&str, &[&str], &str); 2] = [("Softmax", &["m"], "w"), ("MatMul", &["w", "v"], "y")];
        let inputs = ["x", "k", "v", "mask"];
        let first = group(SiteKind::Other, "q", "q");
        assert_eq!(
            groups(&inputs, &[&before[..], &single].concat()),
            [first.clone(), group(SiteKind::Attention, "w", "s m w y")]
        );
        let written: [(&str, &[&str], &str); 4] = [
            ("Exp", &["m"], "e"),
            ("ReduceSum", &["e"], "sum"),
            ("Div", &["e", "sum"], "w"),
            ("MatMul", &["w", "v"], "y"),
        ];
        assert_eq!(
            groups(&inputs, &[&before[..], &written].concat()),
            [first, group(SiteKind::Attention, "w", "s m e sum w y")]
        );
        // A softmax of an input is no attention.
        let alone: [(&str, &[&str], &str); 2] = [("Softmax", &["x"], "w"), ("MatMul", &["w", "v"], "y")];
        assert_eq!(
            groups(&inputs, &alone),
            [group(SiteKind::Softmax, "w", "w"), group(SiteKind::Product, "y", "y")]
        );
    }

    #[test]
    fn a_written_normalisation_is_one_group() {
        let nodes: [(&str, &[&str], &str); 8] = [
            ("ReduceMean", &["x"], "mean"),
            ("Sub", &["x", "mean"], "d"),
            ("Mul", &["d", "d"], "squares"),
            ("ReduceMean", &["squares"], "variance"),
            ("Add", &["eps", "variance"], "a"),
            ("Sqrt", &["a"], "r"),
            ("Div", &["d", "r"], "n"),
            ("Resize", &["n"], "y"),
        ];
        assert_eq!(
            groups(&["x", "eps"], &nodes),
            [
                group(SiteKind::Other, "mean", "mean"),
                group(SiteKind::Other, "d", "d"),
                group(SiteKind::Normalisation, "variance", "squares variance a r n"),
            ]
        );
        // A product of two tensors is no square.
        let other: [(&str, &[&str], &str); 3] =
            [("Mul", &["x", "eps"], "p"), ("ReduceMean", &["p"], "m"), ("Sqrt", &["m"], "r")];
        assert!(groups(&["x", "eps"], &other).iter().all(|(kind, ..)| *kind == SiteKind::Other));
        let norm: [(&str, &[&str], &str); 1] = [("LayerNormalization", &["x"], "y")];
        assert_eq!(groups(&["x"], &norm), [group(SiteKind::Normalisation, "y", "y")]);
    }
}
