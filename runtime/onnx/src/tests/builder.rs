//! Models that tests build in code.

use super::super::array::{Array, Kind};
use super::super::model::Model;
use super::super::node::{Attribute, Node};
use super::super::wire::Writer;
use super::super::{Attention, Limits, change, rewritten, write};
use std::collections::HashMap;

/// A graph under construction.
#[derive(Default)]
pub struct GraphBuilder {
    pub nodes: Vec<Node>,
    pub constants: Vec<(String, Array)>,
    pub inputs: Vec<(String, Kind, Vec<&'static str>)>,
    pub outputs: Vec<(String, Kind)>,
    /// Declared shapes of tensors that nodes produce.
    pub infos: Vec<(String, Kind, Vec<&'static str>)>,
    pub opset: i64,
}

pub type Pairs<'a> = &'a [(&'a str, &'a [i64])];

impl GraphBuilder {
    pub fn new(opset: i64) -> GraphBuilder {
        GraphBuilder { opset, ..GraphBuilder::default() }
    }

    /// Creates an input. Each axis is a number or the name of a free axis.
    pub fn input(&mut self, name: &str, kind: Kind, axes: &[&'static str]) -> String {
        self.inputs.push((name.into(), kind, axes.to_vec()));
        name.into()
    }

    /// Creates a node with `outputs` outputs. `pairs` are the attributes of the node. The name of an attribute
    /// determines whether its value is an integer or a list of integers.
    pub fn all(&mut self, op: &str, inputs: &[&str], pairs: Pairs<'_>, outputs: usize) -> Vec<String> {
        let n = self.nodes.len();
        let outputs: Vec<String> = (0..outputs).map(|i| format!("{op}_{n}_{i}")).collect();
        let single = [
            "axis",
            "keepdims",
            "to",
            "upper",
            "is_causal",
            "q_num_heads",
            "kv_num_heads",
            "num_heads",
            "unidirectional",
        ];
        let attributes: HashMap<String, Attribute> = (pairs.iter())
            .map(|(name, values)| {
                let value = if single.contains(name) {
                    Attribute::Int(values[0])
                } else {
                    Attribute::Ints(values.to_vec())
                };
                ((*name).to_owned(), value)
            })
            .collect();
        let domain = if op == "MultiHeadAttention" { "com.microsoft" } else { "" };
        let inputs = inputs.iter().map(|&name| name.to_owned()).collect();
        let node = Node {
            name: format!("/{op}_{n}"),
            op: op.into(),
            domain: domain.into(),
            inputs,
            outputs,
            attributes,
            ..Node::default()
        };
        self.nodes.push(node);
        self.nodes[n].outputs.clone()
    }

    pub fn node(&mut self, op: &str, inputs: &[&str], pairs: Pairs<'_>) -> String {
        self.all(op, inputs, pairs, 1).remove(0)
    }

    pub fn einsum(&mut self, equation: &str, inputs: &[&str]) -> String {
        let made = self.node("Einsum", inputs, &[]);
        let text = Attribute::Text(equation.into());
        self.nodes.last_mut().unwrap().attributes.insert("equation".into(), text);
        made
    }

    pub fn constant(&mut self, kind: Kind, shape: &[usize], data: Vec<f64>) -> String {
        let name = format!("constant_{}", self.constants.len());
        self.constants.push((name.clone(), Array::new(kind, shape.to_vec(), data)));
        name
    }

    pub fn number(&mut self, x: f64) -> String {
        self.constant(Kind::F32, &[], vec![x])
    }

    pub fn ints(&mut self, all: &[i64]) -> String {
        self.constant(Kind::I64, &[all.len()], all.iter().map(|&x| x as f64).collect())
    }

    pub fn reshape(&mut self, x: &str, shape: &[i64]) -> String {
        let shape = self.ints(shape);
        self.node("Reshape", &[x, &shape], &[])
    }

    pub fn output(&mut self, name: &str) {
        self.outputs.push((name.into(), Kind::F32));
    }

    /// Creates queries, keys and values from packed rows as timm does: a Reshape, a Transpose, and a Gather for each of
    /// the three.
    pub fn packed(&mut self, x: &str, rows: &[i64], heads: i64, dim: i64) -> [String; 3] {
        let split = self.reshape(x, &[rows, &[3, heads, dim]].concat());
        let turned = self.node("Transpose", &[&split], &[("perm", &[2, 0, 3, 1, 4])]);
        [0.0, 1.0, 2.0].map(|i| {
            let i = self.constant(Kind::I64, &[], vec![i]);
            self.node("Gather", &[&turned, &i], &[("axis", &[0])])
        })
    }

    /// Adds the nodes after the scores: Softmax, product with the values, Transpose, and Reshape to rows.
    pub fn finish(&mut self, scores: &str, v: &str, rows: &[i64]) -> String {
        let weights = self.node("Softmax", &[scores], &[("axis", &[3])]);
        let y = self.node("MatMul", &[&weights, v], &[]);
        let y = self.node("Transpose", &[&y], &[("perm", &[0, 2, 1, 3])]);
        self.reshape(&y, rows)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let info = |name: &str, kind: Kind, axes: Option<&[&str]>| {
            let mut shape = Writer::default();
            for axis in axes.unwrap_or_default() {
                let mut dim = Writer::default();
                match axis.parse() {
                    Ok(n) => dim.int(1, n),
                    Err(_) => dim.bytes(2, axis.as_bytes()),
                }
                shape.bytes(1, &dim.0);
            }
            let (mut tensor, mut kinds, mut info) = (Writer::default(), Writer::default(), Writer::default());
            tensor.int(1, kind.0);
            if axes.is_some() {
                tensor.bytes(2, &shape.0);
            }
            kinds.bytes(1, &tensor.0);
            info.bytes(1, name.as_bytes());
            info.bytes(2, &kinds.0);
            info.0
        };
        let mut graph = Writer::default();
        for node in &self.nodes {
            let mut message = Writer(write::message(node));
            for branch in &node.branches {
                let mut inner = Writer::default();
                branch.nodes.iter().for_each(|node| inner.bytes(1, &write::message(node)));
                branch.outputs.iter().for_each(|name| inner.bytes(12, &info(name, Kind::F32, None)));
                let mut attribute = Writer::default();
                attribute.bytes(1, branch.name.as_bytes());
                attribute.bytes(6, &inner.0);
                attribute.int(20, 5);
                message.bytes(5, &attribute.0);
            }
            // Each node has an unknown field, and so has the graph.
            message.bytes(900, b"unknown of a node");
            graph.bytes(1, &message.0);
        }
        graph.bytes(2, b"main");
        for (name, array) in &self.constants {
            graph.bytes(5, &write::constant(name, array));
        }
        for (name, kind, axes) in &self.inputs {
            graph.bytes(11, &info(name, *kind, Some(axes)));
        }
        for (name, kind) in &self.outputs {
            graph.bytes(12, &info(name, *kind, None));
        }
        for (name, kind, axes) in &self.infos {
            graph.bytes(13, &info(name, *kind, Some(axes)));
        }
        graph.bytes(901, b"unknown of a graph");
        let mut model = Writer::default();
        model.int(1, 7);
        model.bytes(2, b"a test");
        for (domain, version) in [("", self.opset), ("com.microsoft", 1)] {
            let mut import = Writer::default();
            import.bytes(1, domain.as_bytes());
            import.int(2, version);
            model.bytes(8, &import.0);
        }
        model.bytes(7, &graph.0);
        model.bytes(14, b"\x0a\x03key\x12\x05value");
        model.bytes(902, b"unknown of a model");
        model.0
    }

    pub fn rewritten(&self) -> (Vec<Attention>, Vec<u8>) {
        rewritten(&self.bytes(), Limits::WHOLE).unwrap()
    }

    /// Rewrites a model with one attention.
    pub fn only(&self) -> (Attention, Vec<u8>) {
        let (mut found, bytes) = self.rewritten();
        assert_eq!(found.len(), 1, "{found:?}");
        (found.remove(0), bytes)
    }

    /// Checks the result of a rewrite: `count` replacements, each with the description `words`, and no unused nodes or
    /// constants.
    pub fn becomes(&self, count: usize, words: &str) {
        let (found, bytes) = self.rewritten();
        let said: Vec<&str> = found.iter().map(|a| a.words.as_str()).collect();
        assert_eq!(found.iter().filter(|a| a.replaced).count(), count, "{said:?}");
        assert!(said.iter().all(|said| *said == words), "{said:?}");
        // The rewritten model has no Softmax, and no unused nodes or constants.
        let again = Model::read(&bytes).unwrap();
        assert!(again.imports.contains(&("ai.elsa".into(), 1)));
        let elsa: Vec<&Node> = again.graph.nodes.iter().filter(|node| node.op == change::OPERATOR).collect();
        assert_eq!(elsa.len(), count);
        for node in &again.graph.nodes {
            let read = |name: &String| again.graph.readers.contains_key(name) || again.graph.is_output(name);
            assert!(node.op != "Softmax" && node.outputs.iter().any(read), "{} {}", node.op, node.name);
        }
        for name in again.graph.initializers.keys() {
            assert!(again.graph.readers.contains_key(name), "{name}");
        }
    }

    pub fn stays(&self, why: &str) {
        let (found, bytes) = self.only();
        assert!(!found.replaced && found.words.contains(why), "{found:?}");
        assert_eq!(bytes, self.bytes());
    }
}
