//! Models in older operators compute the same function as the original, which these tests evaluate in f64.

use super::super::array::{Array, Kind};
use super::super::lower::{LoweredModel, Target, lowered};
use super::super::model::Model;
use super::super::node::{Attribute, Branch, Node};
use super::super::ops::{Limits, eval};
use super::super::random::normal;
use super::super::size::Size;
use super::super::symbols::Symbols;
use super::builder::GraphBuilder;
use fastrand::Rng;
use std::collections::HashMap;
use std::f64::consts::{FRAC_2_PI, PI, SQRT_2};

/// Sets an attribute of the last node.
fn set(g: &mut GraphBuilder, name: &str, value: Attribute) {
    g.nodes.last_mut().unwrap().attributes.insert(name.into(), value);
}

fn float(g: &mut GraphBuilder, name: &str, value: f32) {
    set(g, name, Attribute::Float(value));
}

fn int(g: &mut GraphBuilder, name: &str, value: i64) {
    set(g, name, Attribute::Int(value));
}

fn text(g: &mut GraphBuilder, name: &str, value: &str) {
    set(g, name, Attribute::Text(value.into()));
}

fn drawn(shape: &[usize], seed: u64) -> Array {
    let mut random = Rng::with_seed(seed);
    let data = (0..shape.iter().product::<usize>()).map(|_| normal(&mut random)).collect();
    Array::new(Kind::F32, shape.to_vec(), data)
}

fn lower(g: &GraphBuilder, target: Target) -> LoweredModel {
    lowered(g.bytes(), &|_, _| None, target).unwrap()
}

/// The error function, by its series.
fn erf(x: f64) -> f64 {
    let (mut sum, mut term) = (x, x);
    for n in 1..100 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    2.0 / PI.sqrt() * sum
}

/// Evaluates a model in f64. Returns its tensors by name.
fn run(bytes: &[u8], inputs: &[(&str, Array)]) -> HashMap<String, Array> {
    let model = Model::read(bytes).unwrap();
    let mut known: HashMap<String, Array> =
        inputs.iter().map(|(name, array)| ((*name).to_owned(), array.clone())).collect();
    for (name, (stored, _)) in &model.graph.initializers {
        known.insert(name.clone(), stored.array(bytes, 1 << 20).unwrap());
    }
    for node in &model.graph.nodes {
        let given: Vec<Option<&Array>> = node.inputs.iter().map(|name| known.get(name)).collect();
        let each = |f: &dyn Fn(f64) -> f64| {
            let x = given[0].unwrap();
            Some(vec![Array::new(x.kind, x.shape.clone(), x.data.iter().map(|&x| f(x)).collect())])
        };
        let made = match node.op.as_str() {
            "Erf" => each(&erf),
            "Softplus" => each(&|x| x.exp().ln_1p()),
            "HardSigmoid" => {
                let [alpha, beta] = ["alpha", "beta"].map(|name| f64::from(node.float(name).unwrap()));
                each(&|x| (alpha * x + beta).clamp(0.0, 1.0))
            }
            _ => eval(bytes, node, model.opset, &given, Limits::WHOLE),
        };
        // Tensors that the evaluator cannot compute are left out.
        known.extend(node.outputs.iter().cloned().zip(made.unwrap_or_default()));
    }
    known
}

/// Checks that the target has every operator of a lowered model, and that the output `name` has the elements `want`.
/// The constants of the new nodes are rounded to f32.
fn computes(g: &GraphBuilder, target: Target, inputs: &[(&str, Array)], name: &str, want: &[f64]) {
    let made = lower(g, target);
    assert!(made.nodes.iter().all(|node| node.lowered), "{:?}", made.nodes);
    assert_eq!(made.opset, target.opset().min(g.opset));
    let model = Model::read(&made.bytes).unwrap();
    assert_eq!(model.opset, made.opset);
    for node in &model.graph.nodes {
        assert!(target.includes(&node.op) && !target.lacks(&node.op), "{}", node.op);
    }
    let found = &run(&made.bytes, inputs)[name];
    assert_eq!(found.data.len(), want.len());
    let largest = want.iter().fold(1.0, |all: f64, x| all.max(x.abs()));
    for (i, (found, want)) in found.data.iter().zip(want).enumerate() {
        assert!((found - want).abs() <= 3e-7 * largest, "{name}[{i}]: {found}, {want}");
    }
}

const TARGETS: [Target; 4] =
    [Target::OnnxRuntime110, Target::OnnxRuntime111, Target::TensorRt82, Target::Opset13];

/// Returns `x` divided by its deviation in each part of `size` elements, with the means and the inverse deviations.
fn normalized(x: &[f64], size: usize, centres: bool, epsilon: f64) -> [Vec<f64>; 3] {
    let [mut all, mut means, mut inverses] = [vec![], vec![], vec![]];
    for part in x.chunks(size) {
        let n = size as f64;
        let mean = if centres { part.iter().sum::<f64>() / n } else { 0.0 };
        let inverse = (part.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + epsilon).sqrt().recip();
        all.extend(part.iter().map(|x| (x - mean) * inverse));
        means.push(mean);
        inverses.push(inverse);
    }
    [all, means, inverses]
}

#[test]
fn layer_normalization_over_any_axes() {
    for target in TARGETS {
        for (axis, size) in [(-1, 5), (2, 5), (1, 15), (-2, 15)] {
            let mut g = GraphBuilder::new(17);
            let x = g.input("x", Kind::F32, &["b", "3", "5"]);
            let scale = drawn(&[3, 5][if size == 5 { 1 } else { 0 }..], 2);
            let bias = drawn(&scale.shape, 3);
            let names = [&scale, &bias].map(|a| g.constant(Kind::F32, &a.shape, a.data.to_vec()));
            let made = g.all("LayerNormalization", &[&x, &names[0], &names[1]], &[("axis", &[axis])], 3);
            float(&mut g, "epsilon", 1e-3);
            made.iter().for_each(|name| g.output(name));
            let x = drawn(&[2, 3, 5], 1);
            let epsilon = f64::from(1e-3f32);
            let [y, means, inverses] = normalized(&x.data, size, true, epsilon);
            let rounded = |a: &Array, i: usize| f64::from(a.data[i % size] as f32);
            let y: Vec<f64> =
                y.iter().enumerate().map(|(i, y)| y * rounded(&scale, i) + rounded(&bias, i)).collect();
            for (name, want) in made.iter().zip([y, means, inverses]) {
                computes(&g, target, &[("x", x.clone())], name, &want);
            }
        }
    }
}

#[test]
fn rms_normalization_and_its_name_in_onnx_runtime() {
    for (op, opset) in [("RMSNormalization", 23), ("SimplifiedLayerNormalization", 14)] {
        let mut g = GraphBuilder::new(opset);
        let (x, scale) = (g.input("x", Kind::F32, &["b", "6"]), g.input("s", Kind::F32, &["6"]));
        let y = g.node(op, &[&x, &scale], &[]);
        g.output(&y);
        let (x, scale) = (drawn(&[4, 6], 4), drawn(&[6], 5));
        let [y_want, ..] = normalized(&x.data, 6, false, f64::from(1e-5f32));
        let want: Vec<f64> = y_want.iter().enumerate().map(|(i, y)| y * scale.data[i % 6]).collect();
        for target in TARGETS {
            computes(&g, target, &[("x", x.clone()), ("s", scale.clone())], &y, &want);
        }
    }
}

#[test]
fn group_normalization_by_groups_and_by_channels() {
    for opset in [18, 21] {
        let per = if opset < 21 { 2 } else { 6 };
        let axis: &'static str = if opset < 21 { "2" } else { "6" };
        let mut g = GraphBuilder::new(opset);
        let x = g.input("x", Kind::F32, &["b", "6", "h", "w"]);
        let (scale, bias) = (g.input("s", Kind::F32, &[axis]), g.input("c", Kind::F32, &[axis]));
        let y = g.node("GroupNormalization", &[&x, &scale, &bias], &[]);
        int(&mut g, "num_groups", 2);
        g.output(&y);
        let (x, scale, bias) = (drawn(&[2, 6, 3, 2], 6), drawn(&[per], 7), drawn(&[per], 8));
        let [want, ..] = normalized(&x.data, 18, true, f64::from(1e-5f32));
        let at = |i: usize| i / (36 / per) % per;
        let want: Vec<f64> =
            want.iter().enumerate().map(|(i, y)| y * scale.data[at(i)] + bias.data[at(i)]).collect();
        for target in TARGETS {
            let inputs = [("x", x.clone()), ("s", scale.clone()), ("c", bias.clone())];
            computes(&g, target, &inputs, &y, &want);
        }
    }
}

/// Operator, opset, `approximate`, `alpha` and definition of an activation.
type Activation<'a> = (&'a str, i64, Option<&'a str>, f32, &'a dyn Fn(f64) -> f64);

#[test]
fn activations() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let tanh = |x: f64| x / 2.0 * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    let cases: [Activation<'_>; 6] = [
        ("Gelu", 20, None, 1.0, &|x| x / 2.0 * (1.0 + erf(x / SQRT_2))),
        ("Gelu", 20, Some("tanh"), 1.0, &tanh),
        ("Swish", 24, None, 1.0, &|x| x * sigmoid(x)),
        ("Swish", 24, None, 1.5, &|x| x * sigmoid(1.5 * x)),
        ("HardSwish", 14, None, 1.0, &|x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        ("Mish", 18, None, 1.0, &|x| x * x.exp().ln_1p().tanh()),
    ];
    for (op, opset, approximate, alpha, f) in cases {
        let mut g = GraphBuilder::new(opset);
        let x = g.input("x", Kind::F32, &["n"]);
        let y = g.node(op, &[&x], &[]);
        if let Some(approximate) = approximate {
            text(&mut g, "approximate", approximate);
        }
        if alpha != 1.0 {
            float(&mut g, "alpha", alpha);
        }
        g.output(&y);
        let x: Vec<f64> = (-40..=40).map(|i| f64::from(i) / 10.0).collect();
        let want: Vec<f64> = x.iter().map(|&x| f(x)).collect();
        for target in [Target::TensorRt82, Target::Opset13] {
            let x = Array::new(Kind::F32, vec![x.len()], x.clone());
            computes(&g, target, &[("x", x)], &y, &want);
        }
        // ONNX Runtime 1.11 has HardSwish.
        assert_eq!(lower(&g, Target::OnnxRuntime111).nodes.is_empty(), op == "HardSwish");
    }
}

/// Builds a rotation of `heads` heads of 8 elements. `rotated` elements of a head are rotated.
fn rotation(rows: bool, interleaved: bool, rotated: i64, positions: bool) -> (GraphBuilder, String) {
    let mut g = GraphBuilder::new(23);
    let axes: &[&'static str] = if rows { &["b", "t", "24"] } else { &["b", "3", "t", "8"] };
    let half: &'static str = if rotated == 4 { "2" } else { "4" };
    let x = g.input("x", Kind::F32, axes);
    let table: &[&'static str] = if positions { &["9", half] } else { &["b", "t", half] };
    let [cos, sin] = ["cos", "sin"].map(|name| g.input(name, Kind::F32, table));
    let mut inputs = vec![x, cos, sin];
    if positions {
        inputs.push(g.input("positions", Kind::I64, &["b", "t"]));
    }
    let names: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let y = g.node("RotaryEmbedding", &names, &[]);
    int(&mut g, "interleaved", interleaved.into());
    int(&mut g, "rotary_embedding_dim", rotated);
    if rows {
        int(&mut g, "num_heads", 3);
    }
    g.output(&y);
    (g, y)
}

#[test]
fn rotations_in_every_layout() {
    let (batch, tokens, heads, dim) = (2, 5, 3, 8);
    for case in 0..24 {
        let (rows, interleaved, positions) = (case & 1 != 0, case & 2 != 0, case & 4 != 0);
        let rotated = [0, 4, 8][case / 8];
        let (g, name) = rotation(rows, interleaved, rotated, positions);
        let shape = if rows { vec![batch, tokens, heads * dim] } else { vec![batch, heads, tokens, dim] };
        let half = if rotated == 4 { 2 } else { 4 };
        let table = if positions { vec![9, half] } else { vec![batch, tokens, half] };
        let x = drawn(&shape, 9);
        let (cos, sin) = (drawn(&table, 10), drawn(&table, 11));
        let at: Vec<f64> = (0..batch * tokens).map(|i| (i * 7 % 9) as f64).collect();
        let mut want = x.data.to_vec();
        for (i, want) in want.iter_mut().enumerate() {
            let (b, t, e) = if rows {
                (i / (tokens * heads * dim), i / (heads * dim) % tokens, i % dim)
            } else {
                (i / (tokens * heads * dim), i / dim % tokens, i % dim)
            };
            if e >= 2 * half {
                continue;
            }
            // The pair to which the element belongs, and whether the element is the second of the pair.
            let (pair, is_second) = if interleaved { (e / 2, e % 2 == 1) } else { (e % half, e >= half) };
            let step = if interleaved { 1 } else { half };
            let row = if positions { at[b * tokens + t] as usize } else { b * tokens + t };
            let (cos, sin) = (cos.data[row * half + pair], sin.data[row * half + pair]);
            *want = if is_second {
                x.data[i] * cos + x.data[i - step] * sin
            } else {
                x.data[i] * cos - x.data[i + step] * sin
            };
        }
        let mut inputs = vec![("x", x), ("cos", cos), ("sin", sin)];
        if positions {
            inputs.push(("positions", Array::new(Kind::I64, vec![batch, tokens], at)));
        }
        computes(&g, Target::TensorRt82, &inputs, &name, &want);
    }
}

#[test]
fn newer_forms_become_attributes_and_inputs() {
    let mut g = GraphBuilder::new(21);
    let x = g.input("x", Kind::F32, &["2", "7"]);
    let axes = g.ints(&[-1]);
    let sum = g.node("ReduceMax", &[&x, &axes], &[]);
    let parts = g.all("Split", &[&x], &[("axis", &[1])], 3);
    int(&mut g, "num_outputs", 3);
    let pads = g.ints(&[1, 2]);
    let padded = g.node("Pad", &[&x, &pads, "", &axes], &[]);
    let cast = g.node("Cast", &[&x], &[("to", &[10])]);
    int(&mut g, "saturate", 1);
    let shape = g.node("Shape", &[&x], &[]);
    int(&mut g, "start", -1);
    let target = g.ints(&[7, 2]);
    let turned = g.node("Reshape", &[&x, &target], &[]);
    int(&mut g, "allowzero", 1);
    let like = g.node("CastLike", &[&shape, &x], &[]);
    for name in [&sum, &parts[2], &padded, &cast, &turned, &like] {
        g.output(name);
    }
    let made = lower(&g, Target::Opset13);
    assert!(made.nodes.iter().all(|node| node.lowered), "{:?}", made.nodes);
    let model = Model::read(&made.bytes).unwrap();
    let node = |name: &str| &model.graph.nodes[model.graph.producer[name]];
    assert_eq!((node(&sum).ints("axes"), node(&sum).inputs.len()), (Some(&[-1][..]), 1));
    assert!(node(&cast).int("saturate").is_none() && node(&turned).int("allowzero").is_none());
    assert!(node(&parts[0]).int("num_outputs").is_none());
    assert_eq!(node(&like).op, "Cast");
    let numbers = |name: &str| {
        let (stored, _) = &model.graph.initializers[name];
        stored.array(&made.bytes, 100).unwrap().data.to_vec()
    };
    assert_eq!(numbers(&node(&parts[0]).inputs[1]), [3.0, 3.0, 1.0]);
    assert_eq!(numbers(&node(&padded).inputs[1]), [0.0, 1.0, 0.0, 2.0]);
    let x = drawn(&[2, 7], 12);
    let known = run(&made.bytes, &[("x", x)]);
    assert_eq!((&known[&like].data[..], &known[&parts[2]].shape[..]), (&[7.0][..], &[2, 1][..]));
    // Constants that only the newer forms read are removed.
    assert!(!model.graph.initializers.contains_key(&axes));
}

#[test]
fn a_resize_of_some_axes_becomes_one_of_all_axes() {
    for by_sizes in [false, true] {
        let mut g = GraphBuilder::new(19);
        let x = g.input("x", Kind::F32, &["b", "3", "4", "5"]);
        let y = if by_sizes {
            let sizes = g.ints(&[8, 15]);
            g.node("Resize", &[&x, "", "", &sizes], &[("axes", &[2, 3])])
        } else {
            let scales = g.constant(Kind::F32, &[2], vec![2.0, 3.0]);
            g.node("Resize", &[&x, "", &scales], &[("axes", &[2, 3])])
        };
        text(&mut g, "keep_aspect_ratio_policy", "stretch");
        int(&mut g, "antialias", 0);
        g.output(&y);
        let made = lower(&g, Target::TensorRt82);
        let model = Model::read(&made.bytes).unwrap();
        let node = &model.graph.nodes[model.graph.producer[&y]];
        assert!(made.opset == 13 && node.attributes.is_empty(), "{node:?}");
        let given = node.inputs.last().unwrap();
        if by_sizes {
            // The sizes follow from the shape of the input and from the given sizes.
            let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
            let sizes: Vec<String> = symbols.sizes(given).unwrap().iter().map(Size::to_string).collect();
            assert_eq!(sizes, ["b", "3", "8", "15"]);
        } else {
            let scales = model.graph.initializers[given].0.array(&made.bytes, 10).unwrap();
            assert_eq!(scales.data[..], [1.0, 1.0, 2.0, 3.0]);
        }
        // A filter against aliasing has no older form.
        int(&mut g, "antialias", 1);
        let made = lower(&g, Target::TensorRt82);
        assert!(made.opset == 19 && made.nodes[0].words.contains("aliasing"), "{:?}", made.nodes);
        assert_eq!(made.bytes, g.bytes());
    }
}

#[test]
fn a_constant_condition_leaves_one_branch() {
    let branch = |name: &str, op: &str| Branch {
        name: name.into(),
        nodes: vec![
            Node {
                op: op.into(),
                inputs: vec!["x".into()],
                outputs: vec!["inner".into()],
                ..Node::default()
            },
            Node {
                op: "Add".into(),
                inputs: vec!["inner".into(), "x".into()],
                outputs: vec![format!("{name}_made")],
                ..Node::default()
            },
        ],
        constants: vec![],
        outputs: vec![format!("{name}_made")],
    };
    for (one, op) in [(3, "Neg"), (2, "Exp")] {
        let mut g = GraphBuilder::new(17);
        let x = g.input("x", Kind::F32, &["b", "3"]);
        let shape = g.node("Shape", &[&x], &[]);
        let axis = g.constant(Kind::I64, &[], vec![1.0]);
        let size = g.node("Gather", &[&shape, &axis], &[("axis", &[0])]);
        let number = g.constant(Kind::I64, &[], vec![f64::from(one)]);
        let condition = g.node("Equal", &[&size, &number], &[]);
        // Both nodes have tensors of the same names in their branches.
        let y: Vec<String> = (0..2)
            .map(|_| {
                let y = g.node("If", &[&condition], &[]);
                g.nodes.last_mut().unwrap().branches =
                    vec![branch("then_branch", "Neg"), branch("else_branch", "Exp")];
                y
            })
            .collect();
        let z = g.node("Mul", &[&y[0], &y[1]], &[]);
        g.output(&z);
        let made = lower(&g, Target::Opset13);
        let model = Model::read(&made.bytes).unwrap();
        let ops: Vec<&str> = model.graph.nodes.iter().map(|node| node.op.as_str()).collect();
        assert_eq!(ops, [op, "Add", "Identity", op, "Add", "Identity", "Mul"]);
        assert!(model.graph.initializers.is_empty());
        let x = drawn(&[2, 3], 14);
        let f = |x: f64| if op == "Neg" { 0.0 } else { x.exp() + x };
        let want: Vec<f64> = x.data.iter().map(|&x| f(x).powi(2)).collect();
        computes(&g, Target::Opset13, &[("x", x)], &z, &want);
    }
}

#[test]
fn a_node_without_an_older_form_keeps_the_opset() {
    let mut g = GraphBuilder::new(18);
    let x = g.input("x", Kind::F32, &["b", "3", "3"]);
    let scale = g.constant(Kind::F32, &[3], vec![1.0; 3]);
    let y = g.node("LayerNormalization", &[&x, &scale], &[]);
    let z = g.node("Trilu", &[&y], &[]);
    g.output(&z);
    let made = lower(&g, Target::Opset13);
    let said: Vec<(&str, bool)> = made.nodes.iter().map(|n| (n.operator.as_str(), n.lowered)).collect();
    assert_eq!(said, [("LayerNormalization", true), ("Trilu", false)]);
    assert!(made.nodes[1].words.contains("opset 13 has no Trilu"), "{:?}", made.nodes);
    // The new nodes have the forms of the original opset.
    let model = Model::read(&made.bytes).unwrap();
    assert_eq!((made.opset, model.opset), (18, 18));
    let mean = model.graph.nodes.iter().find(|node| node.op == "ReduceMean").unwrap();
    assert!(mean.input(1).is_some() && mean.ints("axes").is_none());
    // Opset 16 has Trilu.
    let made = lower(&g, Target::OnnxRuntime111);
    assert!(made.opset == 16 && made.nodes.len() == 1, "{:?}", made.nodes);
}

#[test]
fn operators_that_tensorrt_does_not_execute_are_named() {
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["n"]);
    let y = g.node("Reciprocal", &[&x], &[]);
    let z = g.node("NonZero", &[&y], &[]);
    g.output(&z);
    let made = lower(&g, Target::TensorRt82);
    let said: Vec<(&str, bool)> = made.nodes.iter().map(|n| (n.operator.as_str(), n.lowered)).collect();
    assert_eq!((said, made.opset), (vec![("Reciprocal", true), ("NonZero", false)], 13));
    let model = Model::read(&made.bytes).unwrap();
    let ops: Vec<&str> = model.graph.nodes.iter().map(|node| node.op.as_str()).collect();
    assert_eq!(ops, ["Div", "NonZero"]);
    // ONNX Runtime has both.
    assert!(lower(&g, Target::OnnxRuntime111).nodes.is_empty());
}

#[test]
fn integers_that_tensorrt_changes_are_named() {
    let build = |op: &str, number: i64| {
        let mut g = GraphBuilder::new(17);
        let x = g.input("x", Kind::I64, &["n"]);
        let ends = [g.ints(&[0]), g.ints(&[number])];
        let given = if op == "Slice" { vec![&*x, &ends[0], &ends[1]] } else { vec![&*x, &ends[1]] };
        let y = g.node(op, &given, &[]);
        g.outputs.push((y, Kind::I64));
        g
    };
    let said = |op, number, target| -> Vec<String> {
        let made = lower(&build(op, number), target);
        assert_eq!(made.opset, target.opset());
        made.nodes
            .into_iter()
            .map(|node| format!("{} {} {}", node.operator, node.lowered, node.words))
            .collect()
    };
    let most = i64::from(i32::MAX);
    let named = |op: &str, number: i64| {
        vec![format!("{op} false TensorRT 8.2 clamps {number} in 'constant_1' to INT32")]
    };
    for op in ["Mul", "Add"] {
        assert_eq!(said(op, most + 1, Target::TensorRt82), named(op, most + 1));
        assert_eq!(said(op, -most - 2, Target::TensorRt82), named(op, -most - 2));
        // Other targets have INT64.
        assert!(
            said(op, most + 1, Target::OnnxRuntime111).is_empty()
                && said(op, most + 1, Target::Opset13).is_empty()
        );
    }
    for (op, number) in [("Mul", most), ("Mul", -most - 1), ("Min", i64::MAX), ("Slice", 1 << 40)] {
        assert!(said(op, number, Target::TensorRt82).is_empty(), "{op} {number}");
    }
}

#[test]
fn a_subgraph_is_examined() {
    let mut g = GraphBuilder::new(18);
    let x = g.input("x", Kind::F32, &["b", "3"]);
    let condition = g.input("condition", Kind::BOOL, &["1"]);
    let y = g.node("If", &[&condition], &[]);
    let branch = |name: &str, op: &str| Branch {
        name: name.into(),
        nodes: vec![Node {
            op: op.into(),
            inputs: vec![x.clone()],
            outputs: vec![format!("{name}_made")],
            ..Node::default()
        }],
        constants: vec![],
        outputs: vec![format!("{name}_made")],
    };
    g.nodes.last_mut().unwrap().branches = vec![branch("then_branch", "Mish"), branch("else_branch", "Neg")];
    g.output(&y);
    let made = lower(&g, Target::Opset13);
    assert_eq!((made.opset, made.nodes.len(), made.nodes[0].lowered), (18, 1, false));
    assert!(made.nodes[0].words.starts_with("its subgraph has Mish"), "{:?}", made.nodes);
    assert_eq!(made.bytes, g.bytes());
}

#[test]
fn a_matrix_product_replaces_an_einsum() {
    let mut g = GraphBuilder::new(12);
    let q = g.input("q", Kind::F32, &["b", "n", "h", "4"]);
    let k = g.input("k", Kind::F32, &["b", "m", "h", "4"]);
    let y = g.einsum("bihd,bjhd->bhij", &[&q, &k]);
    g.output(&y);
    let (q, k) = (drawn(&[2, 3, 2, 4], 15), drawn(&[2, 5, 2, 4], 16));
    let mut want = Vec::new();
    for at in 0..2 * 2 * 3 * 5 {
        let (b, h, i, j) = (at / 30, at / 15 % 2, at / 5 % 3, at % 5);
        let row = |x: &Array, tokens: usize, t: usize| x.data[((b * tokens + t) * 2 + h) * 4..][..4].to_vec();
        want.push(row(&q, 3, i).iter().zip(row(&k, 5, j)).map(|(a, b)| a * b).sum::<f64>());
    }
    let made = lower(&g, Target::TensorRt82);
    let model = Model::read(&made.bytes).unwrap();
    assert!(made.nodes[0].lowered && model.graph.nodes.iter().all(|node| node.op != "Einsum"));
    computes(&g, Target::TensorRt82, &[("q", q), ("k", k)], &y, &want);
}

#[test]
fn half_precision_is_computed_in_f32() {
    let mut g = GraphBuilder::new(20);
    let x = g.input("x", Kind::F16, &["n"]);
    let y = g.node("Gelu", &[&x], &[]);
    g.outputs.push((y.clone(), Kind::F16));
    let made = lower(&g, Target::OnnxRuntime111);
    let model = Model::read(&made.bytes).unwrap();
    let nodes = &model.graph.nodes;
    assert_eq!((nodes[0].op.as_str(), nodes[0].int("to")), ("Cast", Some(Kind::F32.0)));
    let last = &nodes[model.graph.producer[&y]];
    assert_eq!((last.op.as_str(), last.int("to")), ("Cast", Some(Kind::F16.0)));
}
