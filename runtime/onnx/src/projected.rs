//! `Attention` of ONNX Runtime, which multiplies its input by weights before it attends:
//!
//! ```text
//! input, weights, bias -> Attention      becomes      input, weights -> MatMul -> Add (bias) -> Attention
//! ```
//!
//! The second `Attention` has neither weights nor a bias. It exists only in the rewriter: if it is not replaced, the
//! original node stays.

use super::node::{MICROSOFT, Node};

/// Returns nodes that are equivalent to an `Attention` of ONNX Runtime; `None` for other nodes. The names of new
/// tensors begin with the name of the output and `mark`.
#[must_use]
pub fn parts(node: &Node, mark: &str) -> Option<Vec<Node>> {
    (node.op == "Attention" && node.domain == MICROSOFT).then_some(())?;
    node.int("num_heads")?;
    let (input, weights) = (node.input(0)?, node.input(1)?);
    let answer = node.outputs.first().filter(|name| !name.is_empty())?;
    let plain = |op: &str, inputs: [&str; 2], what: &str| {
        let output = format!("{answer}{mark}_{what}");
        Node {
            name: output.clone(),
            op: op.to_owned(),
            inputs: inputs.map(str::to_owned).into(),
            outputs: vec![output],
            ..Node::default()
        }
    };
    let mut nodes = vec![plain("MatMul", [input, weights], "product")];
    if let Some(bias) = node.input(2) {
        let sum = plain("Add", [&nodes[0].outputs[0], bias], "rows");
        nodes.push(sum);
    }
    let mut rest = node.clone();
    rest.inputs[0] = nodes.last()?.outputs[0].clone();
    rest.inputs.iter_mut().skip(1).take(2).for_each(String::clear);
    nodes.push(rest);
    Some(nodes)
}
