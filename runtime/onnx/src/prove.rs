//! The proof of a replacement: the nodes of the graph and the new nodes have the same output.
//!
//! In every world, the inputs of the new nodes are random. From these inputs, the graph's nodes are computed in f64 as
//! ONNX defines them. The new nodes are also computed in f64, with the library's oracle for the operator. Masks are
//! tested twice: with elements that change every score, and with elements that mask keys. The first key of each row is
//! never masked, because the outputs for a row without an attended key differ: the nodes of exporters yield a mean or
//! NaN, but the operator yields zeros.

use super::array::{Array, Kind, count};
use super::change::{Change, OPERATOR, Role};
use super::find::{Reason, Site};
use super::infer::{WORLDS, World};
use super::meaning::{self, appended, in_heads};
use super::node::{Attribute, Node};
use super::ops::Limits;
use super::random::normal;
use super::sample::{QUERIES, Sample};
use super::single::FusedNode;
use elsa_core::attention::{
    Alignment, BiasView, Inputs, MaskElements, MaskKind, MaskView, Spec, TableView, Window, Windows,
    reference, repeated,
};
use elsa_core::dtype::{DType, Elements};
use elsa_core::linear;
use elsa_core::view::{Layout, View};
use fastrand::Rng;
use half::f16;
use std::collections::HashMap;

/// Tolerated error of an output element, relative to the largest value. It allows for the rounding of the node's scale
/// to f32, which changes a score by up to `2^-24` of its value.
const NEAR: f64 = 1e-5;

/// Maximum depth of dependencies between nodes.
const DEPTH: usize = 200;

/// Memory limit of one world, in bytes.
const MEMORY: usize = 256 << 20;

/// Computes linear attention with the library's oracle. The shapes of queries and values are `[sequences, heads, tokens,
/// dim]` and `[sequences, heads, tokens, value_dim]`, and so is the shape of the result.
pub fn linear(
    problem: &linear::Problem,
    data: &linear::Inputs<'_>,
    [sequences, heads, tokens, dim, value_dim]: [usize; 5],
) -> Vec<f64> {
    let size = tokens * value_dim;
    let mut made = vec![0.0; sequences * heads * size];
    let mut state = vec![0.0; dim * value_dim];
    let mut scratch = vec![0.0; linear::reference::scratch_len(problem)];
    for (at, made) in made.chunks_exact_mut(size.max(1)).enumerate() {
        linear::reference::head(problem, data, at / heads, at % heads, made, &mut state, &mut scratch);
    }
    made
}

/// Computes the graph's nodes and the new nodes in every world, and compares their outputs.
///
/// # Errors
/// Returns the place where the outputs differ, or the reason why one of the outputs cannot be computed.
pub fn prove(site: &Site<'_>, change: &Change) -> Result<(), Reason> {
    let mut random = Rng::with_seed(16);
    let free = site.symbols.is_free();
    let (mut proofs, mut most) = (0, None::<(usize, usize)>);
    for world in site.worlds {
        let Some((sample, bytes)) = Sample::of(world, change) else {
            return Err(format!("the shape of '{}' does not follow from the model", change.attention_output));
        };
        if bytes > MEMORY {
            most = most.max(Some((bytes, sample.whole)));
            continue;
        }
        for taking in [false, true] {
            compare(site, world, change, &sample, taking, &mut random)?;
        }
        proofs += 1;
    }
    match most {
        Some((bytes, queries)) if proofs == 0 => Err(format!(
            "a proof of '{}' over {QUERIES} of its {queries} queries takes {} MB; allowed: {}",
            change.attention_output,
            bytes >> 20,
            MEMORY >> 20
        )),
        None if free && proofs < WORLDS => Err(format!(
            "its shapes are known for {proofs} sizes of its free axes only; a proof needs {WORLDS}"
        )),
        _ => Ok(()),
    }
}

fn compare(
    site: &Site<'_>,
    world: &World<'_>,
    change: &Change,
    sample: &Sample,
    taking: bool,
    random: &mut Rng,
) -> Result<(), Reason> {
    // A constant with four axes is a mask, so it has the rows of the masks that are added to it.
    let constant = |(name, array): &(String, Array)| {
        let cut = sample.cut && array.shape.len() == 4;
        (name.clone(), if cut { sample.rows(array.clone()) } else { array.clone() })
    };
    let mut known: HashMap<String, Array> = change.constants.iter().map(constant).collect();
    for (name, role) in &change.reads {
        // Operands are random even if the model determines their elements.
        let fixed = world.array(name).filter(|_| *role != Role::Operand);
        let array = match fixed {
            Some(array) if sample.cut && *role != Role::Factor => sample.rows(array),
            Some(array) => array,
            None => draw(world, name, *role, taking, change, sample, random)?,
        };
        known.insert(name.clone(), array);
    }
    let mut graph = Graph { site, world, change, sample, known: known.clone(), drawn: HashMap::new() };
    let first = if sample.taken.is_some() { &change.attention_output } else { &change.output.0 };
    let mut originals = Vec::new();
    for name in std::iter::once(first).chain(&change.more) {
        let Some(original) = graph.tensor(name, 0) else {
            return Err(graph.stuck(name));
        };
        originals.push(original);
    }
    drop(graph);
    // The rows of a sample have the axes of the node that made the output.
    let rows = sample.taken.is_none() || site.graph.nodes[change.output.1].is_fused();
    let mut made = new(world, change, sample, rows, known)?;
    let names = std::iter::once(&change.output.0).chain(&change.more);
    for (at, (name, original)) in names.zip(&originals).enumerate() {
        let Some(replaced) = made.remove(name) else {
            return Err("the new nodes do not make the output".into());
        };
        let shaped = at > 0 || sample.taken.is_none();
        equal(site, change, original, &replaced, shaped)?;
    }
    Ok(())
}

/// Compares an output of the graph's nodes with that of the new nodes. If `shaped` is set, their shapes must be equal.
fn equal(
    site: &Site<'_>,
    change: &Change,
    original: &Array,
    replaced: &Array,
    shaped: bool,
) -> Result<(), Reason> {
    let same =
        if shaped { original.shape == replaced.shape } else { original.data.len() == replaced.data.len() };
    if !same {
        return Err(format!("the proof failed: shapes {:?} and {:?}", original.shape, replaced.shape));
    }
    let most = original.data.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (at, (a, b)) in original.data.iter().zip(replaced.data.iter()).enumerate() {
        let same = (a - b).abs() <= NEAR * most.max(1.0);
        let unattended = a.is_nan() && *b == 0.0;
        // For a row that attends no key, the nodes yield NaN and the operator yields zeros.
        if a.is_nan() && b.is_finite() && !unattended && site.graph.nodes[change.output.1].is("Attention") {
            return Err("a whole row of its mask may be the lowest number: the runtime answers 0 there, and the operator \
                        the mean of the values"
                .into());
        }
        if !(same || unattended) {
            return Err(format!(
                "the proof failed: element {at} is {a:e} in the graph and {b:e} in the operator"
            ));
        }
    }
    Ok(())
}

/// Draws random elements for an input of the new nodes.
fn draw(
    world: &World<'_>,
    name: &str,
    role: Role,
    taking: bool,
    change: &Change,
    sample: &Sample,
    random: &mut Rng,
) -> Result<Array, Reason> {
    let (Some(shape), Some(kind)) = (world.shape(name), world.kind(name)) else {
        return Err(format!("the shape of '{name}' does not follow from the model"));
    };
    let shape = sample.shape(name, shape, role);
    let Some(n) = count(&shape, world.limits().elements) else {
        return Err(format!("'{name}' of {shape:?} is too large for a proof"));
    };
    let keys = shape.last().copied().unwrap_or(1).max(1);
    // Scores are kept to a few units at any scale, because a proof shows nothing if one key dominates.
    let node = change.operator();
    let scale = node.and_then(|node| node.float("scale")).map_or(1.0, |x| f64::from(x.abs()).max(1e-6));
    let spread = (2.0 / (scale * 8.0)).sqrt().clamp(0.01, 10.0);
    let low = if kind == Kind::F16 { -65504.0 } else { f64::from(f32::MIN) };
    let most = world.count(&change.keys).unwrap_or(0) as f64;
    let element = |i: usize, random: &mut Rng| {
        let first = i.is_multiple_of(keys);
        match role {
            Role::Operand => normal(random) * spread,
            Role::Factor => 0.5 + random.f64(),
            Role::Length => (random.f64() * (most + 1.0)).floor(),
            Role::Condition(attended) => f64::from(u8::from((first || random.f64() < 0.6) == attended)),
            Role::Added | Role::Subtracted => {
                let x = if !taking {
                    normal(random)
                } else if first || random.f64() < 0.6 {
                    0.0
                } else {
                    low
                };
                if role == Role::Added { x } else { -x }
            }
        }
    };
    let data = (0..n).map(|i| kind.rounded(element(i, random))).collect();
    Ok(Array::new(kind, shape, data))
}

/// Evaluator of the graph's original nodes.
struct Graph<'a> {
    site: &'a Site<'a>,
    world: &'a World<'a>,
    change: &'a Change,
    sample: &'a Sample,
    known: HashMap<String, Array>,
    /// Whether tensors follow from an operand, as far as this has been asked.
    drawn: HashMap<String, bool>,
}

impl Graph<'_> {
    fn tensor(&mut self, name: &str, depth: usize) -> Option<Array> {
        if let Some(array) = self.known.get(name) {
            return Some(array.clone());
        }
        // The axis of the sampled queries, counted from the last.
        let walks = [(2, &self.change.walk), (1, &self.change.turned_walk)];
        let queries = walks.iter().find(|(_, walk)| self.sample.taken.is_some() && walk.contains(name));
        let queries = queries.map(|(axis, _)| *axis);
        let sampled = queries.is_some();
        if let Some(array) = self.world.array(name).filter(|_| !sampled && !self.is_drawn(name, 0)) {
            return Some(array);
        }
        let n = *self.site.graph.producer.get(name).filter(|_| depth < DEPTH)?;
        let node = &self.site.graph.nodes[n];
        if let Some(mask) = node.input(0).filter(|mask| node.is("Reshape") && self.sample.is_joined(mask)) {
            let made = self.sample.reshaped(self.known.get(mask)?, self.world.shape(name)?)?;
            self.known.insert(name.to_owned(), made.clone());
            return Some(made);
        }
        let mut arrays = Vec::new();
        for (i, input) in node.inputs.iter().enumerate() {
            if input.is_empty() {
                arrays.push(None);
                continue;
            }
            let array = self.tensor(input, depth + 1)?;
            // A product has the rows of its left factor, and the columns of its right one, so only this factor is cut.
            // The input of a Transpose of scores has been cut. Fused attention cuts its queries itself.
            let cut = queries.filter(|axis| match node.op.as_str() {
                "MatMul" => i + axis == 2,
                "Transpose" => false,
                _ if node.is_fused() => {
                    FusedNode::of(node).is_some_and(|fused| fused.is_mask_of_queries(i, array.shape.len()))
                }
                _ => true,
            });
            arrays.push(Some(match cut {
                Some(axis) => self.sample.along(array, axis),
                None => array,
            }));
        }
        let inputs: Vec<Option<&Array>> = arrays.iter().map(Option::as_ref).collect();
        let taken = self.sample.taken.as_deref().filter(|_| sampled);
        if node.is_fused() {
            let at = node.outputs.iter().position(|output| output == name)?;
            let made = meaning::eval(node, &inputs, self.world.limits(), taken, at)?;
            self.known.insert(name.to_owned(), made.clone());
            return Some(made);
        }
        let made = if sampled && node.is("Reshape") {
            let mut shape = self.world.shape(name)?.to_vec();
            let axis = shape.len().checked_sub(queries?)?;
            shape[axis] = taken?.len();
            let data = arrays.first()?.as_ref()?;
            (count(&shape, usize::MAX) == Some(data.data.len())).then_some(())?;
            vec![Array { kind: data.kind, shape, data: data.data.clone() }]
        } else {
            self.world.eval(node, &inputs)?
        };
        for (name, array) in node.outputs.iter().zip(made) {
            self.known.insert(name.clone(), array);
        }
        self.known.get(name).cloned()
    }

    /// Returns `true` if the elements of a known tensor follow from an operand. The model determines such an operand,
    /// but a proof draws its elements.
    fn is_drawn(&mut self, name: &str, depth: usize) -> bool {
        if let Some(&drawn) = self.drawn.get(name) {
            return drawn;
        }
        let site = self.site;
        let node = site.graph.producer.get(name).map(|&n| &site.graph.nodes[n]);
        let node = node.filter(|node| depth < DEPTH && !node.is("Shape"));
        let is_operand = |(read, role): &(String, Role)| read == name && *role == Role::Operand;
        let drawn = self.change.reads.iter().any(is_operand)
            || node.is_some_and(|node| node.inputs.iter().any(|input| self.is_drawn(input, depth + 1)));
        self.drawn.insert(name.to_owned(), drawn);
        drawn
    }

    /// Returns the reason why the tensor `name` cannot be computed. The search goes back from the tensor to a node that
    /// cannot be computed although its inputs can. The reason names this node. It also states the size of the node's
    /// output if this size is at least 1 MiB.
    fn stuck(&mut self, name: &str) -> Reason {
        let mut name = name.to_owned();
        for _ in 0..DEPTH {
            let Some(&n) = self.site.graph.producer.get(&name) else { break };
            let inputs = self.site.graph.nodes[n].inputs.iter().filter(|input| !input.is_empty());
            match inputs.into_iter().find(|input| self.tensor(input, 0).is_none()) {
                Some(input) => name = input.clone(),
                None => break,
            }
        }
        let operator =
            self.site.graph.producer.get(&name).map_or("", |&n| self.site.graph.nodes[n].op.as_str());
        let bytes =
            self.world.shape(&name).and_then(|shape| count(shape, usize::MAX / 8)).map(|n| (n * 8) >> 20);
        match bytes {
            Some(bytes) if bytes > 0 => format!(
                "the node {operator} that makes '{name}' cannot be computed for a proof: {bytes} MB, or an operator that is not evaluated"
            ),
            _ => format!("the node {operator} that makes '{name}' cannot be computed for a proof"),
        }
    }
}

/// Computes all tensors of the new nodes. `known` contains the tensors that these nodes read. If `rows` is set, the
/// output of an operator whose queries have three axes has three axes; otherwise it has four.
fn new(
    world: &World<'_>,
    change: &Change,
    sample: &Sample,
    rows: bool,
    mut known: HashMap<String, Array>,
) -> Result<HashMap<String, Array>, Reason> {
    for node in &change.nodes {
        let mut inputs: Vec<Option<&Array>> = node.inputs.iter().map(|name| known.get(name)).collect();
        let target: Array;
        let mut whole = false;
        // A mask has been cut before it is reshaped, unless its rows are not those of the queries; an operand is whole.
        if let ("Reshape", [Some(from), Some(shape)], Some(taken)) =
            (node.op.as_str(), &inputs[..], sample.taken.as_ref().filter(|_| sample.cut))
            && from.shape.iter().rev().nth(1) != Some(&sample.whole)
        {
            let mut data = shape.data.to_vec();
            let axis = data.len().saturating_sub(2);
            whole = data.iter().product::<f64>() == from.data.len() as f64;
            if !whole && let Some(rows) = data.get_mut(axis).filter(|rows| **rows == sample.whole as f64) {
                *rows = taken.len() as f64;
            }
            target = Array::new(shape.kind, shape.shape.clone(), data);
            inputs[1] = Some(&target);
        }
        let made = if node.op == OPERATOR {
            Some(oracle(node, &inputs, world.limits(), sample, rows)?)
        } else {
            world.eval(node, &inputs)
        };
        let cut = |array: Array| if whole { sample.rows(array) } else { array };
        let Some(made) = made.map(|all| all.into_iter().map(cut)) else {
            return Err(format!("the new node {} cannot be computed", node.op));
        };
        for (name, array) in node.outputs.iter().zip(made).filter(|(name, _)| !name.is_empty()) {
            known.insert(name.clone(), array);
        }
    }
    Ok(known)
}

/// Elements in the element type of an oracle call.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl Stored {
    /// Converts elements to f16 if `half`, otherwise to f32. Callers set `half` only if every element is an f16 value,
    /// so the conversion to f16 is exact.
    fn of(array: &Array, half: bool) -> Stored {
        if half {
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

/// Computes the operator's outputs with the oracle: the answer, the present keys and the present values.
fn oracle(
    node: &Node,
    inputs: &[Option<&Array>],
    limits: Limits,
    sample: &Sample,
    rows_in_order: bool,
) -> Result<Vec<Array>, Reason> {
    let get = |i: usize| inputs.get(i).copied().flatten();
    let size = |name: &str| node.int(name).and_then(|n| usize::try_from(n).ok());
    let pair = |name: &str| match node.ints(name) {
        Some(&[a, b]) => Some([usize::try_from(a).ok()?, usize::try_from(b).ok()?]),
        _ => None,
    };
    let refuse = |e: elsa_core::argument::ArgumentError| format!("the operator refuses it: {e}");
    let missing = || "the operator has not the inputs that it needs".to_string();
    let whole = get(0).ok_or_else(missing)?;
    let q = &if sample.cut { sample.rows(whole.clone()) } else { whole.clone() };
    // Tensors of rank 4 determine the number of heads if the attribute is absent.
    let heads = size("num_heads").filter(|&n| n > 0);
    let heads =
        heads.or_else(|| q.shape.get(1).copied().filter(|_| q.shape.len() == 4)).ok_or_else(missing)?;
    let kv_heads = size("kv_num_heads").unwrap_or(heads);
    let half = |array: &Array| {
        array.kind == Kind::F16 && array.data.iter().all(|&x| f16::from_f64(x).to_f64() == x || x.is_nan())
    };
    let all_half = (0..3).chain(5..7).filter_map(get).all(half);
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
        stored = vec![Stored::of(q, all_half)];
        ([Ok(one); 3], [0, heads * dim, 2 * heads * dim])
    } else {
        let (k, v) = (get(1).ok_or_else(missing)?, get(2).ok_or_else(missing)?);
        stored = [q, k, v].map(|array| Stored::of(array, all_half)).into();
        ([view("q", q, heads), view("k", k, kv_heads), view("v", v, kv_heads)], [0; 3])
    };
    let elements = |i: usize| stored[if packed { 0 } else { i }].elements(starts[i]);
    let [query, key, value] = views;
    let mask = match get(3) {
        Some(mask) if mask.kind == Kind::BOOL => Some((MaskKind::Bool, mask)),
        Some(mask) => Some((MaskKind::Additive(if half(mask) { DType::F16 } else { DType::F32 }), mask)),
        None => None,
    };
    let mask_view =
        mask.map(|(kind, mask)| MaskView::dense(kind, &mask.shape).map_err(refuse)).transpose()?;
    let views = [query.map_err(refuse)?, key.map_err(refuse)?, value.map_err(refuse)?];
    let [query, key, value] = repeated(views, mask_view.as_ref()).map_err(refuse)?;
    let past = |array: &Array| {
        let view = View::dense("past", Layout::Bhnd, &array.shape, None).map_err(refuse);
        view.map(|view| (view, Stored::of(array, all_half)))
    };
    let pasts = (5..7).filter_map(get).map(past).collect::<Result<Vec<(View, Stored)>, Reason>>()?;
    let lengths: Option<Vec<i64>> = get(7).map(|array| array.data.iter().map(|&n| n as i64).collect());
    let [batch, heads, queries, dim] = query.shape();
    let value_dim = value.dim();
    let all: Vec<usize> = (0..queries).collect();
    let rows: &[usize] = sample.taken.as_deref().filter(|_| !sample.cut).unwrap_or(&all);
    let keys = key.tokens() + pasts.first().map_or(0, |(view, _)| view.tokens());
    let work = [batch, heads, rows.len(), keys, dim + value_dim];
    if count(&work, limits.work).is_none() {
        return Err("it is too large for a proof".into());
    }
    let output =
        View::dense("out", Layout::Bhnd, &[batch, heads, queries, value_dim], None).map_err(refuse)?;
    let mut spec = Spec::new(stored[0].dtype(), query, key, value, output);
    spec.scale = node.float("scale");
    spec.softcap = node.float("softcap");
    let last = size("align_last") == Some(1) || lengths.is_some();
    let aligned = if last { Alignment::BottomRight } else { Alignment::TopLeft };
    spec.causal = (size("is_causal") == Some(1)).then_some(aligned);
    if let Some(&[left, right]) = node.ints("window") {
        let [left, right] = [left, right].map(|side| usize::try_from(side).ok());
        spec.window = Window { left, right };
    }
    spec.short_mask = true;
    spec.key_lengths = lengths.is_some();
    let bytes: Vec<u8>;
    let floats: Stored;
    let mut data = Inputs::new(elements(0), elements(1), elements(2));
    data.lengths.keys = lengths.as_deref();
    if let [(key, keys), (value, values)] = &pasts[..] {
        (spec.past_key, spec.past_value) = (Some(*key), Some(*value));
        (data.past_key, data.past_value) = (Some(keys.elements(0)), Some(values.elements(0)));
    }
    spec.mask = mask_view;
    if let Some((kind, mask)) = mask {
        if kind == MaskKind::Bool {
            bytes = mask.data.iter().map(|&x| u8::from(x != 0.0)).collect();
            data.mask = Some(MaskElements::Bool(&bytes));
        } else {
            floats = Stored::of(mask, half(mask));
            data.mask = Some(MaskElements::Additive(floats.elements(0)));
        }
    }
    let table: Stored;
    if let (Some(array), Some(size)) = (get(4), pair("grid")) {
        table = Stored::of(array, half(array));
        let [entries, heads] = array.shape[..] else { return Err(missing()) };
        spec.bias = Some(BiasView::Table(TableView { dtype: table.dtype(), entries, heads, indexed: false }));
        data.bias = Some(table.elements(0));
        let picture = pair("picture").unwrap_or(size);
        spec.windows = Some(Windows { picture, size, shift: pair("shift").unwrap_or([0, 0]) });
    }
    let problem = spec.check().map_err(refuse)?;
    data.check(&problem).map_err(refuse)?;
    let length = count(&[batch, heads, rows.len(), value_dim], limits.elements);
    let mut answer = vec![0.0; length.ok_or("it is too large for a proof")?];
    let packs = q.shape.len() == 3 && rows_in_order;
    for (b, h, at) in
        (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..rows.len()).map(move |at| (b, h, at))))
    {
        let row = if packs { (b * rows.len() + at) * heads + h } else { (b * heads + h) * rows.len() + at };
        reference::row(&problem, &data, b, h, rows[at], &mut answer[row * value_dim..][..value_dim]);
    }
    let shape = if packs {
        vec![batch, rows.len(), heads * value_dim]
    } else {
        vec![batch, heads, rows.len(), value_dim]
    };
    // Present keys and values are the past ones, then the new ones.
    let mut presents = Vec::new();
    for (new, past) in [(1, 5), (2, 6)].into_iter().take(node.outputs.len().saturating_sub(1)) {
        let own = |new: &Array| if new.shape.len() == 4 { new.shape[1] } else { kv_heads };
        let new = get(new).and_then(|new| in_heads(new, own(new))).ok_or_else(missing)?;
        presents.push(match get(past) {
            Some(past) => appended(past, &new).ok_or_else(missing)?,
            None => new,
        });
    }
    // An attribute that is not listed here would not be covered by the proof.
    let understood = [
        "num_heads",
        "kv_num_heads",
        "packed",
        "scale",
        "softcap",
        "is_causal",
        "align_last",
        "window",
        "grid",
        "picture",
        "shift",
    ];
    let odd = node
        .attributes
        .iter()
        .find(|(name, value)| !understood.contains(&name.as_str()) || matches!(value, Attribute::Other));
    match odd {
        Some((name, _)) => Err(format!("the attribute {name} is not proved")),
        None => Ok([vec![Array::new(q.kind, shape, answer)], presents].concat()),
    }
}
