//! Multiply-adds of nodes at one choice of sizes of the free axes.

use super::einsum;
use super::find::AttentionPattern;
use super::infer::World;
use super::model::Graph;
use super::node::Node;

/// Returns the product of the sizes of a tensor's axes.
fn size(shape: &[usize]) -> f64 {
    shape.iter().map(|&n| n as f64).product()
}

/// Returns the number of multiply-adds of a matrix product, a convolution or an attention; 0 for other nodes. Returns
/// `None` if the number depends on a shape that is unknown.
fn of_node(world: &World<'_>, node: &Node) -> Option<f64> {
    let input = |i: usize| world.shape(node.input(i)?);
    let made = || world.shape(node.outputs.first()?).map(size);
    // Size of the axis that a product sums over, from its left factor.
    let inner = |turned: bool| {
        let shape = input(0)?;
        Some(*shape.get(shape.len().checked_sub(if turned { 2 } else { 1 })?)? as f64)
    };
    let turned = node.int("transA").unwrap_or(0) != 0;
    Some(match node.op.as_str() {
        "MatMul"
        | "MatMulInteger"
        | "MatMulIntegerToFloat"
        | "MatMulNBits"
        | "DynamicQuantizeMatMul"
        | "QLinearMatMul"
        | "FusedMatMul"
        | "Gemm" => made()? * inner(turned)?,
        "Conv" | "ConvInteger" | "FusedConv" => made()? * size(input(1)?.get(1..)?),
        "QLinearConv" => made()? * size(input(3)?.get(1..)?),
        "ConvTranspose" => size(input(0)?) * size(input(1)?.get(1..)?),
        "Einsum" => {
            let shapes: Option<Vec<&[usize]>> = (0..node.inputs.len()).map(input).collect();
            einsum::multiply_adds(node, &shapes?)?
        }
        _ if node.is_fused() => of_fused(world, node)?,
        _ => 0.0,
    })
}

/// Returns the number of multiply-adds of a fused attention.
pub fn of_fused(world: &World<'_>, node: &Node) -> Option<f64> {
    let (q, k) = (world.shape(node.input(0)?)?, world.shape(node.input(1)?)?);
    let keys = *k.get(k.len().checked_sub(2)?)? as f64;
    Some((size(q) + size(world.shape(node.outputs.first()?)?)) * keys)
}

/// Returns the number of multiply-adds of both products of an attention.
pub fn of_products(world: &World<'_>, found: &AttentionPattern) -> Option<f64> {
    let scores = world.shape(found.walk.first()?)?;
    let (q, made) = (world.shape(&found.operands[0].first()?.name)?, world.shape(&found.outputs.first()?.0)?);
    Some(size(scores) * *q.last()? as f64 + size(made) * *scores.last()? as f64)
}

/// Returns the number of multiply-adds of a graph, without those of graphs within its nodes. Returns `None` if the
/// number depends on a shape that is unknown.
pub fn of_graph(world: &World<'_>, graph: &Graph) -> Option<f64> {
    graph.nodes.iter().map(|node| of_node(world, node)).sum()
}
