//! Layouts in which the tensors of a graph store the queries, the keys, the values and the output of an attention.
//!
//! Exporters express a layout in many ways: reshapes, transposes, splits, gathers, slices. The nodes are not
//! pattern-matched. Instead they are evaluated on a tensor with the elements `0, 1, 2, …`, and the positions of these
//! numbers in the result show how the nodes move elements. Each supported layout has a formula for these positions. A
//! tensor has the layout if every number is at the position that the formula states.

use super::array::{Array, Kind, count};
use super::find::{AttentionPattern, Link, Reason, Site};
use super::infer::World;
use super::ops::LARGEST;
use super::size::{Size, shown};

/// Sizes of an attention's axes, as expressions in the free axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes {
    /// Batch size of the output.
    pub batch: Size,
    /// Number of heads of the output.
    pub heads: Size,
    /// Number of tokens of the output.
    pub queries: Size,
    /// Number of tokens of keys and values.
    pub keys: Size,
    /// Head size of queries and keys.
    pub dim: Size,
    /// Head size of values.
    pub value_dim: Size,
    /// Batch size, number of heads and number of tokens of the queries, of the keys and of the values, before
    /// broadcasting.
    own: [[Size; 3]; 3],
    /// Axes of the queries, of the keys and of the values before their last two, as the products have them.
    outer: [Vec<Size>; 3],
}

impl Axes {
    /// Returns the number of key heads, if it is known and each key head serves a group along an axis of the products.
    fn grouped(&self) -> Option<usize> {
        let (kv_heads, heads) = (&self.own[1][1], &self.own[0][1]);
        let count = kv_heads.known().filter(|_| self.outer[1].len() == 3 && kv_heads != heads)?;
        usize::try_from(count).ok()
    }

    /// Returns the numbers with which the shape of operand `i` begins if it is reshaped to four axes, and the index of
    /// the first of its own axes that follow. A 0 keeps the axis, and a -1 merges axes. Returns `None` if the operand
    /// has four axes.
    #[must_use]
    pub fn reshaped(&self, i: usize) -> Option<(&'static [i64], usize)> {
        let (own, rank) = (self.outer[i].len(), self.outer[0].len());
        match own {
            2 => None,
            3 if self.own[1][1] != self.own[0][1] => Some((&[0, -1], 3)),
            0 => Some((&[1, 1], 0)),
            1 if rank == 1 => Some((&[0, 1], 1)),
            1 => Some((&[1], 0)),
            _ => Some((&[-1], own - 1)),
        }
    }

    /// Returns the number of axes of the output before its last two, if it must be reshaped from four axes.
    #[must_use]
    pub fn outer(&self) -> Option<usize> {
        Some(self.outer[0].len()).filter(|&rank| rank != 2)
    }

    /// Returns the sizes of the axes of the scores.
    #[must_use]
    pub fn scores(&self) -> [&Size; 4] {
        [&self.batch, &self.heads, &self.queries, &self.keys]
    }
}

/// Layout of an operand's elements in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisOrder {
    /// `[batch, tokens, 3 · heads · dim]`, with queries, keys and values one after another in the last axis.
    Packed,
    /// `[batch, tokens, heads · dim]`.
    Rows,
    /// `[batch, heads, tokens, dim]`.
    Heads,
    /// `[batch, tokens, heads, dim]`.
    Tokens,
    /// `[batch, heads, dim, tokens]`.
    Components,
}

/// The layout that the operator will read and write, and the tensors that have this layout.
#[derive(Clone, Debug, PartialEq)]
pub struct OperandLayout {
    /// Layout of the operator's operands.
    pub form: AxisOrder,
    /// Number of heads of keys and values, if this number is known and differs from the number of heads of queries.
    pub kv_heads: Option<usize>,
    /// Tensors of queries, keys and values, with their layouts. A tensor in [`AxisOrder::Tokens`] or
    /// [`AxisOrder::Components`] must be transposed for the operator.
    pub operands: [(String, AxisOrder); 3],
    /// Product of the constants that multiply the operands.
    pub factor: f64,
    /// Output tensor, and the node that produces it. The rank of the tensor equals the rank of the operands.
    pub output: (String, usize),
    /// Sizes of the attention's axes.
    pub axes: Axes,
}

/// Evaluates the nodes on the path from link `at` to the operand, with the numbers `0, 1, 2, …` in place of the
/// elements of the link's tensor.
fn moved(site: &Site<'_>, world: &World<'_>, links: &[Link], at: usize) -> Option<Array> {
    let mut array = numbers(world, &links[at].name)?;
    for i in (1..=at).rev() {
        array = step(site, world, &array, links[i].reader?, &links[i].name, &links[i - 1].name)?;
    }
    Some(array)
}

fn numbers(world: &World<'_>, name: &str) -> Option<Array> {
    let shape = world.shape(name)?.to_vec();
    let n = count(&shape, world.limits().elements)?;
    Some(Array::new(Kind::F64, shape, (0..n).map(|i| i as f64).collect()))
}

/// Evaluates node `n` with `array` in place of its input `from`, and returns its output `to`. A node that multiplies or
/// divides leaves the numbers unchanged.
fn step(site: &Site<'_>, world: &World<'_>, array: &Array, n: usize, from: &str, to: &str) -> Option<Array> {
    let node = &site.graph.nodes[n];
    if node.is("Mul") || node.is("Div") {
        let shape = world.shape(to)?.to_vec();
        return (count(&shape, LARGEST)? == array.data.len()).then(|| Array {
            kind: array.kind,
            shape,
            data: array.data.clone(),
        });
    }
    let known: Vec<Option<Array>> = node.inputs.iter().map(|name| world.array(name)).collect();
    let inputs = node
        .inputs
        .iter()
        .zip(&known)
        .map(|(name, known)| if name == from { Some(array) } else { known.as_ref() });
    let inputs: Vec<Option<&Array>> = inputs.collect();
    let at = node.outputs.iter().position(|name| name == to)?;
    world.eval(node, &inputs)?.into_iter().nth(at)
}

/// Returns `true` if each element of an operand, at (batch, head, token, component), is the number that `place` returns
/// for it. The axes of `found` are batch, head, token, component, or batch, head, component, token if `turned`.
fn follows(
    found: &[f64],
    [b, h, n, d]: [usize; 4],
    turned: bool,
    place: impl Fn(usize, usize, usize, usize) -> usize,
) -> bool {
    if count(&[b, h, n, d], LARGEST) != Some(found.len()) {
        return false;
    }
    let mut all = found.iter();
    for i in 0..b {
        for j in 0..h {
            for x in 0..if turned { d } else { n } {
                for y in 0..if turned { n } else { d } {
                    let (token, component) = if turned { (y, x) } else { (x, y) };
                    if all.next().copied() != Some(place(i, j, token, component) as f64) {
                        return false;
                    }
                }
            }
        }
    }
    true
}

/// Returns whether batch and heads share one axis in both matrix products. Also returns the sizes of the attention's
/// axes.
fn products(site: &Site<'_>, found: &AttentionPattern) -> Result<(bool, Axes), Reason> {
    let shape = |i: usize| found.operands[i].first().and_then(|link| site.symbols.shape(&link.name));
    let made = found.outputs.first().and_then(|(name, _)| site.symbols.shape(name));
    let (Some(q), Some(k), Some(v), Some(made)) = (shape(0), shape(1), shape(2), made) else {
        return Err("shapes of queries, keys or values do not follow from the model".into());
    };
    // Queries with rows of components, and keys with columns of them.
    let factor = |shape: &[Size], swap: bool| {
        let mut shape = shape.to_vec();
        if let [.., a, b] = &mut shape[..]
            && swap
        {
            std::mem::swap(a, b);
        }
        shape
    };
    let (q, k) = (&factor(q, found.turned[0])[..], factor(k, !found.turned[1]));
    let refuse = || {
        format!(
            "its products are of {} and {}, then {}; allowed: 4 axes, or other numbers of axes without broadcasting",
            shown(q),
            shown(&k),
            shown(v)
        )
    };
    let last = [q, k.as_slice(), v, made].map(<[Size]>::split_last_chunk::<2>);
    let [
        Some((q_outer, [n, d])),
        Some((k_outer, [d2, m])),
        Some((v_outer, [m2, e])),
        Some((outer, [queries, _])),
    ] = last
    else {
        return Err(refuse());
    };
    let outers = [q_outer, k_outer, v_outer];
    let merged = merged(outers, outer).filter(|_| d == d2).ok_or_else(refuse)?;
    let own = [(0, n), (1, m), (2, m2)].map(|(i, tokens): (usize, &Size)| {
        let [batch, heads] = merged[i].clone();
        [batch, heads, tokens.clone()]
    });
    let [batch, heads] = merged[3].clone();
    let flat = outer.len() == 1 && outers.iter().all(|own| *own == outer);
    let (queries, keys, dim, value_dim) = (queries.clone(), m.clone(), d.clone(), e.clone());
    let axes = Axes { batch, heads, queries, keys, dim, value_dim, own, outer: outers.map(<[Size]>::to_vec) };
    let [_, _, m2] = &axes.own[2];
    if !(axes.keys == *m2 || m2.joined().contains(&axes.keys)) {
        return Err(format!("it has {} keys and {m2} values", axes.keys));
    }
    let all = [&axes.batch, &axes.heads, &axes.queries, &axes.keys, &axes.dim, &axes.value_dim];
    if all.iter().any(|size| size.is(0)) {
        return Err("one of its axes is empty".into());
    }
    Ok((flat, axes))
}

/// Returns batch and heads of the queries, of the keys, of the values and of the output, whose axes before the last two
/// are `operands` and `made`. The rules are:
///
/// - Two axes of the output are batch and heads. Operands may be broadcast to them; keys and values may also lack them.
/// - One axis of the output is the batch. Keys and values may be broadcast to it, or lack it.
/// - Otherwise the last axis is the axis of heads, and the others are the batch, without broadcasting.
/// - If keys and values have size 1 along the last of three axes, the last two axes are heads: each head of keys serves
///   a group of query heads.
///
/// Returns `None` for all other axes.
fn merged(operands: [&[Size]; 3], made: &[Size]) -> Option<[[Size; 2]; 4]> {
    let one = || Size::from(1);
    let [q, k, v] = operands;
    match made {
        [_, _] if q.len() == 2 => {
            let pair = |outer: &[Size]| match outer {
                [] => Some([one(), one()]),
                [heads] => Some([one(), heads.clone()]),
                [batch, heads] => Some([batch.clone(), heads.clone()]),
                _ => None,
            };
            Some([pair(q)?, pair(k)?, pair(v)?, pair(made)?])
        }
        [batch] if q == made => {
            let pair = |outer: &[Size]| match outer {
                [] => Some([one(), one()]),
                [own] if own.is(1) || own == batch => Some([own.clone(), one()]),
                _ => None,
            };
            Some([pair(q)?, pair(k)?, pair(v)?, pair(made)?])
        }
        _ if q == made && k == made && v == made => {
            let pair = match made {
                [batch @ .., heads] => [Size::product(batch)?, heads.clone()],
                [] => [one(), one()],
            };
            Some([pair.clone(), pair.clone(), pair.clone(), pair])
        }
        [batch, kv, group] if q == made && k == v => {
            let [own, heads, single] = k else { return None };
            (own == batch && heads == kv && single.is(1)).then_some(())?;
            let (whole, few) = ([batch.clone(), kv.times(group)?], [batch.clone(), kv.clone()]);
            Some([whole.clone(), few.clone(), few, whole])
        }
        _ => None,
    }
}

/// Returns the number of heads for which `parts` · heads · `dim` equals `width`, the size of a tensor's last axis.
/// Returns `None` if no such number exists, or if `width` or `dim` depends on a free axis.
fn split(width: &Size, parts: i64, dim: &Size) -> Option<usize> {
    let (width, each) = (width.known()?, dim.known()?.checked_mul(parts)?);
    (each > 0 && width % each == 0 && width >= each).then(|| usize::try_from(width / each).ok())?
}

/// Returns `true` if operand `i` has the layout `form` at link `at`. Keys and values have `kv` heads; if `kv` is
/// `None`, each operand has its own number of heads. The shape must match the layout for all sizes of the free axes,
/// and the elements must match the layout's formula in every world.
fn holds(
    site: &Site<'_>,
    found: &AttentionPattern,
    i: usize,
    at: usize,
    form: AxisOrder,
    axes: &Axes,
    kv: Option<usize>,
) -> bool {
    let links = &found.operands[i];
    let plain = |link: &Link| site.symbols.shape(&link.name).is_some_and(|s| s.iter().all(Size::is_plain));
    if !links[..=at].iter().all(plain) {
        return false;
    }
    let [b, h, n] = &axes.own[i];
    let dim = if i == 2 { &axes.value_dim } else { &axes.dim };
    let wanted = || {
        let own = match kv.filter(|_| i > 0) {
            Some(kv) => Size::count(kv)?,
            None => h.clone(),
        };
        // A tensor of rows has no axis of heads, so the number of heads must be known.
        let rows = |parts: i64| {
            Size::count(usize::try_from(own.known()?).ok()?)?.times(dim)?.times(&Size::from(parts))
        };
        // A tensor has the axes of the products if these are not a batch and heads.
        let outer =
            if axes.outer[i].len() == 2 { vec![b.clone(), own.clone()] } else { axes.outer[i].clone() };
        Some(match form {
            AxisOrder::Packed => vec![b.clone(), n.clone(), rows(3)?],
            AxisOrder::Rows => vec![b.clone(), n.clone(), rows(1)?],
            AxisOrder::Heads => [outer, vec![n.clone(), dim.clone()]].concat(),
            AxisOrder::Tokens => vec![b.clone(), n.clone(), own, dim.clone()],
            AxisOrder::Components => [outer, vec![dim.clone(), n.clone()]].concat(),
        })
    };
    if site.symbols.shape(&links[at].name).map(<[Size]>::to_vec) != wanted() {
        return false;
    }
    site.worlds.iter().all(|world| {
        let count = |size: &Size| world.count(size);
        let (Some(b), Some(h), Some(n), Some(dim)) = (count(b), count(h), count(n), count(dim)) else {
            return false;
        };
        let own = kv.filter(|_| i > 0).unwrap_or(h);
        if own == 0 || !h.is_multiple_of(own) {
            return false;
        }
        let group = h / own;
        let (width, part) = match form {
            AxisOrder::Packed => (3 * own * dim, i * own * dim),
            _ => (own * dim, 0),
        };
        let Some(numbers) = moved(site, world, links, at) else { return false };
        follows(&numbers.data, [b, h, n, dim], i < 2 && found.turned[i], |b, h, x, c| match form {
            AxisOrder::Heads => ((b * own + h / group) * n + x) * dim + c,
            AxisOrder::Components => ((b * own + h / group) * dim + c) * n + x,
            _ => (b * n + x) * width + part + h / group * dim + c,
        })
    })
}

/// Returns the index of the first output that has the layout [`AxisOrder::Rows`]. The search starts at the product with
/// values.
fn rows(site: &Site<'_>, found: &AttentionPattern, axes: &Axes) -> Option<usize> {
    axes.heads.known()?;
    let wanted = [axes.batch.clone(), axes.queries.clone(), axes.heads.times(&axes.value_dim)?];
    let plain = |(name, _): &(String, usize)| {
        site.symbols.shape(name).is_some_and(|shape| shape.iter().all(Size::is_plain))
    };
    (0..found.outputs.len()).take_while(|&at| plain(&found.outputs[at])).find(|&at| {
        if site.symbols.shape(&found.outputs[at].0) != Some(&wanted) {
            return false;
        }
        site.worlds.iter().all(|world| {
            let made = || {
                let mut array = numbers(world, &found.outputs[0].0)?;
                for i in 1..=at {
                    let (from, to) = (&found.outputs[i - 1].0, &found.outputs[i].0);
                    array = step(site, world, &array, found.outputs[i].1, from, to)?;
                }
                Some(array)
            };
            let count = |size: &Size| world.count(size);
            let (Some(array), Some(n), Some(h), Some(d)) =
                (made(), count(&axes.queries), count(&axes.heads), count(&axes.value_dim))
            else {
                return false;
            };
            array.data.iter().enumerate().all(|(at, &x)| {
                let (b, i, head, c) = (at / (n * h * d), at / (h * d) % n, at / d % h, at % d);
                x == (((b * h + head) * n + i) * d + c) as f64
            })
        })
    })
}

/// Tries the layouts packed, rows and heads in this order. Returns the first layout that the tensors have for all sizes
/// of the free axes. Queries that are multiplied by a computed number cannot be packed. A number for each head needs
/// queries with an axis of heads.
///
/// # Errors
/// Returns the reason why no layout fits.
pub fn layout(site: &Site<'_>, found: &AttentionPattern) -> Result<OperandLayout, Reason> {
    let (flat, axes) = products(site, found)?;
    // If the products have three axes, the number of heads is found from tensors of rows.
    let mut choices: Vec<Axes> = Vec::new();
    if flat {
        for link in found.operands[0].iter().skip(1) {
            for parts in [3, 1] {
                let shape = site.symbols.shape(&link.name).filter(|shape| shape.len() == 3);
                let heads = shape.and_then(|shape| split(&shape[2], parts, &axes.dim));
                let Some(heads) = heads.filter(|&h| h > 1).and_then(Size::count) else { continue };
                let batch = axes.batch.over(&heads);
                let Some(batch) = batch.filter(|b| b.times(&heads).as_ref() == Some(&axes.batch)) else {
                    continue;
                };
                let own = axes.own.clone().map(|[_, _, n]| [batch.clone(), heads.clone(), n]);
                let divided = Axes { batch, heads, own, ..axes.clone() };
                if !choices.contains(&divided) {
                    choices.push(divided);
                }
            }
        }
    } else {
        choices.push(axes.clone());
    }
    let find = |i: usize, form: AxisOrder, axes: &Axes, kv: Option<usize>| {
        (0..found.operands[i].len()).rev().find(|&at| holds(site, found, i, at, form, axes, kv))
    };
    let unscaled = |at: usize| found.operands[2][at].factor == 1.0;
    // Numbers of key heads to try: the divisors of the number of query heads, the smallest first. Keys that the graph
    // repeats for a group of query heads are then read before they are repeated.
    let groups = |axes: &Axes| -> Vec<Option<usize>> {
        let whole = axes.own.iter().all(|own| own[1] == axes.heads);
        let heads = axes.heads.known().and_then(|n| usize::try_from(n).ok()).filter(|_| whole).unwrap_or(1);
        let fewer = (1..heads).filter(|kv| heads.is_multiple_of(*kv)).map(Some);
        fewer.chain(std::iter::once(None)).collect()
    };
    let made = |form: AxisOrder,
                kv_heads: Option<usize>,
                operands: [(usize, AxisOrder); 3],
                out: usize,
                axes: &Axes| OperandLayout {
        form,
        kv_heads: kv_heads.or_else(|| axes.grouped()),
        operands: [0, 1, 2].map(|i| (found.operands[i][operands[i].0].name.clone(), operands[i].1)),
        factor: (0..2).map(|i| found.operands[i][operands[i].0].factor).product(),
        output: found.outputs[out].clone(),
        axes: axes.clone(),
    };
    for axes in &choices {
        let Some(out) = rows(site, found, axes) else { continue };
        // A tensor of rows has no axis of heads that could be broadcast or scaled.
        if axes.own.iter().any(|own| own[1] != axes.heads)
            || axes.own[0][2] != axes.queries
            || site.scales_heads(found)
        {
            continue;
        }
        let same = axes.dim == axes.value_dim && axes.queries == axes.keys && found.factors.is_empty();
        if same && let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|i| find(i, AxisOrder::Packed, axes, None))
        {
            let names = [&found.operands[0][q].name, &found.operands[1][k].name, &found.operands[2][v].name];
            if names[0] == names[1] && names[1] == names[2] && unscaled(v) {
                return Ok(made(
                    AxisOrder::Packed,
                    None,
                    [q, k, v].map(|at| (at, AxisOrder::Packed)),
                    out,
                    axes,
                ));
            }
        }
        for kv in groups(axes) {
            if let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|i| find(i, AxisOrder::Rows, axes, kv))
                && unscaled(v)
            {
                return Ok(made(AxisOrder::Rows, kv, [q, k, v].map(|at| (at, AxisOrder::Rows)), out, axes));
            }
        }
    }
    let forms = if flat {
        &[AxisOrder::Rows, AxisOrder::Components][..]
    } else {
        &[AxisOrder::Heads, AxisOrder::Tokens, AxisOrder::Components][..]
    };
    for kv in groups(&axes) {
        let found = [0, 1, 2].map(|i| forms.iter().find_map(|&form| Some((find(i, form, &axes, kv)?, form))));
        if let [Some(q), Some(k), Some(v)] = found {
            if !unscaled(v.0) {
                return Err("its values are scaled".into());
            }
            return Ok(made(if flat { AxisOrder::Rows } else { AxisOrder::Heads }, kv, [q, k, v], 0, &axes));
        }
    }
    let shapes = found.operands.iter().filter_map(|links| site.symbols.shape(&links.first()?.name));
    let shapes: Vec<String> = shapes.map(shown).collect();
    Err(format!(
        "its operands of {} are in no layout that the operator takes for every size",
        shapes.join(", ")
    ))
}
