//! The gated delta rule by a chunk of tokens.

use super::builder::GraphBuilder;
use crate::array::Kind;
use crate::change::LINEAR_OPERATOR;
use crate::model::Model;

/// Builds the rule for two heads and a chunk of three tokens. The system of three rows has the solution I + N + N². `squares`
/// leaves out N² if it is unset. Also returns the name of the system's solution.
fn chunk(squares: bool) -> (GraphBuilder, String) {
    let mut g = GraphBuilder::new(17);
    let [q, k] = ["q", "k"].map(|name| g.input(name, Kind::F32, &["1", "2", "3", "4"]));
    let v = g.input("v", Kind::F32, &["1", "2", "3", "5"]);
    let [beta, gate] = ["beta", "gate"].map(|name| g.input(name, Kind::F32, &["1", "2", "3"]));
    let axis = |g: &mut GraphBuilder, name: &str, axis: i64| {
        let axis = g.ints(&[axis]);
        g.node("Unsqueeze", &[name, &axis], &[])
    };
    let first = |g: &mut GraphBuilder, name: &str| {
        let i = g.constant(Kind::I64, &[], vec![0.0]);
        g.node("Gather", &[name, &i], &[("axis", &[2])])
    };
    // The padding adds no tokens.
    let pads = g.ints(&[0; 8]);
    let [q, k, v] = [q, k, v].map(|name| g.node("Pad", &[&name, &pads], &[]));
    let pads = g.ints(&[0; 6]);
    let [beta, gate] = [beta, gate].map(|name| g.node("Pad", &[&name, &pads], &[]));
    let beta = axis(&mut g, &beta, -1);
    let [rated_v, rated_k] = [&v, &k].map(|name| g.node("Mul", &[name, &beta], &[]));
    let [q, k, rated_k] = [q, k, rated_k].map(|name| g.reshape(&name, &[1, 2, 1, 3, 4]));
    let rated_v = g.reshape(&rated_v, &[1, 2, 1, 3, 5]);
    let gate = g.reshape(&gate, &[1, 2, 1, 3]);
    let three = g.constant(Kind::I64, &[], vec![3.0]);
    let sums = g.node("CumSum", &[&gate, &three], &[]);
    let [rows, columns] = [4, 3].map(|at| axis(&mut g, &sums, at));
    let differences = g.node("Sub", &[&rows, &columns], &[]);
    let later = g.constant(Kind::F32, &[3, 3], vec![0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    let later = g.node("Cast", &[&later], &[("to", &[9])]);
    let low = g.number(f64::NEG_INFINITY);
    let masked = g.node("Where", &[&later, &low, &differences], &[]);
    let decay = g.node("Exp", &[&masked], &[]);
    let turned = g.node("Transpose", &[&k], &[("perm", &[0, 1, 2, 4, 3])]);
    let [system, scores] = [&rated_k, &q].map(|name| {
        let product = g.node("MatMul", &[name, &turned], &[]);
        g.node("Mul", &[&product, &decay], &[])
    });
    let below = g.constant(Kind::I64, &[], vec![-1.0]);
    let lower = g.node("Trilu", &[&system, &below], &[("upper", &[0])]);
    let minus = g.node("Neg", &[&lower], &[]);
    let one = g.constant(Kind::F32, &[3, 3], vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    let mut solution = g.node("Add", &[&minus, &one], &[]);
    if squares {
        let square = g.node("MatMul", &[&minus, &minus], &[]);
        solution = g.node("Add", &[&solution, &square], &[]);
    }
    let grown = g.node("Exp", &[&sums], &[]);
    let grown = axis(&mut g, &grown, -1);
    let read_k = g.node("Mul", &[&rated_k, &grown], &[]);
    let [new, old] = [&rated_v, &read_k].map(|name| g.node("MatMul", &[&solution, name], &[]));
    let state = g.constant(Kind::F32, &[1, 2, 4, 5], vec![0.0; 40]);
    let [new, old] = [new, old].map(|name| first(&mut g, &name));
    let old = g.node("MatMul", &[&old, &state], &[]);
    let values = g.node("Sub", &[&new, &old], &[]);
    let read_q = g.node("Mul", &[&q, &grown], &[]);
    let [read_q, scores] = [read_q, scores].map(|name| first(&mut g, &name));
    let far = g.node("MatMul", &[&read_q, &state], &[]);
    let near = g.node("MatMul", &[&scores, &values], &[]);
    let out = g.node("Add", &[&far, &near], &[]);
    let out = axis(&mut g, &out, 2);
    let zeros = g.constant(Kind::F32, &[1, 2, 1, 3, 5], vec![0.0; 30]);
    let places = g.constant(Kind::I64, &[1, 2, 1, 3, 5], vec![0.0; 30]);
    let all = g.node("ScatterElements", &[&zeros, &places, &out], &[("axis", &[2])]);
    let y = g.reshape(&all, &[1, 2, 3, 5]);
    g.output(&y);
    (g, solution)
}

#[test]
fn a_chunk_becomes_a_gated_delta_rule() {
    let (found, bytes) = chunk(true).0.only();
    assert!(found.replaced && found.what == "linear attention", "{found:?}");
    assert_eq!(found.words, "rule gated delta, 2 heads of 4, chunks");
    let model = Model::read(&bytes).unwrap();
    let mut ops: Vec<&str> = model.graph.nodes.iter().map(|node| node.op.as_str()).collect();
    ops.sort_unstable();
    assert_eq!(ops, [LINEAR_OPERATOR, "Reshape", "Reshape"]);
}

#[test]
fn other_chunks_stay() {
    // The system is not solved.
    chunk(false).0.stays("the proof failed");
    let (mut g, solution) = chunk(true);
    g.output(&solution);
    g.stays("other nodes read the states of its chunks");
    // The state before the first token is not zero.
    let (mut g, _) = chunk(true);
    let state = g.constants.iter_mut().find(|(_, array)| array.shape == [1, 2, 4, 5]).unwrap();
    state.1 = crate::array::Array::new(Kind::F32, vec![1, 2, 4, 5], vec![0.5; 40]);
    g.stays("the proof failed");
}
