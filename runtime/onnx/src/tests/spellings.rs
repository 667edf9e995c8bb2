//! Tests of spellings: operators through which shapes are derived, and ways to write the products and the softmax. Each
//! spelling has a twin that looks like it and is not replaced, or not in the same way.

use super::super::Limits;
use super::super::array::Kind;
use super::super::model::Model;
use super::super::node::{Attribute, Branch, Node};
use super::super::size::Size;
use super::super::symbols::Symbols;
use super::builder::GraphBuilder;
use super::sizes::{heads, weigh};

/// Returns the shape of the tensor `name`, as the rewriter derives it.
fn shape(g: &GraphBuilder, name: &str) -> Option<String> {
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    symbols.shape(name).map(|shape| shape.iter().map(Size::to_string).collect::<Vec<_>>().join(" "))
}

/// Adds self-attention with 3 heads of 4 that reads the rows `x`, a tensor `[batch, 5, 36]`.
fn attend(g: &mut GraphBuilder, x: &str) {
    let [q, k, v] = g.packed(x, &[-1, 5], 3, 4);
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let y = g.finish(&scores, &v, &[-1, 5, 12]);
    g.output(&y);
}

const ATTENDED: &str = "3 heads of 4, scale 1, packed";

#[test]
fn shapes_follow_through_resize() {
    let resized = |opset: i64, scales: Option<&[f64]>, sizes: Option<&[i64]>| {
        let mut g = GraphBuilder::new(opset);
        let x = g.input("x", Kind::F32, &["b", "3", "n", "10"]);
        let scales = scales.map(|all| g.constant(Kind::F32, &[all.len()], all.to_vec())).unwrap_or_default();
        let sizes = sizes.map(|all| g.ints(all)).unwrap_or_default();
        let inputs = if opset < 11 { vec![x, scales] } else { vec![x, String::new(), scales, sizes] };
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let y = g.node("Resize", &inputs, &[]);
        shape(&g, &y)
    };
    assert_eq!(resized(17, None, Some(&[2, 3, 16, 9])).as_deref(), Some("2 3 16 9"));
    assert_eq!(resized(17, Some(&[1.0, 1.0, 2.0, 0.5]), None).as_deref(), Some("b 3 2*n 5"));
    assert_eq!(resized(10, Some(&[1.0, 1.0, 3.0, 1.25]), None).as_deref(), Some("b 3 3*n 12"));
    // A fractional scale of a free axis has no formula, and a product that f32 rounds up to a whole number is unknown.
    assert_eq!(resized(17, Some(&[1.0, 1.0, 1.5, 1.0]), None), None);
    assert_eq!(resized(17, Some(&[1.0, 1.0, 1.0, f64::from(0.7f32)]), None), None);

    // A region of interest is scaled.
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["b", "3", "8", "8"]);
    let region = g.constant(Kind::F32, &[8], vec![0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.5, 0.5]);
    let scales = g.constant(Kind::F32, &[4], vec![1.0, 1.0, 2.0, 2.0]);
    let y = g.node("Resize", &[&x, &region, &scales], &[]);
    assert_eq!(shape(&g, &y).as_deref(), Some("b 3 16 16"));
    let mode = Attribute::Text("tf_crop_and_resize".into());
    g.nodes.last_mut().unwrap().attributes.insert("coordinate_transformation_mode".into(), mode);
    assert_eq!(shape(&g, &y), None);

    // Positions of a picture of 2 x 2 tokens are resized to 1 x 5 tokens.
    let build = |policy: Option<&str>| {
        let mut g = GraphBuilder::new(18);
        let x = g.input("x", Kind::F32, &["batch", "5", "36"]);
        let table = g.constant(Kind::F32, &[1, 36, 2, 2], (0..144).map(f64::from).collect());
        let sizes = g.ints(&[1, 36, 1, 5]);
        let positions = g.node("Resize", &[&table, "", "", &sizes], &[]);
        if let Some(policy) = policy {
            let text = Attribute::Text(policy.into());
            g.nodes.last_mut().unwrap().attributes.insert("keep_aspect_ratio_policy".into(), text);
        }
        let positions = g.reshape(&positions, &[1, 36, 5]);
        let positions = g.node("Transpose", &[&positions], &[("perm", &[0, 2, 1])]);
        let x = g.node("Add", &[&x, &positions], &[]);
        attend(&mut g, &x);
        g
    };
    build(None).becomes(1, ATTENDED);
    build(Some("stretch")).becomes(1, ATTENDED);
    // The sizes are only limits under this policy.
    build(Some("not_larger")).stays("made by Resize, is not known");
}

#[test]
fn shapes_follow_through_quantization() {
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["batch", "5", "12"]);
    let quantized = g.all("DynamicQuantizeLinear", &[&x], &[], 3);
    let weights = g.constant(Kind::F32, &[12, 36], vec![1.0; 432]);
    let y = g.node("MatMulInteger", &[&quantized[0], &weights, &quantized[2]], &[]);
    let y = g.node("Cast", &[&y], &[("to", &[1])]);
    let y = g.node("Mul", &[&y, &quantized[1]], &[]);
    attend(&mut g, &y);
    g.becomes(1, ATTENDED);

    let quantized = |between: bool| {
        let mut g = GraphBuilder::new(17);
        let (scores, v) = heads(&mut g, "n", "m");
        let scale = g.number(0.01);
        let mut pass = |x: &str| {
            let x = g.node("QuantizeLinear", &[x, &scale], &[]);
            g.node("DequantizeLinear", &[&x, &scale], &[])
        };
        let v = if between { v } else { pass(&v) };
        let scores = if between { pass(&scores) } else { scores };
        weigh(&mut g, &scores, &v);
        g
    };
    quantized(false).becomes(1, "4 heads of 8, scale 1");
    // Quantized scores are other scores.
    quantized(true).stays("its scores come from no product");
}

#[test]
fn shapes_follow_through_more_operators() {
    let made = |op: &str, inputs: &[(&str, &[&'static str])], pairs: &[(&str, &[i64])], outputs: usize| {
        let mut g = GraphBuilder::new(17);
        let names = inputs.iter().map(|(name, axes)| g.input(name, Kind::F32, axes)).collect::<Vec<_>>();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let made = g.all(op, &names, pairs, outputs);
        made.iter().map(|name| shape(&g, name).unwrap_or_default()).collect::<Vec<_>>()
    };
    let (x, w) = (("x", &["b", "8", "n", "5"][..]), ("w", &["8", "6", "2", "3"][..]));
    assert_eq!(made("ConvTranspose", &[x, w], &[], 1), ["b 6 n + 1 7"]);
    assert_eq!(
        made("ConvTranspose", &[x, w], &[("strides", &[2, 2]), ("pads", &[0, 1, 0, 1])], 1),
        ["b 6 2*n 9"]
    );
    assert_eq!(
        made("ConvTranspose", &[x, w], &[("output_padding", &[1, 0]), ("dilations", &[2, 1])], 1),
        ["b 6 n + 3 7"]
    );
    assert_eq!(made("ConvTranspose", &[x, w], &[("output_shape", &[9, 9])], 1), ["b 6 9 9"]);
    // A kernel needs one size for each axis of the picture.
    assert_eq!(made("ConvTranspose", &[x, ("w", &["8", "6", "2"][..])], &[], 1), [""]);
    assert_eq!(made("Split", &[x], &[("axis", &[1])], 2), ["b 4 n 5", "b 4 n 5"]);
    assert_eq!(made("GridSample", &[x, ("grid", &["b", "7", "m", "2"])], &[], 1), ["b 8 7 m"]);

    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["b", "n", "36"]);
    let k = g.ints(&[5]);
    let best = g.all("TopK", &[&x, &k], &[("axis", &[1])], 2);
    assert_eq!([shape(&g, &best[0]), shape(&g, &best[1])], [Some("b 5 36".into()), Some("b 5 36".into())]);
    attend(&mut g, &best[0]);
    g.becomes(1, ATTENDED);
    // The number of the best elements is an input of the model.
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["b", "n", "36"]);
    let k = g.input("k", Kind::I64, &["1"]);
    let best = g.all("TopK", &[&x, &k], &[("axis", &[1])], 2);
    attend(&mut g, &best[0]);
    g.stays("made by TopK, is not known");
}

/// Builds rows that pass an `If`: one branch removes the axis of tokens, the other keeps the rows as they are.
fn branching(known: bool) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["b", "5", "36"]);
    let axis = g.ints(&[1]);
    let condition = if known {
        let shape = g.node("Shape", &[&x], &[]);
        let tokens = g.node("Gather", &[&shape, &axis], &[("axis", &[0])]);
        let one = g.ints(&[1]);
        g.node("Equal", &[&tokens, &one], &[])
    } else {
        g.input("condition", Kind::BOOL, &["1"])
    };
    let y = g.node("If", &[&condition], &[]);
    let inner = |name: &str, op: &str, inputs: &[&String]| Branch {
        name: name.into(),
        nodes: vec![Node {
            op: op.into(),
            inputs: inputs.iter().map(|&name| name.clone()).collect(),
            outputs: vec![format!("{name}_made")],
            ..Node::default()
        }],
        constants: vec![],
        outputs: vec![format!("{name}_made")],
    };
    g.nodes.last_mut().unwrap().branches =
        vec![inner("then_branch", "Squeeze", &[&x, &axis]), inner("else_branch", "Identity", &[&x])];
    attend(&mut g, &y);
    g
}

#[test]
fn a_known_condition_selects_a_branch() {
    branching(true).becomes(1, ATTENDED);
    branching(false).stays("made by If, is not known");
}

#[test]
fn operators_of_other_domains_have_shapes() {
    let build = |domain: &str, op: &str, info: bool| {
        let mut g = GraphBuilder::new(17);
        let [x, more] = ["x", "more"].map(|name| g.input(name, Kind::F32, &["batch", "5", "36"]));
        let gamma = g.constant(Kind::F32, &[36], vec![1.0; 36]);
        let y = g.node(op, &[&x, &more, &gamma], &[]);
        g.nodes.last_mut().unwrap().domain = domain.into();
        if info {
            g.infos.push((y.clone(), Kind::F32, vec!["batch", "5", "36"]));
        }
        attend(&mut g, &y);
        g
    };
    build("com.microsoft", "SkipLayerNormalization", false).becomes(1, ATTENDED);
    // The model declares the output of an unknown operator.
    build("ai.test", "Mystery", true).becomes(1, ATTENDED);
    build("ai.test", "Mystery", false).stays("made by ai.test.Mystery, is not known");
}

/// Builds an attention block of YOLO: queries and keys of 4 channels, values of 8 channels, and channels before tokens.
fn yolo(turned: bool) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["b", "32", "3", "3"]);
    let x = g.reshape(&x, &[-1, 2, 16, 9]);
    let sizes = g.ints(&[4, 4, 8]);
    let parts = g.all("Split", &[&x, &sizes], &[("axis", &[2])], 3);
    let q = g.node("Transpose", &[&parts[0]], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &parts[1]], &[]);
    let half = g.number(0.5);
    let scores = g.node("Mul", &[&scores, &half], &[]);
    let mut weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
    if turned {
        weights = g.node("Transpose", &[&weights], &[("perm", &[0, 1, 3, 2])]);
    }
    let y = g.node("MatMul", &[&parts[2], &weights], &[]);
    let y = g.reshape(&y, &[-1, 16, 3, 3]);
    g.output(&y);
    g
}

#[test]
fn values_may_be_multiplied_by_transposed_weights() {
    yolo(true).becomes(1, "2 heads of 4, scale 0.5");
    // The values are multiplied by the weights of each key instead of each query.
    yolo(false).stays("its weights are the right factor");
    let turned = |order: &[i64]| {
        let mut g = GraphBuilder::new(17);
        let (scores, v) = heads(&mut g, "5", "5");
        let weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
        let weights = g.node("Transpose", &[&weights], &[("perm", order)]);
        let v = g.node("Transpose", &[&v], &[("perm", &[0, 1, 3, 2])]);
        let y = g.node("MatMul", &[&v, &weights], &[]);
        g.output(&y);
        g
    };
    turned(&[0, 1, 3, 2]).becomes(1, "4 heads of 8, scale 1");
    turned(&[0, 1, 2, 3]).stays("transposed before their product with values");
}

#[test]
fn a_softmax_may_be_written_out() {
    let build = |largest: bool, inverse: bool, axis: i64| {
        let mut g = GraphBuilder::new(17);
        let (scores, v) = heads(&mut g, "n", "n");
        let mask = g.input("mask", Kind::F32, &["b", "1", "1", "n"]);
        let mut scores = g.node("Add", &[&scores, &mask], &[]);
        if largest {
            let most = g.node("ReduceMax", &[&scores], &[("axes", &[-1])]);
            scores = g.node("Sub", &[&scores, &most], &[]);
        }
        let exponentials = g.node("Exp", &[&scores], &[]);
        let axis = g.ints(&[axis]);
        let sum = g.node("ReduceSum", &[&exponentials, &axis], &[]);
        let weights = if inverse {
            let inverse = g.node("Reciprocal", &[&sum], &[]);
            g.node("Mul", &[&inverse, &exponentials], &[])
        } else {
            g.node("Div", &[&exponentials, &sum], &[])
        };
        let y = g.node("MatMul", &[&weights, &v], &[]);
        g.output(&y);
        g
    };
    for (largest, inverse) in [(false, false), (true, false), (false, true), (true, true)] {
        build(largest, inverse, -1).becomes(1, "4 heads of 8, scale 1, mask");
        build(largest, inverse, 3).becomes(1, "4 heads of 8, scale 1, mask");
        build(largest, inverse, 2).stays("over other axes than the last");
    }
    // Other nodes read the exponentials, or their sums.
    for op in ["Exp", "ReduceSum"] {
        let mut g = build(true, false, -1);
        let name = g.nodes.iter().find(|node| node.op == op).unwrap().outputs[0].clone();
        g.output(&name);
        g.stays("an output of the model");
    }
}

#[test]
fn einsum_may_have_its_factors_in_any_order() {
    let build = |first: &str, second: &str| {
        let mut g = GraphBuilder::new(17);
        let q = g.input("q", Kind::F32, &["b", "4", "n", "8"]);
        let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, &["b", "4", "m", "8"]));
        let scores = g.einsum(first, &[&k, &q]);
        let weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
        let y = g.einsum(second, &[&v, &weights]);
        g.output(&y);
        g
    };
    build("bhjd,bhid->bhij", "bhjd,bhij->bhid").becomes(1, "4 heads of 8, scale 1");
    build("bhjd,bhid->bhij", "bhjd,bhij->bihd").becomes(1, "4 heads of 8, scale 1");
    // All heads share one head of keys and values, which has no axis.
    for opset in [12, 17] {
        let shared = |first: &str| {
            let mut g = GraphBuilder::new(opset);
            let q = g.input("q", Kind::F32, &["b", "4", "n", "8"]);
            let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, &["b", "m", "8"]));
            let scores = g.einsum(first, &[&q, &k]);
            let weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
            let y = g.einsum("bhij,bjd->bhid", &[&weights, &v]);
            g.output(&y);
            g
        };
        shared("bhid,bjd->bhij").becomes(1, "4 heads of 8, scale 1");
        // The scores of all heads are added.
        shared("bhid,bjd->bij").stays("");
    }
    // The softmax is over the queries.
    build("bhid,bhjd->bhij", "bhid,bhij->bhjd").stays("");
}

/// Builds attention of queries, keys and values with the given axes, without a mask.
fn of_axes(q: &[&'static str], k: &[&'static str]) -> GraphBuilder {
    masked(q, k, None)
}

/// Builds attention of queries, keys and values with the given axes, and a mask that is added to the scores.
fn masked(q: &[&'static str], k: &[&'static str], mask: Option<&[&'static str]>) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let q = g.input("q", Kind::F32, q);
    let mut order: Vec<i64> = (0..).take(k.len()).collect();
    order.swap(k.len() - 2, k.len() - 1);
    let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, k));
    let k = g.node("Transpose", &[&k], &[("perm", &order)]);
    let mut scores = g.node("MatMul", &[&q, &k], &[]);
    if let Some(axes) = mask {
        let mask = g.input("mask", Kind::F32, axes);
        scores = g.node("Add", &[&scores, &mask], &[]);
    }
    weigh(&mut g, &scores, &v);
    g
}

#[test]
fn products_may_have_any_number_of_axes() {
    of_axes(&["n", "8"], &["m", "8"]).becomes(1, "1 heads of 8, scale 1");
    of_axes(&["b", "n", "8"], &["b", "m", "8"]).becomes(1, "1 heads of 8, scale 1");
    of_axes(&["b", "3", "2", "n", "8"], &["b", "3", "2", "m", "8"]).becomes(1, "2 heads of 8, scale 1");
    let (q, k) = (["b", "2", "3", "2", "n", "8"], ["b", "2", "3", "2", "m", "8"]);
    of_axes(&q, &k).becomes(1, "2 heads of 8, scale 1");
    // Keys of one of the three windows would serve all of them.
    of_axes(&["b", "3", "2", "n", "8"], &["b", "1", "2", "m", "8"]).stays("its products are of");
}

#[test]
fn products_of_five_axes_may_have_masks() {
    let (q, k) = (["b", "3", "2", "n", "8"], ["b", "3", "2", "m", "8"]);
    for mask in [&["n", "m"][..], &["b", "3", "2", "n", "m"], &["b", "3", "1", "1", "m"]] {
        masked(&q, &k, Some(mask)).becomes(1, "2 heads of 8, scale 1, mask");
    }
    // The batch of the operator has the first two axes, and the mask only the first.
    masked(&q, &k, Some(&["b", "1", "1", "1", "m"])).stays("cannot be broadcast");
    let (q, k) = (["b", "2", "3", "n", "8"], ["b", "2", "1", "m", "8"]);
    masked(&q, &k, Some(&["b", "1", "1", "n", "m"])).becomes(1, "6 heads of 8, scale 1, 2 KV heads, mask");
    // A mask of each group is none of each head.
    masked(&q, &k, Some(&["b", "1", "3", "n", "m"])).stays("cannot be broadcast");
}

#[test]
fn heads_and_batches_of_keys_may_be_shared() {
    let q = ["b", "4", "n", "8"];
    for k in [
        &["b", "1", "m", "8"][..],
        &["1", "4", "m", "8"],
        &["1", "1", "m", "8"],
        &["4", "m", "8"],
        &["m", "8"],
    ] {
        of_axes(&q, k).becomes(1, "4 heads of 8, scale 1");
    }
    of_axes(&["b", "n", "8"], &["1", "m", "8"]).becomes(1, "1 heads of 8, scale 1");
    // An axis of groups follows the axis of key heads.
    of_axes(&["b", "2", "3", "n", "8"], &["b", "2", "1", "m", "8"])
        .becomes(1, "6 heads of 8, scale 1, 2 KV heads");
    of_axes(&["b", "2", "3", "n", "8"], &["1", "2", "1", "m", "8"]).stays("its products are of");
}

#[test]
fn keys_may_be_repeated_for_groups_of_heads() {
    let build = |op: &str, whole: bool| {
        let mut g = GraphBuilder::new(17);
        let q = g.input("q", Kind::F32, &["b", "4", "n", "8"]);
        let [k, v] = ["k", "v"].map(|name| {
            let x = g.input(name, Kind::F32, &["b", "2", "7", "8"]);
            let axis = g.ints(&[if whole { 1 } else { 2 }]);
            let x = g.node("Unsqueeze", &[&x, &axis], &[]);
            let times = g.ints(if whole { &[1, 2, 1, 1, 1] } else { &[1, 1, 2, 1, 1] });
            let x = g.node(op, &[&x, &times], &[]);
            g.reshape(&x, &[-1, 4, 7, 8])
        });
        let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
        let scores = g.node("MatMul", &[&q, &k], &[]);
        weigh(&mut g, &scores, &v);
        g
    };
    for op in ["Expand", "Tile"] {
        build(op, false).becomes(1, "4 heads of 8, scale 1, 2 KV heads");
        // All heads are repeated after one another, so neighbouring query heads have different key heads.
        build(op, true).becomes(1, "4 heads of 8, scale 1");
    }
}

#[test]
fn scores_may_have_a_scale_for_each_head() {
    let each = |count: usize| (0..count).map(|i| 0.5 + i as f64).collect::<Vec<_>>();
    let build = |op: &str, q: &[&'static str], shape: &[usize]| {
        let mut g = GraphBuilder::new(17);
        let mut order: Vec<i64> = (0..).take(q.len()).collect();
        order.swap(q.len() - 2, q.len() - 1);
        let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, q));
        let k = g.node("Transpose", &[&k], &[("perm", &order)]);
        let scores = g.node("MatMul", &[&q, &k], &[]);
        let factor = g.constant(Kind::F32, shape, each(shape.iter().product()));
        let scores = g.node(op, &[&scores, &factor], &[]);
        weigh(&mut g, &scores, &v);
        g
    };
    let axes = ["b", "4", "5", "8"];
    for op in ["Mul", "Div"] {
        build(op, &axes, &[4, 1, 1]).becomes(1, "4 heads of 8, scale 1 times one for each head");
        build(op, &axes, &[1, 4, 1, 1]).becomes(1, "4 heads of 8, scale 1 times one for each head");
    }
    let windows = ["b", "3", "4", "5", "8"];
    build("Mul", &windows, &[4, 1, 1]).becomes(1, "4 heads of 8, scale 1 times one for each head");
    // Queries and keys have one axis of batch and heads.
    build("Mul", &["4", "5", "8"], &[4, 1, 1]).becomes(1, "1 heads of 8, scale 1 times one for each head");
    // A factor for each key or each query is none of the queries of a head.
    build("Mul", &axes, &[5]).stays("not one number");
    build("Div", &axes, &[4, 5, 1]).stays("not one number");
    // The factor is divided by the scores.
    let mut g = build("Div", &axes, &[4, 1, 1]);
    g.nodes[2].inputs.swap(0, 1);
    g.stays("not one number");

    // Packed rows have no axis of heads, so the operator reads the tensors after their axes have been split.
    let build = |each_head: bool| {
        let mut g = GraphBuilder::new(17);
        let x = g.input("x", Kind::F32, &["b", "4", "24"]);
        let [q, k, v] = g.packed(&x, &[-1, 4], 2, 4);
        let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
        let scores = g.node("MatMul", &[&q, &k], &[]);
        let (shape, count) = if each_head { (vec![2, 1, 1], 2) } else { (vec![], 1) };
        let factor = g.constant(Kind::F32, &shape, each(count));
        let scores = g.node("Mul", &[&scores, &factor], &[]);
        let y = g.finish(&scores, &v, &[-1, 4, 8]);
        g.output(&y);
        g
    };
    build(false).becomes(1, "2 heads of 4, scale 0.5, packed");
    build(true).becomes(1, "2 heads of 4, scale 1 times one for each head");
}

#[test]
fn operands_may_follow_from_the_model() {
    let build = |learned: &[&str]| {
        let mut g = GraphBuilder::new(17);
        let data: Vec<f64> = (0..96).map(|i| f64::from(i % 7) - 3.0).collect();
        let [q, k, v] = ["q", "k", "v"].map(|name| {
            if learned.contains(&name) {
                g.constant(Kind::F32, &[1, 4, 3, 8], data.clone())
            } else {
                g.input(name, Kind::F32, &["1", "4", "3", "8"])
            }
        });
        let half = g.number(0.5);
        let q = g.node("Mul", &[&q, &half], &[]);
        let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
        let scores = g.node("MatMul", &[&q, &k], &[]);
        let weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
        let y = g.node("MatMul", &[&weights, &v], &[]);
        let y = g.node("Transpose", &[&y], &[("perm", &[0, 2, 1, 3])]);
        let y = g.reshape(&y, &[1, 3, 32]);
        g.output(&y);
        g
    };
    build(&[]).becomes(1, "4 heads of 8, scale 0.5");
    // The operator reads the product of queries and scale, which is a constant of the model.
    build(&["q"]).becomes(1, "4 heads of 8, scale 1");
    // Even the answer is a constant of the model.
    build(&["q", "k", "v"]).becomes(1, "4 heads of 8, scale 1");
}

#[test]
fn a_mask_may_be_reshaped_to_the_shape_of_the_scores() {
    let build = |rows: &'static str, dim: &'static str, bias: &[&'static str], more: bool| {
        let mut g = GraphBuilder::new(17);
        let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, &["1", "2", rows, dim]));
        let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
        let scores = g.node("MatMul", &[&q, &k], &[]);
        // Terms for the rows and the columns of a picture, as in SAM.
        let bias = g.input("bias", Kind::F32, bias);
        let shape = g.node("Shape", &[&scores], &[]);
        let mask = g.node("Reshape", &[&bias, &shape], &[]);
        let masked = g.node("Add", &[&scores, &mask], &[]);
        weigh(&mut g, &masked, &v);
        if more {
            let y = g.node("Cast", &[&shape], &[("to", &[1])]);
            g.output(&y);
        }
        g
    };
    let picture = ["2", "2", "3", "2", "3"];
    build("6", "8", &picture, false).becomes(1, "2 heads of 8, scale 1, mask");
    // Another node reads the shape, so the scores would stay.
    build("6", "8", &picture, true).stays("its scores are read by 2 nodes");
    // The proof computes a sample of the queries.
    build("512", "32", &["2", "16", "32", "16", "32"], false).becomes(1, "2 heads of 32, scale 1, mask");
    // All elements of this mask would take more memory than a proof may: 28 bytes for each of 10 million.
    build("2304", "32", &["2", "48", "48", "48", "48"], false).becomes(1, "2 heads of 32, scale 1, mask");
    // Only the keys have several axes.
    let keys = ["2", "2304", "48", "48"];
    build("2304", "32", &keys, false).becomes(1, "2 heads of 32, scale 1, mask");
    build("2304", "32", &keys, true).stays("its scores are read by 2 nodes");
}

#[test]
fn relative_positions_of_a_large_picture_are_a_mask() {
    // The global attention of SAM: 12 heads on the axis of the batch, and a picture of 32 x 32 tokens.
    let build = |scaled: bool| {
        let mut g = GraphBuilder::new(14);
        let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, &["12", "1024", "64"]));
        let [rows, columns] = ["rows", "columns"].map(|name| g.input(name, Kind::F32, &["32", "32", "64"]));
        let k = g.node("Transpose", &[&k], &[("perm", &[0, 2, 1])]);
        let factor = g.number(0.125);
        let less = g.node("Mul", &[&q, &factor], &[]);
        let scores = g.node("MatMul", &[&less, &k], &[]);
        let picture = g.reshape(&q, &[12, 32, 32, 64]);
        let mut parts = Vec::new();
        for (equation, table, axis) in [("bhwc,hkc->bhwk", &rows, 4), ("bhwc,wkc->bhwk", &columns, 3)] {
            let part = g.einsum(equation, &[&picture, table]);
            let axis = g.ints(&[axis]);
            parts.push(g.node("Unsqueeze", &[&part, &axis], &[]));
        }
        let bias = g.node("Add", &[&parts[0], &parts[1]], &[]);
        let shape = g.node("Shape", &[&scores], &[]);
        let mask = g.node("Reshape", &[&bias, &shape], &[]);
        let mut masked = g.node("Add", &[&scores, &mask], &[]);
        if scaled {
            masked = g.node("Mul", &[&masked, &factor], &[]);
        }
        weigh(&mut g, &masked, &v);
        g
    };
    build(false).becomes(1, "1 heads of 64, scale 0.125, mask");
    build(true).stays("its mask is scaled after it is applied");
}

#[test]
fn shapes_follow_in_models_with_many_computed_weights() {
    let mut g = GraphBuilder::new(17);
    // Two tensors whose elements follow from the model, as standardised weights do.
    for _ in 0..2 {
        let sizes = g.ints(&[(1 << 22) - 1]);
        let weights = g.node("ConstantOfShape", &[&sizes], &[]);
        g.output(&weights);
    }
    let x = g.input("x", Kind::F32, &["2", "5", "36"]);
    let shape = g.node("Shape", &[&x], &[]);
    let x = g.node("Reshape", &[&x, &shape], &[]);
    attend(&mut g, &x);
    g.becomes(1, ATTENDED);
}
