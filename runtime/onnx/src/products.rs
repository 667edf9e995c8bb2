//! Linear attention that a graph computes with matrix products.
//!
//! ```text
//! Q (Kᵀ V)            every query reads the sum over all keys, as in EfficientViT
//! ((Q Kᵀ) ∘ D) V      D = exp(g (i − j)) for key j up to query i, and 0 for later keys, as in RetNet
//! ```
//!
//! Each form is one operator: it sums `k vᵀ` in a state, and the second form multiplies the state by `exp(g)` for each
//! token. The proof computes both sides in f64 for random operands, with the graph's own elements of `D`.

use super::array::{Array, Kind};
use super::change::{Builder, Change, DOMAIN, LINEAR_OPERATOR, Role};
use super::find::{Reason, Site};
use super::model::Graph;
use super::node::{Attribute, Node};
use super::random::normal;
use super::size::{Size, shown};
use super::turned::swaps_last;
use super::unrolled::{equal, refuse};
use elsa_core::dtype::{DType, Elements};
use elsa_core::linear::{self, Direction, Rule};
use elsa_core::view::{Layout, View};
use fastrand::Rng;

/// Tolerated difference between an element of `D` and its formula.
const NEAR: f64 = 1e-5;

/// Smallest element of `D` from which the decay of a token is computed.
const LEAST: f64 = 0.1;

/// A linear attention in a graph.
pub struct ProductAttention<'a> {
    /// Product of queries and the sum of keys and values, or of queries and keys.
    pub inner: &'a Node,
    /// Name of the queries.
    query: &'a str,
    /// Name of the keys, before they are transposed.
    key: &'a str,
    /// Name of the values.
    value: &'a str,
    /// Name of `D`; `None` if every query reads all keys.
    decay: Option<&'a str>,
}

impl<'a> ProductAttention<'a> {
    /// Returns the linear attention whose last product is `node`; `None` for other nodes. No operand is a weight, and
    /// only the nodes of the attention read the tensors between its products.
    #[must_use]
    pub fn of(graph: &'a Graph, node: &'a Node) -> Option<ProductAttention<'a>> {
        let made = |name: &str, op: &str| -> Option<&'a Node> {
            Some(&graph.nodes[*graph.producer.get(name)?]).filter(|node| node.is(op))
        };
        let inner = |name: &str, op: &str| {
            let alone = graph.readers.get(name).is_some_and(|all| all.len() == 1) && !graph.is_output(name);
            made(name, op).filter(|_| alone)
        };
        let turned = |name: &str| {
            let node = made(name, "Transpose")?;
            swaps_last(node)?;
            node.input(0)
        };
        node.is("MatMul").then_some(())?;
        let (a, b) = (node.input(0)?, node.input(1)?);
        let parts =
            |inner: &'a Node, query: &'a str, key: &'a str, value: &'a str, decay: Option<&'a str>| {
                let computed =
                    |name: &str| !graph.initializers.contains_key(name) && made(name, "Constant").is_none();
                let all = [query, key, value].into_iter().all(computed);
                all.then_some(ProductAttention { inner, query, key, value, decay })
            };
        if let Some(sums) = inner(b, "MatMul")
            && let Some(key) = sums.input(0).and_then(turned)
        {
            return parts(sums, a, key, sums.input(1)?, None);
        }
        let kept = inner(a, "Mul")?;
        let (x, y) = (kept.input(0)?, kept.input(1)?);
        [(x, y), (y, x)].into_iter().find_map(|(scores, decay)| {
            let scores = inner(scores, "MatMul")?;
            let key = turned(scores.input(1)?)?;
            parts(scores, scores.input(0)?, key, b, Some(decay))
        })
    }
}

/// Returns the logarithm of each head's decay, if the elements of `mask`, `[heads, queries, keys]`, follow the formula of
/// `D`.
fn decays(mask: &[f64], [heads, tokens]: [usize; 2]) -> Option<Vec<f64>> {
    (0..heads)
        .map(|h| {
            let at = |i: usize, j: usize| mask[(h * tokens + i) * tokens + j];
            let far = (1..tokens).rev().find(|&i| at(i, 0) >= LEAST).unwrap_or(1);
            let log = if tokens > 1 { at(far, 0).ln() / far as f64 } else { 0.0 };
            let fits = |i: usize, j: usize| {
                let wanted = if j > i { 0.0 } else { (log * (i - j) as f64).exp() };
                (at(i, j) - wanted).abs() <= NEAR
            };
            let all = (0..tokens).all(|i| (0..tokens).all(|j| fits(i, j)));
            (all && log.is_finite() && log <= 0.0).then_some(log)
        })
        .collect()
}

/// Sizes and elements of `D`.
struct Decay {
    heads: usize,
    tokens: usize,
    mask: Vec<f64>,
    /// Logarithm of the decay of each sequence, head and token.
    logs: Array,
}

/// Reads `D`, for operands with the axes `axes`: batch, heads and tokens.
fn decay(site: &Site<'_>, name: &str, axes: [&Size; 3]) -> Result<Decay, Reason> {
    let count = |size: &Size| size.known().and_then(|n| usize::try_from(n).ok());
    let [Some(batch), Some(heads), Some(tokens)] = axes.map(count) else {
        return Err("its decay has fixed axes, and its operands have free ones".into());
    };
    let odd = || format!("its scores are multiplied by '{name}', which is no decay by distance");
    let world = site.worlds.first().filter(|_| site.symbols.is_fixed(name)).ok_or_else(odd)?;
    let mask = world.array(name).ok_or_else(odd)?;
    let whole = mask.data.len() == heads * tokens * tokens && mask.shape.ends_with(&[heads, tokens, tokens]);
    let mask = mask.data.to_vec();
    let logs = whole.then(|| decays(&mask, [heads, tokens])).flatten().ok_or_else(odd)?;
    let each = logs.iter().flat_map(|&log| std::iter::repeat_n(log, tokens));
    let data: Vec<f64> = std::iter::repeat_n(each.collect::<Vec<_>>(), batch).flatten().collect();
    let logs = Array::new(Kind::F32, vec![batch, heads, tokens, 1], data);
    Ok(Decay { heads, tokens, mask, logs })
}

/// Builds and proves the replacement of `found`, whose last product is node `n`. The names of the new nodes begin with
/// `prefix`.
///
/// # Errors
/// Returns the reason why the attention is not replaced.
pub fn replacement(
    site: &Site<'_>,
    n: usize,
    found: &ProductAttention<'_>,
    prefix: &str,
) -> Result<Change, Reason> {
    let operands = [found.query, found.key, found.value];
    let shapes = operands.map(|name| site.symbols.shape(name));
    let [Some(q), Some(k), Some(v)] = shapes else {
        return Err("the shapes of its operands do not follow from the model".into());
    };
    let ([batch, heads, tokens, _], [.., value_dim]) = (q, v) else {
        return Err(format!("its queries have {} axes; allowed: 4", q.len()));
    };
    if k != q || *v != [batch.clone(), heads.clone(), tokens.clone(), value_dim.clone()] {
        let [q, k, v] = [q, k, v].map(shown);
        return Err(format!("its queries of {q}, keys of {k} and values of {v} have different axes"));
    }
    let kinds = operands.map(|name| site.symbols.kind(name));
    if kinds.iter().any(|kind| *kind != kinds[0]) || ![Some(Kind::F32), Some(Kind::F16)].contains(&kinds[0]) {
        let names = kinds.map(|kind| kind.map_or("unknown", Kind::name)).join(", ");
        return Err(format!("its operands are {names}; those of one type, f32 or f16, are replaced"));
    }
    let decay = found.decay.map(|name| decay(site, name, [batch, heads, tokens])).transpose()?;
    let output = site.graph.nodes[n].outputs.first().ok_or("it has no output")?.clone();
    let mut b = Builder::new(prefix);
    operands.iter().for_each(|name| b.read(name, Role::Operand));
    let mut new = Node {
        name: prefix.to_owned(),
        op: LINEAR_OPERATOR.into(),
        domain: DOMAIN.into(),
        inputs: operands.map(str::to_owned).into(),
        outputs: vec![output.clone()],
        ..Node::default()
    };
    new.attributes.insert("scale".into(), Attribute::Float(1.0));
    let words = if let Some(decay) = &decay {
        new.inputs.push(b.constant("decay", decay.logs.clone()));
        format!("rule gated, {heads} heads, constant decay")
    } else {
        new.attributes.insert("direction".into(), Attribute::Int(3));
        format!("rule linear, {heads} heads, every token reads the last state")
    };
    prove(&new, decay.as_ref())?;
    b.nodes.push(new);
    Ok(b.change((output, n), words))
}

/// Compares the products with the operator `new` for random operands.
fn prove(new: &Node, decay: Option<&Decay>) -> Result<(), Reason> {
    let (batch, dim, value_dim) = (decay.map_or(2, |decay| decay.logs.shape[0]), 3, 2);
    let (heads, tokens) = decay.map_or((2, 5), |decay| (decay.heads, decay.tokens));
    let mut random = Rng::with_seed(44);
    let mut draw = |dim: usize| {
        let data = (0..batch * heads * tokens * dim).map(|_| (normal(&mut random) * 0.5) as f32);
        data.collect::<Vec<f32>>()
    };
    let (q, k, v) = (draw(dim), draw(dim), draw(value_dim));
    let mut wanted = Vec::new();
    for row in 0..batch * heads * tokens {
        let (head, i) = (row / tokens, row % tokens);
        let mut sums = [0.0; 2];
        for j in 0..tokens {
            let other = head * tokens + j;
            let product = |x: usize| f64::from(q[row * dim + x]) * f64::from(k[other * dim + x]);
            let score: f64 = (0..dim).map(product).sum();
            let kept = decay.map_or(1.0, |decay| decay.mask[(head % heads * tokens + i) * tokens + j]);
            for (y, sum) in sums.iter_mut().enumerate() {
                *sum += score * kept * f64::from(v[other * value_dim + y]);
            }
        }
        wanted.extend(sums);
    }
    let known = ["scale", "direction"];
    if let Some(name) = new.attributes.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("the attribute {name} is not proved"));
    }
    let view = |argument, dim: usize| {
        View::dense(argument, Layout::Bhnd, &[batch, heads, tokens, dim], None).map_err(refuse)
    };
    let output = view("out", value_dim)?;
    let mut spec =
        linear::Spec::new(DType::F32, view("q", dim)?, view("k", dim)?, view("v", value_dim)?, output);
    spec.scale = new.float("scale");
    spec.direction = match new.int("direction").unwrap_or(0) {
        0 => Direction::Forward,
        3 => Direction::NonCausal,
        other => return Err(format!("the direction {other} is not proved")),
    };
    let mut data = linear::Inputs::new(&q[..], &k[..], &v[..]);
    let logs: Vec<f32>;
    if let Some(decay) = decay.filter(|_| new.input(3).is_some()) {
        logs = decay.logs.data.iter().map(|&x| x as f32).collect();
        (spec.rule, spec.decay) = (Rule::Gated, Some(view("decay", 1)?));
        data.decay = Some(Elements::F32(&logs));
    }
    let problem = spec.check().map_err(refuse)?;
    data.check(&problem).map_err(refuse)?;
    let made = super::prove::linear(&problem, &data, [batch, heads, tokens, dim, value_dim]);
    equal("answer", &wanted, &made)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `D` of two heads for `tokens` tokens, and the operator's decays.
    fn given(tokens: usize) -> Decay {
        let logs = [-0.03, -0.5];
        let mask = logs.iter().flat_map(|log| {
            let element = move |i: usize, j: usize| if j > i { 0.0 } else { (log * (i - j) as f64).exp() };
            (0..tokens).flat_map(move |i| (0..tokens).map(move |j| element(i, j)))
        });
        let each = logs.iter().flat_map(|&log| std::iter::repeat_n(log, tokens)).collect();
        let logs = Array::new(Kind::F32, vec![1, 2, tokens, 1], each);
        Decay { heads: 2, tokens, mask: mask.collect(), logs }
    }

    fn operator(direction: Option<i64>, scale: f32, inputs: usize) -> Node {
        let mut node = Node { op: LINEAR_OPERATOR.into(), ..Node::default() };
        node.inputs = (0..inputs).map(|i| format!("x{i}")).collect();
        node.attributes.insert("scale".into(), Attribute::Float(scale));
        node.attributes.extend(direction.map(|n| ("direction".to_owned(), Attribute::Int(n))));
        node
    }

    #[test]
    fn wrong_operators_are_not_proved() {
        let decay = given(70);
        assert_eq!(prove(&operator(Some(3), 1.0, 3), None), Ok(()));
        assert_eq!(prove(&operator(None, 1.0, 4), Some(&decay)), Ok(()));
        for (node, decay) in [
            (operator(None, 1.0, 3), None),
            (operator(Some(3), 0.5, 3), None),
            (operator(None, 1.0, 3), Some(&decay)),
            (operator(Some(3), 1.0, 4), Some(&decay)),
            (operator(None, 0.5, 4), Some(&decay)),
        ] {
            let result = prove(&node, decay);
            assert!(result.as_ref().is_err_and(|why| why.contains("the proof failed")), "{result:?}");
        }
        assert_eq!(prove(&operator(Some(1), 1.0, 3), None), Err("the direction 1 is not proved".into()));
    }

    #[test]
    fn a_decay_follows_from_distances_alone() {
        let whole = given(70);
        let logs = decays(&whole.mask, [2, 70]).unwrap();
        assert!((logs[0] + 0.03).abs() < 1e-12 && (logs[1] + 0.5).abs() < 1e-12, "{logs:?}");
        // An element above the diagonal, on it, or at the largest distance.
        for at in [1, 0, 69 * 70] {
            let mut mask = whole.mask.clone();
            mask[at] += 0.01;
            assert_eq!(decays(&mask, [2, 70]), None, "{at}");
        }
        // Weights that grow with the distance.
        let grown: Vec<f64> = whole.mask.iter().map(|&x| if x > 0.0 { 1.0 / x } else { 0.0 }).collect();
        assert_eq!(decays(&grown, [2, 70]), None);
        assert_eq!(decays(&[1.0, 1.0], [2, 1]), Some(vec![0.0, 0.0]));
    }
}
