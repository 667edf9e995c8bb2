//! Selective scans that are written as nodes for every token.

use super::builder::GraphBuilder;
use crate::array::Kind;
use crate::change::SCAN_OPERATOR;
use crate::model::Model;
use crate::node::Node;

const CHANNELS: usize = 6;
const STATES: usize = 4;
const TOKENS: usize = 5;

/// How a scan is written.
#[derive(Clone, Copy)]
struct Written {
    batch: &'static str,
    /// Elements of the state before the first token.
    start: f64,
    /// Token whose factors the third token reads.
    third: f64,
    /// Whether each state is cast to f32, and the factors of each product are exchanged.
    other: bool,
}

const MAMBA: Written = Written { batch: "2", start: 0.0, third: 2.0, other: false };

impl Written {
    /// Builds the scan. Also returns the name of its last state.
    fn graph(self) -> (GraphBuilder, String) {
        let mut g = GraphBuilder::new(17);
        let [u, delta] = ["u", "delta"].map(|name| g.input(name, Kind::F32, &[self.batch, "6", "5"]));
        let [b, c] = ["b", "c"].map(|name| g.input(name, Kind::F32, &[self.batch, "5", "4"]));
        let data = (0..CHANNELS * STATES).map(|i| -0.1 - 0.2 * i as f64).collect();
        let rates = g.constant(Kind::F32, &[1, CHANNELS, 1, STATES], data);
        let axis = |g: &mut GraphBuilder, name: &str, axis: i64| {
            let axis = g.ints(&[axis]);
            g.node("Unsqueeze", &[name, &axis], &[])
        };
        let exchange = self.other;
        let pair = |g: &mut GraphBuilder, op: &str, a: &str, b: &str| {
            g.node(op, &if exchange { [b, a] } else { [a, b] }, &[])
        };
        let delta = axis(&mut g, &delta, 3);
        let exponents = pair(&mut g, "Mul", &rates, &delta);
        let factors = g.node("Exp", &[&exponents], &[]);
        let (b, u) = (axis(&mut g, &b, 1), axis(&mut g, &u, 3));
        let product = pair(&mut g, "Mul", &delta, &b);
        let added = pair(&mut g, "Mul", &product, &u);
        let at = |g: &mut GraphBuilder, name: &str, axis: i64, i: f64| {
            let i = g.constant(Kind::I64, &[], vec![i]);
            g.node("Gather", &[name, &i], &[("axis", &[axis])])
        };
        let mut state = g.constant(Kind::F32, &[1, CHANNELS, STATES], vec![self.start; CHANNELS * STATES]);
        let mut parts = Vec::new();
        for t in 0..TOKENS {
            let token = t as f64;
            let factor = at(&mut g, &factors, 2, if t == 2 { self.third } else { token });
            let kept = pair(&mut g, "Mul", &factor, &state);
            let new = at(&mut g, &added, 2, token);
            state = pair(&mut g, "Add", &kept, &new);
            if self.other {
                state = g.node("Cast", &[&state], &[("to", &[1])]);
            }
            let read = at(&mut g, &c, 1, token);
            let read = axis(&mut g, &read, 2);
            let out = g.node("MatMul", &[&state, &read], &[]);
            let out = at(&mut g, &out, 2, 0.0);
            parts.push(axis(&mut g, &out, 2));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let y = g.node("Concat", &parts, &[("axis", &[2])]);
        g.output(&y);
        (g, state)
    }
}

#[test]
fn nodes_of_every_token_become_a_scan() {
    for (batch, other) in [("2", false), ("2", true), ("b", false), ("b", true)] {
        let (g, _) = Written { batch, other, ..MAMBA }.graph();
        let (found, bytes) = g.only();
        assert!(found.replaced && found.what == "selective scan", "{found:?}");
        assert_eq!(found.words, "6 channels, 4 states, 5 tokens");
        let model = Model::read(&bytes).unwrap();
        let nodes = &model.graph.nodes;
        let scan: Vec<&Node> = nodes.iter().filter(|node| node.op == SCAN_OPERATOR).collect();
        assert_eq!((scan.len(), &scan[0].inputs[..2]), (1, &["u".to_owned(), "delta".to_owned()][..]));
        // Only the layouts of three operands are left.
        let mut ops: Vec<&str> = nodes.iter().map(|node| node.op.as_str()).collect();
        ops.sort_unstable();
        assert_eq!(ops, [SCAN_OPERATOR, "Reshape", "Transpose", "Transpose"]);
    }
}

#[test]
fn other_recurrences_stay() {
    Written { third: 3.0, ..MAMBA }.graph().0.stays("the proof failed");
    Written { start: 0.25, ..MAMBA }.graph().0.stays("the proof failed");
    // The state after the last token is an output.
    let (mut g, state) = MAMBA.graph();
    g.output(&state);
    g.stays("other nodes read the states of its tokens");
    // The outputs are in another order.
    let (mut g, _) = MAMBA.graph();
    g.nodes.last_mut().unwrap().inputs.swap(1, 2);
    g.stays("the proof failed");
    // The states are f16.
    let (mut g, _) = MAMBA.graph();
    g.inputs.iter_mut().for_each(|input| input.1 = Kind::F16);
    g.constants
        .iter_mut()
        .filter(|(_, array)| array.kind == Kind::F32)
        .for_each(|(_, array)| array.kind = Kind::F16);
    g.stays("is f16; allowed: f32");
}
