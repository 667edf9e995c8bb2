//! Facts about a graph for all sizes of its free axes: shapes as polynomials, and values that depend on no free axis.
//!
//! Each free axis is a separate symbol, with or without a name. Two symbols are unified only if the graph would
//! otherwise be undefined; the inner axes of a matrix product are an example. Axes that broadcast stay separate,
//! because either may be 1.

use super::array::{Array, Kind, count};
use super::branch::{self, Surroundings};
use super::model::{Axis, Declared, External, Model, SMALL, stored};
use super::node::Node;
use super::ops::{self, Limits, expanded};
use super::shapes;
use super::single;
use super::size::Size;
use super::value::{self, Data, OutputTypes, Value, counts};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Maximum number of unified symbols.
const TIES: usize = 64;

/// Facts that hold for all sizes of the free axes.
pub struct Symbols {
    values: HashMap<String, Value>,
    /// Tensors whose elements and shape depend only on constants.
    fixed: HashSet<String>,
    /// Names of tensors whose shapes cannot be derived from the nodes that produce them. The model may declare these
    /// shapes.
    told: HashSet<String>,
    /// The free axes. Each entry contains the name of the axis, the rank of its tensor, and its index among the axes of
    /// this tensor. The rank of a floating-point matrix is given as 1, because its rows may be tokens instead of a batch.
    pub axes: Vec<(String, usize, usize)>,
    /// Groups of sizes that broadcast together.
    pub joints: BTreeSet<Vec<Size>>,
    ties: HashMap<String, Size>,
}

/// Returns the name of a free axis. If the axis has no name in the model, a name is made from the name of its tensor
/// and the index of the axis.
fn free(declared: &Declared, axis: usize, name: &str) -> String {
    if name.is_empty() { format!("{}#{axis}", declared.name) } else { name.to_owned() }
}

impl Symbols {
    /// Derives the facts of a model. The derivation starts again each time that two axes are unified.
    pub fn new(model: &Model<'_>, external: External<'_>, limits: Limits) -> Symbols {
        let mut ties = HashMap::new();
        loop {
            let mut symbols = Symbols {
                values: HashMap::new(),
                fixed: HashSet::new(),
                told: HashSet::new(),
                axes: Vec::new(),
                joints: BTreeSet::new(),
                ties,
            };
            let tie = symbols.follow_all(model, external, limits);
            let Some((name, size)) = tie.filter(|_| symbols.ties.len() < TIES) else {
                symbols.note_joints();
                return symbols;
            };
            ties = symbols.ties;
            let one: HashMap<String, Size> = [(name.clone(), size.clone())].into();
            for other in ties.values_mut() {
                *other = other.with(&one).unwrap_or_else(|| other.clone());
            }
            ties.insert(name, size);
        }
    }

    /// Evaluates the nodes in order, and stops after the first node that unifies two axes. Returns the name of the axis
    /// to unify, and the size with which it is unified.
    fn follow_all(
        &mut self,
        model: &Model<'_>,
        external: External<'_>,
        limits: Limits,
    ) -> Option<(String, Size)> {
        let graph = &model.graph;
        let declared: HashMap<&str, &Declared> =
            graph.infos.iter().chain(&graph.outputs).map(|info| (info.name.as_str(), info)).collect();
        for (name, (tensor, _)) in &graph.initializers {
            // A constant with the name of an input is only the default of the input.
            let fixed = !graph.input_names.contains(name);
            let small = fixed.then(|| stored(model, external, tensor, SMALL)).flatten();
            let data = small.map_or(Data::None, |array| Data::Numbers(array.data));
            let Some(shape) = value::sized(&tensor.shape) else { continue };
            self.values.insert(name.clone(), Value { kind: tensor.kind, shape, data });
            if fixed {
                self.fixed.insert(name.clone());
            }
        }
        for input in graph.inputs.iter().filter(|input| !graph.initializers.contains_key(&input.name)) {
            if let Some(value) = self.declared(input) {
                self.values.insert(input.name.clone(), value);
            }
        }
        for node in &graph.nodes {
            let inputs: Vec<Option<&Value>> = node.inputs.iter().map(|name| self.values.get(name)).collect();
            if let Some((a, b)) = shapes::tied(node, &inputs) {
                for (a, b) in [(&a, &b), (&b, &a)] {
                    if let Some(name) = a.name().filter(|name| !b.has(name)) {
                        return Some((name.to_owned(), b.clone()));
                    }
                }
            }
            let pairs = fixed_pairs(node, &inputs);
            let around = Surroundings {
                opset: model.opset,
                outer: &|name| self.values.get(name).cloned(),
                read: &|tensor| stored(model, external, tensor, SMALL),
                elements: &|node, inputs, made| elements(model, node, inputs, made, limits),
            };
            let (made, data): (Option<OutputTypes>, Option<Vec<Data>>) =
                match branch::outputs(node, &inputs, &around) {
                    Some(values) => {
                        let made = values.iter().map(|value| (value.kind, value.shape.clone())).collect();
                        (Some(made), Some(values.into_iter().map(|value| value.data).collect()))
                    }
                    None => {
                        let made = shapes::of(node, model.opset, &inputs);
                        let data =
                            made.as_ref().and_then(|made| elements(model, node, &inputs, made, limits));
                        (made, data)
                    }
                };
            let all = node.inputs.iter().all(|name| name.is_empty() || self.fixed.contains(name));
            let fixed = made.is_some() && all && node.captured.is_empty();
            self.joints.extend(pairs);
            for (i, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                if made.as_ref().is_none_or(|made| made.len() <= i) {
                    self.told.insert(name.clone());
                }
                let value = match made.as_ref().and_then(|made| made.get(i)) {
                    Some((kind, shape)) => {
                        let data = data.as_ref().and_then(|data| data.get(i).cloned()).unwrap_or(Data::None);
                        Some(Value { kind: *kind, shape: shape.clone(), data })
                    }
                    None => declared.get(name.as_str()).and_then(|declared| self.declared(declared)),
                };
                if fixed || value.as_ref().is_some_and(|value| matches!(value.data, Data::Numbers(_))) {
                    self.fixed.insert(name.clone());
                }
                if let Some(value) = value {
                    self.values.insert(name.clone(), value);
                }
            }
        }
        None
    }

    fn declared(&mut self, declared: &Declared) -> Option<Value> {
        let axes = declared.shape.as_deref()?;
        let mut shape = Vec::new();
        for (i, axis) in axes.iter().enumerate() {
            shape.push(match axis {
                Axis::Size(n) => Size::count(*n)?,
                Axis::Any(name) => {
                    let name = free(declared, i, name);
                    if self.axes.iter().all(|(other, ..)| *other != name) {
                        let matrix = axes.len() == 2 && declared.kind.is_float();
                        self.axes.push((name.clone(), if matrix { 1 } else { axes.len() }, i));
                    }
                    self.ties.get(&name).cloned().unwrap_or_else(|| Size::axis(&name))
                }
            });
        }
        Some(Value { kind: declared.kind, shape, data: Data::None })
    }

    fn note_joints(&mut self) {
        let mut all = Vec::new();
        self.values.values().flat_map(|value| &value.shape).for_each(|size| size.joints(&mut all));
        let all: BTreeSet<Vec<Size>> = all.into_iter().map(<[Size]>::to_vec).collect();
        self.joints.extend(all);
    }

    /// Returns `true` if any axis is free and not unified with a size.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.axes.iter().any(|(name, ..)| !self.ties.contains_key(name))
    }

    /// Returns the size with which a free axis has been unified.
    #[must_use]
    pub fn tie(&self, name: &str) -> Option<&Size> {
        self.ties.get(name)
    }

    /// Returns the shape of a tensor.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[Size]> {
        self.values.get(name).map(|value| value.shape.as_slice())
    }

    /// Returns `true` if the shape of a tensor cannot be derived from the inputs of the node that produces it. The
    /// shape is then known only if the model declares it.
    #[must_use]
    pub fn is_told(&self, name: &str) -> bool {
        self.told.contains(name)
    }

    /// Returns the type of a tensor.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<Kind> {
        self.values.get(name).map(|value| value.kind)
    }

    /// Returns the elements of a small tensor of integers as sizes, which may depend on free axes.
    #[must_use]
    pub fn sizes(&self, name: &str) -> Option<Vec<Size>> {
        self.values.get(name)?.sizes()
    }

    /// Returns the elements of a small tensor, if they follow from constants and fixed sizes.
    #[must_use]
    pub fn numbers(&self, name: &str) -> Option<&[f64]> {
        match &self.values.get(name)?.data {
            Data::Numbers(all) => Some(all.as_slice()),
            _ => None,
        }
    }

    /// Returns `true` if a tensor's elements depend only on constants.
    #[must_use]
    pub fn is_fixed(&self, name: &str) -> bool {
        self.fixed.contains(name)
    }
}

/// Returns pairs of sizes that `node` broadcasts together, if the size of the result does not record the pair. A pair
/// consists of a free axis and a known size above 1, or of an axis of an attention's mask and the same axis of its
/// scores.
fn fixed_pairs(node: &Node, inputs: &[Option<&Value>]) -> Vec<Vec<Size>> {
    let skip = if node.is("MatMul") { 2 } else { 0 };
    let elementwise =
        ["Add", "Sub", "Mul", "Div", "Pow", "Where", "And", "Or", "Max", "Min", "Expand", "MatMul"];
    if node.is_fused() {
        return single::joined(node, &|i| Some(inputs.get(i).copied().flatten()?.shape.as_slice()));
    }
    if !elementwise.iter().any(|op| node.is(op)) {
        return vec![];
    }
    let shapes = inputs.iter().flatten();
    let shapes: Vec<Vec<Size>> = if node.is("Expand") {
        let target = inputs.get(1).copied().flatten().and_then(Value::sizes);
        shapes.take(1).map(|value| value.shape.clone()).chain(target).collect()
    } else {
        shapes.map(|value| value.shape.clone()).collect()
    };
    let mut all = Vec::new();
    for (i, a) in shapes.iter().enumerate() {
        for b in &shapes[i + 1..] {
            for (a, b) in a.iter().rev().zip(b.iter().rev()).skip(skip) {
                let free = |a: &Size, b: &Size| a.known().is_some_and(|n| n > 1) && b.known().is_none();
                if free(a, b) || free(b, a) {
                    all.push(vec![a.clone(), b.clone()]);
                }
            }
        }
    }
    all
}

/// Computes the elements of each output of `node`, if they are few and can be derived from constants and shapes.
pub fn elements(
    model: &Model<'_>,
    node: &Node,
    inputs: &[Option<&Value>],
    made: &OutputTypes,
    limits: Limits,
) -> Option<Vec<Data>> {
    if node.is("Shape") || node.is("Size") {
        let shape = &inputs.first().copied().flatten()?.shape;
        if node.is("Size") {
            return Some(vec![data(vec![Size::product(shape)?])]);
        }
        let rank = i64::try_from(shape.len()).ok()?;
        let at = |name: &str, default: i64| {
            let x = node.int(name).unwrap_or(default);
            usize::try_from(if x < 0 { x.saturating_add(rank) } else { x }.clamp(0, rank)).ok()
        };
        let (start, end) = (at("start", 0)?, at("end", rank)?);
        return Some(vec![data(shape.get(start..end.max(start))?.to_vec())]);
    }
    let shapes: Vec<Vec<usize>> = made.iter().map(|(_, shape)| counts(shape)).collect::<Option<_>>()?;
    for shape in &shapes {
        count(shape, SMALL.min(limits.elements))?;
    }
    let known = |i: usize| !matches!(inputs[i].map(|value| &value.data), None | Some(Data::None));
    let missing = (0..inputs.len()).any(|i| node.input(i).is_some() && !known(i));
    if missing || node.outputs.is_empty() {
        return None;
    }
    let number = |value: &Value| match &value.data {
        Data::Numbers(all) => Some(Array { kind: value.kind, shape: value.counts()?, data: Rc::clone(all) }),
        _ => None,
    };
    if inputs.iter().flatten().all(|value| matches!(value.data, Data::Numbers(_))) {
        let arrays: Vec<Option<Array>> = inputs.iter().map(|value| value.and_then(number)).collect();
        if arrays.iter().zip(inputs).any(|(array, value)| array.is_none() && value.is_some()) {
            return None;
        }
        let arrays: Vec<Option<&Array>> = arrays.iter().map(Option::as_ref).collect();
        let made = ops::eval(model.file, node, model.opset, &arrays, limits)?;
        return Some(made.into_iter().map(|array| Data::Numbers(array.data)).collect());
    }
    let moving = ["Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Identity"];
    let moving = moving.iter().chain(&["Expand", "Split", "Tile", "Concat"]).any(|op| node.is(op));
    let whole = |value: &Value| !value.kind.is_float();
    if moving {
        // Element indices pass through the node and show where each element goes.
        let mut table: Vec<Size> = Vec::new();
        let mut arrays = Vec::new();
        for (i, value) in inputs.iter().enumerate() {
            let Some(value) = value else {
                arrays.push(None);
                continue;
            };
            if i == 0 || node.is("Concat") {
                let from = table.len();
                table.extend(exact(value)?);
                let numbers = (from..table.len()).map(|i| i as f64).collect();
                arrays.push(Some(Array::new(Kind::F64, value.counts()?, numbers)));
            } else {
                arrays.push(Some(number(value)?));
            }
        }
        let arrays: Vec<Option<&Array>> = arrays.iter().map(Option::as_ref).collect();
        let made = ops::eval(model.file, node, model.opset, &arrays, limits)?;
        let pick = |x: &f64| table.get(*x as usize).cloned();
        return made
            .iter()
            .map(|array| Some(data(array.data.iter().map(pick).collect::<Option<_>>()?)))
            .collect();
    }
    let first = inputs.first().copied().flatten()?;
    if node.is("Cast") {
        // A cast to a wide type does not change an integer.
        let wide = [Kind::I64, Kind::I32, Kind::F32, Kind::F64].contains(&made.first()?.0);
        return (wide && whole(first)).then(|| vec![data(exact(first).unwrap_or_default())]);
    }
    // Returns the elements of an input as sizes, broadcast to the shape of the output.
    let spread = |i: usize| -> Option<Vec<Size>> {
        let value = inputs.get(i).copied().flatten()?;
        let table = exact(value)?;
        let numbers = (0..table.len()).map(|i| i as f64).collect();
        let places = expanded(&Array::new(Kind::F64, value.counts()?, numbers), shapes.first()?)?;
        places.iter().map(|&x| table.get(x as usize).cloned()).collect()
    };
    let truth = |x: bool| Some(Size::from(i64::from(x)));
    let made: Option<Vec<Size>> = match (node.op.as_str(), inputs.len()) {
        ("Neg", 1) => spread(0)?.iter().map(|a| a.times(&Size::from(-1))).collect(),
        ("Where", 3) => {
            let (c, a, b) = (spread(0)?, spread(1)?, spread(2)?);
            let picked = c.iter().zip(a.into_iter().zip(b));
            picked.map(|(c, (a, b))| Some(if c.known()? != 0 { a } else { b })).collect()
        }
        (op, 2) => {
            let (a, b) = (spread(0)?, spread(1)?);
            let each = |(a, b): (&Size, &Size)| match op {
                "Add" => a.plus(b),
                "Sub" => a.minus(b),
                "Mul" => a.times(b),
                "Div" if whole(first) && a.is_count() && b.is_count() => a.over(b),
                "Min" if whole(first) => Some(a.least(b)),
                "Max" if whole(first) => Some(a.most(b)),
                "Equal" => {
                    let more = a.minus(b)?;
                    match more.known() {
                        Some(n) => truth(n == 0),
                        // The difference is at least 1 for all sizes.
                        None if more.minus(&Size::from(1))?.is_count() => truth(false),
                        None => None,
                    }
                }
                "Less" => truth(a.minus(b)?.known()? < 0),
                "Greater" => truth(a.minus(b)?.known()? > 0),
                _ => None,
            };
            a.iter().zip(&b).map(each).collect()
        }
        _ => None,
    };
    Some(vec![data(made?)])
}

/// Returns the elements of `value` as sizes, if they are known and all of them are integers.
fn exact(value: &Value) -> Option<Vec<Size>> {
    if let Data::Numbers(all) = &value.data {
        all.iter().all(|x| x.fract() == 0.0 && x.abs() < 1e15).then_some(())?;
    }
    value.sizes()
}

/// Converts sizes to the elements of a tensor. The elements are numbers if no size depends on a free axis; otherwise
/// they are sizes.
fn data(all: Vec<Size>) -> Data {
    match all.iter().map(|size| size.known().map(|n| n as f64)).collect::<Option<Vec<f64>>>() {
        Some(numbers) => Data::Numbers(Rc::new(numbers)),
        None => Data::Sizes(Rc::new(all)),
    }
}
