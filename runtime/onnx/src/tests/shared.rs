//! Scores that two attentions share: each of two sets of tokens attends the other.

use super::builder::GraphBuilder;
use crate::Attention;
use crate::array::Kind;
use crate::model::Model;

/// Layer in which a picture and words attend each other over the same scores, as in Grounding DINO.
struct Fusion {
    picture: &'static str,
    words: &'static str,
    /// Limits of the two Clips, as positive numbers.
    limits: [f64; 2],
    /// Axis of the largest scores that are subtracted before the words' attention; the scores are transposed.
    axis: i64,
}

const FREE: Fusion = Fusion { picture: "n", words: "m", limits: [1e4; 2], axis: -1 };

impl Fusion {
    /// Builds the layer. Also returns the names of the scores, first those of the product.
    fn graph(&self) -> (GraphBuilder, [String; 3]) {
        let mut g = GraphBuilder::new(17);
        let inputs = [("picture", self.picture), ("words", self.words)];
        let [q, k] = inputs.map(|(name, tokens)| {
            let x = g.input(name, Kind::F32, &["b", tokens, "16"]);
            let gain = g.constant(Kind::F32, &[16], vec![1.0; 16]);
            let rows = g.node("LayerNormalization", &[&x, &gain], &[]);
            let weights = g.constant(Kind::F32, &[16, 16], vec![0.25; 256]);
            let rows = g.node("MatMul", &[&rows, &weights], &[]);
            let rows = g.reshape(&rows, &[0, -1, 2, 8]);
            g.node("Transpose", &[&rows], &[("perm", &[0, 2, 1, 3])])
        });
        let seen = g.input("seen", Kind::F32, &["b", "2", self.picture, "8"]);
        let read = g.input("read", Kind::F32, &["b", "2", self.words, "8"]);
        let padding = g.input("padding", Kind::BOOL, &["b", "1", "1", self.words]);
        let low = g.number(f64::NEG_INFINITY);
        let turn: &[(&str, &[i64])] = &[("perm", &[0, 1, 3, 2])];
        let [limit, other] = self.limits.map(|limit| [-limit, limit].map(|x| g.number(x)));

        let k = g.node("Transpose", &[&k], turn);
        let product = g.node("MatMul", &[&q, &k], &[]);
        let most = g.node("ReduceMax", &[&product], &[("keepdims", &[0])]);
        let less = g.node("Sub", &[&product, &most], &[]);
        let scores = g.node("Clip", &[&less, &limit[0], &limit[1]], &[]);

        let turned = g.node("Transpose", &[&scores], turn);
        let most = g.node("ReduceMax", &[&turned], &[("axes", &[self.axis])]);
        let own = g.node("Sub", &[&turned, &most], &[]);
        let own = g.node("Clip", &[&own, &other[0], &other[1]], &[]);
        super::sizes::weigh(&mut g, &own, &seen);

        let masked = g.node("Where", &[&padding, &low, &scores], &[]);
        super::sizes::weigh(&mut g, &masked, &read);
        (g, [product, less, scores])
    }
}

fn rewritten(g: &GraphBuilder) -> Vec<Attention> {
    let (found, bytes) = g.rewritten();
    assert_eq!(found.len(), 2, "{found:?}");
    Model::read(&bytes).unwrap();
    if found.iter().all(|attention| !attention.replaced) {
        assert_eq!(bytes, g.bytes());
    }
    found
}

/// Checks that both attentions stay, the words' and the picture's for these reasons.
fn stay(g: &GraphBuilder, why: [&str; 2]) {
    let found = rewritten(g);
    for (attention, why) in found.iter().zip(why) {
        assert!(!attention.replaced && attention.words.contains(why), "{found:?}");
    }
}

#[test]
fn attentions_that_share_their_scores_are_both_replaced() {
    // The last has so many queries that proofs compute a sample of them.
    for (picture, words) in [("n", "m"), ("n", "6"), ("1030", "1030")] {
        let (g, _) = Fusion { picture, words, ..FREE }.graph();
        let found = rewritten(&g);
        let said: Vec<&str> = found.iter().map(|attention| attention.words.as_str()).collect();
        assert_eq!(said, ["2 heads of 8, scale 1", "2 heads of 8, scale 1, mask"]);
        assert!(found.iter().all(|attention| attention.replaced));
        // Nothing of the scores is left.
        let (_, bytes) = g.rewritten();
        let left = Model::read(&bytes).unwrap();
        let ops = ["Softmax", "Clip", "ReduceMax", "Sub", "Where"];
        assert!(left.graph.nodes.iter().all(|node| !ops.contains(&node.op.as_str())));
    }
}

#[test]
fn differences_from_the_largest_score_have_twice_the_bound_of_scores() {
    // An element of queries or keys is at most 4, so a score is at most 8 · 4 · 4 = 128.
    let limited = |limits| Fusion { limits, ..FREE }.graph().0;
    assert!(rewritten(&limited([513.0; 2])).iter().all(|attention| attention.replaced));
    stay(&limited([511.0; 2]), ["it clips at -511 and 511, and its scores can reach 256"; 2]);
    stay(&limited([513.0, 511.0]), ["its scores can reach 256", "some of which stay"]);
}

#[test]
fn scores_with_another_reader_stay() {
    let stays = |count: usize| format!("its scores are read by {count} nodes, some of which stay");
    for (at, counts) in [[3, 2], [2, 2], [3, 3]].into_iter().enumerate() {
        let (mut g, scores) = FREE.graph();
        let more = g.node("Abs", &[&scores[at]], &[]);
        g.output(&more);
        let [own, other] = counts.map(stays);
        stay(&g, [&own, &other]);
    }
    let (mut g, scores) = FREE.graph();
    g.output(&scores[1]);
    stay(&g, ["its scores are an output of the model"; 2]);
}

#[test]
fn only_what_is_the_same_for_a_row_is_subtracted() {
    // Each key has its own largest score.
    stay(&Fusion { axis: -2, ..FREE }.graph().0, ["", "some of which stay"]);
    // The largest scores of the picture's rows are no constants of the words' rows.
    let (mut g, _) = FREE.graph();
    let most = g.nodes.iter().position(|node| node.op == "ReduceMax").unwrap();
    let last = g.nodes.iter().rfind(|node| node.op == "ReduceMax").unwrap().attributes.clone();
    g.nodes[most].attributes = last;
    stay(&g, ["its mask is added before its scores are transposed", "some of which stay"]);
    // A soft cap changes differences of scores.
    let (mut g, scores) = FREE.graph();
    let at = g.nodes.iter().position(|node| node.op == "Clip").unwrap();
    assert_eq!(g.nodes[at].outputs[0], scores[2]);
    g.nodes[at].op = "Tanh".into();
    g.nodes[at].inputs.truncate(1);
    stay(&g, ["", "its largest score is subtracted within the soft cap"]);
}
