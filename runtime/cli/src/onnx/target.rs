//! `--target`: the runtimes for which a model is lowered, and the lines about its nodes.

use clap::ValueEnum;
use elsa_onnx::{LoweredModel, LoweredNode, Target};

/// Names of the runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TargetName {
    /// ONNX Runtime 1.10: opset 15
    #[value(name = "onnxruntime-1.10")]
    OnnxRuntime110,
    /// ONNX Runtime 1.11: opset 16
    #[value(name = "onnxruntime-1.11")]
    OnnxRuntime111,
    /// TensorRT 8.2: opset 13, without the operators that its parser does not read
    #[value(name = "tensorrt-8.2")]
    TensorRt82,
    /// Any runtime of opset 13
    #[value(name = "opset-13")]
    Opset13,
}

impl From<TargetName> for Target {
    fn from(name: TargetName) -> Target {
        match name {
            TargetName::OnnxRuntime110 => Target::OnnxRuntime110,
            TargetName::OnnxRuntime111 => Target::OnnxRuntime111,
            TargetName::TensorRt82 => Target::TensorRt82,
            TargetName::Opset13 => Target::Opset13,
        }
    }
}

/// Returns the line about a node that the target does not have in its form.
pub fn line(node: &LoweredNode) -> String {
    let state = if node.lowered { "lowered" } else { "stays" };
    let name = if node.node.is_empty() { "(inner)" } else { &node.node };
    format!("{state:<9} {} {name}: {}", node.operator, node.words)
}

/// Returns the line with the numbers of these nodes.
pub fn summary(model: &LoweredModel) -> String {
    let lowered = model.nodes.iter().filter(|node| node.lowered).count();
    format!("{lowered} lowered, {} stay, opset {}", model.nodes.len() - lowered, model.opset)
}
