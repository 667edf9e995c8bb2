//! Normalizations in older operators: `LayerNormalization`, `RMSNormalization` and `GroupNormalization`.
//!
//! All of them subtract a mean `m` (except `RMSNormalization`), divide by a deviation, and apply a scale and a bias:
//!
//! ```text
//! y = (x − m) / sqrt(mean((x − m)²) + epsilon) · scale + bias
//! ```
//!
//! The new nodes compute this formula in this order, in f32 or f64. They differ from exact arithmetic only by the
//! rounding of each step.

use super::facts::{Facts, input, output};
use super::older::{OlderNodes, working};
use crate::array::Kind;
use crate::find::Reason;
use crate::node::Node;
use crate::value::place;

/// The default of the attribute `epsilon`.
const EPSILON: f32 = 1e-5;

/// Returns the axes that a node normalizes: from its attribute `axis` to the last one.
fn axes(node: &Node, facts: &Facts<'_>) -> Result<Vec<i64>, Reason> {
    let axis = node.int("axis").unwrap_or(-1);
    if axis < 0 {
        return Ok((axis..0).collect());
    }
    let rank = facts.rank(input(node, 0)?)?;
    let first = place(axis, rank).ok_or_else(|| format!("its axis is {axis}, and its input has {rank}"))?;
    Ok((first..rank).filter_map(|axis| i64::try_from(axis).ok()).collect())
}

/// Adds nodes that compute `sqrt(mean(x²) + epsilon)`.
fn deviation(o: &mut OlderNodes<'_>, x: &str, axes: &[i64], kind: Kind, node: &Node) -> String {
    // ONNX Runtime and TensorRT recognise a normalization by this power.
    let two = o.number(kind, 2.0);
    let squares = o.node("Pow", &[x, &two]);
    let variance = o.mean(&squares, axes);
    let epsilon = o.number(kind, f64::from(node.float("epsilon").unwrap_or(EPSILON)));
    let sum = o.node("Add", &[&variance, &epsilon]);
    o.node("Sqrt", &[&sum])
}

/// Names a second output of a normalization, whose type is f32. The node has no such output if its name is empty.
fn extra(o: &mut OlderNodes<'_>, node: &Node, i: usize, kind: Kind, value: &str) {
    let Some(name) = node.outputs.get(i).filter(|name| !name.is_empty()) else { return };
    if kind == Kind::F32 {
        o.node("Identity", &[value]);
    } else {
        o.cast(value, Kind::F32);
    }
    o.builder.rename_last(name);
}

/// Adds nodes that compute `1 / x` as output `i`, if `node` has this output.
fn inverse(o: &mut OlderNodes<'_>, node: &Node, i: usize, kind: Kind, x: &str) {
    if node.outputs.get(i).is_some_and(|name| !name.is_empty()) {
        let one = o.number(kind, 1.0);
        let inverse = o.node("Div", &[&one, x]);
        extra(o, node, i, kind, &inverse);
    }
}

/// Lowers `LayerNormalization`.
///
/// # Errors
/// Returns the reason why the node is not lowered.
pub fn layer(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<(), Reason> {
    let kind = facts.float(input(node, 0)?)?;
    let (work, axes) = (working(kind), axes(node, facts)?);
    let x = o.wide(facts, node, 0)?;
    let mean = o.mean(&x, &axes);
    let centred = o.node("Sub", &[&x, &mean]);
    let deviation = deviation(o, &centred, &axes, work, node);
    let normal = o.node("Div", &[&centred, &deviation]);
    let scale = o.wide(facts, node, 1)?;
    let bias = node.input(2).map(|_| o.wide(facts, node, 2)).transpose()?;
    let mut y = o.node("Mul", &[&normal, &scale]);
    if let Some(bias) = bias {
        y = o.node("Add", &[&y, &bias]);
    }
    o.finish(&y, kind, output(node)?);
    extra(o, node, 1, work, &mean);
    inverse(o, node, 2, work, &deviation);
    Ok(())
}

/// Lowers `RMSNormalization` of ONNX, and `SimplifiedLayerNormalization` of ONNX Runtime, which is the same function.
///
/// # Errors
/// Returns the reason why the node is not lowered.
pub fn rms(node: &Node, facts: &Facts<'_>, o: &mut OlderNodes<'_>) -> Result<(), Reason> {
    let kind = facts.float(input(node, 0)?)?;
    let (work, axes) = (working(kind), axes(node, facts)?);
    let x = o.wide(facts, node, 0)?;
    let deviation = deviation(o, &x, &axes, work, node);
    let normal = o.node("Div", &[&x, &deviation]);
    let scale = o.wide(facts, node, 1)?;
    let y = o.node("Mul", &[&normal, &scale]);
    o.finish(&y, kind, output(node)?);
    inverse(o, node, 1, work, &deviation);
    Ok(())
}

/// Lowers `GroupNormalization` of the opset `from`. Before opset 21, its scale and bias have an element for each group;
/// from opset 21 on, for each channel.
///
/// # Errors
/// Returns the reason why the node is not lowered.
pub fn group(node: &Node, facts: &Facts<'_>, from: i64, o: &mut OlderNodes<'_>) -> Result<(), Reason> {
    let kind = facts.float(input(node, 0)?)?;
    let groups = node.int("num_groups").ok_or("it has no attribute num_groups")?;
    let whole = o.wide(facts, node, 0)?;
    // Axes: batch, groups, elements of a group.
    let x = o.reshaped(&whole, &[0, groups, -1]);
    let mean = o.mean(&x, &[2]);
    let centred = o.node("Sub", &[&x, &mean]);
    let deviation = deviation(o, &centred, &[2], working(kind), node);
    let mut y = o.node("Div", &[&centred, &deviation]);
    let (scale, bias) = (o.wide(facts, node, 1)?, o.wide(facts, node, 2)?);
    if from >= 21 {
        // Axes: batch, channels, elements of a channel.
        y = match facts.size(input(node, 1)?, 0) {
            Some(channels) => o.reshaped(&y, &[0, channels, -1]),
            None => {
                let [batch, rest] = [0, -1].map(|n| o.builder.ints("size", [n]));
                let channels = o.node("Shape", &[&scale]);
                o.builder.reshaped(&y, &[&batch, &channels, &rest])
            }
        };
    }
    let (scale, bias) = (o.unsqueezed(&scale, 1), o.unsqueezed(&bias, 1));
    let scaled = o.node("Mul", &[&y, &scale]);
    let sum = o.node("Add", &[&scaled, &bias]);
    let shape = o.node("Shape", &[&whole]);
    let y = o.node("Reshape", &[&sum, &shape]);
    o.finish(&y, kind, output(node)?);
    Ok(())
}
