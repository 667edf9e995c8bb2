//! Tests of attention in a single node: every form of its inputs and outputs is replaced, or stays for a true reason.

use super::super::array::{Array, Kind};
use super::super::change::{self, Change};
use super::super::model::Model;
use super::super::node::{Attribute, MICROSOFT, Node};
use super::super::symbols::Symbols;
use super::super::{Limits, find, fused, infer, meaning, prove};
use super::builder::{GraphBuilder, Pairs};
use std::collections::HashMap;

const F32: Kind = Kind::F32;

/// Adds an `Attention` of ONNX Runtime with 3 heads of 4. `inputs` are those after the bias.
fn projected(g: &mut GraphBuilder, inputs: &[&str], pairs: Pairs<'_>, outputs: usize) -> Vec<String> {
    let x = g.input("x", F32, &["b", "n", "12"]);
    let weights = g.input("weights", F32, &["12", "36"]);
    let bias = g.input("bias", F32, &["36"]);
    let all = [&[x.as_str(), &weights, &bias], inputs].concat();
    let made = g.all("Attention", &all, &[&[("num_heads", &[3][..])], pairs].concat(), outputs);
    g.nodes.last_mut().unwrap().domain = MICROSOFT.into();
    made.iter().for_each(|name| g.output(name));
    made
}

/// Adds inputs for rows of 3 heads of 4: `n` queries, and keys and values of `m` tokens.
fn rows(g: &mut GraphBuilder, m: &'static str) -> [String; 3] {
    [("q", "n"), ("k", m), ("v", m)].map(|(name, tokens)| g.input(name, F32, &["b", tokens, "12"]))
}

/// Adds a `MultiHeadAttention` with 3 heads.
fn multi_head(g: &mut GraphBuilder, inputs: &[&str], pairs: Pairs<'_>, outputs: usize) {
    let made = g.all("MultiHeadAttention", inputs, &[&[("num_heads", &[3][..])], pairs].concat(), outputs);
    made.iter().for_each(|name| g.output(name));
}

/// Adds an `Attention` of ONNX with 3 heads.
fn own(g: &mut GraphBuilder, inputs: &[&str], pairs: Pairs<'_>, outputs: usize) {
    let heads: Pairs<'_> = &[("q_num_heads", &[3]), ("kv_num_heads", &[3])];
    let made = g.all("Attention", inputs, &[heads, pairs].concat(), outputs);
    made.iter().for_each(|name| g.output(name));
}

#[test]
fn the_product_with_weights_stays_before_the_operator() {
    let mut g = GraphBuilder::new(17);
    projected(&mut g, &[], &[], 1);
    g.becomes(1, "3 heads of 4, scale 0.5, packed");
    let (_, bytes) = g.rewritten();
    let model = Model::read(&bytes).unwrap();
    let ops: Vec<&str> = model.graph.nodes.iter().map(|node| node.op.as_str()).collect();
    assert_eq!(ops, ["MatMul", "Add", change::OPERATOR]);
    // The values have another width than queries and keys.
    let mut g = GraphBuilder::new(17);
    projected(&mut g, &[], &[("qkv_hidden_sizes", &[12, 12, 24])], 1);
    (g.inputs[1].2, g.inputs[2].2) = (vec!["12", "48"], vec!["48"]);
    g.becomes(1, "3 heads of 4, scale 0.5");
    g.nodes[0].attributes.insert("qkv_hidden_sizes".into(), Attribute::Ints(vec![12, 24, 12]));
    g.stays("its qkv_hidden_sizes are [12, 24, 12]");
}

#[test]
fn a_mask_index_has_five_forms() {
    let build = |batch: &'static str, axes: &[&'static str], pairs: Pairs<'_>| {
        let mut g = GraphBuilder::new(17);
        let mask = g.input("mask", Kind::I32, axes);
        projected(&mut g, &[&mask], pairs, 1);
        g.inputs[1].2[0] = batch;
        g
    };
    for (batch, axes) in [
        ("b", &["b"][..]),
        ("2", &["2"]),
        ("2", &["4"]),
        ("2", &["8"]),
        ("b", &["b", "n"]),
        ("b", &["b", "total"]),
        ("b", &["b", "n", "n"]),
        ("b", &["b", "1"]),
        ("b", &["1", "1"]),
    ] {
        build(batch, axes, &[]).becomes(1, "3 heads of 4, scale 0.5, packed, padding");
    }
    let causal: Pairs<'_> = &[("unidirectional", &[1])];
    build("b", &["b", "n"], causal).becomes(1, "3 heads of 4, scale 0.5, packed, causal, padding");
    build("b", &["b", "1", "9", "9"], &[]).stays("a part of a larger mask");
    build("2", &["5"], &[]).stays("its padding mask is of [5]");
}

#[test]
fn caches_become_the_past_of_the_operator() {
    let mut g = GraphBuilder::new(17);
    let mask = g.input("mask", Kind::I32, &["b", "total"]);
    let past = g.input("past", F32, &["2", "b", "3", "p", "4"]);
    projected(&mut g, &[&mask, &past], &[("unidirectional", &[1])], 2);
    g.becomes(1, "3 heads of 4, scale 0.5, causal, padding, past");
    // A present without a past.
    let mut g = GraphBuilder::new(17);
    projected(&mut g, &[], &[], 2);
    g.becomes(1, "3 heads of 4, scale 0.5");
    let mut g = GraphBuilder::new(17);
    let past = g.input("past", F32, &["2", "b", "3", "p", "4"]);
    projected(&mut g, &["", &past], &[], 1);
    g.stays("it has a past without presents");

    for causal in [0, 1] {
        let mut g = GraphBuilder::new(17);
        let [q, k, v] = rows(&mut g, "n");
        let [a, b] = ["a", "c"].map(|name| g.input(name, F32, &["b", "3", "p", "4"]));
        multi_head(&mut g, &[&q, &k, &v, "", "", "", &a, &b], &[("unidirectional", &[causal])], 3);
        let words = ["3 heads of 4, scale 0.5, past", "3 heads of 4, scale 0.5, causal, past"];
        g.becomes(1, words[causal as usize]);
    }
    for (inputs, outputs, words) in [(true, 3, ", past"), (true, 1, ", past"), (false, 3, "")] {
        let mut g = GraphBuilder::new(23);
        let [q, k, v] = rows(&mut g, "m");
        let [a, b] = ["a", "c"].map(|name| g.input(name, F32, &["b", "3", "p", "4"]));
        let all = ["", a.as_str(), &b];
        let past = if inputs { &all[..] } else { &[] };
        own(&mut g, &[&[q.as_str(), &k, &v], past].concat(), &[("is_causal", &[1])], outputs);
        g.becomes(1, &format!("3 heads of 4, scale 0.5, causal{words}"));
    }
}

#[test]
fn multi_head_attention_has_many_inputs() {
    let words = "3 heads of 4, scale 0.5";
    let mut g = GraphBuilder::new(17);
    let [q, k, v] = rows(&mut g, "m");
    let bias = g.input("bias", F32, &["36"]);
    let padding = g.input("padding", Kind::I32, &["b", "m"]);
    let added = g.input("added", F32, &["b", "1", "n", "m"]);
    multi_head(&mut g, &[&q, &k, &v, &bias, &padding, &added], &[], 1);
    g.becomes(1, &format!("{words}, bias, padding"));

    let mut g = GraphBuilder::new(17);
    let q = g.input("q", F32, &["b", "n", "12"]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, F32, &["b", "3", "m", "4"]));
    multi_head(&mut g, &[&q, &k, &v], &[], 1);
    g.becomes(1, words);
    let bias = g.input("bias", F32, &["36"]);
    g.nodes[0].inputs.push(bias);
    g.becomes(1, &format!("{words}, bias"));

    let mut g = GraphBuilder::new(17);
    let q = g.input("q", F32, &["b", "n", "12"]);
    let k = g.input("k", F32, &["b", "m", "3", "2", "4"]);
    multi_head(&mut g, &[&q, &k], &[], 1);
    g.becomes(1, words);

    let mut g = GraphBuilder::new(17);
    let q = g.input("q", F32, &["b", "n", "3", "3", "4"]);
    let bias = g.input("bias", F32, &["36"]);
    multi_head(&mut g, &[&q, "", "", &bias], &[], 1);
    g.becomes(1, &format!("{words}, bias"));
}

#[test]
fn key_lengths_are_an_input_of_the_operator() {
    let build = |pairs: Pairs<'_>| {
        let mut g = GraphBuilder::new(24);
        let [q, k, v] = rows(&mut g, "m");
        let lengths = g.input("lengths", Kind::I64, &["b"]);
        own(&mut g, &[&q, &k, &v, "", "", "", &lengths], pairs, 1);
        g
    };
    build(&[]).becomes(1, "3 heads of 4, scale 0.5, lengths");
    build(&[("is_causal", &[1])]).stays("disagree on the diagonal of nonpad_kv_seqlen");
}

#[test]
fn unsupported_features_are_named() {
    for (name, why) in [
        ("do_rotary", "it rotates queries and keys"),
        ("past_present_share_buffer", "that the runtime fills in place"),
        ("new", "its attribute new is not taken over"),
    ] {
        let mut g = GraphBuilder::new(17);
        projected(&mut g, &[], &[], 1);
        g.nodes[0].attributes.insert(name.into(), Attribute::Int(1));
        g.stays(why);
    }
    let mut g = GraphBuilder::new(23);
    let [q, k, v] = rows(&mut g, "m");
    own(&mut g, &[&q, &k, &v], &[], 4);
    g.stays("which the operator does not return");
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", F32, &["b", "n", "12"]);
    g.node("GroupQueryAttention", &[&x], &[]);
    g.nodes[0].domain = MICROSOFT.into();
    g.nodes[0].attributes.insert("do_rotary".into(), Attribute::Int(1));
    let name = g.nodes[0].outputs[0].clone();
    g.output(&name);
    g.stays("it rotates queries and keys, and its input seqlens_k decides at run time");
}

/// Builds the replacement of the only fused node, lets `bend` change it, and tries to prove it.
fn proof(g: &GraphBuilder, bend: impl FnOnce(&mut Change)) -> Result<(), String> {
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    let worlds = infer::worlds(&model, &|_, _| None, Limits::WHOLE, &symbols);
    let site = find::Site { graph: &model.graph, opset: model.opset, symbols: &symbols, worlds: &worlds };
    let n = model.graph.nodes.iter().position(Node::is_fused).unwrap();
    let mut change = fused::same(&site, n, "elsa_0")?;
    bend(&mut change);
    prove::prove(&site, &change)
}

/// Returns the operator among the new nodes.
fn operator(change: &mut Change) -> &mut Node {
    change.nodes.iter_mut().find(|node| node.op == change::OPERATOR).unwrap()
}

#[test]
fn a_wrong_replacement_of_a_single_node_is_not_proved() {
    let failed = |result: Result<(), String>| {
        assert!(result.as_ref().is_err_and(|e| e.contains("the proof failed")), "{result:?}");
    };
    let mut cached = GraphBuilder::new(17);
    let mask = cached.input("mask", Kind::I32, &["b"]);
    let past = cached.input("past", F32, &["2", "b", "3", "p", "4"]);
    projected(&mut cached, &[&mask, &past], &[("unidirectional", &[1])], 2);
    assert_eq!(proof(&cached, |_| {}), Ok(()));
    failed(proof(&cached, |change| drop(operator(change).attributes.remove("is_causal"))));
    failed(proof(&cached, |change| operator(change).inputs.swap(5, 6)));
    failed(proof(&cached, |change| {
        let fill = change.constants.iter_mut().find(|(name, _)| name.contains("fill")).unwrap();
        fill.1 = Array::new(F32, vec![], vec![-1.0]);
    }));
    // Only the present is wrong.
    failed(proof(&cached, |change| {
        change.nodes.iter_mut().rfind(|node| node.outputs[0].contains("both")).unwrap().inputs.swap(0, 1);
    }));

    let mut biased = GraphBuilder::new(17);
    let q = biased.input("q", F32, &["b", "n", "3", "3", "4"]);
    let bias = biased.input("bias", F32, &["36"]);
    multi_head(&mut biased, &[&q, "", "", &bias], &[], 1);
    assert_eq!(proof(&biased, |_| {}), Ok(()));
    failed(proof(&biased, |change| operator(change).inputs.swap(0, 1)));

    let mut lengths = GraphBuilder::new(24);
    let [q, k, v] = rows(&mut lengths, "m");
    let valid = lengths.input("lengths", Kind::I64, &["b"]);
    own(&mut lengths, &[&q, &k, &v, "", "", "", &valid], &[], 1);
    assert_eq!(proof(&lengths, |_| {}), Ok(()));
    failed(proof(&lengths, |change| operator(change).inputs.truncate(3)));
}

#[test]
fn all_arrangements_have_the_same_answer() {
    // Two sequences of three tokens, with two heads of two.
    let [b, n, h, d] = [2, 3, 2, 2];
    let element = |i: usize, part: usize| (i as f64 * 0.7 + part as f64 * 1.3).sin();
    let rows = |part: usize| (0..b * n * h * d).map(|i| element(i, part)).collect::<Vec<f64>>();
    let array = |shape: &[usize], data: Vec<f64>| Array::new(F32, shape.to_vec(), data);
    // Element of a part at (sequence, token, head, component).
    let at =
        |part: usize, i: usize, x: usize, j: usize, y: usize| element(((i * n + x) * h + j) * d + y, part);
    let each = |axes: [usize; 5], pick: &dyn Fn([usize; 5]) -> f64| {
        let mut all = Vec::new();
        for i in 0..axes.iter().product::<usize>() {
            let mut rest = i;
            let mut place = [0; 5];
            for axis in (0..5).rev() {
                (place[axis], rest) = (rest % axes[axis], rest / axes[axis]);
            }
            all.push(pick(place));
        }
        all
    };
    let in_rows = |part: usize| array(&[b, n, h * d], rows(part));
    let in_heads =
        |part: usize| array(&[b, h, n, d], each([1, b, h, n, d], &|[_, i, j, x, y]| at(part, i, x, j, y)));
    let packed = array(&[b, n, h, 3, d], each([b, n, h, 3, d], &|[i, x, j, part, y]| at(part, i, x, j, y)));
    let keys = array(&[b, n, h, 2, d], each([b, n, h, 2, d], &|[i, x, j, part, y]| at(part + 1, i, x, j, y)));
    let width = 3 * h * d;
    let all = array(&[b, n, width], each([b, n, 3, h, d], &|[i, x, part, j, y]| at(part, i, x, j, y)));
    let eval = |op: &str, inputs: &[&Array]| {
        let node = Node {
            op: op.into(),
            domain: MICROSOFT.into(),
            inputs: inputs.iter().enumerate().map(|(i, _)| format!("x{i}")).collect(),
            outputs: vec!["y".into()],
            attributes: HashMap::from([("num_heads".to_owned(), Attribute::Int(2))]),
            ..Node::default()
        };
        let inputs: Vec<Option<&Array>> = inputs.iter().copied().map(Some).collect();
        meaning::eval(&node, &inputs, Limits::WHOLE, None, 0).unwrap()
    };
    let op = "MultiHeadAttention";
    let answer = eval(op, &[&in_rows(0), &in_rows(1), &in_rows(2)]);
    // The first element, from its formula.
    let score = |x: usize| {
        (at(0, 0, 0, 0, 0) * at(1, 0, x, 0, 0) + at(0, 0, 0, 0, 1) * at(1, 0, x, 0, 1)) / 2f64.sqrt()
    };
    let sum: f64 = (0..n).map(|x| score(x).exp()).sum();
    let first: f64 = (0..n).map(|x| score(x).exp() / sum * at(2, 0, x, 0, 0)).sum();
    assert!((answer.data[0] - first).abs() < 1e-12, "{} {first}", answer.data[0]);
    let others = [
        eval(op, &[&in_rows(0), &in_heads(1), &in_heads(2)]),
        eval(op, &[&in_rows(0), &keys]),
        eval(op, &[&packed]),
        eval("Attention", &[&all]),
    ];
    for other in others {
        assert_eq!((&other.shape, &other.data), (&answer.shape, &answer.data));
    }
}
