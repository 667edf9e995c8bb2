//! Products of values with transposed weights, such as `v · pᵀ` in YOLO.
//!
//! The operator has the weights on the left, so the product is replaced by equivalent nodes:
//!
//! ```text
//! weights -> Transpose                                            weights \
//!                      \                     becomes                       MatMul -> Transpose
//! values  ------------- MatMul                          values -> Transpose /
//! ```

use super::node::{Attribute, Node};
use std::collections::HashMap;

/// Maximum number of nodes between a softmax and the product with values.
const LONGEST: usize = 8;

/// Returns the products of values with transposed weights. The key of each entry is the index of the product; the value
/// is the index of the Transpose, whose output only this product reads. `outputs` are the outputs of the graph.
#[must_use]
pub fn products<'a>(nodes: &'a [Node], outputs: impl Iterator<Item = &'a String>) -> HashMap<usize, usize> {
    let mut readers: HashMap<&str, usize> = HashMap::new();
    let read = nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.captured));
    read.chain(outputs).for_each(|name| *readers.entry(name).or_default() += 1);
    let mut producer: HashMap<&str, usize> = HashMap::new();
    for (n, node) in nodes.iter().enumerate() {
        producer.extend(node.outputs.iter().map(|name| (name.as_str(), n)));
    }
    let made = |name: &str| producer.get(name).map(|&n| &nodes[n]);
    let is_weights = |name: &str| {
        let mut node = made(name);
        for _ in 0..LONGEST {
            let Some(found) = node else { return false };
            let input = |i: usize| found.input(i).and_then(made);
            node = match found.op.as_str() {
                _ if !found.domain.is_empty() => return false,
                "Softmax" => return true,
                "Div" | "Mul" => {
                    return [0, 1].into_iter().any(|i| input(i).is_some_and(|node| node.is("Exp")));
                }
                "Cast" | "Identity" | "Dropout" | "Reshape" => input(0),
                "Where" => input(2),
                _ => return false,
            };
        }
        false
    };
    let turned = |(n, node): (usize, &Node)| {
        let weights = node.input(1).filter(|name| node.is("MatMul") && readers.get(name) == Some(&1))?;
        let at = *producer.get(weights).filter(|&&at| at < n)?;
        swaps_last(&nodes[at])?;
        nodes[at].input(0).filter(|name| is_weights(name))?;
        Some((n, at))
    };
    nodes.iter().enumerate().filter_map(turned).collect()
}

/// Returns the permutation of a Transpose that exchanges the last two axes; `None` for other nodes.
#[must_use]
pub fn swaps_last(node: &Node) -> Option<&[i64]> {
    let order = node.ints("perm").filter(|_| node.is("Transpose"))?;
    let rank = order.len().checked_sub(2)?;
    let mut swapped: Vec<i64> = (0..).take(order.len()).collect();
    swapped.swap(rank, rank + 1);
    (order == swapped).then_some(order)
}

/// Returns nodes that are equivalent to `product`, the product of values with the output of `transpose`. The second of
/// these nodes is the product with the weights on the left. The names of new tensors begin with the name of the output
/// and `mark`.
#[must_use]
pub fn parts(product: &Node, transpose: &Node, mark: &str) -> Option<[Node; 3]> {
    let order = Attribute::Ints(swaps_last(transpose)?.to_vec());
    let (values, weights) = (product.input(0)?, transpose.input(0)?);
    let answer = product.outputs.first().filter(|name| !name.is_empty())?;
    let (turned, made) = (format!("{answer}{mark}_values"), format!("{answer}{mark}_turned"));
    let node = |op: &str, inputs: &[&str], output: &str| Node {
        name: output.to_owned(),
        op: op.to_owned(),
        inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
        outputs: vec![output.to_owned()],
        ..Node::default()
    };
    let transposed = |input: &str, output: &str| Node {
        attributes: [("perm".to_owned(), order.clone())].into(),
        ..node("Transpose", &[input], output)
    };
    Some([transposed(values, &turned), node("MatMul", &[weights, &turned], &made), transposed(&made, answer)])
}
