//! Tests that replacements are valid for all sizes of a free axis. The tests use masks, scales, heads and batches with
//! sizes that a proof does not try.

use super::super::array::Kind;
use super::super::find::Site;
use super::super::infer::{self, WORLDS, World};
use super::super::model::Model;
use super::super::symbols::Symbols;
use super::super::{Limits, change, prove};
use super::builder::GraphBuilder;
use std::collections::HashMap;

/// Adds nodes that compute the size of axis `axis` of `x`, as a tensor with one element.
fn size(g: &mut GraphBuilder, x: &str, axis: f64) -> String {
    let shape = g.node("Shape", &[x], &[]);
    let axis = g.constant(Kind::I64, &[1], vec![axis]);
    g.node("Gather", &[&shape, &axis], &[("axis", &[0])])
}

/// Adds queries `[b, 4, n, 8]`, and keys and values `[b, 4, m, 8]`. Returns two names: the name of the
/// product of queries and keys, and the name of the values.
pub fn heads(g: &mut GraphBuilder, n: &'static str, m: &'static str) -> (String, String) {
    let q = g.input("q", Kind::F32, &["b", "4", n, "8"]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, &["b", "4", m, "8"]));
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    (g.node("MatMul", &[&q, &k], &[]), v)
}

pub fn weigh(g: &mut GraphBuilder, scores: &str, v: &str) {
    let weights = g.node("Softmax", &[scores], &[("axis", &[-1])]);
    let y = g.node("MatMul", &[&weights, v], &[]);
    g.output(&y);
}

/// Adds a node that keeps the scores where `mask` is true, and replaces all other scores with the lowest f32.
fn choose(g: &mut GraphBuilder, mask: &str, scores: &str) -> String {
    let low = g.number(f64::from(f32::MIN));
    g.node("Where", &[mask, scores, &low], &[])
}

/// Builds self-attention whose mask is a slice of a constant for 400 tokens.
fn sliced(keeps: impl Fn(usize, usize) -> bool) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let (scores, v) = heads(&mut g, "n", "n");
    let data = (0..400 * 400).map(|at| f64::from(u8::from(keeps(at / 400, at % 400)))).collect();
    let mask = g.constant(Kind::F32, &[1, 1, 400, 400], data);
    let (n, start) = (size(&mut g, "q", 2.0), g.ints(&[0]));
    let [rows, columns] = [2, 3].map(|axis| g.ints(&[axis]));
    let mask = g.node("Slice", &[&mask, &start, &n, &rows], &[]);
    let mask = g.node("Slice", &[&mask, &start, &n, &columns], &[]);
    let mask = g.node("Cast", &[&mask], &[("to", &[9])]);
    let scores = choose(&mut g, &mask, &scores);
    weigh(&mut g, &scores, &v);
    g
}

/// Adds nodes that compute the condition that the position of a key does not exceed the position of the query. The last
/// query has the position of the last key. Axis `axis` of q and k is the axis of the tokens.
fn not_behind(g: &mut GraphBuilder, axis: f64) -> String {
    let (n, m) = (size(g, "q", axis), size(g, "k", axis));
    let none = g.ints(&[]);
    let [n, m] = [n, m].map(|x| g.node("Reshape", &[&x, &none], &[]));
    let [zero, one] = [0.0, 1.0].map(|x| g.constant(Kind::I64, &[], vec![x]));
    let [rows, columns] = [&n, &m].map(|x| g.node("Range", &[&zero, x, &one], &[]));
    let more = g.node("Sub", &[&m, &n], &[]);
    let rows = g.node("Add", &[&rows, &more], &[]);
    let last = g.ints(&[1]);
    let rows = g.node("Unsqueeze", &[&rows, &last], &[]);
    g.node("LessOrEqual", &[&columns, &rows], &[])
}

/// Builds causal attention in which the last query has the position of the last key.
fn last_aligned(fill: f64) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let (scores, v) = heads(&mut g, "n", "m");
    let mask = not_behind(&mut g, 2.0);
    let low = g.number(fill);
    let scores = g.node("Where", &[&mask, &scores, &low], &[]);
    weigh(&mut g, &scores, &v);
    g
}

/// Builds attention whose scores are multiplied by a factor that `factor` computes from the number of tokens.
fn scaled(factor: impl Fn(&mut GraphBuilder, &str) -> String) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let (scores, v) = heads(&mut g, "n", "n");
    let n = size(&mut g, "q", 2.0);
    let factor = factor(&mut g, &n);
    let scores = g.node("Mul", &[&scores, &factor], &[]);
    weigh(&mut g, &scores, &v);
    g
}

fn log(g: &mut GraphBuilder, n: &str) -> String {
    let limit = g.ints(&[100]);
    let n = g.node("Max", &[n, &limit], &[]);
    let n = g.node("Cast", &[&n], &[("to", &[1])]);
    g.node("Log", &[&n], &[])
}

fn step(g: &mut GraphBuilder, n: &str) -> String {
    let limit = g.ints(&[100]);
    let short = g.node("Less", &[n, &limit], &[]);
    let [one, ten] = [1.0, 10.0].map(|x| g.number(x));
    g.node("Where", &[&short, &one, &ten], &[])
}

/// Creates the replacement with the worlds (sizes for the free axes) of a usual proof. Proves it in other worlds, one
/// for each entry of `tried`.
fn proof_at(g: &GraphBuilder, tried: &[&[(&str, usize)]]) -> Result<(), String> {
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    let worlds = infer::worlds(&model, &|_, _| None, Limits::WHOLE, &symbols);
    let site = Site { graph: &model.graph, opset: model.opset, symbols: &symbols, worlds: &worlds };
    let softmax = model.graph.nodes.iter().find(|node| node.op == "Softmax").unwrap();
    let change = change::of(&site, &site.around(softmax)?, "elsa_0", true)?;
    let sizes = tried.iter().map(|sizes| sizes.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect());
    let other: Vec<World<'_>> = sizes
        .map(|sizes: HashMap<String, usize>| World::new(&model, &|_, _| None, Limits::WHOLE, &symbols, sizes))
        .collect();
    let site = Site { worlds: &other, ..site };
    prove::prove(&site, &change)
}

#[test]
fn a_mask_that_a_free_axis_decides_stays_a_tensor() {
    let tokens: [&[(&str, usize)]; 5] = [
        &[("b", 2), ("n", 5)],
        &[("b", 1), ("n", 12)],
        &[("b", 1), ("n", 1)],
        &[("b", 1), ("n", 40)],
        &[("b", 1), ("n", 301)],
    ];
    type Keeps = fn(usize, usize) -> bool;
    let kinds: [(Keeps, &str); 8] = [
        (|i, j| j <= i, "causal"),
        (|i, j| j <= i && i < j + 9, "causal, 8 keys before"),
        (|i, j| j <= i && i < j + 64, "causal, 63 keys before"),
        (|i, j| j <= i && i / 16 == j / 16, "mask"),
        (|i, j| i.abs_diff(j) < 50, "49 keys before, 49 keys after"),
        (|i, j| j < i, "mask"),
        (|_, j| j < 100, "mask"),
        // The mask is causal, except for the last element of the constant.
        (|i, j| j <= i && (i, j) != (399, 399), "mask"),
    ];
    for (keeps, words) in kinds {
        let g = sliced(keeps);
        g.becomes(1, &format!("4 heads of 8, scale 1, {words}"));
        assert_eq!(proof_at(&g, &tokens), Ok(()));
    }
    // If there are more queries than keys, some rows have no key, and a finite fill gives them equal weights.
    last_aligned(f64::NEG_INFINITY).becomes(1, "4 heads of 8, scale 1, causal from the last key");
    let g = last_aligned(f64::from(f32::MIN));
    g.becomes(1, "4 heads of 8, scale 1, mask");
    let decoding = [("b", 1), ("n", 1), ("m", 9)];
    let tried: [&[(&str, usize)]; 5] = [
        &decoding,
        &[("b", 2), ("n", 9), ("m", 9)],
        &[("b", 1), ("n", 3), ("m", 200)],
        &[("b", 1), ("n", 2), ("m", 5)],
        &[("b", 3), ("n", 5), ("m", 7)],
    ];
    assert_eq!(proof_at(&g, &tried), Ok(()));
}

#[test]
fn a_scale_that_a_free_axis_decides_is_multiplied_into_the_queries() {
    let tokens: [&[(&str, usize)]; 5] = [
        &[("b", 1), ("n", 5)],
        &[("b", 1), ("n", 99)],
        &[("b", 2), ("n", 100)],
        &[("b", 1), ("n", 101)],
        &[("b", 1), ("n", 300)],
    ];
    for factor in [log, step] {
        let g = scaled(factor);
        g.becomes(1, "4 heads of 8, scale 1 times a computed one");
        assert_eq!(proof_at(&g, &tokens), Ok(()));
        let (_, bytes) = g.rewritten();
        let model = Model::read(&bytes).unwrap();
        let node = model.graph.nodes.iter().find(|node| node.op == change::OPERATOR).unwrap();
        assert_eq!(model.graph.nodes[model.graph.producer[&node.inputs[0]]].op, "Mul");
    }
}

#[test]
fn heads_and_batches_are_those_of_the_tensors() {
    let mut g = GraphBuilder::new(17);
    let q = g.input("q", Kind::F32, &["b", "h", "n", "8"]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, &["c", "h", "m", "8"]));
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    weigh(&mut g, &scores, &v);
    g.becomes(1, "h heads of 8, scale 1");
    let (_, bytes) = g.rewritten();
    let model = Model::read(&bytes).unwrap();
    let node = model.graph.nodes.iter().find(|node| node.op == change::OPERATOR).unwrap();
    assert!(!node.attributes.contains_key("num_heads"));
    let tried = |b, c, h| [("b", b), ("c", c), ("h", h), ("n", 4), ("m", 6)];
    let (one, two, three) = (tried(2, 1, 5), tried(1, 3, 3), tried(2, 2, 1));
    assert_eq!(proof_at(&g, &[&one, &two, &three, &tried(1, 1, 2), &tried(4, 1, 7)]), Ok(()));
}

#[test]
fn every_free_axis_is_a_symbol_with_sizes_of_its_own() {
    // No free axis has a name. Keys and values must have equal numbers of tokens.
    let mut g = GraphBuilder::new(17);
    let q = g.input("q", Kind::F32, &["", "4", "", "8"]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, &["", "4", "", "8"]));
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    weigh(&mut g, &scores, &v);
    g.becomes(1, "4 heads of 8, scale 1");
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    let free = symbols.axes.iter().filter(|(name, ..)| symbols.tie(name).is_none());
    assert_eq!(free.count(), 5);

    let g = sliced(|i, j| j <= i);
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    assert!(infer::worlds(&model, &|_, _| None, Limits::WHOLE, &symbols).len() >= WORLDS);

    let g = last_aligned(f64::from(f32::MIN));
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    let worlds = infer::worlds(&model, &|_, _| None, Limits::WHOLE, &symbols);
    let tokens = |world: &World<'_>| ["q", "k"].map(|name| world.shape(name).unwrap()[2]);
    let all: Vec<[usize; 2]> = worlds.iter().map(tokens).collect();
    assert_eq!(all.len(), 10, "{all:?}");
    assert!(all.iter().all(|[n, m]| n != m || *n == 1), "{all:?}");
    assert!(
        all.iter().filter(|[n, m]| n < m).count() >= 3 && all.iter().filter(|[n, m]| n > m).count() >= 3,
        "{all:?}"
    );
    assert!(all.contains(&[1, 1]) && all.iter().any(|[n, m]| *n == 1 && *m > 1), "{all:?}");
    assert!(all.iter().any(|[n, m]| *m == 1 && *n > 1), "{all:?}");
    // Some worlds have more tokens than the constant that a length is compared with.
    let g = scaled(step);
    let bytes = g.bytes();
    let model = Model::read(&bytes).unwrap();
    let symbols = Symbols::new(&model, &|_, _| None, Limits::WHOLE);
    let worlds = infer::worlds(&model, &|_, _| None, Limits::WHOLE, &symbols);
    assert!(worlds.iter().filter(|world| world.shape("q").unwrap()[2] > 100).count() >= 2);
}

/// Adds the positions of `n` queries as rows, and the positions of `m` keys as columns. The first query has position
/// `more`, or zero if `more` is absent; the first key has position zero.
fn pairs(g: &mut GraphBuilder, n: &str, m: &str, more: Option<&str>) -> [String; 2] {
    let none = g.ints(&[]);
    let [zero, one] = [0.0, 1.0].map(|x| g.constant(Kind::I64, &[], vec![x]));
    let [rows, columns] = [n, m].map(|x| {
        let x = g.node("Reshape", &[x, &none], &[]);
        g.node("Range", &[&zero, &x, &one], &[])
    });
    let rows = match more {
        Some(more) => g.node("Add", &[&rows, more], &[]),
        None => rows,
    };
    let last = g.ints(&[1]);
    [g.node("Unsqueeze", &[&rows, &last], &[]), columns]
}

#[test]
fn positions_become_attributes() {
    // Keys at a distance of at most 7 are kept.
    let mut g = GraphBuilder::new(17);
    let (scores, v) = heads(&mut g, "n", "n");
    let n = size(&mut g, "q", 2.0);
    let [rows, columns] = pairs(&mut g, &n, &n, None);
    let apart = g.node("Sub", &[&rows, &columns], &[]);
    let apart = g.node("Abs", &[&apart], &[]);
    let most = g.constant(Kind::I64, &[], vec![7.0]);
    let mask = g.node("LessOrEqual", &[&apart, &most], &[]);
    let scores = choose(&mut g, &mask, &scores);
    weigh(&mut g, &scores, &v);
    g.becomes(1, "4 heads of 8, scale 1, 7 keys before, 7 keys after");
    // A key is kept if it is fewer than 5 positions before the query and in the lower triangle of a tensor of ones.
    let mut g = GraphBuilder::new(17);
    let (scores, v) = heads(&mut g, "n", "n");
    let n = size(&mut g, "q", 2.0);
    let [rows, columns] = pairs(&mut g, &n, &n, None);
    let apart = g.node("Sub", &[&rows, &columns], &[]);
    let five = g.constant(Kind::I64, &[], vec![5.0]);
    let near = g.node("Less", &[&apart, &five], &[]);
    let square = g.node("Concat", &[&n, &n], &[("axis", &[0])]);
    let one = g.number(1.0);
    let ones = g.node("Expand", &[&one, &square], &[]);
    let lower = g.node("Trilu", &[&ones], &[("upper", &[0])]);
    let lower = g.node("Cast", &[&lower], &[("to", &[9])]);
    let mask = g.node("And", &[&near, &lower], &[]);
    let scores = choose(&mut g, &mask, &scores);
    weigh(&mut g, &scores, &v);
    g.becomes(1, "4 heads of 8, scale 1, causal, 4 keys before");
    // Past keys precede the new ones, so the last query has the position of the last key.
    let mut g = GraphBuilder::new(17);
    let q = g.input("q", Kind::F32, &["b", "4", "n", "8"]);
    let [k, v] = [("k", "past_k"), ("v", "past_v")].map(|(new, past)| {
        let past = g.input(past, Kind::F32, &["b", "4", "p", "8"]);
        let new = g.input(new, Kind::F32, &["b", "4", "n", "8"]);
        g.node("Concat", &[&past, &new], &[("axis", &[2])])
    });
    let (n, m, p) = (size(&mut g, "q", 2.0), size(&mut g, &k, 2.0), size(&mut g, "past_k", 2.0));
    let turned = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &turned], &[]);
    let [rows, columns] = pairs(&mut g, &n, &m, Some(&p));
    let mask = g.node("GreaterOrEqual", &[&rows, &columns], &[]);
    let scores = choose(&mut g, &mask, &scores);
    weigh(&mut g, &scores, &v);
    g.becomes(1, "4 heads of 8, scale 1, causal from the last key");
}

#[test]
fn products_may_be_written_as_einsum() {
    let build = |first: &str, second: &str, axes: [&[&'static str]; 3]| {
        let mut g = GraphBuilder::new(17);
        let [q, k, v] = [0, 1, 2].map(|i| g.input(["q", "k", "v"][i], Kind::F32, axes[i]));
        let scores = g.einsum(first, &[&q, &k]);
        let weights = g.node("Softmax", &[&scores], &[("axis", &[-1])]);
        let y = g.einsum(second, &[&weights, &v]);
        g.output(&y);
        g
    };
    let (q, k) = (&["b", "4", "n", "8"][..], &["b", "4", "m", "8"][..]);
    build("bhid,bhjd->bhij", "bhij,bhjd->bhid", [q, k, k]).becomes(1, "4 heads of 8, scale 1");
    let (q, k) = (&["b", "n", "4", "8"][..], &["b", "m", "4", "8"][..]);
    build("bihd,bjhd->bhij", "bhij,bjhd->bihd", [q, k, k]).becomes(1, "4 heads of 8, scale 1");
    // An Einsum that sums over two axes is not a matrix product.
    build("bihd,bjhd->bij", "bij,bjhd->bihd", [q, k, k]).stays("its scores go through Einsum");
}

#[test]
fn a_constant_is_read_to_its_end() {
    // The mask is causal, except that the last query does not attend the third key.
    let mut g = GraphBuilder::new(17);
    let (scores, v) = heads(&mut g, "40", "40");
    let low = f64::from(f32::MIN);
    let data = (0..1600).map(|at| if at % 40 > at / 40 || at == 39 * 40 + 2 { low } else { 0.0 }).collect();
    let mask = g.constant(Kind::F32, &[1, 1, 40, 40], data);
    let scores = g.node("Add", &[&scores, &mask], &[]);
    weigh(&mut g, &scores, &v);
    g.becomes(1, "4 heads of 8, scale 1, mask");
}

#[test]
fn many_tokens_are_proved_by_some() {
    let mut g = GraphBuilder::new(17);
    let q = g.input("q", Kind::F32, &["1", "2", "4097", "16"]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, &["1", "2", "4097", "16"]));
    let mask = g.input("mask", Kind::BOOL, &["1", "1", "4097", "4097"]);
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let scores = choose(&mut g, &mask, &scores);
    weigh(&mut g, &scores, &v);
    g.becomes(1, "2 heads of 16, scale 1, mask");
    let mut g = GraphBuilder::new(23);
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, &["1", "4097", "32"]));
    let y = g.node(
        "Attention",
        &[&q, &k, &v],
        &[("q_num_heads", &[2]), ("kv_num_heads", &[2]), ("is_causal", &[1])],
    );
    g.output(&y);
    g.becomes(1, "2 heads of 16, scale 0.25, causal");
    // A proof of this attention would exceed its memory limit.
    let mut g = GraphBuilder::new(17);
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, &["1", "64", "40000", "64"]));
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    weigh(&mut g, &scores, &v);
    let (found, _) = g.rewritten();
    assert!(!found[0].replaced, "{found:?}");
}

#[test]
fn many_tokens_with_two_masks_are_proved_by_some() {
    let mut g = GraphBuilder::new(17);
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, &["64", "2", "60", "32"]));
    let bias = g.input("bias", Kind::F32, &["1", "2", "60", "60"]);
    let keeps = |at: usize| at.is_multiple_of(60) || !(at / 60 * 7 + at % 60 * 3).is_multiple_of(5);
    let data = (0..60 * 60).map(|at| f64::from(u8::from(keeps(at)))).collect();
    let mask = g.constant(Kind::F32, &[1, 1, 60, 60], data);
    let mask = g.node("Cast", &[&mask], &[("to", &[9])]);
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let scores = g.node("Add", &[&scores, &bias], &[]);
    let scores = choose(&mut g, &mask, &scores);
    weigh(&mut g, &scores, &v);
    g.becomes(1, "2 heads of 32, scale 1, mask");
}

#[test]
fn fused_attention_of_three_axes_and_free_ones_is_replaced() {
    for (opset, op, own) in [
        (23, "Attention", &[("q_num_heads", &[2][..]), ("kv_num_heads", &[2])][..]),
        (17, "MultiHeadAttention", &[("num_heads", &[2])]),
    ] {
        let mut g = GraphBuilder::new(opset);
        let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, Kind::F32, &["b", "n", "16"]));
        let y = g.node(op, &[&q, &k, &v], own);
        g.output(&y);
        g.becomes(1, "2 heads of 8, scale 0.35355338");
    }
}

#[test]
fn rows_of_the_lowest_number_keep_the_runtimes_attention() {
    let build = |m: &'static str, fill: f64| {
        let mut g = GraphBuilder::new(23);
        let q = g.input("q", Kind::F32, &["b", "n", "16"]);
        let [k, v] = ["k", "v"].map(|name| g.input(name, Kind::F32, &["b", m, "16"]));
        let keeps = not_behind(&mut g, 1.0);
        let [zero, low] = [0.0, fill].map(|x| g.number(x));
        let mask = g.node("Where", &[&keeps, &zero, &low], &[]);
        let y = g.node("Attention", &[&q, &k, &v, &mask], &[("q_num_heads", &[2]), ("kv_num_heads", &[2])]);
        g.output(&y);
        g
    };
    let low = f64::from(f32::MIN);
    build("m", low).stays("a whole row of its mask may be the lowest number");
    // Either every query attends itself, or rows without a key yield the same result in both models: zeros, or the
    // mean.
    build("n", low).becomes(1, "2 heads of 8, scale 0.35355338");
    build("m", f64::NEG_INFINITY).becomes(1, "2 heads of 8, scale 0.35355338");
    build("m", -1e30).becomes(1, "2 heads of 8, scale 0.35355338");
}

#[test]
fn a_batch_that_the_graph_fixes_has_one_size() {
    // The graph has three heads of 8 for `batch` sequences, and the input leaves the batch open.
    let build = |batch: i64, dim: i64| {
        let mut g = GraphBuilder::new(17);
        let n = size(&mut g, "x", 1.0);
        let x = g.input("x", Kind::F32, &["b", "n", "24"]);
        let ends = [g.ints(&[batch]), g.ints(&[3, dim])];
        let target = g.node("Concat", &[&ends[0], &n, &ends[1]], &[("axis", &[0])]);
        let [q, k, v] = ["Sin", "Cos", "Tanh"].map(|op| {
            let rows = g.node(op, &[&x], &[]);
            let split = g.node("Reshape", &[&rows, &target], &[]);
            g.node("Transpose", &[&split], &[("perm", &[0, 2, 1, 3])])
        });
        let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
        let scores = g.node("MatMul", &[&q, &k], &[]);
        weigh(&mut g, &scores, &v);
        g
    };
    for (batch, dim) in [(1, 8), (4, 8), (1, 16)] {
        build(batch, dim).becomes(1, &format!("3 heads of {dim}, scale 1"));
    }
    // No batch has as many elements.
    assert!(!build(1, 9).rewritten().0[0].replaced);
}

#[test]
fn reasons_are_true() {
    let between = |op: &'static str| {
        let mut g = GraphBuilder::new(17);
        let (scores, v) = heads(&mut g, "n", "m");
        let scores = g.node(op, &[&scores], &[]);
        weigh(&mut g, &scores, &v);
        g
    };
    between("Clip").stays("its scores go through Clip");
    between("Abs").stays("its scores go through Abs");
    // A bias for the positions of a picture is added along other axes.
    let mut g = GraphBuilder::new(17);
    let (scores, v) = heads(&mut g, "6", "6");
    let bias = g.input("bias", Kind::F32, &["b", "4", "6", "2", "1"]);
    let scores = g.reshape(&scores, &[-1, 4, 6, 2, 3]);
    let scores = g.node("Add", &[&scores, &bias], &[]);
    let scores = g.reshape(&scores, &[-1, 4, 6, 6]);
    weigh(&mut g, &scores, &v);
    g.stays("reshaped to other axes than queries and keys");
    for op in ["Attention", "GroupQueryAttention"] {
        let mut g = GraphBuilder::new(17);
        let x = g.input("x", Kind::F32, &["b", "n", "16"]);
        let y = g.node(op, &[&x], &[]);
        g.nodes[0].domain = "com.microsoft".into();
        g.output(&y);
        g.stays(&format!("com.microsoft.{op} is not taken over"));
    }
}

/// Builds attention on normalised rows whose scores pass through a Clip at `±limit`. The rows have 16 channels, and each
/// of the two heads has 8. `gain` multiplies the normalised queries.
fn clipped(limit: f64, gain: f64, normalised: bool) -> GraphBuilder {
    let mut g = GraphBuilder::new(17);
    let x = g.input("x", Kind::F32, &["b", "n", "16"]);
    let [q, k, v] = [gain, 1.0, 1.0].map(|gain| {
        let gain = g.constant(Kind::F32, &[16], vec![gain; 16]);
        let rows = if normalised { g.node("LayerNormalization", &[&x, &gain], &[]) } else { x.clone() };
        let weights = g.constant(Kind::F32, &[16, 16], vec![0.25; 256]);
        let rows = g.node("MatMul", &[&rows, &weights], &[]);
        let bias = g.constant(Kind::F32, &[16], vec![1.0; 16]);
        let rows = g.node("Add", &[&rows, &bias], &[]);
        let rows = g.reshape(&rows, &[0, -1, 2, 8]);
        g.node("Transpose", &[&rows], &[("perm", &[0, 2, 1, 3])])
    });
    let k = g.node("Transpose", &[&k], &[("perm", &[0, 1, 3, 2])]);
    let scores = g.node("MatMul", &[&q, &k], &[]);
    let limits = [-limit, limit].map(|x| g.number(x));
    let scores = g.node("Clip", &[&scores, &limits[0], &limits[1]], &[]);
    weigh(&mut g, &scores, &v);
    g
}

#[test]
fn a_clip_is_dropped_only_if_no_score_reaches_it() {
    // A normalised row has at most the norm √16 = 4, and a column of the weights has the norm 1. With the bias, an
    // element is at most 5, so a score is at most 8 · 5 · 5 = 200.
    clipped(401.0, 1.0, true).becomes(1, "2 heads of 8, scale 1");
    clipped(399.0, 1.0, true).stays("it clips at -399 and 399, and its scores can reach 200");
    clipped(401.0, 2.0, true).stays("it clips at -401 and 401, and its scores can reach 360");
    clipped(1e30, 1.0, false).stays("no bound of its scores follows from the model");
}
