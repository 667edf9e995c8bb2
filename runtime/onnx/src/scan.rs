//! The selective scan of Mamba, which exporters write as nodes for every token.
//!
//! ```text
//! factors = exp(delta ∘ a)      added = (delta ∘ b) ∘ u                    [batch, channels, tokens, N]
//! state[t] = factors[t] ∘ state[t − 1] + added[t]                          Gather, Mul, Add
//! out[t] = state[t] · c[t]                                                 Gather, MatMul
//! out = Concat(out[0], out[1], …)
//! ```
//!
//! The search goes back from the last output of a Concat, and finds the operands. It does not check the nodes of the
//! other tokens: the proof computes all nodes in f64 for random operands, and compares the Concat with the operator.

use super::array::{Array, Kind, count};
use super::change::{Builder, Change, DOMAIN, Role, SCAN_OPERATOR};
use super::find::{Reason, Site};
use super::infer::{WORLDS, World};
use super::model::Graph;
use super::node::Node;
use super::random::normal;
use super::size::{Size, shown};
use super::unrolled::{equal, refuse};
use elsa_core::dtype::{DType, Elements};
use elsa_core::series::bound::{Judged, Precision};
use elsa_core::series::{Series, selective};
use fastrand::Rng;
use std::collections::{BTreeSet, HashMap};

/// Description of a selective scan, for the user.
pub const SCAN_WHAT: &str = "selective scan";

/// Maximum number of nodes between the tensors of a token.
const LONGEST: usize = 8;

/// Maximum number of elements of the factors in a proof. It keeps about eight tensors of this size, in f64.
const LARGEST: usize = 1 << 22;

/// A selective scan in a graph.
pub struct UnrolledScan<'a> {
    /// Name of the factors of the states.
    factors: &'a str,
    /// Names of the factors of their exponents: `delta` and `a`, in any order.
    exponents: [&'a str; 2],
    /// Name of the tensor that is added to the states.
    added: &'a str,
    /// Names of its factors: `delta`, `b` and `u`, in any order.
    products: [&'a str; 3],
    /// Name of `c`.
    read: &'a str,
}

impl<'a> UnrolledScan<'a> {
    /// Returns the selective scan whose outputs `node` joins; `None` for other nodes.
    #[must_use]
    pub fn of(graph: &'a Graph, node: &'a Node) -> Option<UnrolledScan<'a>> {
        let made = |name: &str| graph.producer.get(name).map(|&n| &graph.nodes[n]);
        let pair = |node: &'a Node| Some([node.input(0)?, node.input(1)?]);
        let moves = ["Unsqueeze", "Squeeze", "Reshape", "Identity", "Transpose", "Cast"];
        // The node of one of `ops` behind nodes that move elements.
        let behind = |name: &'a str, ops: &[&str]| -> Option<&'a Node> {
            let mut node = made(name)?;
            for _ in 0..LONGEST {
                if ops.iter().any(|op| node.is(op)) {
                    return Some(node);
                }
                let taken = node.is("Gather") || node.is("Slice");
                (taken || moves.iter().any(|op| node.is(op))).then_some(())?;
                node = made(node.input(0)?)?;
            }
            None
        };
        // The tensor that contains the token's part `name`.
        let whole = |name: &'a str| behind(name, &["Gather", "Slice"])?.input(0);
        if !node.is("Concat") || node.inputs.len() < 2 {
            return None;
        }
        let product = pair(behind(node.inputs.last()?, &["MatMul"])?)?;
        let (state, read) = [(product[0], product[1]), (product[1], product[0])]
            .into_iter()
            .find_map(|(state, read)| Some((behind(state, &["Add"])?, read)))?;
        let terms = pair(state)?;
        let (kept, new) =
            [(terms[0], terms[1]), (terms[1], terms[0])].into_iter().find_map(|(kept, new)| {
                let kept = pair(made(kept).filter(|node| node.is("Mul"))?)?;
                // The last state is a factor of the next.
                kept.into_iter()
                    .find_map(|name| whole(name).filter(|name| made(name).is_some_and(|node| node.is("Exp"))))
                    .map(|factors| (factors, new))
            })?;
        let exponents = pair(made(made(kept)?.input(0)?).filter(|node| node.is("Mul"))?)?;
        let added = whole(new)?;
        let outer = pair(made(added).filter(|node| node.is("Mul"))?)?;
        let products =
            [(outer[0], outer[1]), (outer[1], outer[0])].into_iter().find_map(|(inner, other)| {
                let [a, b] = pair(made(inner).filter(|node| node.is("Mul"))?)?;
                Some([a, b, other])
            })?;
        Some(UnrolledScan { factors: kept, exponents, added, products, read: whole(read)? })
    }

    /// Returns the operands `u`, `delta`, `a`, `b` and `c`. Also returns the sizes of batch, channels, tokens and states.
    fn operands(&self, site: &Site<'_>) -> Result<([String; 5], [Size; 4]), Reason> {
        let shape = |name: &str| site.symbols.shape(name);
        let Some(sizes) = shape(self.factors).and_then(|shape| <[Size; 4]>::try_from(shape.to_vec()).ok())
        else {
            return Err("the shape of its states does not follow from the model".into());
        };
        let [batch, channels, tokens, states] = &sizes;
        if [channels, tokens, states].iter().any(|size| size.known().is_none_or(|n| n < 2)) {
            return Err(format!(
                "its states are {}; allowed: fixed channels, tokens and states",
                shown(&sizes)
            ));
        }
        let series = [batch.clone(), channels.clone(), tokens.clone()];
        let coefficients = [batch.clone(), tokens.clone(), states.clone()];
        let odd = |what: &str| format!("its {what} are not found among the factors of its states");
        // The axis of states of a series has size 1, and so has the axis of channels of `b`.
        let has = |name: &&&str, axis: usize| {
            shape(name).is_some_and(|shape| shape.len() == 4 && shape[axis].is(1))
        };
        let rates = self.exponents.iter().find(|name| has(name, 2)).ok_or_else(|| odd("rates"))?;
        let delta = self.exponents.iter().find(|name| has(name, 3)).ok_or_else(|| odd("time steps"))?;
        let delta = flat(site, delta, &series).ok_or_else(|| odd("time steps"))?;
        let mut rest: Vec<&&str> = self.products.iter().collect();
        let at = rest.iter().position(|name| flat(site, name, &series) == Some(delta));
        rest.remove(at.ok_or_else(|| odd("time steps"))?);
        let at = rest.iter().position(|name| has(name, 1)).ok_or_else(|| odd("input coefficients"))?;
        let b = flat(site, rest.remove(at), &coefficients).ok_or_else(|| odd("input coefficients"))?;
        let u = flat(site, rest[0], &series).ok_or_else(|| odd("inputs"))?;
        let c = flat(site, self.read, &coefficients).ok_or("its output coefficients have other axes")?;
        let all = [u, delta, rates, b, c];
        if let Some(name) = all.iter().find(|name| site.symbols.kind(name) != Some(Kind::F32)) {
            let kind = site.symbols.kind(name).map_or("unknown", Kind::name);
            return Err(format!("its operand '{name}' is {kind}; allowed: f32"));
        }
        if shape(rates) != Some(&[Size::from(1), channels.clone(), Size::from(1), states.clone()]) {
            return Err("its rates have other axes than channels and states".into());
        }
        Ok((all.map(str::to_owned), sizes))
    }
}

/// Returns the tensor of shape `wanted` whose elements, in their order, are those of `name`.
fn flat<'s>(site: &'s Site<'_>, name: &'s str, wanted: &[Size]) -> Option<&'s str> {
    let mut name = name;
    for _ in 0..LONGEST {
        if site.symbols.shape(name)? == wanted {
            return Some(name);
        }
        let (_, node) = site.producer(name)?;
        let from = node.input(0)?;
        let keeps = ["Unsqueeze", "Squeeze", "Reshape", "Flatten", "Identity", "Cast"];
        let same = site.symbols.kind(from) == site.symbols.kind(name);
        name = (same && keeps.iter().any(|op| node.is(op))).then_some(from)?;
    }
    None
}

/// Builds and proves the replacement of the scan `found`, whose Concat is node `n`. The names of the new nodes begin with
/// `prefix`.
///
/// # Errors
/// Returns the reason why the scan is not replaced.
pub fn replacement(
    site: &Site<'_>,
    n: usize,
    found: &UnrolledScan<'_>,
    prefix: &str,
) -> Result<Change, Reason> {
    let (operands, [batch, channels, tokens, states]) = found.operands(site)?;
    let output = site.graph.nodes[n].outputs.first().ok_or("it has no output")?.clone();
    if site.symbols.shape(&output) != Some(&[batch, channels.clone(), tokens.clone()]) {
        return Err("its output has other axes than batch, channels and tokens".into());
    }
    let mut b = Builder::new(prefix);
    operands.iter().for_each(|name| b.read(name, Role::Operand));
    let [u, delta, rates, into, out] = operands.each_ref().map(String::as_str);
    let rates = {
        let shape = b.ints("rates", [&channels, &states].map(|size| size.known().unwrap_or_default()));
        b.node("rates", "Reshape", &[rates, &shape])
    };
    let [into, out] = [into, out].map(|name| b.transposed(name, &[0, 2, 1]));
    b.nodes.push(Node {
        name: prefix.to_owned(),
        op: SCAN_OPERATOR.into(),
        domain: DOMAIN.into(),
        inputs: [u, delta, &rates, &into, &out].map(str::to_owned).into(),
        outputs: vec![output.clone()],
        ..Node::default()
    });
    let why = "other nodes read the states of its tokens".to_owned();
    let shared = [found.factors, found.added].map(|name| (name.to_owned(), why.clone())).into();
    let words = format!("{channels} channels, {states} states, {tokens} tokens");
    let change = Change { shared, ..b.change((output, n), words) };
    // Time steps are positive, and rates are negative, so that states stay small.
    proved(site, &change, found.factors, &operator, &|i, random| match i {
        1 => random.f64(),
        2 => -2.0 * random.f64(),
        _ => normal(random),
    })?;
    Ok(change)
}

/// Computes a node of an operator with the oracle.
pub type Oracle<'o> = &'o dyn Fn(&Node, &[Option<&Array>]) -> Result<Array, Reason>;

/// Compares the nodes of the graph with those of `change` in every world, for random operands. `draw` returns an element
/// of an operand, `oracle` computes the operator, and the elements of the tensor `largest` measure the memory.
///
/// # Errors
/// Returns the place where the outputs differ, or the reason why one of them cannot be computed.
pub fn proved(
    site: &Site<'_>,
    change: &Change,
    largest: &str,
    oracle: Oracle<'_>,
    draw: &dyn Fn(usize, &mut Rng) -> f64,
) -> Result<(), Reason> {
    let mut random = Rng::with_seed(45);
    let mut proofs = 0;
    for world in site.worlds {
        let Some(shape) = world.shape(largest) else { continue };
        let most = LARGEST.min(world.limits().elements);
        if count(shape, most).is_none() {
            return Err(format!(
                "a proof with the {shape:?} elements of '{largest}' takes too much memory; allowed: {most}"
            ));
        }
        let mut known: HashMap<String, Array> = HashMap::new();
        for (i, (name, _)) in change.reads.iter().enumerate() {
            let shape = world
                .shape(name)
                .ok_or_else(|| format!("the shape of '{name}' does not follow from the model"))?;
            let n = count(shape, most).ok_or_else(|| format!("'{name}' is too large for a proof"))?;
            let data = (0..n).map(|_| Kind::F32.rounded(draw(i, &mut random))).collect();
            known.insert(name.clone(), Array::new(Kind::F32, shape.to_vec(), data));
        }
        let wanted = original(site, world, &known, &change.output.0)?;
        let made = replaced(world, change, known, oracle)?;
        if wanted.shape != made.shape {
            return Err(format!("the proof failed: shapes {:?} and {:?}", wanted.shape, made.shape));
        }
        equal("answer", &wanted.data, &made.data)?;
        proofs += 1;
    }
    match (proofs, site.symbols.is_free()) {
        (0, _) => Err(format!("the shape of '{largest}' does not follow from the model")),
        (_, true) if proofs < WORLDS => Err(format!(
            "its shapes are known for {proofs} sizes of its free axes only; a proof needs {WORLDS}"
        )),
        _ => Ok(()),
    }
}

/// Computes the tensor `wanted` by the nodes of the graph, from the elements in `known` and constants.
fn original(
    site: &Site<'_>,
    world: &World<'_>,
    known: &HashMap<String, Array>,
    wanted: &str,
) -> Result<Array, Reason> {
    let graph = site.graph;
    let mut needed: BTreeSet<usize> = BTreeSet::new();
    let mut work = vec![wanted];
    while let Some(name) = work.pop() {
        if name.is_empty() || known.contains_key(name) || world.is_known(name) {
            continue;
        }
        let n = *graph.producer.get(name).ok_or_else(|| format!("its nodes read '{name}'"))?;
        if needed.insert(n) {
            work.extend(graph.nodes[n].inputs.iter().map(String::as_str));
        }
    }
    // An array is kept until the last node that reads it.
    let mut last: HashMap<&str, usize> = HashMap::new();
    for &n in &needed {
        last.extend(graph.nodes[n].inputs.iter().map(|name| (name.as_str(), n)));
    }
    let mut made: HashMap<&str, Array> = HashMap::new();
    for &n in &needed {
        let node = &graph.nodes[n];
        let constants: Vec<Option<Array>> = node
            .inputs
            .iter()
            .map(|name| {
                if made.contains_key(name.as_str()) || known.contains_key(name) {
                    None
                } else {
                    world.array(name)
                }
            })
            .collect();
        let inputs: Vec<Option<&Array>> = node
            .inputs
            .iter()
            .zip(&constants)
            .map(|(name, constant)| known.get(name).or_else(|| made.get(name.as_str())).or(constant.as_ref()))
            .collect();
        let outputs = world.eval(node, &inputs);
        let outputs =
            outputs.ok_or_else(|| format!("the node {} cannot be computed for a proof", node.op))?;
        made.retain(|name, _| last.get(name).is_none_or(|&end| end > n));
        made.extend(node.outputs.iter().map(String::as_str).zip(outputs));
    }
    made.remove(wanted).ok_or_else(|| "its output follows from no operand".to_owned())
}

/// Computes the new nodes from the elements in `known`.
fn replaced(
    world: &World<'_>,
    change: &Change,
    mut known: HashMap<String, Array>,
    oracle: Oracle<'_>,
) -> Result<Array, Reason> {
    known.extend(change.constants.iter().cloned());
    for node in &change.nodes {
        let inputs: Vec<Option<&Array>> = node.inputs.iter().map(|name| known.get(name)).collect();
        let made = if node.domain == DOMAIN {
            oracle(node, &inputs)?
        } else {
            let made = world.eval(node, &inputs).and_then(|all| all.into_iter().next());
            made.ok_or_else(|| format!("the new node {} cannot be computed", node.op))?
        };
        known.insert(node.outputs[0].clone(), made);
    }
    known.remove(&change.output.0).ok_or_else(|| "the new nodes do not make the output".to_owned())
}

/// Computes a node of the operator with the oracle.
fn operator(node: &Node, inputs: &[Option<&Array>]) -> Result<Array, Reason> {
    if let Some(name) = node.attributes.keys().next() {
        return Err(format!("the attribute {name} is not proved"));
    }
    let missing = || "the operator has not the inputs that it needs".to_owned();
    let &[Some(u), Some(delta), Some(a), Some(b), Some(c)] = inputs else { return Err(missing()) };
    let series = |argument: &'static str, array: &Array| {
        let axes = <[usize; 3]>::try_from(&array.shape[..]).map_err(|_| missing())?;
        Series::channels_first(argument, axes).map_err(refuse)
    };
    let [channels, states] = a.shape[..] else { return Err(missing()) };
    let coefficient = |argument, array| series(argument, array).map(selective::Coefficient::Token);
    let out = series("out", u)?;
    let spec = selective::Spec::new(
        series("u", u)?,
        series("delta", delta)?,
        states,
        coefficient("b", b)?,
        coefficient("c", c)?,
        out,
    );
    let problem = spec.check().map_err(refuse)?;
    if problem.spec().u.channels() != channels {
        return Err(missing());
    }
    let [u32s, deltas, rates, into, read] =
        [u, delta, a, b, c].map(|array| array.data.iter().map(|&x| x as f32).collect::<Vec<f32>>());
    let data = selective::Inputs {
        u: Elements::F32(&u32s),
        delta: Elements::F32(&deltas),
        a: &rates,
        b: Elements::F32(&into),
        c: Elements::F32(&read),
        d: None,
        z: None,
        delta_bias: None,
        past_state: None,
    };
    let (batch, tokens) = (u.shape[0], u.shape[2]);
    let mut made = vec![0.0; u.data.len()];
    let mut last = vec![Judged { value: 0.0, bound: 0.0 }; states];
    for (b, channel) in (0..batch).flat_map(|b| (0..channels).map(move |channel| (b, channel))) {
        let row = (b * channels + channel) * tokens;
        let visit = |t: usize, exact: Judged| made[row + t] = exact.value;
        let precision = Precision::LIBM;
        selective::reference::outputs(
            &problem,
            &data,
            &[],
            &precision,
            DType::F32,
            [b, channel],
            &mut last,
            visit,
        );
    }
    Ok(Array::new(Kind::F32, u.shape.clone(), made))
}
