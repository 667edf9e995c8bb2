//! Attention in a single node: the attributes, inputs and outputs of `Attention` of ONNX, and of `Attention` and
//! `MultiHeadAttention` of ONNX Runtime.
//!
//! `Attention` of ONNX Runtime multiplies by weights first. A model is read as if this product were a node of its own
//! (`projected`), so the attention reads rows that contain queries, keys and values.

use super::node::{MICROSOFT, Node};
use super::size::{Size, shown};

/// Index of an input that an operator does not have.
const NONE: usize = usize::MAX;

/// Axes of a tensor, by the index of the input.
pub type Shapes<'a, 's> = &'a dyn Fn(usize) -> Option<&'s [Size]>;

/// Operator of a fused attention node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    /// `Attention` of ONNX.
    Onnx,
    /// `MultiHeadAttention` of ONNX Runtime.
    MultiHead,
    /// `Attention` of ONNX Runtime, without the product with its weights.
    Projected,
}

/// Attributes of a fused attention node, and the indices of its inputs.
pub struct FusedNode<'a> {
    /// The node.
    pub node: &'a Node,
    operator: Operator,
    heads: Option<usize>,
    kv_heads: Option<usize>,
    /// Scale of the scores, if the node has one.
    pub scale: Option<f64>,
    /// `true` if the node is causal.
    pub causal: bool,
    /// Soft cap of the scores; 0 if the scores are not capped.
    pub softcap: f64,
    /// Number that is added to the score of a key that the padding mask excludes.
    pub fill: f64,
    /// Index of the mask for all pairs of queries and keys.
    pub mask: usize,
    /// Index of the numbers that are added to the rows of queries, keys and values.
    pub bias: usize,
    /// Index of the padding mask, which has one of the forms of `mask_index`.
    pub padding: usize,
    /// Indices of the past keys and the past values. If the second is absent, the first tensor has both.
    pub past: [usize; 2],
    /// Index of the numbers of valid keys.
    pub lengths: usize,
    /// Number of the inputs that are replaced.
    inputs: usize,
    /// Number of the outputs that are replaced.
    outputs: usize,
}

/// Arrangement of queries, keys and values in the inputs of a fused node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Three tensors `[batch, heads, tokens, dim]`.
    Heads,
    /// Three tensors `[batch, tokens, heads · dim]`.
    Rows,
    /// Queries `[batch, tokens, heads · dim]`, with keys and values `[batch, heads, tokens, dim]`.
    HeadsOfKeys,
    /// Queries `[batch, tokens, heads · dim]`, with keys and values in one tensor `[batch, tokens, heads, 2, dim]`.
    PackedKeys,
    /// One tensor `[batch, tokens, heads, 3, dim]`.
    Packed,
    /// One tensor `[batch, tokens, width]`, with all queries, all keys and all values along the last axis.
    Projected,
}

impl Packing {
    /// Returns the number of operands to which a bias is added: the first, or all three. ONNX Runtime expects that keys
    /// and values with an axis of heads already contain their bias.
    #[must_use]
    pub const fn biased(self) -> usize {
        if matches!(self, Packing::HeadsOfKeys) { 1 } else { 3 }
    }
}

/// Sizes of a fused node's axes.
pub struct FusedSizes {
    /// Arrangement of queries, keys and values.
    pub packing: Packing,
    /// Batch size.
    pub batch: Size,
    /// Number of query heads.
    pub heads: Size,
    /// Number of heads of keys and values.
    pub kv_heads: Size,
    /// Number of queries.
    pub queries: Size,
    /// Number of keys, without the past.
    pub keys: Size,
    /// Number of past keys.
    pub past: Size,
    /// Head size of queries and keys.
    pub dim: Size,
    /// Head size of values.
    pub value_dim: Size,
}

impl<'a> FusedNode<'a> {
    /// Reads the attributes of a fused attention node; `None` for other nodes.
    #[must_use]
    pub fn of(node: &'a Node) -> Option<FusedNode<'a>> {
        node.is_fused().then_some(())?;
        let operator = match node.op.as_str() {
            _ if node.domain.is_empty() => Operator::Onnx,
            "MultiHeadAttention" => Operator::MultiHead,
            _ => Operator::Projected,
        };
        let own = operator == Operator::Onnx;
        let size = |name: &str| node.int(name).and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        let heads = size(if own { "q_num_heads" } else { "num_heads" });
        let (mask, bias, padding, past, lengths, inputs, outputs) = match operator {
            Operator::Onnx => (3, NONE, NONE, [4, 5], 6, 7, 3),
            Operator::MultiHead => (5, 3, 4, [6, 7], NONE, 8, 3),
            Operator::Projected => (5, NONE, 3, [4, NONE], NONE, 6, 2),
        };
        Some(FusedNode {
            node,
            operator,
            heads,
            kv_heads: if own { size("kv_num_heads") } else { heads },
            scale: node.float("scale").filter(|&x| x != 0.0).map(f64::from),
            causal: node.int(if own { "is_causal" } else { "unidirectional" }) == Some(1),
            softcap: node.float("softcap").map_or(0.0, f64::from),
            fill: node.float("mask_filter_value").map_or(-1e4, f64::from),
            mask,
            bias,
            padding,
            past,
            lengths,
            inputs,
            outputs,
        })
    }

    /// Returns `true` if the node is one of ONNX Runtime.
    #[must_use]
    pub fn is_microsoft(&self) -> bool {
        self.operator != Operator::Onnx
    }

    /// Returns `true` if the axis before the last of input `i`, which has `rank` axes, is the axis of the queries, and
    /// the input is a mask.
    #[must_use]
    pub fn is_mask_of_queries(&self, i: usize, rank: usize) -> bool {
        i == self.mask || i == self.padding && rank == 3
    }

    /// Returns `true` if the node has no input besides queries, keys, values and a mask, and no output besides its
    /// answer.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let more = [self.bias, self.padding, self.past[0], self.past[1], self.lengths];
        more.into_iter().all(|i| self.node.input(i).is_none()) && self.presents().is_empty()
    }

    /// Returns the names of the outputs with present keys and values. The name of an absent output is empty.
    #[must_use]
    pub fn presents(&self) -> &'a [String] {
        let all = self.node.outputs.get(1..).unwrap_or_default();
        let all = &all[..all.len().min(self.outputs - 1)];
        if all.iter().all(String::is_empty) { &[] } else { all }
    }

    /// Checks that the node uses no unsupported feature.
    ///
    /// # Errors
    /// Returns the reason why the node is not replaced.
    pub fn check(&self) -> Result<(), String> {
        let node = self.node;
        if node.outputs.first().is_none_or(String::is_empty) {
            return Err("it has no output".into());
        }
        if node.outputs.iter().skip(self.outputs).any(|name| !name.is_empty()) {
            return Err("one of its outputs has scores, which the operator does not return".into());
        }
        let known: &[&str] = match self.operator {
            Operator::Onnx => &["q_num_heads", "kv_num_heads", "scale", "is_causal", "softcap"],
            Operator::MultiHead => &["num_heads", "scale", "unidirectional", "mask_filter_value"],
            Operator::Projected => {
                &["num_heads", "scale", "unidirectional", "mask_filter_value", "qkv_hidden_sizes"]
            }
        };
        // Attributes without effect here: rounding of scores, content of an absent output, and the size of rotations.
        let idle = ["softmax_precision", "qk_matmul_output_mode", "rotary_embedding_dim"];
        for (name, reason) in [
            ("do_rotary", "it rotates queries and keys"),
            ("past_present_share_buffer", "its cache is a buffer that the runtime fills in place"),
        ] {
            if node.int(name).is_some_and(|x| x != 0) {
                return Err(reason.into());
            }
        }
        let switches = ["do_rotary", "past_present_share_buffer"];
        let all = [known, &idle, &switches].concat();
        if let Some(name) = node.attributes.keys().find(|name| !all.contains(&name.as_str())) {
            return Err(format!("its attribute {name} is not taken over"));
        }
        if (self.inputs..node.inputs.len()).any(|i| node.input(i).is_some()) {
            return Err("its cache is a buffer that the runtime fills in place".into());
        }
        let past = self.past.map(|i| node.input(i).is_some());
        if self.operator != Operator::Projected && past[0] != past[1] {
            return Err("it has past keys or past values alone; allowed: both, or none".into());
        }
        let presents = self.presents();
        let whole = presents.len() + 1 == self.outputs && !presents.iter().any(String::is_empty);
        if past[0] && self.is_microsoft() && !whole {
            return Err("it has a past without presents, which ONNX Runtime does not support".into());
        }
        if self.softcap != 0.0 && node.input(self.mask).is_some() {
            return Err("versions of the operator disagree whether a soft cap acts before the mask".into());
        }
        if node.input(self.lengths).is_some() && self.causal {
            return Err("versions of the operator disagree on the diagonal of nonpad_kv_seqlen".into());
        }
        if node.input(self.lengths).is_some() && past[0] {
            return Err("it has nonpad_kv_seqlen and a past; allowed: one of them".into());
        }
        Ok(())
    }
}

impl FusedSizes {
    /// Derives the sizes of a fused node's axes from the shapes of its inputs.
    ///
    /// # Errors
    /// Returns the reason why they cannot be derived.
    pub fn of(node: &Node, shape: Shapes<'_, '_>) -> Result<FusedSizes, String> {
        let fused = FusedNode::of(node).ok_or("it is no attention")?;
        let given = |i: usize| match node.input(i) {
            None => Ok(None),
            Some(_) => {
                shape(i).map(Some).ok_or("shapes of queries, keys or values do not follow from the model")
            }
        };
        let (q, k, v) = (given(0)?, given(1)?, given(2)?);
        let wrong = || {
            let all: Vec<String> = [q, k, v].into_iter().flatten().map(shown).collect();
            format!("its operands are of {}; those of 3 axes, or of 4, are replaced", all.join(", "))
        };
        let heads = || fused.heads.and_then(Size::count).ok_or("it does not say its heads");
        let part = |whole: &Size, heads: &Size| whole.over(heads).ok_or("it has no heads");
        let sizes =
            |packing, [batch, heads, kv_heads, queries, keys, dim, value_dim]: [&Size; 7]| FusedSizes {
                packing,
                batch: batch.clone(),
                heads: heads.clone(),
                kv_heads: kv_heads.clone(),
                queries: queries.clone(),
                keys: keys.clone(),
                past: Size::from(0),
                dim: dim.clone(),
                value_dim: value_dim.clone(),
            };
        let mut all = match (q, k, v) {
            (Some([b, h, n, d]), Some([_, kv, m, _]), Some([_, _, _, e])) => {
                sizes(Packing::Heads, [b, h, kv, n, m, d, e])
            }
            (Some([b, n, width]), Some([_, m, _]), Some([_, _, value_width])) => {
                let heads = heads()?;
                let kv_heads = fused.kv_heads.and_then(Size::count).unwrap_or_else(|| heads.clone());
                let (dim, value_dim) = (part(width, &heads)?, part(value_width, &kv_heads)?);
                sizes(Packing::Rows, [b, &heads, &kv_heads, n, m, &dim, &value_dim])
            }
            (Some([b, n, width]), Some([_, kv, m, d]), Some([_, _, _, e]))
                if fused.operator == Operator::MultiHead =>
            {
                let heads = heads()?;
                if part(width, &heads)? != *d || heads != *kv {
                    return Err(wrong());
                }
                sizes(Packing::HeadsOfKeys, [b, &heads, kv, n, m, d, e])
            }
            (Some([b, n, width]), Some([_, m, kv, two, d]), None)
                if fused.operator == Operator::MultiHead && two.is(2) =>
            {
                let heads = heads()?;
                if part(width, &heads)? != *d || heads != *kv {
                    return Err(wrong());
                }
                sizes(Packing::PackedKeys, [b, &heads, kv, n, m, d, d])
            }
            (Some([b, n, h, three, d]), None, None)
                if fused.operator == Operator::MultiHead && three.is(3) =>
            {
                if heads()? != *h {
                    return Err(wrong());
                }
                sizes(Packing::Packed, [b, h, h, n, n, d, d])
            }
            (Some([b, n, width]), None, None) if fused.operator == Operator::Projected => {
                let heads = heads()?;
                let [own, values] = match node.ints("qkv_hidden_sizes") {
                    None | Some([]) => {
                        let third = part(width, &Size::from(3))?;
                        [third.clone(), third]
                    }
                    Some(&[q, k, v]) if q == k => [Size::from(q), Size::from(v)],
                    Some(other) => {
                        return Err(format!(
                            "its qkv_hidden_sizes are {other:?}; allowed: three, the first two of them equal"
                        ));
                    }
                };
                if Size::from(2).times(&own).and_then(|keys| keys.plus(&values)).as_ref() != Some(width) {
                    return Err(wrong());
                }
                let (dim, value_dim) = (part(&own, &heads)?, part(&values, &heads)?);
                sizes(Packing::Projected, [b, &heads, &heads, n, n, &dim, &value_dim])
            }
            _ => return Err(wrong()),
        };
        if node.input(fused.past[0]).is_some() {
            let shape = shape(fused.past[0]).ok_or("the shape of its past does not follow from the model")?;
            // A tensor with both past keys and past values has one more axis in front.
            let axis = if fused.operator == Operator::Projected { 3 } else { 2 };
            let tokens = shape.get(axis).filter(|_| shape.len() == axis + 2);
            all.past = tokens.cloned().ok_or_else(|| format!("its past is of {}", shown(shape)))?;
        }
        Ok(all)
    }

    /// Returns the number of keys, with the past.
    #[must_use]
    pub fn total(&self) -> Option<Size> {
        self.past.plus(&self.keys)
    }

    /// Returns the shape of the scores.
    #[must_use]
    pub fn scores(&self) -> Option<Vec<Size>> {
        Some(vec![self.batch.clone(), self.heads.clone(), self.queries.clone(), self.total()?])
    }

    /// Returns the shapes of the node's outputs: the answer, the present keys and values, and the scores.
    #[must_use]
    pub fn outputs(&self) -> Option<Vec<Vec<Size>>> {
        let (batch, total) = (self.batch.clone(), self.total()?);
        let present = |dim: &Size| vec![batch.clone(), self.kv_heads.clone(), total.clone(), dim.clone()];
        let answer = match self.packing {
            Packing::Heads => {
                vec![batch.clone(), self.heads.clone(), self.queries.clone(), self.value_dim.clone()]
            }
            _ => vec![batch.clone(), self.queries.clone(), self.heads.times(&self.value_dim)?],
        };
        let keys = present(&self.dim);
        Some(if self.packing == Packing::Projected {
            vec![answer, [vec![Size::from(2)], keys].concat()]
        } else {
            vec![answer, keys, present(&self.value_dim), self.scores()?]
        })
    }
}

/// Returns two sizes that must be equal for a fused node to be valid, although their expressions differ. At least one
/// of them is a free axis that the other does not contain.
#[must_use]
pub fn tied(node: &Node, shape: Shapes<'_, '_>) -> Option<(Size, Size)> {
    let (fused, sizes) = (FusedNode::of(node)?, FusedSizes::of(node, shape).ok()?);
    let total = sizes.total()?;
    let mut pairs: Vec<(&Size, &Size)> = Vec::new();
    for shape in [1, 2].into_iter().filter_map(shape).filter(|shape| shape.len() >= 3) {
        pairs.push((&sizes.batch, &shape[0]));
        if shape.len() < 5 {
            pairs.push((&sizes.keys, &shape[shape.len() - 2]));
        }
    }
    for shape in fused.past.into_iter().filter_map(shape).filter(|shape| shape.len() >= 4) {
        pairs.extend([(&sizes.batch, &shape[shape.len() - 4]), (&sizes.past, &shape[shape.len() - 2])]);
    }
    match shape(fused.padding) {
        Some([batch, keys]) if !keys.is(1) => pairs.extend([(&sizes.batch, batch), (&total, keys)]),
        Some([batch, queries, keys]) => {
            pairs.extend([(&sizes.batch, batch), (&sizes.queries, queries), (&total, keys)]);
        }
        _ => {}
    }
    if let Some([batch]) = shape(fused.lengths) {
        pairs.push((&sizes.batch, batch));
    }
    let free = |a: &Size, b: &Size| a.name().is_some_and(|name| !b.has(name));
    let pair = pairs.into_iter().find(|(a, b)| a != b && (free(a, b) || free(b, a)));
    pair.map(|(a, b)| (a.clone(), b.clone()))
}

/// Returns pairs of an axis of a fused node's mask and the same axis of its scores. The axis of the mask has size 1 or
/// the full size.
#[must_use]
pub fn joined(node: &Node, shape: Shapes<'_, '_>) -> Vec<Vec<Size>> {
    let pairs = || {
        let (fused, sizes) = (FusedNode::of(node)?, FusedSizes::of(node, shape).ok()?);
        let (mask, total) = (shape(fused.mask)?, sizes.total()?);
        let full = [(1, total), (2, sizes.queries), (4, sizes.batch)];
        let pair =
            |(back, full): (usize, Size)| Some(vec![mask.get(mask.len().checked_sub(back)?)?.clone(), full]);
        Some(full.into_iter().filter_map(pair).collect::<Vec<_>>())
    };
    let mut all = pairs().unwrap_or_default();
    all.retain(|pair| pair[0] != pair[1] && !pair.iter().any(|n| n.is(1)));
    all
}

/// Explains why an unsupported attention node of ONNX Runtime is not replaced; `None` for other nodes.
#[must_use]
pub fn refusal(node: &Node) -> Option<String> {
    if node.domain != MICROSOFT || node.is_fused() {
        return None;
    }
    let reason = match node.op.as_str() {
        "Attention" => "it has no weights, or does not say its heads".to_owned(),
        "QAttention" => "it multiplies by weights of 8-bit integers".to_owned(),
        "DecoderAttention" => "an input decides whether it has a cache".to_owned(),
        "GroupQueryAttention" => grouped(node),
        "DecoderMaskedMultiHeadAttention" | "DecoderMaskedSelfAttention" => {
            "its cache is a buffer that the runtime fills in place".to_owned()
        }
        "PagedAttention" => "its cache is divided into pages".to_owned(),
        "SparseAttention" => "it attends blocks of keys in a list".to_owned(),
        "PackedAttention" | "PackedMultiHeadAttention" => {
            "its sequences are packed along the tokens".to_owned()
        }
        "LongformerAttention" => "it attends what no mask of the operator says".to_owned(),
        _ => return None,
    };
    Some(format!("{MICROSOFT}.{} is not taken over: {reason}", node.op))
}

/// Explains why a `GroupQueryAttention` is not replaced: the features that the operator does not have, and the cache.
fn grouped(node: &Node) -> String {
    let set = |name: &str| node.int(name).is_some_and(|x| x != 0 && x != -1);
    let has = |i: usize| node.input(i).is_some();
    let features = [
        (set("do_rotary"), "it rotates queries and keys"),
        (set("smooth_softmax") || has(11), "its softmax has a sink"),
        (has(12) || has(13), "its cache has integers"),
        (true, "its input seqlens_k decides at run time where new keys are written"),
    ];
    let all: Vec<&str> = features.into_iter().filter_map(|(is, words)| is.then_some(words)).collect();
    all.join(", and ")
}
