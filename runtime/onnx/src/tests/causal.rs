//! Tests of attention nodes that an attribute makes causal.

use super::super::array::Kind;
use super::super::change;
use super::super::model::Model;
use super::builder::{GraphBuilder, Pairs};

/// Replaces a node `op` whose tensors have three axes, and returns the attribute `is_causal` of the new node.
fn becomes(opset: i64, op: &str, attributes: Pairs<'_>) -> Option<i64> {
    let mut g = GraphBuilder::new(opset);
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, &["2", "5", "8"]));
    let y = g.node(op, &[&q, &k, &v], attributes);
    g.output(&y);
    let (found, bytes) = g.rewritten();
    assert!(found.len() == 1 && found[0].replaced, "{found:?}");
    let model = Model::read(&bytes).unwrap();
    let new = model.graph.nodes.iter().find(|node| node.op == change::OPERATOR).unwrap();
    new.int("is_causal")
}

#[test]
fn a_causal_node_stays_causal() {
    let heads: Pairs<'_> = &[("q_num_heads", &[1]), ("kv_num_heads", &[1])];
    assert_eq!(becomes(23, "Attention", &[heads, &[("is_causal", &[1])]].concat()), Some(1));
    assert_eq!(becomes(23, "Attention", heads), None);
    let heads: Pairs<'_> = &[("num_heads", &[1])];
    assert_eq!(becomes(17, "MultiHeadAttention", &[heads, &[("unidirectional", &[1])]].concat()), Some(1));
    assert_eq!(becomes(17, "MultiHeadAttention", heads), None);
}
