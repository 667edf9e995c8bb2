//! A node of a model and its attributes.

use super::array::Stored;
use std::collections::HashMap;

/// The domain of ONNX Runtime's own operators.
pub const MICROSOFT: &str = "com.microsoft";

/// The value of an attribute, in the types that the rewriter reads.
#[derive(Clone, Debug)]
pub enum Attribute {
    /// A floating-point number.
    Float(f32),
    /// An integer.
    Int(i64),
    /// A text, as bytes.
    Text(Vec<u8>),
    /// A tensor.
    Tensor(Box<Stored>),
    /// A list of floating-point numbers.
    Floats(Vec<f32>),
    /// A list of integers.
    Ints(Vec<i64>),
    /// An attribute of any other type.
    Other,
}

/// A graph in an attribute of a node, such as a branch of `If`.
#[derive(Clone, Debug, Default)]
pub struct Branch {
    /// Name of the attribute that contains the graph.
    pub name: String,
    /// Nodes, in the order of the file.
    pub nodes: Vec<Node>,
    /// Constants of the graph.
    pub constants: Vec<Stored>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
}

/// A node of a graph.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Name; may be empty.
    pub name: String,
    /// Name of the operator.
    pub op: String,
    /// Domain of the operator; empty for ONNX's default domain.
    pub domain: String,
    /// Names of the inputs; an absent input has an empty name.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Attributes by name.
    pub attributes: HashMap<String, Attribute>,
    /// Names of tensors of the surrounding graph that graphs in the node's attributes read.
    pub captured: Vec<String>,
    /// Operators of the attention nodes that are contained in graphs in the node's attributes.
    pub inner: Vec<String>,
    /// The graphs in the node's attributes.
    pub branches: Vec<Branch>,
}

impl Node {
    /// Returns `true` if the node is an attention of ONNX or ONNX Runtime that the rewriter supports. An `Attention` of
    /// ONNX Runtime is supported without its product with weights.
    #[must_use]
    pub fn is_fused(&self) -> bool {
        match self.op.as_str() {
            "Attention" if self.domain == MICROSOFT => {
                self.input(1).is_none() && self.int("num_heads").is_some()
            }
            "MultiHeadAttention" => self.domain == MICROSOFT,
            _ => self.is("Attention"),
        }
    }

    /// Returns an integer attribute.
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        if let Some(Attribute::Int(x)) = self.attributes.get(name) { Some(*x) } else { None }
    }

    /// Returns a floating-point attribute.
    #[must_use]
    pub fn float(&self, name: &str) -> Option<f32> {
        if let Some(Attribute::Float(x)) = self.attributes.get(name) { Some(*x) } else { None }
    }

    /// Returns an attribute that is a list of integers.
    #[must_use]
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        if let Some(Attribute::Ints(x)) = self.attributes.get(name) { Some(x) } else { None }
    }

    /// Returns an attribute that is a text in UTF-8.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attributes.get(name) {
            Some(Attribute::Text(text)) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Returns `true` if this is the operator `op` of ONNX's default domain.
    #[must_use]
    pub fn is(&self, op: &str) -> bool {
        self.op == op && self.domain.is_empty()
    }

    /// Returns the name of input `i`, if it is present.
    #[must_use]
    pub fn input(&self, i: usize) -> Option<&str> {
        self.inputs.get(i).map(String::as_str).filter(|name| !name.is_empty())
    }
}
