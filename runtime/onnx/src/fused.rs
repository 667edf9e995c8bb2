//! Attention in a single node: `Attention` of ONNX and `MultiHeadAttention` of ONNX Runtime.

use super::array::{Array, Kind, count};
use super::change::{Change, DOMAIN, OPERATOR, Role};
use super::find::{Action, AttentionPattern, Reason, Site, Term};
use super::node::{Attribute, MICROSOFT, Node};
use super::ops::{LARGEST, Limits, expanded};
use super::size::{Size, shown};
use super::symbols::Symbols;
use half::f16;

/// Attributes of a fused attention node.
struct Said {
    heads: Option<usize>,
    kv_heads: Option<usize>,
    scale: Option<f64>,
    causal: bool,
    softcap: f64,
    /// Index of the mask input.
    mask: usize,
}

/// Explains why an unsupported attention node of ONNX Runtime is not replaced; `None` for other nodes.
#[must_use]
pub fn refusal(node: &Node) -> Option<Reason> {
    let reason = match node.op.as_str() {
        _ if node.domain != MICROSOFT => return None,
        "Attention" | "QAttention" | "PackedAttention" | "DecoderAttention" => {
            "it computes the projections of its operands, too"
        }
        "GroupQueryAttention"
        | "PagedAttention"
        | "SparseAttention"
        | "DecoderMaskedMultiHeadAttention"
        | "DecoderMaskedSelfAttention" => "it keeps a cache of keys and values",
        "PackedMultiHeadAttention" => "its sequences are packed along the tokens",
        "LongformerAttention" => "it attends what no mask of the operator says",
        _ => return None,
    };
    Some(format!("{MICROSOFT}.{} is not taken over: {reason}", node.op))
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

/// Returns the shape of the scores of a fused node.
#[must_use]
pub fn scores(symbols: &Symbols, node: &Node) -> Option<Vec<Size>> {
    let [q, k] = [0, 1].map(|i| symbols.shape(node.input(i)?));
    let all = match (q?, k?) {
        ([b, h, n, _], [_, _, m, _]) => [b.clone(), h.clone(), n.clone(), m.clone()],
        ([b, n, _], [_, m, _]) => [b.clone(), Size::count(said(node).heads?)?, n.clone(), m.clone()],
        _ => return None,
    };
    Some(all.to_vec())
}

/// Checks that the node uses no unsupported feature. The error is the reason why the node is not replaced.
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
    // Attributes without effect here: rounding of scores, content of an absent output, and a fill used only for padding.
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

/// Returns the default scale of `Attention` and `MultiHeadAttention`.
fn default_scale(dim: &Size) -> Option<f64> {
    dim.known().filter(|&dim| dim > 0).map(|dim| 1.0 / (dim as f64).sqrt())
}

/// Refuses a causal node of ONNX Runtime if its numbers of queries and keys differ, because ONNX Runtime then aligns
/// the last query with the last key.
fn check_diagonal(site: &Site<'_>, node: &Node, said: &Said) -> Result<(), Reason> {
    let tokens = |i: usize| {
        let shape = site.symbols.shape(node.input(i)?)?;
        shape.get(shape.len().checked_sub(2)?)
    };
    if said.causal && !node.domain.is_empty() && (tokens(0).is_none() || tokens(0) != tokens(1)) {
        return Err("it is unidirectional over other numbers of queries and keys".into());
    }
    Ok(())
}

/// Describes the attention of fused node `n`, whose operands must have four axes and equal numbers of heads.
///
/// # Errors
/// Returns the reason why the node is not replaced.
pub fn pattern(site: &Site<'_>, n: usize) -> Result<AttentionPattern, Reason> {
    let node = &site.graph.nodes[n];
    let said = said(node);
    check(node, &said)?;
    check_diagonal(site, node, &said)?;
    let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|i| node.input(i)) else {
        return Err("queries, keys and values in one tensor are not taken over".into());
    };
    let Some(shape) = site.symbols.shape(q).filter(|shape| shape.len() == 4) else {
        return Err("its queries have no axis of heads".into());
    };
    let scale = said.scale.or_else(|| shape.last().and_then(default_scale));
    let scale = scale.ok_or("its head size is free, and so is its scale")?;
    let terms = match node.input(said.mask) {
        Some(name) => {
            let truth = site.symbols.kind(name) == Some(Kind::BOOL);
            let fill = f64::NEG_INFINITY;
            let action = if truth { Action::Choose { keeps: true, fill } } else { Action::Add };
            vec![Term { name: name.to_owned(), action, scores: None }]
        }
        None => vec![],
    };
    let mut found = AttentionPattern {
        operands: [q, k, v].map(|name| site.trace(name)),
        turned: false,
        scale,
        factors: vec![],
        softcap: Some(said.softcap).filter(|&cap| cap != 0.0),
        causal: said.causal,
        terms,
        walk: node.outputs.iter().take(1).cloned().collect(),
        outputs: node.outputs.iter().take(1).map(|name| (name.clone(), n)).collect(),
    };
    site.layouts(&mut found);
    Ok(found)
}

/// Builds the operator that replaces fused node `n` and reads the same tensors. This form is needed for operands that
/// have three axes, or fewer key heads than query heads.
///
/// # Errors
/// Returns the reason why the node is not replaced.
pub fn same(site: &Site<'_>, n: usize, prefix: &str) -> Result<Change, Reason> {
    let node = &site.graph.nodes[n];
    let said = said(node);
    check(node, &said)?;
    check_diagonal(site, node, &said)?;
    let shapes = |i: usize| node.input(i).and_then(|name| site.symbols.shape(name));
    let (Some(q), Some(k), Some(v)) = (shapes(0), shapes(1), shapes(2)) else {
        return Err("shapes of queries, keys or values do not follow from the model".into());
    };
    let kinds = [0, 1, 2].map(|i| node.input(i).and_then(|name| site.symbols.kind(name)));
    if kinds[0] != kinds[1] || kinds[0] != kinds[2] || ![Some(Kind::F32), Some(Kind::F16)].contains(&kinds[0])
    {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.map_or("unknown", Kind::name)).collect();
        return Err(format!(
            "its operands are {}; those of one type, f32 or f16, are replaced",
            names.join(", ")
        ));
    }
    let (heads, kv_heads, dim) = match (q, k, v) {
        ([_, heads, _, dim], [_, kv_heads, _, _], [_, _, _, _]) => {
            (heads.clone(), kv_heads.clone(), dim.clone())
        }
        ([_, _, width], [_, _, _], [_, _, _]) => {
            let heads = said.heads.and_then(Size::count).ok_or("it does not say its heads")?;
            let kv_heads = said.kv_heads.and_then(Size::count).unwrap_or_else(|| heads.clone());
            let dim = width.over(&heads).ok_or("it has no heads")?;
            (heads, kv_heads, dim)
        }
        _ => {
            return Err(format!(
                "its operands are of {}, {} and {}; those of 3 axes, or of 4, are replaced",
                shown(q),
                shown(k),
                shown(v)
            ));
        }
    };
    let output = node.outputs.first().ok_or("it has no output")?;
    let scale = said.scale.or_else(|| default_scale(&dim));
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
        let truth = site.symbols.kind(mask) == Some(Kind::BOOL);
        reads.push((mask.to_owned(), if truth { Role::Condition(true) } else { Role::Added }));
    }
    if let Some(heads) = heads.known() {
        new.attributes.insert("num_heads".into(), Attribute::Int(heads));
    }
    if let Some(kv_heads) = kv_heads.known().filter(|_| kv_heads != heads) {
        new.attributes.insert("kv_num_heads".into(), Attribute::Int(kv_heads));
    }
    // If the head size is free, the operator computes the same default scale at run time.
    if let Some(scale) = scale {
        new.attributes.insert("scale".into(), Attribute::Float(scale as f32));
    }
    if said.causal {
        new.attributes.insert("is_causal".into(), Attribute::Int(1));
    }
    if said.softcap != 0.0 {
        new.attributes.insert("softcap".into(), Attribute::Float(said.softcap as f32));
    }
    let scale = scale.map_or_else(|| "of the head size".into(), |scale| (scale as f32).to_string());
    let words = format!("{heads} heads of {dim}, scale {scale}");
    let keys = k[k.len() - 2].clone();
    let (walk, made) = ([output.clone()].into(), output.clone());
    Ok(Change {
        output: (output.clone(), n),
        nodes: vec![new],
        constants: vec![],
        reads,
        walk,
        attention_output: made,
        keys,
        by_position: false,
        words,
    })
}

/// Returns the shape `[batch, heads, tokens, dim]` of an operand.
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

/// Computes the output of a fused node in f64. Returns `None` for other nodes, and for nodes that are not replaced. If
/// `sample` selects some of the queries, the output is `[batch, heads, queries, dim]` for these queries, and the mask
/// must contain only the rows of these queries.
#[must_use]
pub fn eval(
    node: &Node,
    inputs: &[Option<&Array>],
    limits: Limits,
    sample: Option<&[usize]>,
) -> Option<Array> {
    if !node.is_fused() {
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
    let all: Vec<usize> = (0..n).collect();
    let taken = sample.unwrap_or(&all);
    count(&[b, h, taken.len(), m, d.checked_add(e)?], limits.work)?;
    count(&[b, h, taken.len(), e], limits.elements)?;
    count(&[b, h, taken.len(), m], limits.elements)?;
    let at = |heads: usize, tokens: usize, dim: usize, b: usize, h: usize, i: usize| {
        if rows { ((b * tokens + i) * heads + h) * dim } else { ((b * heads + h) * tokens + i) * dim }
    };
    let mask = match get(said.mask) {
        Some(mask) => Some((mask.kind == Kind::BOOL, expanded(mask, &[b, h, taken.len(), m])?)),
        None => None,
    };
    // In ONNX Runtime's Attention, the lowest number in a mask means "not attended". If a row contains only this
    // number, ONNX Runtime yields zeros for the row, but the operator yields the mean of the values.
    let lowest = get(said.mask).filter(|_| node.is("Attention")).map(|mask| match mask.kind {
        Kind::F16 => f64::from(f16::MIN),
        _ => f64::from(f32::MIN),
    });
    let scale = said.scale.unwrap_or(1.0 / (d.max(1) as f64).sqrt());
    let mut out = vec![0.0; count(&[b, h, taken.len(), e], LARGEST)?];
    let mut scores = vec![0.0; m];
    for (i, j, y) in (0..b).flat_map(|i| (0..h).flat_map(move |j| (0..taken.len()).map(move |y| (i, j, y)))) {
        let (x, group) = (taken[y], j * kv / h);
        let place = ((i * h + j) * taken.len() + y) * m;
        let query = arrays[0].data.get(at(h, n, d, i, j, x)..)?.get(..d)?;
        for (y, score) in scores.iter_mut().enumerate() {
            let key = arrays[1].data.get(at(kv, m, d, i, group, y)..)?.get(..d)?;
            let dot: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
            *score = dot * scale;
            if said.softcap != 0.0 {
                *score = said.softcap * (*score / said.softcap).tanh();
            }
            match &mask {
                Some((true, mask)) if mask[place + y] == 0.0 => *score = f64::NEG_INFINITY,
                Some((false, mask)) if lowest == Some(mask[place + y]) => *score = f64::NEG_INFINITY,
                Some((false, mask)) => *score += mask[place + y],
                _ => {}
            }
            if said.causal && y > x {
                *score = f64::NEG_INFINITY;
            }
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|score| *score = (*score - max).exp());
        let sum: f64 = scores.iter().sum();
        let start = if sample.is_some() { ((i * h + j) * taken.len() + y) * e } else { at(h, n, e, i, j, x) };
        let into = &mut out[start..][..e];
        for (y, weight) in scores.iter().enumerate() {
            let value = arrays[2].data.get(at(kv, m, e, i, group, y)..)?.get(..e)?;
            into.iter_mut().zip(value).for_each(|(into, v)| *into += weight / sum * v);
        }
    }
    if sample.is_some() {
        return Some(Array::new(arrays[0].kind, vec![b, h, taken.len(), e], out));
    }
    let shape = if rows { vec![b, n, h * e] } else { vec![b, h, n, e] };
    Some(Array::new(arrays[0].kind, shape, out))
}
