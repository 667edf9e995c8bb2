//! Attention that a graph has as one node: `Attention` of ONNX and `MultiHeadAttention` of ONNX Runtime.

use super::array::{Array, Kind, count};
use super::change::{Change, DOMAIN, OPERATOR, Role};
use super::find::{Action, Found, Reason, Site, Term};
use super::model::{Attribute, Node};
use super::ops::{LARGEST, Limits, expanded};

/// The domain of ONNX Runtime's own operators.
pub const MICROSOFT: &str = "com.microsoft";

/// What such a node says, apart from its tensors.
struct Said {
    heads: Option<usize>,
    kv_heads: Option<usize>,
    scale: Option<f64>,
    causal: bool,
    softcap: f64,
    /// The input that is the mask.
    mask: usize,
}

/// Whether the node is one that is understood here.
#[must_use]
pub fn is_fused(node: &Node) -> bool {
    node.is("Attention") || node.op == "MultiHeadAttention" && node.domain == MICROSOFT
}

fn said(node: &Node) -> Said {
    let size = |name: &str| node.int(name).and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
    let own = node.is("Attention");
    let heads = size(if own { "q_num_heads" } else { "num_heads" });
    Said {
        heads,
        kv_heads: if own { size("kv_num_heads") } else { heads },
        scale: node.float("scale").filter(|&x| x != 0.0).map(f64::from),
        causal: node.int(if own { "is_causal" } else { "unidirectional" }) == Some(1),
        softcap: node.float("softcap").map_or(0.0, f64::from),
        mask: if own { 3 } else { 5 },
    }
}

/// Why the node stays, if it has what is not replaced.
fn check(node: &Node, said: &Said) -> Result<(), Reason> {
    for i in (3..node.inputs.len()).filter(|&i| i != said.mask) {
        if node.input(i).is_some() {
            let own = ["attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"];
            let microsoft = ["bias", "key_padding_mask", "attention_bias", "past_key", "past_value"];
            let names: &[&str] = if node.domain.is_empty() { &own } else { &microsoft };
            let name = names.get(i - 3).copied().unwrap_or("another input");
            return Err(format!("its input {name} is not taken over"));
        }
    }
    if node.outputs.first().is_none_or(String::is_empty) {
        return Err("it has no output".into());
    }
    if node.outputs.iter().skip(1).any(|name| !name.is_empty()) {
        return Err("it has more outputs than its answer".into());
    }
    if said.softcap != 0.0 && node.input(said.mask).is_some() {
        return Err("versions of the operator disagree whether a soft cap acts before the mask".into());
    }
    let known =
        ["q_num_heads", "kv_num_heads", "num_heads", "scale", "is_causal", "unidirectional", "softcap"];
    // How scores are rounded, what an absent output shows, and a fill that is never used without padding.
    let idle = ["softmax_precision", "qk_matmul_output_mode", "mask_filter_value"];
    match node
        .attributes
        .keys()
        .find(|name| !known.contains(&name.as_str()) && !idle.contains(&name.as_str()))
    {
        Some(name) => Err(format!("its attribute {name} is not taken over")),
        None => Ok(()),
    }
}

/// The attention of a node whose operands have four axes and as many heads each.
///
/// # Errors
/// Why it stays.
pub fn found(site: &Site<'_>, n: usize) -> Result<Found, Reason> {
    let node = &site.graph.nodes[n];
    let said = said(node);
    check(node, &said)?;
    let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|i| node.input(i)) else {
        return Err("queries, keys and values in one tensor are not taken over".into());
    };
    let Some(shape) = site.worlds.first().and_then(|world| world.shape(q)) else {
        return Err("the shape of its queries does not follow from the model".into());
    };
    let scale = said.scale.unwrap_or(1.0 / (shape.last().copied().unwrap_or(1).max(1) as f64).sqrt());
    let terms = match node.input(said.mask) {
        Some(name) => {
            let truth = site.worlds.iter().all(|world| world.kind(name) == Some(Kind::BOOL));
            let fill = f64::NEG_INFINITY;
            let action = if truth { Action::Choose { keeps: true, fill } } else { Action::Add };
            vec![Term { name: name.to_owned(), action, scores: None }]
        }
        None => vec![],
    };
    let mut found = Found {
        operands: [q, k, v].map(|name| site.trace(name)),
        turned: false,
        scale,
        softcap: Some(said.softcap).filter(|&cap| cap != 0.0),
        causal: said.causal,
        terms,
        outputs: node.outputs.iter().take(1).map(|name| (name.clone(), n)).collect(),
    };
    site.layouts(&mut found);
    Ok(found)
}

/// The new node for one whose operands have three axes, or fewer heads of keys than of queries: the same tensors.
///
/// # Errors
/// Why it stays.
pub fn same(site: &Site<'_>, n: usize, prefix: &str) -> Result<Change, Reason> {
    let node = &site.graph.nodes[n];
    let said = said(node);
    check(node, &said)?;
    let shapes = |i: usize| node.input(i).and_then(|name| site.worlds.first()?.shape(name));
    let (Some(q), Some(k), Some(_)) = (shapes(0), shapes(1), shapes(2)) else {
        return Err("shapes of queries, keys or values do not follow from the model".into());
    };
    let (heads, kv_heads, dim) = match (q, k) {
        (&[_, heads, _, dim], &[_, kv_heads, _, _]) => (heads, kv_heads, dim),
        (&[_, _, width], &[..]) => {
            let heads = said.heads.ok_or("it does not say its heads")?;
            (heads, said.kv_heads.unwrap_or(heads), width / heads)
        }
        _ => return Err(format!("its queries have {} axes", q.len())),
    };
    let output = node.outputs.first().ok_or("it has no output")?;
    let int = |n: usize| Attribute::Int(i64::try_from(n).unwrap_or(i64::MAX));
    let scale = said.scale.unwrap_or(1.0 / (dim.max(1) as f64).sqrt());
    let mut new = Node {
        name: prefix.to_owned(),
        op: OPERATOR.into(),
        domain: DOMAIN.into(),
        inputs: node.inputs.iter().take(3).cloned().collect(),
        outputs: vec![output.clone()],
        ..Node::default()
    };
    let mut reads: Vec<(String, Role)> =
        new.inputs.iter().map(|name| (name.clone(), Role::Operand)).collect();
    if let Some(mask) = node.input(said.mask) {
        new.inputs.push(mask.to_owned());
        let truth = site.worlds.iter().all(|world| world.kind(mask) == Some(Kind::BOOL));
        reads.push((mask.to_owned(), if truth { Role::Condition(true) } else { Role::Added }));
    }
    new.attributes.insert("num_heads".into(), int(heads));
    if kv_heads != heads {
        new.attributes.insert("kv_num_heads".into(), int(kv_heads));
    }
    new.attributes.insert("scale".into(), Attribute::Float(scale as f32));
    if said.causal {
        new.attributes.insert("is_causal".into(), Attribute::Int(1));
    }
    if said.softcap != 0.0 {
        new.attributes.insert("softcap".into(), Attribute::Float(said.softcap as f32));
    }
    let words = format!("{heads} heads of {dim}, scale {}", scale as f32);
    Ok(Change { output: (output.clone(), n), nodes: vec![new], constants: vec![], reads, words })
}

/// The tensor `[batch, heads, tokens, dim]` of an operand.
fn operand(array: &Array, heads: Option<usize>) -> Option<[usize; 4]> {
    match array.shape[..] {
        [b, h, n, d] => Some([b, h, n, d]),
        [b, n, width] => {
            let heads = heads?;
            width.is_multiple_of(heads).then_some([b, heads, n, width / heads])
        }
        _ => None,
    }
}

/// The answer of such a node, in f64; none for other nodes, and for what is not replaced.
#[must_use]
pub fn eval(node: &Node, inputs: &[Option<&Array>], limits: Limits) -> Option<Array> {
    if !is_fused(node) {
        return None;
    }
    let said = said(node);
    let get = |i: usize| inputs.get(i).copied().flatten();
    let arrays = [get(0)?, get(1)?, get(2)?];
    let rows = arrays[0].shape.len() == 3;
    let [[b, h, n, d], [_, kv, m, d2], [_, _, m2, e]] =
        [(0, said.heads), (1, said.kv_heads), (2, said.kv_heads)]
            .map(|(i, heads)| operand(arrays[i], heads).unwrap_or_default());
    if kv == 0 || !h.is_multiple_of(kv) || d != d2 || m != m2 {
        return None;
    }
    count(&[b, h, n, m, d.checked_add(e)?], limits.work)?;
    count(&[b, h, n, e], limits.elements)?;
    count(&[b, h, n, m], limits.elements)?;
    let at = |heads: usize, tokens: usize, dim: usize, b: usize, h: usize, i: usize| {
        if rows { ((b * tokens + i) * heads + h) * dim } else { ((b * heads + h) * tokens + i) * dim }
    };
    let mask = match get(said.mask) {
        Some(mask) => Some((mask.kind == Kind::BOOL, expanded(mask, &[b, h, n, m])?)),
        None => None,
    };
    let scale = said.scale.unwrap_or(1.0 / (d.max(1) as f64).sqrt());
    let mut out = vec![0.0; count(&[b, h, n, e], LARGEST)?];
    let mut scores = vec![0.0; m];
    for (i, j, x) in (0..b).flat_map(|i| (0..h).flat_map(move |j| (0..n).map(move |x| (i, j, x)))) {
        let group = j * kv / h;
        let query = arrays[0].data.get(at(h, n, d, i, j, x)..)?.get(..d)?;
        for (y, score) in scores.iter_mut().enumerate() {
            let key = arrays[1].data.get(at(kv, m, d, i, group, y)..)?.get(..d)?;
            let dot: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
            *score = dot * scale;
            if said.softcap != 0.0 {
                *score = said.softcap * (*score / said.softcap).tanh();
            }
            match &mask {
                Some((true, mask)) if mask[((i * h + j) * n + x) * m + y] == 0.0 => {
                    *score = f64::NEG_INFINITY
                }
                Some((false, mask)) => *score += mask[((i * h + j) * n + x) * m + y],
                _ => {}
            }
            if said.causal && y > x {
                *score = f64::NEG_INFINITY;
            }
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|score| *score = (*score - max).exp());
        let sum: f64 = scores.iter().sum();
        let into = &mut out[at(h, n, e, i, j, x)..][..e];
        for (y, weight) in scores.iter().enumerate() {
            let value = arrays[2].data.get(at(kv, m, e, i, group, y)..)?.get(..e)?;
            into.iter_mut().zip(value).for_each(|(into, v)| *into += weight / sum * v);
        }
    }
    let shape = if rows { vec![b, n, h * e] } else { vec![b, h, n, e] };
    Some(Array::new(arrays[0].kind, shape, out))
}
