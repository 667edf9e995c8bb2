//! How the elements of queries, keys, values and output lie in the tensors of a graph.
//!
//! An exporter spells a layout in many ways: reshapes, transposes, splits, gathers, slices. None of them is recognised
//! by its nodes. Instead the numbers `0, 1, 2, …` are sent through the nodes, and where they come out tells how the
//! elements have moved. A layout is one of a few formulas, and holds if every number is where the formula says.

use super::array::{Array, Kind, count};
use super::find::{Found, Link, Reason, Site};
use super::infer::World;
use super::ops::LARGEST;

/// Sizes of an attention in one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Tokens of the queries.
    pub queries: usize,
    /// Tokens of keys and values.
    pub keys: usize,
    /// Head size of queries and keys.
    pub dim: usize,
    /// Head size of values.
    pub value_dim: usize,
}

/// Where the elements of an operand lie in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[batch, tokens, 3 · heads · dim]`: queries, keys, values.
    Packed,
    /// `[batch, tokens, heads · dim]`.
    Rows,
    /// `[batch, heads, tokens, dim]`.
    Heads,
    /// `[batch, tokens, heads, dim]`.
    Tokens,
}

/// The layout of an attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The form of the operands.
    pub form: Form,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Tensors of queries, keys and values; those of [`Form::Tokens`] need a transposition to the form of the layout.
    pub operands: [(String, Form); 3],
    /// The product of the operands' factors.
    pub factor: f64,
    /// The output, its rank that of the operands, and the node that makes it.
    pub output: (String, usize),
    /// Sizes in every world.
    pub sizes: Vec<Sizes>,
}

/// The numbers of `shape` after the nodes that lead from link `at` to the operand.
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

/// What node `n` makes of the numbers `array` in place of `from`, at its output `to`. Factors leave them as they are.
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

/// Whether `found`, the numbers of an operand, follow `place(batch, head, token, component)`. The operand's elements lie in
/// the order batch, head, token, component, or with tokens last for `turned` keys.
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

/// Sizes of the products in a world: `batch · heads` as one if the products have three axes.
fn products(world: &World<'_>, found: &Found) -> Result<(Option<usize>, Sizes), Reason> {
    let shape = |i: usize| found.operands[i].first().and_then(|link| world.shape(&link.name));
    let (Some(q), Some(k), Some(v)) = (shape(0), shape(1), shape(2)) else {
        return Err("shapes of queries, keys or values do not follow from the model".into());
    };
    let mut k = k.to_vec();
    if let [.., a, b] = &mut k[..]
        && !found.turned
    {
        std::mem::swap(a, b);
    }
    let sizes = match (q, k.as_slice(), v) {
        ([b, h, n, d], [b2, h2, d2, m], [b3, h3, m2, e])
            if (b, h, d) == (b2, h2, d2) && (b, h, m) == (b3, h3, m2) =>
        {
            (Some(*h), Sizes { batch: *b, heads: *h, queries: *n, keys: *m, dim: *d, value_dim: *e })
        }
        ([x, n, d], [x2, d2, m], [x3, m2, e]) if (x, d) == (x2, d2) && (x, m) == (x3, m2) => {
            (None, Sizes { batch: *x, heads: 1, queries: *n, keys: *m, dim: *d, value_dim: *e })
        }
        _ => {
            return Err(format!(
                "its products are of {q:?} and {k:?}, then {v:?}; those of 3 or 4 axes without broadcasting are replaced"
            ));
        }
    };
    let Sizes { batch, heads, queries, keys, dim, value_dim } = sizes.1;
    if [batch, heads, queries, keys, dim, value_dim].contains(&0) {
        return Err("one of its axes is empty".into());
    }
    Ok(sizes)
}

/// The heads of a tensor whose last axis holds `parts` times the heads of `dim` components.
fn split(width: usize, parts: usize, dim: usize) -> Option<usize> {
    let each = dim.checked_mul(parts)?;
    (width.is_multiple_of(each) && width >= each).then(|| width / each)
}

/// Tries `form` with `heads` for operand `i` at link `at`, in every world.
fn holds(
    site: &Site<'_>,
    found: &Found,
    i: usize,
    at: usize,
    form: Form,
    all: &[Sizes],
    kv_heads: usize,
) -> bool {
    let links = &found.operands[i];
    site.worlds.iter().zip(all).all(|(world, s)| {
        let Some(shape) = world.shape(&links[at].name) else { return false };
        let (tokens, dim) = match i {
            0 => (s.queries, s.dim),
            1 => (s.keys, s.dim),
            _ => (s.keys, s.value_dim),
        };
        let own = if i == 0 { s.heads } else { kv_heads };
        if own == 0 || !s.heads.is_multiple_of(own) {
            return false;
        }
        let group = s.heads / own;
        let (width, part) = match form {
            Form::Packed => (3 * own * dim, i * own * dim),
            _ => (own * dim, 0),
        };
        let wanted: &[usize] = match form {
            Form::Packed | Form::Rows => &[s.batch, tokens, width],
            Form::Heads => &[s.batch, own, tokens, dim],
            Form::Tokens => &[s.batch, tokens, own, dim],
        };
        if shape != wanted {
            return false;
        }
        let Some(numbers) = moved(site, world, links, at) else { return false };
        follows(&numbers.data, [s.batch, s.heads, tokens, dim], i == 1 && found.turned, |b, h, n, c| {
            match form {
                Form::Heads => ((b * own + h / group) * tokens + n) * dim + c,
                _ => (b * tokens + n) * width + part + h / group * dim + c,
            }
        })
    })
}

/// The output of rank 3 among the layouts behind the product with values.
fn rows(site: &Site<'_>, found: &Found, all: &[Sizes]) -> Option<usize> {
    (0..found.outputs.len()).find(|&at| {
        site.worlds.iter().zip(all).all(|(world, s)| {
            let shape = world.shape(&found.outputs[at].0);
            if shape != Some(&[s.batch, s.queries, s.heads * s.value_dim]) {
                return false;
            }
            let made = || {
                let mut array = numbers(world, &found.outputs[0].0)?;
                for i in 1..=at {
                    let (from, to) = (&found.outputs[i - 1].0, &found.outputs[i].0);
                    array = step(site, world, &array, found.outputs[i].1, from, to)?;
                }
                Some(array)
            };
            let Some(array) = made() else { return false };
            let (n, h, d) = (s.queries, s.heads, s.value_dim);
            array.data.iter().enumerate().all(|(at, &x)| {
                let (b, i, head, c) = (at / (n * h * d), at / (h * d) % n, at / d % h, at % d);
                x == (((b * h + head) * n + i) * d + c) as f64
            })
        })
    })
}

/// The best layout that holds in every world: packed, then rows, then heads.
///
/// # Errors
/// Why there is none.
pub fn layout(site: &Site<'_>, found: &Found) -> Result<Layout, Reason> {
    let products: Vec<_> =
        site.worlds.iter().map(|world| products(world, found)).collect::<Result<_, _>>()?;
    let flat = products[0].0.is_none();
    let sizes: Vec<Sizes> = products.iter().map(|(_, sizes)| *sizes).collect();
    // Heads that products of three axes hide show in tensors of rows.
    let mut choices: Vec<(usize, Vec<Sizes>)> = Vec::new();
    if flat {
        for (at, link) in found.operands[0].iter().enumerate() {
            for parts in [3, 1] {
                let heads = site.worlds[0].shape(&link.name).filter(|shape| shape.len() == 3);
                let heads = heads.and_then(|shape| split(shape[2], parts, sizes[0].dim));
                let Some(heads) = heads.filter(|&h| h > 1 && at > 0) else { continue };
                let divided = sizes.iter().map(|s| {
                    s.batch.is_multiple_of(heads).then(|| Sizes { batch: s.batch / heads, heads, ..*s })
                });
                if let Some(divided) = divided.collect::<Option<Vec<_>>>()
                    && choices.iter().all(|(h, _)| *h != heads)
                {
                    choices.push((heads, divided));
                }
            }
        }
    } else {
        choices.push((sizes[0].heads, sizes.clone()));
    }
    let find = |i: usize, form: Form, all: &[Sizes], kv: usize| {
        (0..found.operands[i].len()).rev().find(|&at| holds(site, found, i, at, form, all, kv))
    };
    for (heads, all) in &choices {
        let same = sizes[0].dim == sizes[0].value_dim && all.iter().all(|s| s.queries == s.keys);
        let Some(out) = rows(site, found, all) else { continue };
        let made = |form: Form, kv_heads: usize, ats: [usize; 3]| Layout {
            form,
            heads: *heads,
            kv_heads,
            operands: [0, 1, 2].map(|i| (found.operands[i][ats[i]].name.clone(), form)),
            factor: (0..2).map(|i| found.operands[i][ats[i]].factor).product(),
            output: found.outputs[out].clone(),
            sizes: all.clone(),
        };
        let unscaled = |at: usize| found.operands[2][at].factor == 1.0;
        if same && let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|i| find(i, Form::Packed, all, *heads)) {
            let names = [&found.operands[0][q].name, &found.operands[1][k].name, &found.operands[2][v].name];
            if names[0] == names[1] && names[1] == names[2] && unscaled(v) {
                return Ok(made(Form::Packed, *heads, [q, k, v]));
            }
        }
        for kv_heads in (1..=*heads).rev().filter(|kv| heads.is_multiple_of(*kv)) {
            let found = [0, 1, 2].map(|i| find(i, Form::Rows, all, kv_heads));
            if let [Some(q), Some(k), Some(v)] = found
                && unscaled(v)
            {
                return Ok(made(Form::Rows, kv_heads, [q, k, v]));
            }
        }
    }
    let whole = |form: Form, operands: [(usize, Form); 3], kv_heads: usize| {
        if found.operands[2][operands[2].0].factor != 1.0 {
            return Err("its values are scaled".into());
        }
        Ok(Layout {
            form,
            heads: sizes[0].heads,
            kv_heads,
            operands: [0, 1, 2].map(|i| (found.operands[i][operands[i].0].name.clone(), operands[i].1)),
            factor: (0..2).map(|i| found.operands[i][operands[i].0].factor).product(),
            output: found.outputs[0].clone(),
            sizes: sizes.clone(),
        })
    };
    let forms = if flat { &[Form::Rows][..] } else { &[Form::Heads, Form::Tokens][..] };
    for kv_heads in (1..=sizes[0].heads).rev().filter(|kv| sizes[0].heads.is_multiple_of(*kv)) {
        let found =
            [0, 1, 2].map(|i| forms.iter().find_map(|&form| Some((find(i, form, &sizes, kv_heads)?, form))));
        if let [Some(q), Some(k), Some(v)] = found {
            return whole(if flat { Form::Rows } else { Form::Heads }, [q, k, v], kv_heads);
        }
    }
    Err("its keys are laid out in a way that the operator does not take".into())
}
