//! Tests of nodes that keep a state: they become one operator, or stay for a true reason, and a wrong operator is not
//! proved.

use super::super::array::Kind;
use super::super::change::{CONV_OPERATOR as CONV, Change, LINEAR_OPERATOR as LINEAR};
use super::super::model::Model;
use super::super::node::{Attribute, MICROSOFT, Node};
use super::super::stateful::StatefulNode;
use super::super::symbols::Symbols;
use super::super::unrolled::prove;
use super::super::{Limits, find::Site, infer, stepwise};
use super::builder::GraphBuilder;

const F32: Kind = Kind::F32;
const F16: Kind = Kind::F16;

/// Gives the last node a text attribute.
fn set(g: &mut GraphBuilder, name: &str, value: &str) {
    g.nodes.last_mut().unwrap().attributes.insert(name.into(), Attribute::Text(value.into()));
}

/// Adds a linear attention of `heads` query heads of 3 with 2 states, by the rule `rule`. `kinds` are the types of the
/// operands and of the past; without the second there is no past.
fn linear(g: &mut GraphBuilder, heads: i64, rule: &str, kinds: (Kind, Option<Kind>)) {
    let width: &'static str = if heads == 4 { "12" } else { "6" };
    let [q, k] = [("q", width), ("k", "6")].map(|(name, width)| g.input(name, kinds.0, &["b", "n", width]));
    let v = g.input("v", kinds.0, &["b", "n", "10"]);
    let past = kinds.1.map_or(String::new(), |kind| g.input("past", kind, &["b", "2", "3", "5"]));
    let decay =
        if rule.starts_with("gated") { g.input("decay", kinds.0, &["b", "n", "2"]) } else { String::new() };
    let beta =
        if rule.ends_with("delta") { g.input("beta", kinds.0, &["b", "n", "1"]) } else { String::new() };
    let own = [heads];
    let pairs = [("q_num_heads", &own[..]), ("kv_num_heads", &[2])];
    let made = g.all("LinearAttention", &[&q, &k, &v, &past, &decay, &beta], &pairs, 2);
    set(g, "update_rule", rule);
    g.outputs.push((made[0].clone(), kinds.0));
    g.outputs.push((made[1].clone(), kinds.1.unwrap_or(kinds.0)));
}

/// Adds a convolution with every input.
fn conv(g: &mut GraphBuilder, kind: Kind, activation: &str) {
    let u = g.input("u", kind, &["b", "6", "n"]);
    let weight = g.input("weight", kind, &["6", "1", "4"]);
    let bias = g.input("bias", kind, &["6"]);
    let past = g.input("past", kind, &["b", "6", "3"]);
    let made = g.all("CausalConvWithState", &[&u, &weight, &bias, &past], &[], 2);
    set(g, "activation", activation);
    made.iter().for_each(|name| g.outputs.push((name.clone(), kind)));
}

/// Checks that the only site is replaced with the description `words`, and returns the nodes of the new model.
fn becomes(g: &GraphBuilder, words: &str) -> Vec<Node> {
    let (found, bytes) = g.rewritten();
    assert!(found.len() == 1 && found[0].replaced && found[0].words == words, "{found:?}");
    let model = Model::read(&bytes).unwrap();
    assert!(model.imports.contains(&("ai.elsa".into(), 1)));
    model.graph.nodes
}

fn ops(nodes: &[Node]) -> Vec<&str> {
    nodes.iter().map(|node| node.op.as_str()).collect()
}

#[test]
fn every_rule_is_replaced() {
    for (rule, inputs) in [
        ("linear", &["q", "k", "v"][..]),
        ("gated", &["q", "k", "v", "decay"]),
        ("delta", &["q", "k", "v", "", "beta"]),
        ("gated_delta", &["q", "k", "v", "decay", "beta"]),
    ] {
        let mut g = GraphBuilder::new(27);
        linear(&mut g, 4, rule, (F32, None));
        let nodes = becomes(&g, &format!("rule {rule}, 4 heads, 2 states"));
        assert_eq!(ops(&nodes), [LINEAR]);
        assert_eq!(nodes[0].inputs, inputs);
        assert_eq!((nodes[0].int("num_heads"), nodes[0].int("kv_num_heads")), (Some(4), Some(2)));
        let mut g = GraphBuilder::new(27);
        linear(&mut g, 2, rule, (F32, Some(F32)));
        let nodes = becomes(&g, &format!("rule {rule}, 2 heads, past"));
        assert_eq!((nodes[0].inputs.last().unwrap().as_str(), nodes[0].outputs.len()), ("past", 2));
    }
}

#[test]
fn states_of_f16_are_cast() {
    let mut g = GraphBuilder::new(27);
    linear(&mut g, 2, "gated", (F16, Some(F32)));
    assert_eq!(ops(&becomes(&g, "rule gated, 2 heads, past")), [LINEAR]);
    let mut g = GraphBuilder::new(27);
    linear(&mut g, 2, "gated", (F16, Some(F16)));
    assert_eq!(ops(&becomes(&g, "rule gated, 2 heads, past")), ["Cast", LINEAR, "Cast"]);
    // The state of a node without a past has the type of the operands.
    let mut g = GraphBuilder::new(27);
    linear(&mut g, 2, "linear", (F16, None));
    assert_eq!(ops(&becomes(&g, "rule linear, 2 heads")), [LINEAR, "Cast"]);
    let mut g = GraphBuilder::new(27);
    conv(&mut g, F16, "none");
    let nodes = becomes(&g, "causal filter of 4 weights, past");
    assert_eq!(ops(&nodes), ["Cast", "Cast", "Cast", CONV, "Cast"]);
    assert_eq!(nodes[4].int("to"), Some(Kind::F16.0));
}

#[test]
fn convolutions_are_replaced() {
    for (activation, words, silu) in [
        ("none", "causal filter of 4 weights, past", None),
        ("silu", "causal filter of 4 weights, silu, past", Some(1)),
        ("swish", "causal filter of 4 weights, silu, past", Some(1)),
    ] {
        let mut g = GraphBuilder::new(27);
        conv(&mut g, F32, activation);
        let nodes = becomes(&g, words);
        assert_eq!((ops(&nodes), nodes[0].int("silu")), (vec![CONV], silu));
        assert_eq!(nodes[0].inputs, ["u", "weight", "bias", "past"]);
    }
    let mut g = GraphBuilder::new(17);
    conv(&mut g, F32, "none");
    g.nodes[0].domain = MICROSOFT.into();
    becomes(&g, "causal filter of 4 weights, past");
}

#[test]
fn nodes_that_no_operator_computes_stay() {
    let stays = |change: &dyn Fn(&mut GraphBuilder), why: &str| {
        let mut g = GraphBuilder::new(27);
        linear(&mut g, 4, "gated", (F32, None));
        change(&mut g);
        g.stays(why);
    };
    stays(&|g| set(g, "update_rule", "delta"), "its update_rule is delta, and it has an unused input decay");
    stays(&|g| set(g, "update_rule", "gated_delta"), "it has no input beta");
    stays(&|g| set(g, "update_rule", "other"), "its update_rule is 'other'; allowed: linear");
    stays(&|g| drop(g.nodes[0].attributes.remove("q_num_heads")), "it does not say its heads");
    stays(
        &|g| drop(g.nodes[0].attributes.insert("q_num_heads".into(), Attribute::Int(3))),
        "it has 3 heads of queries and 2 of values",
    );
    stays(
        &|g| drop(g.nodes[0].attributes.insert("state_window".into(), Attribute::Int(4))),
        "its attribute state_window is not taken over",
    );
    stays(&|g| g.inputs[1].1 = F16, "those of one type, f32 or f16, are replaced");
    stays(&|g| g.inputs[2].2 = vec!["b", "2", "n", "5"], "its input 2 has 4 axes; allowed: 3");
    let mut g = GraphBuilder::new(27);
    conv(&mut g, F32, "relu");
    g.stays("its activation is 'relu'");
}

/// Replaces the only node, changes the replacement by `spoil`, and proves it.
fn proof(g: &GraphBuilder, spoil: impl Fn(&mut Change)) -> Result<(), String> {
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    let worlds = infer::worlds(&model, &|_, _| None, Limits::WHOLE, &symbols);
    let site = Site { graph: &model.graph, opset: model.opset, symbols: &symbols, worlds: &worlds };
    let found = StatefulNode::of(&model.graph.nodes[0]).unwrap();
    let mut change = stepwise::replacement(&site, 0, &found, "new").unwrap();
    spoil(&mut change);
    prove(&model.graph.nodes[0], &change, None)
}

fn operator(change: &mut Change) -> &mut Node {
    change.nodes.iter_mut().find(|node| [LINEAR, CONV].contains(&node.op.as_str())).unwrap()
}

#[test]
fn wrong_replacements_are_not_proved() {
    let failed = |result: Result<(), String>| {
        assert!(result.as_ref().is_err_and(|why| why.contains("the proof failed")), "{result:?}");
    };
    let mut attention = GraphBuilder::new(27);
    linear(&mut attention, 4, "gated_delta", (F32, Some(F32)));
    assert_eq!(proof(&attention, |_| {}), Ok(()));
    let scale = |change: &mut Change| {
        operator(change).attributes.insert("scale".into(), Attribute::Float(0.5));
    };
    failed(proof(&attention, scale));
    failed(proof(&attention, |change| operator(change).inputs[3].clear()));
    failed(proof(&attention, |change| operator(change).inputs[5].clear()));
    let swapped = proof(&attention, |change| operator(change).inputs.swap(0, 1));
    assert!(swapped.is_err(), "{swapped:?}");
    failed(proof(&attention, |change| operator(change).outputs.swap(0, 1)));

    let mut filter = GraphBuilder::new(27);
    conv(&mut filter, F32, "silu");
    assert_eq!(proof(&filter, |_| {}), Ok(()));
    failed(proof(&filter, |change| drop(operator(change).attributes.remove("silu"))));
    failed(proof(&filter, |change| operator(change).inputs[2].clear()));
    failed(proof(&filter, |change| operator(change).inputs[3].clear()));
    // The proof covers the attributes that it knows.
    let reverse = proof(&filter, |change| {
        operator(change).attributes.insert("reverse".into(), Attribute::Int(1));
    });
    assert_eq!(reverse, Err("the attribute reverse is not proved".into()));
}

/// Multiplies queries by the sum over all keys, as EfficientViT does.
fn summed(rows: &'static str, perm: &[i64]) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let q = g.input("q", F32, &["b", "4", "n", "8"]);
    let [k, v] = [("k", "8"), ("v", "9")].map(|(name, dim)| g.input(name, F32, &["b", "4", rows, dim]));
    let k = g.node("Relu", &[&k], &[]);
    let k = g.node("Transpose", &[&k], &[("perm", perm)]);
    let sums = g.node("MatMul", &[&k, &v], &[]);
    let y = g.node("MatMul", &[&q, &sums], &[]);
    g.output(&y);
    g
}

#[test]
fn sums_over_all_keys_are_linear_attention() {
    let perm = [0, 1, 3, 2];
    let nodes = becomes(&summed("n", &perm), "rule linear, 4 heads, every token reads the last state");
    assert_eq!(ops(&nodes), ["Relu", LINEAR]);
    assert_eq!(nodes[1].inputs, ["q", "Relu_0_0", "v"]);
    assert_eq!((nodes[1].int("direction"), nodes[1].float("scale")), (Some(3), Some(1.0)));
    summed("m", &perm).stays("have different axes");
    // Keys that are not transposed, sums with another reader, and weights in place of values.
    let none = |g: &GraphBuilder| assert!(g.rewritten().0.is_empty());
    none(&summed("n", &[0, 1, 2, 3]));
    let mut g = summed("n", &perm);
    g.output("MatMul_2_0");
    none(&g);
    let mut g = summed("n", &perm);
    let weights = g.constant(F32, &[8, 9], vec![1.0; 72]);
    g.nodes[2].inputs[1] = weights;
    none(&g);
}

/// Multiplies the scores of 5 tokens by the elements `kept`, as RetNet does.
fn retention(kept: impl Fn(usize, usize, usize) -> f64, first: bool) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, F32, &["2", "3", "5", "4"]));
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let data = (0..75).map(|at| kept(at / 25, at / 5 % 5, at % 5)).collect();
    let kept = g.constant(F32, &[3, 5, 5], data);
    let scores =
        if first { g.node("Mul", &[&kept, &scores], &[]) } else { g.node("Mul", &[&scores, &kept], &[]) };
    let y = g.node("MatMul", &[&scores, &v], &[]);
    g.output(&y);
    g
}

#[test]
fn scores_that_decay_by_distance_are_linear_attention() {
    let decay = |h: usize, i: usize, j: usize| {
        if j > i { 0.0 } else { f64::from((1.0 - 0.1 * h as f32).powi((i - j) as i32)) }
    };
    for first in [false, true] {
        let g = retention(decay, first);
        let nodes = becomes(&g, "rule gated, 3 heads, constant decay");
        assert_eq!(ops(&nodes), [LINEAR]);
        assert_eq!(nodes[0].int("direction"), None);
        let model = g.rewritten().1;
        let model = Model::read(&model).unwrap();
        let shape = &model.graph.initializers[&nodes[0].inputs[3]].0.shape;
        assert_eq!(shape[..], [2, 3, 5, 1]);
    }
    retention(|h, i, j| if (h, i, j) == (2, 4, 1) { 0.9 } else { decay(h, i, j) }, false)
        .stays("is no decay by distance");
    retention(|_, i, j| f64::from(i.abs_diff(j) as u32), false).stays("is no decay by distance");
    // The decay is an input of the model.
    let mut g = retention(decay, false);
    g.constants.clear();
    g.input("constant_0", F32, &["3", "5", "5"]);
    g.stays("is no decay by distance");
}
