//! The proof of a replacement: the nodes of the graph and the new ones give the same answers.
//!
//! What the new nodes read gets random elements, in every world. From there the graph's nodes are computed in f64 as
//! ONNX defines them, and the new ones too, the operator by the f64 oracle of the library. Masks are tried twice: with
//! elements that change every score, and with elements that take keys away. Each row keeps its first key, since a row
//! that attends nothing is no attention: an exporter's nodes make it a mean or NaN, and the operator zeros.

use super::array::{Array, Kind, count};
use super::change::{Change, OPERATOR, Role};
use super::find::{Reason, Site};
use super::fused;
use super::infer::World;
use super::model::{Attribute, Node};
use super::ops::Limits;
use crate::random::Random;
use elsa_core::attention::{
    Alignment, BiasView, Inputs, MaskElements, MaskKind, MaskView, Spec, TableView, Windows, reference,
};
use elsa_core::dtype::{DType, Elements};
use elsa_core::view::{Layout, View};
use half::f16;
use std::collections::HashMap;

/// How far an element may lie from the other, relative to the largest value. The scale is rounded to f32 in the node, which
/// is `2^-24` of a score.
const NEAR: f64 = 1e-5;

/// Nodes that depend on each other at most so deep.
const DEPTH: usize = 200;

/// Computes both and compares them.
///
/// # Errors
/// Where they differ, or why one cannot be computed.
pub fn prove(site: &Site<'_>, change: &Change) -> Result<(), Reason> {
    let mut random = Random::new(16);
    for world in site.worlds {
        for taking in [false, true] {
            let mut known: HashMap<String, Array> = change.constants.iter().cloned().collect();
            for (name, role) in &change.reads {
                // Operands vary even where the model could compute them.
                let fixed = world.array(name).filter(|_| *role != Role::Operand);
                let array = match fixed {
                    Some(array) => array,
                    None => draw(world, name, *role, taking, change, &mut random)?,
                };
                known.insert(name.clone(), array);
            }
            let mut graph = Graph { site, world, known: known.clone() };
            let Some(original) = graph.tensor(&change.output.0, 0) else {
                return Err(format!(
                    "its nodes cannot be computed for a proof, from '{}' back",
                    graph.stuck(&change.output.0)
                ));
            };
            let replaced = new(world, change, known)?;
            if original.shape != replaced.shape {
                return Err(format!(
                    "the proof failed: shapes {:?} and {:?}",
                    original.shape, replaced.shape
                ));
            }
            let most = original.data.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for (at, (a, b)) in original.data.iter().zip(replaced.data.iter()).enumerate() {
                let same = (a - b).abs() <= NEAR * most.max(1.0);
                if !same {
                    return Err(format!(
                        "the proof failed: element {at} is {a:e} in the graph and {b:e} in the operator"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Random elements for a tensor that the new nodes read.
fn draw(
    world: &World<'_>,
    name: &str,
    role: Role,
    taking: bool,
    change: &Change,
    random: &mut Random,
) -> Result<Array, Reason> {
    let (Some(shape), Some(kind)) = (world.shape(name), world.kind(name)) else {
        return Err(format!("the shape of '{name}' does not follow from the model"));
    };
    let Some(n) = count(shape, world.limits().elements) else {
        return Err(format!("'{name}' is too large for a proof"));
    };
    let keys = shape.last().copied().unwrap_or(1).max(1);
    // Scores of a few units, whatever the scale: a proof sees nothing where one key takes all.
    let node = change.operator();
    let scale = node.and_then(|node| node.float("scale")).map_or(1.0, |x| f64::from(x.abs()).max(1e-6));
    let spread = (2.0 / (scale * 8.0)).sqrt().clamp(0.01, 10.0);
    let low = if kind == Kind::F16 { -65504.0 } else { f64::from(f32::MIN) };
    let element = |i: usize, random: &mut Random| {
        let first = i.is_multiple_of(keys);
        match role {
            Role::Operand => random.normal() * spread,
            Role::Condition(attended) => f64::from(u8::from((first || random.uniform() < 0.6) == attended)),
            Role::Added | Role::Subtracted => {
                let x = if !taking {
                    random.normal()
                } else if first || random.uniform() < 0.6 {
                    0.0
                } else {
                    low
                };
                if role == Role::Added { x } else { -x }
            }
        }
    };
    let data = (0..n).map(|i| kind.rounded(element(i, random))).collect();
    Ok(Array::new(kind, shape.to_vec(), data))
}

/// The graph's own nodes.
struct Graph<'a> {
    site: &'a Site<'a>,
    world: &'a World<'a>,
    known: HashMap<String, Array>,
}

impl Graph<'_> {
    fn tensor(&mut self, name: &str, depth: usize) -> Option<Array> {
        if let Some(array) = self.known.get(name) {
            return Some(array.clone());
        }
        if let Some(array) = self.world.array(name) {
            return Some(array);
        }
        let n = *self.site.graph.producer.get(name).filter(|_| depth < DEPTH)?;
        let node = &self.site.graph.nodes[n];
        let mut arrays = Vec::new();
        for input in &node.inputs {
            arrays.push(if input.is_empty() { None } else { Some(self.tensor(input, depth + 1)?) });
        }
        let inputs: Vec<Option<&Array>> = arrays.iter().map(Option::as_ref).collect();
        let made = match fused::eval(node, &inputs, self.world.limits()) {
            Some(made) => vec![made],
            None => self.world.eval(node, &inputs)?,
        };
        for (name, array) in node.outputs.iter().zip(made) {
            self.known.insert(name.clone(), array);
        }
        self.known.get(name).cloned()
    }

    /// The first tensor on the way back that cannot be computed.
    fn stuck(&mut self, name: &str) -> String {
        let mut name = name.to_owned();
        for _ in 0..DEPTH {
            let Some(&n) = self.site.graph.producer.get(&name) else { break };
            let inputs = self.site.graph.nodes[n].inputs.iter().filter(|input| !input.is_empty());
            match inputs.into_iter().find(|input| self.tensor(input, 0).is_none()) {
                Some(input) => name = input.clone(),
                None => break,
            }
        }
        name
    }
}

/// The answer of the new nodes.
fn new(world: &World<'_>, change: &Change, mut known: HashMap<String, Array>) -> Result<Array, Reason> {
    for node in &change.nodes {
        let inputs: Vec<Option<&Array>> = node.inputs.iter().map(|name| known.get(name)).collect();
        let made = if node.op == OPERATOR {
            Some(vec![oracle(node, &inputs, world.limits())?])
        } else {
            world.eval(node, &inputs)
        };
        let Some(made) = made else { return Err(format!("the new node {} cannot be computed", node.op)) };
        for (name, array) in node.outputs.iter().zip(made) {
            known.insert(name.clone(), array);
        }
    }
    known.remove(&change.output.0).ok_or_else(|| "the new nodes do not make the output".into())
}

/// Elements in the type in which a call has them.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl Stored {
    fn of(array: &Array) -> Stored {
        if array.kind == Kind::F16 {
            Stored::F16(array.data.iter().map(|&x| f16::from_f64(x)).collect())
        } else {
            Stored::F32(array.data.iter().map(|&x| x as f32).collect())
        }
    }

    fn elements(&self, from: usize) -> Elements<'_> {
        match self {
            Stored::F32(all) => Elements::F32(&all[from..]),
            Stored::F16(all) => Elements::F16(&all[from..]),
        }
    }

    fn dtype(&self) -> DType {
        if matches!(self, Stored::F16(_)) { DType::F16 } else { DType::F32 }
    }
}

/// What the operator answers, by the oracle.
fn oracle(node: &Node, inputs: &[Option<&Array>], limits: Limits) -> Result<Array, Reason> {
    let get = |i: usize| inputs.get(i).copied().flatten();
    let size = |name: &str| node.int(name).and_then(|n| usize::try_from(n).ok());
    let pair = |name: &str| match node.ints(name) {
        Some(&[a, b]) => Some([usize::try_from(a).ok()?, usize::try_from(b).ok()?]),
        _ => None,
    };
    let refuse = |e: elsa_core::argument::ArgumentError| format!("the operator refuses it: {e}");
    let missing = || "the operator has not the inputs that it needs".to_string();
    let q = get(0).ok_or_else(missing)?;
    let heads = size("num_heads").filter(|&n| n > 0).ok_or_else(missing)?;
    let kv_heads = size("kv_num_heads").unwrap_or(heads);
    let packed = size("packed") == Some(1);
    let view = |argument: &'static str, array: &Array, heads: usize| match array.shape.len() {
        4 => View::dense(argument, Layout::Bhnd, &array.shape, None),
        _ => View::dense(argument, Layout::Bnc, &array.shape, Some(heads)),
    };
    let stored: Vec<Stored>;
    let (views, starts) = if packed {
        let [batch, tokens, width] = q.shape[..] else { return Err(missing()) };
        let dim = width / (3 * heads);
        let one =
            View::new("q", [batch, heads, tokens, dim], [tokens * width, dim, width, 1]).map_err(refuse)?;
        stored = vec![Stored::of(q)];
        ([one; 3], [0, heads * dim, 2 * heads * dim])
    } else {
        let (k, v) = (get(1).ok_or_else(missing)?, get(2).ok_or_else(missing)?);
        stored = [q, k, v].map(Stored::of).into();
        let views = [view("q", q, heads), view("k", k, kv_heads), view("v", v, kv_heads)];
        let [q, k, v] = views;
        ([q.map_err(refuse)?, k.map_err(refuse)?, v.map_err(refuse)?], [0; 3])
    };
    let elements = |i: usize| stored[if packed { 0 } else { i }].elements(starts[i]);
    let [query, key, value] = views;
    let [batch, heads, queries, dim] = query.shape();
    let value_dim = value.dim();
    let work = [batch, heads, queries, key.tokens(), dim + value_dim];
    if count(&work, limits.work).is_none() {
        return Err("it is too large for a proof".into());
    }
    let output =
        View::dense("out", Layout::Bhnd, &[batch, heads, queries, value_dim], None).map_err(refuse)?;
    let mut spec = Spec::new(stored[0].dtype(), query, key, value, output);
    spec.scale = node.float("scale");
    spec.softcap = node.float("softcap");
    spec.causal = (size("is_causal") == Some(1)).then_some(Alignment::TopLeft);
    spec.short_mask = true;
    let bytes: Vec<u8>;
    let floats: Stored;
    let mut data = Inputs::new(elements(0), elements(1), elements(2));
    if let Some(mask) = get(3) {
        if mask.kind == Kind::BOOL {
            bytes = mask.data.iter().map(|&x| u8::from(x != 0.0)).collect();
            spec.mask = Some(MaskView::dense(MaskKind::Bool, &mask.shape).map_err(refuse)?);
            data.mask = Some(MaskElements::Bool(&bytes));
        } else {
            floats = Stored::of(mask);
            spec.mask =
                Some(MaskView::dense(MaskKind::Additive(floats.dtype()), &mask.shape).map_err(refuse)?);
            data.mask = Some(MaskElements::Additive(floats.elements(0)));
        }
    }
    let table: Stored;
    if let (Some(array), Some(size)) = (get(4), pair("grid")) {
        table = Stored::of(array);
        let [entries, heads] = array.shape[..] else { return Err(missing()) };
        spec.bias = Some(BiasView::Table(TableView { dtype: table.dtype(), entries, heads, indexed: false }));
        data.bias = Some(table.elements(0));
        let picture = pair("picture").unwrap_or(size);
        spec.windows = Some(Windows { picture, size, shift: pair("shift").unwrap_or([0, 0]) });
    }
    let problem = spec.check().map_err(refuse)?;
    data.check(&problem).map_err(refuse)?;
    let length = count(&[batch, heads, queries, value_dim], limits.elements);
    let mut answer = vec![0.0; length.ok_or("it is too large for a proof")?];
    let rows = q.shape.len() == 3;
    for (b, h, i) in
        (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..queries).map(move |i| (b, h, i))))
    {
        let row = if rows { (b * queries + i) * heads + h } else { (b * heads + h) * queries + i };
        reference::row(&problem, &data, b, h, i, &mut answer[row * value_dim..][..value_dim]);
    }
    let shape =
        if rows { vec![batch, queries, heads * value_dim] } else { vec![batch, heads, queries, value_dim] };
    // An attribute that is not understood here would go unproved.
    let understood =
        ["num_heads", "kv_num_heads", "packed", "scale", "softcap", "is_causal", "grid", "picture", "shift"];
    let odd = node
        .attributes
        .iter()
        .find(|(name, value)| !understood.contains(&name.as_str()) || matches!(value, Attribute::Other));
    match odd {
        Some((name, _)) => Err(format!("the attribute {name} is not proved")),
        None => Ok(Array::new(q.kind, shape, answer)),
    }
}
