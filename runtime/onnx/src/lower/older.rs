//! Builds the older nodes that replace a node.

use super::facts::{Facts, input};
use crate::array::{Array, Kind};
use crate::change::Builder;
use crate::find::Reason;
use crate::node::{Attribute, Node};

/// Collects the nodes that replace a node, for a version of ONNX's operators.
pub struct OlderNodes<'a> {
    /// The nodes and their constants.
    pub builder: Builder<'a>,
    /// Version of ONNX's operators that the nodes belong to.
    pub opset: i64,
}

impl<'a> OlderNodes<'a> {
    /// Creates an empty collection, whose names begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &'a str, opset: i64) -> OlderNodes<'a> {
        OlderNodes { builder: Builder::new(prefix), opset }
    }

    /// Adds a node of an operator of ONNX, and returns the name of its output.
    pub fn node(&mut self, op: &str, inputs: &[&str]) -> String {
        self.builder.node(&op.to_lowercase(), op, inputs)
    }

    /// Adds a constant with one number and no axis, and returns its name.
    pub fn number(&mut self, kind: Kind, x: f64) -> String {
        self.builder.constant("number", Array::new(kind, vec![], vec![x]))
    }

    /// Converts a tensor to another type.
    pub fn cast(&mut self, name: &str, kind: Kind) -> String {
        let made = self.node("Cast", &[name]);
        self.builder.set("to", Attribute::Int(kind.0));
        made
    }

    /// Returns the name of input `i` of `node` in the type in which the new nodes compute.
    ///
    /// # Errors
    /// Returns the reason why the node is not lowered.
    pub fn wide(&mut self, facts: &Facts<'_>, node: &Node, i: usize) -> Result<String, Reason> {
        let name = input(node, i)?;
        let kind = facts.float(name)?;
        Ok(if working(kind) == kind { name.to_owned() } else { self.cast(name, working(kind)) })
    }

    /// Returns the mean over the axes `axes`, which stay with size 1.
    pub fn mean(&mut self, name: &str, axes: &[i64]) -> String {
        if self.opset < 18 {
            let made = self.node("ReduceMean", &[name]);
            self.builder.set("axes", Attribute::Ints(axes.to_vec()));
            return made;
        }
        let axes = self.builder.ints("axes", axes.iter().copied());
        self.node("ReduceMean", &[name, &axes])
    }

    /// Inserts an axis of size 1.
    pub fn unsqueezed(&mut self, name: &str, axis: i64) -> String {
        if self.opset < 13 {
            let made = self.node("Unsqueeze", &[name]);
            self.builder.set("axes", Attribute::Ints(vec![axis]));
            return made;
        }
        let axes = self.builder.ints("axes", [axis]);
        self.node("Unsqueeze", &[name, &axes])
    }

    /// Reshapes a tensor to fixed sizes; 0 keeps the size of an axis, and −1 is computed.
    pub fn reshaped(&mut self, name: &str, sizes: &[i64]) -> String {
        let sizes = self.builder.ints("sizes", sizes.iter().copied());
        self.node("Reshape", &[name, &sizes])
    }

    /// Keeps every `step`-th index of the last axis, from `from` up to `to`.
    pub fn strided(&mut self, name: &str, from: i64, to: i64, step: i64) -> String {
        let [from, to, axis, step] = [from, to, -1, step].map(|n| self.builder.ints("cut", [n]));
        self.node("Slice", &[name, &from, &to, &axis, &step])
    }

    /// Converts a tensor to `kind` if this is not the type in which the new nodes compute, and gives the result the name
    /// `output`.
    pub fn finish(&mut self, name: &str, kind: Kind, output: &str) {
        if working(kind) != kind {
            self.cast(name, kind);
        } else if self.builder.nodes.last().is_none_or(|node| node.outputs != [name]) {
            self.node("Identity", &[name]);
        }
        self.builder.rename_last(output);
    }
}

/// Returns the type in which tensors of the type `kind` are computed: f64 for f64, and f32 for any other type.
#[must_use]
pub fn working(kind: Kind) -> Kind {
    if kind == Kind::F64 { Kind::F64 } else { Kind::F32 }
}

/// End of a slice that keeps everything up to the end of an axis. TensorRT 8.2 reads it as a 32-bit integer.
pub const END: i64 = i32::MAX as i64;
