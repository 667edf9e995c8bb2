//! Shapes of a model's tensors for concrete sizes of the free axes, and those elements of the tensors that follow from
//! constants and shapes.
//!
//! A world assigns sizes to the free axes of the inputs and evaluates the nodes in order. The symbols of a model
//! provide the facts that hold for all sizes. Worlds provide the numbers with which a proof compares the original and
//! the rewritten graph. In a world, no two axes have the same size, except for axes of size 1 and axes that are
//! broadcast together.

use super::array::{Array, Kind, count};
use super::branch::{self, Surroundings};
use super::model::{External, Model, SMALL, stored};
use super::node::{Attribute, Node};
use super::ops::{self, Limits};
use super::shapes;
use super::size::Size;
use super::symbols::{Symbols, elements};
use super::value::{Data, Value, counts, sized};
use std::collections::HashMap;
use std::rc::Rc;

/// Maximum number of elements of a tensor. The elements of a larger tensor are not computed.
const KNOWN: usize = 1 << 22;

/// Maximum total number of elements that are computed in one world. Beyond it, only small tensors are computed, such as
/// shapes.
const TOTAL: usize = 1 << 23;

/// Facts about a graph's tensors for one choice of sizes of its free axes.
pub struct World<'a> {
    model: &'a Model<'a>,
    external: External<'a>,
    limits: Limits,
    symbols: &'a Symbols,
    /// Sizes of the free axes by name.
    sizes: HashMap<String, usize>,
    values: HashMap<String, Known>,
}

/// Facts about a tensor in one world.
#[derive(Clone, Debug)]
struct Known {
    kind: Kind,
    shape: Vec<usize>,
    /// Elements, if they follow from constants and shapes alone.
    data: Option<Rc<Vec<f64>>>,
}

impl Known {
    fn of(value: Value) -> Option<Known> {
        let shape = value.counts()?;
        let data = if let Data::Numbers(all) = value.data { Some(all) } else { None };
        Some(Known { kind: value.kind, shape, data })
    }

    fn array(&self) -> Option<Array> {
        let data = Rc::clone(self.data.as_ref()?);
        Some(Array { kind: self.kind, shape: self.shape.clone(), data })
    }

    fn value(&self) -> Option<Value> {
        let data = self.data.as_ref().map_or(Data::None, |data| Data::Numbers(Rc::clone(data)));
        Some(Value { kind: self.kind, shape: sized(&self.shape)?, data })
    }
}

/// Sides of images to try. The convolutions and poolings of a model may reduce a smaller image to nothing.
const SIDES: [usize; 6] = [224, 256, 384, 64, 96, 128];

/// Sizes for free axes, all different within a world.
const PRIMES: [usize; 16] = [5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61];

/// Minimum number of worlds for a proof in a model with free axes.
pub const WORLDS: usize = 5;

/// Largest constant of the model that influences the token counts. Some worlds have token counts that exceed the
/// constants of the model; constants above this limit are ignored there.
const BEYOND: usize = 1 << 10;

/// Rule that assigns sizes to the free axes of one world.
#[derive(Clone, Copy)]
struct Way {
    /// Index in the list of batch sizes at which the assignment starts.
    batch: usize,
    /// Function that returns the size of token axis `i` out of `n` token axes. Some rules choose a size above `beyond`.
    tokens: fn(i: usize, n: usize, beyond: usize) -> usize,
    /// Bit set of the jointly broadcast axes that get size 1.
    ones: usize,
}

/// Rules to try. Some rules give size 1 to the first token axis, to the last token axis, or to all token axes. With
/// other rules, the first token axis is the shortest or the longest, all sizes exceed the model's constants, or all
/// sizes are even.
const WAYS: [Way; 10] = [
    Way { batch: 1, tokens: |i, _, _| PRIMES[i % 16] + 64 * (i / 16), ones: 0 },
    Way {
        batch: 0,
        tokens: |i, n, _| PRIMES[(n - 1 - i) % 16 + usize::from(n < 8)] + 64 * (i / 16),
        ones: 0,
    },
    Way { batch: 2, tokens: |i, _, _| if i == 0 { 1 } else { PRIMES[i % 16] + 64 * (i / 16) }, ones: 1 },
    Way {
        batch: 3,
        tokens: |i, n, _| if i + 1 == n { 1 } else { PRIMES[i % 16 + 1 - i % 16 / 15] + 64 * (i / 16) },
        ones: 2,
    },
    Way { batch: 0, tokens: |i, _, beyond| beyond + 3 + 4 * i, ones: 0 },
    Way { batch: 1, tokens: |i, n, beyond| beyond + 2 + 6 * (n - i), ones: 0 },
    Way { batch: 4, tokens: |_, _, _| 1, ones: 0 },
    Way { batch: 5, tokens: |i, _, _| 8 + 4 * i, ones: 3 },
    Way { batch: 3, tokens: |i, _, _| PRIMES[(3 * i + 4) % 16] + 64 * (i / 16), ones: 0 },
    Way { batch: 4, tokens: |i, _, _| PRIMES[(15 - i % 16 + i / 16) % 16] + 64 * (i / 16), ones: 1 },
];

/// Returns the largest of the following numbers: the sides of tables, and the constants in arithmetic on positions.
/// Numbers above [`BEYOND`] are left out. If all remaining numbers are below 12, returns 12.
fn beyond(model: &Model<'_>, external: External<'_>) -> usize {
    let graph = &model.graph;
    let bounds = [
        "Min",
        "Max",
        "Less",
        "LessOrEqual",
        "Greater",
        "GreaterOrEqual",
        "Equal",
        "Sub",
        "Add",
        "Div",
        "Mod",
        "Range",
        "Slice",
        "Trilu",
        "Clip",
        "Where",
        "Gather",
    ];
    let mut most = 12;
    for node in graph.nodes.iter().filter(|node| bounds.iter().any(|op| node.is(op))) {
        for name in &node.inputs {
            let constant = graph.initializers.get(name).map(|(tensor, _)| tensor);
            let made = graph.producer.get(name).map(|&n| &graph.nodes[n]).filter(|node| node.is("Constant"));
            let made = made.and_then(|node| match node.attributes.get("value") {
                Some(Attribute::Tensor(tensor)) => Some(&**tensor),
                _ => None,
            });
            let Some(tensor) = constant.or(made) else { continue };
            let mut found: Vec<usize> = Vec::new();
            let rank = if node.is("Gather") { 3 } else { 2 };
            if (node.is("Slice") || node.is("Gather") || node.is("Where")) && tensor.shape.len() >= rank {
                found.extend(tensor.shape.iter().rev().take(2));
            }
            if count(&tensor.shape, 1).is_some() && !node.is("Gather") {
                let value = stored(model, external, tensor, 1).and_then(|array| array.scalar());
                found.extend(value.filter(|x| x.abs() <= BEYOND as f64).map(|x| x.abs() as usize));
            }
            most = found.into_iter().filter(|&n| n <= BEYOND).fold(most, usize::max);
        }
    }
    most
}

/// Assigns sizes to the free axes by the rule `way`. Images have sides of size `side`. If `side` is `None`, the axes of
/// images get sizes in the same way as token axes.
fn sizes(symbols: &Symbols, way: Way, side: Option<usize>, beyond: usize) -> HashMap<String, usize> {
    let mut sizes = HashMap::new();
    let is_batch = |rank: usize, axis: usize| axis == 0 && rank > 1 || (rank, axis) == (4, 1);
    let free: Vec<&(String, usize, usize)> =
        symbols.axes.iter().filter(|(name, ..)| symbols.tie(name).is_none()).collect();
    let tokens = free.iter().filter(|(_, rank, axis)| !is_batch(*rank, *axis)).count();
    let (mut batches, mut nth) = (0, 0);
    for (name, rank, axis) in free {
        let n = if is_batch(*rank, *axis) {
            batches += 1;
            match (side, *rank, *axis) {
                (Some(_), 4, 1) => 3,
                _ => [1, 2, 3, 4, 5, 7][(way.batch + batches - 1) % 6] + 10 * ((batches - 1) / 6),
            }
        } else {
            nth += 1;
            match side {
                // In every other world, images are not square.
                Some(side) if *rank == 4 => side * (1 + usize::from(*axis == 3) * (way.batch % 2)),
                _ => (way.tokens)(nth - 1, tokens, beyond),
            }
        };
        sizes.insert(name.clone(), n);
    }
    // Jointly broadcast axes get size 1 or a common size. A member that is not a free axis determines the common size.
    for _ in 0..2 {
        for (at, joint) in symbols.joints.iter().enumerate() {
            let rank = |size: &Size| match (size.known(), size.name()) {
                (Some(_), _) => 0,
                (None, None) => 1,
                _ => 2,
            };
            let Some(first) = joint.iter().min_by_key(|size| rank(size)) else { continue };
            let Some(whole) = first.at(&sizes).and_then(|n| usize::try_from(n).ok()) else { continue };
            for (i, name) in joint.iter().enumerate().filter_map(|(i, size)| Some((i, size.name()?))) {
                if Some(name) != first.name() || way.ones >> (at + i) & 1 == 1 {
                    sizes.insert(name.to_owned(), if way.ones >> (at + i) & 1 == 1 { 1 } else { whole });
                }
            }
        }
    }
    sizes
}

/// Rule for the sizes at which the multiply-adds of a model are counted.
const TYPICAL: Way = Way { batch: 0, tokens: |_, _, _| 128, ones: 0 };

/// Builds the world in which the first batch has size 1, images have sides of 224, and token axes have size 128.
pub fn typical<'a>(
    model: &'a Model<'a>,
    external: External<'a>,
    limits: Limits,
    symbols: &'a Symbols,
) -> World<'a> {
    let pictures = model.graph.nodes.iter().any(|node| node.is("Conv"));
    let sizes = sizes(symbols, TYPICAL, pictures.then_some(SIDES[0]), 0);
    World::new(model, external, limits, symbols, sizes)
}

/// Builds one world if no axis is free, and otherwise one for each distinct assignment of sizes. Counts the softmaxes
/// and matrix products of known shape in each world, and keeps only the worlds with the largest count.
pub fn worlds<'a>(
    model: &'a Model<'a>,
    external: External<'a>,
    limits: Limits,
    symbols: &'a Symbols,
) -> Vec<World<'a>> {
    let free = symbols.is_free();
    let pictures = model.graph.nodes.iter().any(|node| node.is("Conv"));
    let beyond = beyond(model, external);
    let mut ways: Vec<(Way, Option<usize>)> = WAYS.iter().map(|&way| (way, None)).collect();
    if pictures {
        ways.extend(SIDES.iter().zip(WAYS.iter().cycle()).map(|(&side, &way)| (way, Some(side))));
    }
    let mut tried: Vec<(usize, World<'a>)> = Vec::new();
    for (way, side) in ways.into_iter().take(if free { usize::MAX } else { 1 }) {
        let sizes = sizes(symbols, way, side, beyond);
        if tried.iter().any(|(_, world)| world.sizes == sizes) {
            continue;
        }
        let world = World::new(model, external, limits, symbols, sizes);
        let known = model.graph.nodes.iter().filter(|node| node.op == "Softmax" || node.op == "MatMul");
        let known =
            known.filter(|node| node.outputs.first().is_some_and(|name| world.values.contains_key(name)));
        tried.push((known.count(), world));
    }
    let most = tried.iter().map(|(known, _)| *known).max().unwrap_or(0);
    tried.into_iter().filter(|(known, _)| *known == most).map(|(_, world)| world).collect()
}

impl<'a> World<'a> {
    /// Creates the world in which the free axes have `sizes`.
    pub fn new(
        model: &'a Model<'a>,
        external: External<'a>,
        limits: Limits,
        symbols: &'a Symbols,
        sizes: HashMap<String, usize>,
    ) -> World<'a> {
        let mut world = World { model, external, limits, symbols, sizes, values: HashMap::new() };
        for (name, (tensor, _)) in &model.graph.initializers {
            let small = || stored(model, external, tensor, SMALL);
            // An input of the same name may replace these elements.
            let data = if world.is_input(name) { None } else { small().map(|array| array.data) };
            let known = Known { kind: tensor.kind, shape: tensor.shape.clone(), data };
            world.values.insert(name.clone(), known);
        }
        for input in &model.graph.inputs {
            if let Some(known) = world.declared(&input.name) {
                world.values.entry(input.name.clone()).or_insert(known);
            }
        }
        let mut budget = TOTAL.min(limits.elements.saturating_mul(16));
        for node in &model.graph.nodes {
            let made = world.follow(node, &mut budget);
            for (i, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                let known = match made.as_ref().and_then(|made| made.get(i).cloned()) {
                    // A shape must agree with the facts that hold for all sizes.
                    Some(known) => Some(known).filter(|known| {
                        let shape = symbols.shape(name).and_then(|shape| world.shape_at(shape));
                        shape.is_none_or(|shape| shape == known.shape)
                    }),
                    None => world.declared(name).filter(|_| symbols.is_told(name)),
                };
                if let Some(known) = known {
                    world.values.insert(name.clone(), known);
                }
            }
        }
        world
    }

    fn is_input(&self, name: &str) -> bool {
        self.model.graph.input_names.contains(name)
    }

    fn shape_at(&self, shape: &[Size]) -> Option<Vec<usize>> {
        shape.iter().map(|size| self.count(size)).collect()
    }

    /// Derives the shape and type of a tensor from the symbols. Requires that the tensor is not the output of an
    /// evaluated node.
    fn declared(&self, name: &str) -> Option<Known> {
        let shape = self.shape_at(self.symbols.shape(name)?)?;
        Some(Known { kind: self.symbols.kind(name)?, shape, data: None })
    }

    /// Evaluates a node. Elements are computed if all inputs are known, and the outputs are small or have at most
    /// `budget` elements.
    fn follow(&self, node: &Node, budget: &mut usize) -> Option<Vec<Known>> {
        let model = self.model;
        let inputs: Vec<Option<Value>> =
            node.inputs.iter().map(|name| self.values.get(name)?.value()).collect();
        let inputs: Vec<Option<&Value>> = inputs.iter().map(Option::as_ref).collect();
        let around = Surroundings {
            opset: model.opset,
            outer: &|name| self.values.get(name)?.value(),
            read: &|tensor| stored(model, self.external, tensor, SMALL),
            elements: &|node, inputs, made| elements(model, node, inputs, made, self.limits),
        };
        if let Some(values) = branch::outputs(node, &inputs, &around) {
            return values.into_iter().map(Known::of).collect();
        }
        let mut made = Vec::new();
        for (kind, shape) in shapes::of(node, model.opset, &inputs)? {
            made.push((kind, counts(&shape)?));
        }
        let size: Option<usize> = made.iter().map(|(_, shape)| count(shape, KNOWN)).sum();
        let computed = size.filter(|&size| size <= (*budget).max(SMALL)).and_then(|size| {
            // A tensor's shape may be known even if its elements are not.
            if node.is("Shape") || node.is("Size") {
                let shape = &self.values.get(node.input(0)?)?.shape;
                count(shape, usize::MAX)?;
                return self.shape_of(node, shape);
            }
            let all = node.inputs.iter().all(|name| name.is_empty() || self.is_known(name));
            if !all || node.outputs.is_empty() {
                return None;
            }
            *budget = budget.saturating_sub(size);
            let arrays: Vec<Option<Array>> = node.inputs.iter().map(|name| self.array(name)).collect();
            let missing =
                arrays.iter().zip(&node.inputs).any(|(array, name)| array.is_none() && !name.is_empty());
            let arrays: Vec<Option<&Array>> = arrays.iter().map(Option::as_ref).collect();
            if missing { None } else { ops::eval(model.file, node, model.opset, &arrays, self.limits) }
        });
        match computed {
            Some(arrays) => Some(
                arrays
                    .into_iter()
                    .map(|array| Known { kind: array.kind, shape: array.shape, data: Some(array.data) })
                    .collect(),
            ),
            None => Some(made.into_iter().map(|(kind, shape)| Known { kind, shape, data: None }).collect()),
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

    /// Returns `true` if the elements of tensor `name` follow from constants and shapes. Reads no elements.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        let known = self.values.get(name).is_some_and(|value| value.data.is_some());
        known
            || (self.model.graph.initializers.get(name))
                .is_some_and(|(stored, _)| !self.is_input(name) && count(&stored.shape, KNOWN).is_some())
    }

    /// Returns the elements of tensor `name` if they follow from constants and shapes.
    #[must_use]
    pub fn array(&self, name: &str) -> Option<Array> {
        if let Some(array) = self.values.get(name).and_then(Known::array) {
            return Some(array);
        }
        let (stored, _) = self.model.graph.initializers.get(name).filter(|_| !self.is_input(name))?;
        self::stored(self.model, self.external, stored, KNOWN)
    }

    /// Returns the element of a one-element tensor if it follows from constants and shapes.
    #[must_use]
    pub fn scalar(&self, name: &str) -> Option<f64> {
        self.values.get(name)?.array()?.scalar()
    }

    /// Returns the shape of tensor `name`.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.values.get(name).map(|value| value.shape.as_slice())
    }

    /// Returns the element type of tensor `name`.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<Kind> {
        self.values.get(name).map(|value| value.kind)
    }

    /// Evaluates a size in this world.
    #[must_use]
    pub fn count(&self, size: &Size) -> Option<usize> {
        usize::try_from(size.at(&self.sizes)?).ok()
    }

    /// Returns the names and the sizes of the free axes for a message; an empty text if no axis is free.
    #[must_use]
    pub fn words(&self) -> String {
        let mut sizes: Vec<String> = self.sizes.iter().map(|(name, n)| format!("{name} = {n}")).collect();
        sizes.sort();
        sizes.join(", ")
    }

    /// Returns the limits of this world's computations.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Computes `node` on `inputs`.
    #[must_use]
    pub fn eval(&self, node: &Node, inputs: &[Option<&Array>]) -> Option<Vec<Array>> {
        ops::eval(self.model.file, node, self.model.opset, inputs, self.limits)
    }
}
