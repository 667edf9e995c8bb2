//! The result of lowering a model.

use serde::Serialize;

/// A node that the target does not have in this form.
#[derive(Clone, Debug, Serialize)]
pub struct LoweredNode {
    /// Name of the node, or of its output if the node has no name.
    pub node: String,
    /// Operator of the node.
    pub operator: String,
    /// `true` if older nodes replace the node.
    pub lowered: bool,
    /// Operators of the new nodes, or the reason why the node stays.
    pub words: String,
}

/// A model that has been lowered.
#[derive(Clone, Debug)]
pub struct LoweredModel {
    /// Bytes of the model's file.
    pub bytes: Vec<u8>,
    /// Nodes that the target did not have in their form, in the order of the file.
    pub nodes: Vec<LoweredNode>,
    /// Version of ONNX's operators that the new file imports.
    pub opset: i64,
}
