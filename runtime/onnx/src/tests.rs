//! Tests of the rewriter. In small graphs in the styles of different exporters, the expected number of attentions is
//! replaced. All other attention is kept. Hostile bytes are refused.

mod builder;
mod causal;
mod chunks;
mod lowered;
mod scan;
mod shared;
mod single;
mod sizes;
mod spellings;
mod stateful;

use super::array::Kind;
use super::model::Model;
use super::node::Attribute;
use super::symbols::Symbols;
use super::{Limits, change, find, infer, prove, rewritten};
use builder::GraphBuilder;

fn turned(g: &mut GraphBuilder, k: &str) -> String {
    g.node("Transpose", &[k], &[("perm", &[0, 1, 3, 2])])
}

/// Builds ViT as timm exports it in eager mode. Its batch is static or, if `free`, computed from the input's shape.
fn vit(opset: i64, free: bool) -> GraphBuilder {
    let mut g = GraphBuilder::new(opset);
    let x = g.input("x", Kind::F32, &[if free { "batch" } else { "2" }, "5", "36"]);
    let (split, rows) = if free {
        let shape = g.node("Shape", &[&x], &[]);
        let zero = g.ints(&[0]);
        let batch = g.node("Gather", &[&shape, &zero], &[("axis", &[0])]);
        let (a, b) = (g.ints(&[5, 3, 3, 4]), g.ints(&[5, 12]));
        let split = g.node("Concat", &[&batch, &a], &[("axis", &[0])]);
        (split, g.node("Concat", &[&batch, &b], &[("axis", &[0])]))
    } else {
        (g.ints(&[2, 5, 3, 3, 4]), g.ints(&[2, 5, 12]))
    };
    let split = g.node("Reshape", &[&x, &split], &[]);
    let t = g.node("Transpose", &[&split], &[("perm", &[2, 0, 3, 1, 4])]);
    let [q, k, v] = if opset < 13 {
        let parts = g.all("Split", &[&t], &[("axis", &[0]), ("split", &[1, 1, 1])], 3);
        [0, 1, 2].map(|i| g.node("Squeeze", &[&parts[i]], &[("axes", &[0])]))
    } else {
        let (sizes, axis) = (g.ints(&[1, 1, 1]), g.ints(&[0]));
        let parts = g.all("Split", &[&t, &sizes], &[("axis", &[0])], 3);
        [0, 1, 2].map(|i| g.node("Squeeze", &[&parts[i], &axis], &[]))
    };
    let scale = g.number(0.5);
    let q = g.node("Mul", &[&q, &scale], &[]);
    let k = turned(&mut g, &k);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
    let y = g.node("MatMul", &[&weights, &v], &[]);
    let y = g.node("Transpose", &[&y], &[("perm", &[0, 2, 1, 3])]);
    let y = g.node("Reshape", &[&y, &rows], &[]);
    g.output(&y);
    g
}

#[test]
fn vit_of_timm_is_packed() {
    for (opset, free) in [(11, false), (14, true), (17, false), (17, true)] {
        vit(opset, free).becomes(1, "3 heads of 4, scale 0.5, packed");
    }
}

/// Builds queries, keys and values as rows of `width`, split into heads as Hugging Face does.
fn rows(g: &mut GraphBuilder, axes: &[&'static str; 3], heads: i64, dim: i64) -> [String; 3] {
    ["q", "k", "v"].map(|name| {
        let x = g.input(name, Kind::F32, axes);
        let x = g.reshape(&x, &[0, -1, heads, dim]);
        g.node("Transpose", &[&x], &[("perm", if name == "k" { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] })])
    })
}

/// Builds BERT with a padding mask that is computed from the attention mask of the tokens.
fn bert() -> GraphBuilder {
    let mut g = GraphBuilder::new(14);
    let [q, k, v] = rows(&mut g, &["batch", "tokens", "8"], 2, 4);
    let tokens = g.input("mask", Kind::I64, &["batch", "tokens"]);
    let axes = g.ints(&[1, 2]);
    let mask = g.node("Unsqueeze", &[&tokens, &axes], &[]);
    let mask = g.node("Cast", &[&mask], &[("to", &[1])]);
    let (one, low) = (g.number(1.0), g.number(f64::from(f32::MIN)));
    let mask = g.node("Sub", &[&one, &mask], &[]);
    let mask = g.node("Mul", &[&mask, &low], &[]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let two = g.number(2.0);
    let scores = g.node("Div", &[&scores, &two], &[]);
    let scores = g.node("Add", &[&scores, &mask], &[]);
    let y = g.finish(&scores, &v, &[0, -1, 8]);
    g.output(&y);
    g
}

#[test]
fn bert_keeps_its_mask_as_an_input() {
    bert().becomes(1, "2 heads of 4, scale 0.5, mask");
    let (_, bytes) = bert().rewritten();
    let model = Model::read(&bytes).unwrap();
    let node = model.graph.nodes.iter().find(|node| node.op == change::OPERATOR).unwrap();
    assert_eq!(node.inputs[..3], ["q", "k", "v"]);
    assert_eq!(model.graph.nodes[model.graph.producer[&node.inputs[3]]].op, "Mul");
}

#[test]
fn a_scale_may_be_split_and_computed_from_the_shape() {
    let mut g = GraphBuilder::new(17);
    let [q, k, v] = rows(&mut g, &["batch", "7", "8"], 2, 4);
    let shape = g.node("Shape", &[&q], &[]);
    let (last, end) = (g.ints(&[-1]), g.ints(&[i64::MAX]));
    let dim = g.node("Slice", &[&shape, &last, &end], &[]);
    let dim = g.node("Cast", &[&dim], &[("to", &[1])]);
    let root = g.node("Sqrt", &[&dim], &[]);
    let one = g.number(1.0);
    let scale = g.node("Div", &[&one, &root], &[]);
    let half = g.node("Sqrt", &[&scale], &[]);
    let q = g.node("Mul", &[&q, &half], &[]);
    let k = g.node("Mul", &[&k, &half], &[]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let y = g.finish(&scores, &v, &[0, -1, 8]);
    g.output(&y);
    g.becomes(1, "2 heads of 4, scale 0.5");
}

/// Builds CLIP's text model as older exporters write it: matrix products of tensors with three axes, and a causal mask
/// that is a constant.
fn clip(low: f64) -> GraphBuilder {
    let mut g = GraphBuilder::new(14);
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let x = g.input(name, Kind::F32, &["3", "6", "8"]);
        let x = g.reshape(&x, &[3, 6, 2, 4]);
        let x = g.node("Transpose", &[&x], &[("perm", &[0, 2, 1, 3])]);
        g.reshape(&x, &[6, 6, 4])
    });
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 2, 1])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let scores = g.reshape(&scores, &[3, 2, 6, 6]);
    let full = g.constant(Kind::F32, &[1, 1, 6, 6], vec![low; 36]);
    let one = g.constant(Kind::I64, &[], vec![1.0]);
    let mask = g.node("Trilu", &[&full, &one], &[("upper", &[1])]);
    let scores = g.node("Add", &[&scores, &mask], &[]);
    let scores = g.reshape(&scores, &[6, 6, 6]);
    let weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
    let y = g.node("MatMul", &[&weights, &v], &[]);
    let y = g.reshape(&y, &[3, 2, 6, 4]);
    let y = g.node("Transpose", &[&y], &[("perm", &[0, 2, 1, 3])]);
    let y = g.reshape(&y, &[3, 6, 8]);
    g.output(&y);
    g
}

#[test]
fn a_causal_constant_is_an_attribute() {
    clip(f64::from(f32::MIN)).becomes(1, "2 heads of 4, scale 1, causal");
    // A constant that only subtracts 5 is not causal, so it stays a mask.
    clip(-5.0).becomes(1, "2 heads of 4, scale 1, mask");
}

/// Builds a block of Swin: windows of 2 × 3 tokens in a picture of 4 × 6 tokens, a table that is read through an index,
/// and the mask of shifted windows.
fn swin(batch: &'static str, shift: Option<[usize; 2]>, low: f64) -> GraphBuilder {
    use elsa_core::attention::Windows;
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &[batch, "4", "6", "36"]);
    let x = g.reshape(&x, &[-1, 6, 36]);
    let [q, k, v] = g.packed(&x, &[-1, 6], 3, 4);
    let scale = g.number(0.5);
    let q = g.node("Mul", &[&q, &scale], &[]);
    let k = turned(&mut g, &k);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let windows = Windows { picture: [4, 6], size: [2, 3], shift: shift.unwrap_or([1, 1]) };
    let table = (0..windows.entries() * 3).map(|i| f64::from((i as f32 * 0.37).sin())).collect();
    let table = g.constant(Kind::F32, &[windows.entries(), 3], table);
    let index = (0..36).map(|at| windows.entry(at / 6, at % 6) as f64).collect();
    let index = g.constant(Kind::I64, &[36], index);
    let bias = g.node("Gather", &[&table, &index], &[("axis", &[0])]);
    let bias = g.reshape(&bias, &[6, 6, 3]);
    let bias = g.node("Transpose", &[&bias], &[("perm", &[2, 0, 1])]);
    let zero = g.ints(&[0]);
    let bias = g.node("Unsqueeze", &[&bias, &zero], &[]);
    let mut scores = g.node("Add", &[&scores, &bias], &[]);
    if shift.is_some() {
        let mask = (0..4 * 36).map(|at| if windows.attends(at / 36, at / 6 % 6, at % 6) { 0.0 } else { low });
        let mask = g.constant(Kind::F32, &[1, 4, 1, 6, 6], mask.collect());
        scores = g.reshape(&scores, &[-1, 4, 3, 6, 6]);
        scores = g.node("Add", &[&scores, &mask], &[]);
        scores = g.reshape(&scores, &[-1, 3, 6, 6]);
    }
    let y = g.finish(&scores, &v, &[-1, 6, 12]);
    g.output(&y);
    g
}

#[test]
fn swin_has_its_table_and_its_shift() {
    let plain = "3 heads of 4, scale 0.5, packed, table of 2 x 3 tokens";
    swin("batch", None, -100.0).becomes(1, plain);
    for shift in [[1, 1], [1, 0], [0, 2]] {
        let words = format!("{plain}, shift {} x {} in 4 x 6", shift[0], shift[1]);
        swin("batch", Some(shift), -100.0).becomes(1, &words);
    }
    // A weight masked with −40 is not negligible. The constant stays a mask for one picture, and is refused for many.
    swin("1", Some([1, 1]), -40.0).becomes(1, "3 heads of 4, scale 0.5, packed, mask, table of 2 x 3 tokens");
    swin("batch", Some([1, 1]), -40.0).stays("one of 4 windows");
}

#[test]
fn a_condition_is_a_mask_and_its_guard_goes() {
    for keeps in [true, false] {
        for fill in [f64::NEG_INFINITY, -1e9] {
            let mut g = GraphBuilder::new(17);
            let [q, k, v] = rows(&mut g, &["batch", "tokens", "8"], 2, 4);
            let mask = g.input("mask", Kind::BOOL, &["batch", "1", "tokens", "tokens"]);
            let scores = g.node("MatMul", &[&q, &k], &[]);
            let fill = g.number(fill);
            let (a, b) = if keeps { (&scores, &fill) } else { (&fill, &scores) };
            let scores = g.node("Where", &[&mask, a, b], &[]);
            let weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
            let nan = g.node("IsNaN", &[&weights], &[]);
            let zero = g.number(0.0);
            let weights = g.node("Where", &[&nan, &zero, &weights], &[]);
            let y = g.node("MatMul", &[&weights, &v], &[]);
            let y = g.node("Transpose", &[&y], &[("perm", &[0, 2, 1, 3])]);
            let y = g.reshape(&y, &[0, -1, 8]);
            g.output(&y);
            g.becomes(1, "2 heads of 4, scale 1, mask");
        }
    }
}

#[test]
fn nodes_of_attention_are_replaced_too() {
    let mut g = GraphBuilder::new(23);
    let x = g.input("x", Kind::F32, &["batch", "5", "36"]);
    let [q, k, v] = g.packed(&x, &[-1, 5], 3, 4);
    let y = g.node("Attention", &[&q, &k, &v], &[("is_causal", &[1])]);
    let y = g.node("Transpose", &[&y], &[("perm", &[0, 2, 1, 3])]);
    let y = g.reshape(&y, &[-1, 5, 12]);
    g.output(&y);
    g.becomes(1, "3 heads of 4, scale 0.5, packed, causal");

    let mut g = GraphBuilder::new(23);
    let q = g.input("q", Kind::F32, &["2", "5", "16"]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, &["2", "7", "8"]));
    let mask = g.input("mask", Kind::BOOL, &["5", "7"]);
    let y = g.node("Attention", &[&q, &k, &v, &mask], &[("q_num_heads", &[4]), ("kv_num_heads", &[2])]);
    g.output(&y);
    g.becomes(1, "4 heads of 4, scale 0.5");

    let mut g = GraphBuilder::new(17);
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, &["2", "5", "16"]));
    let bias = g.input("bias", Kind::F32, &["1", "4", "5", "5"]);
    let y = g.node("MultiHeadAttention", &[&q, &k, &v, "", "", &bias], &[("num_heads", &[4])]);
    g.output(&y);
    g.becomes(1, "4 heads of 4, scale 0.5");
}

#[test]
fn a_node_without_an_output_stays() {
    for (opset, op, axes) in
        [(23, "Attention", &["2", "3", "5", "16"][..]), (17, "MultiHeadAttention", &["2", "5", "16"])]
    {
        for outputs in [vec![], vec![String::new()]] {
            let mut g = GraphBuilder::new(opset);
            let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, axes));
            g.node(op, &[&q, &k, &v], &[("num_heads", &[4])]);
            g.output(&q);
            g.nodes[0].outputs = outputs;
            let (found, bytes) = g.rewritten();
            assert!(found.iter().all(|found| !found.replaced), "{found:?}");
            assert_eq!(bytes, g.bytes());
        }
    }
}

#[test]
fn what_is_shared_or_none_stays() {
    let mut g = bert();
    let scores = g.nodes.iter().find(|node| node.op == "Div").unwrap().outputs[0].clone();
    g.output(&scores);
    g.stays("an output of the model");
    let mut g = bert();
    let weights = g.nodes.iter().find(|node| node.op == "Softmax").unwrap().outputs[0].clone();
    let more = g.node("Abs", &[&weights], &[]);
    g.output(&more);
    g.stays("and nowhere else");
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["batch", "10"]);
    let y = g.node("Softmax", &[&x], &[("axis", &[-1])]);
    g.output(&y);
    g.stays("no product of queries and keys");
    // The keys are not transposed.
    let mut g = vit(17, false);
    let at = g
        .nodes
        .iter()
        .position(|node| node.attributes.contains_key("perm") && node.inputs[0].starts_with("Squeeze"));
    g.nodes[at.unwrap()].op = "Identity".into();
    assert!(!g.rewritten().0[0].replaced);
}

/// Replaces the only attention, lets `bend` change the replacement, and tries to prove the changed replacement.
fn proof(g: &GraphBuilder, bend: impl FnOnce(&mut change::Change)) -> Result<(), String> {
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    let worlds = infer::worlds(&model, &|_, _| None, Limits::WHOLE, &symbols);
    let site = find::Site { graph: &model.graph, opset: model.opset, symbols: &symbols, worlds: &worlds };
    let softmax = model.graph.nodes.iter().find(|node| node.op == "Softmax").unwrap();
    let mut change = change::of(&site, &site.around(softmax)?, "elsa_0", true)?;
    bend(&mut change);
    prove::prove(&site, &change)
}

#[test]
fn a_wrong_replacement_is_not_proved() {
    fn drop(change: &mut change::Change, name: &str) {
        assert!(change.nodes.last_mut().unwrap().attributes.remove(name).is_some(), "{name}");
    }
    let shifted = || swin("batch", Some([1, 1]), -100.0);
    assert_eq!(proof(&shifted(), |_| {}), Ok(()));
    let failed = |result: Result<(), String>| {
        assert!(result.as_ref().is_err_and(|e| e.contains("the proof failed")), "{result:?}")
    };
    failed(proof(&shifted(), |change| drop(change, "shift")));
    failed(proof(&shifted(), |change| {
        let node = change.nodes.last_mut().unwrap();
        node.attributes.insert("shift".into(), Attribute::Ints(vec![1, 2]));
    }));
    failed(proof(&shifted(), |change| {
        change.constants.iter_mut().for_each(|(_, table)| {
            let mut data = table.data.to_vec();
            data[7] += 0.01;
            table.data = data.into();
        })
    }));
    failed(proof(&swin("batch", None, 0.0), |change| drop(change, "grid")));
    failed(proof(&clip(f64::from(f32::MIN)), |change| drop(change, "is_causal")));
    failed(proof(&bert(), |change| change.nodes.last_mut().unwrap().inputs.truncate(3)));
    failed(proof(&bert(), |change| {
        let node = change.nodes.last_mut().unwrap();
        node.attributes.insert("scale".into(), Attribute::Float(0.5001));
    }));
    failed(proof(&bert(), |change| change.nodes.last_mut().unwrap().inputs.swap(1, 2)));
}

#[test]
fn what_is_not_changed_keeps_its_bytes() {
    let before = bert().bytes();
    let (_, after) = bert().rewritten();
    let contains = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    for part in [
        &b"unknown of a model"[..],
        b"unknown of a graph",
        b"\x03key\x12\x05value",
        b"a test",
        b"com.microsoft",
    ] {
        assert!(contains(&before, part) && contains(&after, part), "{}", String::from_utf8_lossy(part));
    }
    let model = Model::read(&after).unwrap();
    // The nodes that compute the mask stay, with their unknown fields.
    let stay = model.graph.nodes.len() - 1;
    let unknown = after.windows(17).filter(|window| *window == b"unknown of a node").count();
    assert_eq!((stay, unknown), (4, 4));
    assert_eq!(model.imports.len(), 3);
}

#[test]
fn hostile_bytes_are_refused_in_a_line() {
    let whole = vit(17, true).bytes();
    for end in 0..whole.len() {
        // A file that ends between two fields may still be a model.
        if let Ok((_, bytes)) = rewritten(&whole[..end], Limits::WHOLE) {
            Model::read(&bytes).unwrap();
        }
    }
    let refused = |g: &GraphBuilder, why: &str| {
        let found = rewritten(&g.bytes(), Limits::WHOLE).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(
            found.contains(why) && found.contains("; allowed: ") && !found.contains('\n'),
            "{why}: {found}"
        );
    };
    let mut g = vit(17, false);
    g.nodes[0].inputs[0] = "nothing".into();
    refused(&g, "which nothing makes");
    let mut g = vit(17, false);
    let last = g.nodes.last().unwrap().outputs[0].clone();
    g.nodes[0].inputs[0] = last;
    refused(&g, "which a later node makes");
    let mut g = vit(17, false);
    g.nodes[1].outputs[0] = g.nodes[0].outputs[0].clone();
    refused(&g, "is made twice");
    let mut g = vit(17, false);
    let again = g.constants[0].clone();
    g.constants.push(again);
    refused(&g, "two constants");
    let mut g = vit(17, false);
    g.outputs[0].0 = "nowhere".into();
    refused(&g, "the output 'nowhere'");
    assert!(rewritten(b"", Limits::WHOLE).is_err());
    assert!(rewritten(&[0xff; 64], Limits::WHOLE).is_err());
}

#[test]
fn absurd_shapes_stay() {
    for axes in [
        ["batch", "999999999", "36"],
        ["9223372036854775807", "9223372036854775807", "36"],
        ["0", "5", "36"],
        ["batch", "5", "0"],
    ] {
        let mut g = vit(17, false);
        g.inputs[0].2 = axes.to_vec();
        let (found, bytes) = g.rewritten();
        assert!(found.len() == 1 && !found[0].replaced, "{found:?}");
        assert_eq!(bytes, g.bytes());
    }
}

#[test]
fn masks_may_be_scattered() {
    let mut g = GraphBuilder::new(17);
    let zeros = g.constant(Kind::F32, &[6, 6], vec![0.0; 36]);
    let above: Vec<[usize; 2]> = (0..36).map(|at| [at / 6, at % 6]).filter(|[i, j]| j > i).collect();
    let places = above.iter().flatten().map(|&x| x as f64).collect();
    let places = g.constant(Kind::I64, &[15, 2], places);
    let low = g.constant(Kind::F32, &[15], vec![f64::NEG_INFINITY; 15]);
    let mask = g.node("ScatterND", &[&zeros, &places, &low], &[]);
    let [q, k, v] = rows(&mut g, &["batch", "6", "8"], 2, 4);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let scores = g.node("Add", &[&scores, &mask], &[]);
    let y = g.finish(&scores, &v, &[0, -1, 8]);
    g.output(&y);
    g.becomes(1, "2 heads of 4, scale 1, causal");
}
