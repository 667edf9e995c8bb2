//! The gated delta rule by chunks of tokens, whose triangular system exporters write as nodes for every row.
//!
//! ```text
//! D = exp(G_i − G_j) for j ≤ i, else 0       G: sums of the gates `g` in a chunk
//! T = (I + strictly lower part of (β K Kᵀ) ∘ D)⁻¹            nodes for every row
//! W = T (β V) − T (β K exp G) S              S: the state before the chunk
//! out = (Q exp G) S + ((Q Kᵀ) ∘ D) W         Reshape of all chunks
//! ```
//!
//! The search goes back from the output of the last chunk, and finds the operands. It checks neither the other chunks nor
//! the system: the proof computes all nodes in f64 for random operands, and compares them with the operator.

use super::array::{Array, Kind};
use super::change::{Builder, Change, DOMAIN, LINEAR_OPERATOR, Role};
use super::find::{Reason, Site};
use super::model::Graph;
use super::node::{Attribute, Node};
use super::scan::proved;
use super::size::{Size, shown};
use super::unrolled::refuse;
use elsa_core::dtype::{DType, Elements};
use elsa_core::linear::{self, Rule};
use elsa_core::view::{Layout, View};

/// Maximum number of nodes that only move elements or add zeros on one path.
const LONGEST: usize = 8;

/// A gated delta rule in a graph.
pub struct ChunkedDelta<'a> {
    /// Names of tensors from which queries, keys, values, rates and gates are found.
    operands: [&'a str; 5],
    /// Names of tensors that only the nodes of the rule read: the system's solution, and the sums of gates.
    inner: [&'a str; 2],
}

impl<'a> ChunkedDelta<'a> {
    /// Returns the gated delta rule whose chunks `node` joins; `None` for other nodes.
    #[must_use]
    pub fn of(graph: &'a Graph, node: &'a Node) -> Option<ChunkedDelta<'a>> {
        let made = |name: &str| graph.producer.get(name).map(|&n| &graph.nodes[n]);
        let by = |name: &str, op: &str| made(name).filter(|node| node.is(op));
        let pair = |node: &'a Node| Some([node.input(0)?, node.input(1)?]);
        // For a product with a factor that `op` makes: the node of this factor, and the other factor.
        let with = |name: &str, op: &str| {
            let [a, b] = pair(by(name, "Mul")?)?;
            [(a, b), (b, a)].into_iter().find_map(|(one, other)| Some((by(one, op)?, other)))
        };
        // The tensor that contains the chunk `name`.
        let whole = |name: &'a str| by(name, "Gather").map_or(Some(name), |node| node.input(0));
        let joined = by(node.input(0).filter(|_| node.is("Reshape"))?, "ScatterElements")?;
        let last = by(by(joined.input(2)?, "Unsqueeze")?.input(0)?, "Add")?;
        let (scores, values) = pair(last)?.into_iter().find_map(|name| {
            let [scores, values] = pair(by(name, "MatMul")?)?;
            Some((with(whole(scores)?, "MatMul")?, values))
        })?;
        let (product, decay) = scores;
        let [query, turned] = pair(product)?;
        let key = by(turned, "Transpose")?.input(0)?;
        let masked = by(decay, "Exp")?.input(0)?;
        let differences = match by(masked, "Where") {
            Some(node) => [1, 2].into_iter().find_map(|i| by(node.input(i)?, "Sub"))?,
            None => by(masked, "Sub")?,
        };
        let sums = by(differences.input(0)?, "Unsqueeze")?.input(0)?;
        let gate = by(sums, "CumSum")?.input(0)?;
        let solved = by(whole(by(values, "Sub")?.input(0)?)?, "MatMul")?;
        let [solution, rated] = pair(solved)?;
        let rated = by(rated, "Reshape")?.input(0)?;
        let (rate, value) = with(rated, "Unsqueeze")?;
        let rate = rate.outputs.first()?;
        Some(ChunkedDelta { operands: [query, key, value, rate, gate], inner: [solution, sums] })
    }
}

/// Returns the tensor of `rank` axes whose elements, in their order and without zeros after them, are those of `name`.
fn unpadded<'s>(site: &'s Site<'_>, name: &'s str, rank: usize) -> Option<&'s str> {
    let mut name = name;
    for _ in 0..LONGEST {
        let node = site.producer(name).map(|(_, node)| node);
        let adds = node.is_some_and(|node| node.is("Pad") || node.is("Identity"));
        if site.symbols.shape(name)?.len() == rank && !adds {
            return Some(name);
        }
        let node = node?;
        (adds || node.is("Reshape") || node.is("Unsqueeze")).then_some(())?;
        name = node.input(0)?;
    }
    None
}

/// Builds and proves the replacement of `found`, whose chunks node `n` joins. The names of the new nodes begin with
/// `prefix`.
///
/// # Errors
/// Returns the reason why the rule is not replaced.
pub fn replacement(
    site: &Site<'_>,
    n: usize,
    found: &ChunkedDelta<'_>,
    prefix: &str,
) -> Result<Change, Reason> {
    let ranks = [4, 4, 4, 3, 3];
    let operands: Vec<&str> = (found.operands.iter().zip(ranks))
        .map(|(name, rank)| {
            unpadded(site, name, rank).ok_or_else(|| format!("the operand of '{name}' is not found"))
        })
        .collect::<Result<_, _>>()?;
    let shape = |name: &str| site.symbols.shape(name).unwrap_or_default();
    let ([batch, heads, tokens, dim], [.., value_dim]) = (shape(operands[0]), shape(operands[2])) else {
        return Err("the shapes of its operands do not follow from the model".into());
    };
    let series = [batch, heads, tokens].map(Size::clone);
    let axes = |last: &Size| [&series[..], std::slice::from_ref(last)].concat();
    let wanted = [axes(dim), axes(dim), axes(value_dim), series.to_vec(), series.to_vec()];
    if let Some((name, _)) =
        operands.iter().zip(&wanted).find(|(name, wanted)| shape(name) != wanted.as_slice())
    {
        return Err(format!(
            "its operand '{name}' is {}, and its queries are {}",
            shown(shape(name)),
            shown(shape(operands[0]))
        ));
    }
    if let Some(name) = operands.iter().find(|name| site.symbols.kind(name) != Some(Kind::F32)) {
        let kind = site.symbols.kind(name).map_or("unknown", Kind::name);
        return Err(format!("its operand '{name}' is {kind}; allowed: f32"));
    }
    // The tokens that complete the last chunk are cut off.
    let mut output = (site.graph.nodes[n].outputs.first().ok_or("it has no output")?, n);
    if shape(output.0) != wanted[2].as_slice()
        && let Some(&[reader]) = site.graph.readers.get(output.0).map(Vec::as_slice)
        && let Some(cut) = site.graph.nodes[reader].outputs.first()
    {
        output = (cut, reader);
    }
    if shape(output.0) != wanted[2].as_slice() {
        return Err(format!(
            "its output is {}, and its values are {}",
            shown(shape(output.0)),
            shown(&wanted[2])
        ));
    }
    let output = (output.0.clone(), output.1);
    let mut b = Builder::new(prefix);
    operands.iter().for_each(|name| b.read(name, Role::Operand));
    let [rate, gate] = [3, 4].map(|i| {
        let shape = b.ints("axes", [0, 0, 0, 1]);
        b.node("column", "Reshape", &[operands[i], &shape])
    });
    let mut new = Node {
        name: prefix.to_owned(),
        op: LINEAR_OPERATOR.into(),
        domain: DOMAIN.into(),
        inputs: [operands[0], operands[1], operands[2], &gate, &rate].map(str::to_owned).into(),
        outputs: vec![output.0.clone()],
        ..Node::default()
    };
    new.attributes.insert("scale".into(), Attribute::Float(1.0));
    b.nodes.push(new);
    let why = "other nodes read the states of its chunks".to_owned();
    let shared = found.inner.map(|name| (name.to_owned(), why.clone())).into();
    let words = format!("rule gated delta, {heads} heads of {dim}, chunks");
    let change = Change { shared, ..b.change(output, words) };
    // Keys have norms near 1, rates are between 0 and 1, and gates shrink the states, so that states stay small.
    let small = 1.0 / (dim.known().unwrap_or(1).max(1) as f64).sqrt();
    proved(site, &change, operands[0], &operator, &|i, random| match i {
        0 | 1 => super::random::normal(random) * small,
        2 => super::random::normal(random),
        3 => random.f64(),
        _ => -0.3 * random.f64(),
    })?;
    Ok(change)
}

/// Computes a node of the operator with the oracle.
fn operator(node: &Node, inputs: &[Option<&Array>]) -> Result<Array, Reason> {
    if let Some(name) = node.attributes.keys().find(|name| *name != "scale") {
        return Err(format!("the attribute {name} is not proved"));
    }
    let missing = || "the operator has not the inputs that it needs".to_owned();
    let &[Some(q), Some(k), Some(v), Some(decay), Some(beta)] = inputs else { return Err(missing()) };
    let view =
        |argument, array: &Array| View::dense(argument, Layout::Bhnd, &array.shape, None).map_err(refuse);
    let mut spec =
        linear::Spec::new(DType::F32, view("q", q)?, view("k", k)?, view("v", v)?, view("out", v)?);
    spec.scale = node.float("scale");
    (spec.rule, spec.decay, spec.beta) =
        (Rule::GatedDelta, Some(view("decay", decay)?), Some(view("beta", beta)?));
    let problem = spec.check().map_err(refuse)?;
    let [q32, k32, v32, gates, rates] =
        [q, k, v, decay, beta].map(|array| array.data.iter().map(|&x| x as f32).collect::<Vec<f32>>());
    let mut data = linear::Inputs::new(&q32[..], &k32[..], &v32[..]);
    (data.decay, data.beta) = (Some(Elements::F32(&gates)), Some(Elements::F32(&rates)));
    data.check(&problem).map_err(refuse)?;
    let (&[batch, heads, tokens, dim], &[.., value_dim]) = (&q.shape[..], &v.shape[..]) else {
        return Err(missing());
    };
    let made = super::prove::linear(&problem, &data, [batch, heads, tokens, dim, value_dim]);
    Ok(Array::new(Kind::F32, v.shape.clone(), made))
}
