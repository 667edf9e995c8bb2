//! Types and shapes of the outputs of ONNX Runtime's own operators, which its optimizers and quantizers write into
//! models.

use super::array::Kind;
use super::extents::{convolved, matmul, quantized};
use super::node::Node;
use super::single;
use super::size::Size;
use super::stateful::StatefulNode;
use super::value::{OutputTypes, Value, broadcast};

/// Derives the types and shapes of the outputs of `node`, an operator of ONNX Runtime; `None` if they cannot be
/// derived.
#[must_use]
pub fn of(node: &Node, inputs: &[Option<&Value>]) -> Option<OutputTypes> {
    let get = |i: usize| inputs.get(i).copied().flatten();
    let first = get(0)?;
    let one = |kind: Kind, shape: Vec<Size>| Some(vec![(kind, shape)]);
    match node.op.as_str() {
        "Gelu" | "FastGelu" | "QuickGelu" | "BiasGelu" | "BiasAdd" | "BiasSoftmax" | "BiasDropout"
        | "GroupNorm" | "RotaryEmbedding" | "QLinearSigmoid" | "QLinearLeakyRelu" | "QLinearSoftmax" => {
            one(first.kind, first.shape.clone())
        }
        "QuantizeLinear" | "DequantizeLinear" => one(quantized(node, inputs)?, first.shape.clone()),
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => {
            let mut rows = first.shape.clone();
            *rows.last_mut()? = Size::from(1);
            // The answer, two numbers for each row, and the sum of both inputs.
            Some(vec![
                (first.kind, first.shape.clone()),
                (Kind::F32, rows.clone()),
                (Kind::F32, rows),
                (first.kind, first.shape.clone()),
            ])
        }
        "FusedMatMul" => {
            let set = |name: &str| node.int(name).unwrap_or(0) != 0;
            (!set("transBatchA") && !set("transBatchB")).then_some(())?;
            one(first.kind, matmul(&turned(first, set("transA"))?, &turned(get(1)?, set("transB"))?)?)
        }
        "FusedConv" => one(first.kind, convolved(node, &first.shape, &get(1)?.shape)?),
        "MatMulIntegerToFloat" => one(get(2)?.kind, matmul(&first.shape, &get(1)?.shape)?),
        "DynamicQuantizeMatMul" => one(first.kind, matmul(&first.shape, &get(1)?.shape)?),
        "MatMulNBits" => {
            let mut shape = first.shape.clone();
            *shape.last_mut()? = Size::from(node.int("N").filter(|&n| n > 0)?);
            one(first.kind, shape)
        }
        "QLinearAdd" | "QLinearMul" => one(first.kind, broadcast(&[&first.shape, &get(3)?.shape])?),
        "LinearAttention" | "CausalConvWithState" => StatefulNode::of(node)?.outputs(inputs),
        "MultiHeadAttention" | "Attention" => {
            let shape = |i: usize| get(i).map(|value| value.shape.as_slice());
            let sizes = single::FusedSizes::of(node, &shape).ok()?;
            Some(sizes.outputs()?.into_iter().map(|shape| (first.kind, shape)).collect())
        }
        _ => None,
    }
}

/// Returns the shape of `value`, with its last two axes exchanged if `swap` is set.
fn turned(value: &Value, swap: bool) -> Option<Vec<Size>> {
    let mut shape = value.shape.clone();
    if swap {
        let last = shape.len().checked_sub(1)?;
        shape.swap(last.checked_sub(1)?, last);
    }
    Some(shape)
}
