//! Sizes of every tensor of a model, and the elements of those that follow from constants and shapes alone.
//!
//! The free axes of the inputs get sizes, and the nodes are followed in their order. One such run is a world. What is
//! claimed of a model must hold in every world that was looked at, so that two of them with different sizes tell a
//! constant from what only looks like one.

use super::array::{Array, Kind, Stored, count};
use super::model::{Axis, Declared, Model, Node};
use super::ops::{self, Limits};
use super::shapes::{self, Value};
use std::collections::HashMap;

/// The most elements of a tensor that is computed because all that it depends on is known.
const KNOWN: usize = 1 << 22;

/// The most elements of a constant that is read for its shape's sake, such as the target of a Reshape.
const SMALL: usize = 1 << 12;

/// The most elements that are computed in one world.
const TOTAL: usize = 1 << 26;

/// Reads the elements of a constant that lies in another file.
pub type External<'a> = &'a dyn Fn(&Stored, usize) -> Option<Array>;

/// What is known of the tensors of a graph when its free axes have certain sizes.
pub struct World<'a> {
    model: &'a Model<'a>,
    external: External<'a>,
    limits: Limits,
    /// Sizes of the free axes by name.
    sizes: HashMap<String, usize>,
    values: HashMap<String, Value>,
}

/// The name of a free axis: the model's own, or its place.
fn free(declared: &Declared, axis: usize, name: &str) -> String {
    if name.is_empty() { format!("{}#{axis}", declared.name) } else { name.to_owned() }
}

/// Names and places of the free axes of the inputs: name, rank of the input, axis.
fn free_axes(model: &Model<'_>) -> Vec<(String, usize, usize)> {
    let mut all: Vec<(String, usize, usize)> = Vec::new();
    let constant = |input: &&Declared| !model.graph.initializers.contains_key(&input.name);
    for input in model.graph.inputs.iter().filter(constant) {
        let axes = input.shape.as_deref().unwrap_or_default();
        for (i, axis) in axes.iter().enumerate() {
            if let Axis::Any(name) = axis {
                let name = free(input, i, name);
                if all.iter().all(|(other, ..)| *other != name) {
                    all.push((name, axes.len(), i));
                }
            }
        }
    }
    all
}

/// Batch, tokens and side of a picture in the worlds that are tried.
const SIZES: [[usize; 3]; 5] = [[2, 6, 224], [3, 9, 256], [3, 9, 224], [1, 8, 384], [2, 7, 64]];

/// Up to two worlds in which the shapes of as many attentions as possible are known.
pub fn worlds<'a>(model: &'a Model<'a>, external: External<'a>, limits: Limits) -> Vec<World<'a>> {
    let axes = free_axes(model);
    let mut tried: Vec<(usize, World<'a>)> = Vec::new();
    for sizes in if axes.is_empty() { &SIZES[..1] } else { &SIZES[..] } {
        let [batch, tokens, side] = *sizes;
        let size = |rank: usize, axis: usize| match (rank, axis) {
            (_, 0) => batch,
            (4, 1) => 3,
            (4, _) => side,
            _ => tokens,
        };
        let sizes: HashMap<String, usize> =
            axes.iter().map(|(name, rank, axis)| (name.clone(), size(*rank, *axis))).collect();
        if tried.iter().any(|(_, world)| world.sizes == sizes) {
            continue;
        }
        let world = World::new(model, external, limits, sizes);
        let known = model.graph.nodes.iter().filter(|node| node.op == "Softmax" || node.op == "MatMul");
        let known =
            known.filter(|node| node.outputs.first().is_some_and(|name| world.values.contains_key(name)));
        tried.push((known.count(), world));
        // Two that know as much as any.
        let most = tried.iter().map(|(known, _)| *known).max().unwrap_or(0);
        if tried.iter().filter(|(known, _)| *known == most).count() == 2 {
            break;
        }
    }
    let most = tried.iter().map(|(known, _)| *known).max().unwrap_or(0);
    tried.into_iter().filter(|(known, _)| *known == most).map(|(_, world)| world).take(2).collect()
}

impl<'a> World<'a> {
    fn new(
        model: &'a Model<'a>,
        external: External<'a>,
        limits: Limits,
        sizes: HashMap<String, usize>,
    ) -> World<'a> {
        let mut world = World { model, external, limits, sizes, values: HashMap::new() };
        let declared: HashMap<&str, &Declared> = model
            .graph
            .infos
            .iter()
            .chain(&model.graph.outputs)
            .map(|info| (info.name.as_str(), info))
            .collect();
        for (name, (stored, _)) in &model.graph.initializers {
            let small = || world.stored(stored, SMALL);
            // An input of the same name may bring other elements.
            let data = if world.is_input(name) { None } else { small().map(|array| array.data) };
            let value = Value { kind: stored.kind, shape: stored.shape.clone(), data };
            world.values.insert(name.clone(), value);
        }
        for input in &model.graph.inputs {
            if let Some(value) = world.declared(input) {
                world.values.entry(input.name.clone()).or_insert(value);
            }
        }
        let mut budget = TOTAL.min(limits.elements.saturating_mul(16));
        for node in &model.graph.nodes {
            let made = world.follow(node, &mut budget);
            for (i, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                let value = made.as_ref().and_then(|made| made.get(i).cloned());
                let value = value.or_else(|| world.declared(declared.get(name.as_str())?));
                if let Some(value) = value {
                    world.values.insert(name.clone(), value);
                }
            }
        }
        world
    }

    fn is_input(&self, name: &str) -> bool {
        self.model.graph.given.contains(name)
    }

    fn stored(&self, stored: &Stored, most: usize) -> Option<Array> {
        count(&stored.shape, most)?;
        match stored.external() {
            Some(_) => (self.external)(stored, most),
            None => stored.array(self.model.file, most),
        }
    }

    fn declared(&self, declared: &Declared) -> Option<Value> {
        let axes = declared.shape.as_deref()?.iter().enumerate();
        let shape = axes.map(|(i, axis)| match axis {
            Axis::Size(n) => Some(*n),
            Axis::Any(name) => self.sizes.get(&free(declared, i, name)).copied(),
        });
        Some(Value { kind: declared.kind, shape: shape.collect::<Option<_>>()?, data: None })
    }

    /// What a node makes.
    fn follow(&self, node: &Node, budget: &mut usize) -> Option<Vec<Value>> {
        let model = self.model;
        let inputs: Vec<Option<&Value>> = node.inputs.iter().map(|name| self.values.get(name)).collect();
        let made = shapes::of(node, model.opset, &inputs)?;
        let size: Option<usize> = made.iter().map(|(_, shape)| count(shape, KNOWN)).sum();
        let computed = size.filter(|&size| size <= *budget).and_then(|size| {
            // The shape of a tensor is known where its elements are not.
            if node.is("Shape") || node.is("Size") {
                let shape = &inputs.first().copied().flatten()?.shape;
                count(shape, usize::MAX)?;
                return self.shape_of(node, shape);
            }
            let all = node.inputs.iter().all(|name| name.is_empty() || self.is_known(name));
            if !all || node.outputs.is_empty() {
                return None;
            }
            *budget -= size;
            let arrays: Vec<Option<Array>> = node.inputs.iter().map(|name| self.array(name)).collect();
            let missing =
                arrays.iter().zip(&node.inputs).any(|(array, name)| array.is_none() && !name.is_empty());
            let arrays: Vec<Option<&Array>> = arrays.iter().map(Option::as_ref).collect();
            if missing { None } else { ops::eval(model.file, node, model.opset, &arrays, self.limits) }
        });
        match computed {
            Some(arrays) => Some(arrays.into_iter().map(Value::from).collect()),
            None => Some(made.into_iter().map(|(kind, shape)| Value { kind, shape, data: None }).collect()),
        }
    }

    fn shape_of(&self, node: &Node, shape: &[usize]) -> Option<Vec<Array>> {
        if node.is("Size") {
            let n = count(shape, usize::MAX)? as f64;
            return Some(vec![Array::new(Kind::I64, vec![], vec![n])]);
        }
        let rank = i64::try_from(shape.len()).ok()?;
        let at = |name: &str, default: i64| {
            let x = node.int(name).unwrap_or(default);
            usize::try_from(if x < 0 { x.saturating_add(rank) } else { x }.clamp(0, rank)).ok()
        };
        let (start, end) = (at("start", 0)?, at("end", rank)?);
        Some(vec![Array::ints(shape.get(start..end.max(start))?.iter().copied())])
    }

    fn is_known(&self, name: &str) -> bool {
        let known = self.values.get(name).is_some_and(|value| value.data.is_some());
        known
            || (self.model.graph.initializers.get(name))
                .is_some_and(|(stored, _)| !self.is_input(name) && count(&stored.shape, KNOWN).is_some())
    }

    /// The elements of a tensor that follows from constants and shapes.
    #[must_use]
    pub fn array(&self, name: &str) -> Option<Array> {
        if let Some(array) = self.values.get(name).and_then(Value::array) {
            return Some(array);
        }
        let (stored, _) = self.model.graph.initializers.get(name).filter(|_| !self.is_input(name))?;
        self.stored(stored, KNOWN)
    }

    /// The only element of such a tensor.
    #[must_use]
    pub fn scalar(&self, name: &str) -> Option<f64> {
        self.values.get(name)?.array()?.scalar()
    }

    /// The shape of a tensor.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.values.get(name).map(|value| value.shape.as_slice())
    }

    /// The type of a tensor.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<Kind> {
        self.values.get(name).map(|value| value.kind)
    }

    /// How much may be computed.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What `node` makes of `inputs`.
    #[must_use]
    pub fn eval(&self, node: &Node, inputs: &[Option<&Array>]) -> Option<Vec<Array>> {
        ops::eval(self.model.file, node, self.model.opset, inputs, self.limits)
    }
}
