//! Multiply-adds of nodes at one choice of sizes of the free axes.

use super::einsum;
use super::find::{AttentionPattern, Site};
use super::infer::World;
use super::model::Graph;
use super::node::Node;
use super::single::FusedSizes;
use super::size::Size;
use super::stateful::StatefulNode;
use super::value::sized;
use std::collections::BTreeMap;

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
        _ if StatefulNode::of(node).is_some() => of_stateful(world, node)?,
        _ => 0.0,
    })
}

/// Returns the number of multiply-adds of a fused attention.
pub fn of_fused(world: &World<'_>, node: &Node) -> Option<f64> {
    let shapes: Vec<Option<Vec<Size>>> =
        node.inputs.iter().map(|name| world.shape(name).and_then(sized)).collect();
    let sizes = FusedSizes::of(node, &|i| shapes.get(i)?.as_deref()).ok()?;
    let scores: Vec<i64> = sizes.scores()?.iter().map(Size::known).collect::<Option<_>>()?;
    let pairs: f64 = scores.iter().map(|&n| n as f64).product();
    Some(pairs * sizes.dim.plus(&sizes.value_dim)?.known()? as f64)
}

/// Returns the number of multiply-adds of a node that keeps a state.
pub fn of_stateful(world: &World<'_>, node: &Node) -> Option<f64> {
    let input = |i: usize| world.shape(node.input(i)?);
    let made = world.shape(node.outputs.first()?).map(size)?;
    match StatefulNode::of(node)? {
        StatefulNode::Conv(_) => Some(made * *input(1)?.last()? as f64),
        StatefulNode::Linear(_) => {
            let dim = *input(0)?.last()? as f64 / node.int("q_num_heads")? as f64;
            // A delta rule reads its state before it writes it.
            let passes = if node.input(5).is_some() { 2.0 } else { 1.0 };
            Some(dim * (made + passes * size(input(2)?)))
        }
    }
}

/// Returns the number of multiply-adds of two products.
pub fn of_pair(world: &World<'_>, first: &Node, second: &Node) -> Option<f64> {
    Some(of_node(world, first)? + of_node(world, second)?)
}

/// Returns the number of multiply-adds of both products of an attention.
pub fn of_products(world: &World<'_>, site: &Site<'_>, found: &AttentionPattern) -> Option<f64> {
    let last = found.outputs.iter().take(1).map(|(name, _)| name);
    let names = found.walk.iter().chain(&found.turned_walk).chain(last);
    let nodes: BTreeMap<usize, &Node> = names.filter_map(|name| site.producer(name)).collect();
    nodes.values().map(|node| of_node(world, node)).sum()
}

/// Returns the number of multiply-adds of a graph, without those of graphs within its nodes. Returns `None` if the
/// number depends on a shape that is unknown.
pub fn of_graph(world: &World<'_>, graph: &Graph) -> Option<f64> {
    graph.nodes.iter().map(|node| of_node(world, node)).sum()
}
