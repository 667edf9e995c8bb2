//! A softmax without a node `Softmax`.

use super::model::Graph;
use super::node::Node;

/// A softmax that a graph computes with separate nodes: `Exp`, `ReduceSum` and a quotient.
pub struct WrittenSoftmax<'a> {
    /// Name of the exponentials.
    pub exponentials: &'a str,
    /// Node that sums the exponentials.
    pub sum: &'a Node,
    /// Name of the inverse sums, if the exponentials are multiplied by them.
    pub inverse: Option<&'a str>,
}

impl<'a> WrittenSoftmax<'a> {
    /// Returns the parts of a softmax whose last node is `node`; `None` for other nodes.
    #[must_use]
    pub fn of(graph: &'a Graph, node: &'a Node) -> Option<WrittenSoftmax<'a>> {
        let made = |name: &str, op: &str| -> Option<&'a Node> {
            Some(&graph.nodes[*graph.producer.get(name)?]).filter(|node| node.is(op))
        };
        let sums = |name: &str, of: &str| made(name, "ReduceSum").filter(|sum| sum.input(0) == Some(of));
        let (a, b) = (node.input(0)?, node.input(1)?);
        if node.is("Div") {
            made(a, "Exp")?;
            return Some(WrittenSoftmax { exponentials: a, sum: sums(b, a)?, inverse: None });
        }
        node.is("Mul").then_some(())?;
        [(a, b), (b, a)].into_iter().find_map(|(exponentials, inverse)| {
            made(exponentials, "Exp")?;
            let sum = sums(made(inverse, "Reciprocal")?.input(0)?, exponentials)?;
            Some(WrittenSoftmax { exponentials, sum, inverse: Some(inverse) })
        })
    }
}
