//! Outputs of attention in a single node, computed in f64 as the operator of the node defines them.

use super::array::{Array, Kind, count};
use super::node::Node;
use super::ops::{LARGEST, Limits, expanded};
use super::single::{FusedNode, FusedSizes, Packing};
use super::size::Size;
use super::value::sized;
use half::f16;

/// Gathers a tensor `[batch, heads, tokens, dim]`. Its elements are those of `array` from `offset` on, with `steps`
/// elements from one index of an axis to the next.
fn gathered(array: &Array, shape: [usize; 4], offset: usize, steps: [usize; 4]) -> Option<Array> {
    let mut data = Vec::with_capacity(count(&shape, LARGEST)?);
    let [b, h, n, d] = shape;
    for (i, j, x) in (0..b).flat_map(|i| (0..h).flat_map(move |j| (0..n).map(move |x| (i, j, x)))) {
        let start = offset + i * steps[0] + j * steps[1] + x * steps[2];
        for y in 0..d {
            data.push(*array.data.get(start + y * steps[3])?);
        }
    }
    Some(Array::new(array.kind, shape.to_vec(), data))
}

/// Returns a tensor `[batch, heads, tokens, dim]` or `[batch, tokens, heads · dim]` with the axes of the former.
#[must_use]
pub fn in_heads(array: &Array, heads: usize) -> Option<Array> {
    match array.shape[..] {
        [_, own, _, _] => (own == heads).then(|| array.clone()),
        [b, n, width] => {
            let dim = width.checked_div(heads).filter(|dim| dim * heads == width)?;
            gathered(array, [b, heads, n, dim], 0, [n * width, dim, width, 1])
        }
        _ => None,
    }
}

/// Returns `past` with the tokens of `new` after its own. Both tensors have the axes batch, heads, tokens and dim.
#[must_use]
pub fn appended(past: &Array, new: &Array) -> Option<Array> {
    let (&[b, h, p, d], &[batch, heads, n, dim]) = (&past.shape[..], &new.shape[..]) else { return None };
    (b == batch && h == heads && d == dim).then_some(())?;
    let mut data = Vec::with_capacity(past.data.len() + new.data.len());
    for i in 0..b * h {
        data.extend(past.data.get(i * p * d..)?.get(..p * d)?);
        data.extend(new.data.get(i * n * d..)?.get(..n * d)?);
    }
    Some(Array::new(new.kind, vec![b, h, p + n, d], data))
}

/// Sizes of a node's axes as numbers.
struct Counts {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    past: usize,
    dim: usize,
    value_dim: usize,
}

impl Counts {
    fn of(s: &FusedSizes) -> Option<Counts> {
        let all = [&s.batch, &s.heads, &s.kv_heads, &s.queries, &s.keys, &s.past, &s.dim, &s.value_dim]
            .map(Size::known);
        let all: Vec<usize> = all.into_iter().map(|n| usize::try_from(n?).ok()).collect::<Option<_>>()?;
        let [batch, heads, kv_heads, queries, keys, past, dim, value_dim] = all[..] else { return None };
        (kv_heads > 0 && heads.is_multiple_of(kv_heads)).then_some(Counts {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            past,
            dim,
            value_dim,
        })
    }
}

/// Returns queries, keys and values with the axes batch, heads, tokens and dim, after the bias and with the past.
fn operands(
    fused: &FusedNode<'_>,
    packing: Packing,
    c: &Counts,
    get: &dyn Fn(usize) -> Option<Array>,
) -> Option<[Array; 3]> {
    let (q, heads) = (get(0)?, [c.heads, c.kv_heads, c.kv_heads]);
    let dims = [c.dim, c.dim, c.value_dim];
    let widths = [0, 1, 2].map(|i| heads[i] * dims[i]);
    let starts = [0, widths[0], widths[0] + widths[1]];
    let [b, n, m, d] = [c.batch, c.queries, c.keys, c.dim];
    // Part `i` of `parts` in a tensor `[batch, tokens, heads, parts, dim]`.
    let part = |array: &Array, tokens: usize, heads: usize, i: usize, parts: usize| {
        let width = heads * parts * d;
        gathered(array, [b, heads, tokens, d], i * d, [tokens * width, parts * d, width, 1])
    };
    let mut all = match packing {
        Packing::Heads | Packing::Rows | Packing::HeadsOfKeys => {
            [in_heads(&q, heads[0])?, in_heads(&get(1)?, heads[1])?, in_heads(&get(2)?, heads[2])?]
        }
        Packing::PackedKeys => {
            let both = get(1)?;
            [in_heads(&q, heads[0])?, part(&both, m, heads[1], 0, 2)?, part(&both, m, heads[1], 1, 2)?]
        }
        Packing::Packed => {
            [part(&q, n, heads[0], 0, 3)?, part(&q, n, heads[0], 1, 3)?, part(&q, n, heads[0], 2, 3)?]
        }
        Packing::Projected => {
            let width = widths.iter().sum::<usize>();
            let third =
                |i: usize| gathered(&q, [b, heads[i], n, dims[i]], starts[i], [n * width, dims[i], width, 1]);
            [third(0)?, third(1)?, third(2)?]
        }
    };
    if let Some(bias) = get(fused.bias) {
        (bias.shape == [starts[2] + widths[2]]).then_some(())?;
        for (i, operand) in all.iter_mut().enumerate().take(packing.biased()) {
            let (tokens, dim) = (operand.shape[2], dims[i]);
            let place = |at: usize| starts[i] + at / (tokens * dim) % heads[i] * dim + at % dim;
            let data = operand.data.iter().enumerate().map(|(at, x)| x + bias.data[place(at)]).collect();
            *operand = Array::new(operand.kind, operand.shape.clone(), data);
        }
    }
    let past = match (get(fused.past[0]), get(fused.past[1])) {
        (Some(keys), Some(values)) => Some([keys, values]),
        (Some(both), None) => {
            let [2, shape @ ..] = &both.shape[..] else { return None };
            let half = both.data.len() / 2;
            let part = |data: &[f64]| Array::new(both.kind, shape.to_vec(), data.to_vec());
            Some([part(&both.data[..half]), part(&both.data[half..])])
        }
        _ => None,
    };
    if let Some([keys, values]) = past {
        (all[1], all[2]) = (appended(&keys, &all[1])?, appended(&values, &all[2])?);
    }
    let tokens = c.past + m;
    let fit = |i: usize, tokens: usize| all[i].shape == [b, heads[i], tokens, dims[i]];
    (fit(0, n) && fit(1, tokens) && fit(2, tokens)).then_some(all)
}

/// Returns the numbers that a padding mask adds to scores, `[batch, queries or 1, keys]`; `None` for a mask of a form
/// that is not defined. `fill` is added to the scores of excluded keys.
fn padding(mask: &Array, batch: usize, queries: usize, keys: usize, fill: f64) -> Option<Array> {
    let fills = |keeps: bool| if keeps { 0.0 } else { fill };
    let data: Vec<f64> = match mask.shape[..] {
        // Numbers of keys up to the last one that is attended, perhaps followed by those of keys before the first one.
        [n] if n == batch || n == 2 * batch || n == 3 * batch + 2 => {
            let keeps = |i: usize, key: f64| {
                let start = if n == 2 * batch { mask.data[batch + i] } else { f64::NEG_INFINITY };
                key < mask.data[i] && key >= start
            };
            (0..batch).flat_map(|i| (0..keys).map(move |key| fills(keeps(i, key as f64)))).collect()
        }
        // One element for all keys changes no weight.
        [rows, 1] if rows == batch || rows == 1 => vec![0.0; batch * keys],
        [rows, columns] if rows == batch && columns == keys => {
            mask.data.iter().map(|&x| fills(x > 0.0)).collect()
        }
        [b, rows, columns] if b == batch && rows == queries && columns == keys => {
            mask.data.iter().map(|&x| fills(x > 0.0)).collect()
        }
        _ => return None,
    };
    let rows = if mask.shape.len() == 3 { queries } else { 1 };
    Some(Array::new(Kind::F32, vec![batch, rows, keys], data))
}

/// Computes output `output` of a fused node in f64. Returns `None` for other nodes, for nodes that are not replaced,
/// for nodes without elements, and for the scores. If `sample` selects some of the queries, the answer consists of these
/// queries alone, and masks must contain only the rows of these queries.
#[must_use]
pub fn eval(
    node: &Node,
    inputs: &[Option<&Array>],
    limits: Limits,
    sample: Option<&[usize]>,
    output: usize,
) -> Option<Array> {
    let fused = FusedNode::of(node)?;
    let get = |i: usize| inputs.get(i).copied().flatten().cloned();
    let shapes: Vec<Option<Vec<Size>>> =
        inputs.iter().map(|array| array.and_then(|array| sized(&array.shape))).collect();
    let sizes = FusedSizes::of(node, &|i| shapes.get(i)?.as_deref()).ok()?;
    let c = Counts::of(&sizes)?;
    let [b, h, kv, n, d, e] = [c.batch, c.heads, c.kv_heads, c.queries, c.dim, c.value_dim];
    let m = c.past.checked_add(c.keys)?;
    if [b, h, n, m, d, e].contains(&0) {
        return None;
    }
    for (heads, tokens, dim) in [(h, n, d), (kv, m, d), (kv, m, e)] {
        count(&[b, heads, tokens, dim], limits.elements)?;
    }
    let [query, key, value] = operands(&fused, sizes.packing, &c, &get)?;
    match output {
        0 => {}
        1 if sizes.packing == Packing::Projected => {
            let data = key.data.iter().chain(value.data.iter()).copied().collect();
            return Some(Array::new(key.kind, [&[2], &key.shape[..]].concat(), data));
        }
        1 => return Some(key),
        2 if sizes.packing != Packing::Projected => return Some(value),
        _ => return None,
    }
    let all: Vec<usize> = (0..n).collect();
    let taken = sample.unwrap_or(&all);
    let rows = taken.len();
    count(&[b, h, rows, m, d.checked_add(e)?], limits.work)?;
    count(&[b, h, rows, e], limits.elements)?;
    count(&[b, h, rows, m], limits.elements)?;
    let mask = match get(fused.mask) {
        Some(mask) => Some((mask.kind == Kind::BOOL, expanded(&mask, &[b, h, rows, m])?)),
        None => None,
    };
    let padding = match get(fused.padding) {
        Some(mask) => Some(padding(&mask, b, rows, m, fused.fill)?),
        None => None,
    };
    let lengths = get(fused.lengths);
    if lengths.as_ref().is_some_and(|lengths| lengths.shape != [b]) {
        return None;
    }
    // In ONNX Runtime's Attention, the lowest number in a mask means "not attended". If a row contains only this
    // number, ONNX Runtime yields zeros for the row, but the operator yields the mean of the values.
    let lowest = get(fused.mask).filter(|_| !fused.is_microsoft()).map(|mask| match mask.kind {
        Kind::F16 => f64::from(f16::MIN),
        _ => f64::from(f32::MIN),
    });
    let scale = fused.scale.unwrap_or(1.0 / (d.max(1) as f64).sqrt());
    let mut out = vec![0.0; count(&[b, h, rows, e], LARGEST)?];
    let mut scores = vec![0.0; m];
    for (i, j, y) in (0..b).flat_map(|i| (0..h).flat_map(move |j| (0..rows).map(move |y| (i, j, y)))) {
        let (x, group) = (taken[y], j * kv / h);
        let place = ((i * h + j) * rows + y) * m;
        let line = query.data.get(((i * h + j) * n + x) * d..)?.get(..d)?;
        for (at, score) in scores.iter_mut().enumerate() {
            let key = key.data.get(((i * kv + group) * m + at) * d..)?.get(..d)?;
            let dot: f64 = line.iter().zip(key).map(|(q, k)| q * k).sum();
            *score = dot * scale;
            if fused.softcap != 0.0 {
                *score = fused.softcap * (*score / fused.softcap).tanh();
            }
            match &mask {
                Some((true, mask)) if mask[place + at] == 0.0 => *score = f64::NEG_INFINITY,
                Some((false, mask)) if lowest == Some(mask[place + at]) => *score = f64::NEG_INFINITY,
                Some((false, mask)) => *score += mask[place + at],
                _ => {}
            }
            if let Some(padding) = &padding {
                let row = if padding.shape[1] == 1 { i } else { i * rows + y };
                *score += padding.data.get(row * m + at)?;
            }
            let valid = lengths.as_ref().is_none_or(|lengths| (at as f64) < lengths.data[i]);
            if fused.causal && at > x + c.past || !valid {
                *score = f64::NEG_INFINITY;
            }
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|score| *score = (*score - max).exp());
        let sum: f64 = scores.iter().sum();
        let start = match sizes.packing {
            Packing::Heads => ((i * h + j) * rows + y) * e,
            _ => ((i * rows + y) * h + j) * e,
        };
        let into = &mut out[start..][..e];
        for (at, weight) in scores.iter().enumerate() {
            let value = value.data.get(((i * kv + group) * m + at) * e..)?.get(..e)?;
            into.iter_mut().zip(value).for_each(|(into, v)| *into += weight / sum * v);
        }
    }
    let shape = if sizes.packing == Packing::Heads { vec![b, h, rows, e] } else { vec![b, rows, h * e] };
    Some(Array::new(query.kind, shape, out))
}
